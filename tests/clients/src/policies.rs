//! Policies that several tests use, as text.

/// The policy for the corpus of request targets (`tests/corpora/README.md`, "P1").
#[must_use]
pub fn corpus_policy() -> &'static str {
    "[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\n\n[[egress.allow]]\nurl = \"http://files.example.com/*\"\n"
}

/// A provider called `one`, whose credential the run may use at `uri`.
#[must_use]
pub fn provider(uri: &str) -> String {
    format!("[[provider]]\nid = \"one\"\nauthorized_uris = [\"{uri}\"]\n")
}

/// The same provider with a placeholder in `$ONE_TOKEN`, and its credential as a bearer (RFC 6750).
#[must_use]
pub fn bearer_provider(uri: &str) -> String {
    let inject =
        "env = \"ONE_TOKEN\"\ninject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }\n";
    provider(uri) + inject
}

/// Allows each host on its usual ports.
#[must_use]
pub fn allowing(hosts: &[&str]) -> String {
    hosts.iter().map(|host| format!("[[egress.allow]]\nhost = \"{host}\"\n\n")).collect()
}
