//! The sidecar's own replies to calls of gRPC, as a status in an answer of trailers alone: the libraries of gRPC show nothing of a problem
//! document. <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

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
    fn a_message_is_encoded_and_cut_between_characters() {
        assert_eq!(encoded("no rule: 100 %\n~ é"), "no rule: 100 %25%0A~ %C3%A9");
        assert_eq!(encoded(&"a".repeat(2 * LONGEST)), "a".repeat(LONGEST));
        assert_eq!(encoded(&"é".repeat(LONGEST)), "%C3%A9".repeat(LONGEST / 6));
    }
}
