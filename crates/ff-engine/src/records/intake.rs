//! What is to be created, written by somebody who cannot decide about it: a transaction of the caller's own.

use std::sync::Arc;

use ff_core::TimestampMs;
use ff_core::backend::flows::CreateFlowArgs;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Stored;
use crate::index::{DueKind, Entry, Index, Position};
use crate::key::Key;
use crate::tie::Tie;

/// What a submission asks for. It was checked; nothing that changes later refuses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum IntakeWork {
    /// An execution, by the id that it was given or that was minted for it.
    Execution { id: ExecutionId, args: Arc<CreateExecutionArgs> },
    /// A flow.
    Flow { args: CreateFlowArgs },
}

/// A submission on its way in: it stands where what it asks for will live, and goes in the commit that creates that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Intake {
    pub home: Partition,
    /// Made for this submission alone, so that nobody waits for anybody to write it.
    pub id: Uuid,
    pub work: IntakeWork,
    pub submitted_at: TimestampMs,
}

impl Stored for Intake {
    fn key(&self) -> Key {
        Key::intake(self.home, self.id)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        let tie = || Tie::default().uuid(self.id);
        out.push(Entry::new(Index::Due(DueKind::Intake), Position::at(self.submitted_at, tie())));
        if let IntakeWork::Execution { id, .. } = &self.work {
            out.push(Entry::new(Index::IntakesOf(*id), Position::by(tie())));
        }
    }
}
