//! ClientHellos. If a server name is found, it is the only one in the message, at the place where RFC 6066 puts it.

/// Looks for a server name in the input, with the product and with a simple reader.
pub fn client_hello(bytes: &[u8]) {
    let Some(name) = egress::server_name_of(bytes) else { return };
    let names = names(&message(bytes)).expect("a message with a name can be walked");
    assert_eq!(names.len(), 1, "there are several names");
    assert!(names[0].eq_ignore_ascii_case(name.as_bytes()), "{:?} is not {name:?}", names[0]);
    assert!(name.is_ascii() && !name.contains(['\0', '\r', '\n', ' ']), "{name:?}");
}

/// Returns the content of the handshake records at the start, joined (RFC 8446 §5.1).
fn message(mut bytes: &[u8]) -> Vec<u8> {
    let mut joined = Vec::new();
    while let [0x16, _, _, high, low, rest @ ..] = bytes {
        let length = usize::from(*high) << 8 | usize::from(*low);
        let Some(content) = rest.get(..length) else { break };
        joined.extend(content);
        bytes = &rest[length..];
    }
    joined
}

/// Splits off a vector with a length of `width` octets before it: returns its content, and what follows.
fn vector(bytes: &[u8], width: usize) -> Option<(&[u8], &[u8])> {
    let length = bytes.get(..width)?.iter().fold(0, |sum, b| sum << 8 | usize::from(*b));
    Some((bytes.get(width..width + length)?, bytes.get(width + length..)?))
}

/// Returns every host name of every server name extension of a ClientHello.
fn names(message: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (1, rest) = (*message.first()?, message.get(1..)?) else { return None };
    let (hello, _) = vector(rest, 3)?;
    let (_, rest) = vector(hello.get(34..)?, 1)?;
    let (_, rest) = vector(rest, 2)?;
    let (_, rest) = vector(rest, 1)?;
    let (mut extensions, _) = vector(rest, 2)?;
    let mut found = Vec::new();
    while !extensions.is_empty() {
        let kind = extensions.get(..2)?;
        let (content, rest) = vector(&extensions[2..], 2)?;
        if kind == [0, 0] {
            let (mut list, _) = vector(content, 2)?;
            // The shape of an undefined kind of name is unknown, so nothing after it can be read.
            while let Some((0, tail)) = list.split_first() {
                let (name, rest) = vector(tail, 2)?;
                found.push(name.to_vec());
                list = rest;
            }
        }
        extensions = rest;
    }
    Some(found)
}
