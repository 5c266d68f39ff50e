//! The one parser of request targets. It is strict and repairs nothing. An accepted target is passed on as a type, so that
//! no second parser can read the same octets differently.
//!
//! It enforces rules R1–R4, R6 and R9 of `tests/corpora/README.md`; the decision and the address guard enforce R5, R7, R8 and R10.

use std::fmt::{self, Write};
use std::net::Ipv6Addr;
use std::sync::Arc;

use crate::denial::{Denial, Guard};
use crate::hostname::Host;
use crate::path::Path;

/// The longest accepted target, in octets. RFC 9110 §4.1 asks for at least 8000.
const MAX_TARGET: usize = 64 * 1024;

/// `http` or `https`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
}

impl Scheme {
    /// Returns the default port. RFC 9110 §4.2.
    #[must_use]
    pub fn default_port(self) -> Port {
        match self {
            Self::Http => Port(80),
            Self::Https => Port(443),
        }
    }

    /// Returns the scheme in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A TCP port, 1 to 65535.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port(u16);

impl Port {
    /// Creates a port from a number of the kernel or a rule. Returns `None` for 0.
    #[must_use]
    pub fn new(number: u16) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// Parses 1 to 5 decimal digits: no sign, no leading zero, no white space (E18).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        if !digits || text.starts_with('0') {
            return None;
        }
        text.parse().ok().map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request method: a token. Methods are case-sensitive (RFC 9110 §9.1), but not every server knows that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Method(Arc<str>);

impl Method {
    /// Parses a token (RFC 9110 §5.6.2) of 1 to 32 octets. CONNECT, TRACE and HEAD are these in upper case alone: a server that reads methods
    /// without their case would open a tunnel, or reflect a credential, past what looks for them, or send no body where one is waited for.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        let shaped = (1..=32).contains(&text.len()) && text.bytes().all(is_token);
        let disguised =
            ["CONNECT", "TRACE", "HEAD"].iter().any(|it| text.eq_ignore_ascii_case(it) && text != *it);
        (shaped && !disguised).then(|| Self(text.into()))
    }

    /// Whether some server reads both as the same method.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }

    /// Returns the method as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A host with an optional port, as in `CONNECT` or a `Host` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The host.
    pub host: Host,
    /// The port, if one was written.
    pub port: Option<Port>,
}

impl Authority {
    /// Parses `host [":" [port]]`. User information is refused, even if it is empty.
    ///
    /// # Errors
    /// A denial with the reason if the text is malformed.
    pub fn parse(text: &str) -> Result<Self, Denial> {
        if text.contains('@') {
            return Err(Denial::new(Guard::Userinfo, "user information may not stand in front of a host"));
        }
        let (host, port) = split_port(text)?;
        let host = Host::parse(host)
            .map_err(|why| Denial::new(Guard::HostForm, format!("`{}` is not a host: {why}", shown(host))))?;
        Ok(Self { host, port })
    }

    /// Parses the target of a `CONNECT`: a host and a port, and nothing else (RFC 9110 §9.3.6).
    ///
    /// # Errors
    /// A denial with the reason if the text is malformed or has no port.
    pub fn parse_tunnel(text: &str) -> Result<(Host, Port), Denial> {
        let Self { host, port } = Self::parse(text)?;
        let port = port.ok_or_else(|| Denial::new(Guard::Port, "CONNECT names a host and a port"))?;
        Ok((host, port))
    }
}

fn split_port(text: &str) -> Result<(&str, Option<Port>), Denial> {
    let after_brackets = if text.starts_with('[') { text.find(']').map_or(text.len(), |i| i + 1) } else { 0 };
    let Some(colon) = text[after_brackets..].find(':').map(|i| i + after_brackets) else {
        return Ok((text, None));
    };
    let digits = &text[colon + 1..];
    if digits.is_empty() {
        return Ok((&text[..colon], None)); // RFC 3986 §6.2.3: an empty port is the default
    }
    let port = Port::parse(digits).ok_or_else(|| {
        let denial = Denial::new(
            Guard::Port,
            format!("`{}` is not a port: 1 to 65535, no sign, no leading zero", shown(digits)),
        );
        match text.parse::<Ipv6Addr>() {
            Ok(_) => denial.with_hint(format!("an IPv6 address stands in brackets: `[{text}]`")),
            Err(_) => denial,
        }
    })?;
    Ok((&text[..colon], Some(port)))
}

