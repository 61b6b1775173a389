//! What a store holds is judged by itself, and a broken dump is noticed.

use std::str::FromStr;
use std::sync::Arc;

use ff_core::TimestampMs;
use ff_core::backend::attempts::Attempts;
use ff_core::backend::claims::{ClaimPolicy, Claims};
use ff_core::backend::ingress::{CreateExecutionArgs, Ingress};
use ff_core::backend::streams::{Frame, FrameKind, Streams};
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_engine::clock::ManualClock;
use ff_engine::event::{Event, EventBody};
use ff_engine::memory::MemoryStore;
use ff_engine::records::{Deployment, Record};
use ff_engine::{Engine, Settings};
use ff_sim::{Invariant, check_dump, check_dump_at_rest};

const START: TimestampMs = TimestampMs(1_700_000_000_000);

fn name<T: FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("a valid name")
}

async fn claim(engine: &Engine<MemoryStore>) -> Handle {
    let policy = ClaimPolicy::new(name("w"), name("w-1"), 30_000);
    let claimed = engine.claim(&name("default"), &CapabilitySet::default(), policy).await;
    claimed.expect("a claim").expect("something to claim")
}

/// One execution of each kind: completed, owned, waiting.
async fn dump() -> (Vec<Record>, Vec<Event>) {
    let store = MemoryStore::new(Arc::new(ManualClock::at(START)));
    let engine = Engine::open(store, Settings::default()).await.expect("a fresh store opens");
    for _ in 0..3 {
        let args = CreateExecutionArgs::new(None, name("acme"), name("default"), "mail");
        engine.create_execution(args).await.expect("a submission");
    }
    let first = claim(&engine).await;
    engine.append_frame(&first, Frame::new(FrameKind::Stdout, b"hello".to_vec())).await.expect("a frame");
    engine.complete(&first, None).await.expect("an end");
    claim(&engine).await;
    (engine.store().records(), engine.store().event_log())
}

fn found(records: &[Record], events: &[Event]) -> Vec<Invariant> {
    check_dump(records, events).into_iter().map(|violation| violation.invariant).collect()
}

fn is_leased(record: &Record) -> bool {
    matches!(record, Record::Execution(execution) if execution.is_leased())
}

#[tokio::test]
async fn a_sound_dump_holds_every_invariant() {
    let (records, events) = dump().await;

    assert!(records.iter().any(is_leased));
    assert_eq!(check_dump(&records, &events), []);
}

#[tokio::test]
async fn an_owner_without_an_attempt_is_noticed() {
    let (mut records, events) = dump().await;
    let owned = records.iter().find(|record| is_leased(record)).map(Record::key).unwrap();
    records.retain(|record| match record {
        Record::Attempt(attempt) => ff_engine::key::Key::execution(attempt.execution) != owned,
        _ => true,
    });

    assert!(found(&records, &events).contains(&Invariant::AttemptsAreNumbered));
}

#[tokio::test]
async fn what_outlives_its_execution_is_noticed() {
    let (mut records, events) = dump().await;
    records.retain(|record| !is_leased(record));

    assert!(found(&records, &events).contains(&Invariant::PurgeIsComplete));
}

#[tokio::test]
async fn a_lost_event_is_noticed() {
    let (records, mut events) = dump().await;
    events.retain(|event| !matches!(event.body, EventBody::Completion { .. }));

    assert_eq!(found(&records, &events), [Invariant::OneCompletionEvent]);
}

#[tokio::test]
async fn an_event_that_is_told_twice_is_noticed() {
    let (records, mut events) = dump().await;
    events.extend(events.clone());

    let found = found(&records, &events);
    for invariant in [Invariant::SingleLease, Invariant::EpochRises, Invariant::OneCompletionEvent] {
        assert!(found.contains(&invariant), "{invariant} is not in {found:?}");
    }
}

#[tokio::test]
async fn a_lost_write_is_noticed() {
    let (mut records, events) = dump().await;
    records.retain(|record| !matches!(record, Record::StreamHead(_)));

    assert_eq!(found(&records, &events), [Invariant::FramesAreOrdered]);
}

#[tokio::test]
async fn a_record_that_is_stored_twice_is_noticed() {
    let (mut records, events) = dump().await;
    let deployment = records.iter().find(|record| matches!(record, Record::Deployment(_))).cloned().unwrap();
    records.push(deployment);

    assert_eq!(found(&records, &events), [Invariant::SoundAnswers]);
}

#[tokio::test]
async fn half_an_end_is_noticed() {
    let (mut records, events) = dump().await;
    for record in &mut records {
        if let Record::Execution(execution) = record {
            Arc::make_mut(execution).completed_at = None;
        }
    }

    assert_eq!(found(&records, &events), [Invariant::TimesAreStable]);
}

#[tokio::test]
async fn what_is_not_at_rest_is_noticed_only_when_rest_is_claimed() {
    let (records, events) = dump().await;

    let found = check_dump_at_rest(&records, &events, START.plus(60_000));

    let found: Vec<Invariant> = found.into_iter().map(|violation| violation.invariant).collect();
    assert!(found.contains(&Invariant::LostOwnerFails), "{found:?}");
    assert!(found.contains(&Invariant::ImpossibleSkips), "{found:?}");
}

#[test]
fn an_empty_store_is_sound_and_at_rest() {
    let fresh = [Record::from(Deployment { counts: Settings::default().counts, created_at: START })];

    assert_eq!(check_dump(&fresh, &[]), []);
    assert_eq!(check_dump_at_rest(&fresh, &[], START), []);
    assert_eq!(check_dump(&[], &[]), []);
}
