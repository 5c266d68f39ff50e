//! `lockgate image`: the local image store.

use std::collections::BTreeSet;
use std::path::Path;

use image::{Bounds, Command, Listed, Reference, Removed};
use policy::{ByteSize, ProviderId};
use runtime::{Images, PullAsked};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbox::Caller;

use crate::arguments::Image;
use crate::exit::{self, Done, Usage};
use crate::output::{self, ListForm};
use crate::progress::Progress;

pub(crate) fn image(arguments: Image) -> Done {
    let caller = super::caller()?;
    if let Image::Ls { json, quiet } = arguments {
        let images = Images::of(&caller)?;
        list(&images.list()?, ListForm::of(json, quiet))?;
        let unreadable = images.unreadable()?;
        for error in &unreadable {
            output::tell(&format!("an image is not listed: failed to {error}{}", advice(error)));
        }
        return Ok(u8::from(!unreadable.is_empty()));
    }
    // Files of images may belong to the caller's subordinate ids.
    let work = |images: &Images| i32::from(exit::number(look_after(images, &caller, arguments.clone())));
    let status = runtime::look_after_images(&caller, |why| output::tell(&format!("note: {why}")), work)?;
    Ok(u8::try_from(status).unwrap_or(1))
}

fn look_after(images: &Images, caller: &Caller, arguments: Image) -> Done {
    match arguments {
        Image::Pull { image, credential, plain_http, max_size } => {
            let reference: Reference = image.parse().map_err(runtime::Error::from)?;
            let credential = credential.map(|name| name.parse::<ProviderId>()).transpose();
            let credential = credential
                .map_err(|e| Usage::error(format!("--credential: {e}"), "as in --credential my-registry"))?;
            let asked = PullAsked {
                reference: &reference,
                credential: credential.as_ref(),
                plain_http,
                bounds: bounds(&max_size)?,
            };
            let mut progress = Progress::default();
            let listed = images.pull(&asked, caller, &mut |step| progress.show(step));
            progress.end();
            let listed = listed?;
            progress.report();
            show_taken(&listed)?;
        }
        Image::Import { source, name, config, max_size } => {
            let name =
                name.map(|name| name.parse::<Reference>()).transpose().map_err(runtime::Error::from)?;
            let command = config.as_deref().map(configured).transpose()?;
            take_all_descriptors();
            let listed = images.import(&source, name, command, bounds(&max_size)?);
            let listed = listed.map_err(|error| match (error, config) {
                // Only what has no configuration of its own is given one.
                (runtime::Error::Image(error @ image::Error::Document { what: "user", .. }), Some(path)) => {
                    wrong_in(&path, error)
                }
                (error, _) => error.into(),
            })?;
            for listed in listed {
                show_taken(&listed)?;
            }
        }
        Image::Ls { .. } => {}
        Image::Rm { images: names } => remove(images, &names)?,
        Image::Prune => {
            let removed = images.prune()?;
            output::tell(&format!("removed {} images{}", removed.images, freed(&removed)));
            tell_kept(&removed);
            removed.check_deleted().map_err(runtime::Error::from)?;
        }
    }
    Ok(0)
}

/// Allows as many descriptors as may be: each layer of an archive is held by one until all of its images are taken in.
fn take_all_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Removes all named images at once: on a full disk only what has no name left makes room. One that cannot be removed keeps all.
fn remove(images: &Images, names: &[String]) -> Result<(), runtime::Error> {
    let removed = images.remove(names)?;
    let named: BTreeSet<_> = names.iter().map(String::as_str).collect();
    let named = named.into_iter().collect::<Vec<_>>().join(", ");
    output::tell(&format!("removed {named}{}", freed(&removed)));
    tell_kept(&removed);
    Ok(removed.check_deleted()?)
}

/// Reads how a root file system is run from a file that a person wrote.
fn configured(path: &Path) -> Result<Command, anyhow::Error> {
    Command::read(path).map_err(|error| wrong_in(path, error))
}

