//! An image's settings for a service: its volumes, its ports, its stop signal and its health check.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::Error;
use crate::manifest::{malformed, or_default};

/// How many volumes, and how many ports, an image may name.
const MOST_VOLUMES: usize = 64;
const MOST_PORTS: usize = 256;
/// The longest volume or port: `PATH_MAX`.
const LONGEST: usize = 4096;
/// How many words a health command may have.
const MOST_WORDS: usize = 256;
/// The names of signals from number 1 on, signal(7), without `SIG`.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
/// Further names of some of them.
const ALIASES: [(&str, &str); 3] = [("IOT", "ABRT"), ("POLL", "IO"), ("CLD", "CHLD")];
/// The first and the last real-time signal.
const REAL_TIME: (i32, i32) = (34, 64);
const NANOSECONDS: u64 = 1_000_000;

/// An image's settings for a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// The absolute paths of its volumes.
    pub volumes: Vec<String>,
    /// The TCP ports on which it listens.
    pub ports: Vec<u16>,
    /// The signal that stops it.
    pub stop_signal: Option<i32>,
    /// Its health check.
    pub health: Option<HealthCheck>,
    /// Whether it has a health check that is none. That counts only where the check is to be used.
    pub health_is_malformed: bool,
}

/// A command that exits with 0 if the service is healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheck {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The interval between two checks, in milliseconds; 0 if not set.
    pub interval: u64,
    /// How long one check may take, in milliseconds; 0 if not set.
    pub timeout: u64,
}

/// The fields of a configuration document from which a [`Service`] is parsed.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct RawService {
    volumes: Option<BTreeMap<String, Value>>,
    exposed_ports: Option<BTreeMap<String, Value>>,
    stop_signal: Option<String>,
    healthcheck: Option<RawHealth>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
struct RawHealth {
    test: Option<Vec<String>>,
    #[serde(deserialize_with = "or_default")]
    interval: i64,
    #[serde(deserialize_with = "or_default")]
    timeout: i64,
}

impl Service {
    pub(crate) fn compile(raw: RawService) -> Result<Self, Error> {
        let wrong = |why: String| malformed("configuration", why);
        let volumes: Vec<String> = raw.volumes.unwrap_or_default().into_keys().collect();
        if volumes.len() > MOST_VOLUMES {
            return Err(wrong(format!("it has more than {MOST_VOLUMES} volumes")));
        }
        if let Some(volume) = volumes.iter().find(|volume| !is_place(volume)) {
            return Err(wrong(format!(
                "its volume `{}` is no plain path below the root",
                volume.escape_default()
            )));
        }
        let ports = raw.exposed_ports.unwrap_or_default();
        if ports.len() > MOST_PORTS {
            return Err(wrong(format!("it has more than {MOST_PORTS} ports")));
        }
        // Ranges and other protocols are not supported, and left out.
        let port = |text: &String| text.strip_suffix("/tcp").unwrap_or(text).parse::<u16>().ok();
        let ports = ports.keys().filter_map(port).filter(|port| *port > 0).collect();
        let stop_signal =
            match raw.stop_signal.as_deref() {
                None | Some("") => None,
                Some(text) => {
                    let known = signal(text);
                    Some(known.ok_or_else(|| {
                        wrong(format!("its stop signal `{}` is none", text.escape_default()))
                    })?)
                }
            };
        let health = raw.healthcheck.map_or(Ok(None), RawHealth::compile);
        let health_is_malformed = health.is_err();
        Ok(Self { volumes, ports, stop_signal, health: health.unwrap_or_default(), health_is_malformed })
    }

    /// Writes these settings into an image's configuration.
    pub(crate) fn write(&self, config: &mut serde_json::Map<String, Value>) {
        let named =
            |names: Vec<String>| names.into_iter().map(|name| (name, json!({}))).collect::<BTreeMap<_, _>>();
        if !self.volumes.is_empty() {
            config.insert("Volumes".into(), json!(named(self.volumes.clone())));
        }
        if !self.ports.is_empty() {
            let ports = self.ports.iter().map(|port| format!("{port}/tcp")).collect();
            config.insert("ExposedPorts".into(), json!(named(ports)));
        }
        if let Some(signal) = self.stop_signal {
            config.insert("StopSignal".into(), json!(signal.to_string()));
        }
        if let Some(HealthCheck { command, interval, timeout }) = &self.health {
            let test: Vec<&str> = ["CMD"].into_iter().chain(command.iter().map(String::as_str)).collect();
            let (interval, timeout) = (interval * NANOSECONDS, timeout * NANOSECONDS);
            config.insert(
                "Healthcheck".into(),
                json!({ "Test": test, "Interval": interval, "Timeout": timeout }),
            );
        }
    }
}

/// A health check is no command.
struct Malformed;

