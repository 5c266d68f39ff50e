//! Promise: a sidecar that waits for a run knows nothing, serves one run, and goes with it, however that ends.
//! S0.40, S0.41, S0.42, S0.43; S1.7, S1.15, S1.16, S1.17.
//!
//! Each test counts the waiting sidecars of its engine, which the tests of one process share: run each in its own, as nextest does.

use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

use lockgate_conformance::{
    Backend, Bench, Canary, Live, Needs, Run, World, ask_engine, processes_named, promised, ready,
    say_to_container, within,
};
use serde_json::{Value, json};

const POOL: &str = "lockgate-sidecar-pool";
const EGRESS: &str = "lockgate-egress";

/// One of our containers, as the engine lists it.
#[derive(Clone, Debug)]
struct Seen {
    id: String,
    name: String,
    state: String,
    networks: BTreeSet<String>,
}

impl Seen {
    fn waits(&self) -> bool {
        self.name.starts_with("lockgate-sidecar-pool-") && self.networks.iter().eq([POOL])
    }

    fn serves(&self, run: &str) -> bool {
        self.name.starts_with("lockgate-sidecar-") && self.networks.contains(&format!("lockgate-exec-{run}"))
    }
}

/// Returns all our containers, or Podman's error when it has lost count of a container's networks and lists none.
fn listed() -> Result<Vec<Seen>, Value> {
    let (status, list) = ask_engine("GET", "/containers/json?all=1", &Value::Null);
    if status != 200 {
        return Err(list);
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let seen = |it: &Value| Seen {
        id: text(&it["Id"]),
        name: text(&it["Names"][0]).trim_start_matches('/').to_owned(),
        state: text(&it["State"]),
        networks: it["NetworkSettings"]["Networks"].as_object().unwrap().keys().cloned().collect(),
    };
    let all = list.as_array().unwrap().iter().map(seen);
    Ok(all.filter(|it| it.name.starts_with("lockgate-")).collect())
}

fn containers() -> Vec<Seen> {
    listed().unwrap_or_else(|said| panic!("{said}"))
}

/// Returns those that run and wait.
fn waiting() -> Vec<Seen> {
    containers().into_iter().filter(|it| it.waits() && it.state == "running").collect()
}

/// A command that stays.
const STAY: &str = "begun; exec sleep 30";

fn run(bench: &Bench, size: &str) -> Run {
    bench.run(Backend::isolated()).caller("SIDECAR_POOL_SIZE", size)
}

/// Whether none waits. A container that Podman has lost count of was moving between networks: a run had taken it.
fn nobody_waits() -> bool {
    match listed() {
        Ok(all) => !all.iter().any(Seen::waits),
        Err(said) if Backend::isolated() == Backend::Podman && said.to_string().contains("mismatch") => true,
        Err(said) => panic!("{said}"),
    }
}

/// Has a run fill the pool.
fn fill(bench: &Bench, size: usize) -> Vec<Seen> {
    let ended = run(bench, &size.to_string()).command(["true"]);
    assert!(ended.code == 0, "{ended}");
    assert!(within(Backend::patience(5), || waiting().len() == size), "not filled up: {:?}", containers());
    waiting()
}

/// Returns the container that is the sidecar of a run.
fn sidecar_of(run: &str) -> Seen {
    let found: Vec<Seen> = containers().into_iter().filter(|it| it.serves(run)).collect();
    assert!(found.len() == 1, "which of {found:?} is the sidecar?");
    found[0].clone()
}

fn gone(id: &str) -> bool {
    containers().iter().all(|it| it.id != id)
}

/// Whether it is gone within a moment: it may be removed after its run has ended.
fn goes(id: &str) -> bool {
    within(Backend::patience(1), || gone(id))
}

fn end(live: Live) {
    live.signal("TERM");
    let ended = live.wait();
    assert!(ended.code == 143, "{ended}");
}

// S0.20, S1.9, L08
#[test]
fn the_pool_is_drained_first_and_filled_up_behind_a_run() {
    if !promised("pool") || !ready(&[Needs::RootsEngine]) {
        return;
    }
    let bench = Bench::new();
    let first: BTreeSet<String> = fill(&bench, 2).into_iter().map(|it| it.id).collect();

    // A run that fills nothing up takes one of the two.
    let (live, id) = run(&bench, "1").begin(STAY);
    let sidecar = sidecar_of(&id);
    assert!(first.contains(&sidecar.id), "a fresh one was made: {sidecar:?}");
    assert!(sidecar.networks.contains(EGRESS) && !sidecar.networks.contains(POOL), "{sidecar:?}"); // S0.43
    assert!(sidecar.networks.len() == 2, "{sidecar:?}");
    assert!(waiting().len() == 1, "{:?}", containers());
    end(live);
    assert!(goes(&sidecar.id), "the sidecar outlived its run: {:?}", containers()); // S1.15

    // While another run still goes on, the pool is full again, with new members only.
    let (live, id) = run(&bench, "2").begin(STAY);
    let second = sidecar_of(&id);
    assert!(first.contains(&second.id) && second.id != sidecar.id, "{second:?}");
    assert!(within(Backend::patience(5), || waiting().len() == 2), "not filled up: {:?}", containers()); // S1.17
    assert!(waiting().iter().all(|it| !first.contains(&it.id)), "{:?}", containers());
    std::thread::sleep(Duration::from_secs(1));
    assert!(waiting().len() == 2, "more than there may be: {:?}", containers()); // S0.42
    end(live);
    assert!(goes(&second.id), "{:?}", containers());
}

#[test]
fn a_pool_of_none_is_neither_used_nor_filled() {
    if !promised("pool") || !ready(&[Needs::RootsEngine]) {
        return;
    }
    let bench = Bench::new();
    let ended = run(&bench, "0").command(["true"]);
    assert!(ended.code == 0, "{ended}");
    std::thread::sleep(Duration::from_secs(4));
    assert!(within(Backend::patience(1), || containers().is_empty()), "{:?}", containers());

    let before: Vec<String> = fill(&bench, 1).into_iter().map(|it| it.id).collect();
    let (live, id) = run(&bench, "0").begin(STAY);
    assert!(sidecar_of(&id).name == format!("lockgate-sidecar-{id}"), "{:?}", containers()); // S0.20, S1.7
    assert!(waiting().into_iter().map(|it| it.id).eq(before));
    end(live);

    for wrong in ["-1", "many", "1000"] {
        let ended = run(&bench, wrong).command(["true"]);
        assert!(ended.code == 2, "{wrong}: {ended}");
        assert!(ended.stderr.contains("SIDECAR_POOL_SIZE") && ended.stderr.contains(wrong), "{ended}");
    }
}

// L08
#[test]
fn of_all_who_ask_for_one_at_once_one_has_it() {
    if !promised("pool") || !ready(&[Needs::RootsEngine]) {
        return;
    }
    let bench = Bench::new();
    let member = fill(&bench, 1)[0].id.clone();
    let path = |what: &str| format!("/networks/{EGRESS}/{what}");
    for round in 0..50 {
        let ask = |who: usize| {
            let request =
                json!({"Container": member, "EndpointConfig": {"Aliases": [format!("asker{who}")]}});
            ask_engine("POST", &path("connect"), &request).0
        };
        let answers: Vec<u16> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|who| scope.spawn(move || ask(who))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let winners: Vec<usize> = (0..8).filter(|who| answers[*who] == 200).collect();
        assert!(winners.len() == 1, "round {round}: {answers:?}");
        let (_, about) = ask_engine("GET", &format!("/containers/{member}/json"), &Value::Null);
        let names = about["NetworkSettings"]["Networks"][EGRESS]["Aliases"].to_string();
        let named: Vec<usize> = (0..8).filter(|who| names.contains(&format!("asker{who}"))).collect();
        assert!(named == winners, "round {round}: {names} are the names, and {winners:?} won");
        let (status, said) = ask_engine("POST", &path("disconnect"), &json!({"Container": member}));
        assert_eq!(status, 200, "{said}");
    }
}

// S0.2, S4.59, L08
#[test]
fn two_runs_never_share_one() {
    if !promised("pool") || !ready(&[Needs::RootsEngine]) {
        return;
    }
    let bench = Bench::new();
    let members: BTreeSet<String> = fill(&bench, 2).into_iter().map(|it| it.id).collect();
    let all: Vec<(Live, String)> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..4).map(|_| scope.spawn(|| run(&bench, "2").begin(STAY))).collect();
        starts.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let sidecars: BTreeSet<String> = all.iter().map(|(_, run)| sidecar_of(run).id).collect();
    assert!(sidecars.len() == all.len(), "{sidecars:?}");
    assert!(members.is_subset(&sidecars), "the pool was not drained: {:?}", containers());
    all.into_iter().for_each(|(live, _)| end(live));
    assert!(sidecars.iter().all(|id| goes(id)), "{:?}", containers());
}

