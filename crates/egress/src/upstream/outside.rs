//! Connects for Lockgate's own purposes, which no agent asked for: pulling an image.
//!
//! Names are resolved, certificates verified and addresses dialled as for an agent. There is no policy.

use std::io;

use credential::Credential;
use policy::{Host, HostPattern, Port, Proxy};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::cascade::ProxyConnector;
use super::dial::{Dialled, dial_proxy};
use super::trust::{Offer, Trust};
use crate::cause::cause;
use crate::files::Files;
use crate::resolve::Answers;

/// Connects to outside hosts for Lockgate itself.
#[derive(Debug)]
pub struct Outside {
    answers: Answers,
    trust: Trust,
}

/// A proxy to the outside, and the hosts that are reached without it.
#[derive(Debug)]
pub struct Detour {
    /// The proxy.
    pub proxy: Proxy,
    /// Its user and password, in the fields `username` and `password`.
    pub credential: Option<Credential>,
    /// The hosts that are reached without it, beside this machine, which always is.
    pub direct: Vec<HostPattern>,
}

impl Detour {
    fn leads_to(&self, host: &Host) -> bool {
        let here = match host {
            Host::Address(address) => address.is_loopback(),
            Host::Name(name) => name.as_str() == "localhost",
        };
        !here && !self.direct.iter().any(|pattern| pattern.matches(host))
    }
}

impl Outside {
    /// Uses this machine's resolver and certification authorities.
    #[must_use]
    pub fn new(files: Files) -> Self {
        let (answers, bundle, _) = files.into_parts();
        Self { answers, trust: Trust::from_bundle(bundle) }
    }

    /// Connects to a host in the clear, through the proxy unless the host is reached without it.
    ///
    /// # Errors
    /// When the host has no address, no address answers, or the proxy refuses.
    pub async fn connect(
        &self,
        host: &str,
        port: u16,
        detour: Option<&Detour>,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>> {
        self.reach(host, port, detour).await
    }

    /// Connects to a host over TLS, with its certificate verified.
    ///
    /// # Errors
    /// As [`Outside::connect`], and when the certificate does not verify for the host.
    pub async fn connect_securely(
        &self,
        host: &str,
        port: u16,
        detour: Option<&Detour>,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>> {
        let stream = self.reach(host, port, detour).await?;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.trust.config(Offer::Version1)?)
            .connect(name, stream)
            .await
            .map_err(|error| io::Error::new(error.kind(), cause(&error)))
    }

    async fn reach(&self, host: &str, port: u16, detour: Option<&Detour>) -> io::Result<Dialled> {
        let host = Host::parse(host).map_err(|e| io::Error::other(e.to_string()))?;
        let port = Port::new(port).ok_or(io::ErrorKind::InvalidInput)?;
        if let Some(detour) = detour.filter(|detour| detour.leads_to(&host)) {
            let credential = detour.credential.as_ref();
            let connector = ProxyConnector { answers: &self.answers, trust: &self.trust, credential };
            return connector.connect(&detour.proxy, &host, port).await;
        }
        let found = self.answers.of(&host).await.map_err(|denial| io::Error::other(denial.reason))?;
        dial_proxy(&found, port).await.map(Dialled::Tcp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_and_what_is_named_are_reached_without_it() {
        let proxy = Proxy::parse("p", "http://proxy.example:3128", None).unwrap();
        let direct = vec![HostPattern::parse("**.inside.example").unwrap()];
        let detour = Detour { proxy, credential: None, direct };
        let leads_to = |host: &str| detour.leads_to(&Host::parse(host).unwrap());
        for direct in ["localhost", "127.0.0.1", "127.9.9.9", "a.inside.example"] {
            assert!(!leads_to(direct), "{direct}");
        }
        assert!(leads_to("registry.example") && leads_to("192.0.2.1"));
    }
}
