//! Reads the few fields of an answer, or of an event, that tell what it took. The rest is skipped and never understood: a model's text may
//! hold what is no text, such as half of a surrogate pair, and other fields numbers and depths that no reader has to take (RFC 8259 §9).

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// The fields that are read.
const READ: [&str; 5] = ["model", "usage", "speed", "service_tier", "server_tool_use"];
/// The names that Gemini has for two of them.
const GEMINIS: [(&str, &str); 2] = [("modelVersion", "model"), ("usageMetadata", "usage")];
/// The parts that may have these fields instead: Anthropic's first event has them in `message`, OpenAI's last event in `response`.
const PARTS: [&str; 2] = ["message", "response"];

/// The largest value that is understood, in octets and in objects, of which the smallest takes more than a hundred times as much memory as
/// it has octets. Those that services send have a few KiB.
const LARGEST: usize = 64 * 1024;
const MOST_OBJECTS: usize = 1024;
/// The longest name of a model that is understood, in octets, with its quotes. It is kept for as long as its answer lasts.
const LONGEST_NAME: usize = 256;

/// Returns an answer or an event with nothing but the fields that are read. `None` if it is no object, and no list of them. Of a list,
/// which is a stream of Gemini's that was not asked for events, the last object that tells a usage is returned.
pub(super) fn read(text: &[u8]) -> Option<Value> {
    let found: Found<'_> = serde_json::from_slice(text).ok()?;
    let mut document = understood(&found);
    for part in PARTS {
        // What is no object, such as a message that is text, tells nothing.
        let Some(raw) = found.0.get(part).filter(|raw| raw.get().starts_with('{')) else { continue };
        let fields = serde_json::from_str::<Found<'_>>(raw.get()).map(|found| understood(&found).into());
        document.insert(part.to_owned(), fields.unwrap_or_else(|_| json!({"usage": unreadable()})));
    }
    Some(document.into())
}

/// Returns the values of the fields that are read. One that cannot be understood counts as one of no known meaning, and not as missing.
fn understood(found: &Found<'_>) -> Map<String, Value> {
    let value = |name, raw: &RawValue| {
        let small = Some(raw.get()).filter(|raw| is_small(name, raw));
        small.and_then(|raw| serde_json::from_str(raw).ok()).unwrap_or_else(unreadable)
    };
    let fields = READ.into_iter().filter_map(|name| Some((name, found.0.get(name)?)));
    fields.map(|(name, raw)| (name.to_owned(), value(name, raw))).collect()
}

/// Whether the value of a field takes little memory once it is understood.
fn is_small(name: &str, raw: &str) -> bool {
    let longest = if name == "model" { LONGEST_NAME } else { LARGEST };
    raw.len() <= longest && memchr::memchr_iter(b'{', raw.as_bytes()).count() <= MOST_OBJECTS
}

/// A value of no known meaning.
fn unreadable() -> Value {
    json!({"unreadable": true})
}

/// The fields of an object that are read, and its parts. Of a field that comes twice this is the last one.
struct Found<'a>(BTreeMap<&'static str, &'a RawValue>);

impl<'de> Deserialize<'de> for Found<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FoundVisitor)
    }
}

struct FoundVisitor;