impl RawHealth {
    /// Returns `None` if the check is disabled, or inherited from a base image, which this document does not name; an error if it is no
    /// command.
    fn compile(self) -> Result<Option<HealthCheck>, Malformed> {
        let test = self.test.unwrap_or_default();
        let words = match test.first().map(String::as_str) {
            None | Some("NONE") => return Ok(None),
            Some("CMD") => test[1..].to_vec(),
            Some("CMD-SHELL") => {
                let line = test.get(1).cloned().into_iter();
                ["/bin/sh", "-c"].map(String::from).into_iter().chain(line).collect()
            }
            Some(_) => Vec::new(),
        };
        let told =
            words.first().is_some_and(|word| !word.is_empty()) && words.last() != Some(&"-c".to_owned());
        if !told || words.len() > MOST_WORDS || words.iter().any(|word| word.contains('\0')) {
            return Err(Malformed);
        }
        let milliseconds = |text: i64| u64::try_from(text).unwrap_or(0) / NANOSECONDS;
        let (interval, timeout) = (milliseconds(self.interval), milliseconds(self.timeout));
        Ok(Some(HealthCheck { command: words, interval, timeout }))
    }
}

/// Whether a text is an absolute path below the root, without `..`.
fn is_place(text: &str) -> bool {
    let path = Path::new(text);
    let mut parts = path.components();
    let plain =
        parts.next() == Some(Component::RootDir) && parts.all(|part| matches!(part, Component::Normal(_)));
    plain && path.file_name().is_some() && text.len() <= LONGEST && !text.contains(char::is_control)
}

/// Parses a signal: its name, with or without `SIG`, or its number.
#[must_use]
pub fn signal(text: &str) -> Option<i32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits {
        return text.parse().ok().filter(|number| (1..=REAL_TIME.1).contains(number));
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let (first, last) = REAL_TIME;
    let beyond = |rest: &str, sign| match rest.strip_prefix(sign) {
        None if rest.is_empty() => Some(0),
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse::<i32>().ok(),
        _ => None,
    };
    if let Some(rest) = name.strip_prefix("RTMIN") {
        return first.checked_add(beyond(rest, '+')?).filter(|number| *number <= last);
    }
    if let Some(rest) = name.strip_prefix("RTMAX") {
        return last.checked_sub(beyond(rest, '-')?).filter(|number| *number >= first);
    }
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, known)| known);
    (1..).zip(SIGNALS).find(|(_, known)| *known == name).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(text: &str) -> Result<Service, Error> {
        Service::compile(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn what_is_said_is_read_and_can_be_said_again() {
        let text = r#"{"Volumes":{"/var/lib/postgresql/data":{}},"ExposedPorts":{"5432/tcp":{},"53/udp":{},"80-90/tcp":{}},
            "StopSignal":"SIGINT","Healthcheck":{"Test":["CMD-SHELL","pg_isready || exit 1"],"Interval":2000000000}}"#;
        let service = compiled(text).unwrap();
        assert_eq!(
            (&service.volumes[..], &service.ports[..]),
            (&["/var/lib/postgresql/data".to_owned()][..], &[5432][..])
        );
        assert_eq!(service.stop_signal, Some(2));
        let health = service.health.clone().unwrap();
        assert_eq!(
            (health.command.join(" ").as_str(), health.interval),
            ("/bin/sh -c pg_isready || exit 1", 2000)
        );
        let mut written = serde_json::Map::new();
        service.write(&mut written);
        assert_eq!(compiled(&Value::Object(written).to_string()).unwrap(), service);
        assert_eq!(compiled("{}").unwrap(), Service::default());
        assert_eq!(
            compiled(r#"{"Healthcheck":{"Test":["NONE"]},"Volumes":null}"#).unwrap(),
            Service::default()
        );
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in
            [("SIGTERM", 15), ("quit", 3), ("9", 9), ("SIGRTMIN+3", 37), ("RTMIN", 34), ("SYS", 31)]
                .into_iter()
                .chain([("SIGRTMAX", 64), ("RTMAX-1", 63), ("SIGIOT", 6), ("POLL", 29), ("SIGCLD", 17)])
        {
            assert_eq!(signal(text), Some(number), "{text}");
        }
        for text in [
            "",
            "SIG",
            "0",
            "65",
            "-1",
            "+1",
            "SIGRTMIN+31",
            "RTMIN-1",
            "SIGNONE",
            "RTMIN+99999999999",
            "RTMAX-31",
            "RTMAX+1",
        ] {
            assert_eq!(signal(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for text in [
            r#"{"Volumes":{"data":{}}}"#,
            r#"{"Volumes":{"/":{}}}"#,
            r#"{"Volumes":{"/a/../b":{}}}"#,
            r#"{"Volumes":{"/a\u0000b":{}}}"#,
            r#"{"StopSignal":"SIGNONE"}"#,
        ] {
            assert!(compiled(text).is_err(), "{text}");
        }
        for test in [r#"["CMD"]"#, r#"["CMD-SHELL"]"#, r#"["rm"]"#] {
            let service = compiled(&format!(r#"{{"Healthcheck":{{"Test":{test}}}}}"#)).unwrap();
            assert!(service.health_is_malformed && service.health.is_none(), "{test}");
        }
        let many: Vec<String> = (0..=MOST_VOLUMES).map(|n| format!("\"/v{n}\":{{}}")).collect();
        assert!(compiled(&format!("{{\"Volumes\":{{{}}}}}", many.join(","))).is_err());
    }
}
