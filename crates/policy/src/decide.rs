//! The decision: one pure function from what was asked to a grant or a denial. Only this file makes a [`Grant`].

use std::net::IpAddr;
use std::sync::Arc;

use crate::address::AddressClass;
use crate::config::EgressDefault;
use crate::denial::{Denial, Guard};
use crate::hostname::{Host, Hostname};
use crate::path::Path;
use crate::pattern::is_reserved;
use crate::reach::Fit;
use crate::rule::{Policy, RuleName};
use crate::target::{Method, Port, Scheme, Target};

/// The way a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plane {
    /// The explicit HTTP proxy, 8081.
    Forward,
    /// A connection that was redirected.
    Transparent,
    /// A DNS question.
    Dns,
}

impl Plane {
    /// The name in records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Transparent => "transparent",
            Self::Dns => "dns",
        }
    }
}

/// How much of a request its plane can see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// Octets of an unknown protocol.
    Opaque,
    /// A TLS connection that is not opened.
    Tls,
    /// An HTTP request in the clear.
    Request {
        /// The scheme of its target.
        scheme: Scheme,
        /// Its method.
        method: Method,
        /// Its path as written.
        path: Path,
    },
}

/// What is asked of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The way it came in.
    pub plane: Plane,
    /// Where it wants to go.
    pub host: Host,
    /// The port there.
    pub port: Port,
    /// What can be seen of it.
    pub view: View,
}

impl Asked {
    /// A visible HTTP request.
    #[must_use]
    pub fn request(plane: Plane, method: Method, target: &Target) -> Self {
        let view = View::Request { scheme: target.scheme(), method, path: target.path().clone() };
        Self { plane, host: target.host().clone(), port: target.port(), view }
    }
}

/// What a granted connection may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// This one request.
    Request,
    /// TLS whose server name is the granted host, and nothing else.
    Tls,
    /// Any protocol; TLS only with the granted host as its server name.
    Any,
}

/// Leave to go on. It names the host that was granted and how its addresses are judged.
#[derive(Clone, Debug)]
pub struct Grant {
    host: Host,
    port: Port,
    rule: RuleName,
    carriage: Carriage,
    addresses: Option<Arc<[IpAddr]>>,
}

impl Grant {
    /// The host that was granted.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port that was granted.
    #[must_use]
    pub fn port(&self) -> Port {
        self.port
    }

    /// The rule that granted it.
    #[must_use]
    pub fn rule(&self) -> &RuleName {
        &self.rule
    }

    /// What the connection may carry.
    #[must_use]
    pub fn carriage(&self) -> Carriage {
        self.carriage
    }

    /// The addresses the rule itself gives; such a host is not resolved.
    #[must_use]
    pub fn addresses(&self) -> Option<&[IpAddr]> {
        self.addresses.as_deref()
    }

    /// Judges every address the host was found at (R10). All must pass: one private answer among public ones
    /// refuses the host (E14).
    ///
    /// # Errors
    /// A denial when there is no address, or one is of a class that was not named.
    pub fn vet(&self, found: &[IpAddr]) -> Result<(), Denial> {
        if found.is_empty() {
            return Err(Denial::new(Guard::NoAddress, format!("{} has no address", self.host))
                .with_rule(self.rule.as_str()));
        }
        for address in found {
            let class = AddressClass::of(*address);
            let named = self.addresses().is_some_and(|list| list.contains(address)) && class.may_be_named();
            if !class.is_public() && !named {
                let reason = format!("{} is at {address}, which is {class}", self.host);
                return Err(Denial::new(Guard::Address, reason).with_rule(self.rule.as_str()).with_hint(
                    "a private service is opened by naming its host with `addresses = [\"…\"]` in a rule",
                ));
            }
        }
        Ok(())
    }
}

impl Policy {
    /// Decides one request or connection.
    ///
    /// # Errors
    /// The denial, with the guard that refused and what would allow it.
    pub fn decide(&self, asked: &Asked) -> Result<Grant, Denial> {
        if let Host::Name(name) = &asked.host
            && is_reserved(name)
        {
            let reason = format!("{name} is this machine, the sidecar or a metadata service");
            return Err(Denial::new(Guard::ReservedName, reason));
        }
        if let Some(rule) = self.deny.iter().find(|rule| rule.reach.catches(asked)) {
            let reason = rule.reason.clone().unwrap_or_else(|| format!("{} is denied", asked.host));
            return Err(Denial::new(Guard::DenyRule, reason).with_rule(rule.name.as_str()));
        }
        let Some(ceiling) = &self.ceiling else { return self.decide_allowed(asked) };
        let most = ceiling.decide(asked).map_err(managed)?;
        let mut grant = self.decide_allowed(asked)?;
        // What the managed rule does not open, no other rule opens: not a private address, not another protocol.
        if let Some(addresses) = &grant.addresses {
            most.vet(addresses).map_err(managed)?;
        }
        if most.carriage == Carriage::Tls && grant.carriage == Carriage::Any {
            grant.carriage = Carriage::Tls;
        }
        Ok(grant)
    }

