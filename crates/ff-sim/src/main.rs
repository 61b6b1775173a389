//! The command around the simulation.

use std::process::ExitCode;

fn main() -> ExitCode {
    ff_sim::cli::main(std::env::args().skip(1))
}
