//! Promise: a companion at an engine is whom its image names, by number or by name, and never root; so is a command whose workspace
//! is nobody's to write. S3.13.

use std::process::{Command, Stdio};

use lockgate_conformance::{
    Backend, Bench, Ended, Needs, is_root, make_image, objects, promised, ready, run,
};
use lockgate_needs::program;

/// A PostgreSQL as its packager made it: its user must have a name and own its data.
const DATABASE: &str = r#"
[[companion]]
name = "db"
image = "test-db"
command = ["sh", "-ec", "PATH=/usr/lib/postgresql/15/bin:$PATH; initdb -D $PGDATA -A trust; echo 'host all all all trust' >> $PGDATA/pg_hba.conf; exec postgres -c listen_addresses='*' -k /tmp"]
env = { PGDATA = "/var/lib/postgresql/data" }
ports = [5432]
health = { command = ["pg_isready", "-h", "127.0.0.1", "-U", "postgres"] }
resources = { memory = "512MiB" }
"#;
/// A Redis as its packager made it.
const CACHE: &str = r#"
[[companion]]
name = "cache"
image = "test-cache"
command = ["redis-server", "--dir", "/data", "--appendonly", "yes", "--protected-mode", "no"]
ports = [6379]
"#;
/// Tells each client that connects who it is.
const SAYS: &str = "import os, socket; s = socket.socket(); s.bind(('0.0.0.0', 7000)); s.listen()\n\
    while True: c, _ = s.accept(); c.sendall(b'%d:%d' % (os.getuid(), os.getgid())); c.close()";

fn here() -> bool {
    promised("image_user")
}

/// Runs a line of shell beside the companions of a policy.
fn beside_companions(bench: &Bench, policy: &str, line: &str) -> Ended {
    let file = bench.file("outside/policy.toml", policy);
    let run = bench.run(Backend::Docker).flags(["--policy", file.to_str().unwrap()]);
    run.flags(["--limits", "best-effort"]).shell(line)
}

/// The user and the group that run this test.
fn caller() -> String {
    let id = |flag| run(Command::new("id").arg(flag)).stdout.trim().to_owned();
    format!("{}:{}", id("-u"), id("-g"))
}

