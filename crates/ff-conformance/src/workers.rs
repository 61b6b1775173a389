//! The registry of live worker processes.

use ff_core::backend::workers::{
    HeartbeatWorkerArgs, HeartbeatWorkerOutcome, ListWorkersArgs, ListWorkersResult, MarkWorkerDeadArgs,
    MarkWorkerDeadOutcome, RegisterWorkerArgs, RegisterWorkerOutcome, WorkerCursor,
};
use ff_core::error::ValidationKind;
use ff_core::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};
use ff_core::policy::{ExecutionPolicy, RoutingRequirements};
use ff_core::state::{BlockingReason, PublicState};

use crate::cases;
use crate::expect::invalid;
use crate::stage::{register, registration};
use crate::world::{LEASE_MS, World, worker};

cases!["workers":
    a_process_is_registered_and_shown,
    a_second_registration_replaces_what_was_announced,
    a_lapsed_registration_starts_anew,
    a_live_process_cannot_change_its_worker,
    a_lapsed_process_can_change_its_worker,
    a_registration_with_faulty_numbers_or_tokens_is_refused,
    the_kinds_a_worker_handles_are_shown_and_replaced,
    a_registration_with_kinds_that_cannot_be_is_refused,
    a_heartbeat_extends_by_the_registered_time,
    a_heartbeat_never_revives,
    a_dead_worker_is_gone_and_its_leases_stay,
    a_faulty_reason_is_refused,
    only_live_workers_are_listed_in_order,
    a_list_can_be_narrowed_to_one_namespace,
    a_list_skips_the_dead_without_ending,
    the_same_process_name_in_two_namespaces_is_two_workers,
    a_registration_frees_work_that_waited_for_its_capabilities,
    lapsed_entries_are_swept_once,
];

async fn list(world: &World, args: ListWorkersArgs) -> ListWorkersResult {
    world.backend.list_workers(args).await.unwrap()
}

fn instances(page: &ListWorkersResult) -> Vec<&str> {
    page.entries.iter().map(|entry| entry.worker_instance_id.as_str()).collect()
}

fn heartbeat(world: &World, name: &str) -> HeartbeatWorkerArgs {
    HeartbeatWorkerArgs { worker_instance_id: worker(name).1, namespace: world.namespace() }
}

fn death(world: &World, name: &str, reason: &str) -> MarkWorkerDeadArgs {
    MarkWorkerDeadArgs { worker_instance_id: worker(name).1, namespace: world.namespace(), reason: reason.to_owned() }
}

async fn a_process_is_registered_and_shown(world: World) {
    assert_eq!(register(&world, "worker-a", &["gpu"]).await, RegisterWorkerOutcome::Registered);
    let page = list(&world, ListWorkersArgs::default()).await;
    let [entry] = &page.entries[..] else { panic!("one worker expected, got {page:?}") };
    let (worker_id, worker_instance_id) = worker("worker-a");
    assert_eq!((&entry.worker_id, &entry.worker_instance_id), (&worker_id, &worker_instance_id));
    assert_eq!((&entry.namespace, &entry.lanes), (&world.namespace(), &[world.lane()].into()));
    assert_eq!(entry.capabilities, ["gpu".to_owned()].into());
    assert_eq!((entry.registered_at_ms, entry.last_heartbeat_ms), (world.now(), world.now()));
    assert_eq!((entry.liveness_ttl_ms, entry.expires_at()), (60_000, world.now().plus(60_000)));
    assert_eq!(page.next_cursor, None);
}

async fn a_second_registration_replaces_what_was_announced(world: World) {
    let first = world.now();
    register(&world, "worker-a", &["gpu"]).await;
    world.advance(1000);
    let again = RegisterWorkerArgs {
        lanes: [LaneId::new("other").unwrap()].into(),
        liveness_ttl_ms: 5000,
        ..registration(&world, "worker-a", &["cpu"])
    };
    assert_eq!(world.backend.register_worker(again).await.unwrap(), RegisterWorkerOutcome::Refreshed);
    let page = list(&world, ListWorkersArgs::default()).await;
    let [entry] = &page.entries[..] else { panic!("one worker expected, got {page:?}") };
    assert_eq!((entry.registered_at_ms, entry.last_heartbeat_ms), (first, world.now()));
    assert_eq!((entry.capabilities.len(), entry.capabilities.contains("cpu")), (1, true));
    assert_eq!((&entry.lanes, entry.liveness_ttl_ms), (&[LaneId::new("other").unwrap()].into(), 5000));
}

