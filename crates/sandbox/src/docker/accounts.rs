//! Reads what an engine tells of an image's files from a container that is made for that alone and never started: the accounts, `passwd`
//! and `group`, and where the paths of its volumes lead. The image is hostile: both files and all links are bounded, and the engine
//! resolves links inside the image. Choosing the user among the accounts is not done here.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{ContainerArchiveInfoOptionsBuilder, DownloadFromContainerOptionsBuilder};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::apart::{LONGEST, apart};
use super::container;
use super::engine::Engine;
use super::engine_error::{NOT_FOUND, error_text, status};
use super::names::{ACCOUNTS, BINARY, own_label};
use super::replenish::uuid;
use crate::error::Error;
use crate::plan::engine::{EngineKind, EngineRun, refuse_unfit_volumes};

/// The label of such a container.
const LABEL: &str = "dev.lockgate.accounts";
/// The age above which such a container was left by a killed process: nobody needs one for longer.
const LEFT: Duration = LONGEST.saturating_mul(2);
/// The largest file that is read, and the allowance for the archive around it.
const LARGEST: u64 = 1 << 20;
const AROUND: u64 = 64 << 10;
/// How many links may lead to a file.
const MOST_LINKS: usize = 8;

/// The two tables of an image, each empty if the image has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounts {
    /// passwd(5).
    pub passwd: String,
    /// group(5).
    pub group: String,
}

/// Reads the accounts of an image that an engine has.
///
/// # Errors
/// When the engine does not return them, or one is too large.
pub fn read_accounts(run: &EngineRun) -> Result<Accounts, Error> {
    ask(run, "the accounts", async |engine, container| {
        let passwd = engine.read_table(container, "/etc/passwd").await?;
        Ok(Accounts { passwd, group: engine.read_table(container, "/etc/group").await? })
    })
}

/// Returns where the volumes of an image that an engine has lie, once the image's links are followed. None at Podman, which tells of no
/// link that leads nowhere in the image, as one to a folder of this machine does.
///
/// # Errors
/// When the engine does not tell.
pub fn follow_volumes(run: &EngineRun) -> Result<Vec<PathBuf>, Error> {
    if run.at.kind == EngineKind::Podman {
        return Ok(Vec::new());
    }
    ask(run, "the links", async |engine, container| {
        let mut all = Vec::new();
        for volume in &run.config.volumes {
            all.push(engine.follow(container, volume).await?);
        }
        Ok(all)
    })
}

/// Asks something about a container of an image that is made for the question.
fn ask<T: Serialize + DeserializeOwned>(
    run: &EngineRun,
    what: &str,
    question: impl AsyncFnOnce(&Engine, &str) -> Result<T, String>,
) -> Result<T, Error> {
    let refused = |why: String| Error::Refused {
        what: format!("{what} of the image `{}` cannot be read: {why}", run.image),
        remedy: None,
    };
    refuse_unfit_volumes(&run.config.volumes)?;
    apart(LONGEST, || async {
        let engine = Engine::at(&run.at).map_err(|error| refused(error_text(&error)))?;
        ask_container(&engine, run, own_label(), question).await.map_err(refused)
    })
}

/// Asks something about a container of an image: makes it with these labels, and removes it again.
pub(super) async fn ask_container<T>(
    engine: &Engine,
    run: &EngineRun,
    labels: HashMap<String, String>,
    question: impl AsyncFnOnce(&Engine, &str) -> Result<T, String>,
) -> Result<T, String> {
    engine.remove_left_accounts().await;
    let name = format!("{ACCOUNTS}{}", uuid().map_err(|error| error.to_string())?);
    let read = async {
        engine.make_container(&name, never_started(run, labels)).await?;
        question(engine, &name).await
    };
    let read = read.await;
    let removed = engine.remove_container(&name).await;
    read.and_then(|answer| removed.map(|()| answer))
}

/// Returns the request for a container of an image that never runs. The image's declared volumes become tmpfs, so that the engine
/// fills none.
fn never_started(run: &EngineRun, labels: HashMap<String, String>) -> ContainerCreateBody {
    let volumes = run.config.volumes.iter().map(|path| (path.display().to_string(), String::new()));
    let labels = labels.into_iter().chain([(LABEL.into(), "1".into())]).collect();
    ContainerCreateBody {
        image: Some(run.config.id.clone()),
        entrypoint: Some(vec![BINARY.into()]),
        cmd: Some(Vec::new()),
        // Otherwise an engine may look up the image's user when it makes the container, and refuse one it does not find.
        user: Some("0".into()),
        host_config: Some(HostConfig {
            network_mode: Some("none".into()),
            readonly_rootfs: Some(true),
            tmpfs: Some(volumes.collect()),
            ..container::walls()
        }),
        ..container::body(labels)
    }
}

