//! Archives, layouts and directories that are imported, and those that are refused.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// Makes an archive of files `NAME` with their content and links `NAME>TARGET`.
fn tar(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_size(content.len() as u64);
        if let Some((name, target)) = name.split_once('>') {
            header.set_entry_type(tar::EntryType::Symlink);
            archive.append_link(&mut header, name, target).unwrap();
        } else {
            archive.append_data(&mut header, name, *content).unwrap();
        }
    }
    archive.into_inner().unwrap()
}

fn gzip(octets: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, octets).unwrap();
    gzip.finish().unwrap()
}

fn config(user: &str, layers: &[&[u8]]) -> Vec<u8> {
    let layers: Vec<Digest> = layers.iter().map(|layer| Digest::of(layer)).collect();
    json!({ "config": { "User": user }, "rootfs": { "diff_ids": layers } }).to_string().into_bytes()
}

/// Makes an archive of `docker save`: the list of images, and the parts it names.
fn saved_as(list: &Value, parts: &[(&str, &[u8])]) -> Vec<u8> {
    tar(&[parts, &[("manifest.json", list.to_string().as_bytes())]].concat())
}

fn saved(user: &str, layers: &[&[u8]]) -> Vec<u8> {
    let names: Vec<String> = (0..layers.len()).map(|n| format!("{n}/layer.tar")).collect();
    let list = json!([{ "Config": "c", "RepoTags": ["app:1", "h.example/app:2"], "Layers": names }]);
    let config = config(user, layers);
    let layers = names.iter().map(String::as_str).zip(layers.iter().copied());
    saved_as(&list, &layers.chain([("c", &config[..])]).collect::<Vec<_>>())
}

/// The files of an OCI layout, whose index may be changed.
struct Layout(Vec<(String, Vec<u8>)>);

