//! A state directory on a file system that takes no writes: nothing runs without a record, and the message says what is wrong. L10.

use std::time::Duration;

use lockgate_clients::{Need, Site, product, run_to_end};

#[test]
fn a_run_that_cannot_be_recorded_does_not_begin() {
    let Some(site) = Site::for_test(&[Need::Root, Need::Program("unshare")]) else { return };
    let script = r#"
        try() { "$PRODUCT" "$@" 2>err; code=$?; echo "code=$code lines=$(grep -c '^lockgate: ' err) $(tr '\n' ' ' < err)"; }
        mkdir state; mount -t tmpfs none state; export XDG_STATE_HOME=$PWD/state
        try run --workspace "$WORK" -- echo ran
        mount -o remount,ro state
        try run --workspace "$WORK" -- echo ran
        mount -o remount,rw state; rm -r state/lockgate; mount -o remount,ro state
        try run --workspace "$WORK" -- echo ran
        printf value | try creds set one --stdin"#;
    let mut command = site.world().command("unshare");
    command.args(["--mount", "sh", "-uc", script]).current_dir(site.outside()).env("WORK", site.workspace());
    command.env("PRODUCT", product().expect("`Site` asked first"));
    let ended = run_to_end(&mut command, Duration::from_secs(60));
    let lines: Vec<&str> = ended.stdout.lines().collect();
    // The control: it runs where it can write.
    assert_eq!(lines[0], "ran", "{ended}");
    assert!(lines[1].starts_with("code=0 "), "{ended}");
    assert_eq!(lines.len(), 5, "the command ran: {ended}");
    for line in &lines[2..] {
        let code: u32 = line.strip_prefix("code=").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0);
        assert!((125..=127).contains(&code) && line.contains(" lines=1 "), "{line}: {ended}");
        assert!(
            line.contains("/state/lockgate") && line.contains("Read-only file system"),
            "{line}: {ended}"
        );
    }
}
