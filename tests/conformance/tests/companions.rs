//! Promise: a companion is reached by its name and its declared ports alone, has rules of its own and no credential, is healthy
//! before the command begins and gone with it.
//! S3.6, S3.9, S3.17.

use std::time::Duration;

use lockgate_conformance::{
    Attempt, Backend, Bench, Canary, Needs, Run, World, ask_engine, control_groups, objects, processes_named,
    promised, ready, vanishes, within,
};

/// A Redis as its packager made it, without files. At an engine it listens on more than its own loopback.
const CACHE: &str = r#"
[[companion]]
name = "cache"
image = "debian"
command = ["redis-server", "--save", "", "--appendonly", "no", "--protected-mode", "no"]
ports = [6379]
"#;

/// A PostgreSQL whose cluster is made when it starts.
const DATABASE: &str = r#"
[[companion]]
name = "db"
image = "debian"
command = ["sh", "-ec", "PATH=/usr/lib/postgresql/15/bin:$PATH; initdb -D /tmp/pg -U app -A trust; exec postgres -D /tmp/pg -k /tmp"]
ports = [5432]
health = { command = ["pg_isready", "-h", "127.0.0.1", "-U", "app"] }
resources = { memory = "512MiB" }
"#;

/// Returns a Redis that first stores the output of a line of shell under the key `said`.
fn cache_that_says(line: &str, more: &str) -> String {
    let script = format!(
        "redis-server --save '' --appendonly no --protected-mode no --unixsocket /tmp/s & until redis-cli -s /tmp/s ping; do sleep 0.1; done; \
         ({line}) > /tmp/said 2>&1; redis-cli -s /tmp/s -x set said < /tmp/said; touch /tmp/up; wait"
    );
    format!(
        "[[companion]]\nname = \"cache\"\nimage = \"debian\"\nports = [6379]\ncommand = [\"sh\", \"-c\", {}]\n\
         health = {{ command = [\"test\", \"-e\", \"/tmp/up\"] }}\n{more}\n",
        toml_text(&script)
    )
}

fn toml_text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn run_with(bench: &Bench, policy: &str) -> Run {
    let file = bench.file("outside/policy.toml", policy);
    let run = bench.run(Backend::isolated()).flags(["--policy", file.to_str().unwrap()]);
    if at_engine() { run } else { run.with_images() }
}

/// Returns the stored output.
fn said(run: &Run) -> String {
    let seen = run.probe(&["tcp", "cache", "6379", "GET said\r\nQUIT\r\n"]);
    assert!(seen.done(), "{seen}");
    seen.text("received").to_owned()
}

fn here() -> bool {
    // An engine has its own image of the companions.
    let kernels = [Needs::Linux, Needs::Images];
    promised("companions") && (at_engine() || ready(&kernels))
}

/// Whether an engine makes the companions, each at an address of its own.
fn at_engine() -> bool {
    Backend::isolated().is_engine()
}

#[test]
fn a_database_and_a_cache_serve_their_clients() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    // PostgreSQL requires that its user has a name, and at an engine the image names its user: `image_user` tests that one.
    let policy = if at_engine() { CACHE.to_owned() } else { format!("{CACHE}{DATABASE}") };
    // The policy sets a limit, which not every user can have enforced.
    let run = run_with(&bench, &policy).flags(["--limits", "best-effort"]);
    let seen = run.probe(&["tcp", "cache", "6379", "SET a 42\r\nGET a\r\nQUIT\r\n"]);
    assert!(seen.text("received").starts_with("+OK\r\n"), "{seen}");
    let records = bench.every_audit_record();
    let of_cache: Vec<_> = records.iter().filter(|r| r["target"] == "cache:6379").collect();
    assert_eq!(of_cache.len(), 1, "{records:?}");
    assert!(of_cache[0]["cap"] == "companion cache" && of_cache[0]["outcome"] == "allowed", "{records:?}");

    // Real clients from the image.
    let file = bench.file("outside/policy.toml", &policy);
    let real = bench
        .run(if at_engine() { Backend::isolated() } else { Backend::Container })
        .flags(["--policy", file.to_str().unwrap()]);
    let real = real.flags(["--limits", "best-effort"]);
    let ended =
        real.shell("redis-cli -h cache set a 41 && redis-cli -h cache incr a && redis-cli -h cache get a");
    assert!(ended.code == 0 && ended.stdout == "OK\n42\n42\n", "{ended}");
    assert!(!ended.stderr.contains("audit"), "nothing is missing from its audit: {ended}");
    if at_engine() {
        return;
    }
    let ended = real.shell(
        "redis-cli -h cache set a 1 && redis-cli -h cache incr a && \
         psql -h db -U app -d postgres -At -c 'create table t(n int); insert into t select generate_series(1,1000); \
         select sum(n) from t' && seq 1 4 | xargs -P 4 -I{} psql -h db -U app -d postgres -At -c 'select count(*) from t'",
    );
    assert!(ended.code == 0 && ended.stdout.contains("500500"), "{ended}");
    assert_eq!(ended.stdout.lines().filter(|line| *line == "1000").count(), 4, "{ended}");
}

