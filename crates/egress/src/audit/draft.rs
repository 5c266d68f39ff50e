//! A record before it has its place in the chain, and the line it becomes there.
//!
//! The octets of a line are hashed, so the order of the fields here, and which are omitted, is the file format.

use policy::Plane;
use serde::Serialize;

use super::entry::Digest;
use super::word::{EntryPlane, GateAction, Outcome, Vocabulary};

/// The content of a record, without its place in the chain.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RecordDraft {
    /// It precedes the run in a line, see [`RecordLine`].
    #[serde(skip)]
    pub(super) ts: String,
    pub(super) plane: EntryPlane,
    #[serde(rename = "cap", skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<String>,
    pub(super) action: String,
    pub(super) target: String,
    pub(super) outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) guard: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chain: Option<Digest>,
    /// How many records were left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) omitted: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<u16>,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) us: u64,
}

impl RecordDraft {
    /// The record of an exchange. Its outcome is `failed` until another is set.
    pub(super) fn of_exchange(ts: String, plane: Plane, action: &str, target: String) -> Self {
        let plane = EntryPlane::Of(plane);
        Self { action: action.into(), target, outcome: Outcome::Failed, ..Self::blank(ts, plane) }
    }

    /// A record of the run itself.
    pub(super) fn of_gate(ts: String, action: GateAction, target: String) -> Self {
        Self { action: action.as_str().into(), target, ..Self::blank(ts, EntryPlane::Gate) }
    }

    fn blank(ts: String, plane: EntryPlane) -> Self {
        Self {
            ts,
            plane,
            rule: None,
            action: String::new(),
            target: String::new(),
            outcome: Outcome::Allowed,
            guard: None,
            reason: None,
            provider: None,
            address: None,
            image: None,
            chain: None,
            omitted: None,
            status: None,
            sent: 0,
            received: 0,
            us: 0,
        }
    }

    /// Whether it is the record of an exchange.
    pub(super) fn is_request(&self) -> bool {
        self.plane != EntryPlane::Gate
    }

    /// Whether it is of an exchange that a rule granted.
    pub(super) fn is_granted(&self) -> bool {
        self.is_request() && self.outcome != Outcome::Denied && self.rule.is_some()
    }
}

/// The line of a record, without its hash and signature.
#[derive(Serialize)]
pub(super) struct RecordLine<'a> {
    seq: u64,
    ts: &'a str,
    run: &'a str,
    #[serde(flatten)]
    draft: &'a RecordDraft,
    prev: &'a str,
}

impl<'a> RecordLine<'a> {
    /// The record as number `seq` in the chain of `run`, after the one whose hash is `prev`.
    pub(super) fn of(draft: &'a RecordDraft, seq: u64, run: &'a str, prev: &'a str) -> Self {
        Self { seq, ts: &draft.ts, run, draft, prev }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TS: &str = "2026-01-02T03:04:05.000006Z";

    fn line(draft: &RecordDraft) -> String {
        let prev = "0".repeat(64);
        serde_json::to_string(&RecordLine::of(draft, 7, "abcdefghjkmn", &prev))
            .unwrap()
            .replace(&prev, "PREV")
    }

    #[test]
    fn a_line_has_these_octets() {
        let mut draft =
            RecordDraft::of_exchange(TS.into(), Plane::Forward, "GET", "http://x/\"\u{e4}".into());
        assert_eq!(
            line(&draft),
            r#"{"seq":7,"ts":"2026-01-02T03:04:05.000006Z","run":"abcdefghjkmn","plane":"forward","action":"GET","target":"http://x/\"ä","outcome":"failed","sent":0,"received":0,"us":0,"prev":"PREV"}"#
        );
        let text = |text: &str| Some(text.to_owned());
        draft = RecordDraft {
            rule: text("rule"),
            outcome: Outcome::Denied,
            guard: text("policy"),
            reason: text("why"),
            provider: text("openai"),
            address: text("192.0.2.1:443"),
            image: text("sha256:1"),
            chain: text("aa"),
            omitted: None,
            status: Some(403),
            sent: 1,
            received: 2,
            us: 3,
            ..draft
        };
        assert_eq!(
            line(&draft),
            r#"{"seq":7,"ts":"2026-01-02T03:04:05.000006Z","run":"abcdefghjkmn","plane":"forward","cap":"rule","action":"GET","target":"http://x/\"ä","outcome":"denied","guard":"policy","reason":"why","provider":"openai","address":"192.0.2.1:443","image":"sha256:1","chain":"aa","status":403,"sent":1,"received":2,"us":3,"prev":"PREV"}"#
        );
        let begins = RecordDraft::of_gate(TS.into(), GateAction::Open, String::new());
        assert_eq!(
            line(&begins),
            r#"{"seq":7,"ts":"2026-01-02T03:04:05.000006Z","run":"abcdefghjkmn","plane":"gate","action":"open","target":"","outcome":"allowed","sent":0,"received":0,"us":0,"prev":"PREV"}"#
        );
    }
}
