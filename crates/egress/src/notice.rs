//! Messages of a sidecar to the process that watches the run: denials as they happen, and its last word.
//!
//! A denial is sent once for each target and guard, a fault behind the policy once for each rule and reason. The audit counts them
//! all.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use policy::{Denial, Guard, Hint, Plane};
use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};

use crate::llm::ModelUse;
use crate::tls::RunAuthority;

/// How many different denials are sent, and how many panics. An agent that makes up names must not fill memory or a terminal.
const MOST: usize = 1000;
/// How many different faults are sent. They have a count of their own: denials must not hide that a platform is down.
const MOST_FAULTS: usize = 100;
/// The longest text of a field, in characters.
const LONGEST: usize = 500;

/// One denial, one name that does not resolve, or one host that did not answer, for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The plane it came in by.
    pub plane: String,
    /// What was asked for.
    pub target: String,
    /// The guard's code, or `upstream_failed`, or `authority_not_trusted`.
    pub guard: String,
    /// Whether the policy denied it, or it was allowed and failed.
    pub outcome: NoticeOutcome,
    /// Why it was denied.
    pub reason: String,
    /// The rule that decided, if one did.
    #[serde(default)]
    pub rule: Option<String>,
    /// What would allow it, if that is known.
    pub hint: Option<Hint>,
}

impl Notice {
    /// Returns the notice in a line for a person. A deny rule may give any reason, so it is named itself.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { target, guard, reason, outcome, .. } = self;
        let rule = self.rule.as_ref().filter(|_| guard == Guard::DenyRule.code());
        let rule = rule.map(|rule| format!(", by {rule}")).unwrap_or_default();
        format!("{} {target} ({guard}): {reason}{rule}", outcome.as_str())
    }

    /// Whether no address was found, or none answered, as where everything has to go through a proxy.
    #[must_use]
    pub fn is_unreached(&self) -> bool {
        [Guard::NoAddress.code(), UPSTREAM_FAILED].contains(&self.guard.as_str())
    }
}

/// What became of a request that a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeOutcome {
    /// It was denied.
    Denied,
    /// It was allowed, and failed.
    Failed,
}

impl NoticeOutcome {
    /// Returns the word that a person is told.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}

/// The counts of a sidecar's exchanges by outcome, and its use of models.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Exchanges that were allowed.
    pub allowed: u64,
    /// Exchanges that were denied.
    pub denied: u64,
    /// Exchanges that were allowed, and failed.
    pub failed: u64,
    /// Records of exchanges that no rule granted, which are not in the audit because it was full.
    #[serde(default)]
    pub omitted: u64,
    /// Which records could not be written, and why, if any could not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unwritten: Option<String>,
    /// The use of models, if there was any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub models: Option<ModelUse>,
}

impl Summary {
    /// What a person must know of the audit that is behind this, if anything is wrong with it.
    pub fn missing_records(&self) -> impl Iterator<Item = String> {
        let records = if self.omitted == 1 { "record" } else { "records" };
        let omitted = (self.omitted > 0).then(|| {
            format!(
                "the audit of the run is full: {} {records} of requests that no rule granted left out",
                self.omitted
            )
        });
        omitted
            .into_iter()
            .chain(self.unwritten.as_ref().map(|what| format!("the audit is not whole: {what}")))
    }
}

/// A message of a sidecar to the process that watches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SidecarMessage {
    /// The first message, if TLS is terminated: the certificate of the run's authority, in PEM.
    Authority(String),
    /// What was denied, or was allowed and failed, as it happens.
    Notice(Notice),
    /// A denial that is not sent, because as many were as may be. It is sent once, and no denial is after it but for a fault's first.
    NoMoreDenials,
    /// A file that tells how names resolve has changed since the sidecar read it. The answer is the files, newly opened.
    NameFilesChanged,
    /// The last message.
    Summary(Summary),
    /// Where it panicked, and over what.
    Panicked(String),
    /// The last message of a sidecar that cannot go on.
    Failed {
        /// Why. The text reads on after "failed to".
        why: String,
        /// What the user can do about it, if that is known.
        remedy: Option<String>,
    },
}

impl SidecarMessage {
    /// Parses a message.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        serde_json::from_slice(message).ok()
    }
}

