//! What a rule covers: hosts, ports, scheme, path and methods, and how far a request fits it.

use std::fmt;

use crate::asked::{Asked, View};
use crate::at::At;
use crate::denial::Guard;
use crate::error::ConfigError;
use crate::hostname::Host;
use crate::origin::Origin;
use crate::path::{EncodedSlash, Path};
use crate::pattern::{HostPattern, PatternError};
use crate::target::{Method, Port, Scheme, Target, check_characters};
use crate::word::shell_word;

/// What a granted connection may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// This one request.
    Request,
    /// Requests that are read and asked for one by one: over TLS, which is opened for it, or in the clear.
    Terminated,
    /// TLS whose server name is the granted host, and nothing else.
    Tls,
    /// Any protocol; TLS only with the granted host as its server name.
    Any,
}

/// What a rule covers.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    pub(crate) host: HostPattern,
    /// `None` is every port.
    ports: Option<Vec<Port>>,
    scheme: Option<Scheme>,
    path: PathReach,
    methods: Option<Vec<Method>>,
    encoded_slash: EncodedSlash,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathReach {
    Any,
    Exact(Literal),
    Prefix(Literal),
}

/// The text of a path in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Literal {
    /// As it was written.
    written: String,
    /// As a reader takes it who decodes it, knows no case and takes several slashes for one.
    folded: String,
}

/// How far an asked thing fits a rule.
pub(crate) enum Fit {
    /// All of it; the connection may carry this much.
    Full(Carriage),
    /// The host fits and this does not.
    Short(Guard, String),
    /// Another host.
    None,
}

impl Reach {
    /// Compiles the fields that allow and deny rules share.
    pub(crate) fn compile(at: &At<'_>, fields: Fields<'_>) -> Result<Self, ConfigError> {
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

    fn from_host(at: &At<'_>, text: &str, fields: &Fields<'_>) -> Result<Self, ConfigError> {
        if text.contains("://") {
            return Err(whole_address(at, text));
        }
        let (host, written) = split_pattern_port(text);
        let written =
            written.map(|p| Port::parse(p).ok_or_else(|| at.error("host", format!("`{p}` is not a port"))));
        let written = written.transpose()?;
        let pattern =
            HostPattern::parse_within(host, at.width).map_err(|error| reserved(at, host, written, error))?;
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

    pub(crate) fn from_url(at: &At<'_>, url: &str) -> Result<Self, ConfigError> {
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

    /// Lets `%2F` stand inside a segment; only a `url` rule looks at the path.
    pub(crate) fn allow_encoded_slash(&mut self) -> bool {
        self.encoded_slash = EncodedSlash::Allow;
        self.scheme.is_some()
    }

    /// Refuses one that no request can fit, and says why.
    pub(crate) fn refuse_unaskable(&self) -> Result<(), String> {
        let (PathReach::Exact(path) | PathReach::Prefix(path)) = &self.path else { return Ok(()) };
        let asked = check_characters(&path.written);
        let asked = asked.and_then(|()| Path::new(&path.written).check_cannot_climb(self.encoded_slash));
        asked.map_err(|denial| denial.reason)
    }

    /// How far a request fits, in the order host, port, scheme, method, path.
    pub(crate) fn fit(&self, asked: &Asked) -> Fit {
        if !self.host.matches(&asked.host) {
            return Fit::None;
        }
        if let Some(ports) = &self.ports
            && !ports.contains(&asked.port)
        {
            let list: Vec<String> = ports.iter().map(ToString::to_string).collect();
            return Fit::Short(Guard::Port, format!("port {} is not among {}", asked.port, list.join(", ")));
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

    fn fit_request(&self, scheme: Scheme, method: &Method, path: &Path) -> Fit {
        if self.scheme.is_some_and(|s| s != scheme) {
            return Fit::Short(Guard::SchemeNotAllowed, format!("the rule is not for {scheme}"));
        }
        if self.methods.as_ref().is_some_and(|list| !list.contains(method)) {
            return Fit::Short(Guard::Method, format!("the rule does not name the method {method}"));
        }
        if self.scheme.is_some() {
            // R7: the checks that make a path prefix worth something belong to `url` rules only.
            if let Err(denial) = path.check_cannot_climb(self.encoded_slash) {
                return Fit::Short(Guard::Path, denial.reason);
            }
        }
        if self.path.covers(path.as_str()) {
            Fit::Full(Carriage::Request)
        } else {
            Fit::Short(Guard::Path, format!("the path is outside {}", self.path))
        }
    }

    /// What a connection may carry whose requests this plane cannot see: as much as the rule says of all of them, and
    /// else it has to be opened.
    fn unseen(&self, carriage: Carriage) -> Carriage {
        let whole_host = self.path.is_whole() && self.methods.is_none();
        match self.scheme {
            None if whole_host => carriage,
            Some(Scheme::Https) if whole_host => Carriage::Tls,
            _ => Carriage::Terminated,
        }
    }

    /// Whether a target lies within, whatever is done with it.
    pub(crate) fn covers(&self, target: &Target) -> bool {
        self.is_at(target.host(), target.port())
            && self.scheme.is_none_or(|scheme| scheme == target.scheme())
            && self.path.covers(target.path().as_str())
    }

    /// Whether host and port are covered.
    pub(crate) fn is_at(&self, host: &Host, port: Port) -> bool {
        self.host.matches(host) && self.ports.as_ref().is_none_or(|list| list.contains(&port))
    }

    /// Whether it speaks of some of a host's requests only.
    pub(crate) fn is_partial(&self) -> bool {
        !self.path.is_whole() || self.methods.is_some()
    }

    /// Whether it can be for requests over TLS.
    pub(crate) fn may_be_tls(&self) -> bool {
        self.scheme != Some(Scheme::Http)
    }

    /// Whether a deny rule catches a request. Of what cannot be seen it catches all or nothing: a connection to a host that a
    /// rule denies in part is opened, and its requests are asked for one by one.
    pub(crate) fn catches(&self, asked: &Asked) -> bool {
        if !self.is_at(&asked.host, asked.port) {
            return false;
        }
        match &asked.view {
            View::Opaque | View::Tls => !self.is_partial(),
            View::Request { scheme, method, path } => {
                self.scheme.is_none_or(|s| s == *scheme)
                    && self.methods.as_ref().is_none_or(|list| list.contains(method))
                    && (self.path.is_whole() || self.path.may_reach(path))
            }
        }
    }

    /// Whether the rule speaks of the whole host on some port, so that its name may be answered or must be hidden.
    pub(crate) fn is_whole_host(&self) -> bool {
        self.ports.is_none() && self.path.is_whole() && self.methods.is_none()
    }
}

impl PathReach {
    fn parse(path: &str) -> Result<Self, String> {
        let (literal, prefix) = match path.strip_suffix('*') {
            Some(literal) => (literal, true),
            None => (path, false),
        };
        if literal.contains('*') {
            return Err("`*` may stand only at the end of the path".into());
        }
        if prefix && literal.is_empty() {
            return Err("write `/*` for every path of the host".into());
        }
        let parsed = Path::new(literal);
        parsed.check_cannot_climb(EncodedSlash::Allow).map_err(|denial| denial.reason)?;
        let literal = Literal { written: parsed.as_str().to_owned(), folded: parsed.plain() };
        Ok(if prefix { Self::Prefix(literal) } else { Self::Exact(literal) })
    }

    fn is_whole(&self) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(_) => false,
            Self::Prefix(prefix) => prefix.written == "/",
        }
    }

    fn covers(&self, path: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => path == exact.written,
            Self::Prefix(prefix) => path.starts_with(prefix.written.as_str()),
        }
    }

    /// For deny rules: whether some reader could take `path` for one that is covered.
    fn may_reach(&self, path: &Path) -> bool {
        path.check_cannot_climb(EncodedSlash::Allow).is_err()
            || self.covers(path.as_str())
            || path.readings().iter().any(|reading| self.covers_folded(reading))
    }

    /// Compares one reading of a path, for deny rules. Readers also differ in a slash at the end: some serve `/admin` as `/admin/`.
    fn covers_folded(&self, reading: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => reading.trim_end_matches('/') == exact.folded.trim_end_matches('/'),
            Self::Prefix(prefix) => {
                reading.starts_with(prefix.folded.as_str())
                    || prefix.folded.strip_suffix('/').is_some_and(|directory| reading == directory)
            }
        }
    }
}

impl fmt::Display for PathReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("every path"),
            Self::Exact(path) => f.write_str(&path.written),
            Self::Prefix(prefix) => write!(f, "{}*", prefix.written),
        }
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

