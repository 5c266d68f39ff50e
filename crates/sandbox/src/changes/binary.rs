//! Git's binary patch format: compressed, in base 85, 52 octets per line.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// The digits of git's base 85.
const DIGITS: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// Octets per line.
const LINE: usize = 52;

/// Writes content as a literal.
pub(super) fn write_literal(to: &mut dyn Write, content: &[u8]) -> io::Result<()> {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    packed.write_all(content)?;
    writeln!(to, "literal {}", content.len())?;
    for line in packed.finish()?.chunks(LINE) {
        // The first letter is the line's length: A to Z are 1 to 26, a to z 27 to 52.
        let length = u8::try_from(line.len()).unwrap_or_default();
        let letter = if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 };
        let mut text = vec![letter];
        for four in line.chunks(4) {
            let mut word = [0; 4];
            word[..four.len()].copy_from_slice(four);
            let mut number = u32::from_be_bytes(word);
            let mut five = [0; 5];
            for digit in five.iter_mut().rev() {
                *digit = DIGITS[(number % 85) as usize];
                number /= 85;
            }
            text.extend(five);
        }
        text.push(b'\n');
        to.write_all(&text)?;
    }
    writeln!(to)
}
