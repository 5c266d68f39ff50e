//! `lockgate completion`: completions for a shell.

use std::io::Write;

use clap::CommandFactory;

use crate::arguments::Arguments;
use crate::exit::Done;

pub(crate) fn completion(shell: clap_complete::Shell) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "lockgate", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(0)
}
