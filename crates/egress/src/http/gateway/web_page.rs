//! Refuses the gateway to web pages in a browser that reaches it, as one does on the machine of a sidecar that listens on loopback: the page
//! would be given what the agent's credentials are for. Of what tells them, a program may send an `Origin`, which is for its target.

use std::net::{IpAddr, SocketAddr};

use policy::{Denial, Guard};

use crate::http::fields::Fields;

/// Refuses a request that a browser sends for a web page of another site. `local` is the address that it came to, if it came over TCP.
pub(in crate::http) fn refuse_web_page(fields: &Fields, local: Option<IpAddr>) -> Result<(), Denial> {
    // No page may send these two fields without asking first (CORS), and gets no answer to that; a program's `Origin` may be for its target.
    let origins = match fields.has("x-provider") && fields.has("x-target") {
        true => Vec::new(),
        false => fields.values("origin").collect(),
    };
    if let Some(origin) = origins.iter().find(|origin| is_of_another_site(fields, origin)) {
        let origin = String::from_utf8_lossy(origin);
        let why = format!("a web page of another site may not ask the gateway (Origin: {origin})");
        return Err(Denial::new(Guard::Source, why));
    }
    // Fetch Metadata Request Headers §2.4: browsers let no page set it. The window of a program and a page of this machine's are
    // cross-site to them as well, if that was asked for by another name.
    let is_ours = |origin: &&[u8]| {
        scheme_and_authority(origin).is_some_and(|(scheme, authority)| {
            is_of_a_program(scheme) || is_of_this_machine(authority) || fields.text("host") == Some(authority)
        })
    };
    if !origins.iter().any(is_ours) && fields.values("sec-fetch-site").any(|site| site == b"cross-site") {
        let why = "a web page of another site may not ask the gateway (Sec-Fetch-Site: cross-site)";
        return Err(Denial::new(Guard::Source, why));
    }
    // By a name that its owner lets resolve to this machine, a page of any site would be of the same site (DNS rebinding).
    if local.is_some_and(|local| local.to_canonical().is_loopback())
        && let Some(name) = fields.text("host").and_then(public_name)
    {
        let why = format!("the gateway is on this machine's loopback, where no `{name}` is");
        let hint = "call it by its address, as localhost or as sidecar";
        return Err(Denial::new(Guard::Source, why).with_hint(hint));
    }
    Ok(())
}

/// Whether a page of this origin is of another site than what it asks. Where the browser tells that itself, only an origin by a name that
/// somebody may own says more; over plain http to another machine it tells nothing, and any site can have a sandboxed page (`null`).
fn is_of_another_site(fields: &Fields, origin: &[u8]) -> bool {
    let is_told = fields.has("sec-fetch-site");
    let Some((scheme, authority)) = scheme_and_authority(origin) else {
        return origin == b"null" && (!is_told || fields.has("sec-websocket-key"));
    };
    if is_of_a_program(scheme) {
        return scheme == "file" && fields.has("sec-websocket-key");
    }
    let is_elsewhere = match address_of(authority) {
        Some(address) => !address.to_canonical().is_loopback(),
        None if is_told => public_name(authority).is_some(),
        None => !is_of_this_machine(authority),
    };
    is_elsewhere && fields.text("host") != Some(authority)
}

/// Returns the parts of an origin. One that is not UTF-8 comes from no browser, and counts as none.
fn scheme_and_authority(origin: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(origin).ok()?.split_once("://")
}

/// Whether an origin is the window of a program: it has a scheme of its own, as `vscode-webview`, and no site. The schemes that browsers
/// load pages by from elsewhere, and those of their extensions, are none.
fn is_of_a_program(scheme: &str) -> bool {
    let of_browsers = ["http", "https", "ftp", "ipfs", "ipns"];
    !of_browsers.iter().any(|other| scheme.eq_ignore_ascii_case(other)) && !scheme.ends_with("-extension")
}

/// Whether the authority of an origin is this machine, by its address or by a name that is this machine everywhere.
fn is_of_this_machine(authority: &str) -> bool {
    let name = authority.rsplit_once(':').map_or(authority, |(name, _)| name);
    match address_of(authority) {
        Some(address) => address.to_canonical().is_loopback(),
        None => ["localhost", LOCAL].contains(&name) || name.ends_with(".localhost"),
    }
}

/// Returns the address in an authority, if it has one.
fn address_of(authority: &str) -> Option<IpAddr> {
    let address = authority.parse().map(|it: SocketAddr| it.ip());
    address.or_else(|_| authority.trim_matches(['[', ']']).parse()).ok()
}

/// A name of the machine itself in the `/etc/hosts` of some systems.
const LOCAL: &str = "localhost.localdomain";

