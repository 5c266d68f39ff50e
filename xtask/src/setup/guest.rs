//! Prepares the parts of the guests of `tests/guest`: a distribution's kernel with its modules, and a shell, in a folder of the
//! target directory.
//!
//! The packages are downloaded and unpacked, never installed: installing a kernel would make this machine boot it. That needs no
//! root.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Rights, program};
use crate::bounded::Bounded;

/// The folder, beneath the target directory.
const GUEST: &str = "guest";
const LIMIT: Duration = Duration::from_secs(300);

/// The newest package of this name: it depends on the package that has the kernel.
const KERNEL: &str = "linux-image-cloud-amd64";
const SHELL: &str = "busybox-static";

/// Each part, and where a package may keep it: with a separate `/usr`, or without.
const PARTS: [(&str, &[&str]); 3] = [
    ("modules", &["lib/modules", "usr/lib/modules"]),
    ("busybox", &["bin", "usr/bin"]),
    // Last: its presence shows that all parts came.
    ("kernel", &["boot"]),
];

/// Gets the missing parts. A distribution without such packages does without them.
pub(super) fn prepare(target: &Path, rights: Rights) -> Result<Option<String>> {
    let folder = target.join(GUEST);
    if folder.join("kernel").is_file() {
        return Ok(None);
    }
    let missing = |why: &str| Some(format!("missing: {KERNEL}, {SHELL} (guests of other kernels): {why}"));
    if program("apt-get").is_none() {
        return Ok(missing("there is no apt-get to download them"));
    }
    if rights == Rights::Root {
        // A container image may have no lists of packages.
        Bounded::new("apt-get", &["update", "--quiet"], LIMIT).run()?;
    }
    let Some(kernel) = kernel_package()? else {
        return Ok(missing("this distribution has no such kernel"));
    };
    match (get(&folder, &kernel), rights) {
        (Ok(()), _) => Ok(None),
        (Err(error), Rights::Root) => Err(error),
        (Err(error), Rights::User) => Ok(missing(&format!("{error:#}"))),
    }
}

/// Returns the name of the package that has the kernel itself.
fn kernel_package() -> Result<Option<String>> {
    let output = Bounded::new("apt-cache", &["depends", "--important", KERNEL], LIMIT).output()?;
    Ok(dependency(&String::from_utf8_lossy(&output.stdout)))
}

fn dependency(text: &str) -> Option<String> {
    let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with("linux-image-")).map(str::to_owned)
}

fn get(folder: &Path, kernel: &str) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).context("failed to remove what was there of the guests")?;
    }
    let unpacked = folder.join("unpacked");
    fs::create_dir_all(&unpacked).context("failed to make a folder for the guests")?;
    // As root, apt would download as a user of its own, who may not write here.
    let download = ["-o", "APT::Sandbox::User=root", "download", "--quiet", kernel, SHELL];
    Bounded::new("apt-get", &download, LIMIT).within(folder).run()?;
    for package in files(folder)?.iter().filter(|file| file.extension().is_some_and(|it| it == "deb")) {
        Bounded::new("dpkg-deb", &["--extract", shown(package)?, shown(&unpacked)?], LIMIT).run()?;
        fs::remove_file(package).context("failed to remove a package")?;
    }
    for (part, places) in PARTS {
        let found = places.iter().find_map(|place| find(&unpacked.join(place), part));
        let found = found.with_context(|| format!("the packages have no {part} in {}", places.join(", ")))?;
        if part == "modules" {
            expand(&found)?;
        }
        fs::rename(&found, folder.join(part)).with_context(|| format!("failed to move {part}"))?;
    }
    fs::remove_dir_all(&unpacked).context("failed to remove what is not needed of the packages")
}

/// Finds a part in one place: the program itself, the one folder of modules, the one kernel.
fn find(place: &Path, part: &str) -> Option<PathBuf> {
    let starts = match part {
        "kernel" => "vmlinuz",
        "busybox" => part,
        _ => "",
    };
    let named = |path: &PathBuf| path.file_name().is_some_and(|it| it.to_string_lossy().starts_with(starts));
    files(place).ok()?.into_iter().find(named)
}

/// Unpacks modules: newer kernels compress them, and the guest's shell cannot insert those.
fn expand(modules: &Path) -> Result<()> {
    let find = ["-name", "*.ko.xz", "-exec", "xz", "--decompress", "{}", "+"];
    Bounded::new("find", &[&[shown(modules)?], &find[..]].concat(), LIMIT).run()
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn shown(path: &Path) -> Result<&str> {
    let text = path.to_str().context("the target directory's path is no UTF-8")?;
    ensure!(!text.starts_with('-'), "the target directory's path begins with `-`");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_the_package_depends_on() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n  Depends: other\n";
        assert_eq!(dependency(text).as_deref(), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(dependency("E: No packages found\n"), None);
    }

    #[test]
    fn parts_are_found_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| fs::write(folder.path().join(name), "").unwrap();
        make("config-6.1");
        assert_eq!(find(folder.path(), "kernel"), None);
        make("vmlinuz-6.1");
        assert_eq!(find(folder.path(), "kernel"), Some(folder.path().join("vmlinuz-6.1")));
        assert_eq!(find(&folder.path().join("absent"), "busybox"), None);
    }

    #[test]
    fn what_is_there_is_left_alone() {
        let target = tempfile::tempdir().unwrap();
        fs::create_dir(target.path().join(GUEST)).unwrap();
        fs::write(target.path().join(GUEST).join("kernel"), "").unwrap();
        assert_eq!(prepare(target.path(), Rights::User).unwrap(), None);
    }
}
