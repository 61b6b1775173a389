//! Files that cannot be used, or stop being usable: each is explained in one line that says what is wrong and what to do, and nothing
//! that was acknowledged is lost.

mod damaged;
mod full;
mod kit;
mod locked;
mod permission;
mod refused;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    if let Some(code) = kit::run_as_child() {
        return code;
    }
    let trials = [refused::trials(), permission::trials(), locked::trials(), full::trials(), damaged::trials()];
    libtest_mimic::run(&Arguments::from_args(), trials.into_iter().flatten().collect()).exit_code()
}
