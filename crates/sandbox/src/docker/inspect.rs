//! Looks up the configuration of an engine's image. Its name is part of a request's path, and its configuration is whatever its maker
//! wrote: neither is used before it is known to be one.

use std::collections::HashMap;
use std::path::PathBuf;

use bollard::models::{ImageConfig, ImageInspect};

use super::names::LABELS;
use crate::error::Error;
use crate::plan::engine::EngineImage;

/// Refuses a name that is none of an image: another path than an image's could be requested by it, or further parameters.
pub(super) fn refuse_other_names(name: &str) -> Result<(), Error> {
    // Those of a reference, with a port, a tag, a digest and an address of IPv6.
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "._-/:@[]".contains(c);
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    if name.chars().all(is_of_name) && name.split('/').all(is_part) {
        return Ok(());
    }
    Err(Error::Refused {
        what: format!("`{}` is no name of an image", name.escape_debug()),
        remedy: Some("name one as the engine lists it: NAME, NAME:TAG, NAME@DIGEST or its id".into()),
    })
}

/// Returns the configuration of the image that a name means, once it is known to be usable.
pub(super) fn usable(name: &str, about: ImageInspect) -> Result<EngineImage, Error> {
    let config = about.config.unwrap_or_default();
    // Containers are made by the id that was looked at: the name may mean another image by then.
    let id = about.id.filter(|id| !id.is_empty()).ok_or_else(|| Error::Refused {
        what: format!("the engine does not tell the id of the image `{name}`"),
        remedy: None,
    })?;
    refuse_our_labels(name, &config)?;
    let config = configured(id, config);
    refuse_nul(name, &config)?;
    Ok(config)
}

fn configured(id: String, config: ImageConfig) -> EngineImage {
    let variables = config.env.unwrap_or_default();
    let environment: HashMap<String, String> = variables
        .iter()
        .filter_map(|pair| pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
        // An engine refuses a variable without a name, and no program could ask for it.
        .filter(|(name, _)| !name.is_empty())
        .collect();
    EngineImage {
        id,
        environment: environment.into_iter().collect(),
        entrypoint: config.entrypoint.unwrap_or_default(),
        command: config.cmd.unwrap_or_default(),
        directory: config.working_dir.filter(|directory| !directory.is_empty()),
        ids: config.user.as_deref().and_then(numbered),
        user: config.user.unwrap_or_default(),
        volumes: config.volumes.unwrap_or_default().into_iter().map(PathBuf::from).collect(),
        linked: Vec::new(),
        stop_signal: config.stop_signal,
    }
}

/// Parses a numeric user and group; without a group it is the user's number.
fn numbered(user: &str) -> Option<(u32, u32)> {
    let (user, group) = user.split_once(':').unwrap_or((user, user));
    Some((user.parse().ok()?, group.parse().ok()?))
}

/// Refuses an image with a label of ours. A container has its image's labels too, so whoever looks for ours would find it.
fn refuse_our_labels(image: &str, config: &ImageConfig) -> Result<(), Error> {
    let names = config.labels.iter().flat_map(|labels| labels.keys());
    // The same one each time, of several.
    match names.filter(|name| name.starts_with(LABELS)).min() {
        None => Ok(()),
        Some(label) => Err(Error::Refused {
            what: format!(
                "the image `{image}` has the label `{}`: labels that begin with `{LABELS}` are what Lockgate's own containers are found by",
                label.escape_debug()
            ),
            remedy: Some("build it, and the image that it is made from, without that label".into()),
        }),
    }
}

/// Refuses a configuration with NUL in what becomes a word, a variable or a path: none of these can hold it.
fn refuse_nul(image: &str, config: &EngineImage) -> Result<(), Error> {
    let EngineImage { environment, entrypoint, command, directory, user, .. } = config;
    let variables = environment.iter().flat_map(|(name, value)| [name, value]);
    let mut words = entrypoint.iter().chain(command).chain(variables).chain(directory).chain([user]);
    match words.any(|word| word.contains('\0')) {
        false => Ok(()),
        true => Err(Error::Refused {
            what: format!("the configuration of the image `{image}` cannot be used: it holds NUL"),
            remedy: Some("use another image".into()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docker::names::{LABEL_POOL, LABEL_RUN, LABEL_VERSION};

    #[test]
    fn a_name_of_an_image_leads_to_no_other_address() {
        for name in [
            "debian",
            "node:22",
            "registry.example:5000/a/b_c:1.0-x",
            "[::1]:5000/a",
            "a@sha256:00ff",
            "sha256:00ff",
            "0123456789ab",
        ] {
            assert!(refuse_other_names(name).is_ok(), "{name}");
        }
        for name in [
            "../containers/json?x=",
            "a/../../containers",
            "a//b",
            "/a",
            "a/",
            ".",
            "",
            "<none>",
            "a?x",
            "a#x",
            "a%2e",
            "a b",
            "a\n",
            "ä",
        ] {
            let refused = refuse_other_names(name).unwrap_err().to_string();
            assert!(refused.contains("is no name of an image") && !refused.contains('\n'), "{refused}");
        }
    }

    #[test]
    fn a_variable_without_a_name_is_left_out() {
        let env = ["=x", "A=1", "B", "C="].map(String::from).to_vec();
        let mut found =
            configured("id".into(), ImageConfig { env: Some(env), ..ImageConfig::default() }).environment;
        found.sort();
        assert_eq!(found, [("A", "1"), ("C", "")].map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn an_image_with_a_label_of_ours_is_refused_by_that() {
        let labelled = |names: &[&str]| {
            let labels = names.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect();
            let config = ImageConfig { labels: Some(labels), ..ImageConfig::default() };
            usable(
                "x",
                ImageInspect { id: Some("id".into()), config: Some(config), ..ImageInspect::default() },
            )
        };
        for ours in [LABEL_RUN, LABEL_VERSION, LABEL_POOL, "dev.lockgate.accounts", "dev.lockgate.label.task"]
        {
            let refused = labelled(&["maintainer", ours]).unwrap_err().to_string();
            assert!(refused.contains("`x`") && refused.contains(&format!("`{ours}`")), "{refused}");
        }
        assert!(labelled(&["maintainer", "dev.lockgates", "com.dev.lockgate.run"]).is_ok());
        assert!(labelled(&[]).is_ok());
    }

    #[test]
    fn nul_in_a_configuration_is_refused_by_name() {
        let list = || Some(vec!["a\0b".to_owned()]);
        let none = ImageConfig::default;
        for config in [
            ImageConfig { entrypoint: list(), ..none() },
            ImageConfig { cmd: list(), ..none() },
            ImageConfig { env: Some(vec!["A=\0".into()]), ..none() },
            ImageConfig { working_dir: Some("/a\0".into()), ..none() },
            ImageConfig { user: Some("a\0".into()), ..none() },
        ] {
            let refused = refuse_nul("x", &configured("id".into(), config)).unwrap_err().to_string();
            assert!(refused.contains("`x`") && refused.contains("it holds NUL"), "{refused}");
        }
        assert!(refuse_nul("x", &configured("id".into(), none())).is_ok());
    }
}
