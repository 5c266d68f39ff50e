//! The scope of a rule (hosts, ports, scheme, path and methods), and how far a request matches it.

use std::fmt;
use std::net::Ipv4Addr;

use crate::asked::{Asked, View};
use crate::carriage::Carriage;
use crate::denial::Guard;
use crate::error::ConfigError;
use crate::hint::on_this_machine;
use crate::hostname::{Host, Hostname};
use crate::location::Location;
use crate::origin::Origin;
use crate::path::Path;
use crate::path_levels::EncodedSlash;
use crate::path_reach::PathReach;
use crate::pattern::{HostPattern, PatternError, is_this_machine};
use crate::shell_quoting::shell_word;
use crate::target::{Method, Port, Scheme, Target, check_characters};

/// The scope of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    pub(crate) host: HostPattern,
    /// `None` means every port.
    ports: Option<Vec<Port>>,
    scheme: Option<Scheme>,
    path: PathReach,
    methods: Option<Vec<Method>>,
    encoded_slash: EncodedSlash,
}

/// How far a question matches a rule.
pub(crate) enum Fit {
    /// It matches; the connection may carry this.
    Full(Carriage),
    /// The host matches, and this does not.
    Short(Guard, String),
    /// The rule is for another host.
    None,
}

impl Reach {
    /// Compiles the fields that allow and deny rules share.
    pub(crate) fn compile(at: &Location<'_>, fields: Fields<'_>) -> Result<Self, ConfigError> {
        let methods = fields.methods.map(|list| compile_methods(at, list)).transpose()?;
        let mut reach = match (fields.url, fields.host) {
            (Some(url), None) if fields.ports.is_none() && !fields.subdomains => Self::from_url(at, url)?,
            (Some(_), None) => {
                return Err(at.error("url", "`ports` and `subdomains` go with `host`, not with `url`"));
            }
            (None, Some(host)) => Self::from_host(at, host, &fields)?,
            _ => return Err(at.error("", "give either `url` or `host`")),
        };
        reach.methods = methods;
        Ok(reach)
    }

    fn from_host(at: &Location<'_>, text: &str, fields: &Fields<'_>) -> Result<Self, ConfigError> {
        if text.contains("://") {
            return Err(whole_address(at, text));
        }
        if let Some(host) = remote_host(text) {
            let problem = format!("`{text}` is how git and scp write a place on a host, and not a host");
            return Err(at
                .error("host", problem)
                .with_hint(format!("name its host and the port of SSH: {host}:22")));
        }
        let (host, written) = split_pattern_port(text);
        let written = written.map(|p| {
            Port::parse(p).ok_or_else(|| {
                at.error("host", format!("`{p}` is not a port: 1 to 65535, no sign, no leading zero"))
            })
        });
        let written = written.transpose()?;
        let pattern = HostPattern::parse_within(host, at.width)
            .map_err(|error| reserved(at, host, written, fields.ports, error))?;
        let host = if fields.subdomains {
            pattern.widened(at.width).map_err(|e| at.error("subdomains", e))?
        } else {
            pattern
        };
        let ports = match (written, fields.ports) {
            (Some(_), Some(_)) => return Err(at.error("ports", "the port already stands in `host`")),
            (Some(port), None) => Some(vec![port]),
            (None, Some(list)) => Some(compile_ports(at, list)?),
            (None, None) => fields.default_ports.map(<[Port]>::to_vec),
        };
        let encoded_slash = EncodedSlash::Refuse;
        Ok(Self { host, ports, scheme: None, path: PathReach::Any, methods: None, encoded_slash })
    }

