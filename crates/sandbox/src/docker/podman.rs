//! Adapts requests to Podman. It speaks Docker's API, but some of what a run needs is missing there, or means something else; that
//! is requested through Podman's own API, or in other terms.
//!
//! - An internal network made through Docker's API has an address of the host, for its resolver. Podman's own API makes one without.
//! - Of a volume requested as a mount it does not read that nothing of the image is to be copied there; of one requested as a bind it does.
//! - A tmpfs mount takes neither a limit of its files nor an owner. A tmpfs volume takes both.
//! - Over a volume at `/tmp`, `/var/tmp` or `/run` a later Podman than 4.3 lays a tmpfs of its own without bounds, by chance, where the
//!   root is read-only; over a tmpfs mount it does not.
//! - A container inherits the names of the host's `/etc/hosts`, unless it has another; `sidecar` is resolved by DNS.
//! - Lists are requested through Podman's own API ([`super::list`]).
//! - An archive imported as an image through Docker's API stays in a temporary directory for ever.
//! - The last output of a container is lost if something is sent to it as it ends: so it waits until the shim lets it go.
//! - Of two containers that are the first to name a volume one may be refused, because the other has made it meanwhile.
//! - It reads the values of a mount as one line of comma-separated values, so a path with a comma would hold options of its own.
//! - By default Podman raises the limit of processes to the kernel's maximum, which it may not be permitted to do itself.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use bollard::models::{
    ContainerCreateBody, Mount, MountTmpfsOptions, MountType, MountVolumeOptions, ResourcesUlimits,
    VolumeCreateRequest,
};
use policy::RunId;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::engine_error::{ENGINE_LATE, EngineRefusal, INTERNAL, error_text, printable, status};
use crate::plan::engine::{EngineKind, is_one_value};

/// How long an answer may take, and its longest length.
const PATIENCE: Duration = Duration::from_secs(60);
const LONGEST: u64 = 4 << 20;
/// How long the import of an image may take.
const TAKING_IN: Duration = Duration::from_secs(300);
/// The header that only Podman sends: the version of its own API.
const OWN_VERSION: &str = "libpod-api-version:";
/// The block size of a tmpfs: its size is given in blocks, since Podman takes `size` for a disk quota.
const BLOCK: u64 = 4096;
/// Where a later Podman than [`LAST_WITHOUT`] lays a tmpfs of its own.
const OWN_DIRECTORIES: [&str; 3] = ["/tmp", "/var/tmp", "/run"];
/// The last version, by its first two numbers, that was seen to lay none over a volume.
const LAST_WITHOUT: (u32, u32) = (4, 3);
/// For everybody to write, since a tmpfs mount has no owner but root, and for each to remove their own.
pub(super) const OPEN: u32 = 0o1777;
/// The kernel's smallest default of `pid_max`, proc(5), to which Podman lowers its own limit.
const MOST_PROCESSES: u64 = 32_768;

/// Finds out who made an engine, by a ping.
pub(super) async fn kind_of(socket: &Path) -> io::Result<EngineKind> {
    let Answer { head, .. } = ask(socket, "GET", "/_ping", None).await?;
    Ok(match head.to_ascii_lowercase().contains(OWN_VERSION) {
        true => EngineKind::Podman,
        false => EngineKind::Docker,
    })
}

/// Whether Podman says that it runs without root.
pub(super) async fn is_rootless(socket: &Path) -> io::Result<bool> {
    let (_, about) = get(socket, "/v4.0.0/libpod/info").await?;
    Ok(about["host"]["security"]["rootless"] == true)
}

/// Whether an engine of this version may lay directories of its own over volumes.
pub(super) fn lays_directories(version: Option<&str>) -> bool {
    let mut numbers = version.unwrap_or_default().split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) > LAST_WITHOUT,
        _ => true,
    }
}

