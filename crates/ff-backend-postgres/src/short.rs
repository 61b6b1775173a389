//! Bytes that an index can hold: Postgres refuses entries of more than a third of a page.

use sha2::{Digest, Sha256};

/// Bytes that are kept as they are.
const WHOLE_MAX: usize = 1_000;

/// Bytes that are kept of longer ones, so that what begins alike stays together.
const KEPT: usize = 64;

/// The bytes themselves, or their beginning and a digest if they are many.
pub(crate) fn short(bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() <= WHOLE_MAX {
        return bytes;
    }
    let digest = Sha256::digest(&bytes);
    [&bytes[..KEPT], &*digest].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_stays_and_what_is_long_stays_apart() {
        let long = |last| [vec![7; 5_000], vec![last]].concat();
        assert_eq!(short(vec![1; WHOLE_MAX]), vec![1; WHOLE_MAX]);
        assert_eq!(short(long(1)).len(), KEPT + 32);
        assert_eq!(short(long(1)), short(long(1)));
        assert_ne!(short(long(1)), short(long(2)));
    }
}
