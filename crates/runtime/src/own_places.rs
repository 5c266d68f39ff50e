//! Refuses a run whose command would see this program's records, keys or images, or could put others in their place or in the place of the
//! settings: every run obeys what is there.

use std::path::{Component, Path, PathBuf};

use sandbox::{Caller, Plan};

use crate::error::Error;
use crate::images::Images;
use crate::looks::Looks;
use crate::settings::{MANAGED, user_file};
use crate::state::StateDirectory;
use crate::way::Way;

const NOT_WRITTEN: &str = "choose another folder, or show it with --workspace-mode ro or overlay";
const NOT_ON_THE_WAY: &str = "choose another folder, show it with --workspace-mode ro or overlay, or name other places with XDG_STATE_HOME, \
     XDG_DATA_HOME and XDG_CONFIG_HOME";

/// Refuses a plan that shows the command this program's records, keys or images, or lets it write to the settings, or to a folder on the
/// way to any of these.
pub(crate) fn refuse_own_state(plan: &Plan, state: &StateDirectory, caller: &Caller) -> Result<(), Error> {
    let (shown, writable): (Vec<_>, Vec<_>) = (plan.shown().collect(), plan.writable().collect());
    refuse(&shown, &writable, state, caller)
}

fn refuse(shown: &[&Path], writable: &[&Path], state: &StateDirectory, caller: &Caller) -> Result<(), Error> {
    let looks = Looks::default();
    let towards = |path: PathBuf| Towards { way: Way::towards(&path, &looks), path };
    let all = |paths: Vec<PathBuf>| paths.into_iter().map(towards).collect::<Vec<_>>();
    let [shown, writable] =
        [shown, writable].map(|paths| all(paths.iter().map(|path| path.to_path_buf()).collect()));
    let files = all(user_file(caller).into_iter().chain([MANAGED.into()]).collect());
    let folders = files.iter().filter_map(|file| Some(file.path.parent()?.to_path_buf()));
    let led_to = files.iter().filter(|file| file.way.exists()).map(|file| file.way.end().to_path_buf());
    let settings = all(folders.chain(led_to).collect());
    if let Some(path) = overlapped(&settings, &writable)? {
        return Err(refused(path, "written", "the settings for every run are there", NOT_WRITTEN));
    }
    let images = Images::of(caller).ok().map(|images| images.directory().to_path_buf());
    let images: Vec<PathBuf> =
        images.into_iter().flat_map(|directory| [directory.join("images"), directory]).collect();
    let images = all(images);
    let mut own = all(state.places().collect());
    // A directory that does not exist shows nothing.
    own.extend(images.iter().filter(|place| !place.way.is_absent()).cloned());
    if let Some(path) = overlapped(&own, &shown)? {
        let why = "this program's records, keys and images are there";
        let elsewhere = "choose a folder beside them, or move them with XDG_STATE_HOME and XDG_DATA_HOME";
        return Err(refused(path, "shown", why, elsewhere));
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

/// Returns the first path that contains one of the directories or is inside one, so that whoever sees the path sees some of the
/// directory.
fn overlapped<'a>(directories: &[Towards], paths: &'a [Towards]) -> Result<Option<&'a Path>, Error> {
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
    let at = sandbox::first_by_another_name(&ends(directories), &ends(paths)).map_err(|error| {
        refused(Path::new("/"), "looked at", &format!("/proc/self/mountinfo: {error}"), "mount /proc")
    })?;
    Ok(at.map(|at| paths[at].path.as_path()))
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
            let told = |shown: &str, writable: &[&Path]| refuse(&[&at(shown)], writable, &state, &caller);
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
            let told = refuse(&[&at("beside")], &[&at("beside")], &state, &caller);
            assert_eq!(told.is_err(), is_refused, "{name} {written}: {told:?}");
        }
    }

    #[test]
    fn the_settings_of_the_machine_are_nobodys_to_write() {
        let (folder, caller) = home();
        let state = StateDirectory::of(&caller).unwrap();
        for path in ["/etc/lockgate", "/etc", folder.path().join("home/.config").to_str().unwrap()] {
            let path = Path::new(path);
            let refused = refuse(&[path], &[path], &state, &caller).unwrap_err().to_string();
            assert!(refused.contains("the settings for every run are there"), "{refused}");
            assert!(refuse(&[path], &[], &state, &caller).is_ok());
        }
    }
}
