//! Who asks.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// On whose behalf an execution is ended or parked. Any string is one; reading never fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CancelSource {
    /// A person or service that needs no lease.
    #[default]
    OperatorOverride,
    /// The worker that holds the lease.
    LeaseHolder,
    /// The flow was cancelled.
    FlowCascade,
    /// A timer.
    SystemTimeout,
    /// Anything else, kept word for word.
    Custom(String),
}

impl CancelSource {
    /// The text in JSON, stores and logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::OperatorOverride => "operator_override",
            Self::LeaseHolder => "lease_holder",
            Self::FlowCascade => "flow_cascade",
            Self::SystemTimeout => "system_timeout",
            Self::Custom(text) => text,
        }
    }

    /// Whether it may act without a fence.
    #[must_use]
    pub fn is_override(&self) -> bool {
        *self == Self::OperatorOverride
    }
}

impl From<&str> for CancelSource {
    fn from(text: &str) -> Self {
        match text {
            "operator_override" => Self::OperatorOverride,
            "lease_holder" => Self::LeaseHolder,
            "flow_cascade" => Self::FlowCascade,
            "system_timeout" => Self::SystemTimeout,
            other => Self::Custom(other.to_owned()),
        }
    }
}

impl FromStr for CancelSource {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.into())
    }
}

impl fmt::Display for CancelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for CancelSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for CancelSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Ok(Self::from(text.as_ref()))
    }
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for CancelSource {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        let words = ["operator_override", "lease_holder", "flow_cascade", "system_timeout"];
        prop_oneof![
            proptest::sample::select(words.to_vec()).prop_map(Self::from),
            any::<String>().prop_map(|s| Self::from(s.as_str()))
        ]
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_a_source_and_stays_itself(text: String) {
            prop_assert_eq!(CancelSource::from(text.as_str()).to_string(), text);
        }
    }

    crate::testing::json_round_trips!(CancelSource);
}
