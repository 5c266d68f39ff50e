//! Spending limits of a run: tokens and money are counted from the answers, a budget is checked before a request is sent, and a provider is
//! asked no more often than its rate allows. S1.28, and the spending of S2.U4: its taint checks and approvals are not there.

use lockgate_clients::{Need, Site};
use lockgate_world::{ANTHROPIC_KEY, INPUT_TOKENS, OUTPUT_TOKENS};

const NEEDS: &[Need] = &[Need::Program("curl")];
const ASK: &str = r#"ask() { key=$1; shift; printf '%s=%s\n' "$key" "$(curl -sS -m 20 -o /dev/null -w '%{http_code}' "$MODEL_BASE_URL/v1/messages" \
    -H 'content-type: application/json' -d "{\"model\":\"anthropic/claude-sonnet-4-5\",\"max_tokens\":10,$*\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}")"; }
"#;

fn record(site: &Site) -> serde_json::Value {
    let told = site.lockgate(&["runs", "show", "latest", "--json"]);
    serde_json::from_str(&told.stdout).expect("a record")
}

#[test]
fn tokens_are_counted_whole_and_streamed() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("anthropic", "access_token", ANTHROPIC_KEY);
    let run = site.run().policy("providers = [\"anthropic\"]\n");
    let ended = run.script(&format!("{ASK}ask whole; ask streamed '\"stream\":true,'"));
    assert!(ended.stdout.contains("whole=200") && ended.stdout.contains("streamed=200"), "{ended}");
    let record = record(&site);
    let models = &record["outcome"]["models"];
    assert_eq!(models["requests"], 2, "{record}");
    assert_eq!(models["input_tokens"], 2 * INPUT_TOKENS, "{record}");
    assert_eq!(models["output_tokens"], 2 * OUTPUT_TOKENS, "{record}");
    // Three dollars per million in, fifteen out.
    assert_eq!(models["cost_micro_usd"], 2 * (3 * INPUT_TOKENS + 15 * OUTPUT_TOKENS), "{record}");
    assert!(ended.stderr.contains("2 requests to models"), "{ended}");
}

#[test]
fn a_budget_ends_in_a_clear_429() {
    for (budget, passed) in
        [("requests = 2", 2), ("tokens = 1300", 2), ("usd = \"0.005\"", 2), ("usd = \"0.004\"", 1)]
    {
        let Some(site) = Site::for_test(NEEDS) else { return };
        site.keep("anthropic", "access_token", ANTHROPIC_KEY);
        let run = site.run().policy(&format!("providers = [\"anthropic\"]\nllm.budget = {{ {budget} }}\n"));
        let ended = run.script(&format!("{ASK}ask 1; ask 2; ask 3"));
        let said: Vec<bool> = (1..=3).map(|n| ended.stdout.contains(&format!("{n}=200"))).collect();
        assert_eq!(said, (1..=3).map(|n| n <= passed).collect::<Vec<_>>(), "{budget}: {ended}");
        assert!(
            ended.stdout.contains("3=429") && ended.stderr.contains("budget_exhausted"),
            "{budget}: {ended}"
        );
        assert_eq!(site.requests().len(), passed, "{budget}: what is over the budget is not sent");
    }
}

#[test]
fn who_hangs_up_is_charged_what_came() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("anthropic", "access_token", ANTHROPIC_KEY);
    // The first event reports the cost of the input; the client leaves after it.
    let hang_up = r#"hang_up() { curl -sSN -m 20 "$MODEL_BASE_URL/v1/messages" -H 'content-type: application/json' \
        -d '{"model":"anthropic/claude-sonnet-4-5","max_tokens":10,"stream":true,"messages":[{"role":"user","content":"hi"}]}' 2>/dev/null | head -c 60 > /dev/null; }
    "#;
    let run = site.run().policy("providers = [\"anthropic\"]\nllm.budget = { tokens = 1300 }\n");
    let ended = run.script(&format!("{ASK}{hang_up}for n in 1 2 3 4; do hang_up; done; ask last"));
    assert!(ended.stdout.contains("last=429"), "{ended}");
    let models = record(&site)["outcome"]["models"].clone();
    assert!(models["input_tokens"].as_u64() >= Some(INPUT_TOKENS), "{models}");
}

#[test]
fn what_is_given_up_before_a_model_has_answered_may_cost_anything() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let at = "https://protocols.example";
    let left = site
        .beside(&model_beside(&site, "tokens = 9000"))
        .script(&format!("code late proxy {at}/stall one -X POST; code next proxy {at}/echo one -X POST"));
    assert_eq!(["late", "next"].map(|key| left.said(key)), ["502", "429"], "{}", left.ended);
    assert_eq!((left.denials("budget_exhausted"), site.requests().len()), (1, 1), "{:?}", left.audit());
}

