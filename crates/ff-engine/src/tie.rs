//! Bytes that break ties between positions of an index, put together from parts.

use ff_core::ids::ExecutionId;
use ff_core::partition::{Partition, PartitionFamily};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Bytes of a text that is kept as it is.
const LONG: usize = 512;

/// The tie of a position. Every part has a fixed width or an end mark, so that different sequences of parts of the same kinds never
/// give the same bytes. Stores keep the bytes: how a part is written must not change.
#[derive(Debug, Default)]
pub(crate) struct Tie(Vec<u8>);

impl Tie {
    /// One byte that tells what follows.
    pub(crate) fn tag(mut self, tag: u8) -> Self {
        self.0.push(tag);
        self
    }

    /// Any text, in an order like the text's own: it ends with two zeros, and a zero inside it is followed by a one.
    pub(crate) fn text(mut self, text: &str) -> Self {
        for byte in text.bytes() {
            self.0.push(byte);
            if byte == 0 {
                self.0.push(1);
            }
        }
        self.0.extend_from_slice(&[0, 0]);
        self
    }

    /// Any text of which only the sameness matters once it is long: its beginning and a digest stand for the rest, so that every store can
    /// keep the bytes in an index.
    pub(crate) fn long_text(self, text: &str) -> Self {
        if text.len() <= LONG {
            return self.text(text);
        }
        let mut tie = self.text(&text[..text.floor_char_boundary(LONG)]);
        tie.0.extend_from_slice(&Sha256::digest(text));
        tie
    }

    /// Sixteen bytes.
    pub(crate) fn uuid(mut self, uuid: Uuid) -> Self {
        self.0.extend_from_slice(uuid.as_bytes());
        self
    }

    /// Three bytes: the family and the index.
    pub(crate) fn partition(mut self, partition: Partition) -> Self {
        self.0.push(match partition.family() {
            PartitionFamily::Flow => b'f',
            PartitionFamily::Budget => b'b',
            PartitionFamily::Quota => b'q',
            PartitionFamily::Worker => b'w',
            PartitionFamily::Global => b'g',
        });
        self.0.extend_from_slice(&partition.index().to_be_bytes());
        self
    }

    /// Eighteen bytes.
    pub(crate) fn execution(mut self, execution: ExecutionId) -> Self {
        self.0.extend_from_slice(&execution.to_bytes());
        self
    }
}

impl AsRef<[u8]> for Tie {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<u8> {
        texts.iter().fold(Tie::default(), |tie, text| tie.text(text)).0
    }

    #[test]
    fn texts_that_differ_only_in_where_they_end_give_different_bytes() {
        let all: [&[&str]; 9] = [
            &["ab", ""],
            &["a", "b"],
            &["", "ab"],
            &["ab"],
            &["ab\0"],
            &["ab\0\0"],
            &["ab\0\u{1}"],
            &["ab", "\0"],
            &["ab\0", ""],
        ];
        for (n, one) in all.iter().enumerate() {
            for other in &all[n + 1..] {
                assert_ne!(texts(one), texts(other), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn texts_sort_as_they_do_by_themselves() {
        let sorted = ["", "\0", "\0\0", "\0a", "\u{1}", "a", "a\0", "a\0b", "a b", "ab", "b", "é"];
        assert!(sorted.is_sorted());
        assert!(sorted.map(|text| texts(&[text])).is_sorted());
    }

    #[test]
    fn every_partition_has_bytes_of_its_own() {
        let bytes = |family, index| Tie::default().partition(Partition::new(family, index)).0;
        assert_eq!(bytes(PartitionFamily::Flow, 258), b"f\x01\x02");
        assert_eq!(bytes(PartitionFamily::Budget, 1), b"b\0\x01");
        assert_eq!(bytes(PartitionFamily::Quota, 1), b"q\0\x01");
        assert_eq!(bytes(PartitionFamily::Worker, 1), b"w\0\x01");
        assert_eq!(bytes(PartitionFamily::Global, 0), b"g\0\0");
    }
}