#[test]
fn only_its_name_and_its_ports_lead_to_it() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    let run = run_with(&bench, CACHE);
    let closed: &[&[&str]] = &[
        &["tcp", "cache", "6380", "PING\r\nQUIT\r\n"],
        &["tcp", "cache", "22"],
        &["tcp", "127.0.0.1", "6379", "PING\r\nQUIT\r\n"],
        &["tcp", "sidecar", "6379", "PING\r\nQUIT\r\n"],
        &["tcp", "cache.example.com", "6379", "PING\r\nQUIT\r\n"],
    ];
    // The companion itself judges what looks like requests of another protocol.
    let open: &[&[&str]] = &[
        &["tcp", "cache", "6379", "PING\r\nQUIT\r\n"],
        &["tcp", "cache", "6379", "PRI * HTTP/2.0\\r\\n\\r\\nQUIT\\r\\n"],
    ];
    let seen = run.at_once(&Attempt::all(&[open, closed].concat(), &[], &["cache:6379", "cache:6380"]));
    assert!(seen[0].done(), "{}", seen[0]);
    assert!(seen[1].text("received").starts_with("-ERR unknown command"), "{}", seen[1]);
    for (attempt, seen) in closed.iter().zip(&seen[2..]) {
        assert!(!seen.done(), "{attempt:?} worked inside: {seen}");
    }
    let status: Vec<_> = seen[2 + closed.len()..].iter().map(|it| it.number("status")).collect();
    assert_eq!(status, [200, 403], "{seen:?}");
    // Another run has no companion of that name.
    let other = bench.run(Backend::isolated());
    other.nothing_works(&[&["tcp", "cache", "6379", "PING\r\nQUIT\r\n"]]);
    let denied = run_with(&bench, &format!("{CACHE}[[egress.deny]]\nhost = \"cache\"\n"));
    denied.nothing_works(&[&["tcp", "cache", "6379", "PING\r\nQUIT\r\n"]]);
}

