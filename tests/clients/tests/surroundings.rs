//! Unusual surroundings: another user's state directory, signals that the caller ignores, full or small files, mounts in a workspace.
//! Nothing hangs, nothing of the caller's is harmed, and an error names what it is about.

use std::time::Duration;

use lockgate_clients::{AWAIT, Need, Site, product, ready, run_to_end};
use lockgate_needs::missing;

#[test]
fn what_another_user_wrote_down_is_not_obeyed() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = r#"
        live=$XDG_STATE_HOME/lockgate/live; mkdir -p $live; chmod 700 $live/.. $live
        mkdir "$OUTSIDE/victim"; sleep 300 & process=$!
        for log in $live/abcdefghjkmn $live/abcdefghjkmp; do : >$log; echo "lock $(stat -c %i $log)" >$log; done
        echo "written $OUTSIDE/victim" >>$live/abcdefghjkmn
        echo "process $process $(sed 's/.*) //' /proc/$process/stat | cut -d' ' -f20)" >>$live/abcdefghjkmp
        chown -R 65534:65534 $live/..
        for words in "runs ls" "audit ls" "run -- true" "policy ls"; do
            timeout 20 "$PRODUCT" $words; echo "code=$?"
        done
        [ -d "$OUTSIDE/victim" ] && echo there; kill -0 $process && echo alive; kill $process
        # And where only the directory's name is one's own.
        chown 0:0 $live/..; timeout 20 "$PRODUCT" runs ls; echo "code=$?"; [ -d "$OUTSIDE/victim" ] && echo there"#;
    let ended = site.shell().run(script);
    assert!(
        ended.stdout.contains("there\nalive\n") && ended.stdout.ends_with("code=125\nthere\n"),
        "{ended}"
    );
    assert!(!ended.stdout.contains("code=0"), "{ended}");
    assert!(
        ended.stderr.contains("lockgate: it belongs to user 65534") && ended.stderr.contains("sudo -H"),
        "{ended}"
    );
    assert!(ended.stderr.contains("lockgate/live: it belongs to user 65534"), "{ended}");
}

#[test]
fn a_caller_that_ignores_its_children_changes_nothing() {
    for site in Site::for_everyone(&[Need::Program("python3")]) {
        let ignores = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
        let script = format!(r#"exec python3 -c '{ignores}' "$PRODUCT" run --timeout 20s -- sh -c "exit 3""#);
        let ended = site.shell().run(&script);
        assert!(ended.code == 3 && ended.took < Duration::from_secs(15), "{ended}");
    }
}

#[test]
fn a_mount_below_a_workspace_that_is_kept_apart_is_refused_by_name() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = r#"
            mkdir -p "a b"; echo under >"a b/file"
            exec unshare --mount sh -uc '
                mount -t tmpfs none "a b"; echo over >"a b/file"
                "$PRODUCT" run --workspace-mode overlay -- cat "a b/file"; echo "code=$?"; "$PRODUCT" run -- cat "a b/file"'"#;
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "code=125\nover\n", "{ended}");
    assert!(
        ended.stderr.contains("/work/a b`") && ended.stderr.contains("--workspace-mode rw or ro"),
        "{ended}"
    );
}

#[test]
fn an_unbindable_mount_is_refused_by_name_and_its_remedy_is_one() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = r#"
        mkdir sub; echo under >sub/file
        exec unshare --mount sh -uc '
            mount -t tmpfs none sub; echo over >sub/file; mount --make-unbindable sub
            "$PRODUCT" run -- cat sub/file; echo "code=$?"
            mount --make-private "$PWD/sub"; "$PRODUCT" run -- cat sub/file'"#;
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "code=125\nover\n", "{ended}");
    assert!(ended.stderr.contains("/work/sub` is unbindable"), "{ended}");
    assert!(ended.stderr.contains("mount --make-private /"), "{ended}");
}

