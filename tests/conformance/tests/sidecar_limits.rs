//! Promise: a sidecar's container at an engine has limits of its own, whatever the command's are.
//! S1.32.

use lockgate_conformance::{Backend, Bench, Needs, containers_of, promised, ready};
use serde_json::json;

/// The default memory and processors of the command's container (S1.30, S1.31), and few processes: a sidecar starts none.
const MEMORY: u64 = 1536 << 20;
const PROCESSORS: u64 = 2_000_000_000;
const PROCESSES: u64 = 64;

#[test]
fn the_engine_holds_them_to_it() {
    if !promised("sidecar_limits") || !ready(&[Needs::Linux, Needs::ControlGroups]) {
        return;
    }
    let bench = Bench::new();
    // The command's limits are its own: they change nothing for the sidecar.
    let run = bench.run(Backend::isolated()).caller("SIDECAR_POOL_SIZE", "0");
    let run = run.flags(["--memory", "256MiB", "--cpus", "1", "--pids", "40"]);
    let (live, id) = run.begin("begun; exec sleep 60");
    let held: Vec<_> = containers_of(&id)
        .iter()
        .map(|it| {
            let host = &it["HostConfig"];
            let is_sidecar = it["Name"].as_str().unwrap_or_default().contains("lockgate-sidecar-");
            let [memory, swap, processors, processes] =
                ["Memory", "MemorySwap", "NanoCpus", "PidsLimit"].map(|name| host[name].clone());
            (is_sidecar, json!([memory, swap, processors, processes]))
        })
        .collect();
    let of = |sidecar: bool| held.iter().filter(move |(is, _)| *is == sidecar).map(|(_, limits)| limits);
    assert_eq!(of(true).collect::<Vec<_>>(), [&json!([MEMORY, MEMORY, PROCESSORS, PROCESSES])], "{held:?}");
    // The control: another container of the run has other limits.
    assert!(of(false).all(|limits| limits[0] == 256 << 20) && of(false).count() == 1, "{held:?}");
    live.signal("TERM");
    assert_eq!(live.wait().code, 143);
}
