//! Waiting for work.

use std::pin::pin;
use std::time::Duration;

use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::{CreateExecutionArgs, SetLaneStateArgs};
use ff_core::capability::CapabilitySet;
use ff_core::state::{LaneState, PublicState};
use futures_util::future::{join, join_all};

use super::{grant_args, of_kind, policy, taking};
use crate::cases;
use crate::expect::is_closing;
use crate::patience::{is_waiting, settle};
use crate::world::World;

cases!["claims":
    a_waiting_claim_gets_what_is_there_at_once,
    a_waiting_claim_wakes_when_work_comes,
    a_waiting_claim_gives_up_when_its_time_is_over,
    a_waiting_claim_wakes_when_a_delay_ends,
    a_waiting_claim_wakes_when_a_grant_runs_out,
    a_waiting_claim_wakes_when_the_lane_opens,
    several_are_waited_for_only_while_there_is_none,
    all_who_wait_for_the_same_get_what_comes,
    those_who_wait_for_different_kinds_get_their_own,
    a_waiting_claim_that_is_dropped_leaves_the_next_one_waiting,
    each_waiting_claim_gives_up_in_its_own_time,
    waiting_claims_are_told_that_the_engine_closes,
];

fn patient(ms: u64) -> ClaimPolicy {
    ClaimPolicy { max_wait_ms: Some(ms), ..policy("worker-a") }
}

async fn a_waiting_claim_gets_what_is_there_at_once(world: World) {
    world.create().await;
    let answer = world.backend.claim(&world.lane(), &CapabilitySet::default(), patient(1000)).await.unwrap();
    assert!(answer.is_some());
}

async fn a_waiting_claim_wakes_when_work_comes(world: World) {
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let waiting = world.backend.claim(&lane, &nothing, patient(1000));
    let arriving = async {
        settle().await;
        world.create().await
    };
    let (answer, _id) = join(waiting, arriving).await;
    assert!(answer.unwrap().is_some());
}

async fn a_waiting_claim_gives_up_when_its_time_is_over(world: World) {
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let mut waiting = pin!(world.backend.claim(&lane, &nothing, patient(1000)));
    assert!(is_waiting(&mut waiting).await);
    world.advance(999);
    settle().await;
    assert!(is_waiting(&mut waiting).await);
    world.advance(1);
    assert_eq!(waiting.await.unwrap(), None);
}

async fn a_waiting_claim_wakes_when_a_delay_ends(world: World) {
    let until = world.now().plus(100);
    world.submit(CreateExecutionArgs { delay_until: Some(until), ..world.submission() }).await;
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let waiting = world.backend.claim(&lane, &nothing, patient(1000));
    let timers = async {
        settle().await;
        world.pass(100).await;
    };
    assert!(join(waiting, timers).await.0.unwrap().is_some());
}

async fn a_waiting_claim_wakes_when_a_grant_runs_out(world: World) {
    let id = world.create().await;
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let waiting = world.backend.claim(&lane, &nothing, patient(10_000));
    let timers = async {
        settle().await;
        world.pass(5000).await;
    };
    assert!(join(waiting, timers).await.0.unwrap().is_some());
}

async fn a_waiting_claim_wakes_when_the_lane_opens(world: World) {
    let set =
        |state| SetLaneStateArgs { namespace: world.namespace(), lane_id: world.lane(), state, reason: String::new() };
    world.backend.set_lane_state(set(LaneState::Paused)).await.unwrap();
    world.create().await;
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let waiting = world.backend.claim(&lane, &nothing, patient(10_000));
    let opening = async {
        settle().await;
        world.backend.set_lane_state(set(LaneState::Active)).await.unwrap();
    };
    assert!(join(waiting, opening).await.0.unwrap().is_some());
}

async fn several_are_waited_for_only_while_there_is_none(world: World) {
    world.create().await;
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let handles = world.backend.claim_many(&lane, &nothing, patient(1000), 5).await.unwrap();
    assert_eq!(handles.len(), 1);
    let waiting = world.backend.claim_many(&lane, &nothing, patient(1000), 5);
    let arriving = async {
        settle().await;
        world.create().await
    };
    assert_eq!(join(waiting, arriving).await.0.unwrap().len(), 1);
}

async fn all_who_wait_for_the_same_get_what_comes(world: World) {
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let waiting = join_all((0..20).map(|_| world.backend.claim(&lane, &nothing, patient(10_000))));
    let arriving = async {
        settle().await;
        let mut ids = Vec::new();
        for n in 0..20 {
            ids.push(world.create().await);
            if n % 3 == 0 {
                settle().await;
            }
        }
        ids
    };
    let (answers, ids) = join(waiting, arriving).await;
    assert!(answers.into_iter().all(|answer| answer.unwrap().is_some()));
    for id in ids {
        assert_eq!(world.state(id).await, PublicState::Active);
    }
}

async fn those_who_wait_for_different_kinds_get_their_own(world: World) {
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let waiting = |kind: &str| {
        let policy = ClaimPolicy { max_wait_ms: Some(10_000), ..taking(&[kind]) };
        world.backend.claim(&lane, &nothing, policy)
    };
    let mut bill = pin!(waiting("bill"));
    assert!(is_waiting(&mut bill).await);
    let arriving = async {
        settle().await;
        world.submit(of_kind(&world, "mail")).await
    };
    let (answer, mail) = join(waiting("mail"), arriving).await;
    assert!(answer.unwrap().is_some());
    assert_eq!(world.state(mail).await, PublicState::Active);
    assert!(is_waiting(&mut bill).await);
    let (answer, id) = join(bill, world.submit(of_kind(&world, "bill"))).await;
    assert!(answer.unwrap().is_some());
    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn a_waiting_claim_that_is_dropped_leaves_the_next_one_waiting(world: World) {
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let mut first = Box::pin(world.backend.claim(&lane, &nothing, patient(10_000)));
    let mut second = pin!(world.backend.claim(&lane, &nothing, patient(10_000)));
    for _ in 0..20 {
        assert!(is_waiting(&mut first).await && is_waiting(&mut second).await);
        settle().await;
    }
    drop(first);
    let arriving = async {
        settle().await;
        world.create().await
    };
    assert!(join(second, arriving).await.0.unwrap().is_some());
}

async fn each_waiting_claim_gives_up_in_its_own_time(world: World) {
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let mut long = pin!(world.backend.claim(&lane, &nothing, patient(2000)));
    let mut short = pin!(world.backend.claim(&lane, &nothing, patient(1000)));
    for _ in 0..20 {
        assert!(is_waiting(&mut long).await && is_waiting(&mut short).await);
        settle().await;
    }
    world.advance(1000);
    assert_eq!(short.await.unwrap(), None);
    assert!(is_waiting(&mut long).await);
    world.advance(1000);
    assert_eq!(long.await.unwrap(), None);
}

async fn waiting_claims_are_told_that_the_engine_closes(world: World) {
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let one = || world.backend.claim(&lane, &nothing, patient(1000));
    let several = || world.backend.claim_many(&lane, &nothing, patient(1000), 2);
    let closing = async {
        settle().await;
        world.backend.shutdown_prepare(Duration::ZERO).await.unwrap();
    };
    let ((first, second), ()) = join(join(one(), one()), closing).await;
    is_closing(first);
    is_closing(second);
    is_closing(one().await);
    is_closing(several().await);
    assert_eq!(world.claim().await, None, "who does not wait is told what there is");
    world.create().await;
    assert!(one().await.unwrap().is_some(), "what is there needs no wait");
}
