//! What callers tell the outside: one line before each call, one line after its answer.

use std::collections::BTreeMap;
use std::io::Write;

use ff_core::Blob;
use ff_core::backend::flows::SubmitFlowArgs;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::cursor::FrameId;
use ff_core::ids::{ExecutionId, FlowId, WaitpointId};
use serde::{Deserialize, Serialize};

/// A call that is about to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Call {
    Create(Box<CreateExecutionArgs>),
    Submit(Box<SubmitFlowArgs>),
    Claim {
        worker: String,
    },
    /// By who holds it.
    Held {
        execution: ExecutionId,
        epoch: u64,
        step: Step,
    },
    /// Of an execution that nobody can claim.
    Cancel {
        execution: ExecutionId,
    },
    Tag {
        execution: ExecutionId,
        value: String,
    },
}

/// What a holder does with what it holds. Signals belong to whoever made the suspension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Step {
    Renew,
    Progress(u8),
    Frame(Blob),
    Complete(Blob),
    FailForNow,
    FailForGood,
    Cancel,
    Suspend(WaitpointId),
    Signal,
}

/// What a call was answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Answer {
    Done,
    Created(ExecutionId),
    Submitted { flow: FlowId, members: BTreeMap<String, ExecutionId> },
    NothingToClaim,
    Claimed { execution: ExecutionId, epoch: u64, attempt: u32 },
    Appended(FrameId),
}

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Line {
    /// The next call of a caller.
    Intend { caller: usize, call: Call },
    /// The answer to its last call.
    Acknowledge { caller: usize, answer: Answer },
    /// Its last call failed in a way that leaves open whether it happened.
    Unanswered { caller: usize, error: String },
    /// Something that must not happen did.
    Trouble { caller: usize, error: String },
}

impl Line {
    /// Writes the line in one go, so that it is outside before anything else happens.
    ///
    /// # Panics
    /// Never: every line has a text.
    pub fn tell(&self) {
        let mut text = serde_json::to_string(self).expect("lines have a text");
        text.push('\n');
        let mut out = std::io::stdout().lock();
        let told = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        if told.is_err() {
            // Whoever listens is gone.
            std::process::exit(1);
        }
    }
}
