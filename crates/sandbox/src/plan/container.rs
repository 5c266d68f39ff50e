//! The steps of the `container` backend: an image's layers under a private one that takes what is written.

use std::path::Path;

use policy::RunSpec;

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
    (image, home): (&RootImage, &Path),
    places: (&Path, Option<&Path>),
    tools: &tool::Brought,
    notices: &mut Vec<String>,
) -> Result<Vec<Step>, Error> {
    note_landlock(host, notices);
    let (size, inodes) = private_room(spec, host, notices);
    let mut steps = vec![Step::OpenSources, Step::MountImage { layers: image.layers.clone(), size, inodes }];
    let directories = [(Path::new("/tmp"), 0o1777), (Path::new("/var/tmp"), 0o1777), (home, 0o700)];
    steps.extend(directories.map(|(path, mode)| Step::Directory(path.into(), mode)));
    // The gateway's socket is made there: an image's link of that name could lead it to the workspace.
    steps.push(Step::OwnDirectory("/run".into(), 0o755));
    steps.extend([Step::WriteEtc, Step::MountProc, Step::MakeDevices]);
    show_places(&mut steps, spec, caller, places, tools)?;
    finish(&mut steps, host);
    Ok(steps)
}