/// Returns an engine's version.
pub(super) async fn version(socket: &Path) -> Option<String> {
    let Answer { head, .. } = ask(socket, "GET", "/_ping", None).await.ok()?;
    version_in(&head)
}

/// Parses the version of `Server: Docker/20.10.24 (linux)`, `Server: Libpod/4.3.1 (linux)`.
fn version_in(head: &str) -> Option<String> {
    let server = head.lines().find_map(|line| line.strip_prefix("Server: "))?;
    let version: String =
        server.split_once('/')?.1.chars().take_while(|c| c.is_ascii_graphic()).take(40).collect();
    Some(version).filter(|version| !version.is_empty())
}

/// An engine's answer.
struct Answer {
    status: u16,
    head: String,
    body: Value,
}

/// Sends a GET request, and returns the status and the JSON body.
pub(super) async fn get(socket: &Path, path: &str) -> io::Result<(u16, Value)> {
    let answer = ask(socket, "GET", path, None).await?;
    Ok((answer.status, answer.body))
}

/// Imports an archive of `length` octets as an image, with a change to its configuration.
pub(super) async fn take_in(
    socket: &Path,
    image: &str,
    change: &str,
    length: u64,
    archive: impl Iterator<Item = io::Result<Vec<u8>>>,
) -> Result<(), String> {
    // The full name under which Docker's API looks it up.
    let name = encoded(&format!("docker.io/library/{image}"));
    let line = format!("POST /v4.0.0/libpod/images/import?reference={name}&changes={}", encoded(change));
    let asked = send(socket, &line, "x-tar", length, archive);
    let answer = tokio::time::timeout(TAKING_IN, asked).await.map_err(|_| "it takes too long".to_owned())?;
    let answer = answer.map_err(|error| error.to_string())?;
    match (answer.status, answer.body["message"].as_str()) {
        (200, _) => Ok(()),
        (status, message) => Err(format!("{status} {}", printable(message.unwrap_or_default()))),
    }
}

/// Makes an internal network without an address of the host. Removes it again if the answer shows one.
pub(super) async fn make_internal(
    socket: &Path,
    name: &str,
    subnet: &str,
    labels: HashMap<String, String>,
) -> Result<(), EngineRefusal> {
    let wish = json!({
        "name": name, "driver": "bridge", "internal": true, "dns_enabled": false, "ipv6_enabled": false,
        "subnets": [{ "subnet": subnet }], "labels": labels,
    });
    let answer = ask(socket, "POST", "/v4.0.0/libpod/networks/create", Some(&wish)).await;
    let answer = answer.map_err(|error| EngineRefusal { status: None, text: error.to_string() })?;
    if answer.status != 200 {
        let text = answer.body["message"].as_str().unwrap_or("it does not say why");
        return Err(EngineRefusal { status: Some(answer.status), text: printable(text) });
    }
    if is_shut(&answer.body) {
        return Ok(());
    }
    let _ = ask(socket, "DELETE", &format!("/v4.0.0/libpod/networks/{name}"), None).await;
    let text = "Podman gives this machine an address on it, by which a run would reach its services".into();
    Err(EngineRefusal { status: None, text })
}

/// Whether a network, as Podman describes it, is internal and has no address of the host.
fn is_shut(network: &Value) -> bool {
    let subnets = network["subnets"].as_array();
    network["internal"] == true
        && network["dns_enabled"] == false
        && subnets.is_some_and(|all| all.len() == 1 && all.iter().all(|it| it.get("gateway").is_none()))
}

