//! Ids and randomness, injected so that a seed replays a history.

use std::cell::RefCell;
use std::sync::Mutex;

use ff_core::TimestampMs;
use uuid::Uuid;

/// A source of random bytes.
pub trait Entropy: Send + Sync + 'static {
    /// Fills a buffer.
    fn fill(&self, bytes: &mut [u8]);
}

/// Randomness of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        if bytes.len() > Supply::BYTES {
            ask(bytes);
        } else {
            SUPPLY.with_borrow_mut(|supply| supply.take(bytes));
        }
    }
}

thread_local! {
    static SUPPLY: RefCell<Supply> = const { RefCell::new(Supply { bytes: [0; Supply::BYTES], left: 0 }) };
}

/// Random bytes kept ready: asking for each id on its own is a system call each. What was handed out is wiped.
struct Supply {
    bytes: [u8; Supply::BYTES],
    left: usize,
}

impl Supply {
    const BYTES: usize = 512;

    fn take(&mut self, wanted: &mut [u8]) {
        if self.left < wanted.len() {
            ask(&mut self.bytes);
            self.left = Self::BYTES;
        }
        let taken = &mut self.bytes[self.left - wanted.len()..self.left];
        wanted.copy_from_slice(taken);
        taken.fill(0);
        self.left -= wanted.len();
    }
}

fn ask(bytes: &mut [u8]) {
    if getrandom::fill(bytes).is_err() {
        // Version 4 UUIDs carry the randomness of their own source.
        for chunk in bytes.chunks_mut(16) {
            let random = Uuid::new_v4();
            chunk.copy_from_slice(&random.as_bytes()[..chunk.len()]);
        }
    }
}

/// Reproducible randomness for tests and simulation.
#[derive(Debug)]
pub struct SeededEntropy(Mutex<u64>);

impl SeededEntropy {
    /// The sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    /// The next number of the splitmix64 sequence.
    fn next(&self) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

impl dyn Entropy {
    /// A new time-ordered id.
    #[must_use]
    pub fn uuid(&self, now: TimestampMs) -> Uuid {
        let mut random = [0; 10];
        self.fill(&mut random);
        let ms = u64::try_from(now.0).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid()
    }

    /// A number from 0 to `max`, both included.
    #[must_use]
    pub fn uniform(&self, max: u64) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        let number = u64::from_le_bytes(bytes);
        if max == u64::MAX { number } else { number % (max + 1) }
    }

    /// A factor from 0 to 1.
    #[must_use]
    pub fn factor(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)]
        let unit = self.uniform((1 << 53) - 1) as f64 / ((1u64 << 53) - 1) as f64;
        unit
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_is_handed_out_does_not_come_again() {
        let random = |length| {
            let mut bytes = vec![0; length];
            SystemEntropy.fill(&mut bytes);
            bytes
        };
        let handed: BTreeSet<Vec<u8>> = (0..1_000).map(|_| random(16)).collect();
        assert_eq!(handed.len(), 1_000);
        for length in [Supply::BYTES, Supply::BYTES + 1, 4 * Supply::BYTES] {
            assert_ne!(random(length), random(length));
        }
    }
}
