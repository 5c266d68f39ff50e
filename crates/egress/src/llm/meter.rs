//! Reads how many tokens an answer took while the answer passes: from its JSON, or from the events of a stream.

use memchr::memmem;
use policy::{LlmFormat, MicroUsd, Tokens};

use super::cost::{surcharge, told};
use super::counts::{each, tells_nothing, tokens};
use super::document;
use super::kept::{Kept, NoRoom, Room};
use crate::http::MediaType;

/// The largest whole answer, and the longest line and largest event of a stream, that is read, in octets.
const LARGEST: usize = 8 * 1024 * 1024;
/// How many octets of an event are not text. A stream that is cut off is charged by an estimate that is rather too high than too low.
const EVENT_OVERHEAD: usize = 80;
/// The least number of octets to a token, for the same estimate.
const OCTETS_PER_TOKEN: usize = 2;

/// Reads one answer.
pub(super) struct Meter<'a> {
    format: LlmFormat,
    stream: bool,
    usage: Usage,
    /// The line, or the whole answer, as far as it has come.
    kept: Kept<'a>,
    /// Whether the line, or the whole answer, is not kept: it grew too large, there was no room, or it can hold no usage.
    given_up: bool,
    /// The data of the current event of a stream: its lines so far, joined by line feeds.
    event: Kept<'a>,
    /// How many octets of the byte order mark have begun an answer that is no stream.
    marked: usize,
    /// Whether the answer, or an event that names a usage, could not be read.
    is_illegible: bool,
    /// Whether no line of a stream has ended yet.
    first_line: bool,
    /// Whether the latest octet was a carriage return, which has ended a line: a line feed right after it is of the same end.
    after_return: bool,
    /// An upper estimate of the tokens in the events so far.
    estimate: u64,
    /// Whether the usage of the whole answer was reported, and not only that of its beginning.
    is_final: bool,
    found: Metered,
}

/// The mark of UTF-8 that an answer may begin with.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Whether an answer should report how many tokens it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// The request asked a model for something.
    Expected,
    NotExpected,
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// With its last octet.
    Whole,
    /// Before its last octet.
    CutOff,
}

/// What an answer reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Metered {
    pub(super) tokens: Option<Tokens>,
    pub(super) model: Option<String>,
    /// What the answer told that it cost.
    pub(super) cost: Option<MicroUsd>,
    /// The field that tells that the answer cost more than its model's price.
    pub(super) surcharge: Option<&'static str>,
    /// Why the usage, or a part of it, is unknown.
    pub(super) unknown: Option<UnknownUsage>,
}

/// Why the usage of an answer is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownUsage {
    /// The answer came whole and reported none.
    Missing,
    /// The same of a stream, which services may have to be asked for it.
    MissingInStream,
    /// The answer came whole and was not of a form that can be read.
    Illegible,
    /// The answer reported something that is no count of tokens.
    Unreadable,
    /// The answer, or a part of it, was too large to be kept, or came beside too many others.
    Unread,
    /// The answer ended before its report.
    CutOff,
}

impl<'a> Meter<'a> {
    pub(super) fn new(room: &'a Room, format: LlmFormat, usage: Usage) -> Self {
        Self {
            format,
            stream: false,
            usage,
            kept: Kept::within(room),
            given_up: false,
            event: Kept::within(room),
            marked: 0,
            is_illegible: false,
            first_line: true,
            after_return: false,
            estimate: 0,
            is_final: false,
            found: Metered::default(),
        }
    }

    /// Reads the answer's head. Only a successful answer reports a usage.
    pub(super) fn begin(&mut self, status: u16, content_type: Option<&str>) {
        let kind = MediaType::of(content_type.unwrap_or_default());
        self.stream = kind.is("text/event-stream");
        // What no model was asked for may be anything, such as a file that the agent wrote.
        self.given_up = self.usage == Usage::NotExpected && !self.stream && !kind.is_json();
        if !(200..300).contains(&status) {
            self.usage = Usage::NotExpected;
        }
    }