#[test]
fn it_has_the_commands_rules_or_its_own() {
    if !here() || !ready(&[Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[&["tcp-line", "api.example.com", "7777", "hello\n"]]);
    let ask = "exec 3<>/dev/tcp/api.example.com/7777 && echo hello >&3 && head -n1 <&3";
    let cache = |more| cache_that_says(&format!("bash -c {}", format_args!("'{ask}'")), more);
    let allowed = "[[egress.allow]]\nhost = \"api.example.com:7777\"\n";

    let run = run_with(&bench, &format!("{}{allowed}", cache(""))).within(&world);
    assert!(said(&run).contains("hello"), "{}", said(&run));
    world.forget();
    let run = run_with(&bench, &cache("")).within(&world);
    assert!(!said(&run).contains("\nhello"), "default is deny");
    let run = run_with(&bench, &format!("{}{allowed}", cache("egress = {}"))).within(&world);
    let seen = run.probes(&[
        &["tcp", "cache", "6379", "GET said\r\nQUIT\r\n"],
        &["tcp-line", "api.example.com", "7777", "hello\n"],
    ]);
    assert!(!seen[0].text("received").contains("hello\r"), "its own rules are none: {}", seen[0]);
    assert!(seen[1].done(), "{}", seen[1]);
    assert_eq!(world.reached(":7777").len(), 1, "{:?}", world.records());

    let own = "egress = { allow = [{ host = \"api.example.com:7777\" }] }";
    let run = run_with(&bench, &cache(own)).within(&world);
    let seen = run.probes(&[
        &["tcp", "cache", "6379", "GET said\r\nQUIT\r\n"],
        &["tcp-line", "api.example.com", "7777", "hello\n"],
    ]);
    assert!(seen[0].text("received").contains("hello"), "{}", seen[0]);
    assert!(!seen[1].done(), "the command has its rules as well: {}", seen[1]);
    let records = bench.every_audit_record();
    assert!(records.iter().any(|r| r["target"] == "api.example.com" && r["outcome"] == "denied"));
}

#[test]
fn it_goes_through_the_runs_proxy_or_nowhere() {
    if !here() || !ready(&[Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[&["tcp-line", "api.example.com", "7777", "hello\n"]]);
    let ask = "bash -c 'exec 3<>/dev/tcp/api.example.com/7777 && echo hello >&3 && head -n1 <&3'";
    let allow = "allow = [{ host = \"api.example.com:7777\" }]";
    let own = format!("egress = {{ {allow} }}");
    let proxy = |more: &str| format!("proxy = [{{ id = \"gone\", url = \"http://127.0.0.1:9\"{more} }}]\n");
    let rows = [
        (proxy(""), format!("egress = {{ proxy = \"gone\", {allow} }}\n"), ""),
        (proxy(""), "egress = { proxy = \"gone\" }\n".to_owned(), own.as_str()),
        (String::new(), format!("egress = {{ {allow} }}\n"), ""),
        (String::new(), String::new(), own.as_str()),
    ];
    for (proxy, egress, own) in rows {
        world.forget();
        let run = run_with(&bench, &format!("{proxy}{egress}{}", cache_that_says(ask, own))).within(&world);
        let run = if proxy.is_empty() { run.caller("PROXY_URL", "http://127.0.0.1:9") } else { run };
        assert!(!said(&run).contains("\nhello"), "{proxy}{egress}{own}");
        assert!(world.reached(":7777").is_empty(), "{proxy}{egress}{own}: {:?}", world.records());
    }
    // A companion is given no credential, that of a proxy neither.
    let chosen = format!("{}egress.proxy = \"gone\"\n", proxy(", credential = \"gone\""));
    let run = run_with(&bench, &format!("{chosen}{}", cache_that_says(ask, &own))).within(&world);
    let ended = run.shell("true");
    let says = "companion `cache`: its requests would go through the proxy `gone`, which needs a credential";
    assert!(ended.code == 125 && ended.stderr.contains(says), "{ended}");
}

#[test]
fn one_reaches_those_before_it_and_none_after() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    let other = |name: &str| CACHE.replace("\"cache\"", &format!("\"{name}\""));
    // The companions before it have begun, and need not be up yet.
    let line = "for try in $(seq 50); do said=$(timeout 5 redis-cli -h before ping 2>&1); test \"$said\" = PONG && break; sleep 0.1; done; \
                echo before $said; echo after $(timeout 5 redis-cli -h after ping 2>&1)";
    let run =
        run_with(&bench, &format!("{}{}{}", other("before"), cache_that_says(line, ""), other("after")));
    let seen = run.probes(&[
        &["tcp", "cache", "6379", "GET said\r\nQUIT\r\n"],
        &["tcp", "before", "6379", "PING\r\nQUIT\r\n"],
        &["tcp", "after", "6379", "PING\r\nQUIT\r\n"],
    ]);
    assert!(seen[1..].iter().all(|it| it.text("received").starts_with("+PONG")), "{seen:?}");
    let said = seen[0].text("received");
    assert!(said.contains("before PONG") && !said.contains("after PONG") && said.contains("after"), "{said}");
    let records = bench.every_audit_record();
    let to_it = records.iter().filter(|r| r["target"] == "before:6379" && r["outcome"] == "allowed");
    assert_eq!(to_it.count(), 2, "one of the companion's, one of the command's: {records:?}");
}

#[test]
fn nothing_of_the_run_or_of_this_machine_is_in_it() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    let canary = Canary::draw();
    bench.file("outside/secret", canary.text());
    let workspace = bench.workspace().display().to_string();
    let line = format!(
        "tr '\\0' ' ' < /proc/1/cmdline; env; id -u; ls -a {workspace}; cat {}; ls /proc | grep -c '^[0-9]'; cat /proc/self/status; \
         for p in 9999 8000; do bash -c \": <>/dev/tcp/127.0.0.1/$p\" && echo reached $p; done",
        bench.outside().join("secret").display()
    );
    let policy = format!(
        "providers = []\n[env]\nset = {{ OWN = \"{}\" }}\n{}",
        canary.text(),
        cache_that_says(&line, "")
    );
    let run = run_with(&bench, &policy).caller("TOKEN", canary.text());
    let told = said(&run.flags(["--env", &format!("GIVEN={}", canary.text())]));
    let init = if at_engine() { "/lockgate engine-agent" } else { "lockgate-init" };
    assert!(told.contains(init), "{told}");
    assert!(!told.contains(canary.text()) && !told.contains("reached"), "{told}");
    assert!(told.contains("CapEff:\t0000000000000000") && told.contains("NoNewPrivs:\t1"), "{told}");
    assert!(told.contains("Seccomp:\t2") && told.contains("No such file or directory"), "{told}");
    // The command's sandbox contains nothing of the companion: neither processes nor files.
    let run = run_with(&bench, CACHE);
    assert!(!run.probe(&["processes"]).to_string().contains("redis"));
}

