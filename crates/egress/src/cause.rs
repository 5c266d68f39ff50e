//! What an I/O error says to people. The TLS library's own texts are for whoever programs with it: pages of its documentation, lists of
//! numbers, names of its types.

use std::io;

use rustls::CertificateError;

/// Returns what an error says, without where a library's documentation is.
pub(crate) fn cause(error: &io::Error) -> String {
    if let Some(rustls::Error::InvalidCertificate(error)) = tls_error(error)
        && let Some(said) = said_of_certificate(error)
    {
        return format!("its certificate is refused: {said}");
    }
    let text = error.to_string();
    match text.split_once("https://docs.rs/") {
        Some((said, _)) => said.trim_end_matches(|c: char| c.is_whitespace() || c == ':').to_owned(),
        None => text,
    }
}

/// The error of the TLS library in an I/O error.
pub(crate) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// Says why a certificate does not verify; nothing of an error that is too rare for a sentence of its own.
fn said_of_certificate(error: &CertificateError) -> Option<String> {
    use CertificateError as E;
    let said = match error {
        E::BadEncoding => "it cannot be read",
        E::Expired | E::ExpiredContext { .. } => "it, or the one of its issuer, has expired",
        E::NotValidYet | E::NotValidYetContext { .. } => "it, or the one of its issuer, is not valid yet",
        E::Revoked => "it was revoked",
        E::UnhandledCriticalExtension => "it has a critical extension that is not understood",
        E::UnknownIssuer => "no authority in the bundle that is valid has issued it",
        E::BadSignature => {
            "a signature is not its issuer's, or is made with a key that is too short, as RSA below 2048 bits is"
        }
        E::UnsupportedSignatureAlgorithmContext { .. }
        | E::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "it is signed in a way that is not accepted, as SHA-1 is not"
        }
        E::NotValidForName => "it is not for this name",
        E::NotValidForNameContext { expected, .. } => {
            return Some(format!("it is not for {}", expected.to_str()));
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => "it is not for servers",
        E::Other(other) => return said_of_other(&other.to_string()).map(str::to_owned),
        _ => return None,
    };
    Some(said.to_owned())
}

/// The same of an error that the library tells by its text alone.
fn said_of_other(name: &str) -> Option<&'static str> {
    match name {
        "CaUsedAsEndEntity" => {
            Some("it is an authority's own, which a server may present only if the bundle holds it")
        }
        "EndEntityUsedAsCa" => {
            Some("it was issued with the certificate of a server, which is no authority's")
        }
        "PathLenConstraintViolated" => {
            Some("there are more certificates between it and its root than the root allows")
        }
        "NameConstraintViolation" => Some("its issuer may not issue it for this name"),
        "UnsupportedCertVersion" => Some("it is not of version 3"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_is_sent_to_a_librarys_documentation() {
        use tokio_rustls::TlsConnector;
        let trust = rustls::RootCertStore::empty();
        let config = rustls::ClientConfig::builder().with_root_certificates(trust).with_no_client_auth();
        let (ours, theirs) = tokio::io::duplex(4096);
        drop(theirs);
        let connector = TlsConnector::from(std::sync::Arc::new(config));
        let error = connector.connect("a.example".try_into().unwrap(), ours).await.unwrap_err();
        let long = io::Error::other("peer closed connection: \nhttps://docs.rs/rustls/latest/rustls/x");
        assert_eq!(cause(&long), "peer closed connection");
        assert!(!cause(&error).contains("docs.rs") && !cause(&error).is_empty(), "{error}");
        assert_eq!(cause(&io::Error::other("refused by http://a.example:")), "refused by http://a.example:");
    }
    #[test]
    fn why_a_certificate_is_refused_is_told_in_a_sentence() {
        use rustls::OtherError;
        let told = |error: CertificateError| {
            let text =
                cause(&io::Error::new(io::ErrorKind::InvalidData, rustls::Error::InvalidCertificate(error)));
            text.strip_prefix("its certificate is refused: ").unwrap().to_owned()
        };
        let sha_1 = CertificateError::UnsupportedSignatureAlgorithmContext {
            signature_algorithm_id: vec![9; 90],
            supported_algorithms: Vec::new(),
        };
        assert_eq!(told(sha_1), "it is signed in a way that is not accepted, as SHA-1 is not");
        let unknown = told(CertificateError::UnknownIssuer);
        assert_eq!(unknown, "no authority in the bundle that is valid has issued it", "it may have expired");
        assert!(told(CertificateError::BadSignature).contains("RSA below 2048 bits"));
        let name = CertificateError::NotValidForNameContext {
            expected: "a.example".try_into().unwrap(),
            presented: vec!["b.example".into(); 90],
        };
        assert_eq!(told(name), "it is not for a.example");
        let authority = OtherError(std::sync::Arc::new(io::Error::other("CaUsedAsEndEntity")));
        assert!(told(CertificateError::Other(authority)).contains("an authority's own"));
    }
}
