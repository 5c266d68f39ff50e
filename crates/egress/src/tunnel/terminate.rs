//! Terminates the TLS of a connection with a certificate of the run's own authority, and serves its requests one by one.
//!
//! Three names have agreed by then: the one that DNS or `CONNECT` was given, the server name of the ClientHello, and the rule's. The
//! authority of each request is the fourth.

use std::io;
use std::rc::Rc;

use policy::{Asked, Denial, Guard, Plane, Scheme, View};
use tokio::net::TcpStream;

use super::clear::serve_clear;
use super::refuse::{RefuseBy, refuse};
use super::sniff::Carried;
use super::{agree, preface};
use crate::exchange::{Exchange, Granted};
use crate::gate::Gate;
use crate::http::{Buffered, Via, serve_opened, serve_streams};
use crate::opened::{NoRequest, ONLY_HTTP, Opened};
use crate::tls::{Accepted, accept, is_distrust, offers_no_http, why_not_accepted};

/// Serves the requests of a connection whose first octets have been judged, and terminates its TLS if it has any.
pub(super) async fn terminate(
    gate: &Rc<Gate>,
    plane: Plane,
    exchange: Exchange<Granted>,
    agent: Buffered<TcpStream>,
    carried: Carried,
) -> io::Result<()> {
    let (host, port) = (exchange.grant().host().clone(), exchange.grant().port());
    match carried {
        Carried::End | Carried::Nothing | Carried::Late(_) => {
            exchange.fail(&carried.unsaid());
            Ok(())
        }
        Carried::Http => {
            let opened = Opened::granted(gate, exchange, NoRequest::NoHead);
            let via = Via::Bound { plane, scheme: Scheme::Http, host, port };
            serve_clear(gate, opened, via, agent).await
        }
        Carried::Other => {
            let why = "only requests of HTTP may go there, because a credential is bound or a rule names paths or methods";
            exchange.refuse(Denial::new(Guard::Protocol, why));
            refuse(agent, RefuseBy::Reset).await
        }
        Carried::Preface => {
            exchange.refuse(preface());
            refuse(agent, RefuseBy::Reset).await
        }
        Carried::Tls(name) => {
            if let Err(denial) = agree(&host, &name) {
                exchange.refuse(denial);
                return refuse(agent, RefuseBy::TlsAlert).await;
            }
            terminate_tls(gate, plane, exchange, agent).await
        }
    }
}

