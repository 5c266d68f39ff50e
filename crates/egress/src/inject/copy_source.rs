//! Header fields by which object stores read another object than that of the request line: the one that is copied or moved there. What
//! they name must be allowed as well.

use policy::{Authority, Denial, Guard, Method, Target};

use super::draft::Sending;
use super::key_names::{may_be_same, may_end_with};

/// The ends of these names: `x-amz-copy-source`, `x-goog-copy-source`, `x-ms-rename-source`.
const COPIED: &str = "-copy-source";
const MOVED: [&str; 2] = ["-rename-source", "-move-source"];
/// OpenStack's name.
const COPIED_FROM: &str = "x-copy-from";
/// How many directories at the beginning of a path may say whose it is, and not where: an account, a bucket.
const MOST_DIRECTORIES: usize = 4;
const REMEDY: &str = "ask for the object and send it, or let a rule allow every path of the host";

/// Judges what a request copies or moves. `allowed` tells what the policy says of a method and a target, and `methods` are the request's.
///
/// # Errors
/// No rule allows to read the object, or a deny rule may be for it.
pub(super) fn judge(
    sending: &Sending,
    target: &Target,
    methods: &[Method],
    allowed: &impl Fn(&Method, &Target) -> Result<(), Denial>,
) -> Result<(), Denial> {
    let read = Method::parse("GET");
    let mut judged = Vec::new();
    for (name, value) in sending.fields.iter() {
        let Some(source) = Source::of(name) else { continue };
        let named = (source, path_of(target, String::from_utf8_lossy(value).trim()));
        if judged.contains(&named) {
            continue;
        }
        let own = methods.iter().filter(|method| source == Source::Moved && read.as_ref() != Some(*method));
        let all: Vec<&Method> = read.iter().chain(own).collect();
        judge_path(&named.1, target, &all, allowed).map_err(|denial| {
            let reason = format!("what its `{name}` names is judged as its path: {}", denial.reason);
            Denial { reason, ..denial }.with_hint(REMEDY)
        })?;
        judged.push(named);
    }
    Ok(())
}

/// What a request does with the object that a field names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Copied,
    /// It is read, and gone where it was.
    Moved,
}

impl Source {
    /// Reads the name of a field.
    pub(super) fn of(name: &str) -> Option<Self> {
        let is_copied = || may_end_with(name, COPIED) || may_be_same(name, COPIED_FROM);
        match MOVED.iter().any(|end| may_end_with(name, end)) {
            true => Some(Self::Moved),
            false => is_copied().then_some(Self::Copied),
        }
    }
}

/// Judges one path. A deny rule may be for it also where the host's name, or the beginning of the request's path, says whose it is.
fn judge_path(
    path: &str,
    target: &Target,
    methods: &[&Method],
    allowed: &impl Fn(&Method, &Target) -> Result<(), Denial>,
) -> Result<(), Denial> {
    let at =
        |path: &str| Target::from_origin_form(target.scheme(), target.host().clone(), target.port(), path);
    let source = at(path)?;
    methods.iter().try_for_each(|method| allowed(method, &source))?;
    let own = target.path().as_str();
    let directories = |path: &str| -> Vec<usize> {
        path.match_indices('/').map(|(at, _)| at).skip(1).take(MOST_DIRECTORIES).collect()
    };
    let shorter = directories(path).into_iter().map(|at| path[at..].to_owned());
    let longer = directories(own).into_iter().map(|at| format!("{}{path}", &own[..at]));
    let denied = |path: String| {
        let source = at(&path).ok()?;
        let mut denials = methods.iter().filter_map(|method| allowed(method, &source).err());
        denials.find(|denial| denial.guard == Guard::DenyRule)
    };
    shorter.chain(longer).find_map(denied).map_or(Ok(()), Err)
}

