//! The documents of an image: index, manifest, and the list of `docker save`. Each is bounded before it is parsed, and only the
//! fields in use are read.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::digest::Digest;
use crate::error::Error;
use crate::platform::{HERE, here, level_here};

/// The largest document that is read: registries refuse manifests over 4 MiB.
pub(crate) const LARGEST: u64 = 4 << 20;
/// The most layers an image may have; engines stop at 127.
pub(crate) const MOST_LAYERS: usize = 256;
/// The most manifests an index may name.
const MOST_MANIFESTS: usize = 1024;
/// How many other platforms are named.
const MOST_NAMED: usize = 16;

/// A reference to a part of an image, by its digest.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, deserialize_with = "or_default")]
    media_type: String,
    /// What it is, if it is no image.
    #[serde(default, deserialize_with = "or_default")]
    artifact_type: String,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) annotations: std::collections::BTreeMap<String, String>,
}

/// The platform of a manifest in an index.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) struct Platform {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) architecture: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) os: String,
    /// The level of the architecture that its programs need.
    #[serde(default, deserialize_with = "or_default")]
    variant: String,
}

/// A list of manifests, one per platform.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Descriptor>,
}

/// A manifest: the parts of one image.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    /// What it is, if it is no image.
    #[serde(default, deserialize_with = "or_default")]
    artifact_type: String,
    pub(crate) config: Descriptor,
    #[serde(deserialize_with = "or_default")]
    pub(crate) layers: Vec<Descriptor>,
}

/// An index or a manifest, told apart by their fields: the media type may be missing.
pub(crate) enum Document {
    Index(Index),
    Manifest(Manifest),
}

/// One image of a `docker save` archive.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SavedImage {
    pub(crate) config: String,
    #[serde(default)]
    pub(crate) repo_tags: Option<Vec<String>>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) layers: Vec<String>,
}

/// The media types of the configuration of what is no image: of an artifact, and of a Helm chart.
pub(crate) const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const CHART: &str = "application/vnd.cncf.helm.config.v1+json";
/// The ending of the media types of layers that take a key.
const ENCRYPTED: &str = "+encrypted";
/// The media types of an image's configuration, which some name as what a manifest is.
pub(crate) const IMAGES: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

impl Document {
    pub(crate) fn parse(octets: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Either {
            manifests: Option<IgnoredAny>,
            config: Option<IgnoredAny>,
            layers: Option<IgnoredAny>,
            fs_layers: Option<IgnoredAny>,
        }
        let either: Either = parse("manifest", octets)?;
        if either.manifests.is_some() {
            // Another program could read the other half, and it would be another image by the same digest: CVE-2021-41190.
            if either.config.is_some() || either.layers.is_some() {
                return Err(malformed("manifest", "it is an index and a manifest at once"));
            }
            return Ok(Self::Index(parse("index", octets)?));
        }
        if either.fs_layers.is_some() && either.config.is_none() {
            let why = "it is of Docker's old schema 1; push the image again with an engine of today";
            return Err(malformed("manifest", why));
        }
        let manifest: Manifest = parse("manifest", octets)?;
        if manifest.layers.len() > MOST_LAYERS {
            return Err(malformed("manifest", format!("it has more than {MOST_LAYERS} layers")));
        }
        if let Some(layer) = manifest.layers.iter().find(|layer| layer.media_type.ends_with(ENCRYPTED)) {
            let (layer, kind) = (layer.digest.short(), layer.media_type.escape_default());
            return Err(malformed("manifest", format!("its layer {layer} is encrypted ({kind})")));
        }
        Ok(Self::Manifest(manifest))
    }
}

impl Descriptor {
    /// Returns how well what it refers to fits this machine, the lowest best; `None` if not at all.
    fn rank(&self) -> Option<u32> {
        if names_an_artifact(&self.artifact_type) {
            return None;
        }
        // What names no platform tells it further on, and after all that name one.
        let Some(platform) = &self.platform else { return Some(u32::MAX) };
        let is_here = (platform.os.as_str(), platform.architecture.as_str()) == HERE;
        let level = match platform.variant.as_str() {
            "" => 1,
            variant => variant.strip_prefix('v')?.parse().ok()?,
        };
        (is_here && (1..=level_here()).contains(&level)).then_some(level)
    }
}