    fn decide_allowed(&self, asked: &Asked) -> Result<Grant, Denial> {
        let mut nearest: Option<Denial> = None;
        for rule in &self.allow {
            match rule.reach.fit(asked) {
                Fit::Full(carriage) => {
                    let addresses = match asked.host {
                        Host::Address(address) => Some(Arc::from([address])),
                        Host::Name(_) => rule.addresses.clone(),
                    };
                    return Ok(grant(asked, rule.name.clone(), carriage, addresses));
                }
                Fit::Short(guard, reason) => {
                    nearest.get_or_insert_with(|| {
                        Denial::new(guard, reason)
                            .with_rule(rule.name.as_str())
                            .with_hint(short_hint(guard, asked))
                    });
                }
                Fit::None => {}
            }
        }
        if self.default == EgressDefault::OpenInternet {
            let carriage = match asked.view {
                View::Request { .. } => Carriage::Request,
                View::Tls => Carriage::Tls,
                View::Opaque => Carriage::Any,
            };
            return Ok(grant(asked, RuleName::new("egress.default = \"open-internet\""), carriage, None));
        }
        Err(nearest.unwrap_or_else(|| not_allowed(asked)))
    }

    /// Decides whether a name may be known to the sandbox: whether any connection to it could be granted.
    ///
    /// # Errors
    /// The denial, as a connection to the name would get it.
    pub fn decide_name(&self, name: &Hostname) -> Result<RuleName, Denial> {
        let host = Host::Name(name.clone());
        let asked = Asked { plane: Plane::Dns, host, port: Scheme::Https.default_port(), view: View::Opaque };
        if is_reserved(name) {
            return Err(Denial::new(Guard::ReservedName, format!("{name} is reserved")));
        }
        if let Some(rule) =
            self.deny.iter().find(|r| r.reach.is_whole_host() && r.reach.host.matches(&asked.host))
        {
            let reason = rule.reason.clone().unwrap_or_else(|| format!("{name} is denied"));
            return Err(Denial::new(Guard::DenyRule, reason).with_rule(rule.name.as_str()));
        }
        if let Some(ceiling) = &self.ceiling {
            ceiling.decide_name(name).map_err(managed)?;
        }
        match self.allow.iter().find(|rule| rule.reach.host.matches(&asked.host)) {
            Some(rule) => Ok(rule.name.clone()),
            None if self.default == EgressDefault::OpenInternet => {
                Ok(RuleName::new("egress.default = \"open-internet\""))
            }
            None => Err(not_allowed(&asked)),
        }
    }
}

fn grant(asked: &Asked, rule: RuleName, carriage: Carriage, addresses: Option<Arc<[IpAddr]>>) -> Grant {
    Grant { host: asked.host.clone(), port: asked.port, rule, carriage, addresses }
}

fn managed(inner: Denial) -> Denial {
    Denial {
        guard: Guard::Managed,
        reason: format!("the managed policy does not allow it: {}", inner.reason),
        ..inner
    }
    .with_hint("only whoever keeps the managed policy of this machine can open it")
}

fn not_allowed(asked: &Asked) -> Denial {
    Denial::new(Guard::HostNotAllowed, format!("no rule allows {}", asked.host)).with_hint(allow_hint(asked))
}

/// What would make a rule fit that names the host and does not reach far enough: no more than that.
fn short_hint(guard: Guard, asked: &Asked) -> String {
    match (guard, &asked.view) {
        (Guard::Method, View::Request { method, .. }) => {
            format!("add \"{method}\" to the methods of that rule")
        }
        (Guard::Path, View::Request { scheme, path, .. }) => {
            let port =
                if scheme.default_port() == asked.port { String::new() } else { format!(":{}", asked.port) };
            format!("lockgate policy allow {scheme}://{}{port}{path}", asked.host)
        }
        _ => allow_hint(asked),
    }
}

/// The exact command that would allow it. For a raw address there is one only where a rule may name it.
fn allow_hint(asked: &Asked) -> String {
    match asked.host {
        Host::Address(address) if !AddressClass::of(address).may_be_named() => {
            format!("no rule can open {address}: it is {}", AddressClass::of(address))
        }
        _ => format!("lockgate policy allow {}:{}", asked.host, asked.port),
    }
}
