//! What a secret that is not ASCII becomes where a server takes UTF-8 for Latin-1, or writes it in Latin-1. Some mean ISO 8859-1 by that
//! name, and others windows-1252, as the Encoding Standard does (§4.2).

use zeroize::Zeroizing;

/// What windows-1252 has for the octets 0x80 to 0x9f, where ISO 8859-1 has controls (the Encoding Standard, `index-windows-1252`).
const WINDOWS_1252: &str = "€\u{81}‚ƒ„…†‡ˆ‰Š‹Œ\u{8d}Ž\u{8f}\u{90}‘’“”•–—˜™š›œ\u{9d}žŸ";

/// Which characters stand for the octets 0x80 to 0x9f.
type Reading = fn(u8) -> char;

const READINGS: [Reading; 2] = [char::from, |octet| {
    let known = octet.checked_sub(0x80).and_then(|at| WINDOWS_1252.chars().nth(usize::from(at)));
    known.unwrap_or_else(|| char::from(octet))
}];

/// Returns what becomes of a secret: its octets read as Latin-1 and written in UTF-8, and its characters written in Latin-1 if that has
/// all of them.
pub(super) fn taken_for(secret: &[u8]) -> impl Iterator<Item = Zeroizing<Vec<u8>>> {
    let text = std::str::from_utf8(secret).ok().filter(|text| !text.is_ascii());
    let both = |text, reading| [Some(read(text, reading)), written(text, reading)];
    text.into_iter().flat_map(move |text| READINGS.into_iter().flat_map(move |it| both(text, it))).flatten()
}

fn read(text: &str, reading: Reading) -> Zeroizing<Vec<u8>> {
    let characters = || text.bytes().map(reading);
    // Allocated at full size: a buffer that grows leaves copies behind.
    let mut out = Zeroizing::new(Vec::with_capacity(characters().map(char::len_utf8).sum()));
    characters().for_each(|character| out.extend(character.encode_utf8(&mut [0; 4]).as_bytes()));
    out
}

fn written(text: &str, reading: Reading) -> Option<Zeroizing<Vec<u8>>> {
    let mut out = Zeroizing::new(Vec::with_capacity(text.len()));
    for character in text.chars() {
        out.push((0..=u8::MAX).find(|octet| reading(*octet) == character)?);
    }
    Some(out)
}
