//! How a sidecar alone starts, fails to start, and restarts.

use lockgate_clients::{Ended, Need, Site, allowing, bearer_provider};

/// `sidecar NAME FLAGS…` tries to start one, and `up NAME FLAGS…` starts one as `$sidecar`, with its output in the file NAME.
const TOOLS: &str = r#"complaints='*.err'
sidecar() { name=$1; shift; timeout 20 "$PRODUCT" sidecar --policy policy.toml --forward 127.0.0.1:0 "$@" 2>"$name.err"; echo "$name=$?"; }
up() { name=$1; shift; "$PRODUCT" sidecar --policy policy.toml --forward 127.0.0.1:0 "$@" 2>"$name.err" & sidecar=$!; await "grep -q 'proxy at' $name.err"; }
"#;

/// Runs a script in a new folder with a policy in it.
fn script(site: &Site, text: &str) -> Ended {
    let here = site.folder("starts");
    let policy = allowing(&["api.example.com"]) + &bearer_provider("https://protocols.example/*");
    site.file(&format!("{}/policy.toml", here.file_name().unwrap_or_default().display()), policy);
    site.shell().in_folder(&here).run(&format!("{TOOLS}{text}"))
}

#[test]
fn a_start_that_fails_writes_nothing() {
    let Some(site) = Site::for_test(&[]) else { return };
    let left = script(
        &site,
        r#"echo old > ca; (umask 077; echo old > env); all="--ca ca --env-file env --audit a.jsonl"
        export RUN_TOKEN=token PLATFORM_API_URL=http://localhost:9100
        sidecar name $all; cat ca env; stat -c size=%s a.jsonl
        export PLATFORM_API_URL=http://127.0.0.1:9100
        RUN_TOKEN='a b' sidecar token $all; sidecar folder --ca ca --env-file none/env --audit a.jsonl
        cat ca env; stat -c size=%s a.jsonl; cat *.err
        up right $all; kill $sidecar; wait $sidecar; echo "right=$?"; head -1 ca; cut -d= -f1 env"#,
    );
    let nothing = "old\nold\nsize=0\n";
    let told = left.stdout.strip_prefix(&format!("name=2\n{nothing}token=2\nfolder=2\n{nothing}"));
    let told = told.unwrap_or_else(|| panic!("{left}"));
    for variable in ["PLATFORM_API_URL: write it as http://ADDRESS:PORT", "RUN_TOKEN: it ", "none/env: "] {
        assert!(told.contains(variable), "{variable}: {left}");
    }
    assert!(told.ends_with("right=0\n-----BEGIN CERTIFICATE-----\nONE_TOKEN\n"), "{left}");
}

