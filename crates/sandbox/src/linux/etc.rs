//! `/etc` inside: the host's, read-only, with the few files that must speak of the sandbox laid over it.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use sys::mount::{self, Flags};

use super::root::Root;
use crate::plan::{HOME, Identity};

/// Where our files lie inside, below the overlay.
const OURS: &str = "/.lockgate-etc";

/// Lays our files over the host's `/etc`.
pub(super) fn show(root: &Root, identity: Identity) -> io::Result<()> {
    let (uid, gid) = (identity.uid.0, identity.gid.0);
    root.directory(Path::new(OURS), 0o755)?;
    let files = [
        ("hosts", "127.0.0.1 localhost sidecar lockgate\n::1 localhost ip6-localhost ip6-loopback\n".to_owned()),
        ("resolv.conf", "# Answered by the sidecar, at this and every other address.\nnameserver 127.0.0.1\n".to_owned()),
        ("nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\n".to_owned()),
        ("hostname", "lockgate\n".to_owned()),
        ("passwd", passwd(uid, gid)),
        ("group", format!("root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n")),
    ];
    for (name, content) in files {
        root.file(&Path::new(OURS).join(name), content.as_bytes())?;
    }
    let lower = std::ffi::CString::new(format!("{}{OURS}:/etc", super::root::BASE))?;
    let tree = mount::make(c"overlay", &[(c"lowerdir", &lower)], Flags::READ_ONLY.and(Flags::NO_SUID).and(Flags::NO_DEV))?;
    root.attach(tree.as_fd(), Path::new("/etc"))
}

fn passwd(uid: u32, gid: u32) -> String {
    let root = if uid == 0 { "" } else { "root:x:0:0:root:/root:/usr/sbin/nologin\n" };
    format!("{root}agent:x:{uid}:{gid}:agent:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")
}
