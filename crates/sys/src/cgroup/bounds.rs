//! What the groups above a new one allow.

/// What the groups between the caller and the place of a new group allow. A new group is not below
/// them, so the kernel does not apply their limits to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Octets of memory.
    pub memory: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_milli: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

impl Bounds {
    /// Returns the narrower of both, bound by bound.
    pub(super) fn and(self, other: Self) -> Self {
        let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        Self {
            memory: least(self.memory, other.memory),
            cpu_milli: least(self.cpu_milli, other.cpu_milli),
            pids: least(self.pids, other.pids),
        }
    }
}
