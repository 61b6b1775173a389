//! What happened, step by step.

use std::collections::{BTreeMap, VecDeque};

/// How often an operation had which fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Done.
    pub done: u64,
    /// Refused.
    pub refused: u64,
    /// Nobody could tell.
    pub lost: u64,
}

/// The record of one seed.
#[derive(Debug, Default)]
pub(crate) struct History {
    lines: VecDeque<(usize, String)>,
    keep: Option<usize>,
    step: usize,
    hash: u64,
    tally: BTreeMap<&'static str, Tally>,
}

/// Steps that are kept when only the end of a history is wanted.
pub(crate) const LAST_STEPS: usize = 60;

impl History {
    /// A history that remembers everything, or only its last steps.
    pub(crate) fn new(whole: bool) -> Self {
        Self { keep: (!whole).then_some(LAST_STEPS), hash: 0xcbf2_9ce4_8422_2325, ..Self::default() }
    }

    /// Begins a step.
    pub(crate) fn begin(&mut self, step: usize) {
        self.step = step;
        while let (Some(keep), Some((first, _))) = (self.keep, self.lines.front()) {
            if first + keep > step {
                break;
            }
            self.lines.pop_front();
        }
    }

    /// Adds a line.
    pub(crate) fn note(&mut self, line: String) {
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.lines.push_back((self.step, line));
    }

    /// Counts a call.
    pub(crate) fn count(&mut self, op: &'static str, fate: impl FnOnce(&mut Tally) -> &mut u64) {
        *fate(self.tally.entry(op).or_default()) += 1;
    }

    pub(crate) const fn step(&self) -> usize {
        self.step
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn tally(&self) -> &BTreeMap<&'static str, Tally> {
        &self.tally
    }

    /// The lines that were kept, with short ids.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.iter().map(|(step, line)| format!("{step:>5}  {}", shorten(line))).collect()
    }
}

/// Replaces every UUID by its last six digits.
pub(crate) fn shorten(text: &str) -> String {
    const LEN: usize = 36;
    let bytes = text.as_bytes();
    let is_uuid = |at: usize| {
        bytes.get(at..at + LEN).is_some_and(|slice| {
            slice.iter().enumerate().all(|(i, byte)| match i {
                8 | 13 | 18 | 23 => *byte == b'-',
                _ => byte.is_ascii_hexdigit(),
            })
        })
    };
    let (mut out, mut from, mut at) = (String::with_capacity(text.len()), 0, 0);
    while at + LEN <= bytes.len() {
        if is_uuid(at) {
            out.push_str(&text[from..at]);
            out.push('~');
            out.push_str(&text[at + LEN - 6..at + LEN]);
            at += LEN;
            from = at;
        } else {
            at += 1;
        }
    }
    out.push_str(&text[from..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_shortened_and_everything_else_stays() {
        let text = "é {fp:3}:0190f5e2-0000-7000-8000-0000deadbeef done";

        assert_eq!(shorten(text), "é {fp:3}:~adbeef done");
    }

    #[test]
    fn only_the_last_steps_stay() {
        let mut history = History::new(false);
        for step in 0..LAST_STEPS + 10 {
            history.begin(step);
            history.note(format!("step {step}"));
        }

        assert_eq!(history.lines().len(), LAST_STEPS);
    }
}
