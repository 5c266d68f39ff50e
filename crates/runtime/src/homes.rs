//! Refuses workspaces that hold a home, by the machine's own list of accounts, whatever `HOME` says. A home holds keys, sessions and
//! this program's own records, which a command must not see only because a run was started there.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use policy::Backend;
use sandbox::{Caller, PathIdentity, Plan};

use crate::error::Error;

const ACCOUNTS: &str = "/etc/passwd";
/// How much of the list is read.
const MOST: u64 = 1 << 20;
/// Larger than most lists, so that one read is enough.
const USUAL: usize = 8192;

/// Refuses a workspace that holds the home of the caller, or of the user who owns the folder.
pub(crate) fn refuse_home(plan: &Plan, caller: &Caller) -> Result<(), Error> {
    if plan.backend == Backend::Process {
        return Ok(());
    }
    let owner = std::fs::metadata(&plan.workspace).map_or(caller.uid, |folder| folder.uid());
    let accounts = read(Path::new(ACCOUNTS))?;
    let Some(home) = home_in(&accounts, &plan.workspace, &[caller.uid, owner]) else {
        return Ok(());
    };
    Err(sandbox::Error::Refused {
        what: format!(
            "`{}` cannot be a workspace: it holds the home `{}`, with keys and sessions",
            plan.workspace.display(),
            home.display()
        ),
        remedy: Some("start in the folder of a project, or name one with --workspace".into()),
    }
    .into())
}

/// Reads a list of accounts. Without a list there are no homes; one that cannot be read may name some.
fn read(path: &Path) -> Result<String, sandbox::Error> {
    let mut text = Vec::with_capacity(USUAL);
    match File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut text)) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(sandbox::Error::Open { path: path.into(), source })
        }
        // Accounts may have names in any encoding, which must not hide a home.
        _ => Ok(String::from_utf8_lossy(&text).into_owned()),
    }
}

/// Returns the home of one of `users` that is inside `folder`.
fn home_in(accounts: &str, folder: &Path, users: &[u32]) -> Option<PathBuf> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let user = fields.next()?.parse().ok()?;
        let home = Path::new(fields.nth(2)?);
        if !users.contains(&user) || !home.is_absolute() || home == Path::new("/") {
            return None;
        }
        let home = PathIdentity::of(home);
        home.is_in(folder).then(|| home.path().to_path_buf())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(&folder.path().join("none")).unwrap(), "");
        // A directory can be opened, and not read.
        assert!(matches!(read(folder.path()), Err(sandbox::Error::Open { .. })));
    }

    #[test]
    fn a_home_is_whose_the_list_says() {
        let accounts = "root:x:0:0:root:/nonesuch/root:/bin/sh\nme:x:1000:1000::/nonesuch/home/me:/bin/sh\nbad\nd:x:1:1:::\n";
        let held = |folder: &str, users: &[u32]| home_in(accounts, Path::new(folder), users).is_some();
        assert!(held("/nonesuch/home/me", &[1000]) && held("/nonesuch/home", &[0, 1000]));
        assert!(!held("/nonesuch/home/me/project", &[1000]) && !held("/nonesuch/home/me", &[0, 1]));
    }
}
