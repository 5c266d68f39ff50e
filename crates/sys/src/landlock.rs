//! Landlock: a second restriction of file access behind the mounts. It identifies files by inode, so it also covers a mount that was
//! left by mistake.

use std::io;
use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};
use rustix::io::Errno;

/// The access that is allowed below a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Read and execute.
    Read,
    /// Read, execute and write.
    Write,
    /// Read and write existing files, devices included, and make none.
    Use,
}

/// How much of a ruleset the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforced {
    /// All of it.
    Fully,
    /// The part that this kernel's Landlock version knows.
    Partly,
    /// Nothing: the kernel has no Landlock.
    Not,
}

/// The newest Landlock version whose rights are used. Older kernels enforce the rights that they know.
const NEWEST: ABI = ABI::V6;

/// Restricts the calling thread to the given trees, and its signals and abstract sockets to its own Landlock domain.
///
/// # Errors
/// When the kernel refuses a ruleset that it should support.
pub fn restrict(trees: &[(BorrowedFd<'_>, Right)]) -> Result<Enforced, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    for (tree, right) in trees {
        let access = match right {
            Right::Read => AccessFs::from_read(NEWEST),
            Right::Write => AccessFs::from_all(NEWEST),
            Right::Use => {
                AccessFs::from_read(NEWEST) | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev
            }
        };
        ruleset = ruleset.add_rule(PathBeneath::new(tree, access))?;
    }
    Ok(match ruleset.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Enforced::Fully,
        RulesetStatus::PartiallyEnforced => Enforced::Partly,
        RulesetStatus::NotEnforced => Enforced::Not,
    })
}

/// The first version that can let a file be moved or linked to another directory. Version 1 forbids that in every ruleset.
/// landlock(7), `LANDLOCK_ACCESS_FS_REFER`.
pub const MOVES_FILES: u32 = 2;

/// Returns the Landlock version of this kernel.
///
/// # Errors
/// `ENOSYS` if it has none, `EOPNOTSUPP` if Landlock is switched off, or whatever a filter of system calls puts in place of an answer.
pub fn version() -> Result<u32, Errno> {
    // SAFETY: with LANDLOCK_CREATE_RULESET_VERSION the call accesses no memory and only returns a number.
    let answer =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, 1u32) };
    u32::try_from(answer).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::refusing;

    #[test]
    fn what_a_filter_says_is_told_from_what_a_kernel_says() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let told = refusing(libc::SYS_landlock_create_ruleset, errno, || Ok(version().map(|_| true)?));
            assert_eq!(told, Err(errno));
        }
    }
}