async fn a_lapsed_registration_starts_anew(world: World) {
    register(&world, "worker-a", &[]).await;
    world.advance(60_000);
    assert_eq!(register(&world, "worker-a", &[]).await, RegisterWorkerOutcome::Registered);
    assert_eq!(list(&world, ListWorkersArgs::default()).await.entries[0].registered_at_ms, world.now());
}

async fn a_live_process_cannot_change_its_worker(world: World) {
    register(&world, "worker-a", &["gpu"]).await;
    world.advance(59_999);
    let before = list(&world, ListWorkersArgs::default()).await;
    let stranger = RegisterWorkerArgs {
        worker_id: WorkerId::new("stranger").unwrap(),
        lanes: [LaneId::new("new-lane").unwrap()].into(),
        ..registration(&world, "worker-a", &[])
    };
    let detail = invalid(world.backend.register_worker(stranger).await, ValidationKind::InvalidInput);
    assert_eq!(detail, "instance_id reassigned");
    assert_eq!(list(&world, ListWorkersArgs::default()).await, before);
    let lanes = world.backend.list_lanes(None, 10).await.unwrap().lanes;
    assert!(lanes.iter().all(|key| key.lane_id.as_str() != "new-lane"), "a refused registration leaves no trace");
}

async fn a_lapsed_process_can_change_its_worker(world: World) {
    register(&world, "worker-a", &[]).await;
    world.advance(60_000);
    let successor =
        RegisterWorkerArgs { worker_id: WorkerId::new("successor").unwrap(), ..registration(&world, "worker-a", &[]) };
    assert_eq!(world.backend.register_worker(successor).await.unwrap(), RegisterWorkerOutcome::Registered);
}