/// Sends the certificate of the run's authority. It must be the first message.
///
/// # Errors
/// When the socket has no reader any more.
pub fn send_authority(socket: BorrowedFd<'_>, authority: &RunAuthority) -> io::Result<()> {
    let message = serde_json::to_vec(&SidecarMessage::Authority(authority.certificate_pem().to_owned()))?;
    rustix::net::send(socket, &message, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Sends the reason why a sidecar ends that was not asked to. No other message does.
pub fn send_failure(socket: BorrowedFd<'_>, why: &str, remedy: Option<&str>) {
    let told = SidecarMessage::Failed { why: clipped(why), remedy: remedy.map(clipped) };
    send(socket, &told, SendFlags::DONTWAIT);
}

/// Sends every panic of this process from now on, instead of writing it to stderr, which a sidecar does not have.
pub fn tell_panics(socket: BorrowedFd<'_>) {
    // Without a descriptor it is told nowhere, and served all the same.
    let Ok(socket) = socket.try_clone_to_owned() else { return };
    let told = AtomicUsize::new(0);
    std::panic::set_hook(Box::new(move |panic| {
        if !is_one_more(&told) {
            return;
        }
        send(&socket, &SidecarMessage::Panicked(clipped(&panic.to_string())), SendFlags::DONTWAIT);
    }));
}

/// Counts what is told, up to as many as there are denials at most: whoever finds a fault could repeat it without end.
fn is_one_more(told: &AtomicUsize) -> bool {
    let more = |told: usize| (told < MOST).then_some(told + 1);
    told.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// Sends denials and the summary of one sidecar.
#[derive(Debug)]
pub(crate) struct Notices {
    socket: Option<OwnedFd>,
    told: Told,
    /// Why what is allowed fails.
    faults: Told,
    /// The hosts that are allowed and failed, with their reasons.
    failures: Told,
    /// Whether it was said that there are more.
    has_said_more: bool,
}

/// Stands in place of a guard where an upstream could not be reached, or broke off before it had answered.
pub(crate) const UPSTREAM_FAILED: &str = "upstream_failed";
/// The same where the program inside does not trust the run's authority.
pub(crate) const NOT_TRUSTED: &str = "authority_not_trusted";

/// What was sent: targets, or rules with reasons, and their guards.
type Told = HashSet<(String, &'static str)>;

/// Whether a guard tells of a fault that is the same whatever was asked for, such as a platform that is down.
fn is_fault(guard: Guard) -> bool {
    matches!(guard, Guard::Credential | Guard::Audit)
}

/// Returns the part of a target that names the host: a URL without its path, or all of `host:port`.
fn host_of(target: &str) -> &str {
    let begin = target.find("://").map_or(0, |at| at + 3);
    target[begin..].find(['/', '?']).map_or(target, |end| &target[..begin + end])
}

impl Notices {
    pub(crate) fn to(socket: Option<OwnedFd>) -> Self {
        Self { socket, told: Told::new(), faults: Told::new(), failures: Told::new(), has_said_more: false }
    }

    /// Sends a denial once for its target and guard, or a fault once for its rule and reason. If the watcher does not read, it is dropped:
    /// the sidecar never waits.
    pub(crate) fn tell(&mut self, plane: Plane, target: &str, denial: &Denial) {
        let Some(socket) = &self.socket else { return };
        let target = clipped(target);
        let is_fault = is_fault(denial.guard);
        let (told, most, what) = match is_fault {
            // The rule names the provider, which not every reason does.
            true => {
                let whose = denial.rule.as_deref().unwrap_or_default();
                (&mut self.faults, MOST_FAULTS, clipped(&format!("{whose} {}", denial.reason)))
            }
            false => (&mut self.told, MOST, target.clone()),
        };
        let what = (what, denial.guard.code());
        if told.contains(&what) {
            return;
        }
        if told.len() >= most {
            if !is_fault && !self.has_said_more {
                self.has_said_more = send(socket, &SidecarMessage::NoMoreDenials, SendFlags::DONTWAIT);
            }
            return;
        }
        let notice = Notice {
            plane: plane.as_str().into(),
            target,
            guard: denial.guard.code().into(),
            outcome: if denial.guard.is_failure() { NoticeOutcome::Failed } else { NoticeOutcome::Denied },
            reason: clipped(&denial.reason),
            rule: denial.rule.as_deref().map(clipped),
            hint: denial.hint.clone().map(clipped_hint),
        };
        // What found no room is told with the next of its kind.
        if send(socket, &SidecarMessage::Notice(notice), SendFlags::DONTWAIT) {
            told.insert(what);
        }
    }

    /// Sends once for a host and reason that it could not be reached, that it broke off, or that the program inside did. Beyond as many as
    /// there are faults at most it is left to the audit.
    pub(crate) fn tell_failure(&mut self, plane: Plane, target: &str, code: &'static str, why: &str) {
        let Some(socket) = &self.socket else { return };
        let target = clipped(host_of(target));
        let what = (clipped(&format!("{target} {why}")), code);
        if self.failures.contains(&what) || self.failures.len() >= MOST_FAULTS {
            return;
        }
        let notice = Notice {
            plane: plane.as_str().into(),
            target,
            guard: code.into(),
            outcome: NoticeOutcome::Failed,
            reason: clipped(why),
            hint: None,
            rule: None,
        };
        if send(socket, &SidecarMessage::Notice(notice), SendFlags::DONTWAIT) {
            self.failures.insert(what);
        }
    }

    /// Sends the summary, as the last message.
    pub(crate) fn close(&mut self, summary: Summary) {
        if let Some(socket) = self.socket.take() {
            send(&socket, &SidecarMessage::Summary(summary), SendFlags::empty());
        }
    }
}

/// Sends a message that may be lost, and returns whether it was sent.
pub(crate) fn send_message(socket: impl AsFd, message: &SidecarMessage) -> bool {
    send(socket, message, SendFlags::DONTWAIT)
}

/// Returns whether the message was sent. The watcher may be gone, or not read; the audit has the denial all the same.
fn send(socket: impl AsFd, told: &SidecarMessage, flags: SendFlags) -> bool {
    serde_json::to_vec(told)
        .is_ok_and(|message| rustix::net::send(socket, &message, flags | SendFlags::NOSIGNAL).is_ok())
}

/// Removes control characters and bounds the length, because the text goes to a terminal.
fn clipped(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(LONGEST).collect()
}

fn clipped_hint(hint: Hint) -> Hint {
    let mut hint = hint.map(|text| clipped(&text));
    if let Hint::Rule(rule) = &mut hint {
        rule.file = rule.file.take().map(|file| clipped(&file));
    }
    hint
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_told_as_often_as_denials_and_no_more() {
        let told = AtomicUsize::new(0);
        assert_eq!((0..MOST + 5).filter(|_| is_one_more(&told)).count(), MOST);
    }

    /// Returns what is sent for denials of as many targets.
    fn sent(denials: impl Iterator<Item = Denial>) -> Vec<SidecarMessage> {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut notices = Notices::to(Some(theirs.into()));
        let mut heard = Vec::new();
        let mut buffer = [0; 8192];
        for (number, denial) in denials.enumerate() {
            notices.tell(Plane::Forward, &format!("GET https://a.example/{number}"), &denial);
            while let Ok(length) = ours.recv(&mut buffer) {
                heard.push(SidecarMessage::parse(&buffer[..length]).unwrap());
            }
        }
        heard
    }

    #[test]
    fn a_platform_that_is_down_is_one_notice_and_hides_nothing() {
        let down = |_| Denial::new(Guard::Credential, "the platform does not answer");
        let denied = |_| Denial::new(Guard::Path, "no rule allows it");
        let heard = sent((0..2 * MOST).map(down).chain((0..3).map(denied)));
        let guards: Vec<_> = heard
            .iter()
            .map(|message| match message {
                SidecarMessage::Notice(notice) => notice.guard.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            guards,
            ["credential_unavailable", "path_not_allowed", "path_not_allowed", "path_not_allowed"]
        );
    }

    #[test]
    fn a_deny_rule_is_named_whatever_reason_it_gives() {
        let denial = |guard| Denial::new(guard, "no ads").with_rule("egress.deny[0] in p.toml");
        let heard = sent([Guard::DenyRule, Guard::Path].into_iter().map(denial));
        let lines: Vec<_> = heard
            .iter()
            .map(|message| match message {
                SidecarMessage::Notice(notice) => notice.line(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            lines,
            [
                "denied GET https://a.example/0 (deny_rule): no ads, by egress.deny[0] in p.toml",
                "denied GET https://a.example/1 (path_not_allowed): no ads",
            ]
        );
    }

    #[test]
    fn that_there_are_more_denials_is_said_once_and_a_fault_is_told_after_it() {
        let denied = |_| Denial::new(Guard::Path, "no rule allows it");
        let down = Denial::new(Guard::Credential, "the platform does not answer");
        let heard = sent((0..MOST + 5).map(denied).chain([down]));
        assert_eq!(heard.len(), MOST + 2);
        assert_eq!(heard[MOST], SidecarMessage::NoMoreDenials);
        assert!(
            matches!(&heard[MOST + 1], SidecarMessage::Notice(notice) if notice.guard == "credential_unavailable")
        );
    }

    #[test]
    fn a_host_that_cannot_be_reached_is_told_once_and_takes_no_denials_place() {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut notices = Notices::to(Some(theirs.into()));
        let heard = || {
            let mut buffer = [0; 8192];
            let length = ours.recv(&mut buffer).ok()?;
            match SidecarMessage::parse(&buffer[..length]) {
                Some(SidecarMessage::Notice(notice)) => Some((notice.target, notice.outcome)),
                other => panic!("{other:?}"),
            }
        };
        for (target, host) in [
            ("https://a.example/one?x=1", Some("https://a.example")),
            ("https://a.example/two", None),
            ("https://a.example", None),
            ("http://a.example:8080?q", Some("http://a.example:8080")),
            ("b.example:443", Some("b.example:443")),
        ] {
            notices.tell_failure(Plane::Forward, target, UPSTREAM_FAILED, "Connection refused");
            assert_eq!(heard(), host.map(|host| (host.into(), NoticeOutcome::Failed)), "{target}");
        }
        notices.tell_failure(Plane::Forward, "https://a.example/", UPSTREAM_FAILED, "it was too slow");
        assert!(heard().is_some(), "for another reason");
        for number in 0..2 * MOST_FAULTS {
            let target = format!("{number}.example:443");
            notices.tell_failure(Plane::Forward, &target, UPSTREAM_FAILED, "Connection refused");
            assert_eq!(heard().is_some(), number < MOST_FAULTS - 4, "{number}");
        }
        notices.tell(Plane::Forward, "https://a.example", &Denial::new(Guard::Path, "no rule allows it"));
        assert!(heard().is_some());
    }

    #[test]
    fn a_panic_is_sent_and_not_written() {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let before = std::panic::take_hook();
        tell_panics(theirs.as_fd());
        let ended = std::thread::spawn(|| panic!("over this")).join();
        std::panic::set_hook(before);
        assert!(ended.is_err());
        let mut buffer = [0; 4096];
        let length = ours.recv(&mut buffer).unwrap();
        let Some(SidecarMessage::Panicked(what)) = SidecarMessage::parse(&buffer[..length]) else {
            panic!("{:?}", String::from_utf8_lossy(&buffer[..length]));
        };
        assert!(what.contains("over this") && what.contains("notice.rs"), "{what}");
    }

    #[test]
    fn what_is_missing_of_the_audit_is_told_with_what_it_came_to() {
        let missing = |summary: &str| {
            let Some(SidecarMessage::Summary(summary)) = SidecarMessage::parse(summary.as_bytes()) else {
                panic!("{summary}");
            };
            summary.missing_records().collect::<Vec<_>>()
        };
        assert!(missing(r#"{"summary":{"allowed":1,"denied":2,"failed":3}}"#).is_empty());
        let summary = Summary { omitted: 1, unwritten: Some("2 records: why".into()), ..Summary::default() };
        let told = serde_json::to_string(&SidecarMessage::Summary(summary)).unwrap();
        assert_eq!(
            missing(&told),
            [
                "the audit of the run is full: 1 record of requests that no rule granted left out",
                "the audit is not whole: 2 records: why",
            ]
        );
    }
}
