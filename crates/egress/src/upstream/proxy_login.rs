//! The login for a proxy.

use credential::Credential;

use super::proxy_error::ProxyError;
use crate::credentials::{PASSWORD, USERNAME};

/// Returns the user and the password for a proxy. Both must be set: an empty one would be another identity.
pub(super) fn login(credential: &Credential) -> Result<(&[u8], &[u8]), ProxyError> {
    let field = |name| match credential.field(name) {
        Some(secret) => Ok(secret.expose()),
        None => Err(ProxyError::NoField(name)),
    };
    Ok((field(USERNAME)?, field(PASSWORD)?))
}

#[cfg(test)]
mod tests {
    use policy::{Host, Port};
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::upstream::{http_connect, socks5};

    #[tokio::test]
    async fn a_credential_without_a_field_is_not_sent_with_an_empty_one() {
        let mut credential = Credential::default();
        let name = credential::Value::new(credential::Secret::from_text("bob".into())).unwrap();
        credential.set("username".parse().unwrap(), name);
        let (host, port) = (Host::parse("up.example").unwrap(), Port::new(443).unwrap());
        let (mut ours, mut theirs) = tokio::io::duplex(64 * 1024);
        theirs.write_all(b"\x05\x02").await.unwrap();
        let missing = |done: Result<(), ProxyError>| matches!(done, Err(ProxyError::NoField("password")));
        assert!(missing(http_connect::connect(&mut ours, &host, port, Some(&credential)).await));
        assert!(missing(socks5::connect(&mut ours, &host, port, Some(&credential)).await));
    }
}