#[test]
fn a_second_letter_ends_the_run() {
    if !promised("pool") || !ready(&[Needs::RootsEngine]) {
        return;
    }
    let bench = Bench::new();
    fill(&bench, 1);
    let (live, id) = run(&bench, "1").begin(STAY);
    let sidecar = sidecar_of(&id);
    assert!(sidecar.name.starts_with("lockgate-sidecar-pool-"), "{sidecar:?}");
    // The first frame of a connection, as the taker of a member would write it. S0.41
    say_to_container(&sidecar.id, b"B\x02\0\0\0{}");
    let ended = live.wait();
    assert!(ended.code != 0 && ended.took < Duration::from_secs(29), "{ended}");
    assert!(ended.stderr.contains("sidecar"), "{ended}");
    assert!(gone(&sidecar.id), "{:?}", containers());
}

#[test]
fn one_that_does_not_answer_is_done_without() {
    if !promised("pool") || !ready(&[Needs::RootsEngine]) {
        return;
    }
    let bench = Bench::new();
    let member = fill(&bench, 1)[0].id.clone();
    // Stopped from outside: the engine still takes it for running.
    let (_, about) = ask_engine("GET", &format!("/containers/{member}/json"), &Value::Null);
    let process = about["State"]["Pid"].as_u64().expect("a process");
    // An engine calls a container running a moment before its process executes the program.
    let found = within(Backend::patience(5), || !stop_in_namespace(&process.to_string(), &member).is_empty());
    assert!(found, "no process of the member was found: {about}");
    let ended = run(&bench, "1").command(["echo", "done"]);
    assert!(ended.code == 0 && ended.stdout == "done\n", "{ended}");
    assert!(within(Backend::patience(2), || gone(&member)), "{:?}", containers());
}

