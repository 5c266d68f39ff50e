//! Questions about octets that several checks ask. Nothing here may change them.

/// Whether octets contain a part.
#[must_use]
pub(crate) fn contains(octets: &[u8], part: &[u8]) -> bool {
    octets.windows(part.len()).any(|window| window == part)
}

/// Returns an input as text: what of it is UTF-8, up to the first octet that is not.
#[must_use]
pub(crate) fn text_of(input: &[u8]) -> &str {
    input.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}