/// What to do about a client of FTP that asks an HTTP proxy, as curl does.
const FTP: &str =
    "FTP goes past the proxy: `curl --noproxy '*'`, with rules for port 21 and the ports of its data";

/// An absolute request target that has passed every check that does not need the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    scheme: Scheme,
    host: Host,
    port: Port,
    path: Path,
    query: Option<Box<str>>,
}

impl Target {
    /// Parses `scheme "://" authority path ["?" query]`, octet for octet.
    ///
    /// # Errors
    /// A denial for the first rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, Denial> {
        check_characters(text)?;
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| syntax("a target is written scheme://host/path"))?;
        let scheme = match scheme {
            s if s.eq_ignore_ascii_case("http") => Scheme::Http,
            s if s.eq_ignore_ascii_case("https") => Scheme::Https,
            other => {
                let denial = Denial::new(Guard::Scheme, format!("`{}` is not http or https", shown(other)));
                return Err(if other.eq_ignore_ascii_case("ftp") { denial.with_hint(FTP) } else { denial });
            }
        };
        if rest.contains('#') {
            return Err(Denial::new(Guard::Fragment, "a request target has no fragment (RFC 9110 §7.1)"));
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let authority = Authority::parse(&rest[..end])?;
        let (path, query) = match rest[end..].split_once('?') {
            Some((path, query)) => (path, Some(query.into())),
            None => (&rest[end..], None),
        };
        let port = authority.port.unwrap_or_else(|| scheme.default_port());
        Ok(Self { scheme, host: authority.host, port, path: Path::new(path), query })
    }

    /// Creates a target from a target in origin form (RFC 9112 §3.2.1) and the destination of its connection.
    ///
    /// # Errors
    /// A denial if the text is not a valid path and query.
    pub fn from_origin_form(scheme: Scheme, host: Host, port: Port, origin: &str) -> Result<Self, Denial> {
        check_characters(origin)?;
        if !origin.starts_with('/') {
            return Err(syntax("an origin-form target begins with `/`"));
        }
        if origin.contains('#') {
            return Err(Denial::new(Guard::Fragment, "a request target has no fragment (RFC 9110 §7.1)"));
        }
        let (path, query) = match origin.split_once('?') {
            Some((path, query)) => (path, Some(query.into())),
            None => (origin, None),
        };
        Ok(Self { scheme, host, port, path: Path::new(path), query })
    }

    /// Returns the scheme.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the host in canonical form.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the port, explicit or default.
    #[must_use]
    pub fn port(&self) -> Port {
        self.port
    }

    /// Returns the path as it was written; `/` if it was empty.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the query as it was written, without its `?`.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// Returns the target in origin form, as the upstream must receive it.
    #[must_use]
    pub fn origin_form(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path.as_str()),
            None => self.path.as_str().to_owned(),
        }
    }

    /// Returns what [`fmt::Display`] writes, in room that it need not grow.
    #[must_use]
    pub fn text(&self) -> String {
        /// For a scheme, its sign, a name, a colon and a port, as most are.
        const ORIGIN: usize = 80;
        let query = self.query.as_ref().map_or(0, |query| query.len() + 1);
        let mut text = String::with_capacity(ORIGIN + self.path.as_str().len() + query);
        // A `String` takes everything.
        let _ = write!(text, "{self}");
        text
    }

    /// Returns the value of the `Host` header, with the port unless it is the scheme's default.
    #[must_use]
    pub fn host_header(&self) -> String {
        if self.port == self.scheme.default_port() {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host)?;
        if self.port != self.scheme.default_port() {
            write!(f, ":{}", self.port)?;
        }
        f.write_str(self.path.as_str())?;
        self.query.iter().try_for_each(|query| write!(f, "?{query}"))
    }
}

