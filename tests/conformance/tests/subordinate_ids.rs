//! Promise, for callers without root: with subordinate ids an image's files belong to the users it names, the command is the user it names,
//! the workspace is the caller's, nobody gains a right by it, and everything that belongs to those ids can be removed.
//! Without them there is one id, and the run says so.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockgate_conformance::{Ended, Needs, ready, run};
use lockgate_needs::{made_by_setup, missing, program};
use tempfile::TempDir;

/// The account that `cargo xtask setup` makes, with subordinate ids; and one that has none on any system.
const LENT: &str = "lockgate-test";
const ALONE: &str = "nobody";
/// The accounts of the small image.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\napp:x:999:998:app:/srv/app:/bin/sh\n";
const GROUP: &str = "root:x:0:\napp:x:998:\n";
/// The notice of a run without root about an image of root's.
const ONE_ID: &str = "the one id there is";

/// A user without root, with a folder, a store and records of their own.
struct Person {
    folder: TempDir,
    id: (u32, u32),
}

impl Person {
    fn new(name: &str) -> Self {
        let passwd = fs::read_to_string("/etc/passwd").unwrap();
        let row = passwd.lines().find(|line| line.split(':').next() == Some(name)).expect("an account");
        let number = |field: usize| row.split(':').nth(field).unwrap().parse().unwrap();
        let person = Self {
            folder: tempfile::Builder::new().prefix("lockgate-lent-").tempdir_in("/var/tmp").unwrap(),
            id: (number(2), number(3)),
        };
        fs::set_permissions(person.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for part in ["work", "data", "state"] {
            fs::create_dir(person.at(part)).unwrap();
            person.give(&person.at(part));
        }
        let binary = person.at("lockgate");
        fs::copy(program("lockgate").unwrap(), &binary).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        person
    }

    fn at(&self, part: &str) -> PathBuf {
        self.folder.path().join(part)
    }

    fn give(&self, path: &Path) {
        chown(path, Some(self.id.0), Some(self.id.1)).unwrap();
    }

    fn lockgate(&self, words: &[&str]) -> Ended {
        let mut command = Command::new("setpriv");
        let (uid, gid) = (self.id.0.to_string(), self.id.1.to_string());
        command.args(["--reuid", &uid, "--regid", &gid, "--clear-groups", "--"]);
        command.arg(self.at("lockgate")).args(words).current_dir(self.at("work")).stdin(Stdio::null());
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
        run(command.env("XDG_DATA_HOME", self.at("data")).env("XDG_STATE_HOME", self.at("state")))
    }

    fn import(&self, archive: &Path, name: &str, user: &str) {
        let config = self.at("config.json");
        fs::write(&config, format!("{{\"User\":\"{user}\"}}")).unwrap();
        let (archive, config) = (archive.to_str().unwrap(), config.to_str().unwrap());
        let taken = self.lockgate(&["image", "import", "--name", name, "--config", config, archive]);
        assert!(taken.code == 0, "{taken}");
    }

    /// Runs a line of shell in an image.
    fn shell(&self, flags: &[&str], image: &str, line: &str) -> Ended {
        let begin = ["run", "--backend", "container", "--image", image];
        self.lockgate(&[&begin, flags, &["--", "/bin/sh", "-c", line]].concat())
    }

    /// Returns the paths below a part of the folder that belong to neither this user nor root.
    fn foreign(&self, part: &str) -> Vec<PathBuf> {
        let mut left = vec![self.at(part)];
        let mut found = Vec::new();
        while let Some(path) = left.pop() {
            let stat = fs::symlink_metadata(&path).unwrap();
            if stat.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            if ![0, self.id.0].contains(&stat.uid()) {
                found.push(path);
            }
        }
        found
    }
}

fn here() -> bool {
    if !ready(&[Needs::Linux, Needs::Root, Needs::Images]) {
        return false;
    }
    let lent = |table: &str| fs::read_to_string(table).is_ok_and(|text| text.contains(&format!("{LENT}:")));
    let here = lent("/etc/subuid") && lent("/etc/subgid") && Path::new("/usr/bin/newuidmap").exists();
    if !here {
        missing("no subordinate ids or no `newuidmap`; `cargo xtask setup` makes both, as root");
    }
    here
}

/// Returns the account's first subordinate id.
fn first_lent() -> u32 {
    let table = fs::read_to_string("/etc/subuid").unwrap();
    let row = table.lines().find(|line| line.starts_with(&format!("{LENT}:"))).unwrap();
    row.split(':').nth(1).unwrap().parse().unwrap()
}

/// Makes a small image with files of three owners.
fn small_image(folder: &Path) -> PathBuf {
    let root = folder.join("image");
    fs::create_dir(&root).unwrap();
    let busybox = made_by_setup("images/busybox.tar").unwrap();
    let tar = |arguments: &[&str]| {
        assert!(Command::new("tar").args(arguments).status().unwrap().success(), "tar {arguments:?}");
    };
    tar(&["-xpf", busybox.to_str().unwrap(), "-C", root.to_str().unwrap()]);
    fs::create_dir_all(root.join("srv/app")).unwrap();
    fs::write(root.join("etc/passwd"), PASSWD).unwrap();
    fs::write(root.join("etc/group"), GROUP).unwrap();
    for (path, owner, mode) in
        [("srv/app", 999, 0o700), ("srv/app/own", 999, 0o600), ("srv/other", 1234, 0o644)]
    {
        let path = root.join(path);
        if !path.exists() {
            fs::write(&path, "x").unwrap();
        }
        chown(&path, Some(owner), Some(if owner == 999 { 998 } else { owner })).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let archive = folder.join("image.tar");
    tar(&["-cf", archive.to_str().unwrap(), "-C", root.to_str().unwrap(), "."]);
    archive
}

#[test]
fn files_keep_their_owners_and_the_workspace_is_the_callers() {
    if !here() {
        return;
    }
    let person = Person::new(LENT);
    person.import(&small_image(person.folder.path()), "app", "app");
    let kept = person.foreign("data");
    assert!(!kept.is_empty(), "on disk everything is the caller's own");
    let line = "id -u; id -g; stat -c %u:%g /etc/passwd /srv/app /srv/app/own /srv/other /bin/busybox; cat /proc/self/uid_map; \
        while read n v; do case $n in CapEff:|NoNewPrivs:) echo $n $v;; esac; done < /proc/self/status; \
        echo mine > /srv/app/own; echo made > made; stat -c %u:%g made";
    let ended = person.shell(&[], "app", line);
    assert!(ended.code == 0, "{ended}");
    let (first, own) = (first_lent(), person.id.0);
    let told: Vec<String> =
        ended.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "999".to_owned(),
        "998".into(),
        "0:0".into(),
        "999:998".into(),
        "999:998".into(),
        "1234:1234".into(),
        "0:0".into(),
        format!("0 {first} 999"),
        format!("999 {own} 1"),
        format!("1000 {} 64535", first + 1000),
        "CapEff: 0000000000000000".into(),
        "NoNewPrivs: 1".into(),
        "999:998".into(),
    ];
    assert_eq!(told, expected, "{ended}");
    assert!(!ended.stderr.contains("belongs to the command's own user"), "{ended}");
    let made = fs::metadata(person.at("work/made")).unwrap();
    assert_eq!((made.uid(), made.gid()), person.id);
    // Files written over the image do not belong to the image.
    let again = person.shell(&[], "app", "cat /srv/app/own");
    assert_eq!((again.code, again.stdout.as_str()), (0, "x"), "{again}");
}

#[test]
fn nobody_gains_a_right_by_them() {
    if !here() {
        return;
    }
    let person = Person::new(LENT);
    person.import(&small_image(person.folder.path()), "app", "app");
    let control = person.shell(&[], "app", "echo > made; /bin/busybox chown 999:998 made /srv/app/own");
    assert!(control.code == 0, "{control}");
    for line in [
        "echo x >> /etc/passwd",
        "echo x > /bin/x",
        "echo x >> /srv/other",
        "/bin/busybox chown 0 /srv/app/own",
        "/bin/busybox chown 1234 made",
        "/bin/busybox su -s /bin/sh root -c true",
        "/bin/busybox chgrp 0 made",
        "/bin/busybox chroot /srv /bin/true",
        "/bin/busybox mount -t tmpfs x /srv/app",
    ] {
        let ended = person.shell(&[], "app", &format!("echo > made; {line}"));
        assert!(ended.code != 0 && ended.code < 124, "`{line}` worked: {ended}");
        assert!(!ended.stderr.contains("applet not found"), "`{line}` was not tried: {ended}");
    }
    assert!(person.foreign("work").is_empty());
}

#[test]
fn what_belongs_to_them_can_be_taken_away() {
    if !here() {
        return;
    }
    let person = Person::new(LENT);
    person.import(&small_image(person.folder.path()), "app", "app");
    // A folder with a file of a subordinate id, as other programs that use such ids leave it.
    let first = first_lent();
    let theirs = person.at("work/theirs");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("file"), "one\n").unwrap();
    for (path, id, mode) in [(theirs.clone(), first + 5, 0o1777), (theirs.join("file"), first + 6, 0o666)] {
        chown(&path, Some(id), Some(id)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let ended = person.shell(&["--workspace-mode", "overlay"], "app", "echo two >> theirs/file");
    assert!(ended.code == 0, "{ended}");
    let kept = person.foreign("state");
    assert!(!kept.is_empty(), "nothing of theirs was written");
    let dropped = person.lockgate(&["discard"]);
    assert!(dropped.code == 0 && !kept[0].exists(), "{dropped}");
    // What a killed run would have left: its own process is gone, and the next run finds the same list.
    let left = person.at("state/lockgate/written/abcdefghjkmn");
    fs::create_dir_all(left.join("upper/etc")).unwrap();
    fs::write(left.join("upper/etc/file"), "x").unwrap();
    for path in ["", "upper"].map(|part| left.join(part)).iter().chain([&left.parent().unwrap().to_owned()]) {
        person.give(path);
    }
    for path in ["upper/etc", "upper/etc/file"] {
        chown(left.join(path), Some(first), Some(first)).unwrap();
    }
    let log = person.at("state/lockgate/live/abcdefghjkmn");
    // It begins with its own inode: a copy of it would not be obeyed.
    let own = fs::File::create(&log).and_then(|log| log.metadata()).unwrap().ino();
    fs::write(&log, format!("lock {own}\nwritten {}\n", left.display())).unwrap();
    person.give(&log);
    let next = person.shell(&[], "app", "true");
    assert!(next.code == 0 && !left.exists() && !log.exists(), "{next}");
    // And the image itself.
    let removed = person.lockgate(&["image", "rm", "app"]);
    assert!(removed.code == 0, "{removed}");
    assert_eq!(person.foreign("data"), Vec::<PathBuf>::new());
    let layers = person.at("data/lockgate/images/layers");
    assert_eq!(fs::read_dir(layers).unwrap().count(), 0);
}

#[test]
fn a_database_of_the_images_own_user_runs() {
    if !here() {
        return;
    }
    let person = Person::new(LENT);
    let archive = made_by_setup("images/debian.tar").unwrap();
    let readable = person.at("debian.tar");
    fs::copy(archive, &readable).unwrap();
    fs::set_permissions(&readable, fs::Permissions::from_mode(0o644)).unwrap();
    person.import(&readable, "postgres", "postgres");
    let line = "set -e; PATH=/usr/lib/postgresql/15/bin:$PATH; cd /var/lib/postgresql; stat -c %U . /etc/passwd /usr/bin/env; \
        initdb -D own -A trust > /dev/null; pg_ctl -D own -o '-k /tmp' -l /tmp/log -w start > /dev/null; \
        psql -h /tmp -At -c 'select 6*7'; pg_ctl -D own -m fast stop > /dev/null";
    let ended = person.shell(&[], "postgres", line);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "postgres\nroot\nroot\n42\n"), "{ended}");
}

