//! Verifies upstream certificates against a bundle of authorities. Verification cannot be switched off.

use std::cell::RefCell;
use std::io::{self, Read};
use std::sync::{Arc, OnceLock};

use rustls::ClientConfig;

use super::verify::Verifier;
use crate::files::{Bundle, LARGEST_BUNDLE};
use crate::tls;
use crate::trusted::Trusted;

/// The protocols that ALPN offers to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Offer {
    /// HTTP/1.1 alone.
    Version1,
    /// HTTP/2 and HTTP/1.1.
    Version2,
}

/// The trusted authorities, read at first need from a file that was opened before the sidecar was confined.
#[derive(Debug)]
pub(crate) struct Trust {
    bundle: RefCell<Bundle>,
    configs: OnceLock<Result<[Arc<ClientConfig>; 2], String>>,
}

impl Trust {
    pub(crate) fn from_bundle(bundle: Bundle) -> Self {
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
        let bundle = self.bundle.take();
        let is_named = matches!(bundle, Bundle::Named(_));
        let mut trusted = match bundle {
            Bundle::Named(file) | Bundle::Usual(file) => {
                let mut pem = Vec::new();
                file.take(LARGEST_BUNDLE)
                    .read_to_end(&mut pem)
                    .map_err(|e| format!("read the authorities: {e}"))?;
                Trusted::in_pem(&pem)
            }
            Bundle::BuiltIn => Trusted::nothing(),
        };
        if trusted.is_empty() && is_named {
            return Err("read the authorities: the file that SSL_CERT_FILE names holds none any more".into());
        }
        if trusted.is_empty() {
            trusted.authorities.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let mut config = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier::by(trusted)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut both = config.clone();
        both.alpn_protocols.insert(0, b"h2".to_vec());
        Ok([Arc::new(config), Arc::new(both)])
    }
}