/// Returns an error over that file as one of the command line's.
fn wrong_in(path: &Path, error: image::Error) -> anyhow::Error {
    use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    match error {
        image::Error::Document { why, .. } => {
            let meant = policy::did_it_mean(&why).map(|meant| format!("\n{meant}")).unwrap_or_default();
            runtime::Error::ParseSettings { path: path.into(), why: format!("{why}{meant}") }.into()
        }
        image::Error::Read { source, .. }
            if matches!(source.kind(), IsADirectory | NotADirectory | NotFound) =>
        {
            let why = if source.kind() == IsADirectory { "it is a folder" } else { "there is no such file" };
            let what = format!("--config {}: {why}", output::path(path));
            Usage::error(what, "name a file with the `config` of an image in it, as in {\"User\": \"app\"}")
        }
        error => runtime::Error::from(error).into(),
    }
}

fn bounds(size: &str) -> Result<Bounds, anyhow::Error> {
    let octets: ByteSize =
        size.parse().map_err(|e| Usage::error(format!("--max-size: {e}"), "as in --max-size 16GiB"))?;
    Ok(Bounds { octets: octets.bytes(), ..Bounds::default() })
}

/// Says why layers stay that no readable image needs.
fn tell_kept(removed: &Removed) {
    if let Some(why) = &removed.kept {
        output::tell(&format!(
            "all layers stay, because those of another image cannot be told: failed to {why}\n  to free the rest: pull or import \
             that image again, or remove it (lockgate image rm), then lockgate image prune"
        ));
    }
}

/// Returns what can be done about an error, as it follows the error.
fn advice(error: &image::Error) -> String {
    error.remedy().map(|remedy| format!("\n  {remedy}")).unwrap_or_default()
}

fn freed(removed: &Removed) -> String {
    match removed.octets {
        0 => String::new(),
        octets => format!(", {} freed", ByteSize::from_bytes(octets)),
    }
}

fn list(all: &[Listed], form: ListForm) -> Result<(), anyhow::Error> {
    if form == ListForm::Text && all.is_empty() {
        output::tell("no image is here; lockgate image pull NAME gets one");
    } else if form == ListForm::Text {
        output::answer(&format!("{:<12}  {:>9}  {:<20}  NAME", "IMAGE", "SIZE", "ADDED"))?;
    }
    for listed in all {
        let record = &listed.record;
        output::answer(&match form {
            ListForm::Names => record.digest.short().to_owned(),
            ListForm::Text => line(listed),
            ListForm::Json => serde_json::json!({
                "name": listed.name,
                "digest": record.digest.to_string(),
                "octets": record.octets(),
                "layers": record.layers.len(),
                "ports": record.command.service.ports,
                "volumes": record.command.service.volumes,
                "added": record.added,
            })
            .to_string(),
        })?;
    }
    Ok(())
}

/// Reports an imported image, and the image that lost its name to it: an archive names its own images.
fn show_taken(listed: &Listed) -> std::io::Result<()> {
    output::answer(&line(listed))?;
    if let (Some(name), Some(before)) = (&listed.name, &listed.before) {
        let name = output::plain(name);
        output::tell(&format!(
            "`{name}` was the name of {} until now, which is still there: lockgate image ls",
            before.short()
        ));
    }
    Ok(())
}

fn line(listed: &Listed) -> String {
    let record = &listed.record;
    let size = ByteSize::from_bytes(record.octets() >> 20 << 20);
    let name = output::plain(listed.name.as_deref().unwrap_or("-"));
    format!("{:<12}  {:>9}  {:<20}  {name}", record.digest.short(), size.to_string(), record.added)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_the_file_of_a_configuration_is_the_command_lines_matter() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        for text in ["[]", "{\"Usr\": \"x\"}"] {
            std::fs::write(&file, text).unwrap();
            let error = configured(&file).unwrap_err();
            assert_eq!(exit::code_and_remedy(&error).0, 2, "{error}");
        }
        for (path, why) in [
            (folder.path().to_owned(), "it is a folder"),
            (folder.path().join("none"), "there is no such file"),
            (file.join("none"), "there is no such file"),
        ] {
            let error = configured(&path).unwrap_err();
            assert!(
                error.to_string().starts_with("--config ") && error.to_string().ends_with(why),
                "{error}"
            );
            assert_eq!(exit::code_and_remedy(&error).0, 2, "{error}");
        }
    }
}
