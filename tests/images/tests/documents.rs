//! Manifests, indexes and configurations that lie, are too large, or never end.

use lockgate_images::{
    Bench, Blob, Head, Hostile, Image, Layer, Packed, Reply, digest, index, ready, refused,
};
use serde_json::json;

use crate::pulled::small;

/// The limit for documents, and what sockets on this machine buffer beyond it.
const TAKEN: u64 = 32 << 20;

/// Pulls `app` from such a server, which must fail, and returns the server and the product's output.
fn pull_from(
    suffix: &str,
    script: impl Fn(&Head, usize) -> Reply + Send + Sync + 'static,
) -> (Hostile, String) {
    let server = Hostile::start(script);
    let bench = Bench::new();
    let ended = bench.pull(&format!("{}/app{suffix}", server.address()));
    refused(&bench, &ended, "");
    assert_eq!(bench.count("blobs"), 0, "a blob was left: {ended}");
    (server, ended.stderr)
}

#[test]
fn a_manifest_of_five_mebibytes_is_refused() {
    if !ready(&[]) {
        return;
    }
    let (_, told) = pull_from("", |_, _| Reply::ok(&vec![b' '; 5 << 20]));
    assert!(told.contains("larger than 4194304 octets"), "{told}");
}

#[test]
fn a_document_without_end_is_not_read_to_it() {
    if !ready(&[]) {
        return;
    }
    let huge = (256_u64 << 20).to_string();
    let image = small("x");
    for head in [
        Reply::head(200, &[]),
        Reply::head(200, &[("Content-Length", &huge)]),
        Reply::head(200, &[("Transfer-Encoding", "chunked")]),
    ] {
        let chunk = format!("400\r\n{}\r\n", " ".repeat(1024));
        let endless = head.endlessly(chunk.as_bytes());
        let (server, told) = pull_from("", {
            let endless = endless.clone();
            move |_, _| endless.clone()
        });
        assert!(told.contains("larger than 4194304 octets"), "{told}");
        assert!(server.sent() < TAKEN, "{} octets were taken", server.sent());
        // The configuration likewise.
        let image = image.clone();
        let (server, told) = pull_from("", move |head, _| {
            if head.path().contains("/blobs/") { endless.clone() } else { Reply::honest(head, &image) }
        });
        assert!(told.contains("larger than 4194304 octets"), "{told}");
        assert!(server.sent() < TAKEN, "{} octets were taken", server.sent());
    }
}

#[test]
fn a_head_of_one_mebibyte_is_refused() {
    if !ready(&[]) {
        return;
    }
    let long = "x".repeat(1 << 20);
    pull_from("", move |_, _| Reply::new(200, &[("X-Long", &long)], b"{}"));
    pull_from("", |_, _| {
        let fields = (0..10_000).map(|n| format!("X-{n}: x\r\n")).collect::<String>();
        Reply::raw(format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes())
    });
}

#[test]
fn a_head_without_end_is_not_read_to_it() {
    if !ready(&[]) {
        return;
    }
    let begun = "HTTP/1.1 200 OK\r\n";
    for (begun, piece) in [("", "x"), (begun, "x"), (begun, "X-Field: value\r\n"), ("", "\r\n")] {
        let (server, _) = pull_from("", move |_, _| Reply::raw(begun.as_bytes()).endlessly(piece.as_bytes()));
        assert!(server.sent() < TAKEN, "{} octets were taken", server.sent());
    }
}

#[test]
fn answers_before_the_answer_come_to_an_end() {
    if !ready(&[]) {
        return;
    }
    let (server, _) = pull_from("", |_, _| Reply::raw(b"").endlessly(b"HTTP/1.1 100 Continue\r\n\r\n"));
    assert!(server.sent() < TAKEN, "{} octets were taken", server.sent());
}

#[test]
fn what_is_no_http_is_refused() {
    if !ready(&[]) {
        return;
    }
    for octets in [
        "",
        "SSH-2.0-OpenSSH_9\r\n",
        "HTTP/1.1 999999 x\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "\0\0\0\r\n\r\n",
    ] {
        pull_from("", move |_, _| Reply::raw(octets.as_bytes()));
    }
    pull_from("", |_, _| Reply::head(200, &[("Content-Length", "-1")]).then(b"{}"));
    pull_from("", |_, _| Reply::head(200, &[("Content-Length", "2"), ("Content-Length", "3")]).then(b"{}"));
    pull_from("", |_, _| {
        Reply::head(200, &[("Transfer-Encoding", "chunked")]).then(b"zz\r\n{}\r\n0\r\n\r\n")
    });
    pull_from("", |_, _| Reply::head(200, &[("Content-Length", "100")]).then(b"{}"));
}

#[test]
fn a_manifest_that_is_not_the_one_that_was_asked_for_is_refused() {
    if !ready(&[]) {
        return;
    }
    let (asked, given) = (small("asked"), small("given"));
    let image = given.clone();
    let (_, told) =
        pull_from(&format!("@{}", asked.manifest.digest), move |head, _| Reply::honest(head, &image));
    assert!(told.contains(&asked.manifest.digest) && told.contains(&given.manifest.digest), "{told}");
    // Likewise when an index names it.
    let index = index(&[("amd64", &asked)]);
    let (_, told) = pull_from("", move |head, _| {
        if head.path().ends_with("/latest") { Reply::ok(&index.octets) } else { Reply::honest(head, &given) }
    });
    assert!(told.contains(&asked.manifest.digest), "{told}");
}

