//! A narrated tour.

use std::process::ExitCode;

pub(crate) fn tour() -> ExitCode {
    ExitCode::SUCCESS
}
