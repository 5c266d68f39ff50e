//! Promise: only what is declared enters, as it was declared; a link or `..` as a source is refused.
//! S3.7, S3.12; THREATS X "mounts".

use std::os::unix::fs::MetadataExt;

use lockgate_conformance::{Backend, Bench, Needs, ready};

#[test]
fn declared_mounts_enter_and_no_others() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let notes = bench.file("outside/kit/notes", "declared");
    let kit = notes.parent().unwrap().to_str().unwrap().to_owned();
    let inside = "/home/agent/kit/notes";
    let run = bench.run(Backend::isolated());

    let read_only = run.clone().flags(["--mount", &format!("{kit}:/home/agent/kit:ro")]);
    let seen = read_only.probes(&[
        &["read", inside],
        &["open-write", inside],
        &["write", "/home/agent/kit/new", "x"],
    ]);
    assert!(seen[0].text("text") == "declared", "{}", seen[0]);
    assert!(!seen[1].done() && !seen[2].done(), "{} {}", seen[1], seen[2]);

    let writable = run.clone().flags(["--mount", &format!("{kit}:/home/agent/kit:rw")]);
    writable.everything_works(&[&["append", inside, "!"]]);
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "declared!");

    let copied = run.clone().flags(["--copy", &format!("{kit}:/home/agent/kit")]);
    copied.everything_works(&[&["append", inside, "?"]]);
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "declared!", "a copy is not the original");
}

#[test]
fn links_and_parents_are_refused_as_sources() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let notes = bench.file("outside/notes", "private");
    std::os::unix::fs::symlink(&notes, bench.workspace().join("link")).unwrap();
    std::os::unix::fs::symlink(bench.outside(), bench.workspace().join("directory")).unwrap();
    let workspace = bench.workspace();
    let workspace = workspace.display();
    for source in [
        format!("{workspace}/link"),
        format!("{workspace}/directory"),
        format!("{workspace}/directory/notes"),
        format!("{workspace}/../outside/notes"),
    ] {
        for flag in ["--mount", "--copy"] {
            let ended = bench
                .run(Backend::isolated())
                .flags([flag, &format!("{source}:/home/agent/notes")])
                .command(["true"]);
            assert!(matches!(ended.code, 2 | 125), "{flag} {source} was accepted: {ended}");
            assert!(
                ended.stderr.contains(&source)
                    || ended.stderr.contains("link")
                    || ended.stderr.contains(".."),
                "{ended}"
            );
        }
    }
}

// S2.4
#[test]
fn the_processes_of_the_machine_are_refused_as_sources() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    for source in ["/proc", "/proc/1", "/proc/cpuinfo"] {
        for mode in ["ro", "rw"] {
            let mount = format!("{source}:/home/agent/p:{mode}");
            let ended = bench.run(Backend::isolated()).flags(["--mount", &mount]).command(["true"]);
            assert!(matches!(ended.code, 2 | 125), "{mount} was accepted: {ended}");
            assert!(ended.stderr.contains(source) && ended.stderr.contains("of /proc"), "{ended}");
        }
    }
}

#[test]
fn kernel_directories_are_refused_as_targets() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let notes = bench.file("outside/notes", "declared");
    for target in ["/proc/notes", "/sys/notes", "/dev/notes", "/proc", "/"] {
        let mount = format!("{}:{target}", notes.display());
        let ended = bench.run(Backend::isolated()).flags(["--mount", &mount]).command(["true"]);
        assert!(matches!(ended.code, 2 | 125), "{mount} was accepted: {ended}");
    }
}

#[test]
fn the_way_to_a_mount_in_the_workspace_is_its_owners() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let data = bench.file("outside/data/file", "x");
    let data = data.parent().unwrap().display();
    let at = |path: &str| bench.workspace().join(path);
    let mount = format!("{data}:{}", at("in/x/y").display());
    let ended = bench.run(Backend::isolated()).flags(["--mount", &mount]).shell("cat in/x/y/file");
    assert!(ended.code == 0 && ended.stdout == "x", "{ended}");
    let owner = |path: &str| std::fs::metadata(at(path)).map(|it| (it.uid(), it.gid())).unwrap();
    assert_eq!(["in", "in/x", "in/x/y"].map(owner), [owner("."); 3]);
}

#[test]
fn a_path_is_no_option_of_a_mount() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let victim = bench.file("outside/victim/file", "x");
    let victim = victim.parent().unwrap();
    // A folder of that literal name, with the way to it.
    let named = format!("outside/w,U=true,source={}/file", victim.display());
    let folder = bench.file(&named, "declared").parent().unwrap().to_owned();
    let owner = |at: &std::path::Path| std::fs::metadata(at).map(|it| (it.uid(), it.mode())).unwrap();
    let before = owner(victim);
    for flag in ["--mount", "--copy"] {
        let pair = format!("{}:/home/agent/c", folder.display());
        let ended = bench.run(Backend::isolated()).flags([flag, &pair]).shell("cat /home/agent/c/file");
        if Backend::isolated() == Backend::Podman {
            assert!(ended.code == 125 && ended.stderr.contains("Podman cannot show"), "{flag}: {ended}");
        } else {
            assert!(ended.code == 0 && ended.stdout == "declared", "{flag}: {ended}");
        }
        assert_eq!(owner(victim), before, "{flag}");
    }
}

#[test]
fn what_is_mounted_below_a_read_only_place_is_not_written() {
    // Only a user who may mount can test this.
    if !ready(&[Needs::Linux, Needs::Root]) {
        return;
    }
    let bench = Bench::new();
    let shown = bench.outside().join("kit");
    let protected = bench.workspace().join(".vscode");
    for folder in [&shown, &protected] {
        std::fs::create_dir_all(folder.join("sub")).unwrap();
    }
    let read_only = format!("{}:/tmp/kit:ro", shown.display());
    for (folder, place, flags) in [
        (&shown, "/tmp/kit/sub", vec!["--mount", &read_only]),
        (&protected, ".vscode/sub", vec![]),
        (&protected, ".vscode/sub", vec!["--workspace-mode", "ro"]),
    ] {
        const SCRIPT: &str = r#"mount -t tmpfs none "$1"; shift; exec "$@""#;
        let words = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", SCRIPT, "sh"];
        let behind = words.map(std::ffi::OsString::from).into_iter().chain([folder.join("sub").into()]);
        let run = bench.run(Backend::isolated()).flags(&flags).behind(behind);
        let ended = run.shell(&format!("touch {place}/new"));
        assert!(ended.code != 0, "{flags:?}: {ended}");
        if Backend::isolated().is_engine() {
            let is_said = ended.stderr.contains("something is mounted below it");
            assert!(ended.code == 125 && is_said, "{flags:?}: {ended}");
        }
    }
}
