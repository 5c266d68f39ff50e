//! What looks like a credential: by the name of an entry, or by the value itself. Wrong towards leaving out.

/// Words in names of credentials, in lower case and without anything between letters.
const WORDS: &[&str] = &[
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "auth",
    "credential",
    "privatekey",
    "accesskey",
    "bearer",
    "cookie",
    "session",
    "signingkey",
];
/// Words of names that count tokens and do not hold one.
const COUNTS: &[&str] = &["tokens", "limit", "max", "min", "budget", "count", "timeout", "ttl"];
/// How well-known credentials begin; `-` and `_` belong to them.
const BEGINNINGS: &[&str] = &[
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "gldt-",
    "glrt-",
    "npm_",
    "pypi-",
    "sk-",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxs-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "eyJ",
    "hf_",
    "cio",
    "dckr_pat_",
    "shpat_",
    "lin_api_",
    "ntn_",
    "secret_",
    "tvly-",
    "AGE-SECRET-KEY-",
];
/// How much follows such a beginning at least.
const LEAST: usize = 16;
/// So many letters and digits in a row, both among them, are nobody's word.
const RANDOM: usize = 24;
/// How a private key begins, RFC 7468.
const PRIVATE_KEY: &str = "PRIVATE KEY-----";
/// How a placeholder begins.
const PLACEHOLDER: &str = "lgph_";

/// Whether a name says that it holds a credential.
pub(super) fn is_sensitive(name: &str) -> bool {
    let letters = name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase);
    let word: String = letters.collect();
    // An author is nobody's credential; an authorization is.
    let word = word.replace("authori", "auth!").replace("author", "");
    let password = word.ends_with("pass") && !word.ends_with("bypass");
    password
        || WORDS.iter().any(|known| word.contains(known))
        || matches!(word.as_str(), "key" | "otp" | "pin")
}

/// Whether a number, or a text of digits, under a sensitive name counts something.
pub(super) fn is_count(name: &str, value: &str) -> bool {
    let word: String = name.to_lowercase();
    let digits = !value.is_empty() && value.len() <= 9 && value.bytes().all(|b| b.is_ascii_digit());
    let secret = ["pass", "secret", "key", "pin"].iter().any(|known| word.contains(known));
    digits && !secret && COUNTS.iter().any(|known| word.contains(known))
}

/// Whether a value is itself like a credential, or holds one.
pub(super) fn is_telling(value: &str) -> bool {
    is_known_form(value)
        || has_password(value, "")
        || presents(value)
        || assigns(value)
        || runs(value).any(|run| run.split(|c: char| !c.is_ascii_alphanumeric()).any(is_random))
}

/// The same for a text in a human language, in which names and hashes of all kinds stand.
pub(super) fn is_known_form(text: &str) -> bool {
    text.contains(PRIVATE_KEY) || has_password(text, "://") || runs(text).any(begins)
}

/// Maximal runs of what a credential is written in.
fn runs(text: &str) -> impl Iterator<Item = &str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    text.split(move |c| !inside(c)).filter(|run| !run.starts_with(PLACEHOLDER))
}

fn begins(run: &str) -> bool {
    BEGINNINGS
        .iter()
        .any(|known| run.strip_prefix(known).is_some_and(|rest| rest.len() >= LEAST && is_mixed(rest)))
}

fn is_random(part: &str) -> bool {
    part.len() >= RANDOM && is_mixed(part)
}

/// Letters and digits, or as many capitals as no word has.
fn is_mixed(part: &str) -> bool {
    let count = |is: fn(&u8) -> bool| part.as_bytes().iter().filter(|b| is(b)).count();
    let (digits, large, small) =
        (count(u8::is_ascii_digit), count(u8::is_ascii_uppercase), count(u8::is_ascii_lowercase));
    (digits > 0 && large + small > 0) || large.min(small) >= part.len() / 4
}

/// `USER:PASSWORD@` right after `before`.
fn has_password(text: &str, before: &str) -> bool {
    /// What stands before a colon and is no user.
    const NOBODY: &[&str] = &["mailto", "npm", "acct", "sip", "xmpp"];
    text.match_indices('@').any(|(at, _)| {
        let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '@' | '"' | '\'' | '`' | '<' | '(');
        let begin =
            text[..at].char_indices().rfind(|(_, c)| ends(*c)).map_or(0, |(end, c)| end + c.len_utf8());
        let (user, password) = text[begin..at].split_once(':').unwrap_or_default();
        text[..begin].ends_with(before)
            && !password.is_empty()
            && !password.starts_with(PLACEHOLDER)
            && !NOBODY.contains(&user)
    })
}

