//! What every plane of one sidecar shares: the policy, the resolver, the names it has answered, the connections it
//! keeps, and the audit.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use credential::{Placeholder, Secret};
use policy::{OrganisationName, Policy, ProviderId, RunId, Scrub, Spending};

use crate::audit::{Audit, CompanionChain, SigningKey};
use crate::credentials::Credentials;
use crate::dns::{NameRange, Names};
use crate::http::Unsearchable;
use crate::llm::Ledger;
use crate::notice::{Notices, Summary};
use crate::rate::Rates;
use crate::resolve::Answers;
use crate::tls::{AuthorityError, Leaves, RunAuthority};
use crate::upstream::{Companions, Pool, Trust};

/// Files a sidecar reads, opened or read before it is shut in.
#[derive(Debug, Default)]
pub struct Files {
    resolv_conf: Vec<u8>,
    hosts: Vec<u8>,
    bundle: Option<File>,
}

/// Where a bundle of certification authorities may lie, most usual first.
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

impl Files {
    /// Reads the resolver's configuration and opens the bundle. `bundle` is what `SSL_CERT_FILE` names, if it is set.
    #[must_use]
    pub fn open(bundle: Option<&str>) -> Self {
        let bundle = bundle.into_iter().chain(BUNDLES.iter().copied()).find_map(|path| File::open(path).ok());
        Self {
            resolv_conf: std::fs::read("/etc/resolv.conf").unwrap_or_default(),
            hosts: std::fs::read("/etc/hosts").unwrap_or_default(),
            bundle,
        }
    }

    /// The same, with another bundle.
    #[must_use]
    pub fn trusting(self, bundle: File) -> Self {
        Self { bundle: Some(bundle), ..self }
    }

    /// The bundle, to be read where another process is to trust it.
    #[must_use]
    pub fn into_bundle(self) -> Option<File> {
        self.bundle
    }

    /// What names are resolved by, and the bundle.
    pub(crate) fn into_parts(self) -> (Answers, Option<File>) {
        (Answers::system(self.resolv_conf, self.hosts), self.bundle)
    }

    /// The descriptor that must stay open in the sidecar.
    #[must_use]
    pub fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.bundle.as_ref().map(AsFd::as_fd)
    }
}

/// What a sidecar is made of.
#[derive(Debug)]
pub struct GateOptions {
    /// The rules.
    pub policy: Policy,
    /// What may be spent on models.
    pub spending: Spending,
    /// The addresses that stand for names.
    pub names: NameRange,
    /// The run it serves.
    pub run: RunId,
    /// What was opened before it was shut in.
    pub files: Files,
    /// Where addresses come from, if not from the host's resolver.
    pub answers: Option<Answers>,
    /// Where audit records go, and the key that signs them.
    pub audit: Option<(File, SigningKey)>,
    /// Where denials are told as they happen.
    pub notices: Option<OwnedFd>,
    /// The run's own authority; without it no TLS is opened, and what needs it is denied.
    pub authority: Option<RunAuthority>,
    /// Where credentials come from.
    pub wallet: Wallet,
    /// The services beside the command.
    pub companions: Companions,
}

/// Where a platform is.
#[derive(Debug)]
pub enum PlatformPlace {
    /// At the other end of an inherited socket.
    Inherited(UnixStream),
    /// At `http://ADDRESS:PORT`.
    Address(String),
}

/// Where a sidecar's credentials come from, and what stands for them inside.
#[derive(Debug, Default)]
pub struct Wallet {
    /// Where the platform answers, and the run's token.
    pub platform: Option<(PlatformPlace, Secret)>,
    /// What is another number whenever a credential has changed.
    pub generation: Generation,
    /// The placeholders of this run.
    pub placeholders: Vec<(Placeholder, ProviderId)>,
    /// What the run gave its command by value.
    pub exposed: Vec<(ProviderId, Secret)>,
    /// Whose credentials they are, where they are not the person's own: for saying what to do where one is missing.
    pub organisation: Option<OrganisationName>,
    /// The one-time secret by which a sidecar that was made before its run is told whose it is.
    pub configure_once: Option<Secret>,
}

/// Tells a number that is another one whenever a credential has changed. It is asked before each use of one.
#[derive(Default)]
pub struct Generation(Option<Box<dyn Fn() -> u64 + Send>>);

