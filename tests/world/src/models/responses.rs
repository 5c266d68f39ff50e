//! OpenAI's Responses interface, as Codex uses it: whole answers and streams (platform.openai.com, "Responses", "Streaming events"). Each
//! answer contains one item: a message or a call.

use lockgate_world::{INPUT_TOKENS, OUTPUT_TOKENS};
use serde_json::{Value, json};

use super::script::{Conversation, Form, Offer, Step};
use super::{event, model_of, pieces, stream};
use crate::response::Response;

/// 1 January 2025, the date of every answer.
const CREATED: u64 = 1_735_689_600;

pub(super) fn answer(asked: &Value) -> Response {
    let turn = asked["input"].as_array().map_or(0, Vec::len);
    let item = item_of(conversation(asked).next(), turn);
    let response = |status: &str, output: Value, usage: Value| {
        json!({
            "id": format!("resp_world{turn:019}"),
            "object": "response",
            "created_at": CREATED,
            "status": status,
            "model": model_of(asked),
            "output": output,
            "parallel_tool_calls": false,
            "tools": [],
            "error": null,
            "usage": usage,
        })
    };
    let completed = response("completed", json!([item]), usage());
    if asked["stream"] != true {
        return Response::json(&completed);
    }
    let begun = response("in_progress", json!([]), Value::Null);
    let mut events = vec![
        json!({ "type": "response.created", "response": begun }),
        json!({ "type": "response.in_progress", "response": begun }),
    ];
    events.extend(item_events(&item));
    events.push(json!({ "type": "response.completed", "response": completed }));
    for (number, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = number.into();
    }
    stream(events.iter().map(|data| event(data["type"].as_str(), data)).collect())
}

fn conversation(asked: &Value) -> Conversation {
    let items = asked["input"].as_array().map_or(&[][..], Vec::as_slice);
    // Codex may send its tools as an item of the input.
    let more = items.iter().filter(|item| item["type"] == "additional_tools");
    let offers = more.chain([asked]).flat_map(|item| offers(&item["tools"])).collect();
    let mut conversation = Conversation::new(offers);
    if let Some(text) = asked["input"].as_str() {
        conversation.user(text);
    }
    for item in items {
        if item["role"] == "user" {
            conversation.user_content(&item["content"]);
        }
        if item["type"].as_str().is_some_and(|kind| kind.ends_with("_call_output")) {
            conversation.result();
        }
    }
    conversation
}

/// Returns each tool, those in a namespace included.
fn offers(tools: &Value) -> Vec<Offer> {
    let of_tool = |tool: &Value| {
        let form = match tool["type"].as_str() {
            Some("namespace") => return offers(&tool["tools"]),
            Some("function") => Form::Function,
            Some("custom") => Form::Custom,
            Some("local_shell") => Form::LocalShell,
            _ => return Vec::new(),
        };
        vec![Offer { name: tool["name"].as_str().unwrap_or("local_shell").to_owned(), form }]
    };
    tools.as_array().into_iter().flatten().flat_map(of_tool).collect()
}

fn usage() -> Value {
    json!({
        "input_tokens": INPUT_TOKENS,
        "input_tokens_details": { "cached_tokens": 0 },
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    })
}

fn item_of(step: Step, turn: usize) -> Value {
    let mut item = match step {
        Step::Say(text) => {
            let part = json!({ "type": "output_text", "text": text, "annotations": [] });
            json!({ "type": "message", "role": "assistant", "content": [part] })
        }
        Step::Call { tool, input } => {
            let mut call = match tool.form {
                Form::Function => {
                    json!({ "type": "function_call", "name": tool.name, "arguments": input.to_string() })
                }
                Form::Custom => json!({ "type": "custom_tool_call", "name": tool.name, "input": input }),
                Form::LocalShell => {
                    json!({ "type": "local_shell_call", "action": { "type": "exec", "command": input, "env": {} } })
                }
            };
            call["call_id"] = format!("call_world{turn:019}").into();
            call
        }
    };
    item["id"] = format!("item_world{turn:019}").into();
    item["status"] = "completed".into();
    item
}

/// Returns the events of a growing item. They depend on its type; a shell call comes at once.
fn item_events(item: &Value) -> Vec<Value> {
    let id = &item["id"];
    let mut begun = item.clone();
    begun["status"] = "in_progress".into();
    let of_item = |kind: &str, key: &str, value: &Value| {
        let mut event = json!({ "type": format!("response.{kind}"), "item_id": id, "output_index": 0 });
        event[key] = value.clone();
        event
    };
    let grown = |kind: &str, key: &str, whole: &Value| {
        let text = whole.as_str().unwrap_or_default();
        let deltas =
            pieces(text).into_iter().map(|piece| of_item(&format!("{kind}.delta"), "delta", &piece.into()));
        deltas.chain([of_item(&format!("{kind}.done"), key, whole)]).collect::<Vec<Value>>()
    };
    let growth = match item["type"].as_str() {
        Some("message") => {
            begun["content"] = json!([]);
            let part = &item["content"][0];
            let empty = json!({ "type": "output_text", "text": "", "annotations": [] });
            let mut events = vec![of_item("content_part.added", "part", &empty)];
            events.extend(grown("output_text", "text", &part["text"]));
            events.push(of_item("content_part.done", "part", part));
            events.iter_mut().for_each(|event| event["content_index"] = 0.into());
            events
        }
        Some("function_call") => {
            begun["arguments"] = "".into();
            grown("function_call_arguments", "arguments", &item["arguments"])
        }
        Some("custom_tool_call") => {
            begun["input"] = "".into();
            grown("custom_tool_call_input", "input", &item["input"])
        }
        _ => Vec::new(),
    };
    let mut events = vec![json!({ "type": "response.output_item.added", "output_index": 0, "item": begun })];
    events.extend(growth);
    events.push(json!({ "type": "response.output_item.done", "output_index": 0, "item": item }));
    events
}