impl<'de> Visitor<'de> for FoundVisitor {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer of a model")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<Self::Value, M::Error> {
        let mut found = BTreeMap::new();
        while let Some(name) = fields.next_key::<String>()? {
            let geminis = GEMINIS.into_iter().find_map(|(its, read)| (its == name).then_some(read));
            match (READ.into_iter().chain(PARTS).find(|read| *read == name), geminis) {
                (Some(read), _) => _ = found.insert(read, fields.next_value()?),
                (None, Some(read)) => _ = found.entry(read).or_insert(fields.next_value()?),
                (None, None) => _ = fields.next_value::<IgnoredAny>()?,
            }
        }
        Ok(Found(found))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
        let mut last = None;
        while let Some(found) = list.next_element::<Found<'de>>()? {
            if last.is_none() || found.0.contains_key("usage") {
                last = Some(found);
            }
        }
        last.ok_or_else(|| S::Error::invalid_length(0, &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_need_not_be_understood() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let (fields, told) = (
            r#""model":"a","usage":{"input_tokens":3}"#,
            json!({"model": "a", "usage": {"input_tokens": 3}}),
        );
        for other in [r#""x\ud83d""#, r#"[{"\udfff":"\udfff\ud83d"}]"#, "-1e999", "1E+9999", &deep] {
            for (text, document) in [
                (format!(r#"{{"x":{other},{fields},"y":{other}}}"#), told.clone()),
                (format!(r#"{{"message":{{"x":{other},{fields}}}}}"#), json!({"message": told})),
                (format!(r#"{{"response":{{{fields},"x":{other}}}}}"#), json!({"response": told})),
                (format!(r#"{{"message":{{"message":{other}}}}}"#), json!({"message": {}})),
                (format!(r#"{{"message":{other},{fields}}}"#), told.clone()),
            ] {
                assert_eq!(read(text.as_bytes()), Some(document), "{}", &text[..text.len().min(80)]);
            }
        }
    }

    #[test]
    fn what_is_read_and_not_understood_is_not_missing() {
        for other in [r#""\ud83d""#, "-1e999"] {
            for name in READ {
                let read = read(format!(r#"{{"{name}":{other}}}"#).as_bytes()).unwrap();
                assert!(read[name].is_object(), "{name} {other}");
            }
        }
    }

    #[test]
    fn what_would_take_much_memory_is_not_understood() {
        let objects = |count: usize| format!("[{}{{}}]", "{},".repeat(count - 1));
        let list = |octets: usize, last: &str| format!("[{}{last}]", "7,".repeat(octets / 2 - 2));
        let name = |length: usize| format!("\"{}\"", "m".repeat(length - 2));
        for (field, value, is_read) in [
            ("usage", objects(MOST_OBJECTS), true),
            ("usage", objects(MOST_OBJECTS + 1), false),
            ("usage", list(LARGEST, "77"), true),
            ("usage", list(LARGEST, "777"), false),
            ("server_tool_use", list(1024 * 1024, "77"), false),
            ("speed", name(LARGEST + 1), false),
            ("model", name(LONGEST_NAME), true),
            ("model", name(LONGEST_NAME + 1), false),
            ("model", name(7 * 1024 * 1024), false),
        ] {
            let fields = format!(r#"{{"{field}":{value}}}"#);
            for (text, part) in [
                (fields.clone(), None),
                (format!(r#"{{"message":{fields}}}"#), Some("message")),
                (format!(r#"{{"response":{fields}}}"#), Some("response")),
            ] {
                let read = read(text.as_bytes()).unwrap();
                let read = &part.map_or(&read, |part| &read[part])[field];
                assert_eq!(*read != unreadable(), is_read, "{field} of {} octets in {part:?}", value.len());
            }
        }
    }

    #[test]
    fn what_is_no_object_is_not_read() {
        for text in ["", "7", "[]", "[DONE]", "{", "{}}", r#"{"x":NaN}"#, r#"{"x":"\ud8"}"#] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(read(b" {} "), Some(json!({})));
    }

    #[test]
    fn geminis_names_are_read_and_the_last_usage_of_a_list() {
        let told = |text: &str| read(text.as_bytes()).unwrap();
        let (event, last) = (
            r#"{"modelVersion":"m","usageMetadata":{"promptTokenCount":3}}"#,
            r#"{"usageMetadata":{"promptTokenCount":4}}"#,
        );
        assert_eq!(told(event), json!({"model": "m", "usage": {"promptTokenCount": 3}}));
        assert_eq!(told(&format!("[{event},\r\n{last},{{}}]")), json!({"usage": {"promptTokenCount": 4}}));
        assert_eq!(told(r#"{"usage":1,"usageMetadata":2}"#), told(r#"{"usageMetadata":2,"usage":1}"#));
        assert_eq!(read(format!("[{event}").as_bytes()), None);
    }
}
