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
