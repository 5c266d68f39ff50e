//! Promise: a secret of the caller's is nowhere inside, in no process, file or memory, nor in what the run leaves.
//! S1.2, S3.7; C13, C14. (Secrets that the sidecar redeems come with credentials.)

use lockgate_conformance::{Backend, Bench, Canary, Needs, files_under, ready};

#[test]
fn a_secret_of_the_callers_cannot_be_found() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let secret = Canary::draw();
    let masked = secret.masked();
    let planted = bench.file("workspace/planted", secret.text());
    bench.controls(&[&["walk-for", &masked, planted.to_str().unwrap()]]);
    std::fs::remove_file(planted).unwrap();
    bench.file("outside/secret", secret.text());

    let run = bench.run(Backend::isolated()).caller("SECRET_TOKEN", secret.text());
    let workspace = bench.workspace();
    let roots =
        ["everyone", workspace.to_str().unwrap(), "/tmp", "/home", "/run", "/dev/shm", "/var", "/etc"];
    let mut attempt = vec!["walk-for", masked.as_str()];
    attempt.extend(roots);
    let seen = run.probe(&attempt);
    assert!(seen.absent(), "{seen}");
    assert!(seen.number("files") > 10, "the walk saw nothing at all: {seen}");
    for file in files_under(&bench.state()) {
        let bytes = std::fs::read(bench.state().join(&file)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains(secret.text()), "{} holds it", file.display());
    }
}
