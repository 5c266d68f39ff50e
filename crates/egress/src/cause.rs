//! What an I/O error says to people. The TLS library's own texts are for whoever programs with it: pages of its documentation, lists of
//! numbers, names of its types.

use std::io;

use rustls::CertificateError;

/// Returns what an error says, without where a library's documentation is.
pub(crate) fn cause(error: &io::Error) -> String {
    if let Some(said) = tls_error(error).and_then(said_of_tls) {
        return said;
    }
    let text = error.to_string();
    // The words of the library for a connection that ends in the handshake.
    if text == "tls handshake eof" {
        return "it hung up before TLS was agreed".to_owned();
    }
    match text.split_once("https://docs.rs/") {
        Some((said, _)) => said.trim_end_matches(|c: char| c.is_whitespace() || c == ':').to_owned(),
        None => text,
    }
}

/// The error of the TLS library in an I/O error.
pub(crate) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// Says why TLS was not agreed; nothing of an error that is too rare for a sentence of its own.
fn said_of_tls(error: &rustls::Error) -> Option<String> {
    use rustls::{AlertDescription as A, Error as E, InvalidMessage};
    let said = match error {
        E::InvalidCertificate(error) => {
            return Some(format!("its certificate is refused: {}", said_of_certificate(error)?));
        }
        E::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "what it answers is no TLS: it may speak in the clear there, or something on the way answers in its place"
        }
        E::AlertReceived(A::ProtocolVersion) => {
            "it takes neither TLS 1.2 nor TLS 1.3, and no other is spoken here"
        }
        E::AlertReceived(A::HandshakeFailure) => {
            "it takes none of the ways of TLS that are spoken here, or wants a certificate of the client's"
        }
        _ => return None,
    };
    Some(said.to_owned())
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
        E::UnknownIssuer => {
            "no authority in the bundle that is valid has issued it; if your organisation issues its own, name a file with its authority \
             by SSL_CERT_FILE"
        }
        E::BadSignature => {
            "a signature is not its issuer's, or is made with a key that is too short, as RSA below 2048 bits is"
        }
        E::UnsupportedSignatureAlgorithmContext { .. }
        | E::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "it is signed in a way that is not accepted, as SHA-1 is not"
        }
        E::NotValidForName => "it is not for this name",
        E::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            "it names no host among its alternative names, and its common name does not count"
        }
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
        assert!(
            unknown.starts_with("no authority in the bundle that is valid has issued it"),
            "it may have expired"
        );
        assert!(unknown.contains("SSL_CERT_FILE"), "{unknown}");
        assert!(told(CertificateError::BadSignature).contains("RSA below 2048 bits"));
        let name = |presented| CertificateError::NotValidForNameContext {
            expected: "a.example".try_into().unwrap(),
            presented,
        };
        assert_eq!(told(name(vec!["b.example".into(); 90])), "it is not for a.example");
        assert!(told(name(Vec::new())).contains("its common name does not count"));
        let authority = OtherError(std::sync::Arc::new(io::Error::other("CaUsedAsEndEntity")));
        assert!(told(CertificateError::Other(authority)).contains("an authority's own"));
    }

    #[test]
    fn why_tls_is_not_agreed_is_told_in_a_sentence() {
        use rustls::{AlertDescription, InvalidMessage};
        for (error, told) in [
            (InvalidMessage::InvalidContentType.into(), "what it answers is no TLS"),
            (rustls::Error::AlertReceived(AlertDescription::ProtocolVersion), "it takes neither TLS 1.2"),
            (rustls::Error::AlertReceived(AlertDescription::HandshakeFailure), "it takes none of the ways"),
        ] {
            let said = cause(&io::Error::new(io::ErrorKind::InvalidData, error));
            assert!(said.starts_with(told), "{said}");
        }
        let hung_up = io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof");
        assert_eq!(cause(&hung_up), "it hung up before TLS was agreed");
    }
}
