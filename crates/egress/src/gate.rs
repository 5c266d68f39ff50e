//! The state that all planes of one sidecar share: the policy, the resolver, the names it has answered, the connection pool and the
//! audit.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use policy::{Hostname, Policy, RunId, Scrub, Spending};

use crate::audit::{Audit, CompanionChain, SigningKey, UnwrittenRecords};
use crate::credential_config::CredentialConfig;
use crate::credentials::Credentials;
use crate::dns::{NameRange, Names};
use crate::ending::Ending;
use crate::files::Files;
use crate::gate_error::GateError;
use crate::http::Unsearchable;
use crate::live_needles::LiveNeedles;
use crate::llm::Ledger;
use crate::local_addresses::ThisMachine;
use crate::notice::{Notices, Summary};
use crate::rate::Rates;
use crate::resolve::Answers;
use crate::tls::{Leaves, RunAuthority};
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
    /// The companion of that run that it serves; `None` for the command.
    pub companion: Option<Hostname>,
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
    /// Where this sidecar listens on the machine that it dials from. No rule leads there: what came back to it would be passed on again,
    /// without end.
    pub listeners: Vec<SocketAddr>,
    /// Whether the gateway is served to redirected connections to its port.
    pub gateway: bool,
}

impl GateOptions {
    /// A sidecar for this run, with defaults for the rest: the default range of names, no files, no audit, no notices, no authority,
    /// no credentials, no companions, and a gateway.
    #[must_use]
    pub fn new(policy: Policy, spending: Spending, run: RunId) -> Self {
        Self {
            policy,
            spending,
            run,
            companion: None,
            names: NameRange::default(),
            files: Files::default(),
            answers: None,
            audit: None,
            notices: None,
            authority: None,
            credential_config: CredentialConfig::default(),
            companions: Companions::default(),
            machine: Vec::new(),
            listeners: Vec::new(),
            gateway: true,
        }
    }
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
    this_machine: ThisMachine,
    has_gateway: bool,
    has_redirect: Cell<bool>,
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
            companion,
            files,
            answers,
            audit,
            notices,
            authority,
            credential_config,
            companions,
            machine,
            listeners,
            gateway,
        } = options;
        let (found, bundle, local) = files.into_parts();
        let mut audit = Audit::begin(audit, &run, companion.as_ref()).map_err(GateError::Audit)?;
        policy.providers().for_each(|provider| audit.name_exposed(provider));
        let providers = policy.providers().map(|provider| provider.id().clone()).collect();
        let answers = answers.unwrap_or(found);
        let this_machine = ThisMachine::new(machine, listeners, local, !matches!(answers, Answers::Given(_)));
        Ok(Rc::new(Self {
            policy,
            answers,
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
            this_machine,
            has_gateway: gateway,
            has_redirect: Cell::new(false),
            run,
        }))
    }

    /// Records the companions of the run in its audit. Called before the sidecar serves.
    pub fn name_companions(&self, companions: &[CompanionChain]) {
        companions.iter().for_each(|companion| self.audit.borrow_mut().name_companion(companion));
    }

    pub(crate) fn has_gateway(&self) -> bool {
        self.has_gateway
    }

    /// Notes that connections to anywhere are redirected here.
    pub(crate) fn note_redirect(&self) {
        self.has_redirect.set(true);
    }

    pub(crate) fn has_redirect(&self) -> bool {
        self.has_redirect.get()
    }

    pub(crate) fn this_machine(&self) -> &ThisMachine {
        &self.this_machine
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
