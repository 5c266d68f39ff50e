//! How a secret is passed to a program that searches for it, and which part of it counts as found. Those who draw secrets and those who
//! search must agree on both: otherwise a search would find nothing, whatever was there.

/// Each octet of a masked secret is combined with it.
const MASK: u8 = 0x5a;
/// A part of a secret of this length counts as the secret: it does not occur by chance.
pub const TELLING: usize = 8;

/// Returns the secret masked, in hexadecimal: a search for the secret does not find it.
#[must_use]
pub fn masked(secret: impl AsRef<[u8]>) -> String {
    secret.as_ref().iter().map(|octet| format!("{:02x}", octet ^ MASK)).collect()
}

/// Returns the secret that was masked, or nothing if the text is no mask of a secret that could be searched for.
#[must_use]
pub fn unmasked(text: &str) -> Option<Vec<u8>> {
    let octet = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    let octets: Option<Vec<u8>> = (0..text.len()).step_by(2).map(|at| Some(octet(at)? ^ MASK)).collect();
    octets.filter(|octets| octets.len() >= TELLING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_undone_and_hides_the_secret() {
        let secret = "canary-0123456789-\u{e9}";
        let text = masked(secret);
        assert_eq!(unmasked(&text).as_deref(), Some(secret.as_bytes()));
        let hex: String = secret.bytes().map(|octet| format!("{octet:02x}")).collect();
        assert!(!text.contains(&hex[..2 * TELLING]) && !text.contains("canary"), "{text}");
    }

    #[test]
    fn what_could_not_be_searched_for_is_no_secret() {
        assert_eq!(unmasked("zz"), None);
        assert_eq!(unmasked(&masked([b'x'; TELLING - 1])), None);
        assert!(unmasked(&masked([b'x'; TELLING])).is_some());
        assert_eq!(unmasked(&(masked([b'x'; TELLING]) + "0")), None);
    }
}
