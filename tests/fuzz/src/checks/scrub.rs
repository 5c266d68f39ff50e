//! Masking. The input is two lines that are secrets, a line whose octets are the lengths of pieces, and a body in which the octets
//! 0 to 31 stand for a secret in some form. The output is as long as the body, the same for every cutting, and holds the secrets in
//! none of the forms.

use credential::{Needles, Scrubber, Secret};
use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD, Encoding, HEXLOWER, HEXUPPER};

use crate::octets;

/// Shorter values are not secrets, and are not masked.
const SHORTEST: usize = 4;
const MASK: u8 = b'*';

/// Masks the secrets of the input in its body, cut in several ways.
pub fn scrub(input: &[u8]) {
    let mut lines = input.splitn(4, |b| *b == b'\n');
    let [Some(one), Some(two), Some(cuts), Some(text)] =
        [lines.next(), lines.next(), lines.next(), lines.next()]
    else {
        return;
    };
    // A secret made of the mask cannot be masked.
    let good = |secret: &&[u8]| secret.len() >= SHORTEST && !secret.contains(&MASK);
    let secrets: Vec<&[u8]> = [one, two].into_iter().filter(good).collect();
    if secrets.is_empty() {
        return;
    }
    let needles = Needles::of(&secrets.iter().map(|octets| Secret::new(octets.to_vec())).collect::<Vec<_>>());
    let (body, hidden) = body(text, &secrets);
    let (whole, found) = scrubbed(&needles, &[&body]);
    assert_eq!(whole.len(), body.len(), "the length has changed");
    assert!(
        whole.iter().zip(&body).all(|(after, before)| after == before || *after == MASK),
        "it was rewritten"
    );
    assert!(
        whole.iter().zip(&hidden).all(|(after, hide)| !hide || *after == MASK),
        "a form is left: {}",
        show(&whole)
    );
    for form in secrets.iter().flat_map(|secret| forms(secret)) {
        assert!(
            form.len() < SHORTEST || !octets::contains(&whole, &form),
            "{} is left in {}",
            show(&form),
            show(&whole)
        );
    }
    assert_eq!(needles.scrub_text(&body).unwrap_or_else(|| (body.clone(), 0)), (whole.clone(), found));
    let single: Vec<&[u8]> = body.chunks(1).collect();
    assert_eq!(scrubbed(&needles, &single), (whole.clone(), found), "octet by octet");
    assert_eq!(scrubbed(&needles, &cut(&body, cuts)), (whole, found), "in pieces of {cuts:?}");
}

/// Returns the body that an input stands for, and which of its octets hold bits of a secret.
fn body(text: &[u8], secrets: &[&[u8]]) -> (Vec<u8>, Vec<bool>) {
    let (mut body, mut hidden) = (Vec::new(), Vec::new());
    for octet in text {
        if *octet >= 32 {
            body.push(*octet);
            hidden.push(false);
            continue;
        }
        let secret = secrets[usize::from(octet & 1) % secrets.len()];
        let (from, form, to) = match octet >> 1 {
            0 => (0, HEXLOWER.encode(secret).into_bytes(), usize::MAX),
            1 => (0, HEXUPPER.encode(secret).into_bytes(), usize::MAX),
            2..=7 => base64(&BASE64_NOPAD, secret, usize::from(octet >> 1) - 2),
            8..=13 => base64(&BASE64URL_NOPAD, secret, usize::from(octet >> 1) - 8),
            14 => {
                (0, secret.iter().map(|b| format!("%{b:02x}")).collect::<String>().into_bytes(), usize::MAX)
            }
            _ => (0, secret.to_vec(), usize::MAX),
        };
        hidden.extend((0..form.len()).map(|at| at >= from && at < to));
        body.extend(form);
    }
    (body, hidden)
}

/// Encodes a secret between other octets in base64. Returns the text, between the start and the end of what holds bits of the secret.
fn base64(encoding: &Encoding, secret: &[u8], kind: usize) -> (usize, Vec<u8>, usize) {
    let (before, after) = (&b"u:"[..kind % 3], if kind < 3 { &b""[..] } else { b"\xff!" });
    let text = encoding.encode(&[before, secret, after].concat()).into_bytes();
    (before.len() * 8 / 6, text, ((before.len() + secret.len()) * 8).div_ceil(6))
}

/// Returns the forms that must not remain: base64 without the characters that also hold bits of the neighbours.
fn forms(secret: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = vec![secret.to_vec(), HEXLOWER.encode(secret).into(), HEXUPPER.encode(secret).into()];
    for encoding in [BASE64_NOPAD, BASE64URL_NOPAD] {
        for before in 0..3 {
            let text = encoding.encode(&[&[0; 2][..before], secret].concat()).into_bytes();
            forms.push(text[(before * 8).div_ceil(6)..(before + secret.len()) * 8 / 6].to_vec());
        }
    }
    forms
}

fn cut<'a>(body: &'a [u8], cuts: &[u8]) -> Vec<&'a [u8]> {
    let (mut pieces, mut rest) = (Vec::new(), body);
    for length in cuts {
        let (piece, after) = rest.split_at(rest.len().min(usize::from(*length)));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

fn scrubbed(needles: &Needles, pieces: &[&[u8]]) -> (Vec<u8>, u64) {
    let (mut scrubber, mut out) = (Scrubber::new(needles), Vec::new());
    let mut given = 0;
    for piece in pieces {
        scrubber.push(piece, &mut out);
        given += piece.len();
        assert!(out.len() <= given, "more came out than went in");
    }
    scrubber.finish(&mut out);
    (out, scrubber.found())
}

fn show(octets: &[u8]) -> String {
    octets.escape_ascii().to_string()
}
