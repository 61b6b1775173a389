//! A span per call.

use ::tracing::field::Empty;
use ::tracing::{Instrument, Span, debug, debug_span, warn};
use ff_core::backend::layer::{Around, BoxFuture, Call};
use ff_core::error::{ContentionKind, ValidationKind};
use ff_core::{EngineError, Result};

/// Opens a span `backend_call` around every call, with the fields `op`, `backend`, `outcome` and `error`.
///
/// It is entered while the call runs, so whatever happens inside nests under it. Spans, successes and ordinary refusals are of
/// level debug; anything that an operator should see is a warning, which repeats the fields for those who filter spans.
#[derive(Clone, Copy, Debug)]
pub struct Tracing {
    backend: &'static str,
}

impl Tracing {
    /// A layer around the backend of this label.
    #[must_use]
    pub const fn new(backend: &'static str) -> Self {
        Self { backend }
    }

    fn tell<T>(self, op: &'static str, answer: &Result<T>) {
        let (span, backend) = (Span::current(), self.backend);
        let Err(error) = answer else {
            span.record("outcome", "ok");
            debug!("call succeeded");
            return;
        };
        let outcome = error.code();
        span.record("outcome", outcome).record("error", ::tracing::field::display(error));
        if is_ordinary(error) {
            debug!(outcome, %error, "call was refused");
        } else {
            warn!(op, backend, outcome, %error, "call failed");
        }
    }
}

impl Around for Tracing {
    fn around<'a, T, C>(&'a self, op: &'static str, call: C) -> BoxFuture<'a, Result<T>>
    where
        T: Send + 'a,
        C: Call<'a, T>,
    {
        let span = debug_span!("backend_call", op, backend = self.backend, outcome = Empty, error = Empty);
        let told = async move {
            let answer = call.once().await;
            self.tell(op, &answer);
            answer
        };
        Box::pin(told.instrument(span))
    }
}

/// Whether an error is an answer like any other: something is missing, taken, over, or the caller's wait ran out.
fn is_ordinary(error: &EngineError) -> bool {
    match error {
        EngineError::Validation { kind, .. } => *kind != ValidationKind::Corruption,
        EngineError::Contention(kind) => *kind != ContentionKind::RetryExhausted,
        EngineError::NotFound { .. }
        | EngineError::Conflict(_)
        | EngineError::State(_)
        | EngineError::Timeout { .. }
        | EngineError::CursorExpired { .. } => true,
        EngineError::Contextual { source, .. } => is_ordinary(source),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Debug;
    use std::sync::{Arc, Mutex};

    use ::tracing::field::{Field, Visit};
    use ::tracing::span::{Attributes, Id, Record};
    use ::tracing::{Event, Level, Subscriber};
    use ff_core::backend::{Connection, EngineBackend, Inspection};
    use ff_core::partition::PartitionKey;
    use tracing_subscriber::layer::{Context, SubscriberExt};
    use tracing_subscriber::registry::LookupSpan;

    use super::super::stack;
    use super::super::testing::{Faulty, Trouble, memory};

    type Fields = BTreeMap<&'static str, String>;

    struct Read<'a>(&'a mut Fields);

    impl Visit for Read<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0.insert(field.name(), format!("{value:?}"));
        }

        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.insert(field.name(), value.to_owned());
        }
    }

    #[derive(Clone, Debug)]
    struct Said {
        level: Level,
        fields: Fields,
        /// The fields of the span it was said in.
        within: Option<Fields>,
    }

    /// Collects what is said, and where; the fields of spans when they close.
    #[derive(Clone, Default)]
    struct Collector {
        said: Arc<Mutex<Vec<Said>>>,
        closed: Arc<Mutex<Vec<Fields>>>,
    }

    impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for Collector {
        fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
            let mut fields = Fields::from([("span", attributes.metadata().name().to_owned())]);
            attributes.record(&mut Read(&mut fields));
            context.span(id).unwrap().extensions_mut().insert(fields);
        }

        fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
            values.record(&mut Read(context.span(id).unwrap().extensions_mut().get_mut::<Fields>().unwrap()));
        }

        fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
            let mut fields = Fields::new();
            event.record(&mut Read(&mut fields));
            let within = context.event_span(event).map(|span| span.extensions().get::<Fields>().unwrap().clone());
            self.said.lock().unwrap().push(Said { level: *event.metadata().level(), fields, within });
        }

        fn on_close(&self, id: Id, context: Context<'_, S>) {
            let fields = context.span(&id).unwrap().extensions().get::<Fields>().unwrap().clone();
            self.closed.lock().unwrap().push(fields);
        }
    }

    /// What one call says, and its span.
    fn traced<F>(failing: u32, call: impl FnOnce(Arc<dyn EngineBackend>) -> F) -> (Vec<Said>, Vec<Fields>)
    where
        F: Future<Output = ()>,
    {
        let collector = Collector::default();
        let subscriber = tracing_subscriber::registry().with(collector.clone());
        ::tracing::subscriber::with_default(subscriber, || {
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
                let faulty = Faulty::new(Trouble::NotSent, failing);
                call(stack(memory().await).tracing().layer(faulty).build()).await;
            });
        });
        let said = collector.said.lock().unwrap().clone();
        let closed = collector.closed.lock().unwrap().clone();
        (said, closed)
    }

    #[test]
    fn what_happens_inside_a_call_nests_under_its_span() {
        let (said, closed) = traced(0, |backend| async move { backend.ping().await.unwrap() });

        let within = said[0].within.as_ref().unwrap();
        assert_eq!(said[0].fields["message"], "on the way");
        assert_eq!(within["span"], "backend_call");
        assert_eq!((within["op"].as_str(), within["backend"].as_str()), ("ping", "memory"));
        assert_eq!(closed.len(), 1);
        assert_eq!(closed[0]["outcome"], "ok");
        assert!(!closed[0].contains_key("error"));
        assert_eq!(said[1].level, Level::DEBUG);
        assert_eq!(said.len(), 2);
    }

    #[test]
    fn an_ordinary_refusal_is_no_warning() {
        let (said, closed) = traced(0, |backend| async move {
            backend.list_executions(&PartitionKey("nowhere".into()), None, 1).await.unwrap_err();
        });

        assert_eq!(closed[0]["outcome"], "invalid_input");
        assert!(closed[0]["error"].starts_with("invalid_input: "));
        assert_eq!(said[1].level, Level::DEBUG);
    }

    #[test]
    fn a_store_that_cannot_be_reached_is_a_warning_that_stands_alone() {
        let (said, closed) = traced(1, |backend| async move { backend.ping().await.map_or((), |()| unreachable!()) });

        let warning = &said[1];
        assert_eq!(warning.level, Level::WARN);
        let field = |name| warning.fields[name].as_str();
        assert_eq!((field("op"), field("backend"), field("outcome")), ("ping", "memory", "transport"));
        assert_eq!(field("error"), "faulty transport: connection reset");
        assert_eq!(closed[0]["outcome"], "transport");
    }
}
