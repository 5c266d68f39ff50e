//! The command line, as it is typed.

mod credentials;
mod elsewhere;
mod image;
mod policy;
mod records;
mod spec;
mod value;

use std::ffi::OsString;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use self::policy::{Policy, PolicyCheck, PolicyFile};
pub(crate) use credentials::{Creds, Keys, ValueFlags, Whose};
pub(crate) use image::Image;
pub(crate) use records::{Audit, Runs};
pub(crate) use spec::Spec;

use crate::{exit, output};

/// Run AI agents safely: a sandbox whose only way out is a sidecar that checks every request.
#[derive(Debug, Parser)]
#[command(name = "lockgate", version, arg_required_else_help = true, max_term_width = 110)]
#[command(after_help = concat!(
    "Start with `lockgate demo`, then `lockgate run -- CMD` in the folder of a project.\nDocumentation: ",
    env!("CARGO_PKG_REPOSITORY"),
))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// Whether the command line of this process begins with `run`.
    pub(crate) fn begins_a_run() -> bool {
        std::env::args_os().nth(1).is_some_and(|word| word == "run")
    }

    /// Reads the command line of this process, and ends it where that is wrong or asks for help.
    pub(crate) fn read() -> Self {
        if Self::begins_a_run() {
            return Self { command: Command::Run(RunAlone::read()) };
        }
        let mut described = Self::command();
        let read = described.try_get_matches_from_mut(std::env::args_os());
        let read = read.and_then(|mut matches| Self::from_arg_matches_mut(&mut matches));
        read.unwrap_or_else(|error| exit::end(&refused(error, &mut described)))
    }
}

/// Formats a usage error, with advice for words that other programs know.
fn refused(mut error: clap::Error, described: &mut clap::Command) -> clap::Error {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| output::plain(&word.to_string_lossy())).collect();
    if error.kind() == ErrorKind::InvalidUtf8
        && let Some(named) = elsewhere::point_to_octets(std::env::args_os().skip(1))
    {
        error = named;
    }
    make_plain(&mut error);
    elsewhere::point_to(&mut error, described, &words);
    error.format(described)
}

/// Replaces the control characters of what was typed, which may be the name of somebody else's file.
fn make_plain(error: &mut clap::Error) {
    let plain = |value: &ContextValue| match value {
        ContextValue::String(word) => Some(ContextValue::String(output::plain(word))),
        ContextValue::Strings(words) => {
            Some(ContextValue::Strings(words.iter().map(|word| output::plain(word)).collect()))
        }
        _ => None,
    };
    let typed: Vec<_> =
        error.context().filter_map(|(kind, value)| plain(value).map(|value| (kind, value))).collect();
    for (kind, value) in typed {
        error.insert(kind, value);
    }
}

/// The command line of `lockgate run` alone. To describe every other command as well would cost each start a third of a
/// millisecond.
#[derive(Debug, Parser)]
#[command(name = "lockgate", version, max_term_width = 110)]
struct RunAlone {
    #[command(subcommand)]
    command: OnlyRun,
}

impl RunAlone {
    /// Parses like `clap::Parser::parse`, but never frees the description of the command line, which would cost each start more
    /// than to leave it.
    fn read() -> Box<Run> {
        let mut described = ManuallyDrop::new(Self::command());
        let read = described
            .try_get_matches_from_mut(std::env::args_os())
            .and_then(|matches| Self::from_arg_matches_mut(&mut ManuallyDrop::new(matches)));
        match read {
            Ok(Self { command: OnlyRun::Run(run) }) => run,
            Err(error) => {
                let error = refused(error, &mut described);
                if error.use_stderr() && asks_for_json() {
                    output::report(&as_json(&error));
                    std::process::exit(error.exit_code());
                }
                exit::end(&error)
            }
        }
    }
}

/// Whether an invalid command line asks for JSON.
fn asks_for_json() -> bool {
    std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json")
}

/// Reports a usage error in the JSON form of a run that could not start.
fn as_json(error: &clap::Error) -> String {
    let text = error.to_string();
    let what: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let what = what.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    let hint = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) => elsewhere::here(word),
        _ => None,
    };
    let hint = hint.unwrap_or("lockgate run --help");
    serde_json::json!({"exit_code": error.exit_code(), "error": what, "hint": hint}).to_string()
}

