//! The scrubber as a whole: what it masks, what it holds back, and that the cutting of a stream into pieces does not matter.

use data_encoding::{BASE64, BASE64URL, HEXLOWER, HEXUPPER};
use proptest::collection::vec;
use proptest::prelude::*;

use super::needle::Needle;
use super::*;
use crate::secret::Secret;

fn needles(secrets: &[Vec<u8>]) -> Needles {
    let secrets: Vec<Secret> = secrets.iter().map(|octets| Secret::new(octets.clone())).collect();
    Needles::of(&secrets)
}

fn scrubbed(needles: &Needles, pieces: &[&[u8]]) -> (Vec<u8>, u64) {
    let (mut scrubber, mut out) = (Scrubber::new(needles), Vec::new());
    for piece in pieces {
        scrubber.push(piece, &mut out);
    }
    scrubber.finish(&mut out);
    (out, scrubber.found())
}

/// Scrubs the pieces by [`Scrubber::settle`] where it can.
fn scrubbed_in_place(needles: &Needles, pieces: &[&[u8]]) -> (Vec<u8>, u64) {
    let (mut scrubber, mut out) = (Scrubber::new(needles), Vec::new());
    let (last, pieces) = pieces.split_last().unwrap();
    for piece in pieces {
        if let Some(settled) = scrubber.settle(piece, &mut out) {
            out.extend_from_slice(&piece[..settled]);
        } else {
            scrubber.push(piece, &mut out);
        }
    }
    if scrubber.settles_last(last) {
        out.extend_from_slice(last);
    } else {
        scrubber.push(last, &mut out);
        scrubber.finish(&mut out);
    }
    (out, scrubber.found())
}

/// Returns the end of the longest spelling of the rest of a needle, by backtracking.
fn plain_end(needle: &Needle, at: usize, text: &[u8], from: usize) -> Option<usize> {
    if at == needle.octets.len() {
        return Some(from);
    }
    let mut ends = Vec::new();
    needle.ways(at, &mut |way, next| {
        if text[from..].starts_with(way) {
            ends.extend(plain_end(needle, next, text, from + way.len()));
        }
    });
    ends.into_iter().max()
}

/// Spells the characters of a needle by indices.
fn spelled(needle: &Needle, numbers: &[prop::sample::Index]) -> Vec<u8> {
    let (mut out, mut at, mut numbers) = (Vec::new(), 0, numbers.iter().cycle());
    while at < needle.octets.len() {
        let mut ways = Vec::new();
        needle.ways(at, &mut |way, next| ways.push((way.to_vec(), next)));
        let (way, next) = &ways[numbers.next().unwrap().index(ways.len())];
        out.extend(way);
        at = *next;
    }
    out
}

/// Scrubs a text by the simplest means: every needle at every position.
fn plainly(needles: &Needles, text: &[u8]) -> (Vec<u8>, u64) {
    let (mut out, mut found) = (text.to_vec(), 0);
    let firsts = |needle: &Needle| {
        let mut firsts = [false; 256];
        needle.ways(0, &mut |way, _| firsts[usize::from(way[0])] = true);
        firsts
    };
    let firsts: Vec<_> = needles.all().iter().map(|needle| firsts(needle)).collect();
    let base64 = |at: usize| text.get(at).is_some_and(|octet| needles::is_base64(*octet));
    for start in 0..text.len() {
        let mut ends = std::collections::BTreeSet::new();
        let here = firsts.iter().zip(needles.all()).filter(|(firsts, _)| firsts[usize::from(text[start])]);
        for (_, needle) in here {
            if let Some(end) = plain_end(needle, 0, text, start) {
                found += u64::from(ends.insert(end));
                out[start..end].fill(MASK);
                if needle.edges.before && start > 0 && base64(start - 1) {
                    out[start - 1] = MASK;
                }
                if needle.edges.after && base64(end) {
                    out[end] = MASK;
                }
            }
        }
    }
    (out, found)
}

const KEY: &[u8] = b"sk-live-0123456789abcdefXYZ";