#[test]
fn without_them_there_is_one_id_and_the_run_says_so() {
    if !here() {
        return;
    }
    let alone = Person::new(ALONE);
    alone.import(&small_image(alone.folder.path()), "app", "app");
    let line = "id -u; stat -c %u /etc/passwd /srv/other; cat /proc/self/uid_map; echo made > made";
    let ended = alone.shell(&[], "app", line);
    let told: Vec<&str> = ended.stdout.split_whitespace().collect();
    let own = alone.id.0.to_string();
    assert_eq!(told, ["999", "999", "999", "999", own.as_str(), "1"], "{ended}");
    assert!(ended.stderr.contains(ONE_ID), "{ended}");
    assert!(alone.foreign("data").is_empty());
    let doctor = alone.lockgate(&["doctor"]);
    assert!(doctor.stdout.contains("/etc/subuid lends this user no 65536 ids"), "{doctor}");
    // An image of root's has one owner for every other user: the command stands in for root.
    let person = Person::new(LENT);
    person.import(&small_image(person.folder.path()), "plain", "");
    assert!(person.foreign("data").is_empty());
    let own = person.id.0.to_string();
    let ended = person.shell(&[], "plain", "id -u; stat -c %u /etc/passwd; echo x > /bin/x");
    assert_eq!(ended.stdout.split_whitespace().collect::<Vec<_>>(), [own.as_str(), own.as_str()], "{ended}");
    assert!(ended.code == 0 && !ended.stderr.contains(ONE_ID), "{ended}");
    let doctor = person.lockgate(&["doctor"]);
    assert!(doctor.stdout.contains(&format!("users from {} on", first_lent())), "{doctor}");
}
