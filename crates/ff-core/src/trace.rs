//! Where a piece of work stands in a distributed trace, as W3C Trace Context writes it.

use serde::{Deserialize, Serialize};

use crate::error::{EngineError, Result};

/// Most bytes of a `tracestate`.
pub const TRACESTATE_BYTES_MAX: usize = 512;

/// The two headers of W3C Trace Context, version 00.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceContext {
    /// `00-<32 hex>-<16 hex>-<2 hex>` in lower case: version, trace, parent, flags.
    pub traceparent: String,
    /// What vendors add; opaque.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

impl TraceContext {
    /// A context that is valid.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn new(traceparent: impl Into<String>, tracestate: Option<String>) -> Result<Self> {
        let context = Self { traceparent: traceparent.into(), tracestate };
        context.check()?;
        Ok(context)
    }

    /// Checks both headers.
    ///
    /// # Errors
    /// `InvalidInput` for a `traceparent` of another form or version, for a trace or parent of zeroes only, and for
    /// a `tracestate` that is too long or has control characters.
    pub fn check(&self) -> Result<()> {
        if !is_traceparent(&self.traceparent) {
            return Err(EngineError::invalid("traceparent is not of the form 00-<32 hex>-<16 hex>-<2 hex>"));
        }
        let state = self.tracestate.as_deref().unwrap_or_default();
        if state.len() > TRACESTATE_BYTES_MAX {
            let len = state.len();
            return Err(EngineError::invalid(format_args!(
                "tracestate has {len} bytes, at most {TRACESTATE_BYTES_MAX} are allowed"
            )));
        }
        match state.char_indices().find(|(_, c)| c.is_control()) {
            Some((at, _)) => Err(EngineError::invalid(format_args!("tracestate has a control character at byte {at}"))),
            None => Ok(()),
        }
    }
}

fn is_traceparent(text: &str) -> bool {
    let mut parts = text.split('-');
    let [version, trace, parent, flags] = [(); 4].map(|()| parts.next().unwrap_or_default());
    parts.next().is_none()
        && version == "00"
        && is_hex(trace, 32)
        && is_hex(parent, 16)
        && is_hex(flags, 2)
        && [trace, parent].iter().all(|id| id.bytes().any(|byte| byte != b'0'))
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for TraceContext {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        ("00-[1-9a-f]{32}-[1-9a-f]{16}-0[01]", proptest::option::of("[a-z]{1,8}=[a-z]{1,8}"))
            .prop_map(|(traceparent, tracestate)| Self { traceparent, tracestate })
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_of_version_00_is_taken_as_it_is() {
        let state = Some("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7".to_owned());
        let context = TraceContext::new(PARENT, state.clone()).unwrap();
        assert_eq!((context.traceparent.as_str(), context.tracestate), (PARENT, state));
        assert!(TraceContext::new(PARENT, Some("x".repeat(TRACESTATE_BYTES_MAX))).is_ok());
    }

    #[test]
    fn a_traceparent_of_another_form_is_refused() {
        for bad in [
            "",
            "00",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\u{e9}",
        ] {
            assert_eq!(TraceContext::new(bad, None).expect_err(bad).code(), "invalid_input");
        }
    }

    #[test]
    fn a_tracestate_is_short_and_printable() {
        for bad in ["x".repeat(TRACESTATE_BYTES_MAX + 1), "a=b\n".to_owned()] {
            assert_eq!(TraceContext::new(PARENT, Some(bad)).expect_err("refused").code(), "invalid_input");
        }
    }

    crate::testing::json_round_trips!(TraceContext);
}
