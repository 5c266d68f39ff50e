//! Addresses of a registry and of its redirects, parsed strictly.

use std::fmt;

use super::request::Transport;

/// The longest address that is followed.
const LONGEST: usize = 8192;

/// An HTTP address: transport, host, port, and the target as it is sent.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) transport: Transport,
    pub(super) host: String,
    pub(super) port: u16,
    /// The path and the query.
    pub(super) target: String,
}

impl Url {
    /// Makes an address at a registry, `HOST` or `HOST:PORT`.
    pub(super) fn of(registry: &str, transport: Transport, target: String) -> Option<Self> {
        let (host, port) = split_port(registry, transport)?;
        Some(Self { transport, host, port, target })
    }

    /// Parses an absolute address that a registry sent.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.len() > LONGEST || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return None;
        }
        let (scheme, rest) = text.split_once("://")?;
        // RFC 3986 section 3.1.
        let transport = match scheme.to_ascii_lowercase().as_str() {
            "https" => Transport::Tls,
            "http" => Transport::Plain,
            _ => return None,
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        // Registries have no use for a user in an address, or for a host in brackets.
        if authority.contains(['@', '[', '\\', '%']) {
            return None;
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Self::of(authority, transport, target)
    }

    /// Resolves an answer's `Location`: an absolute address, one without its scheme, or a path of the same origin, which may be relative
    /// to this one.
    pub(super) fn join(&self, location: &str) -> Option<Self> {
        let location = location.split('#').next().unwrap_or_default();
        let first = location.split(['/', '?']).next().unwrap_or_default();
        if location.starts_with("//") {
            // RFC 3986 section 4.2.
            return Self::parse(&format!("{}:{location}", self.scheme()));
        }
        if location.is_empty() || first.contains(':') {
            return Self::parse(location);
        }
        let plain = location.len() <= LONGEST && location.bytes().all(|b| b.is_ascii_graphic());
        let target = if location.starts_with('/') { location.to_owned() } else { self.resolve(location) };
        (plain && target.len() <= LONGEST).then(|| Self { target, ..self.clone() })
    }

    /// Resolves a relative path with its query, RFC 3986 section 5.2.
    fn resolve(&self, location: &str) -> String {
        let here = self.target.split('?').next().unwrap_or_default();
        let (path, query) = location.split_at(location.find('?').unwrap_or(location.len()));
        if path.is_empty() {
            return format!("{here}{query}");
        }
        let mut parts: Vec<&str> = here.split('/').skip(1).collect();
        parts.pop();
        let mut names = path.split('/').peekable();
        while let Some(name) = names.next() {
            match name {
                "." => {}
                ".." => drop(parts.pop()),
                name => parts.push(name),
            }
            if names.peek().is_none() && matches!(name, "." | "..") {
                parts.push("");
            }
        }
        format!("/{}{query}", parts.join("/"))
    }

    pub(super) fn same_place(&self, other: &Self) -> bool {
        (self.transport, self.port, self.host.as_str()) == (other.transport, other.port, other.host.as_str())
    }

    fn scheme(&self) -> &'static str {
        match self.transport {
            Transport::Plain => "http",
            Transport::Tls => "https",
        }
    }

    /// Returns the value of the `Host` field.
    pub(super) fn authority(&self) -> String {
        if self.port == default_port(self.transport) {
            self.host.clone()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Url {
    /// Omits the query, which may grant access.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.target.split('?').next().unwrap_or_default();
        write!(f, "{}://{}{path}", self.scheme(), self.authority())
    }
}

fn default_port(transport: Transport) -> u16 {
    match transport {
        Transport::Plain => 80,
        Transport::Tls => 443,
    }
}

fn split_port(authority: &str, transport: Transport) -> Option<(String, u16)> {
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => {
            let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
            (host, port.parse().ok().filter(|port| digits && *port > 0)?)
        }
        None => (authority, default_port(transport)),
    };
    let valid =
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'));
    valid.then(|| (host.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let url = Url::parse("https://Blobs.example:8443/a/b?sig=x#y").unwrap();
        assert_eq!((url.transport, url.host.as_str(), url.port), (Transport::Tls, "blobs.example", 8443));
        assert_eq!(url.target, "/a/b?sig=x");
        assert_eq!(format!("{url:?}"), "https://blobs.example:8443/a/b");
        assert_eq!(Url::parse("http://h?x").unwrap().target, "/?x");
        assert_eq!(url.join("/c").unwrap().target, "/c");
        assert!(url.join("/c").unwrap().same_place(&url));
        assert!(!url.join("http://blobs.example:8443/").unwrap().same_place(&url));
        for (location, found) in [
            ("HTTPS://h/a", "https://h/a"),
            ("Http://h:8/", "http://h:8/"),
            ("//h:8443/a?sig=x", "https://h:8443/a"),
        ] {
            assert_eq!(format!("{:?}", url.join(location).unwrap()), found);
        }
    }

    #[test]
    fn what_is_no_address_is_not_followed() {
        for text in [
            "",
            "ftp://h/",
            "https://",
            "https://user@h/",
            "https://h:0/",
            "https://h:99999/",
            "https://h:+1/",
            "https://[::1]/",
            "https://h /",
            "https://h/\r\nx: y",
            "https://a\\b/",
            "https://%41/",
            "h/path",
        ] {
            assert!(Url::parse(text).is_none(), "{text:?}");
        }
        let url = Url::parse("https://h/").unwrap();
        for text in
            ["//", "//user@other/", "//[::1]/", "///x", "", "/\n", "a b", "ftp://h/", "mailto:x", "../\n"]
        {
            assert!(url.join(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_relative_place_is_of_the_same_origin() {
        let url = Url::parse("https://h:8443/v2/a/blobs/x?y=1").unwrap();
        for (location, target) in [
            ("z", "/v2/a/blobs/z"),
            ("../z?s=1", "/v2/a/z?s=1"),
            ("./../../z/./w#f", "/v2/z/w"),
            ("..", "/v2/a/"),
            ("../../../../../z", "/z"),
            ("?s=2", "/v2/a/blobs/x?s=2"),
        ] {
            let joined = url.join(location).unwrap();
            assert!(joined.same_place(&url) && joined.target == target, "{location}: {joined:?}");
        }
    }
}
