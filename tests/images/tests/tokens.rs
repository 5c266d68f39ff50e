//! Token services: which one a registry names in its challenge, what is sent there, and what it may answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockgate_images::{Bench, Head, Hostile, Image, PASSWORD, Reply, USER, ready, refused, told};

use crate::pulled::small;

const TOKEN: &str = "t0ken-of-3-owls";

/// Starts a token service with this answer, and a registry that names it and accepts [`TOKEN`] alone.
fn with_service(answer: Reply) -> (Hostile, Hostile, String) {
    let service = Hostile::start(move |_, _| answer.clone());
    let realm = format!("http://{}/token?account=test", service.address());
    let registry = registry(&small("private"), &realm, |head| {
        head.field("authorization") == Some(&format!("Bearer {TOKEN}"))
    });
    let name = format!("{}/team/app", registry.address());
    (service, registry, name)
}

/// Starts a registry that names a realm to unknown clients.
fn registry(image: &Image, realm: &str, knows: impl Fn(&Head) -> bool + Send + Sync + 'static) -> Hostile {
    let (image, challenge) =
        (image.clone(), format!("Bearer realm=\"{realm}\",service=\"the test\",scope=\"x\""));
    Hostile::start(move |head, _| {
        if knows(head) {
            return Reply::honest(head, &image);
        }
        Reply::new(401, &[("WWW-Authenticate", &challenge)], b"")
    })
}

