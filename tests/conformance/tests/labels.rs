//! Promise: a run is found again by its labels, and so is what an engine makes for it; the command is not told of them.
//! S3.16, S4.9.

use std::collections::BTreeSet;

use lockgate_conformance::{Backend, Bench, Needs, make_image, objects, ready, within};
use serde_json::Value;

// S4.55
#[test]
fn a_run_is_found_again_by_its_labels() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    for backend in Backend::all() {
        let (bench, named) = (Bench::new(), backend.name());
        let flags = ["--label", "task=T-17", "--label", "team=a b"];
        let ended = bench.run(backend).flags(flags).command(["env"]);
        assert!(ended.code == 0 && ended.stdout.contains("LOCKGATE_RUN_ID="), "{named}: {ended}");
        assert!(!ended.stdout.contains("T-17"), "{named}: the command is told: {ended}");
        assert!(bench.run(backend).command(["true"]).code == 0);

        let found = |labels: &[&str]| {
            let flags: Vec<&str> = labels.iter().flat_map(|label| ["--label", label]).collect();
            bench.lockgate(&[&["runs", "ls", "-q"], &flags[..]].concat()).stdout.lines().count()
        };
        assert_eq!(found(&[]), 2, "{named}");
        assert_eq!(found(&["task=T-17"]), 1, "{named}");
        assert_eq!(found(&["task=T-17", "team=a b"]), 1, "{named}");
        assert_eq!(
            found(&["task=T-1"]) + found(&["task=T-17", "team=a"]) + found(&["other=T-17"]),
            0,
            "{named}"
        );

        let run = bench.lockgate(&["runs", "ls", "-q", "--label", "task=T-17"]).stdout;
        let shown = bench.lockgate(&["runs", "show", run.trim()]);
        assert!(shown.stdout.contains("label      task=T-17\nlabel      team=a b\n"), "{named}: {shown}");
        let record = bench.records(&["runs", "show", run.trim(), "--json"]);
        assert_eq!(record[0]["labels"], serde_json::json!({ "task": "T-17", "team": "a b" }), "{named}");
    }
}

#[test]
fn a_label_that_is_none_is_refused_and_a_projects_file_gives_none_unasked() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    for (label, word) in [("task", "gives no value"), (".task=x", ".task"), ("task=a\u{1b}[m", "control")] {
        let ended = bench.run(Backend::isolated()).flags(["--label", label]).command(["true"]);
        assert!(ended.code == 2 && ended.stderr.contains(word), "{label:?}: {ended}");
    }
    bench.file("workspace/lockgate.toml", "labels = { task = \"T-17\" }\n");
    let ended = bench.run(Backend::isolated()).command(["true"]);
    assert!(ended.code == 2 && ended.stderr.contains("labels"), "{ended}");
    assert!(bench.lockgate(&["policy", "approve"]).code == 0);
    let approved = bench.run(Backend::isolated()).command(["true"]);
    assert!(approved.code == 0, "{approved}");
    assert!(!bench.lockgate(&["runs", "ls", "-q", "--label", "task=T-17"]).stdout.is_empty());
}

#[test]
fn all_that_an_engine_makes_for_a_run_has_its_labels() {
    if !Backend::isolated().is_engine() || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let companion = "labels = { task = \"T-18\" }\n[[companion]]\nname = \"beside\"\nimage = \"debian\"\n\
                     command = [\"sleep\", \"60\"]\nports = [6379]\nhealth = { command = [\"true\"] }\n";
    let policy = bench.file("outside/policy.toml", companion);
    // A sidecar from the pool was made before there was a run.
    let run = bench.run(Backend::isolated()).caller("SIDECAR_POOL_SIZE", "0");
    let run = run.flags(["--workspace-mode", "overlay", "--label", "run=mine", "--policy"]).flags([policy]);
    let live = run.start(["sleep", "60"]);
    // A label that no other test uses: the tests share the engine.
    let labelled = || objects(r#""dev.lockgate.label.task":"T-18""#);
    // Those of the run and of its companion: two containers, a network each, and a volume.
    let labels_of = |object: &String| serde_json::from_str::<Value>(object).unwrap()["Labels"].clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let runs = || -> BTreeSet<String> {
        labelled().iter().map(|it| text(&labels_of(it)["dev.lockgate.run"])).collect()
    };
    let whole = within(Backend::patience(15), || labelled().len() >= 7 && runs().len() >= 2);
    assert!(whole, "{:?}", labelled());
    let runs = runs();
    let id = bench.lockgate(&["runs", "ls", "-q", "--label", "task=T-18"]).stdout.trim().to_owned();
    assert!(runs.len() == 2 && runs.contains(&id), "theirs is taken for ours: {runs:?}");
    for run in &runs {
        // The network of all sidecars may name those on it, and belongs to no run.
        let made = objects(run).into_iter().filter(|it| !it.contains(r#""Name":"lockgate-egress""#));
        for object in made {
            let labels = labels_of(&object);
            assert_eq!(labels["dev.lockgate.label.task"], "T-18", "{object}");
            assert_eq!(labels["dev.lockgate.label.run"], "mine", "{object}");
        }
    }
    live.signal("TERM");
    assert_eq!(live.wait().code, 143);
    assert!(within(Backend::patience(2), || labelled().is_empty()), "{:?}", labelled());
}

#[test]
fn an_image_with_a_label_of_ours_is_refused_by_that() {
    if !Backend::isolated().is_engine() || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let made = |name: &str, label: &str| make_image(name, "true", &[&format!("LABEL {label}=1")]);
    let in_image = |name: &str| {
        let (run, _) = bench.run(Backend::isolated()).without_image();
        run.flags(["--image", name]).command(["echo", "ran"])
    };
    for (name, label) in
        [("test-label-pool", "dev.lockgate.pool"), ("test-label-task", "dev.lockgate.label.task")]
    {
        made(name, label);
        let companion = format!(
            "[[companion]]\nname = \"beside\"\nimage = {name:?}\ncommand = [\"true\"]\nports = [7000]\n"
        );
        let policy = bench.file("outside/policy.toml", &companion);
        let run = bench.run(Backend::isolated()).flags(["--policy"]).flags([policy]);
        for ended in [in_image(name), run.command(["echo", "ran"])] {
            assert!(ended.code == 125 && ended.stdout.is_empty(), "{ended}");
            let told = [format!("`{name}`"), format!("`{label}`")];
            assert!(told.iter().all(|it| ended.stderr.contains(it)), "{ended}");
        }
    }
    made("test-label-else", "com.example.task");
    let control = in_image("test-label-else");
    assert!(control.code == 0 && control.stdout == "ran\n", "{control}");
}
