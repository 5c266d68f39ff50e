//! Looks whether the tables of accounts in an image are files, before an engine starts a container of it: the engine opens both, and waits
//! for the other end of a named pipe. All other clients of Podman wait as well; Docker can never remove that container again. The ids of
//! images that were looked at are kept in the directory of the slots: an image is looked at once, and again if too many others came after
//! it. What the tables say is not read here.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::time::{Duration, Instant};

use super::accounts::{self, Found};
use super::engine::Engine;
use super::slots::{POLL_INTERVAL, Slots};
use crate::plan::engine::{EngineKind, EngineRun};

/// The files that an engine opens: passwd(5), group(5).
const TABLES: [&str; 2] = ["/etc/passwd", "/etc/group"];
/// The name of the list of images.
const LOOKED_AT: &str = "looked-at";
/// How long a run waits for others that look, before it looks as well.
const LONGEST_TURN: Duration = Duration::from_secs(30);
/// How many images the list has, and its longest length.
const MOST_IMAGES: usize = 64;
const LONGEST_LIST: u64 = 64 << 10;

/// Refuses an image with a table that is there and no file. With the `labels` of the run, what a killed shim made to look is removed as
/// the run's.
pub(super) async fn refuse_others_than_files(
    engine: &Engine,
    run: &EngineRun,
    slots: &Slots,
    labels: HashMap<String, String>,
) -> Result<(), String> {
    let until = Instant::now() + LONGEST_TURN;
    let (mut list, mut known, _turn) = loop {
        // Without the list, each run looks again.
        let mut list = slots.file(LOOKED_AT).ok();
        let known = list.as_mut().map(read).unwrap_or_default();
        if known.contains(&run.config.id) {
            return Ok(());
        }
        // One after the other: of many runs that begin at once with an image, one looks.
        match slots.take_free("looks", 1) {
            Ok(None) if Instant::now() < until => tokio::time::sleep(POLL_INTERVAL).await,
            turn => break (list, known, turn),
        }
    };
    let look = || {
        accounts::ask_container(engine, run, labels.clone(), async |engine, container| {
            for table in TABLES {
                if let (_, Found::Other) = engine.led_to(container, table).await? {
                    return Ok(Some(table));
                }
            }
            Ok(None)
        })
    };
    // An engine that is asked for much at once now and then answers with an error of its own.
    let odd = match look().await {
        Err(_) => look().await?,
        Ok(odd) => odd,
    };
    if let Some(table) = odd {
        let harm = match engine.kind {
            EngineKind::Docker => "Docker would open it and wait, and could never remove that container",
            EngineKind::Podman => {
                "Podman would open it and wait, and so would everybody else who uses that Podman"
            }
        };
        return Err(format!("{table} is no file in it, and {harm}"));
    }
    known.push(run.config.id.clone());
    list.iter_mut().for_each(|list| write(list, &known));
    Ok(())
}

/// Returns the ids in a list; those of a list that another run writes meanwhile may be missing.
fn read(list: &mut File) -> Vec<String> {
    let mut text = String::new();
    let _ = list.take(LONGEST_LIST).read_to_string(&mut text);
    text.lines().map(str::to_owned).collect()
}

/// Writes the last ids to a list. What is lost is looked at again.
fn write(list: &mut File, ids: &[String]) {
    let last = &ids[ids.len().saturating_sub(MOST_IMAGES)..];
    let _ = list
        .set_len(0)
        .and_then(|()| list.rewind())
        .and_then(|()| list.write_all(last.join("\n").as_bytes()));
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::docker::names::LABEL_RUN;
    use crate::plan::engine::{EngineAt, EngineImage};

    /// An engine with an image whose tables have this mode, and the requests that it has answered.
    async fn engine_with_tables(
        listener: tokio::net::UnixListener,
        mode: u32,
        answered: &RefCell<Vec<String>>,
    ) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let about = serde_json::json!({"name": "", "size": 1, "mode": mode, "linkTarget": ""}).to_string();
        let about = data_encoding::BASE64.encode(about.as_bytes());
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 8192];
            let length = stream.read(&mut request).await.unwrap();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let body = match request.split(' ').next().unwrap() {
                "GET" => "[]",
                "POST" => r#"{"Id":"it","Warnings":[]}"#,
                _ => "",
            };
            answered.borrow_mut().push(request);
            let length = body.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nConnection: close\r\nX-Docker-Container-Path-Stat: {about}\r\nContent-Length: {length}\r\n\r\n"
            );
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        }
    }

    #[test]
    fn no_image_with_a_pipe_for_a_table_is_started_and_each_image_is_looked_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let modes = [(0o644, true), (1 << 25 | 0o644, false), (1 << 31 | 0o755, false)];
        let kinds = [EngineKind::Docker, EngineKind::Podman];
        for (kind, (mode, is_taken)) in kinds.into_iter().flat_map(|kind| modes.map(|mode| (kind, mode))) {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("engine");
            let slots = Slots::of(&folder.path().join("turns"), &socket);
            let at = EngineAt { socket, minor_version: 41, rootless: true, user: (1000, 1000), kind };
            let config = EngineImage { id: "sha256:a".into(), ..EngineImage::default() };
            let run = EngineRun {
                at,
                image: "a".into(),
                config,
                owner: (1000, 1000),
                pool: 0,
                ports: Vec::new(),
                published: Vec::new(),
                slots: folder.path().join("turns"),
            };
            let answered = RefCell::default();
            let looks: [(Result<(), String>, Vec<String>); 2] = runtime.block_on(async {
                let listener = tokio::net::UnixListener::bind(&run.at.socket).unwrap();
                let engine = Engine::at(&run.at).unwrap();
                let label = || [(LABEL_RUN.into(), "abcdefghjkmn".into())].into();
                let look = async || {
                    (refuse_others_than_files(&engine, &run, &slots, label()).await, answered.take())
                };
                let twice = async { [look().await, look().await] };
                tokio::select! {
                    looks = twice => looks,
                    () = engine_with_tables(listener, mode, &answered) => unreachable!(),
                }
            });
            for (number, (looked, asked)) in looks.iter().enumerate() {
                assert_eq!(looked.is_ok(), is_taken, "{looked:?}");
                let label = r#""dev.lockgate.run":"abcdefghjkmn""#;
                let has_made = asked.iter().any(|it| it.starts_with("POST ") && it.contains(label));
                assert!(has_made || asked.is_empty(), "{asked:?}");
                assert_eq!(has_made, number == 0 || !is_taken, "{asked:?}");
                let named = format!("/etc/passwd is no file in it, and {kind:?} would");
                assert!(looked.as_ref().err().is_none_or(|why| why.contains(&named)), "{looked:?}");
            }
        }
    }

    #[test]
    fn a_list_has_the_last_images() {
        let mut list = tempfile::tempfile().unwrap();
        let mut known = Vec::new();
        for number in 0..MOST_IMAGES + 2 {
            known.push(format!("sha256:{number}"));
            write(&mut list, &known);
        }
        list.rewind().unwrap();
        let kept = read(&mut list);
        assert_eq!((kept.len(), kept[0].as_str()), (MOST_IMAGES, "sha256:2"));
        write(&mut list, &["sha256:a".into()]);
        list.rewind().unwrap();
        assert_eq!(read(&mut list), ["sha256:a"]);
    }
}
