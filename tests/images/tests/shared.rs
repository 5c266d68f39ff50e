//! What is present is not downloaded again: by the next pull, by another image, by another pull at the same time.

use std::time::Duration;

use lockgate_conformance::Live;
use lockgate_images::{Bench, Deed, Image, Layer, Needs, Packed, Registry, Relay, ready};

#[test]
fn a_second_pull_downloads_no_layer() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    let layers = [Layer::files(&[("a", "1")], Packed::Gzip), Layer::files(&[("b", "2")], Packed::Gzip)];
    registry.push("app", "latest", &Image::new(&layers));
    let relay = Relay::start(registry.address(), |_, _| Deed::Pass);
    let name = format!("{}/app", relay.address());
    for _ in 0..2 {
        let ended = bench.pull(&name);
        assert_eq!(ended.code, 0, "{ended}");
        for layer in &layers {
            assert_eq!(relay.asked_for(&layer.blob.digest), 1, "{:?}", relay.heads());
        }
    }
    assert_eq!(bench.list().len(), 1);
}

#[test]
fn an_image_that_shares_layers_with_another_fetches_only_the_new_one() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    let base = Layer::noise(1, 1 << 20);
    let [one, two] = ["one", "two"].map(|text| Layer::files(&[("app", text)], Packed::Gzip));
    registry.push("one", "latest", &Image::new(&[base.clone(), one]));
    registry.push("two", "latest", &Image::new(&[base.clone(), two.clone()]));
    let relay = Relay::start(registry.address(), |_, _| Deed::Pass);
    assert_eq!(bench.pull(&format!("{}/one", relay.address())).code, 0);
    let ended = bench.pull(&format!("{}/two", relay.address()));
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!((relay.asked_for(&base.blob.digest), relay.asked_for(&two.blob.digest)), (1, 1));
    assert_eq!((bench.list().len(), bench.count("layers")), (2, 3));
    // Shared layers stay for the other image.
    assert_eq!(bench.lockgate(&["image", "rm", &format!("{}/one", relay.address())]).code, 0);
    assert_eq!((bench.list().len(), bench.count("layers")), (1, 2));
}

#[test]
fn a_layer_that_an_image_has_twice_comes_once() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    let layer = Layer::files(&[("a", "1")], Packed::Gzip);
    registry.push("app", "latest", &Image::new(&[layer.clone(), layer.clone()]));
    let relay = Relay::start(registry.address(), |_, _| Deed::Pass);
    let ended = bench.pull(&format!("{}/app", relay.address()));
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(relay.asked_for(&layer.blob.digest), 1);
}

/// Makes two pulls of one image, the second begun while the first is in the middle of its layer.
fn two_at_once() -> (Bench, usize) {
    let (registry, bench) = (Registry::open(), Bench::new());
    let layer = Layer::noise(2, 4 << 20);
    registry.push("app", "latest", &Image::new(std::slice::from_ref(&layer)));
    let wanted = layer.blob.digest.clone();
    let relay = Relay::start(registry.address(), move |head, before| {
        let slow = head.path().ends_with(&wanted) && before == 0;
        if slow { Deed::Pause(1 << 20, Duration::from_secs(3)) } else { Deed::Pass }
    });
    let name = format!("{}/app", relay.address());
    let first = Live::start(&mut bench.command(&["image", "pull", &name]));
    relay.wait_for(&layer.blob.digest);
    let second = Live::start(&mut bench.command(&["image", "pull", &name]));
    let both = [first.wait(), second.wait()];
    for ended in &both {
        assert_eq!(ended.code, 0, "{ended}");
        assert!(!ended.stderr.contains("panicked"), "{ended}");
    }
    assert_eq!(both[1].stderr.matches("waiting for it").count(), 1, "{}", both[1]);
    (bench, relay.asked_for(&layer.blob.digest))
}

#[test]
fn two_pulls_of_the_same_image_at_once_both_succeed() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (bench, _) = two_at_once();
    assert_eq!(bench.list().len(), 1);
    assert_eq!(["layers", "blobs", "staging"].map(|part| bench.count(part)), [1, 0, 0]);
}

#[test]
fn what_another_pull_has_just_fetched_is_not_fetched_again() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (_bench, asked) = two_at_once();
    assert_eq!(asked, 1, "the second pull waited for the first, and then fetched the layer once more");
}
