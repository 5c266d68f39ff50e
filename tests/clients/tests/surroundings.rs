//! Unusual surroundings: another user's state directory, signals that the caller ignores, full or small files, mounts in a workspace.
//! Nothing hangs, nothing of the caller's is harmed, and an error names what it is about.

use std::time::Duration;

use lockgate_clients::{Need, Site, product};

#[test]
fn what_another_user_wrote_down_is_not_obeyed() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = r#"
        live=$XDG_STATE_HOME/lockgate/live; mkdir -p $live; chmod 700 $live/.. $live
        mkdir "$OUTSIDE/victim"; sleep 300 & process=$!
        echo "written $OUTSIDE/victim" >$live/abcdefghjkmn
        echo "process $process $(sed 's/.*) //' /proc/$process/stat | cut -d' ' -f20)" >$live/abcdefghjkmp
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
fn what_is_not_there_is_named() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let ended = |script: &str| site.shell().run(&format!("exec unshare --mount sh -uc '{script}'"));
    let without_null = ended(r#"mount -t tmpfs none /dev; exec "$PRODUCT" run -- true"#);
    assert!(
        without_null.code == 125 && without_null.stderr.contains("/dev/null: No such file"),
        "{without_null}"
    );
    let nodes = ended(
        r#"mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; exec "$PRODUCT" run -- true </dev/null"#,
    );
    assert!(nodes.code == 125 && nodes.stderr.contains("/dev/zero: No such file"), "{nodes}");
    let without_proc = ended(r#"mount -t tmpfs none /proc; exec "$PRODUCT" run -- true"#);
    assert!(
        without_proc.code == 125 && without_proc.stderr.contains("/proc/self/task: No such file"),
        "{without_proc}"
    );
    assert!(without_proc.stderr.contains("mount -t proc"), "{without_proc}");
}

#[test]
fn what_no_sandbox_inside_another_can_have_is_no_setting_of_the_kernels() {
    for site in Site::for_everyone(&[]) {
        let product = product().expect("`Site` asked first");
        let ended = site.run().mount(&product).script(&format!("{} doctor || :", product.display()));
        assert!(ended.stdout.contains("inside a sandbox") && !ended.stdout.contains("sysctl"), "{ended}");
    }
}
