//! The world's own certificate authority, which the command is told to trust, and a certificate for any requested name, in the states a
//! client may meet. Keys live in memory only and die with the world.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::{Duration, OffsetDateTime};

use crate::addresses::{IP_ONLY, WEB4, WEB6};
use crate::error::Error;

/// How a certificate looks to a client that checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Face {
    /// Valid for the requested name.
    Honest,
    /// Valid but for the name.
    OtherName,
    /// Expired years ago.
    Expired,
    /// Self-signed.
    SelfSigned,
    /// Signed by an authority that no client trusts.
    UnknownAuthority,
    /// Valid for the address, and for no name.
    AddressOnly,
}

/// The only name whose server speaks HTTP/2 as well.
const PROTOCOLS: &str = "protocols.example";

/// The key of a certificate: the server's face and the requested name, in lower case.
type Asked = (Face, Option<String>);

/// The authority and the server settings it has made so far.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The untrusted authority.
    stranger: Issuer<'static, KeyPair>,
    pem: String,
    offered: Mutex<HashMap<Asked, Arc<ServerConfig>>>,
}

impl Authority {
    /// Makes a new authority with a new key.
    pub(crate) fn new() -> Result<Self, Error> {
        let (issuer, pem) = new_issuer("Lockgate test world")?;
        let (stranger, _) = new_issuer("An authority that nobody knows")?;
        Ok(Self { issuer, stranger, pem, offered: Mutex::default() })
    }

    /// The authority's certificate.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// Writes `ca.pem` into `directory`.
    pub(crate) fn publish(&self, directory: &Path) -> Result<(), Error> {
        let path = directory.join("ca.pem");
        fs::write(&path, &self.pem).map_err(Error::file(path))
    }

    /// Returns the configuration for a client that requested `name` at a server with this face.
    pub(crate) fn offer(&self, face: Face, name: Option<&str>) -> Result<Arc<ServerConfig>, Error> {
        let key = (face, name.map(str::to_ascii_lowercase));
        let mut offered = self.offered.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(config) = offered.get(&key) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.config(face, key.1.as_deref())?);
        offered.insert(key, Arc::clone(&config));
        Ok(config)
    }

    fn config(&self, face: Face, name: Option<&str>) -> Result<ServerConfig, Error> {
        let refused = |source| Error::Certificate { source };
        let names = match (face, name) {
            (Face::OtherName, _) => vec!["other.example.net".to_owned()],
            (Face::AddressOnly, _) => vec![IP_ONLY.to_string()],
            (_, Some(name)) => vec![name.to_owned()],
            (_, None) => ["example.com", "*.example.com", "example.org", "*.example.org"]
                .map(str::to_owned)
                .into_iter()
                .chain([WEB4.to_string(), WEB6.to_string()])
                .collect(),
        };
        let mut parameters = CertificateParams::new(names.clone()).map_err(refused)?;
        parameters.distinguished_name = common_name(&names[0]);
        parameters.use_authority_key_identifier_extension = true;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        (parameters.not_before, parameters.not_after) = match face {
            Face::Expired => (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 2, 1)),
            _ => around_now(),
        };
        let key = KeyPair::generate().map_err(refused)?;
        let certificate = match face {
            Face::SelfSigned => parameters.self_signed(&key),
            Face::UnknownAuthority => parameters.signed_by(&key, &self.stranger),
            Face::Honest | Face::OtherName | Face::Expired | Face::AddressOnly => {
                parameters.signed_by(&key, &self.issuer)
            }
        }
        .map_err(refused)?;
        let mut config = server_config(certificate.der().clone(), &key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if name == Some(PROTOCOLS) {
            config.alpn_protocols.insert(0, b"h2".to_vec());
        }
        Ok(config)
    }
}

/// Makes a new authority and its certificate.
fn new_issuer(name: &str) -> Result<(Issuer<'static, KeyPair>, String), Error> {
    let refused = |source| Error::Certificate { source };
    let key = KeyPair::generate().map_err(refused)?;
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters.distinguished_name = common_name(name);
    (parameters.not_before, parameters.not_after) = around_now();
    let pem = parameters.self_signed(&key).map_err(refused)?.pem();
    Ok((Issuer::new(parameters, key), pem))
}

fn server_config(certificate: CertificateDer<'static>, key: &KeyPair) -> Result<ServerConfig, Error> {
    let refused = |source| Error::Tls { source };
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(refused)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// Returns a validity from yesterday for a month: some clients refuse a certificate that is valid for years.
fn around_now() -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    (now - Duration::days(1), now + Duration::days(30))
}
