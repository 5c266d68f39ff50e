//! Podman's service in place of `dockerd`: its arguments that keep it to its folder, and what it leaves elsewhere. Its initial images are a
//! read-only additional store.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::daemon::PATH;
use crate::error::Error;
use crate::folder::Folder;
use crate::groups;
use crate::options::Account;
use crate::rootless;

/// Folders of the machine in which it makes files regardless of its arguments.
pub(crate) const OF_THE_MACHINE: [&str; 4] = ["/run/netns", "/run/containers", "/run/libpod", "/dev/shm"];
/// The control group of all containers of all its services.
const GROUP: &str = "libpod_parent";

/// Returns the service of a folder, not yet started.
pub(crate) fn service(folder: &Folder, images: Option<&Path>) -> Result<Command, Error> {
    let mut command = Command::new("podman");
    keep_to(&mut command, folder, images)?;
    command.env("HOME", "/root").args(["system", "service", "--time=0", &folder.host()]);
    Ok(command)
}

/// Returns the rootless service of a folder, not yet started.
pub(crate) fn service_of(folder: &Folder, account: Account) -> Result<Command, Error> {
    let mut command = rootless::as_account(account, "podman");
    keep_to(&mut command, folder, None)?;
    rootless::give(&mut command, folder, account)?;
    command.args(["system", "service", "--time=0", &folder.host()]);
    Ok(command)
}

/// Keeps it to its folder.
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
    // Podman never removes the archives it is given (its issue 28531); here they go with the folder.
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

/// Removes the control groups of the containers that were killed with the service, and no others: their parent is shared.
pub(crate) fn remove_groups(folder: &Folder) {
    let containers = fs::read_dir(folder.data().join("overlay-containers"));
    for container in containers.into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        groups::remove(&format!("{GROUP}/libpod-{}", container.file_name().to_string_lossy()));
    }
}
