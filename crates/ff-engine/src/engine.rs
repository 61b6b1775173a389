//! The engine: a store, and everything that is decided above it.

use std::sync::{Arc, OnceLock};

use ff_core::error::ValidationKind;
use ff_core::handle::{Handle, HandlePayload};
use ff_core::ids::ExecutionId;
use ff_core::partition::{Partition, PartitionCounts};
use ff_core::token::{Keyring, SealKey};
use ff_core::{EngineError, Result, TimestampMs};
use uuid::Uuid;

use crate::entropy::{Entropy, SystemEntropy};
use crate::key::Key;
use crate::neighbourhood::Neighbourhood;
use crate::ops::workers::pulse::Pulse;
use crate::records::{Deployment, KeyringRecord};
use crate::scheduler::coverage::Hands;
use crate::scheduler::dealing::Dealer;
use crate::scheduler::turnstile::Turnstile;
use crate::store::{Op, Store, Tx};
use crate::timers::Poison;
use crate::verbs::read_one;

/// Sizes that bound what callers may send; the same on every store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of an input payload.
    pub payload_bytes: usize,
    /// Bytes of a result.
    pub result_bytes: usize,
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// Bytes of a signal's payload.
    pub signal_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload_bytes: 1 << 20, result_bytes: 1 << 20, frame_bytes: 64 << 10, signal_bytes: 64 << 10 }
    }
}

/// How an engine is set up.
#[derive(Clone)]
pub struct Settings {
    /// Partition counts of a new deployment; an existing one must match.
    pub counts: PartitionCounts,
    /// Sizes.
    pub limits: Limits,
    /// How long terminal executions stay.
    pub retention_ms: u64,
    /// How long events stay.
    pub event_retention_ms: u64,
    /// Concurrent stream reads and tails.
    pub stream_ops_max: u32,
    /// Records that one slice of bulk work may touch.
    pub slice: usize,
    /// Whether the engine settles ended ownership right after the commit, and not only when it comes due.
    pub settle_at_once: bool,
    /// Ids and randomness.
    pub entropy: Arc<dyn Entropy>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            counts: PartitionCounts::default(),
            limits: Limits::default(),
            retention_ms: ff_core::rules::retention::DEFAULT_RETENTION_MS,
            event_retention_ms: 7 * 24 * 60 * 60 * 1000,
            stream_ops_max: 64,
            slice: 200,
            settle_at_once: true,
            entropy: Arc::new(SystemEntropy),
        }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("counts", &self.counts)
            .field("limits", &self.limits)
            .field("retention_ms", &self.retention_ms)
            .field("event_retention_ms", &self.event_retention_ms)
            .field("stream_ops_max", &self.stream_ops_max)
            .field("slice", &self.slice)
            .field("settle_at_once", &self.settle_at_once)
            .finish_non_exhaustive()
    }
}

/// Every operation, on one store.
#[derive(Debug)]
pub struct Engine<S> {
    /// Shared with feeds, which outlive the call that made them.
    pub(crate) store: Arc<S>,
    pub(crate) settings: Settings,
    pub(crate) stream_ops: Arc<tokio::sync::Semaphore>,
    pub(crate) closing: tokio::sync::watch::Sender<bool>,
    pub(crate) poison: Arc<Poison>,
    pub(crate) neighbourhood: Neighbourhood,
    pub(crate) hands: Hands,
    pub(crate) turnstile: Turnstile,
    pub(crate) dealer: Dealer,
    pub(crate) pulse: Pulse,
    seal_key: OnceLock<SealKey>,
}

