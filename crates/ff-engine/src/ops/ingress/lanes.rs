//! Lanes: registered on first use, opened and closed by operators.

use ff_core::backend::ingress::{LaneInfo, SetLaneStateArgs};
use ff_core::ids::{LaneId, Namespace, check_free_string};
use ff_core::partition::Partition;
use ff_core::state::LaneState;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::event::{Event, EventBody};
use crate::key::Key;
use crate::records::{Lane, LaneClass, QueueClass, Record};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

/// Makes a lane and a class of its work known, so that claims look there, for longer than the commit of what comes into it can take.
/// Cheap when both are known already.
pub(crate) async fn register_class<S: Store>(
    engine: &Engine<S>,
    namespace: &Namespace,
    lane: &LaneId,
    class: &QueueClass,
) -> Result<()> {
    let op = RegisterClass { namespace: namespace.clone(), lane: lane.clone(), class: class.clone() };
    let known = engine.store.read(&op.prefetch()).await?;
    let now = engine.store.now().await?;
    if known.iter().all(|record| is_known(record.as_ref(), now)) {
        return Ok(());
    }
    engine.run(op).await
}

/// Whether nothing need be written for a lane or a class.
fn is_known(record: Option<&Record>, now: TimestampMs) -> bool {
    match record {
        Some(Record::LaneClass(class)) => class.is_fresh(now),
        other => other.is_some(),
    }
}

struct RegisterClass {
    namespace: Namespace,
    lane: LaneId,
    class: QueueClass,
}

#[async_trait::async_trait]
impl Op for RegisterClass {
    type Out = ();

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![
            Key::lane(self.namespace.clone(), self.lane.clone()),
            Key::lane_class(self.namespace.clone(), self.lane.clone(), self.class.clone()),
        ]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let known = tx.load(&self.prefetch()).await?;
        let now = tx.now();
        let is_new = |record: Option<&Option<Record>>| record.is_some_and(|it| !is_known(it.as_ref(), now));
        if is_new(known.first()) {
            tx.put(new_lane(&self.namespace, &self.lane, now));
        }
        if is_new(known.last()) {
            let (namespace, lane, class) = (self.namespace.clone(), self.lane.clone(), self.class.clone());
            tx.put(LaneClass { namespace, lane, class, used_at: now });
        }
        Ok(())
    }
}

fn new_lane(namespace: &Namespace, lane: &LaneId, now: TimestampMs) -> Lane {
    Lane {
        namespace: namespace.clone(),
        lane: lane.clone(),
        state: LaneState::Active,
        since: now,
        reason: String::new(),
    }
}

fn info(lane: Lane) -> LaneInfo {
    LaneInfo { namespace: lane.namespace, lane_id: lane.lane, state: lane.state, since: lane.since }
}

/// The lane as it is.
pub(super) async fn describe<S: Store>(
    engine: &Engine<S>,
    namespace: &Namespace,
    lane: &LaneId,
) -> Result<Option<LaneInfo>> {
    let lane: Option<Lane> = read_one(&engine.store, Key::lane(namespace.clone(), lane.clone())).await?;
    Ok(lane.map(info))
}

/// Opens or closes a lane.
pub(super) async fn set_state<S: Store>(engine: &Engine<S>, args: SetLaneStateArgs) -> Result<LaneInfo> {
    check_free_string("reason", &args.reason)?;
    engine.run(SetLaneState { args }).await
}

struct SetLaneState {
    args: SetLaneStateArgs,
}

#[async_trait::async_trait]
impl Op for SetLaneState {
    type Out = LaneInfo;

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::lane(self.args.namespace.clone(), self.args.lane_id.clone())]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<LaneInfo> {
        let args = &self.args;
        let now = tx.now();
        let key = Key::lane(args.namespace.clone(), args.lane_id.clone());
        let stored = tx.get::<Lane>(key).await?;
        if let Some(lane) = stored.as_ref().filter(|lane| lane.state == args.state) {
            return Ok(info(lane.clone()));
        }
        let mut lane = stored.unwrap_or_else(|| new_lane(&args.namespace, &args.lane_id, now));
        if lane.state != args.state {
            lane.state = args.state;
            lane.since = now;
            lane.reason.clone_from(&args.reason);
            tx.emit(Event {
                partition: Partition::GLOBAL,
                namespace: args.namespace.clone(),
                execution_id: None,
                tags: Default::default(),
                at: now,
                body: EventBody::LaneStateChanged {
                    lane: args.lane_id.to_string(),
                    state: args.state.to_string(),
                    reason: args.reason.clone(),
                },
            });
        }
        tx.put(lane.clone());
        Ok(info(lane))
    }
}
