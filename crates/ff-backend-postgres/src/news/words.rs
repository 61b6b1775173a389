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

/// A topic as a word of a notification. Names have no control characters.
pub(super) fn word(topic: &Topic) -> String {
    match topic {
        Topic::Lane(lane) => format!("l{lane}"),
        Topic::Stream(execution) => format!("s{execution}"),
        Topic::Flow(flow) => format!("f{flow}"),
        Topic::Execution(execution) => format!("x{execution}"),
        Topic::Worker(instance) => format!("w{instance}"),
        Topic::Events => "e".to_owned(),
    }
}

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
    let kind = word.chars().next()?;
    let rest = &word[kind.len_utf8()..];
    let topic = match kind {
        'd' => return rest.parse().ok().map(|at| Heard::Due(TimestampMs(at))),
        'a' => return rest.parse().ok().map(|at| Heard::Alarm(TimestampMs(at))),
        'l' => Topic::Lane(rest.parse().ok()?),
        's' => Topic::Stream(rest.parse().ok()?),
        'f' => Topic::Flow(rest.parse().ok()?),
        'x' => Topic::Execution(rest.parse().ok()?),
        'w' => Topic::Worker(rest.parse().ok()?),
        'e' => Topic::Events,
        _ => return (word == HELLO).then_some(Heard::Hello),
    };
    Some(Heard::Topic(topic))
}

#[cfg(test)]
mod tests {
    use ff_core::ids::{ExecutionId, FlowId, LaneId, WorkerInstanceId};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn every_topic_is_heard_as_it_was_told() {
        let execution = ExecutionId::new(7, Uuid::from_u128(9));
        for topic in [
            Topic::Lane(LaneId::new("mail and more").unwrap()),
            Topic::Stream(execution),
            Topic::Flow(FlowId::from_uuid(Uuid::from_u128(3))),
            Topic::Execution(execution),
            Topic::Worker(WorkerInstanceId::new("w-1").unwrap()),
            Topic::Events,
        ] {
            assert_eq!(heard(&word(&topic)), Some(Heard::Topic(topic)));
        }
        assert_eq!(heard("d-5"), Some(Heard::Due(TimestampMs(-5))));
        assert_eq!(heard(HELLO), Some(Heard::Hello));
        assert_eq!(heard(ALL), None);
        assert_eq!(heard("?of a later version"), None);
    }

    #[test]
    fn what_is_due_is_told_by_nobody_in_particular() {
        assert_eq!(SOMETHING_IS_DUE.split('\n').next(), Some(NOBODY));
    }
}
