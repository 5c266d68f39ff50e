//! The names that git refuses in a patch, and with one of them the whole patch: those of a repository, and of a link in the place of
//! `.gitmodules`, also as NTFS and HFS+ read them. A few that git would take are among them.

use std::path::Path;

use rustix::fs::FileType;

/// The name of 8 letters that NTFS gives `.gitmodules` where its first ones are taken. As git's `is_ntfs_dotgitmodules`.
const SHORT: &str = "gi7eba";

/// Whether git refuses a path of this mode in a patch.
pub(super) fn is_refused(path: &Path, mode: u32) -> bool {
    let is_link = FileType::from_raw_mode(mode) == FileType::Symlink;
    let text: String = path.to_string_lossy().chars().filter(|it| !is_ignored(*it)).collect();
    // A backslash separates names on NTFS.
    text.to_ascii_lowercase()
        .split(['/', '\\'])
        .any(|name| is_repository(name) || is_link && is_list_of_modules(name))
}

fn is_repository(name: &str) -> bool {
    let rest = name.strip_prefix(".git").or_else(|| name.strip_prefix("git~1"));
    rest.is_some_and(is_no_more)
}

fn is_list_of_modules(name: &str) -> bool {
    if let Some(rest) = name.strip_prefix(".gitmodules") {
        return is_no_more(rest);
    }
    name.split_once('~').is_some_and(|(before, after)| {
        after.starts_with(|first: char| first.is_ascii_digit())
            && (before == "gitmod" || SHORT.starts_with(before))
    })
}

/// Whether NTFS takes nothing of this for a part of the name: blanks and dots at its end, and the name of a stream.
fn is_no_more(rest: &str) -> bool {
    let rest = rest.trim_start_matches([' ', '.']);
    rest.is_empty() || rest.starts_with(':')
}

/// Whether HFS+ ignores a character in a name. As git's `next_hfs_char`.
fn is_ignored(character: char) -> bool {
    matches!(character,
        '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
}
