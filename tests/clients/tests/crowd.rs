//! Two hundred runs at once, and no trace of them a second later. It has a file of its own because it is the heaviest test. DESIGN §10;
//! L01, L09, L11.

use std::time::Duration;

use lockgate_clients::{Need, Site};

const LIMIT: Duration = Duration::from_secs(150);
/// Counts failures, waits a second, and lists what is left: processes of the world, markers, groups, files.
const SCRIPT: &str = r#"
i=0; all=
while [ $i -lt 200 ]; do
    "$PRODUCT" run -- sleep 5 >>"$OUTSIDE/out" 2>>"$OUTSIDE/err" & all="$all $!"; i=$((i+1))
done
bad=0; for run in $all; do wait "$run" || bad=$((bad+1)); done
sleep 1
echo "bad=$bad"
echo "left=$(ps -e -o comm= | grep -c -x -e lockgate -e sleep)"
echo "live=$(ls "$XDG_STATE_HOME/lockgate/live" | wc -l)"
echo "runs=$(ls "$XDG_STATE_HOME/lockgate/runs" | wc -l)"
groups=0; for id in $(ls "$XDG_STATE_HOME/lockgate/runs"); do
    groups=$((groups + $(find /sys/fs/cgroup -maxdepth 6 -type d -name "lockgate-$id" 2>/dev/null | wc -l)))
done
echo "groups=$groups"
echo "workspace=$(ls -A | wc -l)"
echo "mounts=$(grep -c "$PWD" /proc/self/mountinfo)"
echo end"#;

fn crowd(site: &Site) {
    let ended = site.shell().within(LIMIT).run(SCRIPT);
    let expected = "bad=0\nleft=0\nlive=0\nruns=200\ngroups=0\nworkspace=0\nmounts=0\nend\n";
    let complaints = std::fs::read_to_string(site.outside().join("err")).unwrap_or_default();
    let complaints: Vec<&str> = complaints.lines().filter(|line| !line.contains("note:")).take(20).collect();
    assert!(ended.stdout == expected, "{ended}\n{complaints:#?}");
}

#[test]
fn two_hundred_at_once_leave_nothing() {
    let Some(site) = Site::for_test(&[Need::Program("ps")]) else { return };
    crowd(&site);
}

#[test]
fn two_hundred_of_a_plain_user_leave_nothing() {
    let Some(site) = Site::for_unprivileged_test(&[Need::Program("ps")]) else { return };
    crowd(&site);
}
