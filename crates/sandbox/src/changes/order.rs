//! The order in which changes are applied, and the times of files that take the place of others: what was built of those is to be built
//! anew, since `make` goes by the times.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::change::{Change, What};
use super::mode;

/// What stands in the place of something new goes first, deepest paths first; then additions, topmost paths first, and what takes the place
/// of something, as the run wrote it; then all other removals. So nothing that was moved is gone before it is in its new place.
pub(super) struct Order<'a> {
    pub(super) changes: Vec<&'a Change>,
    /// The paths at which something else was.
    taken: BTreeSet<&'a Path>,
    /// The time that was given last.
    last: Cell<SystemTime>,
}

impl<'a> Order<'a> {
    /// Puts changes in order. `written` says when the run wrote a file.
    pub(super) fn of<T: Ord>(changes: Vec<&'a Change>, written: impl Fn(&Path) -> Option<T>) -> Self {
        let (gone, other): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| matches!(change.what, What::Gone { .. }));
        let paths = |of: &[&'a Change]| of.iter().map(|it| it.path.as_path()).collect::<BTreeSet<_>>();
        let (left, new) = (paths(&gone), paths(&other));
        let is_below = |path: &Path, paths: &BTreeSet<&Path>| path.ancestors().any(|it| paths.contains(it));
        let takes_a_place = |change: &&Change| match change.what {
            What::Changed { .. } => true,
            What::Made { mode } => !mode::is_directory(mode) && is_below(&change.path, &left),
            What::Gone { .. } => false,
        };
        let (mut taking, made): (Vec<_>, Vec<_>) = other.into_iter().partition(takes_a_place);
        let taken = paths(&taking);
        taking.sort_by_cached_key(|change| written(&change.path));
        let (in_the_way, rest): (Vec<_>, Vec<_>) =
            gone.into_iter().rev().partition(|change: &&Change| is_below(&change.path, &new));
        let changes = in_the_way.into_iter().chain(made).chain(taking).chain(rest).collect();
        Self { changes, taken, last: Cell::new(SystemTime::UNIX_EPOCH) }
    }

    /// Returns the time of a file that takes the place of something else now: later than all that was built before, and than those that
    /// did so before. `None` if nothing was there.
    pub(super) fn time(&self, path: &Path) -> Option<SystemTime> {
        if !self.taken.contains(path) {
            return None;
        }
        self.last.set(SystemTime::now().max(self.last.get() + Duration::from_nanos(1)));
        Some(self.last.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_moved_is_not_gone_before_it_is_in_its_new_place() {
        let change = |path: &str, what| Change { path: path.into(), what, conflict: None, protected: None };
        let (file, folder) = (0o100_644, 0o040_755);
        let list = [
            change("a", What::Gone { mode: file }),
            change("d", What::Gone { mode: folder }),
            change("d", What::Made { mode: file }),
            change("d/in it", What::Gone { mode: file }),
            change("new", What::Made { mode: file }),
            change("z", What::Gone { mode: folder }),
            change("z/in it", What::Gone { mode: file }),
            change("zz", What::Changed { from: file, to: file }),
        ];
        let order = Order::of(list.iter().collect(), |_| None::<()>);
        let paths: Vec<_> = order.changes.iter().map(|it| it.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["d/in it", "d", "new", "d", "zz", "z/in it", "z", "a"]);
        assert!(order.time(Path::new("new")).is_none());
        let (first, second) = (order.time(Path::new("d")), order.time(Path::new("zz")));
        assert!(first.is_some() && first < second, "{first:?} {second:?}");
    }
}
