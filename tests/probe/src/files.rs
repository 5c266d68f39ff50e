//! Plain attempts on files and directories: read, write, list, make, rename, remove, link.
//! Nothing is repaired or retried; a path is used exactly as given.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use serde_json::{Value, json};

use crate::Probe;
use crate::report::Report;

/// The number of octets of a file that a report shows.
const SHOWN: usize = 512;

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "read", usage: "PATH", run: |a| one(a, read) },
    Probe { name: "open", usage: "PATH (opened for reading, nothing read)", run: |a| one(a, open) },
    Probe { name: "list", usage: "PATH", run: |a| one(a, list) },
    Probe { name: "stat", usage: "PATH", run: |a| one(a, stat) },
    Probe { name: "write", usage: "PATH TEXT", run: |a| two(a, write) },
    Probe { name: "append", usage: "PATH TEXT", run: |a| two(a, append) },
    Probe {
        name: "open-write",
        usage: "PATH (opened for writing, nothing written)",
        run: |a| one(a, open_write),
    },
    Probe {
        name: "mkdir",
        usage: "PATH",
        run: |a| one(a, |path| fs::create_dir(path).map(|()| Value::Null)),
    },
    Probe {
        name: "remove",
        usage: "PATH",
        run: |a| one(a, |path| fs::remove_file(path).map(|()| Value::Null)),
    },
    Probe {
        name: "rename",
        usage: "FROM TO",
        run: |a| two(a, |from, to| fs::rename(from, to).map(|()| Value::Null)),
    },
    Probe { name: "chmod", usage: "PATH OCTAL", run: |a| two(a, chmod) },
    Probe {
        name: "symlink-read",
        usage: "TARGET LINK (makes LINK, reads through it)",
        run: |a| two(a, symlink_read),
    },
    Probe {
        name: "symlink-write",
        usage: "TARGET LINK (makes LINK, writes through it)",
        run: |a| two(a, symlink_write),
    },
    Probe { name: "attribute", usage: "PATH NAME=VALUE (an extended attribute)", run: |a| two(a, attribute) },
    Probe {
        name: "hardlink",
        usage: "TARGET LINK",
        run: |a| two(a, |to, link| fs::hard_link(to, link).map(|()| Value::Null)),
    },
    Probe {
        name: "queue",
        usage: "NAME (makes a message queue, sends and receives)",
        run: |a| one(a, queue),
    },
    Probe { name: "device", usage: "PATH (makes and opens a copy of /dev/zero)", run: |a| one(a, device) },
];

fn one(arguments: &[String], run: fn(&str) -> io::Result<Value>) -> Option<Report> {
    let [path] = arguments else { return None };
    Some(run(path).into())
}

fn two(arguments: &[String], run: fn(&str, &str) -> io::Result<Value>) -> Option<Report> {
    let [first, second] = arguments else { return None };
    Some(run(first, second).into())
}

fn read(path: &str) -> io::Result<Value> {
    // Non-blocking, so that a FIFO or a terminal cannot hold the probe.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut bytes = vec![0; SHOWN];
    let length = file.read(&mut bytes)?;
    Ok(json!({ "bytes": length, "text": String::from_utf8_lossy(&bytes[..length]) }))
}

fn open(path: &str) -> io::Result<Value> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map(|_| Value::Null)
}

fn list(path: &str) -> io::Result<Value> {
    let mut names: Vec<String> = fs::read_dir(path)?
        .take(10_000)
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<_>>()?;
    names.sort();
    Ok(names.into())
}

fn stat(path: &str) -> io::Result<Value> {
    let data = fs::symlink_metadata(path)?;
    Ok(
        json!({ "uid": data.uid(), "gid": data.gid(), "mode": format!("{:o}", data.mode()), "bytes": data.len() }),
    )
}

fn write(path: &str, text: &str) -> io::Result<Value> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path)?.write_all(text.as_bytes())?;
    Ok(json!({ "bytes": text.len() }))
}

fn append(path: &str, text: &str) -> io::Result<Value> {
    OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes())?;
    Ok(json!({ "bytes": text.len() }))
}

fn open_write(path: &str) -> io::Result<Value> {
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).map(|_| Value::Null)
}

fn chmod(path: &str, octal: &str) -> io::Result<Value> {
    let mode = u32::from_str_radix(octal, 8).map_err(io::Error::other)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map(|()| Value::Null)
}

fn symlink_read(target: &str, link: &str) -> io::Result<Value> {
    std::os::unix::fs::symlink(target, link)?;
    let seen = read(link);
    fs::remove_file(link)?;
    seen
}

fn symlink_write(target: &str, link: &str) -> io::Result<Value> {
    std::os::unix::fs::symlink(target, link)?;
    let seen = write(link, "written through a link\n");
    fs::remove_file(link)?;
    seen
}

fn queue(name: &str) -> io::Result<Value> {
    let name = std::ffi::CString::new(name)?;
    let check = |value: i64| if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) };
    let mut received = [0u8; 64];
    // SAFETY: name, attributes and buffers outlive the calls that take them; the attributes are of the size that mq_open(3) wants.
    unsafe {
        let mut attributes: libc::mq_attr = std::mem::zeroed();
        (attributes.mq_maxmsg, attributes.mq_msgsize) = (1, 64);
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_NONBLOCK;
        let queue = libc::mq_open(name.as_ptr(), flags, 0o600, &raw mut attributes);
        check(queue.into())?;
        let passed = check(libc::mq_send(queue, b"message".as_ptr().cast(), 7, 0).into()).and_then(|_| {
            let (to, length) = (received.as_mut_ptr().cast(), received.len());
            check(libc::mq_receive(queue, to, length, std::ptr::null_mut()) as i64)
        });
        libc::mq_close(queue);
        check(libc::mq_unlink(name.as_ptr()).into())?;
        passed.map(|length| json!({ "received": length }))
    }
}

fn device(path: &str) -> io::Result<Value> {
    let name = std::ffi::CString::new(Path::new(path).as_os_str().as_bytes())?;
    // SAFETY: `name` is a terminated string that outlives the call. Major 1, minor 5 is /dev/zero (devices.txt).
    if unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(1, 5)) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let opened = fs::File::open(path).map(|_| Value::Null);
    fs::remove_file(path)?;
    opened
}

fn attribute(path: &str, set: &str) -> io::Result<Value> {
    let (name, value) = set.split_once('=').ok_or(io::ErrorKind::InvalidInput)?;
    let (path, name) = (std::ffi::CString::new(path)?, std::ffi::CString::new(name)?);
    // SAFETY: both texts end with a NUL, and the value is as long as it says.
    let set = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if set == 0 { Ok(Value::Null) } else { Err(io::Error::last_os_error()) }
}
