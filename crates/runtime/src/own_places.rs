//! Refuses a run whose command would see this program's records, keys or images, or could put others in their place or in the place of the
//! settings: every run obeys what is there.

use std::io;
use std::path::{Component, Path, PathBuf};

use sandbox::{Caller, Mount, Mounts, MountsOnceRead, Plan};

use crate::error::Error;
use crate::images::Images;
use crate::looks::Looks;
use crate::settings::{MANAGED, user_file};
use crate::state::StateDirectory;
use crate::way::Way;

const NOT_WRITTEN: &str =
    "choose another folder, show it with --workspace-mode ro or overlay, or unmount what is mounted there";
const NOT_SHOWN: &str = "choose a folder beside them, unmount what is mounted there, or move them with XDG_STATE_HOME and XDG_DATA_HOME";
const NOT_ON_THE_WAY: &str = "choose another folder, show it with --workspace-mode ro or overlay, or name other places with XDG_STATE_HOME, \
     XDG_DATA_HOME and XDG_CONFIG_HOME";

/// Refuses a plan that shows the command this program's records, keys or images, or lets it write to the settings, or to a folder on the
/// way to any of these. What is mounted below a path is shown with it.
pub(crate) fn refuse_own_state(
    plan: &Plan,
    state: &StateDirectory,
    caller: &Caller,
    mounts: &MountsOnceRead,
) -> Result<(), Error> {
    let (shown, writable): (Vec<_>, Vec<_>) = (plan.shown().collect(), plan.writable().collect());
    refuse(&shown, &writable, state, caller, mounts)
}

fn refuse(
    shown: &[&Path],
    writable: &[&Path],
    state: &StateDirectory,
    caller: &Caller,
    mounts: &MountsOnceRead,
) -> Result<(), Error> {
    if shown.is_empty() {
        return Ok(()); // Nor is anything writable.
    }
    let looks = Looks::default();
    let list = mounts.get().map_err(|error| unlisted(&error))?;
    let all =
        |paths: Vec<PathBuf>| paths.into_iter().map(|path| Towards::of(path, &looks)).collect::<Vec<_>>();
    let with_mounts =
        |places: Vec<Towards>, counts: fn(&Mount) -> bool| with_mounts_below(places, &list, counts, &looks);
    let [shown, writable] =
        [shown, writable].map(|paths| all(paths.iter().map(|path| path.to_path_buf()).collect()));
    let (shown, writable) =
        (with_mounts(shown, |_| true), with_mounts(writable, |mount| !mount.is_read_only));
    let files = all(user_file(caller).into_iter().chain([MANAGED.into()]).collect());
    let folders = files.iter().filter_map(|file| Some(file.path.parent()?.to_path_buf()));
    let led_to = files.iter().filter(|file| file.way.exists()).map(|file| file.way.end().to_path_buf());
    let settings = with_mounts(all(folders.chain(led_to).collect()), |_| true);
    if let Some(path) = overlapped(&settings, &writable, mounts)? {
        return Err(refused(path, "written", "the settings for every run are there", NOT_WRITTEN));
    }
    let images = Images::of(caller).ok().map(|images| images.directory().to_path_buf());
    let images: Vec<PathBuf> =
        images.into_iter().flat_map(|directory| [directory.join("images"), directory]).collect();
    let images = all(images);
    let mut own = all(state.places().collect());
    // A directory that does not exist shows nothing.
    own.extend(images.iter().filter(|place| !place.way.is_absent()).cloned());
    if let Some(path) = overlapped(&with_mounts(own.clone(), |_| true), &shown, mounts)? {
        return Err(refused(path, "shown", "this program's records, keys and images are there", NOT_SHOWN));
    }
    for place in own.iter().chain(&images).chain(&files) {
        if let Some(folder) = writable.iter().find(|folder| place.way.leads_through(&folder.way)) {
            let place = place.path.display();
            let why = format!("the way to {place} leads through it, and every run obeys what is found there");
            return Err(refused(&folder.path, "written", &why, NOT_ON_THE_WAY));
        }
    }
    Ok(())
}

/// A path, and where it leads.
#[derive(Clone)]
struct Towards {
    path: PathBuf,
    way: Way,
}

impl Towards {
    fn of(path: PathBuf, looks: &Looks) -> Self {
        Self { way: Way::towards(&path, looks), path }
    }
}

