//! Issuing, listing, closing and reading waitpoints.

use std::time::Duration;

use ff_core::backend::maintenance::TrimRetentionArgs;
use ff_core::backend::signals::{DeliverSignalArgs, ListPendingWaitpointsArgs, PendingWaitpoint, SignalEffect};
use ff_core::backend::subscriptions::ScannerFilter;
use ff_core::backend::suspension::{ConditionKind, ResumeCondition, SuspendArgs, WaitpointBinding};
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, WaitpointId};
use ff_core::partition::PartitionKey;
use ff_core::state::{PublicState, WaitpointState};

use crate::expect::{conflict, contention, invalid, not_found, state};
use crate::suspension::fixtures::*;
use crate::{Damage, World, cases};

cases!["signals":
    a_waitpoint_is_issued_while_the_lease_stays,
    a_waitpoint_needs_a_key_and_a_duration,
    a_waitpoint_is_issued_to_the_owner_only,
    an_open_waitpoint_has_its_key_for_itself,
    every_call_issues_another_waitpoint,
    an_execution_has_at_most_a_thousand_pending_waitpoints,
    a_pending_waitpoint_runs_out,
    a_key_is_free_as_soon_as_its_waitpoint_has_run_out,
    a_bound_waitpoint_does_not_run_out,
    open_waitpoints_are_listed_without_their_tokens,
    required_names_are_listed_where_there_are_some,
    open_waitpoints_are_paged_by_id_whatever_was_closed,
    a_page_of_waitpoints_has_a_hundred_entries_unless_asked_otherwise,
    waitpoints_of_a_missing_execution_are_not_found,
    a_token_is_read_by_trusted_services,
    a_closed_waitpoint_takes_nothing,
    closing_an_active_waitpoint_resumes_nothing,
    closing_again_changes_nothing,
    only_its_execution_closes_a_waitpoint,
    the_end_of_an_execution_closes_its_pending_waitpoints,
    damaged_records_are_told_as_such,
    a_damaged_waitpoint_does_not_keep_others_from_being_purged,
];

async fn issue(world: &World, handle: &Handle, key: &str) -> PendingWaitpoint {
    world.backend.create_waitpoint(handle, key, Duration::from_secs(10)).await.unwrap()
}

fn to(id: ExecutionId, waitpoint: &PendingWaitpoint, name: &str) -> DeliverSignalArgs {
    DeliverSignalArgs::new(id, waitpoint.waitpoint_id, name, waitpoint.waitpoint_token.clone())
}

async fn open(world: &World, id: ExecutionId) -> Vec<WaitpointId> {
    let page = world.backend.list_pending_waitpoints(ListPendingWaitpointsArgs::new(id)).await.unwrap();
    page.entries.iter().map(|entry| entry.waitpoint_id).collect()
}

async fn a_waitpoint_is_issued_while_the_lease_stays(world: World) {
    let (id, handle) = held(&world).await;
    let before = snapshot(&world, id).await;
    let waitpoint = issue(&world, &handle, "a").await;
    assert_eq!(waitpoint.waitpoint_token.kid(), "k1");
    let after = snapshot(&world, id).await;
    assert_eq!((after.public_state, after.current_waitpoint), (PublicState::Active, None));
    assert_eq!(after.current_lease, before.current_lease);
    let effect = deliver(&world, to(id, &waitpoint, "early")).await;
    assert_eq!(effect, SignalEffect::BufferedForPendingWaitpoint);
    assert_eq!(world.state(id).await, PublicState::Active, "nothing is evaluated");
}

async fn a_waitpoint_needs_a_key_and_a_duration(world: World) {
    let (_, handle) = held(&world).await;
    let foreign = Handle { opaque: ff_core::handle::HandleOpaque::new(vec![]), ..handle.clone() };
    let second = Duration::from_secs(1);
    for (key, expires_in) in [
        ("", second),
        ("a", Duration::ZERO),
        ("a", Duration::from_micros(1)),
        ("a\0", second),
        (&"x".repeat(257), second),
    ] {
        for handle in [&handle, &foreign] {
            let refused = world.backend.create_waitpoint(handle, key, expires_in).await;
            invalid(refused, ValidationKind::InvalidInput);
        }
    }
    world.backend.create_waitpoint(&handle, "for ever", Duration::MAX).await.unwrap();
}

async fn a_waitpoint_is_issued_to_the_owner_only(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let refused = world.backend.create_waitpoint(&parked.old, "b", Duration::from_secs(1)).await;
    contention(refused, "execution_not_active");
}

