//! `cargo xtask`: the commands that prepare, check and test this repository, for people and the CI.
//!
//! Each command is a module of its own. Nothing here is part of the product, which must never depend on it.

#![expect(clippy::print_stderr, reason = "a build tool speaks to the person who runs it")]

mod bench;
mod bounded;
mod check;
mod engines;
mod fuzz;
mod order;
mod setup;
mod skips;
mod steps;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Prepare, check and test Lockgate.")]
enum Command {
    /// Install what the tests and benchmarks need (as root), or list what is missing.
    Setup,
    /// Formatting, clippy, the rules of the house, and the supply chain.
    Check,
    /// `setup`, the builds, `check` and every test.
    Test,
    /// Every fuzz target, for some seconds each; needs cargo-fuzz and a nightly toolchain.
    Fuzz {
        /// How long each target runs
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Which functions a start runs, written down for the linker; after a change of the compiler, or of much of a start.
    Order,
    /// The product beside its peers, on this machine.
    Bench(bench::Options),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Setup => setup::run(),
        Command::Check => check::run(),
        Command::Test => test::run(),
        Command::Fuzz { seconds } => fuzz::run(seconds),
        Command::Order => order::run(),
        Command::Bench(options) => bench::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
