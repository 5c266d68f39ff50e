//! Suggestions for misspelled names.

/// Returns the name nearest to `written`, as a question that goes before a list of names. Returns an empty string if none is near.
#[must_use]
pub fn did_you_mean<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(written, names).map(|name| format!("did you mean `{name}`? ")).unwrap_or_default()
}

/// Finds the nearest name for a message about an unknown field, which has the written name and then the known ones in backticks.
#[must_use]
pub fn did_it_mean(message: &str) -> Option<String> {
    if !message.contains("unknown field") && !message.contains("unknown variant") {
        return None;
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let written = quoted.next()?;
    nearest(written, quoted).map(|name| format!("did you mean `{name}`?"))
}

/// Returns the nearest name, if its edit distance is at most a third of the letters of `written`: a slip changes a letter or two.
fn nearest<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (written.chars().count() / 3).max(1);
    let distance = |name: &&str| strsim::damerau_levenshtein(written, name);
    names.into_iter().min_by_key(distance).filter(|name| distance(name) <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_known_and_another_word_is_not() {
        let names = ["github", "llm-providers", "open-internet"];
        for (written, said) in [
            ("gihtub", "did you mean `github`? "),
            ("open-intrenet", "did you mean `open-internet`? "),
            ("x", ""),
        ] {
            assert_eq!(did_you_mean(written, names), said, "{written}");
        }
        let message = "unknown field `egres`, expected one of `backend`, `egress`, `env`";
        assert_eq!(did_it_mean(message).as_deref(), Some("did you mean `egress`?"));
        assert_eq!(did_it_mean("invalid type `egres`, expected `egress`"), None);
    }
}
