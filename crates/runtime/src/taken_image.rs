//! Takes the image of a run or of a companion, out of this program's own store or at an engine, and settles the command that runs in it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use image::{Account, HealthCheck, Held, LentIds};
use policy::RunSpec;
use sandbox::{Accounts, Additions, Caller, EngineImage, EngineRun, RootImage, SubordinateIds};

use crate::error::{Error, plumbing};
use crate::ids::ClaimedIds;
use crate::images::{Images, lent_ids};

/// The longest `USER:GROUP` that an engine's image may name: a name has 32 characters, useradd(8).
const LONGEST_USER: usize = 256;

/// The image of a run or of a companion.
#[derive(Debug)]
pub(crate) enum TakenImage {
    /// One of this program's own store.
    Stored(Box<StoredImage>),
    /// One that an engine has.
    AtEngine(Box<EngineRun>),
}

impl TakenImage {
    /// Adds what the sandbox needs of the image.
    pub(crate) fn add_to(&self, additions: &mut Additions) {
        match self {
            Self::Stored(kept) => {
                additions.image = Some(root_of(&kept.image));
                additions.ids = kept.ids.as_ref().map(|ids| ids.range);
                additions.subordinate = kept.subordinate;
            }
            Self::AtEngine(engine) => {
                additions.image = Some(root_at(&engine.config));
                additions.engine = Some(EngineRun::clone(engine));
            }
        }
    }

    /// Returns the signal by which the image's command wants to be ended, where the image names one.
    pub(crate) fn stop_signal(&self) -> Option<i32> {
        match self {
            Self::Stored(kept) => kept.image.record.command.service.stop_signal,
            Self::AtEngine(engine) => image::signal(engine.config.stop_signal.as_deref()?),
        }
    }

    /// Returns what the audit knows the image by.
    pub(crate) fn digest(&self) -> String {
        match self {
            Self::Stored(kept) => kept.image.record.digest.to_string(),
            Self::AtEngine(engine) => engine.config.id.clone(),
        }
    }

    /// Returns the image's own health check; that of an engine's image is not taken.
    pub(crate) fn health(&self) -> Result<Option<&HealthCheck>, Error> {
        match self {
            Self::Stored(kept) if kept.image.record.command.service.health_is_malformed => {
                Err(sandbox::Error::Refused {
                    what: "the image's own health check is no command of at most 256 words".into(),
                    remedy: Some("declare `health.command` in that [[companion]]".into()),
                }
                .into())
            }
            Self::Stored(kept) => Ok(kept.image.record.command.service.health.as_ref()),
            Self::AtEngine(_) => Ok(None),
        }
    }
}

/// A stored image that a run holds for as long as it lives.
#[derive(Debug)]
pub(crate) struct StoredImage {
    image: Held,
    ids: Option<ClaimedIds>,
    /// The subordinate ids of a caller who is not root.
    subordinate: Option<SubordinateIds>,
}

/// Where a command is given.
#[derive(Clone, Copy)]
pub(crate) enum CommandOrigin {
    /// On the command line of the run.
    Line,
    /// In the declaration of a companion.
    Companion,
}

impl CommandOrigin {
    /// Returns how to give a command there, where an image has none.
    fn remedy(self) -> &'static str {
        match self {
            Self::Line => "lockgate run --image NAME -- CMD",
            Self::Companion => "give `command = […]` in that [[companion]]",
        }
    }
}

/// Holds the image that was asked for, and returns it with the whole command: the image's entry point with the given command, or with
/// the image's own, which starts in the directory that the image names.
pub(crate) fn take(
    spec: &mut RunSpec,
    caller: &Caller,
    command: Vec<OsString>,
    origin: CommandOrigin,
) -> Result<(Option<TakenImage>, Vec<OsString>), Error> {
    let Some(name) = &spec.image else { return Ok((None, command)) };
    let image = Images::of(caller)?.hold(name)?;
    let own = image.record.command.clone();
    let whole = whole_command(spec, command, origin, (&own.entrypoint, &own.command, &own.directory))?;
    let ids = if caller.superuser && image.record.owners_kept {
        let claimed = ClaimedIds::claim(std::process::id());
        Some(claimed.map_err(plumbing("claim ids for the run"))?)
    } else {
        None
    };
    let subordinate = lent_for(&image, caller)?;
    let kept = StoredImage { image, ids, subordinate };
    Ok((Some(TakenImage::Stored(Box::new(kept))), whole))
}