#[test]
fn each_form_is_masked_at_its_own_length() {
    let needles = needles(&[KEY.to_vec()]);
    for form in needles.all() {
        let text = [b"<", form.octets.as_slice(), b">"].concat();
        let (out, found) = needles.scrubbed(&text);
        assert_eq!(out, [b"<".as_slice(), &vec![MASK; form.octets.len()], b">"].concat());
        assert_eq!(found, 1);
    }
}

#[test]
fn the_base64_of_a_basic_login_is_masked_with_its_edges() {
    let needles = needles(&[KEY.to_vec()]);
    for user in ["a", "ab", "abc"] {
        let encoded = BASE64.encode(&[user.as_bytes(), b":", KEY, b"!"].concat());
        let (out, _) = needles.scrubbed(encoded.as_bytes());
        let clear: Vec<usize> = (0..out.len()).filter(|at| out[*at] != MASK && out[*at] != b'=').collect();
        // The visible characters hold only bits of the name before and the octet after the secret.
        let (first, last) = ((user.len() + 1) * 8 / 6, ((user.len() + 1 + KEY.len()) * 8).div_ceil(6));
        assert!(clear.iter().all(|at| *at < first || *at >= last), "{}", String::from_utf8_lossy(&out));
    }
}

#[test]
fn overlapping_occurrences_are_masked_together() {
    let needles = needles(&[b"abcdefgh".to_vec(), b"efghijkl".to_vec(), b"aaaaaa".to_vec()]);
    assert_eq!(needles.scrubbed(b"<abcdefghijkl>"), (b"<************>".to_vec(), 2));
    assert_eq!(needles.scrubbed(b"<aaaaaaaa>"), (b"<********>".to_vec(), 3));
}

#[test]
fn an_event_is_not_delayed() {
    let needles = needles(&[KEY.to_vec()]);
    let (mut scrubber, mut out) = (Scrubber::new(&needles), Vec::new());
    for event in ["data: {\"text\":\"sk-li\"}\n\n", ": ping\n\n", "data: [DONE]\r\n\r\n"] {
        out.clear();
        scrubber.push(event.as_bytes(), &mut out);
        assert_eq!(out, event.as_bytes());
    }
}

#[test]
fn a_message_is_not_delayed_that_ends_in_what_no_secret_has() {
    let plain = needles(&[KEY.to_vec()]);
    for message in
        ["{\"x\":1}", "[1,2]", "\"text\"", "\u{1e}{\"x\":1}", "record\u{1e}", "unit\u{1f}", "del\u{7f}"]
    {
        let (mut scrubber, mut out) = (Scrubber::new(&plain), Vec::new());
        scrubber.push(message.as_bytes(), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), message);
    }
    // If a secret has a separator of some kind, that kind does not count; all others do.
    for (odd, held, not) in [("}", "a\"", "a b "), ("\u{1e}", "a\u{1f}", "a}"), ("\n", "a\r", "a\u{1f}")] {
        let needles = needles(&[KEY.to_vec(), format!("0123456789{odd}abcdef").into_bytes()]);
        let (mut scrubber, mut out) = (Scrubber::new(&needles), Vec::new());
        scrubber.push(not.as_bytes(), &mut out);
        assert_eq!(out, not.as_bytes(), "{odd:?}");
        scrubber.push(held.as_bytes(), &mut out);
        assert_eq!(out, not.as_bytes(), "{odd:?}");
        scrubber.push(format!("0123456789{odd}abcdef.").as_bytes(), &mut out);
        scrubber.finish(&mut out);
        assert_eq!(out, [not, held, &"*".repeat(17), "."].concat().as_bytes(), "{odd:?}");
    }
}

#[test]
fn without_a_secret_nothing_is_held_and_nothing_lost() {
    let nothing = needles(&[]);
    assert_eq!(nothing.reach(), 0);
    assert_eq!(
        scrubbed_in_place(&nothing, &[b"a", &[b'b'; 100], b"c"]).0,
        [&b"a"[..], &[b'b'; 100], b"c"].concat()
    );
}

