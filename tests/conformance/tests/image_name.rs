//! Promise: where a backend that needs an image was asked for and nothing else names one, `PI_IMAGE` does.
//! S1.6, S1.44.

use lockgate_conformance::{Backend, Bench, Needs, promised, ready};

#[test]
fn the_environment_names_the_image_where_nothing_else_does() {
    if !promised("image_name") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let (run, name) = bench.run(Backend::isolated()).without_image();
    let none = run.command(["true"]);
    assert!(none.code == 2 && none.stderr.contains("needs an image"), "{none}");
    let empty = run.clone().caller("PI_IMAGE", "").command(["true"]);
    assert!(empty.code == 2, "{empty}");

    let ended = run.clone().caller("PI_IMAGE", name).command(["echo", "ran"]);
    assert!(ended.code == 0 && ended.stdout == "ran\n", "{ended}");
    let unknown = run.clone().caller("PI_IMAGE", "no-such-image:1").command(["true"]);
    assert!(unknown.code != 0 && unknown.stderr.contains("no-such-image:1"), "{unknown}");

    // A flag, the product's own variable and a file override it.
    let wrong = run.caller("PI_IMAGE", "no-such-image:1");
    let policy = bench.file("outside/policy.toml", &format!("image = \"{name}\"\n"));
    let louder = [
        wrong.clone().flags(["--image", name]),
        wrong.clone().caller("LOCKGATE_IMAGE", name),
        wrong.flags(["--policy", policy.to_str().unwrap()]),
    ];
    for run in louder {
        let ended = run.command(["true"]);
        assert!(ended.code == 0, "{ended}");
    }
}