    pub(crate) fn from_url(at: &Location<'_>, url: &str) -> Result<Self, ConfigError> {
        let bad = |why: &str| at.error("url", format!("`{url}`: {why}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("write it as https://host/path/*"))?;
        let scheme = match scheme {
            _ if scheme.eq_ignore_ascii_case("https") => Scheme::Https,
            _ if scheme.eq_ignore_ascii_case("http") => Scheme::Http,
            _ => return Err(bad("the scheme must be http or https")),
        };
        let slash = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        if authority.contains('@') || rest.contains(['?', '#']) {
            return Err(bad("it may hold no user information, query or fragment"));
        }
        let (host, port) = split_pattern_port(authority);
        let port = match port {
            Some(text) => Port::parse(text).ok_or_else(|| bad("the port is not a number from 1 to 65535"))?,
            None => scheme.default_port(),
        };
        let host = HostPattern::parse_within(host, at.width).map_err(|e| at.error("url", e))?;
        let path = PathReach::parse(path).map_err(|why| bad(&why))?;
        let ports = Some(vec![port]);
        Ok(Self {
            host,
            ports,
            scheme: Some(scheme),
            path,
            methods: None,
            encoded_slash: EncodedSlash::Refuse,
        })
    }

    /// Allows `%2F` inside a segment. Returns whether this is a `url` rule, which alone looks at the path.
    pub(crate) fn allow_encoded_slash(&mut self) -> bool {
        self.encoded_slash = EncodedSlash::Allow;
        self.scheme.is_some()
    }

    /// Refuses a path that no request can have, and returns the reason.
    pub(crate) fn refuse_unaskable(&self) -> Result<(), String> {
        let Some(written) = self.path.written() else { return Ok(()) };
        let asked = check_characters(written);
        let path = Path::new(written);
        let asked = asked.and_then(|()| path.check_cannot_climb(self.encoded_slash));
        let asked = asked.and_then(|()| if self.path.is_whole() { Ok(()) } else { path.check_no_host() });
        asked.map_err(|denial| denial.reason)
    }

    /// Matches a question, in the order host, port, scheme, path, method.
    pub(crate) fn fit(&self, asked: &Asked) -> Fit {
        if !self.host.matches(&asked.host) {
            return Fit::None;
        }
        if let Some(ports) = &self.ports
            && !ports.contains(&asked.port)
        {
            let reason = format!("port {} is not among {}", asked.port, self.listed_ports());
            return Fit::Short(Guard::Port, reason);
        }
        match &asked.view {
            View::Request { scheme, method, path } => self.fit_request(*scheme, method, path),
            View::Tls if self.scheme == Some(Scheme::Http) => {
                Fit::Short(Guard::SchemeNotAllowed, "the rule is for plain HTTP".into())
            }
            View::Tls => Fit::Full(self.unseen(Carriage::Tls)),
            View::Opaque => Fit::Full(self.unseen(Carriage::Any)),
        }
    }

    /// Returns its ports as they stand in a list; none if it is for every one.
    pub(crate) fn listed_ports(&self) -> String {
        self.ports.iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    fn fit_request(&self, scheme: Scheme, method: &Method, path: &Path) -> Fit {
        if self.scheme.is_some_and(|s| s != scheme) {
            return Fit::Short(Guard::SchemeNotAllowed, format!("the rule is not for {scheme}"));
        }
        if self.scheme.is_some() {
            // R7: the checks that make a path prefix meaningful belong to `url` rules only.
            if let Err(denial) = path.check_cannot_climb(self.encoded_slash) {
                return Fit::Short(Guard::Path, denial.reason);
            }
        }
        if !self.path.covers(path.as_str()) {
            return Fit::Short(Guard::Path, format!("the path is outside {}", self.path));
        }
        // Last: what a method lacks is told only where nothing else is missing.
        if self.methods.as_ref().is_some_and(|list| !list.contains(method)) {
            return Fit::Short(Guard::Method, format!("the rule does not name the method {method}"));
        }
        Fit::Full(Carriage::Request)
    }

    /// Returns what a connection may carry if its plane does not see the requests in it. If the rule covers only some of the host's
    /// requests, the connection must be terminated.
    fn unseen(&self, carriage: Carriage) -> Carriage {
        let whole_host = self.path.is_whole() && self.methods.is_none();
        match self.scheme {
            None if whole_host => carriage,
            Some(Scheme::Https) if whole_host => Carriage::Tls,
            _ => Carriage::Terminated,
        }
    }

    /// Orders scopes that cover the same request: the greater is the narrower.
    pub(crate) fn narrowness(&self) -> impl Ord + use<> {
        (self.host.narrowness(), self.path.narrowness())
    }

    /// Returns whether the scope covers a target, by any method.
    pub(crate) fn covers(&self, target: &Target) -> bool {
        self.covers_request(target.host(), target.port(), target.scheme(), target.path())
    }

    /// Returns whether the scope covers a request that is seen as a whole, by any method.
    pub(crate) fn covers_asked(&self, asked: &Asked) -> bool {
        match &asked.view {
            View::Request { scheme, path, .. } => self.covers_request(&asked.host, asked.port, *scheme, path),
            View::Tls | View::Opaque => false,
        }
    }

    fn covers_request(&self, host: &Host, port: Port, scheme: Scheme, path: &Path) -> bool {
        self.is_at(host, port)
            && self.scheme.is_none_or(|own| own == scheme)
            && self.path.covers(path.as_str())
    }

    /// Returns whether some target is in both scopes.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let share = |a: &[Port], b: &[Port]| a.iter().any(|port| b.contains(port));
        self.host.overlaps(&other.host)
            && self.ports.as_deref().zip(other.ports.as_deref()).is_none_or(|(a, b)| share(a, b))
            && self.scheme.zip(other.scheme).is_none_or(|(a, b)| a == b)
            && self.path.overlaps(&other.path)
    }

    /// Returns whether the scope covers host and port.
    pub(crate) fn is_at(&self, host: &Host, port: Port) -> bool {
        self.host.matches(host) && self.has_port(port)
    }

    /// Returns whether the scope is an address to which this host's name may lead.
    pub(crate) fn may_be_behind(&self, host: &Host, port: Port) -> bool {
        matches!((host, &self.host), (Host::Name(_), HostPattern::Address(_))) && self.has_port(port)
    }

    fn has_port(&self, port: Port) -> bool {
        self.ports.as_ref().is_none_or(|list| list.contains(&port))
    }

    /// Returns whether the scope is only some of a host's requests.
    pub(crate) fn is_partial(&self) -> bool {
        !self.path.is_whole() || self.methods.is_some()
    }

    /// Returns whether the scope is only some methods.
    pub(crate) fn names_methods(&self) -> bool {
        self.methods.is_some()
    }

    /// Returns whether the scope can include requests over TLS.
    pub(crate) fn may_be_tls(&self) -> bool {
        self.scheme != Some(Scheme::Http)
    }

    /// Returns whether a deny rule catches a question. It catches a connection with invisible requests entirely or not at all: a
    /// connection to a host that a rule denies in part is terminated, and its requests are decided one by one.
    pub(crate) fn catches(&self, asked: &Asked) -> bool {
        if !self.is_at(&asked.host, asked.port) {
            return false;
        }
        match &asked.view {
            View::Opaque | View::Tls => !self.is_partial(),
            View::Request { scheme, method, path } => {
                self.scheme.is_none_or(|s| s == *scheme)
                    // Some servers read `delete` as DELETE.
                    && self.methods.as_ref().is_none_or(|list| list.iter().any(|own| own.may_be(method)))
                    && (self.path.is_whole() || self.path.may_reach(path))
            }
        }
    }

    /// Returns why a question is caught by the path of a deny rule that does not name it, if it is by doubt about what servers read.
    pub(crate) fn doubt(&self, asked: &Asked) -> Option<String> {
        match &asked.view {
            View::Request { path, .. } if !self.path.is_whole() => self.path.doubt(path),
            _ => None,
        }
    }

    /// Returns whether only `encoded_slash` is missing for the path of a question.
    pub(crate) fn lacks_encoded_slash(&self, asked: &Asked) -> bool {
        self.encoded_slash == EncodedSlash::Refuse
            && self.covers_asked(asked)
            && matches!(&asked.view, View::Request { path, .. } if path.has_encoded_slash())
    }

    /// Returns whether the scope is every request to the host, on every port.
    pub(crate) fn is_whole_host(&self) -> bool {
        self.ports.is_none() && self.path.is_whole() && self.methods.is_none()
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scheme) = self.scheme {
            write!(f, "{scheme}://")?;
        }
        write!(f, "{}", self.host)?;
        match &self.ports {
            Some(ports) => {
                let list: Vec<String> = ports.iter().map(ToString::to_string).collect();
                write!(f, ":{}", list.join(","))?;
            }
            None => f.write_str(", every port")?,
        }
        if self.scheme.is_some() {
            write!(f, "{}", self.path)?;
        }
        if let Some(methods) = &self.methods {
            let list: Vec<&str> = methods.iter().map(Method::as_str).collect();
            write!(f, " [{}]", list.join(" "))?;
        }
        Ok(())
    }
}

/// The fields that allow and deny rules have in common.
pub(crate) struct Fields<'a> {
    pub(crate) url: Option<&'a str>,
    pub(crate) host: Option<&'a str>,
    pub(crate) ports: Option<&'a [u16]>,
    pub(crate) default_ports: Option<&'a [Port]>,
    pub(crate) subdomains: bool,
    pub(crate) methods: Option<&'a [String]>,
}

