//! Tells what a request asks a model for, under every reading that a server may have of it.

use policy::{LlmFormat, Provider};

use super::draft::Sending;
use super::method_override::Readings;
use super::percent::decoded;
use crate::llm::ModelRequest;

/// The paths of model APIs, behind the API's version, that take a POST but ask no model for anything: their answers report no usage.
/// `*` is an id, and before a colon the name of a model too.
const UNMETERED: &[&str] = &[
    "messages/count_tokens",
    "responses/input_tokens",
    "files",
    "containers/*/files",
    "vector_stores/*/files",
    "responses/*/cancel",
    "batches/*/cancel",
    "messages/batches/*/cancel",
    "threads/*/runs/*/cancel",
    "uploads/*/cancel",
    "fine_tuning/jobs/*/cancel",
    "models/*:countTokens",
    "batches/*:cancel",
];
/// The same for whole paths at one host: those to which Claude Code sends telemetry and feedback, and asks for its feature flags; where
/// OpenAI's agents send traces, and what else is free there; and what is stored at Gemini's. Elsewhere a path of such a name may ask a
/// model, as Mistral's `conversations` does, or be paid.
const UNMETERED_AT: [(&str, &[&str]); 3] = [
    (
        "api.anthropic.com",
        &[
            "api/event_logging/batch",
            "api/event_logging/v2/batch",
            "api/eval/*",
            "api/claude_code/metrics",
            "api/claude_cli_feedback",
        ],
    ),
    (
        "api.openai.com",
        &[
            "v1/moderations",
            "v1/traces/ingest",
            "v1/conversations",
            "v1/conversations/*",
            "v1/conversations/*/items",
            "v1/threads",
            "v1/threads/*/messages",
            "v1/uploads",
            "v1/uploads/*/parts",
            "v1/uploads/*/complete",
            "v1/vector_stores",
            "v1/vector_stores/*",
            "v1/vector_stores/*/file_batches",
            "v1/vector_stores/*/file_batches/*/cancel",
        ],
    ),
    ("generativelanguage.googleapis.com", &["upload/v1beta/files", "v1beta/openai/files"]),
];
/// The paths, written as those above, that give back what somebody has stored there, the agent too. It tells nothing of a model's use.
const STORED: &[&str] = &[
    "files/*/content",
    "containers/*/files/*/content",
    "vector_stores/*/files/*/content",
    "skills/*/content",
    "skills/*/versions/*/content",
    "files/*:download",
    "download/v1beta/files/*:download",
];
/// The path segments of requests for work that is done later: many answers at once (OpenAI's and Anthropic's, Mistral's), training,
/// evaluations, videos, and Gemini's caches, which are billed by the hour; and what stands behind a colon for the same (Gemini's).
const LATER: [&str; 11] = [
    "batches",
    "batch",
    "fine_tuning",
    "fine-tuning",
    "fine-tunes",
    "evals",
    "videos",
    "cachedContents",
    "batchGenerateContent",
    "asyncBatchEmbedContent",
    "predictLongRunning",
];

/// Returns what a request asks a model for, if it asks for anything.
pub(super) fn model_request(
    provider: &Provider,
    readings: &Readings,
    sending: &Sending,
) -> Option<ModelRequest> {
    let format = provider.llm()?;
    let base = base_of(provider.first_uri());
    let is_by = |name| readings.methods.iter().any(|method| method.as_str().eq_ignore_ascii_case(name));
    // Google's servers may take the method from elsewhere (`$httpMethod`, and maybe more): what a verb asks for counts by every method.
    let has_verb = |path: &str| {
        format == LlmFormat::Gemini && decoded(path).contains(':') && !is_one_of(STORED, path, base)
    };
    // A cache that is kept for longer costs more.
    let is_prolonged = |path: &str| format == LlmFormat::Gemini && is_by("PATCH") && is_later(path, base);
    let is_metered = |path: &&str| {
        (is_by("POST") || has_verb(path) || is_prolonged(path))
            && !is_one_of(UNMETERED, path, base)
            && !is_unmetered_at(&sending.authority, path)
    };
    let mut metered = readings.paths().filter(is_metered).peekable();
    if metered.peek().is_some() {
        let is_later = metered.any(|path| is_later(path, base));
        return Some(if is_later { ModelRequest::Later } else { ModelRequest::Answer });
    }
    sending.fields.has("sec-websocket-key").then_some(ModelRequest::Socket)
}

