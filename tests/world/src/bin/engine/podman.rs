//! Podman's service in the place of `dockerd`: how it is told to keep to its folder, and what it leaves elsewhere. The images it
//! begins with are a store of others' that it reads.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FileType, Mode, chmodat, mknodat};
use rustix::mount::mount_bind;

use crate::daemon::PATH;
use crate::error::Error;
use crate::folder::Folder;
use crate::groups;
use crate::options::Account;

/// Folders of the machine in which it makes files, whatever it is told.
pub(crate) const OF_THE_MACHINE: [&str; 4] = ["/run/netns", "/run/containers", "/run/libpod", "/dev/shm"];
/// The control group that all containers of all its services are in.
const GROUP: &str = "libpod_parent";

/// The service of a folder, not yet started.
pub(crate) fn service(folder: &Folder, images: Option<&Path>) -> Result<Command, Error> {
    let mut command = Command::new("podman");
    keep_to(&mut command, folder, images)?;
    command.env("HOME", "/root").args(["system", "service", "--time=0", &folder.host()]);
    Ok(command)
}

/// The same, of somebody who is not root: the folder is theirs, with what an account has elsewhere.
pub(crate) fn service_of(folder: &Folder, account: Account) -> Result<Command, Error> {
    let (user, group) = (account.user.to_string(), account.group.to_string());
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &group, "--clear-groups", "--", "podman"]);
    keep_to(&mut command, folder, None)?;
    for (variable, name) in [("HOME", "home"), ("XDG_RUNTIME_DIR", "run")] {
        let path = folder.at(name);
        fs::create_dir_all(&path).map_err(Error::file(&path))?;
        command.env(variable, path);
    }
    let own = [folder.at(""), folder.files(), folder.at("scratch"), folder.at("home"), folder.at("run")];
    for path in own {
        chown(&path, Some(account.user), Some(account.group)).map_err(Error::file(&path))?;
    }
    command.args(["system", "service", "--time=0", &folder.host()]);
    Ok(command)
}

/// Everybody may have a tap of their own here, as on a machine of somebody's: without root, what leads out of a network is a program
/// at the end of one.
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

/// Has it keep to its folder.
fn keep_to(command: &mut Command, folder: &Folder, images: Option<&Path>) -> Result<(), Error> {
    // crun 1.8, which Debian 12 has, refuses a machine with control groups of both versions.
    let files = folder.files();
    let configuration = format!(
        "[engine]\ncgroup_manager = \"cgroupfs\"\nruntime = \"runc\"\nevents_logger = \"file\"\ntmp_dir = \"{0}/tmp\"\n\
         [network]\nnetwork_backend = \"netavark\"\nnetwork_config_dir = \"{0}/networks\"\n",
        files.display()
    );
    let storage = format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = \"{}\"\nrunroot = \"{}\"\n[storage.options]\nadditionalimagestores = [{}]\n",
        folder.data().display(),
        folder.state().display(),
        images.map(|path| format!("\"{}\"", path.display())).unwrap_or_default()
    );
    // Archives that it is given lie there for ever (its issue 28531), and go with the folder.
    let scratch = folder.at("scratch");
    fs::create_dir_all(&scratch).map_err(Error::file(&scratch))?;
    command.env_clear().env("TMPDIR", &scratch).env("PATH", PATH);
    for (variable, name, text) in [
        ("CONTAINERS_CONF", "containers.conf", configuration),
        ("CONTAINERS_STORAGE_CONF", "storage.conf", storage),
    ] {
        let path = folder.at(name);
        fs::write(&path, text).map_err(Error::file(&path))?;
        command.env(variable, path);
    }
    Ok(())
}

/// Removes the control groups of the containers that were killed with the service. Only those: the one they are in is shared.
pub(crate) fn remove_groups(folder: &Folder) {
    let containers = fs::read_dir(folder.data().join("overlay-containers"));
    for container in containers.into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        groups::remove(&format!("{GROUP}/libpod-{}", container.file_name().to_string_lossy()));
    }
}