/// `Bearer VALUE` or `Basic VALUE`, as a header holds them.
fn presents(value: &str) -> bool {
    let held = value
        .trim()
        .split_once(' ')
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("basic"));
    held.is_some_and(|(_, held)| {
        !held.contains(' ') && !held.starts_with(['$', '{']) && !held.contains(PLACEHOLDER)
    })
}

/// `NAME=VALUE`, `NAME: VALUE` or `--NAME VALUE` with a sensitive name and a value that is no reference.
fn assigns(text: &str) -> bool {
    let words: Vec<&str> = text.split([' ', '\t', '\n', '&', '?', ';', ',', '"', '\'']).collect();
    words.iter().enumerate().any(|(at, word)| {
        let (name, value) = match word.split_once(['=', ':']) {
            Some((name, value)) => (name, value),
            None if word.starts_with("--") => (*word, ""),
            None => return false,
        };
        let value = if value.is_empty() {
            words[at + 1..].iter().find(|w| !w.is_empty()).copied().unwrap_or("")
        } else {
            value
        };
        let reference = value.is_empty()
            || value.starts_with(['$', '-', '{', '%', '/'])
            || value.starts_with(PLACEHOLDER);
        let scheme = matches!(value.to_lowercase().as_str(), "bearer" | "basic" | "token");
        !reference && !scheme && is_sensitive(name) && !is_count(name, value)
            || scheme && is_sensitive(name) && !text.contains(PLACEHOLDER)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_credentials_are_known_in_every_spelling() {
        for name in [
            "GITHUB_TOKEN",
            "_authToken",
            "api-key",
            "apiKey",
            "client_secret",
            "Authorization",
            "password",
            "key",
            "PGPASSWORD",
            "smtppass",
            "aws_secret_access_key",
            "x-api-key",
            "AUTHORIZATION",
            "apiKeyHelper",
            "oauth_token",
        ] {
            assert!(is_sensitive(name), "{name}");
        }
        for name in
            ["author", "init-author-name", "registry", "editor", "model", "keybindings", "env_key", "name"]
        {
            assert!(!is_sensitive(name), "{name}");
        }
    }

    #[test]
    fn counts_are_no_credentials() {
        assert!(
            is_count("MAX_THINKING_TOKENS", "31999") && is_count("model_auto_compact_token_limit", "200000")
        );
        assert!(
            !is_count("token", "31999")
                && !is_count("max_token", "x1")
                && !is_count("password", "1234")
                && !is_count("max_password", "1")
        );
    }

    #[test]
    fn values_of_credentials_are_known() {
        for value in [
            "ghp_0123456789abcdefABCDEF0123456789abcd",
            "Bearer hush",
            "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.x",
            "sk-0123-456789abcdefghij",
            "https://me:word@host/",
            "me:word@proxy:3128",
            "qFhKdLmXzPwRtYbNcJsVgTaE",
            "hf_qFhKdLmXzPwRtYbNcJsV",
            "curl -H 'Authorization: Bearer abc' x",
            "curl --api-key abc",
            "x --token=abc",
            "https://host/?access_token=abc",
            "-----BEGIN OPENSSH PRIVATE KEY-----\nx",
            "q7Fh2Kd93LmXz81PwRtYbN4c",
        ] {
            assert!(is_telling(value), "{value}");
        }
        for value in [
            "git@github.com:",
            "https://registry.example.org/@scope/pkg",
            "claude-sonnet-4-5-20250929",
            "vim -f",
            "ssh://git@host:22/x",
            "me@example.org",
            "!git log --oneline",
            "npm_config_cache",
            "task-force-of-many",
            "$HOME/bin",
            "skipDangerousModePermissionPrompt",
            "npm_config_legacy_peer_deps",
            "mailto:me@example.org",
            "npm:react@18",
            "https://me:lgph_0123456789abcdefABCDEF0123456789@host/",
            "a: b",
            "--token $TOKEN",
            "Authorization: Bearer lgph_0123456789abcdefABCDEF0123456789",
        ] {
            assert!(!is_telling(value), "{value}");
        }
    }
}
