//! Anthropic's Messages interface: whole answers and streams (docs.anthropic.com, "Messages", "Streaming messages").

use data_encoding::HEXLOWER;
use lockgate_world::{INPUT_TOKENS, OUTPUT_TOKENS};
use serde_json::{Value, json};

use super::script::{Conversation, Form, Offer, Step};
use super::{event, model_of, pieces, stream};
use crate::response::Response;

const MODELS: [&str; 3] = ["claude-opus-4-1", "claude-sonnet-4-5", "claude-haiku-4-5"];

pub(super) fn answer(asked: &Value) -> Response {
    let messages = asked["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let conversation = conversation(asked, messages);
    let step = conversation.next();
    let (block, reason) = match step {
        Step::Say(text) => (json!({ "type": "text", "text": text }), "end_turn"),
        Step::Call { tool, input } => {
            let id = format!("toolu_world{:019}", messages.len() + conversation.results());
            (json!({ "type": "tool_use", "id": id, "name": tool.name, "input": input }), "tool_use")
        }
    };
    let message = json!({
        "id": id(asked, messages, &conversation),
        "type": "message",
        "role": "assistant",
        "model": model_of(asked),
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": usage(1),
    });
    if asked["stream"] == true { streamed(message, &block, reason) } else { whole(message, &block, reason) }
}

/// Returns a message's id. In a thread a request has only what is new and names the message before it, so the id encodes the conversation.
fn id(asked: &Value, messages: &[Value], conversation: &Conversation) -> String {
    match asked["thread"].is_object() {
        true => format!("{IN_THREAD}{}", HEXLOWER.encode(conversation.note().to_string().as_bytes())),
        false => format!("msg_world{:019}", messages.len()),
    }
}

/// The prefix of a message's id in a thread, followed by the conversation.
const IN_THREAD: &str = "msg_thread";

/// Returns the conversation before a request that continues a thread.
fn before(asked: &Value) -> Option<Conversation> {
    let note = asked["thread"]["previous_message_id"].as_str()?.strip_prefix(IN_THREAD)?;
    Conversation::of_note(&serde_json::from_slice(&HEXLOWER.decode(note.as_bytes()).ok()?).ok()?)
}

fn conversation(asked: &Value, messages: &[Value]) -> Conversation {
    let names = asked["tools"].as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str());
    let offers = names.map(|name| Offer { name: name.to_owned(), form: Form::Function }).collect();
    let mut conversation = before(asked).unwrap_or_else(|| Conversation::new(offers));
    for message in messages.iter().filter(|message| message["role"] == "user") {
        conversation.user_content(&message["content"]);
        let blocks = message["content"].as_array().into_iter().flatten();
        blocks.filter(|block| block["type"] == "tool_result").for_each(|_| conversation.result());
    }
    conversation
}

fn usage(output_tokens: u64) -> Value {
    json!({
        "input_tokens": INPUT_TOKENS,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output_tokens,
        "service_tier": "standard",
    })
}

fn whole(mut message: Value, block: &Value, reason: &str) -> Response {
    message["content"] = json!([block]);
    message["stop_reason"] = reason.into();
    message["usage"] = usage(OUTPUT_TOKENS);
    Response::json(&message)
}

fn streamed(message: Value, block: &Value, reason: &str) -> Response {
    let mut start = block.clone();
    let deltas: Vec<Value> = if block["type"] == "text" {
        start["text"] = "".into();
        let text = block["text"].as_str().unwrap_or_default();
        pieces(text).iter().map(|text| json!({ "type": "text_delta", "text": text })).collect()
    } else {
        start["input"] = json!({});
        let input = block["input"].to_string();
        pieces(&input)
            .iter()
            .map(|json| json!({ "type": "input_json_delta", "partial_json": json }))
            .collect()
    };
    let mut events = vec![
        json!({ "type": "message_start", "message": message }),
        json!({ "type": "content_block_start", "index": 0, "content_block": start }),
        json!({ "type": "ping" }),
    ];
    events.extend(
        deltas.iter().map(|delta| json!({ "type": "content_block_delta", "index": 0, "delta": delta })),
    );
    events.extend([
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": null },
            "usage": { "output_tokens": OUTPUT_TOKENS },
        }),
        json!({ "type": "message_stop" }),
    ]);
    stream(events.iter().map(|data| event(data["type"].as_str(), data)).collect())
}

pub(super) fn count_tokens() -> Response {
    Response::json(&json!({ "input_tokens": INPUT_TOKENS }))
}

pub(super) fn models() -> Response {
    let model = |id: &str| json!({ "type": "model", "id": id, "display_name": id, "created_at": "2025-01-01T00:00:00Z" });
    Response::json(&json!({
        "data": MODELS.map(model),
        "has_more": false,
        "first_id": MODELS[0],
        "last_id": MODELS[MODELS.len() - 1],
    }))
}
