//! Values that an execution remembers under names, through retries and resumes.

use ff_core::ids::ExecutionId;
use ff_core::{Blob, TimestampMs};
use serde::{Deserialize, Serialize};

use super::Stored;
use crate::index::{Entry, Index, Position};
use crate::key::Key;

/// How many steps an execution has, and how large they are, apart from its ownership: saving one disturbs no renewal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct StepHead {
    pub execution: ExecutionId,
    /// The life that is counted: how often the execution was replayed.
    pub life: u32,
    pub count: u32,
    /// Bytes of all values.
    pub bytes: u64,
}

impl StepHead {
    /// The head for a life, with nothing in it unless it is counted already.
    #[must_use]
    pub fn of_life(stored: Option<Self>, execution: ExecutionId, life: u32) -> Self {
        stored.filter(|head| head.life == life).unwrap_or(Self { execution, life, count: 0, bytes: 0 })
    }
}

impl Stored for StepHead {
    fn key(&self) -> Key {
        Key::step_head(self.execution)
    }
}

/// One remembered value; never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Step {
    pub execution: ExecutionId,
    pub life: u32,
    pub name: String,
    pub value: Blob,
    pub saved_at: TimestampMs,
}

impl Stored for Step {
    fn key(&self) -> Key {
        Key::step(self.execution, self.life, self.name.clone())
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::StepsOf(self.execution), Position::new(i64::from(self.life), &self.name)));
    }
}
