//! What root's runs may do with the files and the priority of the machine: what the folder's owner may, and no more.

use lockgate_clients::{AWAIT, Need, Site};

#[test]
fn the_owners_files_of_other_groups_are_the_runs_and_nobody_elses_are() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = r#"
        umask 022; mkdir shared; for file in own gone others roots; do echo 1 >$file; done
        chown 4321:4321 . own; chown 4321:50 gone shared; chmod 2755 shared; chown 4321:0 roots; chmod 644 roots
        chown 8765:4321 others; chmod 666 others
        "$PRODUCT" run -- sh -c '
            for file in own roots others; do echo 2 >>$file; done; echo 2 >>gone && rm gone
            echo 3 >shared/made; chgrp 50 own; chmod g+s shared/made; true'; echo "code=$?"
        stat -c "%n %u:%g %a" own roots others shared/made; ls; cat own roots others"#;
    let ended = site.shell().run(script);
    let expected = "code=0\nown 4321:4321 644\nroots 4321:0 644\nothers 8765:4321 666\nshared/made 4321:50 644\n\
                    others\nown\nroots\nshared\n1\n2\n1\n2\n1\n";
    assert_eq!(ended.stdout, expected, "{ended}");
}

#[test]
fn where_owners_cannot_be_mapped_every_way_out_that_is_named_is_one() {
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("setpriv")]) else { return };
    // As root in a container of an engine, whose own files are layers.
    let script = r#"
        chmod 711 "$OUTSIDE/.."; cp "$PRODUCT" "$OUTSIDE/product"; chmod 755 "$OUTSIDE" "$OUTSIDE/product"; mkdir there
        exec unshare --mount sh -uc '
            mount -t ramfs none there; chmod 755 there; mkdir there/w there/tmp there/home; cd there/w
            "$PRODUCT" run -- true; echo "code=$?"; "$PRODUCT" doctor | grep -c "✗ *this folder as a workspace"
            "$PRODUCT" run --workspace-mode ro -- true; echo "ro=$?"
            (mkdir ../state "$OUTSIDE/w"; export XDG_STATE_HOME=${PWD%/w}/state; cd "$OUTSIDE/w"
                "$PRODUCT" run --workspace-mode overlay -- true)
            HOME=$OUTSIDE TMPDIR=$PWD/../tmp "$PRODUCT" demo >/dev/null; echo "demo=$?"
            HOME=$PWD/../home TMPDIR=$PWD/../tmp "$PRODUCT" demo; echo "code=$?"; ls "$OUTSIDE" ../tmp ../home
            chown -R 65534:65534 ..; export HOME=/nonexistent XDG_STATE_HOME=${PWD%/w}/home XDG_DATA_HOME=${PWD%/w}/home
            exec setpriv --reuid 65534 --regid 65534 --clear-groups "$OUTSIDE/product" run -- sh -c "echo owner >&2"'"#;
    let ended = site.shell().run(script);
    let expected = "code=125\n1\nro=0\ndemo=0\ncode=125\n";
    assert!(ended.stdout.starts_with(expected) && !ended.stdout.contains("lockgate-demo"), "{ended}");
    for said in
        ["cannot map owners", "--workspace-mode ro", "ext4", "XDG_STATE_HOME=DIR", "TMPDIR", "owner\n"]
    {
        assert!(ended.stderr.contains(said), "{said}: {ended}");
    }
}

#[test]
fn a_directory_of_the_system_is_no_writable_workspace_by_any_name() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = r#"
        mkdir local all users own var; exec unshare --mount sh -uc '
            mount --bind /usr/local local; mount --bind / all; mount --bind /usr/src users; mount --bind "$OUTSIDE" own
            mount --bind /var var
            for folder in local local/bin all all/etc var users own; do
                "$PRODUCT" run --workspace "$PWD/$folder" -- true; echo "$folder=$?"
            done
            "$PRODUCT" run --workspace "$PWD/local" --workspace-mode ro -- true; echo "ro=$?"'"#;
    let ended = site.shell().run(script);
    let expected = "local=125\nlocal/bin=125\nall=125\nall/etc=125\nvar=125\nusers=0\nown=0\nro=0\n";
    assert_eq!(ended.stdout, expected, "{ended}");
    assert!(ended.stderr.contains("local` cannot be a writable workspace"), "{ended}");
}

#[test]
fn the_command_has_none_of_the_callers_priority() {
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("chrt")]) else { return };
    // Nice, real-time priority and policy: proc_pid_stat(5).
    let told = "cut -d' ' -f 19,40,41 /proc/self/stat; cat /proc/self/oom_score_adj";
    let script = format!(
        r#"told="{told}"; echo -500 >/proc/self/oom_score_adj; nice -n -40 sh -c "$told"; echo nice
        nice -n -40 "$PRODUCT" run -- sh -c "$told"; echo real
        chrt -f 1 true && chrt -f 1 "$PRODUCT" run -- sh -c "$told""#
    );
    let ended = site.shell().run(&script);
    let (before, inside) = ended.stdout.split_once("nice\n").expect("both");
    // Not every root may have its processes spared, preferred, or made real-time ones.
    assert!(before.starts_with("-20 0 0\n") || ended.stderr.contains("cannot set niceness"), "{ended}");
    for inside in inside.split("real\n").filter(|inside| !inside.is_empty()) {
        let (nice, rest) = inside.split_once(' ').expect("three numbers and one");
        let score = rest.strip_prefix("0 0\n").and_then(|score| score.trim().parse::<u32>().ok());
        assert!(nice.parse::<u32>().is_ok() && score.is_some(), "{ended}");
    }
}

