//! YAML as people write it by hand: nested maps, and plain or quoted values on one line. Lists, anchors, blocks and flows other than
//! empty ones do not parse.

use serde_json::{Map, Value};

use super::super::judge::Judge;
use super::{NotUnderstood, tree};

pub(super) fn anew(text: &str, judge: &mut Judge<'_>) -> Result<String, NotUnderstood> {
    let lines = lines(text)?;
    let mut at = 0;
    let read = map(&lines, &mut at, 0)?;
    if let Some(line) = lines.get(at) {
        return Err(NotUnderstood::at(line.number));
    }
    let mut anew = String::new();
    write(&mut anew, &tree::judged(Value::Object(read), judge)?, 0);
    Ok(anew)
}

struct Line<'a> {
    number: usize,
    indent: usize,
    key: String,
    value: Option<&'a str>,
}

/// Returns the lines with content.
fn lines(text: &str) -> Result<Vec<Line<'_>>, NotUnderstood> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let content = line.trim_start_matches(' ');
        if content.trim().is_empty() || content.starts_with('#') || (number == 1 && line.trim_end() == "---")
        {
            continue;
        }
        let no = || NotUnderstood::at(number);
        let (key, rest) = match scalar(content, true).ok_or_else(no)? {
            (key, rest) if rest.starts_with(':') => (key, &rest[1..]),
            _ => return Err(no()),
        };
        if !(rest.is_empty() || rest.starts_with([' ', '\t'])) {
            return Err(no());
        }
        let value = Some(rest.trim()).filter(|value| !value.is_empty() && !value.starts_with('#'));
        lines.push(Line { number, indent: line.len() - content.len(), key, value });
    }
    Ok(lines)
}

fn map(lines: &[Line<'_>], at: &mut usize, indent: usize) -> Result<Map<String, Value>, NotUnderstood> {
    let mut read = Map::new();
    while let Some(line) = lines.get(*at).filter(|line| line.indent >= indent) {
        let no = || NotUnderstood::at(line.number);
        if line.indent != indent || read.contains_key(&line.key) {
            return Err(no());
        }
        *at += 1;
        let inner = lines.get(*at).filter(|next| next.indent > indent);
        let value = match (line.value, inner) {
            (None, None) => Value::Null,
            (None, Some(next)) => Value::Object(map(lines, at, next.indent)?),
            (Some(_), Some(_)) => return Err(no()),
            (Some("{}"), None) => Value::Object(Map::new()),
            (Some("[]"), None) => Value::Array(Vec::new()),
            (Some(text), None) => {
                let (value, rest) = scalar(text, false).ok_or_else(no)?;
                if !(rest.trim().is_empty() || rest.trim_start().starts_with('#')) {
                    return Err(no());
                }
                Value::String(value)
            }
        };
        read.insert(line.key.clone(), value);
    }
    Ok(read)
}

/// Parses a plain or quoted value, and returns what follows; a key ends before its colon.
fn scalar(text: &str, key: bool) -> Option<(String, &str)> {
    if let Some(inner) = text.strip_prefix('\'') {
        let (end, value) = single(inner)?;
        return Some((value, &inner[end..]));
    }
    if text.starts_with('"') {
        // Its escapes are JSON's; the few that are not do not parse.
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
        let value = values.next()?.ok()?;
        return Some((value, &text[values.byte_offset()..]));
    }
    if text.starts_with(|c: char| "-?:,[]{}#&*!|>%@`".contains(c)) {
        return None;
    }
    let end = if key { text.find(':')? } else { text.find(" #").unwrap_or(text.len()) };
    let value = text[..end].trim_end();
    let odd = value.contains(": ") || value.contains(" #") || value.contains('\t');
    (!odd && !value.is_empty()).then(|| (value.to_owned(), &text[end..]))
}

/// Returns the content of single quotes, and where it ends.
fn single(inner: &str) -> Option<(usize, String)> {
    let mut from = 0;
    loop {
        let at = from + inner[from..].find('\'')?;
        if inner[at + 1..].starts_with('\'') {
            from = at + 2;
        } else {
            return Some((at + 1, inner[..at].replace("''", "'")));
        }
    }
}

fn write(anew: &mut String, value: &Value, indent: usize) {
    let Value::Object(object) = value else { return };
    for (key, value) in object {
        let pad = " ".repeat(indent);
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                anew.push_str(&format!("{pad}{}:\n", quoted(key)));
                write(anew, value, indent + 4);
            }
            Value::Object(_) => anew.push_str(&format!("{pad}{}: {{}}\n", quoted(key))),
            Value::Array(_) => anew.push_str(&format!("{pad}{}: []\n", quoted(key))),
            Value::String(text) => anew.push_str(&format!("{pad}{}: {}\n", quoted(key), quoted(text))),
            _ => anew.push_str(&format!("{pad}{}:\n", quoted(key))),
        }
    }
}

/// Writes a word plainly if nothing could take it for something else; otherwise in the quotes of JSON, which are YAML's too.
fn quoted(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b));
    if plain { text.into() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::Form;
    use super::super::tried::tried;

    const REST: &str =
        "[credentials]\n\"*.oauth_token\" = \"https://*/\"\n\"*.users.*.oauth_token\" = \"https://*/\"";

    #[test]
    fn hosts_keep_all_but_their_tokens() {
        let text = "---\n# hush\nbound.example:\r\n    oauth_token: 'hush' # hush\r\n    user: \"me\"\n    git_protocol: https\n\
            other.example:\n  users:\n    me:\n      oauth_token: hush\n  user: me\n\naliases: {}\neditor:\nco: \"pr \\\"x\\\"\"\n";
        let (anew, left_out) = tried(Form::Yaml, REST, text).unwrap();
        for line in [
            "bound.example:\n    ",
            "    oauth_token: \"{}\"\n",
            "    git_protocol: https\n",
            "other.example:\n",
            "        me: {}\n",
            "editor:\n",
            "co: \"pr \\\"x\\\"\"\n",
        ] {
            let anew = anew.replace("oauth_token: {}", "oauth_token: \"{}\"");
            assert!(anew.contains(line), "{line} in {anew}");
        }
        assert_eq!(left_out, ["`other.example.users.me.oauth_token`"]);
    }

    #[test]
    fn what_is_more_than_that_does_not_enter() {
        for text in [
            "- a",
            "a: [b]",
            "a: {b: c}",
            "a: |\n  hush",
            "a: &x b",
            "a: *x",
            "a: !!str b",
            "a: b\na: c",
            "a:\n  b: c\n d: e",
            "a: b\n  hush",
            "a",
            "\ta: b",
            "a: 'hush",
            "a: \"hush",
            "a: 'x' hush",
            "? a\n: b",
            "a:b",
            "a: b: c",
            "%YAML 1.2\n---",
            "a: b\n---\nc: d",
        ] {
            assert!(tried(Form::Yaml, "", text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_token_under_another_name_goes() {
        let (anew, left_out) = tried(Form::Yaml, REST, "h:\n  user: me\n  pat: hush\n").unwrap();
        assert!(anew.contains("user: me") && !anew.contains("pat"), "{anew}");
        assert_eq!(left_out, ["`h.pat`"]);
    }
}
