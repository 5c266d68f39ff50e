//! Every promise without root: where the tests run as root, this runs the programs that prove them again as another user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use lockgate_conformance::{Needs, ready};
use lockgate_needs::{REQUIRE, made_by_setup, program};

/// The account that `cargo xtask setup` makes, or one that every system has.
const ACCOUNTS: [&str; 2] = ["lockgate-test", "nobody"];

#[test]
fn the_promises_of_linux_hold_without_root() {
    hold_without_root("promises");
}

#[test]
fn the_promises_of_container_hold_without_root() {
    hold_without_root("container");
}

/// Podman's service and its runs, by one account. Left out are what is refused there by name, limits that need a delegated control group,
/// and the small internet, in which nobody has subordinate ids.
#[test]
fn the_promises_of_podman_hold_without_root() {
    hold_without_root("podman");
}

/// Docker and its runs, by one account: the command is root of a namespace that maps it to the account. Left out are limits, the small
/// internet, declared ports, the pool, and many runs at once, whose processes all count as one run's.
#[test]
fn the_promises_of_docker_hold_without_root() {
    hold_without_root("docker");
}

fn hold_without_root(promises: &str) {
    if !ready(&[Needs::Linux, Needs::Root]) {
        return;
    }
    let account = ACCOUNTS.iter().find_map(|name| known(name)).expect("an unprivileged account");
    let folder = tempfile::Builder::new().prefix("lockgate-rootless-").tempdir_in("/var/tmp").unwrap();
    readable(folder.path());
    let place = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        fs::copy(from, &to).unwrap();
        readable(&to);
        to
    };
    let own = std::env::current_exe().unwrap();
    let beside = built_beside(&own, promises);
    let tests = place(&beside, beside.file_name().unwrap().to_str().unwrap());
    let programs = ["lockgate", "probe", "world"].map(|name| place(&program(name).unwrap(), name));
    // Found from where the tests are, as always.
    if let Ok(debian) = made_by_setup("images/debian.tar") {
        fs::create_dir(folder.path().join("images")).unwrap();
        readable(&folder.path().join("images"));
        place(&debian, "images/debian.tar");
    }
    let (user, group) = account.split_once(':').expect("two numbers");
    let engine = match promises {
        "docker" => Some("--docker-of"),
        "podman" => Some("--podman-of"),
        _ => None,
    };
    let at_engine = engine.is_some();
    let start = |share: &[String]| {
        let mut command = Command::new(if at_engine { program("engine").unwrap() } else { "setpriv".into() });
        if let Some(of) = engine {
            // All tests of a share have one engine, while otherwise each has its own: what they count there must be theirs.
            let archive = folder.path().join("images/debian.tar");
            command.args([of, &account, "--archive"]).arg(archive).args(["--", "setpriv"]);
        }
        command.args(["--reuid", user, "--regid", group, "--clear-groups", "--"]);
        if at_engine {
            command.args(["/bin/sh", "-c", r#"LOCKGATE_TEST_ENGINE=$DOCKER_HOST exec "$0" "$@""#]);
        }
        command
            .arg(&tests)
            .args(["--test-threads", if at_engine { "1" } else { "2" }, "--exact"])
            .args(share);
        command.current_dir("/var/tmp").stdin(Stdio::null());
        command.env("HOME", "/nonexistent").env_remove("XDG_RUNTIME_DIR").env_remove(REQUIRE);
        for (variable, path) in
            ["LOCKGATE_BIN", "LOCKGATE_PROBE_BIN", "LOCKGATE_WORLD_BIN"].iter().zip(&programs)
        {
            command.env(variable, path);
        }
        command.output().unwrap()
    };
    let all = names_of(&tests);
    // One test at a time at an engine, and two engines; but one for Docker, where all processes of an account count as one run's.
    let many = if promises == "podman" { 2 } else { 1 };
    let share = |first| all.iter().skip(first).step_by(many).cloned().collect();
    let shares: Vec<Vec<String>> = (0..many).map(share).collect();
    let ended: Vec<Output> = std::thread::scope(|scope| {
        let all: Vec<_> = shares.iter().map(|share| scope.spawn(|| start(share))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let told: String = ended.iter().map(|it| String::from_utf8_lossy(&it.stdout)).collect();
    let errors: String = ended.iter().map(|it| String::from_utf8_lossy(&it.stderr)).collect();
    assert!(ended.iter().all(|it| it.status.success()), "{}\n{errors}", without_passed(&told));
    // Tests that need root are skipped there; the others are not.
    let passed = told.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed > 50 && passed == all.len(), "only {passed} tests of {} were run: {told}", all.len());
}

/// Removes the lines of passed tests: a report that is cut short must not end before the failed ones.
fn without_passed(told: &str) -> String {
    let passed = |line: &&str| !(line.starts_with("test ") && line.ends_with("... ok"));
    told.lines().filter(passed).collect::<Vec<_>>().join("\n")
}

/// Returns the names of a program's tests, without those of tables.
fn names_of(tests: &Path) -> Vec<String> {
    let listed =
        Command::new(tests).args(["--list", "--format", "terse", "--skip", "table::"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Returns the latest test program of that name in the same directory.
fn built_beside(own: &Path, name: &str) -> PathBuf {
    let entries = fs::read_dir(own.parent().unwrap()).unwrap().flatten().map(|entry| entry.path());
    let named = entries.filter(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        file.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')) && path.extension().is_none()
    });
    named
        .max_by_key(|path| fs::metadata(path).and_then(|m| m.modified()).ok())
        .expect("it was built with this one")
}

fn readable(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the user and group of an account, if it exists.
fn known(account: &str) -> Option<String> {
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = accounts.lines().find(|line| line.split(':').next() == Some(account))?;
    let fields: Vec<_> = line.split(':').collect();
    Some(format!("{}:{}", fields.get(2)?, fields.get(3)?))
}
