//! Flags that describe a run, shared by every command that plans one.

use std::path::PathBuf;

use clap::Args;

use super::value::pids;

/// The heading of these flags in the help of commands that run nothing.
pub(super) const OF_A_RUN: &str = "Flags of the run that it is about";

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
    /// A host that may be reached, and its port [default: 80 and 443]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow: Vec<String>,
    /// An outside service whose credential is put into requests: anthropic, openai, github, …
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Vec<String>,
    /// Let the command search the web: with the first of tavily, exa and brave whose credential is stored
    #[arg(long)]
    pub(crate) web_search: bool,
    /// The organisation whose keys are used, in place of yours
    #[arg(long, value_name = "NAME")]
    pub(crate) org: Option<String>,
    /// The declared proxy that everything goes through; `direct` for none
    #[arg(long, value_name = "ID")]
    pub(crate) proxy: Option<String>,
    /// What makes the sandbox: linux, container, docker or process
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<String>,
    /// How the sandbox's network reaches the sidecar: redirect, or veth, which takes root [default: redirect]
    #[arg(long, value_name = "WIRING")]
    pub(crate) wiring: Option<String>,
    /// The network out of which allowed names get their addresses inside [default: 198.18.0.0/15]
    #[arg(long, value_name = "NETWORK")]
    pub(crate) name_addresses: Option<String>,
    /// An image whose files are the root, in place of this machine's
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// Where the command starts, inside [default: the workspace]
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Show a path of this machine inside, read-only unless `:rw`
    #[arg(long, value_name = "SRC:DST[:ro|rw]")]
    pub(crate) mount: Vec<String>,
    /// Copy a path of this machine in
    #[arg(long, value_name = "SRC:DST")]
    pub(crate) copy: Vec<String>,
    /// A toolchain of your home, read-only: rustup, pyenv, nvm, uv, …
    #[arg(long, value_name = "NAME")]
    pub(crate) tool: Vec<String>,
    /// A program whose configuration and caches enter, without the credentials in them: git, npm, pip, cargo, claude, …
    #[arg(long, value_name = "NAME")]
    pub(crate) builtin_tool: Vec<String>,
    /// A label of your own to find the run by, as in task=T-17
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) label: Vec<String>,
    /// A line of shell that is run inside before the command; if it fails, that is told
    #[arg(long, value_name = "LINE")]
    pub(crate) setup: Vec<String>,
    /// Set a variable, or pass yours on
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// A provider's variable that holds the credential itself, not a placeholder: the command can read and keep it
    #[arg(long, value_name = "NAME")]
    pub(crate) expose: Vec<String>,
    /// The folder the command works in [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// How that folder may be used: rw, ro, or overlay, which keeps what is written apart [default: rw]
    #[arg(long, value_name = "MODE")]
    pub(crate) workspace_mode: Option<String>,
    /// A protected path of the workspace that may be written in this run
    #[arg(long, value_name = "PATH")]
    pub(crate) open: Vec<String>,
    /// Memory, swap included [default: 1536MiB]
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) memory: Option<String>,
    /// Processors [default: 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) cpus: Option<String>,
    /// Processes and threads at once [default: 512]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = pids)]
    pub(crate) pids: Option<u32>,
    /// What may be written outside the workspace; it lives in memory, and takes half of --memory at most [default: 4GiB]
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) disk: Option<String>,
    /// What happens where limits cannot be held: required or best-effort
    #[arg(long, value_name = "HOW")]
    pub(crate) limits: Option<String>,
    /// When the run is ended [default: 30m, and no more unless this machine allows it]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    pub(crate) timeout: Option<String>,
}
