//! Promise: what an image says of itself as a service is honoured: its volumes are the command's own, it is asked to end by its own
//! signal, and a companion is well when the image's own command says so.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use lockgate_conformance::{Bench, Ended, Needs, files_under, is_root, ready, run};
use lockgate_needs::{made_by_setup, program};

fn here() -> bool {
    ready(&[Needs::Linux, Needs::Images])
}

/// Imports a small image whose `/data` and `/other` contain files of a user other than the command's.
fn import(bench: &Bench, config: &str) {
    import_changed(bench, config, |_| {});
}

/// Imports the same image after a change of its files.
fn import_changed(bench: &Bench, config: &str, change: impl FnOnce(&Path)) {
    let root = bench.outside().join("image");
    fs::create_dir_all(&root).unwrap();
    let busybox = made_by_setup("images/busybox.tar").unwrap();
    let tar = |arguments: &[&str]| {
        assert!(Command::new("tar").args(arguments).status().unwrap().success(), "tar {arguments:?}");
    };
    tar(&["-xpf", busybox.to_str().unwrap(), "-C", root.to_str().unwrap()]);
    for part in ["data", "other"] {
        let directory = root.join(part);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("seed"), "seed\n").unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        if is_root() {
            chown(&directory, Some(1234), Some(1234)).unwrap();
        }
    }
    std::os::unix::fs::symlink("/srv/real", root.join("linked")).unwrap();
    fs::create_dir_all(root.join("srv/real")).unwrap();
    change(&root);
    let archive = bench.outside().join("image.tar");
    tar(&["-cf", archive.to_str().unwrap(), "-C", root.to_str().unwrap(), "."]);
    let config = bench.file("outside/config.json", config);
    let mut command = Command::new(program("lockgate").unwrap());
    command.args(["image", "import", "--name", "small", "--config"]).arg(config).arg(archive);
    let taken = run(command.env("XDG_DATA_HOME", bench.outside().join("images")));
    assert!(taken.code == 0, "{taken}");
}

/// Runs a line of shell in the image.
fn in_image(bench: &Bench, flags: &[&str], line: &str) -> Ended {
    run(of_image(bench, flags).args(["--", "/bin/sh", "-c", line]))
}

/// Runs the image's own command.
fn own_command(bench: &Bench, flags: &[&str]) -> Ended {
    run(&mut of_image(bench, flags))
}

fn of_image(bench: &Bench, flags: &[&str]) -> Command {
    let mut command = Command::new(program("lockgate").unwrap());
    command.args(["run", "--backend", "container", "--image", "small"]).args(flags);
    command.current_dir(bench.workspace()).stdin(Stdio::null());
    command.env("XDG_STATE_HOME", bench.state()).env("XDG_DATA_HOME", bench.outside().join("images"));
    command
}

#[test]
fn a_directory_that_is_not_there_is_told_with_what_names_another() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    import(&bench, r#"{"WorkingDir":"/data/seed","Cmd":["/bin/sh","-c","pwd"]}"#);
    let flags: [(&str, &[&str]); 2] = [("/data/seed", &[]), ("/nope/deep", &["--workdir", "/nope/deep"])];
    for (directory, flags) in flags {
        let refused = own_command(&bench, flags);
        let told = format!("the working directory `{directory}`");
        assert!(refused.code == 125 && refused.stderr.contains(&told), "{refused}");
        assert!(refused.stderr.contains("--workdir DIR"), "{refused}");
    }
    let control = own_command(&bench, &["--workdir", "/srv"]);
    assert!(control.code == 0 && control.stdout == "/srv\n", "{control}");
}

#[test]
fn who_is_told_of_an_image_without_a_command_is_told_where_to_say_one() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    import(&bench, "{}");
    let refused = own_command(&bench, &[]);
    assert!(refused.code == 2 && refused.stderr.contains("--image NAME -- CMD"), "{refused}");
    let policy = "[[companion]]\nname = \"web\"\nimage = \"small\"\nports = [8080]\n";
    let file = bench.file("outside/policy.toml", policy);
    let refused = in_image(&bench, &["--policy", file.to_str().unwrap()], "true");
    let told = ["companion `web`", "`command = […]` in that [[companion]]"];
    assert!(refused.code == 125 && told.iter().all(|it| refused.stderr.contains(it)), "{refused}");
    assert!(!refused.stderr.contains("-- CMD"), "{refused}");
}

#[test]
fn its_home_is_where_what_enters_for_the_command_lies() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    import(&bench, r#"{"Env":["HOME=/root","OTHER=kept"],"Cmd":["/bin/true"]}"#);
    let line = "echo $HOME $OTHER; touch $HOME/mine && echo written";
    let seen = in_image(&bench, &[], line);
    assert_eq!(seen.stdout, "/home/agent kept\nwritten\n", "{seen}");
    let named = in_image(&bench, &["--env", "HOME=/tmp"], line);
    assert_eq!(named.stdout, "/tmp kept\nwritten\n", "{named}");
}

