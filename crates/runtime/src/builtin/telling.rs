//! Recognises credentials by the name of an entry or by the value itself. Errors are on the side of leaving out.

use credential::Placeholder;

use super::command;
use super::shape::{has_short, is_in_address, is_mixed, is_random, without_commits};

/// Words in names of credentials, in lower case and without separators.
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
    "encryptionkey",
    "passcode",
    "mnemonic",
    "jwt",
    "honeycombteam",
];
/// Ends of names of credentials, written together: `MYSQL_PWD`, `SMTP_PW`, `X-Goog-Key`.
const ENDS: &[&str] = &["pwd", "pswd", "pw", "psk", "key"];
/// Words behind a credential's name that describe its form.
const FORMS: &[&str] = &["base64", "b64", "hex", "value"];
/// Names with such an end that hold no credential.
const NO_ENDS: &[&str] = &[
    "bypass",
    "publickey",
    "pubkey",
    "envkey",
    "hotkey",
    "primarykey",
    "foreignkey",
    "sortkey",
    "cachekey",
    "prefixkey",
    "leaderkey",
    "shortcutkey",
    "togglekey",
    "monkey",
    "turkey",
    "donkey",
    "hockey",
    "whiskey",
];
/// Parts of a name that mean a credential by themselves, and nothing within a longer part: `JIRA_PAT`, but not `pattern`.
const PARTS: &[&str] = &["pat", "pw", "pwd", "key", "otp", "pin"];
/// Parameters of addresses that grant access by themselves.
const PARAMETERS: &[&str] = &["sig", "signature", "code", "hmac"];
/// Parts of a key chord, beside letters, digits and `f1`.
const CHORDS: &[&str] = &[
    "ctrl",
    "control",
    "alt",
    "option",
    "opt",
    "shift",
    "cmd",
    "command",
    "meta",
    "super",
    "win",
    "mod",
    "escape",
    "esc",
    "enter",
    "return",
    "tab",
    "space",
    "backspace",
    "delete",
    "up",
    "down",
    "left",
    "right",
    "home",
    "end",
    "pageup",
    "pagedown",
];
/// Words of names that count tokens instead of holding one.
const COUNTS: &[&str] = &["tokens", "limit", "max", "min", "budget", "count", "timeout", "ttl"];
/// Prefixes of well-known credentials; `-` and `_` belong to them.
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
/// The least number of characters that follow such a prefix.
const LEAST: usize = 16;
/// The start of a private key, RFC 7468.
const PRIVATE_KEY: &str = "PRIVATE KEY-----";
/// The start of a placeholder.
const PLACEHOLDER: &str = "lgph_";

/// Whether a name says that it holds a credential.
pub(super) fn is_sensitive(name: &str) -> bool {
    let letters = name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase);
    let word: String = letters.collect();
    // `author` is no credential; `authorization` is.
    let word = word.replace("authori", "auth!").replace("author", "");
    let bare = bare(&word);
    let ends = bare.ends_with("pass") || ENDS.iter().any(|known| bare.ends_with(known));
    WORDS.iter().any(|known| word.contains(known))
        || PARTS.contains(&bare)
        || (ends && !NO_ENDS.iter().any(|known| bare.ends_with(known)))
        || last(name).is_some_and(|part| part == "pat")
}

/// Strips a name of its number and of the words for a form: `STORAGE_KEY_1`, `KEY_BASE64`.
fn bare(word: &str) -> &str {
    let short = word.trim_end_matches(|c: char| c.is_ascii_digit());
    FORMS.iter().find_map(|form| word.strip_suffix(form)).unwrap_or(short)
}

/// Returns the last part of a name, which begins after `_` or `-` or with a capital; a name of one part is returned whole.
fn last(name: &str) -> Option<String> {
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || !c.is_alphanumeric());
    let part = name.rsplit(|c: char| !c.is_alphanumeric()).next()?;
    // `jiraPat`, but not `PAT`.
    let hump = part.rfind(|c: char| c.is_uppercase()).filter(|at| part[..*at].ends_with(char::is_lowercase));
    Some(part[hump.unwrap_or(0)..].to_lowercase())
}

/// Whether an entry is a credential because of its parent: a parameter of an address, or a header with a random value.
pub(super) fn is_sensitive_under(parent: &str, name: &str, value: &str) -> bool {
    let (parent, name) = (parent.to_lowercase(), name.to_lowercase());
    let parameter = parent.contains("param") || parent.contains("query");
    (parameter && PARAMETERS.contains(&name.as_str())) || (parent.ends_with("headers") && has_short(value))
}

/// Whether a text under a name for headers holds any: `x-team=VALUE,x-other=VALUE`.
pub(super) fn holds_headers(name: &str, value: &str) -> bool {
    let named = ["headers", "header"].iter().any(|known| name.to_lowercase().ends_with(known));
    let mut pairs = value.split([',', '\n']).filter_map(|pair| pair.split_once(['=', ':']));
    named && pairs.any(|(_, held)| !is_reference(held.trim()))
}

