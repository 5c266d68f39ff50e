//! The certificates of a bundle, by what each is trusted for.

use rustls::pki_types::{CertificateDer, UnixTime, pem::PemObject};
use rustls::{CertificateError, RootCertStore};

use crate::certificate::Certificate;

/// What a bundle is trusted for.
#[derive(Debug)]
pub(crate) struct Trusted {
    /// The authorities: certificates that may issue others, and were valid when they were read.
    pub(crate) authorities: RootCertStore,
    /// Authorities that were not valid yet. The clock may have been wrong, and is set while the sidecar serves.
    pub(crate) early: Vec<CertificateDer<'static>>,
    /// The certificates that name a server. It may present them, whoever issued them.
    pub(crate) servers: Vec<CertificateDer<'static>>,
}

impl Trusted {
    /// Trusts nothing.
    pub(crate) fn nothing() -> Self {
        Self { authorities: RootCertStore::empty(), early: Vec::new(), servers: Vec::new() }
    }

    /// Sorts certificates, and leaves out those that are neither.
    pub(crate) fn among(certificates: impl Iterator<Item = CertificateDer<'static>>, now: UnixTime) -> Self {
        let mut trusted = Self::nothing();
        for certificate in certificates {
            let Some(fields) = Certificate::parse(&certificate) else { continue };
            match fields.check_dates(now) {
                // What the library cannot read is no authority.
                Ok(()) if fields.is_authority() => drop(trusted.authorities.add(certificate.clone())),
                Err(CertificateError::NotValidYet) if fields.is_authority() => {
                    trusted.early.push(certificate.clone());
                }
                _ => {}
            }
            if fields.names_server() {
                trusted.servers.push(certificate);
            }
        }
        trusted
    }

    /// Sorts the certificates in a PEM text, and skips anything else.
    pub(crate) fn in_pem(pem: &[u8]) -> Self {
        Self::among(certificates_in(pem), UnixTime::now())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.authorities.is_empty() && self.early.is_empty() && self.servers.is_empty()
    }

    /// Returns the early authorities that are valid now.
    pub(crate) fn no_longer_early(&self, now: UnixTime) -> RootCertStore {
        Self::among(self.early.iter().cloned(), now).authorities
    }
}

/// Returns the certificates in a PEM text.
pub(crate) fn certificates_in(pem: &[u8]) -> impl Iterator<Item = CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).flatten()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

    use super::*;

    /// A root of version 1, valid from the end of 2026 on, and a certificate of that version which it issued.
    const VERSION_1: &str = "-----BEGIN CERTIFICATE-----
