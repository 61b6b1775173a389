//! Short forms of what the columns of an execution repeat for their indexes.

use ff_core::ids::{LaneId, Namespace};
use ff_core::state::PublicState;
use ff_engine::codec::encode_queue;
use ff_engine::records::QueueClass;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The letter of a state, as a byte of the type `"char"`. Letters are part of stored data; capital ones stand for what is over.
pub(crate) const fn letter(state: PublicState) -> i8 {
    let letter = match state {
        PublicState::Waiting => b'w',
        PublicState::Delayed => b'd',
        PublicState::RateLimited => b'r',
        PublicState::WaitingChildren => b'c',
        PublicState::Active => b'a',
        PublicState::Suspended => b's',
        PublicState::Resumable => b'b',
        PublicState::Completed => b'C',
        PublicState::Failed => b'F',
        PublicState::Cancelled => b'X',
        PublicState::Expired => b'E',
        PublicState::Skipped => b'S',
    };
    letter.cast_signed()
}

/// Half a digest of the bytes of a queue: queues are only looked up, and no two of them are ever found to have the same.
pub(crate) fn queue(namespace: &Namespace, lane: &LaneId, class: &QueueClass) -> Uuid {
    let digest: [u8; 32] = Sha256::digest(encode_queue(namespace, lane, class)).into();
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    Uuid::from_bytes(half)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ff_core::ids::ExecutionKind;

    use super::*;

    #[test]
    fn every_state_has_a_letter_of_its_own_and_the_last_ones_are_capital() {
        let letters: BTreeSet<i8> = PublicState::ALL.iter().map(|state| letter(*state)).collect();
        assert_eq!(letters.len(), PublicState::ALL.len());
        for state in PublicState::ALL {
            assert_eq!(letter(*state).cast_unsigned().is_ascii_uppercase(), state.is_terminal(), "{state}");
        }
    }

    #[test]
    fn queues_with_the_same_letters_in_other_places_stay_apart() {
        let queue = |namespace, lane, kind| {
            let class = QueueClass::plain(ExecutionKind::new(kind).unwrap());
            queue(&Namespace::new(namespace).unwrap(), &LaneId::new(lane).unwrap(), &class)
        };
        assert_eq!(queue("a", "b", "c"), queue("a", "b", "c"));
        let all = [queue("a", "b", "c"), queue("ab", "c", ""), queue("a", "bc", ""), queue("b", "a", "c")];
        assert_eq!(BTreeSet::from(all).len(), all.len());
    }
}
