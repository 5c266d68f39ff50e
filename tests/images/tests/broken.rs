//! A broken download is continued, and a blob that does not match its digest is not kept.

use std::fs;
use std::process::Command;

use lockgate_conformance::Live;
use lockgate_images::{Bench, Deed, Hostile, Image, Layer, Needs, Registry, Relay, Reply, ready, refused};

const SIZE: usize = 4 << 20;
const HALF: usize = SIZE / 2;

/// Starts a registry with one image of one large layer, and a relay that does `deed` to the first answer with that layer.
fn large(seed: u64, deed: Deed) -> (Registry, Relay, Layer, String) {
    let registry = Registry::open();
    let layer = Layer::noise(seed, SIZE);
    registry.push("app", "latest", &Image::new(std::slice::from_ref(&layer)));
    let wanted = layer.blob.digest.clone();
    let relay = Relay::start(registry.address(), move |head, before| {
        if head.path().ends_with(&wanted) && before == 0 { deed } else { Deed::Pass }
    });
    let name = format!("{}/app", relay.address());
    (registry, relay, layer, name)
}

/// Returns the offsets that requests for a blob asked for.
fn ranges(relay: &Relay, digest: &str) -> Vec<Option<usize>> {
    let heads = relay.heads();
    let asked = heads.iter().filter(|head| head.path().ends_with(digest));
    let from = |text: &str| text.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok();
    asked.map(|head| head.field("range").and_then(from)).collect()
}

/// Checks that the second request begins within the layer, where the first one ended.
fn assert_resumed(relay: &Relay, layer: &Layer) {
    let found = ranges(relay, &layer.blob.digest);
    let [None, Some(from)] = found[..] else { panic!("not one request and one for the rest: {found:?}") };
    // The head of the answer counts among the octets that the relay lets through.
    assert!(from > HALF - 4096 && from <= HALF, "it went on from {from}");
}

#[test]
fn a_download_that_breaks_off_is_gone_on_with_in_the_same_pull() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (_registry, relay, layer, name) = large(3, Deed::Cut(HALF));
    let bench = Bench::new();
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert_resumed(&relay, &layer);
    assert_eq!((bench.list().len(), bench.count("blobs")), (1, 0));
}

#[test]
fn a_pull_that_was_killed_is_gone_on_with_by_the_next() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (_registry, relay, layer, name) = large(4, Deed::Stall(HALF));
    let bench = Bench::new();
    let killed = Live::start(&mut bench.command(&["image", "pull", &name]));
    let file = bench.images().join("blobs").join(&layer.blob.digest["sha256:".len()..]);
    let has = || fs::metadata(&file).map_or(0, |data| data.len() as usize);
    // What the relay lets through has arrived before the end comes.
    for _ in 0..6000 {
        if has() > HALF - 4096 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    killed.signal("KILL");
    let ended = killed.wait();
    assert_eq!(ended.code, 128 + 9, "{ended}");
    assert!(bench.list().is_empty() && bench.count("layers") == 0);
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert_resumed(&relay, &layer);
    assert_eq!((bench.list().len(), bench.count("blobs"), bench.count("staging")), (1, 0, 0));
}

#[test]
fn what_a_killed_pull_left_is_pruned() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (_registry, relay, layer, name) = large(5, Deed::Stall(HALF));
    let bench = Bench::new();
    let killed = Live::start(&mut bench.command(&["image", "pull", &name]));
    relay.wait_for(&layer.blob.digest);
    assert_eq!(bench.lockgate(&["image", "prune"]).code, 0);
    assert_eq!(bench.count("blobs"), 1, "a download in progress was taken away");
    killed.signal("KILL");
    let _ = killed.wait();
    assert_eq!(bench.count("blobs"), 1);
    assert_eq!(bench.lockgate(&["image", "prune"]).code, 0);
    assert_eq!(bench.count("blobs"), 0);
}