/// Whether a value under a name for keys is a chord to press: `ctrl+p`.
pub(super) fn is_chord(name: &str, value: &str) -> bool {
    let key = |part: &str| {
        let function = part.strip_prefix('f').is_some_and(|n| n.parse().is_ok_and(|n: u8| n <= 24));
        function || part.chars().count() == 1 || CHORDS.contains(&part)
    };
    let value = value.to_lowercase();
    let mut parts = value.split(['+', '-', ' ']).filter(|part| !part.is_empty());
    name.to_lowercase().ends_with("key")
        && value.split(['+', '-', ' ']).any(|part| part.len() > 1)
        && parts.all(key)
}

/// Whether a number, or a text of digits, under a sensitive name counts something.
pub(super) fn is_count(name: &str, value: &str) -> bool {
    let word: String = name.to_lowercase();
    let digits = !value.is_empty() && value.len() <= 9 && value.bytes().all(|b| b.is_ascii_digit());
    let secret =
        ["pass", "secret", "key", "pin", "pwd", "pat", "pw"].iter().any(|known| word.contains(known));
    digits && !secret && COUNTS.iter().any(|known| word.contains(known))
}

/// Whether a value looks like a credential, or contains one.
pub(super) fn is_telling(value: &str) -> bool {
    let rest = &without_commits(value);
    is_known_form(value)
        || has_password(value, "")
        || presents(value)
        || assigns(value)
        || command::gives_password(value)
        || is_in_address(rest)
        || runs(rest).any(|run| run.split(|c: char| !c.is_ascii_alphanumeric()).any(is_random))
}

/// Whether one of a command's words, each passed to a program as it is, is or contains a credential.
pub(super) fn is_telling_to(program: &str, words: &[&str]) -> bool {
    is_telling(&words.join(" ")) || command::gives_password_to(program, words)
}

/// Whether a text in a human language, in which names and hashes of all kinds occur, contains a credential.
pub(super) fn is_known_form(text: &str) -> bool {
    text.contains(PRIVATE_KEY) || has_password(text, "://") || runs(text).any(begins)
}

/// Returns the maximal runs of characters that credentials are written in.
fn runs(text: &str) -> impl Iterator<Item = &str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    text.split(move |c| !inside(c)).filter(|run| run.parse::<Placeholder>().is_err())
}

fn begins(run: &str) -> bool {
    BEGINNINGS
        .iter()
        .any(|known| run.strip_prefix(known).is_some_and(|rest| rest.len() >= LEAST && is_mixed(rest)))
}

/// Whether `USER:PASSWORD@` follows `before`, or the address of a database names a user, whose password may contain anything.
fn has_password(text: &str, before: &str) -> bool {
    /// The start of a database's address, as drivers of MySQL and Oracle write it.
    const PLACES: &[&str] = &["@tcp(", "@tcp6(", "@unix(", "@//", "@(DESCRIPTION"];
    if PLACES.iter().any(|known| text.contains(known)) {
        return true;
    }
    /// Words before a colon that are no user.
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

/// Whether the text contains `Bearer VALUE` or `Basic VALUE`, as a header does.
fn presents(value: &str) -> bool {
    let held = value
        .trim()
        .split_once(' ')
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("basic"));
    held.is_some_and(|(_, held)| {
        !held.contains(' ') && !held.starts_with(['$', '{']) && !held.contains(PLACEHOLDER)
    })
}

/// Whether the text contains `NAME=VALUE`, `NAME: VALUE` or `--NAME VALUE`, with a sensitive name and a value that is no reference.
fn assigns(text: &str) -> bool {
    let words: Vec<&str> = text.split([' ', '\t', '\n', '&', '?', ';', ',', '"', '\'']).collect();
    words.iter().enumerate().any(|(at, word)| {
        let (name, value) = match word.split_once(['=', ':']) {
            Some((name, value)) => (name, value),
            None if word.starts_with('-') && word.len() > 2 => (*word, ""),
            None => return false,
        };
        let value = if value.is_empty() {
            words[at + 1..].iter().find(|w| !w.is_empty()).copied().unwrap_or("")
        } else {
            value
        };
        let reference =
            is_reference(value) || value.starts_with(['-', '/']) || value.trim_end_matches(')') == "*";
        let parameter = (text.contains("://") || text.contains('&'))
            && PARAMETERS.contains(&name.to_lowercase().as_str())
            && !value.starts_with(['$', '{'])
            && !value.is_empty();
        if parameter {
            return true;
        }
        let scheme = matches!(value.to_lowercase().as_str(), "bearer" | "basic" | "token");
        !reference && !scheme && is_sensitive(name) && !is_count(name, value)
            || scheme && is_sensitive(name) && !text.contains(PLACEHOLDER)
    })
}

