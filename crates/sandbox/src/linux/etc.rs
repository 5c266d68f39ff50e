//! `/etc` inside: the host's, read-only, with the few files that must describe the sandbox mounted over it one by one.
//!
//! An overlay would be one mount, but it refuses a folder with locked mounts below it, as `/etc` is in every container, and it would not
//! show them.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use policy::Wiring;
use policy::agreed::SANDBOX_NAME;
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;
use sys::mount::{self, Depth, Flags};

use super::accounts;
use super::root::{Root, create_in, relative};
use crate::host_path::{self, MOST_LINKS};
use crate::plan::Plan;
use crate::plan::inside::OURS;
use crate::source;

/// The resolver's address if every address is local. Over a veth pair it must be one that leads to the sidecar.
const LOCAL_RESOLVER: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The largest file, of an image or our own, that is read.
const LARGEST: u64 = 1 << 20;

/// Shows the host's `/etc` with our files mounted over its own.
pub(super) fn show(root: &Root, plan: &Plan) -> io::Result<()> {
    let (uid, gid) = (plan.identity.uid.inside, plan.identity.gid.inside);
    root.show_system(Path::new("/etc"))?;
    root.directory(Path::new(OURS), 0o755)?;
    let files = [
        ("hosts", hosts(plan)),
        ("resolv.conf", resolver(plan)),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\n".to_owned(),
        ),
        ("passwd", accounts::passwd(uid, gid)),
        ("group", accounts::group(gid)),
    ];
    let directory = root.open(Path::new(OURS))?;
    for (name, content) in files {
        create_in(directory.as_fd(), name.as_ref())?.write_all(content.as_bytes())?;
        match lay_over(root, &Path::new(OURS).join(name), &Path::new("/etc").join(name)) {
            Err(error) if is_no_place(name, &error) => {}
            laid => laid?,
        }
    }
    Ok(())
}

/// Whether the host has something of that name for which no file can be: a directory, links in a circle, or, for `resolv.conf` alone, a
/// link to a file that does not exist in a directory of the host's. It is as if the host had none: libraries have their defaults, and ask
/// for names at 127.0.0.1.
fn is_no_place(name: &str, error: &io::Error) -> bool {
    let nowhere = [Errno::NOTDIR, Errno::ISDIR, Errno::LOOP];
    let unmade: &[Errno] =
        if name == "resolv.conf" { &[Errno::EXIST, Errno::ROFS, Errno::ACCESS] } else { &[] };
    nowhere.iter().chain(unmade).any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn hosts(plan: &Plan) -> String {
    let sidecar = plan.name_addresses.sidecar();
    format!(
        "127.0.0.1 localhost {SANDBOX_NAME}\n::1 localhost ip6-localhost ip6-loopback\n{sidecar} sidecar\n"
    )
}

/// Returns `resolv.conf`. The sidecar is the resolver at every address.
fn resolver(plan: &Plan) -> String {
    let address = match plan.wiring {
        Wiring::Redirect => LOCAL_RESOLVER,
        Wiring::Veth => plan.name_addresses.sidecar(),
    };
    format!("# Answered by the sidecar, at this and every other address.\nnameserver {address}\n")
}

/// Writes the files of an image's `/etc` that must describe the sandbox. The command owns and may change them: only the command itself
/// relies on them.
pub(super) fn write(root: &Root, plan: &Plan) -> io::Result<()> {
    root.directory(Path::new(OURS), 0o755)?;
    root.directory(Path::new("/etc"), 0o755)?;
    replace(root, "hosts", hosts(plan).as_bytes())?;
    replace(root, "resolv.conf", resolver(plan).as_bytes())?;
    let (uid, gid) = (plan.identity.uid.inside, plan.identity.gid.inside);
    let user = format!("agent:x:{uid}:{gid}:agent:{}:/bin/sh\n", plan.home.display());
    add_account(root, "passwd", uid, &user)?;
    add_account(root, "group", gid, &format!("agent:x:{gid}:\n"))
}

/// Adds a line to a table of the image, unless the table has the id.
fn add_account(root: &Root, name: &str, id: u32, line: &str) -> io::Result<()> {
    let mut table = root.read(&Path::new("/etc").join(name), LARGEST).unwrap_or_default();
    let text = String::from_utf8_lossy(&table);
    let whole = (table.len() as u64) < LARGEST; // otherwise half a line could be written back
    let known = text.lines().any(|line| line.split(':').nth(2).is_some_and(|field| field == id.to_string()));
    if known || !whole {
        return Ok(());
    }
    if !table.is_empty() && !table.ends_with(b"\n") {
        table.push(b'\n');
    }
    table.extend(line.as_bytes());
    replace(root, name, &table)
}

/// Writes a file in place of whatever the image has there. A link is replaced and not followed.
fn replace(root: &Root, name: &str, content: &[u8]) -> io::Result<()> {
    // The directory itself may be a link of the image, as into a store.
    let etc = root.follow(Path::new("/etc"), OFlags::PATH | OFlags::DIRECTORY)?;
    match rustix::fs::unlinkat(&etc, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => create_in(etc.as_fd(), name.as_ref())?.write_all(content),
        Err(errno) => Err(errno.into()),
    }
}

/// Mounts one of our files over the host's. Does nothing if the host has no such file: libraries have their defaults.
pub(super) fn lay_over(root: &Root, ours: &Path, theirs: &Path) -> io::Result<()> {
    let there = match root.follow(theirs, OFlags::PATH) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return fill_dangling_link(root, theirs, ours);
        }
        Err(error) => return Err(error),
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&there)?.st_mode) == FileType::Directory {
        return Err(Errno::ISDIR.into());
    }
    // By its path: our own files are not behind links.
    let tree = mount::clone_tree(root.fd()?, &source::c_path(relative(ours)), Depth::One)?;
    mount::set_flags(
        tree.as_fd(),
        Flags::READ_ONLY.and(Flags::NO_SUID).and(Flags::NO_DEV).and(Flags::NO_EXEC),
    )?;
    mount::attach(tree.as_fd(), there.as_fd(), c"")
}

