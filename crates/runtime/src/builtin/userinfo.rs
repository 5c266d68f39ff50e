//! User information in addresses: `scheme://USER:PASSWORD@host`.

use data_encoding::BASE64;

use super::telling;

/// The name beside a placeholder if the caller's own must not be shown.
const NAMELESS: &str = "x-access-token";
/// The longest name of a person that is shown.
const LONGEST_NAME: usize = 20;

/// Returns the name beside a placeholder.
fn name(user: &str, password: &str) -> String {
    let plain = !user.is_empty()
        && user.len() <= LONGEST_NAME
        && user.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._@".contains(&b))
        && !telling::is_telling(user);
    // With these passwords the name is the credential.
    let swapped = matches!(password, "" | "x-oauth-basic" | "x");
    if plain && !swapped { user.into() } else { NAMELESS.into() }
}

/// Returns `USER:PLACEHOLDER` in base64, for a value that held `USER:PASSWORD`. RFC 7617.
pub(super) fn basic(held: &str, placeholder: &str) -> String {
    let decoded = BASE64.decode(held.trim().as_bytes()).ok().and_then(|text| String::from_utf8(text).ok());
    let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
    let name = pair.map_or_else(|| NAMELESS.into(), |(user, password)| name(user, password));
    BASE64.encode(format!("{name}:{placeholder}").as_bytes())
}

/// An address split at its user information.
struct Address<'a> {
    before: &'a str,
    userinfo: Option<&'a str>,
    /// The rest, from the host on.
    host: &'a str,
}

/// The result of replacing the user information in a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// No address has user information.
    Nothing,
    /// The text with placeholders instead of passwords, and the addresses whose password was removed because there is no placeholder
    /// for it.
    Anew(String, Vec<String>),
    /// It is not clear where the credential begins and ends.
    Unclear,
}

/// Replaces the user information in every address of a text.
pub(super) fn replaced<'p>(text: &str, placeholder: &dyn Fn(&str) -> Option<&'p str>) -> Told {
    let (mut anew, mut missing, mut rest, mut changed) = (String::new(), Vec::new(), text, false);
    while let Some(address) = first(rest) {
        let Ok(Address { before, userinfo, host }) = address else { return Told::Unclear };
        anew.push_str(before);
        let scheme = scheme_of(before);
        rest = host;
        let Some(userinfo) = userinfo else { continue };
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        if is_shell(scheme) && password.is_empty() {
            // The name of an account; its key is elsewhere.
            anew.push_str(user);
            anew.push('@');
            continue;
        }
        changed = true;
        let origin = format!("{}://{}/", if scheme == "http" { "http" } else { "https" }, authority(host));
        match placeholder(&origin) {
            Some(placeholder) if !is_shell(scheme) => {
                anew.push_str(&format!("{}:{placeholder}@", name(user, password)));
            }
            _ => missing.push(origin),
        }
    }
    if !changed {
        return Told::Nothing;
    }
    anew.push_str(rest);
    Told::Anew(anew, missing)
}

/// Returns the host and port of an address, which is all of it that may be shown; a text without an address is shown whole if it is
/// plain.
pub(super) fn host(text: &str) -> &str {
    let whole = !text.contains(['@', ':', '/']) && !telling::is_telling(text);
    match first(text) {
        Some(Ok(address)) if !telling::is_telling(authority(address.host)) => authority(address.host),
        None if whole => text,
        _ => "…",
    }
}

fn is_shell(scheme: &str) -> bool {
    scheme == "ssh" || scheme.ends_with("+ssh")
}

fn scheme_of(before: &str) -> &str {
    let text = before.strip_suffix("://").unwrap_or_default();
    let begin = text
        .rfind(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)))
        .map_or(0, |at| at + text[at..].chars().next().map_or(0, char::len_utf8));
    let scheme = &text[begin..];
    // `git+https`, `sparse+https`
    scheme
        .strip_prefix("git+")
        .or_else(|| scheme.strip_prefix("sparse+"))
        .filter(|s| *s != "ssh")
        .unwrap_or(scheme)
}

/// Returns the host and port that an address begins with.
fn authority(host: &str) -> &str {
    let end = host.find(|c: char| !(c.is_ascii_alphanumeric() || "-._:[]".contains(c)));
    host[..end.unwrap_or(host.len())].trim_end_matches(':')
}

