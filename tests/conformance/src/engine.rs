//! The engines of the backend `docker`, started by the `engine` program of `tests/world`: one in the small internet for each run there, and
//! one in an empty network for all other runs. `cargo xtask test` starts that one for all tests, which come to it one after the other. A
//! test that needs it to itself, or has not been given one, starts its own. The machine's own engine is never asked.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::bench::Backend;
use crate::host::is_root;
use crate::image;

/// Prints the engine's address, and stays until its standard input is closed.
const STAY: [&str; 3] = ["/bin/sh", "-c", r#"echo "$DOCKER_HOST"; exec cat > /dev/null"#];
/// The time limit for a query to an engine: Podman looks at each container for each network.
const PATIENCE: Duration = Duration::from_secs(60);
/// The API listings of everything a run may leave in an engine.
const LISTS: [&str; 4] = ["/containers/json?all=1", "/networks", "/volumes", "/images/json?all=1"];

/// The address of an engine that this program started, and the process that ends when its input is closed.
static OWN: OnceLock<(String, Child)> = OnceLock::new();
/// Whether the test must not meet what others have left at an engine.
static APART: AtomicBool = AtomicBool::new(false);

/// Returns the prefix of a command in the small internet that needs an engine there.
pub(crate) fn wrapper() -> Result<Vec<OsString>, String> {
    program(Backend::isolated(), &["--here"])
}

/// Returns the prefix of a command that finds an engine of the other kind at `OTHER_HOST`, in the same network.
pub(crate) fn wrapper_of_other() -> Result<Vec<OsString>, String> {
    let other = match Backend::isolated() {
        Backend::Podman => Backend::Docker,
        _ => Backend::Podman,
    };
    program(other, &["--here", "--as", "OTHER_HOST"])
}

/// Returns the `DOCKER_HOST` of the engine that all runs outside the small internet share. One that this program started ends with it,
/// even if it is killed, because its input is then closed.
pub(crate) fn shared() -> &'static str {
    if let Some(given) = given().or_else(of_all_tests) {
        return given;
    }
    &OWN.get_or_init(|| start().expect("an engine")).0
}

/// Has this program start an engine of its own.
pub(crate) fn keep_apart() {
    APART.store(true, Ordering::Relaxed);
}

/// Returns the engine that all tests of root's share.
fn of_all_tests() -> Option<&'static str> {
    static OF_ALL: OnceLock<Option<String>> = OnceLock::new();
    let variable = match Backend::isolated() {
        Backend::Podman => "LOCKGATE_TEST_PODMAN",
        _ => "LOCKGATE_TEST_DOCKER",
    };
    let host = OF_ALL.get_or_init(|| std::env::var(variable).ok()).as_deref();
    host.filter(|_| is_root() && !APART.load(Ordering::Relaxed))
}

/// Returns the engine that this program was started beside by a user who is not root and starts none here.
pub(crate) fn given() -> Option<&'static str> {
    static GIVEN: OnceLock<Option<String>> = OnceLock::new();
    GIVEN.get_or_init(|| std::env::var("LOCKGATE_TEST_ENGINE").ok()).as_deref()
}

/// Whether an engine that does not run as root makes the runs.
#[must_use]
pub fn is_engine_without_root() -> bool {
    given().is_some()
}

/// Whether the command is root inside, in a namespace where that maps to the engine's user: Docker without root.
#[must_use]
pub fn makes_user_root() -> bool {
    is_engine_without_root() && Backend::isolated() == Backend::Docker
}

/// Returns the shared engine if there is one already, or else an address that leads nowhere, so that no default finds the machine's own.
pub(crate) fn started() -> &'static str {
    let own = || OWN.get().map(|(host, _)| host.as_str());
    given().or_else(of_all_tests).or_else(own).unwrap_or("unix:///nonexistent/docker.sock")
}

/// Checks by files whether an engine can be started.
pub(crate) fn possible() -> Result<(), String> {
    let tools = match Backend::isolated() {
        Backend::Podman => [("podman", "podman"), ("runc", "runc"), ("iptables", "iptables")],
        _ => [("dockerd", "docker.io"), ("containerd", "containerd"), ("iptables", "iptables")],
    };
    for (tool, package) in tools {
        let folders = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        if !folders.iter().any(|folder| std::path::Path::new(folder).join(tool).is_file()) {
            return Err(format!("no engine: `{tool}` ({package}) is not installed"));
        }
    }
    program(Backend::isolated(), &[]).map(drop)
}

