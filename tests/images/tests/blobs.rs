//! Blobs that are longer, shorter or other than a manifest says, and ranges that were not requested.

use lockgate_images::{Bench, Head, Hostile, Image, Layer, Reply, ready, refused};

const SIZE: usize = 1 << 20;

/// Starts a server with one image, whose layer `reply` answers.
fn serving(
    image: &Image,
    layer: impl Fn(&Head, usize, &[u8]) -> Reply + Send + Sync + 'static,
) -> (Hostile, String) {
    let image = image.clone();
    let server = Hostile::start(move |head, before| {
        let blob = &image.layers[0].blob;
        if head.path().ends_with(&blob.digest) {
            return layer(head, before, &blob.octets);
        }
        Reply::honest(head, &image)
    });
    let name = format!("{}/app", server.address());
    (server, name)
}

fn image(seed: u64) -> Image {
    Image::new(&[Layer::noise(seed, SIZE)])
}

fn from(head: &Head) -> usize {
    let range = head.field("range").unwrap_or("bytes=0-");
    range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap()
}

#[test]
fn a_blob_that_is_longer_than_its_descriptor_says_is_refused() {
    if !ready(&[]) {
        return;
    }
    let image = image(20);
    for endless in [false, true] {
        let (server, name) = serving(&image, move |_, _, octets| {
            let reply = Reply::head(200, &[]).then(octets);
            if endless { reply.endlessly(b"more") } else { reply.then(b"!") }
        });
        let bench = Bench::new();
        let ended = bench.pull(&name);
        refused(&bench, &ended, "");
        assert!(ended.stderr.contains("more than the manifest says"), "{ended}");
        assert!(server.sent() < 32 << 20, "{} octets were taken", server.sent());
    }
}

#[test]
fn a_blob_that_is_shorter_than_its_descriptor_says_is_refused() {
    if !ready(&[]) {
        return;
    }
    let (server, name) = serving(&image(21), |head, _, octets| {
        let whole = &octets[..SIZE / 2];
        match from(head) {
            0 => Reply::ok(whole),
            _ => Reply::new(416, &[("Content-Range", &format!("bytes */{}", whole.len()))], b""),
        }
    });
    let bench = Bench::new();
    let ended = bench.pull(&name);
    refused(&bench, &ended, "");
    assert!(ended.took.as_secs() < 60 && server.heads().len() <= 20, "{ended}");
}

#[test]
fn a_part_that_was_not_asked_for_is_refused() {
    if !ready(&[]) {
        return;
    }
    let last = 2 * SIZE;
    for wrong in [
        format!("bytes 0-{last}/{last}"),
        format!("bytes 1-{last}/{last}"),
        "bytes */1".to_owned(),
        "junk".to_owned(),
        String::new(),
    ] {
        let (_server, name) = serving(&image(22), move |head, before, octets| {
            if before == 0 {
                // It breaks off, so that the rest is requested.
                let length = octets.len().to_string();
                return Reply::head(200, &[("Content-Length", &length)]).then(&octets[..SIZE / 2]);
            }
            Reply::new(206, &[("Content-Range", &wrong)], &octets[from(head)..])
        });
        let bench = Bench::new();
        let ended = bench.pull(&name);
        refused(&bench, &ended, "");
        // It is asked once more, for all of it, and answers with a part again.
        assert!(ended.stderr.contains("it answered 206"), "{ended}");
    }
}

#[test]
fn a_part_where_the_whole_was_asked_for_is_refused() {
    if !ready(&[]) {
        return;
    }
    let (_server, name) =
        serving(&image(23), |_, _, octets| Reply::new(206, &[("Content-Range", "bytes 0-9/10")], octets));
    let bench = Bench::new();
    refused(&bench, &bench.pull(&name), "");
}

#[test]
fn a_server_that_knows_no_parts_sends_the_whole_again() {
    if !ready(&[]) {
        return;
    }
    let (server, name) = serving(&image(24), |_, before, octets| {
        let length = octets.len().to_string();
        let whole = Reply::head(200, &[("Content-Length", &length)]);
        if before == 0 { whole.then(&octets[..SIZE / 2]) } else { whole.then(octets) }
    });
    let bench = Bench::new();
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(server.heads().len(), 4);
}

#[test]
fn a_rest_that_belongs_to_something_else_is_not_kept_and_the_whole_is_fetched_anew() {
    if !ready(&[]) {
        return;
    }
    let (_server, name) = serving(&image(25), |head, before, octets| {
        let length = octets.len().to_string();
        match (from(head), before) {
            (0, 0) => Reply::head(200, &[("Content-Length", &length)]).then(&octets[..SIZE / 2]),
            (0, _) => Reply::ok(octets),
            (at, _) => {
                let range = format!("bytes {at}-{}/{}", octets.len() - 1, octets.len());
                Reply::new(206, &[("Content-Range", &range)], &vec![b'x'; octets.len() - at])
            }
        }
    });
    let bench = Bench::new();
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(bench.count("blobs"), 0);
}

#[test]
fn a_blob_with_the_right_digest_and_the_wrong_content_is_refused() {
    if !ready(&[]) {
        return;
    }
    // The blob is what the manifest says; the archive in it is not what the configuration says.
    let (real, claimed) = (Layer::noise(26, SIZE), Layer::noise(27, SIZE));
    let config = serde_json::json!({ "rootfs": { "diff_ids": [claimed.plain] } });
    let image = Image::configured(&config, &[real]);
    let (_server, name) = serving(&image, |_, _, octets| Reply::ok(octets));
    let bench = Bench::new();
    let ended = bench.pull(&name);
    refused(&bench, &ended, "");
    assert!(ended.stderr.contains(&claimed.plain), "{ended}");
    assert_eq!(bench.count("blobs"), 0);
}

#[test]
fn a_layer_that_is_no_archive_is_refused() {
    if !ready(&[]) {
        return;
    }
    for content in
        [vec![b'x'; 10_000], vec![0x1f, 0x8b, 8, 0, 1, 2, 3], vec![0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3]]
    {
        let image = Image::new(&[Layer::archive(content, lockgate_images::Packed::Plain)]);
        let (_server, name) = serving(&image, |_, _, octets| Reply::ok(octets));
        let bench = Bench::new();
        refused(&bench, &bench.pull(&name), "");
        assert_eq!(bench.count("blobs"), 0);
    }
}

#[test]
fn a_layer_larger_than_was_allowed_is_not_even_downloaded() {
    if !ready(&[]) {
        return;
    }
    // A manifest may name any size, and a disk has an end: what cannot fit unpacked is not downloaded.
    let image = image(28).with_manifest(|manifest| manifest["layers"][0]["size"] = (1_u64 << 40).into());
    let (server, name) =
        serving(&image, |_, _, octets| Reply::head(200, &[]).then(octets).endlessly(b"more"));
    let bench = Bench::new();
    let ended = bench.lockgate(&["image", "pull", "--max-size", "8MiB", &name]);
    refused(&bench, &ended, "");
    assert!(server.sent() < 32 << 20, "{} octets were taken where 8 MiB are allowed", server.sent());
}
