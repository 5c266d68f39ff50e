//! What `lockgate policy explain` is asked, and the ways on which it is explained. It knows no policy.

use egress::Approach;
use policy::{Asked, Authority, Denial, Host, Method, Plane, Port, Scheme, Target};
use serde::Serialize;

use super::url::whole;

/// A way that what is asked takes, or a part of it. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Everywhere,
    Dns,
    Proxy,
    Connect,
    Redirected,
    /// The address guard, which decides last.
    Addresses,
    /// The proxy on the way out, which decides nothing.
    Upstream,
    /// The short way to a companion, on which nothing more is decided.
    Companion,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Everywhere => "on every plane",
            Self::Dns => "dns",
            Self::Proxy => "through the proxy",
            Self::Connect => "CONNECT to the proxy",
            Self::Redirected => "redirected",
            Self::Addresses => "then",
            Self::Upstream => "upstream proxy",
            Self::Companion => "companion",
        }
    }
}

impl Serialize for Way {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// What is asked of the policy.
pub(super) struct Question {
    pub(super) method: Method,
    /// The target, as `check` takes it.
    pub(super) target: String,
    pub(super) host: Host,
    pub(super) port: Port,
    /// The request; `None` for a tunnel alone, in which there may be any.
    pub(super) request: Option<Target>,
    /// How it may come to the sidecar.
    pub(super) approaches: &'static [(Way, Approach)],
}

impl Question {
    pub(super) fn parse(method: Method, text: &str) -> Result<Self, Denial> {
        if method.as_str() == "CONNECT" {
            let (host, port) = Authority::parse_tunnel(text)?;
            let approaches = &[(Way::Connect, Approach::Tunnel)];
            return Ok(Self {
                method,
                target: format!("{host}:{port}"),
                host,
                port,
                request: None,
                approaches,
            });
        }
        let target = Target::parse(&whole(text))?;
        let (host, port) = (target.host().clone(), target.port());
        let approaches = &[
            (Way::Proxy, Approach::Proxy),
            (Way::Connect, Approach::Tunnel),
            (Way::Redirected, Approach::Redirected),
        ];
        Ok(Self { method, target: target.to_string(), host, port, request: Some(target), approaches })
    }

    /// Parses what is asked without a method: a `GET`, or the connection to another service, which may also be redirected.
    pub(super) fn without_method(get: Method, text: &str) -> Result<Self, Denial> {
        let Some((host, port)) = other_service(text) else { return Self::parse(get, text) };
        let method = Method::parse("CONNECT").unwrap_or(get);
        let approaches = &[(Way::Connect, Approach::Tunnel), (Way::Redirected, Approach::Redirected)];
        Ok(Self { method, target: format!("{host}:{port}"), host, port, request: None, approaches })
    }

    /// Returns what is asked, in a line.
    pub(super) fn asked(&self) -> String {
        match self.request {
            Some(_) => format!("{} {}", self.method, self.target),
            None => format!("CONNECT {}", self.target),
        }
    }

    /// Returns the question to the policy, if a request is asked for.
    pub(super) fn asked_of_policy(&self) -> Option<Asked> {
        let target = self.request.as_ref()?;
        Some(Asked::request(Plane::Forward, self.method.clone(), target))
    }
}

/// Returns host and port of a target that is no page of the web: it names a port that is neither 80 nor 443, and nothing to ask for.
fn other_service(text: &str) -> Option<(Host, Port)> {
    let is_bare = !text.contains('/') && !text.contains('?');
    let (host, port) = Authority::parse_tunnel(text).ok().filter(|_| is_bare)?;
    let web = [Scheme::Http.default_port(), Scheme::Https.default_port()];
    (!web.contains(&port)).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_that_is_said_makes_a_request_of_another_service() {
        let get = || Method::parse("GET").unwrap();
        let service = "a.example:8080";
        let asked = |question: Result<Question, Denial>| {
            let question = question.ok().unwrap();
            let ways: Vec<_> = question.approaches.iter().map(|(way, _)| *way).collect();
            (question.asked().split_once(' ').unwrap().0.to_owned(), ways)
        };
        let request = vec![Way::Proxy, Way::Connect, Way::Redirected];
        assert_eq!(asked(Question::parse(get(), service)), ("GET".into(), request.clone()));
        let page = asked(Question::without_method(get(), "http://a.example:8080/"));
        assert_eq!(page, ("GET".into(), request));
        let bare = asked(Question::without_method(get(), service));
        assert_eq!(bare, ("CONNECT".into(), vec![Way::Connect, Way::Redirected]));
        let tunnel = asked(Question::parse(Method::parse("CONNECT").unwrap(), service));
        assert_eq!(tunnel, ("CONNECT".into(), vec![Way::Connect]));
    }
}
