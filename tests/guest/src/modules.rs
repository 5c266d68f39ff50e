//! Modules of the guest's kernel, in an order in which each can be inserted. Every module lists its dependencies, so no `depmod` has to run
//! for a kernel that is not installed.

use std::fs;
use std::path::{Path, PathBuf};

/// A module's name and its octets.
pub(crate) type Module = (String, Vec<u8>);

/// Returns the modules called `names` beneath `folder`, each after its dependencies. A module that is not there is built in.
///
/// # Errors
/// A message that says what could not be read.
pub(crate) fn in_order(folder: &Path, names: &[&str]) -> Result<Vec<Module>, String> {
    let mut files = Vec::new();
    gather(folder, &mut files)?;
    let mut modules = Vec::new();
    for name in names {
        add(name, &files, &mut modules)?;
    }
    Ok(modules)
}

fn add(name: &str, files: &[PathBuf], modules: &mut Vec<Module>) -> Result<(), String> {
    let called = |path: &&PathBuf| {
        // File names may have `-` where names have `_`.
        path.file_stem().is_some_and(|stem| stem.to_string_lossy().replace('-', "_") == name)
    };
    let Some(path) = files.iter().find(called) else { return Ok(()) };
    if modules.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    let octets = fs::read(path).map_err(|error| format!("failed to read {}: {error}", path.display()))?;
    for needed in needs(&octets) {
        add(&needed, files, modules)?;
    }
    modules.push((name.to_owned(), octets));
    Ok(())
}

/// Returns the names in the entry `depends=a,b` of a module's section `.modinfo`.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|octet| *octet == 0).next().unwrap_or_default();
    let value = String::from_utf8_lossy(value);
    value.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries =
        fs::read_dir(folder).map_err(|error| format!("failed to read {}: {error}", folder.display()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            gather(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "ko") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_those_it_needs_and_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("net")).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("net/nat.ko", "ELF\0license=GPL\0depends=nf-tables,track\0name=nat\0");
        write("nf-tables.ko", "ELF\0depends=track\0");
        write("track.ko", "ELF\0depends=\0");
        let order = in_order(folder.path(), &["nat", "track", "built_in"]).unwrap();
        let names: Vec<&str> = order.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["track", "nf_tables", "nat"]);
    }
}
