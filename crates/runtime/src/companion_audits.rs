//! The audits of a run's companions, which lie beside its own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Returns the files beside an audit that have the names of its companions' audits, each with the companion's name.
#[must_use]
pub fn companion_audits_beside(audit: &Path) -> Vec<(String, PathBuf)> {
    let text = |part: Option<&OsStr>| part.and_then(OsStr::to_str).map(str::to_owned);
    let (Some(stem), Some(ending)) = (text(audit.file_stem()), text(audit.extension())) else {
        return Vec::new();
    };
    let (begins, ends) = (format!("{stem}."), format!(".{ending}"));
    let named = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let companion = name.strip_prefix(&begins)?.strip_suffix(&*ends)?;
        Some((companion.to_owned(), entry.path()))
    };
    let folder = audit.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder);
    let mut found: Vec<_> = entries.into_iter().flatten().flatten().filter_map(named).collect();
    found.sort();
    found
}
