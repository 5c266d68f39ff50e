//! Targets that hold `{{…}}`. The policy judges the template first, and what is sent once it is filled.

use credential::with_stand_ins;
use policy::{Denial, Guard, Target};

/// The text in place of a field while a template is judged: a character that is allowed in every path and query.
const STAND_IN: &str = "0";

/// Returns the target to judge for a template, and its path and query as they were written.
///
/// # Errors
/// A field stands before the path, or the target is malformed.
pub(super) fn judged(template: &str) -> Result<(Target, String), Denial> {
    let start = template.find("://").map_or(0, |at| at + 3);
    let end = template[start..].find(['/', '?', '#']).map_or(template.len(), |at| start + at);
    let (before, written) = template.split_at(end);
    if before.contains("{{") {
        // A credential must not choose where it goes.
        return Err(Denial::new(
            Guard::Unresolved,
            "Unresolved placeholders in URL: one may stand in the path and the query, not before them",
        ));
    }
    let target = Target::parse(&format!("{before}{}", with_stand_ins(written, STAND_IN)))?;
    let origin = if written.starts_with('/') { written.to_owned() } else { format!("/{written}") };
    Ok((target, origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_judged_by_its_literal_parts() {
        let (target, origin) = judged("https://api.example.com/v1/{{id}}?key={{access_token}}").unwrap();
        assert_eq!(target.to_string(), "https://api.example.com/v1/0?key=0");
        assert_eq!(origin, "/v1/{{id}}?key={{access_token}}");
        assert_eq!(judged("https://api.example.com").unwrap().1, "/");
        assert_eq!(judged("https://api.example.com?a=b").unwrap().1, "/?a=b");
    }

    #[test]
    fn a_credential_chooses_no_destination() {
        for template in [
            "https://{{host}}/",
            "{{scheme}}://a/",
            "https://api.example.com:{{port}}/",
            "https://a{{x}}.example/",
        ] {
            assert!(judged(template).is_err(), "{template}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(text in "\\PC{0,60}") {
            let _ = judged(&text);
            let _ = judged(&format!("https://a.example/{text}"));
        }
    }
}
