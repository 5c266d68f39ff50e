//! The state that all planes of one sidecar share: the policy, the resolver, the names it has answered, the connection pool and the
//! audit.

use std::cell::{Cell, OnceCell, RefCell};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use policy::{Policy, RunId, Scrub, Spending};
use rustix::io::Errno;

use crate::audit::{Audit, CompanionChain, SigningKey, UnwrittenRecords};
use crate::credential_config::CredentialConfig;
use crate::credentials::Credentials;
use crate::dns::{NameRange, Names};
use crate::ending::Ending;
use crate::files::Files;
use crate::http::Unsearchable;
use crate::live_needles::LiveNeedles;
use crate::llm::Ledger;
use crate::local_addresses::LocalAddresses;
use crate::notice::{Notices, Summary};
use crate::rate::Rates;
use crate::resolve::Answers;
use crate::tls::{AuthorityError, Leaves, RunAuthority};
use crate::upstream::{Companions, Pool, Trust};

/// The parts a sidecar is made of.
#[derive(Debug)]
pub struct GateOptions {
    /// The policy of the run.
    pub policy: Policy,
    /// The budget for models.
    pub spending: Spending,
    /// The addresses that DNS hands out for names.
    pub names: NameRange,
    /// The run it serves.
    pub run: RunId,
    /// The files that were opened before the sidecar was confined.
    pub files: Files,
    /// The resolver to use in place of the host's.
    pub answers: Option<Answers>,
    /// The file of the audit records, and the key that signs them.
    pub audit: Option<(Arc<File>, SigningKey)>,
    /// The socket on which denials are sent as they happen.
    pub notices: Option<OwnedFd>,
    /// The run's own authority. Without it no TLS is terminated, and a request that needs that is denied.
    pub authority: Option<RunAuthority>,
    /// The source of credentials.
    pub credential_config: CredentialConfig,
    /// The routes to the run's companions.
    pub companions: Companions,
    /// The machine's addresses, if the sidecar's kernel does not know them: in a container it knows the container's own alone.
    pub machine: Vec<IpAddr>,
}

impl GateOptions {
    /// A sidecar for this run, with defaults for the rest: the default range of names, no files, no audit, no notices, no authority,
    /// no credentials and no companions.
    #[must_use]
    pub fn new(policy: Policy, spending: Spending, run: RunId) -> Self {
        Self {
            policy,
            spending,
            run,
            names: NameRange::default(),
            files: Files::default(),
            answers: None,
            audit: None,
            notices: None,
            authority: None,
            credential_config: CredentialConfig::default(),
            companions: Companions::default(),
            machine: Vec::new(),
        }
    }
}

/// An error of a sidecar as it starts or serves.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The audit could not be begun.
    #[error("begin the audit: {0}")]
    Audit(#[source] io::Error),
    /// Records of the audit could not be written.
    #[error("write {records} record{} of the audit: {source}", if *records == 1 { "" } else { "s" })]
    Unwritten {
        /// How many.
        records: u64,
        /// Why.
        source: io::Error,
    },
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
    #[error("make the runtime: {}", exhausted(.0))]
    Runtime(#[source] io::Error),
}

/// Names the limit behind an errno. For an event queue, "no space left on device" has nothing to do with a disk.
fn exhausted(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC) => {
            "what the kernel lets this user watch at once is used up (sysctl fs.epoll.max_user_watches)"
                .into()
        }
        Some(Errno::MFILE) => "this process may open no more files (ulimit -n)".into(),
        Some(Errno::NFILE) => "this machine can open no more files (sysctl fs.file-max)".into(),
        _ => error.to_string(),
    }
}

/// Makes the runtime of a process that serves: one thread, for a sidecar is one of many.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, GateError> {
    runtime_with((0..3).map(|_| UnixStream::pair()).collect())
}

fn runtime_with(
    probe: io::Result<Vec<(UnixStream, UnixStream)>>,
) -> Result<tokio::runtime::Runtime, GateError> {
    // Where it has signals, Tokio makes such a pair for them, behind three other descriptors and before a last one, and panics where it
    // cannot.
    drop(probe.map_err(GateError::Runtime)?);
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(GateError::Runtime)
}

/// The state that all planes share.
#[derive(Debug)]
pub struct Gate {
    policy: Policy,
    run: RunId,
    answers: Answers,
    trust: Trust,
    pool: Pool,
    companions: Companions,
    machine: Vec<IpAddr>,
    local: LocalAddresses,
    own: OnceCell<Vec<SocketAddr>>,
    is_without_gateway: Cell<bool>,
    leaves: Option<Leaves>,
    credentials: Credentials,
    ledger: Rc<Ledger>,
    rates: Rates,
    names: RefCell<Names>,
    audit: RefCell<Audit>,
    notices: RefCell<Notices>,
    ending: Ending,
}

