//! Promise: Unix sockets of the host, by path and by abstract name, are unreachable.
//! THREATS X "unix sockets"; E05.

use lockgate_conformance::{Backend, Bench, Needs, World, ready};

#[test]
fn host_unix_sockets_are_out_of_reach() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[&["unix-abstract", "world-abstract"]]);
    let probe = bench.probe();
    let probe = probe.display();
    let shell = ["sh".into(), "-c".into(), format!("'{probe}' unix \"$WORLD_UNIX_SOCKET\"").into()];
    let control = world.command(&shell);
    assert!(control.stdout.contains("\"done\""), "{control}");
    world.forget();

    let run = bench.run(Backend::isolated()).flags(["--env", "WORLD_UNIX_SOCKET"]).within(&world);
    let ended = run.shell(&format!(
        "'{probe}' unix \"$WORLD_UNIX_SOCKET\"; '{probe}' unix \"$WORLD_UNIX_SOCKET\" datagram"
    ));
    assert!(ended.stdout.contains("\"unix\"") && !ended.stdout.contains("\"done\""), "{ended}");
    run.nothing_works(&[
        &["unix-abstract", "world-abstract"],
        &["unix-abstract", "world-abstract", "datagram"],
        &["unix", "/run/dbus/system_bus_socket"],
        &["unix", "/var/run/docker.sock"],
    ]);
    assert!(
        world.reached("world-abstract").is_empty() && world.reached("world.sock").is_empty(),
        "{:?}",
        world.records()
    );
}