#[test]
fn mounts_stay_apart_where_the_machine_shares_its_own() {
    // As systemd makes them, and a namespace for tests usually does not.
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("git")]) else { return };
    let script = r#"
        git init -q .; mkdir sub mnt; echo outside >mnt/seen; chown -R 65534:65534 .
        exec unshare --mount --propagation shared sh -uc '
            before=$(wc -l </proc/self/mountinfo)
            "$PRODUCT" run --mount "$PWD/mnt:$PWD/mnt" -- sh -c "
                : >begun; until [ -e mounted ]; do sleep 0.05; done; ls sub; cat mnt/seen" & run=$!
            until [ -e begun ]; do sleep 0.05; done
            echo "during=$(( $(wc -l </proc/self/mountinfo) - before ))"
            mount -t tmpfs none sub; : >sub/came; : >mounted; wait $run; echo "code=$?"; umount sub
            echo "after=$(( $(wc -l </proc/self/mountinfo) - before ))"; stat -c owner=%u .git
            "$PRODUCT" run -- true; echo "again=$?"'"#;
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "during=0\noutside\ncode=0\nafter=0\nowner=65534\nagain=0\n", "{ended}");
    assert!(!ended.stderr.contains("could not"), "{ended}");
}

#[test]
fn a_workspace_on_overlayfs_stays_what_it_was_when_it_first_changes() {
    // Its files are born again when they are copied up, and with layers on several file systems they also get other numbers.
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("setpriv")]) else { return };
    for lower in ["upper/lower", "lower"] {
        // Root makes no sandbox over a file system that maps no owners.
        let script = format!(
            r#"chmod 711 "$OUTSIDE/.."; chmod 755 "$OUTSIDE"; cd "$(mktemp -d "$OUTSIDE/layers-XXXXXX")"; chmod 755 .
        export HOME="$PWD/home" XDG_STATE_HOME="$PWD/home/state"
        exec unshare --mount sh -uc '
            mkdir upper lower all home; mount -t tmpfs none upper; mount -t tmpfs none lower
            mkdir -p upper/files upper/work "$2/w/.git/refs" "$2/w/.git/objects"; cd "$2/w"
            echo "ref: refs/heads/main" >.git/HEAD; echo old >.envrc; echo old >file; cd - >/dev/null
            chown -R 65534:65534 upper/files "$2" home
            mount -t overlay -o "lowerdir=$2,upperdir=upper/files,workdir=upper/work" none all; cd all/w
            exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -uc "$1"' - '{AWAIT}
            "$PRODUCT" run -- sh -c ": >begun; until [ -e written ]; do sleep 0.05; done; sleep 0.3" & run=$!
            await "[ -e begun ]" 20; echo new >>.envrc; : >written; wait $run; echo "written=$?"; rm begun written
            "$PRODUCT" run --workspace-mode overlay -- sh -c "echo new >file"; : >beside
            "$PRODUCT" apply; echo "apply=$?"; cat file
            "$PRODUCT" run -- sh -c "ln -s /nowhere .git/planted; : >begun; exec sleep 60" & run=$!
            await "[ -e begun ]" 20; kill -9 $run
            "$PRODUCT" run -- true; "$PRODUCT" run -- true; echo "next=$?"; [ -L .git/planted ] || echo gone' {lower}"#,
        );
        let ended = site.shell().run(&script);
        assert_eq!(ended.stdout, "written=0\napply=0\nnew\nnext=0\ngone\n", "{lower}: {ended}");
    }
}

#[test]
fn settings_that_another_user_may_write_are_not_obeyed() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    // A link, as dotfile managers make it.
    let script = r#"
        export XDG_CONFIG_HOME="$OUTSIDE/config"; file=$XDG_CONFIG_HOME/lockgate/config.toml; own=$OUTSIDE/own.toml
        (umask 022; mkdir -p "${file%/*}"; echo 'timeout = "5m"' >"$own"; echo "[egress]" >p.toml); ln -s "$own" "$file"
        try() {
            for command in "run -- true" "config show" "sidecar --policy p.toml --forward 127.0.0.1:0" doctor; do
                timeout 20 "$PRODUCT" $command >>said 2>&1; echo "$1 ${command%% *}=$?"
            done; }
        chmod 664 "$own"; "$PRODUCT" run -- true; echo "mine=$?"
        chown 61003 "$own"; try yours; chown 0 "$own"; chmod 646 "$own"; try open
        grep -o "config.toml: .*" said | sort -u"#;
    let ended = site.shell().run(script);
    let refused =
        |whose: &str| format!("{whose} run=2\n{whose} config=2\n{whose} sidecar=2\n{whose} doctor=1\n");
    let told = "config.toml: it belongs to user 61003, and neither to you nor to root\nconfig.toml: others may write to it (mode 0646)\n";
    assert_eq!(ended.stdout, format!("mine=0\n{}{}{told}", refused("yours"), refused("open")), "{ended}");
}