impl Generation {
    /// By asking.
    pub fn told_by(ask: impl Fn() -> u64 + Send + 'static) -> Self {
        Self(Some(Box::new(ask)))
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.as_ref().map_or(0, |ask| ask())
    }
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Generation({})", self.now())
    }
}

/// What keeps a gate from opening.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The audit could not be begun.
    #[error("begin the audit: {0}")]
    Audit(#[source] io::Error),
    /// The platform's address is none.
    #[error("reach the platform: {0}")]
    Platform(&'static str),
    /// The run's authority could not be made.
    #[error("make the run's authority: {0}")]
    Authority(#[source] AuthorityError),
    /// A socket could not be served.
    #[error("serve a socket: {0}")]
    Socket(#[source] io::Error),
    /// An address could not be bound.
    #[error("listen on {address}: {source}")]
    Bind {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The runtime could not be made.
    #[error("make the runtime: {0}")]
    Runtime(#[source] io::Error),
}

/// What every plane shares.
#[derive(Debug)]
pub struct Gate {
    policy: Policy,
    run: RunId,
    answers: Answers,
    trust: Trust,
    pool: Pool,
    companions: Companions,
    leaves: Option<Leaves>,
    credentials: Credentials,
    ledger: RefCell<Ledger>,
    rates: Rates,
    names: RefCell<Names>,
    audit: RefCell<Audit>,
    notices: RefCell<Notices>,
}

impl Gate {
    /// Opens the gate.
    ///
    /// # Errors
    /// When the audit's first record cannot be written.
    pub fn open(options: GateOptions) -> Result<Rc<Self>, GateError> {
        let GateOptions {
            policy,
            spending,
            names,
            run,
            files,
            answers,
            audit,
            notices,
            authority,
            wallet,
            companions,
        } = options;
        let Wallet { platform, generation, placeholders, exposed, organisation, configure_once } = wallet;
        let mut audit = Audit::begin(audit, &run).map_err(GateError::Audit)?;
        policy.providers().for_each(|provider| audit.name_exposed(provider));
        Ok(Rc::new(Self {
            policy,
            answers: answers.unwrap_or_else(|| Answers::system(files.resolv_conf, files.hosts)),
            trust: Trust::from_bundle(files.bundle),
            pool: Pool::default(),
            leaves: authority.map(Leaves::of),
            credentials: Credentials::new(
                platform,
                generation,
                placeholders,
                exposed,
                organisation,
                configure_once,
            )
            .map_err(GateError::Platform)?,
            ledger: RefCell::new(Ledger::new(spending)),
            rates: Rates::default(),
            names: RefCell::new(Names::new(names)),
            audit: RefCell::new(audit),
            notices: RefCell::new(Notices::to(notices)),
            companions,
            run,
        }))
    }

    /// Names the companions of the run in its audit, before anything is asked for.
    pub fn name_companions(&self, companions: &[CompanionChain]) {
        companions.iter().for_each(|companion| self.audit.borrow_mut().name_companion(companion));
    }

    pub(crate) fn companions(&self) -> &Companions {
        &self.companions
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn run(&self) -> &RunId {
        &self.run
    }

    pub(crate) fn answers(&self) -> &Answers {
        &self.answers
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn leaves(&self) -> Option<&Leaves> {
        self.leaves.as_ref()
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    pub(crate) fn rates(&self) -> &Rates {
        &self.rates
    }

    pub(crate) fn ledger(&self) -> &RefCell<Ledger> {
        &self.ledger
    }

    /// What is done with an answer that cannot be searched for a credential.
    pub(crate) fn unsearchable(&self) -> Unsearchable {
        match self.policy.scrub() {
            Scrub::Strict => Unsearchable::Refuse,
            Scrub::BestEffort => Unsearchable::Note,
        }
    }

    pub(crate) fn names(&self) -> &RefCell<Names> {
        &self.names
    }

    pub(crate) fn audit(&self) -> &RefCell<Audit> {
        &self.audit
    }

    pub(crate) fn notices(&self) -> &RefCell<Notices> {
        &self.notices
    }

    /// Writes the last record, signed.
    pub fn close(&self) {
        let mut audit = self.audit.borrow_mut();
        audit.close();
        let summary = Summary { models: self.ledger.borrow().used(), ..audit.summary() };
        self.notices.borrow_mut().close(summary);
    }
}
