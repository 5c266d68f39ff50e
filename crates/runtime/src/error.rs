//! What can go wrong around a run, a variant an operation.

use std::io;
use std::path::PathBuf;

use policy::OrganisationName;

use crate::streams::Unwritten;

/// An error of this crate: each reads on after "failed to".
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
    /// What lies in the place of a policy file is none: no regular file, too large, or no text.
    #[error("read {path}: {why}")]
    NotAPolicy {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A configuration file is not what it should be.
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
    /// What is obeyed in the state directory may be somebody else's word.
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
        what: &'static str,
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
    /// The changes of a run cannot be found out.
    #[error("use {path}: {source}")]
    Changes {
        /// The directory that keeps them.
        path: PathBuf,
        /// Why: the workspace or what is kept cannot be read.
        source: io::Error,
    },
    /// What a run wrote cannot be taken over.
    #[error("take over {path}: {source}")]
    TakeOver {
        /// What was to be taken over.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// What this machine executes or trusts is to be written while somebody's command can write beside it.
    #[error("apply `{path}`, which this machine executes or trusts: run {run} is going on and can write in {workspace}", workspace = workspace.display())]
    WrittenBy {
        /// What was to be taken over.
        path: String,
        /// The run whose command can write there.
        run: String,
        /// Where that is.
        workspace: PathBuf,
    },
    /// Nothing that a run wrote is kept apart.
    #[error("find changes of run {run}: nothing that it wrote is kept apart")]
    NothingKept {
        /// The run.
        run: String,
    },
    /// A run declares a provider, and there is no credential for it.
    #[error("find a credential for `{provider}`: there is none in the vault{}", of(.organisation.as_ref()))]
    NoCredential {
        /// The provider.
        provider: String,
        /// Whose vault it is, where it is not the person's own.
        organisation: Option<OrganisationName>,
    },
    /// An organisation is named where another is asked for credentials.
    #[error(
        "use the keys of `{organisation}`: {platform} names a platform, which alone says whose keys these are"
    )]
    OrganisationBesidePlatform {
        /// The organisation.
        organisation: OrganisationName,
        /// The variable that names the platform.
        platform: &'static str,
    },
    /// A platform is named by half.
    #[error("ask a platform for credentials: {set} is set, and {lacks} is not")]
    HalfPlatform {
        /// The variable that is there.
        set: &'static str,
        /// The one that is not.
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
    /// A key of the vault is not one.
    #[error("use the vault's key in {place}: {why}")]
    VaultKey {
        /// Where the key stands.
        place: String,
        /// What is wrong, without the key.
        why: String,
    },
    /// What is in the place of a key cannot be read as one.
    #[error("read the key in {}: {source}", path.display())]
    KeyFile {
        /// Where it is.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Somebody else put a key there, and may know what is sealed with it.
    #[error("use the key in {}: it belongs to user {owner}, and neither to you nor to root", path.display())]
    KeyOfOthers {
        /// Where it is.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Others may read a key, or write another one into its place.
    #[error("use the key in {}: others may read or write it (mode {mode:04o})", path.display())]
    KeyShared {
        /// Where it is.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The key is gone with which what the vaults hold was sealed, and a new one would not open it.
    #[error("open the vault: the key in {} is gone, and what is sealed there stays so (records: {sealed})", path.display())]
    VaultKeyGone {
        /// Where the key was.
        path: PathBuf,
        /// How many credentials there are, organisations' included.
        sealed: usize,
        /// The person's own vault.
        vault: PathBuf,
    },
    /// The vault cannot be used.
    #[error(transparent)]
    Vault(#[from] credential::VaultError),
    /// An image cannot be used.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// The sandbox could not be planned or made.
    #[error(transparent)]
    Sandbox(#[from] sandbox::Error),
    /// The sidecar could not serve.
    #[error(transparent)]
    Gate(#[from] egress::GateError),
    /// The file of authorities that is named is none.
    #[error(transparent)]
    Authorities(#[from] egress::BundleError),
    /// The sidecar ended before it was told to.
    #[error("keep the sidecar: it ended by itself, and without it nothing may go on")]
    SidecarLost,
    /// The sandbox ended before its command did.
    #[error("keep the sandbox: its first process was ended by a signal, and with it all that ran in it")]
    SandboxLost,
    /// Somebody on this machine replaced what was protected.
    #[error("keep `{}` of the workspace protected: it was replaced on this machine while the run went on, so the run was ended", path.display())]
    Unprotected {
        /// What, by its path in the workspace.
        path: PathBuf,
    },
    /// What the command wrote could not be passed on.
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
    #[error("have companion `{name}`: {why}")]
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
    /// Somebody asked for the end of a run before its command began.
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

impl Error {
    /// What went wrong, in a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Settings(error) => error.to_string(),
            error => format!("failed to {error}"),
        }
    }
}

fn of(organisation: Option<&OrganisationName>) -> String {
    organisation.map(|name| format!(" of `{name}`")).unwrap_or_default()
}

impl From<Unwritten> for Error {
    fn from(Unwritten { name, source }: Unwritten) -> Self {
        Self::Unwritten { stream: name, source }
    }
}

/// What a socket or descriptor was for, said of its failure.
pub(crate) fn plumbing(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Plumbing { what, source }
}
