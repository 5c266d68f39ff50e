//! Promise: what the host would later execute or trust cannot be written, whether it was there at the start or not.
//! DESIGN §5 "Files"; THREATS X "files the host later executes" (CVE-2026-25725).

use std::time::Duration;

use lockgate_conformance::{Backend, Bench, Needs, ready};
use rustix::fs::{CWD, RenameFlags};

const FILES: &[&str] = &[
    ".git/config",
    ".git/hooks/pre-commit",
    ".git/remotes/origin",
    ".git/branches/up",
    "lockgate.toml",
    ".vscode/tasks.json",
    ".envrc",
];

/// Paths that are not held when absent, in folders that could be moved away with them.
const DEEPER: &[&str] = &[".git/info/attributes", ".hg/hgrc", ".jj/repo/config.toml"];

#[test]
fn a_folder_with_something_trusted_in_it_stays_where_it_is() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let path = |name: &str| bench.workspace().join(name).display().to_string();
    for file in DEEPER {
        bench.file(format!("workspace/{file}"), "");
    }
    for folder in [".git/info", ".hg", ".jj/repo", ".jj"] {
        let (from, to) = (path(folder), path("elsewhere"));
        bench.controls(&[&["rename", &from, &to], &["rename", &to, &from]]);
        bench.run(Backend::isolated()).nothing_works(&[&["rename", &from, &to]]);
    }
    let script = "echo new > .git/info/exclude && echo new > .hg/other && echo new > .jj/repo/other";
    let ended = bench.run(Backend::isolated()).shell(script);
    assert!(ended.code == 0 && bench.workspace().join(".jj/repo/other").exists(), "{ended}");
    for file in DEEPER {
        let from = path(file);
        bench.run(Backend::isolated()).nothing_works(&[&["append", &from, "evil"], &["remove", &from]]);
    }
}

#[test]
fn trusted_files_are_read_only_when_present() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    for file in FILES {
        bench.file(format!("workspace/{file}"), "");
    }
    let paths: Vec<String> =
        FILES.iter().map(|file| format!("{}/{file}", bench.workspace().display())).collect();
    let hook = format!("{}/.git/hooks/post-checkout", bench.workspace().display());
    let git = format!("{}/.git", bench.workspace().display());
    let moved = format!("{git}-moved");
    for path in &paths {
        bench.controls(&[&["open-write", path]]);
    }
    let run = bench.run(Backend::isolated());
    for path in &paths {
        run.nothing_works(&[&["append", path, "[core]\n"], &["remove", path]]);
    }
    run.nothing_works(&[&["write", &hook, "#!/bin/sh\n"], &["rename", &git, &moved]]);
    for path in &paths {
        assert_eq!(std::fs::read_to_string(path).unwrap(), "", "{path} was changed");
    }
}

#[test]
fn trusted_files_cannot_be_made_when_absent() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    std::fs::create_dir_all(bench.workspace().join(".git/objects")).unwrap();
    let workspace = bench.workspace();
    let script = FILES.iter().map(|file| {
        format!(
            "mkdir -p \"$(dirname '{file}')\"; echo changed > '{file}'; ln -sf /etc/passwd '{file}.x'; true\n"
        )
    });
    let ended = bench.run(Backend::isolated()).shell(&script.collect::<String>());
    assert!(ended.code == 0, "{ended}");
    for file in FILES {
        let text = std::fs::read_to_string(workspace.join(file)).unwrap_or_default();
        assert!(!text.contains("changed"), "{file} was made inside and is on the host: {text}");
    }
}

#[test]
fn what_nothing_held_is_told_once_it_was_made() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    std::fs::create_dir(bench.workspace().join(".claude")).unwrap();
    let make =
        "mkdir .husky .devcontainer sub; echo x > .husky/pre-commit; echo x > .bashrc; echo x > sub/.zshrc";
    let ended = bench.run(Backend::isolated()).shell(make);
    let told = "meanwhile: `.devcontainer`, `.husky`, `.bashrc`. This machine would execute or trust that";
    assert!(ended.code == 0 && ended.stderr.contains(told), "{ended}");
    // What was there, is covered now, and nothing is told of it.
    let ended = bench.run(Backend::isolated()).shell("echo y > .husky/pre-commit; echo y > new");
    assert!(!ended.stderr.contains("meanwhile"), "{ended}");
    assert_eq!(std::fs::read_to_string(bench.workspace().join(".husky/pre-commit")).unwrap(), "x\n");
}

#[test]
fn checkouts_in_a_protected_folder_can_be_written_and_the_rest_of_it_cannot() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    // A package manager's link, of which there is another name.
    bench.prepare("mkdir -p .claude/worktrees/one; echo x > .claude/settings.json; echo x > kept; ln kept .claude/worktrees/one/linked");
    let line = "cd .claude; echo y > worktrees/one/made && mkdir worktrees/two && echo y > worktrees/one/linked || exit 7; \
                echo y > settings.json; echo y > made; mv worktrees moved; rm -r worktrees; true";
    let ended = bench.run(Backend::isolated()).shell(line);
    assert!(ended.code == 0, "{ended}");
    let at = |path: &str| bench.workspace().join(".claude").join(path);
    assert_eq!(std::fs::read_to_string(at("settings.json")).unwrap(), "x\n", "{ended}");
    assert!(at("worktrees").is_dir() && !at("made").exists() && !at("moved").exists(), "{ended}");
    let ended = bench.run(Backend::isolated()).shell("echo z > .claude/worktrees/three");
    assert!(ended.code == 0 && at("worktrees/three").exists(), "{ended}");
}

