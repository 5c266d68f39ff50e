//! Promise: what a run writes in a workspace that is kept apart reaches it by `lockgate apply` alone, and not by half.
//! The patch is judged by git itself; what it takes a workspace to must be what `apply` takes it to.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use lockgate_conformance::{
    Backend, Bench, Came, Ended, Needs, files_under, is_root, objects, promised, ready, while_flipping,
    within,
};
use lockgate_needs::program;

/// The user who works here when root has an engine make the runs.
const CALLER: u32 = 1000;

/// Text, binary files, links, modes, names, directories: before the run, and its changes to them.
const BEFORE: &str = r#"
printf 'one\ntwo\nthree\n' > text; printf 'no newline' > end; printf 'a\0b' > binary; printf 'hi\n' > script
mkdir -p deep/er gone filled; echo x > deep/er/file; echo a > gone/a; echo b > gone/b; echo c > filled/c
ln -s text link; echo moved > 'old name'; echo same > touched; printf 'z\0z' > shrunk"#;
const CHANGES: &str = r#"
echo four >> text; printf yes > end; printf 'c\0d\0' > binary; chmod 755 script; rm -r deep; echo file > deep
rm -r gone; rm -r filled; mkdir filled; echo new > filled/new; ln -sf end link; mv 'old name' 'new "näme"'
touch touched; : > shrunk; mkdir -p more/and; echo m > more/and/more; printf 'b\0' > 'bin 2'; echo q > "$(printf 'tab\there')""#;

/// Lists every path of a folder with its kind, without directories, which git does not track.
fn tree(folder: &Path) -> String {
    let list = "find . -name .git -prune -o \\( -type f -o -type l \\) -printf '%p %m %y %l ' -exec sh -c \
                '[ -L \"$1\" ] || sha256sum < \"$1\"; echo' _ {} \\; | sort";
    let ended = lockgate_conformance::run(Command::new("sh").args(["-c", list]).current_dir(folder));
    ended.stdout
}

fn overlay(bench: &Bench, line: &str) -> Ended {
    bench.run(Backend::isolated()).flags(["--workspace-mode", "overlay"]).shell(line)
}

#[test]
fn what_is_written_reaches_the_workspace_by_apply_alone() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    std::fs::remove_file(bench.probe()).unwrap();
    bench.prepare(&format!("umask 022; {BEFORE}"));
    let before = tree(&bench.workspace());
    let ended = overlay(&bench, &format!("umask 022; {CHANGES}\nmkfifo pipe; cat text"));
    assert!(ended.code == 0 && ended.stdout.ends_with("three\nfour\n"), "{ended}");
    assert_eq!(tree(&bench.workspace()), before, "nothing of it is there yet");

    // The same workspace, patched by git.
    let twin = bench.outside().join("twin");
    let patch = bench.lockgate(&["diff"]);
    assert!(patch.code == 0 && patch.stderr.contains("pipe: it is a pipe"), "{patch}");
    std::fs::write(bench.outside().join("patch"), &patch.stdout).unwrap();
    bench.prepare(&format!(
        "cp -a . {0}; cd {0}; git init -q .; git apply ../patch; rm -r .git",
        twin.display()
    ));
    assert!(patch.stdout.contains("rename from old name"), "{patch}");

    let applied = bench.lockgate(&["apply"]);
    assert!(applied.code == 0, "{applied}");
    let after = tree(&bench.workspace());
    assert_eq!(after, tree(&twin), "{patch}");
    assert_ne!(after, before);
    let owner = |path: &Path| std::os::unix::fs::MetadataExt::uid(&std::fs::symlink_metadata(path).unwrap());
    assert_eq!(owner(&bench.workspace().join("deep")), owner(&bench.workspace()));
    assert!(bench.lockgate(&["discard"]).code == 0);
    assert!(bench.lockgate(&["diff"]).stderr.contains("no run's changes are kept apart"));
}

