//! The strictest reading of HTTP/1.1 (RFC 9112 without a single MAY). What the sidecar sends must pass it.

/// The result of a strict reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The message ends after so many octets.
    Ends(usize),
    /// The message is good so far, and incomplete.
    Open,
    /// The message is malformed.
    Bad(&'static str),
}

/// Whether a chunked body may have trailers: from an agent, but not to an upstream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trailers {
    Allowed,
    None,
}

/// Finds the end of a chunked body: digits of either case, extensions ignored.
#[must_use]
pub(crate) fn end_of_chunked(bytes: &[u8], trailers: Trailers) -> Reading {
    let mut at = 0;
    loop {
        let Some(line) = bytes[at..].windows(2).position(|pair| pair == b"\r\n") else {
            let rest = &bytes[at..];
            let line = rest.strip_suffix(b"\r").unwrap_or(rest);
            let good = line.is_empty() || line == b"\r" || size_of(line).is_some();
            return if good { Reading::Open } else { Reading::Bad("a size is not hexadecimal") };
        };
        let Some(digits) = size_of(&bytes[at..at + line]) else {
            return Reading::Bad("a size is not hexadecimal");
        };
        let text = std::str::from_utf8(digits).unwrap_or("");
        let Ok(size) = usize::from_str_radix(text, 16) else { return Reading::Bad("a size is too large") };
        let data = at + line + 2;
        if size == 0 && trailers == Trailers::Allowed {
            return end_of_trailers(bytes, data);
        }
        let Some(end) = data.checked_add(size) else { return Reading::Bad("a size is too large") };
        match bytes.get(end..end.saturating_add(2)) {
            Some(b"\r\n") if size == 0 => return Reading::Ends(end + 2),
            Some(b"\r\n") => at = end + 2,
            Some(_) => return Reading::Bad("a chunk does not end where it says"),
            None if matches!(bytes.get(end..), None | Some([] | [b'\r'])) => return Reading::Open,
            None => return Reading::Bad("a chunk does not end where it says"),
        }
    }
}

/// Finds the end of the trailer section that begins at `start`: fields of one line each, at most 128, and 8 KiB.
fn end_of_trailers(bytes: &[u8], start: usize) -> Reading {
    let mut at = start;
    for _ in 0..=128 {
        let Some(length) = bytes[at..].windows(2).position(|pair| pair == b"\r\n") else {
            return Reading::Open;
        };
        let line = &bytes[at..at + length];
        at += length + 2;
        if line.is_empty() {
            return Reading::Ends(at);
        }
        let colon = line.iter().position(|octet| *octet == b':').unwrap_or(0);
        let (name, value) = line.split_at(colon);
        let plain = |octet: &u8| *octet == b'\t' || (*octet >= b' ' && *octet != 0x7f);
        if !is_token(name) || !value.iter().all(plain) || at - 2 - start > 8 * 1024 {
            return Reading::Bad("a trailer");
        }
    }
    Reading::Bad("too many trailers")
}

