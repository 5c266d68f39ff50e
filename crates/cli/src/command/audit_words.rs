//! A record of an audit in words, on one line.

use std::borrow::Cow;

use egress::{Entry, GateAction, Outcome, Word};

use crate::output;

/// Prints a record, if it is one for people. Returns the number of lines.
pub(super) fn show_line(line: &str) -> Result<usize, anyhow::Error> {
    let shown = match serde_json::from_str::<Entry>(line).as_ref().map(told) {
        Err(_) => "(a record that is damaged: lockgate audit verify)".to_owned(),
        Ok(Some(told)) => output::plain(&told),
        Ok(None) => return Ok(0),
    };
    output::data(&shown)?;
    Ok(1)
}

/// Describes a record in words; `None` if it serves the hash chain only.
fn told(entry: &Entry) -> Option<String> {
    let Entry { plane, action, target, sent, received, .. } = entry;
    let ts = in_milliseconds(&entry.ts);
    if !entry.is_request() {
        return match (entry.gate_action()?, &entry.provider, &entry.image, &entry.chain) {
            (GateAction::Expose, Some(provider), _, _) => {
                Some(format!("{ts}  exposed {target}  the command holds the credential of {provider} itself"))
            }
            (GateAction::Omit, ..) => {
                let (omitted, reason) = (entry.omitted.unwrap_or(0), entry.reason.as_deref().unwrap_or(""));
                Some(format!("{ts}  left out {}: {reason}", many(omitted, "record")))
            }
            (GateAction::Companion, _, Some(image), Some(chain)) => Some(format!(
                "{ts}  companion {target}  of image {image}, its records begin with {chain:.12}"
            )),
            _ => None,
        };
    }
    let how = match (&entry.outcome, &entry.guard, entry.status) {
        (Word::Known(Outcome::Denied), guard, _) => {
            let guard = guard.as_ref().map(|guard| format!(" by {guard}")).unwrap_or_default();
            format!("denied{guard}: {}", entry.reason.as_deref().unwrap_or(""))
        }
        (Word::Known(Outcome::Failed), _, _) => {
            format!("failed: {}", entry.reason.as_deref().unwrap_or("it came to nothing"))
        }
        (Word::Known(Outcome::Allowed), _, Some(status)) => {
            format!("{status}, {received} octets in {:.1} ms", entry.us as f64 / 1000.0)
        }
        (Word::Known(Outcome::Allowed), _, None) => format!("allowed, {sent} octets out, {received} in"),
        (Word::Other(outcome), _, _) => outcome.clone(),
    };
    Some(format!("{ts}  {plane} {action} {target}  {how}"))
}

/// Shortens the time of a record to milliseconds, which those of runs have: `runs logs` shows both in one column.
fn in_milliseconds(time: &str) -> Cow<'_, str> {
    match time.split_once('.') {
        Some((seconds, rest)) if rest.ends_with('Z') && rest.len() > 4 => {
            format!("{seconds}.{rest:.3}Z").into()
        }
        _ => time.into(),
    }
}

pub(super) fn many(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_told_by_what_came_of_it() {
        let told = |fields: serde_json::Value| {
            let mut record = serde_json::json!({
                "seq": 0, "ts": "T", "run": "abcdefghjkmn", "plane": "forward", "action": "GET", "target": "http://x/",
                "outcome": "allowed", "sent": 1, "received": 2, "us": 1500, "prev": "0",
            });
            record.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            told(&serde_json::from_value(record).unwrap()).unwrap_or_default()
        };
        let rows = [
            (
                serde_json::json!({"ts": "2026-01-02T03:04:05.678901Z"}),
                "2026-01-02T03:04:05.678Z  forward GET http://x/  allowed, 1 octets out, 2 in",
            ),
            (serde_json::json!({}), "T  forward GET http://x/  allowed, 1 octets out, 2 in"),
            (serde_json::json!({"status": 200}), "T  forward GET http://x/  200, 2 octets in 1.5 ms"),
            (
                serde_json::json!({"outcome": "failed", "status": 200}),
                "T  forward GET http://x/  failed: it came to nothing",
            ),
            (
                serde_json::json!({"outcome": "denied", "guard": "policy", "reason": "why", "status": 403}),
                "T  forward GET http://x/  denied by policy: why",
            ),
            // It must not read as if it had been allowed.
            (
                serde_json::json!({"outcome": "postponed", "status": 200}),
                "T  forward GET http://x/  postponed",
            ),
            (serde_json::json!({"plane": "pigeon"}), "T  pigeon GET http://x/  allowed, 1 octets out, 2 in"),
            (serde_json::json!({"plane": "gate", "action": "open"}), ""),
            (
                serde_json::json!({"plane": "gate", "action": "expose", "target": "KEY", "provider": "openai"}),
                "T  exposed KEY  the command holds the credential of openai itself",
            ),
            (
                serde_json::json!({"plane": "gate", "action": "omit", "omitted": 3, "reason": "why"}),
                "T  left out 3 records: why",
            ),
            (
                serde_json::json!({
                    "plane": "gate", "action": "companion", "target": "db", "image": "sha256:1", "chain": "0123456789abcdef",
                }),
                "T  companion db  of image sha256:1, its records begin with 0123456789ab",
            ),
        ];
        for (fields, line) in rows {
            assert_eq!(told(fields), line);
        }
    }
}
