//! Accepts one TLS handshake of the agent's.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::cause::{cause, tls_error};
use crate::http::{AgentStream, Ahead, Buffered};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How late a timer fires at most while the sidecar runs.
const STOPPED: Duration = Duration::from_secs(2);

/// A connection whose TLS is terminated, by the HTTP version that ALPN agreed on.
pub(crate) enum Accepted {
    Version1(AgentStream),
    Version2(AgentStream),
}

/// Terminates the agent's TLS. `agent` holds its ClientHello, which has been read and judged already.
pub(crate) async fn accept(config: Arc<ServerConfig>, agent: Buffered<TcpStream>) -> io::Result<Accepted> {
    let stream = Ahead { ahead: agent.ahead, stream: agent.reader };
    let stream = unless_late(TlsAcceptor::from(config).accept(stream)).await?;
    let version_2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stream = AgentStream::Tls(Box::new(stream));
    Ok(if version_2 { Accepted::Version2(stream) } else { Accepted::Version1(stream) })
}

/// Bounds the time of a handshake. A timer that fires late itself says that the sidecar was stopped meanwhile: the program then has its
/// time anew.
async fn unless_late<T>(handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let mut handshake = pin!(handshake);
    loop {
        let due = Instant::now() + HANDSHAKE;
        match tokio::time::timeout_at(due, &mut handshake).await {
            Ok(done) => return done,
            Err(_) if due.elapsed() > STOPPED => {}
            Err(late) => return Err(late.into()),
        }
    }
}

/// Whether a handshake failed because the program offers other protocols, and none of HTTP.
pub(crate) fn offers_no_http(error: &io::Error) -> bool {
    matches!(tls_error(error), Some(rustls::Error::NoApplicationProtocol))
}

/// Says why a handshake failed. An alert or an end is the program's doing, anything else the sidecar's own.
pub(crate) fn why_not_accepted(error: &io::Error) -> String {
    use io::ErrorKind::{TimedOut, UnexpectedEof};
    let cause = cause(error);
    match error.kind() {
        kind if is_broken_off(error) || kind == UnexpectedEof => {
            format!("the program inside broke off TLS, it may not trust the run's authority: {cause}")
        }
        TimedOut => {
            format!("the program inside did not finish the TLS handshake in {} s", HANDSHAKE.as_secs())
        }
        _ => format!("the sidecar and the program inside agree on no TLS: {cause}"),
    }
}

/// Whether the program ended TLS by an alert or a reset. A mere end is also that of a connection which was opened ahead.
pub(crate) fn is_broken_off(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    alert(error).is_some() || matches!(error.kind(), BrokenPipe | ConnectionReset)
}

/// Whether the program said that it does not trust the certificate (RFC 8446 §6.2).
pub(crate) fn is_distrust(error: &io::Error) -> bool {
    alert(error).is_some_and(|alert| {
        ["UnknownCA", "BadCertificate", "CertificateUnknown"].iter().any(|it| alert.starts_with(it))
    })
}

/// The alert that the program sent. It is known by its text: the HTTP/2 library keeps nothing else of an error.
fn alert(error: &io::Error) -> Option<String> {
    error.to_string().strip_prefix("received fatal alert: ").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use policy::{Host, Port};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::AsyncWriteExt;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::tls::{Leaves, RunAuthority, provider};
    use crate::trusted::Trusted;
    use crate::upstream::Entrance;

    /// What becomes of a handshake with a program that offers this protocol, and trusts the authority or nobody: why it failed, and whether
    /// for distrust.
    async fn outcome(protocol: &str, trusts: bool) -> Result<(), (String, bool)> {
        let authority = RunAuthority::make().unwrap();
        let mut roots = RootCertStore::empty();
        if trusts {
            roots = Trusted::in_pem(authority.certificate_pem().as_bytes()).authorities;
        }
        let config = Leaves::of(authority).config(&Host::parse("a.example").unwrap()).unwrap();
        let client = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let mut client = client.unwrap().with_root_certificates(roots).with_no_client_auth();
        client.alpn_protocols = vec![protocol.into()];
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = Port::new(listener.local_addr().unwrap().port()).unwrap();
        let theirs = Entrance::at([127, 0, 0, 1].into()).connect(port).await.unwrap();
        let ours = Buffered::new(listener.accept().await.unwrap().0);
        let speaks = async {
            let connector = TlsConnector::from(Arc::new(client));
            if let Ok(mut stream) = connector.connect("a.example".try_into().unwrap(), theirs).await {
                stream.shutdown().await.unwrap();
            }
        };
        let (accepted, ()) = tokio::join!(accept(config, ours), speaks);
        match accepted {
            Ok(Accepted::Version1(_)) => Ok(()),
            Ok(Accepted::Version2(_)) => Err(("version 2".into(), false)),
            Err(error) => {
                assert_eq!(offers_no_http(&error), protocol == "spdy/1");
                Err((why_not_accepted(&error), is_distrust(&error)))
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sidecar_that_was_stopped_lets_a_handshake_go_on() {
        for (stopped, outcome) in [(2, None), (0, Some(io::ErrorKind::TimedOut))] {
            let begun = Instant::now();
            let handshake = async {
                tokio::time::sleep(HANDSHAKE / 2).await;
                tokio::time::advance(HANDSHAKE * stopped).await;
                tokio::time::sleep_until(begun + HANDSHAKE * (stopped + 1) + STOPPED).await;
                Ok(())
            };
            assert_eq!(unless_late(handshake).await.err().map(|error| error.kind()), outcome);
        }
    }

    #[tokio::test]
    async fn who_broke_a_handshake_off_is_told() {
        for version_1 in ["http/1.1", "http/1.0"] {
            assert_eq!(outcome(version_1, true).await, Ok(()), "{version_1}");
        }
        let (told, distrusts) = outcome("spdy/1", true).await.unwrap_err();
        assert!(told.starts_with("the sidecar and the program inside agree on no TLS: "), "{told}");
        assert!(!distrusts, "{told}");
        let (told, distrusts) = outcome("http/1.1", false).await.unwrap_err();
        assert!(
            told.starts_with("the program inside broke off TLS") && told.contains("may not trust"),
            "{told}"
        );
        assert!(distrusts, "{told}");
        let told = why_not_accepted(&io::ErrorKind::TimedOut.into());
        assert!(told.contains("in 10 s") && !told.contains("trust"), "{told}");
    }
}