#[test]
fn one_that_is_not_healthy_ends_the_run_and_says_why() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    let one = |command: &str, more: &str| {
        format!(
            "[[companion]]\nname = \"db\"\nimage = \"debian\"\nports = [5432]\ncommand = [\"sh\", \"-c\", \"{command}\"]\n{more}\n"
        )
    };
    let rows = [
        (one("echo no configuration >&2; exit 3", ""), "it exited with 3\n  | no configuration"),
        (one("sleep 60", "health = { within = \"6s\" }"), "port 5432 accepts no connection"),
        (one("sleep 60", "health = { command = [\"false\"], within = \"6s\" }"), "does not exit with 0"),
        (one("sleep 60", "health = { command = [\"/none\"], within = \"6s\" }"), "cannot be executed"),
        (one("kill -9 $$", ""), "signal 9 ended it"),
        (CACHE.replace("redis-server\"", "no-such-server\""), "its command cannot be executed"),
        (CACHE.replace("\"debian\"", "\"none\""), "`none`"),
    ];
    for (policy, says) in rows {
        let ended = run_with(&bench, &policy).shell("touch began");
        assert!(ended.code == 125 && ended.stderr.contains(says), "{says}: {ended}");
        assert!(!bench.workspace().join("began").exists(), "{says}: the command began");
    }
}

#[test]
fn several_begin_while_the_health_commands_of_others_run() {
    if !here() || at_engine() {
        return;
    }
    let bench = Bench::new();
    let one = |number| {
        format!(
            "[[companion]]\nname = \"c{number}\"\nimage = \"debian\"\nports = [1234]\ncommand = [\"sleep\", \"600\"]\n\
             health = {{ command = [\"true\"] }}\n"
        )
    };
    let policy: String = (1..=5).map(one).collect();
    let ended = run_with(&bench, &policy).shell("echo began");
    assert!(ended.code == 0 && ended.stdout == "began\n", "{ended}");
}

#[test]
fn one_that_ends_is_told_of_and_the_run_goes_on() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    let ended = run_with(&bench, CACHE).shell(&format!(
        "'{0}' tcp cache 6379 'SHUTDOWN NOSAVE\\r\\n' >/dev/null; sleep 4; '{0}' tcp cache 6379 'PING\\r\\n'; exit 5",
        bench.probe().display()
    ));
    assert!(
        ended.code == 5 && ended.stderr.contains("companion `cache` has ended: it exited with 0"),
        "{ended}"
    );
    assert!(!ended.stdout.contains("PONG"), "{ended}");
    if at_engine() {
        return; // its network tells nothing of an address that nobody has any more, for longer than the probe waits
    }
    // Whoever asks for it later is told so as well, and the record says it.
    let says = "the companion `cache` does not run any more";
    assert!(ended.stderr.contains(says), "{ended}");
    let records = bench.every_audit_record();
    assert!(records.iter().any(|record| record.to_string().contains(says)), "{records:?}");
}