/// Reads a source as a path: a path with or without its first `/`, or an address of the same host, with `/` maybe encoded. Anything else,
/// as an address of another host, is the path of no rule but one for all.
fn path_of(target: &Target, text: &str) -> String {
    let whole = text.split_once("://").map(|(_, rest)| rest.split_at(rest.find('/').unwrap_or(rest.len())));
    let is_here = |host: &str| Authority::parse(host).is_ok_and(|named| named.host == *target.host());
    let text = whole.filter(|(host, _)| is_here(host)).map_or(text, |(_, path)| path);
    let text = text.split('?').next().unwrap_or_default(); // behind it is the version
    let mut path = String::from(if text.starts_with('/') { "" } else { "/" });
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        match (first, behind) {
            (b'%', [b'2', b'f' | b'F', behind @ ..]) => {
                path.push('/');
                rest = behind;
            }
            (b'%', [a, b, ..]) if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => path.push('%'),
            _ if first.is_ascii_alphanumeric() || b"-._~:/[]@!$&'()*+,;=".contains(first) => {
                path.push(char::from(*first));
            }
            _ => path.push_str(&format!("%{first:02X}")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Fields;

    #[test]
    fn a_source_is_read_as_a_path() {
        let target = Target::parse("https://store.example/b/k").unwrap();
        for (text, path) in [
            ("/b/k", "/b/k"),
            ("b/k?versionId=1", "/b/k"),
            ("b%2Fk%2fx%20y", "/b/k/x%20y"),
            ("https://STORE.example/b/k?sig=x", "/b/k"),
            ("https://other.example/b/k", "/https://other.example/b/k"),
            ("https://store.example", "/"),
            ("b/a b%#\u{e9}", "/b/a%20b%25%23%C3%A9"),
            ("arn:aws:s3:::b", "/arn:aws:s3:::b"),
            ("", "/"),
        ] {
            assert_eq!(path_of(&target, text), path, "{text}");
        }
    }

    #[test]
    fn what_is_named_again_is_not_judged_again() {
        let target = Target::parse("https://store.example/a/b/c/d/e/new").unwrap();
        let fields = [("x-amz-copy-source", "/k"), ("x-goog-copy-source", "k"), ("x-ms-rename-source", "/k")];
        let fields = fields.repeat(40).into_iter().map(|(name, value)| (name, value.as_bytes()));
        let put = Method::parse("PUT").unwrap();
        let sending = Sending::new(put.clone(), &target, fields.collect());
        let asked = std::cell::Cell::new(0);
        let allowed = |_: &Method, _: &Target| {
            asked.set(asked.get() + 1);
            Ok(())
        };
        assert_eq!(judge(&sending, &target, &[put, Method::parse("GET").unwrap()], &allowed), Ok(()));
        // By GET, and where it is moved by PUT too: alone, and behind as many directories as may say whose it is.
        assert_eq!(asked.get(), 3 * (1 + MOST_DIRECTORIES));
    }

    #[test]
    fn what_is_copied_is_judged_as_the_path() {
        let config = toml::from_str(
            "[egress]\nallow = [{ url = \"https://part.example/open/*\" }, { host = \"whole.example\" },\n\
             { url = \"https://most.example/*\" }, { url = \"https://swift.example/*\" }]\n\
             deny = [{ url = \"https://most.example/secret/*\" }, { url = \"https://swift.example/v1/me/secret/*\" },\n\
             { url = \"https://most.example/kept/*\", methods = [\"PUT\"] }]\n",
        );
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), config.unwrap());
        let policy = layers.compile().unwrap().policy;
        let judged = |target: &str, name: &str, source: &str| {
            let target = Target::parse(target).unwrap();
            let fields = Fields::from_iter([(name, source.as_bytes())]);
            let put = Method::parse("PUT").unwrap();
            let sending = Sending::new(put.clone(), &target, fields);
            let allowed = |method: &Method, target: &Target| {
                policy
                    .decide(&policy::Asked::request(policy::Plane::Forward, method.clone(), target))
                    .map(drop)
            };
            judge(&sending, &target, &[put], &allowed).map_err(|denial| denial.guard)
        };
        let part = "https://part.example/open/new";
        for name in [
            "x-amz-copy-source",
            "X-Goog-Copy-Source",
            "x_ms.copy-source",
            "x-ms-rename-source",
            "X-Copy-From",
        ] {
            for source in ["/open/a", "open/a?versionId=1", "open%2Fa", "https://part.example/open/a"] {
                assert_eq!(judged(part, name, source), Ok(()), "{name}: {source}");
            }
            for source in
                ["/secret/key", "bucket/open/a", "/open%2F..%2Fsecret", "https://other.example/open/a"]
            {
                assert_eq!(judged(part, name, source), Err(Guard::Path), "{name}: {source}");
            }
        }
        assert_eq!(judged(part, "x-amz-copy-source-range", "/secret"), Ok(()));
        for source in ["/secret/key", "b/a b", "https://other.example/x", "arn:aws:s3:::b/k"] {
            assert_eq!(judged("https://whole.example/b/k", "x-amz-copy-source", source), Ok(()), "{source}");
        }
        let most = "https://most.example/open/new";
        for source in
            ["/secret/key", "bucket/Secret/key", "a/b%2Fsecret/key", "https://other.example/secret/x"]
        {
            assert_eq!(judged(most, "x-amz-copy-source", source), Err(Guard::DenyRule), "{source}");
        }
        assert_eq!(judged(most, "x-amz-copy-source", "bucket/key"), Ok(()));
        assert_eq!(judged(most, "x-amz-copy-source", "/kept/key"), Ok(()));
        assert_eq!(judged(most, "x-ms-rename-source", "/kept/key"), Err(Guard::DenyRule));
        let swift = "https://swift.example/v1/me/open/new";
        assert_eq!(judged(swift, "x-copy-from", "/secret/key"), Err(Guard::DenyRule));
        assert_eq!(judged(swift, "x-copy-from", "/open/key"), Ok(()));
    }
}
