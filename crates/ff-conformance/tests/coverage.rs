//! Whether the suite sees every outcome of every operation.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A test runner that lists tests finds none here: the table is one judgement over the whole suite.
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    ff_conformance::coverage::run(&ff_conformance::memory::MemoryHarness)
}
