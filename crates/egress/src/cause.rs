//! What an I/O error says to people. The TLS library ends some of its texts with a page of its own documentation, which is for whoever
//! programs with it.

use std::io;

/// Returns what an error says, without where a library's documentation is.
pub(crate) fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once("https://docs.rs/") {
        Some((said, _)) => said.trim_end_matches(|c: char| c.is_whitespace() || c == ':').to_owned(),
        None => text,
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
}
