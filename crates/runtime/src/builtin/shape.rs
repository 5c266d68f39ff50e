//! Recognises values that nobody would remember by their shape: a key, a token, a random number. Names play no part.

/// So many letters and digits in a row, both among them, are no word.
const RANDOM: usize = 24;
/// That many where words are rarer: within an address, and in the value of a header. The tokens of registries that put them into an
/// address are as short as this.
const SHORT: usize = 16;
/// That many with `-` and `_` among them, as in base64url (RFC 4648, section 5).
const LINKED: usize = 20;
/// Hosts whose paths name commits by their hashes.
const SOURCES: &[&str] = &[
    "github.com",
    "raw.githubusercontent.com",
    "codeload.github.com",
    "gitlab.com",
    "bitbucket.org",
    "codeberg.org",
];
/// The lengths of git's hashes in hexadecimal: SHA-1 and SHA-256.
const COMMITS: [usize; 2] = [40, 64];

/// Whether a run of letters and digits is random.
pub(super) fn is_random(part: &str) -> bool {
    part.len() >= RANDOM && is_mixed(part)
}

/// Whether a text of few words contains a shorter random run.
pub(super) fn has_short(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part.len() >= SHORT && is_mixed(part))
}

/// Whether a run mixes letters and digits, or has more capitals than any word.
pub(super) fn is_mixed(part: &str) -> bool {
    let (digits, large, small) = counts(part);
    (digits > 0 && large + small > 0) || large.min(small) >= part.len() / 4
}

fn counts(part: &str) -> (usize, usize, usize) {
    let count = |is: fn(&u8) -> bool| part.as_bytes().iter().filter(|b| is(b)).count();
    (count(u8::is_ascii_digit), count(u8::is_ascii_uppercase), count(u8::is_ascii_lowercase))
}

/// Removes the commits from addresses of public sources, which look like secrets and are none.
pub(super) fn without_commits(text: &str) -> String {
    let mut rest = text.to_owned();
    for address in addresses(text) {
        let mut parts = address.split('/');
        let public = parts.next().is_some_and(|host| SOURCES.contains(&host));
        let path = address.split(['?', '#']).next().unwrap_or_default();
        // After the owner and the name of a repository.
        for part in path.split('/').skip(3).filter(|_| public) {
            let hash = part.split('.').next().unwrap_or_default();
            let hex = hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            if hex && COMMITS.contains(&hash.len()) {
                rest = rest.replace(&format!("/{hash}"), "/");
            }
        }
    }
    rest
}

/// Whether an address in a text has a key in its path or its parameters.
pub(super) fn is_in_address(text: &str) -> bool {
    addresses(text).any(|address| {
        let behind = address.find(['/', '?']).map_or("", |at| &address[at..]);
        behind
            .split(['/', '?', '&', '=', '#', ':', ';', ','])
            .any(|part| is_uuid(part) || has_short(part) || is_linked(part))
    })
}

/// Returns what follows the scheme of each address; npm's addresses have none.
fn addresses(text: &str) -> impl Iterator<Item = &str> {
    let bare = text.strip_prefix("//");
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`');
    let whole = text.match_indices("://").map(move |(at, _)| &text[at + 3..]);
    bare.into_iter().chain(whole).map(move |rest| rest.split(ends).next().unwrap_or_default())
}

/// RFC 9562, section 4.
fn is_uuid(part: &str) -> bool {
    let lengths = part.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && part.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

fn is_linked(part: &str) -> bool {
    let (digits, large, small) = counts(part);
    let linked = part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    linked && part.len() >= LINKED && digits > 1 && large > 2 && small > 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_an_address_is_seen() {
        for text in [
            "https://host/0b5c7f0e-4f5a-4f0e-9d0a-2f1b3c4d5e6f/sse",
            "https://host/sse?x=0b5c7f0e-4f5a-4f0e-9d0a-2f1b3c4d5e6f",
            "https://dl.packages.example/basic/q7Fh2Kd93LmXz81P/org/repo/python/simple/",
            "https://npm.packages.example/q7fh2kd93lmxz81pw/",
            "//npm.packages.example/q7fh2kd93lmxz81pw/:always-auth",
            "sparse+https://h/a1B2-c3D4_e5F6-g7H8x/index/",
            "run https://h/a https://host/q7Fh2Kd93LmXz81P x",
        ] {
            assert!(is_in_address(text), "{text}");
        }
        for text in [
            "https://index.example/simple",
            "https://download.pytorch.org/whl/cu121",
            "https://pkgs.dev.azure.com/org/_packaging/feed/pypi/simple/",
            "https://domain-111122223333.d.codeartifact.us-east-1.amazonaws.com/pypi/repo/simple/",
            "https://us-central1-python.pkg.dev/project-123456/repo/simple",
            "https://json.schemastore.org/claude-code-settings.json",
            "https://host/v1/models/claude-sonnet-4-5-20250929?api-version=2025-04-01-preview",
            "0b5c7f0e-4f5a-4f0e-9d0a-2f1b3c4d5e6f",
        ] {
            assert!(!is_in_address(text), "{text}");
        }
    }

    #[test]
    fn commits_of_public_sources_are_no_keys() {
        let hash = "3fae0c1d2b4e5f60718293a4b5c6d7e8f9012345";
        for text in [
            format!("https://github.com/o/r/archive/{hash}.tar.gz"),
            format!("https://raw.githubusercontent.com/o/r/{hash}/x.json"),
        ] {
            assert!(!without_commits(&text).contains(hash), "{text}");
        }
        for text in [
            format!("https://github.com/{hash}/r"),
            format!("https://host/o/r/archive/{hash}.tar.gz"),
            format!("https://github.com/o/r/x?y={hash}"),
            format!("{hash} https://github.com/o/r"),
        ] {
            assert!(without_commits(&text).contains(hash), "{text}");
        }
    }
}
