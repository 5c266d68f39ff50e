//! The targets of a registry's redirects, and what is not sent to them.

use std::sync::{Arc, OnceLock};

use lockgate_images::{Bench, Hostile, PASSWORD, Reply, USER, ready, refused, told};

use crate::pulled::small;

const SIGNATURE: &str = "s1gnature-of-9-bees";

#[test]
fn redirects_without_end_are_given_up() {
    if !ready(&[]) {
        return;
    }
    let server = Hostile::start(|head, _| {
        let next = head.target().len();
        Reply::redirect(&format!("/v2/app/manifests/{next}{}?sig={SIGNATURE}", "x".repeat(next)))
    });
    let bench = Bench::new();
    let ended = bench.pull(&format!("{}/app", server.address()));
    refused(&bench, &ended, SIGNATURE);
    assert!(ended.stderr.contains("without end"), "{ended}");
    assert_eq!(server.heads().len(), 6, "the request and five redirects");
}

#[test]
fn a_redirect_to_itself_is_given_up() {
    if !ready(&[]) {
        return;
    }
    let server = Hostile::start(|head, _| Reply::redirect(head.target()));
    let bench = Bench::new();
    refused(&bench, &bench.pull(&format!("{}/app", server.address())), "");
    assert_eq!(server.heads().len(), 6);
}

#[test]
fn a_layer_whose_redirect_is_refused_is_not_asked_for_again() {
    if !ready(&[]) {
        return;
    }
    // It would be refused again and again: this is no broken download.
    let image = small("x");
    let layer = image.layers[0].blob.digest.clone();
    let server = Hostile::start(move |head, _| {
        if head.path().ends_with(&layer) {
            Reply::redirect("ftp://127.0.0.1/")
        } else {
            Reply::honest(head, &image)
        }
    });
    let bench = Bench::new();
    let ended = bench.pull(&format!("{}/app", server.address()));
    refused(&bench, &ended, "");
    assert_eq!(server.heads().len(), 3, "{ended}");
}

/// Starts a registry that requires a password and redirects to another server for its blobs, and that server.
fn with_store_elsewhere() -> (Hostile, Hostile) {
    let image = small("elsewhere");
    let blobs = Hostile::start({
        let image = image.clone();
        move |head, _| Reply::honest(head, &image)
    });
    let place = format!("http://{}", blobs.address());
    let registry = Hostile::start(move |head, _| {
        if head.field("authorization").is_none() {
            return Reply::new(401, &[("WWW-Authenticate", "Basic realm=\"test\"")], b"");
        }
        if head.path().contains("/blobs/") {
            return Reply::redirect(&format!("{place}{}?sig={SIGNATURE}", head.path()));
        }
        Reply::honest(head, &image)
    });
    (registry, blobs)
}

#[test]
fn a_redirect_to_another_place_is_followed_without_the_password() {
    if !ready(&[]) {
        return;
    }
    let (registry, blobs) = with_store_elsewhere();
    let bench = Bench::new();
    bench.keep_credential(USER, PASSWORD);
    let ended = bench.pull_with_credential(&format!("{}/app", registry.address()));
    assert_eq!(ended.code, 0, "{ended}");
    let heads = blobs.heads();
    assert_eq!(heads.len(), 2, "the configuration and the layer: {heads:?}");
    for head in &heads {
        assert_eq!(head.field("authorization"), None, "{head:?}");
        assert_eq!(head.field("host"), Some(blobs.address().to_string().as_str()));
        assert!(head.target().ends_with(SIGNATURE), "{head:?}");
    }
    assert!(!told(&ended, SIGNATURE), "{ended}");
    assert_eq!(bench.holding(SIGNATURE), [""; 0].map(std::path::PathBuf::from));
}

#[test]
fn a_refusal_of_another_place_is_told_as_its_own() {
    if !ready(&[]) {
        return;
    }
    let image = small("x");
    for (status, part) in [(403, 0), (404, 0), (401, 0), (403, 1), (404, 1)] {
        let part = [&image.config, &image.layers[0].blob][part].digest.clone();
        let blobs = Hostile::start(move |_, _| Reply::new(status, &[], b""));
        let (image, place) = (image.clone(), blobs.address());
        let registry = Hostile::start(move |head, _| match head.path().ends_with(&part) {
            true => Reply::redirect(&format!("http://{place}{}?sig={SIGNATURE}", head.path())),
            false => Reply::honest(head, &image),
        });
        let bench = Bench::new();
        let ended = bench.pull(&format!("{}/app", registry.address()));
        refused(&bench, &ended, SIGNATURE);
        assert!(ended.stderr.contains(&format!("failed to fetch http://{}/", blobs.address())), "{ended}");
        for advice in ["--credential", "no such image"] {
            assert!(!ended.stderr.contains(advice), "{ended}");
        }
    }
}

