//! The egress side's additions to a plan.

use std::path::PathBuf;

use super::engine::EngineRun;
use super::ids::IdRange;
use crate::further_authorities::FurtherAuthorities;
use crate::image::RootImage;
use crate::step::{Cache, PrivateFile};
use crate::subordinate::SubordinateIds;

/// The egress side's additions to a plan. They contain no secret.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// Variables beyond the policy's own: placeholders, addresses of planes.
    pub environment: Vec<(String, String)>,
    /// What programs inside trust beside the authorities of the machine, or of the image.
    pub authorities: FurtherAuthorities,
    /// The image that is the root file system, if the backend uses one.
    pub image: Option<RootImage>,
    /// The directory that keeps the changes of an overlaid workspace.
    pub changes: Option<PathBuf>,
    /// The directory for files written over an image, if memory cannot take them. It is made only if it is needed, and removed with the
    /// run.
    pub written: Option<PathBuf>,
    /// The directory for the CA bundle with the further authorities, for a command that sees the host's files. Removed with the run.
    pub trusted: Option<PathBuf>,
    /// The engine and its image, if the backend uses one.
    pub engine: Option<EngineRun>,
    /// Variables of tools. The policy's own take precedence.
    pub defaults: Vec<(String, String)>,
    /// Files to write into the sandbox's home.
    pub files: Vec<PrivateFile>,
    /// The caller's caches, to show below the sandbox's home.
    pub caches: Vec<Cache>,
    /// Private ids for a run by root that needs more than one.
    pub ids: Option<IdRange>,
    /// Subordinate ids of a caller who is not root, for a run with an image.
    pub subordinate: Option<SubordinateIds>,
}
