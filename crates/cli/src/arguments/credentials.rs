//! Arguments of `lockgate creds` and `lockgate keys`. No flag takes a secret, because other users can read a command line.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use policy::OrganisationName;

/// `lockgate creds`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  lockgate creds set anthropic               asks for it, without showing it
  pass show github | lockgate creds set github --stdin
  lockgate creds set gmail --field client_secret --from-file secret.txt
  lockgate creds import-env                  takes ANTHROPIC_API_KEY, …
  lockgate creds set anthropic --org acme    a key for runs with --org acme

A value is never given on the command line: others on the machine can read that.")]
pub(crate) enum Creds {
    /// Store a credential, or one field of it
    Set {
        /// The provider it is for
        provider: String,
        /// A value that was given after all, which is refused and not repeated
        #[arg(hide = true)]
        given: Vec<std::ffi::OsString>,
        /// The field [default: access_token]
        #[arg(long, value_name = "NAME")]
        field: Option<String>,
        #[command(flatten)]
        value: ValueFlags,
        #[command(flatten)]
        whose: Whose,
    },
    /// List credentials, without their values
    Ls {
        /// JSON Lines
        #[arg(long)]
        json: bool,
        /// Only the providers' names
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
        #[command(flatten)]
        whose: Whose,
    },
    /// Show the fields of a credential and how long each is, never what it is
    Show {
        /// The provider
        provider: String,
        /// JSON Lines
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        whose: Whose,
    },
    /// Remove credentials
    Rm {
        /// The providers
        #[arg(required = true)]
        providers: Vec<String>,
        #[command(flatten)]
        whose: Whose,
    },
    /// Store what the environment holds under the usual names, and in SYSTEM_PROVIDER_KEYS
    ImportEnv {
        /// Only these variables
        names: Vec<String>,
        #[command(flatten)]
        whose: Whose,
    },
}

/// Whose credentials they are.
#[derive(Debug, Args)]
pub(crate) struct Whose {
    /// Those of an organisation, in place of yours
    #[arg(long, value_name = "NAME")]
    pub(crate) org: Option<OrganisationName>,
}

/// Where a value is read from.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct ValueFlags {
    /// Read it from standard input
    #[arg(long)]
    pub(crate) stdin: bool,
    /// Read it from a file
    #[arg(long, value_name = "FILE")]
    pub(crate) from_file: Option<PathBuf>,
    /// Read it from a variable
    #[arg(long, value_name = "NAME")]
    pub(crate) from_env: Option<String>,
    /// Take what a command prints; must come last: everything after it belongs to that command
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    pub(crate) from_command: Vec<String>,
}

/// `lockgate keys`
#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Encrypt the key of every credential anew, yours and organisations', with the first key of CONNECTION_ENCRYPTION_KEY
    Rotate {
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
}
