//! The `lockgate` command. This file chooses the command; each command is a file of its own.

mod arguments;
mod command;
mod exit;
mod output;

use clap::Parser;

use crate::arguments::{Arguments, Command};

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Run(run) => command::run::run(*run),
    };
    exit::code(done)
}