#[test]
fn a_download_that_always_breaks_off_is_given_up() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, _relay, layer, _) = large(6, Deed::Pass);
    // Less than the head of the answer: no attempt makes progress.
    let wanted = layer.blob.digest.clone();
    let relay = Relay::start(registry.address(), move |head, _| {
        if head.path().ends_with(&wanted) { Deed::Cut(100) } else { Deed::Pass }
    });
    let bench = Bench::new();
    let ended = bench.pull(&format!("{}/app", relay.address()));
    refused(&bench, &ended, "");
    let asked = relay.asked_for(&layer.blob.digest);
    assert!((2..=10).contains(&asked), "{asked} attempts");
    assert!(ended.took.as_secs() < 60, "{ended}");
}

#[test]
fn a_corrupt_blob_is_refused_and_the_next_pull_after_its_repair_works() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, _relay, layer, name) = large(7, Deed::Pass);
    let bench = Bench::new();
    let file = registry.file(&layer.blob.digest);
    let mut octets = fs::read(&file).unwrap();
    octets[HALF] ^= 1;
    fs::write(&file, &octets).unwrap();
    for _ in 0..2 {
        let ended = bench.pull(&name);
        refused(&bench, &ended, "");
        assert!(ended.stderr.contains("digest") && ended.stderr.contains(&layer.blob.digest), "{ended}");
        assert_eq!(bench.count("blobs"), 0, "what is wrong was kept to be gone on with");
    }
    fs::write(&file, &layer.blob.octets).unwrap();
    let ended = bench.pull(&name);
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(bench.list().len(), 1);
}

#[test]
fn what_one_registry_answers_wrongly_does_not_spoil_the_pull_from_another() {
    if !ready(&[]) {
        return;
    }
    let image = Image::new(&[Layer::noise(10, SIZE)]);
    let wanted = image.layers[0].blob.clone();
    let honest = Hostile::start({
        let (image, wanted) = (image.clone(), wanted.clone());
        // It continues what is asked for, as a real registry does.
        move |head, _| match head.field("range").and_then(|range| range.strip_prefix("bytes=")) {
            Some(range) if head.path().ends_with(&wanted.digest) => {
                let from: usize = range.trim_end_matches('-').parse().unwrap();
                let place = format!("bytes {from}-{}/{}", wanted.octets.len() - 1, wanted.octets.len());
                Reply::new(206, &[("Content-Range", &place)], &wanted.octets[from..])
            }
            _ => Reply::honest(head, &image),
        }
    });
    let rubbish = |length: usize| vec![b'x'; length];
    let whole = wanted.octets.len().to_string();
    let replies = [
        // More than the manifest says; less; and exactly as much.
        Reply::ok(&rubbish(wanted.octets.len() + HALF)),
        Reply::head(200, &[("Content-Length", &whole)]).then(&rubbish(HALF)),
        Reply::ok(&rubbish(wanted.octets.len())),
    ];
    for reply in replies {
        let (image, wanted) = (image.clone(), wanted.clone());
        let wrong = Hostile::start(move |head, before| match head.path().ends_with(&wanted.digest) {
            true if before == 0 => reply.clone(),
            true => Reply::new(403, &[], b""),
            false => Reply::honest(head, &image),
        });
        let bench = Bench::new();
        refused(&bench, &bench.pull(&format!("{}/app", wrong.address())), "");
        let ended = bench.pull(&format!("{}/app", honest.address()));
        assert_eq!((ended.code, bench.count("blobs")), (0, 0), "{ended}");
    }
}

