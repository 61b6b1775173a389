//! Keys as bytes.
//!
//! What belongs to one execution begins with its id, so it lies side by side in an ordered store and the parts of one list are one
//! range of keys. Everything else begins with its partition.

use ff_core::partition::Partition;

use super::parts::Part;
use crate::key::{Key, Name};

const OF_EXECUTION: u8 = 1;
const OF_PARTITION: u8 = 2;

macro_rules! names {
    (
        of_execution { $($code:literal $variant:ident ($($part:ident),*)),+ $(,)? }
        of_partition { $($home_code:literal $home_variant:ident $(($($home_part:ident),+))?),+ $(,)? }
    ) => {
        /// The bytes of a key.
        #[must_use]
        pub fn encode_key(key: &Key) -> Vec<u8> {
            let mut out = Vec::with_capacity(48);
            match &key.name {
                // Ownership is a part of the execution.
                Name::Fence(execution) => return encode_key(&Key::execution(*execution)),
                $(Name::$variant(execution $(, $part)*) => {
                    out.push(OF_EXECUTION);
                    execution.put(&mut out);
                    out.push($code);
                    $($part.put(&mut out);)*
                })+
                $(Name::$home_variant $(($($home_part),+))? => {
                    out.push(OF_PARTITION);
                    key.partition.put(&mut out);
                    out.push($home_code);
                    $($($home_part.put(&mut out);)+)?
                })+
            }
            out
        }

        fn of_execution(input: &mut &[u8]) -> Option<Key> {
            let execution = Part::take(input)?;
            let name = match u8::take(input)? {
                $($code => {
                    $(let $part = Part::take(input)?;)*
                    Name::$variant(execution $(, $part)*)
                })+
                _ => return None,
            };
            Some(Key { partition: execution.partition(), name })
        }

        fn of_partition(input: &mut &[u8]) -> Option<Key> {
            let partition = Partition::take(input)?;
            let name = match u8::take(input)? {
                $($home_code => {
                    $($(let $home_part = Part::take(input)?;)+)?
                    Name::$home_variant $(($($home_part),+))?
                })+
                _ => return None,
            };
            Some(Key { partition, name })
        }
    };
}

names! {
    of_execution {
        1 Execution(),
        2 Definition(),
        3 Payload(),
        4 Outcome(),
        5 Progress(),
        6 ExecutionTags(),
        7 Attempt(index),
        8 AttemptUsage(index),
        9 Grant(),
        10 StreamHead(index),
        11 Frame(index, id),
        12 Summary(index),
        13 Suspension(ordinal),
        14 SignalTally(),
        15 Settlement(epoch),
        16 EdgeGroup(generation),
        17 StepHead(),
        18 Step(life, name),
    }
    of_partition {
        1 Waitpoint(id),
        2 Signal(waitpoint, id),
        3 Dedup(scope),
        4 Flow(id),
        5 FlowTags(id),
        6 Edge(flow, id),
        7 FlowProjection(flow),
        8 ProjectionMark(flow, second),
        9 CancelAck(flow, execution),
        10 Continuation(id),
        11 Budget(id),
        12 Ledger(budget, execution),
        13 QuotaPolicy(id),
        14 QuotaUsage(id),
        15 Admission(quota, execution),
        16 WindowEntry(quota, dimension, at, execution),
        17 Worker(namespace, instance),
        18 Lane(namespace, lane),
        19 LaneClass(namespace, lane, class),
        20 ScopeBinding(scope),
        21 Keyring,
        22 Deployment,
        23 Intake(id),
    }
}

/// The key that has these bytes.
#[must_use]
pub fn decode_key(mut bytes: &[u8]) -> Option<Key> {
    let input = &mut bytes;
    let key = match u8::take(input)? {
        OF_EXECUTION => of_execution(input)?,
        OF_PARTITION => of_partition(input)?,
        _ => return None,
    };
    input.is_empty().then_some(key)
}