/// Enforces R1: only RFC 3986 characters, and `%` only before two hexadecimal digits.
pub(crate) fn check_characters(text: &str) -> Result<(), Denial> {
    if text.len() > MAX_TARGET {
        return Err(syntax("it is longer than 64 KiB"));
    }
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'%' => {
                let hex = bytes.get(at + 1..at + 3).is_some_and(|h| h.iter().all(u8::is_ascii_hexdigit));
                if !hex {
                    let denial = syntax("`%` must be followed by two hexadecimal digits");
                    return Err(denial.with_hint("a `%` itself is written `%25`"));
                }
            }
            b if is_uri_character(*b) => {}
            b => {
                let denial = syntax(&format!("octet 0x{b:02x} may not stand in a target"));
                return Err(match written(text, at) {
                    Some(hint) => denial.with_hint(hint),
                    None => denial,
                });
            }
        }
    }
    Ok(())
}

/// Returns how the character at an octet is written in a target, if it is. What is refused in a path when it is encoded as well is not.
fn written(text: &str, at: usize) -> Option<String> {
    let character = text.get(at..)?.chars().next().filter(|it| *it != '\\' && !it.is_ascii_control())?;
    let is_of_host = |(scheme, rest): (&str, &str)| {
        at < scheme.len() + "://".len() + rest.find(['/', '?', '#']).unwrap_or(rest.len())
    };
    if !text.starts_with('/') && text.split_once("://").is_some_and(is_of_host) {
        return (!character.is_ascii()).then(|| "a host is written in its ASCII form (`xn--…`)".into());
    }
    let octets = character.to_string().bytes().map(|octet| format!("%{octet:02X}")).collect::<String>();
    Some(format!("in a path or a query it is written `{octets}`"))
}

/// Returns whether RFC 3986 §2.2 or §2.3 lists the character.
fn is_uri_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=".contains(&byte)
}

fn syntax(why: &str) -> Denial {
    Denial::new(Guard::Syntax, why)
}

