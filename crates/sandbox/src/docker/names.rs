//! Names and labels of what a run makes at an engine, by which it is found again.

use std::collections::HashMap;

use policy::RunId;

use crate::plan::Plan;

/// What everything of ours at an engine is labelled with. S3.16
pub(crate) const LABEL_RUN: &str = "dev.lockgate.run";
pub(crate) const LABEL_VERSION: &str = "dev.lockgate.version";
/// And a member of the pool.
pub(super) const LABEL_POOL: &str = "dev.lockgate.pool";
/// What the name of every container of ours begins with; of one in the pool, and of one whose image is looked into. S1.7
pub(super) const ALL: &str = "lockgate-";
pub(super) const POOLED: &str = "lockgate-sidecar-pool-";
pub(super) const ACCOUNTS: &str = "lockgate-accounts-";
/// What the names of the person's own labels begin with there.
const LABEL_THEIRS: &str = "dev.lockgate.label.";
/// The network by which sidecars reach the outside. S0.18
pub(crate) const EGRESS: &str = "lockgate-egress";
/// The one in which members of the pool are until they are taken. S0.43
pub(super) const POOL_NETWORK: &str = "lockgate-sidecar-pool";

/// Where the volume with our own binary is shown, and the binary in it.
pub(super) const OWN: &str = "/.lockgate";
pub(super) const BINARY: &str = "/.lockgate/lockgate";

/// The name of a run's network. S0.14
pub(crate) fn network_name(run: &RunId) -> String {
    format!("lockgate-exec-{run}")
}

/// The name of the container of a run's own sidecar. S1.7
pub(super) fn sidecar_name(run: &RunId) -> String {
    format!("lockgate-sidecar-{run}")
}

/// What everything of a run is labelled with. The person's own labels have names of which none is ours. S3.16
pub(super) fn labels(plan: &Plan) -> HashMap<String, String> {
    let theirs = plan.labels.iter().map(|it| (format!("{LABEL_THEIRS}{}", it.name()), it.value().to_owned()));
    let ours = [(LABEL_RUN, plan.run.as_str()), (LABEL_VERSION, env!("CARGO_PKG_VERSION"))];
    theirs.chain(ours.map(|(name, value)| (name.to_owned(), value.to_owned()))).collect()
}

/// What is asked of an engine to find what has a label.
pub(super) fn of_label(label: &str) -> HashMap<&'static str, Vec<String>> {
    HashMap::from([("label", vec![label.to_owned()])])
}

/// What is nobody's run's is labelled with.
pub(super) fn own_label() -> HashMap<String, String> {
    HashMap::from([(LABEL_VERSION.into(), env!("CARGO_PKG_VERSION").into())])
}
