//! Hints: what would turn a denial into a grant, by kind, with its text for people.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::shell_quoting::shell_word;

/// What would allow a denied request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// A rule, as `lockgate policy allow` adds it. Boxed, because a denial is returned through many functions.
    Rule(Box<SuggestedRule>),
    /// Another command of this program that would allow it.
    Command(String),
    /// An edit of a rule that would allow it.
    Edit(String),
    /// To ask again after so many seconds.
    Wait(u64),
    /// To ask over HTTP what a WebSocket was to ask.
    OverHttp,
    /// Other advice, or the statement that nothing can allow it.
    Advice(String),
}

/// A rule that would allow a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuggestedRule {
    /// The host or URL, as it is written in a rule.
    pub target: String,
    /// Whether it names the port that is asked for.
    pub port: SuggestedPort,
    /// The policy that the rule goes into, if it is not the one that is found by itself.
    pub file: Option<String>,
}

/// Whether the port of what was denied is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuggestedPort {
    /// The rule names it.
    Named,
    /// It is not known, as after a question for a name: the rule is for the ports of the web.
    Unknown,
}

impl SuggestedPort {
    /// Returns what a person is told before the rule, if they must look for the port themselves. It is no part of the command.
    #[must_use]
    pub fn remark(self) -> &'static str {
        match self {
            Self::Named => "",
            Self::Unknown => " (add :PORT if it is neither 80 nor 443)",
        }
    }
}

impl Hint {
    /// Returns the hint to add a rule for a host or a URL.
    pub fn rule(target: impl Into<String>) -> Self {
        Self::rule_with(target.into(), SuggestedPort::Named)
    }

    /// Returns the hint to add a rule for a host that is asked for at a port that is not known.
    pub(crate) fn rule_at_some_port(host: impl Into<String>) -> Self {
        Self::rule_with(host.into(), SuggestedPort::Unknown)
    }

    fn rule_with(target: String, port: SuggestedPort) -> Self {
        Self::Rule(Box::new(SuggestedRule { target, port, file: None }))
    }

    /// Returns whether the hint would allow the request. Such a hint is useless if a managed policy does not allow the request either.
    #[must_use]
    pub fn allows(&self) -> bool {
        match self {
            Self::Rule(_) | Self::Command(_) | Self::Edit(_) => true,
            Self::Wait(_) | Self::OverHttp | Self::Advice(_) => false,
        }
    }

    /// Returns the hint with its text changed.
    #[must_use]
    pub fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Rule(rule) => Self::Rule(Box::new(SuggestedRule { target: change(rule.target), ..*rule })),
            Self::Command(text) => Self::Command(change(text)),
            Self::Edit(text) => Self::Edit(change(text)),
            hint @ (Self::Wait(_) | Self::OverHttp) => hint,
            Self::Advice(text) => Self::Advice(change(text)),
        }
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => rule.fmt(f),
            Self::Wait(seconds) => write!(f, "ask again in {seconds} s"),
            Self::OverHttp => f.write_str("ask over HTTP, or set a budget of requests alone"),
            Self::Command(text) | Self::Edit(text) | Self::Advice(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for SuggestedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lockgate policy allow ")?;
        if let Some(file) = &self.file {
            write!(f, "--policy {} ", shell_word(file))?;
        }
        f.write_str(&shell_word(&self.target))
    }
}

/// Returns the rule that leads to a server on this machine's loopback, whose names and addresses are the sandbox's own inside.
#[must_use]
pub fn on_this_machine(address: IpAddr, ports: impl fmt::Display) -> String {
    format!(
        "a rule with a name of your own leads here, in [[egress.allow]]: host = \"NAME.internal\", ports = [{ports}], \
         addresses = [\"{address}\"]; then ask for NAME.internal"
    )
}

/// A bare text is advice.
impl From<String> for Hint {
    fn from(text: String) -> Self {
        Self::Advice(text)
    }
}

impl From<&str> for Hint {
    fn from(text: &str) -> Self {
        Self::Advice(text.into())
    }
}
