//! What the actors remember: ids, handles, tokens, old ones included.

use std::collections::BTreeSet;

use ff_core::backend::claims::Grant;
use ff_core::backend::signals::DeliverSignalArgs;
use ff_core::handle::Handle;
use ff_core::ids::{
    AttemptIndex, BudgetId, EdgeId, ExecutionId, FlowId, LeaseFence, Namespace, QuotaPolicyId, WaitpointId, WorkerId,
    WorkerInstanceId,
};
use ff_core::token::WaitpointToken;

use crate::call::{Presents, WorkerShown};

/// How many things of a kind stay in mind; the newest do.
const POOL: usize = 48;

/// Namespaces of the deployment.
pub(crate) const NAMESPACES: [&str; 2] = ["acme", "beta"];
/// Lanes of the deployment.
pub(crate) const LANES: [&str; 2] = ["fast", "slow"];
/// Kinds of work.
pub(crate) const KINDS: [&str; 3] = ["mail", "bill", "call"];
/// Capabilities somebody may require.
pub(crate) const CAPABILITIES: [&str; 2] = ["eu", "gpu"];

/// What a worker can do, and what it handles unless that is everything.
type Offer = (&'static [&'static str], Option<&'static [&'static str]>);

/// A handle with what it proves.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) handle: Handle,
    pub(crate) execution: ExecutionId,
    pub(crate) fence: LeaseFence,
    pub(crate) index: AttemptIndex,
    pub(crate) worker: usize,
}

/// A worker that may die and come back as another process.
#[derive(Clone, Debug)]
pub(crate) struct WorkerNote {
    pub(crate) id: WorkerId,
    pub(crate) incarnation: u32,
    pub(crate) capabilities: BTreeSet<String>,
    /// What it handles; none means everything.
    pub(crate) kinds: Option<BTreeSet<String>>,
}

impl WorkerNote {
    pub(crate) fn instance(&self) -> WorkerInstanceId {
        name(&format!("{}.{}", self.id, self.incarnation))
    }

    /// What it says of itself when it asks for work.
    pub(crate) fn shown(&self) -> Presents {
        let (capabilities, kinds) = (self.capabilities.clone(), self.kinds.clone());
        Presents::Worker(Box::new(WorkerShown { instance: self.instance(), capabilities, kinds }))
    }
}

/// A grant and who got it.
#[derive(Clone, Debug)]
pub(crate) struct GrantNote {
    pub(crate) grant: Grant,
    pub(crate) worker: WorkerId,
    pub(crate) instance: WorkerInstanceId,
    pub(crate) by: usize,
}

/// A waitpoint and the token that opens it.
#[derive(Clone, Debug)]
pub(crate) struct WaitpointNote {
    pub(crate) execution: ExecutionId,
    pub(crate) id: WaitpointId,
    pub(crate) token: WaitpointToken,
}

/// An edge that was staged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EdgeNote {
    pub(crate) flow: FlowId,
    pub(crate) id: EdgeId,
    pub(crate) upstream: ExecutionId,
    pub(crate) downstream: ExecutionId,
}

/// Everything the actors remember.
pub(crate) struct Memory {
    pub(crate) executions: Vec<ExecutionId>,
    pub(crate) held: Vec<Held>,
    pub(crate) old: Vec<Held>,
    pub(crate) workers: Vec<WorkerNote>,
    pub(crate) grants: Vec<GrantNote>,
    pub(crate) waitpoints: Vec<WaitpointNote>,
    pub(crate) signals: Vec<DeliverSignalArgs>,
    pub(crate) flows: Vec<(FlowId, Namespace)>,
    pub(crate) edges: Vec<EdgeNote>,
    pub(crate) budgets: Vec<(BudgetId, Namespace)>,
    pub(crate) quotas: Vec<(QuotaPolicyId, Namespace)>,
}

/// A name that is known to be valid.
pub(crate) fn name<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().expect("a valid name")
}

/// Keeps the newest few.
pub(crate) fn remember<T>(pool: &mut Vec<T>, thing: T) {
    if pool.len() >= POOL {
        pool.remove(0);
    }
    pool.push(thing);
}

impl Memory {
    pub(crate) fn new() -> Self {
        let offers: [Offer; 4] = [
            (&[], None),
            (&["gpu"], Some(&["mail", "bill"])),
            (&["eu", "gpu"], None),
            (&["eu"], Some(&["call", "mail"])),
        ];
        let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let workers = offers.iter().enumerate().map(|(number, (capabilities, kinds))| WorkerNote {
            id: name(&format!("w{number}")),
            incarnation: 1,
            capabilities: set(capabilities),
            kinds: kinds.map(set),
        });
        Self {
            executions: Vec::new(),
            held: Vec::new(),
            old: Vec::new(),
            workers: workers.collect(),
            grants: Vec::new(),
            waitpoints: Vec::new(),
            signals: Vec::new(),
            flows: Vec::new(),
            edges: Vec::new(),
            budgets: Vec::new(),
            quotas: Vec::new(),
        }
    }

    /// A handle that is no longer of use, though its worker may not know.
    pub(crate) fn retire(&mut self, held: &Held) {
        self.held.retain(|other| other.handle != held.handle);
        remember(&mut self.old, held.clone());
    }

    /// A worker process dies; what it held stays with the engine until leases run out.
    pub(crate) fn bury(&mut self, worker: usize) {
        self.workers[worker].incarnation += 1;
        let (lost, kept) = std::mem::take(&mut self.held).into_iter().partition(|held| held.worker == worker);
        self.held = kept;
        let lost: Vec<Held> = lost;
        for held in lost {
            remember(&mut self.old, held);
        }
    }
}
