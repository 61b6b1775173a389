//! How long a call may wait.

use crate::error::{EngineError, Result};

/// The longest wait of a call that waits for something to happen.
pub const WAIT_MS_MAX: u64 = 30_000;

/// Checks how long a call wants to wait; 0 is not at all.
///
/// # Errors
/// `InvalidInput` over [`WAIT_MS_MAX`].
pub fn check_wait_ms(max_wait_ms: u64) -> Result<()> {
    if max_wait_ms <= WAIT_MS_MAX {
        return Ok(());
    }
    Err(EngineError::invalid(format_args!("max_wait_ms {max_wait_ms} is over {WAIT_MS_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_may_be_nothing_and_has_a_longest() {
        assert!(check_wait_ms(0).is_ok());
        assert!(check_wait_ms(WAIT_MS_MAX).is_ok());
        assert_eq!(check_wait_ms(WAIT_MS_MAX + 1).expect_err("refused").code(), "invalid_input");
    }
}
