use std::sync::Arc;

use ff_core::ids::ExecutionId;
use ff_engine::key::Key;
use futures_util::FutureExt;
use uuid::Uuid;

use super::{Birth, HashSet, Pass, Taken, Young};
use crate::address::Stored;

const OWNER: i64 = 5;

fn id(number: u128) -> ExecutionId {
    ExecutionId::new(1, Uuid::from_u128(number))
}

fn row(version: i64, birth: Birth) -> Arc<Stored> {
    Arc::new(Stored::read(&Key::execution(id(1)), version, b"x").born(Some(birth)))
}

fn young(enough: usize) -> Arc<Young> {
    let young = Arc::new(Young::new(enough));
    young.open(OWNER);
    young
}

fn pass(young: &Arc<Young>) -> Pass {
    young.pass(OWNER).expect("it is the owner")
}

fn reserve(pass: &mut Pass, number: u128, version: i64) -> bool {
    pass.reserve([(id(number), version)].into_iter(), std::iter::empty()).is_ok()
}

/// Creates one, under version 1.
fn bear(young: &Arc<Young>, number: u128) {
    let mut pass = pass(young);
    let birth = pass.bear().expect("there is room");
    assert!(reserve(&mut pass, number, Stored::NO_VERSION));
    pass.succeed(vec![(id(number), Some(row(1, birth)))]);
}

fn settled(young: &Arc<Young>, wants_all: bool) -> Vec<ExecutionId> {
    let settling = young.begin_settling(wants_all).expect("there is one to settle");
    let ids = settling.rows.iter().map(|(id, _)| *id).collect();
    settling.succeed();
    ids
}

#[test]
fn of_two_commits_about_the_same_execution_only_one_gets_through() {
    let young = young(9);
    bear(&young, 1);
    let (mut one, mut other) = (pass(&young), pass(&young));
    assert!(reserve(&mut one, 1, 1));
    assert!(!reserve(&mut other, 1, 1), "one of them is on its way");
    one.succeed(vec![(id(1), Some(row(2, Birth(1))))]);
    assert!(!reserve(&mut other, 1, 1), "it is not what it was");
    assert!(reserve(&mut other, 1, 2));
    other.fail();
    assert_eq!(young.get(id(1)).unwrap().version, 2);
}

#[test]
fn two_commits_cannot_create_the_same_execution() {
    let young = young(9);
    let (mut one, mut other) = (pass(&young), pass(&young));
    assert!(reserve(&mut one, 1, Stored::NO_VERSION));
    assert!(!reserve(&mut other, 1, Stored::NO_VERSION));
    one.fail();
    assert!(reserve(&mut other, 1, Stored::NO_VERSION));
    other.fail();
}

#[test]
fn one_whose_ranges_changed_has_another_version() {
    let young = young(9);
    bear(&young, 1);
    let mut pass = pass(&young);
    pass.reserve(std::iter::empty(), [id(1), id(2)].into_iter()).unwrap();
    pass.succeed(Vec::new());
    assert_ne!(young.get(id(1)).unwrap().version, 1);
    assert!(young.get(id(2)).is_none());
}

#[test]
fn a_commit_whose_fate_is_unknown_gives_the_journal_up() {
    let young = young(9);
    bear(&young, 1);
    let mut lost = pass(&young);
    assert!(reserve(&mut lost, 1, 1));
    drop(lost);
    assert!(!young.is_open(OWNER) && young.get(id(1)).is_none() && young.pass(OWNER).is_none());
}

#[test]
fn what_a_former_owner_hears_of_its_commits_is_of_no_account() {
    let young = young(9);
    let mut late = pass(&young);
    assert!(reserve(&mut late, 1, Stored::NO_VERSION));
    young.close(OWNER);
    young.open(OWNER + 1);
    late.succeed(vec![(id(1), Some(row(1, Birth(1))))]);
    assert!(young.get(id(1)).is_none());
}

#[test]
fn they_settle_in_the_order_of_their_birth_when_there_are_enough() {
    let young = young(2);
    bear(&young, 3);
    bear(&young, 1);
    assert!(young.begin_settling(false).is_none());
    bear(&young, 2);
    assert_eq!(settled(&young, false), [id(3)]);
    assert_eq!([young.get(id(3)).is_none(), young.get(id(1)).is_some()], [true, true]);
    assert_eq!(settled(&young, true), [id(1)]);
    assert_eq!(settled(&young, true), [id(2)]);
    assert!(young.begin_settling(true).is_none());
}

