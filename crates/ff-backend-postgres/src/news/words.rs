//! What a notification says: who tells, then one word per line.

use ff_core::TimestampMs;
use ff_engine::index::Topic;

/// The word for everything.
pub(super) const ALL: &str = "*";

/// The word of somebody who has come, and has no news.
pub(super) const HELLO: &str = "h";

/// Who tells news that everybody shall hear, the process that caused them, too.
pub(super) const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

/// News from nobody in particular: something is due, and has been for long.
pub(crate) const SOMETHING_IS_DUE: &str = "00000000-0000-0000-0000-000000000000\nd0";

/// The word for something that is due at a time.
pub(super) fn due(at: TimestampMs) -> String {
    format!("d{}", at.0)
}

/// The word for an alarm at a time.
pub(super) fn alarm(at: TimestampMs) -> String {
    format!("a{}", at.0)
}

#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    Topic(Topic),
    Due(TimestampMs),
    Alarm(TimestampMs),
    Hello,
}

/// What a word means; none for everything, and for a word that is not known.
pub(super) fn heard(word: &str) -> Option<Heard> {
    if word == HELLO {
        return Some(Heard::Hello);
    }
    let time = |text: &str| text.parse().ok().map(TimestampMs);
    match (word.strip_prefix('d'), word.strip_prefix('a')) {
        (Some(at), _) => time(at).map(Heard::Due),
        (_, Some(at)) => time(at).map(Heard::Alarm),
        _ => Topic::of_word(word).map(Heard::Topic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_heard_as_it_was_told() {
        assert_eq!(heard(&Topic::Events.word()), Some(Heard::Topic(Topic::Events)));
        assert_eq!(heard("d-5"), Some(Heard::Due(TimestampMs(-5))));
        assert_eq!(heard(&alarm(TimestampMs(7))), Some(Heard::Alarm(TimestampMs(7))));
        assert_eq!(heard(HELLO), Some(Heard::Hello));
        assert_eq!(heard(ALL), None);
        assert_eq!(heard("?of a later version"), None);
    }

    #[test]
    fn what_is_due_is_told_by_nobody_in_particular() {
        assert_eq!(SOMETHING_IS_DUE.split('\n').next(), Some(NOBODY));
    }
}
