//! The suite on the model store.

use std::process::ExitCode;

fn main() -> ExitCode {
    ff_conformance::run(ff_conformance::memory::MemoryHarness)
}
