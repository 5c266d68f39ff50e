//! The answer for each name: from the built-in table, and from the one that a test supplies and may change while the world runs. It knows
//! nothing of sockets or of the wire format.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, Metadata};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::addresses::{
    BAD_NAME, BLACKHOLE, EXPIRED, HOST4, IP_ONLY, LAN, METADATA, PRIVATE4, PRIVATE6, SELF_SIGNED, SSH,
    UNKNOWN_CA, UNREACHABLE, WEB4, WEB6,
};
use crate::public::PUBLIC;

/// A resolver's answer about a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// These addresses, of both families; none means that the name exists without any.
    Addresses(Vec<IpAddr>),
    /// Another name.
    Alias(String),
    /// The name does not exist.
    Unknown,
    /// The resolver reports a failure.
    Failure,
    /// The resolver does not answer.
    Silence,
}

/// Names at the web address: examples, and public services whose protocols the world speaks. Those of packages are in [`PUBLIC`].
const WEB_NAMES: [&str; 19] = [
    "example.com",
    "api.example.com",
    "files.example.com",
    "smtp.example.com",
    "echo.example.com",
    "example.org",
    "www.example.org",
    "git.example.org",
    "pypi.example.org",
    "npm.example.org",
    "crates.example.org",
    "sub.example.org",
    "deep.sub.example.org",
    "github.com",
    "api.github.com",
    "protocols.example",
    "api.anthropic.com",
    "api.openai.com",
    "openrouter.ai",
];

/// The name whose answer changes: see [`Names::answer`].
const REBIND: &str = "rebind.example.com";

/// The file that a test supplies, as last read.
struct Supplied {
    path: PathBuf,
    seen: Option<(i64, i64, u64, u64)>,
    names: HashMap<String, Answer>,
    all: Option<Answer>,
}

/// All names, in lower case without a final dot.
pub(crate) struct Names {
    built_in: BTreeMap<String, Answer>,
    supplied: Option<Supplied>,
    rebind_answers: u64,
}

impl Names {
    /// Returns the built-in names, overridden by those of a tables file.
    pub(crate) fn new(tables: Option<PathBuf>) -> Self {
        let supplied = tables.map(|path| Supplied { path, seen: None, names: HashMap::new(), all: None });
        Self { built_in: built_in(), supplied, rebind_answers: 0 }
    }

    /// Returns the answer about `name` to a query for addresses of one family (`wanted`). `rebind.example.com` is public the first time and
    /// private from then on; a query without an answer does not count.
    pub(crate) fn answer(&mut self, name: &str, wanted: impl Fn(&IpAddr) -> bool) -> Answer {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if let Some(supplied) = &mut self.supplied {
            supplied.refresh();
            if let Some(answer) = supplied.all.as_ref().or_else(|| supplied.names.get(&name)) {
                return answer.clone();
            }
        }
        if name == REBIND {
            let addresses = [IpAddr::V4(WEB4), IpAddr::V4(PRIVATE4)];
            let now = addresses[usize::from(self.rebind_answers > 0)];
            self.rebind_answers += u64::from(wanted(&now));
            return Answer::Addresses(vec![now]);
        }
        self.built_in.get(&name).cloned().unwrap_or(Answer::Unknown)
    }
}

impl Supplied {
    /// Reads the file again if it has changed. A file that is missing or being written changes nothing.
    fn refresh(&mut self) {
        let identity =
            |metadata: Metadata| (metadata.mtime(), metadata.mtime_nsec(), metadata.size(), metadata.ino());
        let Ok(seen) = fs::metadata(&self.path).map(identity) else { return };
        if self.seen == Some(seen) {
            return;
        }
        let Some((names, all)) = fs::read_to_string(&self.path).ok().and_then(|text| parse(&text)) else {
            return;
        };
        (self.seen, self.names, self.all) = (Some(seen), names, all);
    }
}

/// Parses one JSON object or several, each of names with lists of addresses (an alias is a name in the list, `null` a name that does not
/// exist); the key `resolves_all` stands for every name.
fn parse(text: &str) -> Option<(HashMap<String, Answer>, Option<Answer>)> {
    let (mut names, mut all) = (HashMap::new(), None);
    for map in serde_json::Deserializer::from_str(text).into_iter::<Map<String, Value>>() {
        for (name, value) in map.ok()? {
            let answer = answer_of(&value)?;
            if name == "resolves_all" {
                // In the corpora an empty list also stands for a name that does not exist.
                let empty = answer == Answer::Addresses(Vec::new());
                all = Some(if empty { Answer::Unknown } else { answer });
            } else {
                names.insert(name.trim_end_matches('.').to_ascii_lowercase(), answer);
            }
        }
    }
    Some((names, all))
}

fn answer_of(value: &Value) -> Option<Answer> {
    let Value::Array(list) = value else { return value.is_null().then_some(Answer::Unknown) };
    let texts: Vec<&str> = list.iter().map(Value::as_str).collect::<Option<_>>()?;
    let addresses: Result<Vec<IpAddr>, _> = texts.iter().map(|text| text.parse()).collect();
    match (addresses, texts.as_slice()) {
        (Ok(addresses), _) => Some(Answer::Addresses(addresses)),
        (Err(_), [alias]) => Some(Answer::Alias((*alias).to_owned())),
        (Err(_), _) => None,
    }
}