/// Returns the containers, networks, volumes and images of the shared engine whose description contains `word`.
///
/// # Panics
/// When the engine does not answer.
#[must_use]
pub fn objects(word: &str) -> Vec<String> {
    let all = LISTS.iter().flat_map(|path| list(path).expect("an answer of the engine"));
    all.filter(|object| object.contains(word)).collect()
}

/// Kills the containers of the shared engine whose description contains all of `words`, and returns their number.
///
/// # Panics
/// When the engine does not answer.
#[must_use]
pub fn kill_containers(words: &[&str]) -> usize {
    let containers = list(LISTS[0]).expect("an answer of the engine");
    let meant = containers.iter().filter(|container| words.iter().all(|word| container.contains(word)));
    meant
        .map(|container| {
            let container: Value = serde_json::from_str(container).expect("a description");
            let path = format!("/containers/{}/kill", container["Id"].as_str().unwrap_or_default());
            ask("POST", &path).expect("an answer of the engine");
        })
        .count()
}

/// Returns the full descriptions of a run's containers in the shared engine, the sidecar's included.
///
/// # Panics
/// When the engine does not answer.
#[must_use]
pub fn containers_of(run: &str) -> Vec<Value> {
    let containers = list(LISTS[0]).expect("an answer of the engine");
    let of_run = containers.iter().filter(|container| container.contains(&format!("lockgate-exec-{run}")));
    of_run
        .map(|container| {
            let container: Value = serde_json::from_str(container).expect("a description");
            let path = format!("/containers/{}/json", container["Id"].as_str().unwrap_or_default());
            ask_engine("GET", &path, &Value::Null).1
        })
        .collect()
}

/// Sends a request to the API of the shared engine, and returns the status and the answer.
///
/// # Panics
/// When the engine does not answer.
#[must_use]
pub fn ask_engine(method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, text) = put(method, path, &body).expect("an answer of the engine");
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// Sends octets to the standard input of a running container of the shared engine.
///
/// # Panics
/// When the engine does not accept them.
pub fn say_to_container(id: &str, octets: &[u8]) {
    let mut stream = connect().expect("the engine");
    let path = format!("/containers/{id}/attach?stream=1&stdin=1");
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("a request");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer of the engine");
    assert!(&answer == b"HTTP/1.1 101", "{}", String::from_utf8_lossy(&answer));
    stream.write_all(octets).expect("octets to be taken");
    // The engine closes the container's input with this connection, so give it time to pass the octets on.
    std::thread::sleep(Duration::from_millis(500));
}

fn list(path: &str) -> std::io::Result<Vec<String>> {
    let body: Value = serde_json::from_str(&ask("GET", path)?)?;
    // The API wraps the list of volumes in an object.
    let list = body.as_array().or_else(|| body["Volumes"].as_array());
    Ok(list.into_iter().flatten().map(Value::to_string).collect())
}

/// Returns the body of an answer of the API.
fn ask(method: &str, path: &str) -> std::io::Result<String> {
    put(method, path, "").map(|(_, text)| text)
}

/// Returns the status and the body of an answer of the API.
fn put(method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut stream = connect()?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: engine\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok((status, answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned())))
}

fn connect() -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(shared().trim_start_matches("unix://"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn start() -> Result<(String, Child), String> {
    let words = program(Backend::isolated(), &[])?;
    let fail = |error: std::io::Error| format!("no docker engine: {error}");
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(STAY).current_dir("/");
    // The engine has streams of its own: a test ends only when nothing holds the streams of the test.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(fail)?;
    let mut host = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut host).map_err(fail)?;
    }
    let host = host.trim().to_owned();
    if host.is_empty() {
        let mut words = String::new();
        if let Some(mut errors) = child.stderr.take() {
            errors.read_to_string(&mut words).map_err(fail)?;
        }
        return Err(format!("no docker engine: {}", words.trim()));
    }
    Ok((host, child))
}

fn program(backend: Backend, flags: &[&str]) -> Result<Vec<OsString>, String> {
    let mut words: Vec<OsString> = vec![lockgate_needs::program("engine")?.into()];
    let kind = (backend == Backend::Podman).then(|| OsString::from("--podman"));
    words.extend(kind.into_iter().chain(flags.iter().map(OsString::from)));
    words.extend(["--archive".into(), image::archive()?.into(), "--".into()]);
    Ok(words)
}
