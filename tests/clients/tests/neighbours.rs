//! Under the backend `process` the proxy and the gateway are ports of the machine's own loopback, which every user can reach. They answer
//! the run's own user alone; another user's connection ends, and nothing is requested for it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::time::Duration;

use lockgate_clients::{Canary, Ended, Need, Site, allowing, bearer_provider};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("setpriv"),
    Need::Program("pgrep"),
    Need::Program("curl"),
    Need::Program("python3"),
];
/// User ids that need no account.
const OWN: u32 = 61_001;
const OTHER: u32 = 61_002;

/// Starts the run as `$OWN`, and `attack` during it: `proxy` and `gate` are its two ports; `as USER COMMAND…`, and `held_up COMMAND…` while
/// the sidecar is stopped.
const SCRIPT: &str = r#"
as() { user=$1; shift; setpriv --reuid=$user --regid=$user --clear-groups --inh-caps=-all "$@"; }
signal() { for process in $(pgrep -P $run); do kill -$1 $process; done; }
held_up() { signal STOP; "$@"; signal CONT; }
printf %s "$VALUE" | as $OWN "$PRODUCT" creds set one --field access_token --stdin || exit 7
unset VALUE
setpriv --reuid=$OWN --regid=$OWN --clear-groups --inh-caps=-all "$PRODUCT" run --backend process --policy "$POLICY" -- sh -c "$INSIDE" & run=$!
i=0; until [ -e ports ]; do i=$((i+1)); [ $i -lt 1000 ] && kill -0 $run || exit 9; sleep 0.02; done
read proxy gate < ports
curls() { user=$1; key=$2; shift 2; out=$(as $user curl -sS --max-time 20 -w ' %{http_code}' "$@" 2>&1); echo "$key=$? $out" | tr '\n' ' '; echo; }
attack() {
:
"#;
const END: &str = r#"
}
attack
touch over; wait $run; echo "run=$?"
for port in proxy gateway; do echo "recorded $port=$(cat "$STATE"/lockgate/audit/*.jsonl | grep -c "\"target\":\"$port from user .*source_not_allowed")"; done"#;
/// The command: prints its ports, waits for the end of the attack, and uses both.
const INSIDE: &str = r#"echo "$http_proxy $SIDECAR_URL" > ports.new; mv ports.new ports
until [ -e over ]; do sleep 0.02; done
curl -sS -o /dev/null -w 'inside proxy %{http_code}\n' http://www.example.org/inside
curl -sS -o /dev/null -w 'inside gate %{http_code}\n' "$SIDECAR_URL/health"
curl -sS -w ' inside gateway %{http_code}\n' -H 'X-Provider: one' -H 'X-Target: http://protocols.example/echo-auth?as=plain' "$SIDECAR_URL/proxy"
# A socket of both families, as Java's are.
curl -sS -o /dev/null -w 'inside mapped %{http_code}\n' -x "http://[::ffff:127.0.0.1]:${http_proxy##*:}" http://www.example.org/mapped"#;

/// Everything a neighbour may try at either port.
const REQUESTS: &str = r#"
for user in $USERS; do
    curls $user $user-proxy -x $proxy http://www.example.org/$user
    curls $user $user-credential -x $proxy "http://protocols.example/echo-auth?as=plain&by=$user"
    curls $user $user-tunnel -p -x $proxy http://www.example.org/$user
    curls $user $user-gate $gate/health
    curls $user $user-gateway -H 'X-Provider: one' -H "X-Target: http://protocols.example/echo-auth?as=plain&by=$user" $gate/proxy
    curls $user $user-gate-proxy -x $gate http://www.example.org/$user
    curls $user $user-mapped -x "http://[::ffff:127.0.0.1]:${proxy##*:}" http://www.example.org/$user
    # Who says nothing is not waited for.
    for port in ${proxy##*:} ${gate##*:}; do as $user timeout 20 /usr/bin/python3 -c "$SILENT" $user-silent $port; done
done"#;
const SILENT: &str = r#"import socket, sys
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[2])), 5) as peer: print(f"{sys.argv[1]}={peer.recv(1)}")
except OSError as error: print(f"{sys.argv[1]}={type(error).__name__}")"#;

fn policy() -> String {
    bearer_provider("http://protocols.example/*") + &allowing(&["www.example.org"])
}

/// Starts a run of `own`, and the script beside it, for each of `users` in turn.
fn attacked(site: &Site, canary: &Canary, own: u32, users: &[u32], attack: &str) -> Ended {
    // The world's folder belongs to root, and no other user may read it.
    fs::set_permissions(site.world().folder(), fs::Permissions::from_mode(0o755)).expect("a folder of ours");
    for folder in [site.workspace(), site.state()] {
        chown(folder, Some(own), Some(own)).expect("root may");
    }
    let users: Vec<String> = users.iter().map(u32::to_string).collect();
    let shell = site.shell().with("HOME", site.workspace()).with("INSIDE", INSIDE).with("SILENT", SILENT);
    let shell = shell.with("POLICY", site.file("neighbours.toml", policy())).with("VALUE", canary.text());
    let shell = shell.with("STATE", site.state()).with("OWN", own.to_string()).with("USERS", users.join(" "));
    shell.within(Duration::from_secs(120)).run(&format!("{SCRIPT}{attack}{END}"))
}

