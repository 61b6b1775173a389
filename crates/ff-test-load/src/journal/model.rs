//! What must be stored, as far as callers were told, and what may be, because they were about to do it.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::Blob;
use ff_core::backend::flows::SubmitFlowArgs;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::cursor::FrameId;
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::state::PublicState;

use super::caller::{TAG, padded};
use super::line::{Answer, Call, Line, Step};

/// How an execution came to be.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Origin {
    pub payload: Blob,
    pub tags: BTreeMap<String, String>,
    pub retries: bool,
    pub is_delayed: bool,
    /// What to submit again, to be told that it is there.
    pub again: Option<Box<CreateExecutionArgs>>,
    /// The member before it in its flow.
    pub upstream: Option<ExecutionId>,
}

/// One ownership, and what its holder did.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Owner {
    pub attempt: u32,
    pub steps: Vec<(Step, Option<FrameId>)>,
}

/// What must be true of an execution.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Expected {
    /// Unknown while only a claim has told of it.
    pub origin: Option<Origin>,
    pub owners: BTreeMap<u64, Owner>,
    pub is_cancelled: bool,
}

/// Everything that callers know.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Model {
    pub executions: BTreeMap<ExecutionId, Expected>,
    pub flows: BTreeMap<FlowId, BTreeMap<String, ExecutionId>>,
    /// The call each caller waits for.
    pub pending: BTreeMap<usize, Call>,
    /// Calls of which nobody will ever be told what became of them.
    pub unanswered: Vec<Call>,
    /// How many calls were answered.
    pub acknowledged: usize,
    /// What inputs have beyond their mark.
    padding: usize,
}

impl Model {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(padding: usize) -> Self {
        Self { padding, ..Self::default() }
    }

    /// The input of a submission, as it is stored.
    pub(super) fn input(&self, args: &CreateExecutionArgs) -> Blob {
        padded(&args.input_payload, self.padding)
    }

    /// Follows the journal.
    ///
    /// # Errors
    /// What must not happen and did.
    pub fn follow(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Intend { caller, call } => {
                self.pending.insert(caller, call);
            }
            Line::Acknowledge { caller, answer } => {
                let call = self.pending.remove(&caller).ok_or("an answer to no call")?;
                self.acknowledged += 1;
                self.apply(call, &answer);
            }
            Line::Unanswered { caller, .. } => self.unanswered.extend(self.pending.remove(&caller)),
            Line::Trouble { caller, error } => {
                let call = self.pending.get(&caller);
                return Err(format!("caller {caller} was refused: {error}\n  after {call:?}"));
            }
        }
        Ok(())
    }

    fn apply(&mut self, call: Call, answer: &Answer) {
        match (call, answer) {
            (Call::Create(args), Answer::Created(id)) => self.created(*id, &args),
            (Call::Submit(args), Answer::Submitted { flow, members }) => self.submitted(&args, *flow, members),
            (Call::Claim { .. }, Answer::Claimed { execution, epoch, attempt }) => {
                self.claimed(*execution, *epoch, *attempt);
            }
            (Call::Held { execution, epoch, step }, answer) => {
                let frame = if let Answer::Appended(id) = answer { Some(*id) } else { None };
                self.stepped(execution, epoch, step, frame);
            }
            (Call::Cancel { execution }, _) => self.of(execution).is_cancelled = true,
            (Call::Tag { execution, value }, _) => self.of(execution).tag(value),
            _ => {}
        }
    }

    fn of(&mut self, id: ExecutionId) -> &mut Expected {
        self.executions.entry(id).or_default()
    }

    pub(super) fn created(&mut self, id: ExecutionId, args: &CreateExecutionArgs) {
        let is_known_again = args.execution_id.is_some() || args.idempotency_key.is_some();
        let payload = self.input(args);
        self.of(id).origin = Some(Origin {
            payload,
            tags: args.tags.clone(),
            retries: args.policy.is_some(),
            is_delayed: args.delay_until.is_some(),
            again: is_known_again.then(|| Box::new(args.clone())),
            upstream: None,
        });
    }

    pub(super) fn submitted(&mut self, args: &SubmitFlowArgs, flow: FlowId, members: &BTreeMap<String, ExecutionId>) {
        let mut upstream = None;
        for node in &args.nodes {
            let id = members[&node.name];
            self.of(id).origin = Some(Origin {
                payload: node.input_payload.clone(),
                tags: node.tags.clone(),
                retries: node.policy.is_some(),
                is_delayed: false,
                again: None,
                upstream,
            });
            upstream = Some(id);
        }
        self.flows.insert(flow, members.clone());
    }

    pub(super) fn claimed(&mut self, id: ExecutionId, epoch: u64, attempt: u32) {
        self.of(id).owners.insert(epoch, Owner { attempt, steps: Vec::new() });
    }

    fn stepped(&mut self, id: ExecutionId, epoch: u64, step: Step, frame: Option<FrameId>) {
        self.of(id).owners.entry(epoch).or_default().steps.push((step, frame));
    }
}

