//! What the caller's terminal is called inside. Its description, terminfo(5), has to be inside as well: programs that draw on the whole
//! screen do not begin without one. The caller's own folder of descriptions does not enter.

use std::path::{Path, PathBuf};

use crate::caller::Caller;

/// The system's directories of descriptions, which a sandbox on this machine's files shows.
const SYSTEM: [&str; 4] = ["/etc/terminfo", "/lib/terminfo", "/usr/lib/terminfo", "/usr/share/terminfo"];
/// The name in place of one whose description is the caller's own. Such terminals do what this one does, and more.
const USUAL: &str = "xterm-256color";

/// Returns the name inside, on this machine's files.
pub(crate) fn on_this_machine<'a>(name: &'a str, caller: &Caller) -> &'a str {
    let named = caller.variable("TERMINFO").filter(|place| place.starts_with('/')).map(PathBuf::from);
    let own: Vec<PathBuf> =
        named.into_iter().chain(caller.home.as_ref().map(|home| home.join(".terminfo"))).collect();
    among(name, &own, &SYSTEM.map(PathBuf::from))
}

/// Whether a text has the form of a terminal's name, so that a variable of that name passes nothing else of the caller's.
pub(crate) fn is_one(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+".contains(&b))
}

/// A name that nobody describes stays: programs may know the terminal without a description.
fn among<'a>(name: &'a str, own: &[PathBuf], system: &[PathBuf]) -> &'a str {
    let describe = |places: &[PathBuf], name: &str| places.iter().any(|place| entry(place, name).exists());
    if describe(own, name) && !describe(system, name) && describe(system, USUAL) { USUAL } else { name }
}

/// Returns where a directory has the description of a name: below its first letter.
fn entry(place: &Path, name: &str) -> PathBuf {
    place.join(name.get(..1).unwrap_or_default()).join(name)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    #[test]
    fn a_terminal_that_only_the_caller_describes_has_the_usual_name_inside() {
        let folder = tempfile::tempdir().unwrap();
        let (own, system) = (folder.path().join("own"), folder.path().join("system"));
        let describe = |place: &Path, name: &str| {
            let path = entry(place, name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        describe(&own, "xterm-kitty");
        let inside = |name| among(name, from_ref(&own), from_ref(&system));
        // A system without descriptions has none of the usual terminal either.
        assert_eq!(inside("xterm-kitty"), "xterm-kitty");
        describe(&system, USUAL);
        assert_eq!(inside("xterm-kitty"), USUAL);
        assert_eq!(inside("dumb"), "dumb");
        describe(&system, "xterm-kitty");
        assert_eq!(inside("xterm-kitty"), "xterm-kitty");
    }

    #[test]
    fn a_name_is_a_word() {
        assert!(is_one("xterm-256color") && is_one("screen.xterm+x"));
        assert!(!is_one("") && !is_one("../x") && !is_one("a b") && !is_one(&"x".repeat(33)));
    }
}
