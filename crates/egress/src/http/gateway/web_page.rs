//! Refuses the gateway to web pages in a browser that reaches it, as one does on the machine of a sidecar that listens on loopback: the page
//! would be given what the agent's credentials are for. Of what tells them, a program may send an `Origin`, which is for its target.

use std::net::{IpAddr, SocketAddr};

use policy::{Denial, Guard};

use crate::http::fields::Fields;

/// Refuses a request that a browser sends for a web page of another site. `local` is the address that it came to, if it came over TCP.
pub(in crate::http) fn refuse_web_page(fields: &Fields, local: Option<IpAddr>) -> Result<(), Denial> {
    // Fetch Metadata Request Headers §2.4: browsers let no page set it.
    if fields.values("sec-fetch-site").any(|site| site == b"cross-site") {
        let why = "a web page of another site may not ask the gateway (Sec-Fetch-Site: cross-site)";
        return Err(Denial::new(Guard::Source, why));
    }
    // A WebSocket has no such field, and older browsers send none; both say whose the page is. No page may send these two fields without
    // asking first (CORS), and gets no answer to that; a program's `Origin` may be for its target.
    if !(fields.has("x-provider") && fields.has("x-target"))
        && let Some(origin) = fields.values("origin").find(|origin| is_of_another_site(fields, origin))
    {
        let origin = String::from_utf8_lossy(origin);
        let why = format!("a web page of another site may not ask the gateway (Origin: {origin})");
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

/// Whether a page of this origin is of another site than what it asks, and not of this machine. A sandboxed page, which a WebSocket alone
/// could be for, is nobody's.
fn is_of_another_site(fields: &Fields, origin: &[u8]) -> bool {
    let origin = String::from_utf8_lossy(origin);
    let Some((_, authority)) = origin.split_once("://") else {
        return origin == "null" && fields.has("sec-websocket-key");
    };
    let address = authority.parse().map(|it: SocketAddr| it.ip());
    let address = address.or_else(|_| authority.trim_matches(['[', ']']).parse());
    let is_elsewhere = match address {
        Ok(address) => !address.to_canonical().is_loopback(),
        Err(_) => public_name(authority).is_some(),
    };
    is_elsewhere && fields.text("host") != Some(authority)
}

/// Returns the name in a `Host` if anybody could own it: one of several labels, and no address. Those below `localhost` and `internal`
/// are nobody's (RFC 6761 §6.3; ICANN reserved the other for private use), and a path of a socket, in percent-encoding, is no name.
fn public_name(host: &str) -> Option<&str> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_end_matches('.');
    let (_, last) = name.rsplit_once('.')?;
    let is_nobodys = name.starts_with('[')
        || name.contains('%')
        || last.bytes().all(|octet| octet.is_ascii_digit())
        || ["localhost", "internal"].iter().any(|reserved| last.eq_ignore_ascii_case(reserved));
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
            for host in
                ["evil.example:8080", "evil.example", "EVIL.example.:8080", "a_b.evil.example:1", "a!b.c"]
            {
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
            for (origin, page, socket) in [
                ("https://evil.example", true, true),
                ("http://evil.example:8080", true, true),
                ("null", false, true),
                ("http://localhost:3000", false, false),
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
                // No page may send these, and what a program sends is for its target.
                let programs = [host, origin, ("x-provider", b"one"), ("x-target", b"https://x.example/")];
                assert!(!is_refused(local, &programs), "{origin:?}");
            }
        }
    }
}
