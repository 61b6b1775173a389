//! Places in indexes as members of sorted sets. All members have the same score, so the server keeps them in the order of their bytes.
//!
//! A member begins with the position and ends with the name of the record. Most records are executions that stand where their own id says;
//! of them the name is left out, because the position tells it.

use ff_core::ids::AttemptIndex;
use ff_engine::codec::{decode_key, encode_key};
use ff_engine::index::{Bounds, DueKind, Entry, Index, Position};
use ff_engine::key::{Key, Name};

/// Bytes of the id of an execution.
const ID: usize = 18;

/// The last byte of a member that stands for the execution whose id is its tie.
const OF_ID: u8 = 1;

/// The last byte of a member that spells out the name of its record.
const NAMED: u8 = 0;

/// After every byte that follows a position.
const BEHIND: u8 = 0xff;

/// The attempt that every execution begins with.
const FIRST: AttemptIndex = AttemptIndex(0);

/// Whether everything in an index is an execution, ordered by a number and its id.
const fn is_of_executions(index: &Index) -> bool {
    match index {
        Index::Eligible(..)
        | Index::Reclaimable(..)
        | Index::EligibleIn(..)
        | Index::RouteParked(..)
        | Index::RouteHeld(..)
        | Index::BudgetParked(_)
        | Index::QuotaParked(_)
        | Index::AttachedTo(_)
        | Index::LostLeases
        | Index::ExecutionsIn(_)
        | Index::SuspendedIn(_)
        | Index::TerminalIn(..)
        | Index::Terminal
        | Index::CreatedIn(_)
        | Index::Created
        | Index::LaneState(..)
        | Index::KindState(..)
        | Index::MembersOf(..)
        | Index::LiveMembersOf(..)
        | Index::PendingMembersOf(..) => true,
        Index::Due(kind) => matches!(
            kind,
            DueKind::LeaseExpiry
                | DueKind::ReclaimBackoff
                | DueKind::Delay
                | DueKind::Readmission
                | DueKind::AttemptTimeout
                | DueKind::Deadline
                | DueKind::SuspensionTimeout
        ),
        _ => false,
    }
}

/// The member that stands for a record at a place.
pub(crate) fn member(entry: &Entry, key: &Key) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    put_number(entry.position.major, &mut out);
    if is_of_executions(&entry.index) {
        debug_assert!(matches!(key.name, Name::Execution(id) if id.to_bytes() == *entry.position.tie), "{entry:?}");
        out.extend_from_slice(&entry.position.tie);
        out.push(OF_ID);
        return out;
    }
    put_tie(&entry.position.tie, &mut out);
    let name = encode_key(key);
    out.extend_from_slice(&name);
    out.extend_from_slice(&u16::try_from(name.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.push(NAMED);
    out
}

/// Where a member stands, and for which record.
pub(crate) fn place(member: &[u8]) -> Option<(Position, Key)> {
    let (number, rest) = member.split_first_chunk::<8>()?;
    let major = (u64::from_be_bytes(*number) ^ (1 << 63)).cast_signed();
    let (last, rest) = rest.split_last()?;
    if *last == OF_ID {
        let id = ff_core::ids::ExecutionId::from_bytes(rest.try_into().ok()?);
        return Some((Position::new(major, rest), Key::execution(id)));
    }
    let (rest, length) = rest.split_last_chunk::<2>()?;
    let (tie, name) = rest.split_at_checked(rest.len().checked_sub(usize::from(u16::from_be_bytes(*length)))?)?;
    Some((Position::new(major, take_tie(tie)?), decode_key(name)?))
}

/// The lower and the upper end of a part of an index, as the server wants them.
pub(crate) fn ends(index: &Index, bounds: &Bounds) -> (Vec<u8>, Vec<u8>) {
    let end = |position: &Position| {
        let mut out = vec![b'('];
        put_number(position.major, &mut out);
        match position.tie.get(..ID) {
            _ if !is_of_executions(index) => {
                put_tie(&position.tie, &mut out);
                out.push(BEHIND);
            }
            // Behind the one that stands right there.
            Some(id) => out.extend(id.iter().chain([&BEHIND])),
            // Before all that begin so: nothing stands there itself.
            None => out.extend_from_slice(&position.tie),
        }
        out
    };
    let low = bounds.after.as_ref().map_or_else(|| b"-".to_vec(), end);
    let high = bounds.until.as_ref().map_or_else(|| b"+".to_vec(), end);
    (low, high)
}

/// The sign bit is flipped, so that negative numbers come first.
fn put_number(number: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&(number.cast_unsigned() ^ (1 << 63)).to_be_bytes());
}