#[test]
fn a_password_does_not_come_back_by_a_detour() {
    if !ready(&[]) {
        return;
    }
    let home = Arc::new(OnceLock::new());
    let detour = Hostile::start({
        let home = Arc::clone(&home);
        move |_, _| Reply::redirect(&format!("http://{}/back", home.get().unwrap()))
    });
    let place = format!("http://{}/detour", detour.address());
    let registry = Hostile::start(move |head, _| match head.path() {
        "/back" => Reply::new(404, &[], b""),
        _ if head.field("authorization").is_none() => {
            Reply::new(401, &[("WWW-Authenticate", "Basic realm=\"test\"")], b"")
        }
        _ => Reply::redirect(&place),
    });
    home.set(registry.address()).unwrap();
    let bench = Bench::new();
    bench.keep_credential(USER, PASSWORD);
    let ended = bench.pull_with_credential(&format!("{}/app", registry.address()));
    refused(&bench, &ended, PASSWORD);
    let back: Vec<_> = registry.heads().into_iter().filter(|head| head.path() == "/back").collect();
    assert_eq!(back.len(), 1);
    assert_eq!(back[0].field("authorization"), None);
    assert!(detour.heads().iter().all(|head| head.field("authorization").is_none()));
}

#[test]
fn a_location_that_is_no_address_is_not_followed() {
    if !ready(&[]) {
        return;
    }
    let long = format!("/{}", "x".repeat(20_000));
    for location in [
        "",
        "//user@127.0.0.1/",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "http://",
        "http://user:pass@127.0.0.1/",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:99999/",
        "http://[::1]/",
        "http://127.0.0.1\\@elsewhere.test/",
        "/a b",
        "/\u{1b}[2J",
        "/\u{e9}",
        "unix:/run/docker.sock",
        &long,
    ] {
        let reply = Reply::redirect(location);
        let server = Hostile::start(move |_, _| reply.clone());
        let bench = Bench::new();
        let ended = bench.pull(&format!("{}/app", server.address()));
        refused(&bench, &ended, "");
        assert_eq!(server.heads().len(), 1, "{location:.40}: {:?}", server.heads());
    }
}

#[test]
fn a_redirect_without_location_is_refused() {
    if !ready(&[]) {
        return;
    }
    for status in [300, 301, 302, 303, 304, 307, 308, 399] {
        let server = Hostile::start(move |_, _| Reply::new(status, &[], b""));
        let bench = Bench::new();
        refused(&bench, &bench.pull(&format!("{}/app", server.address())), "");
        assert_eq!(server.heads().len(), 1);
    }
}

#[test]
fn the_query_of_a_redirect_is_never_shown() {
    if !ready(&[]) {
        return;
    }
    // Every way in which the target of a redirect can fail.
    let replies = [
        Reply::new(403, &[], SIGNATURE.as_bytes()),
        Reply::new(500, &[], SIGNATURE.as_bytes()),
        Reply::ok(format!("not json {SIGNATURE}").as_bytes()),
        Reply::ok(&vec![b'x'; 5 << 20]),
        Reply::raw(b""),
        Reply::raw(format!("{SIGNATURE}\r\n\r\n").as_bytes()),
        Reply::redirect(&format!("junk?sig={SIGNATURE}")),
        Reply::redirect(&format!("http://127.0.0.1:1/?sig={SIGNATURE}")),
        Reply::new(
            401,
            &[("WWW-Authenticate", &format!("Bearer realm=\"http://127.0.0.1:1/?{SIGNATURE}\""))],
            b"",
        ),
        Reply::new(401, &[("WWW-Authenticate", &format!("Bearer realm=\"{SIGNATURE}\""))], b""),
    ];
    for reply in replies {
        let server = Hostile::start(move |head, _| {
            if head.path() == "/signed" {
                return reply.clone();
            }
            Reply::redirect(&format!("/signed?sig={SIGNATURE}"))
        });
        let bench = Bench::new();
        let ended = bench.pull(&format!("{}/app", server.address()));
        refused(&bench, &ended, SIGNATURE);
    }
}