#[test]
fn what_asks_no_model_takes_no_budget_and_what_cannot_be_counted_is_refused() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("anthropic", "access_token", ANTHROPIC_KEY);
    let count = r#"count() { printf 'count=%s\n' "$(curl -sS -m 20 -o /dev/null -w '%{http_code}' "$MODEL_BASE_URL/v1/messages/count_tokens" \
        -H 'content-type: application/json' -d '{"model":"anthropic/claude-sonnet-4-5","messages":[{"role":"user","content":"hi"}]}')"; }
    "#;
    let run = site.run().policy("providers = [\"anthropic\"]\nllm.budget = { tokens = 10000 }\n");
    let ended = run.script(&format!("{ASK}{count}count; ask 1"));
    assert!(ended.stdout.contains("count=200") && ended.stdout.contains("1=200"), "{ended}");

    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("one", "access_token", "canary-of-a-socket");
    let policy = |budget: &str| {
        format!(
            "llm.budget = {{ {budget} }}\n[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://protocols.example/*\"]\n\
             llm = \"openai\"\ninject = {{ header = \"authorization\", value = \"Bearer {{{{access_token}}}}\" }}\n"
        )
    };
    let socket = "-m 2 --http1.1 -H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
                  -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' https://protocols.example/ws";
    for (budget, said) in
        [("tokens = 9000", ["426", "426"]), ("usd = \"9\"", ["426", "426"]), ("requests = 1", ["101", "429"])]
    {
        let left = site.beside(&policy(budget)).script(&format!("code 1 via {socket}; code 2 via {socket}"));
        assert_eq!(["1", "2"].map(|key| left.said(key)), said, "{budget}: {}", left.ended);
        assert!(said[0] == "101" || left.denials("budget_exhausted") == 2, "{budget}: {:?}", left.audit());
    }
    assert_eq!(site.requests().len(), 1, "what is refused is not sent");
}

#[test]
fn a_budget_holds_for_requests_at_once() {
    for (budget, passed) in [("tokens = 1300", 2), ("usd = \"0.005\"", 2), ("requests = 3", 3)] {
        let Some(site) = Site::for_test(NEEDS) else { return };
        site.keep("anthropic", "access_token", ANTHROPIC_KEY);
        let run = site.run().policy(&format!("providers = [\"anthropic\"]\nllm.budget = {{ {budget} }}\n"));
        let ended = run.script(&format!("{ASK}for n in 1 2 3 4 5 6 7 8; do ask $n & done; wait"));
        let said = |code: &str| ended.stdout.matches(code).count();
        assert_eq!((said("=200"), said("=429")), (passed, 8 - passed), "{budget}: {ended}");
        assert_eq!(site.requests().len(), passed, "{budget}: what is over the budget is not sent");
    }
}

/// A model's API at a host that gives any answer.
fn model_beside(site: &Site, budget: &str) -> String {
    site.keep("one", "access_token", "canary-of-a-model");
    format!(
        "llm.budget = {{ {budget} }}\n[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://protocols.example/*\"]\n\
         llm = \"openai\"\ninject = {{ header = \"authorization\", value = \"Bearer {{{{access_token}}}}\" }}\n"
    )
}

#[test]
fn what_is_refused_uses_no_budget_up() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let policy = model_beside(&site, "requests = 1")
        .replace("llm = ", "rate = { requests_per_minute = 1, burst = 2 }\nllm = ");
    let left = site.beside(&policy).script(
        "for n in 1 2 3; do code refused$n proxy https://protocols.example/echo one -X POST -H 'Authorization: Bearer {{nothing}}'; done\n\
         code sent via -X POST https://protocols.example/echo\n\
         code over via -X POST https://protocols.example/echo",
    );
    let said = ["refused1", "refused3", "sent", "over"].map(|key| left.said(key));
    assert_eq!(said, ["400", "400", "200", "429"], "{}", left.ended);
    assert_eq!(left.denials("budget_exhausted"), 1, "{:?}", left.audit());
}

#[test]
fn who_gives_up_while_it_waits_asks_nothing() {
    for how in ["--http2", "--http1.1", "--http1.1 --data-binary @/tmp/long"] {
        let Some(site) = Site::for_test(NEEDS) else { return };
        // Two dozen octets, one by one: about eight seconds; and not a model's answer.
        let slow = "https://protocols.example/echo-auth?as=slow&ms=350&status=500";
        let left = site.beside(&model_beside(&site, "tokens = 9000")).script(&format!(
            "head -c 100000 /dev/zero > /tmp/long\n\
             code first via -X POST '{slow}' & first=$!; sleep 2\n\
             code second via {how} -m 1 -X POST https://protocols.example/echo?second; wait $first\n\
             code third via -X POST https://protocols.example/echo?third",
        ));
        let said = ["first", "second", "third"].map(|key| left.said(key));
        assert_eq!(said, ["500", "000", "200"], "{how}: {}", left.ended);
        let requests = site.requests();
        assert_eq!(requests.len(), 2, "{how}: {requests:?}");
        assert!(requests.iter().all(|it| !it.text("path").contains("second")), "{how}: {requests:?}");
    }
}

