//! What is asked of the records: of runs, and of their audits.

use clap::Subcommand;

use super::value;

/// `lockgate runs`
#[derive(Debug, Subcommand)]
pub(crate) enum Runs {
    /// List runs, the latest first
    Ls {
        /// JSON Lines
        #[arg(long)]
        json: bool,
        /// Only identifiers
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
        /// Only runs with this label; of several, with all of them
        #[arg(long = "label", value_name = "NAME=VALUE")]
        labels: Vec<::policy::Label>,
        /// Show only the latest N
        #[arg(short = 'n', long, value_name = "N", value_parser = value::count::<usize>)]
        number: Option<usize>,
    },
    /// Show one run
    Show {
        /// The run
        #[arg(default_value = "latest")]
        run: String,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show what happened in a run, in order: how it was made, what it asked for, how it ended
    Logs {
        /// The run
        #[arg(default_value = "latest")]
        run: String,
        /// JSON Lines: the run's record, then those of its audit
        #[arg(long)]
        json: bool,
    },
    /// Ask running runs to end, and wait for them
    Stop {
        /// The runs, or `latest`
        #[arg(required = true)]
        runs: Vec<String>,
    },
    /// Remove runs and their audits from the record
    Rm {
        /// The runs
        #[arg(required = true)]
        runs: Vec<String>,
        /// Also runs with kept changes, which are deleted too, and runs whose rest cannot be taken away
        #[arg(short, long)]
        force: bool,
    },
    /// Remove runs that ended long ago, and their audits, except runs whose changes are still kept
    Prune {
        /// How long ago, with its unit
        #[arg(long, value_name = "TIME", default_value = "15d", value_parser = super::value::age)]
        older: ::policy::Span,
    },
}

/// `lockgate audit`
#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Show the records of a run
    Show {
        /// The run
        #[arg(default_value = "latest")]
        run: String,
        /// The records as they are written, JSON Lines; a companion's with its name
        #[arg(long)]
        json: bool,
    },
    /// Show records as they are written, until the run ends
    Follow {
        /// The run
        #[arg(default_value = "latest")]
        run: String,
        /// The records as they are written, JSON Lines
        #[arg(long)]
        json: bool,
    },
    /// Check that no record was changed, taken out or put in
    Verify {
        /// The run, or the path of an audit file
        #[arg(default_value = "latest")]
        run: String,
        /// The public key, in hexadecimal [default: your own]
        #[arg(long)]
        key: Option<String>,
        /// One JSON object, of all the chains
        #[arg(long)]
        json: bool,
    },
}
