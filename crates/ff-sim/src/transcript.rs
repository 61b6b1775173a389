//! What callers were answered, written down on one store and compared on another.

use std::collections::VecDeque;

/// One call, or one look at what a call brought, with what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) call: String,
    pub(crate) answer: String,
}

/// Where two stores part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parting {
    pub(crate) step: usize,
    pub(crate) call: String,
    pub(crate) reference: String,
    pub(crate) other: String,
}

/// The answers of a history.
#[derive(Default)]
pub(crate) enum Transcript {
    /// Nobody wants to know.
    #[default]
    Unwritten,
    /// Written down.
    Written(VecDeque<Line>),
    /// Compared with what was written down.
    Compared { wanted: VecDeque<Line>, parting: Option<Parting> },
}

impl Transcript {
    /// Takes one line; `false` once it is not what was written down.
    pub(crate) fn take(&mut self, step: usize, line: Line) -> bool {
        match self {
            Self::Unwritten => true,
            Self::Written(lines) => {
                lines.push_back(line);
                true
            }
            Self::Compared { wanted, parting } => {
                let expected = wanted.pop_front();
                if expected.as_ref() == Some(&line) {
                    return true;
                }
                parting.get_or_insert_with(|| parting_of(step, expected, line));
                false
            }
        }
    }

    /// What was written down, to be compared with.
    pub(crate) fn into_compared(self) -> Self {
        match self {
            Self::Written(wanted) => Self::Compared { wanted, parting: None },
            other => other,
        }
    }

    /// How many lines were written down and not compared.
    pub(crate) fn left(&self) -> usize {
        match self {
            Self::Unwritten => 0,
            Self::Written(lines) | Self::Compared { wanted: lines, .. } => lines.len(),
        }
    }
}

fn parting_of(step: usize, expected: Option<Line>, line: Line) -> Parting {
    match expected {
        Some(expected) if expected.call == line.call => {
            Parting { step, call: line.call, reference: expected.answer, other: line.answer }
        }
        expected => Parting {
            step,
            call: "which call comes next".to_owned(),
            reference: expected.map_or_else(|| "none".to_owned(), |line| format!("{} -> {}", line.call, line.answer)),
            other: format!("{} -> {}", line.call, line.answer),
        },
    }
}