impl Expected {
    fn tag(&mut self, value: String) {
        if let Some(origin) = &mut self.origin {
            origin.tags.insert(TAG.to_owned(), value);
        }
    }

    /// The same, after a call of which nobody knows whether it happened.
    pub(super) fn after(&self, call: &Call) -> Self {
        let mut after = self.clone();
        match call {
            Call::Held { epoch, step, .. } => {
                after.owners.entry(*epoch).or_default().steps.push((step.clone(), None));
            }
            Call::Cancel { .. } => after.is_cancelled = true,
            Call::Tag { value, .. } => after.tag(value.clone()),
            Call::Create(_) | Call::Submit(_) | Call::Claim { .. } => {}
        }
        after
    }

    /// The states it may be in, when the member before it is in the given one.
    pub(super) fn states(&self, upstream: Option<PublicState>) -> Vec<PublicState> {
        use PublicState::*;
        let origin = self.origin.as_ref().expect("an origin");
        let Some((_, owner)) = self.owners.last_key_value() else {
            return match upstream {
                _ if self.is_cancelled => vec![Cancelled],
                _ if origin.is_delayed => vec![Delayed],
                None | Some(Completed) => vec![Waiting],
                Some(Failed | Cancelled | Expired) => vec![Skipped],
                // The end of a chain is skipped by work that goes on after the commit.
                Some(Skipped) => vec![Skipped, WaitingChildren],
                Some(_) => vec![WaitingChildren],
            };
        };
        let deciding = owner.steps.iter().rev().map(|(step, _)| step);
        deciding
            .filter_map(|step| match step {
                Step::Complete(_) => Some(vec![Completed]),
                Step::FailForNow if origin.retries => Some(vec![Delayed, Waiting]),
                Step::FailForNow | Step::FailForGood => Some(vec![Failed]),
                Step::Cancel => Some(vec![Cancelled]),
                Step::Suspend(_) => Some(vec![Suspended]),
                Step::Signal => Some(vec![Waiting]),
                Step::Renew | Step::Progress(_) | Step::Frame(_) => None,
            })
            .next()
            .unwrap_or_else(|| vec![Active])
    }

    pub(super) fn steps(&self) -> impl DoubleEndedIterator<Item = &(Step, Option<FrameId>)> {
        self.owners.values().flat_map(|owner| &owner.steps)
    }

    pub(super) fn progress(&self) -> Option<u8> {
        self.steps().rev().find_map(|(step, _)| if let Step::Progress(percent) = step { Some(*percent) } else { None })
    }

    pub(super) fn result(&self) -> Option<Blob> {
        self.steps().find_map(|(step, _)| if let Step::Complete(result) = step { Some(result.clone()) } else { None })
    }

    /// The frames of each attempt, in order; an id is known only where the append was answered.
    pub(super) fn frames(&self) -> BTreeMap<u32, Vec<(Option<FrameId>, Blob)>> {
        let mut frames: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for owner in self.owners.values() {
            for (step, id) in &owner.steps {
                if let Step::Frame(payload) = step {
                    frames.entry(owner.attempt).or_default().push((*id, payload.clone()));
                }
            }
        }
        frames
    }

    /// Whether an attempt that ran is over.
    pub(super) fn is_ended(&self, attempt: u32) -> bool {
        let Some(last) = self.owners.values().next_back() else { return false };
        let ends =
            |step: &Step| matches!(step, Step::Complete(_) | Step::FailForNow | Step::FailForGood | Step::Cancel);
        last.attempt > attempt || last.steps.last().is_some_and(|(step, _)| ends(step))
    }

    pub(super) fn epochs(&self) -> BTreeSet<u64> {
        self.owners.keys().copied().collect()
    }
}
