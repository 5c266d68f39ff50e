//! Header fields: names in lower case, values as octets, in the order in which they came.

/// The fields of a head or of a trailer section. All names and values lie in one buffer, so that a copy costs two allocations however
/// many there are. `Debug` shows names only, because values may hold a credential.
#[derive(Clone, Default)]
pub(crate) struct Fields {
    text: Vec<u8>,
    list: Vec<Field>,
}

/// Where a field's name and value lie.
#[derive(Clone, Copy)]
struct Field {
    name: Span,
    value: Span,
}

#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
}

impl Span {
    fn of(self, text: &[u8]) -> &[u8] {
        &text[self.start..self.end]
    }
}

/// Fields that concern one connection only and are never passed on (RFC 9110 §7.6.1, and the existing sidecar's list).
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "close",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "http2-settings", // RFC 7540 §3.2.1, whether `Connection` names it or not
    "proxy-authorization",
    "proxy-authenticate",
    "proxy-authentication-info",
    "host",
    "content-length",
];

/// Options of `Connection` that name no field.
const USUAL: &[&str] = &["keep-alive", "close", "upgrade"];

/// Fields by which a proxy in front of an application says where that begins. Servers take the path without that beginning, or this one in
/// its place (gunicorn for `SCRIPT_NAME`). No client has reason to send one.
const OF_APPLICATIONS: &[&str] = &["script-name", "x-script-name", "path-info", "x-path-info"];

/// Fields that are addressed to a sidecar, never to an upstream (REQUIREMENTS, literal behaviour).
const CONTROL: &[&str] =
    &["x-provider", "x-target", "x-proxy", "x-substitute-body", "x-max-response-size", "x-stream-response"];

impl Fields {
    /// Creates an empty list with room for this many fields, and octets of text.
    pub(crate) fn with_room(fields: usize, octets: usize) -> Self {
        Self { text: Vec::with_capacity(octets), list: Vec::with_capacity(fields) }
    }

    /// Returns a copy with room for so many more fields, and octets of text.
    pub(crate) fn with_more_room(&self, fields: usize, octets: usize) -> Self {
        let mut copy = Self::with_room(self.list.len() + fields, self.text.len() + octets);
        copy.text.extend_from_slice(&self.text);
        copy.list.extend_from_slice(&self.list);
        copy
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.list.iter().map(|field| (name_of(&self.text, field), field.value.of(&self.text)))
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns all names and values in one text, removed and replaced ones among them: what is not in it is in no field.
    pub(crate) fn all_text(&self) -> &[u8] {
        &self.text
    }

    /// Returns the values of a field, by its name in lower case.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let named = move |field: &&Field| field.name.of(&self.text) == name.as_bytes();
        self.list.iter().filter(named).map(|field| field.value.of(&self.text))
    }

    /// Returns the first value of a field, if it is text.
    pub(crate) fn text<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.values(name).next().and_then(|value| std::str::from_utf8(value).ok())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.values(name).next().is_some()
    }

    /// Adds a field, with its name in lower case.
    pub(crate) fn push(&mut self, name: &str, value: &[u8]) {
        let name = self.append(name.as_bytes());
        self.text[name.start..name.end].make_ascii_lowercase();
        let value = self.append(value);
        self.list.push(Field { name, value });
    }

    fn append(&mut self, octets: &[u8]) -> Span {
        let start = self.text.len();
        self.text.extend_from_slice(octets);
        Span { start, end: self.text.len() }
    }

    /// Replaces all values of a field by one.
    pub(crate) fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        self.push(name, value);
    }

    /// Replaces each value for which `another` returns one.
    ///
    /// # Errors
    /// The first error of `another`; no field is changed then.
    pub(crate) fn rewrite<V: AsRef<[u8]>, E>(
        &mut self,
        mut another: impl FnMut(&str, &[u8]) -> Result<Option<V>, E>,
    ) -> Result<(), E> {
        let mut values = Vec::new();
        for (at, field) in self.list.iter().enumerate() {
            if let Some(value) = another(name_of(&self.text, field), field.value.of(&self.text))? {
                values.push((at, value));
            }
        }
        // At once: a buffer that grows for each leaves copies behind, and takes up to twice the room.
        self.text.reserve_exact(values.iter().map(|(_, value)| value.as_ref().len()).sum());
        for (at, value) in values {
            self.list[at].value = self.append(value.as_ref());
        }
        Ok(())
    }

    /// Keeps only the fields whose names satisfy `kept`.
    pub(crate) fn keep(&mut self, mut kept: impl FnMut(&str) -> bool) {
        self.keep_each(|name, _| kept(name));
    }

    /// Keeps only the fields that satisfy `kept`, by their name and value.
    pub(crate) fn keep_each(&mut self, mut kept: impl FnMut(&str, &[u8]) -> bool) {
        let Self { text, list } = self;
        list.retain(|field| kept(name_of(text, field), field.value.of(text)));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.keep(|other| other != name);
    }

    /// Whether a comma-separated field holds a token.
    pub(crate) fn has_token(&self, name: &str, token: &str) -> bool {
        self.values(name).any(|value| {
            value.split(|b| *b == b',').any(|part| trim(part).eq_ignore_ascii_case(token.as_bytes()))
        })
    }

    /// Whether a comma-separated field holds nothing but tokens and empty elements (RFC 9110 §5.6.1.2).
    pub(crate) fn lists_tokens(&self, name: &str) -> bool {
        let mut elements = self.values(name).flat_map(|value| value.split(|b| *b == b',')).map(trim);
        elements.all(|element| element.is_empty() || is_token(element))
    }

    /// Returns trailers without hop-by-hop fields, as [`Self::leave_hop`].
    pub(super) fn without_hop(mut self) -> Self {
        self.leave_hop();
        self
    }

    /// Removes hop-by-hop fields, those that `Connection` names, those that are addressed to a sidecar, and [`OF_APPLICATIONS`].
    pub(crate) fn leave_hop(&mut self) {
        self.leave_hop_but(&[]);
    }

    /// As [`Self::leave_hop`], but keeps the fields of these names.
    pub(super) fn leave_hop_but(&mut self, kept: &[&str]) {
        let tokens = self.values("connection").flat_map(|value| value.split(|b| *b == b','));
        let named: Vec<String> = tokens
            .map(trim)
            .filter(|token| !USUAL.iter().any(|usual| token.eq_ignore_ascii_case(usual.as_bytes())))
            .map(|token| String::from_utf8_lossy(token).to_ascii_lowercase())
            .collect();
        let is_left = |name: &str| {
            let is_named = [HOP_BY_HOP, OF_APPLICATIONS, CONTROL].iter().any(|names| names.contains(&name));
            is_named && !kept.contains(&name) || name.starts_with("x-lockgate-")
        };
        // Servers that read fields as variables take `content_length` for `content-length`.
        self.keep(|name| match name.bytes().all(|octet| variable_octet(octet) == octet) {
            true => !is_left(name) && !named.iter().any(|n| n == name),
            false => {
                let variable: String = name.bytes().map(variable_octet).map(char::from).collect();
                !is_left(&variable) && !named.iter().any(|n| n == name)
            }
        });
    }

    /// Appends the fields as lines of HTTP/1.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for Field { name, value } in &self.list {
            out.extend_from_slice(name.of(&self.text));
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.of(&self.text));
            out.extend_from_slice(b"\r\n");
        }
    }
}

