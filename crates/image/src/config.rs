//! The configuration of an image, parsed and bounded: its layers and how it is run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::{LARGEST, MOST_LAYERS, Manifest, malformed, or_default, parse};
use crate::platform::HERE;
use crate::service::{RawService, Service};

/// The keys of the `config` object that are read.
const READ: [&str; 9] = [
    "User",
    "Env",
    "Entrypoint",
    "Cmd",
    "WorkingDir",
    "Volumes",
    "ExposedPorts",
    "StopSignal",
    "Healthcheck",
];
/// The keys that engines write beside them, as in the answer of `docker inspect`. They are not heeded.
const UNHEEDED: [&str; 19] = [
    "Labels",
    "ArgsEscaped",
    "Memory",
    "MemorySwap",
    "CpuShares",
    "Hostname",
    "Domainname",
    "AttachStdin",
    "AttachStdout",
    "AttachStderr",
    "Tty",
    "OpenStdin",
    "StdinOnce",
    "Image",
    "OnBuild",
    "Shell",
    "StopTimeout",
    "MacAddress",
    "NetworkDisabled",
];
/// How many words a command may have, and how many variables an environment.
const MOST_WORDS: usize = 4096;

/// An image's configuration document.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawConfig {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) architecture: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) config: Option<RawCommand>,
    pub(crate) rootfs: RootFs,
}

/// The `config` object of an image's configuration; `lockgate image import --config` reads the same.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct RawCommand {
    #[serde(deserialize_with = "or_default")]
    pub(crate) user: String,
    pub(crate) env: Option<Vec<String>>,
    pub(crate) entrypoint: Option<Vec<String>>,
    pub(crate) cmd: Option<Vec<String>>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) working_dir: String,
    #[serde(flatten)]
    pub(crate) service: RawService,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RootFs {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) diff_ids: Vec<Digest>,
}

/// An image's parsed configuration: its layers, bottom first, and how it is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageConfig {
    /// The digest of its octets, by which the image is known.
    pub digest: Digest,
    /// The digests of its uncompressed layers, bottom first.
    pub layers: Vec<Digest>,
    /// How it is run.
    pub command: Command,
}

/// How an image is run by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// `USER`, `UID`, `USER:GROUP` or `UID:GID`; empty for root.
    pub user: String,
    /// The environment.
    pub environment: Vec<(String, String)>,
    /// The entry point, which gets every command as arguments.
    pub entrypoint: Vec<String>,
    /// The command, or the arguments of the entry point.
    pub command: Vec<String>,
    /// The working directory; empty if not set.
    pub directory: String,
    /// The settings for a service.
    #[serde(default)]
    pub service: Service,
}

/// A manifest with its configuration: an image for this machine.
pub(crate) struct Configured {
    pub(crate) manifest: Manifest,
    /// The configuration's octets.
    pub(crate) octets: Vec<u8>,
    pub(crate) config: ImageConfig,
}

impl Configured {
    /// Parses the configuration of a manifest.
    pub(crate) fn parse(manifest: Manifest, octets: Vec<u8>) -> Result<Self, Error> {
        let config = ImageConfig::parse(&octets)?;
        if config.layers.len() != manifest.layers.len() {
            return Err(malformed("manifest", "it has not the layers that its configuration names"));
        }
        Ok(Self { manifest, octets, config })
    }
}

impl ImageConfig {
    /// Parses an image's configuration.
    ///
    /// # Errors
    /// When it is malformed, too large, or for another machine.
    pub fn parse(octets: &[u8]) -> Result<Self, Error> {
        refuse_larger(octets)?;
        let raw: RawConfig = parse("configuration", octets)?;
        let fits = |said: &str, here| said.is_empty() || said == here;
        if !fits(&raw.os, HERE.0) || !fits(&raw.architecture, HERE.1) {
            let named: Vec<_> =
                [raw.os, raw.architecture].into_iter().filter(|part| !part.is_empty()).collect();
            return Err(Error::OtherMachine { platform: named.join("/").escape_default().to_string() });
        }
        if raw.rootfs.diff_ids.len() > MOST_LAYERS {
            return Err(malformed("configuration", format!("it has more than {MOST_LAYERS} layers")));
        }
        let command = Command::compile(raw.config.unwrap_or_default())?;
        Ok(Self { digest: Digest::of(octets), layers: raw.rootfs.diff_ids, command })
    }
}

/// Refuses a configuration that is larger than any.
fn refuse_larger(octets: &[u8]) -> Result<(), Error> {
    match octets.len() as u64 > LARGEST {
        true => Err(malformed("configuration", "it is larger than 4 MiB")),
        false => Ok(()),
    }
}

