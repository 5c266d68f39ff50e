//! Templates: texts with `{{name}}` placeholders, which one pass fills with a credential's values.
//!
//! A placeholder is two braces, a word, two braces, and nothing else: `{{ x }}` and a lone `{{` are ordinary text. An inserted
//! value is never parsed again, so a value that holds `{{other}}` stays as it is. Either all placeholders are filled or
//! rendering fails.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use zeroize::Zeroizing;

use crate::fields::{Credential, is_word};
use crate::position::{Position, Unfit};
use crate::room::{NoRoom, Room};
use crate::secret::Secret;

/// The longest name of a placeholder: that of a field.
const LONGEST_NAME: usize = 64;

static OPENING: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("{{"));

/// A parsed text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    placeholders: Vec<Range<usize>>,
}

/// The reason why a text is not a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The name of a placeholder is longer than that of any field.
    #[error(
        "the name of the placeholder at octet {at} has {length} characters, at most {LONGEST_NAME} are taken"
    )]
    LongName {
        /// The offset of the placeholder.
        at: usize,
        /// The length of its name.
        length: usize,
    },
}

/// The reason why a template could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The credential lacks these fields, each listed once, in the order of the text.
    #[error("unresolved placeholders: {}", listed(.0))]
    Unresolved(Vec<String>),
    /// A value cannot stand in its position.
    #[error("the value of `{field}` cannot stand in {place}")]
    Unfit {
        /// The field.
        field: String,
        /// The position.
        place: Position,
        /// The reason.
        source: Unfit,
    },
    /// The values would add too much.
    #[error(transparent)]
    TooLong(#[from] NoRoom),
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("{{{{{name}}}}}")).collect::<Vec<_>>().join(", ")
}

impl Template {
    /// Parses a text.
    ///
    /// # Errors
    /// If the name in a placeholder is longer than 64 characters.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let placeholders: Vec<_> = placeholders(text.as_bytes()).collect();
        let long = placeholders.iter().find(|range| name(text.as_bytes(), range).len() > LONGEST_NAME);
        match long {
            Some(range) => {
                Err(TemplateError::LongName { at: range.start, length: name(text.as_bytes(), range).len() })
            }
            None => Ok(Self { text: text.into(), placeholders }),
        }
    }

    /// Returns the names in its placeholders, in the order of the text, with repetitions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.placeholders.iter().map(|range| name(self.text.as_bytes(), range))
    }

    /// Returns whether it has any placeholder.
    #[must_use]
    pub fn has_placeholders(&self) -> bool {
        !self.placeholders.is_empty()
    }

    /// Returns the text before the first placeholder; the whole text, if there is none.
    #[must_use]
    pub fn leading_literal(&self) -> &str {
        self.placeholders.first().map_or(&self.text, |range| &self.text[..range.start])
    }

    /// Renders the text with all values, encoded for their position.
    ///
    /// # Errors
    /// If the credential lacks a field, a value cannot stand in that position, or the text would be too long.
    pub fn render(&self, credential: &Credential, place: Position) -> Result<Secret, RenderError> {
        let mut room = Room::of_text();
        fill(self.text.as_bytes(), &self.placeholders, credential, place, &mut room).map(Secret::wiped)
    }
}

/// Fills the placeholders of a text, which may be any octets, with values encoded for their position, as far as there is room.
///
/// # Errors
/// If the credential lacks a field that a `{{name}}` in the text names, a value cannot stand in that position, or there is no room
/// for all values.
pub fn substitute(
    text: &[u8],
    credential: &Credential,
    place: Position,
    room: &mut Room,
) -> Result<Zeroizing<Vec<u8>>, RenderError> {
    let placeholders: Vec<_> = placeholders(text).collect();
    fill(text, &placeholders, credential, place, room)
}

/// Returns whether a text of any octets holds a placeholder.
#[must_use]
pub fn is_template(text: &[u8]) -> bool {
    placeholders(text).next().is_some()
}

/// Returns how many placeholders of a text name a field that the credential has.
#[must_use]
pub fn count_fields(text: &[u8], credential: &Credential) -> usize {
    placeholders(text).filter(|range| credential.field(name(text, range)).is_some()).count()
}

/// Returns a text with `stand_in` in the place of each placeholder.
#[must_use]
pub fn with_stand_ins(text: &str, stand_in: &str) -> String {
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    for range in placeholders(text.as_bytes()) {
        out.push_str(&text[at..range.start]);
        out.push_str(stand_in);
        at = range.end;
    }
    out + &text[at..]
}

/// Finds the placeholders of a text, braces included.
fn placeholders(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(found) = OPENING.find(&text[at..]) {
            let start = at + found;
            let word = start + 2;
            let end = word + text[word..].iter().take_while(|octet| is_word(**octet)).count();
            if end > word && text[end..].starts_with(b"}}") {
                at = end + 2;
                return Some(start..at);
            }
            // Advance by one, not two: in `{{{x}}` the placeholder begins at the second brace.
            at = start + 1;
        }
        None
    })
}

