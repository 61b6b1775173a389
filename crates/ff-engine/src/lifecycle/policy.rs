//! How an execution wants to be treated.

use ff_core::error::ValidationKind;
use ff_core::ids::ExecutionId;
use ff_core::policy::ExecutionPolicy;
use ff_core::{EngineError, Result};

use crate::key::Key;
use crate::records::Definition;
use crate::store::Tx;

/// The policy frozen at creation, if there is one.
///
/// One that does not decode counts as none: a damaged definition must not keep an attempt from ending or a lease from expiring.
pub(crate) async fn policy(tx: &mut dyn Tx, execution: ExecutionId) -> Result<Option<ExecutionPolicy>> {
    match tx.get::<Definition>(Key::definition(execution)).await {
        Ok(definition) => Ok(definition.and_then(|definition| definition.policy)),
        Err(EngineError::Validation { kind: ValidationKind::Corruption, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
