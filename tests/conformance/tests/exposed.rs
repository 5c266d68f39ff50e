//! Promise: a credential is inside by value only where one variable was named for it, in no companion, and nothing of ours or an
//! engine's tells it.
//! S0.7, S4.37, S4.45.

use lockgate_conformance::{
    Backend, Bench, Canary, Needs, ask_engine, files_under, objects, promised, ready, within,
};
use serde_json::Value;

const POLICY: &str = r#"
[[provider]]
id = "one"
authorized_uris = ["https://api.example.com/*"]
env = ["ONE_TOKEN", "ONE_KEY"]
inject = { header = "authorization", value = "Bearer {{access_token}}" }
"#;
/// Puts no secret on the command line, which is recorded.
const TELL: &str = "printf '%s %s' \"$ONE_TOKEN\" \"$ONE_KEY\" > inside";

/// Returns a bench with a credential, the path of its policy, and the credential.
fn bench() -> (Bench, String, Canary) {
    let (bench, canary) = (Bench::new(), Canary::draw());
    let value = bench.file("outside/value", canary.text());
    let kept = bench.lockgate(&["creds", "set", "one", "--from-file", value.to_str().unwrap()]);
    assert!(kept.code == 0, "{kept}");
    std::fs::remove_file(value).unwrap();
    let policy = bench.file("outside/policy.toml", POLICY).display().to_string();
    (bench, policy, canary)
}

fn inside(bench: &Bench) -> String {
    std::fs::read_to_string(bench.workspace().join("inside")).unwrap_or_default()
}

#[test]
fn a_credential_is_inside_by_value_where_its_variable_was_named() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    for backend in Backend::all() {
        let ((bench, policy, canary), named) = (bench(), backend.name());
        let run = bench.run(backend).flags(["--policy", &policy]);
        let ended = run.clone().flags(["--expose", "ONE_TOKEN"]).shell(TELL);
        assert!(ended.code == 0, "{named}: {ended}");
        let told = inside(&bench);
        let (token, key) = told.split_once(' ').unwrap_or_default();
        assert!(token == canary.text() && key.starts_with("lgph_"), "{named}: {ended}");
        assert!(
            ended.stderr.contains("`ONE_TOKEN` holds the credential of `one` itself"),
            "{named}: {ended}"
        );
        assert!(!ended.to_string().contains(canary.text()), "{named}: a warning tells it");
        let record = bench.records(&["runs", "show", "latest", "--json"]);
        assert_eq!(record[0]["exposed"], serde_json::json!(["ONE_TOKEN"]), "{named}");
        for file in files_under(&bench.state()) {
            let octets = std::fs::read(bench.state().join(&file)).unwrap_or_default();
            let holds = String::from_utf8_lossy(&octets).contains(canary.text());
            assert!(!holds, "{named}: {} holds it", file.display());
        }

        let ended = run.shell(TELL);
        assert!(ended.code == 0 && inside(&bench).matches("lgph_").count() == 2, "{named}: {ended}");
        assert!(
            !inside(&bench).contains(canary.text()) && !ended.stderr.contains("itself"),
            "{named}: {ended}"
        );
    }
}

#[test]
fn an_engine_does_not_tell_it() {
    if !Backend::isolated().is_engine() || !ready(&[Needs::Linux]) {
        return;
    }
    let (bench, policy, canary) = bench();
    let run = bench.run(Backend::isolated()).flags(["--policy", &policy, "--expose", "ONE_TOKEN"]);
    let live = run.start(["/bin/sh", "-c", &format!("{TELL}; exec sleep 60")]);
    assert!(within(Backend::patience(15), || inside(&bench).contains(canary.text())), "it is not inside");
    let id = bench.lockgate(&["runs", "ls", "-q"]).stdout.trim().to_owned();
    let containers: Vec<String> = objects(&id)
        .iter()
        .filter_map(|object| {
            let object: Value = serde_json::from_str(object).ok()?;
            object["Image"].is_string().then(|| object["Id"].as_str().unwrap_or_default().to_owned())
        })
        .collect();
    assert!(containers.len() >= 2, "the command's and its sidecar's: {containers:?}");
    for container in containers {
        let (status, told) = ask_engine("GET", &format!("/containers/{container}/json"), &Value::Null);
        assert!(status == 200 && told["Config"].is_object(), "{told}");
        let told = told.to_string();
        assert!(!told.contains(canary.text()) && !told.contains("ONE_TOKEN"), "{told}");
    }
    live.signal("TERM");
    assert_eq!(live.wait().code, 143);
}

#[test]
fn a_companion_has_it_neither_by_value_nor_otherwise() {
    let at_engine = Backend::isolated().is_engine();
    // An engine has its own image of the companions.
    if !promised("companions") || !at_engine && !ready(&[Needs::Linux, Needs::Images]) {
        return;
    }
    let (bench, _, canary) = bench();
    // A companion that fails prints its environment.
    let companion = r#"
        [[companion]]
        name = "beside"
        image = "debian"
        command = ["sh", "-c", "env | grep -e CONTROL -e ONE_ -e CNRY; exit 3"]
        ports = [6379]
        env = { CONTROL = "it-was-told" }"#;
    let policy = bench.file("outside/policy.toml", &format!("{POLICY}{companion}"));
    let run = bench.run(Backend::isolated()).flags(["--expose", "ONE_TOKEN", "--policy"]).flags([policy]);
    let ended = if at_engine { run } else { run.with_images() }.command(["true"]);
    assert!(ended.code == 125 && ended.stderr.contains("CONTROL=it-was-told"), "{ended}");
    assert!(!ended.stderr.contains(canary.text()) && !ended.stderr.contains("ONE_TOKEN="), "{ended}");
}