impl Manifest {
    /// Whether it is a signature, say, and no image.
    pub(crate) fn is_artifact(&self) -> bool {
        names_an_artifact(&self.artifact_type) || [EMPTY, CHART].contains(&self.config.media_type.as_str())
    }

    /// Returns it if it is an image's: what a reference names directly may be anything.
    pub(crate) fn of_image(self) -> Result<Self, Error> {
        if !self.is_artifact() {
            return Ok(self);
        }
        let is_named = names_an_artifact(&self.artifact_type);
        let kind = if is_named { &self.artifact_type } else { &self.config.media_type };
        Err(malformed("manifest", format!("it is of no image, but of {}", kind.escape_default())))
    }
}

fn names_an_artifact(kind: &str) -> bool {
    !kind.is_empty() && !IMAGES.contains(&kind)
}

impl Index {
    /// Returns the manifests for this machine's platform, the best first: those for every processor before those for better ones, and last
    /// those that name no platform.
    pub(crate) fn here(&self) -> Result<Vec<&Descriptor>, Error> {
        let manifests = self.manifests.iter().take(MOST_MANIFESTS);
        let mut found: Vec<_> = manifests.filter_map(|d| Some((d.rank()?, d))).collect();
        found.sort_by_key(|(rank, _)| *rank);
        if found.is_empty() {
            return Err(self.nothing_here());
        }
        Ok(found.into_iter().map(|(_, descriptor)| descriptor).collect())
    }

    fn nothing_here(&self) -> Error {
        let mut known: Vec<String> = Vec::new();
        for platform in self.manifests.iter().take(MOST_MANIFESTS).filter_map(|d| d.platform.as_ref()) {
            let platform = format!("{}/{}", platform.os, platform.architecture).escape_default().to_string();
            if known.len() < MOST_NAMED && !known.contains(&platform) {
                known.push(platform);
            }
        }
        let what_else = match known[..] {
            [] => "and names no other platform".into(),
            _ => format!("only for {}", known.join(", ")),
        };
        malformed("index", format!("it has nothing for {}, {what_else}", here()))
    }
}

/// Parses a document whose length was bounded when it was read.
pub(crate) fn parse<'a, T: Deserialize<'a>>(what: &'static str, octets: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(octets).map_err(|e| match octets.trim_ascii_start() {
        [b'<', ..] => malformed(what, "it is a page for browsers, as of a login or a proxy, and no document"),
        _ => malformed(what, e.to_string()),
    })
}

/// Reads `null` as if the field were not there, as engines do.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