/// Finds the first address of a text. An error if a password contains a character that ends it for some parser (`/`, `?`, `#`).
fn first(text: &str) -> Option<Result<Address<'_>, ()>> {
    let at = text.find("://")? + 3;
    let (before, rest) = text.split_at(at);
    let word =
        rest.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>')).next().unwrap_or("");
    let authority = word.split(['/', '?', '#', '\\']).next().unwrap_or("");
    let (userinfo, host) = match authority.rfind('@') {
        Some(at) => (Some(&authority[..at]), &authority[at + 1..]),
        None => (None, authority),
    };
    let port = if host.starts_with('[') { host.rsplit_once("]:") } else { host.split_once(':') };
    let odd = port.is_some_and(|(_, port)| !port.bytes().all(|b| b.is_ascii_digit()));
    // `https://me:pass/word@host`: a parser may take all before the last `@` for the password.
    let later = word[authority.len()..].contains('@') && (odd || !word[authority.len()..].starts_with('/'));
    if later || (odd && word.contains('@')) {
        return Some(Err(()));
    }
    let skip = userinfo.map_or(0, |userinfo| userinfo.len() + 1);
    Some(Ok(Address { before, userinfo, host: &rest[skip..] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACEHOLDER: &str = "lgph_0123456789abcdefABCDEF0123456789abcd";

    fn told(text: &str) -> Told {
        replaced(text, &|origin| origin.contains("bound.example").then_some(PLACEHOLDER))
    }

    fn anew(text: &str) -> Told {
        Told::Anew(text.replace('@', &format!("{PLACEHOLDER}@")), Vec::new())
    }

    #[test]
    fn a_password_becomes_the_placeholder_where_there_is_one() {
        assert_eq!(told("https://me:word@bound.example/x"), anew("https://me:@bound.example/x"));
        assert_eq!(
            told("git+https://t@bound.example:443/x"),
            anew("git+https://x-access-token:@bound.example:443/x")
        );
        let long = "https://q7Fh2Kd93LmXz81PwRtYbN4c:x-oauth-basic@bound.example";
        assert_eq!(told(long), anew("https://x-access-token:@bound.example"));
        let two = told("a https://me:word@bound.example b https://you:w@other.example/ c");
        let expected = format!("a https://me:{PLACEHOLDER}@bound.example b https://other.example/ c");
        assert_eq!(two, Told::Anew(expected, vec!["https://other.example/".into()]));
        assert_eq!(
            told("http://me:a@b@other.example:80/"),
            Told::Anew("http://other.example:80/".into(), vec!["http://other.example:80/".into()])
        );
    }

    #[test]
    fn addresses_without_one_stay() {
        for text in [
            "https://host/@scope/x",
            "ssh://git@host:22/x",
            "x",
            "",
            "https://host",
            "https://[::1]:80/",
            "://",
        ] {
            assert_eq!(told(text), Told::Nothing, "{text}");
        }
        assert_eq!(
            told("ssh://me:word@host/x"),
            Told::Anew("ssh://host/x".into(), vec!["https://host/".into()])
        );
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_unclear() {
        for text in [
            "https://me:pass/word@host/",
            "https://me:pass#word@host",
            "https://tok?en@host",
            "https://a:b\\c@host",
        ] {
            assert_eq!(told(text), Told::Unclear, "{text}");
        }
    }

    #[test]
    fn of_an_address_only_the_host_is_told() {
        assert_eq!(host("https://me:word@bound.example:1/word?word"), "bound.example:1");
        assert_eq!(host("origin"), "origin");
        for text in ["https://a@me:word/", "me:word@host", "https://q7Fh2Kd93LmXz81PwRtYbN4c/"] {
            assert_eq!(host(text), "…", "{text}");
        }
    }

    #[test]
    fn basic_keeps_a_plain_name_alone() {
        let of = |text: &str| {
            let anew = basic(&BASE64.encode(text.as_bytes()), "P");
            String::from_utf8(BASE64.decode(anew.as_bytes()).unwrap()).unwrap()
        };
        assert_eq!(of("me:word"), "me:P");
        assert_eq!(of("word:"), "x-access-token:P");
        assert_eq!(of("q7Fh2Kd93LmXz81PwRtYbN4c:y"), "x-access-token:P");
        assert_eq!(BASE64.decode(basic("no base64!", "P").as_bytes()).unwrap(), b"x-access-token:P");
    }
}
