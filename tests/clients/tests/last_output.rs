//! The last output of a command: whoever reads late gets all of it, and what is lost is told. What is left unread stops no clock.
//! S0.24, L07.

use lockgate_clients::{Need, Site};

/// More than a pipe and a piece that is being copied hold.
const WRITES: &str = "head -c 200000 /dev/zero | tr '\\0' x";

#[test]
fn one_ctrl_c_that_was_answered_by_going_on_costs_no_output() {
    let Some(site) = Site::for_test(&[]) else { return };
    let script = format!(
        r#"{{ env --default-signal=INT "$PRODUCT" run -- sh -c 'trap ": > asked" INT; : > begun
                while [ ! -e asked ]; do sleep 0.02; done; {WRITES}' & run=$!
            await '[ -e begun ]'; kill -INT $run; wait $run; echo "code=$?" >&2; }} | {{ await '[ -e asked ]'; sleep 3; wc -c; }}"#
    );
    let ended = site.shell().run(&script);
    assert!(ended.stdout == "200000\n" && ended.stderr.contains("code=0\n"), "{ended}");
}

#[test]
fn output_that_is_left_when_the_run_is_made_to_end_is_told() {
    let Some(site) = Site::for_test(&[]) else { return };
    // A pipe takes 64 KiB. With a terminal, a little more is on its way.
    for (flag, size) in [("", "120000"), ("--terminal", "66500")] {
        let script = format!(
            r#"rm -f written over; {{ "$PRODUCT" run {flag} -- sh -c '{}; : > written' & run=$!
                await '[ -e written ]'; sleep 0.5; kill -TERM $run; wait $run; echo "code=$?" >&2; : > over; }} |
                {{ await '[ -e over ]' 30; wc -c; }}"#,
            WRITES.replace("200000", size)
        );
        let ended = site.shell().run(&script);
        assert!(ended.stdout.trim() != size && ended.stderr.contains("code=125\n"), "{flag}: {ended}");
        assert!(ended.stderr.contains("nobody read the rest of it"), "{flag}: {ended}");
    }
}

#[test]
fn an_output_that_nobody_reads_stops_no_clock_however_much_there_is_to_tell() {
    // Standard error is the same pipe, so that each denial comes after what the command wrote before it.
    let Some(site) = Site::for_test(&[Need::Program("python3")]) else { return };
    let asks = site.file(
        "asks.py",
        "import itertools, socket, sys\nsys.stdout.write('x' * 60000); sys.stdout.flush()\n\
         for i in itertools.count():\n  sys.stdout.write('x' * 4000) if i == 1 else None\n  \
         try: socket.getaddrinfo('h%d.example.org' % i, 80)\n  except OSError: pass\n",
    );
    let script = format!(
        r#"begun=$(date +%s); {{ "$PRODUCT" run --mount {0}:{0} --timeout 3s -- python3 {0} 2>&1; : > over; }} | {{ await '[ -e over ]' 60; }}
            [ $(( $(date +%s) - begun )) -lt 14 ] && echo "in time""#,
        asks.display()
    );
    let ended = site.shell().run(&script);
    assert_eq!(ended.stdout, "in time\n", "{ended}");
}

#[test]
fn a_report_is_in_its_file_although_nobody_reads_standard_error() {
    let Some(site) = Site::for_test(&[]) else { return };
    let script = r#"{ "$PRODUCT" run --json --json-file report --timeout 1s -- sh -c 'head -c 300000 /dev/zero >&2' 2>&1
            echo "code=$?" > over; } | { await '[ -e over ]' 40; }; cat over; grep -c '"exit_code":124' report"#;
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "code=125\n1\n", "{ended}");
}

#[test]
fn records_that_are_lost_are_told_whatever_the_run_ends_with() {
    // The disk is full from the middle of the run on.
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("curl")]) else { return };
    let script = r#"mkdir "$OUTSIDE/full"; exec unshare --mount sh -uc 'state=$OUTSIDE/full; mount -t tmpfs -o size=192k,mode=700 none "$state"; export XDG_STATE_HOME=$state
        "$PRODUCT" run -- sh -c ": > begun; until [ -e full ]; do sleep 0.05; done
            for i in 1 2 3 4 5 6 7 8 9; do curl -s -o /dev/null http://h\$i.example.org/; done; echo end" > /dev/full & run=$!
        until [ -e begun ]; do sleep 0.05; done; dd if=/dev/zero of="$state/filler" bs=1k 2>/dev/null; : > full
        wait $run; echo "code=$?"'"#;
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "code=125\n", "{ended}");
    assert!(ended.stderr.contains("the audit is not whole"), "{ended}");
    assert!(ended.stderr.contains("standard output"), "{ended}");
}