/// Returns the name in a placeholder. Word characters are ASCII, so it is always UTF-8.
fn name<'a>(text: &'a [u8], placeholder: &Range<usize>) -> &'a str {
    std::str::from_utf8(&text[placeholder.start + 2..placeholder.end - 2]).unwrap_or_default()
}

fn fill(
    text: &[u8],
    placeholders: &[Range<usize>],
    credential: &Credential,
    place: Position,
    room: &mut Room,
) -> Result<Zeroizing<Vec<u8>>, RenderError> {
    let values = written(text, placeholders, credential, place)?;
    let value =
        |range: &Range<usize>| values.get(name(text, range)).map_or([].as_slice(), |value| value.as_slice());
    let literal = text.len() - placeholders.iter().map(Range::len).sum::<usize>();
    let lengths = placeholders.iter().map(|range| value(range).len());
    room.take(lengths.clone())?;
    let inserted: usize = lengths.sum();
    // Allocated at full size: a buffer that grows leaves copies behind.
    let mut out = Zeroizing::new(Vec::with_capacity(literal + inserted));
    let mut at = 0;
    for range in placeholders {
        out.extend_from_slice(&text[at..range.start]);
        out.extend_from_slice(value(range));
        at = range.end;
    }
    out.extend_from_slice(&text[at..]);
    Ok(out)
}