impl<'a> FromIterator<(&'a str, &'a [u8])> for Fields {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a [u8])>>(list: I) -> Self {
        let mut fields = Self::default();
        list.into_iter().for_each(|(name, value)| fields.push(name, value));
        fields
    }
}

impl std::fmt::Debug for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// Returns the name of a field: a token, which is ASCII.
fn name_of<'a>(text: &'a [u8], field: &Field) -> &'a str {
    std::str::from_utf8(field.name.of(text)).unwrap_or_default()
}

/// Returns an octet of a name as it is to servers that read fields as variables (RFC 3875 §4.1.18): without case, and with one sign for
/// every octet that is no letter or digit. Most have it so for `-` alone, PHP also for `.`, and lighttpd for all.
pub(crate) fn variable_octet(octet: u8) -> u8 {
    if octet.is_ascii_alphanumeric() { octet.to_ascii_lowercase() } else { b'-' }
}

/// Whether a text is a token (RFC 9110 §5.6.2).
pub(crate) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

/// Trims spaces and tabs, and nothing else: other white space is part of a value (RFC 9110 §5.6.3).
pub(crate) fn trim(value: &[u8]) -> &[u8] {
    let inner = |b: &u8| !matches!(b, b' ' | b'\t');
    match (value.iter().position(inner), value.iter().rposition(inner)) {
        (Some(first), Some(last)) => &value[first..=last],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 9110 §7.6.1
    #[test]
    fn what_connection_names_is_not_sent_on() {
        for named in ["x-private", "X-Private", "x_private", "x.private"] {
            let list = format!("keep-alive , {named}");
            let mut fields = Fields::from_iter([
                ("Connection", list.as_bytes()),
                (named, b"1"),
                ("x-other", b"2"),
                ("x.other", b"3"),
            ]);
            fields.leave_hop();
            let left: Vec<&str> = fields.iter().map(|(name, _)| name).collect();
            assert_eq!(left, ["x-other", "x.other"], "{named}");
        }
        let trailers = Fields::from_iter([("connection", &b"close"[..]), ("x-sum", b"1")]).without_hop();
        assert_eq!(trailers.iter().collect::<Vec<_>>(), [("x-sum", &b"1"[..])]);
    }

    #[test]
    fn what_is_not_sent_on_is_known_in_every_spelling() {
        for name in [
            "Content_Length",
            "content.length",
            "Transfer~Encoding",
            "X_Target",
            "x.provider",
            "X.Lockgate_Run",
            "SCRIPT_NAME",
            "Script-Name",
            "X.Script.Name",
            "X-Script-Name",
            "PATH_INFO",
            "Path-Info",
            "x-path-info",
            "Connection",
            "Close",
            "Keep-Alive",
            "Proxy-Connection",
            "TE",
            "Trailer",
            "Upgrade",
            "HTTP2-Settings",
            "Proxy-Authorization",
            "Proxy-Authenticate",
            "Proxy-Authentication-Info",
            "Host",
            "Content-Length",
            "Transfer-Encoding",
            "X-Provider",
            "X-Target",
            "X-Proxy",
            "X-Substitute-Body",
            "X-Max-Response-Size",
            "X-Stream-Response",
            "X-Lockgate-Run",
        ] {
            let mut fields = Fields::from_iter([(name, &b"/v1"[..]), ("x.other", b"1")]);
            fields.leave_hop();
            assert_eq!(fields.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["x.other"], "{name}");
        }
    }
}