#[test]
fn what_a_run_removed_and_moved_is_taken_over_whatever_else_was_done_there() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    bench.prepare("mkdir -p dist/assets; echo old > dist/assets/old.js; echo i > dist/index; echo m > moved; echo e > e");
    let line =
        "rm -rf dist; mkdir -p dist/assets; echo n > dist/assets/new.js; mv moved to; mv e f; echo 1 >> f";
    assert!(overlay(&bench, line).code == 0);
    // Each run's changes are its own, also where another's in the same folder were taken over before.
    assert!(overlay(&bench, "echo 2 > second").code == 0);
    assert!(bench.lockgate(&["apply"]).code == 0);
    let stat = bench.lockgate(&["diff", "--stat"]);
    for expected in ["D dist/assets/old.js", "D dist/index", "A dist/assets/new.js", "D moved", "A to"] {
        assert!(stat.stdout.lines().any(|line| line == expected), "{expected}: {stat}");
    }
    let conflicts: Vec<_> = stat.stderr.lines().filter(|line| line.contains("conflict")).collect();
    // At a file that was written as well it cannot be known.
    assert!(conflicts.len() == 1 && conflicts[0].contains("conflict: f: it was removed"), "{stat}");
    let applied = bench.lockgate(&["apply", "--path", "dist", "--path", "moved", "--path", "to"]);
    assert!(applied.code == 0, "{applied}");
    let there = |path: &str| bench.workspace().join(path).exists();
    assert!(there("dist/assets/new.js") && there("to"), "{applied}");
    assert!(!there("dist/assets/old.js") && !there("dist/index") && !there("moved"), "{applied}");
}

#[test]
fn a_run_that_writes_in_its_workspace_itself_keeps_nothing_apart() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    // Nothing can be read below it.
    let changes = bench.file("state/lockgate/changes", "");
    std::fs::set_permissions(changes, std::fs::Permissions::from_mode(0o644)).unwrap();
    let ended = bench.run(Backend::isolated()).shell("echo x > made");
    assert!(ended.code == 0 && !ended.stderr.contains("kept apart"), "{ended}");
    assert!(bench.workspace().join("made").exists());
}

#[test]
fn what_changed_underneath_is_not_taken_over() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    bench.prepare("echo 1 > changed; echo 2 > removed; echo 3 > gone; echo 4 > fine");
    let ended =
        overlay(&bench, "echo a >> changed; echo b >> removed; rm gone; echo c >> fine; echo d > new");
    assert!(ended.code == 0, "{ended}");
    bench.prepare("echo mine > changed; rm removed; echo mine > gone; echo mine > new");
    let refused = bench.lockgate(&["apply"]);
    assert!(refused.code == 1, "{refused}");
    for path in ["changed", "removed", "gone", "new"] {
        assert!(refused.stderr.contains(&format!("conflict: {path}: it was ")), "{path}: {refused}");
    }
    let read = |name: &str| std::fs::read_to_string(bench.workspace().join(name)).unwrap();
    assert_eq!((read("changed"), read("fine")), ("mine\n".into(), "4\n".into()));
    let some = bench.lockgate(&["apply", "--path", "fine"]);
    assert!(some.code == 0 && read("fine") == "4\nc\n", "{some}");
    assert!(!bench.workspace().join("removed").exists());
}

#[test]
fn what_ends_half_way_is_finished_by_the_next_apply() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let apply = program("lockgate").expect("`ready` was asked first");
    for (how, code, told) in [
        // The largest file that may be written: such as a disk that is full.
        ("ulimit -f 100; exec \"$1\" apply", 125, "take over sub/big: "),
        // The signal waits for the first who hears it.
        (
            "exec env --block-signal=INT sh -c 'kill -INT $$; exec \"$1\" apply' - \"$1\"",
            130,
            "signal 2 (SIGINT) asked for the end",
        ),
    ] {
        let bench = Bench::new();
        bench.prepare("mkdir sub; echo precious > sub/e; echo gone > sub/gone; echo old > sub/old");
        let moved = "mv sub/e sub/e2; mv sub/old sub/new; echo more >> sub/new; rm sub/gone; echo it > sub/a";
        let big = "head -c 3000000 /dev/zero | tr '\\0' x > sub/big";
        let ended = overlay(&bench, &format!("{moved}; {big}"));
        assert!(ended.code == 0, "{ended}");
        let mut command = Command::new("sh");
        command.args(["-c", how, "-"]).arg(&apply).current_dir(bench.workspace());
        let ended = lockgate_conformance::run(command.env("XDG_STATE_HOME", bench.state()));
        assert!(ended.code == code && ended.stderr.contains(told), "{ended}");
        let files = bench.workspace().join("sub");
        assert_eq!(std::fs::read_to_string(files.join("e")).unwrap(), "precious\n", "{how}");
        assert!(!tree(&bench.workspace()).contains(".lockgate-apply-"), "{how}");
        let applied = bench.lockgate(&["apply"]);
        assert!(applied.code == 0, "{how}: {applied}");
        let mut names: Vec<_> =
            std::fs::read_dir(&files).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a", "big", "e2", "new"], "{how}");
    }
}

