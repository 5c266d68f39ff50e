//! Prepares an engine once per build: imports an image with our own binary and nothing else through its API, so that nothing is
//! pulled and nothing can be exchanged on the way. The image's name identifies the build of the binary.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateImageOptionsBuilder, RemoveVolumeOptions,
};
use futures_util::StreamExt;
use rustix::fs::FlockOperation;

use super::engine::Engine;
use super::engine_error::{NOT_FOUND, error_text, status};
use super::names::{BINARY, LABEL_VERSION};
use super::podman;
use crate::plan::engine::EngineKind;

const IMAGE: &str = "lockgate-sidecar";
/// How many octets of the binary are sent at once.
const PIECE: usize = 256 << 10;
const BLOCK: usize = 512;
/// How often a run that waits for another to import the image looks again, and how many times.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const MOST_POLLS: usize = 600;
/// How long the request for a file's attributes in a container may take.
const LOOKED_AT: Duration = Duration::from_secs(5);
/// How many octets of the binary's beginning identify a build: they include the linker's build id.
const BEGINNING: usize = 4096;
/// The `/etc/hosts` of a run, for an engine that would give it those of its host.
const HOSTS: &str = "127.0.0.1 localhost lockgate\n::1 localhost\n";

/// The names of the image and the volume that hold our binary.
#[derive(Clone, Debug)]
pub(super) struct OwnImage {
    pub(super) image: String,
    pub(super) volume: String,
    /// The engine's id of the image, if it was there before.
    pub(super) id: Option<String>,
}

/// Returns this binary's image and volume; imports the image if the engine has none.
pub(super) async fn own(engine: &Engine) -> Result<OwnImage, String> {
    let (own, binary, length) = name_own().map_err(|e| format!("this program's own file: {e}"))?;
    if let Some(id) = known(engine, &own.image).await? {
        return Ok(OwnImage { id: Some(id), ..own });
    }
    // One of all runs imports it: it is as large as the program.
    let _held = wait_for(&binary).await;
    if let Some(id) = known(engine, &own.image).await? {
        return Ok(OwnImage { id: Some(id), ..own });
    }
    import(engine, &own.image, binary, length).await?;
    Ok(own)
}

/// Returns this binary's image and volume, if the engine has the image.
pub(super) async fn known_own(engine: &Engine) -> Option<OwnImage> {
    let (own, ..) = name_own().ok()?;
    let id = known(engine, &own.image).await.ok()??;
    Some(OwnImage { id: Some(id), ..own })
}

/// Whether a container's copy of this program is not as long as the program: an engine that dies while it fills the volume takes it
/// for filled ever after. Returns `false` if the copy cannot be examined.
pub(super) async fn is_cut(engine: &Engine, container: &str) -> bool {
    let Ok((_, _, whole)) = name_own() else { return false };
    let options = ContainerArchiveInfoOptionsBuilder::default().path(BINARY).build();
    let about = engine.api.get_container_archive_info(container, Some(options));
    let about = tokio::time::timeout(LOOKED_AT, about).await;
    about.is_ok_and(|about| about.is_ok_and(|about| u64::try_from(about.size) != Ok(whole)))
}

/// Removes the volume with our binary, if no container uses it: the next container fills it again.
pub(super) async fn remove_volume(engine: &Engine) {
    if let Ok((own, ..)) = name_own() {
        let _ = engine.api.remove_volume(&own.volume, None::<RemoveVolumeOptions>).await;
    }
}

/// Returns the names of this binary's image and volume, the open binary, and its length.
fn name_own() -> io::Result<(OwnImage, File, u64)> {
    let binary = File::open("/proc/self/exe")?;
    let about = binary.metadata()?;
    let mut beginning = [0; BEGINNING];
    let read = binary.read_at(&mut beginning, 0)?;
    let build = build_id(about.len(), [about.mtime(), about.mtime_nsec()], &beginning[..read]);
    let tag = format!("{}-{build:016x}", env!("CARGO_PKG_VERSION"));
    let own = OwnImage { image: format!("{IMAGE}:{tag}"), volume: format!("lockgate-{tag}"), id: None };
    Ok((own, binary, about.len()))
}

/// Returns the engine's id of an image.
async fn known(engine: &Engine, image: &str) -> Result<Option<String>, String> {
    match engine.api.inspect_image(image).await {
        Ok(about) => Ok(about.id),
        Err(error) if status(&error) == Some(NOT_FOUND) => Ok(None),
        Err(error) => Err(error_text(&error)),
    }
}

