//! Overlays at an engine: local volumes, each an overlayfs of a lower directory of the caller's and an upper directory of the run's,
//! so that writes are kept apart. Mounting one takes root, which the engine has, if only in a user namespace of its own, and neither
//! the caller nor the command has.
//!
//! The engine looks both directories up by their paths, later than the shim's parent did: [`super::overlay_check`] proves inside
//! what it found.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bollard::models::{Mount, MountBindOptions, MountType, MountVolumeOptions, VolumeCreateRequest};
use policy::RunId;
use rustix::fs::{Gid, Mode, OFlags, Uid};

use super::names::labels;
use super::overlay_check::{FileIdentity, OverlayRequest};
use crate::changes::{Changes, WORK, WRITTEN, take_over_parked};
use crate::error::Error;
use crate::plan::Plan;
use crate::step::{Step, Visible};
use crate::undo::{Undo, UndoLog};

/// The mount points of the lower directories by themselves, and of the caches, to which links in the home lead.
const BELOW: &str = "/.lockgate-below";
const CACHES: &str = "/.lockgate-caches";

/// One overlay of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Overlay<'a> {
    number: usize,
    /// The lower directory.
    pub(super) below: &'a Path,
    /// The directory that holds [`WRITTEN`], the upper directory, and [`WORK`].
    above: &'a Path,
    /// The path at which the command finds it.
    pub(super) target: &'a Path,
    is_cache: bool,
}

/// Returns the overlays of a plan, in its order.
pub(super) fn overlays(plan: &Plan) -> impl Iterator<Item = Overlay<'_>> {
    let steps = plan.steps.iter().filter_map(of_step).enumerate();
    steps.map(|(number, overlay)| Overlay { number, ..overlay })
}

fn of_step(step: &Step) -> Option<Overlay<'_>> {
    match step {
        Step::OverlayWorkspace { workspace, changes } => {
            Some(Overlay { number: 0, below: workspace, above: changes, target: workspace, is_cache: false })
        }
        Step::ShowUnder { source, target, written: Some(written), .. } => {
            Some(Overlay { number: 0, below: source, above: written, target, is_cache: true })
        }
        _ => None,
    }
}

/// Makes the upper directories of caches, which the run does not keep, and gives all upper directories to the command's user.
///
/// # Errors
/// When one cannot be made, or would belong to another user.
pub(super) fn prepare(plan: &Plan, undo: &mut UndoLog) -> Result<(), Error> {
    let fail = |path: &Path, source: io::Error| Error::Source { path: path.into(), why: source.to_string() };
    let caches = || overlays(plan).filter(|it| it.is_cache);
    undo.push_all(caches().map(|it| Undo::Written(it.above.into())));
    for cache in caches() {
        Changes::make_layers(cache.above).map_err(|e| fail(cache.above, e))?;
    }
    for overlay in overlays(plan) {
        take_over_parked(overlay.above);
        let written = overlay.above.join(WRITTEN);
        let given = give(&written, plan.identity.uid.outside, plan.identity.gid.outside);
        given.and_then(|()| overlay.make_way(plan)).map_err(|e| fail(&written, e))?;
    }
    Ok(())
}

