//! What a rootless engine needs in addition: the account, folders of its own, and taps.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FileType, Mode, chmodat, mknodat};
use rustix::mount::mount_bind;

use crate::error::Error;
use crate::folder::Folder;
use crate::options::Account;

/// Returns a program as that account.
pub(crate) fn as_account(account: Account, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    let (user, group) = (account.user.to_string(), account.group.to_string());
    command.args(["--reuid", &user, "--regid", &group, "--clear-groups", "--", program]);
    command
}

/// Gives an engine's folder to the account, with the folders that an account has elsewhere.
pub(crate) fn give(command: &mut Command, folder: &Folder, account: Account) -> Result<(), Error> {
    for (variable, name) in [("HOME", "home"), ("XDG_RUNTIME_DIR", "run"), ("TMPDIR", "scratch")] {
        let path = folder.at(name);
        fs::create_dir_all(&path).map_err(Error::file(&path))?;
        command.env(variable, path);
    }
    let own = ["", "files", "scratch", "home", "run"].map(|name| folder.at(name));
    for path in own {
        chown(&path, Some(account.user), Some(account.group)).map_err(Error::file(&path))?;
    }
    Ok(())
}

/// Lets every user make a tap here, as on a personal machine: without root, a program at the end of a tap leads out of a network.
pub(crate) fn open_taps(folder: &Folder) -> Result<(), Error> {
    let (path, device) = (folder.at("tun"), "/dev/net/tun");
    let number = fs::metadata(device).map_err(Error::file(device))?.rdev();
    mknodat(CWD, &path, FileType::CharacterDevice, Mode::from_raw_mode(0o666), number)
        .and_then(|()| chmodat(CWD, &path, Mode::from_raw_mode(0o666), AtFlags::empty()))
        .map_err(|error| Error::file(&path)(error.into()))?;
    mount_bind(&path, device).map_err(|source| Error::Mount {
        what: "a device for taps",
        target: device.into(),
        source: source.into(),
    })
}
