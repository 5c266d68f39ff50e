//! `lockgate completion`: completions for a shell.

use clap::{Command, CommandFactory};

use crate::arguments::Arguments;
use crate::exit::Done;
use crate::output;

pub(crate) fn completion(shell: clap_complete::Shell) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(&Arguments::command()), "lockgate", &mut script);
    output::text(&script)?;
    Ok(0)
}

/// Describes the command line without the internal commands.
fn shown(all: &Command) -> Command {
    let subcommands = all.get_subcommands().filter(|it| !it.is_hide_set()).cloned();
    Command::new("lockgate").args(all.get_arguments()).subcommands(subcommands)
}