impl Layout {
    fn new(layers: &[&[u8]]) -> Self {
        let mut layout = Self(vec![("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())]);
        let config = layout.blob(&config("", layers));
        let layers: Vec<Value> = layers.iter().map(|layer| layout.blob(&gzip(layer))).collect();
        let manifest = layout.blob(json!({ "config": config, "layers": layers }).to_string().as_bytes());
        layout.index(json!([manifest]))
    }

    fn blob(&mut self, octets: &[u8]) -> Value {
        let digest = Digest::of(octets);
        self.0.push((format!("blobs/sha256/{}", digest.hex()), octets.to_vec()));
        json!({ "digest": digest, "size": octets.len() })
    }

    fn manifest(&self) -> Value {
        serde_json::from_slice::<Value>(&self.0.last().unwrap().1).unwrap()["manifests"][0].clone()
    }

    fn index(mut self, manifests: Value) -> Self {
        self.0.retain(|(name, _)| name != "index.json");
        self.0.push(("index.json".into(), json!({ "manifests": manifests }).to_string().into_bytes()));
        self
    }

    fn tar(&self) -> Vec<u8> {
        tar(&self.0.iter().map(|(name, octets)| (name.as_str(), &octets[..])).collect::<Vec<_>>())
    }
}

struct Shelf {
    above: TempDir,
    store: Store,
    overrides: Overrides,
}

impl Shelf {
    fn new() -> Self {
        Self::named("")
    }

    fn named(name: &str) -> Self {
        let above = TempDir::new().unwrap();
        let store = Store::open(&above.path().join("store")).unwrap();
        let root = rustix::process::geteuid().is_root();
        let owners = [Owners::Caller, Owners::Anybody][usize::from(root)];
        let bounds = Bounds { octets: 1 << 20, entries: 1000 };
        let overrides = Overrides { name: name.parse().ok(), config: None, bounds, owners };
        Self { above, store, overrides }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.above.path().join(name)
    }

    fn import(&self, octets: &[u8]) -> Result<Vec<Listed>, Error> {
        fs::write(self.at("source"), octets).unwrap();
        import(&self.store, &self.at("source"), &self.overrides)
    }

    fn import_directory(&self) -> Result<Vec<Listed>, Error> {
        import(&self.store, &self.at("directory"), &self.overrides)
    }

    fn write(&self, layout: &Layout) {
        fs::create_dir_all(self.at("directory/blobs/sha256")).unwrap();
        for (name, octets) in &layout.0 {
            fs::write(self.at("directory").join(name), octets).unwrap();
        }
    }

    fn layers(&self) -> usize {
        fs::read_dir(self.at("store/layers")).unwrap().count()
    }

    fn refused(&self, octets: &[u8]) -> String {
        let error = self.import(octets).unwrap_err().to_string();
        assert_eq!(self.store.list().unwrap(), []);
        error
    }
}

fn names(listed: &[Listed]) -> Vec<&str> {
    listed.iter().map(|image| image.name.as_deref().unwrap_or_default()).collect()
}

fn digest(listed: Result<Vec<Listed>, Error>) -> Digest {
    listed.unwrap().remove(0).record.digest
}

#[test]
fn saved_images_have_their_tags() {
    let layers = [&tar(&[("a", b"1")])[..], &tar(&[("b", b"2")])];
    for archive in [saved("7:8", &layers), gzip(&saved("7:8", &layers))] {
        let shelf = Shelf::new();
        let listed = shelf.import(&archive).unwrap();
        assert_eq!(names(&listed), ["app:1", "h.example/app:2"]);
        let record = &shelf.store.hold("h.example/app:2").unwrap().record;
        assert_eq!((&record.digest, record), (&Digest::of(&config("7:8", &layers)), &listed[0].record));
        assert_eq!((record.account.uid, record.account.gid), (7, 8));
        assert!(shelf.store.hold("app:1").unwrap().layers[1].join("b").is_file());
        assert_eq!(names(&Shelf::named("mine:3").import(&archive).unwrap()), ["mine:3"]);
    }
}

#[test]
fn layers_of_old_archives_may_be_links_to_one_another() {
    let layer = tar(&[("a", b"1")]);
    let list = json!([{ "Config": "c", "RepoTags": null, "Layers": ["y/layer.tar", "x/layer.tar"] }]);
    let config = config("", &[&layer, &layer]);
    for target in "../x/layer.tar ../z ../../../etc/passwd layer.tar ../x /x/layer.tar".split(' ') {
        let link = format!("y/layer.tar>{target}");
        let parts: [(&str, &[u8]); 3] = [("x/layer.tar", &layer), (&link, b""), ("c", &config)];
        let done = Shelf::new().import(&saved_as(&list, &parts));
        assert_eq!(done.is_ok(), target == "../x/layer.tar", "{link}");
    }
}

#[test]
fn layouts_are_read_as_directory_and_as_archive() {
    let layer = tar(&[("a", b"1")]);
    let layout = Layout::new(&[&layer]);
    let shelf = Shelf::new();
    shelf.write(&layout);
    let found = [shelf.import_directory(), shelf.import(&layout.tar()), shelf.import(&gzip(&layout.tar()))];
    assert!(found.into_iter().all(|listed| digest(listed) == Digest::of(&config("", &[&layer]))));
}

#[test]
fn layouts_say_what_their_image_is_called() {
    let (whole, tag) = ("io.containerd.image.name", "org.opencontainers.image.ref.name");
    for (annotations, name) in [
        (json!({ whole: "registry.example.com/library/a:1", tag: "1" }), "registry.example.com/library/a:1"),
        (json!({ tag: "b:2" }), "b:2"),
        (json!({ tag: "v1.2" }), ""),
        (json!({ tag: "../x", whole: "\u{1b}[31m" }), ""),
    ] {
        let layout = Layout::new(&[]);
        let mut manifest = layout.manifest();
        manifest["annotations"] = annotations;
        let archive = layout.index(json!([manifest])).tar();
        assert_eq!(names(&Shelf::new().import(&archive).unwrap()), [name]);
        assert_eq!(names(&Shelf::named("c:3").import(&archive).unwrap()), ["c:3"]);
    }
}

#[test]
fn an_index_is_followed_to_what_runs_here() {
    let layers = [&tar(&[("a", b"1")])[..], &tar(&[("a", b"2")])];
    let (mut layout, other) = (Layout::new(&layers[..1]), Layout::new(&layers[1..]));
    let (here, mut there) = (layout.manifest(), other.manifest());
    there["platform"] = json!({ "os": "linux", "architecture": "arm64" });
    layout.0.extend(other.0);
    let nested = |layout: &mut Layout, all| layout.blob(json!({ "manifests": all }).to_string().as_bytes());
    let mut chosen = nested(&mut layout, json!([there, here]));
    for depth in 0..6 {
        layout = layout.index(json!([there, chosen]));
        let done = Shelf::new().import(&layout.tar());
        assert_eq!(done.is_ok(), depth < 3, "{depth}");
        assert!(done.is_err() || digest(done) == Digest::of(&config("", &layers[..1])));
        chosen = nested(&mut layout, json!([chosen]));
    }
    assert!(Shelf::new().refused(&layout.index(json!([there])).tar()).contains("linux/arm64"));
}

#[test]
fn an_image_of_another_machine_is_passed_over_where_the_index_names_no_platform() {
    let layer = tar(&[("a", b"1")]);
    let mut layout = Layout::new(&[&layer]);
    let here = layout.manifest();
    let mut of = |architecture: &str| {
        let config = json!({ "architecture": architecture, "rootfs": { "diff_ids": [] } }).to_string();
        let config = layout.blob(config.as_bytes());
        layout.blob(json!({ "config": config, "layers": [] }).to_string().as_bytes())
    };
    let (attested, arm) = (of("unknown"), of("arm64"));
    layout = layout.index(json!([attested, arm, here]));
    assert_eq!(digest(Shelf::new().import(&layout.tar())), Digest::of(&config("", &[&layer])));
    let error = Shelf::new().refused(&layout.index(json!([arm, attested])).tar());
    assert!(error.contains("it is for arm64, and this machine is linux/amd64"), "{error}");
}

#[test]
fn a_digest_in_the_name_must_be_the_images() {
    let layer = tar(&[("a", b"1")]);
    let layout = Layout::new(&[&layer]);
    let manifest = layout.manifest()["digest"].as_str().unwrap().to_owned();
    let (own, other) = (Digest::of(&config("", &[&layer])).to_string(), Digest::of(b"other").to_string());
    let import = |archive: &[u8], digest: &str| {
        let shelf = Shelf::named(&format!("pin:1@{digest}"));
        shelf.import(archive).map(|listed| names(&listed).join(" ")).map_err(|error| error.to_string())
    };
    for (archive, digest) in [(layout.tar(), &manifest), (layout.tar(), &own), (saved("", &[&layer]), &own)] {
        assert_eq!(import(&archive, digest), Ok("pin:1".into()));
    }
    let mut nested = Layout::new(&[&layer]);
    let index = nested.blob(json!({ "manifests": [nested.manifest()] }).to_string().as_bytes());
    let between = index["digest"].as_str().unwrap().to_owned();
    let nested = nested.index(json!([index]));
    for digest in [&between, &manifest, &own] {
        assert_eq!(import(&nested.tar(), digest), Ok("pin:1".into()), "an index lies in between");
    }
    for (archive, digest) in
        [(layout.tar(), &other), (nested.tar(), &other), (saved("", &[&layer]), &manifest)]
    {
        assert!(import(&archive, digest).unwrap_err().contains(&format!("{digest} was promised")));
    }
    assert!(import(&layer, &own).unwrap_err().contains("no digest"));
}

#[test]
fn a_configuration_is_refused_where_the_source_has_one() {
    let layer = tar(&[("a", b"1")]);
    let mut shelf = Shelf::new();
    shelf.overrides.config = Some(Command::default());
    for archive in [Layout::new(&[&layer]).tar(), saved("", &[&layer])] {
        assert!(shelf.refused(&archive).contains("a configuration of its own"));
    }
    shelf.overrides.name = "root".parse().ok();
    shelf.import(&layer).unwrap();
}

#[test]
fn a_directory_of_parts_is_no_root_file_system() {
    let shelf = Shelf::named("app");
    fs::create_dir(shelf.at("directory")).unwrap();
    fs::write(shelf.at("directory/manifest.json"), r#"{"schemaVersion":2,"layers":[]}"#).unwrap();
    shelf.import_directory().unwrap();
    fs::write(shelf.at("directory/version"), "Directory Transport Version: 1.1\n").unwrap();
    let error = shelf.import_directory().unwrap_err().to_string();
    assert!(error.contains("`dir:`") && error.contains("--format oci-dir"), "{error}");
}

#[test]
fn a_root_file_system_has_one_digest_wherever_it_is_read() {
    let root = tar(&[("bin/sh", b"#!"), ("lib>bin", b"")]);
    assert_eq!(digest(Shelf::named("a").import(&root)), digest(Shelf::named("b").import(&gzip(&root))));
    let shelf = Shelf::named("app");
    fs::create_dir_all(shelf.at("directory/b/c")).unwrap();
    UnixListener::bind(shelf.at("directory/b/s")).unwrap();
    fs::write(shelf.at("directory/b").join("n".repeat(120)), "x").unwrap();
    let links = [("a", "../../../etc/passwd"), ("b/l", "./x//y/./z/"), ("m", &"../t".repeat(60)), ("z", "/")];
    for (name, target) in links {
        symlink(target, shelf.at("directory").join(name)).unwrap();
    }
    assert_eq!(digest(shelf.import_directory()), digest(shelf.import_directory()));
    let tree = shelf.store.hold("app").unwrap().layers.remove(0);
    for (name, target) in links {
        assert_eq!(fs::read_link(tree.join(name)).unwrap().as_os_str(), target);
    }
    assert_eq!(["", "b"].map(|name| fs::read_dir(tree.join(name)).unwrap().count()), [4, 3]);
}

#[test]
fn a_directory_that_cannot_be_read_says_which_file_it_was() {
    let shelf = Shelf::named("app");
    let shut = shelf.at("directory/below/shut");
    fs::create_dir_all(&shut).unwrap();
    fs::set_permissions(&shut, PermissionsExt::from_mode(0o000)).unwrap();
    if fs::read_dir(&shut).is_ok() {
        return;
    }
    let error = shelf.import_directory().unwrap_err().to_string();
    assert!(error.contains("below/shut") && shelf.layers() == 0, "{error}");
}

#[test]
fn a_directory_that_holds_the_store_is_not_copied_into_itself() {
    let shelf = Shelf::named("app");
    for above in ["", "store", "store/staging"] {
        let error = import(&shelf.store, &shelf.at(above), &shelf.overrides).unwrap_err().to_string();
        assert!(error.contains("holds the image store") && error.contains("XDG_DATA_HOME"), "{error}");
        assert_eq!(shelf.layers(), 0);
    }
    fs::create_dir(shelf.at("directory")).unwrap();
    symlink(shelf.at("store"), shelf.at("directory/store")).unwrap();
    shelf.import_directory().unwrap();
}

#[test]
fn what_is_too_large_says_how_to_allow_it() {
    let shelf = Shelf::named("app");
    fs::create_dir_all(shelf.at("directory")).unwrap();
    fs::write(shelf.at("directory/large"), vec![b'x'; 2 << 20]).unwrap();
    let root = tar(&[("large", &[0; 2 << 20])]);
    for done in [shelf.import(&root), shelf.import(&gzip(&root)), shelf.import_directory()] {
        let error = done.unwrap_err();
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("--max-size")), "{error}");
    }
}

#[test]
fn a_root_file_system_needs_a_name_before_it_is_unpacked() {
    let shelf = Shelf::new();
    assert!(shelf.refused(&tar(&[("a", b"1")])).contains("no name of its own"));
    fs::create_dir(shelf.at("directory")).unwrap();
    assert!(shelf.import_directory().unwrap_err().remedy().is_some_and(|it| it.contains("--name")));
    assert_eq!(shelf.layers(), 0);
}

#[test]
fn what_is_wrong_with_an_archive_is_told_before_a_name_is_asked_for() {
    let shelf = Shelf::new();
    let whole = saved("", &[&tar(&[("a", b"1")])]);
    // Within the layer, whose content is skipped, and within a header.
    for cut in [700, 1100] {
        let told = shelf.refused(&whole[..cut]);
        assert!(told.contains("it ends within") && told.contains("as an image"), "{cut}: {told}");
    }
    for (begin, name) in [(&b"\xfd7zXZ\0"[..], "xz"), (b"BZh91AY", "bzip2")] {
        let packed = [begin, &[7; 600]].concat();
        assert!(shelf.refused(&packed).contains(&format!("compressed with {name}")));
    }
    assert!(shelf.refused(&[7; 600]).contains("is this a tar archive"));
    assert_eq!(shelf.layers(), 0);
}

#[test]
fn a_root_file_system_may_hold_an_index_of_its_own() {
    for name in ["index.json", "manifest.json"] {
        let root = tar(&[("bin/sh", b"#!"), (name, b"{}")]);
        Shelf::named("web").import(&root).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn an_empty_file_is_no_image() {
    let shelf = Shelf::named("empty");
    assert!(shelf.refused(b"").contains("it is an empty file"));
}

#[test]
fn images_that_are_not_what_they_say_are_refused() {
    let (layer, other) = (&tar(&[("a", b"1")])[..], &tar(&[("a", b"2")])[..]);
    for line in "x:,:1,x x:1,y:1,x:2,c:1,../x:1,/etc/passwd:1,x:11".split(',') {
        let (layers, diffs) = line.split_once(':').unwrap();
        let diffs: Vec<_> = diffs.chars().map(|n| if n == '1' { layer } else { other }).collect();
        let layers: Vec<&str> = layers.split_terminator(' ').collect();
        let list = json!([{ "Config": "c", "RepoTags": ["a:1"], "Layers": layers }]);
        let shelf = Shelf::new();
        shelf.refused(&saved_as(&list, &[("x", layer), ("c", &config("", &diffs))]));
        assert_eq!(shelf.layers(), 0, "{line}");
    }
    for part in 1..5 {
        for change in [|octets: &mut Vec<u8>| octets.push(b' '), |octets: &mut Vec<u8>| octets.clear()] {
            let mut layout = Layout::new(&[layer]);
            change(&mut layout.0[part].1);
            let done = Shelf::new().import(&layout.tar());
            assert_eq!(done.is_ok(), part == 4 && !layout.0[part].1.is_empty(), "{}", layout.0[part].0);
        }
        let mut layout = Layout::new(&[layer]);
        let (name, _) = layout.0.remove(part);
        assert!(part == 4 || Shelf::new().refused(&layout.tar()).contains(&format!("`{name}`")));
    }
}

#[test]
fn lists_of_no_image_or_too_many_are_refused() {
    let fits = |shelf: &Shelf, count: usize| {
        let list = Value::from(vec![json!({ "Config": "c", "RepoTags": ["a:1"], "Layers": [] }); count]);
        shelf.import(&saved_as(&list, &[("c", &config("", &[]))])).is_ok()
    };
    assert_eq!([0, 1, 64, 65, 1000].map(|n| fits(&Shelf::new(), n)), [false, true, true, false, false]);
    assert_eq!([1, 2].map(|n| fits(&Shelf::named("one"), n)), [true, false]);
    Shelf::new().refused(&tar(&[("manifest.json", "[".repeat(200_000).as_bytes())]));
    Shelf::new().refused(&tar(&[("manifest.json", &[b' '; 5 << 20])]));
}

#[test]
fn images_of_one_archive_take_their_names_all_or_none() {
    let (old, new) = (tar(&[("a", b"old")]), tar(&[("a", b"new")]));
    let shelf = Shelf::new();
    let before = digest(shelf.import(&saved("", &[&old])));
    let (one, gone) = (config("", &[&new]), config("nobody-of-it", &[&new]));
    let image = |config: &str, tag: &str| json!({ "Config": config, "RepoTags": [tag], "Layers": ["l"] });
    let import = |second: &str, tag: &str| {
        let list = json!([image("one", "app:1"), image(second, tag)]);
        shelf.import(&saved_as(&list, &[("l", &new), ("one", &one), ("gone", &gone)]))
    };
    for (second, tag) in [("missing", "b:1"), ("gone", "b:1"), ("one", "../b")] {
        import(second, tag).unwrap_err();
        assert_eq!(shelf.store.hold("app:1").unwrap().record.digest, before, "{second} {tag}");
    }
    let listed = import("one", "b:1").unwrap();
    assert_eq!(names(&listed), ["app:1", "b:1"]);
    assert_eq!([&listed[0].before, &listed[1].before], [&Some(before), &None]);
}

#[test]
fn links_of_a_layout_do_not_lead_out_of_it() {
    let layout = Layout::new(&[&tar(&[("a", b"1")])]);
    let parts: Vec<&str> = layout.0.iter().map(|(name, _)| name.as_str()).skip(1).chain(["blobs"]).collect();
    for (part, absolute) in parts.iter().flat_map(|part| [(part, false), (part, true)]) {
        let shelf = Shelf::new();
        shelf.write(&layout);
        let path = shelf.at("directory").join(part);
        fs::rename(&path, shelf.at("moved")).unwrap();
        let up = PathBuf::from("../".repeat(part.split('/').count()));
        symlink(if absolute { shelf.at("moved") } else { up.join("moved") }, &path).unwrap();
        let error = shelf.import_directory().unwrap_err().to_string();
        assert!(error.contains("a link that leads out of it"), "{error}");
    }
}

#[test]
fn users_are_those_of_the_topmost_passwd() {
    let [low, high] = ["app:x:1:2::/a:\nold:x:5:5::/o:\n", "app:x:3:4::/b:\n"]
        .map(|passwd| tar(&[("etc/passwd", passwd.as_bytes())]));
    let group = tar(&[("etc/group", b"staff:x:50:\n"), ("etc/x", b"")]);
    let find = |user: &str, layers: &[&[u8]]| {
        let account = Shelf::new().import(&saved(user, layers)).ok()?.remove(0).record.account;
        Some((account.uid, account.gid, account.home.unwrap_or_default()))
    };
    assert_eq!(find("app", &[&low, &high, &group]), Some((3, 4, "/b".into())));
    assert_eq!(find("app:staff", &[&group, &low]), Some((1, 50, "/a".into())));
    for gone in "etc/passwd etc/.wh.passwd .wh.etc etc/.wh..wh..opq .wh..wh..opq".split(' ') {
        assert_eq!(find("old", &[&low, &tar(&[(gone, b"")])]), None, "{gone}");
    }
    let error = Shelf::new().refused(&saved("old\u{1b}[2J", &[&low]));
    assert!(error.contains("no user") && !error.contains('\u{1b}'), "{error}");
}

#[test]
fn users_are_found_where_links_through_the_layers_lead() {
    let low = tar(&[("nix/p/passwd", b"app:x:1:2::/a:\n"), ("gone/passwd", b"app:x:9:9::/z:\n")]);
    let find = |links: &str| {
        let links: Vec<Vec<u8>> = links.split(';').map(|link| tar(&[(link, b"")])).collect();
        let layers: Vec<&[u8]> = [&low[..]].into_iter().chain(links.iter().map(|link| &link[..])).collect();
        Shelf::new().import(&saved("app", &layers)).ok().map(|mut listed| listed.remove(0).record.account.uid)
    };
    let chain = |links: u32| {
        let chain = (1..links).map(|n| format!("{n}>{}", n + 1));
        chain.chain([format!("{links}>nix/p/passwd"), "etc/passwd>/1".into()]).collect::<Vec<_>>().join(";")
    };
    for (links, found) in [
        ("etc/passwd>/nix/p/passwd", true),
        ("etc/passwd>../../../nix/./p/passwd", true),
        ("etc>/nix/p", true),
        ("etc>here;here>nix/p", true),
        ("etc/passwd>/l/../p/passwd;l>nix/other;nix/other/x", true),
        ("etc/passwd>/nix/p/passwd;nix/p/.wh.passwd", false),
        ("etc/passwd>/nix/p/passwd;nix/.wh.p", false),
        ("etc/passwd>/nix/p/passwd;nix/.wh..wh..opq", false),
        ("etc/passwd>/nix/p/passwd;.wh..wh..opq", false),
        ("etc/passwd>/nix/p/passwd;nix", false),
        ("etc/passwd>passwd", false),
        ("etc/passwd>/nix/p", false),
        ("etc/passwd>/", false),
        (&chain(7), true),
        (&chain(8), false),
    ] {
        assert_eq!(find(links), found.then_some(1), "{links}");
    }
}

#[test]
fn a_passwd_is_never_read_from_this_machine() {
    let shelf = Shelf::new();
    fs::create_dir(shelf.at("etc")).unwrap();
    fs::write(shelf.at("etc/passwd"), "canary:x:42:42::/:\n").unwrap();
    let (etc, up) = (shelf.at("etc").display().to_string(), "../".repeat(12));
    for line in "etc/passwd>ETC/passwd,etc/passwd>UPETC/passwd,etc>ETC,etc>UPETC,etc>/proc/self".split(',') {
        let link = line.replace("UP", &up).replace("ETC", &etc);
        assert!(shelf.refused(&saved("canary", &[&tar(&[(&link, b"")])])).contains("no user"), "{link}");
    }
    for target in ["/etc/passwd", "/etc/shadow", "../../../../../../etc/passwd", "/proc/1/root/etc/passwd"] {
        let link = format!("etc/passwd>{target}");
        assert!(shelf.refused(&saved("daemon", &[&tar(&[(&link, b"")])])).contains("no user"), "{link}");
    }
}

#[test]
fn names_that_no_part_has_are_not_kept() {
    let name = "n".repeat(5000);
    let shelf = Shelf::new();
    fs::write(shelf.at("source"), tar(&[(&name, b""), ("kept", b"")])).unwrap();
    let file = File::open(shelf.at("source")).unwrap();
    let parts = Parts::archive(file, Path::new("x"), shelf.overrides.bounds, shelf.above.path()).unwrap();
    assert!(parts.has("kept") && !parts.has(&name), "many names of 1 MiB would fill the memory");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn no_octets_panic(head: [u8; 4], noise: Vec<u8>, place in 0..usize::MAX, other: [u8; 4]) {
        let shelf = Shelf::named("app");
        for begin in [&head[..], &[0x1f, 0x8b, 8], &[0x28, 0xb5, 0x2f, 0xfd], b"{", b""] {
            let _ = shelf.import(&[begin, &noise].concat());
        }
        for mut archive in [Layout::new(&[&noise]).tar(), saved("", &[&noise]), gzip(&saved("", &[&noise]))] {
            let place = place % (archive.len() - 4);
            archive[place..place + 4].copy_from_slice(&other);
            let _ = shelf.import(&archive);
        }
    }
}