/// Rewrites the request for the agent's container for Podman, and returns the volumes it needs. `own` is the path at which the
/// engine keeps the volume with our own binary, and `lays_directories` says whether it may lay directories of its own over volumes.
/// Refuses a mount of which Podman would read more than was requested.
pub(super) fn adapt(
    body: &mut ContainerCreateBody,
    run: &RunId,
    own: &str,
    lays_directories: bool,
) -> Result<Vec<VolumeCreateRequest>, String> {
    let labels = body.labels.clone();
    let Some(host) = &mut body.host_config else { return Ok(Vec::new()) };
    host.extra_hosts = None;
    let mut directories: Vec<_> = host.tmpfs.take().unwrap_or_default().into_iter().collect();
    directories.sort();
    let mounts = host.mounts.get_or_insert_default();
    mounts.push(Mount {
        typ: Some(MountType::BIND),
        source: Some(format!("{own}/hosts")),
        target: Some("/etc/hosts".into()),
        read_only: Some(true),
        ..Mount::default()
    });
    let mut volumes = Vec::new();
    for (number, (target, options)) in directories.into_iter().enumerate() {
        if lays_directories && OWN_DIRECTORIES.contains(&&*target) {
            mounts.push(in_memory(target, &options)?);
            continue;
        }
        let name = format!("lockgate-{run}-{number}");
        let option = |name: &str, value: String| (name.to_owned(), value);
        let options = [
            option("type", "tmpfs".into()),
            option("device", "tmpfs".into()),
            option("o", in_blocks(&options)),
        ];
        volumes.push(VolumeCreateRequest {
            name: Some(name.clone()),
            driver: Some("local".into()),
            driver_opts: Some(options.into()),
            labels: labels.clone(),
            ..VolumeCreateRequest::default()
        });
        mounts.push(Mount {
            typ: Some(MountType::VOLUME),
            source: Some(name),
            target: Some(target),
            read_only: Some(false),
            // A copy that is larger than its bounds would hold up all of Podman.
            volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
            ..Mount::default()
        });
    }
    refuse_options(mounts)?;
    let binds = mounts.extract_if(.., |mount| is_left_empty(mount)).map(|mount| bind_of(&mount));
    host.binds = Some(binds.collect());
    Ok(volumes)
}

/// Requests a directory in memory as a mount, which has no bound but its size, and into which Podman copies what the image has there.
fn in_memory(target: String, options: &str) -> Result<Mount, String> {
    let size = options.split(',').find_map(|option| option.strip_prefix("size=")?.parse().ok());
    let size_bytes = Some(size.ok_or_else(|| format!("{target} has no size"))?);
    Ok(Mount {
        typ: Some(MountType::TMPFS),
        target: Some(target),
        read_only: Some(false),
        tmpfs_options: Some(MountTmpfsOptions { size_bytes, mode: Some(OPEN.into()), options: None }),
        ..Mount::default()
    })
}

/// Refuses mounts with a source or a target that is more than one value to Podman, whoever chose it.
fn refuse_options(mounts: &[Mount]) -> Result<(), String> {
    let values = mounts.iter().flat_map(|mount| [&mount.source, &mount.target]).flatten();
    match values.into_iter().find(|value| !is_one_value(value)) {
        None => Ok(()),
        Some(value) => Err(format!("Podman would read `{}` as options of a mount", value.escape_debug())),
    }
}

/// Whether nothing is to be copied into a volume. With a colon in its place it can be no bind.
fn is_left_empty(mount: &Mount) -> bool {
    let is_plain = mount.target.as_ref().is_some_and(|target| !target.contains(':'));
    is_plain && mount.volume_options.as_ref().is_some_and(|it| it.no_copy == Some(true))
}

/// Requests a volume into which nothing is to be copied as a bind.
fn bind_of(Mount { source, target, read_only, .. }: &Mount) -> String {
    let [source, target] = [source, target].map(|it| it.as_deref().unwrap_or_default());
    let more = if *read_only == Some(true) { ",ro" } else { "" };
    format!("{source}:{target}:nocopy{more}")
}

/// Limits the processes to what the caller may have: Podman would ask for more than it may itself, and fail.
pub(super) fn bound_processes(body: &mut ContainerCreateBody) {
    let Some(host) = &mut body.host_config else { return };
    let own = rustix::process::getrlimit(rustix::process::Resource::Nproc).maximum;
    let most = own.map_or(MOST_PROCESSES, |own| own.min(MOST_PROCESSES)) as i64;
    let limits = host.ulimits.get_or_insert_default();
    limits.push(ResourcesUlimits { name: Some("nproc".into()), soft: Some(most), hard: Some(most) });
}

