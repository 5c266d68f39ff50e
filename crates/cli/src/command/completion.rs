//! `lockgate completion`: completions for a shell.

use clap::CommandFactory;

use crate::arguments::Arguments;
use crate::exit::Done;

pub(crate) fn completion(shell: clap_complete::Shell) -> Done {
    clap_complete::generate(shell, &mut Arguments::command(), "lockgate", &mut std::io::stdout());
    Ok(0)
}
