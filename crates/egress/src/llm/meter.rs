//! Reading how many tokens an answer took, while it passes by: from its JSON, or from the events of a stream.

use memchr::memmem;
use policy::{LlmFormat, Tokens};
use serde_json::Value;

use crate::http::MediaType;

/// The largest whole answer, and the longest line of a stream, that is read.
const LARGEST: usize = 8 * 1024 * 1024;
/// What an event of a stream holds beside text, and how many octets of text there are to a token at least: where a stream does not come to
/// its end, what has passed of it is charged, and rather too much than too little.
const AROUND_TEXT: usize = 80;
const OCTETS_OF_A_TOKEN: usize = 2;

/// Reads one answer.
pub(crate) struct Meter {
    format: LlmFormat,
    stream: bool,
    /// Whether a use should be told: the request asked a model for something, and was not refused.
    expected: bool,
    kept: Vec<u8>,
    given_up: bool,
    /// The most tokens that the events so far may have brought.
    passed: u64,
    /// Whether the use of all of the answer was told, and not only what it began with.
    told: bool,
    /// Whether a use was told that cannot be read.
    unreadable: bool,
    found: Metered,
}

/// What an answer told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metered {
    pub(crate) tokens: Option<Tokens>,
    pub(crate) model: Option<String>,
    /// Why its use is not known, or not all of it.
    pub(crate) untold: Option<Untold>,
}

/// Why the use of an answer is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untold {
    /// It came whole, and tells none.
    Silent,
    /// It tells one that is no count of tokens.
    Unreadable,
    /// It ended before it told.
    CutOff,
}

impl Meter {
    pub(crate) fn of(format: LlmFormat, asked: bool) -> Self {
        Self {
            format,
            stream: false,
            expected: asked,
            kept: Vec::new(),
            given_up: false,
            passed: 0,
            told: false,
            unreadable: false,
            found: Metered::default(),
        }
    }

