//! Whether the suite sees every outcome of every operation.

use std::process::ExitCode;

fn main() -> ExitCode {
    ff_conformance::coverage::run(&ff_conformance::memory::MemoryHarness)
}
