//! The steps of the `process` backend, which has almost none and refuses what it cannot do.

use policy::{Enforcement, RunSpec, WorkspaceMode};

use super::additions::Additions;
use crate::error::Error;
use crate::host::Host;
use crate::step::Step;

/// Returns the steps of the `process` backend.
pub(super) fn steps(
    spec: &RunSpec,
    host: &Host,
    additions: &Additions,
    notices: &mut Vec<String>,
) -> Result<Vec<Step>, Error> {
    notices.push(
        "backend `process`: no isolation. The command sees this machine's files, network and processes; \
         only requests that use the proxy are checked"
            .into(),
    );
    if !spec.builtin_tools.is_empty() {
        return Err(Error::Impossible {
            what: "backend `process` has the caller's own home: `builtin_tools` need another".into(),
            remedy: "use --backend linux".into(),
        });
    }
    if spec.disk_asked && spec.limits.enforcement == Enforcement::Required {
        return Err(Error::Impossible {
            what: "backend `process` has no private directories: `limits.disk` holds nothing there".into(),
            remedy: "use --backend linux; or accept a run without it: --limits best-effort".into(),
        });
    }
    if spec.disk_asked {
        notices.push("`limits.disk` is not held: backend `process` has no private directories".into());
    }
    if !spec.mounts.is_empty() || !spec.copies.is_empty() || spec.workspace_mode != WorkspaceMode::ReadWrite {
        return Err(Error::Impossible {
            what: "backend `process` has no file system of its own: mounts, copies and a read-only workspace need another".into(),
            remedy: "use --backend linux".into(),
        });
    }
    let further = &additions.authorities;
    let directory = additions.trusted.clone().filter(|_| !further.is_empty());
    let written = directory.map(|directory| Step::WriteAuthorities {
        bundle: host.bundle.clone(),
        further: further.clone(),
        directory,
    });
    Ok(written.into_iter().collect())
}
