//! Images that share layers, are added and removed, and are used meanwhile.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::error::UnpackError;
use crate::source::{Overrides, Owners, import};
use crate::unpack::{Bounds, Ownership};

/// Repeats one action in two threads until another is done.
fn meanwhile<T>(again: impl Fn() + Sync, once: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    again();
                    std::thread::sleep(Duration::from_micros(200)); // or nobody else gets a lock
                }
            });
        }
        let done = catch_unwind(AssertUnwindSafe(once));
        over.store(true, Ordering::Relaxed);
        done.unwrap()
    })
}

/// Returns the errors of this many rounds, or of those that fit into twenty seconds.
fn faults(rounds: usize, round: impl Fn(usize) -> Result<(), String>) -> Vec<String> {
    let begun = Instant::now();
    let rounds = (0..rounds).take_while(|_| begun.elapsed() < Duration::from_secs(20));
    rounds.filter_map(|n| round(n).err()).collect()
}

struct Shelf {
    above: TempDir,
    store: Store,
}

fn tar(entries: impl IntoIterator<Item = (String, Vec<u8>)>) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(7);
        header.set_gid(7);
        header.set_mtime(1);
        archive.append_data(&mut header, name, &content[..]).unwrap();
    }
    archive.into_inner().unwrap()
}

/// Makes a layer of files `NAME=CONTENT`, separated by spaces.
fn layer(files: &str) -> Vec<u8> {
    tar(files.split(' ').filter_map(|file| file.split_once('=')).map(|(n, text)| (n.into(), text.into())))
}

fn gzip(octets: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    io::Write::write_all(&mut gzip, octets).unwrap();
    gzip.finish().unwrap()
}

fn ownership() -> Ownership {
    if rustix::process::geteuid().is_root() { Ownership::Keep } else { Ownership::Squash }
}

fn overrides(name: &str) -> Overrides {
    let bounds = Bounds { octets: 4 << 20, entries: 1000 };
    let owners = if ownership() == Ownership::Keep { Owners::Anybody } else { Owners::Caller };
    Overrides { name: name.parse().ok(), config: None, bounds, owners }
}

impl Shelf {
    fn new() -> Self {
        let above = TempDir::new().unwrap();
        let store = Store::open(&above.path().join("store")).unwrap();
        Self { above, store }
    }

    fn add(&self, promised: Option<&Digest>, archive: &[u8]) -> Result<LayerUse, Error> {
        self.store.add_layer(promised, archive, overrides("x").bounds, ownership())
    }

    /// Adds an image of layers, each given by its files.
    fn image(&self, names: &str, layers: &[&str]) -> ImageRecord {
        let layers: Vec<_> = layers.iter().map(|files| layer(files)).collect();
        let digests: Vec<_> = layers.iter().map(|layer| Digest::of(layer)).collect();
        let config = json!({ "rootfs": { "diff_ids": digests } }).to_string().into_bytes();
        let parts: Vec<_> = (0..layers.len()).map(|n| n.to_string()).collect();
        let tags: Vec<_> = names.split_terminator(' ').collect();
        let list = json!([{ "Config": "c", "RepoTags": tags, "Layers": parts }]).to_string().into_bytes();
        let all = parts.into_iter().zip(layers);
        let archive = tar(all.chain([("c".into(), config), ("manifest.json".into(), list)]));
        import(&self.store, &self.file("image.tar", &archive), &overrides("")).unwrap().remove(0).record
    }

    /// Counts images, layers and unfinished layers.
    fn counts(&self) -> [usize; 3] {
        let count = |part| std::fs::read_dir(self.store.directory().join(part)).unwrap().count();
        ["images", "layers", "staging"].map(count)
    }

    fn file(&self, name: &str, octets: &[u8]) -> PathBuf {
        let path = self.above.path().join(name);
        std::fs::write(&path, octets).unwrap();
        path
    }
}

fn addition(record: &ImageRecord, names: &[&str]) -> Addition {
    let names = names.iter().map(ToString::to_string).collect();
    Addition { record: record.clone(), names, manifest: None, layers: Vec::new() }
}

/// A small disk, which goes away with this value.
struct Disk(PathBuf);