/// Stops the waiting sidecars of this container that have this process id in their engine's namespace: other engines have it too.
fn stop_in_namespace(id: &str, container: &str) -> Vec<u32> {
    let is_it = |process: u32| {
        let read =
            |what: &str| std::fs::read_to_string(format!("/proc/{process}/{what}")).unwrap_or_default();
        let status = read("status");
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        ids.split_whitespace().any(|one| one == id) && read("cgroup").contains(container)
    };
    let all = processes_named("engine-sidecar").into_iter().map(|(process, _)| process);
    let found: Vec<u32> = all.filter(|process| is_it(*process)).collect();
    for process in &found {
        let done = std::process::Command::new("kill").args(["-s", "STOP", &process.to_string()]).status();
        assert!(done.is_ok_and(|status| status.success()));
    }
    found
}

#[test]
fn a_killed_run_leaves_none_that_was_taken() {
    if !promised("pool") || !ready(&[Needs::RootsEngine]) {
        return;
    }
    let bench = Bench::new();
    let (probe, mut taken) = (bench.probe(), 0);
    for moment in [20, 60, 100, 150, 200, 300, 450, 700, 1000, 1500, 2500, 4000] {
        fill(&bench, 1);
        let mark = Canary::draw();
        let live = run(&bench, "1").start([probe.to_str().unwrap(), "hold", "30", mark.text()]);
        std::thread::sleep(Duration::from_millis(moment));
        // Every process that could clean up, all at once.
        let mut all: Vec<String> =
            processes_named(mark.text()).into_iter().map(|(process, _)| process.to_string()).collect();
        all.insert(0, "KILL".into());
        all.insert(0, "-s".into());
        let _ = std::process::Command::new("kill").args(&all).status();
        let ended = live.wait();
        assert!(ended.code == 137, "it ended by itself: {ended}");
        taken += usize::from(nobody_waits());
        let ended = run(&bench, "0").command(["true"]);
        assert!(ended.code == 0, "{ended}");
        let left = || containers().into_iter().filter(|it| !it.waits()).collect::<Vec<_>>();
        assert!(within(Backend::patience(2), || left().is_empty()), "after {moment} ms: {:?}", left());
        let networks = || ask_engine("GET", "/networks", &Value::Null).1.to_string();
        let none = within(Backend::patience(1), || !networks().contains("lockgate-exec-"));
        assert!(none, "after {moment} ms: {}", networks());
    }
    assert!(taken > 2, "none of the runs had taken one: the moments are wrong");
}