/// Returns the name in a `Host` if anybody could own it: one of several labels, and no address. Those below `localhost`, `internal`
/// or `test` are nobody's (RFC 6761 §6.2 and §6.3; ICANN reserved `internal` for private use). A path of a socket, in percent-encoding, is no
/// name.
fn public_name(host: &str) -> Option<&str> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_end_matches('.');
    let (_, last) = name.rsplit_once('.')?;
    let is_nobodys = name.starts_with('[')
        || name.contains('%')
        || last.bytes().all(|octet| octet.is_ascii_digit())
        || name.eq_ignore_ascii_case(LOCAL)
        || ["localhost", "internal", "test"].iter().any(|reserved| last.eq_ignore_ascii_case(reserved));
    (!is_nobodys).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    /// Whether a request to this address with these fields is refused.
    fn is_refused(local: Option<IpAddr>, fields: &[(&str, &[u8])]) -> bool {
        refuse_web_page(&fields.iter().copied().collect(), local).is_err()
    }

    #[test]
    fn on_loopback_it_is_called_by_no_name_that_somebody_may_own() {
        let loopback = [
            IpAddr::from(Ipv4Addr::LOCALHOST),
            Ipv6Addr::LOCALHOST.into(),
            Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
        ];
        for local in loopback {
            for host in [
                "evil.example:8080",
                "evil.example",
                "a.localdomain",
                "EVIL.example.:8080",
                "a_b.evil.example:1",
                "a!b.c",
            ] {
                assert!(is_refused(Some(local), &[("host", host.as_bytes())]), "{host}");
                for elsewhere in [None, Some(IpAddr::from([10, 0, 0, 2]))] {
                    assert!(!is_refused(elsewhere, &[("host", host.as_bytes())]), "{host}");
                }
            }
            for host in [
                "sidecar:8080",
                "my_gate",
                "localhost:8080",
                "app.localhost:1",
                "host.docker.internal:8080",
                "localhost.localdomain:1",
                "gate.test",
                "127.0.0.1:8080",
                "127.1",
                "[::1]:8080",
                "[::ffff:127.0.0.1]:8080",
                "[::1]",
                "%2Frun%2Fgate.sock",
                "",
            ] {
                assert!(!is_refused(Some(local), &[("host", host.as_bytes())]), "{host}");
            }
            assert!(!is_refused(Some(local), &[]));
        }
    }

    #[test]
    fn a_page_of_another_site_is_refused_everywhere() {
        for local in [None, Some(IpAddr::from([10, 0, 0, 2]))] {
            for (site, refused) in
                [("cross-site", true), ("none", false), ("same-origin", false), ("same-site", false)]
            {
                let fields = [("host", &b"sidecar"[..]), ("sec-fetch-site", site.as_bytes())];
                assert_eq!(is_refused(local, &fields), refused, "{site}");
            }
            // Browsers call a page of this machine's, and the window of a program, cross-site too.
            for (origin, refused) in [
                ("http://localhost:3000", false),
                ("vscode-webview://0abc", false),
                ("file://", false),
                ("app://obsidian.md", false),
                ("http://127.0.0.1:3000", false),
                ("http://app.localhost", false),
                ("http://localhost.localdomain:1", false),
                // Of another machine, or of an extension.
                ("http://wiki", true),
                ("https://app.corp.internal", true),
                ("http://printer.localdomain", true),
                ("http://a.test", true),
                ("http://10.0.0.5", true),
                ("moz-extension://0abc", true),
                ("ipfs://0abc", true),
                ("https://evil.example", true),
                ("HTTPS://evil.example", true),
                ("null", true),
                ("", true),
            ] {
                let origin = ("origin", origin.as_bytes());
                let fields = [("host", &b"127.0.0.1:8080"[..]), origin, ("sec-fetch-site", b"cross-site")];
                assert_eq!(is_refused(local, &fields), refused, "{origin:?}");
                // Of several, each counts.
                let more = [fields[0], fields[1], fields[2], ("origin", b"https://evil.example")];
                assert!(is_refused(local, &more), "{origin:?}");
                let programs = [("x-provider", &b"one"[..]), ("x-target", b"https://x.example/")];
                let programs: Vec<_> = fields.into_iter().chain(programs).collect();
                assert!(is_refused(local, &programs), "{origin:?}");
            }
            for (origin, page, socket) in [
                ("https://evil.example", true, true),
                ("http://evil.example:8080", true, true),
                ("null", true, true),
                ("http://wiki", true, true),
                ("http://a.test", true, true),
                ("https://app.corp.internal", true, true),
                ("file://", false, true),
                ("ftp://evil.example", true, true),
                ("http://localhost:3000", false, false),
                ("http://app.localhost", false, false),
                ("http://127.0.0.1", false, false),
                ("http://[::1]:1", false, false),
                ("http://203.0.113.5", true, true),
                ("http://203.0.113.5:80", true, true),
                ("http://[2001:db8::1]", true, true),
                ("https://gate.corp.example", true, true),
                ("http://gate.corp.example:8080", false, false),
                ("", false, false),
            ] {
                let host = ("host", &b"gate.corp.example:8080"[..]);
                let origin = ("origin", origin.as_bytes());
                assert_eq!(is_refused(local, &[host, origin]), page, "{origin:?}");
                assert_eq!(
                    is_refused(local, &[host, origin, ("sec-websocket-key", b"x")]),
                    socket,
                    "{origin:?}"
                );
                // A browser that says that the page is of the same site is believed where nobody owns the name.
                let told = ("sec-fetch-site", &b"same-site"[..]);
                let nobodys = ["null", "http://wiki", "http://a.test", "https://app.corp.internal"];
                let is_refused_still = page && !nobodys.iter().any(|name| name.as_bytes() == origin.1);
                assert_eq!(is_refused(local, &[host, origin, told]), is_refused_still, "{origin:?}");
                // No page may send these, and what a program sends is for its target.
                let programs = [host, origin, ("x-provider", b"one"), ("x-target", b"https://x.example/")];
                assert!(!is_refused(local, &programs), "{origin:?}");
            }
        }
    }
}