    /// Reads a piece of the body. The lines of a stream end with LF, CR or both (the HTML standard, §9.2.6).
    pub(super) fn piece(&mut self, piece: &[u8]) {
        if !self.stream {
            return self.piece_of_whole(piece);
        }
        let Some(last) = piece.last() else { return };
        let mut rest = if self.after_return { piece.strip_prefix(b"\n").unwrap_or(piece) } else { piece };
        self.after_return = *last == b'\r';
        while let Some(end) = memchr::memchr2(b'\r', b'\n', rest) {
            if self.kept.is_empty() && !self.given_up {
                self.line(&rest[..end]);
            } else {
                self.keep(&rest[..end]);
                let line = self.kept.take();
                // A line that was dropped is not an empty one, which would end the event.
                if !std::mem::take(&mut self.given_up) {
                    self.line(&line);
                }
            }
            let length = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
            rest = &rest[end + length..];
        }
        self.keep(rest);
    }

    /// Whether the usage of the whole answer was reported.
    pub(super) fn is_final(&self) -> bool {
        self.is_final
    }

    /// Returns what the answer reported.
    pub(super) fn end(mut self, end: AnswerEnd) -> Metered {
        let rest = self.kept.take();
        if !self.given_up {
            match self.stream {
                true => self.line(&rest),
                false => self.is_illegible = !rest.is_empty() && !self.document(&rest),
            }
        }
        self.dispatch();
        // Each event of Gemini's tells the usage so far.
        self.is_final |= self.format == LlmFormat::Gemini && end == AnswerEnd::Whole;
        let unknown = match self.found.tokens {
            _ if self.usage == Usage::NotExpected => None,
            _ if self.found.unknown.is_some() => self.found.unknown,
            // What another event told may be only a part.
            _ if end == AnswerEnd::Whole && self.is_illegible => Some(UnknownUsage::Illegible),
            None if end == AnswerEnd::Whole && self.stream => Some(UnknownUsage::MissingInStream),
            None if end == AnswerEnd::Whole => Some(UnknownUsage::Missing),
            None => Some(UnknownUsage::CutOff),
            Some(_) => None,
        };
        let mut found = self.found;
        if !self.is_final {
            // What was told of it so far is not all of it.
            found.cost = None;
            if let Some(tokens) = &mut found.tokens {
                tokens.output = tokens.output.max(self.estimate);
            }
        }
        Metered { unknown, ..found }
    }

    /// Reads a piece of an answer that is no stream. Only an object of JSON can hold a usage, and at Gemini's API a list of them, whatever
    /// type the answer says it has: nothing is kept of what begins otherwise.
    fn piece_of_whole(&mut self, mut piece: &[u8]) {
        if !self.kept.is_empty() {
            return self.keep(piece);
        }
        // A reader may ignore the mark (RFC 8259 §8.1).
        while let Some((first, rest)) = piece.split_first()
            && BYTE_ORDER_MARK.get(self.marked) == Some(first)
        {
            self.marked += 1;
            piece = rest;
        }
        // The blanks of JSON (RFC 8259 §2), which `trim_ascii_start` knows and one more.
        let begun = piece.trim_ascii_start();
        let is_open = |first: &u8| *first == b'{' || *first == b'[' && self.format == LlmFormat::Gemini;
        self.given_up |= !begun.first().is_none_or(is_open);
        self.keep(begun);
    }

    /// Keeps a piece of the current line or answer, unless that grows too large to read.
    fn keep(&mut self, piece: &[u8]) {
        if !self.given_up && self.kept.push(piece, LARGEST).is_err() {
            self.given_up = true;
            self.found.unknown = Some(UnknownUsage::Unread);
        }
    }

