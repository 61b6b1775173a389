//! Choices of a seed.

use std::cell::RefCell;

use ff_core::ids::ExecutionId;
use uuid::Uuid;

/// One stream of choices.
pub(crate) struct Rng(RefCell<fastrand::Rng>);

impl Rng {
    /// The stream of a seed; `salt` separates streams of one seed.
    pub(crate) fn new(seed: u64, salt: u64) -> Self {
        Self(RefCell::new(fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt)))
    }

    /// Yes in `percent` of cases.
    pub(crate) fn chance(&self, percent: u32) -> bool {
        self.0.borrow_mut().u32(0..100) < percent
    }

    /// Yes in `permille` of a thousand cases.
    pub(crate) fn rarely(&self, permille: u32) -> bool {
        self.0.borrow_mut().u32(0..1000) < permille
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&self, low: u64, high: u64) -> u64 {
        self.0.borrow_mut().u64(low..=high)
    }

    /// An index below `len`, which is not 0.
    pub(crate) fn below(&self, len: usize) -> usize {
        self.0.borrow_mut().usize(0..len)
    }

    /// One of several, or none of none.
    pub(crate) fn pick<'a, T>(&self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| &from[self.below(from.len())])
    }

    /// One of several, later ones more often.
    pub(crate) fn pick_recent<'a, T>(&self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| {
            let (one, other) = (self.below(from.len()), self.below(from.len()));
            &from[one.max(other)]
        })
    }

    /// One of several that are not none.
    pub(crate) fn one_of<T: Copy, const N: usize>(&self, from: [T; N]) -> T {
        from[self.below(N)]
    }

    /// An index by weight.
    pub(crate) fn weighted(&self, weights: impl Iterator<Item = u32> + Clone) -> usize {
        let total: u32 = weights.clone().sum();
        let mut left = self.0.borrow_mut().u32(0..total.max(1));
        for (index, weight) in weights.enumerate() {
            if left < weight {
                return index;
            }
            left -= weight;
        }
        0
    }

    /// Any UUID.
    pub(crate) fn uuid(&self) -> Uuid {
        uuid::Builder::from_random_bytes(self.0.borrow_mut().u128(..).to_be_bytes()).into_uuid()
    }

    /// A new execution id in one of the first `partitions` partitions.
    pub(crate) fn execution_id(&self, partitions: u16) -> ExecutionId {
        let partition = self.0.borrow_mut().u16(0..partitions);
        ExecutionId::new(partition, self.uuid())
    }
}