/// Returns the caller's subordinate ids. If the image's files belong to some, these must be the same.
fn lent_for(image: &Held, caller: &Caller) -> Result<Option<SubordinateIds>, Error> {
    if caller.superuser {
        return Ok(None);
    }
    let lent = SubordinateIds::of(caller);
    let Some(kept) = image.record.lent.map(|lent| lent.ids) else { return Ok(lent.ok()) };
    let why = match lent {
        Ok(ids) if lent_ids(ids) == kept => return Ok(Some(ids)),
        Ok(ids) => format!("now those from {} and {} on are", ids.users, ids.groups),
        Err(none) => format!("{}: {}", none.why, none.remedy),
    };
    let LentIds { users, groups } = kept;
    Err(sandbox::Error::Refused {
        what: format!("the image's files belong to the users from {users} and the groups from {groups} on, which were lent to you when it was taken in; {why}"),
        remedy: Some("take it away with `lockgate image rm`, and in again".into()),
    }
    .into())
}

/// Looks up the user that an engine's image names, in the image's own files, if only those tell.
pub(crate) fn find_account(engine: &mut EngineRun) -> Result<(), Error> {
    if !engine.config.names_account() {
        return Ok(());
    }
    let refused = |why: String| sandbox::Error::Refused {
        what: format!("the image `{}` names a user that does not exist in it: {why}", engine.image),
        remedy: None,
    };
    if engine.config.user.len() > LONGEST_USER {
        return Err(refused(format!("it is longer than {LONGEST_USER} octets")).into());
    }
    let Accounts { passwd, group } = sandbox::read_accounts(engine)?;
    let found = Account::find(&engine.config.user, &passwd, &group).map_err(refused)?;
    engine.config.ids = Some((found.uid, found.gid));
    Ok(())
}

/// Returns the whole command that runs in an image of an engine's.
pub(crate) fn command_of(
    spec: &mut RunSpec,
    config: &EngineImage,
    command: Vec<OsString>,
    origin: CommandOrigin,
) -> Result<Vec<OsString>, Error> {
    let directory = config.directory.as_deref().unwrap_or_default();
    whole_command(spec, command, origin, (&config.entrypoint, &config.command, directory))
}

/// Returns the image's entry point with the given command, or with the image's own.
fn whole_command(
    spec: &mut RunSpec,
    command: Vec<OsString>,
    origin: CommandOrigin,
    (entrypoint, own, directory): (&[String], &[String], &str),
) -> Result<Vec<OsString>, Error> {
    let words = |list: &[String]| list.iter().map(OsString::from).collect::<Vec<_>>();
    // One empty word is how an entry point of a base image is taken away.
    let is_none = matches!(entrypoint, [only] if only.is_empty());
    let mut whole = if is_none { Vec::new() } else { words(entrypoint) };
    let is_given = !command.is_empty();
    whole.extend(if is_given { command } else { words(own) });
    if !is_given && !directory.is_empty() && spec.directory.is_none() {
        spec.directory = Some(directory.into());
    } else if (!is_given || !is_none && !entrypoint.is_empty())
        && let Some(program) = whole.first_mut()
    {
        // It starts elsewhere, as in the workspace, where another program may have that name.
        *program = program_of(program, directory);
    }
    if whole.is_empty() {
        let name = spec.image.as_deref().unwrap_or_default();
        return Err(Error::NoCommand { image: name.into(), remedy: origin.remedy() });
    }
    Ok(whole)
}

/// Returns the program of an image. A relative path of it begins in the directory that the image names.
fn program_of(program: &OsStr, directory: &str) -> OsString {
    let is_relative = program.as_bytes().contains(&b'/') && !program.as_bytes().starts_with(b"/");
    if !is_relative {
        return program.into();
    }
    Path::new("/").join(directory).join(program).components().collect::<PathBuf>().into()
}