pub(crate) fn malformed(what: &'static str, why: impl Into<String>) -> Error {
    Error::Document { what, why: why.into() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn descriptor(platform: &str) -> String {
        format!(r#"{{"mediaType":"m","digest":"{}","size":1{platform}}}"#, Digest::of(b""))
    }

    #[test]
    fn an_index_gives_what_runs_here() {
        let arm = descriptor(r#","platform":{"os":"linux","architecture":"arm64"}"#);
        let here = descriptor(r#","platform":{"os":"linux","architecture":"amd64"}"#);
        let text = format!(r#"{{"schemaVersion":2,"manifests":[{arm},{here}]}}"#);
        let Document::Index(index) = Document::parse(text.as_bytes()).unwrap() else { panic!("no index") };
        assert_eq!(index.here().unwrap()[0].platform.as_ref().unwrap().architecture, "amd64");
        let text = format!(r#"{{"manifests":[{arm}]}}"#);
        let Document::Index(index) = Document::parse(text.as_bytes()).unwrap() else { panic!("no index") };
        assert!(index.here().unwrap_err().to_string().contains("linux/arm64"));
        let text = format!(r#"{{"manifests":[{arm},{arm}]}}"#);
        let Document::Index(index) = Document::parse(text.as_bytes()).unwrap() else { panic!("no index") };
        assert!(index.here().unwrap_err().to_string().ends_with("only for linux/arm64"), "each once");
        let Document::Index(index) = Document::parse(br#"{"manifests":[]}"#).unwrap() else {
            panic!("no index")
        };
        assert!(index.here().unwrap_err().to_string().ends_with("and names no other platform"));
    }

    #[test]
    fn what_every_processor_runs_goes_before_what_names_less() {
        let of = |variant: &str| {
            descriptor(&format!(r#","platform":{{"os":"linux","architecture":"amd64","variant":{variant}}}"#))
        };
        let ranks = |descriptors: &[String]| -> Vec<Option<u32>> {
            let text = format!(r#"{{"manifests":[{}]}}"#, descriptors.join(","));
            let Document::Index(index) = Document::parse(text.as_bytes()).unwrap() else {
                panic!("no index")
            };
            index.manifests.iter().map(Descriptor::rank).collect()
        };
        let all = [of("null"), of("\"\""), of("\"v1\""), descriptor(""), of("\"v9\""), of("\"old\"")];
        assert_eq!(ranks(&all), [Some(1), Some(1), Some(1), Some(u32::MAX), None, None]);
        let artifact = descriptor(r#","artifactType":"application/spdx+json""#);
        assert_eq!(ranks(&[artifact]), [None]);
    }

    #[test]
    fn a_manifest_of_no_image_is_refused_by_its_kind() {
        let manifest = |kind: &str, of: &str| {
            let config = descriptor("").replace("\"m\"", &format!("\"{of}\""));
            let text = format!(r#"{{"artifactType":"{kind}","config":{config},"layers":[]}}"#);
            match Document::parse(text.as_bytes()) {
                Ok(Document::Manifest(manifest)) => manifest.of_image(),
                _ => panic!("no manifest"),
            }
        };
        for (kind, of, named) in
            [("", EMPTY, EMPTY), ("", CHART, CHART), ("application/x", EMPTY, "application/x")]
        {
            let error = manifest(kind, of).unwrap_err().to_string();
            assert!(error.ends_with(&format!("no image, but of {named}")), "{error}");
        }
        for (kind, of) in [("", IMAGES[0]), ("", "m"), (IMAGES[1], IMAGES[1])] {
            assert!(manifest(kind, of).is_ok(), "{kind} {of}");
        }
    }

    #[test]
    fn what_is_null_is_as_if_it_were_not_there() {
        let layer = descriptor(r#","annotations":null,"platform":null"#);
        for text in [
            format!(r#"{{"config":{layer},"layers":null,"manifests":null}}"#),
            format!(r#"{{"config":{layer},"layers":[{layer}]}}"#),
        ] {
            assert!(matches!(Document::parse(text.as_bytes()), Ok(Document::Manifest(_))), "{text}");
        }
        assert!(parse::<SavedImage>("x", br#"{"Config":"c","RepoTags":null,"Layers":null}"#).is_ok());
    }

    #[test]
    fn what_is_another_thing_is_named() {
        let one = descriptor("");
        let encrypted = one.replace("\"m\"", "\"application/vnd.oci.image.layer.v1.tar+gzip+encrypted\"");
        for (text, why) in [
            (format!(r#"{{"config":{one},"layers":[{encrypted}]}}"#), "tar+gzip+encrypted"),
            (format!(r#"{{"config":{one},"layers":[],"manifests":[{one}]}}"#), "at once"),
            (r#"{"schemaVersion":1,"fsLayers":[]}"#.into(), "schema 1"),
            ("<!DOCTYPE html>".into(), "page for browsers"),
        ] {
            let error = Document::parse(text.as_bytes()).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_is_no_manifest_is_refused() {
        let many = vec![descriptor(""); MOST_LAYERS + 1].join(",");
        let many = format!(r#"{{"config":{},"layers":[{many}]}}"#, descriptor(""));
        for text in ["", "{}", "[]", r#"{"manifests":1}"#, r#"{"config":{},"layers":[]}"#, &many] {
            assert!(Document::parse(text.as_bytes()).is_err(), "{text:.60}");
        }
    }
}
