//! How many calls, how long they take and what comes of them.

use std::time::Instant;

use ::metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use ff_core::Result;
use ff_core::backend::layer::{Around, BoxFuture, Call};

const CALLS: &str = "ff_backend_calls_total";
const DURATION: &str = "ff_backend_call_duration_seconds";

/// Counts and times calls through the `metrics` facade: `ff_backend_calls_total` and `ff_backend_call_duration_seconds`, by
/// `op` and `outcome`, which is `ok` or the code of the error.
///
/// The duration of a call that waits for work, frames or members includes that wait; a call that its caller gave up is not
/// counted.
#[derive(Clone, Copy, Debug)]
pub struct Metrics {
    _described: (),
}

impl Metrics {
    /// Describes the metrics to the installed recorder.
    #[must_use]
    pub fn new() -> Self {
        describe_counter!(CALLS, Unit::Count, "calls of the backend by operation and outcome");
        describe_histogram!(DURATION, Unit::Seconds, "time from call to answer by operation and outcome");
        Self { _described: () }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Around for Metrics {
    fn around<'a, T, C>(&'a self, op: &'static str, call: C) -> BoxFuture<'a, Result<T>>
    where
        T: Send + 'a,
        C: Call<'a, T>,
    {
        Box::pin(async move {
            let since = Instant::now();
            let answer = call.once().await;
            let outcome = answer.as_ref().map_or_else(|error| error.code(), |_| "ok");
            counter!(CALLS, "op" => op, "outcome" => outcome).increment(1);
            histogram!(DURATION, "op" => op, "outcome" => outcome).record(since.elapsed());
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use ff_core::backend::Connection;
    use metrics_util::CompositeKey;
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::super::stack;
    use super::super::testing::{Faulty, Trouble, memory};

    /// What a metric is called, by its labels.
    fn named(key: &CompositeKey) -> String {
        let mut labels: Vec<_> = key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        labels.sort();
        format!("{}{{{}}}", key.key().name(), labels.join(","))
    }

    #[test]
    fn calls_are_counted_and_timed_by_operation_and_outcome() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        ::metrics::with_local_recorder(&recorder, || {
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
                let faulty = Faulty::new(Trouble::NotSent, 1);
                let backend = stack(memory().await).metrics().layer(faulty).build();
                backend.ping().await.unwrap_err();
                backend.ping().await.unwrap();
                backend.ping().await.unwrap();
            });
        });

        let mut seen = Vec::new();
        for (key, _, description, value) in snapshotter.snapshot().into_vec() {
            assert!(description.is_some());
            let amount = match value {
                DebugValue::Counter(count) => usize::try_from(count).unwrap(),
                DebugValue::Histogram(samples) => {
                    assert!(samples.iter().all(|seconds| (0.0..60.0).contains(&seconds.into_inner())));
                    samples.len()
                }
                DebugValue::Gauge(_) => panic!("no gauges"),
            };
            seen.push((named(&key), amount));
        }
        seen.sort();
        let expected = [
            ("ff_backend_call_duration_seconds{op=ping,outcome=ok}", 2),
            ("ff_backend_call_duration_seconds{op=ping,outcome=transport}", 1),
            ("ff_backend_calls_total{op=ping,outcome=ok}", 2),
            ("ff_backend_calls_total{op=ping,outcome=transport}", 1),
        ];
        assert_eq!(seen, expected.map(|(name, amount)| (name.to_owned(), amount)));
    }
}
