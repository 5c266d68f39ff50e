//! Placeholders. All in a text are found, where they are and in order, and each parses to itself.

use credential::Placeholder;

const LENGTH: usize = 41;

/// Looks for placeholders in the input, with the product and with a simple reader.
pub fn placeholder(text: &[u8]) {
    let found: Vec<_> = Placeholder::find_all(text).collect();
    let mut from = 0;
    for (range, placeholder) in &found {
        assert!(range.start >= from && range.end <= text.len(), "{range:?} after {from}");
        assert_eq!(&text[range.clone()], placeholder.as_str().as_bytes());
        assert_eq!(placeholder.as_str().parse().as_ref(), Ok(placeholder));
        from = range.end;
    }
    // The simple way: from the left, every window that parses is a placeholder.
    let mut from = 0;
    let plainly = text.windows(LENGTH).enumerate().filter_map(|(at, window)| {
        let placeholder: Placeholder =
            std::str::from_utf8(window).ok().filter(|_| at >= from)?.parse().ok()?;
        from = at + LENGTH;
        Some((at..from, placeholder))
    });
    assert!(plainly.eq(found), "{:?}", text.escape_ascii().to_string());
    if let Some((random, rest)) = text.split_first_chunk() {
        let minted = Placeholder::mint(*random);
        assert_eq!(minted.as_str().len(), LENGTH);
        let glued = [minted.as_str().as_bytes(), rest].concat();
        assert_eq!(Placeholder::find_all(&glued).next(), Some((0..LENGTH, minted)));
    }
}
