//! Why a proxy opens no connection.

use std::io;

use policy::{Denial, Port};

/// The reason, told behind the name of the proxy.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    #[error("{}", .0.reason)]
    Denied(Denial),
    #[error("its credential has no `{0}`")]
    NoField(&'static str),
    #[error("its user or password is longer than 255 octets")]
    LongLogin,
    #[error("it wants another way to authenticate")]
    OtherLogin,
    #[error("it refused user and password")]
    WrongLogin,
    #[error("the name is too long")]
    LongName,
    #[error("{}", not_connected(*status, *port))]
    Status { status: u16, port: Port },
    #[error("it refused the connection with code {0}")]
    Refused(u8),
    #[error("its answer is too large")]
    LargeAnswer,
    #[error("its answer cannot be read")]
    Unreadable,
    #[error("{what}: {source}")]
    Unreachable { what: &'static str, source: io::Error },
    /// An error of the connection to the proxy.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An error of this side's, which has nothing to do with the proxy.
    #[error(transparent)]
    Own(io::Error),
}

/// Says what became of a `CONNECT`. Plain `http://` is asked for by it too, and Squid as shipped, for one, allows port 443 alone.
fn not_connected(code: u16, port: Port) -> String {
    match (code, port.number()) {
        (403 | 405, port) if port != 443 => format!(
            "it answered {code} to a CONNECT to port {port}: many proxies allow port 443 alone; ask over https, or have this port allowed there"
        ),
        _ => format!("it answered {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_port_is_told_with_what_to_do() {
        let told = |status, port| ProxyError::Status { status, port: Port::new(port).unwrap() }.to_string();
        let refused = told(403, 80);
        assert!(refused.starts_with("it answered 403") && refused.contains("over https"), "{refused}");
        assert_eq!(told(403, 443), "it answered 403");
        assert_eq!(told(407, 80), "it answered 407");
    }
}