impl Engine {
    /// Removes containers left by killed processes. Errors are ignored: the next call tries again.
    async fn remove_left_accounts(&self) {
        let Ok(found) = self.labelled(LABEL, ACCOUNTS).await else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let is_left = |made: i64| now.saturating_sub(made.unsigned_abs()) > LEFT.as_secs();
        for it in found.into_iter().filter(|it| it.created.is_some_and(is_left)) {
            let _ = self.remove_container(&it.id.unwrap_or_default()).await;
        }
    }

    /// Returns the text of a table in a container, following links inside it; empty if there is no such file. Only a file is
    /// downloaded: Podman opens what it sends, and waits for the other end of a named pipe while all its other clients wait as well.
    async fn read_table(&self, container: &str, table: &str) -> Result<String, String> {
        let (path, Found::File) = self.led_to(container, table).await? else { return Ok(String::new()) };
        let archive = self.archive(container, &path).await?.unwrap_or_default();
        first_of(&archive).map_err(|error| format!("{table}: {error}"))
    }

    /// Returns the path to which the links at a table lead, and what is there, which is no link.
    pub(super) async fn led_to(&self, container: &str, table: &str) -> Result<(String, Found), String> {
        let mut path = table.to_owned();
        for _ in 0..=MOST_LINKS {
            match self.found_at(container, &path).await? {
                Found::Link(target) => path = beside(&path, &target),
                found => return Ok((path, found)),
            }
        }
        Err(format!("more than {MOST_LINKS} links lead to {table}"))
    }

    /// Returns where a path leads in a container that never runs.
    async fn follow(&self, container: &str, path: &Path) -> Result<PathBuf, String> {
        let (mut at, mut links) = (PathBuf::from("/"), 0);
        let mut left: Vec<OsString> = names(path);
        while let Some(name) = left.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            at.push(name);
            let name = at.to_str().ok_or("a path is no text")?;
            let Found::Link(target) = self.found_at(container, name).await? else { continue };
            links += 1;
            if links > MOST_LINKS {
                return Err(format!("more than {MOST_LINKS} links lead to {}", path.display()));
            }
            at.pop();
            at.push(&target);
            let next = std::mem::replace(&mut at, PathBuf::from("/"));
            left.extend(names(&next));
        }
        Ok(at)
    }

    /// Returns what is at a path in a container.
    async fn found_at(&self, container: &str, path: &str) -> Result<Found, String> {
        let options = ContainerArchiveInfoOptionsBuilder::default().path(path).build();
        match self.api.get_container_archive_info(container, Some(options)).await {
            Ok(about) => Ok(Found::of(about.file_mode, about.link_target)),
            Err(error) if status(&error) == Some(NOT_FOUND) => Ok(Found::Nothing),
            Err(error) => Err(error_text(&error)),
        }
    }

    /// Returns the archive of a path in a container, or as much of it as a table can need; `None` if nothing is there.
    async fn archive(&self, container: &str, path: &str) -> Result<Option<Vec<u8>>, String> {
        let options = DownloadFromContainerOptionsBuilder::default().path(path).build();
        let mut pieces = Box::pin(self.api.download_from_container(container, Some(options)));
        let mut archive = Vec::new();
        while let Some(piece) = pieces.next().await {
            match piece {
                Ok(piece) => archive.extend_from_slice(&piece),
                Err(error) if status(&error) == Some(NOT_FOUND) => return Ok(None),
                Err(error) => return Err(error_text(&error)),
            }
            if archive.len() as u64 > LARGEST + AROUND {
                break;
            }
        }
        Ok(Some(archive))
    }
}

/// What is at a path in a container.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    File,
    Link(String),
    Nothing,
    /// A directory, a device, a named pipe or a socket.
    Other,
}

impl Found {
    /// Tells it by a mode as Go's `io/fs` has it.
    fn of(mode: u32, target: String) -> Self {
        /// `ModeSymlink`, and with it `ModeDir`, `ModeDevice`, `ModeNamedPipe`, `ModeSocket`, `ModeCharDevice`, `ModeIrregular`.
        const LINK: u32 = 1 << 27;
        const NO_FILE: u32 = LINK | 1 << 31 | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19;
        if mode & LINK != 0 {
            Self::Link(target)
        } else if mode & NO_FILE == 0 {
            Self::File
        } else {
            Self::Other
        }
    }
}

/// Returns the text of the first entry of an archive; empty if it is no file.
fn first_of(archive: &[u8]) -> io::Result<String> {
    let mut archive = tar::Archive::new(archive);
    let Some(entry) = archive.entries()?.next().transpose()? else { return Ok(String::new()) };
    if !entry.header().entry_type().is_file() {
        return Ok(String::new());
    }
    let size = entry.size();
    if size > LARGEST {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    let mut octets = Vec::new();
    entry.take(LARGEST).read_to_end(&mut octets)?;
    if octets.len() as u64 != size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&octets).into_owned())
}