impl Gate {
    /// Opens the gate, and begins the audit with the credentials that the command holds itself.
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
            credential_config,
            companions,
            machine,
        } = options;
        let (found, bundle, local) = files.into_parts();
        let mut audit = Audit::begin(audit, &run).map_err(GateError::Audit)?;
        policy.providers().for_each(|provider| audit.name_exposed(provider));
        let providers = policy.providers().map(|provider| provider.id().clone()).collect();
        Ok(Rc::new(Self {
            policy,
            answers: answers.unwrap_or(found),
            trust: Trust::from_bundle(bundle),
            pool: Pool::default(),
            leaves: authority.map(Leaves::of),
            credentials: Credentials::new(credential_config, providers),
            ledger: Rc::new(Ledger::new(spending)),
            rates: Rates::default(),
            names: RefCell::new(Names::new(names)),
            audit: RefCell::new(audit),
            notices: RefCell::new(Notices::to(notices)),
            ending: Ending::default(),
            companions,
            machine,
            local,
            own: OnceCell::new(),
            is_without_gateway: Cell::new(false),
            run,
        }))
    }

    /// Records the companions of the run in its audit. Called before the sidecar serves.
    pub fn name_companions(&self, companions: &[CompanionChain]) {
        companions.iter().for_each(|companion| self.audit.borrow_mut().name_companion(companion));
    }

    /// Says where this sidecar listens on the machine that it dials from: no rule leads there, for what came back to it would be
    /// passed on again, without end.
    pub fn listens_at(&self, own: Vec<SocketAddr>) {
        let _ = self.own.set(own);
    }

    /// Says that nobody asked for a gateway: it is not served to redirected connections to its port either.
    pub fn leave_gateway_out(&self) {
        self.is_without_gateway.set(true);
    }

    pub(crate) fn has_gateway(&self) -> bool {
        !self.is_without_gateway.get()
    }

    /// Whether a connection to there would come back to this sidecar.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub(crate) fn is_itself_at(&self, address: IpAddr, port: u16) -> io::Result<bool> {
        for own in self.own.get().into_iter().flatten() {
            if self.local.comes_to(*own, address, port)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an address is the machine's own.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub(crate) fn is_own(&self, address: IpAddr) -> io::Result<bool> {
        // Given answers are judged alike on every machine.
        let is_asked = !matches!(self.answers, Answers::Given(_));
        Ok(self.machine.contains(&address) || (is_asked && self.local.has(address)?))
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

    /// Returns what responses are searched for; `None` if no credential can ever be held here.
    pub(crate) fn searched(&self) -> Option<&LiveNeedles> {
        let needles = self.credentials.needles();
        let may_hold = self.policy.providers().next().is_some()
            || self.policy.proxies().declared().any(|proxy| proxy.credential.is_some());
        (may_hold || !needles.now().is_empty()).then_some(needles)
    }

    pub(crate) fn rates(&self) -> &Rates {
        &self.rates
    }

    pub(crate) fn ledger(&self) -> &Rc<Ledger> {
        &self.ledger
    }

    /// What the policy says of a response that cannot be searched for a credential.
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

    pub(crate) fn ending(&self) -> &Ending {
        &self.ending
    }

    pub(crate) fn notices(&self) -> &RefCell<Notices> {
        &self.notices
    }

    /// Closes the audit with a signed record, and sends the summary.
    ///
    /// # Errors
    /// When records could not be written, the closing one or others before it. The summary says so too.
    pub fn close(&self) -> Result<(), GateError> {
        let mut audit = self.audit.borrow_mut();
        audit.close();
        let unwritten = audit.unwritten();
        let told = unwritten.as_ref().map(ToString::to_string);
        let summary = Summary { models: self.ledger.used(), unwritten: told, ..audit.summary() };
        self.notices.borrow_mut().close(summary);
        match unwritten.map(UnwrittenRecords::into_parts) {
            Some((records, source)) => Err(GateError::Unwritten { records, source }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_kernel_is_no_full_disk() {
        for (errno, words) in
            [(Errno::NOSPC, "max_user_watches"), (Errno::MFILE, "ulimit -n"), (Errno::NFILE, "fs.file-max")]
        {
            let told = GateError::Runtime(errno.into()).to_string();
            assert!(told.starts_with("make the runtime: ") && told.contains(words), "{told}");
            assert!(!told.contains("space"), "{told}");
        }
        let error = runtime_with(Err(Errno::MFILE.into())).unwrap_err().to_string();
        assert!(error.contains("ulimit -n"), "{error}");
        assert!(runtime().is_ok());
    }

    #[test]
    fn where_few_descriptors_are_left_there_is_an_error() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let next = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&File::open("/dev/null").unwrap())).unwrap();
        // Each test has a process of its own, and in it no descriptor above this one.
        let made: Vec<_> = (0..10)
            .map(|left| {
                setrlimit(Resource::Nofile, Rlimit { current: Some(next + left), ..limit }).unwrap();
                let made = runtime();
                setrlimit(Resource::Nofile, limit).unwrap();
                made.map(drop).map_err(|error| error.to_string())
            })
            .collect();
        assert!(
            made[0].as_ref().is_err_and(|told| told.contains("ulimit -n")) && made[9].is_ok(),
            "{made:?}"
        );
    }
}
