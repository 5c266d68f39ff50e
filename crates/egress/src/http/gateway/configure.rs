//! `/configure`: tells a sidecar that was made before its run, once, which platform and run it serves. S0.41, S1.16

use std::io;
use std::rc::Rc;
use std::time::Duration;

use credential::Secret;
use policy::{Denial, Guard, Plane};
use serde::Deserialize;
use serde_json::json;
use zeroize::Zeroizing;

use super::refused::{after_unread, recorded, refusal};
use super::whole_body::read_whole_within;
use crate::audit;
use crate::gate::Gate;
use crate::http::answer::Answer;
use crate::http::problem::{After, Reply};
use crate::http::request::Request;

/// The largest configuration, in octets.
const LARGEST: usize = 64 * 1024;

/// How long the whole request may take to arrive. Nobody else can configure the sidecar meanwhile.
const WITHIN: Duration = Duration::from_secs(10);

/// What a sidecar is told. Unknown fields are refused, because the sender would believe that they count.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Configuration {
    run_token: Zeroizing<String>,
    platform_api_url: String,
    /// Existing pools send these two whether or not they are used. Here proxies and models are the policy's.
    #[serde(default)]
    proxy_url: Option<Zeroizing<String>>,
    #[serde(default)]
    llm: Option<serde::de::IgnoredAny>,
}

impl Configuration {
    /// Reads a body that says all that is needed, and nothing that this sidecar does not heed.
    fn read(body: &[u8]) -> Option<Self> {
        // A list would be read as the fields in their order.
        let is_object = body.trim_ascii_start().starts_with(b"{");
        serde_json::from_slice(body).ok().filter(|read: &Self| is_object && read.is_whole())
    }

    /// Whether it asks for nothing that this sidecar does not take from it.
    fn is_whole(&self) -> bool {
        self.proxy_url.as_ref().is_none_or(|url| url.is_empty()) && self.llm.is_none()
    }
}

/// Returns the token of a bearer's authorization, whose scheme may be in either case (RFC 9110 §11.1).
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// Answers `/configure`.
pub(super) async fn configure(
    gate: &Rc<Gate>,
    mut request: Request<'_>,
    mut answer: Answer<'_>,
) -> io::Result<After> {
    let refuse = |why: &'static str| {
        let denial = Denial::new(Guard::Credential, why);
        audit::record_refused_unasked(gate, Plane::Gateway, "/configure", denial);
        refusal(403, "credential_unavailable", why)
    };
    let bearer = request.head.fields.values("authorization").next().and_then(bearer_token);
    // The right is taken before the first await, so that two requests at once cannot both have it.
    if let Err(why) = gate.credentials().begin_to_configure(bearer.unwrap_or_default()) {
        return answer.reply(refuse(why), after_unread(&request)).await;
    }
    let right = GiveBack(gate);
    let read = read_whole_within(&mut request, &mut answer, LARGEST, WITHIN).await;
    let (configured, after) = match read {
        Ok(body) => (configure_by(gate, &body.octets), After::KeepAlive),
        Err(reply) => (Err(reply), After::Close),
    };
    drop(right);
    let reply = configured.unwrap_or_else(|reply| reply);
    answer.reply(recorded(gate, &request.head, reply), after).await
}

/// Gives the right to configure back when it is dropped, unless it has been used. A request that is reset midway takes nothing with it.
struct GiveBack<'a>(&'a Gate);

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        self.0.credentials().configure_later();
    }
}

/// Configures the sidecar by a request's body, and returns the reply. The error is the reply to a body that cannot be used.
fn configure_by(gate: &Gate, body: &[u8]) -> Result<Reply, Reply> {
    let configuration = Configuration::read(body).ok_or_else(|| {
        let why = "the body is {\"runToken\": …, \"platformApiUrl\": …}; proxies and models are named by the policy";
        refusal(400, "target_syntax", why)
    })?;
    let token = Secret::new(configuration.run_token.as_bytes().to_vec());
    gate.credentials()
        .configure(&configuration.platform_api_url, token)
        .map_err(|why| refusal(400, "target_syntax", &why))?;
    Ok(Reply::json(200, &json!({"status": "configured"})))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;
    use tokio::task::LocalSet;

    use super::*;
    use crate::http::request::Via;
    use crate::http::serve1::serve_requests;
    use crate::http::stream::AgentStream;
    use crate::{CredentialConfig, GateOptions};

    #[test]
    fn the_scheme_of_a_bearer_is_in_either_case() {
        for (value, token) in [("Bearer t", Some("t")), ("bearer t", Some("t")), ("BEARER t", Some("t"))]
            .into_iter()
            .chain(["Basic t", "Bearert", "Bear", ""].map(|other| (other, None)))
        {
            assert_eq!(bearer_token(value.as_bytes()), token.map(str::as_bytes), "{value}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_too_late_is_not_called_too_large() {
        let spec = policy::Layers::default().compile().unwrap();
        let configure_once = Some(Secret::new(b"secret".to_vec()));
        let gate = Gate::open(GateOptions {
            credential_config: CredentialConfig { configure_once, ..CredentialConfig::default() },
            ..GateOptions::new(spec.policy, spec.spending, policy::RunId::from_random([0; 12]))
        });
        let gate = gate.unwrap();
        let answered = async |length: usize, body: &str| {
            let (mut agent, ours) = UnixStream::pair().unwrap();
            let request = format!(
                "POST /configure HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            let ahead = BytesMut::from(request.as_bytes());
            let served = serve_requests(Rc::clone(&gate), Via::Gateway, AgentStream::Unix(ours), ahead);
            let served = LocalSet::new().run_until(tokio::time::timeout(2 * WITHIN, served)).await;
            assert!(served.is_ok(), "it ends the connection");
            let mut answer = String::new();
            agent.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let late = answered(2, "{").await;
        assert!(
            late.starts_with("HTTP/1.1 408 ") && late.contains("did not come whole within 10 s"),
            "{late}"
        );
        // The right is given back.
        assert_eq!(answered(2, "{").await, late);
        let large = answered(LARGEST + 1, &" ".repeat(LARGEST + 1)).await;
        assert!(large.starts_with("HTTP/1.1 413 "), "{large}");
    }

    #[test]
    fn what_pools_send_and_do_not_use_is_taken_and_what_would_count_is_not() {
        let is_taken = |more: &str| {
            let body = format!(r#"{{"runToken": "t", "platformApiUrl": "http://127.0.0.1:9100"{more}}}"#);
            Configuration::read(body.as_bytes()).is_some()
        };
        assert!(Configuration::read(br#"["t", "http://127.0.0.1:9100"]"#).is_none());
        for unused in ["", r#", "proxyUrl": """#, r#", "proxyUrl": null, "llm": null"#] {
            assert!(is_taken(unused), "{unused}");
        }
        for used in [r#", "proxyUrl": "http://127.0.0.1:1""#, r#", "llm": {}"#, r#", "other": null"#] {
            assert!(!is_taken(used), "{used}");
        }
    }
}
