//! The sidecar's own replies to calls of gRPC, as a status in an answer of trailers alone: the libraries of gRPC show nothing of a problem
//! document. One that broke off gets such a status behind its last message. <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

use super::fields::Fields;
use super::media_type::MediaType;
use super::problem::Reply;

/// The longest message, in octets: libraries take no more than 8 KiB of trailers.
const LONGEST: usize = 1024;

/// How an agent of HTTP/2 takes a refusal of the sidecar's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalForm {
    /// As a document.
    Document,
    /// As a status of gRPC.
    GrpcStatus,
}

impl RefusalForm {
    /// Returns the form for a request with this method and these fields. gRPC-Web, whose status stands in the body, gets the document.
    pub(super) fn asked_by(method: &str, fields: &Fields) -> Self {
        let kind = fields.text("content-type").map(MediaType::of);
        let is_call = |kind: MediaType| kind.is("application/grpc") || kind.begins_with("application/grpc+");
        match method == "POST" && kind.is_some_and(is_call) {
            true => Self::GrpcStatus,
            false => Self::Document,
        }
    }

    /// Returns a reply in this form.
    pub(super) fn of(self, reply: Reply) -> Reply {
        match self {
            Self::GrpcStatus if reply.status >= 400 => as_status(reply),
            Self::GrpcStatus | Self::Document => reply,
        }
    }
}

/// Returns the trailers for an answer that broke off: UNAVAILABLE.
pub(super) fn unavailable(why: &str) -> Fields {
    Fields::from_iter([("grpc-status", code(502)), ("grpc-message", encoded(why).as_bytes())])
}

/// The length of what stands before a message: an octet of flags, four of its length.
const HEADER: u8 = 5;

/// How far an answer has come in its messages.
#[derive(Default)]
pub(super) struct MessageBorder {
    /// How many octets of a header have come, if not all.
    header: u8,
    /// The octets of a length as far as it has come; then, how many of the message are still to come.
    left: u32,
}

impl MessageBorder {
    /// Reads the next piece.
    pub(super) fn follow(&mut self, mut piece: &[u8]) {
        while let [first, rest @ ..] = piece {
            piece = if self.header < HEADER {
                self.header += 1;
                self.left = self.left << 8 | u32::from(*first); // the flags are shifted out
                rest
            } else {
                let taken = piece.len().min(self.left as usize);
                self.left -= taken as u32;
                &piece[taken..]
            };
            if self.header == HEADER && self.left == 0 {
                self.header = 0;
            }
        }
    }

    /// Whether what was read ends with a message.
    pub(super) fn is_reached(&self) -> bool {
        self.header == 0
    }
}

fn as_status(Reply { status, mut fields, detail, .. }: Reply) -> Reply {
    fields.set("content-type", b"application/grpc");
    fields.push("grpc-status", code(status));
    fields.push("grpc-message", encoded(&detail).as_bytes());
    Reply { status: 200, fields, body: Vec::new(), detail }
}

/// Returns the status of gRPC: RESOURCE_EXHAUSTED, UNAVAILABLE, and for all that is denied PERMISSION_DENIED.
fn code(status: u16) -> &'static [u8] {
    match status {
        429 => b"8",
        502..=504 => b"14",
        _ => b"7",
    }
}

/// Encodes a message as `Status-Message` says: `%` and all but printable ASCII as `%` and two digits. Cuts it between characters.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        let before = out.len();
        match letter {
            ' '..='~' if letter != '%' => out.push(letter),
            _ => {
                let mut octets = [0; 4];
                letter.encode_utf8(&mut octets).bytes().for_each(|octet| out += &format!("%{octet:02X}"));
            }
        }
        if out.len() > LONGEST {
            out.truncate(before);
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(content_type: &str) -> Fields {
        Fields::from_iter([("content-type", content_type.as_bytes())])
    }

    #[test]
    fn only_calls_of_grpc_get_a_status_and_only_refusals_are_one() {
        for (content_type, form) in [
            ("application/grpc", RefusalForm::GrpcStatus),
            ("Application/gRPC+proto; a=b", RefusalForm::GrpcStatus),
            ("application/grpc-web+proto", RefusalForm::Document),
            ("application/grpc-web-text", RefusalForm::Document),
            ("application/json", RefusalForm::Document),
        ] {
            assert_eq!(RefusalForm::asked_by("POST", &fields(content_type)), form, "{content_type}");
            for method in ["GET", "HEAD", "PUT"] {
                let told = RefusalForm::asked_by(method, &fields(content_type));
                assert_eq!(told, RefusalForm::Document, "{method} {content_type}");
            }
        }
        assert_eq!(RefusalForm::asked_by("POST", &Fields::default()), RefusalForm::Document);
        for (status, code) in [(200, None), (400, Some("7")), (403, Some("7")), (404, Some("7"))]
            .into_iter()
            .chain([(429, Some("8")), (502, Some("14")), (504, Some("14"))])
        {
            let reply =
                Reply { status, fields: fields("text/plain"), body: b"body".into(), detail: "why".into() };
            let told = RefusalForm::GrpcStatus.of(reply);
            assert_eq!(told.fields.text("grpc-status"), code, "{status}");
            assert_eq!((told.status, told.body.is_empty()), (200, code.is_some()), "{status}");
            assert_eq!(told.fields.text("grpc-message"), code.map(|_| "why"), "{status}");
        }
        let untold = RefusalForm::GrpcStatus.of(Reply::new(502, Fields::default(), Vec::new()));
        assert_eq!(untold.fields.text("grpc-message"), Some("Bad Gateway"));
    }

    #[test]
    fn an_answer_has_come_to_a_border_behind_each_message() {
        const ANSWER: &[u8] = b"\x01\0\0\0\x03one\0\0\0\0\0\x80\0\0\x01\x02";
        let long = [ANSWER, &[b'x'; 0x102]].concat();
        for size in [1, 3, long.len()] {
            let (mut border, mut read, mut borders) = (MessageBorder::default(), 0, Vec::new());
            for piece in long.chunks(size) {
                border.follow(piece);
                read += piece.len();
                borders.extend(border.is_reached().then_some(read));
            }
            let expected = [8, 13, long.len()].into_iter().filter(|at| at % size == 0 || *at == long.len());
            assert_eq!(borders, expected.collect::<Vec<_>>(), "{size}");
        }
        assert!(MessageBorder::default().is_reached());
    }

    #[test]
    fn a_message_is_encoded_and_cut_between_characters() {
        assert_eq!(encoded("no rule: 100 %\n~ é"), "no rule: 100 %25%0A~ %C3%A9");
        assert_eq!(encoded(&"a".repeat(2 * LONGEST)), "a".repeat(LONGEST));
        assert_eq!(encoded(&"é".repeat(LONGEST)), "%C3%A9".repeat(LONGEST / 6));
    }
}