/// Returns the places, and what is mounted below them.
fn with_mounts_below(
    mut places: Vec<Towards>,
    mounts: &Mounts,
    counts: fn(&Mount) -> bool,
    looks: &Looks,
) -> Vec<Towards> {
    let below = places.iter().flat_map(|place| mounts.seen_below(place.way.end()));
    let below: Vec<_> =
        below.filter(|mount| counts(mount)).map(|mount| Towards::of(mount.at.clone(), looks)).collect();
    places.extend(below);
    places
}

/// Returns the first path that contains one of the directories or is inside one, so that whoever sees the path sees some of the
/// directory.
fn overlapped<'a>(
    directories: &[Towards],
    paths: &'a [Towards],
    mounts: &MountsOnceRead,
) -> Result<Option<&'a Path>, Error> {
    let found = paths.iter().find(|shown| {
        directories.iter().any(|own| {
            shown.way.end().starts_with(own.way.end())
                || own.way.ends_in(&shown.way)
                || is_below(&own.path, &shown.path)
        })
    });
    if let Some(shown) = found {
        return Ok(Some(&shown.path));
    }
    let ends = |all: &[Towards]| all.iter().map(|it| it.way.end().to_path_buf()).collect::<Vec<_>>();
    let at = sandbox::first_by_another_name(mounts, &ends(directories), &ends(paths));
    Ok(at.map_err(|error| unlisted(&error))?.map(|at| paths[at].path.as_path()))
}

fn unlisted(error: &io::Error) -> Error {
    refused(Path::new("/"), "looked at", &format!("/proc/self/mountinfo: {error}"), "mount /proc")
}

/// Whether a place lies below a folder as it is written. By `..` it may lead out of there again: then only the resolved one tells.
fn is_below(directory: &Path, folder: &Path) -> bool {
    directory.starts_with(folder) && !directory.components().any(|part| part == Component::ParentDir)
}