#[test]
fn a_run_is_not_forgotten_with_what_is_kept_of_it() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let ended = overlay(&bench, "echo new > new");
    assert!(ended.code == 0, "{ended}");
    let refused = bench.lockgate(&["runs", "rm", "latest"]);
    assert!(refused.code == 2 && refused.stderr.contains("--force"), "{refused}");
    assert!(bench.lockgate(&["diff"]).stdout.contains("new"));
    let record =
        std::fs::read_dir(bench.state().join("lockgate/runs")).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&record).unwrap();
    std::fs::write(&record, "{").unwrap();
    let run = record.file_stem().unwrap().to_str().unwrap();
    for command in ["diff", "apply", "discard"] {
        let refused = bench.lockgate(&[command]);
        assert!(
            refused.code == 1 && refused.stderr.contains(&format!("lockgate discard {run}")),
            "{refused}"
        );
    }
    std::fs::write(&record, whole).unwrap();
    let removed = bench.lockgate(&["runs", "rm", "--force", "latest"]);
    assert!(removed.code == 0, "{removed}");
    assert!(bench.lockgate(&["diff"]).stderr.contains("no run's changes are kept apart"));
}

#[test]
fn a_look_at_the_repository_is_no_reason_to_refuse_the_rest() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    // At an engine the folder no longer belongs to root by then.
    let git = "git -c user.name=a -c user.email=a@example.org -c safe.directory='*'";
    bench.prepare(&format!("{git} init -q . && echo 1 > a && {git} add a && {git} commit -qm one"));
    let ended = overlay(&bench, "echo 2 >> a; touch .git/index; git status --short");
    assert!(ended.code == 0, "{ended}");
    bench.prepare(&format!("echo b > b; {git} add b"));
    let applied = bench.lockgate(&["apply"]);
    assert!(applied.code == 0 && applied.stderr.contains(".git/index"), "{applied}");
    assert_eq!(std::fs::read_to_string(bench.workspace().join("a")).unwrap(), "1\n2\n");
}

#[test]
fn what_this_machine_would_execute_is_taken_only_by_name() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    bench.prepare("git init -q .; echo old > .envrc");
    let line = "echo new > .envrc; mkdir -p .git/hooks .vscode sub/.git/hooks; echo x > .git/hooks/pre-commit; \
                echo x > .vscode/tasks.json; echo x > sub/.git/hooks/y; echo x > lockgate.toml; echo x > plain; \
                ln -s /etc outside";
    assert!(overlay(&bench, line).code == 0);
    // Nor does git take it from the patch.
    let patch = bench.lockgate(&["diff"]);
    assert!(patch.stdout.contains("\n# +++ b/.vscode/tasks.json\n"), "{patch}");
    assert!(
        patch.stderr.contains("only comments in the patch") && patch.stderr.contains(".vscode"),
        "{patch}"
    );
    let patch = bench.lockgate(&["diff", "--path", "./.vscode"]);
    assert!(patch.stdout.contains("\n+++ b/.vscode/tasks.json\n"), "{patch}");
    assert!(!patch.stdout.contains("plain") && !patch.stderr.contains("only comments"), "{patch}");
    let applied = bench.lockgate(&["apply"]);
    assert!(applied.code == 0, "{applied}");
    let there = |path: &str| bench.workspace().join(path).exists();
    assert!(there("plain"));
    for path in [".git/hooks/pre-commit", ".vscode", "sub/.git", "lockgate.toml"] {
        assert!(!there(path), "{path} was taken over: {applied}");
        assert!(applied.stderr.contains(&format!("left out: {path}")), "{path}: {applied}");
    }
    let line = "left out: .envrc: this machine would execute or trust it; `--path PATH` takes it over";
    assert!(applied.stderr.contains(line), "{applied}");
    assert_eq!(std::fs::read_to_string(bench.workspace().join(".envrc")).unwrap(), "old\n");
    let absolute = bench.workspace().join(".envrc").display().to_string();
    assert!(bench.lockgate(&["apply", "--path", &absolute, "--path", ".vscode"]).code == 0);
    assert_eq!(std::fs::read_to_string(bench.workspace().join(".envrc")).unwrap(), "new\n");
    assert!(there(".vscode/tasks.json"));
}

