//! Templates. The input is lines of `name=value`, an empty line, and a text. In every position the text is filled as a simple
//! reader fills it, once and from left to right, or not at all.

use credential::{Credential, Position, RenderError, Room, Secret, Template, Value, substitute};

const PLACES: [Position; 7] = [
    Position::Header,
    Position::Login,
    Position::Path,
    Position::Query,
    Position::Json,
    Position::Form,
    Position::Text,
];

/// Fills the template of the input in each position.
pub fn template(input: &[u8]) {
    let end = input.windows(2).position(|pair| pair == b"\n\n").unwrap_or(input.len());
    let text = input.get(end + 2..).unwrap_or_default();
    let mut credential = Credential::default();
    for line in input[..end].split(|b| *b == b'\n') {
        let at = line.iter().position(|b| *b == b'=').unwrap_or(line.len());
        let name = String::from_utf8_lossy(&line[..at]).parse();
        let value = Value::new(Secret::new(line.get(at + 1..).unwrap_or_default().to_vec()));
        if let (Ok(name), Ok(value)) = (name, value) {
            credential.set(name, value);
        }
    }
    let pieces = pieces(text);
    for place in PLACES {
        judge(text, &pieces, &credential, place);
    }
    let Ok(text) = std::str::from_utf8(text) else { return };
    let names: Vec<&str> = pieces.iter().filter_map(|piece| piece.1).collect();
    let Ok(template) = Template::parse(text) else {
        return assert!(names.iter().any(|name| name.len() > 64), "{text:?} is no template");
    };
    assert!(template.names().eq(names.iter().copied()), "{:?}", template.names().collect::<Vec<_>>());
    assert_eq!(template.has_placeholders(), !names.is_empty());
    assert_eq!(template.leading_literal().as_bytes(), pieces[0].0);
    for place in PLACES {
        let rendered = template.render(&credential, place).map(|secret| secret.expose().to_vec());
        let filled = substitute(text.as_bytes(), &credential, place, &mut Room::of_text());
        assert_eq!(rendered, filled.map(|filled| filled.to_vec()));
    }
}

/// Splits a text into literals, each with the name in the placeholder after it.
fn pieces(text: &[u8]) -> Vec<(&[u8], Option<&str>)> {
    let (mut out, mut from, mut at) = (Vec::new(), 0, 0);
    while at < text.len() {
        let name = text[at..].strip_prefix(b"{{").map(|rest| {
            let end =
                rest.iter().position(|b| !b.is_ascii_alphanumeric() && *b != b'_').unwrap_or(rest.len());
            rest.split_at(end)
        });
        match name {
            Some((name, rest)) if !name.is_empty() && rest.starts_with(b"}}") => {
                out.push((&text[from..at], std::str::from_utf8(name).ok()));
                at += name.len() + 4;
                from = at;
            }
            _ => at += 1,
        }
    }
    out.push((&text[from..], None));
    out
}

fn judge(text: &[u8], pieces: &[(&[u8], Option<&str>)], credential: &Credential, place: Position) {
    let mut missing: Vec<&str> = Vec::new();
    let mut expected = Some(Vec::new());
    for (literal, name) in pieces {
        let value = name.map(|name| credential.field(name).map(|secret| written(secret.expose(), place)));
        if let (Some(name), Some(None)) = (name, &value)
            && !missing.contains(name)
        {
            missing.push(name);
        }
        expected = match value {
            None => expected.map(|filled: Vec<u8>| [&filled, *literal].concat()),
            Some(value) => expected.zip(value.flatten()).map(|(filled, v)| [&filled, *literal, &v].concat()),
        };
    }
    match substitute(text, credential, place, &mut Room::of_text()) {
        Ok(filled) => {
            assert_eq!(Some(filled.to_vec()), expected, "{place}");
            let breaks = |octets: &[u8]| octets.iter().filter(|b| matches!(b, b'\r' | b'\n' | 0)).count();
            let own: usize = pieces.iter().map(|(literal, _)| breaks(literal)).sum();
            assert_eq!(breaks(&filled), own, "a value broke a line of {place}");
        }
        Err(RenderError::Unresolved(names)) => assert_eq!(names, missing, "{place}"),
        Err(RenderError::Unfit { field, .. }) => {
            assert!(missing.is_empty() && expected.is_none(), "{place} is refused for {field}");
        }
        Err(RenderError::TooLong(_)) => {
            let all: usize = pieces
                .iter()
                .filter_map(|(_, name)| credential.field((*name)?))
                .map(|s| s.expose().len() * 6)
                .sum();
            assert!(all > 16 << 20, "{all} octets are too many");
        }
    }
}

/// Returns a value as it may stand in a position, computed independently, or nothing if it may not.
fn written(value: &[u8], place: Position) -> Option<Vec<u8>> {
    let controls = value.iter().any(u8::is_ascii_control);
    let percent = || {
        let kept = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
        value
            .iter()
            .map(|b| if kept(*b) { char::from(*b).to_string() } else { format!("%{b:02X}") })
            .collect()
    };
    let percent = || -> String { percent() };
    match place {
        Position::Header => (!controls && value.is_ascii()).then(|| value.to_vec()),
        Position::Login => (!controls).then(|| value.to_vec()),
        Position::Path => {
            let leads = value.iter().any(|b| b"/\\?#%".contains(b)) || value == b"." || has_dots(value);
            (!controls && !leads).then(|| percent().into_bytes())
        }
        Position::Query | Position::Form => Some(percent().into_bytes()),
        Position::Json => {
            let text = serde_json::to_string(std::str::from_utf8(value).ok()?).ok()?;
            Some(text.as_bytes()[1..text.len() - 1].to_vec())
        }
        Position::Text => Some(value.to_vec()),
    }
}

fn has_dots(value: &[u8]) -> bool {
    value.windows(2).any(|pair| pair == b"..")
}
