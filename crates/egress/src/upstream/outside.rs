//! Connections for errands of this program's own, which no agent asked for: pulling an image. Names are resolved, authorities
//! trusted and addresses dialled as for everybody else; there is no policy, and nothing to guard against but the other side.

use std::io;

use policy::{Host, Port};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::dial::dial_proxy;
use super::trust::{Offer, Trust};
use crate::gate::Files;
use crate::resolve::Answers;

/// The way to the outside for this program itself.
#[derive(Debug)]
pub struct Outside {
    answers: Answers,
    trust: Trust,
}

impl Outside {
    /// Uses this machine's resolver and authorities.
    #[must_use]
    pub fn new(files: Files) -> Self {
        let (answers, bundle) = files.into_parts();
        Self { answers, trust: Trust::from_bundle(bundle) }
    }

    /// Connects to a host in the clear.
    ///
    /// # Errors
    /// When it has no address, or none of them answers.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let host = Host::parse(host).map_err(|e| io::Error::other(e.to_string()))?;
        let found = self.answers.of(&host).await.map_err(|denial| io::Error::other(denial.reason))?;
        let port = Port::new(port).ok_or(io::ErrorKind::InvalidInput)?;
        dial_proxy(&found, port).await
    }

    /// Connects to a host over TLS, with its certificate verified.
    ///
    /// # Errors
    /// As [`Outside::connect`], and when the certificate is not the host's.
    pub async fn connect_securely(&self, host: &str, port: u16) -> io::Result<TlsStream<TcpStream>> {
        let stream = self.connect(host, port).await?;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.trust.config(Offer::Version1)?).connect(name, stream).await
    }
}
