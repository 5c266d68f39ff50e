//! Whom programs inside trust beside the authorities of this machine: what the caller's `SSL_CERT_FILE` adds counts there as it does for
//! upstreams.

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

/// Returns what to say of a file of authorities to which the command may write, or in whose place it may put another.
pub(crate) fn written_inside(plan: &Plan, caller: &Caller) -> Option<String> {
    let named = caller.directory.join(caller.variable(VARIABLE).filter(|path| !path.is_empty())?);
    let file = named.canonicalize().ok()?;
    // Its name may be a link that lies inside and leads out.
    let place = named.parent()?.canonicalize().ok()?;
    plan.writable().find(|shown| file.starts_with(shown) || place.starts_with(shown))?;
    Some(format!(
        "{VARIABLE} names {}, to which the command may write: the next run trusts whom it names there. Name a copy elsewhere",
        file.display()
    ))
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
        for (named, leads_to) in
            [("ws/certs/ca.pem", "ws/certs"), ("kept/link.pem", "ws/certs"), ("ws/out.pem", "kept")]
        {
            let told = told(named, "rw").unwrap();
            assert!(told.contains(&format!("/{leads_to}/ca.pem, to which the command may write")), "{told}");
        }
        for (named, mode) in [("ws/certs/ca.pem", "ro"), ("kept/ca.pem", "rw"), ("ws/none", "rw"), ("", "rw")]
        {
            assert_eq!(told(named, mode), None, "{named} {mode}");
        }
    }
}
