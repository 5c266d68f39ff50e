//! OpenAI's Chat Completions interface, which OpenRouter speaks too: whole answers and streams of chunks
//! (platform.openai.com, "Chat Completions").

use lockgate_world::{INPUT_TOKENS, OUTPUT_TOKENS};
use serde_json::{Value, json};

use super::script::{Conversation, Form, Offer, Step};
use super::{event, model_of, pieces, stream};
use crate::response::Response;

const MODELS: [&str; 3] = ["gpt-5", "gpt-5-codex", "gpt-4.1"];
/// 1 January 2025, the date of every answer.
const CREATED: u64 = 1_735_689_600;

pub(super) fn answer(asked: &Value) -> Response {
    let messages = asked["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let id = format!("chatcmpl-world{:019}", messages.len());
    let call_id = format!("call_world{:019}", messages.len());
    let step = conversation(asked, messages).next();
    if asked["stream"] == true {
        return streamed(asked, &id, &call_id, &step);
    }
    let (message, reason) = match step {
        Step::Say(text) => (json!({ "role": "assistant", "content": text, "refusal": null }), "stop"),
        Step::Call { tool, input } => {
            let function = json!({ "name": tool.name, "arguments": input.to_string() });
            let call = json!({ "id": call_id, "type": "function", "function": function });
            (
                json!({ "role": "assistant", "content": null, "refusal": null, "tool_calls": [call] }),
                "tool_calls",
            )
        }
    };
    let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": reason });
    Response::json(&json!({
        "id": id,
        "object": "chat.completion",
        "created": CREATED,
        "model": model_of(asked),
        "choices": [choice],
        "usage": usage(),
    }))
}

fn conversation(asked: &Value, messages: &[Value]) -> Conversation {
    let tools = asked["tools"].as_array().into_iter().flatten();
    let names = tools.filter_map(|tool| tool["function"]["name"].as_str());
    let offers = names.map(|name| Offer { name: name.to_owned(), form: Form::Function }).collect();
    let mut conversation = Conversation::new(offers);
    for message in messages {
        match message["role"].as_str() {
            Some("user") => conversation.user_content(&message["content"]),
            Some("tool") => conversation.result(),
            _ => {}
        }
    }
    conversation
}

fn usage() -> Value {
    json!({
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        "prompt_tokens_details": { "cached_tokens": 0 },
        "completion_tokens_details": { "reasoning_tokens": 0 },
    })
}

fn streamed(asked: &Value, id: &str, call_id: &str, step: &Step) -> Response {
    let mut deltas = vec![json!({ "role": "assistant", "content": "" })];
    let reason = match step {
        Step::Say(text) => {
            deltas.extend(pieces(text).iter().map(|text| json!({ "content": text })));
            "stop"
        }
        Step::Call { tool, input } => {
            let function = json!({ "name": tool.name, "arguments": "" });
            let call = json!({ "index": 0, "id": call_id, "type": "function", "function": function });
            deltas.push(json!({ "tool_calls": [call] }));
            let more =
                |arguments| json!({ "tool_calls": [{ "index": 0, "function": { "arguments": arguments } }] });
            deltas.extend(pieces(&input.to_string()).into_iter().map(more));
            "tool_calls"
        }
    };
    let wants_usage = asked["stream_options"]["include_usage"] == true;
    let chunk = |choices: Value, usage: Value| {
        let mut chunk = json!({
            "id": id,
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": model_of(asked),
            "choices": choices,
        });
        if wants_usage {
            chunk["usage"] = usage;
        }
        event(None, &chunk)
    };
    let choice =
        |delta: &Value, reason: Value| json!([{ "index": 0, "delta": delta, "finish_reason": reason }]);
    let mut events: Vec<Vec<u8>> =
        deltas.iter().map(|delta| chunk(choice(delta, Value::Null), Value::Null)).collect();
    events.push(chunk(choice(&json!({}), reason.into()), Value::Null));
    if wants_usage {
        events.push(chunk(json!([]), usage()));
    }
    events.push(b"data: [DONE]\n\n".to_vec());
    stream(events)
}

pub(super) fn models() -> Response {
    let model =
        |id| json!({ "id": id, "object": "model", "created": CREATED, "owned_by": "world", "name": id });
    Response::json(&json!({ "object": "list", "data": MODELS.map(model) }))
}
