//! A registry elsewhere is spoken to over TLS, and only if it proves its name.
//!
//! Registries on this machine are spoken to in the clear, so these have a name that resolves to this machine in the test alone.

use lockgate_images::{
    Bench, Certificate, Hostile, Needs, PASSWORD, Protection, Registry, Reply, USER, ready, refused,
};

use crate::pulled::small;

const NAME: &str = "registry.test";

#[test]
fn an_unknown_authority_is_refused_and_nothing_is_sent_after_the_handshake() {
    if !ready(&[Needs::Names]) {
        return;
    }
    let certificate = Certificate::of(NAME);
    let server = Hostile::start_tls(&certificate, |head, _| Reply::honest(head, &small("x")));
    let bench = Bench::new().with_names(&[NAME]);
    let name = format!("{NAME}:{}/app", server.address().port());
    bench.keep_credential(USER, PASSWORD);
    let ended = bench.pull_with_credential(&name);
    refused(&bench, &ended, PASSWORD);
    assert!(ended.stderr.to_lowercase().contains("certificate"), "{ended}");
    assert_eq!((server.heard(), server.heads().len()), (0, 0), "something was sent");
    // With a trusted authority it is accepted.
    let bench = bench.trusting(&certificate);
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert!(server.heard() > 0);
}

#[test]
fn an_authority_that_ssl_cert_file_names_is_believed() {
    if !ready(&[Needs::Names, Needs::Registry]) {
        return;
    }
    let certificate = Certificate::of(NAME);
    let open = Registry::open();
    open.push("app", "1", &small("x"));
    let registry = open.again(Protection::Tls(&certificate));
    let bench = Bench::new().with_names(&[NAME]);
    let name = format!("{NAME}:{}/app:1", registry.address().port());
    refused(&bench, &bench.pull(&name), "");
    let bench = bench.trusting(&certificate);
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(bench.list()[0]["name"], name.as_str());
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    if !ready(&[Needs::Names, Needs::Registry]) {
        return;
    }
    let certificate = Certificate::of("elsewhere.test");
    let open = Registry::open();
    open.push("app", "1", &small("x"));
    let registry = open.again(Protection::Tls(&certificate));
    let bench = Bench::new().with_names(&[NAME]).trusting(&certificate);
    let ended = bench.pull(&format!("{NAME}:{}/app:1", registry.address().port()));
    refused(&bench, &ended, "");
    assert!(ended.stderr.to_lowercase().contains("certificate"), "{ended}");
}

#[test]
fn a_registry_elsewhere_is_not_spoken_to_in_the_clear() {
    if !ready(&[Needs::Names]) {
        return;
    }
    let server = Hostile::start(|head, _| Reply::honest(head, &small("x")));
    let bench = Bench::new().with_names(&[NAME]);
    let name = format!("{NAME}:{}/app", server.address().port());
    refused(&bench, &bench.pull(&name), "");
    assert!(server.heads().iter().all(|head| !head.line.contains("HTTP")), "{:?}", server.heads());
    let ended = bench.lockgate(&["image", "pull", "--plain-http", &name]);
    assert_eq!(ended.code, 0, "{ended}");
}

#[test]
fn a_redirect_from_tls_into_the_clear_is_not_followed() {
    if !ready(&[Needs::Names]) {
        return;
    }
    let image = small("x");
    let clear = Hostile::start({
        let image = image.clone();
        move |head, _| Reply::honest(head, &image)
    });
    let certificate = Certificate::of(NAME);
    let place = format!("http://{}", clear.address());
    // Documents and layers alike.
    for wanted in ["/manifests/".to_owned(), image.layers[0].blob.digest.clone()] {
        let (place, image) = (place.clone(), image.clone());
        let server = Hostile::start_tls(&certificate, move |head, _| {
            if head.path().contains(&wanted) {
                return Reply::redirect(&format!("{place}{}?sig=t0ken", head.path()));
            }
            Reply::honest(head, &image)
        });
        let bench = Bench::new().with_names(&[NAME]).trusting(&certificate);
        let ended = bench.pull(&format!("{NAME}:{}/app", server.address().port()));
        refused(&bench, &ended, "t0ken");
        assert!(ended.stderr.contains("in the clear"), "{ended}");
    }
    assert_eq!(clear.heads().len(), 0);
}

#[test]
fn a_password_does_not_go_to_a_token_service_in_the_clear() {
    if !ready(&[Needs::Names]) {
        return;
    }
    let service = Hostile::start(|_, _| Reply::ok(br#"{"token":"x"}"#));
    let challenge = format!("Bearer realm=\"http://{}/token\",service=\"test\"", service.address());
    let certificate = Certificate::of(NAME);
    let server = Hostile::start_tls(&certificate, move |_, _| {
        Reply::new(401, &[("WWW-Authenticate", &challenge)], b"")
    });
    let bench = Bench::new().with_names(&[NAME]).trusting(&certificate);
    bench.keep_credential(USER, PASSWORD);
    let ended = bench.pull_with_credential(&format!("{NAME}:{}/app", server.address().port()));
    refused(&bench, &ended, PASSWORD);
    assert_eq!(service.heads().len(), 0);
    assert_eq!(server.heads().iter().filter(|head| head.field("authorization").is_some()).count(), 0);
}

#[test]
fn a_registry_of_this_machine_gets_no_password_sent_elsewhere_in_the_clear() {
    if !ready(&[Needs::Names]) {
        return;
    }
    // A request to this machine stays on it; one to another machine can be read on the way.
    let service = Hostile::start(|_, _| Reply::ok(br#"{"token":"x"}"#));
    let challenge = format!("Bearer realm=\"http://tokens.test:{}/token\"", service.address().port());
    let server = Hostile::start(move |_, _| Reply::new(401, &[("WWW-Authenticate", &challenge)], b""));
    let bench = Bench::new().with_names(&["tokens.test"]);
    bench.keep_credential(USER, PASSWORD);
    let ended = bench.pull_with_credential(&format!("{}/app", server.address()));
    refused(&bench, &ended, PASSWORD);
    let heads = service.heads();
    assert!(
        heads.iter().all(|head| head.field("authorization").is_none()),
        "the password was sent in the clear"
    );
}
