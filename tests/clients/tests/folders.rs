//! A folder is the same by any name and from any working directory: the one whose file was approved, the one a run worked in, and never the
//! one with this program's keys. S4.2, S4.60; L09.

use std::fs;

use lockgate_clients::{Ended, Need, Site};

/// Runs a script of the caller's in a new folder, `$HERE`.
fn in_a_new_folder(site: &Site, script: &str) -> Ended {
    let here = site.folder("here");
    site.shell().in_folder(&here).with("HERE", &here).run(script)
}

#[test]
fn an_approved_file_shows_what_lies_beside_it() {
    let Some(site) = Site::for_test(&[]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"mkdir -p a/data b/data; echo of-a > a/data/f; echo of-b > b/data/f; 
        printf '[[mount]]\nsource = "data"\ntarget = "/data"\n[[copy]]\nsource = "data/f"\ntarget = "/copied"\n' > a/lockgate.toml
        (cd a; lockgate policy approve)
        for from in "a ." "b $HERE/a" "a ./" ". a" ". a/"; do
            set -- $from; (cd "$1"; lockgate run --workspace "$2" -- cat /data/f /copied) || echo "failed $from"
        done
        cd b; lockgate run --policy ../a/lockgate.toml -- cat /data/f"#,
    );
    assert_eq!(ended.stdout, "of-a\n".repeat(11), "{ended}");
}

#[test]
fn a_home_or_a_state_behind_a_link_is_as_shut_as_by_its_own_name() {
    let Some(site) = Site::for_test(&[]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"mkdir -p real/.ssh work/state aside; echo KEY > real/.ssh/id; ln -s real home; ln -s work/state state
        cd real; HOME="$HERE/home" lockgate run -- cat .ssh/id; echo "home=$?"; cd ../work
        XDG_STATE_HOME="$HERE/state" lockgate run -- sh -c 'ls state/lockgate'; echo "state=$?"
        (unset XDG_STATE_HOME; HOME=. lockgate run -- ls .local); echo "relative=$?""#,
    );
    assert_eq!(ended.stdout, "home=2\nstate=125\nrelative=125\n", "{ended}");
    for why in
        ["it holds your home", "this program's records, keys and images are there", "names an absolute path"]
    {
        assert!(ended.stderr.contains(why), "{why}: {ended}");
    }
}

#[test]
fn what_was_kept_apart_is_decided_on_in_its_own_folder() {
    let Some(site) = Site::for_test(&[]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"mkdir one two; for at in one two; do
            (cd $at; lockgate run --workspace-mode overlay -- sh -c "echo $at > made")
        done
        lockgate discard; echo "none=$?"; (cd one; lockgate diff --stat; lockgate apply; cat made)
        (cd one; lockgate discard); echo "others=$?"; (cd two; lockgate diff --stat; lockgate discard; ls)"#,
    );
    assert_eq!(ended.stdout, "none=1\nA made\none\nothers=1\nA made\n", "{ended}");
    assert!(ended.stderr.contains("has some of ") && ended.stderr.contains("/two: name it"), "{ended}");
    for told in ["1 path of run ", " was taken over into ", "/one\n", "was dropped"] {
        assert!(ended.stderr.contains(told), "{told}: {ended}");
    }
    assert!(
        fs::read_dir(site.state().join("lockgate/changes")).expect("a folder").next().is_none(),
        "{ended}"
    );
}

#[test]
fn of_several_runs_that_keep_changes_none_is_dropped_unnamed() {
    let Some(site) = Site::for_test(&[]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"lockgate runs ls
        for name in a b c; do lockgate run --workspace-mode overlay -- touch $name; done
        lockgate audit follow; lockgate apply; ls; lockgate discard; echo "unnamed=$?"
        lockgate runs ls | grep -c '(keeps changes)$'; lockgate runs show | grep -c '^changes'
        lockgate runs show "$(lockgate runs ls -q | tail -n 1)" | grep '^changes' | cut -d: -f1
        lockgate discard "$(lockgate runs ls -q | tail -n 1)"; echo "named=$?"; lockgate discard; echo "last=$?""#,
    );
    assert_eq!(ended.stdout, "c\nunnamed=2\n2\n0\nchanges    kept apart\nnamed=0\nlast=0\n", "{ended}");
    for told in [
        "no run is on record",
        ": no request was recorded",
        " keep changes of it as well",
        "several runs of this folder keep changes: ",
    ] {
        assert!(ended.stderr.contains(told), "{told}: {ended}");
    }
}