/// Returns the names of a path, the first one last.
fn names(path: &Path) -> Vec<OsString> {
    let parts =
        path.components().rev().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

/// Returns the target of a link at a path. The engine keeps `..` from leaving the image.
fn beside(path: &str, target: &str) -> String {
    let folder = Path::new(path).parent().unwrap_or(Path::new("/"));
    folder.join(target).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::engine::EngineAt;

    fn archive(kind: tar::EntryType, size: u64, content: &[u8]) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_path("passwd").unwrap();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        let mut octets = [header.as_bytes(), content].concat();
        octets.resize(octets.len().next_multiple_of(512) + 1024, 0);
        octets
    }

    #[test]
    fn a_table_is_a_file_and_a_link_leads_to_one() {
        let text = b"app:x:1:2:::\n\xff";
        let file = archive(tar::EntryType::Regular, text.len() as u64, text);
        assert_eq!(first_of(&file).unwrap(), "app:x:1:2:::\n\u{fffd}");
        assert_eq!(beside("/etc/passwd", "../srv/table"), "/etc/../srv/table");
        assert_eq!(beside("/etc/passwd", "/srv/table"), "/srv/table");
    }

    #[test]
    fn what_is_no_table_is_none_and_what_is_too_large_is_refused() {
        for kind in [tar::EntryType::Directory, tar::EntryType::Fifo, tar::EntryType::Char] {
            assert_eq!(first_of(&archive(kind, 0, b"")).unwrap(), "");
        }
        assert_eq!(first_of(b"").unwrap(), "");
        assert!(first_of(&[7; 1024]).is_err(), "no archive at all");
        assert!(first_of(&archive(tar::EntryType::Regular, LARGEST + 1, b"x")).is_err());
        assert!(first_of(&archive(tar::EntryType::Regular, u64::MAX / 2, b"x")).is_err());
        assert!(first_of(&archive(tar::EntryType::Regular, 4096, b"x")).is_err(), "it is cut");
    }

    /// Is an engine that tells these attributes of what it is asked about, and notes what that was.
    async fn tell(listener: tokio::net::UnixListener, modes: &[(u32, &str)], asked: &mut Vec<String>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let table = archive(tar::EntryType::Regular, 1, b"t");
        let mut modes = modes.iter();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            let line = String::from_utf8_lossy(&request[..length]).lines().next().unwrap().to_owned();
            let (method, path) = line.split_once(" /containers/it/archive?path=").unwrap();
            asked.push(format!("{method} {}", path.replace("%2F", "/").split_once(' ').unwrap().0));
            let (about, body) = if method == "HEAD" {
                let (mode, target) = modes.next().unwrap();
                let about = serde_json::json!({"name": "", "size": 1, "mode": mode, "linkTarget": target});
                (data_encoding::BASE64.encode(about.to_string().as_bytes()), &[][..])
            } else {
                (String::new(), &table[..])
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nConnection: close\r\nX-Docker-Container-Path-Stat: {about}\r\nContent-Length: {length}\r\n\r\n"
            );
            stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        }
    }

    // Podman would wait for the other end of a pipe, and all its clients with it.
    #[test]
    fn only_a_file_is_downloaded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (file, link, pipe) = (0o644, 1 << 27 | 0o777, 1 << 25 | 0o644);
        for (modes, table, wanted) in [
            (&[(file, "")][..], "t", &["HEAD /etc/passwd", "GET /etc/passwd"][..]),
            (&[(link, "/t"), (file, "")], "t", &["HEAD /etc/passwd", "HEAD /t", "GET /t"]),
            (&[(pipe, "")], "", &["HEAD /etc/passwd"]),
            (&[(link, "/t"), (pipe, "")], "", &["HEAD /etc/passwd", "HEAD /t"]),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("engine");
            let mut asked = Vec::new();
            let read = runtime.block_on(async {
                let listener = tokio::net::UnixListener::bind(&socket).unwrap();
                let at = EngineAt {
                    socket,
                    minor_version: 41,
                    rootless: false,
                    user: (0, 0),
                    kind: EngineKind::Podman,
                };
                let engine = Engine::at(&at).unwrap();
                tokio::select! {
                    read = engine.read_table("it", "/etc/passwd") => read,
                    () = tell(listener, modes, &mut asked) => unreachable!(),
                }
            });
            assert_eq!(
                (read.as_deref(), &asked.iter().map(String::as_str).collect::<Vec<_>>()[..]),
                (Ok(table), wanted)
            );
        }
    }
}
