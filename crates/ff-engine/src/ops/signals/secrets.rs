//! Seeding and rotating the secrets that sign tokens.

use ff_core::backend::signals::{
    RotateWaitpointHmacSecretAllArgs, RotateWaitpointHmacSecretOutcome, SeedOutcome, SeedWaitpointHmacSecretArgs,
};
use ff_core::error::ErrorSummary;
use ff_core::partition::Partition;
use ff_core::token::{Keyring, RotateDecision, SeedDecision};
use ff_core::{EngineError, Result};

use crate::key::Key;
use crate::records::KeyringRecord;
use crate::store::{Op, Tx};

async fn load(tx: &mut dyn Tx) -> Result<Keyring> {
    Ok(tx.get::<KeyringRecord>(Key::keyring()).await?.map(|record| record.ring).unwrap_or_default())
}

pub(super) struct RotateSecret {
    pub(super) args: RotateWaitpointHmacSecretAllArgs,
}

#[async_trait::async_trait]
impl Op for RotateSecret {
    type Out = RotateWaitpointHmacSecretOutcome;

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::keyring()]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Self::Out> {
        let mut ring = load(tx).await?;
        let args = &self.args;
        match ring.rotate(&args.new_kid, args.new_secret_hex.expose(), args.grace_ms, tx.now()) {
            Ok(RotateDecision::Rotated { previous_kid, new_kid, gc_count }) => {
                tx.put(KeyringRecord { ring });
                Ok(RotateWaitpointHmacSecretOutcome::Rotated { previous_kid, new_kid, gc_count })
            }
            Ok(RotateDecision::Noop { kid, repaired }) => {
                if repaired {
                    tx.put(KeyringRecord { ring });
                }
                Ok(RotateWaitpointHmacSecretOutcome::Noop { kid })
            }
            Err(conflict @ EngineError::Conflict(_)) => {
                Ok(RotateWaitpointHmacSecretOutcome::Refused { error: ErrorSummary::from(&conflict) })
            }
            Err(invalid) => Err(invalid),
        }
    }
}

pub(super) struct SeedSecret {
    pub(super) args: SeedWaitpointHmacSecretArgs,
}

#[async_trait::async_trait]
impl Op for SeedSecret {
    type Out = SeedOutcome;

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::keyring()]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<SeedOutcome> {
        let mut ring = load(tx).await?;
        Ok(match ring.seed(&self.args.kid, self.args.secret_hex.expose())? {
            SeedDecision::Seeded { kid } => {
                tx.put(KeyringRecord { ring });
                SeedOutcome::Seeded { kid }
            }
            SeedDecision::AlreadySeeded { kid, same_secret } => SeedOutcome::AlreadySeeded { kid, same_secret },
        })
    }
}