impl Disk {
    /// Returns `None` where nothing may be mounted.
    fn mount(place: &Path) -> Option<Self> {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount(c"tmpfs", place, c"tmpfs", flags, c"size=4m,mode=700").ok()?;
        Some(Self(place.into()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn is_whole(held: &Held) -> bool {
    held.layers.iter().all(|layer| layer.join("a").is_file())
}

#[test]
fn removing_an_image_keeps_the_layers_of_another() {
    let shelf = Shelf::new();
    let one = shelf.image("one:latest", &["a=base", "b=1"]);
    let two = shelf.image("two:latest", &["a=base", "b=2"]);
    assert_eq!((shelf.counts(), &one.layers[0]), ([2, 3, 0], &two.layers[0]));
    let removed = Removed { images: 1, layers: 1, octets: one.layers[1].octets, ..Removed::default() };
    assert_eq!((shelf.store.remove(&["one"]).unwrap(), shelf.counts()), (removed, [1, 2, 0]));
    assert!(shelf.store.hold("two").unwrap().layers.iter().all(|tree| tree.is_dir()));
    assert_eq!(shelf.store.remove(&["two"]).unwrap().layers, 2);
    assert!(shelf.counts() == [0, 0, 0] && shelf.store.list().unwrap().is_empty());
}

#[test]
fn one_that_is_damaged_takes_no_other_with_it_and_is_mended_by_itself() {
    let shelf = Shelf::new();
    let (good, bad) = (shelf.image("good", &["a=1"]), shelf.image("bad", &["a=2"]));
    let record = shelf.store.image(&bad.digest);
    std::fs::write(&record, "{\"digest\":").unwrap();
    let names = |store: &Store| {
        store.list().unwrap().into_iter().filter_map(|listed| listed.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&shelf.store).len(), 1);
    assert!(is_whole(&shelf.store.hold("good").unwrap()));
    assert_eq!(shelf.store.hold("good").unwrap().record.digest, good.digest);
    let error = shelf.store.hold("bad").unwrap_err();
    assert!(error.remedy().unwrap().contains("import the image again"), "{error}");
    shelf.image("bad", &["a=2"]);
    assert!(is_whole(&shelf.store.hold("bad").unwrap()) && names(&shelf.store).len() == 2);
}

#[test]
fn no_layer_goes_while_it_cannot_be_told_whose_it_is() {
    let shelf = Shelf::new();
    let (kept, _) = (shelf.image("kept:1", &["a=1"]), shelf.image("other:1", &["a=2"]));
    let held = shelf.store.hold("kept:1").unwrap();
    let path = shelf.store.image(&kept.digest);
    let text = std::fs::read(&path).unwrap();
    std::fs::write(&path, "{").unwrap();
    assert_eq!(shelf.store.unreadable().unwrap().len(), 1);
    let removed = shelf.store.remove(&["other:1"]).unwrap();
    assert!((removed.images, removed.layers) == (1, 0) && removed.kept.is_some(), "{removed:?}");
    assert!(shelf.store.prune().unwrap().kept.unwrap().contains("images"));
    assert!(is_whole(&held) && shelf.counts() == [1, 2, 0]);
    // Another file in its place would not have the run's lock.
    assert!(shelf.store.add(&[addition(&kept, &["kept:1"])]).is_err());
    std::fs::write(&path, text).unwrap();
    assert_eq!(shelf.store.prune().unwrap().layers, 1);
    drop(held);
    // The record of another image is none.
    std::fs::copy(&path, shelf.store.image(&Digest::of(b"x"))).unwrap();
    assert_eq!(shelf.store.unreadable().unwrap().len(), 1);
    std::fs::write(&path, "{").unwrap();
    let removed = shelf.store.remove(&["kept:1"]).unwrap();
    assert_eq!((removed.images, removed.layers, removed.kept), (2, 1, None));
}

#[test]
fn a_pipe_in_place_of_a_file_is_not_waited_for() {
    use rustix::fs::{CWD, FileType, Mode};
    for name in ["lock", "names.json", "images", "layers"] {
        let shelf = Shelf::new();
        let record = shelf.image("app:1", &["a=1"]);
        let layer = shelf.store.layer(&record.layers[0].digest, ownership());
        let path = match name {
            "images" => shelf.store.image(&record.digest),
            "layers" => layer.join("octets"),
            name => shelf.store.directory().join(name),
        };
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let held = shelf.store.hold("app:1");
        assert!(if name == "layers" { held.is_ok() } else { held.is_err() }, "{name}");
        drop(held);
        assert_eq!(
            shelf.store.known_layer(&record.layers[0].digest, ownership()).is_ok(),
            !matches!(name, "lock" | "layers")
        );
        let _ = (
            shelf.store.list(),
            shelf.store.unreadable(),
            shelf.store.prune(),
            shelf.store.remove(&["app:1"]),
        );
    }
}

#[test]
fn a_layer_without_its_size_is_replaced() {
    let shelf = Shelf::new();
    let record = shelf.image("app:1", &["a=1"]);
    let place = shelf.store.layer(&record.layers[0].digest, ownership());
    std::fs::remove_file(place.join("octets")).unwrap();
    std::fs::write(place.join("tree/a"), "damaged").unwrap();
    let held = shelf.store.hold("app:1").unwrap();
    let error = shelf.add(None, &layer("a=1")).unwrap_err().to_string();
    assert!(error.contains("a run uses it"), "{error}");
    // Whose layers it has cannot be read.
    let path = shelf.store.image(&record.digest);
    let text = std::fs::read(&path).unwrap();
    std::fs::write(&path, "{").unwrap();
    shelf.add(None, &layer("a=1")).unwrap_err();
    assert_eq!(std::fs::read(place.join("tree/a")).unwrap(), b"damaged");
    std::fs::write(&path, text).unwrap();
    drop(held);
    shelf.image("app:1", &["a=1"]);
    assert_eq!(std::fs::read(place.join("tree/a")).unwrap(), b"1");
    assert_eq!(shelf.counts(), [1, 1, 0]);
}

#[test]
fn an_image_that_a_run_uses_stays() {
    let shelf = Shelf::new();
    shelf.image("one:latest", &["a=1"]);
    let (held, second) = (shelf.store.hold("one").unwrap(), shelf.store.hold("one:latest").unwrap());
    assert!(matches!(shelf.store.remove(&["one"]), Err(Error::InUse { .. })));
    drop(held);
    assert!(matches!(shelf.store.remove(&["one"]), Err(Error::InUse { .. })));
    assert!(shelf.store.prune().unwrap() == Removed::default() && is_whole(&second));
    drop(second);
    assert_eq!(shelf.store.remove(&["one"]).unwrap().images, 1);
}

#[test]
fn a_name_can_move_to_another_image_while_the_first_is_used() {
    let shelf = Shelf::new();
    shelf.image("app:1", &["a=1"]);
    let held = shelf.store.hold("app:1").unwrap();
    let two = shelf.image("app:1", &["a=2"]);
    assert_eq!(shelf.store.hold("app:1").unwrap().record, two);
    assert_eq!((shelf.store.prune().unwrap(), shelf.counts()), (Removed::default(), [2, 2, 0]));
    assert!(is_whole(&held));
    drop(held);
    assert_eq!((shelf.store.prune().unwrap().images, shelf.counts()), (1, [1, 1, 0]));
}

#[test]
fn what_a_name_meant_until_now_is_said() {
    let shelf = Shelf::new();
    let (one, two) = (shelf.image("app:1", &["a=1"]), shelf.image("", &["a=2"]));
    let before = |record: &ImageRecord, name: &str| {
        shelf.store.add(&[addition(record, &[name])]).unwrap().remove(0).before
    };
    assert_eq!(before(&one, "app:1"), None);
    assert_eq!(before(&two, "app:1"), Some(one.digest));
    assert_eq!(before(&two, "new:1"), None);
}

#[test]
fn one_of_several_names_can_go() {
    let shelf = Shelf::new();
    let record = shelf.image("a:1 b:1", &["a=1"]);
    let held = shelf.store.hold("a:1").unwrap();
    assert_eq!(shelf.store.remove(&["a:1"]).unwrap(), Removed::default());
    assert!(matches!(shelf.store.remove(&["b:1"]), Err(Error::InUse { .. })));
    assert_eq!(
        shelf.store.list().unwrap(),
        [Listed { name: Some("b:1".into()), record: record.clone(), before: None }]
    );
    drop(held);
    shelf.image("c:1", &["a=1"]);
    assert_eq!(shelf.store.remove(&[record.digest.short()]).unwrap().images, 1);
    assert!(shelf.store.list().unwrap().is_empty());
}

#[test]
fn several_names_go_at_once_or_not_at_all() {
    let shelf = Shelf::new();
    let record = shelf.image("a:1 b:1 c:1", &["a=1"]);
    shelf.image("d:1", &["a=2"]);
    let named =
        || shelf.store.list().unwrap().into_iter().filter_map(|listed| listed.name).collect::<Vec<_>>();
    let error = shelf.store.remove(&["a:1", "nope", "d:1"]).unwrap_err();
    assert!(matches!(&error, Error::NothingToRemove { name } if name == "nope"), "{error}");
    let held = shelf.store.hold("b:1").unwrap();
    assert_eq!(shelf.store.remove(&["a:1", "a:1"]).unwrap(), Removed::default());
    for all in [["d:1", "b:1", "c:1"], ["d:1", record.digest.short(), "c:1"]] {
        let error = shelf.store.remove(&all).unwrap_err();
        assert!(matches!(&error, Error::InUse { name } if name == all[1]), "{error}");
        assert_eq!(named(), ["b:1", "c:1", "d:1"]);
    }
    drop(held);
    let removed = shelf.store.remove(&["d:1", "b:1", "c:1", record.digest.short()]).unwrap();
    assert_eq!((removed.images, removed.layers, shelf.counts()), (2, 2, [0, 0, 0]));
    assert!(named().is_empty());
}

#[test]
fn a_digest_takes_the_names_of_its_repository_and_no_others() {
    let shelf = Shelf::new();
    let record = shelf.image("aa:1 aa:2 bb:2", &["a=1"]);
    let held = shelf.store.hold("bb:2").unwrap();
    let whole = |repository: &str| format!("{repository}@{}", record.digest);
    assert_eq!(shelf.store.remove(&[&whole("aa")]).unwrap(), Removed::default());
    let names: Vec<_> = shelf.store.list().unwrap().into_iter().filter_map(|listed| listed.name).collect();
    assert_eq!(names, ["bb:2"]);
    drop(held);
    assert_eq!(shelf.store.remove(&[&whole("bb")]).unwrap().images, 1);
}

#[test]
fn what_has_no_name_is_pruned() {
    let shelf = Shelf::new();
    shelf.image("", &["a=1", "a=2"]);
    drop(shelf.add(None, &layer("a=3")).unwrap());
    let used = shelf.add(None, &layer("a=4")).unwrap();
    assert_eq!(shelf.store.list().unwrap()[0].name, None);
    let removed = shelf.store.prune().unwrap();
    assert_eq!((removed.images, removed.layers, shelf.counts()), (1, 3, [0, 1, 0]));
    drop(used);
    assert_eq!(shelf.store.prune().unwrap().layers, 1);
}

#[test]
fn what_killed_processes_left_counts_as_freed() {
    let shelf = Shelf::new();
    let unfinished = shelf.store.staging().join("layer-x");
    std::fs::create_dir_all(unfinished.join("tree")).unwrap();
    std::fs::write(unfinished.join("tree/a"), [0; 30]).unwrap();
    std::fs::write(shelf.store.blob(&Digest::of(b"blob")), [0; 12]).unwrap();
    assert_eq!(shelf.store.prune().unwrap(), Removed { octets: 42, ..Removed::default() });
    assert_eq!(shelf.store.prune().unwrap(), Removed::default());
    // What is moved out of its place meanwhile counts once.
    let octets = shelf.image("", &["a=1"]).octets();
    assert_eq!(shelf.store.prune().unwrap().octets, octets);
}

#[test]
fn images_are_found_by_the_beginning_of_their_digest() {
    let shelf = Shelf::new();
    let mut record = shelf.image("", &["a=1"]);
    for digits in ["aaaaaaaa", "aaaaaaab"] {
        record.digest = format!("sha256:{digits:0<64}").parse().unwrap();
        shelf.store.add(&[addition(&record, &[])]).unwrap();
    }
    for name in ["aaaaaaab", "sha256:aaaaaaab", record.digest.hex(), &record.digest.to_string()] {
        assert_eq!(shelf.store.hold(name).unwrap().record, record, "{name}");
    }
    for name in
        ["", "sha256:", "a", "aaaaa", "aaaaaa", "aaaaaaa", "AAAAAAAB", "bbbbbbbb", "../lock", "sha256:a\x1b"]
    {
        let error = shelf.store.hold(name).unwrap_err();
        assert!(matches!(error, Error::NoImage { .. }) && !error.to_string().contains('\x1b'), "{name}");
    }
}

#[test]
fn a_name_that_is_another_images_digest_does_not_stand_for_it() {
    let shelf = Shelf::new();
    let meant = shelf.image("", &["a=1"]);
    shelf.image(&format!("{}:latest", meant.digest.hex()), &["a=2"]);
    assert_eq!(shelf.store.hold(meant.digest.hex()).unwrap().record, meant);
}

#[test]
fn a_digest_that_is_asked_for_is_not_passed_over() {
    let shelf = Shelf::new();
    shelf.image("app:1", &["a=1"]);
    shelf.store.hold(&format!("app:1@{}", Digest::of(b"another image"))).unwrap_err();
}

#[test]
fn layers_are_what_overlayfs_can_lay() {
    for layers in [["a=1", "a=2", "a=1"], ["a=1", ".wh..wh..opq= a=2", "b=3"]] {
        let shelf = Shelf::new();
        let record = shelf.image("app:1", &layers);
        let wanted = [1, 2].map(|n: usize| shelf.store.tree(&record.layers[n].digest, ownership()));
        let held = shelf.store.hold("app:1").unwrap();
        assert_eq!(held.layers, wanted, "none twice, and none below a root that is opaque");
    }
}

#[test]
fn nobody_else_can_look_into_a_store() {
    let shelf = Shelf::new();
    shelf.image("app:1", &["a=1"]);
    for part in ["", "images", "layers", "blobs", "staging", "lock", "names.json"] {
        assert_eq!(
            std::fs::metadata(shelf.store.directory().join(part)).unwrap().mode() & 0o077,
            0,
            "{part}"
        );
    }
}

#[test]
fn a_store_that_others_can_write_to_is_refused_and_one_that_they_can_read_is_shut() {
    let shelf = Shelf::new();
    let directory = shelf.store.directory();
    let set = |mode| std::fs::set_permissions(directory, PermissionsExt::from_mode(mode)).unwrap();
    let mode = || std::fs::metadata(directory).unwrap().mode() & 0o777;
    for others in [0o777, 0o720, 0o702] {
        set(others);
        let refused = Store::open(directory).unwrap_err();
        assert!(refused.to_string().contains(&format!("(mode {others:04o})")), "{refused}");
        assert!(refused.remedy().unwrap().contains("chmod go-w") && mode() == others, "{others:o}");
    }
    set(0o755);
    Store::open(directory).unwrap();
    assert_eq!(mode(), 0o700);
    // While it was not shut, they could get at what is in it.
    for part in ["images", "layers", "blobs", "staging"].map(|part| directory.join(part)) {
        set(0o755);
        std::fs::set_permissions(&part, PermissionsExt::from_mode(0o777)).unwrap();
        let refused = Store::open(directory).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("{}: others may write to it (mode 0777)", part.display())),
            "{refused}"
        );
        std::fs::set_permissions(&part, PermissionsExt::from_mode(0o755)).unwrap();
        Store::open(directory).unwrap();
        assert_eq!(std::fs::metadata(&part).unwrap().mode() & 0o777, 0o700);
    }
    // What could not be shut.
    assert!(refuse_open(0o40_700).is_ok());
    for mode in [0o40_755, 0o40_710] {
        let refused = failed(directory, refuse_open(mode).unwrap_err());
        assert!(refused.remedy().unwrap().contains("another file system"), "{refused}");
    }
}

#[test]
fn nothing_is_made_in_a_directory_of_others() {
    let above = TempDir::new().unwrap();
    let count = || std::fs::read_dir(above.path()).unwrap().count();
    std::fs::set_permissions(above.path(), PermissionsExt::from_mode(0o777)).unwrap();
    Store::open(above.path()).unwrap_err();
    assert_eq!(count(), 0);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(above.path(), Some(61_001), None).unwrap();
        std::fs::set_permissions(above.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let refused = Store::open(above.path()).unwrap_err();
        assert!(refused.to_string().contains("somebody else") && count() == 0, "{refused}");
    }
}

#[test]
fn what_cannot_be_a_layer_leaves_nothing() {
    let shelf = Shelf::new();
    let good = layer("a=1");
    assert!(matches!(shelf.add(Some(&Digest::of(b"")), &good), Err(Error::Digest { .. })));
    let promised = Digest::of(&good);
    for archive in [&good[..600], &gzip(&good)[..40], b"BZh91AY", &[9; 600], &gzip(&[0; 65 << 20])] {
        shelf.add(Some(&promised), archive).unwrap_err();
    }
    assert!(
        shelf.counts() == [0, 0, 0] && shelf.store.known_layer(&promised, ownership()).unwrap().is_none()
    );
    let found = shelf.add(Some(&promised), &gzip(&good)).unwrap();
    assert_eq!((found.record.digest, shelf.counts()), (promised, [0, 1, 0]));
}

#[test]
fn a_bomb_stops_at_its_bound() {
    let shelf = Shelf::new();
    let bomb = layer(&format!("a={} ", "0".repeat(1 << 20)).repeat(16));
    for archive in [gzip(&bomb), bomb] {
        let error = shelf.add(None, &archive).unwrap_err();
        assert!(matches!(error, Error::Unpack { source: UnpackError::TooLarge { .. }, .. }), "{error}");
        assert_eq!(shelf.counts(), [0, 0, 0]);
    }
}

#[test]
fn no_part_of_a_layer_passes_for_the_whole() {
    let shelf = Shelf::new();
    let whole = layer("a=1 b/c=22 d=333");
    let packed = gzip(&whole);
    let cuts = (1..whole.len() - 1024).step_by(100).map(|cut| &whole[..cut]);
    for archive in cuts.chain((1..packed.len()).map(|cut| &packed[..cut])) {
        shelf.add(None, archive).unwrap_err();
    }
    for cut in (0..whole.len()).step_by(256) {
        shelf.add(Some(&Digest::of(&whole)), &whole[..cut]).unwrap_err();
    }
    assert_eq!(shelf.counts(), [0, 0, 0]);
}

#[test]
fn imports_of_one_layer_at_once_leave_one() {
    let shelf = Shelf::new();
    let source = shelf.file("root.tar", &layer("a=1 b=2"));
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (store, source) = (&shelf.store, &source);
            scope.spawn(move || import(store, source, &overrides(&format!("app{n}"))).unwrap());
        }
    });
    assert_eq!((shelf.store.list().unwrap().len(), shelf.counts()), (8, [1, 1, 0]));
}