/// Whether the creation of a container failed for a reason that is gone at a second attempt: another process made its volume at the
/// same moment, or Podman could not read the table of subordinate ids, which it reads each time, and gave no cause.
pub(super) fn is_in_passing(error: &bollard::errors::Error) -> bool {
    const NO_IDS: &str = "keep-id requires additional UIDs or GIDs";
    let text = error_text(error);
    let unsaid = text.contains(NO_IDS) && text.ends_with("%!w(<nil>)");
    status(error) == Some(INTERNAL) && (unsaid || text.ends_with("volume already exists"))
}

/// Converts the size in a tmpfs's options to blocks.
fn in_blocks(options: &str) -> String {
    let blocks = |option: &str| match option.strip_prefix("size=").and_then(|size| size.parse::<u64>().ok()) {
        Some(size) => format!("nr_blocks={}", (size / BLOCK).max(1)),
        None => option.to_owned(),
    };
    options.split(',').map(blocks).collect::<Vec<_>>().join(",")
}

/// Sends one request, on a connection of its own.
async fn ask(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> io::Result<Answer> {
    let body = body.map_or_else(String::new, Value::to_string);
    let length = body.len() as u64;
    let line = format!("{method} {path}");
    let asked = send(socket, &line, "json", length, [Ok(body.into_bytes())]);
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, ENGINE_LATE);
    tokio::time::timeout(PATIENCE, asked).await.map_err(late)?
}

/// Sends a request with a body of `length` octets, and reads the answer.
async fn send(
    socket: &Path,
    line: &str,
    kind: &str,
    length: u64,
    pieces: impl IntoIterator<Item = io::Result<Vec<u8>>>,
) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket).await?;
    let head = format!(
        "{line} HTTP/1.0\r\nHost: engine\r\nContent-Type: application/{kind}\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    for piece in pieces {
        // An engine that closes before the end has answered already.
        if stream.write_all(&piece?).await.is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let mut stream = stream.take(LONGEST);
    // The end of the connection ends the answer (RFC 1945), but not every hop passes that end on.
    while !is_whole(&answer) && stream.read_buf(&mut answer).await? > 0 {}
    parse(&String::from_utf8_lossy(&answer)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether an answer with a `Content-Length` is complete.
fn is_whole(answer: &[u8]) -> bool {
    const BLANK: &[u8] = b"\r\n\r\n";
    let Some(end) = answer.windows(BLANK.len()).position(|octets| octets == BLANK) else { return false };
    let length = String::from_utf8_lossy(&answer[..end]).lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.is_some_and(|length| answer.len() - end - BLANK.len() >= length)
}

fn parse(answer: &str) -> Option<Answer> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned(), body: serde_json::from_str(body).unwrap_or(Value::Null) })
}

