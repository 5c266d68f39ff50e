//! The command line, as it is typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Run AI agents safely: a sandbox whose only way out is a sidecar that checks every request.
#[derive(Debug, Parser)]
#[command(name = "lockgate", version, propagate_version = true, arg_required_else_help = true, max_term_width = 110)]
#[command(after_help = "Start with `lockgate demo`, then `lockgate run -- CMD` in the folder of a project.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command in a sandbox
    Run(Box<Run>),
}

/// Flags that say what a run is: each has its field in `lockgate.toml`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Spec {
    /// A policy file, in place of the workspace's lockgate.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Leave the workspace's lockgate.toml out
    #[arg(long, conflicts_with = "policy")]
    pub(crate) no_project: bool,
    /// A named group of rules: github, llm-providers, package-registries, open-internet
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Vec<String>,
    /// A host that may be reached, and its port (80 and 443 if not said)
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow: Vec<String>,
    /// What makes the sandbox: linux or process
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<String>,
    /// Show a path of this machine inside, read-only unless `:rw`
    #[arg(long, value_name = "SRC:DST[:ro|rw]")]
    pub(crate) mount: Vec<String>,
    /// Copy a path of this machine in
    #[arg(long, value_name = "SRC:DST")]
    pub(crate) copy: Vec<String>,
    /// A toolchain of your home, read-only: rustup, pyenv, nvm, uv, …
    #[arg(long, value_name = "NAME")]
    pub(crate) tool: Vec<String>,
    /// Set a variable, or pass yours on
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// The folder the command works in [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Memory, swap included [default: 1536MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// Processors [default: 2]
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<String>,
    /// Processes and threads at once [default: 512]
    #[arg(long, value_name = "N")]
    pub(crate) pids: Option<u32>,
    /// What may be written outside the workspace [default: 4GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<String>,
    /// What happens where limits cannot be held: required or best-effort
    #[arg(long, value_name = "HOW")]
    pub(crate) limits: Option<String>,
    /// When the run is ended; 30m at most
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
}

/// `lockgate run`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate run -- make test                          nothing may leave
  lockgate run --preset github -- git pull           GitHub may be reached
  lockgate run --allow api.example.com -- ./agent    one host, ports 80 and 443
  lockgate run --tool rustup --preset package-registries -- cargo build

Exit: the command's own code; 124 timed out, 125 the sandbox could not be made, 126/127 the command cannot be
executed or is not there, 128+n ended by signal n, 2 the flags or the policy are wrong.")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) spec: Spec,
    /// Give the command a terminal even if this is none
    #[arg(short = 't', long)]
    pub(crate) terminal: bool,
    /// Tell what became of the run as one JSON object on stderr
    #[arg(long)]
    pub(crate) json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
