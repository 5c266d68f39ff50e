//! What the other side of the house adds to a plan.

use std::path::PathBuf;

use super::engine::EngineRun;
use super::ids::IdRange;
use crate::image::RootImage;
use crate::step::{Cache, PrivateFile};
use crate::subordinate::SubordinateIds;

/// What the other side of the house adds to a plan. Nothing of it is secret.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// Variables beside the policy's own: placeholders, addresses of planes.
    pub environment: Vec<(String, String)>,
    /// Whether the sidecar opens TLS, so that programs inside must trust its authority.
    pub opens_tls: bool,
    /// The image whose files are the root, where the backend has one.
    pub image: Option<RootImage>,
    /// The directory in which what is written in the workspace is kept apart.
    pub changes: Option<PathBuf>,
    /// The directory that takes what is written over an image, where memory cannot. It is made if it is needed, and goes with
    /// the run.
    pub written: Option<PathBuf>,
    /// The directory that gets files which trust the sidecar's authority, for a command that sees this machine's. It goes with the run.
    pub trusted: Option<PathBuf>,
    /// The engine and its image, where the backend has one.
    pub engine: Option<EngineRun>,
    /// Variables of tools, which give way to the policy's own.
    pub defaults: Vec<(String, String)>,
    /// Files of the sandbox's home, with what they hold.
    pub files: Vec<PrivateFile>,
    /// Caches of the caller's, shown under the sandbox's home.
    pub caches: Vec<Cache>,
    /// Ids that nobody else on this machine uses, where root starts a run that has several.
    pub ids: Option<IdRange>,
    /// Ids that are lent to a caller who is not root, where the run has an image.
    pub subordinate: Option<SubordinateIds>,
}
