//! Malicious layers, and what unpacking makes of them.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tar::Header;
use tempfile::TempDir;

use super::*;

/// Makes an archive of entries `KIND NAME REST`, separated by `; `. REST is content, a link target, or records separated by `|`.
fn tar(lines: &str) -> Vec<u8> {
    let entries = lines.split("; ").filter(|line| !line.is_empty()).flat_map(|line| {
        let mut words = line.splitn(3, ' ').chain([""; 3]);
        let [kind, name, rest] = [(); 3].map(|()| words.next().unwrap());
        let flag = "fhlcbdp".find(kind).map_or(kind.as_bytes()[0], |n| b'0' + n as u8);
        match kind {
            "h" | "l" => entry(flag, name, rest, b""),
            "x" | "g" => entry(flag, name, "", rest.split('|').map(record).collect::<String>().as_bytes()),
            _ => entry(flag, name, "", rest.as_bytes()),
        }
    });
    entries.collect()
}

fn entry(kind: u8, name: &str, link: &str, content: &[u8]) -> Vec<u8> {
    let long = [(b'L', name), (b'K', link)].into_iter().filter(|(_, text)| text.len() > 100);
    let mut all: Vec<u8> = long.flat_map(|(kind, text)| entry(kind, "long", "", text.as_bytes())).collect();
    let mut header = header(kind, name, content.len() as u64);
    let link = &link.as_bytes()[..link.len().min(100)];
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    all.extend(raw(header, content));
    all
}

fn raw(mut header: Header, content: &[u8]) -> Vec<u8> {
    header.set_cksum();
    let mut all = [header.as_bytes(), content].concat();
    all.resize(all.len().next_multiple_of(512), 0);
    all
}

fn header(kind: u8, name: &str, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.as_old_mut().linkflag[0] = kind;
    let name = &name.as_bytes()[..name.len().min(100)];
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_size(size);
    header.set_mode(0o755);
    header.set_uid(7);
    header.set_gid(8);
    header.set_mtime(1_000_000);
    header
}

fn changed(kind: u8, name: &str, change: impl Fn(&mut Header)) -> Vec<u8> {
    let mut header = header(kind, name, 0);
    change(&mut header);
    raw(header, b"")
}

/// Makes a record of a pax header.
fn record(text: &str) -> String {
    let fits = |all: &usize| all.to_string().len() + text.len() + 2 == *all;
    format!("{} {text}\n", (text.len()..).find(fits).unwrap())
}

fn ownership() -> Ownership {
    if rustix::process::geteuid().is_root() { Ownership::Keep } else { Ownership::Squash }
}

/// A layer's directory beside one that nothing may touch.
struct Room {
    above: TempDir,
}

