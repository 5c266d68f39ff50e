//! `SYSTEM_PROVIDER_KEYS`. The octet 1 stands for a key. No error shows it, whatever stands around it. The parser finds what a
//! simple reader finds, with each key once for each owner.

use std::collections::HashSet;
use std::path::PathBuf;

use nix::sys::prctl::set_dumpable;
use runtime::SystemKeys;
use sandbox::Caller;
use serde_json::Value;

use crate::octets;

/// An example of a key.
const KEY: &str = "sk-ant-q7Fh2Kd93LmXz81PwRtYbN4cVgTaE5Js";
/// How many of its octets in an error are a leak.
const SHORTEST_LEAK: usize = 12;
/// How many octets an error may have.
const LONGEST: usize = 500;
const MOST_KEYS: usize = 256;
const MOST_ORGANISATIONS: usize = 64;

/// Reads the input as the value of `SYSTEM_PROVIDER_KEYS`.
pub fn system_keys(input: &[u8]) {
    let text = octets::text_of(input);
    if text.is_empty() || text.contains('\0') {
        return;
    }
    let text = text.replace('\u{1}', KEY);
    let caller = Caller {
        uid: 0,
        gid: 0,
        superuser: false,
        home: None,
        directory: PathBuf::from("/"),
        environment: vec![(SystemKeys::VARIABLE.into(), text.clone().into())],
    };
    let read = SystemKeys::of(&caller);
    // The product forbids looking into a process that reads keys; the leak detector needs it.
    set_dumpable(true).expect("a process may be looked into");
    match read {
        Ok(keys) => {
            let keys = keys.expect("the variable is set");
            hides(&format!("{keys:?} {:?}", keys.left_out()));
            judge(&text, &keys);
        }
        Err(error) => {
            let told = error.to_string();
            hides(&told);
            hides(&format!("{error:?}"));
            assert!(told.len() <= LONGEST && !told.contains(char::is_control), "{told}");
        }
    }
}

/// Compares the keys that were read with what a simple reader finds.
fn judge(text: &str, keys: &SystemKeys) {
    let Ok(Value::Array(entries)) = serde_json::from_str(text) else { panic!("{text:?} is no list") };
    assert!(entries.len() <= MOST_KEYS);
    let mut expected = Vec::new();
    for entry in &entries {
        assert!(entry["apiKey"].as_str().is_some_and(|key| !key.is_empty()), "{entry} has no key");
        let provider = entry["providerId"].as_str();
        match entry["organizations"].as_array() {
            None => expected.push((None, provider)),
            Some(names) => {
                assert!((1..=MOST_ORGANISATIONS).contains(&names.len()));
                expected.extend(names.iter().map(|name| (name.as_str(), provider)));
            }
        }
    }
    let found: Vec<(Option<String>, String)> = keys
        .assigned()
        .map(|(whose, key)| (whose.map(ToString::to_string), key.provider().to_string()))
        .collect();
    assert_eq!(found.len(), expected.len());
    for ((whose, provider), (named, id)) in found.iter().zip(expected) {
        assert_eq!(whose.as_deref(), named);
        assert!(id.is_none_or(|id| id == provider), "{provider} is not {id:?}");
    }
    let once: HashSet<_> = found.iter().collect();
    assert_eq!(once.len(), found.len(), "two keys for the same: {found:?}");
}

fn hides(told: &str) {
    let random = &KEY["sk-ant-".len()..];
    let part = random.as_bytes().windows(SHORTEST_LEAK).find(|part| octets::contains(told.as_bytes(), part));
    assert!(part.is_none(), "a key is told: {told}");
}