/// Whether the request asks for what is stored, under every reading.
pub(super) fn asks_for_stored(provider: &Provider, readings: &Readings) -> bool {
    let base = base_of(provider.first_uri());
    readings.paths().all(|path| is_one_of(STORED, path, base))
}

/// Returns where a provider's API begins: the path of its first URI.
fn base_of(uri: &str) -> &str {
    let behind_host = uri.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
    behind_host.map_or("", |(_, path)| path.trim_end_matches(['*', '/']))
}

/// Whether the path, behind the API's base and version, is one of the patterns as a whole. A path that is written in an unusual way is
/// not: a server may read it as another one.
fn is_one_of(patterns: &[&str], path: &str, base: &str) -> bool {
    let path = path.trim_start_matches('/');
    let behind_base = path.strip_prefix(base).and_then(|rest| rest.strip_prefix('/'));
    [Some(path), behind_base].into_iter().flatten().any(|path| {
        let behind_version = path.split_once('/').filter(|(first, _)| is_version(first));
        let path = behind_version.map_or(path, |(_, rest)| rest);
        patterns.iter().any(|pattern| is_like(path, pattern))
    })
}

/// Whether the whole path is one of [`UNMETERED_AT`] the host.
fn is_unmetered_at(host: &str, path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else { return false };
    UNMETERED_AT.iter().any(|(at, all)| *at == host && all.iter().any(|pattern| is_like(path, pattern)))
}