#[test]
fn ordinary_git_work_still_works() {
    if !ready(&[Needs::Linux, Needs::Program("/usr/bin/git")]) {
        return;
    }
    let bench = Bench::new();
    let git = |line: &str| {
        format!("git -c user.name=a -c user.email=a@example.org -c init.defaultBranch=main {line}")
    };
    let made = std::process::Command::new("sh")
        .current_dir(bench.workspace())
        .args(["-c", &git("init -q .")])
        .status()
        .unwrap();
    assert!(made.success(), "{made}");
    let line = format!(
        "echo x > file && git add file && {} && git log --oneline HEAD && git diff HEAD --stat",
        git("commit -qm first")
    );
    let ended = bench.run(Backend::isolated()).shell(&line);
    assert!(ended.code == 0 && ended.stdout.contains("first"), "{ended}");
}

#[test]
fn a_push_outside_goes_nowhere_that_a_run_has_named() {
    if !ready(&[Needs::Linux, Needs::Program("/usr/bin/git")]) {
        return;
    }
    // What names a remote where no settings do: in the older form, and in the oldest.
    let name = [
        r#"mkdir -p "$1/remotes" && printf 'URL: %s/evil\n' "$PWD" > "$1/remotes/origin""#,
        r#"mkdir -p "$1/branches" && echo "$PWD/evil" > "$1/branches/origin""#,
    ];
    for (bare, git) in [("", ".git"), ("--bare", ".")] {
        for name in name {
            let pushed = |by_run: bool| {
                let bench = Bench::new();
                bench.prepare(&format!("git init -q -b main {bare} ."));
                let plant = format!(
                    "git init -q --bare evil; printf '#!/bin/sh\n: > %s/ran\n' \"$PWD\" > evil/hooks/pre-receive; \
                     chmod +x evil/hooks/pre-receive; set {git}; {name}"
                );
                match by_run {
                    true => drop(bench.run(Backend::isolated()).shell(&plant)),
                    false => bench.prepare(&plant),
                }
                bench.prepare(
                    "printf '[safe]\n directory = *\n' > settings; export GIT_CONFIG_GLOBAL=$PWD/settings; \
                     git='git -c user.name=a -c user.email=a@example.org'; \
                     commit=$($git commit-tree -m x $($git mktree < /dev/null)); $git push origin $commit:refs/heads/x || true; \
                     test -d evil",
                );
                bench.workspace().join("ran").exists()
            };
            assert!(pushed(false), "the control did not work: {name}");
            assert!(!pushed(true), "{git}: {name}");
        }
    }
}

#[test]
fn no_bare_repository_is_left_behind() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    for there in [&[][..], &["refs"], &["refs", "objects"]] {
        let bench = Bench::new();
        for name in there {
            std::fs::create_dir(bench.workspace().join(name)).unwrap();
        }
        let line = "mkdir -p refs objects; rmdir HEAD refs objects 2>/dev/null; mkdir -p refs objects; \
                    echo ref: refs/heads/main > HEAD; echo x > refs/x; echo x > objects/x; \
                    mkdir -p x/objects x/refs; echo x > commondir; ls";
        let ended = bench.run(Backend::isolated()).shell(line);
        // With such a file git looks for the two in `x`.
        assert!(!bench.workspace().join("commondir").exists(), "{there:?}: {ended}");
        let left = ["HEAD", "objects", "refs"].map(|name| bench.workspace().join(name).exists());
        assert!(left.contains(&false), "{there:?}: {ended}");
        let writable = there.iter().filter(|name| bench.workspace().join(name).join("x").exists()).count();
        assert_eq!(writable, there.len(), "what was there is not protected: {there:?}: {ended}");
    }
    // A path that is there already is protected too, also while a run goes on.
    let bench = Bench::new();
    for name in ["refs/heads", "objects/info"] {
        std::fs::create_dir_all(bench.workspace().join(name)).unwrap();
    }
    bench.file("workspace/HEAD", "ref: refs/heads/main\n");
    bench.file("workspace/config", "[core]\n\tbare = true\n");
    let ended =
        bench.run(Backend::isolated()).shell("git -c safe.directory='*' rev-parse --is-bare-repository");
    assert!(ended.code == 0 && ended.stdout.contains("true"), "{ended}");
}

