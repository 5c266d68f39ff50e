//! Images whose links lead where they must not: to the run's own processes, to this machine, to the workspace.

use std::fs::{self, File};
use std::io::Cursor;
use std::path::Path;

use lockgate_conformance::{Ended, Live};
use lockgate_images::{Bench, Needs, account, busybox, ready};
use tar::{Archive, Builder, EntryType, Header};

const CANARY: &str = "kanarienvogel-4711";
/// A path in a rule terminates TLS, which reads the image's list of authorities.
const OPENS: &str = "[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\n";

/// Makes the small image, with some entries replaced.
fn image(bench: &Bench, name: &str, entries: &[(&str, EntryType, u32, &str)]) {
    let mut layer = Builder::new(Vec::new());
    let path = busybox().expect("`ready` was asked first");
    for entry in Archive::new(File::open(path).unwrap()).entries().unwrap() {
        let entry = entry.unwrap();
        let (header, own) = (entry.header().clone(), entry.path().unwrap().into_owned());
        let plain = own.strip_prefix(".").unwrap_or(&own).to_owned();
        if !entries.iter().any(|(name, ..)| Path::new(name) == plain) {
            layer.append(&header, entry).unwrap();
        }
    }
    for (name, kind, mode, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        if *kind == EntryType::Symlink {
            header.set_size(0);
            layer.append_link(&mut header, name, content).unwrap();
        } else {
            header.set_size(content.len() as u64);
            layer.append_data(&mut header, name, Cursor::new(content)).unwrap();
        }
    }
    let archive = bench.workspace().join("image.tar");
    fs::write(&archive, layer.into_inner().unwrap()).unwrap();
    let ended = bench.lockgate(&["image", "import", archive.to_str().unwrap(), "--name", name]);
    assert!(ended.code == 0, "{ended}");
    fs::remove_file(&archive).unwrap();
}

fn run(bench: &Bench, arguments: &[&str]) -> Ended {
    let all = [&["run"], arguments].concat();
    Live::start(bench.command(&all).env("CANARY", CANARY)).wait()
}

/// For the user who runs the tests and, where that is root, for another user as well.
fn everybody() -> Vec<Bench> {
    let mut benches = vec![Bench::new()];
    let root =
        Path::new("/proc/self").metadata().is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    benches.extend(account().filter(|_| root).map(|somebody| Bench::new().of_account(somebody)));
    benches
}

#[test]
fn a_list_of_authorities_is_no_way_to_the_callers_environment() {
    if !ready(&[Needs::Busybox]) {
        return;
    }
    for bench in everybody() {
        fs::write(bench.workspace().join("policy.toml"), OPENS).unwrap();
        for (number, target) in
            ["/proc/1/environ", "/proc/self/environ", "../../../proc/1/environ", "/proc/1/mountinfo"]
                .iter()
                .enumerate()
        {
            let name = format!("environ{number}");
            image(&bench, &name, &[("etc/ssl/certs/ca-certificates.crt", EntryType::Symlink, 0o777, target)]);
            let command = "cat /.lockgate-etc/*";
            let ended =
                run(&bench, &["--policy", "policy.toml", "--image", &name, "--", "/bin/sh", "-c", command]);
            assert!(ended.code == 0 && ended.stdout.contains("BEGIN CERTIFICATE"), "{target}: {ended}");
            assert!(!ended.stdout.contains(CANARY) && !ended.stdout.contains(" / / "), "{target}: {ended}");
        }
    }
}

#[test]
fn the_gateways_socket_is_not_made_where_a_link_of_the_image_leads() {
    if !ready(&[Needs::Busybox]) {
        return;
    }
    for bench in everybody() {
        let workspace = bench.workspace();
        let inside = workspace.strip_prefix("/").unwrap().to_str().unwrap().to_owned();
        let to_it = workspace.to_str().unwrap();
        image(
            &bench,
            "run",
            &[(&inside, EntryType::Directory, 0o777, ""), ("run", EntryType::Symlink, 0o777, to_it)],
        );
        let ended = run(&bench, &["--image", "run", "--", "/bin/true"]);
        // The sandbox has a directory of its own in the place of the link.
        assert!(ended.code == 0 && !workspace.join("lockgate.sock").exists(), "{ended}");
        image(&bench, "socket", &[("run/lockgate.sock", EntryType::Symlink, 0o777, &format!("{to_it}/x"))]);
        let ended = run(&bench, &["--image", "socket", "--", "/bin/true"]);
        assert!(ended.code == 0 && !workspace.join("x").exists(), "{ended}");
    }
}

#[test]
fn tables_of_accounts_are_the_images_own() {
    if !ready(&[Needs::Busybox]) {
        return;
    }
    for bench in everybody() {
        let outside = bench.workspace().parent().unwrap().join("passwd");
        fs::write(&outside, format!("{CANARY}:x:1:1::/:/bin/sh\n")).unwrap();
        let target = outside.to_str().unwrap();
        image(&bench, "accounts", &[("etc/passwd", EntryType::Symlink, 0o777, target)]);
        let ended = run(&bench, &["--image", "accounts", "--", "/bin/sh", "-c", "id; cat /etc/passwd"]);
        assert!(ended.code == 0 && ended.stdout.contains("agent"), "{ended}");
        assert!(!ended.stdout.contains(CANARY), "{ended}");
        assert_eq!(fs::read_to_string(&outside).unwrap(), format!("{CANARY}:x:1:1::/:/bin/sh\n"));
    }
}

#[test]
fn what_is_shown_below_a_shut_directory_can_be_reached() {
    if !ready(&[Needs::Busybox]) {
        return;
    }
    for bench in everybody() {
        let shut = [(".", EntryType::Directory, 0o700, ""), ("root", EntryType::Directory, 0o700, "")];
        image(&bench, "shut", &shut);
        fs::write(bench.workspace().join("file"), "seen").unwrap();
        let mount = format!("{}:/root/shown:ro", bench.workspace().display());
        let ended =
            run(&bench, &["--image", "shut", "--mount", &mount, "--", "/bin/cat", "/root/shown/file"]);
        assert!(ended.code == 0 && ended.stdout == "seen", "{ended}");
    }
}