fn token(name: &str) -> Reply {
    Reply::ok(format!(r#"{{"{name}":"{TOKEN}","expires_in":300}}"#).as_bytes())
}

#[test]
fn a_token_is_got_for_the_password_and_the_registry_never_sees_that() {
    if !ready(&[]) {
        return;
    }
    for name in ["token", "access_token"] {
        let (service, registry, image) = with_service(token(name));
        let bench = Bench::new();
        bench.keep_credential(USER, PASSWORD);
        let ended = bench.pull_with_credential(&image);
        assert_eq!(ended.code, 0, "{ended}");
        let asked = service.heads();
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert!(asked[0].field("authorization").unwrap().starts_with("Basic "));
        assert_eq!(
            asked[0].target(),
            "/token?account=test&service=the%20test&scope=repository:team/app:pull"
        );
        for head in registry.heads() {
            let field = head.field("authorization").unwrap_or_default();
            assert!(field.is_empty() || field == format!("Bearer {TOKEN}"), "{head:?}");
        }
        assert!(!told(&ended, PASSWORD) && !told(&ended, TOKEN), "{ended}");
        assert!(bench.holding(PASSWORD).is_empty() && bench.holding(TOKEN).is_empty());
    }
}

#[test]
fn a_token_under_both_of_its_names_is_taken() {
    if !ready(&[]) {
        return;
    }
    // As Docker Hub answers; the specification of the token has both fields "for compatibility with OAuth 2.0".
    let both = format!(r#"{{"token":"{TOKEN}","access_token":"{TOKEN}","expires_in":300,"issued_at":"x"}}"#);
    let (_service, _registry, name) = with_service(Reply::ok(both.as_bytes()));
    let bench = Bench::new();
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
}

#[test]
fn a_token_for_nobody_in_particular_is_asked_for_without_password() {
    if !ready(&[]) {
        return;
    }
    let (service, _registry, name) = with_service(token("token"));
    let bench = Bench::new();
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(service.heads()[0].field("authorization"), None);
}

#[test]
fn a_token_service_that_is_not_satisfied_leads_to_the_flag_for_credentials() {
    if !ready(&[]) {
        return;
    }
    for (answer, status) in [(Reply::new(401, &[], b""), "401"), (Reply::new(403, &[], b""), "403")] {
        let (_service, _registry, name) = with_service(answer);
        let bench = Bench::new();
        let ended = bench.pull(&name);
        refused(&bench, &ended, "");
        assert!(ended.stderr.contains(status), "{ended}");
        assert!(ended.stderr.contains("--credential"), "what to do next is not said: {ended}");
    }
}

#[test]
fn a_token_that_is_not_enough_leads_to_the_flag_for_credentials() {
    if !ready(&[]) {
        return;
    }
    // As registries do for a private image: everybody gets a token, and it grants nothing.
    let (_service, _registry, name) = with_service(Reply::ok(br#"{"token":"for-nobody"}"#));
    let bench = Bench::new();
    let ended = bench.pull(&name);
    refused(&bench, &ended, "for-nobody");
    assert!(ended.stderr.contains("--credential"), "what to do next is not said: {ended}");
}

#[test]
fn a_token_that_has_run_out_is_renewed() {
    if !ready(&[]) {
        return;
    }
    // Tokens live for a minute or five; a pull may take longer.
    let given = Arc::new(AtomicUsize::new(0));
    let service = Hostile::start({
        let given = Arc::clone(&given);
        move |_, _| {
            let count = given.fetch_add(1, Ordering::Relaxed) + 1;
            Reply::ok(format!(r#"{{"token":"number-{count}"}}"#).as_bytes())
        }
    });
    let image = small("long");
    let layer = image.layers[0].blob.digest.clone();
    let realm = format!("http://{}/token", service.address());
    let registry = registry(&image, &realm, move |head| {
        let wanted = if head.path().ends_with(&layer) { "Bearer number-2" } else { "Bearer number-1" };
        head.field("authorization") == Some(wanted)
    });
    let bench = Bench::new();
    let ended = bench.pull(&format!("{}/app", registry.address()));
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(given.load(Ordering::Relaxed), 2);
}

#[test]
fn a_realm_that_is_no_address_is_refused() {
    if !ready(&[]) {
        return;
    }
    for realm in
        ["", "junk", "/token", "//x/", "ftp://127.0.0.1/", "http://user@127.0.0.1/", "file:///etc/passwd"]
    {
        let registry = registry(&small("x"), realm, |_| false);
        let bench = Bench::new();
        bench.keep_credential(USER, PASSWORD);
        let ended = bench.pull_with_credential(&format!("{}/app", registry.address()));
        refused(&bench, &ended, PASSWORD);
        assert!(ended.stderr.contains("token service"), "{ended}");
        assert_eq!(registry.heads().len(), 1);
    }
}

#[test]
fn a_challenge_that_is_none_is_refused() {
    if !ready(&[]) {
        return;
    }
    let long = format!("Bearer realm=\"http://{}/\"", "x".repeat(10_000));
    for challenge in
        ["", "Bearer", "Bearer realm=", "Bearer realm=\"", "Digest realm=\"x\"", "=\"\"=\"", &long]
    {
        let reply = Reply::new(401, &[("WWW-Authenticate", challenge)], b"");
        let registry = Hostile::start(move |_, _| reply.clone());
        let bench = Bench::new();
        bench.keep_credential(USER, PASSWORD);
        let ended = bench.pull_with_credential(&format!("{}/app", registry.address()));
        refused(&bench, &ended, PASSWORD);
        assert!(registry.heads().iter().all(|head| head.field("authorization").is_none()));
    }
}

#[test]
fn an_answer_of_a_token_service_that_is_no_token_is_refused() {
    if !ready(&[]) {
        return;
    }
    let huge = format!(r#"{{"token":"{}"}}"#, "x".repeat(1 << 20));
    for answer in [
        Reply::ok(huge.as_bytes()),
        Reply::head(200, &[]).endlessly(b" "),
        Reply::ok(br#"{"token":"a\nb"}"#),
        Reply::ok(br#"{"token":"a\r\nX-Injected: b"}"#),
        Reply::ok(br#"{"token":"a\u0000b"}"#),
        Reply::ok(br#"{"token":7}"#),
        Reply::ok(br#"{"token":null}"#),
        Reply::ok(b"{}"),
        Reply::ok(b"s3cret-page"),
        Reply::redirect("junk"),
    ] {
        let (service, registry, name) = with_service(answer);
        let bench = Bench::new();
        bench.keep_credential(USER, PASSWORD);
        let ended = bench.pull_with_credential(&name);
        refused(&bench, &ended, PASSWORD);
        refused(&bench, &ended, "s3cret-page");
        assert!(service.sent() < 16 << 20, "{} octets were taken", service.sent());
        assert!(registry.heads().iter().all(|head| head.field("x-injected").is_none()));
    }
}

#[test]
fn a_token_service_that_sends_elsewhere_does_not_send_the_password_there() {
    if !ready(&[]) {
        return;
    }
    let elsewhere = Hostile::start(|_, _| token("token"));
    let place = format!("http://{}/token", elsewhere.address());
    let (_service, _registry, name) = with_service(Reply::redirect(&place));
    let bench = Bench::new();
    bench.keep_credential(USER, PASSWORD);
    let _ = bench.pull_with_credential(&name);
    let heads = elsewhere.heads();
    assert_eq!(heads.len(), 1, "it is asked, without the password: {heads:?}");
    assert!(heads.iter().all(|head| head.field("authorization").is_none()), "{heads:?}");
}

#[test]
fn a_registry_that_is_never_satisfied_is_asked_twice() {
    if !ready(&[]) {
        return;
    }
    let (service, registry, name) = with_service(Reply::ok(br#"{"token":"wrong"}"#));
    let bench = Bench::new();
    refused(&bench, &bench.pull(&name), "");
    assert_eq!((service.heads().len(), registry.heads().len()), (1, 2));
}