async fn an_open_waitpoint_has_its_key_for_itself(world: World) {
    let (id, handle) = held(&world).await;
    let first = issue(&world, &handle, "a").await;
    let again = async || world.backend.create_waitpoint(&handle, "a", Duration::from_secs(1)).await;
    conflict(again().await, "waitpoint_already_exists");
    world.backend.close_waitpoint(id, first.waitpoint_id, world.now()).await.unwrap();
    assert_ne!(again().await.unwrap().waitpoint_id, first.waitpoint_id);
}

async fn every_call_issues_another_waitpoint(world: World) {
    let (id, handle) = held(&world).await;
    let first = issue(&world, &handle, "a").await;
    let second = issue(&world, &handle, "b").await;
    assert_ne!(first.waitpoint_token, second.waitpoint_token);
    let mut both = [first.waitpoint_id, second.waitpoint_id];
    both.sort_unstable();
    assert_eq!(open(&world, id).await, both);
}

async fn an_execution_has_at_most_a_thousand_pending_waitpoints(world: World) {
    let (id, handle) = held(&world).await;
    for n in 0..1000 {
        issue(&world, &handle, &format!("k{n}")).await;
    }
    let refused = world.backend.create_waitpoint(&handle, "one too many", Duration::from_secs(1)).await;
    let detail = invalid(refused, ValidationKind::InvalidInput);
    assert!(detail.starts_with("too_many_pending_waitpoints"), "{detail}");
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(open(&world, id).await, [], "the end closes all of them");
}

async fn a_pending_waitpoint_runs_out(world: World) {
    let (id, handle) = held(&world).await;
    let waitpoint = issue(&world, &handle, "a").await;
    world.pass(9_999).await;
    deliver(&world, to(id, &waitpoint, "in time")).await;
    world.advance(1);
    state(world.backend.deliver_signal(to(id, &waitpoint, "late")).await, StateKind::WaitpointClosed);
    world.run_due().await;
    assert_eq!(open(&world, id).await, []);
    state(world.backend.deliver_signal(to(id, &waitpoint, "late")).await, StateKind::WaitpointClosed);
    issue(&world, &handle, "a").await;
}

async fn a_key_is_free_as_soon_as_its_waitpoint_has_run_out(world: World) {
    let (id, handle) = held(&world).await;
    let first = issue(&world, &handle, "a").await;
    world.advance(10_000);
    let second = issue(&world, &handle, "a").await;
    assert_eq!(open(&world, id).await, [second.waitpoint_id], "the first one is closed in passing");
    state(world.backend.deliver_signal(to(id, &first, "late")).await, StateKind::WaitpointClosed);
    let effect = deliver(&world, to(id, &second, "early")).await;
    assert_eq!(effect, SignalEffect::BufferedForPendingWaitpoint);
}

async fn a_bound_waitpoint_does_not_run_out(world: World) {
    let (id, handle) = held(&world).await;
    let waitpoint = issue(&world, &handle, "a").await;
    let binding = WaitpointBinding::UsePending { waitpoint_id: waitpoint.waitpoint_id };
    park_with(&world, id, handle, asking(&world, vec![binding], single("a", "go"))).await;
    world.pass(60_000).await;
    assert_eq!(deliver(&world, to(id, &waitpoint, "go")).await, SignalEffect::ResumeConditionSatisfied);
}

async fn open_waitpoints_are_listed_without_their_tokens(world: World) {
    let (id, handle) = held(&world).await;
    let created = world.now();
    let waitpoint = issue(&world, &handle, "p").await;
    world.advance(5);
    let timeout_at = Some(world.now().plus(60_000));
    let parked = park_with(&world, id, handle, SuspendArgs { timeout_at, ..ask(&world) }).await;

    let page = world.backend.list_pending_waitpoints(ListPendingWaitpointsArgs::new(id)).await.unwrap();

    let of = |wanted| page.entries.iter().find(|entry| entry.waitpoint_id == wanted).expect("listed");
    let pending = of(waitpoint.waitpoint_id);
    assert_eq!((pending.state, pending.waitpoint_key.as_str()), (WaitpointState::Pending, "p"));
    assert_eq!((pending.condition_kind, &pending.required_signal_names[..]), (None, &[][..]));
    assert_eq!((pending.created_at, pending.activated_at), (created, None));
    assert_eq!(pending.expires_at, Some(created.plus(10_000)));
    assert_eq!(pending.token_kid, "k1");
    assert_eq!(pending.token_fingerprint, waitpoint.waitpoint_token.fingerprint());
    assert_eq!(pending.token_fingerprint.len(), 16);
    let active = of(parked.details.waitpoint_id);
    assert_eq!((active.state, active.execution_id), (WaitpointState::Active, id));
    assert_eq!(active.condition_kind, Some(ConditionKind::Single));
    assert_eq!(active.required_signal_names, ["go"]);
    assert_eq!(active.activated_at, Some(world.now()));
    assert_eq!(active.expires_at, timeout_at);
    let shown = format!("{page:?} {}", serde_json::to_string(&page).unwrap());
    assert!(!shown.contains(&waitpoint.waitpoint_token.expose()[3..]), "a token is a secret");
}

