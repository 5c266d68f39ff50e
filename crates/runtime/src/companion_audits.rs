//! The audits of a run's companions, which lie beside its own.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// Returns the files beside an audit that have the names of its companions' audits, each with the companion's name.
///
/// # Errors
/// When the folder cannot be listed. One that is not there has none.
pub fn companion_audits_beside(audit: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let text = |part: Option<&OsStr>| part.and_then(OsStr::to_str).map(str::to_owned);
    let (Some(stem), Some(ending)) = (text(audit.file_stem()), text(audit.extension())) else {
        return Ok(Vec::new());
    };
    let (begins, ends) = (format!("{stem}."), format!(".{ending}"));
    let named = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let companion = name.strip_prefix(&begins)?.strip_suffix(&*ends)?;
        Some((companion.to_owned(), entry.path()))
    };
    let folder = audit.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found: Vec<_> =
        entries.filter_map(|entry| entry.map(named).transpose()).collect::<Result<_, _>>()?;
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_listed_is_not_one_without_companions() {
        let folder = tempfile::tempdir().unwrap();
        let audit = |inside: &str| folder.path().join(inside).join("run.jsonl");
        assert_eq!(companion_audits_beside(&audit("none")).unwrap(), []);
        std::fs::write(folder.path().join("run.db.jsonl"), "").unwrap();
        let db = (String::from("db"), folder.path().join("run.db.jsonl"));
        assert_eq!(companion_audits_beside(&folder.path().join("run.jsonl")).unwrap(), [db]);
        // As an error of the disk, for root as well.
        std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
        assert!(companion_audits_beside(&audit("loop")).is_err());
    }
}