#[test]
fn a_volume_is_the_commands_own() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    import(
        &bench,
        r#"{"Volumes":{"/data":{},"/made/here":{},"/linked/deep":{},"/run/app/db":{},"/tmp":{}}}"#,
    );
    let line = "cat /data/seed; echo x > /data/new && echo y > /made/here/f && echo z > /linked/deep/f && echo w > /run/app/db/f; \
        cat /data/new /made/here/f /srv/real/deep/f; stat -c %u /data /made/here /run/app/db; id -u";
    let ended = in_image(&bench, &[], line);
    let told: Vec<&str> = ended.stdout.split_whitespace().collect();
    assert!(ended.code == 0 && told.len() == 8, "{ended}");
    assert_eq!(told[..4], ["seed", "x", "y", "z"], "{ended}");
    assert!(told[4..7].iter().all(|owner| *owner == told[7]), "{ended}");
    let ended = in_image(&bench, &[], "stat -c %a /tmp");
    assert!(ended.stdout == "1777\n", "{ended}");
    // The next run begins with the image's contents.
    let ended = in_image(&bench, &[], "cat /data/seed; test ! -e /data/new");
    assert!(ended.code == 0 && ended.stdout == "seed\n", "{ended}");
    if is_root() {
        let control = in_image(&bench, &[], "echo x > /other/new");
        assert!(control.code != 0, "what is no volume is not the command's: {control}");
    }
}

#[test]
fn a_volume_cannot_lead_out_of_the_image() {
    if !here() {
        return;
    }
    for volume in ["data", "/", "/a/../b"] {
        let bench = Bench::new();
        let config = bench.file("outside/config.json", &format!("{{\"Volumes\":{{\"{volume}\":{{}}}}}}"));
        let mut command = Command::new(program("lockgate").unwrap());
        command.args(["image", "import", "--name", "x", "--config"]).arg(config).arg(bench.outside());
        let refused = run(command.env("XDG_DATA_HOME", bench.outside().join("images")));
        assert!(refused.code != 0 && refused.stderr.contains("volume"), "{volume}: {refused}");
    }
}

#[test]
fn it_is_asked_to_end_by_its_own_signal() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    import(&bench, r#"{"StopSignal":"SIGUSR1"}"#);
    let line = "trap 'echo told; exit 7' USR1; trap 'echo other; exit 8' TERM; while :; do sleep 0.1; done";
    let ended = in_image(&bench, &["--timeout", "1s"], line);
    assert!(ended.code == 124 && ended.stdout == "told\n", "{ended}");
}

#[test]
fn a_companion_is_well_and_ends_as_its_image_says() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    let config = r#"{"StopSignal":"SIGUSR1","Volumes":{"/data":{}},"Healthcheck":{"Test":["CMD-SHELL","test -e /data/up"]}}"#;
    import(&bench, config);
    // The port is open long before the companion is healthy. The request it makes when told to end is in its record.
    let script = "trap '/bin/wget -qO- http://told.example/ ; exit 0' USR1; /bin/busybox httpd -p 8080 -h /data; \
        sleep 1; echo well > /data/up; while :; do sleep 0.1; done";
    let policy = format!(
        "[[companion]]\nname = \"web\"\nimage = \"small\"\nports = [8080]\ncommand = [\"/bin/sh\", \"-c\", {script:?}]\n"
    );
    let file = bench.file("outside/policy.toml", &policy);
    let ended = in_image(&bench, &["--policy", file.to_str().unwrap()], "/bin/wget -qO- http://web:8080/up");
    assert!(ended.code == 0 && ended.stdout == "well\n", "{ended}");
    let records =
        files_under(&bench.state()).into_iter().filter(|path| path.to_string_lossy().ends_with(".web.jsonl"));
    let told = records.map(|path| fs::read_to_string(bench.state().join(path)).unwrap()).collect::<String>();
    assert!(told.contains("told.example"), "it was not asked to end: {told}");
    // A companion that never becomes healthy by the image's own check ends the run.
    let never = policy.replace("echo well > /data/up;", "") + "health = { within = \"3s\" }\n";
    let file = bench.file("outside/never.toml", &never);
    let ended = in_image(&bench, &["--policy", file.to_str().unwrap()], "true");
    assert!(ended.code == 125 && ended.stderr.contains("its health command does not exit with 0"), "{ended}");
}

/// Gives the image a user `app` in two further groups, and directories that nobody but root may write to.
fn with_user(root: &Path) {
    for part in ["tmp", "var/tmp", "home/app", "etc"] {
        let directory = root.join(part);
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        if is_root() {
            chown(&directory, Some(1234), Some(1234)).unwrap();
        }
    }
    fs::write(root.join("etc/passwd"), "app:x:4242:4343::/home/app:/bin/sh\n").unwrap();
    fs::write(
        root.join("etc/group"),
        "app:x:4343:\nextra:x:3456:app\nmore:x:50:other,app\nless:x:51:other\n",
    )
    .unwrap();
}

#[test]
fn the_usual_places_can_be_written_and_the_working_directory_is_there() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    let line = "pwd; touch x; for d in /tmp /var/tmp $HOME; do touch $d/x; done; stat -c %a /tmp; echo $HOME";
    let config = format!(r#"{{"User":"app","WorkingDir":"/not/there","Cmd":["/bin/sh","-ec","{line}"]}}"#);
    import_changed(&bench, &config, with_user);
    let ended = own_command(&bench, &[]);
    assert!(ended.code == 0 && ended.stdout == "/not/there\n1777\n/home/app\n", "{ended}");
}

#[test]
fn the_user_has_the_groups_that_the_image_gives_it() {
    if !here() || !ready(&[Needs::Root]) {
        return;
    }
    let bench = Bench::new();
    import_changed(
        &bench,
        r#"{"User":"app","Cmd":["/bin/sh","-c","id -G; grep Groups /proc/self/status"]}"#,
        with_user,
    );
    let ended = own_command(&bench, &[]);
    assert!(ended.code == 0 && ended.stdout.starts_with("4343 50 3456\n"), "{ended}");
    let bench = Bench::new();
    import_changed(&bench, r#"{"User":"app:less","Cmd":["/bin/sh","-c","id -G"]}"#, with_user);
    let ended = own_command(&bench, &[]);
    assert!(ended.code == 0 && ended.stdout == "51\n", "{ended}");
}
