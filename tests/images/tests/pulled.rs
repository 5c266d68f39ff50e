//! Images are pulled from a real registry by every kind of name and in every compression, run, and are removed.

use lockgate_images::Deed;
use lockgate_images::{
    Bench, Image, Layer, Needs, Packed, Registry, Relay, account, busybox, digest, index, ready,
};

/// Makes a small image of one file.
pub(crate) fn small(content: &str) -> Image {
    Image::new(&[Layer::files(&[("file", content)], Packed::Gzip)])
}

fn of_busybox(packed: Packed) -> Image {
    let archive = std::fs::read(busybox().unwrap()).unwrap();
    Image::new(&[Layer::archive(archive, packed)])
}

#[test]
fn an_image_is_pulled_by_its_tag_and_runs() {
    if !ready(&[Needs::Registry, Needs::Busybox]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    let image = of_busybox(Packed::Gzip);
    registry.push("team/app", "1.2", &image);
    let name = format!("{}/team/app:1.2", registry.address());
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert!(ended.stdout.contains(&name), "{ended}");
    let listed = bench.list();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (&listed[0]["name"], &listed[0]["digest"]),
        (&name.as_str().into(), &image.config.digest.as_str().into())
    );
    assert_eq!(bench.count("blobs"), 0, "a blob was left");

    let ended = bench.run(&name, &["/bin/busybox", "echo", "hi"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "hi\n"), "{ended}");
}

#[test]
fn an_image_is_pulled_by_its_digest_and_found_by_it() {
    if !ready(&[Needs::Registry, Needs::Busybox]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    let image = of_busybox(Packed::Plain);
    registry.push("app", "1", &image);
    let name = format!("{}/app:1@{}", registry.address(), image.manifest.digest);
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    let ended = bench.run(&name, &["/bin/busybox", "true"]);
    assert_eq!(ended.code, 0, "{ended}");
    let other = format!("{}/app:1@{}", registry.address(), digest(b""));
    assert_ne!(bench.run(&other, &["/bin/busybox", "true"]).code, 0, "another digest is not that image");
    let ended = bench.pull(&other);
    assert_ne!(ended.code, 0, "{ended}");
    assert!(ended.stderr.contains("it has no such image"), "{ended}");
}

#[test]
fn an_index_gives_the_image_for_this_machine() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let registry = Registry::open();
    let here = small("here");
    let elsewhere = Image::of_machine("arm64", &[Layer::files(&[("file", "elsewhere")], Packed::Gzip)]);
    let both = index(&[("arm64", &elsewhere), ("amd64", &here)]);
    registry.push_index("app", "both", &both, &[&elsewhere, &here]);
    for name in ["app:both".to_owned(), format!("app@{}", both.digest)] {
        let bench = Bench::new();
        let relay = Relay::start(registry.address(), |_, _| Deed::Pass);
        let name = format!("{}/{name}", relay.address());
        let ended = bench.pull(&name);
        assert_eq!(ended.code, 0, "{ended}");
        assert_eq!(bench.list()[0]["digest"], here.config.digest.as_str());
        assert_eq!(bench.list()[0]["name"], name.as_str(), "a digest alone claims no tag");
        let foreign = [&elsewhere.manifest, &elsewhere.config, &elsewhere.layers[0].blob];
        let asked = relay.heads();
        let asked = |digest: &str| asked.iter().any(|head| head.target().contains(digest));
        assert!(!foreign.iter().any(|blob| asked(&blob.digest)), "what is for another machine was asked for");
        // Removed by the name, which stands for the index.
        assert_eq!(bench.lockgate(&["image", "rm", &name]).code, 0);
    }
}

#[test]
fn an_index_without_an_image_for_this_machine_says_what_it_has() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    let elsewhere = Image::of_machine("arm64", &[Layer::files(&[("file", "")], Packed::Gzip)]);
    let index = index(&[("arm64", &elsewhere)]);
    registry.push_index("app", "latest", &index, &[&elsewhere]);
    let ended = bench.pull(&format!("{}/app", registry.address()));
    lockgate_images::refused(&bench, &ended, "");
    assert!(ended.stderr.contains("linux/amd64") && ended.stderr.contains("linux/arm64"), "{ended}");
    // By its digest the image is refused as well: its configuration names another machine.
    let ended = bench.pull(&format!("{}/app@{}", registry.address(), elsewhere.manifest.digest));
    lockgate_images::refused(&bench, &ended, "");
    assert!(ended.stderr.contains("arm64"), "{ended}");
}