#[test]
fn an_index_that_leads_to_itself_is_refused() {
    if !ready(&[]) {
        return;
    }
    // It cannot contain its own digest; it contains that of another index, which the server answers with itself.
    let other = Blob::new(br#"{"manifests":[]}"#.to_vec());
    let itself =
        json!({ "schemaVersion": 2, "manifests": [{ "digest": other.digest, "size": 1 }] }).to_string();
    let (server, _) = pull_from("", move |_, _| Reply::ok(itself.as_bytes()));
    assert_eq!(server.heads().len(), 2);
}

#[test]
fn indexes_that_lead_to_one_another_are_followed_no_further_than_four() {
    if !ready(&[]) {
        return;
    }
    let image = small("deep");
    let mut chain = vec![image.manifest.clone()];
    for _ in 0..100 {
        let below = chain.last().unwrap();
        let entry = json!({ "digest": below.digest, "size": below.octets.len() });
        chain.push(Blob::new(json!({ "manifests": [entry] }).to_string().into_bytes()));
    }
    let top = chain.last().unwrap().digest.clone();
    let (server, told) = pull_from(&format!("@{top}"), move |head, _| {
        let found = chain.iter().find(|blob| head.path().ends_with(&blob.digest));
        found.map_or_else(|| Reply::honest(head, &image), |blob| Reply::ok(&blob.octets))
    });
    assert!(told.contains("too many indexes"), "{told}");
    assert!(server.heads().len() <= 6, "{:?}", server.heads());
}

#[test]
fn a_digest_that_could_be_a_path_is_refused() {
    if !ready(&[]) {
        return;
    }
    let right = digest(b"");
    let upper = right.to_uppercase();
    for wrong in [
        "sha256:../../x",
        "sha256:..",
        "sha256:/etc/passwd",
        "../../../etc/passwd",
        "",
        "sha256:",
        "sha512:x",
        &upper,
        &format!("{right}/../../x"),
        &format!("{right}?x"),
        &format!("{right}\r\nX: y"),
        &format!("{right}\0"),
        &right[..70],
    ] {
        for part in ["/layers/0/digest", "/config/digest"] {
            let image = small("x").with_manifest(|m| *m.pointer_mut(part).unwrap() = json!(wrong));
            let (server, _) = pull_from("", move |head, _| Reply::honest(head, &image));
            assert_eq!(server.heads().len(), 1, "{wrong:?} was asked for: {:?}", server.heads());
        }
        let index = json!({ "manifests": [{ "digest": wrong, "size": 1 }] }).to_string();
        let (server, _) = pull_from("", move |_, _| Reply::ok(index.as_bytes()));
        assert_eq!(server.heads().len(), 1, "{wrong:?} was asked for: {:?}", server.heads());
    }
}

#[test]
fn sizes_that_cannot_be_added_up_are_refused_without_panic() {
    if !ready(&[]) {
        return;
    }
    let layers = [Layer::files(&[("a", "1")], Packed::Plain), Layer::files(&[("b", "2")], Packed::Plain)];
    for size in [json!(u64::MAX), json!(u64::MAX / 2 + 1), json!(-1), json!(1e30), json!("1")] {
        let image = Image::new(&layers).with_manifest(|manifest| {
            manifest["layers"][0]["size"] = size.clone();
            manifest["layers"][1]["size"] = size.clone();
        });
        let server = Hostile::start(move |head, _| match head.path().contains("/blobs/") {
            // The layers are refused, so that this does not take as much as their sizes say.
            true if !head.path().ends_with(&image.config.digest) => Reply::new(404, &[], b""),
            _ => Reply::honest(head, &image),
        });
        let bench = Bench::new();
        refused(&bench, &bench.pull(&format!("{}/app", server.address())), "");
    }
}

#[test]
fn documents_that_are_none_are_refused() {
    if !ready(&[]) {
        return;
    }
    let deep = "[".repeat(1 << 20);
    let deep_index = format!("{{\"manifests\":{deep}");
    for text in [
        "",
        "null",
        "<html>\u{1b}[2J</html>",
        "{\"manifests\":[{\"digest\":\"\u{1b}[2J\",\"size\":1}]}",
        "{\"\u{7}\":1,\"config\":\"\\u001b[2J\"}",
        "{\"manifests\":[{\"digest\":\"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\",\"size\":1,
         \"platform\":{\"os\":\"\\u001b[2J\",\"architecture\":\"\\n\\nerror: all is well\"}}]}",
        &deep,
        &deep_index,
    ] {
        let text = text.to_owned();
        pull_from("", move |_, _| Reply::ok(text.as_bytes()));
    }
}

#[test]
fn a_manifest_and_its_configuration_agree_on_the_layers() {
    if !ready(&[]) {
        return;
    }
    let layers = ["1", "2"].map(|text| Layer::files(&[("a", text)], Packed::Gzip));
    // One layer more than the configuration names, one less, and none.
    for names in [vec![], vec![&layers[0]], vec![&layers[0], &layers[1], &layers[1]]] {
        let plain: Vec<&str> = names.iter().map(|layer| layer.plain.as_str()).collect();
        let image = Image::configured(&json!({ "rootfs": { "diff_ids": plain } }), &layers);
        let (server, _) = pull_from("", move |head, _| Reply::honest(head, &image));
        assert_eq!(server.heads().len(), 2, "a layer was asked for");
    }
    // The right number of layers, in the wrong order.
    let plain = [&layers[1].plain, &layers[0].plain];
    let image = Image::configured(&json!({ "rootfs": { "diff_ids": plain } }), &layers);
    let (_, told) = pull_from("", move |head, _| Reply::honest(head, &image));
    assert!(told.contains("digest"), "{told}");
}
