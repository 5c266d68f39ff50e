//! `SYSTEM_PROVIDER_KEYS`, in which a platform gives its organisations keys: a JSON list, read only to be brought into vaults. No run
//! is answered out of it. It is read completely before anything is stored; an error says which entry is wrong and why, and shows
//! nothing of it but harmless names. S1.27

use std::collections::BTreeMap;

use credential::{Secret, Value};
use policy::{OrganisationName, ProviderId, Target};
use sandbox::Caller;
use serde_json::Value as Json;
use zeroize::Zeroize;

use crate::error::Error;

/// The variable, named as on the existing platform.
const VARIABLE: &str = "SYSTEM_PROVIDER_KEYS";

/// The largest value, in octets: beyond what Linux lets a variable hold on most machines, execve(2).
const LARGEST: usize = 256 * 1024;
/// The largest number of keys, and of organisations of one key.
const MOST_KEYS: usize = 256;
const MOST_ORGANISATIONS: usize = 64;

/// Fields of an entry that have no effect, for this program knows them from elsewhere: the name of a key, and the models behind it.
const LEFT_OUT: [&str; 4] = ["label", "api", "apiShape", "models"];
/// Fields that say where a key is good. A provider that ships knows that itself; a key for another place would go to the wrong one.
const PLACES: [&str; 2] = ["baseUrl", "baseUrlOverride"];

/// The keys of a platform.
#[derive(Debug)]
pub struct SystemKeys {
    keys: Vec<SystemKey>,
    left_out: Vec<&'static str>,
}

/// A key of a platform.
#[derive(Debug)]
pub struct SystemKey {
    provider: ProviderId,
    value: Value,
    /// The organisations whose key it is; `None` for the person's own.
    organisations: Option<Vec<OrganisationName>>,
}

impl SystemKey {
    /// The provider it is for.
    #[must_use]
    pub fn provider(&self) -> &ProviderId {
        &self.provider
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }
}

impl SystemKeys {
    /// The variable's name.
    pub const VARIABLE: &str = VARIABLE;

    /// Reads the keys from the caller's environment, if it has any.
    ///
    /// # Errors
    /// The first entry that is wrong.
    pub fn of(caller: &Caller) -> Result<Option<Self>, Error> {
        // No other process may look into one that reads keys.
        let _ = sandbox::undumpable();
        let found = caller.environment.iter().find(|(name, value)| name == VARIABLE && !value.is_empty());
        let Some((_, value)) = found else { return Ok(None) };
        let text = value.to_str().ok_or("it is not text").map_err(bad)?;
        Self::parse(text).map(Some).map_err(bad)
    }

    /// Returns every key with its vault: an organisation's, or the person's own.
    pub fn assigned(&self) -> impl Iterator<Item = (Option<&OrganisationName>, &SystemKey)> {
        self.keys.iter().flat_map(|key| {
            let own = key.organisations.is_none().then_some(None);
            own.into_iter().chain(key.organisations.iter().flatten().map(Some)).map(move |whose| (whose, key))
        })
    }

    /// Returns the fields that some entry has and that have no effect here.
    #[must_use]
    pub fn left_out(&self) -> &[&'static str] {
        &self.left_out
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LARGEST {
            return Err(format!("it has {} octets, and at most {LARGEST} are read", text.len()));
        }
        // A parser's message may quote the text.
        let parsed = serde_json::from_str(text).map(Wiped);
        let mut parsed = parsed
            .map_err(|error| format!("it is not JSON: line {}, column {}", error.line(), error.column()))?;
        let Json::Array(entries) = &mut parsed.0 else {
            return Err("it is not a list: write it as [{\"providerId\": …, \"apiKey\": …}]".into());
        };
        if entries.len() > MOST_KEYS {
            return Err(format!("it has {} entries, and at most {MOST_KEYS} are read", entries.len()));
        }
        let mut all = Self { keys: Vec::new(), left_out: Vec::new() };
        for (index, entry) in entries.iter_mut().enumerate() {
            let key = all.read(entry).map_err(|why| format!("entry {}: {why}", index + 1))?;
            all.keys.push(key);
        }
        all.refuse_rivals()?;
        Ok(all)
    }

