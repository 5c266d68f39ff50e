//! Makes the unprivileged account of the rootless tests: a machine where everything runs as root has no other user for them.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Rights;
use crate::bounded::Bounded;

const NAME: &str = "lockgate-test";
/// The subordinate ids of the account.
const RANGE: &str = "700000000-700065535";

/// Makes the account if we are root. Any other user is unprivileged already and needs none.
pub(super) fn prepare(rights: Rights) -> Result<Option<String>> {
    if rights == Rights::User {
        return Ok(None);
    }
    if is_known(&fs::read_to_string("/etc/passwd").context("failed to read /etc/passwd")?) {
        return lend_ids().map(|()| None);
    }
    if super::program("useradd").is_none() {
        return Ok(Some(format!("missing: the user {NAME} (rootless tests), and no `useradd` to make it")));
    }
    let args = ["--create-home", "--shell", "/bin/sh", NAME];
    Bounded::new("useradd", &args, Duration::from_secs(30)).run()?;
    lend_ids().map(|()| None)
}

/// Gives the account subordinate ids where `useradd` gave it none. No `useradd` gives out this range.
fn lend_ids() -> Result<()> {
    let lent = |table| fs::read_to_string(table).is_ok_and(|text| is_known(&text));
    if lent("/etc/subuid") && lent("/etc/subgid") {
        return Ok(());
    }
    let args = ["--add-subuids", RANGE, "--add-subgids", RANGE, NAME];
    Bounded::new("usermod", &args, Duration::from_secs(30)).run()
}

fn is_known(passwd: &str) -> bool {
    passwd.lines().any(|line| line.split(':').next() == Some(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_name_counts() {
        assert!(is_known(
            "root:x:0:0::/root:/bin/sh\nlockgate-test:x:1001:1001::/home/lockgate-test:/bin/sh\n"
        ));
        assert!(!is_known("lockgate-tester:x:1:1::/:/bin/sh\nx:x:1:1:lockgate-test:/:/bin/sh\n"));
    }
}