#[test]
fn what_this_machine_would_execute_is_not_taken_while_a_command_can_write_beside_it() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    assert!(overlay(&bench, "echo new > .envrc; echo x > plain; echo y > other").code == 0);
    let record = bench.records(&["runs", "show", "latest", "--json"]);
    let kept = record[0]["id"].as_str().unwrap();
    let apply = |path: &str| bench.lockgate(&["apply", kept, "--path", path]);
    let beside = bench.run(Backend::isolated()).start(["/bin/sh", "-c", "echo > begun; sleep 60"]);
    assert!(within(Duration::from_secs(20), || bench.workspace().join("begun").exists()), "it did not begin");
    let refused = apply(".envrc");
    assert!(refused.code == 1 && refused.stderr.contains("is going on and can write in"), "{refused}");
    // Accepted: what a command could have written itself, and everything where no command can write.
    assert!(apply("plain").code == 0);
    beside.signal("TERM");
    let _ = beside.wait();
    let reader = bench.run(Backend::isolated()).flags(["--workspace-mode", "ro"]);
    let reader = reader.start(["/bin/sh", "-c", "sleep 60"]);
    assert!(apply("other").code == 0);
    let applied = apply(".envrc");
    assert!(applied.code == 0, "{applied}");
    assert_eq!(std::fs::read_to_string(bench.workspace().join(".envrc")).unwrap(), "new\n");
    reader.signal("TERM");
    let _ = reader.wait();
}

