//! Answers in OpenAI's formats are metered: whole and streamed, of Chat Completions and of Responses, and counted towards a budget. S1.28.

use lockgate_clients::{Ended, Need, Site};
use lockgate_world::{INPUT_TOKENS, OPENAI_KEY, OUTPUT_TOKENS};
use serde_json::Value;

const NEEDS: &[Need] = &[Need::Program("curl")];
/// `ask KEY PATH BODY`: the body without its model, and the status is printed.
const ASK: &str = r#"ask() { printf '%s=%s\n' "$1" "$(curl -sS -m 20 -o /dev/null -w '%{http_code}' "$MODEL_BASE_URL/v1/$2" \
    -H 'content-type: application/json' -d "{\"model\":\"openai/gpt-5\",$3}")"; }
chat='"messages":[{"role":"user","content":"hi"}]'; input='"input":"hi"'
"#;

fn models(site: &Site) -> Value {
    let told = site.lockgate(&["runs", "show", "latest", "--json"]);
    serde_json::from_str::<Value>(&told.stdout).expect("a record")["outcome"]["models"].clone()
}

fn run(policy: &str, script: &str) -> Option<(Site, Ended)> {
    let site = Site::for_test(NEEDS)?;
    site.keep("openai", "access_token", OPENAI_KEY);
    let ended =
        site.run().policy(&format!("providers = [\"openai\"]\n{policy}")).script(&format!("{ASK}{script}"));
    Some((site, ended))
}

#[test]
fn whole_and_streamed_answers_are_counted() {
    for ask in [
        r#"ask it chat/completions "$chat""#,
        r#"ask it chat/completions "\"stream\":true,\"stream_options\":{\"include_usage\":true},$chat""#,
        r#"ask it responses "$input""#,
        r#"ask it responses "\"stream\":true,$input""#,
    ] {
        let Some((site, ended)) = run("", ask) else { return };
        assert!(ended.stdout.contains("it=200"), "{ask}: {ended}");
        let models = models(&site);
        assert_eq!(models["requests"], 1, "{ask}: {models}");
        assert_eq!(models["input_tokens"], INPUT_TOKENS, "{ask}: {models}");
        assert_eq!(models["output_tokens"], OUTPUT_TOKENS, "{ask}: {models}");
        // A dollar and a quarter per million in, ten out.
        let cost = (INPUT_TOKENS * 125 + OUTPUT_TOKENS * 1000) / 100;
        assert_eq!(models["cost_micro_usd"], cost, "{ask}: {models}");
    }
}

#[test]
fn their_tokens_use_a_budget_up() {
    for ask in [
        r#"chat/completions "$chat""#,
        r#"chat/completions "\"stream\":true,\"stream_options\":{\"include_usage\":true},$chat""#,
        r#"responses "\"stream\":true,$input""#,
    ] {
        let script = format!("ask 1 {ask}; ask 2 {ask}; ask 3 {ask}");
        let Some((site, ended)) = run("llm.budget = { tokens = 1300 }\n", &script) else { return };
        assert!(ended.stdout.ends_with("1=200\n2=200\n3=429\n"), "{ask}: {ended}");
        assert!(ended.stderr.contains("budget_exhausted"), "{ask}: {ended}");
        assert_eq!(site.requests().len(), 2, "{ask}: what is over the budget is not sent");
    }
}

#[test]
fn a_stream_that_reports_no_usage_ends_a_budget() {
    let ask = r#"chat/completions "\"stream\":true,$chat""#;
    let script = format!("ask 1 {ask}; ask 2 {ask}");
    let Some((site, ended)) = run("llm.budget = { tokens = 100000 }\n", &script) else { return };
    assert!(ended.stdout.ends_with("1=200\n2=429\n"), "{ended}");
    assert!(format!("{ended}").contains("include_usage"), "it is not said what to do: {ended}");
    assert_eq!(site.requests().len(), 1);
}

#[test]
fn an_answer_that_reports_no_usage_is_not_recorded_as_nothing() {
    let script = r#"ask 1 chat/completions "\"stream\":true,$chat"; ask 2 chat/completions "$chat""#;
    let Some((site, ended)) = run("", script) else { return };
    assert!(ended.stdout.ends_with("1=200\n2=200\n"), "{ended}");
    assert!(ended.stderr.contains("1 answer did not tell its use"), "{ended}");
    let models = models(&site);
    assert_eq!((&models["requests"], &models["unmetered"]), (&2.into(), &1.into()), "{models}");
    assert_eq!(models["output_tokens"], OUTPUT_TOKENS, "{models}");
}

#[test]
fn an_answer_that_is_cut_for_the_agent_is_counted_whole() {
    let short = r#"printf 'short=%s\n' "$(curl -sS -m 20 -H 'x-provider: openai' -H 'x-max-response-size: 9' \
        -H 'x-target: https://api.openai.com/v1/chat/completions' -H 'content-type: application/json' \
        -d "{\"model\":\"gpt-5\",$chat}" "$SIDECAR_URL/proxy" | wc -c)""#;
    let script = format!("{short}; ask 2 chat/completions \"$chat\"");
    let Some((site, ended)) = run("llm.budget = { tokens = 100000 }\n", &script) else { return };
    assert!(ended.stdout.contains("short=9\n2=200\n"), "{ended}");
    let models = models(&site);
    assert_eq!(models["output_tokens"], 2 * OUTPUT_TOKENS, "{models}");
}

#[test]
fn a_sidecar_alone_tells_what_was_used_and_what_its_policy_does_not_do() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("openai", "access_token", OPENAI_KEY);
    let ask = format!("MODEL_BASE_URL=http://127.0.0.1:8080/llm\n{ASK}ask it chat/completions \"$chat\"");
    let left = site.beside("providers = [\"openai\"]\n").script(&ask);
    assert_eq!(left.said("it"), "200", "{}", left.ended);
    let used = format!("1 request to models: {INPUT_TOKENS} tokens in, {OUTPUT_TOKENS} out, ");
    assert!(left.words().contains(&used), "{}", left.words());
    let idle = site.beside("llm.budget = { tokens = 5 }\n").script("").words();
    assert!(idle.contains("note: `llm.budget` limits nothing") && !idle.contains("to models:"), "{idle}");
}