fn refused(path: &Path, how: &str, why: &str, remedy: &str) -> Error {
    let what = format!("`{}` cannot be {how} inside: {why}", path.display());
    sandbox::Error::Refused { what, remedy: Some(remedy.to_owned()) }.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A home whose places of this program lie behind links, some of which are in the folder `dotfiles`.
    fn home() -> (tempfile::TempDir, Caller) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for made in
            ["home/.local", "home/.config", "dotfiles", "settings", "data", "versions/v1/state/lockgate"]
        {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        symlink("../versions/v1", at("dotfiles/current")).unwrap();
        std::fs::create_dir(at("beside")).unwrap();
        let caller = Caller::new(1, 1, folder.path()).with_home(at("home"));
        (folder, caller)
    }

    #[test]
    fn no_folder_on_the_way_to_what_every_run_obeys_is_the_commands() {
        let cases = [
            ("home/.local/state", "../../dotfiles/current/state", "home/.local/state/lockgate"),
            ("home/.local/share", "../../dotfiles/current/none-yet", "home/.local/share/lockgate/images"),
            ("home/.config/lockgate", "../../dotfiles/current/state", "home/.config/lockgate/config.toml"),
            ("versions/v1/state/lockgate/live", "../../../../dotfiles/current", "state/lockgate/live"),
        ];
        for (link, target, place) in cases {
            let (folder, caller) = home();
            let at = |name: &str| folder.path().join(name);
            let state = match place.starts_with("state") {
                true => {
                    caller.clone().with_env([("XDG_STATE_HOME", at("versions/v1/state").to_str().unwrap())])
                }
                false => caller.clone(),
            };
            symlink(target, at(link)).unwrap();
            let state = StateDirectory::of(&state).unwrap();
            let told = |shown: &str, writable: &[&Path]| {
                refuse(&[&at(shown)], writable, &state, &caller, &MountsOnceRead::default())
            };
            let refused = told("dotfiles", &[&at("dotfiles")]).unwrap_err();
            assert!(
                refused.to_string().contains("dotfiles` cannot be written inside: the way to "),
                "{refused}"
            );
            assert!(refused.to_string().contains(place), "{place}: {refused}");
            assert!(refused.remedy().unwrap().contains("overlay"));
            assert!(told("dotfiles", &[]).is_ok(), "{place}: it is shown, and not for writing");
            assert!(told("beside", &[&at("beside")]).is_ok(), "{place}");
        }
    }

    #[test]
    fn a_place_is_where_it_leads_however_it_is_written() {
        let (folder, caller) = home();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("beside/state")).unwrap();
        for (name, written, is_refused) in [
            ("XDG_STATE_HOME", "beside/../home/.local/state", false),
            ("XDG_CONFIG_HOME", "beside/../home/.config", false),
            ("XDG_STATE_HOME", "home/../beside/state", true),
            ("XDG_CONFIG_HOME", "home/../beside/state", true),
        ] {
            let caller = caller.clone().with_env([(name, at(written).to_str().unwrap())]);
            let state = StateDirectory::of(&caller).unwrap();
            let told =
                refuse(&[&at("beside")], &[&at("beside")], &state, &caller, &MountsOnceRead::default());
            assert_eq!(told.is_err(), is_refused, "{name} {written}: {told:?}");
        }
    }

    #[test]
    fn the_settings_of_the_machine_are_nobodys_to_write() {
        let (folder, caller) = home();
        let state = StateDirectory::of(&caller).unwrap();
        for path in ["/etc/lockgate", "/etc", folder.path().join("home/.config").to_str().unwrap()] {
            let path = Path::new(path);
            let mounts = MountsOnceRead::default();
            let refused = refuse(&[path], &[path], &state, &caller, &mounts).unwrap_err().to_string();
            assert!(refused.contains("the settings for every run are there"), "{refused}");
            assert!(refuse(&[path], &[], &state, &caller, &mounts).is_ok());
        }
    }

    #[test]
    fn what_is_mounted_below_is_shown_too() {
        let (folder, caller) = home();
        let folder = folder.path().canonicalize().unwrap();
        let at = |name: &str| folder.join(name);
        for made in
            ["home/.local/state/lockgate/keys", "home/.local/share/lockgate/images", "home/.config/lockgate"]
        {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        let state = StateDirectory::of(&caller).unwrap();
        let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        // A line for a mount of a folder's, or of another file system's.
        let told = |mounted: Option<&str>, place: &str, how: &str, writable: &[&Path]| {
            let line = match mounted {
                Some(name) => {
                    let around = MountsOnceRead::of(&list).get().unwrap().place_of(&at(name)).unwrap();
                    format!(
                        "9999 1 {} {} {} {how} - x x rw\n",
                        around.device,
                        around.path.display(),
                        at(place).display()
                    )
                }
                None => format!("9999 1 9:9 / {} {how} - x x rw\n", at(place).display()),
            };
            let mounts = MountsOnceRead::of(&format!("{list}{line}"));
            refuse(&[&at("beside")], writable, &state, &caller, &mounts).map_err(|error| error.to_string())
        };
        for mounted in
            ["", "home", "home/.local/state/lockgate", "home/.local/state/lockgate/keys", "home/.local/share"]
        {
            for how in ["rw", "ro"] {
                let refused = told(Some(mounted), "beside/x", how, &[]).unwrap_err();
                assert!(
                    refused.contains("beside/x` cannot be shown inside: this program's"),
                    "{mounted}: {refused}"
                );
                assert_eq!(told(Some(mounted), "dotfiles/x", how, &[]), Ok(()), "{mounted}");
            }
        }
        let beside = at("beside");
        for (mounted, how, writable, is_refused) in [
            ("home/.config", "rw", &[&*beside][..], true),
            ("home/.config/lockgate", "rw", &[&*beside], true),
            ("home/.config/lockgate", "ro", &[&*beside], false),
            ("home/.config/lockgate", "rw", &[], false),
            ("dotfiles", "rw", &[&*beside], false),
        ] {
            let told = told(Some(mounted), "beside/x", how, writable);
            assert_eq!(told.is_err(), is_refused, "{mounted} {how}: {told:?}");
        }
        assert_eq!(told(None, "beside/x", "rw", &[&beside]), Ok(()));
        // A part of this program's own that is a mount.
        for part in ["home/.local/state/lockgate/new", "home/.local/share/lockgate/new"] {
            let refused = told(Some("beside"), part, "rw", &[]).unwrap_err();
            assert!(refused.contains("beside` cannot be shown inside"), "{part}: {refused}");
            assert_eq!(told(Some("dotfiles"), part, "rw", &[]), Ok(()), "{part}");
        }
        let settings = "home/.config/lockgate/new";
        assert!(told(Some("beside"), settings, "rw", &[&beside]).unwrap_err().contains("the settings"));
        assert_eq!(told(Some("beside"), settings, "rw", &[]), Ok(()));
    }
}