/// Makes the file that a link leads to, where that is in a directory that is private here, as `/etc/resolv.conf` often leads into `/run`.
fn fill_dangling_link(root: &Root, link: &Path, ours: &Path) -> io::Result<()> {
    if root.follow(link, OFlags::PATH | OFlags::NOFOLLOW).is_err() {
        return Ok(());
    }
    let target = missing(root, link)?;
    root.directory(target.parent().unwrap_or(&target), 0o755)?;
    root.file(&target, &root.read(ours, LARGEST)?)
}

/// Returns the place that a path of the root leads to, link by link: the way to the first name that does not exist, and the rest by its
/// text.
pub(super) fn missing(root: &Root, path: &Path) -> io::Result<PathBuf> {
    let (mut at, mut rest, mut links) = (PathBuf::from("/"), host_path::parts(path), 0);
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        at.push(part);
        let Some(to) = link_text(root, &at)? else { continue };
        links += 1;
        if links > MOST_LINKS {
            return Err(Errno::LOOP.into());
        }
        at.pop();
        if to.is_absolute() {
            at = "/".into();
        }
        rest = host_path::ahead(&to, rest);
    }
    Ok(at)
}

/// Returns where a link leads. `None` if the path, none of whose directories is a link, is none or does not exist.
fn link_text(root: &Root, path: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    let text = root.open(parent).and_then(|parent| Ok(rustix::fs::readlinkat(&parent, name, Vec::new())?));
    match text {
        Ok(to) => Ok(Some(OsStr::from_bytes(to.as_bytes()).into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes a root of links and, where there is no target, directories.
    fn root(entries: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("etc")).unwrap();
        for (name, target) in entries {
            let path = folder.path().join(name);
            if target.is_empty() {
                fs::create_dir_all(path).unwrap();
            } else {
                symlink(target, path).unwrap();
            }
        }
        fs::write(folder.path().join("ours"), "ours").unwrap();
        let root = Root::at(fs::File::open(folder.path()).unwrap().into());
        (folder, root)
    }

    #[test]
    fn a_file_is_made_where_a_chain_of_links_ends() {
        for (name, entries, made) in [
            ("a link", &[("etc/resolv.conf", "../run/resolve/stub.conf")] as &[_], "run/resolve/stub.conf"),
            ("an absolute link", &[("etc/resolv.conf", "/run/resolv.conf")], "run/resolv.conf"),
            ("a link upwards", &[("etc/resolv.conf", "../../../../x")], "x"),
            (
                "resolvconf",
                &[
                    ("etc/resolvconf", ""),
                    ("etc/resolvconf/run", "/run/resolvconf"),
                    ("etc/resolv.conf", "/etc/resolvconf/run/resolv.conf"),
                ],
                "run/resolvconf/resolv.conf",
            ),
            (
                "NixOS",
                &[
                    ("store", ""),
                    ("store/resolv.conf", "/run/systemd/resolve/stub.conf"),
                    ("etc/static", "/store"),
                    ("etc/resolv.conf", "static/resolv.conf"),
                ],
                "run/systemd/resolve/stub.conf",
            ),
        ] {
            let (folder, root) = root(entries);
            lay_over(&root, Path::new("/ours"), Path::new("/etc/resolv.conf")).unwrap();
            assert_eq!(fs::read_to_string(folder.path().join(made)).unwrap_or_default(), "ours", "{name}");
        }
    }

    #[test]
    fn an_images_etc_may_be_a_link_into_a_store() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("store/etc")).unwrap();
        symlink("/nowhere", folder.path().join("store/etc/hosts")).unwrap();
        symlink("/store/etc", folder.path().join("etc")).unwrap();
        let root = Root::at(fs::File::open(folder.path()).unwrap().into());
        replace(&root, "hosts", b"ours").unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("store/etc/hosts")).unwrap(), "ours");
    }

    #[test]
    fn a_name_at_which_no_file_can_be_is_told_from_a_failure() {
        let (folder, root) =
            root(&[("etc/a", "b"), ("etc/b", "a"), ("etc/dangling", "/ours/x"), ("etc/folder", "")]);
        let lay = |name: &str| lay_over(&root, Path::new("/ours"), &Path::new("/etc").join(name));
        assert!(is_no_place("hosts", &lay("a").unwrap_err()), "a circle");
        assert!(is_no_place("hosts", &lay("dangling").unwrap_err()), "below a file");
        assert!(is_no_place("hosts", &lay("folder").unwrap_err()), "a folder");
        assert!(lay("none").is_ok() && !folder.path().join("etc/none").exists());
        assert!(!is_no_place("resolv.conf", &io::Error::from(Errno::NOSPC)));
        for errno in [Errno::EXIST, Errno::ROFS, Errno::ACCESS] {
            let told = ["resolv.conf", "passwd"].map(|name| is_no_place(name, &io::Error::from(errno)));
            assert_eq!(told, [true, false], "{errno}");
        }
    }
}