#[test]
fn one_that_ends_while_another_is_waited_for_is_told_of_and_the_run_goes_on() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    let one = |name: &str, command: &str, health: &str| {
        format!(
            "[[companion]]\nname = \"{name}\"\nimage = \"debian\"\nports = [1234]\ncommand = [\"sh\", \"-c\", \"{command}\"]\n\
             health = {{ command = [\"sh\", \"-c\", \"{health}\"] }}\n"
        )
    };
    // In this order no other sidecar is in the network that goes with the early one at an engine.
    let policy = [
        one("late", "sleep 30; touch /tmp/up; exec sleep 600", "test -e /tmp/up"),
        one("early", "until test -e /tmp/seen; do sleep 0.1; done; sleep 10", "touch /tmp/seen"),
    ];
    let ended = run_with(&bench, &policy.concat()).shell("echo began");
    assert!(ended.code == 0 && ended.stdout == "began\n", "{ended}");
    assert!(ended.stderr.contains("companion `early` has ended: it exited with 0"), "{ended}");
}

#[test]
fn what_is_missing_from_its_audit_is_told_and_stands_in_the_runs_record() {
    if !here() || at_engine() {
        return;
    }
    let bench = Bench::new();
    // The denied names make more records than its audit may hold; the run's own files are shorter.
    let asks = "for number in $(seq 200); do getent hosts name$number.example.com; done; true";
    let run = run_with(&bench, &cache_that_says(asks, "egress = {}"));
    let limit = "ulimit -f 32 && exec \"$@\"";
    let ended = run.behind(["bash", "-c", limit, "bash"]).shell("true");
    let says = "of companion `cache`: the audit is not whole: ";
    assert!(ended.code == 0 && ended.stderr.contains(says), "{ended}");
    let logs = bench.lockgate(&["runs", "logs", "latest"]);
    assert!(logs.stdout.contains(&format!("note: {says}")), "{logs}");
}

/// Returns the name of a process's control group.
fn group_of(process: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let (_, after) = text.split_once("lockgate-")?;
    Some(format!("lockgate-{}", after.split(['\n', '/']).next()?))
}

#[test]
fn it_is_gone_with_the_run_however_that_ends() {
    if !here() {
        return;
    }
    for how in ["exit", "TERM", "KILL", "early"] {
        let (bench, mark) = (Bench::new(), Canary::draw());
        let wait = if how == "early" { "health = { command = [\"false\"] }" } else { "" };
        let policy = cache_that_says(&format!(": {}", mark.text()), "")
            .replace("health = { command = [\"test\", \"-e\", \"/tmp/up\"] }", wait);
        let command = if how == "exit" { "touch up; exec sleep 3" } else { "touch up; exec sleep 60" };
        let live = run_with(&bench, &policy).start(["sh", "-c", command]);
        let began = || {
            if how == "early" {
                !processes_named(mark.text()).is_empty()
            } else {
                bench.workspace().join("up").exists()
            }
        };
        assert!(within(Backend::patience(20), began), "{how}: it did not begin: {}", live.wait());
        let inside = processes_named(mark.text()).into_iter().find_map(|(process, _)| group_of(process));
        match how {
            "exit" => {}
            "early" => live.signal("INT"),
            signal => live.signal(signal),
        }
        let ended = live.wait();
        let code = match how {
            "exit" => 0,
            "TERM" => 143,
            "KILL" => 137,
            _ => 130,
        };
        assert!(ended.code == code, "{how}: {ended}");
        assert!(vanishes(mark.text(), Backend::patience(5)), "{how}: it goes on");
        if how == "KILL" {
            assert!(bench.run(Backend::isolated()).command(["true"]).code == 0);
        }
        if at_engine() {
            let left = || objects("lockgate-exec-");
            assert!(within(Backend::patience(5), || left().is_empty()), "{how}: {:?}", left());
        }
        if let Some(group) = inside {
            assert!(
                within(Duration::from_secs(5), || control_groups(&group).is_empty()),
                "{how}: {group} is left"
            );
        }
    }
}

