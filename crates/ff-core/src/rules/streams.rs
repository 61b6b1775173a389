//! Rules of attempt streams: limits, frame ids, how much stays and how long, summary patches, closing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::streams::{BestEffortLiveConfig, Frame, StreamMode};
use crate::cursor::{FrameCursor, FrameId};
use crate::error::{EngineError, Result, ValidationKind};
use crate::fault::{Fault, is_on};
use crate::ids::check_free_string;
use crate::state::StreamCloseReason;
use crate::time::TimestampMs;

/// Most frames of one read or tail.
pub const COUNT_LIMIT_MAX: u64 = 10_000;

/// Longest wait of one tail.
pub const TAIL_BLOCK_MS_MAX: u64 = 30_000;

/// Durable frames kept when the policy names no length.
pub const DURABLE_MAXLEN_DEFAULT: u64 = 10_000;

/// Frames kept after a summary frame.
pub const SUMMARY_MAXLEN: u64 = 64;

/// Deepest nesting of objects in a summary patch; the root counts as one.
pub const PATCH_DEPTH_MAX: usize = 16;

/// Most bytes of a summary document. Every patch rewrites the whole, so it must not grow for ever.
pub const SUMMARY_BYTES_MAX: usize = 1 << 20;

/// A string that stands for JSON null in a summary patch, where plain null deletes.
pub const NULL_SENTINEL: &str = "__ff_null__";

const EMA_ALPHA_DEFAULT: f64 = 0.2;

/// Checks the number of frames asked for.
///
/// # Errors
/// `InvalidInput` outside 1 to [`COUNT_LIMIT_MAX`].
pub fn check_count_limit(count_limit: u64) -> Result<()> {
    if (1..=COUNT_LIMIT_MAX).contains(&count_limit) {
        return Ok(());
    }
    Err(EngineError::invalid(format_args!("count_limit {count_limit} is not in 1..={COUNT_LIMIT_MAX}")))
}

/// Checks how long a tail may wait.
///
/// # Errors
/// `InvalidInput` over [`TAIL_BLOCK_MS_MAX`].
pub fn check_block_ms(block_ms: u64) -> Result<()> {
    if block_ms <= TAIL_BLOCK_MS_MAX {
        return Ok(());
    }
    Err(EngineError::invalid(format_args!("block_ms {block_ms} is over {TAIL_BLOCK_MS_MAX}")))
}

/// The id that a tail starts after; a whole millisecond counts as its first id.
///
/// # Errors
/// `InvalidInput` for `start` and `end`, which name no frame.
pub fn tail_position(after: FrameCursor) -> Result<FrameId> {
    match after {
        FrameCursor::Start | FrameCursor::End => {
            Err(EngineError::invalid(format_args!("tail needs a concrete frame id, not {after}")))
        }
        FrameCursor::Millisecond(_) | FrameCursor::At(_) => Ok(after.lower()),
    }
}

/// Checks a frame before anything is read: its size first, then its strings.
///
/// # Errors
/// `RetentionLimitExceeded` for a payload over `payload_bytes_max`, `InvalidInput` for a faulty string.
pub fn check_frame(frame: &Frame, payload_bytes_max: usize) -> Result<()> {
    let len = frame.payload.len();
    if len > payload_bytes_max {
        let detail = format_args!("frame has {len} bytes, at most {payload_bytes_max} are allowed");
        return Err(EngineError::validation(ValidationKind::RetentionLimitExceeded, detail));
    }
    check_free_string("frame_type", &frame.frame_type)?;
    check_free_string("correlation_id", frame.correlation_id.as_deref().unwrap_or_default())?;
    Ok(())
}

/// The id of the next frame: the clock's, unless that would not be after `last`.
///
/// `last` is [`FrameId::ZERO`] for an empty stream, so no frame ever has that id.
#[must_use]
pub fn next_frame_id(last: FrameId, now: TimestampMs) -> FrameId {
    let by_clock = FrameId { ms: u64::try_from(now.0).unwrap_or(0), seq: 0 };
    if by_clock > last || is_on(Fault::FrameIdRepeated) {
        return by_clock;
    }
    match last.seq.checked_add(1) {
        Some(seq) => FrameId { ms: last.ms, seq },
        None => FrameId { ms: last.ms.saturating_add(1), seq: 0 },
    }
}

/// How fast best-effort frames arrive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct AppendRate {
    /// Moving average of frames per second.
    #[cfg_attr(test, proptest(strategy = "0.0f64..10_000.0"))]
    pub rate_hz: f64,
    /// When the last one was appended.
    pub last_append_at: TimestampMs,
}