impl Room {
    fn new() -> Self {
        let above = TempDir::new().unwrap();
        fs::create_dir_all(above.path().join("outside/below")).unwrap();
        fs::create_dir(above.path().join("layer")).unwrap();
        for path in ["outside/below/canary", "outside/canary", "outside/below", "outside", "."] {
            let path = above.path().join(path);
            let _ = fs::write(&path, "sings");
            File::open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        Self { above }
    }

    fn of(lines: &str) -> Self {
        let room = Self::new();
        room.unpack(&tar(lines)).unwrap_or_else(|error| panic!("{lines:.200}: {error}"));
        room
    }

    fn unpack(&self, entries: &[u8]) -> Result<Unpacked, UnpackError> {
        self.within(&[entries, &[0; 1024]].concat(), Bounds { octets: 64 << 20, entries: 10_000 })
    }

    fn within(&self, archive: &[u8], bounds: Bounds) -> Result<Unpacked, UnpackError> {
        let (directory, before) = (File::open(self.at("")).unwrap(), seen(self.above.path()));
        let plain = decompress(archive).map_err(UnpackError::Read);
        let done = plain.and_then(|plain| super::unpack(plain, directory.as_fd(), bounds, ownership()));
        assert_eq!(before, seen(self.above.path()), "something outside changed");
        done
    }

    fn at(&self, name: &str) -> PathBuf {
        self.above.path().join("layer").join(name)
    }

    fn look(&self, name: &str) -> fs::Metadata {
        fs::symlink_metadata(self.at(name)).unwrap()
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    fn is_opaque(&self, name: &str) -> bool {
        rustix::fs::lgetxattr(self.at(name), c"user.overlay.opaque", &mut [0_u8; 8]).is_ok_and(|n| n == 1)
    }
}

/// Lists everything outside the layer's own directory.
fn seen(path: &Path) -> Vec<String> {
    if path.ends_with("layer") {
        return vec!["layer".into()];
    }
    let m = fs::symlink_metadata(path).unwrap();
    let known = (m.uid(), m.gid(), m.mode(), m.nlink(), m.mtime(), fs::read_to_string(path).ok());
    let mut all = vec![format!("{path:?} {known:?}")];
    for entry in fs::read_dir(path).into_iter().flatten() {
        all.extend(seen(&entry.unwrap().path()));
    }
    all.sort();
    all
}

fn refused(lines: &str) -> String {
    Room::new().unpack(&tar(lines)).unwrap_err().to_string()
}

#[test]
fn names_that_climb_are_refused() {
    for name in ".. ../outside/x a/../../outside/x /../outside/canary ./.. a/.. ../layer/a".split(' ') {
        for line in "f N x,d N,l N /,h N a,p N,x p path=N; f a,L l N; f a,f .wh.x; f N/.wh.x".split(',') {
            assert!(refused(&line.replace('N', name)).contains("climb"), "{line} {name}");
        }
    }
}

#[test]
fn names_stay_as_they_are_and_inside() {
    let outside = Room::new().above.path().join("outside/canary").display().to_string();
    let names = ["/etc/passwd", "//a//./b", &outside, "a/B", "A/b", "\u{e4}", "a\u{308}"];
    let room = Room::of(&names.map(|name| format!("f {name} {name}")).join("; "));
    assert!(names.iter().all(|name| room.text(name.trim_start_matches('/')) == *name));
}

#[test]
fn what_goes_through_a_link_stays_inside() {
    let outside = Room::new().above.path().join("outside").display().to_string();
    let up = "../".repeat(20);
    let doing = "f l/canary x|f l/below/canary x|f l/outside/canary x|d l/below|d l/outside|d l/|d l|f l x|\
        l l/canary /|p l/below/canary|h h l/canary; f h x|h l/canary f|h l/h l/outside/canary; f l/h x|\
        f l/.wh.canary|f l/.wh.below|f l/.wh..wh..opq|f l/below/.wh.canary|f .wh.l; d l|d l/l/l|\
        f m/canary x|h n m; f n/canary x|l m/canary l; f m/canary/canary x";
    for target in ["/", "..", ".", "../outside", &outside, &up, "/proc/self/root", "/proc/self/cwd/.."] {
        for what in doing.split('|') {
            let _ = Room::new().unpack(&tar(&format!("f f; l l {target}; l m l/.; {what}")));
        }
    }
    let room = Room::of(&format!("l l {up}; f l/a x; l m /d; d d; f m/b y; l n ../../d; h n/c a"));
    assert_eq!([room.text("a"), room.text("d/b"), room.text("d/c")], ["x", "y", "x"]);
}

#[test]
fn chains_and_loops_of_links_end() {
    for lines in ["l a b; l b a; f a/x", "l a a; d a/x", "l a nowhere; f a/x", "f a; f a/x"] {
        assert!(refused(lines).contains("write `a/x`"));
    }
    let chain: String = (0..60).map(|n| format!("l {n} {}; ", n + 1)).collect();
    assert!(refused(&format!("d 60; {chain}f 0/x")).contains("write `0/x`"));
    assert_eq!(Room::of("l a b/..; d b; l c a/../../b; f c/x text").text("b/x"), "text");
}

#[test]
fn hard_links_reach_only_files_of_the_layer() {
    let before = fs::metadata("/etc/passwd").unwrap().nlink();
    for target in "../outside/canary /etc/passwd l/canary m/etc/passwd d . .wh.a f/x h .wh..wh.x".split(' ') {
        refused(&format!("l l ../outside; l m /; d d; f f; h h {target}"));
    }
    assert_eq!(fs::metadata("/etc/passwd").unwrap().nlink(), before);
    let room = Room::of("f a 1; h b a; h c /b; f b 2");
    assert_eq!([room.text("a"), room.text("b"), room.text("c")], ["1", "2", "1"]);
}

#[test]
fn later_entries_replace_earlier_ones_of_any_kind() {
    let before = "f x old|l x ../outside/canary|l x ../outside|p x|d x; f x/canary old|f x/y; l x ..";
    for line in before.split('|') {
        let then = |next: &str| Room::of(&format!("{line}; {next}"));
        assert_eq!(then("f x new").text("x"), "new");
        assert_eq!(then("d x; f x/canary new").text("x/canary"), "new");
        assert_eq!(fs::read_link(then("l x ../outside").at("x")).unwrap(), Path::new("../outside"));
        assert_eq!(then("f f new; h x f").text("x"), "new");
        assert!(then("p x").look("x").file_type().is_fifo());
    }
}

#[test]
fn whiteouts_take_away_what_can_be_a_name() {
    for name in [".wh...", ".wh..", ".wh.", "a/.wh..", "a/.wh./"] {
        assert!(refused(&format!("f {name}")).contains("cannot be one"), "{name}");
    }
    let room = Room::of("f .wh.gone x; f d/.wh.gone; d .wh.e; f .wh.... x");
    for whiteout in ["gone", "d/gone", "e", "..."].map(|name| room.look(name)) {
        assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    }
    let room = Room::of("f .wh.a/b x; f .wh..wh.plnk x; d .wh..wh.plnk; f .wh..wh.aufs/1 x");
    assert_eq!(fs::read_dir(room.at("")).unwrap().count(), 0);
}

#[test]
fn a_whiteout_of_what_the_layer_has_hides_lower_layers_alone() {
    for lines in ["f .wh.a; f a x", "f a x; f .wh.a", "f .wh.a; d a; f a x"] {
        assert_eq!(Room::of(lines).text("a"), "x");
    }
    let both = "f .wh.a; d a; f a/b x|d a; f a/b x; f .wh.a|f a/b x; f .wh.a; d a|f .wh.a; f a/b x";
    for lines in both.split('|') {
        let room = Room::of(lines);
        assert!(room.text("a/b") == "x" && room.is_opaque("a"));
    }
    let room = Room::of("f .wh.a; f a/b/c/d x");
    assert_eq!(["a", "a/b", "a/b/c"].map(|name| room.is_opaque(name)), [true, false, false]);
    assert!(room.text("a/b/c/d") == "x" && room.look("a/b").mode() & 0o777 == 0o755);
    let room = Room::of("d a; f a/.wh..wh..opq; d b; f .wh..wh..opq; f c/.wh..wh..opq");
    assert_eq!(["a", "", "c", "b"].map(|name| room.is_opaque(name)), [true, true, true, false]);
}

#[test]
fn devices_stay_out_and_attributes_too() {
    let room = Room::of("c dev/null; h null dev/null; h d/n null; b x; f x 1; h y x; f dev/z");
    assert_eq!(["null", "d/n"].map(|name| room.at(name).exists()), [false; 2]);
    assert_eq!(room.text("y"), "1");
    let names = ["security.capability", "user.overlay.opaque", "trusted.overlay.opaque", "user.x"];
    let records = names.map(|name| format!("SCHILY.xattr.{name}=y|LIBARCHIVE.xattr.{name}=eQ==")).join("|");
    let room = Room::of(&format!("c null; b disk; c d/zero; x p {records}; f f x; x p {records}; d e; p p"));
    assert_eq!(fs::read_dir(room.at("")).unwrap().count(), 3);
    let listed = |name| rustix::fs::llistxattr(room.at(name), &mut [0_u8; 512]);
    assert_eq!(["f", "e", "p"].map(listed), [Ok(0); 3]);
}

#[test]
fn a_directory_that_no_entry_names_is_the_images_roots_where_ids_are_lent() {
    if ownership() == Ownership::Squash {
        return lockgate_needs::missing("only root gives files to other owners");
    }
    let room = Room::new();
    let layer = File::open(room.at("")).unwrap();
    std::os::unix::fs::fchown(&layer, None, Some(7)).unwrap();
    layer.set_permissions(fs::Permissions::from_mode(0o2755)).unwrap();
    let lent = Ownership::Lent(Lent::to(LentIds { users: 100_000, groups: 100_000 }, b"c"));
    super::unpack(&tar("f a/b")[..], layer.as_fd(), Bounds::default(), lent).unwrap();
    assert_eq!([room.look("a").gid(), room.look("a/b").gid()], [0, 8]);
}

#[test]
fn a_number_that_is_not_there_is_zero() {
    let empty = changed(b'0', "f", |header| {
        let fields = header.as_old_mut();
        (fields.mode, fields.uid, fields.gid, fields.mtime) = ([0; 8], [0; 8], [b' '; 8], [0; 12]);
    });
    let room = Room::new();
    room.unpack(&empty).unwrap();
    let found = room.look("f");
    assert_eq!((found.mode() & 0o777, found.mtime()), (0, 0));
}

#[test]
fn a_hard_link_to_what_is_not_there_is_told() {
    for lines in ["h a b", "h a d/b", "d d; h a d/b"] {
        assert!(refused(lines).contains("a file that the layer does not have before it"), "{lines}");
    }
}

#[test]
fn modes_are_those_of_the_layer_without_set_id() {
    let kinds = [(b'0', "file"), (b'5', "directory"), (b'6', "pipe")];
    let all = kinds.map(|(kind, name)| changed(kind, name, |header| header.set_mode(0o7777))).concat();
    let room = Room::of("f implied/x");
    room.unpack(&all).unwrap();
    let mode = |name| format!("{:o}", room.look(name).mode() & 0o7777);
    assert_eq!(["file", "directory", "pipe", "implied"].map(mode), ["777", "1777", "777", "755"]);
    let shut = ["./", "a", "a/b"].map(|name| changed(b'5', name, |header| header.set_mode(0))).concat();
    room.unpack(&[shut, tar("f a/b/c x; f a/d/e x")].concat()).unwrap();
    room.above.close().unwrap();
}

#[test]
fn extensions_say_what_the_header_cannot() {
    let long = "n".repeat(150);
    let first = tar("g g path=nowhere|size=9; x p path=d/p|size=3|uid=4000000|gid=9|mtime=12.5|comment=a=b");
    let rest = tar(&format!("x p linkpath=../t; l l other; l {long} {long}; f after x"));
    let room = Room::new();
    room.unpack(&[first, raw(header(b'0', "h", 0), b"abc"), rest].concat()).unwrap();
    let found = room.look("d/p");
    assert_eq!([room.text("d/p"), found.mtime().to_string(), room.text("after")], ["abc", "12", "x"]);
    assert!(ownership() == Ownership::Squash || (found.uid(), found.gid()) == (65534, 9));
    let targets = ["l", &long].map(|name| fs::read_link(room.at(name)).unwrap());
    assert_eq!(targets, [Path::new("../t"), Path::new(&long)]);
}

#[test]
fn broken_extensions_are_refused() {
    let broken = "4 path=b\n|99 path=b\n|9 path=b|8 path=b\n|7 path\n| path=b\n|path=b\n|0 a=b\n|-1 a=b\n";
    for text in broken.split('|') {
        assert!(refused(&format!("X p {text}; f a")).contains("malformed"), "{text:?}");
    }
    let wrong = "path=a\0b path= size=-1 size=x size=+1 uid=-1 gid=99999999999999999999 linkpath=\0";
    for record in wrong.split(' ') {
        refused(&format!("x p {record}; l a b; x p {record}; f a"));
    }
    refused(&format!("{}f a", "x p a=b; ".repeat(17)));
    Room::of(&format!("{}f a", "x p a=b; ".repeat(16)));
    refused(&format!("x p a={}; f a", "b".repeat(1 << 20)));
    refused(&format!("L l {}; f a", "b".repeat((1 << 20) + 1)));
    refused("x p GNU.sparse.major=1; f a");
}

#[test]
fn sizes_that_are_none_are_refused() {
    for size in "18446744073709551615 9223372036854775807 9223372036854775806 68000000".split(' ') {
        refused(&format!("x p size={size}; f a"));
    }
    for kind in *b"0xLKg" {
        let largest = [0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        for octets in [largest, [0xff; 12], *b"77777777777\0", *b"ffffffffffff", *b"-1         \0"] {
            let archive = changed(kind, "a", |header| header.as_old_mut().size = octets);
            Room::new().unpack(&archive).unwrap_err();
        }
    }
}

#[test]
fn what_is_not_understood_is_refused() {
    for kind in "SMDNAZ8".chars() {
        let said = refused(&format!("{kind} a\u{1b}[31m\u{9b}\n/e x"));
        assert!(said.contains(r"a\x1b[31m\xc2\x9b\n/e") && !said.contains(char::is_control), "{said}");
    }
    let mut archive = tar("f a x");
    for wrong in [b"0000000\0", b"\x1b[2J8888", b"        "] {
        archive[148..156].copy_from_slice(wrong);
        assert!(!Room::new().unpack(&archive).unwrap_err().to_string().contains(char::is_control));
    }
}

#[test]
fn the_label_of_an_archive_is_passed_over() {
    // As `tar -V LABEL` writes it: most fields of its header are empty.
    let label = changed(b'V', "LABEL", |header| {
        let old = header.as_old_mut();
        for field in [&mut old.mode, &mut old.uid, &mut old.gid] {
            field.fill(0);
        }
        old.size.fill(0);
    });
    let room = Room::new();
    room.unpack(&[label, tar("f a x")].concat()).unwrap();
    assert_eq!((room.text("a").as_str(), room.at("LABEL").exists()), ("x", false));
}

#[test]
fn no_more_is_taken_than_the_bounds_say() {
    let few = Bounds { octets: 1 << 20, entries: 8 };
    let large = ["a", "b", "c", "d"].map(|name| entry(b'0', name, "", &[0; 300 << 10])).concat();
    let many = ["f a; ", "f .wh.a; ", "c a; "].map(|line| tar(&line.repeat(9)));
    let others = [large, tar("f a/b/c/d/e/f/g/h/i"), tar("x p size=8589934592; f a")];
    for archive in many.iter().chain(&others) {
        let room = Room::new();
        let done = room.within(archive, few);
        assert!(matches!(done, Err(UnpackError::TooLarge { .. })), "{done:?}");
        let files = fs::read_dir(room.at("")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        assert!(files.sum::<u64>() < few.octets);
    }
    Room::new().within(&tar(&"f a; ".repeat(8)), few).unwrap();
}

#[test]
fn the_times_of_directories_take_little_memory() {
    let above = format!("{}/", "n".repeat(250)).repeat(14);
    let many: Vec<u8> = (0..9000).flat_map(|n| entry(b'5', &format!("{above}{n:0250}"), "", b"")).collect();
    let room = Room::new();
    room.unpack(&many).unwrap();
    let time = |n: u32| room.look(&format!("{above}{n:0250}")).mtime();
    assert!(time(0) == 1_000_000 && time(8000) == 1_000_000 && time(8999) > 1_000_000);
}

#[test]
fn nothing_lies_deeper_than_can_be_taken_away() {
    let deep = "d/".repeat(200);
    assert!(refused(&format!("f {}x", "d/".repeat(300))).contains("256 parts"));
    for line in ["f l/N", "d l/N", "f l/Nx; l m l/N; f m/Nx", "l m l/N/..; f m/Nx"] {
        let room = Room::new();
        let lines = format!("l l {deep}; f {deep}x; {}", line.replace('N', &deep));
        room.unpack(&tar(&lines)).unwrap_err();
        room.above.close().unwrap();
    }
}

#[test]
fn a_link_through_too_many_parts_is_refused() {
    let target = |parts: usize| format!("l l {}d", "./".repeat(parts - 1));
    assert!(refused(&target(257)).contains("256 parts"));
    Room::new().unpack(&tar(&format!("{}; f l/d/x", target(256).replace("l l", "d d; l l")))).unwrap();
}

#[test]
fn what_is_missing_behind_links_is_not_looked_up_from_the_root_for_each_name() {
    let deep = |first: &str| PathBuf::from(format!("{first}/{}", "d/".repeat(200)));
    // The processor's time of this thread, which the load of the machine changes little.
    let took = |first: &str| {
        let room = Room::new();
        let root = File::open(room.at("")).unwrap();
        let mut tree = Tree::new(root.as_fd(), Ownership::Squash);
        let (above, meta) = (Path::new(""), archive::Meta::default());
        assert!(tree.directory(above, Path::new("0"), &meta).is_ok());
        for n in 1..36 {
            let target = format!("{}{}", "./".repeat(1900), n - 1);
            assert!(tree.link(above, Path::new(&n.to_string()), target.as_bytes(), &meta).is_ok());
        }
        let now = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let begun = now();
        assert!(tree.directory(&deep(first), Path::new("x"), &meta).is_ok());
        Duration::try_from(now() - begun).unwrap()
    };
    let least = |first: &str| (0..3).map(|_| took(first)).min().unwrap();
    let (direct, linked) = (least("0"), least("35"));
    assert!(linked < direct * 3, "{linked:?} through links, and {direct:?} without them");
}

#[test]
fn a_rename_elsewhere_on_the_machine_fails_nothing() {
    let elsewhere = TempDir::new().unwrap();
    let [one, other] = ["one", "other"].map(|name| elsewhere.path().join(name));
    fs::write(&one, "").unwrap();
    let lines = (0..2000).map(|n| format!("; f l/{n}; f {n}")).collect::<String>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..30_000 {
                fs::rename(&one, &other).and_then(|()| fs::rename(&other, &one)).unwrap();
            }
        });
        Room::new().unpack(&tar(&format!("d d; l l d/../d{lines}"))).unwrap();
    });
}

