//! Two requests to the engine's API over its socket: a ping, and the import of an archive as an image.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::error::Error;

/// The time limit of a ping.
const SOON: Duration = Duration::from_secs(1);
/// The time limit of an import.
const LATE: Duration = Duration::from_secs(120);

/// Whether the daemon answers.
pub(crate) fn answers(socket: &Path) -> bool {
    let ask = || -> io::Result<String> {
        let mut stream = open(socket, SOON)?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")?;
        said(&mut stream)
    };
    ask().is_ok_and(|answer| is_success(&answer))
}

/// Makes an image of an archive, named as its file, as `docker import` does.
pub(crate) fn take_in(socket: &Path, archive: &Path) -> Result<(), Error> {
    let name = archive.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut file = File::open(archive).map_err(Error::file(archive))?;
    let length = file.metadata().map_err(Error::file(archive))?.len();
    let mut send = || -> io::Result<String> {
        let mut stream = open(socket, LATE)?;
        write!(
            stream,
            "POST /images/create?fromSrc=-&repo={name}&tag=latest HTTP/1.0\r\nHost: engine\r\n\
             Content-Type: application/x-tar\r\nContent-Length: {length}\r\n\r\n"
        )?;
        io::copy(&mut file, &mut stream)?;
        said(&mut stream)
    };
    let answer = match send() {
        Ok(answer) if is_success(&answer) && !answer.contains("\"error\"") => return Ok(()),
        Ok(answer) => answer,
        Err(error) => error.to_string(),
    };
    Err(Error::Import { name, message: answer })
}

fn open(socket: &Path, patience: Duration) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// Reads to the end of the answer, which is the end of the connection (HTTP/1.0).
fn said(stream: &mut UnixStream) -> io::Result<String> {
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn is_success(answer: &str) -> bool {
    answer.split(' ').nth(1) == Some("200")
}