    fn read(&mut self, entry: &mut Json) -> Result<SystemKey, String> {
        let Json::Object(fields) = entry else { return Err("it is not an object".into()) };
        fields.retain(|_, value| !value.is_null());
        for name in fields.keys() {
            let left_out = LEFT_OUT.iter().chain(&PLACES).find(|known| *known == name);
            match (left_out, name.as_str()) {
                (Some(known), _) if self.left_out.contains(known) => {}
                (Some(known), _) => self.left_out.push(known),
                (None, "id" | "providerId" | "apiKey" | "organizations") => {}
                (None, other) => {
                    return Err(format!(
                        "{} is not known here, and could change what the key is for",
                        shown(other)
                    ));
                }
            }
        }
        let places = PLACES.iter().filter_map(|name| Some((*name, fields.get(*name)?)));
        let places: Vec<(&str, Option<String>)> =
            places.map(|(name, value)| (name, text_of(name, value).ok().and_then(shipped_at))).collect();
        let provider = match fields.get("providerId") {
            Some(id) => text_of("providerId", id)?
                .parse::<ProviderId>()
                .map_err(|why| format!("`providerId`: {why}"))?,
            // The older form says only where the key is good.
            None => {
                let found = places.first().and_then(|(_, at)| at.as_ref()?.parse().ok());
                found.ok_or("`providerId` is missing, and no provider that ships is at its `baseUrl`")?
            }
        };
        let ships =
            policy::provider_names().is_ok_and(|all| all.iter().any(|(name, _)| name == provider.as_str()));
        let elsewhere = |at: &Option<String>| ships && at.as_deref() != Some(provider.as_str());
        if let Some((name, _)) = places.iter().find(|(_, at)| elsewhere(at)) {
            return Err(format!(
                "`{name}` leads where `{provider}` is not: give the key a `providerId` of your own, and declare that as a [[provider]]"
            ));
        }
        let organisations = fields.get("organizations").map(organisations).transpose()?;
        let key = fields.get_mut("apiKey").ok_or("`apiKey` is missing")?;
        let Json::String(key) = key else { return Err("`apiKey` is not text".into()) };
        let value =
            Value::given(Secret::from_text(std::mem::take(key))).map_err(|why| format!("`apiKey`: {why}"))?;
        Ok(SystemKey { provider, value, organisations })
    }