async fn required_names_are_listed_where_there_are_some(world: World) {
    let condition = all([single("a", "z"), single("a", "b"), any("b"), ResumeCondition::OperatorOnly {}]);
    let parked = parked_on(&world, &["a", "b"], condition).await;
    let page = world.backend.list_pending_waitpoints(ListPendingWaitpointsArgs::new(parked.id)).await.unwrap();
    let names = |key| {
        let entry = page.entries.iter().find(|entry| entry.waitpoint_key == key).expect("listed");
        assert_eq!(entry.condition_kind, Some(ConditionKind::AllOf));
        entry.required_signal_names.clone()
    };
    assert_eq!(names("a"), ["b", "z"]);
    assert!(names("b").is_empty());
}

async fn open_waitpoints_are_paged_by_id_whatever_was_closed(world: World) {
    let (id, handle) = held(&world).await;
    let mut ids = Vec::new();
    for n in 0..9 {
        let waitpoint = issue(&world, &handle, &format!("k{n}")).await;
        ids.push(waitpoint.waitpoint_id);
    }
    ids.sort_unstable();
    let (closed, left) = ids.split_at(4);
    for waitpoint in closed {
        world.backend.close_waitpoint(id, *waitpoint, world.now()).await.unwrap();
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let args = ListPendingWaitpointsArgs { execution_id: id, after, limit: Some(2) };
        let page = world.backend.list_pending_waitpoints(args).await.unwrap();
        seen.extend(page.entries.iter().map(|entry| entry.waitpoint_id));
        match page.next_cursor {
            Some(cursor) => after = Some(cursor),
            None => break,
        }
    }
    assert_eq!(seen, left);
    let one = ListPendingWaitpointsArgs { execution_id: id, after: None, limit: Some(0) };
    assert_eq!(world.backend.list_pending_waitpoints(one).await.unwrap().entries.len(), 1);
}

async fn a_page_of_waitpoints_has_a_hundred_entries_unless_asked_otherwise(world: World) {
    let (id, handle) = held(&world).await;
    for n in 0..101 {
        issue(&world, &handle, &format!("k{n}")).await;
    }
    let page = world.backend.list_pending_waitpoints(ListPendingWaitpointsArgs::new(id)).await.unwrap();
    assert_eq!(page.entries.len(), 100);
    let args = ListPendingWaitpointsArgs { execution_id: id, after: page.next_cursor, limit: Some(5000) };
    assert_eq!(world.backend.list_pending_waitpoints(args).await.unwrap().entries.len(), 1);
}

async fn waitpoints_of_a_missing_execution_are_not_found(world: World) {
    let missing = ListPendingWaitpointsArgs::new(world.execution_id());
    not_found(world.backend.list_pending_waitpoints(missing).await, Entity::Execution);
}

async fn a_token_is_read_by_trusted_services(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let partition: PartitionKey = parked.id.partition().into();
    let read = async |partition: &PartitionKey| {
        world.backend.read_waitpoint_token(partition, parked.details.waitpoint_id).await
    };
    assert_eq!(read(&partition).await.unwrap(), Some(parked.details.waitpoint_token.clone()));
    deliver(&world, parked.signal("go")).await;
    assert_eq!(read(&partition).await.unwrap(), Some(parked.details.waitpoint_token.clone()), "open or not");
    let elsewhere = PartitionKey(format!("{{fp:{}}}", parked.id.partition().index() ^ 1));
    assert_eq!(read(&elsewhere).await.unwrap(), None);
    assert_eq!(read(&PartitionKey("{b:0}".into())).await.unwrap(), None);
    let missing = WaitpointId::from_uuid(world.uuid());
    assert_eq!(world.backend.read_waitpoint_token(&partition, missing).await.unwrap(), None);
    invalid(read(&PartitionKey("{fp:x}".into())).await, ValidationKind::InvalidInput);
}

