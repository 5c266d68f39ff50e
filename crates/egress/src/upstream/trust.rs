//! Which authorities vouch for an upstream. Certificates are always verified; there is no switch for it.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, OnceLock};

use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, pem::PemObject};

use crate::tls;

/// The largest bundle of authorities that is read.
const LARGEST_BUNDLE: u64 = 8 << 20;

/// The protocols that are offered to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Offer {
    /// HTTP/1.1 alone.
    Version1,
    /// HTTP/2, and HTTP/1.1 for those who do not speak it.
    Version2,
}

/// The authorities, read at the first need from a file that was opened before the sidecar was shut in.
#[derive(Debug)]
pub(crate) struct Trust {
    bundle: RefCell<Option<File>>,
    configs: OnceLock<Result<[Arc<ClientConfig>; 2], String>>,
}

impl Trust {
    pub(crate) fn from_bundle(bundle: Option<File>) -> Self {
        Self { bundle: RefCell::new(bundle), configs: OnceLock::new() }
    }

    pub(crate) fn config(&self, offer: Offer) -> io::Result<Arc<ClientConfig>> {
        let configs = self
            .configs
            .get_or_init(|| self.build())
            .as_ref()
            .map_err(|why| io::Error::other(why.clone()))?;
        Ok(Arc::clone(&configs[usize::from(offer == Offer::Version2)]))
    }

    fn build(&self) -> Result<[Arc<ClientConfig>; 2], String> {
        let mut roots = rustls::RootCertStore::empty();
        if let Some(bundle) = self.bundle.borrow_mut().take() {
            let mut pem = Vec::new();
            bundle
                .take(LARGEST_BUNDLE)
                .read_to_end(&mut pem)
                .map_err(|e| format!("read the authorities: {e}"))?;
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten());
        }
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let mut config = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut both = config.clone();
        both.alpn_protocols.insert(0, b"h2".to_vec());
        Ok([Arc::new(config), Arc::new(both)])
    }
}
