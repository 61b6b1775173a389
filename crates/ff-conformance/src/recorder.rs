//! A layer that notes which outcome of which operation was seen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ff_core::Result;
use ff_core::backend::layer::{Around, BoxFuture, Call};
use serde::Serialize;
use serde_json::Value;

type Seen = BTreeMap<&'static str, BTreeMap<String, u64>>;

/// Notes outcomes; clones share their notes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    seen: Arc<Mutex<Seen>>,
}

impl Recorder {
    fn record(&self, op: &'static str, outcome: String) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen.entry(op).or_default().entry(outcome).or_default() += 1;
    }

    /// Everything seen so far: operation, outcome, how often.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The names of an answer; a batch has one per item.
fn outcomes_of<T: Serialize>(answer: &T) -> Vec<String> {
    let optional = std::any::type_name::<T>().starts_with("core::option::Option<");
    match serde_json::to_value(answer) {
        Ok(Value::Null) if optional => vec!["none".to_owned()],
        Ok(_) if optional => vec!["some".to_owned()],
        Ok(Value::Array(items)) if !items.is_empty() => items.iter().map(outcome_of).collect(),
        Ok(value) => vec![outcome_of(&value)],
        Err(_) => vec!["ok".to_owned()],
    }
}

/// The name of one answer: its tag and effect, or its word.
fn outcome_of(value: &Value) -> String {
    match value {
        Value::Bool(answer) => answer.to_string(),
        Value::String(word) if !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') => {
            word.clone()
        }
        Value::Object(fields) => match (fields.get("type"), fields.get("effect")) {
            (Some(Value::String(tag)), Some(Value::String(effect))) => format!("{tag}:{effect}"),
            (Some(Value::String(tag)), _) => tag.clone(),
            _ => "ok".to_owned(),
        },
        _ => "ok".to_owned(),
    }
}

impl Around for Recorder {
    fn around_answer<'a, T, C>(&'a self, op: &'static str, call: C) -> BoxFuture<'a, Result<T>>
    where
        T: Serialize + Send + 'a,
        C: Call<'a, T>,
    {
        Box::pin(async move {
            let answer = call.once().await;
            match &answer {
                Ok(answer) => outcomes_of(answer).into_iter().for_each(|outcome| self.record(op, outcome)),
                Err(error) => self.record(op, format!("error:{}", error.code())),
            }
            answer
        })
    }

    fn around<'a, T, C>(&'a self, op: &'static str, call: C) -> BoxFuture<'a, Result<T>>
    where
        T: Send + 'a,
        C: Call<'a, T>,
    {
        Box::pin(async move {
            let answer = call.once().await;
            self.record(op, answer.as_ref().map_or_else(|e| format!("error:{}", e.code()), |_| "ok".to_owned()));
            answer
        })
    }

    fn note(&self, op: &'static str) {
        self.record(op, "ok".to_owned());
    }
}
