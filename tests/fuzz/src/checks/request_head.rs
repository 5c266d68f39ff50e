//! Request heads. An accepted head has one reading: another parser finds the same method, target, fields and length of the body.

use egress::{BodyLength, parse_request_head};

/// Parses the input as the head of a request, with the product and with another parser.
pub fn request_head(bytes: &[u8]) {
    let Ok(head) = parse_request_head(bytes) else { return };
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut request = httparse::Request::new(&mut headers);
    let end = request.parse(bytes).unwrap_or_else(|error| panic!("refused by another reader: {error}"));
    assert_eq!(end, httparse::Status::Complete(bytes.len()), "it ends elsewhere for another reader");
    let fields: Vec<(String, Vec<u8>)> =
        request.headers.iter().map(|f| (f.name.to_ascii_lowercase(), f.value.to_vec())).collect();
    let own: Vec<(String, Vec<u8>)> =
        head.fields().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
    assert_eq!(own, fields);
    assert_eq!(Some(head.method().as_str()), request.method);
    assert_eq!(Some(head.target()), request.path);
    assert_eq!(head.body(), body_length(&fields));
    assert_eq!(head.keeps_alive(), request.version == Some(1) && !closes(&fields));
}

/// Reads the length of the body independently, by RFC 9112 §6: at most one field states it.
fn body_length(fields: &[(String, Vec<u8>)]) -> BodyLength {
    let framing: Vec<_> = fields
        .iter()
        .filter(|(name, _)| matches!(name.as_str(), "content-length" | "transfer-encoding"))
        .collect();
    match framing.as_slice() {
        [] => BodyLength::None,
        [(name, value)] if name == "transfer-encoding" => {
            assert_eq!(value.to_ascii_lowercase(), b"chunked");
            BodyLength::Chunked
        }
        [(_, value)] => {
            let digits = std::str::from_utf8(value).expect("a length is text");
            assert!(digits.bytes().all(|b| b.is_ascii_digit()), "{digits}");
            match digits.parse().expect("a length is a number") {
                0 => BodyLength::None,
                size => BodyLength::Sized(size),
            }
        }
        more => panic!("{} fields say how long the body is", more.len()),
    }
}

/// Whether HTTP may end on the connection after this request.
fn closes(fields: &[(String, Vec<u8>)]) -> bool {
    let upgrades = fields.iter().any(|(name, _)| name == "upgrade");
    upgrades
        || fields.iter().filter(|(name, _)| name == "connection" || name == "proxy-connection").any(
            |(_, value)| {
                String::from_utf8_lossy(value)
                    .split(',')
                    .any(|token| token.trim().eq_ignore_ascii_case("close"))
            },
        )
}
