//! Keeps secrets out of memory while processes are forked: the secrets of the caller's environment, and the credentials that a run
//! gives by value. Each is moved into a file without a name that only this process keeps open, and the places where it stood are
//! overwritten.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;

use credential::Secret;
use rustix::fs::MemfdFlags;
use sandbox::Caller;
use zeroize::Zeroizing;

use crate::error::Error;

/// The largest value that is kept.
const LARGEST: usize = 64 * 1024;

/// A value that was taken out of memory.
#[derive(Debug)]
pub(crate) struct Stash(File);

impl Stash {
    /// Takes a variable out of the environment, if it is set and not empty. The process must have one thread.
    pub(crate) fn take(caller: &mut Caller, name: &CStr) -> Result<Option<Self>, Error> {
        let Some(value) = taken(caller, name)?.filter(|value| !value.is_empty()) else { return Ok(None) };
        Self::of(&value).map(Some)
    }

    /// Moves a value that was read into a stash.
    pub(crate) fn keep(value: &Secret) -> Result<Self, Error> {
        Self::of(value.expose())
    }

    fn of(value: &[u8]) -> Result<Self, Error> {
        let kept = rustix::fs::memfd_create("lockgate", MemfdFlags::CLOEXEC).map_err(io::Error::from);
        let kept = kept.and_then(|fd| {
            let mut file = File::from(fd);
            file.write_all(&value[..value.len().min(LARGEST)])?;
            Ok(file)
        });
        kept.map(Self).map_err(|source| Error::Plumbing { what: "keep a secret aside", source })
    }

    /// Takes a variable that nobody will ask for out of the environment. For a process that has one thread.
    pub(crate) fn forget(caller: &mut Caller, name: &CStr) -> Result<(), Error> {
        taken(caller, name).map(drop)
    }

    /// Reads the value.
    pub(crate) fn read(&self) -> io::Result<Secret> {
        let mut value = vec![0; LARGEST];
        let mut length = 0;
        while length < LARGEST {
            match self.0.read_at(&mut value[length..], length as u64)? {
                0 => break,
                read => length += read,
            }
        }
        value.truncate(length);
        Ok(Secret::new(value))
    }
}

/// Removes a variable from both environments, wiping it, and returns its value.
fn taken(caller: &mut Caller, name: &CStr) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    let found = taken_from(caller, name.to_str().unwrap_or_default());
    sandbox::wipe_variable(name).map_err(|source| Error::Plumbing { what: "keep a secret aside", source })?;
    Ok(found)
}

/// Removes a variable from a caller's environment, and returns its value: of several entries the first, as [`Caller::variable`] does.
fn taken_from(caller: &mut Caller, name: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut found = None;
    caller.environment.retain_mut(|(n, value)| {
        let is_it = n == name;
        if is_it {
            let value = Zeroizing::new(std::mem::take(value).into_vec());
            found.get_or_insert(value);
        }
        !is_it
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_variable_that_stands_twice_the_first_is_taken_and_none_stays() {
        let variables = [("KEY", "first"), ("OTHER", "kept"), ("KEY", "second")];
        let mut caller = Caller::new(1, 1, "/").with_env(variables);
        assert_eq!(caller.variable("KEY"), Some("first"));
        assert_eq!(taken_from(&mut caller, "KEY").as_deref().map(Vec::as_slice), Some(b"first".as_slice()));
        assert_eq!(caller.environment, [("OTHER".into(), "kept".into())]);
        assert!(taken_from(&mut caller, "KEY").is_none());
    }
}
