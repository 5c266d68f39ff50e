//! What is read of what a run wrote, and what of it is left out.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::changes::fixture::{Kept, unprivileged};
use crate::changes::{Changes, WRITTEN, side};

#[test]
fn what_was_mounted_below_the_workspace_is_no_part_of_it() {
    let kept = Kept::new();
    let root = Path::new("/");
    let refused = Changes::read(&kept.directory(), root).unwrap_err().to_string();
    assert!(refused.contains("mounted below the workspace"), "{refused}");
    let top = rustix::fs::open(root, OFlags::PATH, Mode::empty()).unwrap();
    let entered = side::open(top.as_fd(), Path::new("proc/version"), OFlags::RDONLY);
    assert_eq!(entered.unwrap_err(), rustix::io::Errno::XDEV);
}

#[test]
fn what_comes_and_goes_while_a_run_goes_on_ends_no_look() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    let kept = Kept::new();
    std::fs::write(kept.written("stays"), "x").unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let flips = kept.written("flips");
            while !is_done.load(Relaxed) {
                std::fs::write(&flips, "x").unwrap();
                std::fs::remove_file(&flips).unwrap();
                std::fs::create_dir_all(flips.join("deep")).unwrap();
                std::fs::write(flips.join("deep/file"), "x").unwrap();
                std::fs::remove_dir_all(&flips).unwrap();
                std::os::unix::fs::symlink("stays", &flips).unwrap();
                std::fs::remove_file(&flips).unwrap();
            }
        });
        let looked: io::Result<()> = (0..500).try_for_each(|_| {
            let changes = Changes::read(&kept.directory(), &kept.workspace(""))?;
            match changes.list.iter().any(|change| change.path == Path::new("stays")) {
                true => changes.write_patch(&[], &mut io::sink()),
                false => Err(io::Error::other("what stays is not seen")),
            }
        });
        is_done.store(true, Relaxed);
        looked.unwrap();
    });
}

#[test]
fn a_folder_that_another_run_moves_in_the_workspace_ends_no_look() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    let kept = Kept::new();
    for path in [kept.workspace("refs/in"), kept.written("refs/in")] {
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("file"), "x").unwrap();
    }
    let aside = kept.path().join("aside");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Relaxed) {
                std::fs::rename(kept.workspace("refs"), &aside).unwrap();
                std::fs::rename(&aside, kept.workspace("refs")).unwrap();
            }
        });
        let looked: io::Result<()> = (0..200).try_for_each(|_| {
            Changes::read(&kept.directory(), &kept.workspace(""))?.write_patch(&[], &mut io::sink())
        });
        is_done.store(true, Relaxed);
        looked.unwrap();
    });
}

#[test]
fn what_lies_deeper_than_may_be_is_left_out_and_the_rest_is_not() {
    let kept = Kept::new();
    let chain = |directories: usize| vec!["d"; directories].join("/");
    let deepest = kept.written(&chain(256));
    std::fs::create_dir_all(deepest.join("d")).unwrap();
    std::fs::write(deepest.join("file"), "x").unwrap();
    let changes = kept.changes();
    let left: Vec<_> = changes.left_out.iter().map(|left| left.path.clone()).collect();
    assert_eq!(left, [Path::new(&chain(257))]);
    changes.apply(&[], &|| false).unwrap();
    let there = kept.workspace(&chain(256));
    assert!(there.join("file").is_file() && !there.join("d").exists());
}

#[test]
fn what_cannot_be_read_is_left_out_and_the_rest_is_not() {
    unprivileged(|state| {
        let (kept, workspace) = (state.join("kept"), state.join("workspace"));
        let written = kept.join(WRITTEN);
        std::fs::create_dir(&workspace).unwrap();
        Changes::prepare(&kept, &workspace).unwrap();
        std::fs::write(workspace.join("other"), "x").unwrap();
        for name in ["new", "other", "plain"] {
            std::fs::write(written.join(name), "written").unwrap();
        }
        for name in ["list", "shut"] {
            std::fs::create_dir(written.join(name)).unwrap();
            std::fs::write(written.join(name).join("file"), "written").unwrap();
        }
        for (name, mode) in [("new", 0), ("other", 0), ("list", 0o400), ("shut", 0), ("", 0)] {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(written.join(name), mode).unwrap();
        }
        assert!(!Changes::is_empty(&kept).unwrap());
        std::fs::set_permissions(&written, std::fs::Permissions::from_mode(0o0)).unwrap();
        let mut changes = Changes::read(&kept, &workspace).unwrap();
        let left: Vec<_> = changes.left_out.iter().map(|left| left.path.to_str().unwrap()).collect();
        assert_eq!(left, ["list", "new", "other", "shut"]);
        let mut patch = Vec::new();
        changes.write_patch(&[], &mut patch).unwrap();
        assert!(String::from_utf8(patch).unwrap().contains("b/plain"));
        changes.since = changes.since.never();
        changes.apply(&[], &|| false).unwrap();
        assert_eq!(std::fs::read_to_string(workspace.join("plain")).unwrap(), "written");
        assert_eq!(std::fs::read_to_string(workspace.join("other")).unwrap(), "x");
        Changes::discard(&kept).unwrap();
    });
}

#[test]
fn a_file_that_cannot_be_read_keeps_its_place() {
    unprivileged(|state| {
        let (kept, workspace) = (state.join("kept"), state.join("workspace"));
        std::fs::create_dir(&workspace).unwrap();
        Changes::prepare(&kept, &workspace).unwrap();
        let written = kept.join(WRITTEN);
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        for (name, of_it) in [("link", 0), ("folder", 0), ("anew", 0), ("shut", 0o644)] {
            std::fs::write(workspace.join(name), "secret").unwrap();
            std::fs::set_permissions(workspace.join(name), mode(of_it)).unwrap();
        }
        std::fs::create_dir(written.join("shut")).unwrap();
        std::fs::set_permissions(written.join("shut"), mode(0)).unwrap();
        std::os::unix::fs::symlink("plain", written.join("link")).unwrap();
        for name in ["folder", "anew"] {
            std::fs::create_dir(written.join(name)).unwrap();
            std::fs::write(written.join(name).join("file"), "written").unwrap();
        }
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(written.join("anew"), c"user.overlay.opaque", b"y", flags).unwrap();
        std::fs::write(written.join("plain"), "written").unwrap();
        let mut changes = Changes::read(&kept, &workspace).unwrap();
        changes.since = changes.since.never();
        let applied = changes.apply(&[], &|| false).unwrap();
        assert_eq!(applied.done, [Path::new("plain")], "{applied:?}");
        let left: Vec<_> = applied.left_out.iter().map(|left| left.path.to_str().unwrap()).collect();
        assert_eq!(left, ["anew", "folder", "link", "shut"]);
        for name in left {
            let there = std::fs::symlink_metadata(workspace.join(name)).unwrap();
            assert!(there.is_file() && there.len() == 6, "{name}");
        }
    });
}
