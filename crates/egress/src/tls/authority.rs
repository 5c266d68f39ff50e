//! The certification authority of one run. Its sidecar makes it at its start, only its sandbox trusts it, and its key never leaves the
//! sidecar's memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use policy::Host;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, SerialNumber, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::provider;

/// The subject of every run's authority. It is fixed, because directories of authorities are indexed by a hash of it.
const NAME: &str = "Lockgate run authority";
const DAY: Duration = Duration::from_secs(24 * 3600);
/// From how long before now a host's certificate is valid: the most that clocks of the host and its guests may differ.
const BEFORE: Duration = DAY;
/// The first and the last year of an authority. It ends with its sidecar, which may serve for years, and may have begun before the clock
/// was set.
const AUTHORITY_YEARS: (i32, i32) = (1970, 2120);
/// How long the certificate of a host is valid, and when it is made anew.
const LEAF_LIFE: Duration = DAY.saturating_mul(7);
const LEAF_RENEWAL: Duration = DAY;
/// How many configurations of hosts are cached.
const MOST_HOSTS: usize = 256;

/// An error as an authority is made or used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A key or certificate could not be made.
    #[error("make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// There is no randomness for a serial number.
    #[error("choose a serial number: the system gives no randomness")]
    Randomness(#[from] aws_lc_rs::error::Unspecified),
    /// The server's side of TLS could not be set up.
    #[error("set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// The authority of one run.
#[derive(Debug)]
pub struct RunAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    /// One key serves all leaves: they are of one run, and a key takes longer to make than a certificate.
    leaf_key: KeyPair,
}

impl RunAuthority {
    /// Makes an authority with a new key.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn make() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let leaf_key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = named(NAME);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let (first, last) = AUTHORITY_YEARS;
        (params.not_before, params.not_after) = (date_time_ymd(first, 1, 1), date_time_ymd(last, 1, 1));
        let certificate = params.self_signed(&key)?;
        let pem = certificate.pem();
        Ok(Self { certificate: certificate.der().clone(), pem, issuer: Issuer::new(params, key), leaf_key })
    }

    /// Returns its certificate in PEM, for the sandbox to trust.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    fn leaf(&self, host: &Host) -> Result<CertificateDer<'static>, AuthorityError> {
        let mut params = CertificateParams::default();
        let text = host.to_string();
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            Host::Address(address) => SanType::IpAddress(*address),
        }];
        // A common name holds 64 characters (RFC 5280, ub-common-name). Clients ignore it.
        params.distinguished_name = named(if text.len() <= 64 { &text } else { "lockgate" });
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial_number()?);
        let now = SystemTime::now();
        // A certificate from before 1970 is malformed to some.
        params.not_before = now.checked_sub(BEFORE).unwrap_or(UNIX_EPOCH).max(UNIX_EPOCH).into();
        params.not_after = (now + LEAF_LIFE).into();
        Ok(params.signed_by(&self.leaf_key, &self.issuer)?.der().clone())
    }
}

/// Chooses a serial number: positive, of 16 octets, and not that of another certificate of this authority (RFC 5280 §4.1.2.2).
fn serial_number() -> Result<SerialNumber, AuthorityError> {
    let mut octets = [0; 16];
    aws_lc_rs::rand::fill(&mut octets)?;
    octets[0] = octets[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&octets))
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// The server configurations of hosts, each made with a leaf certificate at need.
#[derive(Debug)]
pub(crate) struct Leaves {
    authority: RunAuthority,
    configs: RefCell<HashMap<Host, HostConfig>>,
}

/// The server configuration of a host.
#[derive(Debug)]
struct HostConfig {
    config: Arc<ServerConfig>,
    /// By the clock that clients compare certificates with, which goes on while the machine sleeps.
    made: SystemTime,
}

impl HostConfig {
    fn is_fresh(&self) -> bool {
        self.made.elapsed().is_ok_and(|age| age < LEAF_RENEWAL)
    }
}

impl Leaves {
    pub(crate) fn of(authority: RunAuthority) -> Self {
        Self { authority, configs: RefCell::default() }
    }

    /// Returns the configuration that presents a certificate for a host.
    pub(crate) fn config(&self, host: &Host) -> Result<Arc<ServerConfig>, AuthorityError> {
        if let Some(known) = self.configs.borrow().get(host).filter(|known| known.is_fresh()) {
            return Ok(Arc::clone(&known.config));
        }
        let config = Arc::new(self.make(host)?);
        let mut configs = self.configs.borrow_mut();
        if configs.len() >= MOST_HOSTS {
            configs.clear();
        }
        configs.insert(host.clone(), HostConfig { config: Arc::clone(&config), made: SystemTime::now() });
        Ok(config)
    }

    fn make(&self, host: &Host) -> Result<ServerConfig, AuthorityError> {
        let chain = vec![self.authority.leaf(host)?, self.authority.certificate.clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.authority.leaf_key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = [&b"h2"[..], b"http/1.1", b"http/1.0"].map(<[u8]>::to_vec).to_vec();
        config.ignore_client_order = true;
        config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
        config.send_tls13_tickets = 1;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::UnixTime;

    use super::*;

    #[test]
    fn a_host_gets_a_new_certificate_long_before_the_old_one_ends() {
        let leaves = Leaves::of(RunAuthority::make().unwrap());
        let host = Host::parse("api.example.com").unwrap();
        let first = leaves.config(&host).unwrap();
        assert!(Arc::ptr_eq(&first, &leaves.config(&host).unwrap()));
        for made in [SystemTime::now() - LEAF_RENEWAL, SystemTime::now() + DAY] {
            let before = leaves.config(&host).unwrap();
            leaves.configs.borrow_mut().get_mut(&host).unwrap().made = made;
            assert!(!Arc::ptr_eq(&before, &leaves.config(&host).unwrap()), "{made:?}");
        }
    }

    #[test]
    fn an_authority_is_valid_whenever_the_clock_is_set() {
        use crate::certificate::Certificate;
        let authority = RunAuthority::make().unwrap();
        let fields = Certificate::parse(&authority.certificate).unwrap();
        for after in [Duration::ZERO, DAY * 365 * 56, DAY * 365 * 149] {
            assert_eq!(fields.check_dates(UnixTime::since_unix_epoch(after)), Ok(()), "{after:?}");
        }
        let page = include_str!("../../../../docs/providers.md").replace('\n', " ");
        assert!(page.contains(&format!("An authority is valid until {}", AUTHORITY_YEARS.1)));
    }

    #[test]
    fn no_two_certificates_of_a_run_have_one_serial_number() {
        let authority = RunAuthority::make().unwrap();
        let serial = |host: &str| {
            let leaf = authority.leaf(&Host::parse(host).unwrap()).unwrap();
            // SEQUENCE, SEQUENCE, version 3, INTEGER of 16 octets: each length but the last takes two octets.
            let at = leaf.windows(2).position(|it| it == [2, 16]).unwrap();
            assert_eq!(leaf[at - 5..at], [0xa0, 3, 2, 1, 2], "{leaf:x?}");
            leaf[at + 2..at + 18].to_vec()
        };
        let serials = ["a.example", "b.example", "a.example"].map(serial);
        assert!(serials.iter().all(|it| (0x40..0x80).contains(&it[0])), "{serials:x?}");
        assert!(serials[0] != serials[1] && serials[0] != serials[2], "{serials:x?}");
    }
}