/// What a stream remembers to decide how much stays and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct StreamRetention {
    /// Whether a durable or summary frame was ever appended: such a stream never expires by itself.
    pub has_durable: bool,
    /// When the whole stream expires, unless another frame comes.
    #[serde(default)]
    pub expires_at: Option<TimestampMs>,
    /// How fast best-effort frames arrive.
    #[serde(default)]
    pub rate: Option<AppendRate>,
}

impl StreamRetention {
    /// What to remember after a frame of this mode, and how many of the newest frames stay.
    ///
    /// `durable_maxlen` is the length the policy names, if any.
    #[must_use]
    pub fn append(self, mode: &StreamMode, durable_maxlen: Option<u64>, now: TimestampMs) -> (Self, u64) {
        match mode {
            StreamMode::Durable {} => (self.made_durable(), durable_maxlen.unwrap_or(DURABLE_MAXLEN_DEFAULT)),
            StreamMode::Summary { .. } => (self.made_durable(), SUMMARY_MAXLEN),
            StreamMode::BestEffort { config } => {
                let (rate, keep) = best_effort_window(config, self.rate, now);
                let expires_at = (!self.has_durable || is_on(Fault::DurableStreamExpires))
                    .then(|| now.plus(2 * u64::from(config.ttl_ms)));
                (Self { expires_at, rate: Some(rate), ..self }, keep)
            }
        }
    }

    fn made_durable(self) -> Self {
        Self { has_durable: true, expires_at: None, ..self }
    }
}

/// The new rate estimate, and how many frames cover twice the time to live at that rate, within floor and ceiling.
///
/// The first frame seeds the estimate with the rate that the floor covers. At least one frame stays.
#[must_use]
pub fn best_effort_window(
    config: &BestEffortLiveConfig,
    previous: Option<AppendRate>,
    now: TimestampMs,
) -> (AppendRate, u64) {
    let floor = config.maxlen_floor.max(1);
    let ceiling = config.maxlen_ceiling.max(floor);
    let covered_s = 2.0 * f64::from(config.ttl_ms.max(1)) / 1000.0;
    let Some(previous) = previous else {
        let seed = AppendRate { rate_hz: f64::from(floor) / covered_s, last_append_at: now };
        return (seed, u64::from(floor));
    };
    let elapsed_ms = u32::try_from(now.since(previous.last_append_at).max(1)).unwrap_or(u32::MAX);
    let alpha = ema_alpha(config.ema_alpha);
    let rate_hz = alpha * (1000.0 / f64::from(elapsed_ms)) + (1.0 - alpha) * previous.rate_hz;
    let wanted = (rate_hz * covered_s).ceil().clamp(f64::from(floor), f64::from(ceiling));
    let last_append_at = now.max(previous.last_append_at);
    // A float to integer cast saturates, and the value lies between two u32.
    (AppendRate { rate_hz, last_append_at }, wanted as u64)
}

fn ema_alpha(given: f64) -> f64 {
    if given > 0.0 && given <= 1.0 { given } else { EMA_ALPHA_DEFAULT }
}

/// Applies a JSON Merge Patch (RFC 7396) to a summary document; none is an empty object.
///
/// A string leaf [`NULL_SENTINEL`] becomes JSON null after merging, so the document never shows it.
///
/// # Errors
/// `InvalidInput` when the patch is not JSON (`patch_invalid_json`), not an object (`patch_root_not_object`), nested
/// too deeply (`patch_depth_exceeded`) or makes the document too long (`summary_too_large`); `Corruption` when the stored document is not a JSON object.
pub fn merge_patch(document: Option<&[u8]>, patch: &[u8]) -> Result<Vec<u8>> {
    let patch: Value = serde_json::from_slice(patch)
        .map_err(|error| EngineError::invalid(format_args!("patch_invalid_json: {error}")))?;
    if !patch.is_object() {
        return Err(EngineError::invalid("patch_root_not_object"));
    }
    if object_depth(&patch) > PATCH_DEPTH_MAX {
        return Err(EngineError::invalid("patch_depth_exceeded"));
    }
    let mut merged = document.map_or_else(|| Ok(Value::Object(serde_json::Map::new())), stored_document)?;
    json_patch::merge(&mut merged, &patch);
    replace_sentinels(&mut merged);
    let merged = merged.to_string().into_bytes();
    if merged.len() > SUMMARY_BYTES_MAX {
        return Err(EngineError::invalid(format_args!(
            "summary_too_large: {} bytes, at most {SUMMARY_BYTES_MAX}",
            merged.len()
        )));
    }
    Ok(merged)
}

