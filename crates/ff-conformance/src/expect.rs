//! Short words for what a case expects to be refused.

use ff_core::error::{ConflictKind, ContentionKind, Entity, StateKind, ValidationKind};
use ff_core::{EngineError, Result};

/// The refusal, or a panic that shows what came instead.
#[track_caller]
pub(crate) fn refusal<T: std::fmt::Debug>(answer: Result<T>) -> EngineError {
    match answer {
        Err(error) => error,
        Ok(answer) => panic!("expected a refusal, got {answer:?}"),
    }
}

/// `Validation` of this kind; gives the detail.
#[track_caller]
pub(crate) fn invalid<T: std::fmt::Debug>(answer: Result<T>, expected: ValidationKind) -> String {
    match refusal(answer) {
        EngineError::Validation { kind, detail } if kind == expected => detail,
        other => panic!("expected {expected}, got {other:?}"),
    }
}

/// `NotFound` of this entity.
#[track_caller]
pub(crate) fn not_found<T: std::fmt::Debug>(answer: Result<T>, expected: Entity) {
    match refusal(answer) {
        EngineError::NotFound { entity } if entity == expected => {}
        other => panic!("expected {expected} not found, got {other:?}"),
    }
}

/// `State` of this kind.
#[track_caller]
pub(crate) fn state<T: std::fmt::Debug>(answer: Result<T>, expected: StateKind) {
    match refusal(answer) {
        EngineError::State(kind) if kind == expected => {}
        other => panic!("expected {expected}, got {other:?}"),
    }
}

/// `Contention` of this code; gives the kind.
#[track_caller]
pub(crate) fn contention<T: std::fmt::Debug>(answer: Result<T>, code: &str) -> ContentionKind {
    match refusal(answer) {
        EngineError::Contention(kind) if kind.code() == code => kind,
        other => panic!("expected {code}, got {other:?}"),
    }
}

/// `Conflict` of this code; gives the kind.
#[track_caller]
pub(crate) fn conflict<T: std::fmt::Debug>(answer: Result<T>, code: &str) -> ConflictKind {
    match refusal(answer) {
        EngineError::Conflict(kind) if kind.code() == code => kind,
        other => panic!("expected {code}, got {other:?}"),
    }
}

/// The engine closes, and nobody waits any more.
#[track_caller]
pub(crate) fn is_closing<T: std::fmt::Debug>(answer: Result<T>) {
    match refusal(answer) {
        EngineError::Transport { retryable: false, source, .. } if source.to_string() == "the engine is closing" => {}
        other => panic!("expected that the engine closes, got {other:?}"),
    }
}
