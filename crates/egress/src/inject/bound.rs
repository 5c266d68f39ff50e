//! Fetches the credentials that are bound to a host before any request is sent there. Another request, of this run or of an earlier one,
//! may have stored one of them at the host, so every answer of the host is searched for all of them.

use policy::{Denial, Grant};

use crate::gate::Gate;
use crate::http::Unsearchable;

/// Fetches the credentials that are bound to where a request goes, but for the request's own. Returns what the audit is to say of those
/// that could not be fetched, where the policy lets such an answer pass.
///
/// # Errors
/// One could not be fetched, and the policy refuses an answer that cannot be searched for it.
pub(super) async fn fetch_others(grant: &Grant, gate: &Gate) -> Result<Vec<String>, Denial> {
    let own = grant.provider().map(|provider| provider.id());
    let mut unsearched = Vec::new();
    for provider in gate.policy().providers_bound_to(grant.host()).filter(|other| Some(other.id()) != own) {
        let Err(denial) = gate.credentials().search_for_current(provider.id()).await else { continue };
        let (id, host, why) = (provider.id(), grant.host(), &denial.reason);
        let reason = format!("an answer of {host} cannot be searched for the credential of `{id}`: {why}");
        match gate.unsearchable() {
            Unsearchable::Refuse => return Err(Denial { reason, ..denial }),
            Unsearchable::Note => unsearched.push(reason),
        }
    }
    Ok(unsearched)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;
    use std::sync::Arc;

    use credential::Secret;
    use policy::{Asked, Guard, Method, Plane, Target};
    use tokio::task::LocalSet;

    use super::*;
    use crate::exchange::Exchange;
    use crate::fixture::records_in;
    use crate::http::Fields;
    use crate::inject::{Form, Sending, inject};
    use crate::{CredentialConfig, GateOptions, PlatformPlace, SigningKey};

    const PROVIDERS: &str = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"http://127.0.0.1:9/one/*\"]\n\
        inject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }\n\
        [[provider]]\nid = \"two\"\nauthorized_uris = [\"http://127.0.0.1:9/two/*\"]\n\
        [[provider]]\nid = \"elsewhere\"\nauthorized_uris = [\"http://127.0.0.2:9/*\"]\n\
        [egress]\nallow = [{ url = \"http://127.0.0.1:9/*\" }]\n";

    /// Answers each question for a credential with this status, and the value `secret-of-ID`.
    fn platform(status: u16) -> PlatformPlace {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            let mut question = [0; 4096];
            while let Ok(length @ 1..) = theirs.read(&mut question) {
                let text = std::str::from_utf8(&question[..length]).unwrap();
                let id = text.split_once("/internal/credentials/").unwrap().1.split_once(' ').unwrap().0;
                let body = format!(r#"{{"fields":{{"access_token":"secret-of-{id}"}}}}"#);
                let head = format!("HTTP/1.1 {status} -\r\ncontent-length: {}\r\n\r\n", body.len());
                theirs.write_all(format!("{head}{body}").as_bytes()).unwrap();
            }
        });
        PlatformPlace::Inherited(ours, Secret::from_text("token".into()))
    }

    /// What a run's first request comes to, if it is for this path: whether it may be sent; the values that its answer is searched for; the
    /// records.
    async fn first(
        path: &str,
        platform: Option<PlatformPlace>,
        scrub: &str,
    ) -> (Result<(), Denial>, Vec<String>, String) {
        let mut audit = tempfile::tempfile().unwrap();
        let mut layers = policy::Layers::default();
        let policy = format!("{PROVIDERS}scrub = \"{scrub}\"\n");
        layers.push(policy::Origin::Named("test".into()), toml::from_str(&policy).unwrap());
        let spec = layers.compile().unwrap();
        let signed = (Arc::new(audit.try_clone().unwrap()), SigningKey::generate().unwrap().0);
        let gate = Gate::open(GateOptions {
            credential_config: CredentialConfig { platform, ..CredentialConfig::default() },
            audit: Some(signed),
            ..GateOptions::new(spec.policy, spec.spending, policy::RunId::from_random([0; 12]))
        })
        .unwrap();
        let target = Target::parse(&format!("http://127.0.0.1:9{path}")).unwrap();
        let sent = LocalSet::new().run_until(sent(&gate, &target)).await;
        let is_searched = |id: &&str| {
            let answer = format!("stored: secret-of-{id}");
            gate.credentials().needles().now().scrub_text(answer.as_bytes()).is_some()
        };
        let searched =
            ["one", "two", "elsewhere"].iter().copied().filter(is_searched).map(str::to_owned).collect();
        gate.close().unwrap();
        let records = records_in(&mut audit);
        (sent, searched, records)
    }

    async fn sent(gate: &Rc<Gate>, target: &Target) -> Result<(), Denial> {
        let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), target);
        let exchange = Exchange::begin(gate, "GET", target.to_string(), asked).pin(gate).await?;
        let mut sending = Sending::new(Method::parse("GET").unwrap(), target, Fields::default());
        inject(exchange, gate, target, &mut sending, Form::Placeholders).await.map(drop)
    }

    #[tokio::test]
    async fn the_first_answer_of_a_host_is_searched_for_every_credential_that_is_bound_to_it() {
        for path in ["/", "/one/x", "/two/x"] {
            let (sent, searched, _) = first(path, Some(platform(200)), "strict").await;
            assert_eq!((sent, searched), (Ok(()), vec!["one".to_owned(), "two".to_owned()]), "{path}");
        }
    }

    #[tokio::test]
    async fn where_none_is_stored_there_is_nothing_to_search_for() {
        let (sent, searched, _) = first("/", Some(platform(404)), "strict").await;
        assert_eq!((sent, searched), (Ok(()), Vec::new()));
    }

    #[tokio::test]
    async fn an_answer_that_cannot_be_searched_for_one_is_refused_before_it_is_asked_for() {
        for platform in [None, Some(platform(500))] {
            let (sent, searched, _) = first("/", platform, "strict").await;
            let denial = sent.unwrap_err();
            assert_eq!((denial.guard, searched), (Guard::Credential, Vec::new()));
            assert!(
                denial.reason.contains("searched for the credential of `one`: Credential fetch failed"),
                "{denial:?}"
            );
        }
        let (sent, _, records) = first("/", Some(platform(500)), "best-effort").await;
        assert!(
            sent.is_ok() && records.matches("cannot be searched for the credential of `").count() == 2,
            "{records}"
        );
        assert!(records.contains("given up before it was answered; an answer of 127.0.0.1"), "{records}");
    }
}