fn is_like(path: &str, pattern: &str) -> bool {
    let is_id = |segment: &str| {
        !segment.is_empty() && segment.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    path.split('/').count() == pattern.split('/').count()
        && path.split('/').zip(pattern.split('/')).all(|(segment, name)| match name.strip_prefix('*') {
            Some("") => is_id(segment),
            // The names of models have dots.
            Some(verb) => segment.strip_suffix(verb).is_some_and(|model| is_id(&model.replace('.', ""))),
            None => segment == name,
        })
}

/// Whether a segment is an API's version, as `v1`, `v4` and `v1beta` are.
pub(crate) fn is_version(segment: &str) -> bool {
    let mut letters = segment.chars();
    letters.next() == Some('v')
        && letters.next().is_some_and(|second| second.is_ascii_digit())
        && letters.all(|letter| letter.is_ascii_alphanumeric())
}

/// Whether a server may read the path, behind the API's base, as a request for work that is done later.
fn is_later(path: &str, base: &str) -> bool {
    let behind_base = path.strip_prefix('/').and_then(|path| path.strip_prefix(base));
    let path = behind_base.filter(|rest| rest.starts_with('/')).unwrap_or(path);
    let is_named = |part: &str| LATER.iter().any(|name| part.trim().eq_ignore_ascii_case(name));
    decoded(path).split(['/', ':', ';', '?', '#']).any(is_named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::method_override;

    #[test]
    fn what_asks_no_model_is_named_whole() {
        let base = base_of("https://gateway.example/api/*");
        assert_eq!((base, base_of("https://api.example/*"), base_of("https://api.example")), ("api", "", ""));
        for silent in [
            "/v1/messages/count_tokens",
            "/v1/responses/input_tokens",
            "/v1/files",
            "/files",
            "/v1/responses/resp_1-a/cancel",
            "/v1/messages/batches/b_1/cancel",
            "/api/v1/files",
            "/api/v1beta/files",
            "/v1beta/models/gemini-2.5-pro:countTokens",
            "/v1beta/batches/b-1:cancel",
        ] {
            assert!(is_one_of(UNMETERED, silent, base), "{silent}");
        }
        for asks in [
            "/v1/messages",
            "/v1/chat/completions;/files",
            "/v1/chat/completions/files",
            "/v1/chat/completions/cancel",
            "/chat/completions/v1/files",
            "/v1/responses/a;b/cancel",
            "/v1/responses/%2e/cancel",
            "/v1/messages//count_tokens",
            "/other/v1/files",
            "/v1/files/",
            "/v1beta/models/gemini-2.5-pro:generateContent",
            "/v1beta/models/..:countTokens",
            "/v1beta/models/gemini:generateContent:countTokens",
            "/v1beta/models/:countTokens",
        ] {
            assert!(!is_one_of(UNMETERED, asks, base), "{asks}");
        }
    }

    #[test]
    fn what_is_stored_is_known_by_its_whole_path() {
        let base = base_of("https://gateway.example/api/*");
        for stored in ["/v1/files/f_1/content", "/files/f/content", "/api/v1/containers/c/files/f-2/content"]
        {
            assert!(is_one_of(STORED, stored, base), "{stored}");
        }
        for other in [
            "/v1/responses/r_1",
            "/v1/responses/r_1/content",
            "/v1/files/f/content/",
            "/v1/files/../content",
            "/v1/responses/r;/files/f/content",
            "/v1/files/f%2f..%2f..%2fresponses%2fr/content",
        ] {
            assert!(!is_one_of(STORED, other, base), "{other}");
        }
    }

    /// What a request asks a model for, of a provider with these fields.
    fn asked_of(provider: &str, method: &str, url: &str) -> Option<ModelRequest> {
        let config = format!("[[provider]]\nid = \"one\"\n{provider}");
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), toml::from_str(&config).unwrap());
        let policy = layers.compile().unwrap().policy;
        let (target, method) = (policy::Target::parse(url).unwrap(), policy::Method::parse(method).unwrap());
        let sending = Sending::new(method, &target, crate::http::Fields::default());
        let provider = policy.providers().next().unwrap();
        let terms = method_override::Terms { policy: &policy, provider: Some(provider), judged: &[] };
        let readings = method_override::judge(&sending, terms, &target).unwrap();
        model_request(provider, &readings, &sending)
    }

    #[test]
    fn a_verb_of_geminis_asks_its_model_by_every_method() {
        let gemini =
            "llm = \"gemini\"\nauthorized_uris = [\"https://generativelanguage.googleapis.com/*\"]\n";
        let asked = |method: &str, path: &str| {
            asked_of(gemini, method, &format!("https://generativelanguage.googleapis.com/{path}"))
        };
        for asks in [
            "v1beta/models/gemini-2.5-pro:generateContent",
            "v1beta/models/gemini-2.5-pro%3AgenerateContent",
            "v1beta/models/gemini-2.5-pro:generateContent?%24httpMethod=POST",
            "v1beta/openai/chat/completions?%24httpMethod=POST",
        ] {
            assert_eq!(asked("GET", asks), Some(ModelRequest::Answer), "{asks}");
        }
        let later = "v1beta/models/gemini-2.5-pro:batchGenerateContent";
        assert_eq!(asked("PUT", later), Some(ModelRequest::Later));
        for silent in [
            "v1beta/models/gemini-2.5-pro",
            "v1beta/models/gemini-2.5-pro:countTokens",
            "v1beta/files/f-1:download?alt=media",
            "download/v1beta/files/f-1:download?alt=media",
            "v1beta/openai/chat/completions",
        ] {
            assert_eq!(asked("GET", silent), None, "{silent}");
        }
        let openai = gemini.replace("gemini", "openai");
        assert_eq!(asked_of(&openai, "GET", "https://generativelanguage.googleapis.com/v1/a:b"), None);
    }

    #[test]
    fn a_cache_of_geminis_is_work_that_is_done_later() {
        let gemini =
            "llm = \"gemini\"\nauthorized_uris = [\"https://generativelanguage.googleapis.com/*\"]\n";
        let (all, one) = ("v1beta/cachedContents", "v1beta/cachedContents/c-1?updateMask=ttl");
        for (method, path, asked) in [
            ("POST", all, Some(ModelRequest::Later)),
            ("PATCH", one, Some(ModelRequest::Later)),
            ("GET", all, None),
            ("GET", one, None),
            ("DELETE", one, None),
            ("POST", "upload/v1beta/files", None),
        ] {
            let url = format!("https://generativelanguage.googleapis.com/{path}");
            assert_eq!(asked_of(gemini, method, &url), asked, "{method} {path}");
        }
    }

    #[test]
    fn what_asks_no_model_at_one_host_may_do_so_at_others() {
        let provider = "llm = \"anthropic\"\nauthorized_uris = [\"https://api.anthropic.com/*\", \
                        \"https://api.openai.com/*\", \"https://gateway.example/api/*\"]\n";
        let asked_by = |method: &str, url: &str| asked_of(provider, method, url);
        let asked = |url: &str| asked_by("POST", url);
        for silent in [
            "https://api.anthropic.com/api/event_logging/batch",
            "https://api.anthropic.com/api/event_logging/v2/batch?x=1",
            "https://api.anthropic.com/api/eval/sdk-zAZezfDKGoZuXXKe",
            "https://api.anthropic.com/v1/messages/count_tokens",
            "https://api.openai.com/v1/moderations",
            "https://api.openai.com/v1/traces/ingest",
            "https://api.openai.com/v1/conversations",
            "https://api.openai.com/v1/conversations/conv_1",
            "https://api.openai.com/v1/threads/thread_1/messages",
            "https://api.openai.com/v1/uploads/upload_1/parts",
            "https://api.openai.com/v1/vector_stores",
            "https://api.openai.com/v1/vector_stores/vs_1",
            "https://api.openai.com/v1/vector_stores/vs_1/file_batches",
            "https://api.openai.com/v1/vector_stores/vs_1/file_batches/vsfb_1/cancel",
        ] {
            assert_eq!(asked(silent), None, "{silent}");
        }
        let elsewhere = "https://gateway.example/api/event_logging/batch";
        assert_eq!(asked(elsewhere), Some(ModelRequest::Later));
        for asks in [
            "https://gateway.example/api/eval/one",
            "https://api.anthropic.com/api/eval/one/two",
            "https://api.anthropic.com/v1/api/eval/one",
            "https://api.anthropic.com/api/event_logging/",
            "https://api.anthropic.com/v1/messages",
            "https://gateway.example/api/v1/traces/ingest",
            "https://gateway.example/api/v1/vector_stores/vs_1",
            "https://gateway.example/api/v1/conversations",
            "https://gateway.example/api/v1/moderations",
            "https://api.openai.com/v1/threads/runs",
            "https://api.openai.com/v1/threads/thread_1/runs",
            "https://api.openai.com/v1/conversations/conv_1/other",
            "https://api.openai.com/v1/vector_stores/vs_1/search",
            "https://api.openai.com/v1/vector_stores/vs_1/file_batches/vsfb_1",
            "https://api.openai.com/v1/responses",
        ] {
            assert_eq!(asked(asks), Some(ModelRequest::Answer), "{asks}");
            // Some servers read `post` as POST.
            assert_eq!(asked_by("post", asks), Some(ModelRequest::Answer), "{asks}");
        }
    }

    #[test]
    fn work_that_is_done_later_is_seen_however_it_is_written() {
        for later in [
            "/v1/batches",
            "/v1/messages/Batches",
            "/v1/batches;a=1",
            "/v1/b%61tches",
            "/v1/batches/",
            "/v1/batch/jobs",
            "/v1/fine_tuning/jobs",
            "/v1/fine_tuning/jobs/j_1/resume",
            "/v1/fine-tunes",
            "/v1/evals/e_1/runs",
            "/v1/videos",
            "/v1/videos/v_1/remix",
            "/v1beta/models/gemini-2.5-pro:batchGenerateContent",
            "/v1beta/models/gemini-embedding-001%3AasyncBatchEmbedContent",
            "/v1beta/models/veo-3.0-generate-001:predictLongRunning",
        ] {
            assert!(is_later(later, ""), "{later}");
        }
        for now in [
            "/v1beta/models/gemini:streamGenerateContent",
            "/v1/messages",
            "/v1/batches-of-one",
            "/v1/chat/completions",
            "/v1/images/generations",
        ] {
            assert!(!is_later(now, ""), "{now}");
        }
        // A gateway may have such a name.
        assert!(!is_later("/evals/v1/messages", "evals") && is_later("/evals/v1/evals", "evals"));
        assert!(is_later("/v1/evals", "evals") && is_later("/v1/batches", "v1/b"));
    }
}