const ATTEMPTS: [&str; 7] = ["proxy", "credential", "tunnel", "gate", "gateway", "gate-proxy", "mapped"];

fn is_shut_out(ended: &Ended, user: u32) {
    for attempt in ATTEMPTS {
        let [said] = ended.each_said(&format!("{user}-{attempt}"))[..] else { panic!("{attempt}: {ended}") };
        // curl(1): a failure to receive, to send, or to connect, if the connection ended before curl first looked at it.
        let failed = ["56 ", "55 ", "7 "].iter().any(|code| said.starts_with(code));
        assert!(failed && said.ends_with(" 000 "), "{user}-{attempt}: {ended}");
    }
    assert_eq!(ended.each_said(&format!("{user}-silent")), ["ConnectionResetError"; 2], "{ended}");
}

fn the_run_worked(ended: &Ended, canary: &Canary) {
    let masked = format!("Bearer {} inside gateway 200", "*".repeat(canary.text().len()));
    for words in ["inside proxy 200", "inside gate 200", &masked, "inside mapped 200", "run=0"] {
        assert!(ended.stdout.contains(words), "not said: {words}: {ended}");
    }
    canary.is_not_in("what was said", format!("{ended}"));
}

#[test]
fn another_user_gets_no_answer_from_either_port() {
    for (own, other) in [(OWN, OTHER), (OWN, 0), (0, OTHER)] {
        let Some(site) = Site::for_test(NEEDS) else { return };
        let canary = Canary::draw();
        let ended = attacked(&site, &canary, own, &[other], REQUESTS);
        is_shut_out(&ended, other);
        the_run_worked(&ended, &canary);
        // The requests that reached a server came from inside.
        let paths: Vec<_> = site.requests().iter().map(|request| request.text("path").to_owned()).collect();
        assert_eq!(paths, ["/inside", "/echo-auth?as=plain", "/mapped"], "{ended}");
        // Whoever started the run is told, and the audit has the attempts.
        for port in ["proxy", "gateway"] {
            let told = format!("denied {port} from user {other} (source_not_allowed)");
            assert_eq!(ended.stderr.matches(&told).count(), 1, "{ended}");
            assert!(
                ended.said(&format!("recorded {port}")).parse::<u32>().is_ok_and(|records| records > 2),
                "{ended}"
            );
        }
    }
}

#[test]
fn the_same_attempts_work_for_the_runs_own_user() {
    // The control: the ports are open, and the user decides.
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canary = Canary::draw();
    let ended = attacked(&site, &canary, OWN, &[OWN], REQUESTS);
    for attempt in ATTEMPTS {
        let [said] = ended.each_said(&format!("{OWN}-{attempt}"))[..] else { panic!("{attempt}: {ended}") };
        assert!(said.starts_with("0 ") && said.ends_with(" 200 "), "{attempt}: {ended}");
    }
    assert_eq!(ended.each_said(&format!("{OWN}-silent")), ["TimeoutError"; 2], "{ended}");
    the_run_worked(&ended, &canary);
}

#[test]
fn a_neighbour_that_has_left_is_not_taken_for_root() {
    // For a closed connection whose end is acknowledged the kernel knows no owner and reports 0 (inet_diag's answer in TIME_WAIT): a run of
    // root's must not take it for its own. The sidecar is a little late, as on a busy machine.
    const LEAVE: &str = r#"import socket, sys, time
plain = b"GET http://protocols.example/left HTTP/1.1\r\nHost: protocols.example\r\n\r\n"
gateway = b"GET /proxy HTTP/1.1\r\nHost: sidecar\r\nX-Provider: one\r\nX-Target: http://protocols.example/left\r\n\r\n"
for port, request in zip(sys.argv[1:], [plain, gateway]):
    with socket.create_connection(("127.0.0.1", int(port)), 5) as peer: peer.sendall(request)
time.sleep(1)
print("left")"#;
    let Some(site) = Site::for_test(NEEDS) else { return };
    let canary = Canary::draw();
    let leave = site.file("leave.py", LEAVE);
    let attack =
        format!("held_up as $USERS /usr/bin/python3 {} ${{proxy##*:}} ${{gate##*:}}", leave.display());
    let ended = attacked(&site, &canary, 0, &[OTHER], &attack);
    ended.says("left\n");
    the_run_worked(&ended, &canary);
    let left = site.requests().into_iter().filter(|request| request.text("path") == "/left");
    let left: Vec<_> = left.map(|request| request.header("authorization").map(str::to_owned)).collect();
    assert!(left.is_empty(), "requests of a neighbour were carried, with {left:?}: {ended}");
}
