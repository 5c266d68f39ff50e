//! Verifies the certificate of an upstream. One that the bundle itself holds is trusted for the names in it, whoever issued it; any other
//! by an authority of the bundle's.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::certificate::Certificate;
use crate::tls;
use crate::trusted::Trusted;

/// Verifies upstreams against what a bundle is trusted for.
#[derive(Debug)]
pub(super) struct Verifier {
    trusted: Trusted,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(super) fn by(trusted: Trusted) -> Self {
        Self { trusted, algorithms: tls::provider().signature_verification_algorithms }
    }

    fn holds(&self, certificate: &CertificateDer<'_>) -> bool {
        self.trusted.servers.iter().any(|held| held[..] == certificate[..])
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(presented)?;
        if self.holds(presented) {
            Certificate::parse(presented).ok_or(CertificateError::BadEncoding)?.check_as_server(now)?;
        } else {
            let signed_by = |authorities: &RootCertStore| {
                let algorithms = self.algorithms.all;
                verify_server_cert_signed_by_trust_anchor(
                    &parsed,
                    authorities,
                    intermediates,
                    now,
                    algorithms,
                )
            };
            match signed_by(&self.trusted.authorities) {
                Err(Error::InvalidCertificate(CertificateError::UnknownIssuer))
                    if !self.trusted.early.is_empty() =>
                {
                    signed_by(&self.trusted.no_longer_early(now))?;
                }
                verified => verified?,
            }
        }
        verify_server_name(&parsed, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    use super::*;

    fn params(name: &str, is_ca: IsCa) -> CertificateParams {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.is_ca = is_ca;
        params
    }

    /// What a verifier says of a certificate, with what the bundle holds, for a name.
    fn verdict(
        held: &CertificateDer<'static>,
        presented: &CertificateDer<'_>,
        name: &str,
    ) -> Result<(), Error> {
        let now = UnixTime::now();
        let verifier = Verifier::by(Trusted::among(std::iter::once(held.clone()), now));
        let name = ServerName::try_from(name).unwrap();
        verifier.verify_server_cert(presented, &[], &name, &[], now).map(drop)
    }

    #[test]
    fn a_server_that_the_bundle_holds_is_trusted_for_itself_alone() {
        let is_refused_as = |verdict: Result<(), Error>, wanted: fn(&CertificateError) -> bool| {
            assert!(matches!(&verdict, Err(Error::InvalidCertificate(why)) if wanted(why)), "{verdict:?}");
        };
        for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
            let may_issue = matches!(is_ca, IsCa::Ca(_));
            let held = params("a.example", is_ca);
            let key = KeyPair::generate().unwrap();
            let certificate = held.self_signed(&key).unwrap().der().clone();
            assert_eq!(verdict(&certificate, &certificate, "a.example"), Ok(()));
            is_refused_as(verdict(&certificate, &certificate, "b.example"), |why| {
                matches!(why, CertificateError::NotValidForNameContext { .. })
            });
            // Whoever has its key may issue nothing with it, unless it is an authority.
            let other = params("b.example", IsCa::NoCa);
            let issued = other.signed_by(&KeyPair::generate().unwrap(), &Issuer::from_params(&held, &key));
            let issued = verdict(&certificate, issued.unwrap().der(), "b.example");
            match may_issue {
                true => assert_eq!(issued, Ok(())),
                false => is_refused_as(issued, |why| *why == CertificateError::UnknownIssuer),
            }
        }
        let of = |change: fn(&mut CertificateParams)| {
            let mut params = params("a.example", IsCa::NoCa);
            change(&mut params);
            let held = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone();
            verdict(&held, &held, "a.example")
        };
        is_refused_as(of(|it| it.not_after = rcgen::date_time_ymd(2001, 1, 1)), |why| {
            *why == CertificateError::Expired
        });
        is_refused_as(of(|it| it.not_before = rcgen::date_time_ymd(2100, 1, 1)), |why| {
            *why == CertificateError::NotValidYet
        });
        is_refused_as(of(|it| it.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]), |why| {
            *why == CertificateError::InvalidPurpose
        });
        assert_eq!(of(|it| it.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]), Ok(()));
    }

    #[test]
    fn an_authority_that_was_early_counts_once_the_clock_is_set() {
        let mut root = params("root.example", IsCa::Ca(BasicConstraints::Unconstrained));
        (root.not_before, root.not_after) =
            (rcgen::date_time_ymd(2000, 1, 1), rcgen::date_time_ymd(2030, 1, 1));
        let key = KeyPair::generate().unwrap();
        let held = root.self_signed(&key).unwrap().der().clone();
        let leaf = params("a.example", IsCa::NoCa);
        let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &Issuer::from_params(&root, &key)).unwrap();
        let at = |years: u64| UnixTime::since_unix_epoch(Duration::from_secs(years * 365 * 24 * 3600));
        let verifier = Verifier::by(Trusted::among(std::iter::once(held), at(0)));
        let name = ServerName::try_from("a.example").unwrap();
        for (years, is_verified) in [(0, false), (20, false), (40, true), (70, false)] {
            let verdict = verifier.verify_server_cert(leaf.der(), &[], &name, &[], at(years));
            assert_eq!(verdict.is_ok(), is_verified, "{years} years after 1970: {verdict:?}");
        }
    }
}
