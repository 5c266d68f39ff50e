//! The status and the text of an engine's error, the text cleaned for a terminal.

/// The longest error text, in characters.
const LONGEST_TOLD: usize = 500;
pub(super) const NOT_FOUND: u16 = 404;
pub(super) const CONFLICT: u16 = 409;
pub(super) const FORBIDDEN: u16 = 403;
pub(super) const BAD_REQUEST: u16 = 400;
pub(super) const INTERNAL: u16 = 500;
/// The text of a request that was not answered in the time it had.
pub const ENGINE_LATE: &str = "the engine did not answer in time";

/// An engine's refusal of a request.
#[derive(Debug)]
pub(super) struct EngineRefusal {
    /// The HTTP status, if the engine answered.
    pub(super) status: Option<u16>,
    pub(super) text: String,
}

impl EngineRefusal {
    pub(super) fn of(error: &bollard::errors::Error) -> Self {
        Self { status: status(error), text: error_text(error) }
    }
}

/// Returns the HTTP status of an answer; `None` if the engine did not answer.
pub(super) fn status(error: &bollard::errors::Error) -> Option<u16> {
    match error {
        bollard::errors::Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// Returns the engine's error text, or the root cause if it did not answer, cleaned for a terminal.
pub(super) fn error_text(error: &bollard::errors::Error) -> String {
    let text = match error {
        bollard::errors::Error::DockerResponseServerError { status_code, message } if message.is_empty() => {
            format!("it answered {status_code}")
        }
        bollard::errors::Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        bollard::errors::Error::RequestTimeoutError => ENGINE_LATE.to_owned(),
        other => {
            let causes = std::iter::successors(Some(other as &dyn std::error::Error), |error| error.source());
            // The outer errors only name the libraries in between.
            causes.last().map(ToString::to_string).unwrap_or_default()
        }
    };
    printable(&text)
}

/// Replaces control characters, and cuts the middle out of a long text: the reason comes last.
pub(super) fn printable(text: &str) -> String {
    let plain: Vec<char> = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let half = LONGEST_TOLD / 2;
    match plain.as_slice() {
        long if long.len() > LONGEST_TOLD => {
            long[..half].iter().chain(&[' ', '…', ' ']).chain(&long[long.len() - half + 3..]).collect()
        }
        whole => whole.iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_text_both_ends_are_told() {
        let text = printable(&format!("begins\n{}why", "x".repeat(9999)));
        assert_eq!(text.chars().count(), LONGEST_TOLD);
        assert!(text.starts_with("begins x") && text.ends_with("xwhy"), "{text}");
        assert_eq!(printable("a\u{1b}[b"), "a [b");
    }

    #[test]
    fn an_engine_that_takes_too_long_is_told_as_one() {
        assert_eq!(error_text(&bollard::errors::Error::RequestTimeoutError), ENGINE_LATE);
    }
}
