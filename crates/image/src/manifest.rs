//! The documents of an image: index, manifest, and the list of `docker save`. Each is bounded before it is parsed, and only the
//! fields in use are read.

use serde::Deserialize;

use crate::digest::Digest;
use crate::error::Error;

/// The largest document that is read: registries refuse manifests over 4 MiB.
pub(crate) const LARGEST: u64 = 4 << 20;
/// The most layers an image may have; engines stop at 127.
pub(crate) const MOST_LAYERS: usize = 256;
/// The most manifests an index may name.
const MOST_MANIFESTS: usize = 1024;

/// A reference to a part of an image, by its digest.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Descriptor {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: std::collections::BTreeMap<String, String>,
}

/// The platform of a manifest in an index.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) struct Platform {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
}

/// A list of manifests, one per platform.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Descriptor>,
}

/// A manifest: the parts of one image.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
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
    pub(crate) layers: Vec<String>,
}

/// The platform that this program runs on.
const HERE: (&str, &str) = ("linux", "amd64");

impl Document {
    pub(crate) fn parse(octets: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Either {
            manifests: Option<serde::de::IgnoredAny>,
        }
        let either: Either = parse("manifest", octets)?;
        if either.manifests.is_some() {
            return Ok(Self::Index(parse("index", octets)?));
        }
        let manifest: Manifest = parse("manifest", octets)?;
        if manifest.layers.len() > MOST_LAYERS {
            return Err(malformed("manifest", format!("it has more than {MOST_LAYERS} layers")));
        }
        Ok(Self::Manifest(manifest))
    }
}

impl Index {
    /// Returns the manifest for this machine's platform.
    pub(crate) fn here(&self) -> Result<&Descriptor, Error> {
        let fits = |d: &&Descriptor| match &d.platform {
            Some(platform) => (platform.os.as_str(), platform.architecture.as_str()) == HERE,
            None => true,
        };
        let found = self.manifests.iter().take(MOST_MANIFESTS).find(fits);
        found.ok_or_else(|| {
            let known: Vec<String> = self
                .manifests
                .iter()
                .take(16)
                .filter_map(|d| d.platform.as_ref())
                .map(|p| format!("{}/{}", p.os, p.architecture).escape_default().to_string())
                .collect();
            malformed("index", format!("it has nothing for linux/amd64, only for {}", known.join(", ")))
        })
    }
}

/// Parses a document whose length was bounded when it was read.
pub(crate) fn parse<'a, T: Deserialize<'a>>(what: &'static str, octets: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(octets).map_err(|e| malformed(what, e.to_string()))
}

pub(crate) fn malformed(what: &'static str, why: impl Into<String>) -> Error {
    Error::Document { what, why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(platform: &str) -> String {
        format!(r#"{{"mediaType":"m","digest":"{}","size":1{platform}}}"#, Digest::of(b""))
    }

    #[test]
    fn an_index_gives_what_runs_here() {
        let arm = descriptor(r#","platform":{"os":"linux","architecture":"arm64"}"#);
        let here = descriptor(r#","platform":{"os":"linux","architecture":"amd64"}"#);
        let text = format!(r#"{{"schemaVersion":2,"manifests":[{arm},{here}]}}"#);
        let Document::Index(index) = Document::parse(text.as_bytes()).unwrap() else { panic!("no index") };
        assert_eq!(index.here().unwrap().platform.as_ref().unwrap().architecture, "amd64");
        let text = format!(r#"{{"manifests":[{arm}]}}"#);
        let Document::Index(index) = Document::parse(text.as_bytes()).unwrap() else { panic!("no index") };
        assert!(index.here().unwrap_err().to_string().contains("linux/arm64"));
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