/// Whether a value stands for another: a variable, a placeholder, nothing.
fn is_reference(value: &str) -> bool {
    value.is_empty() || value.starts_with(['$', '{', '%']) || value.starts_with(PLACEHOLDER)
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
            "MYSQL_PWD",
            "DB_PWD",
            "pwd",
            "SMTP_PW",
            "JIRA_PAT",
            "jiraPat",
            "pat",
            "PAT",
            "--pat",
            "ENCRYPTION_KEY",
            "ENCRYPTION_KEYS",
            "AZURE_STORAGE_KEY",
            "AZURE_STORAGE_KEY_1",
            "STORAGE_KEY_BASE64",
            "HEROKU_KEY",
            "AccountKey",
            "X-Key",
            "X-Goog-Key",
            "Ocp-Apim-Subscription-Key",
            "x-honeycomb-team",
        ] {
            assert!(is_sensitive(name), "{name}");
        }
        for name in [
            "author",
            "init-author-name",
            "registry",
            "editor",
            "model",
            "keybindings",
            "env_key",
            "name",
            "public_key",
            "public_key_path",
            "KEYBOARD_LAYOUT",
            "hotkey",
            "monkey",
            "pattern",
            "path",
            "compat",
            "patch",
            "cwd",
            "bypass",
            "value",
            "keymap",
        ] {
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
    fn what_an_entry_stands_under_counts() {
        assert!(is_sensitive_under("query_params", "code", "x") && is_sensitive_under("params", "sig", "x"));
        assert!(is_sensitive_under("headers", "X-Own", "q7Fh2Kd93LmXz81P"));
        assert!(!is_sensitive_under("query_params", "api-version", "2025-04-01"));
        assert!(!is_sensitive_under("diagnostics", "code", "x"));
        assert!(!is_sensitive_under("headers", "anthropic-beta", "interleaved-thinking-2025-05-14"));
        assert!(holds_headers("OTEL_EXPORTER_OTLP_HEADERS", "x-honeycomb-team=hush"));
        assert!(holds_headers("ANTHROPIC_CUSTOM_HEADERS", "x-team: $A\nx-other: hush"));
        assert!(!holds_headers("OTEL_EXPORTER_OTLP_HEADERS", "x-honeycomb-team=${TEAM}"));
        assert!(!holds_headers("X", "x-honeycomb-team=hush"));
    }

    #[test]
    fn keys_to_press_are_no_credentials() {
        for value in ["ctrl+p", "cmd+k cmd+s", "Shift-Tab", "escape", "f12", "alt+shift+f5"] {
            assert!(is_chord("key", value), "{value}");
        }
        for (name, value) in
            [("key", "hush"), ("key", "p"), ("password", "ctrl+p"), ("key", "ctrl+hush"), ("key", "a-b")]
        {
            assert!(!is_chord(name, value), "{value}");
        }
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
            "Server=h;User Id=me;Pwd=hush;Database=d",
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hush;EndpointSuffix=core.windows.net",
            "me:hush@tcp(h)/db",
            "me:hu/sh@tcp(h:3306)/db",
            "me/hush@tcp(h)",
            "https://h/c?sv=2024&sig=hush",
            "https://h/c?sig=%2Fhush%3D",
            "https://h/api/f?code=hush",
            "sv=2022-11-02&ss=b&sig=hush",
            "https://host/0b5c7f0e-4f5a-4f0e-9d0a-2f1b3c4d5e6f/sse",
            "https://dl.packages.example/basic/q7Fh2Kd93LmXz81P/o/r/",
            "https://npm.packages.example/q7Fh2Kd93LmXz81P/",
            "x --pat hush",
            "x --pwd hush",
            "x -pw hush",
            "!curl -u admin:hush https://h/",
            "!sshpass -p hush ssh h",
            "!mysql -phush db",
            "PAT: hush",
            "--token *hush",
            "x --header X-Key:hush",
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
            "https://me:lgph_0123456789abcdefABCDEF0123456789abcd@host/",
            "a: b",
            "--token $TOKEN",
            "ctrl+p",
            "mkdir -p dir",
            "-p 8080",
            "Bash(pwd:*)",
            "Bash(mkdir -p:*)",
            "Bash(pass:*)",
            "WebFetch(domain:docs.github.com)",
            "log --pretty=format:%h --abbrev-commit",
            "diff --word-diff-regex=. -w",
            "https://github.com/o/r/archive/3fae0c1d2b4e5f60718293a4b5c6d7e8f9012345.tar.gz",
            "git+https://github.com/o/r/tree/3fae0c1d2b4e5f60718293a4b5c6d7e8f9012345",
            "https://index.example/simple",
            "sparse+https://index.rust.example/",
            "https://host/api?api-version=2025-04-01",
            "npx -y @modelcontextprotocol/server-filesystem /tmp",
            "actions/checkout@v4",
            "0b5c7f0e-4f5a-4f0e-9d0a-2f1b3c4d5e6f",
            "Authorization: Bearer lgph_0123456789abcdefABCDEF0123456789abcd",
        ] {
            assert!(!is_telling(value), "{value}");
        }
    }
}