    /// Refuses two keys of one provider for one vault: it is not clear which is meant.
    fn refuse_rivals(&self) -> Result<(), String> {
        let mut known = BTreeMap::new();
        for (index, key) in self.keys.iter().enumerate() {
            let whose =
                key.organisations.as_ref().map_or_else(|| vec![None], |all| all.iter().map(Some).collect());
            for whose in whose {
                if let Some(first) = known.insert((whose, &key.provider), index) {
                    let whose = whose.map_or_else(|| "the person".to_owned(), |name| format!("`{name}`"));
                    let (first, second, provider) = (first + 1, index + 1, &key.provider);
                    return Err(format!(
                        "entry {second}: {whose} has a key of `{provider}` by entry {first} already"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn organisations(value: &Json) -> Result<Vec<OrganisationName>, String> {
    let Json::Array(names) = value else { return Err("`organizations` is not a list".into()) };
    if names.is_empty() {
        return Err("`organizations` names none: whose key is it?".into());
    }
    if names.len() > MOST_ORGANISATIONS {
        return Err(format!(
            "`organizations` names {}, and at most {MOST_ORGANISATIONS} are read",
            names.len()
        ));
    }
    let name = |(index, name): (usize, &Json)| {
        let field = format!("organizations[{index}]");
        text_of(&field, name)?.parse().map_err(|why| format!("`{field}`: {why}"))
    };
    names.iter().enumerate().map(name).collect()
}

fn text_of<'a>(field: &str, value: &'a Json) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("`{field}` is not text"))
}

/// Returns the shipped provider that is at an address.
fn shipped_at(url: &str) -> Option<String> {
    let target = Target::parse(url).ok()?;
    policy::provider_for(target.host(), target.port())
}

/// Returns the name of a field, unless it may be a key in the wrong place.
fn shown(name: &str) -> String {
    let is_word = name.len() <= 32 && name.bytes().all(|octet| octet.is_ascii_alphabetic() || octet == b'_');
    if is_word { format!("`{name}`") } else { "a field whose name is not told".into() }
}

fn bad(why: impl Into<String>) -> Error {
    Error::ParseSettings { path: VARIABLE.into(), why: why.into() }
}

/// A JSON document whose strings are overwritten when it is dropped.
struct Wiped(Json);

impl Drop for Wiped {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

fn wipe(value: &mut Json) {
    match value {
        Json::String(text) => text.zeroize(),
        Json::Array(entries) => entries.iter_mut().for_each(wipe),
        Json::Object(fields) => fields.values_mut().for_each(wipe),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(text: &str) -> Vec<(String, String, String)> {
        let keys = SystemKeys::parse(text).unwrap();
        let row = |(whose, key): (Option<&OrganisationName>, &SystemKey)| {
            let value = String::from_utf8(key.value().secret().expose().to_vec()).unwrap();
            (whose.map(ToString::to_string).unwrap_or_default(), key.provider().to_string(), value)
        };
        keys.assigned().map(row).collect()
    }

    fn row(whose: &str, provider: &str, value: &str) -> (String, String, String) {
        (whose.into(), provider.into(), value.into())
    }

    // S1.27
    #[test]
    fn each_key_is_for_those_it_names_or_else_for_the_person() {
        let found = assigned(
            r#"[{"id": "a", "providerId": "anthropic", "apiKey": "one", "organizations": ["acme", "globex"]},
                {"id": "b", "providerId": "anthropic", "apiKey": "two"},
                {"id": "c", "providerId": "@acme/own", "apiKey": "three", "organizations": ["acme"], "label": null}]"#,
        );
        let rows = [("acme", "anthropic", "one"), ("globex", "anthropic", "one"), ("", "anthropic", "two")];
        let rows = rows.into_iter().chain([("acme", "@acme/own", "three")]);
        assert_eq!(found, rows.map(|(whose, id, value)| row(whose, id, value)).collect::<Vec<_>>());
        assert_eq!(assigned("[]"), []);
    }

    #[test]
    fn what_changes_nothing_is_left_out_and_said() {
        // Both forms of the existing platform.
        let text = r#"[{"id": "mine", "label": "Anthropic", "api": "anthropic-messages", "baseUrl": "https://api.anthropic.com",
                        "apiKey": "one", "models": [{"modelId": "claude-sonnet-4-6", "isDefault": true}]},
                       {"id": "x", "label": "ours", "providerId": "mistral", "baseUrlOverride": "https://llm.example.com/v1", "apiKey": "two"}]"#;
        assert_eq!(assigned(text), [row("", "anthropic", "one"), row("", "mistral", "two")]);
        let mut left_out = SystemKeys::parse(text).unwrap().left_out().to_vec();
        left_out.sort_unstable();
        assert_eq!(left_out, ["api", "baseUrl", "baseUrlOverride", "label", "models"]);
    }

    #[test]
    fn what_is_wrong_is_said_by_entry_and_no_value_is_shown() {
        const KEY: &str = "sk-ant-CANARY-0123456789";
        let good = format!(r#"{{"providerId": "openai", "apiKey": "{KEY}"}}"#);
        let own = |fields: &str| format!(r#"[{good}, {{"apiKey": "{KEY}", {fields}}}]"#);
        let many = format!("[{}]", vec![good.as_str(); MOST_KEYS + 1].join(","));
        let names: Vec<String> = (0..=MOST_ORGANISATIONS).map(|n| format!("\"o{n}\"")).collect();
        let table = [
            (format!("\"{KEY}\""), "it is not a list"),
            (format!("{{\"providerId\": \"{KEY}\"}}"), "it is not a list"),
            (format!("[{KEY}]"), "it is not JSON: line 1, column"),
            (format!("[{good}, \"{KEY}\"]"), "entry 2: it is not an object"),
            (many, "it has 257 entries, and at most 256"),
            ("x".repeat(LARGEST + 1), "at most 262144 are read"),
            ("[".repeat(100_000), "it is not JSON"),
            (own(r#""label": "x""#), "entry 2: `providerId` is missing"),
            (own(r#""baseUrl": "https://llm.example.com""#), "entry 2: `providerId` is missing"),
            (own(&format!(r#""providerId": "{KEY}""#)), "entry 2: `providerId`: a provider is named in"),
            (own(r#""providerId": 7"#), "entry 2: `providerId` is not text"),
            (
                own(r#""providerId": "anthropic", "expiresAt": "2020""#),
                "entry 2: `expiresAt` is not known here",
            ),
            (
                own(&format!(r#""providerId": "anthropic", "{KEY}": 1"#)),
                "entry 2: a field whose name is not told",
            ),
            (
                own(r#""providerId": "anthropic", "baseUrlOverride": "https://llm.example.com""#),
                "entry 2: `baseUrlOverride` leads where `anthropic` is not",
            ),
            (own(r#""providerId": "anthropic", "baseUrl": ["x"]"#), "entry 2: `baseUrl` leads where"),
            (
                own(r#""providerId": "anthropic", "organisations": ["acme"]"#),
                "`organisations` is not known here",
            ),
            (own(r#""providerId": "anthropic", "organizations": "acme""#), "`organizations` is not a list"),
            (own(r#""providerId": "anthropic", "organizations": []"#), "`organizations` names none"),
            (
                own(r#""providerId": "anthropic", "organizations": ["a", 1]"#),
                "`organizations[1]` is not text",
            ),
            (
                own(r#""providerId": "anthropic", "organizations": ["../a"]"#),
                "`organizations[0]`: an organisation is",
            ),
            (
                own(&format!(r#""providerId": "anthropic", "organizations": [{}]"#, names.join(","))),
                "names 65, and at most 64",
            ),
            (own(r#""providerId": "openai""#), "entry 2: the person has a key of `openai` by entry 1"),
            (own(r#""providerId": "exa", "organizations": ["a", "a"]"#), "`a` has a key of `exa` by entry 2"),
            (
                format!(r#"[{{"providerId": "exa", "apiKey": "{KEY}\n"}}]"#),
                "entry 1: `apiKey`: the value holds a line feed",
            ),
            (r#"[{"providerId": "exa", "apiKey": ""}]"#.into(), "entry 1: `apiKey`: the value is empty"),
            (r#"[{"providerId": "exa"}]"#.into(), "entry 1: `apiKey` is missing"),
            (format!(r#"[{{"providerId": "exa", "apiKey": ["{KEY}"]}}]"#), "entry 1: `apiKey` is not text"),
        ];
        for (text, words) in table {
            let error = bad(SystemKeys::parse(&text).unwrap_err()).to_string();
            assert!(
                error.starts_with("understand SYSTEM_PROVIDER_KEYS: ") && error.contains(words),
                "{words}: {error}"
            );
            assert!(!error.contains("CANARY"), "{error}");
        }
    }
}
