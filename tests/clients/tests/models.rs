//! Which provider the gateway asks for a model: the one whose name prefixes the model's, or the one that serves the models of others, and
//! nobody else. S4.46.

use lockgate_clients::{Need, Site};
use lockgate_world::{ANTHROPIC_KEY, OPENAI_KEY, OPENROUTER_KEY};

const NEEDS: &[Need] = &[Need::Program("curl")];
/// `ask KEY MODEL`: requests the model, and prints the status after the answer.
const ASK: &str = r#"ask() { printf '%s=%s\n' "$1" "$(curl -sS -m 20 -w ' %{http_code}' "$MODEL_BASE_URL/v1/chat/completions" \
    -H 'content-type: application/json' -d "{\"model\":\"$2\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}" | tr -d '\n')"; }
"#;

/// Returns host and model of each request that reached a server.
fn asked(site: &Site) -> Vec<(String, String)> {
    let asked = |record: lockgate_world::Record| {
        let body: serde_json::Value = serde_json::from_str(record.text("body")).expect("a body in JSON");
        (record.text("host").to_owned(), body["model"].as_str().unwrap_or_default().to_owned())
    };
    site.requests().into_iter().map(asked).collect()
}

fn pair(host: &str, model: &str) -> (String, String) {
    (host.to_owned(), model.to_owned())
}

#[test]
fn one_of_somebody_who_is_not_declared_is_asked_of_nobody() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("anthropic", "access_token", ANTHROPIC_KEY);
    site.keep("openai", "access_token", OPENAI_KEY);
    let run = site.run().flags(["--provider", "anthropic", "--provider", "openai"]);
    let ended =
        run.script(&format!("{ASK}ask elsewhere openrouter/a/b; ask here openai/gpt-x; ask bare gpt-y"));
    let elsewhere = ended.said("elsewhere");
    assert!(elsewhere.ends_with(" 403") && elsewhere.contains("provider_not_declared"), "{ended}");
    assert!(format!("{ended}").contains("lockgate run --provider openrouter"), "no hint: {ended}");
    // The controls: a declared provider by its name, and a model without a prefix.
    assert!(ended.said("here").ends_with(" 200") && ended.said("bare").ends_with(" 200"), "{ended}");
    assert_eq!(asked(&site), [pair("api.openai.com", "gpt-x"), pair("api.openai.com", "gpt-y")], "{ended}");
}

#[test]
fn who_has_the_models_of_others_is_asked_for_them_by_their_whole_names() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("openrouter", "access_token", OPENROUTER_KEY);
    let run = site.run().flags(["--provider", "openrouter"]);
    let ended = run.script(&format!("{ASK}ask theirs openai/gpt-x; ask named openrouter/openai/gpt-x"));
    assert!(ended.said("theirs").ends_with(" 200") && ended.said("named").ends_with(" 200"), "{ended}");
    assert_eq!(asked(&site), vec![pair("openrouter.ai", "openai/gpt-x"); 2], "{ended}");
}
