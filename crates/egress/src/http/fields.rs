//! Header fields: names in lower case, values as octets, in the order in which they came.

/// A head's fields, or a trailer section's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<(String, Vec<u8>)>);

/// Fields that concern one connection only, and are never passed on (RFC 9110 §7.6.1, and the existing sidecar's list).
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "proxy-authorization",
    "proxy-authenticate",
    "host",
    "content-length",
];

/// Fields that speak to a sidecar, and never to an upstream (REQUIREMENTS, literal behaviour).
const CONTROL: &[&str] = &["x-provider", "x-target", "x-proxy", "x-substitute-body", "x-max-response-size"];

impl Fields {
    pub(crate) fn new(list: Vec<(String, Vec<u8>)>) -> Self {
        Self(list)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Vec<u8>)> {
        self.0.iter_mut().map(|(name, value)| (name.as_str(), value))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values of a field, by its name in lower case.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_slice())
    }

    /// The one value of a field, as text.
    pub(crate) fn text<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.values(name).next().and_then(|value| std::str::from_utf8(value).ok())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(n, _)| n == name)
    }

    pub(crate) fn push(&mut self, name: &str, value: &[u8]) {
        self.0.push((name.to_owned(), value.to_vec()));
    }

    /// Puts a value in the place of all there are.
    pub(crate) fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        self.push(name, value);
    }

    /// Leaves out the fields whose names are not to be kept.
    pub(crate) fn keep(&mut self, mut kept: impl FnMut(&str) -> bool) {
        self.0.retain(|(name, _)| kept(name));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|(n, _)| n != name);
    }

    /// Whether a comma-separated field holds a token.
    pub(crate) fn has_token(&self, name: &str, token: &str) -> bool {
        self.values(name).any(|value| {
            value.split(|b| *b == b',').any(|part| trim(part).eq_ignore_ascii_case(token.as_bytes()))
        })
    }

    /// Takes out what concerns the connection it came over, and what speaks to a sidecar.
    pub(crate) fn leave_hop(&mut self) {
        let named: Vec<String> = self
            .values("connection")
            .flat_map(|value| value.split(|b| *b == b','))
            .map(|part| String::from_utf8_lossy(trim(part)).to_ascii_lowercase())
            .collect();
        self.0.retain(|(name, _)| {
            let name = name.as_str();
            !HOP_BY_HOP.contains(&name)
                && !CONTROL.contains(&name)
                && !name.starts_with("x-lockgate-")
                && !named.iter().any(|n| n == name)
        });
    }

    /// As lines of HTTP/1.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for (name, value) in &self.0 {
            out.extend(name.bytes());
            out.extend(b": ");
            out.extend(value);
            out.extend(b"\r\n");
        }
    }
}

/// Without the spaces and tabs around it, and nothing else: other white space is part of a value (RFC 9110 §5.6.3).
pub(crate) fn trim(value: &[u8]) -> &[u8] {
    let inner = |b: &u8| !matches!(b, b' ' | b'\t');
    match (value.iter().position(inner), value.iter().rposition(inner)) {
        (Some(first), Some(last)) => &value[first..=last],
        _ => &[],
    }
}
