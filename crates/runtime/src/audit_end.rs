//! How the sidecars of a run that failed left its audits: what is cut off or removed later shows against it.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use egress::Entry;
use policy::Hostname;
use serde::{Deserialize, Serialize};

use crate::without_waiting::open_regular;

/// The most octets that are read of an audit's end. The record that closes a chain has fewer.
const END: u64 = 4 << 10;

/// An audit that a run had begun, as its sidecar left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEnd {
    /// The companion whose audit it is; `None` for the command's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub companion: Option<String>,
    /// Whether its last record closes its chain.
    pub closed: bool,
}

impl AuditEnd {
    /// Looks at an audit whose sidecar is over. `None` if it has no record and, for all that is known otherwise, never had one.
    pub(crate) fn of(audit: &Path, companion: Option<&Hostname>, is_begun: bool) -> Option<Self> {
        let end = end_of(audit).unwrap_or_default();
        let last = end.strip_suffix(b"\n").and_then(|lines| lines.rsplit(|octet| *octet == b'\n').next());
        let closed = last.is_some_and(|last| serde_json::from_slice(last).is_ok_and(|it: Entry| it.closes()));
        (is_begun || !end.is_empty()).then(|| Self { companion: companion.map(ToString::to_string), closed })
    }
}

fn end_of(audit: &Path) -> io::Result<Vec<u8>> {
    let file = open_regular(audit)?;
    let length = file.metadata()?.len();
    let begin = length.saturating_sub(END);
    let mut end = vec![0; usize::try_from(length - begin).unwrap_or_default()];
    file.read_exact_at(&mut end, begin)?;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sidecar_left_is_told_by_the_last_record() {
        let folder = tempfile::tempdir().unwrap();
        let audit = folder.path().join("run.jsonl");
        let line = |action: &str, target: &str| {
            let entry = serde_json::json!({
                "seq": 0, "ts": "T", "run": "abcdefghjkmn", "plane": "gate", "action": action, "target": target,
                "outcome": "allowed", "sent": 0, "received": 0, "us": 0, "prev": "0", "hash": "0",
            });
            format!("{entry}\n")
        };
        let (open, close) = (line("open", ""), line("close", ""));
        let long = line("expose", &"x".repeat(8 << 10));
        let closed = |text: &str| {
            std::fs::write(&audit, text).unwrap();
            AuditEnd::of(&audit, None, false).map(|end| end.closed)
        };
        assert_eq!(AuditEnd::of(&audit, None, false), None, "it is not there");
        assert_eq!(closed(""), None, "no record was ever in it");
        assert_eq!(closed(&open), Some(false));
        assert_eq!(closed(&format!("{open}{close}")), Some(true));
        assert_eq!(closed(&format!("{open}{long}{close}")), Some(true));
        assert_eq!(closed(&format!("{open}{long}")), Some(false));
        assert_eq!(closed(format!("{open}{close}").trim_end()), Some(false), "its last line is cut");
        std::fs::remove_file(&audit).unwrap();
        let removed = AuditEnd::of(&audit, Some(&Hostname::parse("db").unwrap()), true);
        assert_eq!(removed, Some(AuditEnd { companion: Some("db".into()), closed: false }));
    }
}