/// Encodes the value of each name for its position, once per name.
fn written<'a>(
    text: &'a [u8],
    placeholders: &[Range<usize>],
    credential: &Credential,
    place: Position,
) -> Result<BTreeMap<&'a str, Zeroizing<Vec<u8>>>, RenderError> {
    let mut secrets = BTreeMap::new();
    let mut unresolved = Vec::new();
    for range in placeholders {
        let name = name(text, range);
        secrets.entry(name).or_insert_with(|| {
            let secret = credential.field(name);
            if secret.is_none() {
                unresolved.push(name.to_owned());
            }
            secret
        });
    }
    if !unresolved.is_empty() {
        return Err(RenderError::Unresolved(unresolved));
    }
    let named = secrets.into_iter().filter_map(|(name, secret)| Some((name, secret?)));
    named
        .map(|(name, secret)| match place.write(secret) {
            Ok(value) => Ok((name, value)),
            Err(source) => Err(RenderError::Unfit { field: name.to_owned(), place, source }),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::value::Value;

    fn credential(fields: &[(&str, &str)]) -> Credential {
        let mut credential = Credential::default();
        for (name, value) in fields {
            credential
                .set(name.parse().unwrap(), Value::new(Secret::from_text((*value).to_owned())).unwrap());
        }
        credential
    }

    fn render(text: &str, fields: &[(&str, &str)], place: Position) -> Result<String, RenderError> {
        let rendered = Template::parse(text).unwrap().render(&credential(fields), place);
        rendered.map(|secret| String::from_utf8(secret.expose().to_vec()).unwrap())
    }

    #[test]
    fn only_two_braces_and_a_word_are_a_placeholder() {
        for (text, names) in [
            ("Bearer {{access_token}}", ["access_token"].as_slice()),
            ("{{a}}:{{b}}{{a}}", &["a", "b", "a"]),
            ("{{{a}}}", &["a"]),
            ("{{{{a}}", &["a"]),
            ("{{a}{{b}}", &["b"]),
            ("{{a{{b}}", &["b"]),
            ("{{ a }} {{}} {{a} {a}} {{ {{a-b}} {{é}} }} {{", &[]),
            ("", &[]),
        ] {
            let template = Template::parse(text).unwrap();
            assert_eq!(template.names().collect::<Vec<_>>(), names, "{text}");
            assert_eq!(template.has_placeholders(), !names.is_empty());
        }
    }

    #[test]
    fn the_leading_literal_ends_at_the_first_placeholder() {
        assert_eq!(with_stand_ins("{{{a}}é{{ a }}{{a{{b}}", "0"), "{0é{{ a }}{{a0");
        for (text, literal) in [("/v1/{{a}}/{{b}}", "/v1/"), ("/v1", "/v1"), ("{{a}}", ""), ("{{{a}}", "{")] {
            assert_eq!(Template::parse(text).unwrap().leading_literal(), literal);
        }
    }

    #[test]
    fn fields_of_others_are_not_counted() {
        let own = credential(&[("a", "1"), ("b", "2")]);
        assert_eq!(count_fields(b"{{a}}{{b}}{{a}} {{c}} {{ a }} {a}", &own), 3);
    }

    #[test]
    fn values_are_put_in_once() {
        let fields = [("a", "{{b}}"), ("b", "two")];
        assert_eq!(render("<{{a}}{{b}}{{a}}>", &fields, Position::Text).unwrap(), "<{{b}}two{{b}}>");
        // No placeholder arises where a value meets the text around it.
        assert_eq!(render("{{{a}}}", &[("a", "{b}"), ("b", "two")], Position::Text).unwrap(), "{{b}}");
    }

    #[test]
    fn all_that_is_missing_is_named() {
        let error = render("{{x}}{{a}}{{y}}{{x}}", &[("a", "\t")], Position::Header).unwrap_err();
        assert_eq!(error, RenderError::Unresolved(vec!["x".into(), "y".into()]));
        assert_eq!(error.to_string(), "unresolved placeholders: {{x}}, {{y}}");
    }

    #[test]
    fn a_value_that_does_not_fit_names_its_field_only() {
        let error = render("/{{a}}", &[("a", "s3cret/..")], Position::Path).unwrap_err();
        assert_eq!(error.to_string(), "the value of `a` cannot stand in a path");
        assert!(!format!("{error:?}").contains("s3cret"));
    }

    #[test]
    fn each_place_has_its_own_writing() {
        let fields = [("a", "x\" &")];
        for (place, written) in [
            (Position::Header, "<x\" &>"),
            (Position::Path, "<x%22%20%26>"),
            (Position::Query, "<x%22%20%26>"),
            (Position::Json, "<x\\\" &>"),
            (Position::Form, "<x%22%20%26>"),
            (Position::Text, "<x\" &>"),
        ] {
            assert_eq!(render("<{{a}}>", &fields, place).unwrap(), written);
        }
    }

    #[test]
    fn names_are_no_longer_than_fields() {
        let long = format!("ab{{{{{}}}}}", "x".repeat(65));
        assert_eq!(Template::parse(&long), Err(TemplateError::LongName { at: 2, length: 65 }));
        assert!(matches!(
            substitute(long.as_bytes(), &Credential::default(), Position::Text, &mut Room::of_text()),
            Err(RenderError::Unresolved(_))
        ));
    }

    #[test]
    fn bodies_are_octets() {
        let body = b"\xff{{a}}\0{{ a }}\xfe";
        let filled =
            substitute(body, &credential(&[("a", "v")]), Position::Text, &mut Room::of_text()).unwrap();
        assert_eq!(filled.as_slice(), b"\xffv\0{{ a }}\xfe");
    }

    #[test]
    fn a_short_body_cannot_buy_much_memory() {
        let long = "v".repeat(64 << 10);
        let fields = credential(&[("a", &long)]);
        let fills = |times: usize, room: &mut Room| match substitute(
            "{{a}}".repeat(times).as_bytes(),
            &fields,
            Position::Text,
            room,
        ) {
            Ok(_) => true,
            Err(error) => {
                assert!(matches!(error, RenderError::TooLong(_)), "{error}");
                false
            }
        };
        assert!(fills(256, &mut Room::of_text()) && !fills(257, &mut Room::of_text()));
        // All texts of a head share its room.
        let mut head = Room::of_head();
        assert!(!fills(2, &mut head) && fills(1, &mut head) && !fills(1, &mut head));
    }

    #[test]
    fn how_often_a_value_fits_tells_its_length_to_64_octets() {
        let fits = |value: &str, place: Position| {
            let fields = credential(&[("a", value)]);
            let fits = |times: usize| {
                substitute("{{a}}".repeat(times).as_bytes(), &fields, place, &mut Room::of_head()).is_ok()
            };
            (1..2000).take_while(|times| fits(*times)).count()
        };
        for place in [Position::Header, Position::Query] {
            assert_eq!(fits(&"v".repeat(65), place), 512);
            assert_eq!(fits(&"v".repeat(128), place), 512);
            assert_eq!(fits(&format!("{}//", "v".repeat(65)), place), 512);
            assert_eq!(fits("v", place), 1024);
        }
    }

    proptest! {
        #[test]
        fn text_without_placeholders_stays(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            if placeholders(&body).next().is_none() {
                let filled = substitute(&body, &Credential::default(), Position::Json, &mut Room::of_text()).unwrap();
                prop_assert_eq!(filled.as_slice(), body);
            }
        }

        #[test]
        fn filling_is_replacing_from_the_left(parts in proptest::collection::vec("[{}ab ]{0,6}", 0..12)) {
            let text = parts.concat();
            let fields = [("a", "{1}"), ("b", "}}2{{"), ("aa", "3"), ("ab", "4"), ("ba", "5"), ("bb", "6")];
            // The reference: look for a placeholder at each position.
            let (mut expected, mut rest, mut whole) = (String::new(), text.as_str(), true);
            'next: while !rest.is_empty() {
                for (name, value) in fields {
                    if let Some(after) = rest.strip_prefix(&format!("{{{{{name}}}}}")) {
                        expected.push_str(value);
                        rest = after;
                        continue 'next;
                    }
                }
                let inside = rest.strip_prefix("{{").and_then(|r| r.split_once("}}")).map(|(name, _)| name);
                whole &= !inside.is_some_and(|name| !name.is_empty() && name.bytes().all(is_word));
                expected.push_str(&rest[..1]);
                rest = &rest[1..];
            }
            match render(&text, &fields, Position::Text) {
                Ok(filled) => prop_assert_eq!(filled, expected),
                Err(RenderError::Unresolved(_)) => prop_assert!(!whole),
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }
}
