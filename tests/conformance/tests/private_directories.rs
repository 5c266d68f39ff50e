//! Promise: `/tmp` and the home directory are the run's own, and gone with it.
//! DESIGN §5; S3.7.

use lockgate_conformance::{Backend, Bench, Needs, ready};

#[test]
fn temporary_files_and_home_are_private() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let outside = tempfile::NamedTempFile::new_in("/tmp").unwrap();
    let outside = outside.path().to_str().unwrap();
    bench.controls(&[&["read", outside]]);

    let run = bench.run(Backend::isolated());
    run.nothing_works(&[&["read", outside]]);
    let mark = bench.workspace();
    let mark = mark.parent().unwrap().file_name().unwrap().to_str().unwrap();
    let (one, two) = (format!("/tmp/{mark}"), format!("/home/agent/{mark}"));
    run.everything_works(&[&["write", &one, "x"], &["write", &two, "x"], &["read", &one], &["read", &two]]);
    run.nothing_works(&[&["read", &one], &["read", &two]]);
    assert!(!std::path::Path::new(&one).exists() && !std::path::Path::new(&two).exists());
    assert_eq!(run.shell("echo $HOME").stdout.trim(), "/home/agent");
}