/// Generates entries whose names and targets consist of meaningful parts.
fn hostile() -> impl Strategy<Value = String> {
    let part = r"(\.\.|\.||a|b|l|canary|outside|\.wh\.a|\.wh\.\.wh\.\.opq)";
    let entry = format!("[fhldpc] ({part}/){{0,3}}{part} ({part}/){{0,3}}{part}; ");
    proptest::string::string_regex(&format!("({entry}){{0,20}}")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn no_sequence_of_entries_changes_anything_outside(lines in hostile()) {
        let room = Room::new();
        for line in lines.split_inclusive("; ") {
            let _ = room.unpack(&tar(line));
        }
        let _ = Room::new().unpack(&tar(&lines));
    }

    #[test]
    fn no_octets_panic(place in 0..4088_usize, other: [u8; 8], noise: Vec<u8>) {
        let mut archive = tar("g g a=b; x p path=a/b|size=2; f a xy; d d; L l name; l n t; h h a/b; S s");
        archive[place..place + 8].copy_from_slice(&other);
        let block = &mut archive[place / 512 * 512..][..512];
        let mut header = Header::from_byte_slice(block).clone();
        header.set_cksum();
        block.copy_from_slice(header.as_bytes());
        let _ = Room::new().unpack(&archive);
        for magic in [&b""[..], b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"] {
            let _ = Room::new().unpack(&[magic, &noise].concat());
        }
    }
}
