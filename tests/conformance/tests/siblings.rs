//! Promise: two runs cannot see or reach each other: no process, file, socket or port of one is in the other.
//! S0.36, S3.9; C17.

use lockgate_conformance::{Backend, Bench, Canary, Needs, ready, within};

#[test]
fn two_runs_cannot_reach_each_other() {
    if !ready(&[Needs::Linux, Needs::Program("/usr/bin/python3")]) {
        return;
    }
    let (one, two) = (Bench::new(), Bench::new());
    let mark = Canary::draw();
    let server = format!(
        "import socket,time,threading\n\
         t=socket.socket(); t.bind(('0.0.0.0',7777)); t.listen(); \n\
         a=socket.socket(socket.AF_UNIX); a.bind('\\0{name}'); a.listen()\n\
         def serve(s):\n while True:\n  c,_=s.accept(); c.sendall(b'{name}'); c.close()\n\
         for s in (t,a): threading.Thread(target=serve,args=(s,),daemon=True).start()\n\
         open('/tmp/{name}','w').write('{name}')\n\
         # The control: in its own run each of them is there.\n\
         assert socket.create_connection(('127.0.0.1',7777)).recv(99)==b'{name}'\n\
         b=socket.socket(socket.AF_UNIX); b.connect('\\0{name}'); assert b.recv(99)==b'{name}'\n\
         open('up','w').write('up'); time.sleep(30)",
        name = mark.text()
    );
    let server = one.run(Backend::isolated()).start(["/usr/bin/python3", "-c", &server]);
    assert!(
        within(Backend::patience(10), || one.workspace().join("up").exists()),
        "the first run did not start: {}",
        server.wait()
    );
    let run = two.run(Backend::isolated());
    run.nothing_works(&[
        &["tcp", "127.0.0.1", "7777", "hello"],
        &["unix-abstract", mark.text()],
        &["read", &format!("/tmp/{}", mark.text())],
        &["list", one.workspace().to_str().unwrap()],
    ]);
    assert!(!run.probe(&["processes"]).to_string().contains(mark.text()));
    // S2.3
    let namespaces =
        |bench: &Bench| bench.run(Backend::isolated()).probe(&["identity"]).detail()["namespaces"].clone();
    let host = one.control(&["identity"]).detail()["namespaces"].clone();
    // An engine makes no user namespace unless it is configured to, for all containers.
    // Podman makes none for control groups of version 1, and the run says so.
    let of_host = |kind: &str| {
        kind.starts_with("time")
            || (kind == "user" && Backend::isolated().is_engine())
            || (kind == "cgroup" && Backend::isolated() == Backend::Podman)
    };
    for (kind, number) in namespaces(&two).as_object().unwrap() {
        assert!(of_host(kind) || host[kind] != *number, "the {kind} namespace is the host's");
    }
}
