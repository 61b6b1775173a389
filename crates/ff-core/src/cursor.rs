//! Positions: in the event log, and in a frame stream.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Opaque position in the event log; only the store that made it can read it. Empty means "from now on".
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct EventCursor(Vec<u8>);

impl EventCursor {
    /// The tail as it is when the subscription starts.
    pub const TAIL: Self = Self(Vec::new());

    /// Wraps what a store encoded.
    #[must_use]
    pub const fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// What the store encoded.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether it means "from now on".
    #[must_use]
    pub fn is_tail(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for EventCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&URL_SAFE_NO_PAD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for EventCursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        URL_SAFE_NO_PAD.decode(text.as_bytes()).map(Self).map_err(serde::de::Error::custom)
    }
}

/// Identity and order of a frame inside its stream: `<ms>-<seq>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct FrameId {
    /// Milliseconds part.
    pub ms: u64,
    /// Order inside the millisecond.
    pub seq: u64,
}

impl FrameId {
    /// Before every frame.
    pub const ZERO: Self = Self { ms: 0, seq: 0 };
}

impl fmt::Display for FrameId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// Why a text is not a frame position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameCursorParseError {
    /// Nothing was given.
    #[error("frame cursor is empty")]
    Empty,
    /// `-` or `+`, which other systems use for the ends.
    #[error("frame cursor {0:?} is not accepted, use start or end")]
    BareMarkerRejected(String),
    /// Neither `start`, `end`, `<ms>` nor `<ms>-<seq>`.
    #[error("frame cursor {0:?} is malformed")]
    Malformed(String),
}

fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

impl FromStr for FrameId {
    type Err = FrameCursorParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (ms, seq) = text.split_once('-').unwrap_or((text, "0"));
        match (digits(ms), digits(seq)) {
            (Some(ms), Some(seq)) => Ok(Self { ms, seq }),
            _ => Err(FrameCursorParseError::Malformed(text.to_owned())),
        }
    }
}

/// A bound of a frame range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum FrameCursor {
    /// Before the first frame.
    Start,
    /// After the last frame.
    End,
    /// A whole millisecond: its first frame as a lower bound, its last as an upper bound.
    Millisecond(u64),
    /// One frame.
    At(FrameId),
}

impl FrameCursor {
    /// The smallest id inside the range that starts here.
    #[must_use]
    pub const fn lower(self) -> FrameId {
        match self {
            Self::Start => FrameId::ZERO,
            Self::End => FrameId { ms: u64::MAX, seq: u64::MAX },
            Self::Millisecond(ms) => FrameId { ms, seq: 0 },
            Self::At(id) => id,
        }
    }

    /// The largest id inside the range that ends here.
    #[must_use]
    pub const fn upper(self) -> FrameId {
        match self {
            Self::Start => FrameId::ZERO,
            Self::End => FrameId { ms: u64::MAX, seq: u64::MAX },
            Self::Millisecond(ms) => FrameId { ms, seq: u64::MAX },
            Self::At(id) => id,
        }
    }
}

impl fmt::Display for FrameCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::End => f.write_str("end"),
            Self::Millisecond(ms) => write!(f, "{ms}"),
            Self::At(id) => write!(f, "{id}"),
        }
    }
}

impl FromStr for FrameCursor {
    type Err = FrameCursorParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" => Err(FrameCursorParseError::Empty),
            "start" => Ok(Self::Start),
            "end" => Ok(Self::End),
            "-" | "+" => Err(FrameCursorParseError::BareMarkerRejected(text.to_owned())),
            _ => match digits(text) {
                Some(ms) => Ok(Self::Millisecond(ms)),
                None if text.contains('-') => text.parse().map(Self::At),
                None => Err(FrameCursorParseError::Malformed(text.to_owned())),
            },
        }
    }
}

macro_rules! serde_as_text {
    ($($name:ident),+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}
serde_as_text!(FrameId, FrameCursor);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bare_markers_and_malformed_positions_are_refused() {
        let parse = |text: &str| text.parse::<FrameCursor>();
        assert_eq!(parse(""), Err(FrameCursorParseError::Empty));
        assert_eq!(parse("-"), Err(FrameCursorParseError::BareMarkerRejected("-".into())));
        assert_eq!(parse("+"), Err(FrameCursorParseError::BareMarkerRejected("+".into())));
        for text in ["x", "1-", "-1", "1-2-3", "1.5", "+1", "１"] {
            assert_eq!(parse(text), Err(FrameCursorParseError::Malformed(text.into())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_position_parses_back(cursor: FrameCursor) {
            prop_assert_eq!(cursor.to_string().parse::<FrameCursor>(), Ok(cursor));
        }
    }
}