/// What the keys of everything that is kept by partition, and not by execution, begin with.
#[must_use]
pub fn key_prefix(partition: Partition) -> Vec<u8> {
    let mut out = vec![OF_PARTITION];
    partition.put(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use ff_core::cursor::FrameId;
    use ff_core::ids::{AttemptIndex, BudgetId, ExecutionId, ExecutionKind, LaneId, Namespace, QuotaPolicyId};
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::records::{DedupScope, Gate, QueueClass, Scope};

    fn execution() -> impl Strategy<Value = ExecutionId> {
        any::<(u16, u128)>().prop_map(|(partition, bits)| ExecutionId::new(partition, Uuid::from_u128(bits)))
    }

    fn namespace() -> impl Strategy<Value = Namespace> {
        "[a-zé]{1,256}".prop_filter_map("short enough", |text| Namespace::new(text).ok())
    }

    fn class() -> impl Strategy<Value = QueueClass> {
        let gate = any::<(bool, u128)>().prop_map(|(budget, bits)| match budget {
            true => Gate::Budget(BudgetId::from_uuid(Uuid::from_u128(bits))),
            false => Gate::Quota(QuotaPolicyId::from_uuid(Uuid::from_u128(bits))),
        });
        let tokens = proptest::collection::btree_set("[a-z]{1,8}", 0..4);
        ("[ -~]{0,256}", tokens, proptest::collection::vec(gate, 0..3)).prop_map(|(kind, tokens, gates)| QueueClass {
            kind: ExecutionKind::new(kind).unwrap(),
            requirement: ff_core::capability::RequirementClass::new(&tokens).unwrap(),
            gates,
        })
    }

    fn key() -> impl Strategy<Value = Key> {
        let home = any::<u16>().prop_map(Partition::flow);
        prop_oneof![
            execution().prop_map(Key::execution),
            (execution(), any::<u32>()).prop_map(|(id, index)| Key::attempt(id, AttemptIndex(index))),
            (execution(), any::<u32>(), any::<(u64, u64)>()).prop_map(|(id, index, (ms, seq))| Key::frame(
                id,
                AttemptIndex(index),
                FrameId { ms, seq }
            )),
            (home, namespace(), ".{0,300}")
                .prop_map(|(home, namespace, key)| Key::dedup(home, DedupScope::Creation { namespace, key })),
            (namespace(), "[ -~]{1,64}", class()).prop_map(|(namespace, lane, class)| Key::lane_class(
                namespace,
                LaneId::new(lane).unwrap(),
                class
            )),
            (namespace(), ".{0,20}", ".{0,20}").prop_map(|(namespace, key, value)| Key::scope_binding(Scope::Tag {
                namespace,
                key,
                value
            })),
            any::<(u16, u128)>().prop_map(|(home, id)| Key::intake(Partition::flow(home), Uuid::from_u128(id))),
            Just(Key::keyring()),
            Just(Key::deployment()),
        ]
    }

    proptest! {
        #[test]
        fn a_key_is_read_back_as_it_was_written(key in key()) {
            prop_assert_eq!(decode_key(&encode_key(&key)), Some(key));
        }

        #[test]
        fn a_truncated_key_is_none(key in key()) {
            let bytes = encode_key(&key);
            prop_assert_eq!(decode_key(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn frames_of_a_stream_sort_as_their_ids(id in execution(), a in any::<(u64, u64)>(), b in any::<(u64, u64)>()) {
            let frame = |(ms, seq)| FrameId { ms, seq };
            let bytes = |at| encode_key(&Key::frame(id, AttemptIndex(0), frame(at)));
            prop_assert_eq!(frame(a).cmp(&frame(b)), bytes(a).cmp(&bytes(b)));
        }
    }

    #[test]
    fn stored_bytes_of_keys_do_not_change() {
        let id = ExecutionId::new(7, Uuid::from_u128(0x0102));
        let hex = |key| encode_key(&key).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(Key::attempt(id, AttemptIndex(3))), "010000000000000000000000000000010200070700000003");
        let namespace = Namespace::new("acme").unwrap();
        assert_eq!(hex(Key::lane(namespace, LaneId::new("mail").unwrap())), "02040000120461636d65046d61696c");
    }
}