#[test]
fn a_download_that_is_continued_wrongly_begins_anew() {
    if !ready(&[]) {
        return;
    }
    let image = Image::new(&[Layer::noise(11, SIZE)]);
    let wanted = image.layers[0].blob.clone();
    // The rest is of something else, or longer than it may be.
    for rest in [wanted.octets.len() - HALF, wanted.octets.len()] {
        let (image, wanted) = (image.clone(), wanted.clone());
        let server = Hostile::start(move |head, before| {
            if !head.path().ends_with(&wanted.digest) {
                return Reply::honest(head, &image);
            }
            let whole = wanted.octets.len().to_string();
            match (before, head.field("range").and_then(|range| range.strip_prefix("bytes="))) {
                (0, _) => Reply::head(200, &[("Content-Length", &whole)]).then(&wanted.octets[..HALF]),
                (_, Some(from)) => {
                    Reply::new(206, &[("Content-Range", &format!("bytes {from}"))], &vec![b'x'; rest])
                }
                _ => Reply::honest(head, &image),
            }
        });
        let bench = Bench::new();
        let ended = bench.pull(&format!("{}/app", server.address()));
        assert_eq!((ended.code, bench.count("blobs")), (0, 0), "{rest}: {ended}");
    }
}

#[test]
fn a_corrupt_configuration_is_refused() {
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    let image = crate::pulled::small("x");
    registry.push("app", "latest", &image);
    let text = String::from_utf8(image.config.octets.clone()).unwrap();
    fs::write(registry.file(&image.config.digest), text.replace("/bin", "/tmp")).unwrap();
    let ended = bench.pull(&format!("{}/app", registry.address()));
    refused(&bench, &ended, "");
    assert!(ended.stderr.contains("digest") && ended.stderr.contains(&image.config.digest), "{ended}");
}

#[test]
fn a_beginning_that_is_not_the_blobs_is_not_kept_for_ever() {
    let layer = Layer::noise(8, SIZE);
    let image = Image::new(std::slice::from_ref(&layer));
    if !ready(&[Needs::Registry]) {
        return;
    }
    let (registry, bench) = (Registry::open(), Bench::new());
    registry.push("app", "latest", &image);
    let name = format!("{}/app", registry.address());
    // The first image makes the store.
    assert_eq!(bench.pull(&name).code, 0);
    assert_eq!(bench.lockgate(&["image", "rm", &name]).code, 0);
    let file = bench.images().join("blobs").join(&layer.blob.digest["sha256:".len()..]);
    // Too little of something else; too much of it; and exactly as much as expected.
    for length in [HALF, SIZE * 2, layer.blob.octets.len()] {
        fs::write(&file, vec![b'x'; length]).unwrap();
        let first = bench.pull(&name);
        let second = bench.pull(&name);
        assert_eq!(second.code, 0, "{length} octets were there: {first}\nand then: {second}");
        assert_eq!(bench.lockgate(&["image", "rm", &name]).code, 0);
    }
}

#[test]
fn a_disk_that_is_full_is_not_blamed_on_the_registry() {
    if !ready(&[Needs::Names]) {
        return;
    }
    let image = Image::new(&[Layer::noise(9, SIZE)]);
    let server = Hostile::start(move |head, _| Reply::honest(head, &image));
    let bench = Bench::new().with_names(&["unused.test"]);
    let command = bench.command(&["image", "pull", &format!("{}/app", server.address())]);
    // A separate small disk over the data, in the same mount namespace.
    let mut words: Vec<_> = command.get_args().map(std::ffi::OsStr::to_owned).collect();
    let script = words.iter_mut().find(|word| word.to_string_lossy().contains("mount --bind")).unwrap();
    *script = format!("mount -t tmpfs -o size=2m none \"$XDG_DATA_HOME\" && {}", script.display()).into();
    let mut full = Command::new(command.get_program());
    full.args(words).env_clear();
    full.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ended = Live::start(full.stdin(std::process::Stdio::null())).wait();
    refused(&bench, &ended, "");
    assert!(ended.stderr.contains("No space left"), "{ended}");
    assert!(ended.stderr.contains("image store at"), "the store is not named: {ended}");
    assert!(ended.stderr.contains("lockgate image prune"), "what frees room is not named: {ended}");
}