async fn a_registration_with_faulty_numbers_or_tokens_is_refused(world: World) {
    for liveness_ttl_ms in [0, u64::MAX] {
        let args = RegisterWorkerArgs { liveness_ttl_ms, ..registration(&world, "worker-a", &["bad token"]) };
        invalid(world.backend.register_worker(args).await, ValidationKind::InvalidInput);
    }
    let many: Vec<String> = (0..257).map(|n| format!("t{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = "x".repeat(4097);
    let faulty: [(&[&str], &str); 6] = [
        (&[""], "worker:empty_token"),
        (&["a,b"], "worker:comma_in_token"),
        (&["a b"], "worker:control_or_whitespace"),
        (&["a\u{a0}b"], "worker:control_or_whitespace"),
        (&many, "worker:too_many_tokens"),
        (&[&long], "worker:too_many_bytes"),
    ];
    for (tokens, detail) in faulty {
        let answer = world.backend.register_worker(registration(&world, "worker-a", tokens)).await;
        assert_eq!(invalid(answer, ValidationKind::InvalidCapabilities), detail);
    }
    assert!(list(&world, ListWorkersArgs::default()).await.entries.is_empty());
}

async fn the_kinds_a_worker_handles_are_shown_and_replaced(world: World) {
    for kinds in [Some(["mail".to_owned(), "bill".to_owned()].into()), Some([].into()), None] {
        let args = RegisterWorkerArgs { kinds: kinds.clone(), ..registration(&world, "worker-a", &[]) };
        world.backend.register_worker(args).await.unwrap();
        assert_eq!(list(&world, ListWorkersArgs::default()).await.entries[0].kinds, kinds);
    }
}

async fn a_registration_with_kinds_that_cannot_be_is_refused(world: World) {
    let kinds = |count| (0..count).map(|n: u32| format!("kind-{n}")).collect();
    let with = |kinds| RegisterWorkerArgs { kinds: Some(kinds), ..registration(&world, "worker-a", &[]) };
    for (kinds, why) in [
        (kinds(1001), "at most 1000"),
        (["k".repeat(257)].into(), "257 bytes"),
        (["a\tb".to_owned()].into(), "character"),
    ] {
        let detail = invalid(world.backend.register_worker(with(kinds)).await, ValidationKind::InvalidInput);
        assert!(detail.contains("kinds") && detail.contains(why), "{detail}");
    }
    assert!(list(&world, ListWorkersArgs::default()).await.entries.is_empty());
    world.backend.register_worker(with(kinds(1000))).await.unwrap();
}

async fn a_heartbeat_extends_by_the_registered_time(world: World) {
    register(&world, "worker-a", &[]).await;
    world.advance(59_999);
    let next_expiry_ms = world.now().plus(60_000);
    let outcome = world.backend.heartbeat_worker(heartbeat(&world, "worker-a")).await.unwrap();
    assert_eq!(outcome, HeartbeatWorkerOutcome::Refreshed { next_expiry_ms });
    world.pass(59_999).await;
    assert_eq!(instances(&list(&world, ListWorkersArgs::default()).await), ["worker-a-1"]);
    world.pass(1).await;
    assert!(list(&world, ListWorkersArgs::default()).await.entries.is_empty());
}

async fn a_heartbeat_never_revives(world: World) {
    let absent = world.backend.heartbeat_worker(heartbeat(&world, "worker-a")).await.unwrap();
    assert_eq!(absent, HeartbeatWorkerOutcome::NotRegistered);
    register(&world, "worker-a", &[]).await;
    world.advance(60_000);
    let lapsed = world.backend.heartbeat_worker(heartbeat(&world, "worker-a")).await.unwrap();
    assert_eq!(lapsed, HeartbeatWorkerOutcome::NotRegistered);
    assert!(list(&world, ListWorkersArgs::default()).await.entries.is_empty());
}

async fn a_dead_worker_is_gone_and_its_leases_stay(world: World) {
    register(&world, "worker-a", &[]).await;
    let (id, handle) = world.claim_one().await;
    let marked = world.backend.mark_worker_dead(death(&world, "worker-a", "crashed")).await.unwrap();
    assert_eq!(marked, MarkWorkerDeadOutcome::Marked);
    assert!(list(&world, ListWorkersArgs::default()).await.entries.is_empty());
    let again = world.backend.mark_worker_dead(death(&world, "worker-a", "crashed")).await.unwrap();
    assert_eq!(again, MarkWorkerDeadOutcome::NotRegistered);
    assert_eq!(world.state(id).await, PublicState::Active);
    world.backend.renew(&handle).await.unwrap();
    assert_eq!(register(&world, "worker-a", &[]).await, RegisterWorkerOutcome::Registered);
    world.advance(60_000);
    let lapsed = world.backend.mark_worker_dead(death(&world, "worker-a", "late")).await.unwrap();
    assert_eq!(lapsed, MarkWorkerDeadOutcome::NotRegistered);
}

async fn a_faulty_reason_is_refused(world: World) {
    register(&world, "worker-a", &[]).await;
    for reason in ["x".repeat(257), "line\nbreak".to_owned(), "\u{7f}".to_owned()] {
        let answer = world.backend.mark_worker_dead(death(&world, "worker-a", &reason)).await;
        invalid(answer, ValidationKind::InvalidInput);
    }
    assert_eq!(list(&world, ListWorkersArgs::default()).await.entries.len(), 1);
    world.backend.mark_worker_dead(death(&world, "worker-a", &"x".repeat(256))).await.unwrap();
}

async fn in_namespace(world: &World, namespace: &str, instance: &str) {
    let args = RegisterWorkerArgs {
        namespace: Namespace::new(namespace).unwrap(),
        worker_instance_id: WorkerInstanceId::new(instance).unwrap(),
        ..registration(world, "worker-a", &[])
    };
    world.backend.register_worker(args).await.unwrap();
}

async fn only_live_workers_are_listed_in_order(world: World) {
    for (namespace, instance) in [("b", "1"), ("a", "2"), ("a", "1"), ("a", "10"), ("ab", "0")] {
        in_namespace(&world, namespace, instance).await;
    }
    let page = list(&world, ListWorkersArgs { limit: Some(3), ..ListWorkersArgs::default() }).await;
    assert_eq!(instances(&page), ["1", "10", "2"]);
    let next = ListWorkersArgs { after: page.next_cursor, ..ListWorkersArgs::default() };
    let rest = list(&world, next).await;
    assert_eq!((instances(&rest), rest.next_cursor.clone()), (vec!["0", "1"], None));
    let none = list(&world, ListWorkersArgs { limit: Some(0), ..ListWorkersArgs::default() }).await;
    assert_eq!(none, ListWorkersResult::default());
}

async fn a_list_can_be_narrowed_to_one_namespace(world: World) {
    for (namespace, instance) in [("a", "1"), ("a", "2"), ("ab", "1"), ("b", "1")] {
        in_namespace(&world, namespace, instance).await;
    }
    let only = |after| ListWorkersArgs { namespace: Some(Namespace::new("a").unwrap()), after, limit: Some(1) };
    let first = list(&world, only(None)).await;
    assert_eq!(instances(&first), ["1"]);
    let second = list(&world, only(first.next_cursor)).await;
    assert_eq!((instances(&second), &second.next_cursor), (vec!["2"], &None));
    let foreign = WorkerCursor {
        namespace: Namespace::new("z").unwrap(),
        worker_instance_id: WorkerInstanceId::new("1").unwrap(),
    };
    assert!(list(&world, only(Some(foreign))).await.entries.is_empty());
}

async fn a_list_skips_the_dead_without_ending(world: World) {
    for name in ["a", "b", "c"] {
        in_namespace(&world, "acme", name).await;
    }
    world.advance(59_999);
    in_namespace(&world, "acme", "d").await;
    world.advance(1);
    let page = list(&world, ListWorkersArgs { limit: Some(1), ..ListWorkersArgs::default() }).await;
    assert_eq!((instances(&page), &page.next_cursor), (vec!["d"], &None));
}

async fn the_same_process_name_in_two_namespaces_is_two_workers(world: World) {
    in_namespace(&world, "a", "one").await;
    in_namespace(&world, "b", "one").await;
    assert_eq!(list(&world, ListWorkersArgs::default()).await.entries.len(), 2);
    let dead = MarkWorkerDeadArgs {
        worker_instance_id: WorkerInstanceId::new("one").unwrap(),
        namespace: Namespace::new("a").unwrap(),
        reason: String::new(),
    };
    world.backend.mark_worker_dead(dead).await.unwrap();
    let left = list(&world, ListWorkersArgs::default()).await;
    assert_eq!(left.entries[0].namespace.as_str(), "b");
}

async fn a_registration_frees_work_that_waited_for_its_capabilities(world: World) {
    let required_capabilities = ["gpu".to_owned()].into();
    let policy = ExecutionPolicy {
        routing_requirements: Some(RoutingRequirements { required_capabilities }),
        ..ExecutionPolicy::default()
    };
    let id = world.create_with(&policy).await;
    assert!(world.claim().await.is_none());
    let reason = async || {
        let snapshot = world.backend.describe_execution(id).await.unwrap().expect("described");
        snapshot.blocking_reason
    };
    assert_eq!(reason().await, Some(BlockingReason::WaitingForCapableWorker));
    register(&world, "worker-b", &["cpu"]).await;
    world.run_due().await;
    assert_eq!(reason().await, Some(BlockingReason::WaitingForCapableWorker), "it lacks what is needed");
    register(&world, "worker-c", &["gpu"]).await;
    world.run_due().await;
    assert_eq!(reason().await, Some(BlockingReason::WaitingForWorker));
}

async fn lapsed_entries_are_swept_once(world: World) {
    register(&world, "worker-a", &[]).await;
    register(&world, "worker-b", &[]).await;
    world.advance(LEASE_MS);
    world.backend.heartbeat_worker(heartbeat(&world, "worker-b")).await.unwrap();
    world.advance(60_000 - LEASE_MS);
    assert_eq!(world.run_due().await, 1);
    assert_eq!(world.run_due().await, 0);
    assert_eq!(instances(&list(&world, ListWorkersArgs::default()).await), ["worker-b-1"]);
}