#[derive(Debug, Subcommand)]
enum OnlyRun {
    /// Run a command in a sandbox
    Run(Box<Run>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command in a sandbox
    Run(Box<Run>),
    /// See a scripted agent try things in a sandbox, and what becomes of each
    Demo,
    /// Show, check and change what runs may do
    #[command(subcommand)]
    Policy(Policy),
    /// The sidecar alone, for those who bring their own sandbox
    Sidecar(Sidecar),
    /// Show the changes that a run made in an overlay workspace, as a patch
    Diff {
        /// The run [default: the latest of this folder whose changes are kept]
        run: Option<String>,
        /// Only the paths, with a letter each: A new, M changed, D gone
        #[arg(long)]
        stat: bool,
        /// Only these paths, relative to the workspace. What this machine would execute or trust is a comment unless named
        #[arg(long = "path", value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Apply the changes that a run made in an overlay workspace
    #[command(after_help = "\
        Nothing is applied if the workspace changed underneath. What this machine would execute or trust (.git/hooks, \
        lockgate.toml, editor settings, …) is applied only by its own path, or by that of a folder of such things.")]
    Apply {
        /// The run [default: the latest of this folder whose changes are kept]
        run: Option<String>,
        /// Only these paths, relative to the workspace
        #[arg(long = "path", value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Discard the changes that a run made in an overlay workspace
    Discard {
        /// The run [default: the latest of this folder whose changes are kept]
        run: Option<String>,
    },
    /// What this machine can do, and how to mend what is missing
    Doctor {
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// The runs on record
    #[command(subcommand)]
    Runs(Runs),
    /// What runs asked for, and what was decided
    #[command(subcommand)]
    Audit(Audit),
    /// Images whose files can be a sandbox's root
    #[command(subcommand)]
    Image(Image),
    /// Credentials that runs use and never see
    #[command(subcommand)]
    Creds(Creds),
    /// The keys that credentials are encrypted with
    #[command(subcommand)]
    Keys(Keys),
    /// The configuration in force
    #[command(subcommand)]
    Config(Config),
    /// The first process of an agent's container, at an engine
    #[command(name = sandbox::INSIDE_AGENT, hide = true)]
    EngineAgent {
        /// An address of the run's network, to which alone the container is to send
        network: std::net::Ipv4Addr,
        /// The user of the command, where the container begins as root
        #[arg(requires = "gid")]
        uid: Option<u32>,
        /// The group of the command
        gid: Option<u32>,
    },
    /// The first process of a sidecar's container, at an engine
    #[command(name = sandbox::INSIDE_SIDECAR, hide = true)]
    EngineSidecar,
    /// Whether ports accept connections, in a companion's container, at an engine
    #[command(name = sandbox::INSIDE_ACCEPTS, hide = true)]
    EngineAccepts {
        /// The address of the container
        address: std::net::Ipv4Addr,
        /// The ports
        ports: Vec<u16>,
    },
    /// The agent of the demonstration, inside
    #[command(hide = true)]
    DemoAgent,
    /// The upstream of the demonstration
    #[command(hide = true)]
    DemoUpstream,
    /// Print the version
    Version,
    /// Print completions for a shell
    #[command(after_help = "\
Install them once:
  lockgate completion bash > ~/.local/share/bash-completion/completions/lockgate
  lockgate completion fish > ~/.config/fish/completions/lockgate.fish
  lockgate completion zsh > DIR/_lockgate            DIR is a folder of $fpath")]
    Completion {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
}

/// `lockgate run`
#[derive(Debug, Args)]
#[command(before_help = "\
Examples:
  lockgate run -- make test                          nothing may leave
  lockgate run --preset github -- git pull           GitHub may be reached
  lockgate run --allow api.example.com -- ./agent    one host at ports 80, 443
  lockgate run --provider anthropic -- claude        its key stays outside
  lockgate run --tool rustup --preset package-registries -- cargo build
  lockgate run --image mine:1 -- make test           on the files of an image")]
#[command(after_help = "\
    Exit: the command's own code; 124 timed out, 125 the sandbox could not be made, 126/127 the command cannot be executed \
    or is not there, 128+n ended by signal n, 2 the flags or the policy are wrong.")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) spec: Spec,
    /// Give the command a terminal even if stdin or stdout is not one
    #[arg(short = 't', long)]
    pub(crate) terminal: bool,
    /// Print the outcome of the run as one JSON object on stderr
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the same to FILE at the end (a link, or a file that holds anything else, is refused)
    #[arg(long, value_name = "FILE")]
    pub(crate) json_file: Option<PathBuf>,
    /// The command and its arguments; with an image, its own if not said
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `lockgate sidecar`
#[derive(Debug, Args)]
#[command(before_help = "\
Example:
  lockgate sidecar --policy lockgate.toml --forward 127.0.0.1:8081
  HTTPS_PROXY=http://127.0.0.1:8081 curl https://api.example.com/")]
pub(crate) struct Sidecar {
    /// The policy it enforces
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: PathBuf,
    /// The organisation whose keys are used, in place of yours
    #[arg(long, value_name = "NAME")]
    pub(crate) org: Option<String>,
    /// Where the HTTP proxy listens
    #[arg(long, value_name = "ADDR:PORT", value_parser = value::place)]
    pub(crate) forward: SocketAddr,
    /// Where the gateway listens: /proxy, /llm/*, /run-history, /configure, /health
    #[arg(long, value_name = "ADDR:PORT", value_parser = value::place)]
    pub(crate) gateway: Option<SocketAddr>,
    /// Where the gateway listens as a Unix socket
    #[arg(long, value_name = "PATH")]
    pub(crate) gateway_socket: Option<PathBuf>,
    /// Write the CA certificate that programs must trust to FILE; without it, no TLS is opened
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Gets the placeholders, as lines of NAME=VALUE
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Option<PathBuf>,
    /// Where DNS is answered, over UDP and TCP: an allowed name gets an address for --transparent
    #[arg(long, value_name = "ADDR:PORT", value_parser = value::place)]
    pub(crate) dns: Option<SocketAddr>,
    /// Where connections arrive that your own firewall redirects
    #[arg(long, value_name = "ADDR:PORT", value_parser = value::place)]
    pub(crate) transparent: Option<SocketAddr>,
    /// Where audit records are written: a new or an empty file; or a directory, in which each start has a file of its own
    #[arg(long, value_name = "PATH")]
    pub(crate) audit: Option<PathBuf>,
    /// How long what is under way may take once it is told to end (SIGTERM, SIGINT); 0 ends it at once
    #[arg(long, value_name = "TIME", default_value = "8s", value_parser = value::grace)]
    pub(crate) grace: Duration,
    /// Do not tell denials and faults as they happen
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `lockgate config`
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Show the merged configuration
    Show {
        /// Name the layer each value came from
        #[arg(long)]
        origin: bool,
        /// JSON Lines
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = spec::OF_A_RUN)]
        spec: Spec,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_is_told_without_control_characters() {
        let hostile = "a\u{1b}]0;t\u{7}\u{1b}[2J\nb";
        for words in [
            &["audit", "verify", "a.jsonl", hostile][..],
            &["runs", "ls", "--label", hostile],
            &["runs", hostile],
            &["run", hostile],
        ] {
            let mut described = Arguments::command();
            let typed = std::iter::once("lockgate").chain(words.iter().copied());
            let mut error = Arguments::command().try_get_matches_from(typed).unwrap_err();
            make_plain(&mut error);
            let words: Vec<String> = words.iter().map(|word| output::plain(word)).collect();
            elsewhere::point_to(&mut error, &described, &words);
            let told = error.format(&mut described).render().ansi().to_string();
            assert!(told.contains("a\u{fffd}]0;t\u{fffd}\u{fffd}[2J\u{fffd}b"), "{told:?}");
            assert!(!["\u{1b}]", "\u{7}", "[2J\n"].iter().any(|control| told.contains(control)), "{told:?}");
        }
    }
}