fn stored_document(bytes: &[u8]) -> Result<Value> {
    let corrupt = |detail: &dyn std::fmt::Display| {
        EngineError::validation(ValidationKind::Corruption, format_args!("summary: document_json: {detail}"))
    };
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(Value::Object(map)),
        Ok(_) => Err(corrupt(&"not an object")),
        Err(error) => Err(corrupt(&error)),
    }
}

/// Levels of objects that merging descends; arrays replace and are not descended.
fn object_depth(value: &Value) -> usize {
    match value {
        Value::Object(map) => 1 + map.values().map(object_depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn replace_sentinels(value: &mut Value) {
    match value {
        Value::String(text) if text == NULL_SENTINEL => *value = Value::Null,
        Value::Array(items) => items.iter_mut().for_each(replace_sentinels),
        Value::Object(map) => map.values_mut().for_each(replace_sentinels),
        _ => {}
    }
}

/// Whether a stream in this state takes the closing `reason`: an open one takes any, and a reclaim overrides the
/// expiry of the lease.
#[must_use]
pub fn may_close(current: Option<StreamCloseReason>, reason: StreamCloseReason) -> bool {
    match current {
        None => true,
        Some(current) => current == StreamCloseReason::LeaseExpired && reason == StreamCloseReason::Reclaimed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::streams::{FrameKind, PatchKind};
    use crate::testing::json_round_trips;
    use proptest::prelude::*;
    use serde_json::json;

    json_round_trips!(AppendRate, StreamRetention);

    const SUMMARY: StreamMode = StreamMode::Summary { patch_kind: PatchKind::JsonMergePatch };

    fn live(ttl_ms: u32) -> StreamMode {
        StreamMode::BestEffort { config: BestEffortLiveConfig::new(ttl_ms) }
    }

    fn merge(document: &Value, patch: &Value) -> Value {
        let merged = merge_patch(Some(document.to_string().as_bytes()), patch.to_string().as_bytes());
        serde_json::from_slice(&merged.expect("merges")).expect("is JSON")
    }

    fn refusal(result: Result<Vec<u8>>) -> (ValidationKind, String) {
        match result {
            Err(EngineError::Validation { kind, detail }) => (kind, detail),
            other => panic!("not a refusal: {other:?}"),
        }
    }

    #[test]
    fn counts_and_waits_outside_their_limits_are_refused() {
        for good in [1, COUNT_LIMIT_MAX] {
            assert!(check_count_limit(good).is_ok());
        }
        for bad in [0, COUNT_LIMIT_MAX + 1, u64::MAX] {
            assert_eq!(check_count_limit(bad).expect_err("refused").code(), "invalid_input");
        }
        assert!(check_block_ms(0).is_ok());
        assert!(check_block_ms(TAIL_BLOCK_MS_MAX).is_ok());
        assert_eq!(check_block_ms(TAIL_BLOCK_MS_MAX + 1).expect_err("refused").code(), "invalid_input");
    }

    #[test]
    fn a_tail_starts_after_a_concrete_position_only() {
        let id = FrameId { ms: 5, seq: 3 };
        assert_eq!(tail_position(FrameCursor::At(id)).expect("concrete"), id);
        assert_eq!(tail_position(FrameCursor::Millisecond(5)).expect("concrete"), FrameId { ms: 5, seq: 0 });
        for cursor in [FrameCursor::Start, FrameCursor::End] {
            assert_eq!(tail_position(cursor).expect_err("refused").code(), "invalid_input");
        }
    }

    #[test]
    fn an_oversized_frame_is_refused_before_its_strings_are_looked_at() {
        let frame = Frame { frame_type: "\u{7}".into(), ..Frame::new(FrameKind::Blob, "12345") };
        assert_eq!(check_frame(&frame, 4).expect_err("refused").code(), "retention_limit_exceeded");
        assert_eq!(check_frame(&frame, 5).expect_err("refused").code(), "invalid_input");
        let correlated = Frame { correlation_id: Some("x".repeat(257)), ..Frame::new(FrameKind::Blob, "1") };
        assert_eq!(check_frame(&correlated, 5).expect_err("refused").code(), "invalid_input");
        assert!(check_frame(&Frame::new(FrameKind::Blob, "12345"), 5).is_ok());
    }

    #[test]
    fn a_frame_id_follows_the_clock_and_counts_on_when_the_clock_does_not_move() {
        let first = next_frame_id(FrameId::ZERO, TimestampMs(100));
        assert_eq!(first, FrameId { ms: 100, seq: 0 });
        let second = next_frame_id(first, TimestampMs(100));
        assert_eq!(second, FrameId { ms: 100, seq: 1 });
        assert_eq!(next_frame_id(second, TimestampMs(40)), FrameId { ms: 100, seq: 2 });
        assert_eq!(next_frame_id(FrameId::ZERO, TimestampMs(-1)), FrameId { ms: 0, seq: 1 });
        assert_eq!(next_frame_id(FrameId { ms: 7, seq: u64::MAX }, TimestampMs(7)), FrameId { ms: 8, seq: 0 });
    }

    #[test]
    fn the_first_best_effort_frame_keeps_the_floor_and_a_fast_stream_keeps_more() {
        let config = BestEffortLiveConfig { ema_alpha: 1.0, ..BestEffortLiveConfig::new(10_000) };
        let (rate, keep) = best_effort_window(&config, None, TimestampMs(0));
        assert_eq!(keep, 64);
        let (rate, keep) = best_effort_window(&config, Some(rate), TimestampMs(10));
        assert!((rate.rate_hz - 100.0).abs() < 1e-9);
        assert_eq!(keep, 2000);
        let (_, keep) = best_effort_window(&config, Some(rate), TimestampMs(11));
        assert_eq!(keep, 16_384);
        let (_, keep) = best_effort_window(&config, Some(rate), TimestampMs(60_000));
        assert_eq!(keep, 64);
    }

    #[test]
    fn the_rate_is_a_moving_average_and_a_senseless_weight_counts_as_the_default() {
        let previous = Some(AppendRate { rate_hz: 10.0, last_append_at: TimestampMs(0) });
        let rate = |ema_alpha| {
            let config = BestEffortLiveConfig { ema_alpha, ..BestEffortLiveConfig::new(5000) };
            best_effort_window(&config, previous, TimestampMs(10)).0.rate_hz
        };
        assert!((rate(0.5) - 55.0).abs() < 1e-9);
        for senseless in [0.0, -1.0, 1.5, f64::NAN, f64::INFINITY] {
            assert!((rate(senseless) - 28.0).abs() < 1e-9, "{senseless}");
        }
    }

    #[test]
    fn a_ceiling_below_the_floor_gives_way_to_the_floor() {
        let config = BestEffortLiveConfig {
            maxlen_floor: 100,
            maxlen_ceiling: 10,
            ema_alpha: 1.0,
            ..BestEffortLiveConfig::new(30_000)
        };
        let previous = Some(AppendRate { rate_hz: 1000.0, last_append_at: TimestampMs(0) });
        assert_eq!(best_effort_window(&config, previous, TimestampMs(1)).1, 100);
    }

    #[test]
    fn each_mode_keeps_its_own_length() {
        let keep = |mode: &StreamMode, policy| StreamRetention::default().append(mode, policy, TimestampMs(0)).1;
        assert_eq!(keep(&StreamMode::Durable {}, None), 10_000);
        assert_eq!(keep(&StreamMode::Durable {}, Some(7)), 7);
        assert_eq!(keep(&SUMMARY, Some(7)), 64);
        assert_eq!(keep(&live(5000), Some(7)), 64);
    }

    #[test]
    fn a_stream_expires_after_twice_the_ttl_unless_it_ever_held_a_durable_frame() {
        let (first, _) = StreamRetention::default().append(&live(5000), None, TimestampMs(100));
        assert_eq!(first.expires_at, Some(TimestampMs(10_100)));
        let (second, _) = first.append(&live(5000), None, TimestampMs(200));
        assert_eq!(second.expires_at, Some(TimestampMs(10_200)));
        for mode in [StreamMode::Durable {}, SUMMARY] {
            let (durable, _) = second.append(&mode, None, TimestampMs(300));
            assert_eq!(durable.expires_at, None);
            let (later, _) = durable.append(&live(5000), None, TimestampMs(400));
            assert_eq!(later.expires_at, None);
            assert!(later.has_durable);
        }
    }

    #[test]
    fn a_patch_merges_as_the_standard_says() {
        // The examples of RFC 7396, appendix A, that have an object at the root.
        let cases = [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ];
        for (document, patch, merged) in cases {
            assert_eq!(merge(&document, &patch), merged, "{document} with {patch}");
        }
        assert_eq!(merge_patch(None, br#"{"b":1,"a":2}"#).expect("merges"), br#"{"a":2,"b":1}"#);
    }

    #[test]
    fn an_empty_object_creates_or_keeps_an_object() {
        assert_eq!(merge(&json!({}), &json!({"a":{}})), json!({"a":{}}));
        assert_eq!(merge(&json!({"a":{"b":1}}), &json!({"a":{}})), json!({"a":{"b":1}}));
        assert_eq!(merge(&json!({"a":3}), &json!({"a":{}})), json!({"a":{}}));
    }

    #[test]
    fn the_sentinel_writes_null_where_plain_null_deletes() {
        let merged =
            merge(&json!({"a":1,"b":2}), &json!({"a":NULL_SENTINEL,"b":null,"c":[NULL_SENTINEL,{"d":NULL_SENTINEL}]}));
        assert_eq!(merged, json!({"a":null,"c":[null,{"d":null}]}));
        assert_eq!(merge(&merged, &json!({"a":5})), json!({"a":5,"c":[null,{"d":null}]}));
    }

    #[test]
    fn faulty_patches_and_documents_are_told_apart() {
        let invalid = |patch: &str| {
            let (kind, detail) = refusal(merge_patch(None, patch.as_bytes()));
            assert_eq!(kind, ValidationKind::InvalidInput, "{patch}");
            detail
        };
        for patch in ["", "{", "{} {}", "nonsense"] {
            assert!(invalid(patch).starts_with("patch_invalid_json"), "{patch}");
        }
        for patch in ["[]", "null", "1", r#""__ff_null__""#] {
            assert_eq!(invalid(patch), "patch_root_not_object");
        }
        assert_eq!(refusal(merge_patch(None, &[0xff])).0, ValidationKind::InvalidInput);
        for stored in ["", "[1]", "{"] {
            assert_eq!(refusal(merge_patch(Some(stored.as_bytes()), b"{}")).0, ValidationKind::Corruption, "{stored}");
        }
    }

    #[test]
    fn sixteen_levels_of_objects_merge_and_seventeen_do_not() {
        let nested = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
        assert!(merge_patch(None, nested(16).as_bytes()).is_ok());
        let (kind, detail) = refusal(merge_patch(None, nested(17).as_bytes()));
        assert_eq!((kind, detail.as_str()), (ValidationKind::InvalidInput, "patch_depth_exceeded"));
    }

    #[test]
    fn only_a_reclaim_overrides_a_closure_and_only_that_of_an_expired_lease() {
        for reason in StreamCloseReason::ALL.iter().copied() {
            assert!(may_close(None, reason));
            for current in StreamCloseReason::ALL.iter().copied() {
                let allowed = (current, reason) == (StreamCloseReason::LeaseExpired, StreamCloseReason::Reclaimed);
                assert_eq!(may_close(Some(current), reason), allowed, "{current} then {reason}");
            }
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
            Just(Value::from(NULL_SENTINEL)),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..4).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    fn any_patch() -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[a-c]", any_json(), 0..4).prop_map(|map| map.into_iter().collect())
    }

    proptest! {
        #[test]
        fn the_sentinel_is_never_visible(patches in prop::collection::vec(any_patch(), 1..6)) {
            let mut document: Option<Vec<u8>> = None;
            for patch in patches {
                document = Some(merge_patch(document.as_deref(), patch.to_string().as_bytes()).expect("merges"));
                let text = String::from_utf8(document.clone().expect("set")).expect("is text");
                prop_assert!(!text.contains(NULL_SENTINEL), "{text}");
            }
        }

        #[test]
        fn a_repeated_patch_changes_nothing(document in any_patch(), patch in any_patch()) {
            let once = merge(&document, &patch);
            prop_assert_eq!(merge(&once, &patch), once);
        }

        #[test]
        fn any_bytes_are_merged_or_refused(patch: Vec<u8>) {
            if let Ok(merged) = merge_patch(None, &patch) {
                prop_assert_eq!(merge_patch(Some(&merged), b"{}").expect("merges"), merged);
            }
        }

        #[test]
        fn frame_ids_strictly_increase_whatever_the_clock_does(clock: Vec<i64>) {
            let mut last = FrameId::ZERO;
            for now in clock {
                let next = next_frame_id(last, TimestampMs(now));
                prop_assert!(next > last);
                last = next;
            }
        }

        #[test]
        fn the_window_stays_within_its_bounds(config: BestEffortLiveConfig, clock: Vec<i64>) {
            let floor = u64::from(config.maxlen_floor.max(1));
            let ceiling = u64::from(config.maxlen_ceiling).max(floor);
            let mut rate = None;
            for now in clock {
                let (next, keep) = best_effort_window(&config, rate, TimestampMs(now));
                prop_assert!((floor..=ceiling).contains(&keep));
                prop_assert!(next.rate_hz.is_finite() && next.rate_hz >= 0.0);
                if rate.is_none() {
                    prop_assert_eq!(keep, floor);
                }
                rate = Some(next);
            }
        }
    }
}