/// Whether this is the name of a field (RFC 9110 §5.6.2).
fn is_token(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

/// Returns the digits of a line with a chunk's size: 15 at most, leading zeros aside. An extension may follow them, also after white
/// space, and is ignored.
fn size_of(line: &[u8]) -> Option<&[u8]> {
    let end = line.iter().position(|octet| *octet == b';').unwrap_or(line.len());
    let (digits, extension) = line.split_at(end);
    let is_space = |octet: &&u8| matches!(octet, b' ' | b'\t');
    let spaces = if extension.is_empty() { 0 } else { digits.iter().rev().take_while(is_space).count() };
    let digits = &digits[..digits.len() - spaces];
    let significant = digits.iter().skip_while(|digit| **digit == b'0').count();
    let plain = |octet: &u8| *octet == b'\t' || (*octet >= b' ' && *octet != 0x7f);
    let good = !digits.is_empty()
        && significant <= 15
        && digits.iter().all(u8::is_ascii_hexdigit)
        && extension.iter().all(plain)
        && line.len() <= LONGEST_LINE;
    good.then_some(digits)
}

/// The longest line with a chunk's size.
const LONGEST_LINE: usize = 256;

/// Returns the data of a chunked body that [`end_of_chunked`] has found whole.
#[must_use]
pub(crate) fn chunked_data(mut bytes: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while let Some(line) = bytes.windows(2).position(|pair| pair == b"\r\n") {
        let size = size_of(&bytes[..line]).and_then(|digits| std::str::from_utf8(digits).ok());
        let size = size.and_then(|text| usize::from_str_radix(text, 16).ok()).unwrap_or(0);
        if size == 0 {
            break;
        }
        data.extend(bytes.get(line + 2..line + 2 + size).unwrap_or_default());
        bytes = bytes.get(line + 4 + size..).unwrap_or_default();
    }
    data
}

/// Finds the end of a request that the sidecar sent to `host`: one `host` field of that value, one statement of length, and
/// `connection: close` if there is a body.
#[must_use]
pub(crate) fn end_of_request(bytes: &[u8], host: &str) -> Reading {
    let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if bytes.len() > 64 * 1024 { Reading::Bad("the head does not end") } else { Reading::Open };
    };
    let (head, body) = (&bytes[..head], head + 4);
    let mut lines = head.split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    if head.iter().enumerate().any(|(at, b)| *b == b'\r' && head.get(at + 1) != Some(&b'\n'))
        || head.iter().enumerate().any(|(at, b)| *b == b'\n' && (at == 0 || head[at - 1] != b'\r'))
        || head.iter().any(|b| *b == 0 || *b == 0x0b || *b == 0x0c || *b == 0x7f)
    {
        return Reading::Bad("a control octet in the head");
    }
    let first = lines.next().unwrap_or_default();
    let words: Vec<&[u8]> = first.split(|b| *b == b' ').collect();
    let [method, target, b"HTTP/1.1"] = words.as_slice() else { return Reading::Bad("the request line") };
    if method.is_empty() || !target.starts_with(b"/") || !target.iter().all(|b| (0x21..0x7f).contains(b)) {
        return Reading::Bad("the request line");
    }
    let (mut hosts, mut length, mut chunked) = (0, None, false);
    let (mut connections, mut upgrades, mut closes) = (0, 0, 0);
    for line in lines {
        let Some(colon) = line.iter().position(|b| *b == b':') else {
            return Reading::Bad("a field without a colon");
        };
        let (name, value) = (line[..colon].to_ascii_lowercase(), line[colon + 1..].trim_ascii());
        if !is_token(&name) {
            return Reading::Bad("a field name");
        }
        match name.as_slice() {
            b"host" if value == host.as_bytes() => hosts += 1,
            b"host" => return Reading::Bad("another host"),
            b"content-length" if length.is_none() && !chunked => {
                let text = std::str::from_utf8(value).unwrap_or("");
                let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                length = text.parse::<usize>().ok().filter(|_| digits);
                if length.is_none() {
                    return Reading::Bad("a length that is no number");
                }
            }
            b"transfer-encoding" if value == b"chunked" && length.is_none() && !chunked => chunked = true,
            b"content-length" | b"transfer-encoding" => return Reading::Bad("two statements of length"),
            b"connection" if value == b"upgrade" => connections += 1,
            b"connection" if value == b"close" => closes += 1,
            b"upgrade" if value == b"websocket" => upgrades += 1,
            b"connection"
            | b"upgrade"
            | b"keep-alive"
            | b"te"
            | b"trailer"
            | b"proxy-authorization"
            | b"proxy-connection" => {
                return Reading::Bad("a field of the agent's own connection");
            }
            b"x-provider" | b"x-target" | b"x-proxy" | b"x-substitute-body" | b"x-max-response-size" => {
                return Reading::Bad("a field that speaks to the sidecar");
            }
            _ => {}
        }
    }
    if hosts != 1 {
        return Reading::Bad("not one host");
    }
    // The only upgrade that is allowed (RFC 6455 §4.1).
    let websocket = *method == b"GET" && length.is_none() && !chunked;
    if !matches!((connections, upgrades, websocket), (0, 0, _) | (1, 1, true)) {
        return Reading::Bad("an upgrade of something else");
    }
    // No request follows one with a body, and its head says so. It may say so of an empty body that has a length.
    let (has_length, has_body) =
        (length.is_some() || chunked, length.is_some_and(|size| size > 0) || chunked);
    if !(usize::from(has_body)..=usize::from(has_length)).contains(&closes) {
        return Reading::Bad("the end of the connection");
    }
    if chunked {
        return match end_of_chunked(&bytes[body..], Trailers::None) {
            Reading::Ends(end) => Reading::Ends(body + end),
            other => other,
        };
    }
    let end = body.saturating_add(length.unwrap_or(0));
    if bytes.len() >= end { Reading::Ends(end) } else { Reading::Open }
}
