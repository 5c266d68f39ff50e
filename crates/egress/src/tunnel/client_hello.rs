//! Reads the server name of a ClientHello, with the parser of the TLS library that would terminate the connection. So there are no
//! two readings of it that could differ.

use rustls::server::Acceptor;
use rustls::{Error, PeerIncompatible};

/// The most octets that are read for one: it may have large key shares.
pub(super) const LARGEST_HELLO: usize = 32 * 1024;

/// The first octets of a TLS connection, as far as they have come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// The beginning of a ClientHello.
    Partial,
    /// A whole ClientHello, and its server name.
    Complete(Option<String>),
    /// A ClientHello that is well-formed, and that the library does not take: what it lacks.
    Refused(&'static str),
    /// Not a ClientHello.
    Malformed,
}

/// The server name of a ClientHello.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServerName {
    /// The ClientHello names a server.
    Said(String),
    /// The ClientHello names no server.
    None,
    /// The ClientHello lacks something without which the library reads no name in it.
    Refused(&'static str),
    /// The ClientHello cannot be read, so some server may find any name in it.
    Unread,
}

/// Parses the octets that have come so far.
pub(super) fn read(bytes: &[u8]) -> Hello {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        match acceptor.read_tls(&mut rest) {
            Ok(0) => break,
            Ok(_) => {}
            Err(_) => return Hello::Malformed,
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                return Hello::Complete(accepted.client_hello().server_name().map(str::to_owned));
            }
            Ok(None) => {}
            Err((error, _)) => return lacks(&error).map_or(Hello::Malformed, Hello::Refused),
        }
    }
    Hello::Partial
}

/// What a ClientHello of TLS 1.1 lacks.
const SIGNATURES: &str = "signature algorithms, which came with TLS 1.2";

/// What a well-formed ClientHello lacks that the library does not take.
fn lacks(error: &Error) -> Option<&'static str> {
    use PeerIncompatible as P;
    let Error::PeerIncompatible(why) = error else { return None };
    Some(match why {
        P::Tls12NotOffered | P::Tls12NotOfferedOrEnabled | P::ServerDoesNotSupportTls12Or13 => {
            "TLS 1.2 or 1.3"
        }
        P::SignatureAlgorithmsExtensionRequired => SIGNATURES,
        P::NamedGroupsExtensionRequired | P::KeyShareExtensionRequired => "groups for its keys",
        P::NullCompressionRequired => "a choice without compression",
        _ => "something that it needs",
    })
}

/// Returns where the records of a whole ClientHello end; `None` if there is none, or its last record holds more.
pub(super) fn end_of(bytes: &[u8]) -> Option<usize> {
    let (mut message, mut at) = (Vec::new(), 0);
    loop {
        let length = usize::from(u16::from_be_bytes([*bytes.get(at + 3)?, *bytes.get(at + 4)?]));
        at += 5;
        message.extend_from_slice(bytes.get(at..at + length)?);
        at += length;
        if let &[_, high, middle, low, ..] = message.as_slice() {
            let whole = 4 + u32::from_be_bytes([0, high, middle, low]) as usize;
            if message.len() >= whole {
                return (message.len() == whole).then_some(at);
            }
        }
    }
}