/// Returns a form of a hostile text that is safe to print: escaped, and cut after 80 characters.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_plain_digits() {
        for text in ["0", "080", "+80", "-1", " 80", "80 ", "65536", "123456", "8_0", "٨٠"] {
            assert_eq!(Port::parse(text), None, "{text}"); // E18
        }
        assert_eq!(Port::parse("65535").unwrap().number(), 65535);
    }

    #[test]
    fn a_method_is_a_token() {
        for text in
            ["GET", "post", "M-SEARCH", "x!#$%&'*+-.^_`|~9", &"m".repeat(32), "CONNECT", "TRACE", "HEAD"]
        {
            assert!(Method::parse(text).is_some(), "{text}");
        }
        for text in [
            "",
            "G ET",
            "GET\t",
            "GET/",
            "G(",
            "G\u{e9}T",
            "G:",
            &"m".repeat(33),
            "connect",
            "Trace",
            "head",
            "GET\r",
        ] {
            assert!(Method::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_tunnel_has_a_host_and_a_port_and_nothing_else() {
        for text in
            ["a.example", "a.example:", "http://a.example/x", "https://a.example:443", "a.example:443/"]
        {
            assert_eq!(Authority::parse_tunnel(text).unwrap_err().guard, Guard::Port, "{text}");
        }
        assert_eq!(Authority::parse_tunnel("u@a.example:443").unwrap_err().guard, Guard::Userinfo);
        let (host, port) = Authority::parse_tunnel("[2001:db8::1]:443").unwrap();
        assert_eq!((host.to_string().as_str(), port.number()), ("[2001:db8::1]", 443));
    }

    #[test]
    fn parts_come_out_as_written() {
        let target = Target::parse("https://API.example.com.:443?a=/../b").unwrap();
        assert_eq!(target.to_string(), "https://api.example.com/?a=/../b");
        assert_eq!(target.path().as_str(), "/");
    }

    #[test]
    fn what_may_not_stand_in_a_target_is_told_with_how_it_is_written() {
        for (path, hint) in [
            ("/a|b", Some("in a path or a query it is written `%7C`")),
            ("/{id}", Some("in a path or a query it is written `%7B`")),
            ("/caf\u{e9}", Some("in a path or a query it is written `%C3%A9`")),
            ("/a b", Some("in a path or a query it is written `%20`")),
            ("/100%", Some("a `%` itself is written `%25`")),
            // Encoded they are refused as well.
            ("/a\\b", None),
            ("/a\tb", None),
        ] {
            let denial = Target::parse(&format!("https://api.example.com{path}")).unwrap_err();
            assert_eq!(denial.guard, Guard::Syntax, "{path}");
            assert_eq!(denial.hint.map(|hint| hint.to_string()).as_deref(), hint, "{path}");
        }
    }

    #[test]
    fn how_to_do_without_the_proxy_is_told_of_ftp_alone() {
        for (scheme, is_told) in [("ftp", true), ("FTP", true), ("sftp", false)] {
            let denial = Target::parse(&format!("{scheme}://ftp.example.com/f")).unwrap_err();
            assert_eq!(denial.guard, Guard::Scheme, "{scheme}");
            let hint = denial.hint.map(|hint| hint.to_string());
            assert_eq!(hint.is_some_and(|hint| hint.contains("--noproxy")), is_told, "{scheme}");
        }
    }

    #[test]
    fn a_host_is_told_in_its_own_form() {
        for (text, hint) in [
            ("https://b\u{fc}cher.example/", Some("a host is written in its ASCII form (`xn--…`)")),
            ("https://a b.example/", None),
            ("https://::1/", Some("an IPv6 address stands in brackets: `[::1]`")),
            ("https://2001:db8::1/", Some("an IPv6 address stands in brackets: `[2001:db8::1]`")),
            ("https://a.example:1:2/", None),
        ] {
            let hinted = Target::parse(text).unwrap_err().hint.map(|hint| hint.to_string());
            assert_eq!(hinted.as_deref(), hint, "{text}");
        }
        let of_query = check_characters("/a?b=https://\u{fc}/").unwrap_err().hint.unwrap().to_string();
        assert!(of_query.ends_with("`%C3%BC`"), "{of_query}");
    }

    #[test]
    fn a_target_is_held_to_its_length() {
        let of = |length: usize| check_characters(&"a".repeat(length)).map_err(|denial| denial.guard);
        assert_eq!(of(MAX_TARGET), Ok(()));
        for more in [1, 2] {
            assert_eq!(of(MAX_TARGET + more), Err(Guard::Syntax), "{more}");
        }
    }

    #[test]
    fn an_origin_form_is_a_path_and_a_query_and_goes_out_as_it_came() {
        let read = |port: &str, origin: &str| {
            let (host, port) = (Host::parse("a.example").unwrap(), Port::parse(port).unwrap());
            Target::from_origin_form(Scheme::Https, host, port, origin)
        };
        for text in ["/", "/a/b", "/a?b=/../c", "/a?", "//b.example/x"] {
            assert_eq!(read("443", text).unwrap().origin_form(), text);
        }
        assert_eq!(read("443", "/").unwrap().host_header(), "a.example");
        assert_eq!(read("8443", "/").unwrap().host_header(), "a.example:8443");
        for (text, guard) in [
            ("", Guard::Syntax),
            ("a", Guard::Syntax),
            ("*", Guard::Syntax),
            ("https://b.example/", Guard::Syntax),
            ("/a#b", Guard::Fragment),
        ] {
            assert_eq!(read("443", text).unwrap_err().guard, guard, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_accepted_reads_the_same_again(text in "(http|https)://[ -~]{0,60}") {
            if let Ok(target) = Target::parse(&text) {
                proptest::prop_assert_eq!(Target::parse(&target.to_string()).unwrap(), target);
            }
        }
    }
}