#[test]
fn one_that_podman_has_lost_count_of_harms_nobody() {
    if Backend::isolated() != Backend::Podman || !promised("pool") || !ready(&[Needs::RootsEngine]) {
        return;
    }
    let bench = Bench::new();
    let member = fill(&bench, 1)[0].id.clone();
    // An address of another network is refused: Podman notes the network all the same, and then has no way out.
    let request =
        json!({"Container": member, "EndpointConfig": {"IPAMConfig": {"IPv4Address": "10.255.0.9"}}});
    let (status, said) = ask_engine("POST", &format!("/networks/{EGRESS}/connect"), &request);
    assert!(status >= 400, "{status}: {said}");
    let described = || ask_engine("GET", &format!("/containers/{member}/json"), &Value::Null);
    let (status, said) = described();
    assert!(status == 500 && said.to_string().contains("mismatch"), "{status}: {said}");
    assert_eq!(
        ask_engine("GET", "/containers/json?all=1", &Value::Null).0,
        500,
        "the control: nothing is listed"
    );

    let ended = run(&bench, "1").command(["echo", "done"]);
    assert!(ended.code == 0 && ended.stdout == "done\n", "{ended}");
    assert!(within(Backend::patience(5), || described().0 == 404), "{:?}", described());
    assert!(within(Backend::patience(5), || waiting().len() == 1), "{:?}", containers());
}

#[test]
fn one_that_waits_holds_no_secret() {
    if !promised("pool") || !ready(&[Needs::RootsEngine]) {
        return;
    }
    let (bench, secret) = (Bench::new(), Canary::draw());
    bench.file("workspace/secret", secret.text());
    let filled =
        run(&bench, "2").caller("SECRET_TOKEN", secret.text()).allow("secret.example").command(["true"]);
    assert!(filled.code == 0, "{filled}");
    assert!(within(Backend::patience(5), || waiting().len() == 2), "{:?}", containers());
    let whose = bench.lockgate(&["runs", "ls", "-q"]).stdout.trim().to_owned();
    let words =
        [secret.text().to_owned(), whose, bench.workspace().display().to_string(), "secret.example".into()];
    for member in waiting() {
        let (_, about) = ask_engine("GET", &format!("/containers/{}/json", member.id), &Value::Null);
        for word in &words {
            assert!(!about.to_string().contains(word.as_str()), "{word}: {about}");
        }
        // Podman has some of its own.
        let own = |it: &Value| {
            let name = it.as_str().unwrap_or_default().split('=').next().unwrap_or_default();
            Backend::isolated() == Backend::Podman
                && ["TERM", "container", "PATH", "HOSTNAME", "HOME"].contains(&name)
        };
        let environment = about["Config"]["Env"].as_array();
        assert!(environment.is_none_or(|all| all.iter().all(own)), "{about}");
    }
    assert!(holds(std::process::id(), &words).contains(&words[0]), "the search finds nothing at all");
    let waits = || processes_named("engine-sidecar");
    assert!(within(Backend::patience(5), || waits().len() >= 2), "{:?}", waits());
    for (process, _) in waits() {
        let held = holds(process, &words);
        assert!(held.is_empty(), "{process} holds {held:?}");
    }
}