impl Command {
    /// Reads only the `config` object of an image's configuration, written by hand: a key that no engine knows is a slip, and so is what
    /// is left out of an engine's configuration.
    ///
    /// # Errors
    /// When it cannot be read, is malformed or too large, or has an unknown key.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut octets = Vec::new();
        let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut octets));
        read.map_err(|source| Error::Read { path: path.into(), source })?;
        Self::parse(&octets)
    }

    /// Parses what [`read`](Self::read) reads.
    ///
    /// # Errors
    /// When it is malformed or too large, or has an unknown key.
    pub fn parse(octets: &[u8]) -> Result<Self, Error> {
        refuse_larger(octets)?;
        let keys: BTreeMap<String, IgnoredAny> = parse("configuration", octets)?;
        let is_known = |key: &&String| READ.contains(&key.as_str()) || UNHEEDED.contains(&key.as_str());
        if let Some(key) = keys.keys().find(|key| !is_known(key)) {
            let known = READ.map(|known| format!("`{known}`")).join(", ");
            let why = format!("unknown field `{}`, expected one of {known}", key.escape_default());
            return Err(malformed("configuration", why));
        }
        let raw: RawCommand = parse("configuration", octets)?;
        if let Some(line) = raw.env.iter().flatten().find(|line| !line.contains('=')) {
            return Err(malformed("configuration", format!("`{}` is no variable", line.escape_default())));
        }
        let command = Self::compile(raw)?;
        if command.service.health_is_malformed {
            return Err(malformed("configuration", "its health check is no command of at most 256 words"));
        }
        Ok(command)
    }

    fn compile(raw: RawCommand) -> Result<Self, Error> {
        let (entrypoint, command) = (raw.entrypoint.unwrap_or_default(), raw.cmd.unwrap_or_default());
        let variables = raw.env.unwrap_or_default();
        if [&entrypoint, &command, &variables].iter().any(|list| list.len() > MOST_WORDS) {
            return Err(malformed(
                "configuration",
                format!("a list in it has more than {MOST_WORDS} entries"),
            ));
        }
        let words = [&entrypoint[..], &command, &variables].concat();
        if words.iter().chain([&raw.user, &raw.working_dir]).any(|word| word.contains('\0')) {
            return Err(malformed("configuration", "it holds NUL"));
        }
        let environment = variables
            .iter()
            // A name alone has no value that it could have here.
            .filter(|line| line.contains('='))
            .map(|line| match line.split_once('=') {
                Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
                _ => Err(malformed("configuration", format!("`{}` is no variable", line.escape_default()))),
            })
            .collect::<Result<_, _>>()?;
        let directory = &raw.working_dir;
        if !directory.is_empty() && (!directory.starts_with('/') || directory.contains(char::is_control)) {
            return Err(malformed("configuration", "its working directory is no absolute path"));
        }
        let service = Service::compile(raw.service)?;
        Ok(Self { user: raw.user, environment, entrypoint, command, directory: raw.working_dir, service })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read() {
        let layer = Digest::of(b"layer");
        let text = format!(
            r#"{{"architecture":"amd64","os":"linux","config":{{"User":"app","Env":["A=b=c"],"Entrypoint":["/e"],
            "Cmd":["x"],"WorkingDir":"/w","Labels":{{"a":"b"}}}},"rootfs":{{"type":"layers","diff_ids":["{layer}"]}}}}"#
        );
        let config = ImageConfig::parse(text.as_bytes()).unwrap();
        assert_eq!(config.layers, [layer]);
        assert_eq!(config.command.environment, [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!((config.command.user.as_str(), config.command.directory.as_str()), ("app", "/w"));
    }

    #[test]
    fn a_slip_in_a_key_is_refused_where_it_was_written_by_hand() {
        for text in [r#"{"Cmd":["x"],"Labels":{},"Tty":false,"OnBuild":null}"#, "{}"] {
            assert!(Command::parse(text.as_bytes()).is_ok(), "{text}");
        }
        for key in ["Cmdd", "cmd", "config"] {
            let error = Command::parse(format!("{{\"{key}\":[\"x\"]}}").as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!("unknown field `{key}`, expected one of `User`")), "{error}");
        }
        let pulled = r#"{"config":{"Cmdd":["x"]},"rootfs":{"diff_ids":[]}}"#;
        assert!(ImageConfig::parse(pulled.as_bytes()).is_ok());
    }

    #[test]
    fn a_file_without_an_end_is_read_to_a_bound() {
        let error = Command::read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("larger than 4 MiB"), "{error}");
        assert!(matches!(Command::read(Path::new("/nonesuch")), Err(Error::Read { .. })));
    }

    #[test]
    fn what_engines_accept_is_left_out() {
        let text = r#"{"architecture":null,"config":{"User":null,"WorkingDir":null,"Env":["LONE","A=b"],"Entrypoint":null,
            "Healthcheck":{"Test":["rm"],"Interval":null}},"rootfs":{"diff_ids":null}}"#;
        let command = ImageConfig::parse(text.as_bytes()).unwrap().command;
        assert_eq!(command.environment, [("A".to_owned(), "b".to_owned())]);
        assert!(command.service.health.is_none() && command.service.health_is_malformed);
        for slip in [r#"{"Env":["LONE"]}"#, r#"{"Healthcheck":{"Test":["rm"]}}"#] {
            assert!(Command::parse(slip.as_bytes()).is_err(), "{slip}");
        }
    }

    #[test]
    fn an_image_of_another_system_is_refused_by_name() {
        for (platform, named) in [
            (r#""os":"windows","architecture":"amd64""#, "windows/amd64"),
            (r#""os":"windows""#, "windows"),
            (r#""architecture":"arm64""#, "arm64"),
        ] {
            let text = format!(r#"{{{platform},"rootfs":{{"diff_ids":[]}}}}"#);
            let error = ImageConfig::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!("it is for {named}, ")), "{error}");
        }
        for os in ["\"linux\"", "\"\"", "null"] {
            let text = format!(r#"{{"os":{os},"rootfs":{{"diff_ids":[]}}}}"#);
            assert!(ImageConfig::parse(text.as_bytes()).is_ok(), "{os}");
        }
    }

    #[test]
    fn what_cannot_be_run_here_is_refused() {
        for text in [
            r#"{"rootfs":{"diff_ids":["sha256:../x"]}}"#,
            r#"{"architecture":"arm64","rootfs":{"diff_ids":[]}}"#,
            r#"{"config":{"Env":["=x"]},"rootfs":{"diff_ids":[]}}"#,
            r#"{"config":{"Cmd":["a\u0000b"]},"rootfs":{"diff_ids":[]}}"#,
            r#"{"config":{"WorkingDir":"../x"},"rootfs":{"diff_ids":[]}}"#,
            r#"{"config":{}}"#,
        ] {
            assert!(ImageConfig::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