/// Returns the error for a URL in the field `host`, with the correct line as its hint.
fn whole_address(at: &Location<'_>, text: &str) -> ConfigError {
    let authority = text.split_once("://").map_or("", |(_, rest)| rest.trim_end_matches('/'));
    let url =
        if authority.contains('/') { text.to_owned() } else { format!("{}/*", text.trim_end_matches('/')) };
    let hint = match Reach::from_url(at, &url) {
        Err(_) => {
            "write a host alone, with a port if it is not 80 or 443: host = \"db.example.com:5432\"".into()
        }
        Ok(_) if at.origin == Origin::Flags.to_string() => {
            let host = authority.split('/').next().unwrap_or_default();
            format!("--allow {host}, or for that address alone: lockgate policy allow {}", shell_word(&url))
        }
        Ok(_) => format!("url = \"{url}\""),
    };
    let shown = text.escape_debug();
    at.error("host", format!("`{shown}`: a whole address goes into `url`")).with_hint(hint)
}

/// Returns the error for a host that no rule may name. The hint for a name of this machine is a rule under another name.
fn reserved(
    at: &Location<'_>,
    host: &str,
    port: Option<Port>,
    ports: Option<&[u16]>,
    why: PatternError,
) -> ConfigError {
    let error = at.error("host", why);
    if !Hostname::parse(host).is_ok_and(|name| is_this_machine(&name)) {
        return error;
    }
    let ports = match (port, ports) {
        (Some(port), _) => port.to_string(),
        (None, Some(list)) => list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        (None, None) => "PORT".to_owned(),
    };
    error.with_hint(on_this_machine(Ipv4Addr::LOCALHOST.into(), ports))
}

/// Returns the host of `user@host:path`, as git and scp write what they reach by SSH.
fn remote_host(text: &str) -> Option<&str> {
    let (user, rest) = text.split_once('@')?;
    let (host, _) = rest.split_once(':').unwrap_or((rest, ""));
    (!user.contains(['/', ':']) && Host::parse(host).is_ok()).then_some(host)
}

/// Splits `host:port`. A bare IPv6 address has no port.
fn split_pattern_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    }
}

pub(crate) fn compile_ports(at: &Location<'_>, list: &[u16]) -> Result<Vec<Port>, ConfigError> {
    if list.is_empty() {
        return Err(at.error("ports", "the list is empty; leave the field out for the default"));
    }
    list.iter().map(|n| Port::new(*n).ok_or_else(|| at.error("ports", "0 is not a port"))).collect()
}

fn compile_methods(at: &Location<'_>, list: &[String]) -> Result<Vec<Method>, ConfigError> {
    if list.is_empty() {
        return Err(at.error("methods", "the list is empty; leave the field out for every method"));
    }
    list.iter()
        .map(|m| Method::parse(m).ok_or_else(|| at.error("methods", format!("`{m}` is not a method"))))
        .collect()
}