/// The fields that allow and deny rules share.
pub(crate) struct Fields<'a> {
    pub(crate) url: Option<&'a str>,
    pub(crate) host: Option<&'a str>,
    pub(crate) ports: Option<&'a [u16]>,
    pub(crate) default_ports: Option<&'a [Port]>,
    pub(crate) subdomains: bool,
    pub(crate) methods: Option<&'a [String]>,
}

/// The error for a whole address in the place of a host, with the line that would be right.
fn whole_address(at: &At<'_>, text: &str) -> ConfigError {
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

/// The error for what is no host that a rule may name. This machine's own loopback is named by its address, under another name.
fn reserved(at: &At<'_>, host: &str, port: Option<Port>, why: PatternError) -> ConfigError {
    let error = at.error("host", why);
    if !host.eq_ignore_ascii_case("localhost") {
        return error;
    }
    let port = port.map_or("PORT".to_owned(), |port| port.to_string());
    let rule = format!("host = \"NAME.internal\", ports = [{port}], addresses = [\"127.0.0.1\"]");
    error.with_hint(format!("a rule with a name of your own leads here, in [[egress.allow]]: {rule}"))
}

/// Splits `host:port`; a bare IPv6 address is left whole.
fn split_pattern_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    }
}

pub(crate) fn compile_ports(at: &At<'_>, list: &[u16]) -> Result<Vec<Port>, ConfigError> {
    if list.is_empty() {
        return Err(at.error("ports", "the list is empty; leave the field out for the default"));
    }
    list.iter().map(|n| Port::new(*n).ok_or_else(|| at.error("ports", "0 is not a port"))).collect()
}

fn compile_methods(at: &At<'_>, list: &[String]) -> Result<Vec<Method>, ConfigError> {
    if list.is_empty() {
        return Err(at.error("methods", "the list is empty; leave the field out for every method"));
    }
    list.iter()
        .map(|m| {
            Method::parse(m)
                .ok_or_else(|| at.error("methods", format!("`{m}` is not a method in upper case")))
        })
        .collect()
}