#[test]
fn a_program_that_its_user_may_execute_alone_works() {
    // Its process is not dumpable, proc_pid(5), and its ids could not be mapped. Who has every right over files reads it all the same.
    for site in Site::for_everyone(&[]) {
        let script = r#"
            cp "$PRODUCT" "$OUTSIDE/product"; chmod 111 "$OUTSIDE/product"
            "$OUTSIDE/product" run -- sh -c 'echo works'; "$OUTSIDE/product" doctor >/dev/null; echo "doctor=$?""#;
        let ended = site.shell().run(script);
        assert_eq!(ended.stdout, "works\ndoctor=0\n", "{ended}");
    }
}

#[test]
fn a_run_that_was_stopped_can_be_ended() {
    for site in Site::for_everyone(&[]) {
        let script = r#"
            "$PRODUCT" run -- sh -c 'touch begun; exec sleep 300' & process=$!
            await '[ -e begun ]' 20
            kill -STOP $process
            timeout 20 "$PRODUCT" runs stop "$("$PRODUCT" runs ls -q)"; echo "stop=$?"; wait $process; echo "code=$?""#;
        let ended = site.shell().run(script);
        assert!(ended.stdout.contains("stop=0\ncode=143\n"), "{ended}");
    }
}

#[test]
fn a_run_that_proc_hides_from_its_own_user_can_be_ended() {
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("setpriv")]) else { return };
    let script = format!(
        r#"chown -R 65534:65534 . "$XDG_STATE_HOME" "$OUTSIDE"; chmod 711 "$OUTSIDE/.."
        exec unshare --mount sh -uc '
            mount -t proc -o hidepid=2 none /proc
            HOME=$OUTSIDE exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -uc "$1"' - '{AWAIT}
            "$PRODUCT" run -- sh -c "touch begun; exec sleep 300" & run=$!
            await "[ -e begun ]" 20
            timeout 20 "$PRODUCT" runs stop "$("$PRODUCT" runs ls -q)"; echo "stop=$?"; wait $run; echo "code=$?"'"#
    );
    let ended = site.shell().run(&script);
    assert!(ended.stdout.contains("stop=0\ncode=143\n"), "{ended}");
}

