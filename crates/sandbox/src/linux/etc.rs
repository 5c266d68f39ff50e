//! `/etc` inside: the host's, read-only, with the few files that must describe the sandbox mounted over it one by one.
//!
//! An overlay would be one mount, but it refuses a folder with locked mounts below it, as `/etc` is in every container, and it would not
//! show them.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use policy::Wiring;
use rustix::fs::{AtFlags, OFlags};
use sys::mount::{self, Depth, Flags};

use super::root::{Root, create_in, relative};
use crate::plan::Plan;
use crate::plan::inside::HOME;
use crate::source;

/// The sidecar's address inside: the first of its range for names, and never assigned to a name.
const SIDECAR: &str = "198.18.0.0";
/// The resolver's address if every address is local. Over a veth pair it must be one that leads to the sidecar.
const LOCAL_RESOLVER: &str = "127.0.0.1";
/// The largest file, of an image or our own, that is read.
const LARGEST: u64 = 1 << 20;
/// The directory of our files inside.
pub(super) const OURS: &str = "/.lockgate-etc";

/// Shows the host's `/etc` with our files mounted over its own.
pub(super) fn show(root: &Root, plan: &Plan) -> io::Result<()> {
    let (uid, gid) = (plan.identity.uid.inside, plan.identity.gid.inside);
    root.show_system(Path::new("/etc"))?;
    root.directory(Path::new(OURS), 0o755)?;
    let files = [
        ("hosts", hosts()),
        ("resolv.conf", resolver(plan.wiring)),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\n".to_owned(),
        ),
        ("passwd", passwd(uid, gid)),
        ("group", format!("root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n")),
    ];
    let directory = root.open(Path::new(OURS))?;
    for (name, content) in files {
        create_in(directory.as_fd(), name.as_ref())?.write_all(content.as_bytes())?;
        lay_over(root, &Path::new(OURS).join(name), &Path::new("/etc").join(name))?;
    }
    Ok(())
}

fn hosts() -> String {
    format!("127.0.0.1 localhost lockgate\n::1 localhost ip6-localhost ip6-loopback\n{SIDECAR} sidecar\n")
}

/// Returns `resolv.conf`. The sidecar is the resolver at every address.
fn resolver(wiring: Wiring) -> String {
    let address = match wiring {
        Wiring::Redirect => LOCAL_RESOLVER,
        Wiring::Veth => SIDECAR,
    };
    format!("# Answered by the sidecar, at this and every other address.\nnameserver {address}\n")
}

/// Writes the files of an image's `/etc` that must describe the sandbox. The command owns and may change them: only the command itself
/// relies on them.
pub(super) fn write(root: &Root, plan: &Plan) -> io::Result<()> {
    root.directory(Path::new(OURS), 0o755)?;
    root.directory(Path::new("/etc"), 0o755)?;
    replace(root, "hosts", hosts().as_bytes())?;
    replace(root, "resolv.conf", resolver(plan.wiring).as_bytes())?;
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
    let etc = root.open(Path::new("/etc"))?;
    match rustix::fs::unlinkat(&etc, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => root.file(&Path::new("/etc").join(name), content),
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
    // By its path: our own files are not behind links.
    let tree = mount::clone_tree(root.fd()?, &source::c_path(relative(ours)), Depth::One)?;
    mount::set_flags(
        tree.as_fd(),
        Flags::READ_ONLY.and(Flags::NO_SUID).and(Flags::NO_DEV).and(Flags::NO_EXEC),
    )?;
    mount::attach(tree.as_fd(), there.as_fd(), c"")
}

/// Makes the target of a link into a directory that is private here, as `/etc/resolv.conf` often leads into `/run`.
fn fill_dangling_link(root: &Root, link: &Path, ours: &Path) -> io::Result<()> {
    let Ok(found) = root.follow(link, OFlags::PATH | OFlags::NOFOLLOW) else { return Ok(()) };
    let target = rustix::fs::readlinkat(&found, c"", Vec::new())?;
    let target =
        resolve(link.parent().unwrap_or(link), Path::new(std::ffi::OsStr::from_bytes(target.as_bytes())));
    root.directory(target.parent().unwrap_or(&target), 0o755)?;
    root.file(&target, &root.read(ours, LARGEST)?)
}

/// Resolves the target of a link by its text alone.
fn resolve(directory: &Path, target: &Path) -> PathBuf {
    let mut path = PathBuf::new();
    for part in directory.join(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            other => path.push(other),
        }
    }
    path
}

fn passwd(uid: u32, gid: u32) -> String {
    let root = if uid == 0 { "" } else { "root:x:0:0:root:/root:/usr/sbin/nologin\n" };
    format!(
        "{root}agent:x:{uid}:{gid}:agent:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_by_their_text() {
        let resolve = |target| resolve(Path::new("/etc"), Path::new(target));
        assert_eq!(
            resolve("../run/systemd/resolve/stub-resolv.conf"),
            Path::new("/run/systemd/resolve/stub-resolv.conf")
        );
        assert_eq!(resolve("/run/resolv.conf"), Path::new("/run/resolv.conf"));
        assert_eq!(resolve("../../../../x"), Path::new("/x"));
    }
}
