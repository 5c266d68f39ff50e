//! `SYSTEM_PROXIES`, in which a platform declares proxies for all of its runs: a JSON list of names and addresses. It is a layer below
//! every file, so a file may choose among the proxies and redefine a name. Users and passwords in the addresses stay with this process,
//! as those of `PROXY_URL` do. S0.54, S1.29, S1.44

use credential::Credential;
use policy::{ProxyConfig, RunConfig};
use sandbox::Caller;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::error::Error;
use crate::proxy_url::WrittenProxy;
use crate::stash::Stash;

/// The variable, named as on the existing platform.
pub(crate) const VARIABLE: &str = "SYSTEM_PROXIES";

/// The largest value, in octets, and the largest number of proxies.
const LARGEST: usize = 64 * 1024;
const MOST: usize = 64;

/// The prefix of the names under which their users and passwords are asked for; the place in the list follows.
const CREDENTIAL: &str = "@lockgate/system-proxy-";

/// A proxy of the list. `label` is shown to people by the platform, and not used here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: String,
    url: Zeroizing<String>,
    #[serde(rename = "label")]
    _label: Option<String>,
}

/// Returns the declared proxies as a layer, without their users and passwords, if the caller's environment declares any.
pub(crate) fn declared(caller: &Caller) -> Result<Option<RunConfig>, Error> {
    let Some(text) = caller.variable(VARIABLE).filter(|text| !text.is_empty()) else { return Ok(None) };
    let mut config = RunConfig::default();
    for (index, entry) in parse(text).map_err(bad)?.into_iter().enumerate() {
        let written = WrittenProxy::parse(&entry.id, &entry.url);
        let WrittenProxy { proxy, user } =
            written.map_err(|why| bad(format!("entry {}: {why}", index + 1)))?;
        let credential = user.map(|_| format!("{CREDENTIAL}{}", index + 1));
        config.proxy.push(ProxyConfig { url: proxy.to_string(), id: entry.id, credential });
    }
    Ok(Some(config))
}

/// Returns the user and password that are asked for by a name, if it is one of theirs.
pub(crate) fn credential(kept: &Stash, id: &str) -> Option<Credential> {
    let number: usize = id.strip_prefix(CREDENTIAL)?.parse().ok()?;
    let text = kept.read().ok()?;
    let entries = parse(std::str::from_utf8(text.expose()).ok()?).ok()?;
    let entry = entries.get(number.checked_sub(1)?)?;
    WrittenProxy::parse(&entry.id, &entry.url).ok()?.credential()
}

/// Parses the list. A parser's message may quote the text, so an error names only the position.
fn parse(text: &str) -> Result<Vec<Entry>, String> {
    const FORM: &str = "write it as [{\"id\": \"corp\", \"url\": \"http://host:port\"}]";
    if text.len() > LARGEST {
        return Err(format!("it has {} octets, and at most {LARGEST} are read", text.len()));
    }
    let entries: Vec<Entry> = policy::from_json(text.as_bytes()).map_err(|error| {
        format!("it is not understood at line {}, column {}: {FORM}", error.line(), error.column())
    })?;
    if entries.len() > MOST {
        return Err(format!("it has {} entries, and at most {MOST} are read", entries.len()));
    }
    if let Some(twice) = (1..entries.len()).find(|&at| entries[..at].iter().any(|it| it.id == entries[at].id))
    {
        return Err(format!("entry {}: another has the same id", twice + 1));
    }
    Ok(entries)
}

fn bad(why: String) -> Error {
    Error::ParseSettings { path: VARIABLE.into(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Option<RunConfig>, String> {
        let environment = vec![(VARIABLE.into(), text.into())];
        let caller =
            Caller { uid: 0, gid: 0, superuser: false, home: None, directory: "/".into(), environment };
        declared(&caller).map_err(|error| match error {
            Error::ParseSettings { why, .. } => why,
            other => other.to_string(),
        })
    }

    #[test]
    fn users_and_passwords_are_not_in_the_layer() {
        let text = r#"[{"id": "corp", "label": "The office", "url": "http://bob:hunter2@proxy.example:3128"},
                       {"id": "open", "url": "socks5://10.0.0.1:1080"}]"#;
        let config = of(text).unwrap().unwrap();
        let found: Vec<_> = config
            .proxy
            .iter()
            .map(|it| (it.id.as_str(), it.url.as_str(), it.credential.as_deref()))
            .collect();
        assert_eq!(
            found,
            [
                ("corp", "http://proxy.example:3128", Some("@lockgate/system-proxy-1")),
                ("open", "socks5://10.0.0.1:1080", None)
            ]
        );
        assert!(!format!("{config:?}").contains("hunter2"));
        assert_eq!(of("").unwrap(), None);
    }

    #[test]
    fn a_credential_is_that_of_its_entry() {
        let text = r#"[{"id": "a", "url": "http://bob:one@a:1"}, {"id": "b", "url": "http://b:1"},
                       {"id": "c", "url": "http://eve:p%40ss@c:1"}]"#;
        let kept = Stash::keep(&credential::Secret::new(text.as_bytes().to_vec())).unwrap();
        let password = |id: &str| {
            let found = credential(&kept, id)?;
            found.field("password").map(|value| String::from_utf8_lossy(value.expose()).into_owned())
        };
        assert_eq!(password("@lockgate/system-proxy-1").as_deref(), Some("one"));
        assert_eq!(password("@lockgate/system-proxy-3").as_deref(), Some("p@ss"));
        for none in
            ["@lockgate/system-proxy-2", "@lockgate/system-proxy-0", "@lockgate/system-proxy-4", "1", ""]
        {
            assert_eq!(password(none), None, "{none}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_not_shown() {
        let long = format!("[{}]", vec![r#"{"id":"a","url":"http://a:1"}"#; 65].join(","));
        for (text, words) in [
            ("{", "line 1"),
            (r#"[{"id": "a", "url": 5}]"#, "line 1"),
            (r#"[{"id": "a", "url": "http://u:hunter2@a:1", "enabled": "hunter2"}]"#, "not understood"),
            (r#"[["a", "http://u:hunter2@a:1", "label"]]"#, "not understood"),
            (r#"[{"id": "a", "url": "http://hunter2@a:1"}]"#, "entry 1: write its user"),
            (r#"[{"id": "a", "url": "u:hunter2@a:1"}]"#, "entry 1: write it as http://host:port"),
            (r#"[{"id": "a", "url": "http:/u:hunter2@a:1"}]"#, "entry 1: write it as http://host:port"),
            (r#"[{"id": "a", "url": "http://u:hunter2%40a:1"}]"#, "entry 1: its host and port"),
            (r#"[{"id": "a", "url": "http://u:hunter2"}]"#, "entry 1: its host and port"),
            (r#"[{"id": "a", "url": "http://a:1"}, {"id": "a", "url": "http://b:1"}]"#, "entry 2: another"),
            (&long, "at most 64"),
            (&"x".repeat(65 * 1024), "at most 65536"),
        ] {
            let why = of(text).unwrap_err();
            assert!(why.contains(words) && !why.contains("hunter2"), "{why}");
        }
    }
}
