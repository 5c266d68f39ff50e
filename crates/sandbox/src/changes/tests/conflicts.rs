//! What is a conflict: what somebody else changed in the workspace since the run began, told from what the run and an apply did.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;

use rustix::fs::Mode;

use crate::changes::Changes;
use crate::changes::fixture::{Kept, copied_up, made_anew, write};

#[test]
fn our_own_changes_in_a_folder_are_no_conflict_for_what_was_renamed_there() {
    let kept = Kept::new();
    std::fs::create_dir(kept.workspace("d")).unwrap();
    kept.begin_now();
    std::fs::create_dir_all(kept.written("d")).unwrap();
    std::fs::create_dir_all(kept.written("new")).unwrap();
    for name in ["d/renamed", "d/plain", "new/renamed", "new/plain"] {
        write(&kept.written(name), "it", 0o644);
    }
    copied_up(&kept.written("d/renamed"));
    copied_up(&kept.written("new/renamed"));
    for name in ["d/plain", "new/plain"] {
        kept.read().apply(&[name.into()], &|| false).unwrap();
    }
    assert!(kept.conflicts().is_empty(), "{:?}", kept.conflicts());
    // Somebody else's change is one.
    std::thread::sleep(std::time::Duration::from_millis(20));
    write(&kept.workspace("d/theirs"), "theirs", 0o644);
    assert_eq!(kept.conflicts(), ["d/renamed"]);
}

#[test]
fn of_two_runs_that_make_a_folder_of_one_name_both_are_taken_over() {
    let kept = Kept::new();
    let other = kept.path().join("other");
    Changes::prepare(&other, &kept.workspace("")).unwrap();
    kept.begin_now();
    for (written, name) in [(kept.written(""), "a"), (other.join("written"), "b")] {
        std::fs::create_dir_all(written.join("tests/deep")).unwrap();
        for folder in ["tests", "tests/deep"] {
            write(&written.join(folder).join(name), "it", 0o644);
        }
    }
    kept.read().apply(&[], &|| false).unwrap();
    let changes = Changes::read(&other, &kept.workspace("")).unwrap();
    assert!(changes.conflicts(&[]).is_empty(), "{:?}", changes.conflicts(&[]));
}

#[test]
fn names_of_one_file_are_taken_over_one_after_the_other() {
    let kept = Kept::new();
    for (first, second) in [("x", "y"), ("a", "b"), ("m", "n"), ("o", "p")] {
        write(&kept.workspace(first), "one", 0o644);
        std::fs::hard_link(kept.workspace(first), kept.workspace(second)).unwrap();
    }
    let whiteout = |name: &str| {
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, kept.written(name), kind, Mode::empty(), 0)
    };
    for name in ["x", "y", "m", "n", "o", "p"] {
        write(&kept.written(name), "new", 0o644);
    }
    // Only root can make whiteouts by hand.
    let removes = whiteout("a").is_ok() && whiteout("b").is_ok();
    kept.begin_now();
    // Whether applied together or one by one, the file's other name is no conflict.
    assert!(kept.conflicts().is_empty(), "{:?}", kept.conflicts());
    kept.read().apply(&["x".into(), "a".into(), "y".into()], &|| false).unwrap();
    kept.read().apply(&["m".into()], &|| false).unwrap();
    std::fs::write(kept.workspace("p"), "theirs").unwrap();
    assert_eq!(kept.conflicts(), ["o", "p"]);
    kept.read().apply(&["n".into(), "b".into()], &|| false).unwrap();
    for name in ["x", "y", "m", "n"] {
        assert_eq!(std::fs::read_to_string(kept.workspace(name)).unwrap(), "new", "{name}");
    }
    assert!(!removes || !kept.workspace("a").exists() && !kept.workspace("b").exists());
}

