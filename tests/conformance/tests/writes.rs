//! Promise: nothing outside the workspace can be changed; system directories are read-only.
//! S3.7, S2.6; THREATS X "rootfs paths".

use lockgate_conformance::{Backend, Bench, Needs, ready};

#[test]
fn writes_stay_in_the_workspace() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let file = bench.file("outside/notes", "private");
    let outside = file.to_str().unwrap();
    let inside = bench.workspace().join("result");
    let inside = inside.to_str().unwrap();
    let link = bench.workspace().join("link");
    let link = link.to_str().unwrap();
    bench.controls(&[&["write", outside, "private"], &["symlink-write", outside, link]]);

    let run = bench.run(Backend::isolated());
    run.everything_works(&[&["write", inside, "kept"]]);
    assert_eq!(std::fs::read_to_string(inside).unwrap(), "kept");

    std::fs::write(outside, "private").unwrap();
    run.nothing_works(&[&["append", outside, "changed"]]);
    let of_the_system: &[&[&str]] = &[
        &["symlink-write", "/etc/lockgate-conformance", link],
        &["hardlink", "/etc/hostname", link],
        &["open-write", "/etc/hostname"],
        &["write", "/etc/lockgate-conformance", "made"],
        &["write", "/usr/bin/lockgate-conformance", "made"],
        &["mkdir", "/lockgate-conformance"],
        &["rename", inside, "/usr/lib/lockgate-conformance"],
        &["chmod", "/etc/hostname", "644"],
    ];
    if Backend::isolated().has_own_image() {
        // The files of an image are a private copy: changes to it are gone with the run.
        let _ = run.probes(of_the_system);
        let left = ["/etc/lockgate-conformance", "/usr/bin/lockgate-conformance"];
        run.nothing_works(&left.map(|path| ["read", path]).each_ref().map(|attempt| attempt.as_slice()));
        run.nothing_works(&[&["list", "/lockgate-conformance"], &["read", "/usr/lib/lockgate-conformance"]]);
    } else {
        run.nothing_works(of_the_system);
    }
    assert_eq!(std::fs::read_to_string(outside).unwrap(), "private");
}