#[test]
fn its_address_at_an_engine_is_no_way_around_its_name() {
    if !at_engine() || !here() {
        return;
    }
    let bench = Bench::new();
    let policy = format!("[egress]\ndefault = \"open-internet\"\n{}", cache_that_says("hostname -I", ""));
    let ended = run_with(&bench, &policy).shell(&format!(
        "at=$(redis-cli -h cache get said | cut -d' ' -f1 | head -n1); echo \"at $at\"; p='{}'; ask='PING\\r\\nQUIT\\r\\n'; $p tcp cache 6379 $ask; \
         for port in 6379 6380 22; do $p tcp $at $port $ask & $p http-connect sidecar 8081 $at:$port & done; \
         $p http-proxy sidecar 8081 http://$at:6379/ & $p tcp ${{at%.*}}.3 8081 $ask & $p tcp ${{at%.*}}.224 6379 $ask & wait",
        bench.probe().display()
    ));
    let at = ended.stdout.lines().next().unwrap_or_default();
    assert!(at.starts_with("at 198.18.") || at.starts_with("at 198.19."), "{ended}");
    assert_eq!(ended.stdout.matches("\"outcome\"").count(), 10, "not every attempt was made: {ended}");
    assert_eq!(ended.stdout.matches("PONG").count(), 1, "by its name alone: {ended}");
    assert!(!ended.stdout.contains("\"status\":200"), "{ended}");
    let records = bench.every_audit_record();
    let refused = records.iter().filter(|r| r["outcome"] == "denied").count();
    assert!(refused >= 4, "{records:?}");
}

/// What a companion tries once the command has told it both addresses: every port of the sidecar that reaches it, at the place the sidecar
/// has on this network, a DNS query there, and both addresses of the command.
const ATTACK: &str = r"
import os, socket, sys, threading
base = os.popen('hostname -I').read().split()[0].rsplit('.', 1)[0]
def connect(address, port):
    s = socket.socket(); s.settimeout(3)
    return s, s.connect_ex((address, port))
def count():
    refused = reached = 0
    for port in range(1, 65536):
        s, error = connect(base + '.224', port); s.close()
        refused += error == 111; reached += error == 0
    return refused, reached
refused, reached = count()
question = bytes.fromhex('00010100000100000000000005636163686500000100 01'.replace(' ', ''))
def resolve(place):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2)
    try:
        s.sendto(question, (place, 53)); return s.recv(100)
    except OSError: return b''
def get(at):
    s, error = connect(*at)
    try:
        s.sendall(b'GET /mark HTTP/1.0\r\n\r\n'); return s.recv(1000)
    except OSError: return b''
places = sys.argv[1].split(',')
doors = [(place, port) for place in places for port in (53, 7000, 8080, 8081, 41999)]
said = []
asked = [(resolve, place) for place in [base + '.224'] + places] + [(get, door) for door in doors]
asked = [threading.Thread(target=lambda ask, it: said.append(ask(it)), args=args) for args in asked]
for one in asked: one.start()
for one in asked: one.join()
print('refused', refused, 'reached', reached, 'asked', len(said), 'said', b''.join(said))
";

#[test]
fn one_at_an_engine_has_no_way_back() {
    if !at_engine() || !here() {
        return;
    }
    let (bench, mark) = (Bench::new(), Canary::draw());
    let script = format!(
        "redis-server --save '' --protected-mode no --unixsocket /tmp/s & until redis-cli -s /tmp/s ping; do sleep 0.1; done; \
         touch /tmp/up; until at=$(redis-cli -s /tmp/s get go); [ -n \"$at\" ]; do sleep 0.1; done; \
         python3 -c \"{ATTACK}\" \"$at\" > /tmp/said 2>&1; redis-cli -s /tmp/s -x set said < /tmp/said; wait"
    );
    let policy = format!(
        "[[companion]]\nname = \"cache\"\nimage = \"debian\"\nports = [6379]\ncommand = [\"sh\", \"-c\", {}]\n\
         health = {{ command = [\"test\", \"-e\", \"/tmp/up\"] }}\n",
        toml_text(&script).replace('\n', "\\n")
    );
    // The control: the command itself makes the same request.
    let serve = "import os, socket, sys
s = socket.socket(); s.bind(('0.0.0.0', 7000)); s.listen()
if os.fork():
    c = socket.create_connection((sys.argv[1], 7000)); c.sendall(b'x'); print(c.recv(100)); sys.exit()
os.close(1)
while True:
    c, _ = s.accept(); c.recv(100); c.sendall(sys.argv[2].encode()); c.close()";
    let ended = run_with(&bench, &policy).shell(&format!(
        "own=$(hostname -I | cut -d' ' -f1); sidecar=$(getent hosts sidecar | cut -d' ' -f1); python3 -c \"{serve}\" $own {} || exit 8; \
         redis-cli -h cache set go \"$own,$sidecar\" >/dev/null; \
         for i in $(seq 300); do redis-cli -h cache get said | grep refused && exit 0; sleep 0.2; done; redis-cli -h cache get said; exit 9",
        mark.text()
    ));
    assert_eq!(ended.stdout.matches(mark.text()).count(), 1, "the control alone: {ended}");
    assert!(ended.code == 0 && ended.stdout.contains("refused 65535 reached 0 asked 13 said"), "{ended}");
    assert!(!ended.stdout.contains("200 OK"), "{ended}");
}