#[test]
fn what_somebody_does_while_it_goes_on_is_a_conflict() {
    for theirs_at in [1, 2, 3] {
        let kept = Kept::new();
        std::fs::create_dir(kept.workspace("sub")).unwrap();
        std::fs::create_dir(kept.workspace("zoo")).unwrap();
        kept.begin_now();
        for path in ["sub/made", "sub/moved", "zoo/made"] {
            std::fs::create_dir_all(kept.written(path).parent().unwrap()).unwrap();
            write(&kept.written(path), "the run's", 0o644);
        }
        copied_up(&kept.written("sub/moved"));
        let changes = kept.read();
        let asked = std::cell::Cell::new(0);
        // Before the first is begun, as it is beside its place, and after the last of the folder.
        let is_ended = || {
            asked.set(asked.get() + 1);
            if asked.get() == theirs_at {
                std::thread::sleep(std::time::Duration::from_millis(20));
                write(&kept.workspace("sub/theirs"), "theirs", 0o644);
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            false
        };
        changes.apply(&["sub/made".into(), "zoo/made".into()], &is_ended).unwrap();
        assert!(asked.get() > theirs_at, "it was asked too seldom");
        assert_eq!(kept.conflicts(), ["sub/moved"], "{theirs_at}");
    }
}

#[test]
fn what_the_run_moved_is_no_conflict_whatever_else_changed_there() {
    let kept = Kept::new();
    for path in ["from/one", "from/two", "from/edited", "to/known", "to/twin"] {
        std::fs::create_dir_all(kept.workspace(path).parent().unwrap()).unwrap();
        write(&kept.workspace(path), path, 0o644);
    }
    kept.begin_now();
    std::fs::create_dir(kept.written("to")).unwrap();
    std::fs::create_dir(kept.written("from")).unwrap();
    made_anew(&kept.written("from"));
    // As overlayfs copies a file up, which the run moves then.
    for (from, to) in [
        ("from/one", "to/moved"),
        ("from/two", "to/changed"),
        ("from/two", "to/executable"),
        ("from/edited", "to/edited"),
        ("to/known", "to/known"),
    ] {
        std::fs::copy(kept.workspace(from), kept.written(to)).unwrap();
        let time = std::fs::metadata(kept.workspace(from)).unwrap().modified().unwrap();
        let file = std::fs::File::options().write(true).open(kept.written(to)).unwrap();
        match to {
            "to/changed" => file.write_all_at(b"FROM", 0).unwrap(),
            "to/executable" => file.set_permissions(std::fs::Permissions::from_mode(0o755)).unwrap(),
            "to/edited" => file.write_all_at(b"and more", 10).unwrap(),
            _ => {}
        }
        if to != "to/edited" {
            file.set_modified(time).unwrap();
        }
        copied_up(&kept.written(to));
    }
    std::fs::hard_link(kept.written("to/known"), kept.written("to/linked")).unwrap();
    // Moved from a path from which another was moved as well: only one of them was.
    std::fs::copy(kept.written("to/executable"), kept.written("to/removed")).unwrap();
    let time = std::fs::metadata(kept.workspace("from/two")).unwrap().modified().unwrap();
    std::fs::File::options()
        .write(true)
        .open(kept.written("to/removed"))
        .unwrap()
        .set_modified(time)
        .unwrap();
    copied_up(&kept.written("to/removed"));
    assert!(kept.conflicts().is_empty());
    write(&kept.workspace("to/theirs"), "theirs", 0o644);
    assert_eq!(kept.conflicts(), ["to/changed", "to/edited", "to/removed"]);
    std::fs::remove_file(kept.workspace("to/known")).unwrap();
    assert!(kept.conflicts().contains(&"to/linked".to_owned()), "{:?}", kept.conflicts());
}

#[test]
fn what_was_changed_in_a_folder_that_is_gone_is_a_conflict() {
    let kept = Kept::new();
    for folder in ["gone", "new"] {
        std::fs::create_dir(kept.written(folder)).unwrap();
        write(&kept.written(&format!("{folder}/x")), "it", 0o644);
        copied_up(&kept.written(&format!("{folder}/x")));
    }
    // The run has made the other one, and moved a file into it.
    copied_up(&kept.written("gone"));
    let conflicts: Vec<_> = kept.changes().conflicts(&[]).iter().map(|it| it.path.clone()).collect();
    assert_eq!(conflicts, [PathBuf::from("gone/x")]);
}

#[test]
fn what_somebody_moved_to_where_the_run_removed_is_a_conflict() {
    let kept = Kept::new();
    for path in ["dist/old", "library/deep/mine", "tidy/old", ".git/index"] {
        std::fs::create_dir_all(kept.workspace(path).parent().unwrap()).unwrap();
        write(&kept.workspace(path), "mine", 0o644);
    }
    kept.begin_now();
    // The run has removed these and made the first ones anew, one of which was not there.
    for folder in ["dist", "fresh", "tidy", ".git"] {
        std::fs::create_dir(kept.written(folder)).unwrap();
        made_anew(&kept.written(folder));
    }
    assert!(kept.conflicts().is_empty());
    std::fs::rename(kept.workspace("library/deep"), kept.workspace("dist/deep")).unwrap();
    std::fs::rename(kept.workspace("library"), kept.workspace("fresh")).unwrap();
    // As git does on mere reads.
    write(&kept.workspace(".git/lock"), "", 0o644);
    std::fs::remove_file(kept.workspace(".git/lock")).unwrap();
    assert_eq!(kept.conflicts(), ["dist/deep", "dist/deep/mine", "dist/old"]);
    std::fs::rename(kept.workspace("dist/deep"), kept.workspace("fresh/deep")).unwrap();
    assert_eq!(kept.conflicts(), ["dist/old", "fresh/deep", "fresh/deep/mine"]);
    let changes = kept.read();
    assert_eq!(changes.conflicts(&["fresh/deep/mine".into()]).len(), 1);
    assert!(changes.conflicts(&["tidy".into()]).is_empty());
}

#[test]
fn a_folder_that_somebody_exchanged_is_a_conflict() {
    let kept = Kept::new();
    for path in ["src/code", "next/code", "touched/code", "around/shut/code"] {
        std::fs::create_dir_all(kept.workspace(path).parent().unwrap()).unwrap();
        write(&kept.workspace(path), "mine", 0o644);
    }
    kept.begin_now();
    for path in ["src/code", "touched/code", "touched/new", "around/shut/code"] {
        std::fs::create_dir_all(kept.written(path).parent().unwrap()).unwrap();
        write(&kept.written(path), "the run's", 0o644);
    }
    write(&kept.workspace("touched/beside"), "mine", 0o644);
    // Nothing was moved where the folder around is as it was.
    std::fs::set_permissions(kept.workspace("around/shut"), std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(kept.conflicts().is_empty());
    std::fs::rename(kept.workspace("src"), kept.workspace("src.v1")).unwrap();
    std::fs::rename(kept.workspace("next"), kept.workspace("src")).unwrap();
    assert_eq!(kept.conflicts(), ["src/code"]);
}

#[test]
fn what_was_written_in_another_workspace_is_no_change_of_this_one() {
    let kept = Kept::new();
    write(&kept.workspace("code"), "mine", 0o644);
    std::fs::create_dir(kept.path().join("other")).unwrap();
    write(&kept.path().join("other/code"), "another's", 0o644);
    kept.begin_now();
    for name in ["code", "new"] {
        write(&kept.written(name), "the run's", 0o644);
    }
    assert!(kept.conflicts().is_empty());
    std::fs::rename(kept.workspace(""), kept.path().join("was")).unwrap();
    std::fs::rename(kept.path().join("other"), kept.workspace("")).unwrap();
    assert_eq!(kept.conflicts(), ["code", "new"]);
    // A damaged record does not tell which folder it was, nor when.
    std::fs::write(kept.path().join("kept/since"), "").unwrap();
    assert_eq!(kept.conflicts(), ["code", "new"]);
}