/// Returns the path of an image's own program, if the image names one by its path.
fn own_program(command: &image::Command) -> Option<PathBuf> {
    let program = command.entrypoint.iter().chain(&command.command).find(|word| !word.is_empty())?;
    let program = PathBuf::from(program_of(program.as_ref(), &command.directory));
    program.is_absolute().then_some(program)
}

/// Returns what a sandbox needs of an engine's image.
fn root_at(config: &EngineImage) -> RootImage {
    RootImage { environment: config.environment.clone(), ..RootImage::default() }
}

/// Returns what a sandbox needs of a stored image.
fn root_of(held: &Held) -> RootImage {
    let record = &held.record;
    RootImage {
        layers: held.layers.clone(),
        environment: record.command.environment.clone(),
        owners_kept: record.lent.is_some(),
        volumes: record.command.service.volumes.iter().map(PathBuf::from).collect(),
        uid: record.account.uid,
        gid: record.account.gid,
        groups: record.account.groups.clone(),
        user: record.account.name.clone(),
        home: record.account.home.as_ref().map(PathBuf::from),
        directory: Some(&record.command.directory).filter(|path| !path.is_empty()).map(PathBuf::from),
        program: own_program(&record.command),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_empty_word_is_no_entry_point() {
        let whole = |entrypoint: &[&str], own: &[&str]| {
            let mut spec = policy::Layers::default().compile().unwrap();
            let [entrypoint, own] =
                [entrypoint, own].map(|words| words.iter().map(|w| (*w).to_owned()).collect());
            let (entrypoint, own): (Vec<String>, Vec<String>) = (entrypoint, own);
            whole_command(&mut spec, Vec::new(), CommandOrigin::Line, (&entrypoint, &own, ""))
        };
        assert_eq!(whole(&[""], &["/start", "x"]).unwrap(), ["/start", "x"]);
        assert_eq!(whole(&["/e", ""], &[]).unwrap(), ["/e", ""]);
        assert!(whole(&[""], &[]).is_err());
    }
    #[test]
    fn the_program_of_an_image_is_what_it_begins_with() {
        let program = |entrypoint: &[&str], own: &[&str]| {
            let [entrypoint, command] =
                [entrypoint, own].map(|words| words.iter().map(|word| (*word).to_owned()).collect());
            let directory = "/app".to_owned();
            own_program(&image::Command { entrypoint, command, directory, ..image::Command::default() })
        };
        assert_eq!(program(&["./e"], &["/x"]), Some("/app/e".into()));
        assert_eq!(program(&[""], &["/root/x"]), Some("/root/x".into()));
        assert_eq!([program(&["sh"], &["/x"]), program(&[], &[])], [None, None]);
    }

    #[test]
    fn a_relative_program_of_an_image_is_looked_up_in_the_image() {
        let whole = |entrypoint: &[&str], own: &[&str], given: &[&str], directory: &str| {
            let mut spec = policy::Layers::default().compile().unwrap();
            let [entrypoint, own] =
                [entrypoint, own].map(|words| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
            let given = given.iter().map(OsString::from).collect();
            let whole = whole_command(&mut spec, given, CommandOrigin::Line, (&entrypoint, &own, directory));
            whole.unwrap().join(OsStr::new(" "))
        };
        assert_eq!(whole(&["./start"], &[], &["x"], "/app"), "/app/start x");
        assert_eq!(whole(&["bin/start"], &[], &["x"], ""), "/bin/start x");
        assert_eq!(whole(&[], &["./start"], &[], ""), "/start");
        assert_eq!(whole(&["./start"], &["x"], &[], "/app"), "./start x", "it starts there");
        assert_eq!(whole(&["start"], &[], &["x"], "/app"), "start x", "PATH tells");
        for none in [&[] as &[&str], &[""]] {
            assert_eq!(whole(none, &["./own"], &["./x"], "/app"), "./x", "it is the caller's");
        }
    }
}