#[test]
fn a_link_that_was_written_leads_apply_nowhere() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let canary = bench.file("outside/kept/canary", "kept");
    let kept = canary.parent().unwrap().to_str().unwrap().to_owned();
    bench.prepare("mkdir dir; echo x > dir/file");
    // Here the directory becomes a link after the run has written into it.
    assert!(overlay(&bench, "echo y > dir/canary; echo z >> dir/file").code == 0);
    bench.prepare(&format!("rm -r dir; ln -s {kept} dir"));
    let applied = bench.lockgate(&["apply"]);
    assert!(applied.code != 0, "{applied}");
    assert_eq!(std::fs::read_to_string(&canary).unwrap(), "kept");
    assert_eq!(std::fs::read_dir(canary.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_killed_run_leaves_what_it_wrote() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let run = bench.run(Backend::isolated()).flags(["--workspace-mode", "overlay"]);
    let live = run.start(["/bin/sh", "-c", "echo kept > file; sleep 60"]);
    let kept = || bench.lockgate(&["diff"]).stdout.contains("+kept");
    let begun = Instant::now();
    while !kept() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the run wrote nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The changes of a run that still writes cannot be decided on.
    for decision in ["apply", "discard"] {
        let refused = bench.lockgate(&[decision]);
        assert!(refused.code != 0 && refused.stderr.contains("it is going on"), "{decision}: {refused}");
    }
    live.signal("KILL");
    let _ = live.wait();
    assert!(!bench.workspace().join("file").exists());
    assert!(kept());
    let applied = bench.lockgate(&["apply"]);
    assert!(applied.code == 0 && bench.workspace().join("file").exists(), "{applied}");
    if Backend::isolated().is_engine() {
        assert!(
            within(Backend::patience(5), || objects("-overlay-").is_empty()),
            "{:?}",
            objects("-overlay-")
        );
    }
}

#[test]
fn a_folder_that_flips_shows_nothing_from_elsewhere() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    bench.file("outside/other/which", "other");
    let (folder, link) = (bench.outside().join("folder"), bench.outside().join("link"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("which"), "own").unwrap();
    if is_root() {
        chown(&folder, Some(CALLER), Some(CALLER)).unwrap();
    }
    symlink(bench.outside().join("other"), &link).unwrap();
    let run = bench.run(Backend::isolated()).in_folder(&folder).flags(["--workspace-mode", "overlay"]);
    while_flipping(&[[&folder, &link]], || {
        let ended = run.shell(&format!("cat {}/which; echo", folder.display()));
        assert!(!ended.stdout.contains("other"), "{ended}");
        match (ended.stdout.contains("own"), ended.code) {
            (true, _) => Came::In,
            (false, 125) => Came::Refused,
            (false, _) => Came::Neither,
        }
    });
}

#[test]
fn what_is_shown_in_it_is_no_part_of_it() {
    if !promised("overlay_workspace") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let shown = bench.file("outside/shown/there", "there").parent().unwrap().to_path_buf();
    if is_root() {
        chown(&shown, Some(CALLER), None).unwrap();
    }
    bench.prepare("mkdir -p old/way; echo 1 > old/kept");
    for place in ["new/way/place", "old/way", "old/place"] {
        let target = bench.workspace().join(place);
        let mount = format!("{}:{}:ro", shown.display(), target.display());
        let run = bench.run(Backend::isolated()).flags(["--workspace-mode", "overlay", "--mount", &mount]);
        let ended = run.shell(&format!("cat {place}/there old/kept; echo x > made"));
        assert!(ended.code == 0 && ended.stdout.starts_with("there1"), "{place}: {ended}");
        let stat = bench.lockgate(&["diff", "--stat"]);
        assert!(stat.stdout.contains("A made") && !stat.stdout.contains("there"), "{place}: {stat}");
        assert!(bench.lockgate(&["discard"]).code == 0, "{place}");
    }
}

#[test]
fn at_dockers_engine_records_may_be_on_another_file_system() {
    if Backend::isolated() != Backend::Docker || !ready(&[Needs::Engine]) {
        return;
    }
    let bench = Bench::new();
    // The tests' Podman service has a folder of its own there.
    let state = tempfile::tempdir_in("/dev/shm").unwrap();
    bench.prepare("echo 1 > kept");
    let run = bench.run(Backend::isolated()).caller("XDG_STATE_HOME", state.path().to_str().unwrap());
    let ended = run.flags(["--workspace-mode", "overlay"]).shell("cat kept; echo x > made");
    assert!(ended.code == 0 && ended.stdout == "1\n", "{ended}");
    let written = files_under(state.path());
    assert!(written.iter().any(|path| path.ends_with("written/made")), "{written:?}");
    assert!(!bench.workspace().join("made").exists());
}

#[test]
fn at_an_engine_who_is_not_root_decides_without_it() {
    if !Backend::isolated().is_engine() || !ready(&[Needs::Engine, Needs::Root]) {
        return;
    }
    let bench = Bench::new();
    let environment = bench.environment();
    let host = environment.iter().find(|(name, _)| *name == "DOCKER_HOST").unwrap().1.clone();
    let socket = host.to_str().unwrap().trim_start_matches("unix://");
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    bench.prepare("rm probe; echo 1 > changed; mkdir gone filled; echo 2 > gone/a; echo 3 > filled/b");
    let binary = bench.outside().join("lockgate");
    std::fs::copy(program("lockgate").unwrap(), &binary).unwrap();
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
    let own = |path: &Path| chown(path, Some(CALLER), Some(CALLER)).unwrap();
    let files = files_under(&bench.workspace()).into_iter().map(|path| bench.workspace().join(path));
    files.chain([bench.workspace(), bench.state()]).for_each(|path| own(&path));
    let lockgate = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "--"]).arg(&binary).args(words);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
        command.env("DOCKER_HOST", &host).env("XDG_STATE_HOME", bench.state());
        lockgate_conformance::run(command.current_dir(bench.workspace()))
    };
    let line = "echo 4 >> changed; rm -r gone filled; mkdir filled shut; echo 5 > filled/c; chmod 0 shut";
    let words = ["run", "--backend", "docker", "--image", "debian", "--workspace-mode", "overlay", "--"];
    let again = |line| lockgate(&[&words[..], &["/bin/sh", "-c", line]].concat());
    assert!(again(line).code == 0);
    let stat = lockgate(&["diff", "--stat"]);
    for expected in ["M changed", "D gone/a", "D filled/b", "A filled/c", "D gone"] {
        assert!(stat.stdout.lines().any(|line| line == expected), "{expected}: {stat}");
    }
    assert!(lockgate(&["apply"]).code == 0 && lockgate(&["discard"]).code == 0);
    assert_eq!(std::fs::read_to_string(bench.workspace().join("changed")).unwrap(), "1\n4\n");
    assert!(bench.workspace().join("filled/c").exists() && !bench.workspace().join("gone").exists());
    // The next run uses what the kernel left of that run, and it does not grow.
    let changes = bench.state().join("lockgate/changes");
    let left = |folder: &Path| std::fs::read_dir(folder).unwrap().count();
    for _ in 0..2 {
        assert!(again("rm changed").code == 0 && lockgate(&["discard"]).code == 0);
        assert_eq!((left(&changes), left(&changes.join(".parked"))), (1, 1));
    }
}

#[test]
fn at_an_engine_a_path_that_would_mean_something_else_is_refused() {
    if !Backend::isolated().is_engine() || !ready(&[Needs::Engine]) {
        return;
    }
    let bench = Bench::new();
    bench.file("outside/kept,upperdir=/etc/file", "");
    for (path, is_refused) in [("kept,upperdir=", true), ("a b", false), ("c'd", false), ("e:f", true)] {
        let folder = bench.outside().join(path);
        std::fs::create_dir_all(&folder).unwrap();
        if is_root() {
            chown(&folder, Some(CALLER), Some(CALLER)).unwrap();
        }
        let run = bench.run(Backend::isolated()).in_folder(&folder).flags(["--workspace-mode", "overlay"]);
        let ended = run.shell("echo x > made");
        assert_eq!(ended.code == 125, is_refused, "{path}: {ended}");
        assert!(!folder.join("made").exists(), "{path}: {ended}");
        assert!(!is_refused || ended.stderr.contains(&format!("{path}` cannot be said")), "{path}: {ended}");
    }
}