/// Returns the words that are in the memory or the environment of a process.
fn holds(process: u32, words: &[String]) -> Vec<String> {
    let read = |what: &str| std::fs::read(format!("/proc/{process}/{what}")).unwrap_or_default();
    let mut text = [read("environ"), read("cmdline")].concat();
    let maps = String::from_utf8_lossy(&read("maps")).into_owned();
    // A process of another test may be gone by now.
    let Ok(mut memory) = std::fs::File::open(format!("/proc/{process}/mem")) else { return Vec::new() };
    for line in
        maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw")))
    {
        let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap_or(0));
        let mut piece = vec![0; usize::try_from(to - from).unwrap_or(0).min(64 << 20)];
        if memory.seek(SeekFrom::Start(from)).is_ok() && memory.read_exact(&mut piece).is_ok() {
            text.extend(piece);
        }
    }
    let has = |word: &&String| text.windows(word.len()).any(|window| window == word.as_bytes());
    words.iter().filter(has).cloned().collect()
}

/// A run that fills the pool, then, once a sidecar waits, a run that takes it, and whether it is gone afterwards.
const TWICE: &str = r#"waits() { docker ps -q --filter network=lockgate-sidecar-pool --filter status=running; }
"$@" > /dev/null || exit
for i in $(seq 300); do it=$(waits); [ -n "$it" ] && break; sleep 0.1; done
"$@"; code=$?
[ -n "$it" ] && ! docker inspect $it > /dev/null 2>&1 && touch taken
exit $code"#;

#[test]
fn one_of_the_pool_lets_out_what_is_allowed_and_nothing_else() {
    if !promised("pool") || !ready(&[Needs::RootsEngine, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    let allowed: &[&str] = &["http", "api.example.com", "80", "/pooled"];
    let denied: &[&str] = &["http", "www.example.org", "80", "/denied"];
    let address: &[&str] = &["http", "93.184.216.34", "80", "/"];
    world.controls(&[allowed, denied, address]);
    let twice = run(&bench, "1").allow("api.example.com").behind(["sh", "-c", TWICE, "sh"]).within(&world);
    let seen = twice.probes(&[allowed, denied, address]);
    assert!(bench.workspace().join("taken").exists(), "the second run took none");
    assert!(seen[0].done() && !seen[1].done() && !seen[2].done(), "{seen:?}");
    assert!(world.reached("/pooled").len() >= 2, "{:?}", world.records());
    assert!(world.reached("/denied").is_empty(), "{:?}", world.records());
    // Its decisions are told and recorded here, like those of any other sidecar.
    let records = bench.every_audit_record();
    assert!(records.iter().any(|record| record.to_string().contains("www.example.org")), "{records:?}");
}

#[test]
fn neither_end_of_a_run_waits_for_the_pool() {
    if !promised("pool") || !ready(&[Needs::RootsEngine]) {
        return;
    }
    let bench = Bench::new();
    fill(&bench, 1);
    // A reader that reads the run's output to its end has it as soon as the run has ended, while the pool is still being filled.
    let started = Instant::now();
    let ended = run(&bench, "8").command(["echo", "done"]);
    let (took, there) = (started.elapsed(), waiting().len());
    assert!(ended.code == 0 && ended.stdout == "done\n", "{ended}");
    assert!(there < 8, "the run waited until all were made: {took:?}");
    assert!(within(Backend::patience(10), || waiting().len() == 8), "not filled up: {:?}", containers());
}