#[test]
fn what_is_a_link_is_refused_unless_it_is_opened() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    bench.file("workspace/real", "safe");
    std::os::unix::fs::symlink("real", bench.workspace().join(".envrc")).unwrap();
    let refused = bench.run(Backend::isolated()).shell("echo evil > real");
    assert!(refused.code == 125 && refused.stderr.contains("--open .envrc"), "{refused}");
    assert_eq!(std::fs::read_to_string(bench.workspace().join("real")).unwrap(), "safe");
    let opened = bench.run(Backend::isolated()).flags(["--open", ".envrc"]).shell("cat .envrc");
    assert!(opened.code == 0 && opened.stdout.contains("safe"), "{opened}");
}

#[test]
fn a_run_may_open_one_by_name() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let run = bench.run(Backend::isolated()).flags(["--open", ".vscode"]);
    let ended = run.shell("mkdir .vscode && echo x > .vscode/tasks.json; echo x > .envrc");
    assert!(bench.workspace().join(".vscode/tasks.json").exists(), "{ended}");
    assert!(!bench.workspace().join(".envrc").exists(), "{ended}");
    assert!(ended.stderr.contains("`.vscode` is not protected in this run"), "{ended}");
    let unknown = bench.run(Backend::isolated()).flags(["--open", ".vscod"]).command(["true"]);
    assert!(unknown.code == 2 && unknown.stderr.contains(".vscode"), "{unknown}");
}

#[test]
fn a_file_that_leads_to_a_repository_may_be_opened() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    bench.file("workspace/.git", "gitdir: sub/g\n");
    bench.file("workspace/sub/g/HEAD", "ref: refs/heads/main\n");
    let run = bench.run(Backend::isolated()).flags(["--open", ".git"]);
    // The covers are looked at once more after each change.
    let ended = run.shell("for at in 1 2 3; do echo x > made; rm made; sleep 0.1; done; cat .git");
    assert!(ended.code == 0 && ended.stdout.contains("gitdir"), "{ended}");
}

#[test]
fn what_git_runs_in_a_bare_repository_is_read_only() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    bench.file("workspace/HEAD", "ref: refs/heads/main\n");
    bench.file("workspace/config", "[core]\n\tbare = true\n");
    for folder in ["objects", "refs/heads"] {
        std::fs::create_dir_all(bench.workspace().join(folder)).unwrap();
    }
    let at = |name: &str| format!("{}/{name}", bench.workspace().display());
    let (config, hook, object) = (at("config"), at("hooks/pre-receive"), at("objects/control"));
    let (remotes, branches) = (at("remotes"), at("branches"));
    let script = format!(
        "echo '[core]' >> '{config}' && echo changed; mkdir -p '{}'; echo x > '{hook}' && echo hooked; \
         mkdir '{remotes}' '{branches}' && echo named; echo x > '{object}' && echo control",
        at("hooks")
    );
    let ended = bench.run(Backend::isolated()).shell(&script);
    assert_eq!(ended.stdout.trim(), "control", "{ended}");
    assert!(!std::path::Path::new(&at("hooks")).exists(), "what held the name is gone");
}

#[test]
fn a_repository_elsewhere_in_the_workspace_is_refused() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    for (leads, refused) in [("./.bare", true), ("../elsewhere", false)] {
        let bench = Bench::new();
        bench.file("workspace/.git", &format!("gitdir: {leads}\n"));
        bench.file("workspace/.bare/HEAD", "ref: refs/heads/main\n");
        bench.file("elsewhere/HEAD", "ref: refs/heads/main\n");
        let ended = bench.run(Backend::isolated()).shell("true");
        assert_eq!(ended.code == 125 && ended.stderr.contains("--open .git"), refused, "{leads}: {ended}");
    }
}

#[test]
fn a_name_in_a_folder_that_only_its_mode_closes_is_not_left_to_its_owner() {
    use std::os::unix::fs::PermissionsExt;

    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let folder = bench.workspace();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o555)).unwrap();
    let script = format!("chmod 755 '{0}'; mkdir '{0}/.vscode' && echo made", folder.display());
    let ended = bench.run(Backend::isolated()).shell(&script);
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(!ended.stdout.contains("made") && !folder.join(".vscode").exists(), "{ended}");
}

#[test]
fn another_folder_in_its_place_is_never_shown_unprotected() {
    // An engine shows a folder by its path.
    if Backend::isolated().is_engine() || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let (here, there) = (bench.workspace(), bench.outside());
    let mut ran = 0;
    for round in 0..60 {
        let ended = std::thread::scope(|scope| {
            // The owner of a folder above, like a run over it, can exchange two names at any moment of a start.
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(200 * round));
                rustix::fs::renameat_with(CWD, &here, CWD, &there, RenameFlags::EXCHANGE).unwrap();
            });
            bench.run(Backend::isolated()).shell("mkdir .git 2>/dev/null && echo made; true")
        });
        assert!(!ended.stdout.contains("made"), "after {} µs: {ended}", 200 * round);
        assert!(!here.join(".git").exists() && !there.join(".git").exists(), "{ended}");
        assert!(ended.code == 0 || ended.code == 125, "{ended}");
        ran += u32::from(ended.code == 0);
    }
    assert!(ran > 0, "none of the runs began");
}
