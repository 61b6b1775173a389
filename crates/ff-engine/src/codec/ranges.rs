//! Lists whose order is that of the keys of what is listed: a store that keeps keys in order keeps these lists for nothing.

use ff_core::cursor::FrameId;
use ff_core::ids::{AttemptIndex, ExecutionId};

use super::encode_key;
use crate::index::{Bounds, Position};
use crate::key::Key;

/// Keys that begin alike and go on with the number of a position, then its tie.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRange {
    prefix: Vec<u8>,
    /// Bytes of the number.
    width: usize,
    /// The one record of the list that may stand in the row of its execution, and its position.
    pub first: Option<(Position, Key)>,
}

impl KeyRange {
    /// The attempts of an execution.
    #[must_use]
    pub fn attempts(execution: ExecutionId) -> Self {
        let first = Key::attempt(execution, AttemptIndex(0));
        let range = Self::behind(&first, 4, 4);
        Self { first: Some((Position::new(0, []), first)), ..range }
    }

    /// The frames of a stream.
    #[must_use]
    pub fn frames(execution: ExecutionId, attempt: AttemptIndex) -> Self {
        Self::behind(&Key::frame(execution, attempt, FrameId::ZERO), 16, 8)
    }

    fn behind(first: &Key, tail: usize, width: usize) -> Self {
        let mut prefix = encode_key(first);
        prefix.truncate(prefix.len() - tail);
        Self { prefix, width, first: None }
    }

    /// The key at a position, or beyond either end.
    fn at(&self, position: &Position) -> Vec<u8> {
        let mut key = self.prefix.clone();
        let Ok(number) = u64::try_from(position.major) else { return key };
        let bytes = number.to_be_bytes();
        let (cut, kept) = bytes.split_at(8 - self.width);
        if cut.iter().any(|byte| *byte != 0) {
            return self.end();
        }
        key.extend_from_slice(kept);
        key.extend_from_slice(&position.tie);
        key
    }

    /// After every key that begins so.
    fn end(&self) -> Vec<u8> {
        let mut key = self.prefix.clone();
        key.extend_from_slice(&[0xff; 32]);
        key
    }

    /// Keys after the first and up to the second are within bounds.
    #[must_use]
    pub fn bounds(&self, bounds: &Bounds) -> (Vec<u8>, Vec<u8>) {
        let low = bounds.after.as_ref().map_or_else(|| self.prefix.clone(), |after| self.at(after));
        let high = bounds.until.as_ref().map_or_else(|| self.end(), |until| self.at(until));
        (low, high)
    }

    /// Where a key of the range stands.
    #[must_use]
    pub fn position(&self, key: &[u8]) -> Option<Position> {
        let (number, tie) = key.strip_prefix(&*self.prefix)?.split_at_checked(self.width)?;
        let mut bytes = [0; 8];
        bytes[8 - self.width..].copy_from_slice(number);
        Some(Position::new(i64::try_from(u64::from_be_bytes(bytes)).unwrap_or(i64::MAX), tie))
    }
}