#[test]
fn a_word_is_held_until_it_ends_and_no_longer_than_a_secret_may_be() {
    let needles = needles(&[KEY.to_vec()]);
    let (mut scrubber, mut out) = (Scrubber::new(&needles), Vec::new());
    scrubber.push(b"key: sk-live-01", &mut out);
    assert_eq!(out, b"key: ");
    scrubber.push(b"99.\n", &mut out);
    assert_eq!(out, b"key: sk-live-0199.\n");
    scrubber.push(&[b'x'; 1000], &mut out);
    assert_eq!(1000 - needles.reach(), out.len() - b"key: sk-live-0199.\n".len());
    scrubber.finish(&mut out);
    assert_eq!(out, [b"key: sk-live-0199.\n".as_slice(), &[b'x'; 1000]].concat());
    assert_eq!(scrubber.found(), 0);
}

#[test]
fn a_secret_with_blanks_is_not_let_go_word_by_word() {
    let needles = needles(&[b"correct horse battery".to_vec()]);
    let (mut scrubber, mut out) = (Scrubber::new(&needles), Vec::new());
    scrubber.push(b"\ncorrect horse ", &mut out);
    assert_eq!(out, b"\n");
    scrubber.push(b"battery staple\n", &mut out);
    assert_eq!(out, b"\n********************* staple\n");
}

#[test]
fn a_second_stream_begins_anew() {
    let needles = needles(&[KEY.to_vec()]);
    // It ends in a form with an edge, whose mask would reach into the next octets.
    let edged = needles.all().iter().find(|needle| needle.edges.after).unwrap();
    let (mut scrubber, mut out) = (Scrubber::new(&needles), Vec::new());
    scrubber.push(&edged.octets, &mut out);
    scrubber.finish(&mut out);
    out.clear();
    scrubber.push(b"x.\n", &mut out);
    assert_eq!(out, b"x.\n");
}

#[test]
fn a_mask_reaches_over_the_border_of_pieces() {
    let needles = needles(&[KEY.to_vec()]);
    for offset in 0..3 {
        let text = BASE64URL.encode(&[&b"..."[..offset], KEY, b"..."].concat());
        let whole = scrubbed(&needles, &[text.as_bytes()]);
        assert_eq!(whole, plainly(&needles, text.as_bytes()));
        for cut in 0..=text.len() {
            let (left, right) = text.as_bytes().split_at(cut);
            assert_eq!(scrubbed(&needles, &[left, b"", right]), whole, "{offset} {cut}");
        }
        assert_eq!(scrubbed(&needles, &text.as_bytes().chunks(1).collect::<Vec<_>>()), whole);
    }
}

#[test]
fn many_secrets_are_more_than_one_search() {
    let secrets: Vec<Vec<u8>> = (0..40u8).map(|n| [&[b'A' + n % 26, b'a' + n % 25], KEY].concat()).collect();
    let needles = needles(&secrets);
    let text = [b"x".as_slice(), &secrets.concat(), HEXLOWER.encode(&secrets[39]).as_bytes(), b"y"].concat();
    assert_eq!(needles.scrubbed(&text), plainly(&needles, &text));
    assert!(needles.scrubbed(&text).1 >= 41);
}

#[test]
fn a_long_secret_is_found() {
    let secret: Vec<u8> = (0..64 << 10).map(|n: u32| b'a' + (n % 23) as u8 + (n % 3) as u8).collect();
    let needles = needles(std::slice::from_ref(&secret));
    let text = [b"<".as_slice(), &secret, b">"].concat();
    let pieces: Vec<&[u8]> = text.chunks(1000).collect();
    assert_eq!(scrubbed(&needles, &pieces), ([b"<".as_slice(), &vec![MASK; secret.len()], b">"].concat(), 1));
}

