//! Media types as in `Content-Type`, compared without case and without parameters (RFC 9110 §8.3.1).

/// A media type, in lower case: `text/event-stream`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MediaType(String);

impl MediaType {
    /// Parses the value of a `Content-Type`.
    pub(crate) fn of(content_type: &str) -> Self {
        let name = content_type.split(';').next().unwrap_or_default();
        Self(name.trim().to_ascii_lowercase())
    }

    /// Whether it is this type.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.0 == name
    }

    /// Whether its name begins like this: `application/grpc+proto` is of the kind `application/grpc`.
    pub(crate) fn begins_with(&self, kind: &str) -> bool {
        self.0.starts_with(kind)
    }

    /// Whether it is JSON, by its own name or by the suffix `+json` (RFC 6839 §3.1).
    pub(crate) fn is_json(&self) -> bool {
        self.is("application/json") || self.0.ends_with("+json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_case_nor_parameters_make_it_another() {
        for text in [
            "text/event-stream",
            "Text/Event-Stream",
            " TEXT/EVENT-STREAM ;charset=utf-8",
            "text/event-stream;",
        ] {
            assert!(MediaType::of(text).is("text/event-stream"), "{text}");
        }
        assert!(!MediaType::of("text/event-streams").is("text/event-stream"));
        assert!(!MediaType::of("text/plain; a=text/event-stream").is("text/event-stream"));
        assert!(MediaType::of("Application/gRPC+proto").begins_with("application/grpc"));
        assert!(MediaType::of("application/Problem+JSON; charset=utf-8").is_json());
        assert!(!MediaType::of("").is_json());
    }
}
