//! A blob on its way into the store: kept as it comes, so that an attempt that broke off is gone on with, and looked at only
//! once it is whole and what its digest says.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderValue, StatusCode, header};
use rustix::fs::FlockOperation;

use super::client::{Ask, Client, failed, refused};
use super::url::Url;
use crate::digest::Hasher;
use crate::error::Error;
use crate::manifest::Descriptor;
use crate::store;

/// How often a blob is asked for again that broke off, and for how long the next attempt waits at most.
const ATTEMPTS: u32 = 6;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A blob that is whole. Its file goes with it.
pub(super) struct Blob {
    pub(super) file: File,
    path: PathBuf,
}

impl Drop for Blob {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Downloads a blob, from where an earlier attempt has left it.
pub(super) async fn download(
    client: &Client<'_>,
    url: &Url,
    authorization: Option<HeaderValue>,
    descriptor: &Descriptor,
    path: PathBuf,
    received: &mut dyn FnMut(u64),
) -> Result<Blob, Error> {
    let here = |source| store::failed(&path, source);
    let mut file = open(&path).map_err(here)?;
    let mut hasher = Hasher::default();
    let mut length = begin(&mut file, descriptor.size, &mut hasher).map_err(here)?;
    received(length);
    let mut pause = Duration::from_millis(500);
    for attempt in 1..=ATTEMPTS {
        let ask = Ask { url: url.clone(), accept: "*/*", authorization: authorization.clone(), from: length };
        let done = once(client, &ask, descriptor, &mut file, (&mut hasher, &mut length), received).await;
        match done {
            Ok(()) => break,
            Err(Broken::Final(error)) => return Err(error),
            Err(Broken::Again(error, _)) if attempt == ATTEMPTS => return Err(error),
            Err(Broken::Again(_, wait)) => {
                tokio::time::sleep(wait.unwrap_or(pause).min(LONGEST_PAUSE)).await;
                pause *= 2;
            }
        }
    }
    let found = hasher.finish();
    if found != descriptor.digest {
        // What is wrong now would be wrong again: the next attempt begins anew.
        let _ = std::fs::remove_file(&path);
        let (expected, found) = (descriptor.digest.to_string(), found.to_string());
        return Err(Error::Digest { what: "a blob".into(), expected, found });
    }
    file.seek(SeekFrom::Start(0)).map_err(|source| store::failed(&path, source))?;
    Ok(Blob { file, path })
}

/// Why an attempt was not the last one, or was.
enum Broken {
    Again(Error, Option<Duration>),
    Final(Error),
}

async fn once(
    client: &Client<'_>,
    ask: &Ask,
    descriptor: &Descriptor,
    file: &mut File,
    (hasher, length): (&mut Hasher, &mut u64),
    received: &mut dyn FnMut(u64),
) -> Result<(), Broken> {
    if *length == descriptor.size {
        return Ok(());
    }
    let again = |source: io::Error| Broken::Again(failed(&ask.url, source), None);
    let last = |why: &str| Broken::Final(refused(&ask.url, why));
    let mut answer = client.get(ask).await.map_err(|error| Broken::Again(error, None))?;
    match answer.status {
        StatusCode::PARTIAL_CONTENT if ask.from > 0 => {
            let range = answer.text(header::CONTENT_RANGE).unwrap_or_default();
            if !range.starts_with(&format!("bytes {}-", ask.from)) {
                return Err(last("it sends another part than the one that was asked for"));
            }
        }
        StatusCode::OK => {
            // From the beginning, whatever was asked for.
            file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(again)?;
            (*hasher, *length) = (Hasher::default(), 0);
        }
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            let wait = answer.text(header::RETRY_AFTER).and_then(|text| text.parse().ok());
            let why = io::Error::other(format!("it answered {}", status.as_u16()));
            return Err(Broken::Again(failed(&ask.url, why), wait.map(Duration::from_secs)));
        }
        status => return Err(last(&format!("it answered {}", status.as_u16()))),
    }
    while let Some(data) = answer.next().await.map_err(again)? {
        if *length + data.len() as u64 > descriptor.size {
            return Err(last("it sends more than the manifest says"));
        }
        file.write_all(&data).map_err(|source| Broken::Final(failed(&ask.url, source)))?;
        hasher.update(&data);
        *length += data.len() as u64;
        received(data.len() as u64);
    }
    if *length == descriptor.size { Ok(()) } else { Err(again(io::ErrorKind::UnexpectedEof.into())) }
}

/// Opens the file of a blob and waits for another process that downloads the same.
fn open(path: &PathBuf) -> io::Result<File> {
    loop {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        // The one that had it may have taken it away with its work done.
        if rustix::fs::fstat(&file)?.st_nlink > 0 {
            return Ok(file);
        }
    }
}

/// Digests what is there already; more than there can be is thrown away.
fn begin(file: &mut File, most: u64, hasher: &mut Hasher) -> io::Result<u64> {
    if file.metadata()?.len() > most {
        file.set_len(0)?;
    }
    let mut buffer = vec![0; 128 << 10];
    let mut length = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(length),
            read => {
                hasher.update(&buffer[..read]);
                length += read as u64;
            }
        }
    }
}