/// Terminates TLS whose server name has been checked.
async fn terminate_tls(
    gate: &Rc<Gate>,
    plane: Plane,
    exchange: Exchange<Granted>,
    agent: Buffered<TcpStream>,
) -> io::Result<()> {
    let (host, port) = (exchange.grant().host().clone(), exchange.grant().port());
    let Some(config) = gate.leaves().and_then(|leaves| leaves.config(&host).ok()) else {
        // No rule for TLS may be there at all, which the policy tells better.
        let denied = gate.policy().decide(&Asked::connection(plane, host, port, View::Tls)).err();
        exchange.refuse(denied.unwrap_or_else(|| {
            let why = "a credential is bound to the host, or the rule must see requests, and this sidecar has no authority to open TLS with";
            Denial::new(Guard::Unseen, why)
        }));
        return refuse(agent, RefuseBy::TlsAlert).await;
    };
    let accepted = match accept(config, agent).await {
        Ok(accepted) => accepted,
        Err(error) if offers_no_http(&error) => {
            let why = "the program offers other protocols in TLS, and the sidecar opens it to see requests";
            exchange.refuse(Denial::new(Guard::Protocol, why).with_hint(ONLY_HTTP));
            return Ok(());
        }
        Err(error) => {
            match is_distrust(&error) {
                true => exchange.fail_distrusted(&why_not_accepted(&error)),
                false => exchange.fail(&why_not_accepted(&error)),
            }
            return Ok(());
        }
    };
    let opened = Opened::granted(gate, exchange, NoRequest::NoneTaken);
    let via = Via::Bound { plane, scheme: Scheme::Https, host, port };
    match accepted {
        Accepted::Version1(stream) => {
            Box::pin(serve_opened(Rc::clone(gate), opened, via, stream, bytes::BytesMut::new())).await
        }
        Accepted::Version2(stream) => Box::pin(serve_streams(Rc::clone(gate), opened, via, stream)).await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::sniff;
    use super::*;
    use crate::fixture::{gate_for, records_in};
    use crate::upstream::Entrance;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_is_recorded_with_who_ended_it() {
        for (ends, reason) in [
            (true, "the connection ended before it said what it carries"),
            (false, "it did not say within 10 s what it carries"),
        ] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = policy::Port::new(listener.local_addr().unwrap().port()).unwrap();
            let mut agent = Buffered::new(Entrance::at([127, 0, 0, 1].into()).connect(port).await.unwrap());
            let silent = Some(listener.accept().unwrap().0).filter(|_| !ends);
            let mut audit = tempfile::tempfile().unwrap();
            let rule = "[egress]\nallow = [{ url = \"https://a.example/*\" }]\n";
            let gate = gate_for(rule, Vec::new(), Some(audit.try_clone().unwrap()));
            let host = policy::Host::Name(policy::Hostname::parse("a.example").unwrap());
            let port = policy::Port::new(443).unwrap();
            let exchange = super::super::ask(&gate, "CONNECT", "a.example:443".into(), host, port).unwrap();
            let carried = sniff::sniff(&mut agent, sniff::PATIENCE).await;
            terminate(&gate, Plane::Forward, exchange, agent, carried).await.unwrap();
            drop(silent);
            gate.close().unwrap();
            let records = records_in(&mut audit);
            let record = records.lines().find(|line| line.contains("\"CONNECT\"")).unwrap();
            assert!(record.contains("\"failed\"") && record.contains(reason), "{record}");
        }
    }
    #[tokio::test]
    async fn a_connection_whose_tls_is_terminated_and_that_asks_for_nothing_is_recorded() {
        let other = "the program offers other protocols in TLS";
        for (protocol, is_reset, outcome, why) in [
            ("http/1.1", false, "failed", NoRequest::NoneTaken.text()),
            ("h2", false, "failed", NoRequest::NoneTaken.text()),
            ("http/1.1", true, "failed", "it may not trust the run's authority"),
            ("h2", true, "failed", "it may not trust the run's authority"),
            ("imap", false, "denied", other),
        ] {
            let authority = crate::tls::RunAuthority::make().unwrap();
            let roots = crate::trusted::Trusted::in_pem(authority.certificate_pem().as_bytes()).authorities;
            let client = rustls::ClientConfig::builder_with_provider(crate::tls::provider());
            let client = client.with_safe_default_protocol_versions().unwrap();
            let mut client = client.with_root_certificates(roots).with_no_client_auth();
            client.alpn_protocols = vec![protocol.into()];
            let mut audit = tempfile::tempfile().unwrap();
            let rule = "[egress]\nallow = [{ url = \"https://a.example/*\" }]\n";
            let signed =
                (std::sync::Arc::new(audit.try_clone().unwrap()), crate::SigningKey::generate().unwrap().0);
            let options = crate::fixture::options_for(rule);
            let options = crate::GateOptions { authority: Some(authority), audit: Some(signed), ..options };
            let gate = Gate::open(options).unwrap();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = policy::Port::new(listener.local_addr().unwrap().port()).unwrap();
            let theirs = Entrance::at([127, 0, 0, 1].into()).connect(port).await.unwrap();
            let mut agent = Buffered::new(listener.accept().await.unwrap().0);
            let host = policy::Host::parse("a.example").unwrap();
            let port = policy::Port::new(443).unwrap();
            let exchange = super::super::ask(&gate, "CONNECT", "a.example:443".into(), host, port).unwrap();
            let served = async {
                let carried = sniff::sniff(&mut agent, sniff::PATIENCE).await;
                let _ = terminate(&gate, Plane::Forward, exchange, agent, carried).await;
            };
            let breaks_off = async {
                let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(client));
                if is_reset {
                    theirs.set_zero_linger().unwrap();
                }
                let connected = connector.connect("a.example".try_into().unwrap(), theirs).await;
                assert_eq!(connected.is_ok(), outcome == "failed", "{protocol}");
                let Ok(mut stream) = connected else { return };
                if !is_reset {
                    stream.shutdown().await.unwrap();
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
            };
            tokio::join!(served, breaks_off);
            gate.close().unwrap();
            let records = records_in(&mut audit);
            let record = records.lines().find(|line| line.contains("\"CONNECT\"")).unwrap();
            let outcome = format!("\"{outcome}\"");
            assert!(record.contains(&outcome) && record.contains(why), "{protocol}: {record}");
        }
    }
}
