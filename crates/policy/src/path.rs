//! Request paths, and the check that makes a path prefix meaningful: however a server reads the path, it cannot climb out (R7).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use crate::denial::{Denial, Guard};
use crate::path_levels::{EncodedSlash, Why, check_levels};
use crate::path_readings::{HOST_AT_BEGINNING, Readings};

/// A request path as it was written: not decoded, not normalised, never empty. What servers may take it for is read once, when a rule first
/// asks, and kept for all that share it.
#[derive(Clone)]
pub struct Path(Arc<Kept>);

struct Kept {
    written: Box<str>,
    /// Whether it cannot climb: without an encoded `/`, and with it.
    levels: OnceLock<[Result<(), Why>; 2]>,
    readings: OnceLock<Readings>,
}

impl Path {
    pub(crate) fn new(raw: &str) -> Self {
        let written = if raw.is_empty() { "/".into() } else { raw.into() };
        Self(Arc::new(Kept { written, levels: OnceLock::new(), readings: OnceLock::new() }))
    }

    /// Returns the path, octet for octet.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.written
    }

    /// Returns what lenient servers may take the path for, without case and with repeated slashes collapsed. The first is the path fully
    /// decoded.
    pub(crate) fn readings(&self) -> &[String] {
        &self.read().all
    }

    /// Refuses a path that some server could take for one elsewhere.
    pub(crate) fn check_no_doubt(&self) -> Result<(), Denial> {
        self.check_cannot_climb(EncodedSlash::Allow)?;
        self.read().doubt.map_or(Ok(()), |why| Err(refuse(why)))
    }

    /// Refuses a path that an allow rule could not be held to: to some servers it is only what follows a host at its beginning.
    pub(crate) fn check_no_host(&self) -> Result<(), Denial> {
        if self.read().has_host { Err(refuse(HOST_AT_BEGINNING)) } else { Ok(()) }
    }

    /// Returns whether only an encoded `/` is in the way of a rule: one with `encoded_slash` may name the path.
    #[must_use]
    pub fn has_encoded_slash(&self) -> bool {
        self.check_cannot_climb(EncodedSlash::Refuse).is_err()
            && self.check_cannot_climb(EncodedSlash::Allow).is_ok()
    }

    /// Refuses a path of which some level of encoding could lead elsewhere.
    pub(crate) fn check_cannot_climb(&self, encoded_slash: EncodedSlash) -> Result<(), Denial> {
        let [without, with] = self.0.levels.get_or_init(|| {
            let without = check_levels(self.as_str(), EncodedSlash::Refuse);
            // What holds without one holds with it.
            [without, without.or_else(|_| check_levels(self.as_str(), EncodedSlash::Allow))]
        });
        match encoded_slash {
            EncodedSlash::Refuse => without.map_err(refuse),
            EncodedSlash::Allow => with.map_err(refuse),
        }
    }

    fn read(&self) -> &Readings {
        self.0.readings.get_or_init(|| Readings::of(self.as_str()))
    }
}

impl PartialEq for Path {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Path {}

impl Hash for Path {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Path").field(&self.as_str()).finish()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn refuse(why: Why) -> Denial {
    Denial::new(Guard::Path, format!("the path could lead elsewhere: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_of_a_path_is_kept_for_all_that_share_it() {
        let (path, alike) = (Path::new("/%61"), Path::new("/%61"));
        let shared = path.clone();
        assert!(shared.check_no_doubt().is_ok());
        assert!(path.0.levels.get().is_some() && path.0.readings.get().is_some());
        assert!(std::ptr::eq(path.readings(), shared.readings()));
        // Equal is what was written.
        assert!(alike.0.readings.get().is_none() && alike == path);
    }
}
