//! One process that writes, others that follow: all see the same.

use ff_core::TimestampMs;
use uuid::Uuid;

use super::*;
use crate::schema;

/// A database and the young executions of its writer.
struct Desk {
    db: Connection,
    young: Young,
}

impl Desk {
    fn new() -> Self {
        let mut db = Connection::open_in_memory().unwrap();
        schema::prepare(&mut db).unwrap();
        let mut young = Young::default();
        young.catch_up(&db).unwrap();
        Self { db, young }
    }

    fn create(&mut self, id: ExecutionId, size: usize) {
        let change = Change { body: Some(vec![1; size]), ..Change::default() };
        self.young.put(id, Stored::missing(), change);
    }

    fn change(&mut self, id: ExecutionId, body: &[u8]) {
        let stored = self.young.get(id).unwrap().clone();
        self.young.put(id, stored, Change { body: Some(body.to_vec()), ..Change::default() });
    }

    fn commit(&mut self, most: usize) {
        self.young.commit(&self.db, most).unwrap();
    }

    /// Somebody who reads the journal for the first time.
    fn newcomer(&self) -> Young {
        let mut young = Young::default();
        young.catch_up(&self.db).unwrap();
        young
    }

    /// The bodies of all executions, as somebody sees them: none may be in both places.
    fn seen_by(&self, young: &Young) -> BTreeMap<ExecutionId, Vec<u8>> {
        let mut all: BTreeMap<_, _> = young.rows.iter().map(|(id, youth)| (*id, youth.body.clone())).collect();
        let mut rows = self.db.prepare("SELECT partition, uuid, body FROM execution").unwrap();
        let settled = rows.query_map([], |row| Ok((row.get(0)?, row.get::<_, [u8; 16]>(1)?, row.get(2)?))).unwrap();
        for row in settled {
            let (partition, uuid, body) = row.unwrap();
            let before = all.insert(ExecutionId::new(partition, Uuid::from_bytes(uuid)), body);
            assert_eq!(before, None, "in both places");
        }
        all
    }

    /// The writer, a newcomer and one who has followed see the same.
    fn is_seen_alike(&self, follower: &mut Young) -> BTreeMap<ExecutionId, Vec<u8>> {
        follower.catch_up(&self.db).unwrap();
        let seen = self.seen_by(&self.young);
        assert_eq!(self.seen_by(follower), seen);
        assert_eq!(self.seen_by(&self.newcomer()), seen);
        seen
    }
}

fn id(number: u128) -> ExecutionId {
    ExecutionId::new(7, Uuid::from_u128(number))
}

#[test]
fn whoever_follows_sees_what_the_writer_sees_over_many_rounds_of_the_journal() {
    let (mut desk, mut often, mut rarely) = (Desk::new(), Young::default(), Young::default());
    for number in 0..6_000 {
        desk.create(id(number), 900);
        if number % 3 == 0 {
            desk.change(id(number), b"changed");
        }
        desk.commit(100);
        if number % 50 == 0 {
            desk.is_seen_alike(&mut often);
        }
    }
    assert!(desk.young.journal.end() > CAPACITY * 2, "the journal went round");
    let seen = desk.is_seen_alike(&mut rarely);
    assert_eq!(seen.len(), 6_000);
    assert!(seen.iter().all(|(id, body)| (id.uuid().as_u128() % 3 == 0) == (body == b"changed")));
}

#[test]
fn a_group_that_the_journal_cannot_hold_comes_to_the_table_at_once() {
    let (mut desk, mut follower) = (Desk::new(), Young::default());
    desk.create(id(1), 10);
    desk.commit(1_000);
    follower.catch_up(&desk.db).unwrap();
    for number in 2..40 {
        desk.create(id(number), 100_000);
    }
    desk.change(id(1), b"changed");
    desk.commit(1_000);
    let seen = desk.is_seen_alike(&mut follower);
    assert_eq!((seen.len(), desk.young.rows.len()), (39, 0));
    assert_eq!(seen[&id(1)], b"changed");
}

#[test]
fn one_that_is_removed_young_is_gone_for_everybody() {
    let (mut desk, mut follower) = (Desk::new(), Young::default());
    desk.create(id(1), 10);
    desk.create(id(2), 10);
    desk.commit(1_000);
    follower.catch_up(&desk.db).unwrap();
    assert!(desk.young.remove(id(2)) && desk.young.remove(id(1)) && !desk.young.remove(id(1)));
    desk.commit(1_000);
    assert!(desk.is_seen_alike(&mut follower).is_empty());
    desk.create(id(3), 10);
    desk.commit(0);
    assert_eq!(desk.is_seen_alike(&mut follower).len(), 1);
}

#[test]
fn one_that_is_created_again_after_it_settled_is_young_again() {
    let (mut desk, mut follower) = (Desk::new(), Young::default());
    desk.create(id(1), 10);
    desk.create(id(2), 10);
    desk.commit(1_000);
    follower.catch_up(&desk.db).unwrap();
    desk.commit(0);
    let row = execution::load_settled(&desk.db, id(1)).unwrap().unwrap().row;
    execution::delete(&desk.db, row).unwrap();
    desk.create(id(1), 20);
    desk.commit(1_000);
    let seen = desk.is_seen_alike(&mut follower);
    assert_eq!((seen.len(), seen[&id(1)].len(), desk.young.rows.len()), (2, 20, 1));
}

#[test]
fn events_keep_their_order_when_they_come_to_the_table() {
    let (mut desk, mut follower) = (Desk::new(), Young::default());
    for sequence in 1..=20_u64 {
        desk.young.append(Appended { sequence, at: TimestampMs(0), body: vec![0] });
        desk.commit(1_000);
        if sequence == 12 {
            desk.young.settle_events(&desk.db).unwrap();
            desk.commit(1_000);
        }
        follower.catch_up(&desk.db).unwrap();
    }
    for young in [&desk.young, &follower, &desk.newcomer()] {
        let events: Vec<u64> = young.events_after(0).map(|event| event.sequence).collect();
        assert_eq!(events, (13..=20).collect::<Vec<_>>());
        assert_eq!(young.events_after(18).count(), 2);
        assert_eq!(event::extent(View { db: &desk.db, young }).unwrap().last, 20);
    }
}

#[test]
fn a_slot_that_was_damaged_is_not_taken_for_the_end() {
    let mut desk = Desk::new();
    for number in 0..40 {
        desk.create(id(number), 900);
        desk.commit(1_000);
    }
    for slot in [0, 3] {
        let before: Vec<u8> =
            desk.db.query_row("SELECT bytes FROM journal WHERE slot = ?", [slot], |row| row.get(0)).unwrap();
        let mut damaged = before.clone();
        damaged[3] ^= 1;
        let write = |bytes: &[u8]| crate::tables::journal::write(&desk.db, slot, bytes).unwrap();
        write(&damaged);
        assert!(Young::default().catch_up(&desk.db).is_err(), "slot {slot}");
        write(&before);
    }
    assert_eq!(desk.newcomer().rows.len(), 40);
}
