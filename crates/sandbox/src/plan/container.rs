//! The steps of the `container` backend: an image's layers under a private one that takes what is written.

use std::path::{Path, PathBuf};

use policy::RunSpec;

use super::ids::Identity;
use super::linux::{finish, note_landlock, private_room, show_places};
use crate::caller::Caller;
use crate::error::Error;
use crate::host::Host;
use crate::image::RootImage;
use crate::step::Step;
use crate::tool;

pub(super) fn steps(
    spec: &RunSpec,
    caller: &Caller,
    host: &Host,
    image: (&RootImage, &Path, Option<&Path>),
    places: (&Path, Option<&Path>),
    tools: &tool::Brought,
    notices: &mut Vec<String>,
) -> Result<Vec<Step>, Error> {
    let mut steps = root(spec, host, image, notices)?;
    show_places(&mut steps, spec, caller, places, tools)?;
    finish(&mut steps, spec.wiring, host);
    Ok(steps)
}

/// The root of an image, with nothing of this machine in it.
pub(super) fn root(
    spec: &RunSpec,
    host: &Host,
    (image, home, written): (&RootImage, &Path, Option<&Path>),
    notices: &mut Vec<String>,
) -> Result<Vec<Step>, Error> {
    note_landlock(host, notices);
    let (size, inodes) = private_room(spec, host, notices);
    let written = place_of_written(host, written, notices)?;
    let mut steps =
        vec![Step::OpenSources, Step::MountImage { layers: image.layers.clone(), size, inodes, written }];
    let directories = [(Path::new("/tmp"), 0o1777), (Path::new("/var/tmp"), 0o1777), (home, 0o700)];
    steps.extend(directories.map(|(path, mode)| Step::Directory(path.into(), mode)));
    steps.extend(image.volumes.iter().cloned().map(Step::Volume));
    // The gateway's socket is made there: an image's link of that name could lead it to the workspace.
    steps.push(Step::OwnDirectory("/run".into(), 0o755));
    steps.extend([Step::WriteEtc, Step::MountProc, Step::MakeDevices]);
    Ok(steps)
}

/// What is weaker where files do not belong to whom the image says. Nobody misses the owners of an image of root's: the command
/// stands in for root, and may change what root could.
pub(super) fn note_owners(image: &RootImage, identity: &Identity) -> Option<String> {
    let text = match identity.subordinate {
        _ if identity.owners_kept => return None,
        None => "every file of the image belongs to the command's own user, the one id there is",
        Some(_) if image.uid == 0 => return None,
        Some(_) => {
            "every file of the image belongs to the command's own user: it was taken in before there were ids for others, or its \
             file system keeps none. To try again, take it away with `lockgate image rm` and in again"
        }
    };
    Some(text.into())
}

/// Where what is written over the image goes: into memory, or on disk where overlayfs cannot do that.
fn place_of_written(
    host: &Host,
    place: Option<&Path>,
    notices: &mut Vec<String>,
) -> Result<Option<PathBuf>, Error> {
    if host.memory_attributes {
        return Ok(None);
    }
    let Some(place) = place else {
        let what = "files in memory have no attributes on this kernel, which an image needs".into();
        return Err(Error::Refused { what, remedy: Some("it takes Linux 6.6".into()) });
    };
    notices.push(
        "what is written over the image goes to disk, where `limits.disk` does not bound it: in memory it would take Linux 6.6"
            .into(),
    );
    Ok(Some(place.into()))
}
