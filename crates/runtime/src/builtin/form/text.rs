//! Texts for people or models, which enter unchanged. A text that contains something like a credential stays outside, for it cannot be
//! told where the credential begins and ends.

use super::super::telling;
use super::NotUnderstood;

pub(super) fn anew(text: &str) -> Result<String, NotUnderstood> {
    if telling::is_known_form(text) { Err(NotUnderstood::somewhere()) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::super::Form;
    use super::super::tried::tried;

    #[test]
    fn a_text_enters_whole_or_not_at_all() {
        let plain = "# How to work\nUse the token in $GITHUB_TOKEN. Ask mailto:me@example.org, or image:tag@sha256:0a.\nSee 3fae0c1d2b4e5f60718293a4b5c6d7e8f9.\n";
        assert_eq!(tried(Form::Text, "", plain).unwrap().0, plain);
        for bad in [
            "see https://me:hush@host/",
            "use ghp_0123456789abcdefABCDEF0123456789abcd",
            "-----BEGIN PRIVATE KEY-----\nhush",
        ] {
            assert!(tried(Form::Text, "", bad).is_err(), "{bad}");
        }
    }
}
