//! The folders and files of this machine that a run was to be shown. One that is not there is a slip in what was written; all else
//! that may be wrong with it is found as the run is planned.

use std::io::ErrorKind;
use std::path::Path;

use policy::RunSpec;
use sandbox::Caller;

use crate::arguments::Spec;
use crate::exit::Usage;
use crate::output;

/// Refuses a mount, a copy or a workspace that is not there, by the words that named it.
pub(super) fn refuse_missing(spec: &RunSpec, flags: &Spec, caller: &Caller) -> Result<(), anyhow::Error> {
    let mounts = spec.mounts.iter().map(|mount| mount.source.as_path());
    refuse_each(mounts.collect(), ("--mount", "mount"), &flags.mount, caller)?;
    let copies = spec.copies.iter().map(|copy| copy.source.as_path());
    refuse_each(copies.collect(), ("--copy", "copy"), &flags.copy, caller)?;
    let Some(workspace) = &spec.workspace else { return Ok(()) };
    let path = caller.resolve(workspace);
    let field = if flags.workspace.is_some() { "--workspace" } else { "workspace" };
    let told = |what: &str| {
        let what = format!("{field} `{}`: {what}", output::path(workspace));
        Err(Usage::error(what, "name the folder that the command is to work in"))
    };
    match std::fs::metadata(&path) {
        Ok(found) if !found.is_dir() => told("it is no folder"),
        Err(error) if is_missing(&error) => told(&format!("there is no {}", output::path(&path))),
        _ => Ok(()),
    }
}

/// Of the sources in force those of flags come last, after those of files.
fn refuse_each(
    sources: Vec<&Path>,
    (flag, field): (&str, &str),
    typed: &[String],
    caller: &Caller,
) -> Result<(), anyhow::Error> {
    let of_files = sources.len().saturating_sub(typed.len());
    for (at, source) in sources.into_iter().enumerate() {
        let path = caller.resolve(source);
        if std::fs::metadata(&path).is_err_and(|error| is_missing(&error)) {
            let named = match at.checked_sub(of_files).and_then(|at| typed.get(at)) {
                Some(typed) => format!("{flag} `{}`", output::plain(typed)),
                None => format!("[[{field}]] with source `{}`", output::path(source)),
            };
            let path = match path.is_symlink() {
                true => format!("{} is a link that leads nowhere", output::path(&path)),
                false => format!("there is no {}", output::path(&path)),
            };
            let what = format!("{named}: {path}");
            return Err(Usage::error(what, "make it first, or name what is there"));
        }
    }
    Ok(())
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use policy::{Layers, Origin};

    use super::*;

    #[test]
    fn what_is_not_there_is_named_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("none", folder.path().join("link")).unwrap();
        let caller = Caller {
            uid: 0,
            gid: 0,
            superuser: false,
            home: None,
            directory: folder.path().into(),
            environment: Vec::new(),
        };
        let file = "mount = [{ source = \"/none\", target = \"/x\" }]";
        for (text, flags, expected) in [
            ("", Spec { mount: vec!["file:/x".into()], ..Spec::default() }, ""),
            (
                "",
                Spec { mount: vec!["file:/x".into(), "/none:/y".into()], ..Spec::default() },
                "--mount `/none:/y`: ",
            ),
            (
                file,
                Spec { mount: vec!["file:/y".into()], ..Spec::default() },
                "[[mount]] with source `/none`: ",
            ),
            ("", Spec { copy: vec!["none:/y".into()], ..Spec::default() }, "--copy `none:/y`: there is no /"),
            ("", Spec { copy: vec!["link:/y".into()], ..Spec::default() }, "--copy `link:/y`: /"),
            (
                "",
                Spec { workspace: Some("none".into()), ..Spec::default() },
                "--workspace `none`: there is no /",
            ),
            (
                "",
                Spec { workspace: Some("file".into()), ..Spec::default() },
                "--workspace `file`: it is no folder",
            ),
            ("workspace = \"none\"", Spec::default(), "workspace `none`: there is no "),
        ] {
            let mut layers = Layers::default();
            layers.push(Origin::Named("file".into()), toml::from_str(text).unwrap());
            layers.push(Origin::Flags, super::super::spec::request(&flags).unwrap().flags);
            let judged = refuse_missing(&layers.compile().unwrap(), &flags, &caller);
            let told = judged.as_ref().map_or_else(ToString::to_string, |()| String::new());
            assert!(
                told.starts_with(expected) && told.is_empty() == expected.is_empty(),
                "{expected}: {told}"
            );
            assert!(judged.is_ok() || crate::exit::code_and_remedy(&judged.unwrap_err()).0 == 2);
        }
    }
}