MIIBFjCBvQIUYoMY6onmr2A8i+a25sFl879KOVkwCgYIKoZIzj0EAwIwDTELMAkG
A1UEAwwCdjEwIBcNMjYxMTI5MTk0ODAyWhgPMjEyNjExMDUxOTQ4MDJaMA0xCzAJ
BgNVBAMMAnYxMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEqy4mzOS3NaoXN6gL
9ozz8a1cH2/EB/ALbLNYRM1SplU38kxrGHiA4IFW1xSwmXFPwxhhBOT8fX7PenuD
9mXPtjAKBggqhkjOPQQDAgNIADBFAiB7nky++Bvb9SlzgB59tk0Xq423WSF/kYXP
1iVq/HoXqAIhAMK4PIMBeG7ltlhvgPjmeSERbViAMnThOnTuhC+gFiaf
-----END CERTIFICATE-----
-----BEGIN CERTIFICATE-----
MIIBCDCBrwIBBzAKBggqhkjOPQQDAjANMQswCQYDVQQDDAJ2MTAgFw0yNjExMjkx
OTQ4MDJaGA8yMTI2MTEwNTE5NDgwMlowEjEQMA4GA1UEAwwHdjFvdGhlcjBZMBMG
ByqGSM49AgEGCCqGSM49AwEHA0IABKsuJszktzWqFzeoC/aM8/GtXB9vxAfwC2yz
WETNUqZVN/JMaxh4gOCBVtcUsJlxT8MYYQTk/H1+z3p7g/Zlz7YwCgYIKoZIzj0E
AwIDSAAwRQIhALqRV6J3EVfqewcSMiLwjbjeLsG7js1s4bA21INtq4yAAiBJbCDE
JYP9NwMBNUikCacxC98NdaBlyHjdYY0W+sJztQ==
-----END CERTIFICATE-----
";
    const YEAR: u64 = 365 * 24 * 3600;

    fn after_1970(years: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(years * YEAR))
    }

    /// How many authorities and servers a certificate with these fields is.
    fn counted(change: impl FnOnce(&mut CertificateParams)) -> (usize, usize) {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        (params.not_before, params.not_after) =
            (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2080, 1, 1));
        change(&mut params);
        let issuer = CertificateParams::default();
        let issuer = Issuer::new(issuer, KeyPair::generate().unwrap());
        let key = KeyPair::generate().unwrap();
        let alone = params.self_signed(&key).unwrap();
        let issued = params.signed_by(&key, &issuer).unwrap();
        let found = [alone, issued].map(|it| {
            let trusted = Trusted::among([it.der().clone()].into_iter(), after_1970(60));
            (trusted.authorities.len(), trusted.servers.len())
        });
        assert_eq!(found[0], found[1], "whoever issued it");
        found[0]
    }

    #[test]
    fn an_authority_is_what_says_so_and_may_sign_now() {
        let root = |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        assert_eq!(counted(root), (1, 1));
        assert_eq!(counted(|_| {}), (0, 1), "it says nothing of it");
        assert_eq!(counted(|it| it.is_ca = IsCa::ExplicitNoCa), (0, 1), "a server's, as people name one");
        for (usage, count) in [(KeyUsagePurpose::KeyCertSign, 1), (KeyUsagePurpose::DigitalSignature, 0)] {
            let with_usage = |params: &mut CertificateParams| {
                root(params);
                params.key_usages = vec![usage];
            };
            assert_eq!(counted(with_usage), (count, 1));
        }
        for (from, to) in [(2020, 2025), (2040, 2050)] {
            let dated = |params: &mut CertificateParams| {
                root(params);
                (params.not_before, params.not_after) =
                    (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(to, 1, 1));
                params.subject_alt_names.clear();
            };
            assert_eq!(counted(dated), (0, 0), "from {from} to {to}");
            let early = |at: u64| {
                let mut params = CertificateParams::default();
                dated(&mut params);
                let root = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
                Trusted::among(std::iter::once(root.der().clone()), after_1970(at))
            };
            assert_eq!(early(60).early.len(), usize::from(from == 2040), "from {from} to {to}");
            for (then, count) in [(69, 0), (75, 1), (85, 0)] {
                let valid = early(45).no_longer_early(after_1970(then)).len();
                assert_eq!(valid, if from == 2040 { count } else { 0 }, "after {then} years");
            }
        }
    }

    #[test]
    fn what_does_not_say_that_it_is_an_authority_is_a_root_by_its_own_name_and_use() {
        use KeyUsagePurpose::{DigitalSignature, KeyCertSign};
        let issuer = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
        for (is_ca, usages, of_own_name) in [
            (IsCa::NoCa, vec![KeyCertSign], 1),
            (IsCa::NoCa, vec![DigitalSignature, KeyCertSign], 1),
            (IsCa::NoCa, vec![DigitalSignature], 0),
            (IsCa::NoCa, Vec::new(), 0),
            (IsCa::ExplicitNoCa, vec![KeyCertSign], 0),
        ] {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, "its own");
            (params.is_ca, params.key_usages) = (is_ca, usages.clone());
            let key = KeyPair::generate().unwrap();
            let pair = [params.self_signed(&key).unwrap(), params.signed_by(&key, &issuer).unwrap()];
            let counts = pair.map(|it| {
                Trusted::among(std::iter::once(it.der().clone()), after_1970(60)).authorities.len()
            });
            assert_eq!(counts, [of_own_name, 0], "{usages:?}");
        }
    }

    #[test]
    fn a_root_of_version_1_is_one_by_its_own_name() {
        let mut certificates = certificates_in(VERSION_1.as_bytes());
        let mut count = || {
            let next = certificates.next().unwrap();
            let trusted = Trusted::among(std::iter::once(next), after_1970(60));
            (trusted.authorities.len(), trusted.servers.len())
        };
        assert_eq!((count(), count()), ((1, 0), (0, 0)));
    }
}