/// Returns the server name of a whole ClientHello, if the octets are one and it has one. For fuzzing and tests.
#[must_use]
pub fn server_name_of(bytes: &[u8]) -> Option<String> {
    match read(bytes) {
        Hello::Complete(name) => name,
        Hello::Partial | Hello::Refused(_) | Hello::Malformed => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The extension that names a server (RFC 6066 §3).
    fn server_name(name: &[u8]) -> Vec<u8> {
        let entry = [&[0][..], &(name.len() as u16).to_be_bytes(), name].concat();
        let list = [&(entry.len() as u16).to_be_bytes()[..], &entry].concat();
        [&[0, 0][..], &(list.len() as u16).to_be_bytes(), &list].concat()
    }

    /// A minimal ClientHello of TLS 1.2 with these extensions, in one record.
    pub(in crate::tunnel) fn client_hello(server_name: Option<&[u8]>) -> Vec<u8> {
        client_hello_with(server_name, &[])
    }

    /// Such a ClientHello with more extensions, after the server name.
    fn client_hello_with(name: Option<&[u8]>, more: &[u8]) -> Vec<u8> {
        let mut extensions = Vec::new();
        extensions.extend(name.map(server_name).unwrap_or_default());
        extensions.extend(more);
        extensions.extend([0, 10, 0, 4, 0, 2, 0, 23]); // supported groups: P-256
        extensions.extend([0, 13, 0, 4, 0, 2, 4, 3]); // signature algorithms: ECDSA with P-256
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        let mut message = vec![1, 0];
        message.extend((body.len() as u16).to_be_bytes());
        message.extend(body);
        [&[0x16, 3, 1][..], &(message.len() as u16).to_be_bytes(), &message].concat()
    }

    #[test]
    fn the_name_is_found() {
        assert_eq!(
            read(&client_hello(Some(b"api.example.com"))),
            Hello::Complete(Some("api.example.com".into()))
        );
        assert_eq!(read(&client_hello(None)), Hello::Complete(None));
        assert_eq!(read(b"\x16\x03"), Hello::Partial);
        assert_eq!(server_name_of(b"GET / HTTP/1.1\r\n"), None);
    }

    #[test]
    fn what_a_well_formed_one_lacks_is_told() {
        let whole = client_hello(Some(b"api.example.com"));
        // Without the last extension, the signature algorithms. The record, the message and all extensions are as much shorter.
        let mut without = whole[..whole.len() - 8].to_vec();
        for length in [4, 8, 51] {
            without[length] -= 8;
        }
        assert_eq!(read(&without), Hello::Refused(SIGNATURES));
    }

    #[test]
    fn a_name_that_is_no_name_is_none() {
        // E13
        for name in [&b"a\0.example.com"[..], b"", b"a b", b"\xff"] {
            let found = read(&client_hello(Some(name)));
            assert!(!matches!(found, Hello::Complete(Some(_))), "{name:?}: {found:?}");
        }
    }

    /// `encrypted_client_hello` (RFC 9849 §5) with this content.
    fn encrypted(content: &[u8]) -> Vec<u8> {
        [&[0xfe, 0x0d][..], &(content.len() as u16).to_be_bytes(), content].concat()
    }

    #[test]
    fn an_encrypted_hello_beside_it_changes_no_name() {
        // E13: the outer name is the one that is judged, and where there is none there is none. What is sealed may name another.
        let outer = |sealed: &[u8]| {
            let suite = [0, 0, 1, 0, 1, 7, 0, 32];
            [&suite[..], &[9; 32], &(sealed.len() as u16).to_be_bytes(), sealed].concat()
        };
        let name = |found: &str| Hello::Complete(Some(found.into()));
        for extension in [
            encrypted(&outer(&[0xa5; 144])), // GREASE (§6.2) is no different
            encrypted(&outer(&client_hello(Some(b"evil.example.org"))[9..])),
            encrypted(&[1]), // what marks an inner one
            [&[0xff, 0xce][..], &encrypted(&outer(&[3; 64]))[2..]].concat(), // ESNI, its predecessor
        ] {
            let hello = |server_name| client_hello_with(server_name, &extension);
            assert_eq!(read(&hello(Some(b"api.example.com"))), name("api.example.com"), "{extension:x?}");
            assert_eq!(read(&hello(None)), Hello::Complete(None), "{extension:x?}");
        }
        // A second server name after it is no way either.
        let second = [encrypted(&outer(&[5; 40])), server_name(b"evil.example.org")].concat();
        assert_eq!(read(&client_hello_with(Some(b"api.example.com"), &second)), Hello::Malformed);
    }

    #[test]
    fn records_may_split_it_anywhere() {
        let whole = client_hello(Some(b"api.example.com"));
        let message = &whole[5..];
        for at in [1, 4, 20, 60, message.len() - 1] {
            let record = |part: &[u8]| [&[0x16, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
            let split = [record(&message[..at]), record(&message[at..])].concat();
            assert_eq!(read(&split), Hello::Complete(Some("api.example.com".into())), "split at {at}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_octets_are_survived(bytes: Vec<u8>) {
            let _ = server_name_of(&bytes);
        }

        #[test]
        fn damage_beside_the_name_never_changes_it(at in 0usize..200, bit in 0u8..8) {
            let name = b"api.example.com";
            let mut bytes = client_hello(Some(name));
            let stands = bytes.windows(name.len()).position(|window| window == name).unwrap();
            // The nine octets before the name are its type and the lengths of it, of its list and of its extension.
            let beside: Vec<usize> = (0..stands - 9).chain(stands + name.len()..bytes.len()).collect();
            bytes[beside[at % beside.len()]] ^= 1 << bit;
            if let Hello::Complete(Some(read)) = read(&bytes) {
                proptest::prop_assert_eq!(read.as_bytes(), name);
            }
        }

        #[test]
        fn damage_in_the_name_shows_or_spoils_it(at in 0usize..15, bit in 0u8..8) {
            let mut name = *b"api.example.com";
            name[at] ^= 1 << bit;
            let found = read(&client_hello(Some(&name)));
            let shown = Hello::Complete(Some(String::from_utf8_lossy(&name).to_ascii_lowercase()));
            proptest::prop_assert!(found == shown || matches!(found, Hello::Malformed | Hello::Complete(None)), "{:?}", found);
        }
    }
}
