//! Opens the files that tell how names resolve, for a sidecar that may open none. A machine that changes networks writes them anew, and
//! a run that goes on follows.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use egress::{FileOpener, HOSTS, NameFiles, RESOLV_CONF};
use rustix::fs::OFlags;

/// In the message, a file that follows, and one that is not there or cannot be opened.
const FOLLOWS: u8 = b'f';
const NONE: u8 = b'-';

/// Returns what asks over the sidecar's end of the notices.
///
/// # Errors
/// When its descriptor cannot be duplicated.
pub(crate) fn opener(notices: BorrowedFd<'_>) -> io::Result<FileOpener> {
    Ok(FileOpener::over(notices.try_clone_to_owned()?, receive))
}

/// Opens the files, and sends them over the watcher's end of the notices. A sidecar that does not take them goes on with what it has.
pub(crate) fn send(notices: BorrowedFd<'_>) {
    let files = [RESOLV_CONF, HOSTS].map(open);
    let message = files.each_ref().map(|file| if file.is_some() { FOLLOWS } else { NONE });
    let descriptors: Vec<_> = files.iter().flatten().map(AsFd::as_fd).collect();
    let _ = sandbox::send_at_once(notices, &message, &descriptors);
}

/// A pipe in the place of a file must not hold up the run.
fn open(path: &str) -> Option<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path).ok()
}

fn receive(notices: BorrowedFd<'_>) -> io::Result<NameFiles> {
    let mut buffer = [0; 8];
    let (message, descriptors) = sandbox::receive_descriptors(notices, &mut buffer)?;
    let &[resolv_conf, hosts] = message else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    let mut files = descriptors.into_iter().map(File::from as fn(OwnedFd) -> File);
    let mut next = |kind| if kind == FOLLOWS { files.next() } else { None };
    Ok(NameFiles { resolv_conf: next(resolv_conf), hosts: next(hosts) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_files_of_this_machine_arrive_each_as_itself() {
        let (watcher, sidecar) = sandbox::message_pair().unwrap();
        send(watcher.as_fd());
        let NameFiles { resolv_conf, hosts } = receive(sidecar.as_fd()).unwrap();
        for (path, file) in [(RESOLV_CONF, resolv_conf), (HOSTS, hosts)] {
            let inode = file.map(|file| file.metadata().unwrap().ino());
            assert_eq!(inode, std::fs::metadata(path).ok().map(|file| file.ino()), "{path}");
        }
    }

    #[test]
    fn what_is_not_there_takes_no_other_ones_place() {
        let (watcher, sidecar) = sandbox::message_pair().unwrap();
        let hosts = tempfile::tempfile().unwrap();
        sandbox::send_at_once(&watcher, &[NONE, FOLLOWS], &[hosts.as_fd()]).unwrap();
        let files = receive(sidecar.as_fd()).unwrap();
        assert!(files.resolv_conf.is_none());
        assert_eq!(files.hosts.unwrap().metadata().unwrap().ino(), hosts.metadata().unwrap().ino());
        drop(watcher);
        assert!(receive(sidecar.as_fd()).is_err(), "the watcher is gone");
    }

    #[test]
    fn who_reads_nothing_holds_nobody_up() {
        let (watcher, _sidecar) = sandbox::message_pair().unwrap();
        (0..2_000).for_each(|_| send(watcher.as_fd()));
    }
}
