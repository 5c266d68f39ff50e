//! Promise: links and volumes of an image put nothing in the place of what is Lockgate's. S3.14.

use std::fs::{Permissions, create_dir, remove_file, set_permissions, write};
use std::os::unix::fs::PermissionsExt;

use lockgate_conformance::{Backend, Bench, Ended, make_image, promised};

/// What an image would have in the place of our init.
const ITS_OWN: &str = "#!/bin/sh\necho was here > WORKSPACE/mark\n";

fn here() -> bool {
    promised("image_links")
}

/// Runs a line of shell in an image.
fn in_image(bench: &Bench, image: &str, flags: &[&str], line: &str) -> Ended {
    let (run, _) = bench.run(Backend::Docker).without_image();
    run.flags(["--image", image]).flags(flags).shell(line)
}

/// An engine follows an image's links when it mounts, and the kernel again when all is mounted, a volume or the workspace over it included.
#[test]
fn the_first_process_is_ours_whatever_the_image_links_to() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    let workspace = bench.workspace().display().to_string();
    let program = ITS_OWN.replace("WORKSPACE", &workspace);
    create_dir(bench.workspace().join("k")).unwrap();
    write(bench.workspace().join("k/lockgate"), &program).unwrap();
    set_permissions(bench.workspace().join("k/lockgate"), Permissions::from_mode(0o755)).unwrap();
    let has = |folder: &str| {
        format!(
            "mkdir -p {folder}; printf %s '{program}' > {folder}/lockgate; chmod 755 {folder}/lockgate; ln -s {folder} /.lockgate"
        )
    };
    let rows = [
        ("test-link-volume", has("/a/b"), &["VOLUME /a/b"][..]),
        ("test-link-workspace", format!("ln -s {workspace}/k /.lockgate"), &[]),
        // Podman's directories in memory are volumes.
        ("test-link-memory", has("/var/tmp/a"), &[]),
    ];
    let mut first = Vec::new();
    for (name, line, changes) in rows {
        make_image(name, &line, changes);
        let ended = in_image(&bench, name, &[], "echo ran");
        if remove_file(bench.workspace().join("mark")).is_ok() {
            first.push(name);
            continue;
        }
        assert!(ended.code == 0 && ended.stdout == "ran\n", "{name}: {ended}");
    }
    assert!(first.is_empty(), "their programs were the first process: {first:?}");
}

#[test]
fn a_link_in_the_place_of_a_mount_of_ours_is_refused_by_name() {
    if !here() {
        return;
    }
    make_image("test-link-copies", "mkdir /srv/x; ln -s /srv/x /.lockgate-copies", &[]);
    let bench = Bench::new();
    let source = bench.file("outside/file", "x").display().to_string();
    let copy = format!("{source}:/home/agent/file");
    let ended = in_image(&bench, "test-link-copies", &["--copy", &copy], "echo ran");
    assert!(ended.code == 125 && ended.stdout.is_empty(), "{ended}");
    assert!(ended.stderr.contains("the image has a link at /.lockgate-copies"), "{ended}");
    // Where nothing is mounted there, it is any link.
    assert_eq!(in_image(&bench, "test-link-copies", &[], "true").code, 0);
}

#[test]
fn a_volume_that_lies_in_the_workspace_by_a_link_is_refused() {
    // Podman tells of no such link.
    if !here() || Backend::isolated() == Backend::Podman {
        return;
    }
    let bench = Bench::new();
    let line =
        format!("mkdir -p /srv; ln -s / /srv/up; ln -s ../srv/up{} /link", bench.workspace().display());
    make_image("test-volume-link", &line, &["VOLUME /link/a/b/c/d/e/f"]);
    let ended = in_image(&bench, "test-volume-link", &[], "echo ran");
    assert!(ended.code == 125 && ended.stderr.contains("/a/b/c/d/e/f"), "{ended}");
    assert!(!bench.workspace().join("a").exists() && ended.stdout.is_empty(), "{ended}");
    make_image("test-volume-no-link", "mkdir -p /srv/d; ln -s /srv /link", &["VOLUME /link/d/e"]);
    let ended = in_image(&bench, "test-volume-no-link", &[], "test -d /srv/d/e && echo ran");
    assert!(ended.code == 0 && ended.stdout == "ran\n", "{ended}");
}

#[test]
fn private_directories_are_empty_and_have_their_modes_whatever_the_image_has_there() {
    if !here() {
        return;
    }
    let line = "for d in /tmp /var/tmp /run /home/agent; do mkdir -p $d; touch $d/its; chmod 0555 $d; done";
    make_image("test-directories", line, &[]);
    let line = "cd /; ls -A /tmp /var/tmp /run /home/agent | grep its; stat -c %a /tmp /var/tmp /run /home/agent; \
                touch /tmp/x /var/tmp/x /run/x ~/x && echo written";
    let ended = in_image(&Bench::new(), "test-directories", &[], line);
    assert!(ended.code == 0 && ended.stdout == "1777\n1777\n755\n700\nwritten\n", "{ended}");
}
