//! What must not be done twice, and sleeping.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ff_core::{Blob, TimestampMs};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Context;
use crate::error::{TaskError, TaskResult};
use crate::handler::decode;
use crate::task::millis;

/// A sleep shorter than this is slept in place: to park and to be claimed again would take longer.
const SHORT_SLEEP_MS: u64 = 250;

impl Context {
    /// Does something once: when the handler runs again, the answer of the first time is given without doing it again.
    ///
    /// The name must be unique within the handler. The answer survives retries, waits and the death of the worker; only a replay by an
    /// operator starts over. If the worker dies after the work was done and before its answer was stored, it is done again.
    ///
    /// # Errors
    /// The error of `work`, which is not remembered; when the answer cannot be stored, or was stored as another type.
    pub async fn step<T, E, Fut>(&self, name: &str, work: impl FnOnce() -> Fut) -> TaskResult<T>
    where
        T: Serialize + DeserializeOwned,
        E: Into<TaskError>,
        Fut: Future<Output = Result<T, E>>,
    {
        self.check()?;
        let key = format!("step:{name}");
        if let Some(stored) = self.stored(&key).await? {
            return read(name, &stored);
        }
        let answer = work().await.map_err(Into::into)?;
        let bytes = serde_json::to_vec(&answer)
            .map_err(|error| TaskError::permanent(format!("step {name:?} cannot be written as JSON: {error}")))?;
        let stored = self.store(&key, bytes.into()).await?;
        read(name, &stored)
    }

    /// Waits without holding a worker: the execution is parked and the handler runs again when the time is over, on whichever worker
    /// is free. Sleeps are told apart by their order, so a handler must come by them in the same order each time; each is remembered like a
    /// [step](Self::step), and an execution has room for a thousand of both.
    ///
    /// # Errors
    /// One for which [`TaskError::is_parked`] holds; hand it on with `?`.
    pub async fn sleep(&self, duration: Duration) -> TaskResult {
        self.check()?;
        let key = format!("sleep:{}", self.calls().count("sleep".to_owned()));
        let until = match self.stored(&key).await? {
            Some(stored) => read(&key, &stored)?,
            None => {
                let until = self.now().await?.plus(millis(duration));
                let stored = self.store(&key, until.0.to_string().as_str().into()).await?;
                read(&key, &stored)?
            }
        };
        self.sleep_until(TimestampMs(until)).await
    }

    async fn sleep_until(&self, until: TimestampMs) -> TaskResult {
        let left = until.since(self.now().await?);
        if left > SHORT_SLEEP_MS {
            return self.parked(self.backend().delay(&self.parts().handle, until)).await;
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(left)) => Ok(()),
            () = self.parts().fate.token().cancelled() => {
                self.check()?;
                Err(TaskError::transient("the worker stops"))
            }
        }
    }

    /// What is stored under a name.
    pub(super) async fn stored(&self, key: &str) -> TaskResult<Option<Blob>> {
        Ok(self.steps().await?.get(key).cloned())
    }

    /// Stores under a name; what was there first stays, and is the answer.
    pub(super) async fn store(&self, key: &str, value: Blob) -> TaskResult<Blob> {
        let stored = self.guarded(self.backend().save_step(&self.parts().handle, key, value)).await?;
        self.steps().await?.insert(key.to_owned(), stored.clone());
        Ok(stored)
    }

    async fn steps(&self) -> TaskResult<MutexGuard<'_, BTreeMap<String, Blob>>> {
        let steps = self.0.steps.get_or_try_init(|| self.read_steps()).await?;
        Ok(steps.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn read_steps(&self) -> TaskResult<Mutex<BTreeMap<String, Blob>>> {
        Ok(Mutex::new(self.asked(self.backend().read_steps(self.execution_id())).await?))
    }
}

fn read<T: DeserializeOwned>(name: &str, stored: &Blob) -> TaskResult<T> {
    decode(stored).map_err(|error| TaskError::permanent(format!("{name:?} was stored as another type: {error}")))
}