/// Percent-encodes a part of a path or a query: RFC 3986, section 2.1.
pub(super) fn encoded(text: &str) -> String {
    let octet = |octet: u8| match octet {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(octet).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(octet).collect()
}

#[cfg(test)]
mod tests {
    use bollard::models::HostConfig;

    use super::*;

    #[test]
    fn an_answer_is_whole_when_it_has_the_length_it_says() {
        let whole = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nOK";
        assert!(is_whole(whole));
        for short in 0..whole.len() {
            assert!(!is_whole(&whole[..short]), "{short}");
        }
        assert!(!is_whole(b"HTTP/1.0 200 OK\r\n\r\nOK"), "only its end says that it ends");
    }

    #[test]
    fn what_passes_is_known_by_its_word() {
        let answered = |status_code, message: &str| {
            let message = message.to_owned();
            is_in_passing(&bollard::errors::Error::DockerResponseServerError { status_code, message })
        };
        // Both texts are of Podman 4.3.1, which notices at two moments.
        assert!(answered(
            500,
            r#"container create: creating named volume "lockgate-0.1.0-97f69323208e16fe": volume with name lockgate-0.1.0-97f69323208e16fe already exists: volume already exists"#
        ));
        assert!(answered(
            500,
            r#"container create: creating named volume "vv5": adding volume to state: name vv5 is in use: volume already exists"#
        ));
        let ids = "container create: keep-id requires additional UIDs or GIDs defined in /etc/subuid and /etc/subgid to function correctly:";
        assert!(answered(500, &format!("{ids} %!w(<nil>)")));
        assert!(!answered(500, &format!("{ids} open /etc/subuid: permission denied")));
        assert!(!answered(409, "volume already exists"));
        assert!(!answered(
            500,
            r#"container create: creating container storage: the container name "x" is already in use"#
        ));
    }

    #[test]
    fn a_network_with_an_address_of_the_machines_is_none_of_ours() {
        let shut =
            json!({ "internal": true, "dns_enabled": false, "subnets": [{ "subnet": "198.18.7.0/24" }] });
        assert!(is_shut(&shut));
        for (place, value) in [
            ("/internal", json!(false)),
            ("/dns_enabled", json!(true)),
            ("/subnets", json!([])),
            ("/subnets/0", json!({ "subnet": "198.18.7.0/24", "gateway": "198.18.7.1" })),
        ] {
            let mut open = shut.clone();
            *open.pointer_mut(place).unwrap() = value;
            assert!(!is_shut(&open), "{open}");
        }
        assert!(!is_shut(&Value::Null));
    }

    #[test]
    fn directories_in_memory_become_volumes_with_the_same_bounds() {
        let tmpfs = [("/tmp", "rw,size=8388608,nr_inodes=9,mode=700,uid=1,gid=2"), ("/a", "rw,size=16")];
        let tmpfs = tmpfs.map(|(path, options)| (path.to_owned(), options.to_owned()));
        let volume = Mount {
            source: Some("v".into()),
            target: Some("/b".into()),
            read_only: Some(true),
            volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
            ..Mount::default()
        };
        let (tmpfs, mounts) = (Some(tmpfs.into()), Some(vec![volume]));
        let host = HostConfig { tmpfs, mounts, ..HostConfig::default() };
        let labels = Some([("dev.lockgate.run".into(), "abcdefghjkmn".into())].into());
        let mut body =
            ContainerCreateBody { host_config: Some(host), labels, ..ContainerCreateBody::default() };
        let volumes = adapt(&mut body, &"abcdefghjkmn".parse().unwrap(), "/own", false).unwrap();
        let options: Vec<String> =
            volumes.iter().map(|it| it.driver_opts.as_ref().unwrap()["o"].clone()).collect();
        assert_eq!(options, ["rw,nr_blocks=1", "rw,nr_blocks=2048,nr_inodes=9,mode=700,uid=1,gid=2"]);
        assert!(volumes.iter().all(|it| it.labels.as_ref().unwrap().contains_key("dev.lockgate.run")));
        let host = body.host_config.unwrap();
        assert_eq!(
            host.binds.unwrap(),
            ["v:/b:nocopy,ro", "lockgate-abcdefghjkmn-0:/a:nocopy", "lockgate-abcdefghjkmn-1:/tmp:nocopy"]
        );
        let mounts: Vec<_> = host.mounts.unwrap().into_iter().map(|it| (it.source, it.target)).collect();
        assert_eq!(mounts, [(Some("/own/hosts".into()), Some("/etc/hosts".into()))]);
        assert_eq!(host.tmpfs, None);
    }

    #[test]
    fn where_podman_lays_directories_of_its_own_a_mount_is_requested() {
        let tmpfs = ["/tmp", "/run", "/home/agent"]
            .map(|path| (path.to_owned(), "rw,size=4194304,mode=700".to_owned()));
        let host = HostConfig { tmpfs: Some(tmpfs.into()), ..HostConfig::default() };
        let mut body = ContainerCreateBody { host_config: Some(host), ..ContainerCreateBody::default() };
        let volumes = adapt(&mut body, &"abcdefghjkmn".parse().unwrap(), "/own", true).unwrap();
        assert_eq!(volumes.len(), 1);
        let host = body.host_config.unwrap();
        assert_eq!(host.binds.unwrap(), ["lockgate-abcdefghjkmn-0:/home/agent:nocopy"]);
        let mounts = host.mounts.unwrap().into_iter().filter(|it| it.typ == Some(MountType::TMPFS));
        let mounts: Vec<_> =
            mounts.map(|it| (it.target.unwrap(), it.tmpfs_options.unwrap().size_bytes)).collect();
        assert_eq!(mounts, [("/run".into(), Some(4_194_304)), ("/tmp".into(), Some(4_194_304))]);
        for (version, lays) in
            [("4.3.1", false), ("3.4.4", false), ("4.4.0", true), ("5.4.2", true), ("x", true)]
        {
            assert_eq!(lays_directories(Some(version)), lays, "{version}");
        }
    }

    #[test]
    fn a_mount_with_options_in_its_path_is_not_requested() {
        let run = "abcdefghjkmn".parse().unwrap();
        let adapted = |source: &str, target: &str, tmpfs: &str| {
            let mount =
                Mount { source: Some(source.into()), target: Some(target.into()), ..Mount::default() };
            let tmpfs = [(tmpfs.to_owned(), "rw,size=16".to_owned())].into();
            let host = HostConfig { mounts: Some(vec![mount]), tmpfs: Some(tmpfs), ..HostConfig::default() };
            let mut body = ContainerCreateBody { host_config: Some(host), ..ContainerCreateBody::default() };
            adapt(&mut body, &run, "/own", false).map(drop)
        };
        assert_eq!(adapted("/a", "/b:c", "/c"), Ok(()));
        let taken = "/x:y,source=v,volume-opt=device=/root,U=true,target=/steal";
        for (source, target, tmpfs) in [
            (taken, "/b", "/c"),
            ("/a", taken, "/c"),
            ("/a", "/b", taken),
            ("/q\"", "/b", "/c"),
            ("/a", "/b\n", "/c"),
        ] {
            let refused = adapted(source, target, tmpfs).unwrap_err();
            assert!(refused.contains("as options of a mount"), "{refused}");
        }
    }

    #[test]
    fn an_answer_is_its_status_its_head_and_what_it_says() {
        let answer =
            parse("HTTP/1.0 409 Conflict\r\nLibpod-Api-Version: 4.3.1\r\n\r\n{\"message\":\"m\"}").unwrap();
        assert_eq!((answer.status, answer.body["message"].as_str()), (409, Some("m")));
        assert!(answer.head.to_ascii_lowercase().contains(OWN_VERSION));
        for (head, version) in [
            ("HTTP/1.0 200 OK\r\nServer: Docker/20.10.24+dfsg1 (linux)\r\nX: y", Some("20.10.24+dfsg1")),
            ("HTTP/1.0 200 OK\r\nServer: Libpod/4.3.1\u{1b}[2J (linux)", Some("4.3.1")),
            ("HTTP/1.0 200 OK\r\nServer: nginx", None),
        ] {
            assert_eq!(version_in(head).as_deref(), version, "{head}");
        }
        assert!(parse("SSH-2.0").is_none() && parse("HTTP/1.1 x\r\n\r\n").is_none());
    }

    #[test]
    fn a_question_is_one_word_of_a_path() {
        assert_eq!(encoded("{\"label\":[\"a.b=c\"]}"), "%7B%22label%22%3A%5B%22a.b%3Dc%22%5D%7D");
        assert_eq!(encoded("../x y\r\n"), "..%2Fx%20y%0D%0A");
    }
}