#[test]
fn those_at_an_engine_are_made_at_the_same_time_and_before_the_command() {
    if Backend::isolated() != Backend::Docker || !here() {
        return;
    }
    let bench = Bench::new();
    let other = |name: &str| CACHE.replace("\"cache\"", &format!("\"{name}\""));
    // Rules with paths: each has a certificate authority of its own, which must reach the companion as well.
    let policy = format!(
        "{}{}[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\n",
        other("first"),
        cache_that_says("grep -c BEGIN $CURL_CA_BUNDLE", "")
    );
    let line = "redis-cli -h cache get said; redis-cli -h first ping; touch up; exec sleep 60";
    let live = run_with(&bench, &policy).start(["sh", "-c", line]);
    let up = bench.workspace().join("up");
    assert!(within(Backend::patience(20), || up.exists()), "it did not begin: {}", live.wait());
    let ask = |path: &str| ask_engine("GET", path, &serde_json::Value::Null).1;
    let mut made: Vec<(String, String)> = ask("/networks")
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| {
            let run = it["Name"].as_str()?.strip_prefix("lockgate-exec-")?;
            Some((it["Created"].as_str()?.to_owned(), run.to_owned()))
        })
        .collect();
    made.sort();
    let began = |run: &str| {
        let agent = ask(&format!("/containers/lockgate-agent-{run}/json"));
        agent["State"]["StartedAt"].as_str().unwrap().to_owned()
    };
    let began: Vec<String> = made.iter().map(|(_, run)| began(run)).collect();
    assert!(made.len() == 3 && made.iter().all(|(at, _)| at.ends_with('Z')), "{made:?}");
    assert!(made[1].0 < began[0], "the second waited for the first: {made:?}, {began:?}");
    assert!(made[2].0 > began[0] && made[2].0 > began[1], "the command did not wait: {made:?}, {began:?}");
    live.signal("TERM");
    let ended = live.wait();
    assert!(ended.stdout.ends_with("PONG\n") && !ended.stdout.starts_with("0\n"), "{ended}");
    assert!(ended.stdout.starts_with(|it: char| it.is_ascii_digit()), "{ended}");
}

#[test]
fn of_several_the_one_that_fails_is_named_and_none_stays() {
    if !here() {
        return;
    }
    let bench = Bench::new();
    let never = "[[companion]]\nname = \"never\"\nimage = \"debian\"\nports = [1234]\ncommand = [\"sleep\", \"600\"]\n";
    let broken = CACHE.replace("redis-server\"", "no-such-server\"").replace("\"cache\"", "\"broken\"");
    let ended = run_with(&bench, &format!("{never}{broken}{CACHE}")).shell("touch began");
    assert!(ended.code == 125 && ended.stderr.contains("`broken`"), "{ended}");
    assert!(ended.stderr.contains("its command cannot be executed"), "{ended}");
    assert!(!bench.workspace().join("began").exists(), "{ended}");
    if Backend::isolated() == Backend::Docker {
        let left = || [objects("lockgate-exec-"), objects("lockgate-agent-")].concat();
        assert!(within(Backend::patience(5), || left().is_empty()), "{:?}", left());
    }
}
