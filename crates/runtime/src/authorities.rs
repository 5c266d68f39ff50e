//! Whom programs inside trust beside the authorities of this machine: what the caller's `SSL_CERT_FILE` adds counts there as it does for
//! upstreams.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use policy::{Backend, RunSpec};
use sandbox::{Caller, FurtherAuthorities, Plan};

use crate::error::Error;

/// The variable that names them.
pub(crate) const VARIABLE: &str = "SSL_CERT_FILE";

/// Returns what the caller's environment adds, as PEM.
///
/// # Errors
/// When the file that it names cannot be used.
pub(crate) fn callers(caller: &Caller) -> Result<String, Error> {
    let named = caller.variable(VARIABLE).filter(|path| !path.is_empty());
    Ok(named.map(egress::beyond_usual).transpose()?.unwrap_or_default())
}

/// Returns the further authorities of a run or a companion. The caller's are for who has this machine's files: an image that has no bundle
/// would know them and no others, where its programs know the public ones by themselves.
pub(crate) fn further(spec: &RunSpec, callers: &str) -> FurtherAuthorities {
    let is_image = matches!(spec.backend, Backend::Container | Backend::Docker);
    FurtherAuthorities {
        own: spec.policy.may_open(),
        callers: if is_image { String::new() } else { callers.to_owned() },
    }
}

/// Returns what to say of a file of authorities to which the command may write, or which it may exchange.
pub(crate) fn written_inside(plan: &Plan, caller: &Caller) -> Option<String> {
    let named = caller.variable(VARIABLE).filter(|path| !path.is_empty())?;
    let ways = way_to(&caller.directory.join(named))?;
    let way = ways.iter().find(|way| plan.writable().any(|shown| way.starts_with(shown)))?;
    Some(format!(
        "{VARIABLE} is read from {}, to which the command may write: the next run trusts whom it names there. Name a copy elsewhere",
        way.display()
    ))
}

/// How many links lead to a file at most, as the kernel has it (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Returns each link on the way to a file, where it lies, and at last the file.
fn way_to(path: &Path) -> Option<Vec<PathBuf>> {
    let mut ways = Vec::new();
    let mut at = PathBuf::from("/");
    let mut rest: Vec<OsString> = path.components().rev().map(|part| part.as_os_str().to_owned()).collect();
    while let Some(part) = rest.pop() {
        let next = match part.as_encoded_bytes() {
            b"/" | b"." => continue,
            b".." => {
                at.pop();
                continue;
            }
            _ => at.join(part),
        };
        if !next.symlink_metadata().ok()?.is_symlink() {
            at = next;
            continue;
        }
        let leads_to = std::fs::read_link(&next).ok()?;
        if leads_to.is_absolute() {
            at = PathBuf::from("/");
        }
        rest.extend(leads_to.components().rev().map(|part| part.as_os_str().to_owned()));
        ways.push(next);
        if ways.len() > MOST_LINKS {
            return None;
        }
    }
    ways.push(at);
    Some(ways)
}

#[cfg(test)]
mod tests {
    use policy::{Layers, Origin};
    use sandbox::{Additions, Host, MountsOnceRead};

    use super::*;

    #[test]
    fn a_file_of_authorities_that_the_command_may_write_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        for made in ["ws/certs", "kept"] {
            std::fs::create_dir_all(folder.join(made)).unwrap();
        }
        for file in ["ws/certs/ca.pem", "kept/ca.pem"] {
            std::fs::write(folder.join(file), "").unwrap();
        }
        std::os::unix::fs::symlink("../ws/certs/ca.pem", folder.join("kept/link.pem")).unwrap();
        std::os::unix::fs::symlink("../kept/ca.pem", folder.join("ws/out.pem")).unwrap();
        std::os::unix::fs::symlink("../kept", folder.join("ws/linked")).unwrap();
        std::os::unix::fs::symlink("../ws/out.pem", folder.join("kept/there.pem")).unwrap();
        let told = |named: &str, mode: &str| {
            let mut layers = Layers::default();
            layers.push(
                Origin::Flags,
                toml::from_str(&format!("workspace = {{ mode = \"{mode}\" }}")).unwrap(),
            );
            let spec = RunSpec { workspace: Some(folder.join("ws")), ..layers.compile().unwrap() };
            let caller = Caller::new(1000, 1000, &folder).with_env([(VARIABLE, named)]);
            let (run, host) = ("abcdefghjkmn".parse().unwrap(), Host::detect(&caller));
            let (additions, mounts) = (Additions::default(), MountsOnceRead::default());
            let plan = sandbox::plan(&spec, &run, &caller, &host, &additions, &mounts).unwrap();
            written_inside(&plan, &caller)
        };
        for (named, way) in [
            ("ws/certs/ca.pem", "ws/certs/ca.pem"),
            ("kept/link.pem", "ws/certs/ca.pem"),
            ("ws/out.pem", "ws/out.pem"),
            ("ws/linked/ca.pem", "ws/linked"),
            ("kept/there.pem", "ws/out.pem"),
        ] {
            let told = told(named, "rw").unwrap();
            assert!(told.contains(&format!("/{way}, to which the command may write")), "{told}");
        }
        for (named, mode) in [("ws/certs/ca.pem", "ro"), ("kept/ca.pem", "rw"), ("ws/none", "rw"), ("", "rw")]
        {
            assert_eq!(told(named, mode), None, "{named} {mode}");
        }
    }
}