fn nothing_is_left() {
    let left = objects("lockgate-accounts");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_database_and_a_cache_are_who_their_packagers_made_them() {
    if !here() {
        return;
    }
    make_image("test-db", "true", &["USER postgres", "VOLUME /var/lib/postgresql/data"]);
    make_image("test-cache", "true", &["USER redis:redis", "VOLUME /data"]);
    let bench = Bench::new();
    let ended = beside_companions(
        &bench,
        &format!("{DATABASE}{CACHE}"),
        "redis-cli -h cache set a 41 && redis-cli -h cache incr a && redis-cli -h cache bgrewriteaof && \
         psql -h db -U postgres -At -c 'create table t(n int); insert into t select generate_series(1,1000); \
         select sum(n) from t' && seq 1 4 | xargs -P 4 -I{} psql -h db -U postgres -At -c 'select count(*) from t'",
    );
    assert!(ended.code == 0 && ended.stdout.starts_with("OK\n42\n"), "{ended}");
    assert!(ended.stdout.contains("\n500500\n"), "{ended}");
    assert_eq!(ended.stdout.lines().filter(|line| *line == "1000").count(), 4, "{ended}");
    let records = bench.every_audit_record();
    assert_eq!(records.iter().filter(|r| r["target"] == "db:5432").count(), 5, "{records:?}");
    nothing_is_left();
}

#[test]
fn a_name_is_looked_up_in_the_image_alone_and_is_never_root() {
    if !here() {
        return;
    }
    // The caller, and never root.
    let nobody = if is_root() { "1000:1000".to_owned() } else { caller() };
    // The accounts of this machine say something else, or nothing.
    let rows = [
        ("name", "echo app:x:4242:4343::/:/bin/sh >> /etc/passwd", "app", "4242:4343"),
        (
            "group",
            "echo staff2:x:4545: >> /etc/group; echo app:x:4242:4343::/: >> /etc/passwd",
            "app:staff2",
            "4242:4545",
        ),
        (
            "link",
            "echo app:x:4646:4747::/: > /srv/table; ln -sf ../srv/table /etc/passwd",
            "app:4848",
            "4646:4848",
        ),
        ("number", "true", "4949:5050", "4949:5050"),
        ("toor", "echo toor:x:0:0::/root: >> /etc/passwd", "toor", &nobody),
        ("wheel", "echo app:x:4242:0::/: >> /etc/passwd", "app", "4242:4242"),
    ];
    let mut policy = String::new();
    std::thread::scope(|scope| {
        for (name, line, user, _) in &rows {
            scope.spawn(move || make_image(&format!("test-{name}"), line, &[&format!("USER {user}")]));
        }
    });
    for (name, ..) in &rows {
        policy += &format!(
            "[[companion]]\nname = \"{name}\"\nimage = \"test-{name}\"\nports = [7000]\ncommand = [\"python3\", \"-c\", {SAYS:?}]\n"
        );
    }
    let names = rows.map(|(name, ..)| name).join(" ");
    let line = format!("for n in {names}; do echo $n $(bash -c \"exec 3<>/dev/tcp/$n/7000; cat <&3\"); done");
    let ended = beside_companions(&Bench::new(), &policy, &line);
    let expected = rows.map(|(name, _, _, is)| format!("{name} {is}\n")).concat();
    assert!(ended.code == 0 && ended.stdout == expected, "{ended}");

    make_image("test-none", "true", &["USER nobody-here"]);
    let none = policy.split("[[companion]]").nth(1).unwrap().replace("test-name", "test-none");
    let bench = Bench::new();
    let ended = beside_companions(&bench, &format!("[[companion]]{none}"), "touch began");
    assert!(ended.code == 125 && ended.stderr.contains("it has no user `nobody-here`"), "{ended}");
    assert!(ended.stderr.contains("`name`") && !bench.workspace().join("began").exists(), "{ended}");
    nothing_is_left();
}

#[test]
fn an_image_whose_accounts_are_in_a_pipe_holds_up_nobody() {
    if !here() {
        return;
    }
    make_image("test-pipe", "mkfifo /srv/pipe; ln -sf ../srv/pipe /etc/passwd", &[]);
    let bench = Bench::new();
    let (run, _) = bench.run(Backend::Docker).without_image();
    let alone = run.flags(["--image", "test-pipe"]).shell("echo ran");
    let policy = "[[companion]]\nname = \"c\"\nimage = \"test-pipe\"\nports = [7000]\ncommand = [\"true\"]\n";
    for ended in [alone, beside_companions(&bench, policy, "echo ran")] {
        assert!(ended.code == 125 && ended.stdout.is_empty(), "{ended}");
        assert!(ended.stderr.contains("/etc/passwd is no file"), "{ended}");
    }
    nothing_is_left();
}

#[test]
fn a_command_is_whom_its_workspace_belongs_to_and_else_whom_its_image_names() {
    if !here() || !ready(&[Needs::Root]) {
        return;
    }
    make_image("test-app", "echo app:x:4242:4343::/:/bin/sh >> /etc/passwd", &["USER app"]);
    let bench = Bench::new();
    let who = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(program("lockgate").unwrap());
        command.args(["run", "--backend", "docker", "--image", "test-app"]).args(flags);
        command.args(["--", "sh", "-c", "echo $(id -u):$(id -g)"]).stdin(Stdio::null());
        command.envs(bench.environment()).envs(variables.iter().copied()).current_dir(bench.workspace());
        run(&mut command)
    };
    let nobodys = bench.outside().display().to_string();
    let read_only = ["--workspace", nobodys.as_str(), "--workspace-mode", "ro"];
    for (flags, variables, is, notes) in [
        (&[][..], &[][..], "1000:1000\n", true),
        (&read_only, &[], "4242:4343\n", false),
        (&read_only, &[("HOST_UID", "1234"), ("HOST_GID", "1235")], "1234:1235\n", true),
    ] {
        let ended = who(flags, variables);
        assert!(ended.code == 0 && ended.stdout == is, "{ended}");
        assert_eq!(ended.stderr.contains("the image names the user `app`"), notes, "{ended}");
    }
    nothing_is_left();
}