/// An encoder's escapes of some characters.
type Style = (&'static str, &'static [(char, &'static str)]);

/// Encoders and their escapes, from their documentation and sources.
const STYLES: [Style; 19] = [
    (
        "Gson, safe for HTML",
        &[
            ('<', "\\u003c"),
            ('>', "\\u003e"),
            ('&', "\\u0026"),
            ('=', "\\u003d"),
            ('\'', "\\u0027"),
            ('"', "\\\""),
            ('\\', "\\\\"),
            ('\u{2028}', "\\u2028"),
        ],
    ),
    (
        "System.Text.Json",
        &[
            ('"', "\\u0022"),
            ('&', "\\u0026"),
            ('\'', "\\u0027"),
            ('+', "\\u002B"),
            ('<', "\\u003C"),
            ('>', "\\u003E"),
            ('`', "\\u0060"),
            ('\\', "\\\\"),
            ('\u{2028}', "\\u2028"),
            ('é', "\\u00E9"),
            ('😀', "\\uD83D\\uDE00"),
        ],
    ),
    (
        "Newtonsoft.Json, EscapeHtml",
        &[
            ('"', "\\u0022"),
            ('&', "\\u0026"),
            ('\'', "\\u0027"),
            ('<', "\\u003c"),
            ('>', "\\u003e"),
            ('\\', "\\\\"),
        ],
    ),
    (
        // Its flags have upper-case digits; characters outside ASCII have lower-case ones.
        "PHP, JSON_HEX_TAG|AMP|APOS|QUOT",
        &[
            ('"', "\\u0022"),
            ('&', "\\u0026"),
            ('\'', "\\u0027"),
            ('<', "\\u003C"),
            ('>', "\\u003E"),
            ('/', "\\/"),
            ('\\', "\\\\"),
            ('é', "\\u00e9"),
            ('😀', "\\ud83d\\ude00"),
        ],
    ),
    ("PHP, JSON_HEX_TAG", &[('<', "\\u003C"), ('>', "\\u003E"), ('/', "\\/"), ('"', "\\\""), ('\\', "\\\\")]),
    ("JSON.stringify", &[('"', "\\\""), ('\\', "\\\\")]),
    (
        "serialize-javascript",
        &[('<', "\\u003C"), ('>', "\\u003E"), ('/', "\\u002F"), ('"', "\\\""), ('\\', "\\\\")],
    ),
    (
        "Django's escapejs",
        &[
            ('<', "\\u003C"),
            ('>', "\\u003E"),
            ('&', "\\u0026"),
            ('=', "\\u003D"),
            (';', "\\u003B"),
            ('`', "\\u0060"),
            ('\'', "\\u0027"),
            ('"', "\\u0022"),
            ('\\', "\\u005C"),
        ],
    ),
    (
        "a string of JavaScript",
        &[('\'', "\\'"), ('<', "\\x3C"), ('>', "\\x3E"), ('&', "\\x26"), ('\\', "\\\\")],
    ),
    (
        "mustache",
        &[
            ('&', "&amp;"),
            ('<', "&lt;"),
            ('>', "&gt;"),
            ('"', "&quot;"),
            ('\'', "&#39;"),
            ('/', "&#x2F;"),
            ('`', "&#x60;"),
            ('=', "&#x3D;"),
        ],
    ),
    (
        "Handlebars",
        &[
            ('&', "&amp;"),
            ('<', "&lt;"),
            ('>', "&gt;"),
            ('"', "&quot;"),
            ('\'', "&#x27;"),
            ('`', "&#x60;"),
            ('=', "&#x3D;"),
        ],
    ),
    (
        "Go's html/template",
        &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&#34;"), ('\'', "&#39;"), ('+', "&#43;")],
    ),
    (
        "Go's html/template, an attribute without quotes",
        &[
            ('&', "&amp;"),
            ('<', "&lt;"),
            ('>', "&gt;"),
            ('"', "&#34;"),
            ('\'', "&#39;"),
            ('+', "&#43;"),
            ('=', "&#61;"),
            ('`', "&#96;"),
        ],
    ),
    (
        ".NET's HtmlEncoder",
        &[
            ('&', "&amp;"),
            ('<', "&lt;"),
            ('>', "&gt;"),
            ('"', "&quot;"),
            ('\'', "&#x27;"),
            ('+', "&#x2B;"),
            ('`', "&#x60;"),
            ('é', "&#xE9;"),
            ('😀', "&#x1F600;"),
        ],
    ),
    (
        "numbers of lower case",
        &[
            ('&', "&#x26;"),
            ('<', "&#x3c;"),
            ('+', "&#x2b;"),
            ('/', "&#x2f;"),
            ('=', "&#x3d;"),
            ('é', "&#xe9;"),
        ],
    ),
    ("decimal numbers", &[('&', "&#38;"), ('<', "&#60;"), ('>', "&#62;"), ('/', "&#47;"), ('é', "&#233;")]),
    (
        "every name of HTML",
        &[
            ('+', "&plus;"),
            ('/', "&sol;"),
            ('=', "&equals;"),
            ('&', "&amp;"),
            ('<', "&lt;"),
            ('>', "&gt;"),
            ('"', "&quot;"),
            ('\'', "&apos;"),
            ('\\', "&bsol;"),
            ('`', "&grave;"),
            (';', "&semi;"),
        ],
    ),
    ("numbers of four digits", &[('+', "&#0043;"), ('/', "&#x002F;"), ('=', "&#x003d;"), ('é', "&#x00E9;")]),
    (
        "PHP's htmlspecialchars, and XML",
        &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#039;")],
    ),
];

fn written((_, escapes): &Style, text: &str) -> String {
    let one = |character| {
        let known = escapes.iter().find(|(plain, _)| *plain == character);
        known.map_or_else(|| character.to_string(), |(_, escaped)| (*escaped).to_owned())
    };
    text.chars().map(one).collect()
}

#[test]
fn what_encoders_escape_is_masked_whichever_they_are() {
    // In the second, escaped characters stand close together.
    for secret in
        ["Zm9v+YmFy/cXV4&x<y9==", "é\"'\\/`+=<>&;😀", "0123456789abcdefghijklmnopqrstuvwxyz+/=", "/+<>"]
    {
        let needles = needles(&[secret.as_bytes().to_vec()]);
        for style in &STYLES {
            let form = written(style, secret);
            // Short texts are searched by heads, long ones by samples.
            for around in ["-".repeat(3), "-".repeat(2000)] {
                let text = [around.as_bytes(), form.as_bytes(), around.as_bytes()].concat();
                let expected = [around.as_bytes(), &vec![MASK; form.len()], around.as_bytes()].concat();
                let (out, found) = needles.scrubbed(&text);
                assert!(out == expected && found >= 1, "{}: {form}", style.0);
                let cut = around.len() + form.len() / 2;
                let pieces = [&text[..cut], &text[cut..]];
                assert_eq!(scrubbed(&needles, &pieces), (out, found), "{}: {form}", style.0);
            }
        }
    }
}

#[test]
fn the_signs_of_a_basic_login_are_masked_however_they_are_escaped() {
    let secret = b">>>????>>>????~~~".to_vec();
    let login = BASE64.encode(&[b"me:", secret.as_slice()].concat());
    assert!(login.contains('+') && login.contains('/'));
    let needles = needles(&[secret]);
    for style in &STYLES {
        let text = written(style, &login);
        let (out, _) = needles.scrubbed(text.as_bytes());
        let left: Vec<u8> = out.iter().copied().filter(|octet| *octet != MASK).collect();
        // The name, and the padding.
        assert!(
            left.starts_with(b"bWU6") && left.len() <= 4 + 12,
            "{}: {}",
            style.0,
            String::from_utf8_lossy(&out)
        );
    }
}

proptest! {
    /// Against encoders of other crates.
    #[test]
    fn what_others_encode_is_masked(
        secret in "[!-)+-~é]{6,40}",
        before in vec(any::<u8>(), 0..5),
        after in vec(any::<u8>(), 0..5),
    ) {
        let needles = needles(&[secret.clone().into_bytes()]);
        let glued = [&before, secret.as_bytes(), &after].concat();
        let first = (before.len() * 8) / 6;
        let last = ((before.len() + secret.len()) * 8).div_ceil(6);
        for encoding in [BASE64, BASE64URL] {
            let (out, found) = needles.scrubbed(encoding.encode(&glued).as_bytes());
            prop_assert!(found >= 1 && out[first..last].iter().all(|octet| *octet == MASK));
        }
        for encoding in [HEXLOWER, HEXUPPER] {
            let (out, _) = needles.scrubbed(encoding.encode(&glued).as_bytes());
            let range = before.len() * 2..(before.len() + secret.len()) * 2;
            prop_assert!(out[range].iter().all(|octet| *octet == MASK));
        }
        let json = serde_json::to_string(&secret).unwrap();
        let (out, _) = needles.scrubbed(json.as_bytes());
        prop_assert!(out[1..json.len() - 1].iter().all(|octet| *octet == MASK));
        for place in [crate::Position::Query, crate::Position::Form, crate::Position::Json, crate::Position::Header] {
            if let Ok(sent) = place.write(&Secret::from_text(secret.clone())) {
                let (out, _) = needles.scrubbed(&sent);
                prop_assert!(out.iter().all(|octet| *octet == MASK), "{place}");
            }
        }
    }
}

/// Generates texts in which needles are likely: whole, cut, and concatenated, in every form.
fn bodies(secrets: &[Vec<u8>]) -> impl Strategy<Value = Vec<u8>> + use<> {
    let needles = needles(secrets);
    let which = (any::<prop::sample::Index>(), vec(any::<prop::sample::Index>(), 1..9));
    let form =
        which.prop_map(move |(which, how)| spelled(&needles.all()[which.index(needles.all().len())], &how));
    let plain: Vec<Vec<u8>> =
        self::needles(secrets).all().iter().map(|needle| needle.octets.to_vec()).collect();
    let form = prop_oneof![form, proptest::sample::select(plain)].boxed();
    let secret = proptest::sample::select(secrets.to_vec());
    let whole = form.clone();
    let part = (form, any::<prop::sample::Index>(), any::<bool>()).prop_map(|(form, at, front)| {
        let at = at.index(form.len());
        if front { form[..at].to_vec() } else { form[at..].to_vec() }
    });
    let encoded = (vec(any::<u8>(), 0..4), secret, vec(any::<u8>(), 0..4))
        .prop_map(|(before, secret, after)| BASE64.encode(&[before, secret, after].concat()).into_bytes());
    let piece = prop_oneof![
        whole,
        part,
        encoded,
        vec(any::<u8>(), 0..6),
        "[a-z%\\\\u&;#]{0,6}".prop_map(String::into_bytes)
    ];
    vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

/// Generates secrets (short alphabets overlap most), a body and the cuts. No `*`: a secret made of the mask cannot be masked.
fn cases() -> impl Strategy<Value = (Vec<Vec<u8>>, Vec<u8>, Vec<usize>)> {
    let octets = any::<u8>().prop_filter("the mask", |octet| *octet != MASK);
    let secret = prop_oneof![
        "[ab]{4,9}".prop_map(String::into_bytes),
        // Characters whose spellings are prefixes of each other.
        "[&a+%\\\\]{4,9}|a?&{3,5}(amp;){1,2}&?".prop_map(String::into_bytes),
        "[ -)+-~]{4,30}".prop_map(String::into_bytes),
        vec(octets, 4..20),
    ];
    vec(secret, 1..4).prop_flat_map(|secrets| {
        let body = bodies(&secrets);
        (Just(secrets), body).prop_flat_map(|(secrets, body)| {
            let cuts = vec(0..=body.len(), 0..12);
            (Just(secrets), Just(body), cuts)
        })
    })
}

proptest! {
    #[test]
    fn no_cutting_changes_the_result((secrets, body, mut cuts) in cases()) {
        let needles = needles(&secrets);
        let expected = plainly(&needles, &body);
        prop_assert_eq!(expected.0.len(), body.len());
        prop_assert_eq!(&scrubbed(&needles, &[&body]), &expected);
        cuts.sort_unstable();
        let ends = cuts.iter().copied().chain([body.len()]);
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        let pieces: Vec<&[u8]> = starts.zip(ends).map(|(start, end)| &body[start..end]).collect();
        prop_assert_eq!(&scrubbed(&needles, &pieces), &expected);
        prop_assert_eq!(&scrubbed_in_place(&needles, &pieces), &expected);
        let single: Vec<&[u8]> = body.chunks(1).collect();
        prop_assert_eq!(&scrubbed(&needles, &single), &expected);
        if !single.is_empty() {
            prop_assert_eq!(&scrubbed_in_place(&needles, &single), &expected);
        }
    }

    /// With texts that are searched by samples.
    #[test]
    fn no_cutting_changes_a_long_text(
        (secrets, before, after) in vec("[ -)+-~]{15,40}".prop_map(String::into_bytes), 1..4)
            .prop_flat_map(|secrets| (Just(secrets.clone()), bodies(&secrets), bodies(&secrets))),
        between in "[a-z]{900,1500}",
        cuts in [any::<prop::sample::Index>(), any::<prop::sample::Index>()],
    ) {
        let needles = needles(&secrets);
        let body = [before, between.into_bytes(), after].concat();
        let expected = plainly(&needles, &body);
        prop_assert_eq!(&scrubbed(&needles, &[&body]), &expected);
        let mut cuts = cuts.map(|cut| cut.index(body.len()));
        cuts.sort_unstable();
        let pieces = [&body[..cuts[0]], &body[cuts[0]..cuts[1]], &body[cuts[1]..]];
        prop_assert_eq!(&scrubbed(&needles, &pieces), &expected);
        prop_assert_eq!(&scrubbed_in_place(&needles, &pieces), &expected);
    }

    #[test]
    fn no_form_is_left((secrets, body, cuts) in cases()) {
        let needles = needles(&secrets);
        let (left, right) = body.split_at(cuts.first().copied().unwrap_or(0));
        let (out, _) = scrubbed(&needles, &[left, right]);
        for needle in needles.all() {
            prop_assert!((0..out.len()).all(|start| plain_end(needle, 0, &out, start).is_none()));
        }
    }

    /// An agent that sends its own text back to itself sees how much of each piece has come.
    #[test]
    fn how_much_is_let_go_says_nothing_of_the_secret(
        (one, other) in (8_usize..60, any::<bool>()).prop_flat_map(|(long, closes)| {
            // It may be visible whether a secret has an octet that ends JSON strings or structures.
            let alike = move |mut secret: Vec<u8>| {
                secret.iter_mut().filter(|octet| b"}]\"".contains(octet)).for_each(|octet| *octet = b'c');
                secret.extend(closes.then_some(b'}'));
                secret
            };
            let secret = || vec(prop_oneof![Just(b'a'), Just(b'b'), b'!'..=b'~'], long..=long);
            (secret().prop_map(alike), secret().prop_map(alike))
        }),
        guess in any::<prop::sample::Index>(),
        around in vec("[ -~\n]{0,90}", 0..4),
        cuts in vec(any::<prop::sample::Index>(), 0..6),
    ) {
        // The agent's text begins like a secret but holds no whole one: masks are visible.
        let guess = &one[..guess.index(one.len().min(3))];
        let text = around.join(str::from_utf8(guess).unwrap()).into_bytes();
        let longest = |secret: &Vec<u8>| needles(std::slice::from_ref(secret)).reach();
        prop_assume!(longest(&one) == longest(&other));
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.sort_unstable();
        let let_go = |secret: &Vec<u8>| {
            let needles = needles(std::slice::from_ref(secret));
            let (mut scrubber, mut at, mut lengths) = (Scrubber::new(&needles), 0, Vec::new());
            for cut in &cuts {
                let mut out = Vec::new();
                scrubber.push(&text[at..*cut], &mut out);
                lengths.push(out.len());
                at = *cut;
            }
            lengths
        };
        prop_assert_eq!(let_go(&one), let_go(&other));
    }
}
