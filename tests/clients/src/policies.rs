//! Policies that several tests use, as text.

/// The policy for the corpus of request targets (`tests/corpora/README.md`, "P1").
#[must_use]
pub fn corpus_policy() -> &'static str {
    "[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\n\n[[egress.allow]]\nurl = \"http://files.example.com/*\"\n"
}

/// Allows each host on its usual ports.
#[must_use]
pub fn allowing(hosts: &[&str]) -> String {
    hosts.iter().map(|host| format!("[[egress.allow]]\nhost = \"{host}\"\n\n")).collect()
}
