//! A certificate for a test server, and the authority that signs it and nothing else, in files of a temporary directory.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

/// A server's certificate, its key, and its authority.
#[derive(Debug)]
pub struct Certificate {
    directory: TempDir,
    server: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Certificate {
    /// Makes a certificate for one name, from a new authority.
    ///
    /// # Panics
    /// When it cannot be made or written.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "An authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().expect("a key");
        let authority = params.self_signed(&authority_key).expect("a certificate");
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("a name");
        let server = params.signed_by(&key, &issuer).expect("a certificate");

        let directory =
            tempfile::Builder::new().prefix("lockgate-certificate-").tempdir().expect("a directory");
        let texts = [
            ("authority.pem", authority.pem()),
            ("server.pem", server.pem()),
            ("server.key", key.serialize_pem()),
        ];
        for (file, text) in texts {
            fs::write(directory.path().join(file), text).expect("a file");
        }
        Self { directory, server: server.der().clone(), key: key.serialize_der() }
    }

    /// The path of the authority's certificate, for `SSL_CERT_FILE`.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }

    /// The path of the certificate.
    pub(crate) fn server(&self) -> PathBuf {
        self.directory.path().join("server.pem")
    }

    /// The path of its key.
    pub(crate) fn key(&self) -> PathBuf {
        self.directory.path().join("server.key")
    }

    /// Returns the configuration of the server's side of TLS.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let key = PrivateKeyDer::try_from(self.key.clone()).expect("it was made so");
        let config = config.expect("versions").with_no_client_auth();
        Arc::new(config.with_single_cert(vec![self.server.clone()], key).expect("they belong together"))
    }
}
