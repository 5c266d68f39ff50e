//! Verifies upstream certificates against a bundle of authorities. Verification cannot be switched off.

use std::cell::RefCell;
use std::io::{self, Read};
use std::sync::{Arc, OnceLock};

use rustls::ClientConfig;

use super::verify::Verifier;
use crate::files::{Bundle, LARGEST_BUNDLE};
use crate::tls;
use crate::trusted::{Trusted, certificates_in};

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
        let trusted = trusted_by(self.bundle.take())?;
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

/// Reads what a bundle is trusted for. The public authorities take the place of one that holds no certificate; what it holds may be valid
/// no more, or not yet by the clock of this machine, and to trust others in its place would trust them unasked.
fn trusted_by(bundle: Bundle) -> Result<Trusted, String> {
    let (file, is_named) = match bundle {
        Bundle::Named(file) => (file, true),
        Bundle::Usual(file) => (file, false),
        Bundle::BuiltIn => return Ok(public()),
    };
    let mut pem = Vec::new();
    file.take(LARGEST_BUNDLE).read_to_end(&mut pem).map_err(|e| format!("read the authorities: {e}"))?;
    let trusted = Trusted::in_pem(&pem);
    if trusted.is_empty() && is_named {
        return Err("read the authorities: the file that SSL_CERT_FILE names holds none any more".into());
    }
    Ok(if certificates_in(&pem).next().is_none() { public() } else { trusted })
}

/// Trusts the authorities that are compiled in.
fn public() -> Trusted {
    let mut trusted = Trusted::nothing();
    trusted.authorities.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    trusted
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Seek, Write};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    fn holding(text: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn public_authorities_take_the_place_of_none_that_is_not_valid_now() {
        let root = |from, to| {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            (params.not_before, params.not_after) =
                (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(to, 1, 1));
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        let public = public().authorities.len();
        for (text, usual, named) in [
            (String::new(), Some(public), None),
            ("authorities\n".to_owned(), Some(public), None),
            (root(2000, 2001), Some(0), None),
            (root(2100, 2101), Some(0), Some(0)),
            (root(2000, 2100), Some(1), Some(1)),
            (root(2000, 2001) + &root(2000, 2100), Some(1), Some(1)),
        ] {
            let counted = |bundle| trusted_by(bundle).ok().map(|trusted| trusted.authorities.len());
            assert_eq!(counted(Bundle::Usual(holding(&text))), usual, "{text}");
            assert_eq!(counted(Bundle::Named(holding(&text))), named, "{text}");
        }
        assert_eq!(trusted_by(Bundle::BuiltIn).unwrap().authorities.len(), public);
    }
}
