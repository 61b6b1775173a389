//! Short ways to a suspended execution, for this facet and for signals.

use ff_core::backend::inspection::{ExecutionInfo, ExecutionSnapshot};
use ff_core::backend::signals::{DeliverSignalArgs, DeliverSignalResult, SeedWaitpointHmacSecretArgs, SignalEffect};
use ff_core::backend::suspension::{
    CountKind, ResumeCondition, SignalMatcher, SuspendArgs, SuspendOutcome, SuspendOutcomeDetails,
    SuspensionReasonCode, WaitpointBinding,
};
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, FenceTriple, SignalId, SuspensionId, WaitpointId};
use ff_core::token::WaitpointToken;

use crate::World;

/// Two secrets as callers send them.
pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
pub(crate) const OTHER_SECRET: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

/// Installs the first signing secret.
pub(crate) async fn seed(world: &World) {
    let args = SeedWaitpointHmacSecretArgs { kid: "k1".into(), secret_hex: SECRET.into() };
    world.backend.seed_waitpoint_hmac_secret(args).await.unwrap();
}

/// A new execution in a seeded world, held by the usual worker.
pub(crate) async fn held(world: &World) -> (ExecutionId, Handle) {
    seed(world).await;
    world.claim_one().await
}

/// A waitpoint that a suspend creates.
pub(crate) fn fresh(world: &World, key: &str) -> WaitpointBinding {
    WaitpointBinding::Fresh { waitpoint_id: WaitpointId::from_uuid(world.uuid()), waitpoint_key: key.into() }
}

/// One signal of a name.
pub(crate) fn single(key: &str, name: &str) -> ResumeCondition {
    ResumeCondition::Single { waitpoint_key: key.into(), matcher: SignalMatcher::by_name(name) }
}

/// Any one signal.
pub(crate) fn any(key: &str) -> ResumeCondition {
    ResumeCondition::Single { waitpoint_key: key.into(), matcher: SignalMatcher::Wildcard {} }
}

/// Every member.
pub(crate) fn all(members: impl IntoIterator<Item = ResumeCondition>) -> ResumeCondition {
    ResumeCondition::AllOf { members: members.into_iter().collect() }
}

/// Enough of a kind, whatever their name.
pub(crate) fn count(n: u32, count_kind: CountKind, keys: &[&str]) -> ResumeCondition {
    let waitpoints = keys.iter().map(|&key| key.to_owned()).collect();
    ResumeCondition::Count { n, count_kind, matcher: None, waitpoints }
}

/// A suspend on these bindings.
pub(crate) fn asking(world: &World, bindings: Vec<WaitpointBinding>, condition: ResumeCondition) -> SuspendArgs {
    let id = SuspensionId::from_uuid(world.uuid());
    let mut args = SuspendArgs::new(id, fresh(world, "unused"), condition, SuspensionReasonCode::WaitingForSignal);
    args.waitpoints = bindings;
    args
}

/// A suspend on one fresh waitpoint `a` that waits for `go`.
pub(crate) fn ask(world: &World) -> SuspendArgs {
    asking(world, vec![fresh(world, "a")], single("a", "go"))
}

/// A suspended execution and what its worker was told.
pub(crate) struct Parked {
    pub(crate) id: ExecutionId,
    pub(crate) details: SuspendOutcomeDetails,
    /// Names the suspended attempt.
    pub(crate) handle: Handle,
    /// The worker's handle from before.
    pub(crate) old: Handle,
}

impl Parked {
    /// A signal for the primary waitpoint.
    pub(crate) fn signal(&self, name: &str) -> DeliverSignalArgs {
        DeliverSignalArgs::new(self.id, self.details.waitpoint_id, name, self.details.waitpoint_token.clone())
    }

    /// A signal for the waitpoint of a key.
    pub(crate) fn signal_at(&self, key: &str, name: &str) -> DeliverSignalArgs {
        let (waitpoint, token) = self.waitpoint(key);
        DeliverSignalArgs::new(self.id, waitpoint, name, token)
    }

    /// A waitpoint by its key.
    pub(crate) fn waitpoint(&self, key: &str) -> (WaitpointId, WaitpointToken) {
        if self.details.waitpoint_key == key {
            return (self.details.waitpoint_id, self.details.waitpoint_token.clone());
        }
        let bound = self.details.additional_waitpoints.iter().find(|bound| bound.waitpoint_key == key);
        bound.map(|bound| (bound.waitpoint_id, bound.waitpoint_token.clone())).expect("a waitpoint of this key")
    }
}

/// Suspends a held execution; it must not be satisfied yet.
pub(crate) async fn park_with(world: &World, id: ExecutionId, old: Handle, args: SuspendArgs) -> Parked {
    match world.backend.suspend(&old, args).await.unwrap() {
        SuspendOutcome::Suspended { details, handle } => Parked { id, details, handle, old },
        other @ SuspendOutcome::AlreadySatisfied { .. } => panic!("expected a suspension, got {other:?}"),
    }
}

/// A new execution in a seeded world, suspended as asked.
pub(crate) async fn parked(world: &World, args: SuspendArgs) -> Parked {
    let (id, handle) = held(world).await;
    park_with(world, id, handle, args).await
}

/// A new execution, suspended on several fresh waitpoints.
pub(crate) async fn parked_on(world: &World, keys: &[&str], condition: ResumeCondition) -> Parked {
    let bindings = keys.iter().map(|key| fresh(world, key)).collect();
    parked(world, asking(world, bindings, condition)).await
}

/// Delivers a signal that must be accepted; tells what it did.
pub(crate) async fn deliver(world: &World, args: DeliverSignalArgs) -> SignalEffect {
    delivered(world, args).await.1
}

/// Delivers a signal that must be accepted; tells its id and what it did.
pub(crate) async fn delivered(world: &World, args: DeliverSignalArgs) -> (SignalId, SignalEffect) {
    match world.backend.deliver_signal(args).await.unwrap() {
        DeliverSignalResult::Accepted { signal_id, effect } => (signal_id, effect),
        other @ DeliverSignalResult::Duplicate { .. } => panic!("expected a new signal, got {other:?}"),
    }
}

/// The names of the signals that explain a resume.
pub(crate) async fn observed(world: &World, handle: &Handle) -> Vec<String> {
    let signals = world.backend.observe_signals(handle).await.unwrap();
    signals.into_iter().map(|signal| signal.signal_name).collect()
}

/// Every state dimension of an execution that exists.
pub(crate) async fn info(world: &World, id: ExecutionId) -> ExecutionInfo {
    world.backend.read_execution_info(id).await.unwrap().expect("the execution exists")
}

/// What a person sees of an execution that exists.
pub(crate) async fn snapshot(world: &World, id: ExecutionId) -> ExecutionSnapshot {
    world.backend.describe_execution(id).await.unwrap().expect("the execution exists")
}

/// The fence of an execution that is held.
pub(crate) async fn fence_of(world: &World, id: ExecutionId) -> FenceTriple {
    let seen = snapshot(world, id).await;
    FenceTriple {
        lease_id: seen.current_lease.as_ref().map(|lease| lease.lease_id),
        lease_epoch: seen.current_lease.as_ref().map(|lease| lease.lease_epoch),
        attempt_id: seen.current_attempt.map(|attempt| attempt.attempt_id),
    }
}