/// Waits, with a bound, for the lock on this program's own file. Any user who can read the file can hold the lock, and two runs that
/// import the same image only take longer.
async fn wait_for(binary: &File) -> Option<File> {
    let lock = binary.try_clone().ok()?;
    for _ in 0..MOST_POLLS {
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Some(lock);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    None
}

/// Identifies a build: FNV-1a over the binary's size, its modification time, and its beginning.
fn build_id(length: u64, made: [i64; 2], beginning: &[u8]) -> u64 {
    let numbers = length.to_le_bytes().into_iter().chain(made.map(i64::to_le_bytes).into_iter().flatten());
    let octets = numbers.chain(beginning.iter().copied());
    octets.fold(0xcbf2_9ce4_8422_2325, |hash, octet| (hash ^ u64::from(octet)).wrapping_mul(0x0100_0000_01b3))
}

/// Imports the binary as an image.
async fn import(engine: &Engine, image: &str, binary: File, length: u64) -> Result<(), String> {
    // The entry point is set for each container.
    let label = format!("LABEL {LABEL_VERSION}={}", env!("CARGO_PKG_VERSION"));
    let (pieces, whole) = archive(binary, length).map_err(|e| e.to_string())?;
    if engine.kind == EngineKind::Podman {
        return podman::take_in(&engine.socket, image, &label, whole, pieces).await;
    }
    let options = CreateImageOptionsBuilder::default().from_src("-").repo(image).changes(vec![label]).build();
    let pieces = futures_util::stream::iter(pieces);
    let body = bollard::body_try_stream(pieces.map(|piece| piece.map(Into::into)));
    let mut steps = Box::pin(engine.api.create_image(Some(options), Some(body), None));
    while let Some(step) = steps.next().await {
        step.map_err(|error| error_text(&error))?;
    }
    Ok(())
}

/// Returns the pieces of an archive of a directory with the program and a hosts file, and the archive's length.
fn archive(binary: File, length: u64) -> io::Result<(impl Iterator<Item = io::Result<Vec<u8>>>, u64)> {
    let mut head = header(".lockgate/", 0, tar::EntryType::Directory)?;
    head.extend(header(".lockgate/hosts", HOSTS.len() as u64, tar::EntryType::Regular)?);
    head.extend(padded(HOSTS));
    head.extend(header(".lockgate/lockgate", length, tar::EntryType::Regular)?);
    let padding = (BLOCK - (length as usize) % BLOCK) % BLOCK;
    // Two empty blocks end an archive.
    let tail = vec![0; padding + 2 * BLOCK];
    let whole = (head.len() + tail.len()) as u64 + length;
    let mut left = binary.take(length);
    let content = std::iter::from_fn(move || {
        let mut piece = vec![0; PIECE];
        match left.read(&mut piece) {
            Ok(0) => None,
            Ok(read) => {
                piece.truncate(read);
                Some(Ok(piece))
            }
            Err(error) => Some(Err(error)),
        }
    });
    Ok((std::iter::once(Ok(head)).chain(content).chain(std::iter::once(Ok(tail))), whole))
}

/// Pads a short file to whole blocks.
fn padded(text: &str) -> Vec<u8> {
    let mut octets = text.as_bytes().to_vec();
    octets.resize(octets.len().next_multiple_of(BLOCK), 0);
    octets
}

fn header(path: &str, length: u64, kind: tar::EntryType) -> io::Result<Vec<u8>> {
    let mut header = tar::Header::new_ustar();
    header.set_path(path)?;
    header.set_size(length);
    header.set_mode(0o755);
    header.set_entry_type(kind);
    header.set_cksum();
    Ok(header.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_archive_holds_the_program_and_two_names() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 1300]).unwrap();
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
        let (pieces, whole) = archive(file, 1300).unwrap();
        let octets: Vec<u8> = pieces.flat_map(Result::unwrap).collect();
        assert_eq!(octets.len() as u64, whole);
        assert_eq!(octets.len() % BLOCK, 0);
        let mut archive = tar::Archive::new(octets.as_slice());
        let entries: Vec<(String, u64)> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.map(|e| (e.path().unwrap().display().to_string(), e.size())).unwrap())
            .collect();
        let expected =
            [(".lockgate/", 0), (".lockgate/hosts", HOSTS.len() as u64), (".lockgate/lockgate", 1300)];
        assert_eq!(entries, expected.map(|(path, size)| (path.to_owned(), size)));
    }

    #[test]
    fn another_build_has_another_name() {
        assert_ne!(build_id(1, [2, 3], b"a"), build_id(1, [2, 4], b"a"));
        assert_ne!(build_id(1, [2, 3], b"a"), build_id(2, [2, 3], b"a"));
        assert_ne!(build_id(1, [2, 3], b"a"), build_id(1, [2, 3], b"b"));
    }
}
