//! Certificates: the upstream's own, which the sidecar is told to trust, and the configuration of an agent that trusts the run's
//! authority.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Returns a host's TLS configuration, for HTTP/1.1 alone, and its certificate in PEM.
pub(crate) fn host(name: &str) -> (Arc<ServerConfig>, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("there is randomness");
    let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).expect("a key");
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("both versions are known")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("the key is the certificate's");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    (Arc::new(config), made.cert.pem())
}

/// Returns an agent's TLS configuration, for HTTP/2 alone, which trusts one authority.
pub(crate) fn agent(authority: &str) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(authority.as_bytes()).flatten());
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("both versions are known")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}
