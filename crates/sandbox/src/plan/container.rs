//! The steps of the `container` backend: an image's layers under a private layer for writes.

use std::path::{Path, PathBuf};

use policy::{RunSpec, Wiring};

use super::ids::Identity;
use super::inputs::PlanInputs;
use super::inside::{EVERYBODYS, GATEWAY_SOCKET};
use super::linux::{finish, note_landlock, private_room, show_places};
use crate::error::Error;
use crate::host::Host;
use crate::image::RootImage;
use crate::step::Step;

/// Returns the steps of the `container` backend.
pub(super) fn steps(
    inputs: &PlanInputs<'_>,
    image: &RootImage,
    notices: &mut Vec<String>,
) -> Result<Vec<Step>, Error> {
    let &PlanInputs { spec, host, additions, home, .. } = inputs;
    let root = ImageRoot { image, home, written: additions.written.as_deref() };
    let mut steps = root.steps(spec, host, notices)?;
    show_places(&mut steps, inputs)?;
    finish_image(&mut steps, spec.wiring, host);
    Ok(steps)
}

/// Adds the last steps of a sandbox whose root is an image's. Only then is the root entered: overlays of what is shown are made in the
/// private file system below it, which is left with the host's root.
pub(super) fn finish_image(steps: &mut Vec<Step>, wiring: Wiring, host: &Host) {
    steps.extend([Step::EnterRoot, Step::SetHostname]);
    finish(steps, wiring, host);
}

/// The root of an image, with nothing of the host in it.
pub(super) struct ImageRoot<'a> {
    pub(super) image: &'a RootImage,
    /// The home inside.
    pub(super) home: &'a Path,
    /// The host's directory for files written over the image, if memory cannot take them.
    pub(super) written: Option<&'a Path>,
}

impl ImageRoot<'_> {
    /// Returns the steps that make it.
    pub(super) fn steps(
        &self,
        spec: &RunSpec,
        host: &Host,
        notices: &mut Vec<String>,
    ) -> Result<Vec<Step>, Error> {
        note_landlock(host, notices);
        let (size, inodes) = private_room(spec, host, notices);
        let written = place_of_written(host, self.written, notices)?;
        let layers = self.image.layers.clone();
        let mut steps = vec![Step::OpenSources, Step::MountImage { layers, size, inodes, written }];
        // Whatever the image has there, the command can write to them.
        steps.extend(EVERYBODYS.map(|path| Step::Everybodys(path.into())));
        let is_kept = |path: &Path| !path.starts_with("/run");
        steps.extend(is_kept(self.home).then(|| Step::Home(self.home.into())));
        let volumes = self.image.volumes.iter();
        steps.extend(volumes.clone().filter(|path| is_kept(path)).cloned().map(Step::Volume));
        // Engines make it as well. The one that the policy names must be there.
        let directory = self.image.directory.as_ref().filter(|path| spec.directory.as_ref() == Some(path));
        let made = |path: PathBuf| Step::Directory(path, 0o755);
        steps.extend(directory.filter(|path| is_kept(path)).cloned().map(made));
        // Nobody is root inside.
        steps.extend(self.image.closed().map(|path| Step::LetInto(path.into())));
        // A directory of the sandbox's own, because the gateway's socket is made there: a link of that name in the image
        // could lead it into the workspace.
        steps.push(Step::OwnDirectory("/run".into(), 0o755));
        // It covers what the image has there.
        steps.extend(volumes.filter_map(|path| below_run(path)).map(Step::Volume));
        steps.extend(below_run(self.home).map(Step::Home));
        steps.extend(directory.and_then(|path| below_run(path)).map(made));
        steps.extend([Step::WriteEtc, Step::MountProc, Step::MakeDevices]);
        Ok(steps)
    }
}

/// Returns where a path lies in `/run`, if it lies below it and not where the gateway's socket is made. `/var/run` is mostly a link to
/// it, hier(7).
fn below_run(path: &Path) -> Option<PathBuf> {
    let below = path.strip_prefix("/run").or(path.strip_prefix("/var/run")).ok()?;
    let place = Path::new("/run").join(below);
    (!below.as_os_str().is_empty() && !place.starts_with(GATEWAY_SOCKET)).then_some(place)
}

/// Returns a notice if the image's files do not keep their owners. An image whose user is root loses nothing: the command stands in for
/// root, and may change what root could.
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

/// Returns the directory for files written over the image, or `None` for memory. They go to disk if overlayfs cannot use tmpfs.
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
