//! The names and labels of a run's objects at an engine, by which they are found again.

use std::collections::HashMap;

use policy::RunId;

use crate::plan::Plan;

/// What all labels of ours begin with, and none of an image.
pub(super) const LABELS: &str = "dev.lockgate.";
/// The labels of every object of a run. S3.16
pub(crate) const LABEL_RUN: &str = "dev.lockgate.run";
pub(crate) const LABEL_VERSION: &str = "dev.lockgate.version";
/// The label of a member of the pool.
pub(super) const LABEL_POOL: &str = "dev.lockgate.pool";
/// The prefixes of the names of all our containers, of members of the pool, and of containers that are made to read an image's
/// accounts. S1.7
pub(super) const ALL: &str = "lockgate-";
pub(super) const POOLED: &str = "lockgate-sidecar-pool-";
pub(super) const ACCOUNTS: &str = "lockgate-accounts-";
/// The prefix of the user's own labels.
const LABEL_THEIRS: &str = "dev.lockgate.label.";
/// The network by which sidecars reach the outside. S0.18
pub(crate) const EGRESS: &str = "lockgate-egress";
/// The network of the members of the pool, until they are taken. S0.43
pub(super) const POOL_NETWORK: &str = "lockgate-sidecar-pool";

/// Where the volume with our own binary is mounted in containers of our own image, and the binary in it.
pub(super) const OWN: &str = "/.lockgate";
pub(super) const BINARY: &str = "/.lockgate/lockgate";

/// Returns a mount point of that volume in a container of somebody else's image. An engine follows the image's links when it mounts, and
/// the kernel again when all mounts are there: at a name that the image knew, the kernel could find another program than ours. `unknown` is
/// a word that nobody can guess.
pub(super) fn own_place(unknown: &str) -> String {
    format!("{OWN}-{unknown}")
}

/// Returns the path of our own binary where its volume is mounted at `place`.
pub(super) fn binary_at(place: &str) -> String {
    format!("{place}/lockgate")
}

/// Returns the name of a run's network. S0.14
pub(crate) fn network_name(run: &RunId) -> String {
    format!("lockgate-exec-{run}")
}

/// Returns the name of a sidecar's container that is made for a run. S1.7
pub(super) fn sidecar_name(run: &RunId) -> String {
    format!("lockgate-sidecar-{run}")
}

/// Returns the labels of a run's objects. The prefix keeps the user's own labels apart from ours. S3.16
pub(super) fn labels(plan: &Plan) -> HashMap<String, String> {
    let theirs = plan.labels.iter().map(|it| (format!("{LABEL_THEIRS}{}", it.name()), it.value().to_owned()));
    let ours = [(LABEL_RUN, plan.run.as_str()), (LABEL_VERSION, env!("CARGO_PKG_VERSION"))];
    theirs.chain(ours.map(|(name, value)| (name.to_owned(), value.to_owned()))).collect()
}

/// Returns an engine's filter for objects with a label.
pub(super) fn of_label(label: &str) -> HashMap<&'static str, Vec<String>> {
    HashMap::from([("label", vec![label.to_owned()])])
}

/// Returns the labels of objects that belong to no run.
pub(super) fn own_label() -> HashMap<String, String> {
    HashMap::from([(LABEL_VERSION.into(), env!("CARGO_PKG_VERSION").into())])
}
