//! The path of a rule. An allow rule compares it octet for octet, a deny rule in every spelling that some server takes for it.

use std::fmt;

use crate::path::Path;
use crate::path_levels::EncodedSlash;

/// The paths that a rule covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathReach {
    Any,
    Exact(Literal),
    Prefix(Literal),
}

/// The path of a rule, without the `*` of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Literal {
    /// The path as it was written.
    written: String,
    /// The path decoded, without case, with repeated slashes collapsed.
    folded: String,
}

impl PathReach {
    /// Parses the path of a URL: exact, or a prefix that ends in `*`.
    pub(crate) fn parse(path: &str) -> Result<Self, String> {
        let (literal, prefix) = match path.strip_suffix('*') {
            Some(literal) => (literal, true),
            None => (path, false),
        };
        if literal.contains('*') {
            return Err("`*` may stand only at the end of the path".into());
        }
        if prefix && literal.is_empty() {
            return Err("write `/*` for every path of the host".into());
        }
        let parsed = Path::new(literal);
        parsed.check_cannot_climb(EncodedSlash::Allow).map_err(|denial| denial.reason)?;
        let literal = Literal { written: parsed.as_str().to_owned(), folded: parsed.readings()[0].clone() };
        Ok(if prefix { Self::Prefix(literal) } else { Self::Exact(literal) })
    }

    /// Returns the path as it was written, without the `*` of a prefix.
    pub(crate) fn written(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Exact(path) | Self::Prefix(path) => Some(&path.written),
        }
    }

    /// Returns whether every path is covered.
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(_) => false,
            Self::Prefix(prefix) => prefix.written == "/",
        }
    }

    /// Orders the paths that cover the same one: the longest is the narrowest, and of equally long ones the exact one.
    pub(crate) fn narrowness(&self) -> impl Ord + use<> {
        (self.written().map_or(0, str::len), matches!(self, Self::Exact(_)))
    }

    /// Returns whether a path is covered, octet for octet.
    pub(crate) fn covers(&self, path: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => path == exact.written,
            Self::Prefix(prefix) => path.starts_with(prefix.written.as_str()),
        }
    }

    /// Returns whether some path is covered by both, octet for octet.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::Exact(exact), paths) | (paths, Self::Exact(exact)) => paths.covers(&exact.written),
            (Self::Prefix(a), Self::Prefix(b)) => {
                a.written.starts_with(&b.written) || b.written.starts_with(&a.written)
            }
        }
    }

    /// Returns whether some server could take `path` for one that the rule covers. For deny rules.
    pub(crate) fn may_reach(&self, path: &Path) -> bool {
        self.covers(path.as_str())
            || path.check_no_doubt().is_err()
            || path.readings().iter().any(|reading| self.covers_folded(reading))
    }

    /// Returns why `path` is caught if it is not below the rule itself, and some server could take it for anything.
    pub(crate) fn doubt(&self, path: &Path) -> Option<String> {
        if self.covers(path.as_str()) {
            return None;
        }
        path.check_no_doubt().err().map(|denial| denial.reason)
    }

    /// Compares one reading of a path, for deny rules. Servers also differ in a slash at the end: some take `/admin` for `/admin/`.
    fn covers_folded(&self, reading: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => reading.trim_end_matches('/') == exact.folded.trim_end_matches('/'),
            Self::Prefix(prefix) => {
                reading.starts_with(prefix.folded.as_str())
                    || prefix.folded.strip_suffix('/').is_some_and(|directory| reading == directory)
            }
        }
    }
}

impl fmt::Display for PathReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("every path"),
            Self::Exact(path) => f.write_str(&path.written),
            Self::Prefix(prefix) => write!(f, "{}*", prefix.written),
        }
    }
}
