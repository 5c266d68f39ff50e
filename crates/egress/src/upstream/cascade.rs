//! Connects through an upstream proxy: `CONNECT`, in the clear or over TLS, or SOCKS 5.
//!
//! The proxy is asked for the granted name. The name's addresses have been judged before, as far as it resolves here.

use std::io;

use credential::Credential;
use policy::{Host, Port, Proxy, ProxyScheme};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::dial::{Dialled, dial_proxy};
use super::proxy_error::ProxyError;
use super::race::CONNECT;
use super::trust::{Offer, Trust};
use super::{http_connect, socks5};
use crate::cause::cause;
use crate::gate::Gate;
use crate::resolve::Answers;

/// Connects to a host through a proxy that the policy declares, with its credential.
pub(super) async fn through(gate: &Gate, proxy: &Proxy, host: &Host, port: Port) -> io::Result<Dialled> {
    let credential = match &proxy.credential {
        Some(id) => {
            let held = gate.credentials().login_of(id).await;
            Some(held.map_err(|denial| told(proxy, ProxyError::Denied(denial)))?)
        }
        None => None,
    };
    let credential = credential.as_ref().map(|held| held.credential());
    let connector = ProxyConnector { answers: gate.answers(), trust: gate.trust(), credential };
    connector.connect(proxy, host, port).await
}

/// Names the proxy before what it did. One that was reached and opens no connection has refused it.
fn told(proxy: &Proxy, error: ProxyError) -> io::Error {
    let id = &proxy.id;
    match error {
        ProxyError::Own(error) => error,
        ProxyError::Unreachable { what, source } => {
            io::Error::new(source.kind(), format!("proxy {id} {what}: {}", cause(&source)))
        }
        error => io::Error::new(io::ErrorKind::PermissionDenied, format!("proxy {id}: {error}")),
    }
}

/// Connects through proxies: with a resolver for their names, the authorities to verify them, and a credential for them.
pub(super) struct ProxyConnector<'a> {
    pub(super) answers: &'a Answers,
    pub(super) trust: &'a Trust,
    pub(super) credential: Option<&'a Credential>,
}

impl ProxyConnector<'_> {
    /// Connects to a host through a proxy, which may be silent for so long as an upstream's handshake.
    pub(super) async fn connect(&self, proxy: &Proxy, host: &Host, port: Port) -> io::Result<Dialled> {
        match tokio::time::timeout(CONNECT, self.reach(proxy, host, port)).await {
            Ok(reached) => reached.map_err(|error| told(proxy, error)),
            Err(_) => {
                let why = format!("proxy {} did not answer in {} s", proxy.id, CONNECT.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
        }
    }

    async fn reach(&self, proxy: &Proxy, host: &Host, port: Port) -> Result<Dialled, ProxyError> {
        let unreachable = |what| move |source| ProxyError::Unreachable { what, source };
        let found = self.answers.of(&proxy.host).await.map_err(ProxyError::Denied)?;
        proxy.vet(&found).map_err(ProxyError::Denied)?;
        let mut stream = dial_proxy(&found, proxy.port).await.map_err(unreachable("cannot be reached"))?;
        match proxy.scheme {
            ProxyScheme::Http => {
                http_connect::connect(&mut stream, host, port, self.credential).await?;
                Ok(Dialled::Tcp(stream))
            }
            ProxyScheme::Https => {
                let name = match &proxy.host {
                    Host::Name(name) => ServerName::try_from(name.as_str().to_owned())
                        .map_err(|e| ProxyError::Own(io::Error::other(e)))?,
                    Host::Address(address) => ServerName::from(*address),
                };
                let connector =
                    TlsConnector::from(self.trust.config(Offer::Version1).map_err(ProxyError::Own)?);
                let connected = connector.connect(name, stream).await;
                let mut stream = connected.map_err(unreachable("cannot be spoken to over TLS"))?;
                http_connect::connect(&mut stream, host, port, self.credential).await?;
                Ok(Dialled::Tls(Box::new(stream)))
            }
            ProxyScheme::Socks5 => {
                socks5::connect(&mut stream, host, port, self.credential).await?;
                Ok(Dialled::Tcp(stream))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::files::Files;

    #[tokio::test(start_paused = true)]
    async fn a_silent_proxy_is_named_by_whoever_asks_it() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = |scheme| format!("{scheme}://{}", listener.local_addr().unwrap());
        let (answers, bundle, _) = Files::default().into_parts();
        let trust = Trust::from_bundle(bundle);
        let connector = ProxyConnector { answers: &answers, trust: &trust, credential: None };
        let (host, port) = (Host::parse("up.example").unwrap(), Port::new(443).unwrap());
        for scheme in ["http", "socks5"] {
            let proxy = Proxy::parse("corp", &url(scheme), None).unwrap();
            let Err(error) = connector.connect(&proxy, &host, port).await else { panic!("connected") };
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (io::ErrorKind::TimedOut, "proxy corp did not answer in 10 s")
            );
        }
    }
}
