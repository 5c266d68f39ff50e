//! A unique secret, and the search for it in every form in which it could leak. A test that does not find it must also show that it was
//! where it belongs.

use std::fs::File;
use std::io::Read;

use lockgate_needs::{TELLING, masked};

/// RFC 4648 §4 and §5.
const ALPHABETS: [&[u8; 64]; 2] = [
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
];
/// The characters of credentials; the second set includes those that encodings change.
const PLAIN: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const ROUGH: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef0123456789+/=&<>'!*().";
const LENGTH: usize = 40;

/// One random secret of 40 octets.
#[derive(Clone, Debug)]
pub struct Canary(String);

impl Canary {
    /// Draws a secret of letters and digits.
    ///
    /// # Panics
    /// When the machine gives no random octets.
    #[must_use]
    pub fn draw() -> Self {
        Self::of(PLAIN)
    }

    /// Draws a secret that JSON, HTML, percent-encoding and base64 write differently.
    ///
    /// # Panics
    /// As [`Canary::draw`].
    #[must_use]
    pub fn draw_rough() -> Self {
        // Contains each of the characters that matter, and no white space at an end, which a header would lose.
        let drawn = Self::of(ROUGH).0;
        Self(format!("q+/<&>'=\"{}z", &drawn[..LENGTH - 10]))
    }

    fn of(alphabet: &[u8]) -> Self {
        let mut random = [0u8; LENGTH];
        File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random)).expect("random octets");
        Self(random.iter().map(|octet| char::from(alphabet[usize::from(*octet) % alphabet.len()])).collect())
    }

    /// The secret itself.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The masked secret, which a search for the secret does not find.
    #[must_use]
    pub fn masked(&self) -> String {
        masked(&self.0)
    }

    /// Returns the form in which the text contains the secret, if any: whole in any encoding, or eight octets of it as they are.
    #[must_use]
    pub fn found_in(&self, text: impl AsRef<[u8]>) -> Option<String> {
        let text = text.as_ref();
        let forms = self.forms();
        let parts = self.0.as_bytes().windows(TELLING).map(|part| ("a part", part.to_vec()));
        let needles: Vec<(&str, Vec<u8>)> = forms.into_iter().chain(parts).collect();
        // One pass, because a text may be the audit of a hundred thousand requests.
        let pair = |text: &[u8]| usize::from(text[0]) << 8 | usize::from(text[1]);
        let mut begins = vec![false; 1 << 16];
        needles.iter().for_each(|(_, needle)| begins[pair(needle)] = true);
        let places = (1..text.len()).filter(|end| begins[pair(&text[end - 1..])]);
        let found = |at: usize| needles.iter().find(|(_, needle)| text[at - 1..].starts_with(needle));
        let (form, needle) = places.into_iter().find_map(found)?;
        Some(match *form {
            "a part" => format!("a part, {}", String::from_utf8_lossy(needle)),
            form => form.to_owned(),
        })
    }

    /// Checks that the text does not contain the secret.
    ///
    /// # Panics
    /// When it does; the message names the form.
    pub fn is_not_in(&self, place: &str, text: impl AsRef<[u8]>) {
        let found = self.found_in(text.as_ref());
        assert!(found.is_none(), "{place} holds the credential ({found:?}): {}", shown(text.as_ref()));
    }

    /// Returns every form to search for, none shorter than eight octets.
    fn forms(&self) -> Vec<(&'static str, Vec<u8>)> {
        let octets = self.0.as_bytes();
        let join = |form: fn(&u8) -> String| octets.iter().map(form).collect::<String>().into_bytes();
        let mut forms = vec![
            ("plain", octets.to_vec()),
            ("hex", join(|octet| format!("{octet:02x}"))),
            ("hex", join(|octet| format!("{octet:02X}"))),
            ("percent", join(|octet| format!("%{octet:02x}"))),
            ("percent", join(|octet| format!("%{octet:02X}"))),
            (
                "percent",
                join(|octet| {
                    if octet.is_ascii_alphanumeric() {
                        char::from(*octet).into()
                    } else {
                        format!("%{octet:02X}")
                    }
                }),
            ),
            ("JSON", join(|octet| format!("\\u{:04x}", u32::from(*octet)))),
        ];
        for alphabet in ALPHABETS {
            forms.extend((0..3).map(|lead| ("base64", base64_core(octets, lead, alphabet))));
        }
        forms
    }
}

/// Returns the base64 characters that hold bits of the secret alone, when `lead` octets precede it.
fn base64_core(secret: &[u8], lead: usize, alphabet: &[u8; 64]) -> Vec<u8> {
    let shifted: Vec<u8> = std::iter::repeat_n(0, lead).chain(secret.iter().copied()).collect();
    let text = base64(&shifted, alphabet);
    let start = [0, 2, 3][lead];
    let end = text.len() - usize::from(!shifted.len().is_multiple_of(3));
    text[start..end].to_vec()
}

/// Encodes without padding.
fn base64(octets: &[u8], alphabet: &[u8; 64]) -> Vec<u8> {
    let groups = octets.chunks(3).flat_map(|group| {
        let bits =
            group.iter().fold(0_u32, |bits, octet| bits << 8 | u32::from(*octet)) << (8 * (3 - group.len()));
        let letter = move |at: usize| alphabet[(bits >> (18 - 6 * at)) as usize & 63];
        (0..=group.len()).map(letter)
    });
    groups.collect()
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(4000).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_in_every_form() {
        for canary in [Canary::draw(), Canary::draw_rough()] {
            let text = canary.text();
            assert_eq!(text.len(), LENGTH);
            for lead in ["", "a", "ab", "abc"] {
                let whole = base64(format!("{lead}{text} and more").as_bytes(), ALPHABETS[0]);
                assert!(canary.found_in(&whole).is_some(), "behind {lead:?}");
            }
            for form in canary.forms() {
                assert!(canary.found_in([b"<", form.1.as_slice(), b">"].concat()).is_some(), "{}", form.0);
            }
            assert!(canary.found_in(&text[20..30]).is_some());
            assert_eq!(canary.found_in(&text[..TELLING - 1]), None);
            assert_eq!(canary.found_in(canary.masked()), None);
        }
    }

    #[test]
    fn base64_is_the_one_of_the_rfc() {
        assert_eq!(base64(b"foobar", ALPHABETS[0]), b"Zm9vYmFy");
        assert_eq!(base64(b"fooba", ALPHABETS[0]), b"Zm9vYmE");
    }
}
