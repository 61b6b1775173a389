//! Helpers shared by this crate's tests.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Checks value → JSON → value, and that an object refuses a field it does not know.
///
/// `tag_only` permits an extra field beside a lone tag: answers may have unit variants, requests may not.
pub(crate) fn check_json<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T, tag_only: bool) {
    let json = serde_json::to_value(value).expect("serializes");
    let back: T = serde_json::from_value(json.clone()).unwrap_or_else(|e| panic!("{json} does not parse back: {e}"));
    assert_eq!(&back, value, "{json}");
    if let serde_json::Value::Object(mut map) = json {
        if tag_only && map.len() == 1 && map.contains_key("type") {
            return;
        }
        map.insert("a_field_nobody_knows".into(), 1.into());
        let refused = serde_json::from_value::<T>(serde_json::Value::Object(map.clone()));
        assert!(refused.is_err(), "an unknown field was accepted: {map:?}");
    }
}

/// One property test per request type: JSON round trip and refusal of unknown fields.
macro_rules! json_round_trips {
    ($($ty:ident),+ $(,)?) => { $crate::testing::round_trips!(json_round_trip, false, $($ty),+); };
}
pub(crate) use json_round_trips;

/// The same for answers, which may have variants that are only a tag.
macro_rules! answer_round_trips {
    ($($ty:ident),+ $(,)?) => { $crate::testing::round_trips!(answer_round_trip, true, $($ty),+); };
}
pub(crate) use answer_round_trips;

macro_rules! round_trips {
    ($module:ident, $tag_only:literal, $($ty:ident),+) => {
        #[allow(non_snake_case)]
        mod $module {
            $(
                proptest::proptest! {
                    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
                    #[test]
                    fn $ty(value: super::super::$ty) {
                        $crate::testing::check_json(&value, $tag_only);
                    }
                }
            )+
        }
    };
}
pub(crate) use round_trips;