    /// Reads one line of a stream. An empty one ends an event.
    fn line(&mut self, line: &[u8]) {
        let is_first = std::mem::take(&mut self.first_line);
        let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| is_first).unwrap_or(line);
        if line.is_empty() {
            return self.dispatch();
        }
        let Some(data) = line.strip_prefix(b"data:") else { return };
        if self.event.len() + data.len() > LARGEST {
            self.dispatch();
        }
        let between: &[u8] = if self.event.is_empty() { b"" } else { b"\n" };
        // One more octet than an event may have, for the line feed.
        let pushed = [between, data].into_iter().try_for_each(|part| self.event.push(part, LARGEST + 1));
        if let Err(NoRoom) = pushed {
            self.found.unknown = Some(UnknownUsage::Unread);
        }
    }

    /// Reads the event that has ended.
    fn dispatch(&mut self) {
        if self.event.is_empty() {
            return;
        }
        let event = self.event.take();
        let text = event.len().saturating_sub(EVENT_OVERHEAD) / OCTETS_PER_TOKEN;
        self.estimate = self.estimate.saturating_add(1 + text as u64);
        // Most events are pieces of text, and only a few report a usage.
        let names = |text: &[u8], name: &[u8]| memmem::find(text, name).is_some();
        let names_usage = |text: &[u8]| names(text, b"\"usage\"") || names(text, b"\"usageMetadata\"");
        if names_usage(&event) && !self.document(&event) {
            // Some services put no empty line between events of one line.
            for line in event.split(|octet| *octet == b'\n') {
                self.is_illegible |= !self.document(line) && names_usage(line);
            }
        }
    }

    /// Reads the model and the usage of an answer or an event. Returns whether it can be read.
    fn document(&mut self, text: &[u8]) -> bool {
        let Some(document) = document::read(text) else { return false };
        for (part, is_last) in
            [(&document, true), (&document["message"], false), (&document["response"], true)]
        {
            if !part["model"].is_null() {
                // What is no name, or too long for one, has no price.
                self.found.model = part["model"].as_str().map(str::to_owned);
            }
            let model = self.found.model.as_deref();
            if is_last {
                self.found.cost = self.found.cost.max(told(&part["usage"]));
            }
            self.found.surcharge = self.found.surcharge.or_else(|| surcharge(part, model));
            if !part["usage"].is_object() || tells_nothing(self.format, &part["usage"]) {
                continue;
            }
            let Some(reported) = tokens(self.format, &part["usage"]) else {
                self.found.unknown = Some(UnknownUsage::Unreadable);
                continue;
            };
            let old = self.found.tokens.unwrap_or_default();
            // A stream reports its usage more than once; the counts only grow.
            self.found.tokens = Some(match self.format {
                // Which tokens were cached may be told late, and they were input until then.
                LlmFormat::Gemini => Tokens { output: old.output.max(reported.output), ..reported },
                LlmFormat::Anthropic | LlmFormat::OpenAi => {
                    self.is_final |= is_last;
                    each(old, reported, u64::max)
                }
            });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::cost::TOOLS;

    fn metered(format: LlmFormat, kind: &str, body: &[u8], piece: usize) -> Metered {
        let room = Room::default();
        let mut meter = Meter::new(&room, format, Usage::Expected);
        meter.begin(200, Some(kind));
        body.chunks(piece).for_each(|piece| meter.piece(piece));
        meter.end(AnswerEnd::Whole)
    }

    const STREAM: &[u8] = b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"claude-x\",\"usage\":{\"input_tokens\":12,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n\
        data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a \\\"usage\\\" of words\"}}\n\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":34}}\n\n";

    proptest::proptest! {
        #[test]
        fn pieces_do_not_matter(piece in 1usize..200) {
            let found = metered(LlmFormat::Anthropic, "text/event-stream; charset=utf-8", STREAM, piece);
            proptest::prop_assert_eq!(found.tokens, Some(Tokens { input: 12, cached: 5, output: 34, ..Tokens::default() }));
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
        assert_eq!(found.tokens, Some(Tokens { input: 60, cached: 40, output: 7, ..Tokens::default() }));
        let stream = b"data: {\"type\":\"response.completed\",\"response\":{\"model\":\"gpt-y\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\ndata: [DONE]\n";
        let found = metered(LlmFormat::OpenAi, "text/event-stream", stream, 7);
        assert_eq!(
            found,
            Metered {
                tokens: Some(Tokens { input: 3, cached: 0, output: 4, ..Tokens::default() }),
                model: Some("gpt-y".into()),
                ..Metered::default()
            }
        );
    }

    #[test]
    fn cached_tokens_are_counted_once_in_either_form() {
        let beside = "\"cache_creation_input_tokens\":200,\"cache_read_input_tokens\":1000";
        let some = |input, cached| Some(Tokens { input, cached, output: 4, ..Tokens::default() });
        for (input, counted) in [
            ("\"input_tokens\":3", some(203, 1000)),
            ("\"input_tokens\":3,\"input_tokens_details\":null", some(203, 1000)),
            ("\"input_tokens\":1203,\"input_tokens_details\":{\"cached_tokens\":1000}", some(203, 1000)),
            ("\"prompt_tokens\":1203,\"prompt_tokens_details\":{\"cached_tokens\":1000}", some(203, 1000)),
            ("\"prompt_tokens\":1203,\"input_tokens\":3", some(1203, 0)),
        ] {
            let found = told(LlmFormat::OpenAi, &format!("{{{input},{beside},\"output_tokens\":4}}"));
            assert_eq!(found.tokens, counted, "{input}");
        }
        let bad = told(LlmFormat::OpenAi, "{\"input_tokens\":3,\"cache_read_input_tokens\":-1}");
        assert_eq!(bad.unknown, Some(UnknownUsage::Unreadable));
        let stream = b"data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3,\"cache_read_input_tokens\":1000,\"output_tokens\":1}}}\n\n\
            data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":4}}\n\n";
        assert_eq!(metered(LlmFormat::OpenAi, "text/event-stream", stream, 50).tokens, some(3, 1000));
    }

    #[test]
    fn a_stream_is_one_however_its_type_is_written() {
        let stream = b"data: {\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}\n\n";
        for kind in
            ["Text/Event-Stream", "TEXT/EVENT-STREAM;charset=utf-8", "text/event-stream ; charset=utf-8"]
        {
            let found = metered(LlmFormat::OpenAi, kind, stream, 7);
            assert_eq!(
                found.tokens,
                Some(Tokens { input: 3, cached: 0, output: 4, ..Tokens::default() }),
                "{kind}"
            );
        }
    }

    #[test]
    fn a_stream_is_read_as_its_standard_has_it() {
        let lines = [
            "\u{feff}data: {\"model\":\"gpt-x\",",
            "data: \"usage\":",
            ": a remark",
            "data:{\"input_tokens\":3,\"output_tokens\":4}}",
            "",
            "data: [DONE]",
            "",
            "",
        ];
        let found = Metered {
            tokens: Some(Tokens { input: 3, output: 4, ..Tokens::default() }),
            model: Some("gpt-x".into()),
            ..Metered::default()
        };
        for end in ["\n", "\r", "\r\n"] {
            let stream = lines.join(end);
            for piece in 1..stream.len() {
                let read = metered(LlmFormat::OpenAi, "text/event-stream", stream.as_bytes(), piece);
                assert_eq!(read, found, "{end:?} in pieces of {piece}");
            }
        }
        // Each line is an event to many clients.
        let narrow = b"data: {\"delta\":\"a\"}\ndata: {\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}\n";
        assert_eq!(metered(LlmFormat::OpenAi, "text/event-stream", narrow, 7).tokens, found.tokens);
    }

    #[test]
    fn what_an_answer_holds_beside_its_usage_need_not_be_understood() {
        let answer = r#"{"content":"x\ud83d","log":-1e999,"usage":{"input_tokens":3,"output_tokens":4}}"#;
        let tokens = Some(Tokens { input: 3, output: 4, ..Tokens::default() });
        for (kind, body) in [
            ("application/json", answer.to_owned()),
            ("application/json", format!("\u{feff}{answer}")),
            ("text/event-stream", format!("data: {answer}\n\n")),
        ] {
            for piece in 1..body.len() {
                let found = metered(LlmFormat::OpenAi, kind, body.as_bytes(), piece);
                assert_eq!((found.tokens, found.unknown), (tokens, None), "{body} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_told_from_one_without_a_usage() {
        let (json, stream) = ("application/json", "text/event-stream");
        let illegible = r#"{"log":NaN,"usage":{"input_tokens":3}}"#;
        for (kind, body, unknown) in [
            (json, illegible.to_owned(), Some(UnknownUsage::Illegible)),
            (json, String::new(), Some(UnknownUsage::Missing)),
            (json, "{}".into(), Some(UnknownUsage::Missing)),
            (json, "\u{feff}\u{feff}{}".into(), Some(UnknownUsage::Missing)),
            (stream, format!("data: {illegible}\n\n"), Some(UnknownUsage::Illegible)),
            (
                stream,
                format!("data: {illegible}\n\ndata: {{\"usage\":{{\"input_tokens\":3}}}}\n\n"),
                Some(UnknownUsage::Illegible),
            ),
            (
                stream,
                "data: {\"message\":{\"\\ud83d\":0,\"usage\":{\"input_tokens\":9}}}\n\ndata: {\"usage\":{\"input_tokens\":3}}\n\n".into(),
                Some(UnknownUsage::Unreadable),
            ),
            (stream, "data: {\"text\":NaN}\n\ndata: [DONE]\n\n".into(), Some(UnknownUsage::MissingInStream)),
        ] {
            assert_eq!(metered(LlmFormat::OpenAi, kind, body.as_bytes(), 50).unknown, unknown, "{body}");
        }
    }

    #[test]
    fn an_event_is_kept_up_to_a_bound() {
        let room = Room::default();
        let mut meter = Meter::new(&room, LlmFormat::OpenAi, Usage::Expected);
        meter.begin(200, Some("text/event-stream"));
        let line = [b"data:".as_slice(), &[b'x'; 1024 * 1024], b"\n"].concat();
        for _ in 0..20 {
            meter.piece(&line);
            assert!(meter.event.len() <= LARGEST + 20);
        }
        meter.piece(b"\ndata: {\"usage\":{\"input_tokens\":3}}\n\n");
        assert!(meter.estimate > 10 * 1024 * 1024 / 2);
        assert_eq!(meter.end(AnswerEnd::Whole).tokens.unwrap().input, 3);
    }

    #[test]
    fn a_line_that_was_dropped_ends_no_event() {
        let room = Room::default();
        let mut meter = Meter::new(&room, LlmFormat::OpenAi, Usage::Expected);
        meter.begin(200, Some("text/event-stream"));
        meter.piece(b"data: {\"usage\":\n");
        meter.piece(&vec![b'x'; LARGEST + 1]);
        meter.piece(b"\ndata: {\"input_tokens\":3}}\n\n");
        let found = meter.end(AnswerEnd::Whole);
        assert_eq!(found.tokens.unwrap().input, 3);
        // What the line told is not known.
        assert_eq!(found.unknown, Some(UnknownUsage::Unread));
    }

    #[test]
    fn all_answers_keep_no_more_than_there_is_room_for() {
        const USAGE: &[u8] = b"{\"usage\":{\"input_tokens\":3}}";
        let room = Room::default();
        let begin = |kind| {
            let mut meter = Meter::new(&room, LlmFormat::OpenAi, Usage::Expected);
            meter.begin(200, Some(kind));
            meter
        };
        let large = [b"{\"text\":\"".as_slice(), &vec![b'x'; LARGEST - 4096]].concat();
        // What is no JSON is not kept, and hinders nobody.
        let mut others: Vec<_> = (0..99).map(|_| begin("application/octet-stream")).collect();
        others.iter_mut().for_each(|other| other.piece(&large[1..]));
        let mut held: Vec<_> = (0..9).map(|_| begin("application/json")).collect();
        held.iter_mut().for_each(|meter| meter.piece(&large));
        let kept: usize = held.iter().chain(&others).map(|meter| meter.kept.len()).sum();
        assert!(kept > 7 * LARGEST && kept <= 8 * LARGEST, "{kept}");
        let unknown = |meter: Meter<'_>| meter.end(AnswerEnd::Whole).unknown;
        assert_eq!(held.pop().map(unknown), Some(Some(UnknownUsage::Unread)));
        // Small answers still have room, and who has given up holds none.
        let mut late = begin("text/event-stream");
        let line = [b"data: ".as_slice(), &large[..LARGEST / 2], b"\n"].concat();
        late.piece(&line[..line.len() - 1]);
        late.piece(b"\n\ndata: ");
        late.piece(USAGE);
        assert_eq!(unknown(late), Some(UnknownUsage::Unread));
        for (kind, blanks) in [("application/json", ""), ("text/plain", " \r\n\t"), ("", "\n")] {
            let mut small = begin(kind);
            small.piece(blanks.as_bytes());
            small.piece(USAGE);
            assert_eq!(small.end(AnswerEnd::Whole).tokens.unwrap().input, 3, "{kind}");
        }
        drop((held, others));
        let mut again = begin("application/json");
        again.piece(&large);
        again.piece(b"\",");
        again.piece(&USAGE[1..]);
        assert_eq!(unknown(again), None);
    }

    #[test]
    fn a_stream_of_geminis_is_charged_what_its_last_event_tells() {
        let event = |counts: &str| {
            format!(
                r#"{{"candidates":[{{"content":{{"parts":[{{"text":"{}"}}]}}}}],"usageMetadata":{{"promptTokenCount":100{counts}}},"modelVersion":"gemini-x"}}"#,
                "word ".repeat(80)
            )
        };
        let (first, last) = (
            event(r#","totalTokenCount":100"#),
            event(
                r#","cachedContentTokenCount":40,"candidatesTokenCount":7,"thoughtsTokenCount":20,"totalTokenCount":127"#,
            ),
        );
        let told = Some(Tokens { input: 60, cached: 40, output: 27, ..Tokens::default() });
        let events = format!("data: {first}\r\n\r\ndata: {last}\r\n\r\n");
        for piece in [1, 7, 9999] {
            for (kind, body) in [
                ("text/event-stream", &events),
                ("application/json", &last),
                ("application/json; charset=UTF-8", &format!("[{first}\r\n,\r\n{last}\r\n]\r\n")),
            ] {
                let found = metered(LlmFormat::Gemini, kind, body.as_bytes(), piece);
                assert_eq!((found.tokens, found.unknown), (told, None), "{body}");
                assert_eq!(found.model.as_deref(), Some("gemini-x"), "{body}");
            }
        }
        // Vertex AI tells of each event but the last how it was paid for.
        let paid = r#"{"usageMetadata":{"trafficType":"ON_DEMAND"},"modelVersion":"gemini-x"}"#;
        let vertex = format!("data: {paid}\n\ndata: {last}\n\n");
        let found = metered(LlmFormat::Gemini, "text/event-stream", vertex.as_bytes(), 7);
        assert_eq!((found.tokens, found.unknown), (told, None));
        let found = metered(LlmFormat::Gemini, "application/json", paid.as_bytes(), 7);
        assert_eq!((found.tokens, found.unknown), (None, Some(UnknownUsage::Missing)));
        // In OpenAI's form, at the same host.
        let chat =
            r#"{"model":"gemini-x","usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":9}}"#;
        let told = Some(Tokens { input: 3, output: 6, ..Tokens::default() });
        assert_eq!(metered(LlmFormat::Gemini, "application/json", chat.as_bytes(), 9).tokens, told);
        let list = metered(LlmFormat::OpenAi, "application/json", format!("[{last}]").as_bytes(), 9);
        assert_eq!(list.unknown, Some(UnknownUsage::Missing));
        // What passed before a stream was cut off is estimated.
        let room = Room::default();
        let mut meter = Meter::new(&room, LlmFormat::Gemini, Usage::Expected);
        meter.begin(200, Some("text/event-stream"));
        meter.piece(format!("data: {first}\n\n").as_bytes());
        let cut = meter.end(AnswerEnd::CutOff);
        assert!(
            cut.unknown.is_none() && cut.tokens.is_some_and(|it| it.input == 100 && it.output > 100),
            "{cut:?}"
        );
    }

    fn told(format: LlmFormat, usage: &str) -> Metered {
        metered(format, "application/json", format!("{{\"usage\":{usage}}}").as_bytes(), 99)
    }

    #[test]
    fn only_json_and_events_tell_a_use_that_nobody_asked_for() {
        let body = br#"{"usage":{"input_tokens":3,"output_tokens":4}}"#;
        for (kind, usage, is_read) in [
            (Some("application/octet-stream"), Usage::NotExpected, false),
            (Some("text/plain"), Usage::NotExpected, false),
            (None, Usage::NotExpected, false),
            (Some("application/json; charset=utf-8"), Usage::NotExpected, true),
            (Some("application/octet-stream"), Usage::Expected, true),
            (None, Usage::Expected, true),
        ] {
            let room = Room::default();
            let mut meter = Meter::new(&room, LlmFormat::OpenAi, usage);
            meter.begin(200, kind);
            body.chunks(7).for_each(|piece| meter.piece(piece));
            let found = meter.end(AnswerEnd::Whole);
            assert_eq!((found.tokens.is_some(), found.unknown), (is_read, None), "{kind:?}, {usage:?}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_none() {
        let room = Room::default();
        let mut meter = Meter::new(&room, LlmFormat::OpenAi, Usage::Expected);
        meter.begin(200, Some("text/event-stream"));
        for (model, kept) in [("gpt-x".to_owned(), Some("gpt-x")), ("m".repeat(LARGEST - 99), None)] {
            let event = format!("data: {{\"model\":\"{model}\",\"usage\":{{\"input_tokens\":1}}}}\n\n");
            meter.piece(event.as_bytes());
            assert_eq!(meter.found.model.as_deref(), kept);
        }
        assert_eq!(meter.end(AnswerEnd::Whole).unknown, None);
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
            assert_eq!(told(LlmFormat::Anthropic, usage).unknown, Some(UnknownUsage::Unreadable), "{usage}");
        }
        let whole = told(LlmFormat::Anthropic, "{\"input_tokens\":5000.0,\"output_tokens\":7}");
        assert_eq!(
            (whole.tokens, whole.unknown),
            (Some(Tokens { input: 5000, cached: 0, output: 7, ..Tokens::default() }), None)
        );
        let most = told(
            LlmFormat::Anthropic,
            "{\"input_tokens\":18446744073709551615,\"cache_creation_input_tokens\":2}",
        );
        assert_eq!(most.tokens.unwrap().input, u64::MAX);
        let silent = metered(LlmFormat::Anthropic, "application/json", b"{\"content\":[]}", 9);
        assert_eq!((silent.tokens, silent.unknown), (None, Some(UnknownUsage::Missing)));
    }

    #[test]
    fn iterations_that_the_sum_leaves_out_are_charged() {
        let answer = |usage: &str| {
            let body = format!("{{\"model\":\"claude-x\",\"usage\":{usage}}}");
            let found = metered(LlmFormat::Anthropic, "application/json", body.as_bytes(), 99);
            (found.tokens, found.unknown)
        };
        let with = |iterations: &str| {
            answer(&format!("{{\"input_tokens\":30,\"output_tokens\":4,\"iterations\":{iterations}}}"))
        };
        let some =
            |input, cached, output| (Some(Tokens { input, cached, output, ..Tokens::default() }), None);
        for none in ["null", "[]", "[{\"type\":\"message\",\"input_tokens\":30,\"output_tokens\":4}]"] {
            assert_eq!(with(none), some(30, 0, 4), "{none}");
        }
        let message = "{\"type\":\"message\",\"model\":\"claude-x\",\"input_tokens\":30,\"output_tokens\":1}";
        let compaction = "{\"type\":\"compaction\",\"input_tokens\":1000,\"cache_creation_input_tokens\":2,\"cache_read_input_tokens\":5,\"output_tokens\":2}";
        assert_eq!(with(&format!("[{compaction},{message}]")), some(1032, 5, 4));
        let of_another = "{\"model\":\"claude-y\",\"input_tokens\":100,\"output_tokens\":2}";
        assert_eq!(with(&format!("[{of_another},{message}]")), some(130, 0, 4));
        let most = "{\"input_tokens\":18446744073709551615}";
        assert_eq!(with(&format!("[{most},{message}]")), some(u64::MAX, 0, 4));
        for bad in ["7", "{}", "[{}]", "[7]", "[{\"input_tokens\":-1}]"] {
            assert_eq!(with(bad).1, Some(UnknownUsage::Unreadable), "{bad}");
        }
        let stream = format!(
            "data: {{\"type\":\"message_start\",\"message\":{{\"model\":\"claude-x\",\"usage\":{{\"input_tokens\":30,\"output_tokens\":1}}}}}}\n\n\
             data: {{\"type\":\"message_delta\",\"usage\":{{\"input_tokens\":30,\"output_tokens\":1,\"iterations\":[{compaction},{message}]}}}}\n\n"
        );
        let found = metered(LlmFormat::Anthropic, "text/event-stream", stream.as_bytes(), 50);
        assert_eq!((found.tokens, found.unknown), some(1032, 5, 3));
    }

    #[test]
    fn a_cost_counts_once_the_answer_has_told_all_of_it() {
        let begun =
            "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"cost\":0}}}\n\n";
        let whole = format!(
            "{begun}data: {{\"type\":\"message_delta\",\"usage\":{{\"output_tokens\":3,\"cost\":0.5}}}}\n\n"
        );
        for (body, cost) in [(begun, None), (&*whole, Some(MicroUsd::new(500_000)))] {
            let found = metered(LlmFormat::Anthropic, "text/event-stream", body.as_bytes(), 7);
            assert_eq!(found.cost, cost, "{body}");
        }
    }

    #[test]
    fn what_costs_more_than_the_list_says_is_found() {
        for (format, body, field) in [
            (
                LlmFormat::Anthropic,
                r#"{"usage":{"output_tokens":1,"speed":"standard","service_tier":"batch"}}"#,
                None,
            ),
            (
                LlmFormat::Anthropic,
                r#"{"usage":{"output_tokens":1,"speed":null,"server_tool_use":null}}"#,
                None,
            ),
            (
                LlmFormat::Anthropic,
                r#"{"usage":{"server_tool_use":{"web_search_requests":0,"other":null}}}"#,
                None,
            ),
            (LlmFormat::Anthropic, r#"{"usage":{"output_tokens":1,"speed":"fast"}}"#, Some("speed")),
            (LlmFormat::Anthropic, r#"{"usage":{"speed":7}}"#, Some("speed")),
            (LlmFormat::Anthropic, r#"{"usage":{"service_tier":"priority"}}"#, Some("service_tier")),
            (LlmFormat::Anthropic, r#"{"usage":{"server_tool_use":{"web_search_requests":2}}}"#, Some(TOOLS)),
            (LlmFormat::Anthropic, r#"{"usage":{"server_tool_use":7}}"#, Some(TOOLS)),
            (LlmFormat::Anthropic, r#"{"usage":{"server_tool_use":{"web_fetch_requests":2}}}"#, None),
            (
                LlmFormat::Anthropic,
                r#"{"usage":{"server_tool_use":{"web_fetch_requests":"2"}}}"#,
                Some(TOOLS),
            ),
            (LlmFormat::Anthropic, r#"{"usage":{"iterations":[{"speed":"fast"}]}}"#, Some("speed")),
            (LlmFormat::Anthropic, r#"{"model":"x","usage":{"iterations":[{"model":"x"},{}]}}"#, None),
            (
                LlmFormat::Anthropic,
                r#"{"model":"x","usage":{"iterations":[{"model":"y"}]}}"#,
                Some("iterations"),
            ),
            (
                LlmFormat::Anthropic,
                r#"{"model":"x","usage":{"iterations":[{"model":7}]}}"#,
                Some("iterations"),
            ),
            (LlmFormat::OpenAi, r#"{"usage":{"prompt_tokens":1},"service_tier":"default"}"#, None),
            (LlmFormat::OpenAi, r#"{"usage":{"prompt_tokens":1},"service_tier":"auto"}"#, None),
            (
                LlmFormat::OpenAi,
                r#"{"usage":{"prompt_tokens":1},"service_tier":"priority"}"#,
                Some("service_tier"),
            ),
        ] {
            let found = metered(format, "application/json", body.as_bytes(), 99);
            assert_eq!(found.surcharge, field, "{body}");
        }
        let stream =
            |text: &str| metered(LlmFormat::OpenAi, "text/event-stream", text.as_bytes(), 30).surcharge;
        let early = r#"data: {"service_tier":"priority","usage":null}"#;
        let last = r#"data: {"usage":{"prompt_tokens":1}}"#;
        assert_eq!(stream(&format!("{early}\n\n{last}\n\n")), Some("service_tier"));
        let whole = r#"data: {"response":{"service_tier":"priority","usage":{"input_tokens":1}}}"#;
        assert_eq!(stream(whole), Some("service_tier"));
        let begin = r#"data: {"message":{"usage":{"input_tokens":1,"speed":"fast"}}}"#;
        assert_eq!(stream(&format!("{begin}\n\n{last}\n\n")), Some("speed"));
    }

    #[test]
    fn what_is_cached_for_an_hour_is_told_apart() {
        let usage = r#"{"input_tokens":3,"cache_creation_input_tokens":30,"output_tokens":4,
            "cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":20}}"#;
        let tokens = Some(Tokens { input: 33, cached: 0, output: 4, cached_long: 20 });
        for format in [LlmFormat::Anthropic, LlmFormat::OpenAi] {
            assert_eq!(told(format, usage).tokens, tokens);
        }
        let bad = r#"{"input_tokens":3,"cache_creation":{"ephemeral_1h_input_tokens":-1}}"#;
        assert_eq!(told(LlmFormat::Anthropic, bad).unknown, Some(UnknownUsage::Unreadable));
    }

    #[test]
    fn what_ends_early_is_charged_what_has_passed() {
        let cut = |format, events: &str| {
            let room = Room::default();
            let mut meter = Meter::new(&room, format, Usage::Expected);
            meter.begin(200, Some("text/event-stream"));
            meter.piece(events.as_bytes());
            meter.end(AnswerEnd::CutOff)
        };
        let start = "data: {\"message\":{\"model\":\"claude-x\",\"usage\":{\"input_tokens\":12,\"output_tokens\":1}}}\n\n";
        let delta = format!(
            "data: {{\"type\":\"content_block_delta\",\"delta\":{{\"text\":\"{}\"}}}}\n\n",
            "word ".repeat(100)
        );
        let early = cut(LlmFormat::Anthropic, &format!("{start}{}", delta.repeat(3)));
        assert_eq!(early.unknown, None);
        assert!((300..1000).contains(&early.tokens.unwrap().output), "{early:?}");
        let end = "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":34}}\n\n";
        let late = cut(LlmFormat::Anthropic, &format!("{start}{}{end}", delta.repeat(3)));
        assert_eq!(late.tokens, Some(Tokens { input: 12, cached: 0, output: 34, ..Tokens::default() }));
        assert_eq!(cut(LlmFormat::OpenAi, &delta).unknown, Some(UnknownUsage::CutOff));
    }
}
