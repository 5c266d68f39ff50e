//! The errors of this crate, with a variant for each operation.

use std::io;
use std::path::PathBuf;

use policy::{OrganisationName, RunId};

use crate::missing_credential::MissingCredential;
use crate::still_there::{Act, StillThere};
use crate::streams::Unwritten;

/// An error of this crate. Its text reads on after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration file cannot be read.
    #[error("read {path}: {source}")]
    ReadSettings {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The policy of the machine or of the person cannot be read.
    #[error("read {path}: {source}")]
    ReadLayer {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file that should be a policy is none: no regular file, too large, or not UTF-8.
    #[error("read {path}: {why}")]
    NotAPolicy {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A configuration file does not parse, or has a wrong value.
    #[error("understand {path}: {why}")]
    ParseSettings {
        /// The file.
        path: PathBuf,
        /// Where in it, and what is wrong.
        why: String,
    },
    /// A value of the configuration is wrong.
    #[error(transparent)]
    Settings(#[from] policy::ConfigError),
    /// No environment variable names a place for the state directory.
    #[error("use $XDG_STATE_HOME/lockgate: neither XDG_STATE_HOME nor HOME names an absolute path")]
    NoStateDirectory,
    /// No environment variable names a place for images.
    #[error("use $XDG_DATA_HOME/lockgate: neither XDG_DATA_HOME nor HOME is set")]
    NoDataDirectory,
    /// The state directory cannot be used.
    #[error("use {path}: {source}")]
    State {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What the person has approved of a project's policy cannot be read.
    #[error("read what was approved, {path}: {source}")]
    Approval {
        /// The file.
        path: PathBuf,
        /// The policy that it is about.
        of: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody else may have written to a state directory whose files are obeyed.
    #[error("use {path}: {why}")]
    StateOfOthers {
        /// The directory.
        path: PathBuf,
        /// Who else may have written there.
        why: String,
        /// What would help.
        remedy: String,
    },
    /// A file that was asked for cannot be written.
    #[error("write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A run that was named is not on record.
    #[error("find run {run}: there is no record of it")]
    NoRun {
        /// What was asked for.
        run: String,
    },
    /// The record of a run cannot be read.
    #[error("read the record of run {run}: {why}")]
    Record {
        /// The run.
        run: String,
        /// Why it cannot be shown.
        why: String,
    },
    /// A run is going on, and something was asked that can only be done once it is over.
    #[error("{what} run {run}: it is going on; end it first")]
    GoesOn {
        /// What was asked.
        what: Act,
        /// The run.
        run: String,
    },
    /// Another process decides on the changes of a run, of which this was asked.
    #[error("{0} run {1}: it is being applied")]
    BeingApplied(Act, RunId),
    /// A run was killed, and what it left is still there.
    #[error("{what} run {run}: what it left is not taken away yet: {why}")]
    LeftBehind {
        /// What was asked.
        what: Act,
        /// The run.
        run: String,
        /// Why it is still there.
        why: StillThere,
    },
    /// A run that was to be ended has ended.
    #[error("run {run} has already ended")]
    AlreadyEnded {
        /// The run.
        run: String,
    },
    /// A run cannot be ended from here.
    #[error("end run {run}: {why}")]
    Stop {
        /// The run.
        run: String,
        /// Why.
        why: &'static str,
    },
    /// The changes of a run cannot be read.
    #[error("use {path}: {source}")]
    Changes {
        /// The directory that keeps them.
        path: PathBuf,
        /// Why: the workspace or what is kept cannot be read.
        source: io::Error,
    },
    /// A change cannot be applied.
    #[error("take over {path}: {source}")]
    TakeOver {
        /// The path of the change.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A signal asked for the end while changes were applied.
    #[error("take over {path} and what follows it: signal {} asked for the end", crate::ending::named(*.signal))]
    TakeOverEnded {
        /// The path of the change that was next.
        path: String,
        /// The signal.
        signal: i32,
    },
    /// A change to a file that this machine executes or trusts would be applied while a running command can write beside it.
    #[error("apply `{path}`, which this machine executes or trusts: run {run} is going on and can write in {workspace}", workspace = workspace.display())]
    WrittenBy {
        /// The path of the change.
        path: String,
        /// The run whose command can write there.
        run: String,
        /// The workspace.
        workspace: PathBuf,
    },
    /// No changes of the run are kept.
    #[error("find changes of run {run}: nothing that it wrote is kept apart")]
    NothingKept {
        /// The run.
        run: String,
    },
    /// A credential that is needed is not stored.
    #[error("find {0}")]
    NoCredential(MissingCredential),
    /// An organisation is named beside a platform, which alone says whose credentials it gives.
    #[error(
        "use the keys of `{organisation}`: {platform} names a platform, which alone says whose keys these are"
    )]
    OrganisationBesidePlatform {
        /// The organisation.
        organisation: OrganisationName,
        /// The variable that names the platform.
        platform: &'static str,
    },
    /// One of the two variables that name a platform is missing.
    #[error("ask a platform for credentials: {set} is set, and {lacks} is not")]
    HalfPlatform {
        /// The variable that is set.
        set: &'static str,
        /// The variable that is missing.
        lacks: &'static str,
    },
    /// A credential cannot be given to the command by value.
    #[error("expose `{variable}`: {why}")]
    Expose {
        /// The variable that was to hold it.
        variable: String,
        /// Why, without the value.
        why: String,
        /// What would help.
        remedy: String,
    },
    /// A secret's value could not be read.
    #[error("read the value from {from}: {source}")]
    ReadValue {
        /// Where from.
        from: String,
        /// Why.
        source: io::Error,
    },
    /// A value is not fit for a credential.
    #[error("take the value: {why}")]
    Value {
        /// What is wrong with it, without the value.
        why: String,
    },
    /// A key of the vault is malformed.
    #[error("use the vault's key in {place}: {why}")]
    VaultKey {
        /// The variable or file of the key.
        place: String,
        /// What is wrong, without the key.
        why: String,
    },
    /// A key file cannot be read.
    #[error("read the key in {}: {source}", path.display())]
    KeyFile {
        /// Where it is.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A key file belongs to another user, who may know what is encrypted with it.
    #[error("use the key in {}: it belongs to user {owner}, and neither to you nor to root", path.display())]
    KeyOfOthers {
        /// Where it is.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others may read a key file, or write to it.
    #[error("use the key in {}: others may read or write it (mode {mode:04o})", path.display())]
    KeyShared {
        /// Where it is.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// There is no key of the vaults, and a new one would not decrypt what they hold.
    #[error(
        "open the vault: what is in it was sealed with a key that is not here (records: {sealed}): CONNECTION_ENCRYPTION_KEY is not set, and {} is \
         not there",
        path.display()
    )]
    VaultKeyGone {
        /// The file of a key that Lockgate makes.
        path: PathBuf,
        /// How many credentials there are, organisations' included.
        sealed: usize,
        /// The commands that remove them, one for each vault.
        removals: Vec<String>,
    },
    /// The vault cannot be used.
    #[error(transparent)]
    Vault(#[from] credential::VaultError),
    /// Neither the image nor whoever asks for it names a command.
    #[error("begin: the image `{image}` has no command of its own, and none was given")]
    NoCommand {
        /// The image.
        image: String,
        /// How to give one.
        remedy: &'static str,
    },
    /// An image cannot be used.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// The sandbox could not be planned or made.
    #[error(transparent)]
    Sandbox(#[from] sandbox::Error),
    /// The sidecar could not serve.
    #[error(transparent)]
    Gate(#[from] egress::GateError),
    /// What the sidecar needs of this machine cannot be had.
    #[error(transparent)]
    Files(#[from] egress::FilesError),
    /// The sidecar ended before it was told to.
    #[error("keep the sidecar: it ended unasked, and without it nothing may go on")]
    SidecarLost,
    /// A sidecar did not say how it ended: it was killed or stopped meanwhile.
    #[error("learn how the sidecar ended{}: {UNTOLD}", after.map(|code| format!(", after the command exited with {code}")).unwrap_or_default())]
    SidecarUntold {
        /// The exit code of the command, if one had ended before.
        after: Option<i32>,
    },
    /// The sandbox ended before its command did.
    #[error("keep the sandbox: its first process was ended by a signal, and with it all that ran in it")]
    SandboxLost,
    /// Somebody on this machine replaced what was protected.
    #[error(
        "keep {} of the workspace protected: {} replaced on this machine while the run went on, so the run was ended",
        listed(paths),
        if paths.len() == 1 { "it was" } else { "they were" }
    )]
    Unprotected {
        /// What, by its paths in the workspace.
        paths: Vec<PathBuf>,
    },
    /// The command's output could not be written.
    #[error("write what the command wrote to {stream}: {source}")]
    Unwritten {
        /// Which of the caller's streams.
        stream: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The sidecar could not begin to serve, or go on.
    #[error("{why}")]
    SidecarFailed {
        /// What failed, in the sidecar's own words.
        why: String,
        /// What would help, where it knows that.
        remedy: Option<String>,
    },
    /// A companion could not be made, or was not healthy in time.
    #[error("start companion `{name}`: {why}")]
    Companion {
        /// Its name.
        name: String,
        /// Why, and the last of what it wrote.
        why: String,
        /// What would help, where that is known.
        remedy: Option<String>,
    },
    /// A port that was to be reached from outside cannot be opened.
    #[error("open port {port} of this machine: {source}")]
    Inbound {
        /// The port.
        port: u16,
        /// Why.
        source: io::Error,
    },
    /// A signal asked for the end before the command began.
    #[error("begin: signal {signal} asked for the end before the command began")]
    Interrupted {
        /// The signal.
        signal: i32,
    },
    /// A socket or descriptor of the run failed.
    #[error("{what}: {source}")]
    Plumbing {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// What is not known where a sidecar did not say how it ended.
pub(crate) const UNTOLD: &str =
    "requests are not counted, and the last records may be missing from the audit";

impl Error {
    /// Returns the error as a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Settings(error) => error.to_string(),
            Self::AlreadyEnded { .. } => self.to_string(),
            error => format!("failed to {error}"),
        }
    }
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(", ")
}

impl From<Unwritten> for Error {
    fn from(Unwritten { name, source }: Unwritten) -> Self {
        Self::Unwritten { stream: name, source }
    }
}

/// Returns a function that makes a [`Error::Plumbing`] of an I/O error, for `map_err`.
pub(crate) fn plumbing(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Plumbing { what, source }
}
