//! Reads the server name of a ClientHello, with the parser of the TLS library that would terminate the connection. So there are no
//! two readings of it that could differ.

use rustls::server::Acceptor;

/// The first octets of a TLS connection, as far as they have come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// The beginning of a ClientHello.
    Partial,
    /// A whole ClientHello, and its server name.
    Complete(Option<String>),
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
            Err(_) => return Hello::Malformed,
        }
    }
    Hello::Partial
}

/// Returns the server name of a whole ClientHello, if the octets are one and it has one. For fuzzing and tests.
#[must_use]
pub fn server_name_of(bytes: &[u8]) -> Option<String> {
    match read(bytes) {
        Hello::Complete(name) => name,
        Hello::Partial | Hello::Malformed => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A minimal ClientHello of TLS 1.2 with these extensions, in one record.
    pub(in crate::tunnel) fn client_hello(server_name: Option<&[u8]>) -> Vec<u8> {
        let mut extensions = Vec::new();
        if let Some(name) = server_name {
            let length = name.len() as u16;
            let entry = [&[0][..], &length.to_be_bytes(), name].concat();
            let list = [&(entry.len() as u16).to_be_bytes()[..], &entry].concat();
            extensions.extend([&[0, 0][..], &(list.len() as u16).to_be_bytes(), &list].concat());
        }
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
    fn a_name_that_is_no_name_is_none() {
        // E13
        for name in [&b"a\0.example.com"[..], b"", b"a b", b"\xff"] {
            let found = read(&client_hello(Some(name)));
            assert!(!matches!(found, Hello::Complete(Some(_))), "{name:?}: {found:?}");
        }
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
