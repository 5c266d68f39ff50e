//! Promise: a run uses no more processor than it was given.
//! S1.31, S2.9.

use std::path::Path;
use std::time::Duration;

use lockgate_conformance::{Backend, Bench, Needs, processes_named, ready};

/// Returns how often the kernel held back what is in the process's control groups, because it had used up a quarter of a processor.
/// `cpu.max`, or in version 1 `cpu.cfs_quota_us`; `cpu.stat` of either (the kernel's sched-bwc.rst).
fn held_back(process: u32) -> u64 {
    let read = |path: &Path, name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
    let groups = read(Path::new("/proc").join(process.to_string()).as_path(), "cgroup");
    let mut times = 0;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let group = Path::new("/sys/fs/cgroup").join(controllers).join(path.trim_start_matches('/'));
        for group in group.ancestors() {
            let old = || read(group, "cpu.cfs_quota_us") + " " + &read(group, "cpu.cfs_period_us");
            let quota = Some(read(group, "cpu.max")).filter(|quota| !quota.is_empty()).unwrap_or_else(old);
            let quota: Vec<u64> = quota.split_whitespace().filter_map(|it| it.parse().ok()).collect();
            if matches!(quota[..], [quota, period] if quota * 4 == period) {
                let stat = read(group, "cpu.stat");
                let told =
                    stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse::<u64>().ok());
                times += told.unwrap_or(0);
            }
        }
    }
    times
}

#[test]
fn processor_time_is_bounded() {
    if !ready(&[Needs::Linux, Needs::ControlGroups]) {
        return;
    }
    let bench = Bench::new();
    let run = bench.run(Backend::isolated()).flags(["--cpus", "0.25"]);
    let spins = format!("{} spin", bench.probe().display());
    // The control: it wanted more. A share alone would prove nothing on a busy machine, where nobody gets more.
    let mut wanted_more = false;
    let seen = std::thread::scope(|scope| {
        let seen = scope.spawn(|| run.probe(&["spin", "4", "2"]));
        while !seen.is_finished() {
            let inside = processes_named(&spins).into_iter().filter(|(_, line)| line.starts_with(&spins));
            wanted_more |= inside.into_iter().any(|(process, _)| held_back(process) > 0);
            std::thread::sleep(Duration::from_millis(100));
        }
        seen.join().unwrap()
    });
    let share = seen.detail()["processor"].as_f64().unwrap() / seen.detail()["wall"].as_f64().unwrap();
    assert!(share < 0.4, "{share:.2} processors of 0.25");
    assert!(wanted_more, "nothing held it back at {share:.2} processors");
}