#[test]
fn in_a_directory_each_start_has_an_audit_of_its_own() {
    let Some(site) = Site::for_test(&[]) else { return };
    let left = script(
        &site,
        r#"mkdir audits; all="--audit audits"
        up killed $all; kill -9 $sidecar; wait $sidecar
        up ended $all; kill $sidecar; wait $sidecar
        RUN_TOKEN=token PLATFORM_API_URL=http://localhost:9100 sidecar failed $all
        for file in audits/*; do "$PRODUCT" audit verify $file | cut -d: -f1; done
        sidecar used --audit "$(ls audits/* | head -1)"; cat used.err"#,
    );
    assert!(left.stdout.starts_with("failed=2\nvalid\nvalid\nused=2\n"), "{left}");
    assert!(left.stdout.contains("holds records already"), "{left}");
}

#[test]
fn no_file_is_written_that_somebody_else_may_have_put_there() {
    let Some(site) = Site::for_test(&[Need::Root]) else { return };
    let left = script(
        &site,
        r#"for flag in --ca --env-file --audit; do
            (umask 077; : >other); chown 61003 other; : >open; chmod 666 open; ln -sf target link
            for file in other open link; do sidecar $file $flag $file; tail -n 2 $file.err; done
        done
        cat other open; [ ! -e target ] && echo none
        umask 0; up made --ca ca --env-file env --audit a.jsonl; kill $sidecar; stat -c %a ca env a.jsonl"#,
    );
    for told in [
        "belongs to user 61003",
        "others may write to it (mode 0666)",
        "it is a link",
        "name a file that is not there yet",
    ] {
        let times = if told.starts_with("name") { 9 } else { 3 };
        assert_eq!(left.stdout.matches(told).count(), times, "{told}: {left}");
    }
    assert_eq!(
        ["other=2", "open=2", "link=2"].map(|said| left.stdout.matches(said).count()),
        [3; 3],
        "{left}"
    );
    assert!(left.stdout.ends_with("none\n644\n600\n600\n"), "{left}");
}

#[test]
fn an_audit_is_a_file_that_nobody_else_writes() {
    let Some(site) = Site::for_test(&[]) else { return };
    let left = script(
        &site,
        r#"mkfifo pipe; ln -s pipe link
        for place in pipe link /dev/null; do sidecar none --audit $place; cat none.err; done
        up first --audit a.jsonl; truncate -s 0 a.jsonl; ln a.jsonl same
        sidecar second --audit same; cat second.err
        kill -9 $sidecar; wait $sidecar; truncate -s 0 a.jsonl
        up third --audit a.jsonl; kill $sidecar; wait $sidecar; "$PRODUCT" audit verify a.jsonl | cut -d: -f1"#,
    );
    assert_eq!(left.stdout.matches("none=2\n").count(), 3, "{left}");
    assert_eq!(left.stdout.matches("is no regular file").count(), 3, "{left}");
    assert!(left.stdout.contains("second=2\n") && left.stdout.contains("another sidecar writes "), "{left}");
    assert!(left.stdout.ends_with("valid\n"), "{left}");
}

#[test]
fn a_sidecar_takes_away_the_socket_it_bound_and_no_other() {
    let Some(site) = Site::for_test(&[]) else { return };
    let left = script(
        &site,
        r#"up first --gateway-socket gate; one=$sidecar; rm gate
        up second --gateway-socket gate; two=$sidecar
        kill $one; wait $one; [ -S gate ] && echo stays
        kill $two; wait $two; [ -e gate ] || echo goes
        sidecar failed --gateway-socket gate --dns 203.0.113.7:53; [ -e gate ] || echo none
        RUN_TOKEN=token PLATFORM_API_URL=http://name:1 sidecar judged --gateway-socket gate; [ -e gate ] || echo none"#,
    );
    assert_eq!(left.stdout, "stays\ngoes\nfailed=125\nnone\njudged=2\nnone\n", "{left}");
}

#[test]
fn a_home_is_needed_for_a_vault_or_an_audit_alone() {
    let Some(site) = Site::for_test(&[]) else { return };
    let left = script(
        &site,
        r#"state=$XDG_STATE_HOME; unset XDG_STATE_HOME HOME; mv policy.toml keys.toml
        cp keys.toml policy.toml; sidecar vault; cat vault.err
        export RUN_TOKEN=token PLATFORM_API_URL=http://127.0.0.1:9100
        up platform --ca ca --env-file env; kill $sidecar; wait $sidecar; echo "platform=$?"; unset RUN_TOKEN PLATFORM_API_URL
        head -3 keys.toml > policy.toml; sidecar audit --audit a.jsonl
        up rules; kill $sidecar; wait $sidecar; echo "rules=$?""#,
    );
    assert!(left.stdout.starts_with("vault=125\n"), "{left}");
    assert!(left.stdout.contains("XDG_STATE_HOME") && left.stdout.contains("platform=0\n"), "{left}");
    assert!(left.stdout.ends_with("audit=125\nrules=0\n"), "{left}");
}

#[test]
fn what_a_denial_recommends_goes_into_the_file_that_was_named() {
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    let left = script(
        &site,
        r#"mkdir "a b"; cp policy.toml "a b/p.toml"
        "$PRODUCT" sidecar --policy "a b/p.toml" --forward 127.0.0.1:8081 2>err & sidecar=$!; await 'grep -q "proxy at" err'
        curl -sS -x http://127.0.0.1:8081 http://www.example.org/; kill $sidecar"#,
    );
    let recommended = "lockgate policy allow --policy '";
    assert!(
        left.stdout.contains(recommended) && left.stdout.contains("/a b/p.toml' www.example.org:80"),
        "{left}"
    );
}

#[test]
fn what_else_has_a_say_is_named() {
    let Some(site) = Site::for_test(&[]) else { return };
    let left = script(
        &site,
        r#"export XDG_CONFIG_HOME=$PWD/config; mkdir -p config/lockgate
        up alone; kill $sidecar; wait $sidecar; grep -c 'beside\|NO_PROXY' alone.err
        printf 'timeout = "5m"\n[[egress.allow]]\nhost = "www.example.org"\n' > config/lockgate/config.toml
        export LOCKGATE_PRESETS=github PROXY_URL=http://127.0.0.1:3128 NO_PROXY=example.com,10.0.0.0/8
        up beside; kill $sidecar; wait $sidecar; cat beside.err"#,
    );
    let told = left.stdout.strip_prefix("0\n").unwrap_or_else(|| panic!("{left}"));
    for words in
        ["/config.toml (egress.allow), LOCKGATE_PRESETS (presets)\n", "through the proxy: 10.0.0.0/8\n"]
    {
        assert!(told.contains(words), "{words}: {left}");
    }
}

#[test]
fn as_the_first_process_it_takes_what_others_leave() {
    let Some(site) = Site::for_test(&[Need::Program("unshare")]) else { return };
    let left = script(
        &site,
        r#"cat > first.sh <<'END'
        (sleep 0.2 &); (sleep 0.3 &)
        exec "$PRODUCT" sidecar --policy policy.toml --forward 127.0.0.1:0 2>first.err
END
        unshare --user --map-root-user --pid --fork --mount-proc --kill-child sh first.sh & unshare=$!
        await 'grep -q "proxy at" first.err'; read -r first < /proc/$unshare/task/$unshare/children
        children() { wc -w < /proc/$first/task/$first/children; }
        await '[ "$(children)" = 1 ]'; read -r serving < /proc/$first/task/$first/children
        kill -9 $serving; wait $unshare; echo "lost=$?"; cat first.err"#,
    );
    assert!(left.stdout.contains("lost=125\n") && left.stdout.contains("it ended unasked"), "{left}");
}
