//! Remembers what was denied, so that it is recorded once however often the agent tries it.

use std::collections::HashSet;

/// How many different targets are remembered.
const MOST: usize = 4096;

/// Whether a denial is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Novelty {
    /// The target has not been denied before, and is recorded.
    First,
    /// It is the first beyond the limit. One record says that no further ones are recorded.
    TooMany,
    /// It has been denied before, or is beyond the limit.
    Known,
}

/// The targets that were denied on one plane.
#[derive(Debug, Default)]
pub(crate) struct DeniedOnce(HashSet<String>);

impl DeniedOnce {
    /// Remembers a denied target, and returns whether it is to be recorded.
    pub(crate) fn denied(&mut self, target: &str) -> Novelty {
        if self.0.contains(target) || self.0.len() > MOST {
            return Novelty::Known;
        }
        self.0.insert(target.to_owned());
        if self.0.len() > MOST { Novelty::TooMany } else { Novelty::First }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_is_new_once_and_there_is_an_end() {
        let mut once = DeniedOnce::default();
        assert_eq!([once.denied("a"), once.denied("a")], [Novelty::First, Novelty::Known]);
        for n in 1..MOST {
            assert_eq!(once.denied(&n.to_string()), Novelty::First);
        }
        assert_eq!(
            ["b", "b", "c", "a"].map(|it| once.denied(it)),
            [Novelty::TooMany, Novelty::Known, Novelty::Known, Novelty::Known]
        );
    }
}
