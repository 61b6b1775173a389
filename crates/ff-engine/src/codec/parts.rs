//! What keys and indexes are made of. Numbers sort as they do in memory; texts carry their length, so that no two lists of parts
//! have the same bytes.

use ff_core::TimestampMs;
use ff_core::capability::RequirementClass;
use ff_core::cursor::FrameId;
use ff_core::ids::{
    AttemptIndex, BudgetId, EdgeId, ExecutionId, ExecutionKind, FlowId, LaneId, LeaseEpoch, Namespace, QuotaPolicyId,
    SignalId, WaitpointId, WorkerInstanceId,
};
use ff_core::partition::Partition;
use uuid::Uuid;

use crate::records::{DedupScope, Gate, QueueClass, Route, Scope};

/// Something that stands in a key.
pub(super) trait Part: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);

    /// Takes it off the front.
    fn take(input: &mut &[u8]) -> Option<Self>;
}

fn take_bytes<'a>(input: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(head)
}

fn take_array<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    take_bytes(input, N)?.try_into().ok()
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Part for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }

            fn take(input: &mut &[u8]) -> Option<Self> {
                take_array(input).map(Self::from_be_bytes)
            }
        }
    )+};
}

numbers!(u8, u32, u64);

/// The sign bit is flipped, so that negative numbers sort first.
impl Part for i64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.cast_unsigned() ^ (1 << 63)).to_be_bytes());
    }

    fn take(input: &mut &[u8]) -> Option<Self> {
        Some((u64::take(input)? ^ (1 << 63)).cast_signed())
    }
}

impl Part for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self, out);
    }

    fn take(input: &mut &[u8]) -> Option<Self> {
        let len = match u8::take(input)? {
            0xff => usize::try_from(u32::take(input)?).ok()?,
            short => usize::from(short),
        };
        String::from_utf8(take_bytes(input, len)?.to_vec()).ok()
    }
}

/// One byte of length for short texts, five for long ones.
pub(super) fn put_text(text: &str, out: &mut Vec<u8>) {
    match u8::try_from(text.len()) {
        Ok(short) if short != 0xff => out.push(short),
        _ => {
            out.push(0xff);
            u32::try_from(text.len()).unwrap_or(u32::MAX).put(out);
        }
    }
    out.extend_from_slice(text.as_bytes());
}

macro_rules! texts {
    ($($name:ty),+) => {$(
        impl Part for $name {
            fn put(&self, out: &mut Vec<u8>) {
                put_text(self.as_str(), out);
            }

            fn take(input: &mut &[u8]) -> Option<Self> {
                Self::new(String::take(input)?).ok()
            }
        }
    )+};
}

texts!(Namespace, LaneId, WorkerInstanceId, ExecutionKind);

impl Part for Uuid {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }

    fn take(input: &mut &[u8]) -> Option<Self> {
        take_array(input).map(Self::from_bytes)
    }
}

macro_rules! uuids {
    ($($name:ty),+) => {$(
        impl Part for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.uuid().put(out);
            }

            fn take(input: &mut &[u8]) -> Option<Self> {
                Uuid::take(input).map(Self::from_uuid)
            }
        }
    )+};
}

uuids!(FlowId, BudgetId, QuotaPolicyId, SignalId, WaitpointId, EdgeId);

/// The UUID first: ids are made in order of time, so what is made together lies together.
impl Part for ExecutionId {
    fn put(&self, out: &mut Vec<u8>) {
        self.uuid().put(out);
        out.extend_from_slice(&self.partition().index().to_be_bytes());
    }

    fn take(input: &mut &[u8]) -> Option<Self> {
        let uuid = Uuid::take(input)?;
        Some(Self::new(u16::from_be_bytes(take_array(input)?), uuid))
    }
}

impl Part for Partition {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    fn take(input: &mut &[u8]) -> Option<Self> {
        Self::from_bytes(take_array(input)?)
    }
}

macro_rules! wrappers {
    ($($name:ident($inner:ty)),+) => {$(
        impl Part for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }

            fn take(input: &mut &[u8]) -> Option<Self> {
                <$inner>::take(input).map(Self)
            }
        }
    )+};
}

wrappers!(AttemptIndex(u32), LeaseEpoch(u64), TimestampMs(i64));

impl Part for FrameId {
    fn put(&self, out: &mut Vec<u8>) {
        self.ms.put(out);
        self.seq.put(out);
    }

    fn take(input: &mut &[u8]) -> Option<Self> {
        Some(Self { ms: u64::take(input)?, seq: u64::take(input)? })
    }
}

macro_rules! choices {
    ($($name:ident { $($code:literal $variant:ident $(($($field:ident),+))? $({$($named:ident),+})?),+ $(,)? })+) => {$(
        impl Part for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(($($field),+))? $({$($named),+})? => {
                        out.push($code);
                        $($($field.put(out);)+)?
                        $($($named.put(out);)+)?
                    })+
                }
            }

            fn take(input: &mut &[u8]) -> Option<Self> {
                Some(match u8::take(input)? {
                    $($code => {
                        $($(let $field = Part::take(input)?;)+)?
                        $($(let $named = Part::take(input)?;)+)?
                        Self::$variant $(($($field),+))? $({$($named),+})?
                    })+
                    _ => return None,
                })
            }
        }
    )+};
}

choices! {
    Gate { 1 Budget(id), 2 Quota(id) }

    DedupScope {
        1 Creation { namespace, key },
        2 Signal { waitpoint, key },
        3 Suspend { execution, key },
        4 Usage { budget, key },
    }

    Scope {
        1 Namespace(namespace),
        2 Lane(namespace, lane),
        3 Flow(namespace, flow),
        4 Tag { namespace, key, value },
    }
}

impl Part for RequirementClass {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self.as_str(), out);
    }

    fn take(input: &mut &[u8]) -> Option<Self> {
        Self::parse(&String::take(input)?).ok()
    }
}

impl Part for Route {
    fn put(&self, out: &mut Vec<u8>) {
        self.kind.put(out);
        self.requirement.put(out);
    }

    fn take(input: &mut &[u8]) -> Option<Self> {
        Some(Self { kind: Part::take(input)?, requirement: Part::take(input)? })
    }
}

impl Part for QueueClass {
    fn put(&self, out: &mut Vec<u8>) {
        self.kind.put(out);
        self.requirement.put(out);
        u32::try_from(self.gates.len()).unwrap_or(u32::MAX).put(out);
        for gate in &self.gates {
            gate.put(out);
        }
    }

    fn take(input: &mut &[u8]) -> Option<Self> {
        let (kind, requirement) = (Part::take(input)?, Part::take(input)?);
        let gates = (0..u32::take(input)?).map(|_| Gate::take(input)).collect::<Option<_>>()?;
        Some(Self { kind, requirement, gates })
    }
}
