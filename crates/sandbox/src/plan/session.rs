//! The folder in which a login session keeps its sockets: the bus that starts programs, agents of keys, the display. Whoever can write
//! there, or only read it, can ask any of them for something outside of the sandbox.

use std::path::{Component, Path, PathBuf};

use crate::caller::Caller;
use crate::path_identity::PathIdentity;

/// Where systemd makes that folder, named by the user's number.
const SESSIONS: &str = "/run/user";
/// What lies below it and is a folder of files: where desktops mount remote places and single documents.
const OF_FILES: [&str; 2] = ["gvfs", "doc"];

/// Whether a folder is a session's, holds one, or is a part of one that is no folder of files.
pub(super) fn is_of_a_session(path: &Path, caller: &Caller) -> bool {
    let named = caller.variable("XDG_RUNTIME_DIR").map(Path::new).filter(|named| named.is_absolute());
    if named.is_some_and(|named| PathIdentity::of(named).is_in(path)) {
        return true;
    }
    let Ok(below) = path.strip_prefix(SESSIONS) else { return Path::new(SESSIONS).starts_with(path) };
    !matches!(below.components().nth(1), Some(Component::Normal(part)) if OF_FILES.iter().any(|own| part == *own))
}

/// Returns the folders of sessions in which the caller may reach sockets: the one that the environment names, and where systemd makes the
/// caller's own, which `su`, `sudo` and cron do not name. Root may enter every one.
pub(super) fn folders(caller: &Caller) -> Vec<PathBuf> {
    folders_below(Path::new(SESSIONS), caller)
}

fn folders_below(sessions: &Path, caller: &Caller) -> Vec<PathBuf> {
    let of_others = (caller.uid == 0).then(|| std::fs::read_dir(sessions).ok()).flatten();
    let of_others = of_others.into_iter().flatten().flatten().map(|session| session.path());
    let named = caller.variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    named.into_iter().chain([sessions.join(caller.uid.to_string())]).chain(of_others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_session_is_found_without_a_variable_and_root_reaches_every_one() {
        let sessions = tempfile::tempdir().unwrap();
        let at = |name: &str| sessions.path().join(name);
        std::fs::create_dir(at("1001")).unwrap();
        std::fs::create_dir(at("1002")).unwrap();
        let found = |caller: &Caller| {
            let mut found = folders_below(sessions.path(), caller);
            found.sort();
            found
        };
        assert_eq!(found(&Caller::new(1001, 1001, "/")), [at("1001")]);
        assert_eq!(found(&Caller::new(0, 0, "/")), [at("0"), at("1001"), at("1002")]);
        let foreign = Caller::new(1001, 1001, "/").with_env([("XDG_RUNTIME_DIR", "/run/user/7")]);
        assert_eq!(found(&foreign), [Path::new("/run/user/7"), &at("1001")]);
    }

    #[test]
    fn the_sockets_of_a_session_are_in_no_workspace() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let own = root.join("above/runtime");
        std::fs::create_dir_all(own.join("project")).unwrap();
        let caller = Caller::new(1, 1, "/").with_env([("XDG_RUNTIME_DIR", own.to_str().unwrap())]);
        for (path, is) in [
            ("/run", true),
            ("/run/user", true),
            ("/run/user/1000", true),
            ("/run/user/1000/systemd", true),
            ("/run/user/1000/gvfs/smb-share:server=s/project", false),
            ("/run/user/1000/doc/4f/x", false),
            ("/run/user/1000/gvfsd", true),
            ("/run/media/u/stick", false),
            ("/run/users", false),
        ] {
            assert_eq!(is_of_a_session(Path::new(path), &caller), is, "{path}");
        }
        for (path, is) in [(&own, true), (&root, true), (&own.join("project"), false)] {
            assert_eq!(is_of_a_session(path, &caller), is, "{}", path.display());
        }
        assert!(!is_of_a_session(&own, &Caller::new(1, 1, "/").with_env([("XDG_RUNTIME_DIR", "runtime")])));
    }
}