fn built_in() -> BTreeMap<String, Answer> {
    let addresses = |list: &[IpAddr]| Answer::Addresses(list.to_vec());
    let one = |address: Ipv4Addr| Answer::Addresses(vec![IpAddr::V4(address)]);
    let web = addresses(&[IpAddr::V4(WEB4), IpAddr::V6(WEB6)]);
    let mapped = METADATA.to_ipv6_mapped();
    let others = [
        ("v4only.example.com", one(WEB4)),
        ("v6only.example.com", addresses(&[IpAddr::V6(WEB6)])),
        ("badname.example.com", one(BAD_NAME)),
        ("expired.example.com", one(EXPIRED)),
        ("selfsigned.example.com", one(SELF_SIGNED)),
        ("wrong-name.tls.example", one(BAD_NAME)),
        ("expired.tls.example", one(EXPIRED)),
        ("self-signed.tls.example", one(SELF_SIGNED)),
        ("unknown-ca.tls.example", one(UNKNOWN_CA)),
        ("ip-only.tls.example", one(IP_ONLY)),
        ("ssh.example.org", one(SSH)),
        ("lan.example.com", one(LAN)),
        ("host.example.com", one(HOST4)),
        ("private.example.com", one(PRIVATE4)),
        ("mixed.example.com", addresses(&[IpAddr::V4(WEB4), IpAddr::V4(PRIVATE4)])),
        ("meta.example.com", one(METADATA)),
        ("loopback.example.com", one(Ipv4Addr::LOCALHOST)),
        ("loopback6.example.com", addresses(&[IpAddr::V6(Ipv6Addr::LOCALHOST)])),
        ("zero.example.com", one(Ipv4Addr::UNSPECIFIED)),
        ("v6private.example.com", addresses(&[IpAddr::V6(PRIVATE6)])),
        ("mapped.example.com", addresses(&[IpAddr::V6(mapped)])),
        ("blackhole.example.com", one(BLACKHOLE)),
        ("unreachable.example.com", one(UNREACHABLE)),
        ("empty.example.com", addresses(&[])),
        ("alias.example.com", Answer::Alias("api.example.com".to_owned())),
        ("alias-private.example.com", Answer::Alias("private.example.com".to_owned())),
        ("failure.example.com", Answer::Failure),
        ("silence.example.com", Answer::Silence),
    ];
    let public = PUBLIC.all();
    let web_names = WEB_NAMES.iter().chain(public.iter()).map(|name| ((*name).to_owned(), web.clone()));
    web_names.into_iter().chain(others.map(|(name, answer)| (name.to_owned(), answer))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(address: &IpAddr) -> bool {
        address.is_ipv4()
    }

    #[test]
    fn rebind_turns_private_after_the_first_answer() {
        let mut names = Names::new(None);
        assert_eq!(names.answer(REBIND, IpAddr::is_ipv6), Answer::Addresses(vec![WEB4.into()]));
        assert_eq!(names.answer("Rebind.example.com.", v4), Answer::Addresses(vec![WEB4.into()]));
        assert_eq!(names.answer(REBIND, v4), Answer::Addresses(vec![PRIVATE4.into()]));
        assert_eq!(names.answer(REBIND, v4), Answer::Addresses(vec![PRIVATE4.into()]));
    }

    #[test]
    fn a_supplied_table_wins_and_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tables.json");
        let mut names = Names::new(Some(path.clone()));
        assert_eq!(names.answer("new.example.com", v4), Answer::Unknown);
        fs::write(
            &path,
            r#"{"new.example.com": ["1.2.3.4"], "api.example.com": null, "a.example.com": ["b.example"]}"#,
        )
        .unwrap();
        assert_eq!(names.answer("new.example.com", v4), Answer::Addresses(vec!["1.2.3.4".parse().unwrap()]));
        assert_eq!(names.answer("api.example.com", v4), Answer::Unknown);
        assert_eq!(names.answer("a.example.com", v4), Answer::Alias("b.example".to_owned()));
        fs::write(&path, "{}\n{\"resolves_all\": [\"10.0.0.5\", \"::1\"]}\n").unwrap();
        let all = Answer::Addresses(vec![PRIVATE4.into(), Ipv6Addr::LOCALHOST.into()]);
        assert_eq!(names.answer("anything.at.all", v4), all);
        fs::write(&path, "{\"resolves_all\": []}").unwrap();
        assert_eq!(names.answer("anything.at.all", v4), Answer::Unknown);
    }

    #[test]
    fn a_broken_table_is_not_taken() {
        assert!(parse("{\"a\": [\"1.2.3.4\"").is_none());
        assert!(parse("{\"a\": [\"1.2.3.4\", \"b\"]}").is_none());
        assert!(parse("{\"a\": 4}").is_none());
    }
}
