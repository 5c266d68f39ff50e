//! Consumes memory, disk, inodes, descriptors, pseudo-terminals, message queues, processor time. Each up to a given amount, never more, and
//! gives back what it took. `refused` means that a limit stopped it; the detail says where.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::FromRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::Probe;
use crate::report::{Outcome, Report};

const MIB: usize = 1 << 20;

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "eat-memory", usage: "MIB", run: memory },
    Probe { name: "fill-disk", usage: "DIRECTORY MIB", run: disk },
    Probe { name: "fill-inodes", usage: "DIRECTORY N", run: inodes },
    Probe { name: "open-files", usage: "N", run: files },
    Probe { name: "open-terminals", usage: "N", run: terminals },
    Probe { name: "open-queues", usage: "N (of POSIX messages)", run: queues },
    Probe { name: "spin", usage: "SECONDS THREADS", run: spin },
    Probe { name: "print", usage: "MIB (to stderr, as fast as it goes)", run: print },
];

fn amount(text: &str, most: usize) -> Option<usize> {
    text.parse::<usize>().ok().map(|wanted| wanted.min(most))
}

fn stopped(error: Option<io::Error>, got: usize, wanted: usize) -> Report {
    let detail = json!({ "got": got, "wanted": wanted });
    match error {
        Some(error) => Report { outcome: Outcome::Refused, errno: error.raw_os_error(), detail },
        None => Report::done(detail),
    }
}

fn memory(arguments: &[String]) -> Option<Report> {
    let [wanted] = arguments else { return None };
    let wanted = amount(wanted, 16 * 1024)?;
    let mut held: Vec<Vec<u8>> = Vec::new();
    for _ in 0..wanted {
        let mut piece = Vec::new();
        if piece.try_reserve_exact(MIB).is_err() {
            return Some(stopped(Some(io::Error::from_raw_os_error(libc::ENOMEM)), held.len(), wanted));
        }
        // A nonzero value, so that every page is really allocated.
        piece.resize(MIB, 0xa5);
        held.push(std::hint::black_box(piece));
    }
    Some(stopped(None, held.len(), wanted))
}

fn disk(arguments: &[String]) -> Option<Report> {
    let [directory, wanted] = arguments else { return None };
    let wanted = amount(wanted, 64 * 1024)?;
    let path = Path::new(directory).join("probe-fill");
    let mut file = match File::create(&path) {
        Ok(file) => file,
        Err(error) => return Some(error.into()),
    };
    let piece = vec![0xa5; MIB];
    let mut got = 0;
    let mut failure = None;
    while got < wanted && failure.is_none() {
        match file.write_all(&piece) {
            Ok(()) => got += 1,
            Err(error) => failure = Some(error),
        }
    }
    // A failed removal is visible in the directory.
    let _ = fs::remove_file(&path);
    Some(stopped(failure, got, wanted))
}

fn inodes(arguments: &[String]) -> Option<Report> {
    let [directory, wanted] = arguments else { return None };
    let wanted = amount(wanted, 4_000_000)?;
    let root = Path::new(directory).join("probe-inodes");
    if let Err(error) = fs::create_dir(&root) {
        return Some(error.into());
    }
    let mut got = 0;
    let mut failure = None;
    while got < wanted && failure.is_none() {
        match File::create(root.join(got.to_string())) {
            Ok(_) => got += 1,
            Err(error) => failure = Some(error),
        }
    }
    // As above: what cannot be removed is visible in the directory.
    let _ = fs::remove_dir_all(&root);
    Some(stopped(failure, got, wanted))
}

fn files(arguments: &[String]) -> Option<Report> {
    hold_open(arguments, || File::open("/dev/null"))
}

fn terminals(arguments: &[String]) -> Option<Report> {
    hold_open(arguments, || OpenOptions::new().read(true).write(true).open("/dev/ptmx"))
}

fn queues(arguments: &[String]) -> Option<Report> {
    hold_open(arguments, || {
        let name = CString::new(format!("/lockgate-probe-{}", std::process::id()))?;
        // SAFETY: the name ends with NUL, and without attributes the kernel reads nothing else. The descriptor is new, and nobody's.
        unsafe {
            let opened =
                libc::mq_open(name.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600, std::ptr::null::<u8>());
            if opened < 0 {
                return Err(io::Error::last_os_error());
            }
            // It counts as long as it is open, and the next one has the name.
            libc::mq_unlink(name.as_ptr());
            Ok(File::from_raw_fd(opened))
        }
    })
}

fn hold_open(arguments: &[String], open: fn() -> io::Result<File>) -> Option<Report> {
    let [wanted] = arguments else { return None };
    let wanted = amount(wanted, 2_000_000)?;
    let mut held = Vec::new();
    while held.len() < wanted {
        match open() {
            Ok(file) => held.push(file),
            Err(error) => return Some(stopped(Some(error), held.len(), wanted)),
        }
    }
    Some(stopped(None, held.len(), wanted))
}

fn spin(arguments: &[String]) -> Option<Report> {
    let [seconds, threads] = arguments else { return None };
    let (seconds, threads) = (amount(seconds, 60)?, amount(threads, 16)?);
    let start = Instant::now();
    let until = start + Duration::from_secs(seconds as u64);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            });
        }
    });
    // SAFETY: `usage` is a valid place for the answer.
    let used = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage.ru_utime.tv_sec as f64
            + usage.ru_utime.tv_usec as f64 / 1e6
            + usage.ru_stime.tv_sec as f64
            + usage.ru_stime.tv_usec as f64 / 1e6
    };
    Some(Report::done(json!({ "wall": start.elapsed().as_secs_f64(), "processor": used })))
}

fn print(arguments: &[String]) -> Option<Report> {
    let [wanted] = arguments else { return None };
    let wanted = amount(wanted, 16 * 1024)?;
    let line = [b'.'; 4096];
    let mut error = io::stderr().lock();
    for got in 0..wanted * MIB / line.len() {
        if let Err(failure) = error.write_all(&line) {
            return Some(stopped(Some(failure), got * line.len() / MIB, wanted));
        }
    }
    Some(stopped(None, wanted, wanted))
}
