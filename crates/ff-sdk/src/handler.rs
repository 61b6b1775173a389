//! Handlers: ordinary async functions, by the kind of work they do.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use ff_core::Blob;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::error::{TaskError, TaskResult};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A handler without its types: input and result are bytes.
pub(crate) type Handler = Arc<dyn Fn(Context) -> BoxFuture<TaskResult<Option<Blob>>> + Send + Sync>;

/// Wraps a function of context and input.
pub(crate) fn typed<F, Fut, In, Out, E>(function: F) -> Handler
where
    F: Fn(Context, In) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Out, E>> + Send + 'static,
    In: DeserializeOwned + Send + 'static,
    Out: Serialize + Send + 'static,
    E: Into<TaskError> + 'static,
{
    let function = Arc::new(function);
    Arc::new(move |context| {
        let function = Arc::clone(&function);
        Box::pin(async move {
            let input = decode_input::<In>(&context)?;
            let output = function(context, input).await.map_err(Into::into)?;
            encode_result(&output)
        })
    })
}

/// Wraps a function of the context alone, which finds the input there as bytes.
pub(crate) fn raw<F, Fut, E>(function: F) -> Handler
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Blob, E>> + Send + 'static,
    E: Into<TaskError> + 'static,
{
    let function = Arc::new(function);
    Arc::new(move |context| {
        let function = Arc::clone(&function);
        Box::pin(async move { Ok(Some(function(context).await.map_err(Into::into)?)) })
    })
}

fn decode_input<In: DeserializeOwned>(context: &Context) -> TaskResult<In> {
    decode(context.payload()).map_err(|error| {
        let expected = std::any::type_name::<In>();
        TaskError::permanent(format!("the input of {:?} is not a {expected}: {error}", context.kind()))
    })
}

/// Reads JSON; no bytes at all count as null.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(if bytes.is_empty() { b"null" } else { bytes })
}

fn encode_result(output: &impl Serialize) -> TaskResult<Option<Blob>> {
    let bytes = serde_json::to_vec(output)
        .map_err(|error| TaskError::permanent(format!("the result cannot be written as JSON: {error}")))?;
    // A handler that answers nothing leaves no result.
    Ok((bytes != b"null").then(|| bytes.into()))
}
