use std::fmt;

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the repository's root; a whole crate or target where no single file is at fault.
    pub place: String,
    /// The line, counted from 1, when the finding has one.
    pub line: Option<usize>,
    /// What is wrong, in words that say how to repair it.
    pub what: String,
}

impl Finding {
    /// A finding about a whole file, crate or target.
    pub fn whole(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), line: None, what: what.into() }
    }

    /// A finding on one line.
    pub fn at(place: impl Into<String>, line: usize, what: impl Into<String>) -> Self {
        Self { place: place.into(), line: Some(line), what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(out, "{}:{line}: {}", self.place, self.what),
            None => write!(out, "{}: {}", self.place, self.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_like_a_compiler_message() {
        assert_eq!(Finding::at("a.rs", 3, "too long").to_string(), "a.rs:3: too long");
        assert_eq!(Finding::whole("a.rs", "too long").to_string(), "a.rs: too long");
    }
}