/// Bytes that sort like a tie whatever follows: a zero is marked, and two zeros are the end.
fn put_tie(tie: &[u8], out: &mut Vec<u8>) {
    for byte in tie {
        out.push(*byte);
        if *byte == 0 {
            out.push(BEHIND);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

fn take_tie(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes.strip_suffix(&[0, 0])?.iter();
    while let Some(byte) = rest.next() {
        out.push(*byte);
        if *byte == 0 && rest.next() != Some(&BEHIND) {
            return None;
        }
    }
    Some(out)
}

/// Whether a record stands in no list although it says so: nearly every execution has one attempt, which is found by its key.
pub(crate) const fn is_unlisted(key: &Key) -> bool {
    matches!(key.name, Name::Attempt(_, FIRST))
}

/// The record of a list that is found by its key, and where it stands.
pub(crate) fn unlisted(index: &Index) -> Option<(Position, Key)> {
    match index {
        Index::AttemptsOf(id) => Some((Position::new(i64::from(FIRST.0), []), Key::attempt(*id, FIRST))),
        _ => None,
    }
}

/// The list that a record stands in by its key alone, and where. Such a record is written and removed without a look at what was there.
pub(crate) fn followed(key: &Key) -> Option<Entry> {
    match key.name {
        _ if is_unlisted(key) => None,
        Name::Attempt(id, index) => Some(Entry::new(Index::AttemptsOf(id), Position::new(i64::from(index.0), []))),
        Name::Frame(id, attempt, frame) => {
            let major = i64::try_from(frame.ms).unwrap_or(i64::MAX);
            Some(Entry::new(Index::FramesOf(id, attempt), Position::new(major, frame.seq.to_be_bytes())))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ff_core::ids::{ExecutionId, LaneId, Namespace};
    use ff_core::partition::Partition;
    use uuid::Uuid;

    use super::*;

    fn id(number: u128) -> ExecutionId {
        ExecutionId::new(0, Uuid::from_u128(number))
    }

    fn is_between((low, high): &(Vec<u8>, Vec<u8>), member: &[u8]) -> bool {
        let after = |end: &[u8]| end == b"-" || member > &end[1..];
        let until = |end: &[u8]| end == b"+" || member < &end[1..];
        after(low) && until(high)
    }

    /// Bounds cut members exactly where they cut positions, and members sort as positions do.
    fn check(index: &Index, mut places: Vec<(Position, Key)>, cuts: &[Position]) {
        places.sort_by(|a, b| a.0.cmp(&b.0));
        let written = |(position, key): &(Position, Key)| member(&Entry::new(index.clone(), position.clone()), key);
        let members: Vec<Vec<u8>> = places.iter().map(written).collect();
        assert!(members.is_sorted(), "{index:?}");
        for (member, expected) in members.iter().zip(&places) {
            assert_eq!(place(member).as_ref(), Some(expected));
        }
        let all: Vec<Option<Position>> =
            places.iter().map(|(position, _)| position).chain(cuts).cloned().map(Some).chain([None]).collect();
        for after in &all {
            for until in &all {
                let bounds = Bounds { after: after.clone(), until: until.clone(), limit: 9, reverse: false };
                let ends = ends(index, &bounds);
                for (member, (position, _)) in members.iter().zip(&places) {
                    assert_eq!(
                        is_between(&ends, member),
                        bounds.contains(position),
                        "{index:?} {bounds:?} {position:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn executions_stand_in_the_order_of_number_and_id() {
        let places = [(-5, 1), (0, 2), (0, 3), (0, u128::MAX), (i64::MAX, 1), (i64::MIN, 7)];
        let places = places.map(|(major, number)| (Position::of(major, id(number)), Key::execution(id(number))));
        let cuts = [Position::new(0, []), Position::end_of(0), Position::of(0, id(9)), Position::end_of(i64::MAX)];
        check(&Index::Created, places.to_vec(), &cuts);
    }

    #[test]
    fn other_records_stand_in_the_order_of_number_and_tie() {
        let lane = |name: &str| Key::lane(Namespace::new("acme").unwrap(), LaneId::new(name).unwrap());
        let ties: [&[u8]; 6] = [b"", b"a", b"a\0", b"a\0b", b"ab", b"\xff\xff"];
        let places = ties.map(|tie| (Position::by(tie), lane("mail"))).to_vec();
        check(&Index::Lanes, places, &[Position::by([0]), Position::end_of(0), Position::end_of(-1)]);
    }

    #[test]
    fn records_that_follow_their_key_stand_where_they_say() {
        let attempt = Key::attempt(id(1), AttemptIndex(7));
        let entry = followed(&attempt).unwrap();
        assert_eq!(place(&member(&entry, &attempt)), Some((entry.position.clone(), attempt)));
        assert_eq!(followed(&Key::execution(id(1))), None);
        assert_eq!(followed(&Key::flow(Partition::flow(1), ff_core::ids::FlowId::from_uuid(Uuid::nil()))), None);
    }
}
