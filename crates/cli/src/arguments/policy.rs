//! Arguments of `lockgate policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Spec;
use super::spec::OF_A_RUN;

/// `lockgate policy`
#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Write a lockgate.toml that allows nothing yet
    Init {
        #[command(flatten)]
        file: PolicyFile,
    },
    /// Add a host to lockgate.toml
    Allow {
        /// HOST, HOST:PORT, or a URL; with `*` at its end all that begins so
        #[arg(required = true)]
        targets: Vec<String>,
        #[command(flatten)]
        file: PolicyFile,
    },
    /// Deny a host in lockgate.toml, whatever else allows it
    Deny {
        /// HOST, HOST:PORT, or a URL; with `*` at its end all that begins so
        #[arg(required = true)]
        targets: Vec<String>,
        /// Told to whoever hits it
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        file: PolicyFile,
    },
    /// Approve the workspace's lockgate.toml as it is now. On a terminal it shows the file and asks first; without one it approves at once
    Approve {
        /// The folder whose lockgate.toml it is [default: the workspace of a run]
        #[arg(long, value_name = "DIR")]
        workspace: Option<PathBuf>,
    },
    /// List the rules in force
    Ls {
        /// JSON Lines
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = OF_A_RUN)]
        spec: Spec,
    },
    /// Decide a target as a run would: its name is resolved, and nothing is sent to it
    Check(PolicyCheck),
    /// Say what a target would meet on each way out, and the rule or guard that decides
    Explain {
        /// A URL, or HOST[:PORT]
        target: String,
        /// The method of the request [default: GET, and none where HOST:PORT is no page of the web]
        #[arg(long)]
        method: Option<String>,
        /// One JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = OF_A_RUN)]
        spec: Spec,
    },
    /// Print the JSON schema of the policy file
    Schema,
}

/// Which file is changed.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct PolicyFile {
    /// A policy file, in place of the workspace's lockgate.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// The folder whose lockgate.toml it is [default: the workspace of a run]
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
}

/// `lockgate policy check`
#[derive(Debug, Args)]
pub(crate) struct PolicyCheck {
    /// Read rows {"id", "target", "method"?, "resolves"?} from stdin and write a verdict for each
    #[arg(long, conflicts_with = "target")]
    pub(crate) jsonl: bool,
    /// One JSON object
    #[arg(long, conflicts_with = "jsonl")]
    pub(crate) json: bool,
    /// The method of the request
    #[arg(long, default_value = "GET")]
    pub(crate) method: String,
    /// A URL, or HOST[:PORT]
    #[arg(required_unless_present = "jsonl")]
    pub(crate) target: Option<String>,
    #[command(flatten, next_help_heading = OF_A_RUN)]
    pub(crate) spec: Spec,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::{Arguments, spec::OF_A_RUN};

    #[test]
    fn the_flags_of_a_run_are_apart_from_those_of_the_command() {
        let all = Arguments::command();
        for words in [["policy", "ls"], ["policy", "check"], ["policy", "explain"], ["config", "show"]] {
            let command = words.iter().try_fold(&all, |command, word| command.find_subcommand(word)).unwrap();
            let help = command.clone().render_help().to_string();
            let (own, of_a_run) = help.split_once(&format!("{OF_A_RUN}:")).unwrap();
            let is_own = |flag: &str| own.contains(flag) && !of_a_run.contains(flag);
            assert!(is_own("--json") && is_own("--help") && of_a_run.contains("--memory"), "{help}");
        }
    }
}