    /// What the answer's head says.
    pub(crate) fn begin(&mut self, accepted: bool, content_type: Option<&str>) {
        self.expected &= accepted;
        self.stream = content_type.is_some_and(|kind| MediaType::of(kind).is("text/event-stream"));
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

    /// What was found; `whole` if all of the answer has passed.
    pub(crate) fn end(mut self, whole: bool) -> Metered {
        let rest = std::mem::take(&mut self.kept);
        if !self.given_up {
            match self.stream {
                true => self.line(&rest),
                false => self.document(&rest),
            }
        }
        let untold = match self.found.tokens {
            _ if !self.expected => None,
            _ if self.unreadable => Some(Untold::Unreadable),
            None if whole => Some(Untold::Silent),
            None => Some(Untold::CutOff),
            Some(_) => None,
        };
        let mut found = self.found;
        if let Some(tokens) = found.tokens.as_mut().filter(|_| !self.told) {
            tokens.output = tokens.output.max(self.passed);
        }
        Metered { untold, ..found }
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
        let Some(data) = line.strip_prefix(b"data:") else { return };
        let text = data.len().saturating_sub(AROUND_TEXT) / OCTETS_OF_A_TOKEN;
        self.passed = self.passed.saturating_add(1 + text as u64);
        // Most events are pieces of text; only these tell a use.
        if memmem::find(data, b"\"usage\"").is_some() {
            self.document(data);
        }
    }

    fn document(&mut self, text: &[u8]) {
        let Ok(document) = serde_json::from_slice::<Value>(text) else { return };
        // What an answer begins with, of Anthropic's, is in its message.
        for (part, is_last) in
            [(&document, true), (&document["message"], false), (&document["response"], true)]
        {
            if let Some(model) = part["model"].as_str() {
                self.found.model = Some(model.to_owned());
            }
            if !part["usage"].is_object() {
                continue;
            }
            let Some(told) = tokens(self.format, &part["usage"]) else {
                self.unreadable = true;
                continue;
            };
            self.told |= is_last;
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

/// Anthropic tells cached tokens beside the others; OpenAI tells them as a part of the others. Nothing where what is told is no count,
/// or nothing that is known here is told.
fn tokens(format: LlmFormat, usage: &Value) -> Option<Tokens> {
    let mut any = false;
    let mut number = |value: &Value| match value {
        Value::Null => Some(0),
        value => {
            any = true;
            count(value)
        }
    };
    let tokens = match format {
        LlmFormat::Anthropic => {
            let written = number(&usage["cache_creation_input_tokens"])?;
            Tokens {
                input: number(&usage["input_tokens"])?.saturating_add(written),
                cached: number(&usage["cache_read_input_tokens"])?,
                output: number(&usage["output_tokens"])?,
            }
        }
        LlmFormat::OpenAi => {
            let all = number(&usage["prompt_tokens"])?.max(number(&usage["input_tokens"])?);
            let cached = number(&usage["prompt_tokens_details"]["cached_tokens"])?
                .max(number(&usage["input_tokens_details"]["cached_tokens"])?)
                .min(all);
            let output = number(&usage["completion_tokens"])?.max(number(&usage["output_tokens"])?);
            Tokens { input: all - cached, cached, output }
        }
    };
    any.then_some(tokens)
}

/// A number of tokens; some write it with a fraction of zero.
fn count(value: &Value) -> Option<u64> {
    /// From here on a floating-point number does not tell one from the next.
    const EXACT: f64 = (1u64 << 53) as f64;
    let whole = |number: &f64| number.fract() == 0.0 && (0.0..EXACT).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metered(format: LlmFormat, kind: &str, body: &[u8], piece: usize) -> Metered {
        let mut meter = Meter::of(format, true);
        meter.begin(true, Some(kind));
        body.chunks(piece).for_each(|piece| meter.piece(piece));
        meter.end(true)
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
                untold: None
            }
        );
    }

    #[test]
    fn a_stream_is_one_however_its_type_is_written() {
        let stream = b"data: {\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}\n\n";
        for kind in
            ["Text/Event-Stream", "TEXT/EVENT-STREAM;charset=utf-8", "text/event-stream ; charset=utf-8"]
        {
            let found = metered(LlmFormat::OpenAi, kind, stream, 7);
            assert_eq!(found.tokens, Some(Tokens { input: 3, cached: 0, output: 4 }), "{kind}");
        }
    }

    fn told(format: LlmFormat, usage: &str) -> Metered {
        metered(format, "application/json", format!("{{\"usage\":{usage}}}").as_bytes(), 99)
    }

    #[test]
    fn what_is_no_count_is_not_taken_for_nothing() {
        for usage in [
            "{\"input_tokens\":-5}",
            "{\"output_tokens\":1.5}",
            "{\"output_tokens\":\"9\"}",
            "{}",
            "{\"other\":1}",
        ] {
            assert_eq!(told(LlmFormat::Anthropic, usage).untold, Some(Untold::Unreadable), "{usage}");
        }
        let whole = told(LlmFormat::Anthropic, "{\"input_tokens\":5000.0,\"output_tokens\":7}");
        assert_eq!((whole.tokens, whole.untold), (Some(Tokens { input: 5000, cached: 0, output: 7 }), None));
        let most = told(
            LlmFormat::Anthropic,
            "{\"input_tokens\":18446744073709551615,\"cache_creation_input_tokens\":2}",
        );
        assert_eq!(most.tokens.unwrap().input, u64::MAX);
        let silent = metered(LlmFormat::Anthropic, "application/json", b"{\"content\":[]}", 9);
        assert_eq!((silent.tokens, silent.untold), (None, Some(Untold::Silent)));
    }

    #[test]
    fn what_ends_early_is_charged_what_has_passed() {
        let cut = |format, events: &str| {
            let mut meter = Meter::of(format, true);
            meter.begin(true, Some("text/event-stream"));
            meter.piece(events.as_bytes());
            meter.end(false)
        };
        let start = "data: {\"message\":{\"model\":\"claude-x\",\"usage\":{\"input_tokens\":12,\"output_tokens\":1}}}\n\n";
        let delta = format!(
            "data: {{\"type\":\"content_block_delta\",\"delta\":{{\"text\":\"{}\"}}}}\n\n",
            "word ".repeat(100)
        );
        let early = cut(LlmFormat::Anthropic, &format!("{start}{}", delta.repeat(3)));
        assert_eq!(early.untold, None);
        assert!((300..1000).contains(&early.tokens.unwrap().output), "{early:?}");
        let end = "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":34}}\n\n";
        let late = cut(LlmFormat::Anthropic, &format!("{start}{}{end}", delta.repeat(3)));
        assert_eq!(late.tokens, Some(Tokens { input: 12, cached: 0, output: 34 }));
        assert_eq!(cut(LlmFormat::OpenAi, &delta).untold, Some(Untold::CutOff));
    }
}