#[test]
fn what_became_another_user_without_a_sandbox_holds_no_end_up() {
    use std::os::unix::fs::{PermissionsExt, chown};
    const NOBODY: u32 = 65534;

    // Not in a small internet: an unprivileged user has one to itself, with nobody in it to become.
    if !ready(&[Need::Root, Need::Program("setpriv")]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let become_root = folder.path().join("become");
    std::fs::copy("/usr/bin/setpriv", &become_root).unwrap();
    std::fs::set_permissions(&become_root, std::fs::Permissions::from_mode(0o4755)).unwrap();
    chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let as_nobody = |line: &str| {
        let id = NOBODY.to_string();
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-uc", line]);
        command.current_dir(&folder).env("HOME", folder.path()).env("PRODUCT", product().unwrap());
        run_to_end(&mut command, Duration::from_secs(60))
    };
    let as_root = "./become --reuid 0 --regid 0 --clear-groups";
    let became = as_nobody(&format!("{as_root} id -u"));
    if became.stdout != "0\n" {
        return missing(&format!("set-user-id programs have no effect on the mount of this test: {became}"));
    }
    for (words, code) in [("--timeout 2s -- sh -c 'exec", 124), ("-- sh -c 'exec 2>/dev/null; (", 0)] {
        let end = if code == 0 { ") & sleep 0.5'" } else { "'" };
        let ended =
            as_nobody(&format!(r#""$PRODUCT" run --backend process {words} {as_root} sleep 40 {end}"#));
        assert!(ended.code == code && ended.took < Duration::from_secs(25), "{ended}");
        assert!(ended.stderr.contains("(`sleep`) runs as another user by now"), "{ended}");
    }
}

#[test]
fn owners_that_cannot_be_mapped_are_told_with_why_and_where() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = r#"
        (ulimit -n 32; "$PRODUCT" run -- true); echo "code=$?"
        touch device; exec unshare --mount sh -uc 'mount --bind /dev/null device; "$PRODUCT" run -- true; echo "code=$?"'"#;
    let ended = site.shell().run(script);
    assert!(!ended.stdout.contains("code=0"), "{ended}");
    let (few, below) = ended.stderr.split_once("Too many open files").expect("why it is");
    assert!(!few.contains("cannot map owners"), "{ended}");
    assert!(below.contains("/work/device` below it, cannot map owners"), "{ended}");
}

#[test]
fn where_no_file_may_grow_that_is_said() {
    for site in Site::for_everyone(&[]) {
        let ended =
            site.shell().run(r#"{ (ulimit -f 0; "$PRODUCT" run -- true; echo "code=$?") 2>&1; } | cat"#);
        assert!(ended.stdout.contains("File too large") && ended.stdout.ends_with("code=125\n"), "{ended}");
        // The command has the signal's default action.
        let script = r#"exec "$PRODUCT" run -- sh -c 'ulimit -f 0; exec dd if=/dev/zero of=file count=1'"#;
        let ended = site.shell().run(script);
        assert!(ended.code == 153, "{ended}");
    }
}

#[test]
fn a_mask_that_shuts_everything_leaves_nothing_behind() {
    // Other users could not open their own records.
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = r#"
        "$PRODUCT" run -- true; find . >"$OUTSIDE/before"; (umask 777; "$PRODUCT" run -- true; echo "code=$?")
        find . >"$OUTSIDE/after"; diff "$OUTSIDE/before" "$OUTSIDE/after" && echo same"#;
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "code=0\nsame\n", "{ended}");
}

#[test]
fn a_mask_that_shuts_out_the_owner_shuts_no_later_run_out() {
    let Some(site) = Site::for_unprivileged_test(&[]) else { return };
    for mask in ["777", "277", "111", "222"] {
        let script = format!(
            r#"export XDG_STATE_HOME="$OUTSIDE/state-{mask}/below"
            (umask {mask}; "$PRODUCT" run -- sh -c umask); "$PRODUCT" run -- true; echo "code=$?"
            find "$OUTSIDE/state-{mask}" ! -perm -u+rw; rm -r "$OUTSIDE/state-{mask}""#
        );
        let ended = site.shell().run(&script);
        assert_eq!(ended.stdout, format!("00{}\ncode=0\n", &mask[1..]), "{mask}: {ended}");
    }
}

#[test]
fn a_report_that_nobody_can_be_given_is_a_failure() {
    for site in Site::for_everyone(&[]) {
        let script = r#"
            "$PRODUCT" run --json -- true 2>/dev/full; echo "full=$?"; "$PRODUCT" run -- true 2>/dev/full; echo "none=$?"
            "$PRODUCT" run --json -- true 2>&1 >/dev/null | true; "$PRODUCT" run --json -- true 2>report; echo "code=$?"; grep -c exit_code report"#;
        let ended = site.shell().run(script);
        assert_eq!(ended.stdout, "full=125\nnone=0\ncode=0\n1\n", "{ended}");
    }
}

#[test]
fn root_without_its_rights_makes_no_sandbox_and_says_so() {
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("setpriv")]) else { return };
    for (lacks, named) in [
        ("--bounding-set=-sys_admin", "root without CAP_SYS_ADMIN can"),
        ("--bounding-set=-setgid", "root without CAP_SETGID can"),
        ("--securebits=+noroot", "root without CAP_SYS_ADMIN and CAP_SETUID and CAP_SETGID can"),
    ] {
        let script = format!(
            r#"setpriv {lacks} "$PRODUCT" run -- true; echo "code=$?"; setpriv {lacks} "$PRODUCT" doctor; echo "doctor=$?""#
        );
        let ended = site.shell().run(&script);
        assert!(
            ended.stdout.contains("code=125\n") && ended.stdout.ends_with("doctor=1\n"),
            "{lacks}: {ended}"
        );
        assert!(
            ended.stderr.contains(named) && ended.stderr.contains("a user who is not root"),
            "{lacks}: {ended}"
        );
        assert!(ended.stdout.contains(named), "{lacks}: {ended}");
    }
}

#[test]
fn root_with_the_rights_that_a_run_takes_is_told_so() {
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("setpriv")]) else { return };
    let ended = site.shell().run(
        r#"only="setpriv --no-new-privs --bounding-set=-all,+sys_admin,+setuid,+setgid"
        $only "$PRODUCT" run -- true; echo "code=$?"; $only "$PRODUCT" doctor; echo "doctor=$?""#,
    );
    assert!(ended.stdout.starts_with("code=0\n") && ended.stdout.ends_with("doctor=0\n"), "{ended}");
}

