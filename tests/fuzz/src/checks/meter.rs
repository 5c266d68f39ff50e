//! The charge for a model's answer. The first octet selects its API, whether it is a stream and whether it came whole; the second
//! how it is cut; the rest is the answer. The charge is the same however the answer is cut, and an answer that reports no usage
//! ends a budget. The rest is also the text of a good answer, and then does not change what that reports.

use std::sync::LazyLock;

use egress::{AnswerEnd, ModelUse, use_of_answer};
use policy::{Denial, Layers, LlmFormat, Origin, Spending};
use serde_json::json;

use crate::octets;

/// A budget that no honest answer uses up: a refusal means that an answer's usage is not known.
const RULES: &str = "[llm.budget]\ntokens = 9223372036854775807\n";
/// The longest name of a model that is kept.
const LONGEST_NAME: usize = 128;
const STREAM: &str = "text/event-stream";
const WHOLE: &str = "application/json";

static SPENDING: LazyLock<Spending> = LazyLock::new(|| {
    let mut layers = Layers::default();
    layers.push(Origin::Named("fuzz".into()), toml::from_str(RULES).expect("the rules are TOML"));
    layers.compile().expect("the rules compile").spending
});

/// Charges for the input as the answer of a model.
pub fn meter(input: &[u8]) {
    let [way, cut, body @ ..] = input else { return };
    let format = match way & 9 {
        0 => LlmFormat::Anthropic,
        1 => LlmFormat::OpenAi,
        _ => LlmFormat::Gemini,
    };
    let kind = if way & 2 == 0 { STREAM } else { WHOLE };
    let end = if way & 4 == 0 { AnswerEnd::Whole } else { AnswerEnd::CutOff };
    let charged = |body: &[u8], length: usize| charge(format, kind, end, body, length);

    let (used, refused) = charged(body, body.len());
    for length in [1, usize::from(*cut)] {
        assert_eq!(charged(body, length), (used.clone(), refused.clone()), "in pieces of {length}");
    }
    assert_eq!(used.requests, 1);
    assert!(used.unpriced.as_ref().is_none_or(|name| name.chars().count() <= LONGEST_NAME));
    let tokens = [used.input_tokens, used.cached_tokens, used.output_tokens];
    assert!(
        tokens != [0; 3] || refused.is_some() || octets::contains(body, b"\"usage"),
        "it was for nothing"
    );
    if kind == STREAM {
        // A comment, and each line end that the standard of event streams allows, do not change what is reported.
        let body = body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body);
        let remark = [b": \"usage\"\n", body].concat();
        assert_eq!(charged(&remark, remark.len()), (used.clone(), refused.clone()), "behind a remark");
        for end in [&b"\n"[..], b"\r", b"\r\n"] {
            let lines = lines(body).join(end);
            assert_eq!(charged(&lines, lines.len()), (used.clone(), refused.clone()), "with {end:?}");
        }
    }
    good(format, body, usize::from(*cut));
}

/// The lines of a stream, which end with LF, CR or both.
fn lines(body: &[u8]) -> Vec<&[u8]> {
    let (mut lines, mut rest) = (Vec::new(), body);
    while let Some(end) = rest.iter().position(|octet| b"\r\n".contains(octet)) {
        lines.push(&rest[..end]);
        rest = &rest[end + if rest[end..].starts_with(b"\r\n") { 2 } else { 1 }..];
    }
    lines.push(rest);
    lines
}

fn charge(
    format: LlmFormat,
    kind: &str,
    end: AnswerEnd,
    body: &[u8],
    length: usize,
) -> (ModelUse, Option<Denial>) {
    use_of_answer(SPENDING.clone(), format, Some(kind), body.chunks(length.max(1)), end)
}

/// Checks that an honest answer with any text is charged what it reports, as a stream and as a document.
fn good(format: LlmFormat, input: &[u8], length: usize) {
    let Some((numbers, text)) = input.split_first_chunk::<12>() else { return };
    let number = |at: usize| u64::from(u32::from_le_bytes([0, 1, 2, 3].map(|on| numbers[at * 4 + on])));
    let (all, cached, output) = (number(0), number(1), number(2).max(1));
    let text = String::from_utf8_lossy(text);
    let (begin, piece, last) = match format {
        LlmFormat::Anthropic => (
            json!({"type": "message_start", "message": {"model": "m", "usage": {
                "input_tokens": all, "cache_read_input_tokens": cached, "output_tokens": 1}}}),
            json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}),
            json!({"type": "message_delta", "delta": {"text": text}, "usage": {"output_tokens": output}}),
        ),
        LlmFormat::OpenAi => (
            json!({"model": "m", "choices": [], "usage": null}),
            json!({"model": "m", "choices": [{"delta": {"content": text}}], "usage": null}),
            json!({"model": "m", "choices": [{"delta": {"content": text}}], "usage": {
                "prompt_tokens": all, "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens": output}}),
        ),
        LlmFormat::Gemini => {
            let event = |output: u64| {
                json!({"candidates": [{"content": {"parts": [{"text": text}]}}], "modelVersion": "m", "usageMetadata": {
                    "promptTokenCount": all, "cachedContentTokenCount": cached, "candidatesTokenCount": output,
                    "totalTokenCount": all + output}})
            };
            (event(0), event(0), event(output))
        }
    };
    let document = match format {
        LlmFormat::Anthropic => json!({"model": "m", "content": [{"text": text}], "usage": {
            "input_tokens": all, "cache_read_input_tokens": cached, "output_tokens": output}}),
        LlmFormat::OpenAi | LlmFormat::Gemini => last.clone(),
    };
    let is_part = format != LlmFormat::Anthropic;
    let cached = if is_part { cached.min(all) } else { cached };
    let input = if is_part { all - cached } else { all };
    let told = |used: &ModelUse| (used.input_tokens, used.cached_tokens, used.output_tokens);
    let early = format!("event: e\ndata: {begin}\n\ndata: {piece}\n\ndata: {piece}\n\n");
    let stream = format!("{early}data: {last}\n\ndata: [DONE]\n\n");
    for (kind, body) in [(STREAM, stream), (WHOLE, document.to_string())] {
        let (used, refused) = charge(format, kind, AnswerEnd::Whole, body.as_bytes(), length);
        assert_eq!(told(&used), (input, cached, output), "{body}");
        assert!(refused.is_none(), "{refused:?} of {body}");
    }
    let (used, refused) = charge(format, STREAM, AnswerEnd::CutOff, early.as_bytes(), length);
    match format {
        LlmFormat::Anthropic | LlmFormat::Gemini => {
            assert_eq!((used.input_tokens, used.cached_tokens), (input, cached));
            assert!(used.output_tokens >= 3, "{} tokens for three events", used.output_tokens);
        }
        LlmFormat::OpenAi => assert!(refused.is_some(), "what was cut off is known: {used:?}"),
    }
}
