//! Asks a SOCKS 5 proxy for a connection (RFC 1928).

use credential::Credential;
use policy::{Host, Port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zeroize::Zeroizing;

use super::proxy_error::ProxyError;
use super::proxy_login::login;
use crate::duplex::Duplex;

/// Asks a proxy for a connection.
pub(super) async fn connect(
    stream: &mut impl Duplex,
    host: &Host,
    port: Port,
    credential: Option<&Credential>,
) -> Result<(), ProxyError> {
    authenticate(stream, credential).await?;
    stream.write_all(&request(host, port)?).await?;
    reply(stream).await
}

/// Agrees on a method of authentication, and sends user and password if there is a credential and the proxy wants it (RFC 1929).
async fn authenticate(stream: &mut impl Duplex, credential: Option<&Credential>) -> Result<(), ProxyError> {
    const NO_AUTHENTICATION: u8 = 0;
    const USER_AND_PASSWORD: u8 = 2;
    const NONE_ACCEPTABLE: u8 = 0xff;
    // The login first: some proxies take the first method that they know.
    let offer: &[u8] = match credential {
        Some(_) => &[5, 2, USER_AND_PASSWORD, NO_AUTHENTICATION],
        None => &[5, 1, NO_AUTHENTICATION],
    };
    stream.write_all(offer).await?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await?;
    let credential = match (chosen, credential) {
        ([5, NO_AUTHENTICATION], _) => return Ok(()),
        ([5, USER_AND_PASSWORD], Some(credential)) => credential,
        ([5, USER_AND_PASSWORD | NONE_ACCEPTABLE], None) => return Err(ProxyError::NoLogin),
        ([5, _], _) => return Err(ProxyError::OtherMethod),
        _ => return Err(ProxyError::Unreadable),
    };
    let (user, password) = login(credential)?;
    let (Ok(user_length), Ok(password_length)) = (u8::try_from(user.len()), u8::try_from(password.len()))
    else {
        return Err(ProxyError::LongLogin);
    };
    let message = Zeroizing::new([&[1, user_length][..], user, &[password_length], password].concat());
    stream.write_all(&message).await?;
    stream.read_exact(&mut chosen).await?;
    if chosen[1] != 0 {
        return Err(ProxyError::WrongLogin);
    }
    Ok(())
}

/// Encodes a SOCKS 5 `CONNECT` (RFC 1928 §4).
fn request(host: &Host, port: Port) -> Result<Vec<u8>, ProxyError> {
    let mut request = vec![5, 1, 0];
    match host {
        Host::Name(name) => {
            let length = u8::try_from(name.as_str().len()).map_err(|_| ProxyError::LongName)?;
            request.extend([3, length]);
            request.extend(name.as_str().bytes());
        }
        Host::Address(std::net::IpAddr::V4(v4)) => {
            request.push(1);
            request.extend(v4.octets());
        }
        Host::Address(std::net::IpAddr::V6(v6)) => {
            request.push(4);
            request.extend(v6.octets());
        }
    }
    request.extend(port.number().to_be_bytes());
    Ok(request)
}

/// Reads the reply to a SOCKS 5 request (RFC 1928 §6), to the end of its bound address.
async fn reply(stream: &mut impl Duplex) -> Result<(), ProxyError> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    if head[0] != 5 {
        return Err(ProxyError::Unreadable);
    }
    if head[1] != 0 {
        return Err(ProxyError::Refused(head[1]));
    }
    let rest = match head[3] {
        1 => 4,
        4 => 16,
        3 => usize::from(stream.read_u8().await?),
        _ => return Err(ProxyError::Unreadable),
    };
    let mut bound = vec![0; rest + 2];
    stream.read_exact(&mut bound).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_proxy_may_ask_for_no_login_although_there_is_one() {
        let mut credential = Credential::default();
        for field in ["username", "password"] {
            let value = credential::Value::new(credential::Secret::from_text("bob".into())).unwrap();
            credential.set(field.parse().unwrap(), value);
        }
        for (chosen, outcome, told) in [
            (&b"\x05\0"[..], Ok(()), &b"\x05\x02\x02\0"[..]),
            (b"\x05\x02\x01\0", Ok(()), b"\x05\x02\x02\0\x01\x03bob\x03bob"),
            (b"\x05\x01", Err(ProxyError::OtherMethod.to_string()), b"\x05\x02\x02\0"),
            (b"HT", Err(ProxyError::Unreadable.to_string()), b"\x05\x02\x02\0"),
        ] {
            let (mut ours, mut theirs) = tokio::io::duplex(1024);
            theirs.write_all(chosen).await.unwrap();
            let done = authenticate(&mut ours, Some(&credential)).await;
            assert_eq!(done.map_err(|error| error.to_string()), outcome);
            drop(ours);
            let mut asked = Vec::new();
            theirs.read_to_end(&mut asked).await.unwrap();
            assert_eq!(asked, told);
        }
    }

    #[tokio::test]
    async fn a_proxy_that_wants_a_login_and_is_given_none_says_so() {
        let (mut ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(b"\x05\xff").await.unwrap();
        let done = authenticate(&mut ours, None).await;
        assert!(matches!(done, Err(ProxyError::NoLogin)), "{done:?}");
    }

    #[tokio::test]
    async fn an_answer_of_another_protocol_is_none() {
        for (answer, outcome) in [
            (&b"\x05\0\x05\0\0\x01\x7f\0\0\x01\x01\xbbhello"[..], Ok(())),
            (b"\x05\0\x04\0\0\x01\x7f\0\0\x01\x01\xbbhello", Err("its answer cannot be read".to_owned())),
        ] {
            let (mut ours, mut theirs) = tokio::io::duplex(64 * 1024);
            theirs.write_all(answer).await.unwrap();
            theirs.shutdown().await.unwrap();
            let (host, port) = (Host::parse("up.example").unwrap(), Port::new(443).unwrap());
            let done = connect(&mut ours, &host, port, None).await;
            assert_eq!(done.map_err(|error| error.to_string()), outcome);
            if outcome.is_ok() {
                let mut rest = Vec::new();
                ours.read_to_end(&mut rest).await.unwrap();
                assert_eq!(rest, b"hello");
            }
        }
    }
}