#[test]
fn no_process_of_a_run_has_the_callers_real_time() {
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("chrt"), Need::Program("ionice")]) else {
        return;
    };
    let script = format!(
        r#"{AWAIT}
        ! ionice -c1 -n0 true || ionice -c1 -n0 "$PRODUCT" run -- ionice
        deadline="chrt -d --sched-runtime 5000000 --sched-deadline 10000000 --sched-period 10000000 0"
        ! $deadline true || $deadline "$PRODUCT" run -- true || echo "deadline=$?"
        chrt -f 1 true || exit 0
        chrt -f 1 "$PRODUCT" run -- sh -c ": >begun; exec sleep 60" & run=$!; await "[ -e begun ]" 20
        for process in $run $(cat /proc/$run/task/$run/children); do
            echo "policy=$(cut -d" " -f 41 /proc/$process/stat)"
        done; kill $run"#
    );
    let ended = site.shell().run(&script);
    for line in ended.stdout.lines() {
        let is_ordinary = line == "policy=0" || line.starts_with("none") || line.starts_with("best-effort");
        assert!(is_ordinary, "{ended}");
    }
}

#[test]
fn a_state_directory_that_is_another_name_of_a_folder_in_the_workspace_is_not_shown() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = r#"
        mkdir -p inner/state beside state; exec unshare --mount sh -uc '
            mount --bind inner/state state; export XDG_STATE_HOME=$PWD/state
            for folder in inner beside; do "$PRODUCT" run --workspace "$PWD/$folder" -- true; echo "$folder=$?"; done
            "$PRODUCT" run --workspace "$PWD/inner" --workspace-mode ro -- true; echo "ro=$?"'"#;
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "inner=125\nbeside=0\nro=125\n", "{ended}");
    assert!(ended.stderr.contains("this program's records, keys and images are there"), "{ended}");
}

#[test]
fn what_every_run_obeys_is_not_shown_where_it_is_mounted_below_a_folder() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = r#"
        mkdir -p w/st keys settings/lockgate other state/lockgate/keys; : >w/key
        export XDG_STATE_HOME=$PWD/state XDG_CONFIG_HOME=$PWD/settings; chmod -R go-w state
        exec unshare --mount sh -uc '
            try() { what=$1; shift; (cd w && "$PRODUCT" run "$@" -- true); echo "$what=$?"; }
            try nothing
            mount --bind other w/st; try other; umount w/st
            mount --bind state/lockgate w/st; for mode in rw ro; do try $mode --workspace-mode $mode; done
            try shown --workspace "$PWD/other" --mount "$PWD/w:/x"; try copied --workspace "$PWD/other" --copy "$PWD/w:/tmp/x"
            umount w/st; mount --bind . w/st; try around; umount w/st
            : >state/lockgate/keys/one; mount --bind state/lockgate/keys/one w/key; try key; umount w/key
            mount --bind settings w/st; try settings; try read --workspace-mode ro; umount w/st
            mount --bind keys state/lockgate/keys; try part --workspace "$PWD/keys"'"#;
    let ended = site.shell().run(script);
    let expected = "nothing=0\nother=0\nrw=125\nro=125\nshown=125\ncopied=125\naround=125\nkey=125\nsettings=125\nread=0\npart=125\n";
    assert_eq!(ended.stdout, expected, "{ended}");
}

#[test]
fn a_policy_with_another_name_in_the_workspace_is_refused() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let script = r#"
        mkdir -p w/sub w/held alias out; for file in w/p.toml w/held/p.toml out/p.toml linked.toml; do : >$file; done
        ln linked.toml w/linked
        exec unshare --mount sh -uc '
            try() { "$PRODUCT" run --workspace "$PWD/w" --policy "$@" -- true; echo "$1=$?"; }
            try out/p.toml; try w/held/p.toml; try linked.toml; try linked.toml --workspace-mode ro
            mount --bind w alias; try alias/p.toml; try alias/held/p.toml; try w/p.toml
            mount --bind out w/sub; try out/p.toml; try w/sub/p.toml'"#;
    let ended = site.shell().run(script);
    let expected = "out/p.toml=0\nw/held/p.toml=0\nlinked.toml=125\nlinked.toml=0\nalias/p.toml=125\nalias/held/p.toml=125\nw/p.toml=0\n\
                    out/p.toml=125\nw/sub/p.toml=0\n";
    assert_eq!(ended.stdout, expected, "{ended}");
}