/// Gives a directory to the command's user. Only root can; any other caller must be that user.
fn give(written: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(written, flags, Mode::empty())?;
    if rustix::process::geteuid().is_root() {
        return Ok(rustix::fs::fchown(&directory, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?);
    }
    match rustix::fs::fstat(&directory)?.st_uid == uid {
        true => Ok(()),
        false => Err(io::Error::other(format!("it is yours, and the command would be user {uid}"))),
    }
}

impl Overlay<'_> {
    /// Returns the mount point of the lower directory by itself.
    pub(super) fn shown_below(&self) -> PathBuf {
        Path::new(BELOW).join(self.number.to_string())
    }

    /// Returns the mount point of the overlay. A cache is mounted outside the home: the engine makes the directories on the way to a
    /// mount, and they would be root's.
    pub(super) fn place(&self) -> PathBuf {
        if self.is_cache { Path::new(CACHES).join(self.number.to_string()) } else { self.target.into() }
    }

    /// Returns the link in the home to a cache: its path and its target.
    pub(super) fn link(&self) -> Option<(PathBuf, PathBuf)> {
        self.is_cache.then(|| (self.target.into(), self.place()))
    }

    fn volume_name(&self, run: &RunId) -> String {
        format!("lockgate-{run}-overlay-{}", self.number)
    }

    /// Returns the request for the volume.
    fn volume(&self, run: &RunId) -> VolumeCreateRequest {
        let above = |part: &str| self.above.join(part).display().to_string();
        // An index would leave files of root's in the run's directory; `userxattr` lets its owner read the attributes.
        let options = format!(
            "lowerdir={},upperdir={},workdir={},index=off,userxattr,nosuid,nodev",
            self.below.display(),
            above(WRITTEN),
            above(WORK)
        );
        let options = [("type", "overlay".to_owned()), ("device", "overlay".to_owned()), ("o", options)];
        VolumeCreateRequest {
            name: Some(self.volume_name(run)),
            driver: Some("local".into()),
            driver_opts: Some(options.map(|(name, value)| (name.to_owned(), value)).into()),
            ..VolumeCreateRequest::default()
        }
    }

    /// Returns the mounts of the overlay and of its lower directory.
    pub(super) fn mounts(&self, run: &RunId) -> [Mount; 2] {
        let volume = Mount {
            typ: Some(MountType::VOLUME),
            source: Some(self.volume_name(run)),
            target: Some(self.place().display().to_string()),
            read_only: Some(false),
            // The engine would otherwise copy the image's files at that path into it.
            volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
            ..Mount::default()
        };
        let below = Mount {
            typ: Some(MountType::BIND),
            source: Some(self.below.display().to_string()),
            target: Some(self.shown_below().display().to_string()),
            read_only: Some(true),
            // As an overlay shows it: without the mounts below.
            bind_options: Some(MountBindOptions { non_recursive: Some(true), ..MountBindOptions::default() }),
            ..Mount::default()
        };
        [volume, below]
    }

    /// Returns what the init must find inside, once the engine has mounted it.
    fn request(&self, plan: &Plan) -> io::Result<OverlayRequest> {
        let above = FileIdentity::of(&self.above.join(WRITTEN))?.ok_or(io::ErrorKind::NotFound)?;
        let above = above.seen_by(plan.identity.uid, plan.identity.gid);
        let covered = self.covered(plan).map(Path::to_path_buf).collect();
        Ok(OverlayRequest { place: self.place(), below: self.shown_below(), covered, above })
    }

    /// Returns the relative paths at which other mounts cover it.
    fn covered<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = &'a Path> {
        plan.steps.iter().filter_map(|step| match step {
            Step::Show(Visible { target, .. }) => target.strip_prefix(self.target).ok(),
            _ => None,
        })
    }

    /// Makes the missing directories on the way to the mounts in it: the engine would make them as root.
    fn make_way(&self, plan: &Plan) -> io::Result<()> {
        let is_there = |path: &Path| std::fs::symlink_metadata(self.below.join(path)).is_ok();
        let written = self.above.join(WRITTEN);
        let (uid, gid) = (plan.identity.uid.outside, plan.identity.gid.outside);
        for folder in self.covered(plan).filter_map(Path::parent) {
            let mut on_the_way: Vec<_> =
                folder.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
            on_the_way.reverse();
            for path in on_the_way.into_iter().skip_while(|path| is_there(path)) {
                match std::fs::DirBuilder::new().mode(0o755).create(written.join(path)) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    made => made.and_then(|()| give(&written.join(path), uid, gid))?,
                }
            }
        }
        Ok(())
    }
}

/// Returns the requests for a plan's overlay volumes.
pub(super) fn volumes(plan: &Plan) -> Vec<VolumeCreateRequest> {
    let labelled = |volume| VolumeCreateRequest { labels: Some(labels(plan)), ..volume };
    overlays(plan).map(|overlay| labelled(overlay.volume(&plan.run))).collect()
}

/// Adds what overlays need to an engine's error at the start of a container, which says little of a mount that failed.
pub(super) fn explain(plan: &Plan, text: String) -> String {
    if overlays(plan).next().is_none() {
        return text;
    }
    format!(
        "{text}; what is kept apart and the state directory must be on this engine's machine, on file systems that overlayfs can use"
    )
}

/// Returns what the init must find of all overlays of a plan.
pub(super) fn requests(plan: &Plan) -> io::Result<Vec<OverlayRequest>> {
    overlays(plan).map(|overlay| overlay.request(plan)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_volume_is_an_overlay_of_the_two_and_a_caches_place_is_beside_the_home() {
        let run: RunId = "abcdefghjkmn".parse().unwrap();
        let step = Step::ShowUnder {
            source: "/home/me/.npm/_cacache".into(),
            target: "/home/agent/.npm/_cacache".into(),
            size: policy::ByteSize::from_mib(1),
            written: Some("/s/written/r-0".into()),
        };
        let overlay = Overlay { number: 3, ..of_step(&step).unwrap() };
        let volume = overlay.volume(&run);
        assert_eq!(volume.name.as_deref(), Some("lockgate-abcdefghjkmn-overlay-3"));
        assert_eq!(
            volume.driver_opts.unwrap()["o"],
            "lowerdir=/home/me/.npm/_cacache,upperdir=/s/written/r-0/written,workdir=/s/written/r-0/work,\
             index=off,userxattr,nosuid,nodev"
        );
        let [volume, below] = overlay.mounts(&run);
        assert_eq!((volume.target.as_deref(), volume.read_only), (Some("/.lockgate-caches/3"), Some(false)));
        assert_eq!(volume.volume_options.unwrap().no_copy, Some(true));
        assert_eq!((below.target.as_deref(), below.read_only), (Some("/.lockgate-below/3"), Some(true)));
        let link = overlay.link().unwrap();
        assert_eq!(link, ("/home/agent/.npm/_cacache".into(), "/.lockgate-caches/3".into()));
    }
}
