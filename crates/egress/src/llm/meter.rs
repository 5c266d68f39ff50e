//! Reading how many tokens an answer took, while it passes by: from its JSON, or from the events of a stream.

use memchr::memmem;
use policy::{LlmFormat, Tokens};
use serde_json::Value;

/// The largest whole answer, and the longest line of a stream, that is read.
const LARGEST: usize = 8 * 1024 * 1024;

/// Reads one answer.
pub(crate) struct Meter {
    format: LlmFormat,
    stream: bool,
    /// Whether a use should be told: the request asked a model for something, and was not refused.
    expected: bool,
    kept: Vec<u8>,
    given_up: bool,
    found: Metered,
}

/// What an answer told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metered {
    pub(crate) tokens: Option<Tokens>,
    pub(crate) model: Option<String>,
    pub(crate) expected: bool,
}

impl Meter {
    pub(crate) fn of(format: LlmFormat, content_type: Option<&str>, expected: bool) -> Self {
        let stream = content_type.is_some_and(|kind| kind.starts_with("text/event-stream"));
        Self { format, stream, expected, kept: Vec::new(), given_up: false, found: Metered::default() }
    }

    /// A piece of the body.
    pub(crate) fn piece(&mut self, piece: &[u8]) {
        if !self.stream {
            self.keep(piece);
            return;
        }
        let mut rest = piece;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            if self.kept.is_empty() && !self.given_up {
                self.line(&rest[..end]);
            } else {
                self.keep(&rest[..end]);
                let line = std::mem::take(&mut self.kept);
                self.line(&line);
            }
            self.given_up = false;
            rest = &rest[end + 1..];
        }
        self.keep(rest);
    }

    /// What was found.
    pub(crate) fn end(mut self) -> Metered {
        let rest = std::mem::take(&mut self.kept);
        if !self.given_up {
            match self.stream {
                true => self.line(&rest),
                false => self.document(&rest),
            }
        }
        Metered { expected: self.expected, ..self.found }
    }

    fn keep(&mut self, piece: &[u8]) {
        if self.given_up || self.kept.len() + piece.len() > LARGEST {
            self.kept.clear();
            self.given_up = true;
        } else {
            self.kept.extend_from_slice(piece);
        }
    }

    fn line(&mut self, line: &[u8]) {
        if let Some(data) = line.strip_prefix(b"data:")
            // Most events are pieces of text; only these tell a use.
            && memmem::find(data, b"\"usage\"").is_some()
        {
            self.document(data);
        }
    }

    fn document(&mut self, text: &[u8]) {
        let Ok(document) = serde_json::from_slice::<Value>(text) else { return };
        for part in [&document, &document["message"], &document["response"]] {
            if let Some(model) = part["model"].as_str() {
                self.found.model = Some(model.to_owned());
            }
            if part["usage"].is_object() {
                let told = tokens(self.format, &part["usage"]);
                let old = self.found.tokens.unwrap_or_default();
                // A stream tells its use more than once, and never takes any back.
                self.found.tokens = Some(Tokens {
                    input: old.input.max(told.input),
                    cached: old.cached.max(told.cached),
                    output: old.output.max(told.output),
                });
            }
        }
    }
}

/// Anthropic tells cached tokens beside the others; OpenAI tells them as a part of the others.
fn tokens(format: LlmFormat, usage: &Value) -> Tokens {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    match format {
        LlmFormat::Anthropic => Tokens {
            input: number(&usage["input_tokens"]) + number(&usage["cache_creation_input_tokens"]),
            cached: number(&usage["cache_read_input_tokens"]),
            output: number(&usage["output_tokens"]),
        },
        LlmFormat::OpenAi => {
            let all = number(&usage["prompt_tokens"]).max(number(&usage["input_tokens"]));
            let cached = number(&usage["prompt_tokens_details"]["cached_tokens"])
                .max(number(&usage["input_tokens_details"]["cached_tokens"]))
                .min(all);
            let output = number(&usage["completion_tokens"]).max(number(&usage["output_tokens"]));
            Tokens { input: all - cached, cached, output }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metered(format: LlmFormat, kind: &str, body: &[u8], piece: usize) -> Metered {
        let mut meter = Meter::of(format, Some(kind), true);
        body.chunks(piece).for_each(|piece| meter.piece(piece));
        meter.end()
    }

    const STREAM: &[u8] = b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"claude-x\",\"usage\":{\"input_tokens\":12,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n\
        data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a \\\"usage\\\" of words\"}}\n\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":34}}\n\n";

    proptest::proptest! {
        #[test]
        fn pieces_do_not_matter(piece in 1usize..200) {
            let found = metered(LlmFormat::Anthropic, "text/event-stream; charset=utf-8", STREAM, piece);
            proptest::prop_assert_eq!(found.tokens, Some(Tokens { input: 12, cached: 5, output: 34 }));
            proptest::prop_assert_eq!(found.model.as_deref(), Some("claude-x"));
        }

        #[test]
        fn any_octets_are_survived(body: Vec<u8>, piece in 1usize..9) {
            let _ = metered(LlmFormat::OpenAi, "text/event-stream", &body, piece);
            let _ = metered(LlmFormat::OpenAi, "application/json", &body, piece);
        }
    }

    #[test]
    fn whole_answers_of_openai_are_read() {
        let chat = br#"{"model":"gpt-x","usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":40}}}"#;
        let found = metered(LlmFormat::OpenAi, "application/json", chat, 10);
        assert_eq!(found.tokens, Some(Tokens { input: 60, cached: 40, output: 7 }));
        let stream = b"data: {\"type\":\"response.completed\",\"response\":{\"model\":\"gpt-y\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\ndata: [DONE]\n";
        let found = metered(LlmFormat::OpenAi, "text/event-stream", stream, 7);
        assert_eq!(
            found,
            Metered {
                tokens: Some(Tokens { input: 3, cached: 0, output: 4 }),
                model: Some("gpt-y".into()),
                expected: true
            }
        );
    }
}
