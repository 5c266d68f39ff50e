//! Downloads a blob into the store. The octets are kept as they come, so that a broken download is resumed, and are used only once
//! the blob is complete and matches its digest.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use http::{HeaderValue, StatusCode, header};

use super::client::{Answer, Ask, Client, Pause, Stopped, failed, is_busy, refused};
use super::part::Part;
use super::url::Url;
use crate::digest::Hasher;
use crate::error::Error;
use crate::manifest::Descriptor;
use crate::store;

/// After this many octets a connection that breaks has made progress, and the count of attempts starts anew.
const PROGRESS: u64 = 16 << 20;

/// A complete blob. Its file is removed when it is dropped.
pub(super) struct Blob(Part);

impl Blob {
    pub(super) fn file(&self) -> &File {
        &self.0.file
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// A blob that is being downloaded.
pub(super) struct Download<'a> {
    descriptor: &'a Descriptor,
    part: Part,
    hasher: Hasher,
    length: u64,
    /// Whether the octets come from more than one answer, of which an earlier one may have been wrong.
    is_pieced: bool,
    /// Whether it has been begun anew because its digest was wrong.
    is_second: bool,
}

/// How an attempt to continue a download ended.
pub(super) enum Next {
    /// The blob is complete.
    Whole,
    /// The connection broke after progress.
    Advanced,
    /// The registry demands authentication.
    Denied(Box<Answer>),
}

/// Why one attempt ended before the blob was whole.
enum Broken {
    Again(Error, Option<std::time::Duration>),
    Denied(Box<Answer>),
    /// The registry does not continue it where it broke off.
    NotFromHere,
    Final(Error),
}

impl<'a> Download<'a> {
    /// Continues what an earlier attempt left. If another process downloads the blob, calls `waiting`, and waits for it within bounds.
    pub(super) async fn begin(
        path: PathBuf,
        descriptor: &'a Descriptor,
        waiting: &mut dyn FnMut(),
    ) -> Result<Self, Error> {
        let part = Part::open(path.clone(), descriptor.size, waiting).await;
        let mut part = part.map_err(|source| store::failed(&path, source))?;
        let mut hasher = Hasher::default();
        let length = begin(&mut part.file, descriptor.size, &mut hasher);
        let length = length.map_err(|source| store::failed(&path, source))?;
        Ok(Self { descriptor, part, hasher, length, is_pieced: length > 0, is_second: false })
    }

    /// Removes the download: its layer is in the store already.
    pub(super) fn forget(self) {
        self.part.remove();
    }

    /// Returns how many octets are here.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Requests the missing octets, and retries if the connection breaks.
    pub(super) async fn go_on(
        &mut self,
        client: &Client<'_>,
        url: &Url,
        authorization: Option<HeaderValue>,
        received: &mut dyn FnMut(u64),
    ) -> Result<Next, Error> {
        let begun = self.length;
        let mut pause = Pause::default();
        while self.length < self.descriptor.size {
            let (url, authorization) = (url.clone(), authorization.clone());
            let ask = Ask { url, accept: "*/*", authorization, from: self.length };
            match self.once(client, &ask, received).await {
                Ok(()) => {}
                Err(Broken::Final(error)) => return Err(error),
                Err(Broken::Denied(answer)) => return Ok(Next::Denied(answer)),
                // From its first octet on it asks for no range, so this comes once for each break.
                Err(Broken::NotFromHere) => self.begin_anew()?,
                Err(Broken::Again(..)) if self.length > begun + PROGRESS => return Ok(Next::Advanced),
                Err(Broken::Again(error, wish)) => pause.or_give_up(wish, error).await?,
            }
        }
        Ok(Next::Whole)
    }

    /// Begins anew, once, if its digest is wrong and an earlier answer may be to blame: that of an earlier pull, perhaps of another
    /// registry. Returns whether it has.
    pub(super) fn is_begun_anew(&mut self) -> Result<bool, Error> {
        let again =
            self.is_pieced && !self.is_second && self.hasher.clone().finish() != self.descriptor.digest;
        if again {
            self.is_second = true;
            self.begin_anew()?;
        }
        Ok(again)
    }

    /// Returns the blob, if it matches its digest.
    pub(super) fn finish(mut self) -> Result<Blob, Error> {
        let found = self.hasher.finish();
        if found != self.descriptor.digest {
            // Resuming would yield the same wrong blob: the next attempt begins anew.
            self.part.remove();
            let (expected, found) = (self.descriptor.digest.to_string(), found.to_string());
            return Err(Error::Digest { what: "a blob".into(), expected, found });
        }
        let begun = self.part.file.seek(SeekFrom::Start(0));
        begun.map_err(|source| store::failed(&self.part.path, source))?;
        Ok(Blob(self.part))
    }

    async fn once(
        &mut self,
        client: &Client<'_>,
        ask: &Ask,
        received: &mut dyn FnMut(u64),
    ) -> Result<(), Broken> {
        let mut answer = client.get(ask).await.map_err(|stopped| match stopped {
            Stopped::Refused(error) => Broken::Final(error),
            Stopped::Broken(error) => Broken::Again(error, None),
        })?;
        let place = answer.place(&ask.url).clone();
        let again = |source: io::Error| Broken::Again(failed(&place, source), None);
        match answer.status {
            StatusCode::PARTIAL_CONTENT if ask.from > 0 => {
                let range = answer.text(header::CONTENT_RANGE).unwrap_or_default();
                if !range.starts_with(&format!("bytes {}-", ask.from)) {
                    return Err(Broken::NotFromHere);
                }
                self.is_pieced = true;
            }
            StatusCode::RANGE_NOT_SATISFIABLE if ask.from > 0 => return Err(Broken::NotFromHere),
            StatusCode::OK => {
                // The answer begins at the first octet, whatever range was requested.
                self.begin_anew().map_err(Broken::Final)?;
            }
            StatusCode::UNAUTHORIZED => return Err(Broken::Denied(Box::new(answer))),
            status => {
                let error = answer.refusal(&ask.url);
                let busy = is_busy(status);
                return Err(if busy {
                    Broken::Again(error, answer.retry_after())
                } else {
                    Broken::Final(error)
                });
            }
        }
        while let Some(data) = answer.next().await.map_err(again)? {
            if self.length + data.len() as u64 > self.descriptor.size {
                if self.is_pieced {
                    return Err(Broken::NotFromHere);
                }
                // It is not the blob, and nothing could be continued.
                self.part.remove();
                return Err(Broken::Final(refused(&place, "it sends more than the manifest says")));
            }
            self.part.file.write_all(&data).map_err(|source| self.unwritten(source))?;
            self.hasher.update(&data);
            self.length += data.len() as u64;
            received(data.len() as u64);
        }
        if self.length == self.descriptor.size {
            Ok(())
        } else {
            Err(again(io::ErrorKind::UnexpectedEof.into()))
        }
    }

    /// Discards what is here.
    fn begin_anew(&mut self) -> Result<(), Error> {
        let emptied = self.part.file.set_len(0).and_then(|()| self.part.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|source| store::failed(&self.part.path, source))?;
        (self.hasher, self.length, self.is_pieced) = (Hasher::default(), 0, false);
        Ok(())
    }

    fn unwritten(&self, source: io::Error) -> Broken {
        Broken::Final(store::failed(&self.part.path, source))
    }
}

/// Hashes the octets that are here already. Discards them if there are more than the blob has.
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
