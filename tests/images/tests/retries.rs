//! A registry that fails or asks for patience is asked again, and not forever.

use std::time::Duration;

use lockgate_images::{Bench, Hostile, Image, Layer, Packed, Reply, ready, refused};

/// Starts a server with one image, which first answers `times` requests for its layer with `sick`.
fn sick(times: usize, sick: Reply) -> (Hostile, String) {
    let image = Image::new(&[Layer::files(&[("a", "1")], Packed::Gzip)]);
    let server = Hostile::start(move |head, before| {
        let layer = head.path().ends_with(&image.layers[0].blob.digest);
        if layer && before < times { sick.clone() } else { Reply::honest(head, &image) }
    });
    let name = format!("{}/app", server.address());
    (server, name)
}

#[test]
fn a_server_that_recovers_is_asked_again() {
    if !ready(&[]) {
        return;
    }
    for reply in [Reply::new(500, &[], b"oops"), Reply::new(503, &[], b""), Reply::raw(b"")] {
        let (server, name) = sick(2, reply);
        let bench = Bench::new();
        let ended = bench.pull(&name);
        assert_eq!(ended.code, 0, "{ended}");
        assert_eq!(server.heads().len(), 5, "a manifest, a configuration and three requests for the layer");
    }
}

#[test]
fn a_server_that_recovers_is_asked_again_for_documents_too() {
    if !ready(&[]) {
        return;
    }
    let image = Image::new(&[Layer::files(&[("a", "1")], Packed::Gzip)]);
    for reply in [Reply::new(503, &[], b""), Reply::new(429, &[("Retry-After", "1")], b""), Reply::raw(b"")] {
        for part in ["/manifests/", &image.config.digest] {
            let (image, part, reply) = (image.clone(), part.to_owned(), reply.clone());
            let server = Hostile::start(move |head, before| {
                let sick = head.path().contains(&part) && before == 0;
                if sick { reply.clone() } else { Reply::honest(head, &image) }
            });
            let bench = Bench::new();
            let ended = bench.pull(&format!("{}/app", server.address()));
            assert_eq!(ended.code, 0, "{ended}");
        }
    }
}

#[test]
fn a_server_that_does_not_recover_is_given_up() {
    if !ready(&[]) {
        return;
    }
    let (server, name) = sick(usize::MAX, Reply::new(500, &[], b"oops"));
    let bench = Bench::new();
    let ended = bench.pull(&name);
    refused(&bench, &ended, "");
    assert!(ended.stderr.contains("500") && !ended.stderr.contains(" layers in "), "{ended}");
    let asked = server.heads().len() - 2;
    assert!((2..=10).contains(&asked), "{asked} attempts");
    assert!(ended.took < Duration::from_secs(60), "{ended}");
}

#[test]
fn a_wait_that_the_server_asks_for_is_kept() {
    if !ready(&[]) {
        return;
    }
    let (_server, name) = sick(1, Reply::new(429, &[("Retry-After", "2")], b""));
    let bench = Bench::new();
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert!(ended.took >= Duration::from_secs(2) && ended.took < Duration::from_secs(20), "{ended}");
}

#[test]
fn a_wait_that_is_no_number_is_not_kept() {
    if !ready(&[]) {
        return;
    }
    for wait in ["-1", "Wed, 21 Oct 2099 07:28:00 GMT", "1e9", "99999999999999999999999", ""] {
        let (_server, name) = sick(1, Reply::new(429, &[("Retry-After", wait)], b""));
        let bench = Bench::new();
        let ended = bench.pull(&name);
        assert_eq!(ended.code, 0, "{ended}");
        assert!(ended.took < Duration::from_secs(20), "{wait}: {ended}");
    }
}

#[test]
fn a_refusal_is_not_asked_again() {
    if !ready(&[]) {
        return;
    }
    for status in [400, 403, 404, 410, 418] {
        let (server, name) = sick(usize::MAX, Reply::new(status, &[], b""));
        let bench = Bench::new();
        let ended = bench.pull(&name);
        refused(&bench, &ended, "");
        assert!(ended.stderr.contains(&status.to_string()), "{ended}");
        assert_eq!(server.heads().len(), 3);
    }
}