/// Runs a program where a filter answers one system call, by its number, with an error.
const REFUSE: &str = r#"
import ctypes, os, struct, sys
call, errno = int(sys.argv[1]), int(sys.argv[2])
lines = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | errno), (0x06, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("HBBI", *line) for line in lines)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(Program(len(lines), code))) == 0
os.execv(sys.argv[3], sys.argv[3:])
"#;

#[test]
fn what_a_containers_filter_refuses_is_done_without_or_named() {
    let (eperm, enosys) = (1, 38);
    for site in Site::for_everyone(&[Need::Program("python3")]) {
        let refuse = site.file("refuse.py", REFUSE);
        let ended = |(call, errno): (u32, u32), words: &str| {
            site.shell()
                .run(&format!(r#"exec python3 {} {call} {errno} "$PRODUCT" {words}"#, refuse.display()))
        };
        let clone3 = (435, enosys);
        let plain = ended(clone3, "run --backend process -- sh -c 'exit 3'");
        assert_eq!(plain.code, 3, "{plain}");
        let sandbox = ended(clone3, "run -- true");
        assert!(sandbox.code == 125 && sandbox.stderr.contains("seccomp=unconfined"), "{sandbox}");

        let pivot_root = (155, eperm);
        let (run, doctor) = (ended(pivot_root, "run -- true"), ended(pivot_root, "doctor"));
        assert!(run.code == 125 && run.stderr.contains("seccomp=unconfined"), "{run}");
        assert!(doctor.code == 1 && doctor.stdout.contains("✗ mounts of its own"), "{doctor}");
        assert!(doctor.stdout.contains("seccomp=unconfined"), "{doctor}");

        let pidfd_send_signal = (424, eperm);
        let run = ended(pidfd_send_signal, "run -- true");
        assert!(run.code == 0 && run.took < Duration::from_secs(20), "{run}");

        let landlock_create_ruleset = (444, eperm);
        let doctor = ended(landlock_create_ruleset, "doctor");
        assert!(doctor.code == 0 && doctor.stdout.contains("hides Landlock"), "{doctor}");
        assert!(!doctor.stdout.contains("boot with `lsm"), "{doctor}");
    }
}

#[test]
fn a_machine_without_a_folder_for_temporary_files_has_runs() {
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("pivot_root")]) else { return };
    // As in an image that has nothing but what it takes.
    let script = r#"
        mkdir "$OUTSIDE/root" "$OUTSIDE/home"; exec unshare --mount sh -uc '
            work=$PWD; mount -t tmpfs -o mode=755 none "$OUTSIDE/root"; cd "$OUTSIDE/root"; mkdir work home old; cp "$PRODUCT" product
            for folder in usr etc dev proc sys bin sbin lib lib64; do mkdir $folder; mount --rbind /$folder $folder; done
            mount --bind "$work" work; mount --bind "$OUTSIDE/home" home; pivot_root . old; umount -l old; rmdir old
            export HOME=/home XDG_STATE_HOME=/home; unset SSL_CERT_FILE; cd /work; [ -e /tmp ] || echo none
            /product run -- sh -c "[ -x /usr/bin/env ] && echo works"; /product doctor >/dev/null; echo "doctor=$?"'"#;
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "none\nworks\ndoctor=0\n", "{ended}");
}

