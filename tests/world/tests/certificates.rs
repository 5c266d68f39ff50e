//! Certificates that a client must refuse, each at a name of its own. C04: no octet of a request may reach the servers, which would record
//! one.
#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::process::Stdio;

use lockgate_world::World;

const BROKEN: [(&str, &str); 5] = [
    ("expired.tls.example", "expired"),
    ("wrong-name.tls.example", "badname"),
    ("self-signed.tls.example", "selfsigned"),
    ("unknown-ca.tls.example", "unknownca"),
    ("ip-only.tls.example", "iponly"),
];

fn curl(world: &World, arguments: &[&str]) -> Option<i32> {
    let mut command = world.command("curl");
    command.args(["-s", "-o", "/dev/null", "--max-time", "10"]).args(arguments);
    command.stdin(Stdio::null()).status().unwrap().code()
}

#[test]
fn a_client_that_checks_sends_nothing() {
    let Some(world) = World::for_test() else { return };
    for (name, server) in BROKEN {
        // 60: the peer's certificate cannot be trusted (curl(1), EXIT CODES).
        assert_eq!(curl(&world, &[&format!("https://{name}/secret")]), Some(60), "{name}");
        assert_eq!(world.received_by(server), 0, "{name}");
        let events: Vec<String> = world.records_of(server).into_iter().map(|record| record.event).collect();
        assert!(
            events.contains(&"connect".to_owned()) && !events.contains(&"request".to_owned()),
            "{events:?}"
        );
    }
}

#[test]
fn a_client_that_does_not_check_is_seen() {
    let Some(world) = World::for_test() else { return };
    for (name, server) in BROKEN {
        assert_eq!(curl(&world, &["-k", &format!("https://{name}/secret")]), Some(0), "{name}");
        assert!(world.received_by(server) > 0, "{name}");
        let records = world.records_of(server);
        let request = records.iter().find(|record| record.event == "request").unwrap();
        assert_eq!((request.text("sni"), request.text("path")), (name, "/secret"));
    }
}

#[test]
fn the_address_alone_is_certified_where_no_name_is() {
    let Some(world) = World::for_test() else { return };
    assert_eq!(curl(&world, &["https://93.184.216.39/"]), Some(0));
    assert_eq!(curl(&world, &["https://93.184.216.38/"]), Some(60));
}