async fn a_closed_waitpoint_takes_nothing(world: World) {
    let (id, handle) = held(&world).await;
    let waitpoint = issue(&world, &handle, "a").await;
    world.backend.close_waitpoint(id, waitpoint.waitpoint_id, world.now()).await.unwrap();
    state(world.backend.deliver_signal(to(id, &waitpoint, "go")).await, StateKind::WaitpointClosed);
    assert_eq!(open(&world, id).await, []);
}

async fn closing_an_active_waitpoint_resumes_nothing(world: World) {
    let parked = parked_on(&world, &["a", "b"], all([any("a"), any("b")])).await;
    let (waitpoint, _) = parked.waitpoint("a");
    world.backend.close_waitpoint(parked.id, waitpoint, world.now()).await.unwrap();
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
    state(world.backend.deliver_signal(parked.signal_at("a", "x")).await, StateKind::WaitpointClosed);
    assert_eq!(deliver(&world, parked.signal_at("b", "x")).await, SignalEffect::AppendedToWaitpoint);
}

async fn closing_again_changes_nothing(world: World) {
    let parked = parked(&world, ask(&world)).await;
    deliver(&world, parked.signal("go")).await;
    world.backend.close_waitpoint(parked.id, parked.details.waitpoint_id, world.now()).await.unwrap();
    assert_eq!(observed(&world, &parked.handle).await, ["go"]);
}

async fn only_its_execution_closes_a_waitpoint(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let (other, _) = world.claim_one().await;
    let close = async |id, waitpoint| world.backend.close_waitpoint(id, waitpoint, world.now()).await;
    contention(close(other, parked.details.waitpoint_id).await, "waitpoint_not_found");
    contention(close(parked.id, WaitpointId::from_uuid(world.uuid())).await, "waitpoint_not_found");
    let nowhere = ExecutionId::new(u16::MAX, world.uuid());
    invalid(close(nowhere, parked.details.waitpoint_id).await, ValidationKind::InvalidInput);
    assert_eq!(open(&world, parked.id).await, [parked.details.waitpoint_id]);
}

async fn the_end_of_an_execution_closes_its_pending_waitpoints(world: World) {
    let (id, handle) = held(&world).await;
    let waitpoint = issue(&world, &handle, "a").await;
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(open(&world, id).await, []);
    state(world.backend.deliver_signal(to(id, &waitpoint, "go")).await, StateKind::TargetNotSignalable);
}

async fn damaged_records_are_told_as_such(world: World) {
    let (id, handle) = held(&world).await;
    let waitpoint = issue(&world, &handle, "a").await;
    world.damage(Damage::Waitpoint(id, waitpoint.waitpoint_id)).await;
    let partition: PartitionKey = id.partition().into();
    let token = world.backend.read_waitpoint_token(&partition, waitpoint.waitpoint_id).await;
    invalid(token, ValidationKind::Corruption);
    let closed = world.backend.close_waitpoint(id, waitpoint.waitpoint_id, world.now()).await;
    invalid(closed, ValidationKind::Corruption);
    invalid(world.backend.deliver_signal(to(id, &waitpoint, "go")).await, ValidationKind::Corruption);
    world.damage(Damage::Execution(id)).await;
    let listed = world.backend.list_pending_waitpoints(ListPendingWaitpointsArgs::new(id)).await;
    invalid(listed, ValidationKind::Corruption);
    let another = world.backend.create_waitpoint(&handle, "b", Duration::from_secs(1)).await;
    invalid(another, ValidationKind::Corruption);
}

async fn a_damaged_waitpoint_does_not_keep_others_from_being_purged(world: World) {
    let (damaged, handle) = held(&world).await;
    let waitpoint = issue(&world, &handle, "a").await;
    world.backend.complete(&handle, None).await.unwrap();
    world.damage(Damage::Waitpoint(damaged, waitpoint.waitpoint_id)).await;
    world.advance(1);
    let (other, handle) = world.claim_one().await;
    world.backend.complete(&handle, None).await.unwrap();
    world.advance(1000);
    let trim = || TrimRetentionArgs {
        partition: damaged.partition().into(),
        lane_id: world.lane(),
        retention_ms: 1000,
        now: world.now(),
        batch_size: 10,
        namespace: None,
        filter: ScannerFilter::default(),
    };
    assert_eq!(world.backend.trim_retention(trim()).await.unwrap(), 1);
    assert_eq!(world.backend.read_execution_state(other).await.unwrap(), None);
    invalid(world.backend.trim_retention(trim()).await, ValidationKind::Corruption);
}
