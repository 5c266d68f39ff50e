//! Promise: runs that begin at once at one engine all have a network of their own, work, and leave nothing.
//! DESIGN §5: small subnets of our own choosing; an engine's default pools end at about 31 networks.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::time::{Duration, Instant};

use lockgate_conformance::{
    Backend, Bench, Canary, Live, Needs, ask_engine, processes_named, promised, ready, vanishes, within,
};
use rustix::fs::FlockOperation;
use serde_json::Value;

/// The time limit per run: on two busy processors an engine takes about two seconds for a start and an end.
const EACH: Duration = Duration::from_secs(5);

/// The names and subnets of the runs' networks in the engine.
fn networks() -> BTreeSet<(String, String)> {
    let (status, list) = ask_engine("GET", "/networks", &Value::Null);
    assert_eq!(status, 200, "{list}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = list.as_array().unwrap().iter();
    let all = all.map(|it| (text(&it["Name"]), text(&it["IPAM"]["Config"][0]["Subnet"])));
    all.filter(|(name, _)| name.starts_with("lockgate-exec-")).collect()
}

/// The runs' containers and volumes in the engine, by their descriptions.
fn left() -> Vec<String> {
    let of_run = "?all=1&filters=%7B%22label%22%3A%5B%22dev.lockgate.run%22%5D%7D";
    let (_, containers) = ask_engine("GET", &format!("/containers/json{of_run}"), &Value::Null);
    let (_, volumes) = ask_engine("GET", &format!("/volumes{of_run}"), &Value::Null);
    let lists = [&containers, &volumes["Volumes"]].map(|list| list.as_array().cloned().unwrap_or_default());
    lists.concat().iter().map(Value::to_string).collect()
}

/// Keeps `many` runs alive at the same time, then ends them all. Two hundred take four minutes on two processors.
fn at_once(many: usize) {
    if !promised("at_once") || !ready(&[Needs::ManyRuns]) {
        return;
    }
    let (bench, mark) = (Bench::new(), Canary::draw());
    let run = bench.run(Backend::isolated()).caller("SIDECAR_POOL_SIZE", "0");
    let line =
        format!("touch up.$LOCKGATE_RUN_ID; while [ ! -e go ]; do sleep 0.5; done; echo {}", mark.text());
    let (began, limit) = (Instant::now(), EACH * many as u32);
    let all: Vec<Live> = (0..many).map(|_| run.start(["/bin/sh", "-c", &line])).collect();

    let up = || {
        let names = std::fs::read_dir(bench.workspace()).unwrap().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with("up.")).count()
    };
    let alive = within(limit, || {
        std::thread::sleep(Duration::from_millis(200));
        up() == many
    });
    if !alive {
        let begun = up();
        all.iter().for_each(|live| live.signal("TERM"));
        let ends = all.into_iter().map(|live| live.wait_within(limit).to_string());
        // Runs that had begun end silently by the signal.
        let others: Vec<String> = ends.filter(|end| !end.starts_with("exit 143")).collect();
        panic!("{begun} of {many} have begun after {:?}: {others:?}", began.elapsed());
    }
    eprintln!("{many} runs are alive after {:?}", began.elapsed());
    let networks_of_all = networks();
    let subnets: BTreeSet<&String> = networks_of_all.iter().map(|(_, subnet)| subnet).collect();
    assert_eq!((networks_of_all.len(), subnets.len()), (many, many), "{networks_of_all:?}");

    bench.file("workspace/go", "");
    for live in all {
        let ended = live.wait_within(limit * 2);
        assert!(ended.code == 0 && ended.stdout.trim() == mark.text(), "{ended}");
        assert!(!ended.stderr.contains("could not"), "{ended}");
    }
    eprintln!("{many} runs have ended after {:?}", began.elapsed());
    // An engine under such a load reports a removal a moment before it is complete.
    let nothing = within(Backend::patience(1), || networks().is_empty() && left().is_empty());
    assert!(nothing, "{:?} {:?}", networks(), left());
    assert!(vanishes(mark.text(), Duration::from_secs(1)), "{:?}", processes_named(mark.text()));
}

/// Takes every lock that limits how many starts make their containers at once, at the engine of this bench's runs.
fn take_every_turn(bench: &Bench) -> Vec<File> {
    let turns = bench.state().join("lockgate/turns");
    let mut all =
        std::fs::read_dir(&turns).unwrap().flatten().map(|it| it.file_name().into_string().unwrap());
    let engine = all.find_map(|name| Some(name.strip_suffix("turn-0")?.to_owned())).unwrap();
    let take = |place| {
        let name = turns.join(format!("{engine}turn-{place}"));
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(name).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        file
    };
    (0..8).map(take).collect()
}

#[test]
fn a_run_that_waits_for_its_turn_ends_when_it_is_asked_to() {
    if !promised("at_once") || !ready(&[]) {
        return;
    }
    let bench = Bench::new();
    let run = bench.run(Backend::isolated()).caller("SIDECAR_POOL_SIZE", "0");
    let control = run.start(["/bin/true"]).wait();
    assert!(control.code == 0, "{control}");
    let all = take_every_turn(&bench);
    let signals = [("TERM", 143), ("INT", 130), ("HUP", 129)];
    let waiting = signals.map(|it| (it, run.start(["/bin/touch", "began"])));
    std::thread::sleep(Duration::from_secs(3));
    waiting.iter().for_each(|((signal, _), live)| live.signal(signal));
    for ((signal, code), live) in waiting {
        let ended = live.wait_within(Duration::from_secs(60));
        assert!(ended.code == code, "{signal}: {ended}");
    }
    assert!(!bench.workspace().join("began").exists(), "nobody waited for a turn");
    let live = run.start(["/bin/touch", "began"]);
    std::thread::sleep(Duration::from_secs(1));
    drop(all);
    let ended = live.wait();
    assert!(ended.code == 0 && bench.workspace().join("began").exists(), "{ended}");
}

#[test]
fn forty_runs_at_once_have_networks_of_their_own_and_leave_nothing() {
    at_once(40);
}
