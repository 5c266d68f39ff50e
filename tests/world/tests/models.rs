//! The model providers of the world answer like real ones: whole and streamed, with tools, and with their own error for a refused key. The
//! script depends on the conversation alone, so each turn is requested here as an agent would.
#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::process::Stdio;

use lockgate_world::{
    ANTHROPIC_KEY, INPUT_TOKENS, OPENAI_KEY, OPENROUTER_KEY, OUTPUT_TOKENS, PLAIN_ANSWER, TASK_ANSWER, World,
};
use serde_json::{Value, json};

const MESSAGES: &str = "https://api.anthropic.com/v1/messages";
const RESPONSES: &str = "https://api.openai.com/v1/responses";
const CHATS: [(&str, &str); 2] = [
    ("https://api.openai.com/v1/chat/completions", OPENAI_KEY),
    ("https://openrouter.ai/api/v1/chat/completions", OPENROUTER_KEY),
];
const TASK: &str = "LOCKGATE-TASK file=/project/a.txt content=kiwi command=wc -c a.txt";

fn bearer(key: &str) -> String {
    format!("Authorization: Bearer {key}")
}

/// Sends a request with one more header, and with a body if there is one, and returns the status and the answer.
fn ask(world: &World, url: &str, header: &str, body: &Value) -> (String, String) {
    let mut command = world.command("curl");
    command.args(["-sS", "--max-time", "10", "-w", "\n%{http_code}", "-H", header, url]);
    if !body.is_null() {
        command.args(["-H", "Content-Type: application/json", "-d", &body.to_string()]);
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (said, status) = text.rsplit_once('\n').unwrap();
    (status.to_owned(), said.to_owned())
}

fn whole(world: &World, url: &str, header: &str, body: &Value) -> Value {
    let (status, said) = ask(world, url, header, body);
    assert_eq!(status, "200", "{said}");
    serde_json::from_str(&said).unwrap()
}

/// Returns the data of each event, and the names of the events.
fn events(world: &World, url: &str, header: &str, body: &Value) -> (Vec<Value>, Vec<String>) {
    let mut body = body.clone();
    body["stream"] = true.into();
    let (status, said) = ask(world, url, header, &body);
    assert_eq!(status, "200", "{said}");
    let of_lines = |prefix: &str| -> Vec<String> {
        said.lines().filter_map(|line| line.strip_prefix(prefix)).map(str::to_owned).collect()
    };
    let data = of_lines("data: ").into_iter().filter(|data| data != "[DONE]");
    (data.map(|data| serde_json::from_str(&data).unwrap()).collect(), of_lines("event: "))
}

/// Returns the texts under `path` of all events, joined.
fn joined(events: &[Value], path: &str) -> String {
    events.iter().filter_map(|event| event.pointer(path)?.as_str()).collect()
}

fn messages(turns: usize) -> Value {
    let call = json!({ "role": "assistant", "content": [{ "type": "tool_use", "id": "a", "name": "Write", "input": {} }] });
    let result = json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a", "content": "ok" }] });
    let first = json!({ "role": "user", "content": [{ "type": "text", "text": TASK }] });
    let turns = std::iter::repeat_n([call, result], turns).flatten();
    json!({
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "tools": [{ "name": "Bash" }, { "name": "Write" }],
        "messages": std::iter::once(first).chain(turns).collect::<Vec<Value>>(),
    })
}

#[test]
fn messages_tell_the_script_of_an_agent() {
    let Some(world) = World::for_test() else { return };
    let key = format!("x-api-key: {ANTHROPIC_KEY}");
    let turn = |turn| whole(&world, MESSAGES, &key, &messages(turn));
    let [first, second, last] = [turn(0), turn(1), turn(2)];
    assert_eq!(first["stop_reason"], "tool_use");
    assert_eq!(first["content"][0]["name"], "Write");
    assert_eq!(first["content"][0]["input"], json!({ "file_path": "/project/a.txt", "content": "kiwi\n" }));
    assert_eq!(
        (&second["content"][0]["name"], &second["content"][0]["input"]["command"]),
        (&json!("Bash"), &json!("wc -c a.txt"))
    );
    assert_eq!(
        (&last["content"][0]["text"], &last["stop_reason"]),
        (&json!(TASK_ANSWER), &json!("end_turn"))
    );
    assert_eq!(
        (&last["usage"]["input_tokens"], &last["usage"]["output_tokens"]),
        (&json!(INPUT_TOKENS), &json!(OUTPUT_TOKENS))
    );

    let (events, names) = events(&world, MESSAGES, &key, &messages(0));
    assert_eq!(names[..3], ["message_start", "content_block_start", "ping"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let input: Value = serde_json::from_str(&joined(&events, "/delta/partial_json")).unwrap();
    assert_eq!(input, first["content"][0]["input"]);
    let delta = &events[events.len() - 2];
    assert_eq!(
        (&delta["delta"]["stop_reason"], &delta["usage"]["output_tokens"]),
        (&json!("tool_use"), &json!(OUTPUT_TOKENS))
    );

    let request = world.records_of("web").into_iter().find(|record| record.event == "request").unwrap();
    assert_eq!(
        (request.text("host"), request.text("line")),
        ("api.anthropic.com", "POST /v1/messages HTTP/1.1")
    );
    assert_eq!(request.header("x-api-key"), Some(ANTHROPIC_KEY));
    assert!(request.text("body").contains(TASK));
}

#[test]
fn a_chat_tells_the_script_of_an_agent() {
    let Some(world) = World::for_test() else { return };
    let chat = |turns| {
        let result = json!({ "role": "tool", "tool_call_id": "a", "content": "ok" });
        let first = [json!({ "role": "user", "content": TASK })];
        let tool = |name| json!({ "type": "function", "function": { "name": name } });
        json!({
            "model": "gpt-5",
            "stream_options": { "include_usage": true },
            "tools": [tool("bash"), tool("write")],
            "messages": first.into_iter().chain(std::iter::repeat_n(result, turns)).collect::<Vec<Value>>(),
        })
    };
    let write = json!({ "path": "/project/a.txt", "content": "kiwi\n" });
    for (url, key) in CHATS {
        let key = bearer(key);
        let first = whole(&world, url, &key, &chat(0));
        let call = &first["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "write");
        assert_eq!(serde_json::from_str::<Value>(call["arguments"].as_str().unwrap()).unwrap(), write);
        assert_eq!(first["usage"]["prompt_tokens"], INPUT_TOKENS);

        let (streamed, _) = events(&world, url, &key, &chat(0));
        let function = "/choices/0/delta/tool_calls/0/function";
        assert_eq!(joined(&streamed, &format!("{function}/name")), "write");
        let arguments = joined(&streamed, &format!("{function}/arguments"));
        assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), write);
        assert_eq!(joined(&streamed, "/choices/0/finish_reason"), "tool_calls");
        let last = streamed.last().unwrap();
        assert_eq!(
            (&last["choices"], &last["usage"]["completion_tokens"]),
            (&json!([]), &json!(OUTPUT_TOKENS))
        );

        let (streamed, _) = events(&world, url, &key, &chat(2));
        assert_eq!(joined(&streamed, "/choices/0/delta/content"), TASK_ANSWER);
    }
}

#[test]
fn responses_tell_the_script_of_codex() {
    let Some(world) = World::for_test() else { return };
    let response = |outputs: &[&str]| {
        let first =
            json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": TASK }] });
        let outputs = outputs.iter().map(|kind| json!({ "type": kind, "call_id": "a", "output": "ok" }));
        json!({
            "model": "gpt-5-codex",
            "tools": [{ "type": "custom", "name": "apply_patch" }, { "type": "function", "name": "shell" }],
            "input": std::iter::once(first).chain(outputs).collect::<Vec<Value>>(),
        })
    };
    let key = bearer(OPENAI_KEY);
    let (streamed, names) = events(&world, RESPONSES, &key, &response(&[]));
    assert_eq!(names[..3], ["response.created", "response.in_progress", "response.output_item.added"]);
    assert_eq!(names[names.len() - 2..], ["response.output_item.done", "response.completed"]);
    let patch = joined(&streamed, "/delta");
    assert!(patch.contains("*** Add File: /project/a.txt\n+kiwi\n"), "{patch}");
    assert!(streamed.iter().enumerate().all(|(number, event)| event["sequence_number"] == number));

    let one = ["custom_tool_call_output"];
    let (streamed, _) = events(&world, RESPONSES, &key, &response(&one));
    let arguments: Value = serde_json::from_str(&joined(&streamed, "/delta")).unwrap();
    assert_eq!(arguments, json!({ "command": ["bash", "-lc", "wc -c a.txt"] }));
    assert!(streamed.iter().any(|event| event["type"] == "response.function_call_arguments.done"));

    let two = ["custom_tool_call_output", "function_call_output"];
    let (streamed, _) = events(&world, RESPONSES, &key, &response(&two));
    assert_eq!(joined(&streamed, "/delta"), TASK_ANSWER);
    let whole = whole(&world, RESPONSES, &key, &response(&two));
    assert_eq!(whole["output"][0]["content"][0]["text"], TASK_ANSWER);
    assert_eq!(
        (&whole["usage"]["input_tokens"], &whole["usage"]["output_tokens"]),
        (&json!(INPUT_TOKENS), &json!(OUTPUT_TOKENS))
    );
    assert_eq!(streamed.last().unwrap()["response"], whole);
}

#[test]
fn whoever_gives_no_task_gets_a_plain_answer() {
    let Some(world) = World::for_test() else { return };
    let asked = json!({ "messages": [{ "role": "user", "content": "hello" }], "input": "hello" });
    let said = whole(&world, MESSAGES, &bearer(ANTHROPIC_KEY), &asked);
    assert_eq!(said["content"][0]["text"], PLAIN_ANSWER);
    let (streamed, _) = events(&world, MESSAGES, &bearer(ANTHROPIC_KEY), &asked);
    assert_eq!(joined(&streamed, "/delta/text"), PLAIN_ANSWER);
    let said = whole(&world, CHATS[0].0, &bearer(OPENAI_KEY), &asked);
    assert_eq!(said["choices"][0]["message"]["content"], PLAIN_ANSWER);
    let (streamed, _) = events(&world, RESPONSES, &bearer(OPENAI_KEY), &asked);
    assert_eq!(joined(&streamed, "/delta"), PLAIN_ANSWER);
}

#[test]
fn a_wrong_key_is_refused_and_repeated() {
    let Some(world) = World::for_test() else { return };
    let asked = json!({ "messages": [] });
    let refused = [
        (MESSAGES, "x-api-key: wrong-key".to_owned()),
        (MESSAGES, bearer("wrong-key")),
        (RESPONSES, bearer("wrong-key")),
        (CHATS[0].0, bearer("wrong-key")),
        // The key of another provider.
        (CHATS[1].0, bearer(OPENAI_KEY)),
    ];
    for (url, header) in refused {
        let (status, said) = ask(&world, url, &header, &asked);
        let said: Value = serde_json::from_str(&said).unwrap();
        let message = said["error"]["message"].as_str().unwrap();
        let key = header.split(' ').next_back().unwrap();
        assert!(status == "401" && message.contains(key), "{url}: {status} {said}");
    }
    let (status, _) = ask(&world, MESSAGES, "X-Nothing: 1", &asked);
    assert_eq!(status, "401");
}

#[test]
fn a_test_says_which_key_is_right() {
    let Some(world) = World::for_test() else { return };
    world.expect_key("api.anthropic.com", "first").unwrap();
    world.expect_key("openrouter.ai", "other").unwrap();
    let models = |key: &str| ask(&world, "https://api.anthropic.com/v1/models", key, &Value::Null).0;
    assert_eq!([models("x-api-key: first"), models(&format!("x-api-key: {ANTHROPIC_KEY}"))], ["200", "401"]);
    world.expect_key("api.anthropic.com", "second").unwrap();
    assert_eq!([models("x-api-key: first"), models("x-api-key: second")], ["401", "200"]);
    let others = [("openrouter.ai/api", "other"), ("api.openai.com", OPENAI_KEY)];
    for (host, key) in others {
        let said = whole(&world, &format!("https://{host}/v1/models"), &bearer(key), &Value::Null);
        assert!(!said["data"].as_array().unwrap().is_empty());
    }
}

#[test]
fn tokens_are_counted_and_anything_else_is_not_found() {
    let Some(world) = World::for_test() else { return };
    let key = bearer(ANTHROPIC_KEY);
    let counted = whole(&world, &format!("{MESSAGES}/count_tokens"), &key, &json!({ "messages": [] }));
    assert_eq!(counted, json!({ "input_tokens": INPUT_TOKENS }));
    assert_eq!(ask(&world, "https://api.anthropic.com/v1/files", &key, &Value::Null).0, "404");
    assert_eq!(ask(&world, "https://api.anthropic.com/", &key, &Value::Null).0, "404");
}