#[test]
fn what_is_taken_over_in_parts_leaves_nothing_in_the_end() {
    let Some(site) = Site::for_test(&[]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"lockgate run --workspace-mode overlay -- touch a b
        lockgate apply --path a --path b; ls; lockgate runs rm latest; echo "removed=$?"
        lockgate run --workspace-mode overlay -- touch c d
        lockgate apply --path c; lockgate runs rm latest; echo "kept=$?""#,
    );
    assert_eq!(ended.stdout, "a\nb\nremoved=0\nkept=2\n", "{ended}");
    assert_eq!(ended.stderr.matches("the rest is kept").count(), 1, "{ended}");
}

#[test]
fn an_audit_that_ends_before_its_run_does_not_hold() {
    let Some(site) = Site::for_test(&[]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"lockgate run -- true; lockgate audit verify >/dev/null && echo whole
        audit=$(ls "$XDG_STATE_HOME"/lockgate/audit/*.jsonl); sed -i '$d' "$audit"
        lockgate audit verify >/dev/null || echo "cut=$?"; lockgate audit verify --json 2>/dev/null
        printf 'half a rec' >> "$audit"; lockgate audit show >/dev/null && echo shown"#,
    );
    assert!(ended.stdout.starts_with("whole\ncut=1\n{\"holds\":false,"), "{ended}");
    assert!(ended.stdout.ends_with("shown\n") && ended.stderr.contains("cut off at its end"), "{ended}");
}

#[test]
fn a_command_without_dashes_is_told_where_they_go() {
    let Some(site) = Site::for_test(&[]) else { return };
    let ended = site.lockgate(&["run", "make", "--version"]);
    assert!(ended.code == 2 && ended.stderr.contains("lockgate run -- make"), "{ended}");
}

#[test]
fn a_key_that_links_to_nothing_ends_nothing_but_what_needs_it() {
    let Some(site) = Site::for_test(&[]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"keys="$XDG_STATE_HOME/lockgate/keys"; mkdir -p "$keys"; for key in vault.key audit.pk8; do ln -s nowhere "$keys/$key"; done
        lockgate creds ls; echo "creds=$?"; lockgate run -- true; echo "run=$?"; rm "$keys/audit.pk8"; mkfifo "$keys/audit.pk8"
        timeout 10 "$PRODUCT" run -- true; echo "pipe=$?""#,
    );
    assert_eq!(ended.stdout, "creds=125\nrun=125\npipe=125\n", "{ended}");
    assert!(
        ended.stderr.contains("a link to nothing") && ended.stderr.contains("no regular file"),
        "{ended}"
    );
}

#[test]
fn a_file_of_a_folder_above_is_not_read_and_that_is_told() {
    let Some(site) = Site::for_test(&[]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"mkdir -p a/b/c; printf '[env]\nset = { SAID = "above" }\n' > a/lockgate.toml; (cd a; lockgate policy approve)
        told() { (cd "$1"; shift; lockgate run "$@" -- sh -c 'echo "said=${SAID-none}"' 2>&1 | grep -o 'said=.*\|counts for.*' | sed "s|$HERE/||"); }
        told a; told a/b/c; told a/b/c --workspace "$HERE/a"; told a/b --no-project; touch a/b/lockgate.toml; told a/b"#,
    );
    let told = "said=above\n\
        counts for runs in its own folder, and this one is not: lockgate run --workspace a reads it\nsaid=none\n\
        said=above\nsaid=none\nsaid=none\n";
    assert_eq!(ended.stdout, told, "{ended}");
}

#[test]
fn an_engines_socket_is_shown_under_no_name() {
    // S3.10
    let Some(site) = Site::for_test(&[Need::Program("python3")]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"mkdir work engine other; cd work
        python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind("../engine/s")'
        export DOCKER_HOST="unix://$HERE/engine/s"
        try() { lockgate run "$@" -- true; echo "$?"; }
        try --mount "$HERE/engine:/x"; try --mount "$HERE/engine/s:/x"; try --copy "$HERE/engine:/x"; try --workspace "$HERE/engine"
        try --mount "$HERE/other:/x"; ln ../engine/s ../other/s
        try --mount "$HERE/other:/x"; try --mount "$HERE/other/s:/x"; try
        rm ../other/s; try"#,
    );
    assert_eq!(ended.stdout, "125\n125\n125\n125\n0\n125\n125\n125\n0\n", "{ended}");
    for why in ["the engine's socket is there", "has a second name, which may be there"] {
        assert!(ended.stderr.contains(why), "{why}: {ended}");
    }
}

#[test]
fn an_engines_socket_in_a_session_is_shown_by_no_name_where_no_variable_names_the_session() {
    let needs = [Need::Root, Need::Program("python3"), Need::Program("setpriv")];
    let Some(site) = Site::for_test(&needs) else { return };
    let script = r#"
        chmod 711 "$OUTSIDE/.."; cp "$PRODUCT" "$OUTSIDE/product"; chmod 755 "$OUTSIDE" "$OUTSIDE/product"
        mkdir -p /run/user; install -d -o 61001 home work; cd work; unset XDG_RUNTIME_DIR
        exec unshare --mount sh -uc 'session=/run/user/61001; mount -t tmpfs none /run/user; mkdir -p $session/podman $session/other
            python3 -c "import socket; socket.socket(socket.AF_UNIX).bind(\"$session/podman/podman.sock\")"; chown -R 61001 $session
            own() { HOME=$HERE/home XDG_STATE_HOME=$HERE/home setpriv --reuid 61001 --clear-groups "$OUTSIDE/product" "$@"; }
            for lockgate in own "$PRODUCT"; do for folder in $session/podman $session /run/user $session/other; do
                $lockgate run --mount $folder:/x -- true; echo "$?"
            done; done'"#;
    let ended = in_a_new_folder(&site, script);
    assert_eq!(ended.stdout, "125\n125\n125\n0\n".repeat(2), "{ended}");
    assert_eq!(ended.stderr.matches("the engine's socket is there").count(), 6, "{ended}");
}

#[test]
fn links_in_a_repository_are_refused_before_a_run_and_gone_after_it() {
    for site in Site::for_everyone(&[Need::Program("git")]) {
        let ended = in_a_new_folder(
            &site,
            r#"git init -q -b main . && echo mine > ../bashrc && chmod 644 ../bashrc
        lockgate run -- sh -c 'mkdir -p .git/logs/refs && ln -s "$1" .git/logs/HEAD && ln -s "$1" .git/COMMIT_EDITMSG
            ln -s .git/HEAD plain && mkdir .git/closed && ln -s x .git/closed/y && chmod 0 .git/closed' sh "$HERE/../bashrc"
        echo "ended=$?"; find .git -type l; ls plain; lockgate runs show latest | grep -c 'took away'
        git -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m first; cat ../bashrc
        ln -s nowhere .git/FETCH_HEAD; lockgate run -- true; echo "refused=$?"
        lockgate run --open .git -- true; echo "open=$?"; rm .git/FETCH_HEAD
        echo "gitdir: not/yet" > other; mkdir w; mv other w/.git; (cd w; lockgate run -- true); echo "inside=$?"
        lockgate run --workspace-mode overlay -- ln -s /etc/passwd .git/FETCH_HEAD; lockgate diff --stat"#,
        );
        let expected = "ended=0\nplain\n3\nmine\nrefused=125\nopen=0\ninside=125\n";
        assert!(ended.stdout.starts_with(expected), "{ended}");
        assert!(ended.stdout.contains("FETCH_HEAD  (this machine would execute or trust it)"), "{ended}");
        for told in ["/.git/logs/HEAD`, a link to `", "`.git/FETCH_HEAD` is a symbolic link", "--open .git"] {
            assert!(ended.stderr.contains(told), "{told}: {ended}");
        }
    }
}

#[test]
fn what_holds_a_name_in_a_folder_that_was_shut_is_not_forgotten() {
    for site in Site::for_everyone(&[]) {
        let ended = in_a_new_folder(
            &site,
            r#"mkdir shut; (cd shut; lockgate run -- sh -c 'chmod 0 .' 2> ../told); echo "ended=$?"
            mkdir other; (cd other; lockgate run -- true 2> /dev/null); chmod 755 shut
            (cd other; lockgate run -- true 2> /dev/null); ls -A shut other"#,
        );
        assert_eq!(ended.stdout, "ended=0\nother:\n\nshut:\n", "{ended}");
    }
}

// Beside a run of one user's, git and runs of another in the same folder; and what holds once the first of both runs has ended.
#[test]
fn a_folder_of_several_users_can_be_used_by_each_and_written_by_no_command_where_it_is_protected() {
    let needs = [Need::Root, Need::Program("setpriv"), Need::Program("git"), Need::Program("setfacl")];
    let Some(site) = Site::for_test(&needs) else { return };
    let script = r#"
        chmod 711 "$OUTSIDE/.."; chmod 755 "$OUTSIDE"; cp "$PRODUCT" "$OUTSIDE/product"; chmod 755 "$OUTSIDE/product"
        unset XDG_STATE_HOME; umask 002; chown 61001:61009 .; chmod 2775 .; $CLOSED
        for user in 61001 61002; do install -d -o $user "$OUTSIDE/$user"; done
        as() { user=$1; shift; HOME=$OUTSIDE/$user setpriv --reuid $user --regid 61009 --clear-groups "$@"; }
        as 61001 git init -q --shared --template= .; as 61002 git config --global safe.directory '*'
        as 61001 "$OUTSIDE/product" run -- sh -c 'touch one; until [ -e over ]; do sleep 0.02; done' & one=$!
        await '[ -e one ]'
        for mode in rw ro overlay; do as 61002 "$OUTSIDE/product" run --workspace-mode $mode -- true; echo "$mode=$?"; done
        for words in "git status --short" "git clone -q . $OUTSIDE/61002/clone" "$OUTSIDE/product config show" "tar -cf ../outside/61002/x ."
        do as 61002 $words >/dev/null || echo "failed: $words"; done
        as 61002 "$OUTSIDE/product" policy allow example.com; echo "allow=$?"
        as 61002 "$OUTSIDE/product" run -- sh -c 'touch two; until [ -e end ]; do sleep 0.02; done
            for name in .git/hooks .git/commondir lockgate.toml; do (echo evil >$name || mkdir $name || echo evil >$name/x) && echo made; done; true' & two=$!
        await '[ -e two ]'; touch over; wait $one; echo "one=$?"; touch end; wait $two; echo "two=$?"; ls -A . .git"#;
    for closed in ["", "setfacl -d -m g::rwx,o::- ."] {
        let ended = site
            .shell()
            .with("CLOSED", closed)
            .run(&format!("{script}; rm -rf .git one two over end \"$OUTSIDE/61002/clone\""));
        let expected = "rw=0\nro=0\noverlay=0\nallow=2\none=0\ntwo=0\n.:\n.git\nend\none\nover\ntwo\n\n.git:\nHEAD\nconfig\nobjects\nrefs\n";
        assert_eq!(ended.stdout, expected, "{closed} {ended}");
        assert!(ended.stderr.contains("a run of user 61001 goes on here"), "{ended}");
    }
}

#[test]
fn what_is_protected_is_not_shown_for_writing_by_another_name() {
    let Some(site) = Site::for_test(&[]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"mkdir -p w/.git/hooks w/sub; cd w
        for source in . "$HERE" .git .git/hooks; do
            lockgate run --mount "$source:/mnt:rw" -- true; lockgate run --mount "$source:/mnt" -- ls /mnt > /dev/null; echo $?
        done
        lockgate run --mount sub:/mnt:rw -- touch /mnt/made; ls sub"#,
    );
    assert_eq!(ended.stdout, "0\n0\n0\n0\nmade\n", "{ended}");
    assert_eq!(ended.stderr.matches("cannot be shown for writing").count(), 4, "{ended}");
}

#[test]
fn what_is_protected_is_not_shown_for_writing_where_it_is_mounted_once_more() {
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("unshare")]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"mkdir -p top/w/.git/hooks top/w/.git/modules/a top/w/sub top/w/in alias git above out/in one
        cat > script <<'END'
        mount --bind top/w alias; mount --bind top/w/.git git; mount --bind top above; cd top/w
        try() { what=$1; shift; "$PRODUCT" run "$@" -- true 2>> "$HERE/told"; echo "$what $?"; }
        for source in alias alias/.git git git/hooks above alias/sub above/w/sub; do
            try "$source" --mount "$HERE/$source:/mnt:rw"
        done
        try read-only --mount "$HERE/git:/mnt"
        mount --bind .git/hooks "$HERE/out/in"; try below --mount "$HERE/out:/mnt:rw"
        for source in .git .git/modules/a .. sub; do
            mount --bind $source in; try "in=$source"; umount in
        done
        mount --bind .git in; mount -o remount,bind,ro in; try in-read-only; umount in
        mount --bind .git .git; try itself
END
        unshare -m sh script; cat told >&2"#,
    );
    let refused =
        ["alias", "alias/.git", "git", "git/hooks", "above"].map(|it| format!("{it} 125\n")).concat();
    let shown = "alias/sub 0\nabove/w/sub 0\nread-only 0\n";
    let below =
        "below 125\nin=.git 125\nin=.git/modules/a 125\nin=.. 125\nin=sub 0\nin-read-only 0\nitself 0\n";
    assert_eq!(ended.stdout, refused + shown + below, "{ended}");
    assert_eq!(ended.stderr.matches("cannot be shown for writing").count(), 9, "{ended}");
}

#[test]
fn a_folder_of_a_mount_without_programs_has_none_where_it_is_kept_apart() {
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("unshare")]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"mkdir w; cat > script <<'END'
        mount -t tmpfs -o noexec none w; cd w; printf '#!/bin/sh\necho ran\n' > x; chmod 755 x
        for mode in rw overlay; do "$PRODUCT" run --workspace-mode $mode -- sh -c ./x; echo $?; done
        export HOME="$HERE/home"; mount -t tmpfs -o noexec none "$HOME/.cache/pip"
        mkdir "$HOME/.cache/pip/http-v2"; cp x "$HOME/.cache/pip/http-v2"
        "$PRODUCT" run --builtin-tool pip -- sh -c '~/.cache/pip/http-v2/x'; echo $?
END
        mkdir -p home/.cache/pip; unshare -m sh script"#,
    );
    assert_eq!(ended.stdout, "126\n126\n126\n", "{ended}");
}

#[test]
fn no_link_stays_in_a_repository_however_it_was_hidden() {
    for site in Site::for_everyone(&[Need::Program("git")]) {
        let ended = in_a_new_folder(
            &site,
            r#"git() { command git -c user.name=a -c user.email=a@example.org -c core.logAllRefUpdates=true "$@"; }
        git init -q -b main . && git commit -q --allow-empty -m first && echo mine > ../bashrc && chmod 644 ../bashrc
        lockgate run -- sh -c 'ln -s "$1" .git/objects/info/commit-graph; rm .git/logs/HEAD; ln -s "$1" .git/logs/HEAD
            for i in $(seq 40); do mkdir -p .git/d$i/sub; ln -s "$1" .git/d$i/sub/x; chmod 600 .git/d$i; done; chmod 0 .git' sh "$HERE/../bashrc"
        echo "ended=$?"; find .git -type l; lockgate runs show latest | grep -c 'took away'
        git commit -q --allow-empty -m second; git gc -q; cat ../bashrc
        git init -q --bare bare.git; cd bare.git; lockgate run -- sh -c 'ln -s "$1" FETCH_HEAD; mkdir logs; ln -s "$1" logs/HEAD' sh "$HERE/../bashrc"
        echo "bare=$?"; find . -type l; ln -s x FETCH_HEAD; lockgate run -- true; echo "refused=$?""#,
        );
        assert_eq!(ended.stdout, "ended=0\n33\nmine\nbare=0\nrefused=125\n", "{ended}");
        assert!(ended.stderr.contains("took away 10 more of them in `"), "{ended}");
        for wrong in ["was replaced", "could not take back"] {
            assert!(!ended.stderr.contains(wrong), "{wrong}: {ended}");
        }
    }
}

#[test]
fn a_reference_that_is_a_link_and_an_editors_lock_are_left_as_they_are() {
    let Some(site) = Site::for_test(&[Need::Program("git")]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"git() { command git -c user.name=a -c user.email=a@example.org "$@"; }
        git init -q -b main . && git commit -q --allow-empty -m first; ln -s me@host.123:99 .git/.#COMMIT_EDITMSG
        lockgate run -- git -c core.preferSymlinkRefs=true checkout -q -b x; echo "ended=$?"
        find .git -type l | sort; git symbolic-ref HEAD; lockgate run -- true; echo "ended=$?""#,
    );
    assert_eq!(ended.stdout, "ended=0\n.git/.#COMMIT_EDITMSG\n.git/HEAD\nrefs/heads/x\nended=0\n", "{ended}");
}

#[test]
fn of_a_killed_run_links_go_from_the_repository_it_had_and_from_no_other() {
    let Some(site) = Site::for_test(&[Need::Program("git")]) else { return };
    let ended = in_a_new_folder(
        &site,
        r#"mkdir elsewhere
        kill_one() { "$PRODUCT" run -- sh -c 'ln -s /etc/passwd .git/FETCH_HEAD; touch made; sleep 60' & P=$!
            for i in $(seq 200); do [ -e made ] && break; sleep 0.05; done; kill -9 $P; wait $P 2> /dev/null; rm made; }
        for name in same other; do
            git init -q $name; cd $name; kill_one
            [ $name = other ] && rm -rf .git && mkdir .git && ln -s ../../store/objects .git/objects
            cd ../elsewhere; lockgate run -- true 2> told; grep -c "^lockgate: note: of run .*took away .*$name/.git/FETCH_HEAD" told; cd ..
            find $name/.git -type l
        done
        git init -q again; cd again; kill_one; lockgate run -- true 2> told; echo "here=$?"; grep -c 'start it again' told
        lockgate run -- true; echo "again=$?""#,
    );
    assert_eq!(ended.stdout, "1\n0\nother/.git/objects\nhere=125\n1\nagain=0\n", "{ended}");
}