#[test]
fn what_is_in_the_making_is_not_swept_away() {
    let shelf = Shelf::new();
    let round = |round| {
        let files: String = (0..400).map(|n| format!("{n}={round} ")).collect();
        let added = shelf.add(None, &layer(&files)).map_err(|e| e.to_string())?;
        let tree = shelf.store.tree(&added.record.digest, ownership());
        let found = std::fs::read_dir(tree).unwrap().count();
        if found == 400 { Ok(()) } else { Err(format!("{found} files of 400 are there")) }
    };
    let faults = meanwhile(|| sweep(&shelf.store).unwrap(), || faults(40, round));
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn no_image_misses_a_layer_while_others_are_pruned() {
    let shelf = Shelf::new();
    let source = shelf.file("root.tar", &layer("a=1 b=2"));
    let prune = || {
        let _ = ["app0", "app1"].map(|name| shelf.store.remove(&[name]));
        shelf.store.prune().unwrap();
    };
    let round = |name: &str| {
        import(&shelf.store, &source, &overrides(name)).map_err(|e| e.to_string())?;
        let whole = shelf.store.hold(name).map_or(true, |held| is_whole(&held));
        if whole { Ok(()) } else { Err("a layer is missing".to_owned()) }
    };
    let faults = meanwhile(prune, || {
        std::thread::scope(|scope| {
            let imports = ["app0", "app1"].map(|name| scope.spawn(move || faults(200, |_| round(name))));
            imports.map(|import| import.join().unwrap()).concat()
        })
    });
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn what_cannot_be_deleted_is_told_and_does_not_count() {
    let shelf = Shelf::new();
    let record = shelf.image("app:1", &["a=1", "a=2 b=22"]);
    let tree = shelf.store.tree(&record.layers[0].digest, ownership());
    std::fs::create_dir(tree.join("held")).unwrap();
    // Root may delete whatever the modes say, but nothing that is mounted over.
    let disk = Disk::mount(&tree.join("held"));
    if disk.is_none() && rustix::process::geteuid().is_root() {
        return lockgate_needs::missing("nothing can be mounted here");
    }
    std::fs::set_permissions(&tree, std::fs::Permissions::from_mode(0o500)).unwrap();
    let removed = shelf.store.remove(&["app:1"]).unwrap();
    assert_eq!((removed.images, removed.layers, removed.octets), (1, 1, record.layers[1].octets));
    let path = removed.undeleted[0].path.clone();
    // The mount has moved with the layer.
    let disk = disk.map(|disk| (std::mem::forget(disk), Disk(path.join("tree/held"))).1);
    let error = removed.check_deleted().unwrap_err();
    let told = error.to_string();
    assert!(told.starts_with(&format!("delete {}: ", path.display())) && told.ends_with(')'), "{told}");
    assert!(error.remedy().unwrap().contains("lockgate image prune"));
    let several = Removed { undeleted: vec![removed.undeleted[0].clone(); 3], ..Removed::default() };
    assert!(several.check_deleted().unwrap_err().to_string().ends_with("; and 2 more"));
    let pruned = shelf.store.prune().unwrap();
    assert_eq!(pruned, Removed { undeleted: removed.undeleted, ..Removed::default() });
    // What is to be taken in is not kept from that.
    shelf.image("new:1", &["a=1"]);
    assert_eq!(shelf.counts(), [1, 1, 1]);
    drop(disk);
    std::fs::set_permissions(path.join("tree"), std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(shelf.store.prune().unwrap().check_deleted().is_ok());
    assert_eq!(shelf.counts(), [1, 1, 0]);
}

#[test]
fn images_can_be_listed_while_others_go() {
    let shelf = Shelf::new();
    let round = |n| {
        shelf.image("", &[&format!("a={n}")]);
        shelf.store.prune().map(drop).map_err(|e| e.to_string())
    };
    let faults = meanwhile(|| drop(shelf.store.list().unwrap()), || faults(100, round));
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn what_a_killed_import_left_is_swept_by_the_next() {
    let shelf = Shelf::new();
    let staging = shelf.store.directory().join("staging");
    for name in ["layer-killed/tree/below", "layer-used/tree", "gone-killed/tree"] {
        std::fs::create_dir_all(staging.join(name)).unwrap();
    }
    let used = File::open(staging.join("layer-used")).unwrap();
    rustix::fs::flock(&used, FlockOperation::LockExclusive).unwrap();
    import(&shelf.store, &shelf.file("root.tar", &layer("a=1")), &overrides("app")).unwrap();
    assert_eq!((shelf.counts()[2], staging.join("layer-used/tree").is_dir()), (1, true));
    drop(used);
    shelf.store.prune().unwrap();
    assert_eq!(shelf.counts()[2], 0);
}

#[test]
fn what_a_killed_prune_left_does_not_stop_the_next() {
    let shelf = Shelf::new();
    shelf.image("app:1", &["a=1"]);
    let layer = std::fs::read_dir(shelf.store.directory().join("layers")).unwrap().next().unwrap().unwrap();
    let left = format!("staging/gone-{}/tree", layer.file_name().display());
    std::fs::create_dir_all(shelf.store.directory().join(left)).unwrap();
    assert_eq!(shelf.store.remove(&["app:1"]).unwrap().layers, 1);
    shelf.store.prune().unwrap();
    assert_eq!(shelf.counts(), [0, 0, 0]);
}

#[test]
fn an_image_can_be_removed_from_a_full_disk() {
    let shelf = Shelf::new();
    let Some(_disk) = Disk::mount(shelf.store.directory()) else { return };
    Store::open(shelf.store.directory()).unwrap();
    // A name of many octets, so that the names fill more than one block.
    let long = "n".repeat(100);
    let all = (0..60).map(|n| format!("{long}{n}:1")).collect::<Vec<_>>().join(" ");
    shelf.image(&all, &["a=1"]);
    shelf.image("large:1 large:2", &[&format!("a={}", "x".repeat(512 << 10))]);
    let mut filling = File::create(shelf.store.directory().join("filling")).unwrap();
    while io::Write::write_all(&mut filling, &[0; 4096]).is_ok() {}
    let full = shelf.store.write_names(&shelf.store.names().unwrap()).unwrap_err();
    assert!(matches!(full, Error::Store { .. }), "{full}");
    let full = shelf.store.remove(&["large:1"]).unwrap_err();
    assert!(
        matches!(full, Error::Store { .. }) && shelf.counts() == [2, 2, 0],
        "the other name keeps it: {full}"
    );
    let removed = shelf.store.remove(&["large:1", "large:2"]).unwrap();
    assert_eq!((removed.images, removed.layers, shelf.counts()), (1, 1, [1, 1, 0]));
    assert!(
        shelf.store.hold("large:1").is_err() && is_whole(&shelf.store.hold(&format!("{long}7:1")).unwrap())
    );
}

#[test]
fn a_layer_without_its_owners_does_not_stand_for_one_with_them() {
    if ownership() == Ownership::Squash {
        return lockgate_needs::missing("only root gives files to other owners");
    }
    let shelf = Shelf::new();
    let source = shelf.file("root.tar", &layer("a=1"));
    let squashed = Overrides { owners: Owners::Caller, ..overrides("squashed") };
    import(&shelf.store, &source, &squashed).unwrap();
    let config = crate::Command { command: vec!["x".into()], ..crate::Command::default() };
    import(&shelf.store, &source, &Overrides { config: Some(config), ..overrides("kept") }).unwrap();
    let held = shelf.store.hold("kept").unwrap();
    let owner = std::fs::metadata(held.layers[0].join("a")).unwrap().uid();
    assert_eq!((held.record.owners_kept, owner), (true, 7));
}

#[test]
fn the_root_of_a_layer_with_lent_ids_is_the_images_root() {
    if ownership() == Ownership::Squash {
        return lockgate_needs::missing("only root gives files to other owners");
    }
    let shelf = Shelf::new();
    let staging = shelf.store.directory().join("staging");
    std::os::unix::fs::chown(&staging, None, Some(7)).unwrap();
    std::fs::set_permissions(&staging, std::os::unix::fs::PermissionsExt::from_mode(0o2700)).unwrap();
    let ids = crate::LentIds { users: 100_000, groups: 100_000 };
    let lent = Ownership::Lent(crate::unpack::Lent::to(ids, b"c"));
    let added = shelf.store.add_layer(None, &layer("a=1")[..], overrides("x").bounds, lent).unwrap();
    assert_eq!(std::fs::metadata(shelf.store.tree(&added.record.digest, lent)).unwrap().gid(), 0);
}

#[test]
fn an_image_that_comes_again_has_the_owners_of_now_once_no_run_uses_it() {
    if ownership() == Ownership::Squash {
        return lockgate_needs::missing("only root gives files to other owners");
    }
    let shelf = Shelf::new();
    let source = shelf.file("root.tar", &layer("a=1"));
    let take_in = |owners| import(&shelf.store, &source, &Overrides { owners, ..overrides("app") }).unwrap();
    take_in(Owners::Caller);
    let used = shelf.store.hold("app").unwrap();
    take_in(Owners::Anybody);
    let meanwhile = shelf.store.hold("app").unwrap();
    assert!(meanwhile.layers == used.layers && is_whole(&used), "a run uses it");
    drop((used, meanwhile));
    take_in(Owners::Anybody);
    let held = shelf.store.hold("app").unwrap();
    assert_eq!(std::fs::metadata(held.layers[0].join("a")).unwrap().uid(), 7);
    assert_eq!((shelf.store.prune().unwrap().layers, shelf.counts()), (1, [1, 1, 0]));
}

#[test]
fn what_is_not_here_is_told_with_what_would_work() {
    let shelf = Shelf::new();
    let held = |name: &str| shelf.store.hold(name).unwrap_err().remedy().unwrap();
    assert!(
        held("registry.example.com/debian:12").contains("lockgate image pull registry.example.com/debian:12")
    );
    let bare = held("debian:12");
    assert!(bare.contains("lockgate image import FILE --name debian:12"), "{bare}");
    assert!(bare.contains("REGISTRY/debian:12") && !bare.contains("pull debian:12"), "{bare}");
    let digest = Digest::of(b"");
    let pinned = held(&format!("h.example/debian@{digest}"));
    assert!(pinned.contains(&format!("image pull h.example/debian@{digest}, ")), "{pinned}");
    assert!(pinned.ends_with("import FILE --name h.example/debian"), "{pinned}");
    assert!(
        held(&format!("debian:12@{digest}")).starts_with("lockgate image import FILE --name debian:12; ")
    );
    assert_eq!(held("../x"), "lockgate image ls names those that are here");
    let error = shelf.store.remove(&["nope"]).unwrap_err();
    assert!(error.to_string().starts_with("remove the image `nope`"), "{error}");
    assert_eq!(error.remedy().unwrap(), "lockgate image ls names those that are here");
}