#[test]
fn layers_come_plain_by_gzip_and_by_zstandard() {
    if !ready(&[Needs::Registry, Needs::Zstd, Needs::Busybox]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    let archive = std::fs::read(busybox().unwrap()).unwrap();
    let layers = [
        Layer::archive(archive, Packed::Zstd),
        Layer::files(&[("plain", "plain "), ("last", "plain")], Packed::Plain),
        Layer::files(&[("gzip", "gzip "), ("last", "gzip")], Packed::Gzip),
        Layer::files(&[("zstd", "zstd "), ("last", "zstd")], Packed::Zstd),
    ];
    registry.push("app", "latest", &Image::new(&layers));
    let name = format!("{}/app", registry.address());
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!((bench.list()[0]["layers"].as_u64(), bench.count("layers")), (Some(4), 4));
    let ended = bench.run(&name, &["/bin/busybox", "cat", "/plain", "/gzip", "/zstd", "/last"]);
    assert_eq!(ended.stdout, "plain gzip zstd zstd", "{ended}");
}

#[test]
fn an_image_as_docker_writes_it_is_pulled() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    registry.push("app", "latest", &small("docker").as_docker());
    let ended = bench.pull(&format!("localhost:{}/app", registry.address().port()));
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(bench.list().len(), 1);
}

#[test]
fn what_the_registry_does_not_have_is_told_so() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    let ended = bench.pull(&format!("{}/app:no", registry.address()));
    lockgate_images::refused(&bench, &ended, "");
    assert!(ended.stderr.contains("it has no such image"), "{ended}");
    let ended = bench.pull("app:1");
    lockgate_images::refused(&bench, &ended, "");
    assert!(ended.stderr.contains("names no registry"), "{ended}");
    // A port that nobody listens on.
    let address = registry.address();
    drop(registry);
    let ended = bench.pull(&format!("{address}/app"));
    lockgate_images::refused(&bench, &ended, "");
    assert!(ended.stderr.contains(&address.to_string()), "{ended}");
}

#[test]
fn a_pulled_image_is_removed_with_its_layers() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    registry.push("app", "latest", &small("one"));
    let name = format!("{}/app", registry.address());
    assert_eq!(bench.pull(&name).code, 0);
    let refused = bench.lockgate(&["image", "rm", &name, "nope"]);
    assert!(refused.code != 0 && refused.stderr.contains("`nope`"), "{refused}");
    assert_eq!(bench.list().len(), 1, "a name that is not there keeps the others");
    let ended = bench.lockgate(&["image", "rm", &name, &name]);
    assert_eq!(ended.code, 0, "{ended}");
    assert!(bench.list().is_empty());
    let left = ["images", "layers", "blobs", "staging"].map(|part| bench.count(part));
    assert_eq!(left, [0; 4]);
    assert_ne!(bench.lockgate(&["image", "rm", &name]).code, 0, "it was removed twice");
}

#[test]
fn a_tag_that_moved_is_followed_and_the_old_image_loses_its_name() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    let name = format!("{}/app:1", registry.address());
    let (old, new) = (small("old"), small("new"));
    for image in [&old, &new] {
        registry.push("app", "1", image);
        assert_eq!(bench.pull(&name).code, 0);
    }
    let listed = bench.list();
    let named: Vec<_> = listed.iter().filter(|line| !line["name"].is_null()).collect();
    assert_eq!((listed.len(), named.len()), (2, 1), "{listed:?}");
    assert_eq!(named[0]["digest"], new.config.digest.as_str());
    assert_eq!(bench.lockgate(&["image", "prune"]).code, 0);
    assert_eq!((bench.list().len(), bench.count("layers")), (1, 1));
}

#[test]
fn somebody_without_rights_pulls_and_runs_an_image() {
    if !ready(&[Needs::Registry, Needs::Busybox, Needs::Account]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new().of_account(account().unwrap()));
    registry.push("app", "latest", &of_busybox(Packed::Gzip));
    let name = format!("{}/app", registry.address());
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    let ended = bench.run(&name, &["/bin/busybox", "echo", "hi"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "hi\n"), "{ended}");
}