#[test]
fn nobody_settles_past_one_that_is_being_born_or_changed() {
    let young = young(9);
    bear(&young, 1);
    let mut bearing = pass(&young);
    let birth = bearing.bear().unwrap();
    bear(&young, 2);
    assert_eq!(settled(&young, true), [id(1)], "the mark would say that the one on its way is in the table");
    assert!(young.begin_settling(true).is_none());
    assert!(reserve(&mut bearing, 3, Stored::NO_VERSION));
    bearing.succeed(vec![(id(3), Some(row(1, birth)))]);

    let mut changing = pass(&young);
    assert!(reserve(&mut changing, 3, 1));
    assert!(young.begin_settling(true).is_none(), "what it becomes is not known");
    changing.fail();
    assert_eq!(settled(&young, true), [id(3), id(2)]);
}

#[test]
fn lines_are_dropped_up_to_the_first_that_is_needed() {
    let young = young(2);
    (1..=4).for_each(|number| bear(&young, number));
    let on_its_way = pass(&young);
    let settling = young.begin_settling(true).unwrap();
    assert_eq!((settling.lines, settling.mark), ((0, 1), Birth(1)), "the second tells of one that stays");
    settling.fail();
    let settling = young.begin_settling(true).unwrap();
    assert_eq!(settling.lines, (0, 1), "nothing was dropped");
    settling.succeed();
    for dropped in [2, 3, 4] {
        let settling = young.begin_settling(true).unwrap();
        assert_eq!(settling.lines, (dropped - 1, dropped), "the last one is before that on its way");
        settling.succeed();
    }
    on_its_way.fail();
}

#[test]
fn while_tables_are_kept_plain_nobody_is_born_young() {
    let young = young(9);
    bear(&young, 1);
    let bearing = pass(&young);
    let mut plain = Box::pin(young.keep_plain());
    assert!((&mut plain).now_or_never().is_none(), "it waits for those who may bear");
    assert!(pass(&young).bear().is_none());
    bearing.fail();
    let plain = plain.now_or_never().expect("nobody is left to wait for");
    assert!(pass(&young).bear().is_none());
    drop(plain);
    assert!(pass(&young).bear().is_some());
}

#[test]
fn too_many_of_them_have_to_settle_before_others_are_born() {
    let young = young(1);
    (1..=4).for_each(|number| bear(&young, number));
    assert!(pass(&young).bear().is_none());
    settled(&young, false);
    assert!(pass(&young).bear().is_some());
}

#[test]
fn who_reads_is_told_when_something_changed_meanwhile() {
    let young = young(9);
    bear(&young, 1);
    let (ids, none) = (HashSet::from_iter([id(1), id(2)]), HashSet::default());
    let look = || young.looked(&ids).now_or_never();
    let looked = look().unwrap();
    assert!(young.is_still(&ids, &looked, &none));

    let mut changing = pass(&young);
    assert!(reserve(&mut changing, 1, 1));
    assert!(!young.is_still(&ids, &looked, &none) && look().is_none(), "nobody knows what it is");
    changing.succeed(vec![(id(1), Some(row(2, Birth(1))))]);
    assert!(!young.is_still(&ids, &looked, &none));

    let looked = look().unwrap();
    bear(&young, 3);
    assert!(young.is_still(&ids, &looked, &none), "of others nothing was read");
    assert!(!young.is_still(&ids, &looked, &HashSet::from_iter([id(3)])));
    bear(&young, 2);
    assert!(!young.is_still(&ids, &looked, &none), "it was not there");
    let looked = look().unwrap();
    settled(&young, true);
    assert!(!young.is_still(&ids, &looked, &none), "they are in their table");
}

#[test]
fn a_few_that_change_again_and_again_settle_too() {
    let young = young(1);
    bear(&young, 1);
    for version in 1..=16 {
        assert!(young.begin_settling(false).is_none(), "after {version} lines");
        let mut pass = pass(&young);
        assert!(reserve(&mut pass, 1, version));
        pass.succeed(vec![(id(1), Some(row(version + 1, Birth(1))))]);
    }
    assert_eq!(settled(&young, false), [id(1)]);
}

#[test]
fn who_waits_for_one_that_is_taken_hears_when_it_is_free() {
    let young = young(9);
    bear(&young, 1);
    let (mut one, mut other) = (pass(&young), pass(&young));
    assert!(reserve(&mut one, 1, 1));
    let taken = other.reserve([(id(1), 1)].into_iter(), std::iter::empty()).unwrap_err();
    let Taken::ForNow(ids) = taken else { panic!("it is taken for now") };
    let mut free = Box::pin(young.until_free(&ids));
    assert!((&mut free).now_or_never().is_none());
    one.fail();
    assert!(free.now_or_never().is_some());
}
