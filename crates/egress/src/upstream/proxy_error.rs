//! Why a proxy opens no connection.

use std::io;

use policy::{Denial, Port};

use crate::cause::cause;

/// The reason, told behind the name of the proxy.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    #[error("{}", with_hint(.0))]
    Denied(Denial),
    #[error("its credential has no `{0}`")]
    NoField(&'static str),
    #[error("its user or password is longer than 255 octets")]
    LongLogin,
    #[error(
        "it wants a user and a password: write user:password@ before its host in the variable that names it, or a `credential` in \
         its [[proxy]]"
    )]
    NoLogin,
    #[error(
        "it takes a login by {0} alone, which is not spoken here: put a proxy between that does, as cntlm does for NTLM"
    )]
    OtherLogin(String),
    #[error("it wants another way to authenticate than a user and a password")]
    OtherMethod,
    #[error("it refused user and password")]
    WrongLogin,
    #[error("the name is too long")]
    LongName,
    #[error("{}", not_connected(*status, *port))]
    Status { status: u16, port: Port },
    #[error("it refused the connection: {}", refusal(*.0))]
    Refused(u8),
    #[error("its answer is too large")]
    LargeAnswer,
    #[error("its answer cannot be read")]
    Unreadable,
    #[error("{what}: {source}")]
    Unreachable { what: &'static str, source: io::Error },
    /// An error of the connection to the proxy.
    #[error("{}", broken(.0))]
    Io(#[from] io::Error),
    /// An error of this side's, which has nothing to do with the proxy.
    #[error(transparent)]
    Own(io::Error),
}

/// Says why something of the proxy's own was denied, and what to do about it.
fn with_hint(denial: &Denial) -> String {
    let hint = denial.hint.iter().map(|hint| format!("; {hint}"));
    std::iter::once(denial.reason.clone()).chain(hint).collect()
}

/// Says what became of a `CONNECT`. Plain `http://` is asked for by it too, and Squid as shipped, for one, allows port 443 alone.
fn not_connected(code: u16, port: Port) -> String {
    match (code, port.number()) {
        (403 | 405, port) if port != 443 => format!(
            "it answered {code} to a CONNECT to port {port}: many proxies allow port 443 alone; ask over https, or have this port allowed there"
        ),
        (300..=399, _) => {
            format!(
                "it answered {code}: it may want a log-in first; open any page in a browser of this network"
            )
        }
        (500..=599, _) => {
            format!("it answered {code}: it could not reach the host, or is out of order itself")
        }
        _ => format!("it answered {code}"),
    }
}

/// Says what a SOCKS proxy's reply means (RFC 1928 §6).
fn refusal(code: u8) -> String {
    let said = match code {
        1 => "it failed",
        2 => "its rules do not allow it",
        3 => "the network is unreachable from it",
        4 => "the host is unreachable from it, or does not resolve there",
        5 => "the host refused it",
        6 => "the way to the host is too long",
        7 => "it does not know the command",
        8 => "it does not take addresses of this kind",
        _ => return format!("code {code}"),
    };
    format!("{said} (code {code})")
}

/// Says how a connection to a proxy ended before it agreed to anything.
fn broken(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            "it hung up without an answer; see that its address begins with what it speaks: http, https or socks5".into()
        }
        _ => cause(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_denied_is_told_with_what_to_do() {
        let denial = Denial::new(policy::Guard::NoAddress, "proxy does not resolve");
        let told = ProxyError::Denied(denial.with_hint("write the whole name")).to_string();
        assert_eq!(told, "proxy does not resolve; write the whole name");
    }

    #[test]
    fn a_refused_port_is_told_with_what_to_do() {
        let told = |status, port| ProxyError::Status { status, port: Port::new(port).unwrap() }.to_string();
        let refused = told(403, 80);
        assert!(refused.starts_with("it answered 403") && refused.contains("over https"), "{refused}");
        assert_eq!(told(403, 443), "it answered 403");
        assert!(told(302, 443).contains("log-in") && told(503, 80).contains("out of order"));
        assert_eq!(told(404, 80), "it answered 404");
    }

    #[test]
    fn what_a_socks_proxy_replies_is_told_in_words() {
        assert_eq!(
            ProxyError::Refused(2).to_string(),
            "it refused the connection: its rules do not allow it (code 2)"
        );
        assert_eq!(ProxyError::Refused(91).to_string(), "it refused the connection: code 91");
        let ended = ProxyError::Io(io::ErrorKind::UnexpectedEof.into()).to_string();
        assert!(ended.starts_with("it hung up without an answer") && ended.contains("https"), "{ended}");
    }
}