impl<S: Store> Engine<S> {
    /// Opens a store: fixes partition counts and the sealing key at first start, verifies the counts ever after.
    ///
    /// # Errors
    /// `InvalidInput` when the deployment was made with other partition counts; whatever the store answers.
    pub async fn open(store: S, settings: Settings) -> Result<Self> {
        let permits = usize::try_from(settings.stream_ops_max).unwrap_or(usize::MAX);
        let engine = Self {
            store: Arc::new(store),
            stream_ops: Arc::new(tokio::sync::Semaphore::new(permits.min(tokio::sync::Semaphore::MAX_PERMITS))),
            closing: tokio::sync::watch::Sender::new(false),
            poison: Arc::default(),
            neighbourhood: Neighbourhood::default(),
            hands: Hands::default(),
            turnstile: Turnstile::default(),
            dealer: Dealer::default(),
            pulse: Pulse::default(),
            settings,
            seal_key: OnceLock::new(),
        };
        let mut seal = [0; SealKey::LEN];
        engine.settings.entropy.fill(&mut seal);
        let key = engine.run(Establish { counts: engine.settings.counts, seal: SealKey::new(seal) }).await?;
        engine.seal_key.get_or_init(|| key);
        Ok(engine)
    }

    /// The store underneath.
    pub fn store(&self) -> &S {
        &self.store
    }

    pub(crate) const fn counts(&self) -> &PartitionCounts {
        &self.settings.counts
    }

    pub(crate) async fn run<O: Op>(&self, op: O) -> Result<O::Out> {
        self.store.transact(Arc::new(op)).await
    }

    /// A new time-ordered id.
    pub(crate) async fn mint(&self) -> Result<Uuid> {
        Ok(self.settings.entropy.uuid(self.store.now().await?))
    }

    pub(crate) fn uuid_at(&self, now: TimestampMs) -> Uuid {
        self.settings.entropy.uuid(now)
    }

    /// Opens a handle that this deployment sealed.
    pub(crate) fn open_handle(&self, handle: &Handle) -> Result<HandlePayload> {
        Ok(handle.open(S::TAG, self.seal_key())?)
    }

    /// Seals a handle.
    pub(crate) fn seal_handle(&self, payload: &HandlePayload) -> Handle {
        Handle::seal(S::TAG, payload, self.seal_key())
    }

    pub(crate) fn seal_key(&self) -> &SealKey {
        // `open` is the only constructor and always sets it.
        self.seal_key.get_or_init(|| SealKey::new([0; SealKey::LEN]))
    }

    /// The signing keys as they are stored now.
    pub(crate) async fn keyring(&self) -> Result<Keyring> {
        let record: Option<KeyringRecord> = read_one(&self.store, Key::keyring()).await?;
        Ok(record.map(|record| record.ring).unwrap_or_default())
    }

    /// Refuses an execution id whose partition this deployment does not have.
    pub(crate) fn check_partition(&self, execution: ExecutionId) -> Result<()> {
        self.check_known(execution.partition())
    }

    /// Refuses a partition this deployment does not have.
    pub(crate) fn check_known(&self, partition: Partition) -> Result<()> {
        if self.counts().contains(partition) {
            Ok(())
        } else {
            Err(EngineError::invalid(format!("partition {partition} does not exist in this deployment")))
        }
    }
}

struct Establish {
    counts: PartitionCounts,
    seal: SealKey,
}

#[async_trait::async_trait]
impl Op for Establish {
    type Out = SealKey;

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::deployment(), Key::keyring()]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<SealKey> {
        match tx.get::<Deployment>(Key::deployment()).await? {
            Some(deployment) if deployment.counts != self.counts => {
                return Err(EngineError::validation(
                    ValidationKind::InvalidInput,
                    format!(
                        "partition counts {:?} were fixed at first start, not {:?}",
                        deployment.counts, self.counts
                    ),
                ));
            }
            Some(_) => {}
            None => tx.put(Deployment { counts: self.counts, created_at: tx.now() }),
        }
        let mut ring = tx.get::<KeyringRecord>(Key::keyring()).await?.map(|record| record.ring).unwrap_or_default();
        if let Some(key) = &ring.handle_key {
            return Ok(key.clone());
        }
        ring.handle_key = Some(self.seal.clone());
        tx.put(KeyringRecord { ring });
        Ok(self.seal.clone())
    }
}