#[test]
fn what_servers_take_for_a_question_is_counted() {
    let p = "https://protocols.example";
    for ask in [
        format!("-H 'X-HTTP-Method-Override: POST' {p}/v1/chat/completions"),
        format!("-H 'X_Method_Override: post' {p}/v1/chat/completions"),
        format!("-X POST -H 'X-Original-URL: /v1/chat/completions' {p}/v1/files"),
        format!("-X POST '{p}/v1/chat/completions;/files'"),
        format!("-X POST {p}/v1/chat/completions/cancel"),
    ] {
        let Some(site) = Site::for_test(NEEDS) else { return };
        let policy = model_beside(&site, "requests = 1");
        let left = site.beside(&policy).script(&format!("code 1 via {ask}; code 2 via {ask}"));
        assert_eq!(left.said("2"), "429", "{ask}: {}", left.ended);
        assert_eq!(site.requests().len(), 1, "{ask}");
    }
    let Some(site) = Site::for_test(NEEDS) else { return };
    let left = site.beside(&model_beside(&site, "tokens = 9000")).script(&format!(
        "code trace via -X TRACE {p}/echo; code meant via -H 'X-HTTP-Method-Override: TRACE' {p}/echo\n\
         code batch via -X POST {p}/v1/batches; code batches via -X POST {p}/v1/messages/batches; code list via {p}/v1/batches",
    ));
    let said = ["trace", "meant", "batch", "batches"].map(|key| left.said(key));
    assert_eq!(said, [left.said("trace"), left.said("trace"), "429", "429"], "{}", left.ended);
    assert_eq!(left.denials("budget_exhausted"), 2, "{:?}", left.audit());
    assert_eq!(site.requests().len(), 1, "a list of batches is no question");
}

#[test]
fn a_socket_to_a_model_is_opened_at_the_gateway() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("one", "access_token", "canary-of-a-socket");
    let policy = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://protocols.example/v1/*\"]\n\
                  llm = \"openai\"\ninject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }\n";
    let socket = "-m 2 --http1.1 -H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
                  -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' http://127.0.0.1:8080/llm/v1/ws";
    let left = site.beside(policy).script(&format!("code 1 gate {socket}"));
    assert_eq!(left.said("1"), "101", "{}", left.ended);
    let requests = site.requests();
    assert!(
        requests.len() == 1 && requests[0].header("authorization") == Some("Bearer canary-of-a-socket"),
        "{requests:?}"
    );
}

#[test]
fn a_rate_is_held() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("one", "access_token", "canary-of-a-rate");
    let left = site
        .beside(
            "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://protocols.example/*\"]\n\
             headers = [\"x-may\"]\nrate = { requests_per_minute = 6, burst = 2 }\n\
             inject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }\n",
        )
        .script(
            "for n in 1 2 3; do code $n via -H 'X-May: 1' -H 'X-May-Not: 1' https://protocols.example/echo; done\n\
             code gate proxy https://protocols.example/echo one",
        );
    let said = ["1", "2", "3", "gate"].map(|key| left.said(key));
    assert_eq!(said, ["200", "200", "429", "429"], "{}", left.ended);
    assert_eq!(left.denials("rate_limited"), 2, "{:?}", left.audit());
    let requests = site.requests();
    assert_eq!(requests.len(), 2);
    assert!(
        requests.iter().all(|r| r.header("x-may").is_some() && r.header("x-may-not").is_none()),
        "{requests:?}"
    );
}

#[test]
fn another_providers_placeholder_avoids_no_budget() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site.keep("beside", "access_token", "canary-of-one-beside");
    let policy = format!(
        "{}[[provider]]\nid = \"beside\"\nauthorized_uris = [\"https://protocols.example/*\"]\nenv = [\"BESIDE\"]\n\
         inject = {{ header = \"authorization\", value = \"Bearer {{{{access_token}}}}\" }}\n",
        model_beside(&site, "requests = 1")
    );
    let left = site.beside(&policy).script(
        "for n in 1 2; do code asked$n via -X POST -H \"Authorization: Bearer $BESIDE\" https://protocols.example/echo; done",
    );
    assert_eq!([left.said("asked1"), left.said("asked2")], ["200", "429"], "{}", left.ended);
    assert_eq!(left.denials("budget_exhausted"), 1, "{:?}", left.audit());
}