#[test]
fn what_is_not_there_is_named() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let ended = |script: &str| site.shell().run(&format!("exec unshare --mount sh -uc '{script}'"));
    let without_null = ended(r#"mount -t tmpfs none /dev; exec "$PRODUCT" run -- true"#);
    assert!(
        without_null.code == 125 && without_null.stderr.contains("/dev/null: No such file"),
        "{without_null}"
    );
    let regular = ended(r#"mount -t tmpfs none /dev; : >/dev/null; exec "$PRODUCT" run -- true"#);
    assert!(regular.code == 125 && regular.stderr.contains("/dev/null: it is no null device"), "{regular}");
    assert!(regular.stderr.contains("mknod -m 666 /dev/null c 1 3"), "{regular}");
    let nodes = ended(
        r#"mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; exec "$PRODUCT" run -- true </dev/null"#,
    );
    assert!(nodes.code == 125 && nodes.stderr.contains("/dev/zero: No such file"), "{nodes}");
    // No check looks at that; the run that the doctor tries meets it.
    let doctor =
        ended(r#"mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; exec "$PRODUCT" doctor </dev/null"#);
    assert!(doctor.code == 1 && doctor.stdout.contains("/dev/zero: No such file"), "{doctor}");
    // Nobody but root could map the ids of a second run: the doctor tells what the first one met, once, and sends nobody to itself.
    let plain = ended(
        r#"mount -t tmpfs -o mode=755 none /dev; mknod -m 666 /dev/null c 1 3
            mount -t tmpfs -o mode=755 none /mnt; mkdir -m 777 /mnt/work /mnt/state; cd /mnt/work; export HOME=/mnt XDG_STATE_HOME=/mnt/state
            exec setpriv --reuid=65534 --regid=65534 --clear-groups "$PRODUCT" doctor </dev/null"#,
    );
    assert!(plain.code == 1 && plain.stdout.contains("/dev/zero: No such file"), "{plain}");
    assert!(!plain.stdout.contains("doctor") && !plain.stdout.contains("map the identity"), "{plain}");
    let notes: Vec<&str> = plain.stdout.lines().filter(|line| line.contains("note:")).collect();
    assert!(notes.iter().all(|note| notes.iter().filter(|it| it == &note).count() == 1), "{plain}");
    let without_proc = ended(r#"mount -t tmpfs none /proc; exec "$PRODUCT" run -- true"#);
    assert!(
        without_proc.code == 125 && without_proc.stderr.contains("/proc/self/uid_map: No such file"),
        "{without_proc}"
    );
    assert!(without_proc.stderr.contains("mount -t proc"), "{without_proc}");
}

#[test]
fn a_proc_of_another_pid_namespace_is_named_and_nothing_is_asked_of_it() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let ended = |words: &str| site.shell().run(&format!(r#"exec unshare --pid --fork "$PRODUCT" {words}"#));
    for backend in ["linux", "process"] {
        let refused = ended(&format!("run --backend {backend} -- true"));
        assert!(refused.code == 125 && refused.stderr.contains("another pid namespace's"), "{refused}");
        assert!(refused.stderr.contains("mount -t proc"), "{refused}");
    }
    let doctor = ended("doctor");
    assert!(doctor.code == 1 && doctor.stdout.contains("another pid namespace's"), "{doctor}");
    for backend in ["linux", "process"] {
        let words = format!(r#"exec unshare --pid "$PRODUCT" run --backend {backend} -- true"#);
        let refused = site.shell().run(&words);
        assert!(refused.code == 125 && refused.stderr.contains("takes `--fork`"), "{refused}");
    }
    let own = site.shell().run(r#"exec unshare --pid --fork --mount-proc "$PRODUCT" run -- true"#);
    assert_eq!(own.code, 0, "{own}");
}

#[test]
fn a_run_of_a_time_namespace_is_in_its_place_and_can_be_stopped() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = format!(
        r#"{AWAIT}
        moved="unshare --time --fork --boottime 100000"
        $moved "$PRODUCT" run --workspace-mode overlay -- sh -c "echo first >file"
        "$PRODUCT" run --workspace-mode overlay -- sh -c "echo second >file"; "$PRODUCT" apply; cat file
        $moved "$PRODUCT" run -- sh -c "touch begun; exec sleep 300" & run=$!
        await "[ -e begun ]" 20; timeout 20 "$PRODUCT" runs stop "$("$PRODUCT" runs ls -q | head -n 1)"
        echo "stop=$?"; wait $run; echo "code=$?""#
    );
    let ended = site.shell().run(&script);
    assert_eq!(ended.stdout, "second\nstop=0\ncode=143\n", "{ended}");
}

#[test]
fn a_limit_of_the_callers_that_is_too_low_is_named() {
    for site in Site::for_everyone(&[]) {
        for (limit, named) in
            [("-s 64", "ulimit -s 8192"), ("-n 12", "ulimit -n 1024"), ("-n 4", "ulimit -n 1024")]
        {
            // With so few, the shell itself cannot redirect any more.
            let ended =
                site.shell().run(&format!("exec </dev/null; ulimit {limit}; exec \"$PRODUCT\" run -- true"));
            assert!(ended.code == 125 && ended.stderr.contains(named), "{limit}: {ended}");
        }
    }
}

#[test]
fn what_no_sandbox_inside_another_can_have_is_no_setting_of_the_kernels() {
    for site in Site::for_everyone(&[]) {
        let product = product().expect("`Site` asked first");
        let ended = site.run().mount(&product).script(&format!("{} doctor || :", product.display()));
        assert!(ended.stdout.contains("inside a sandbox") && !ended.stdout.contains("sysctl"), "{ended}");
    }
}
