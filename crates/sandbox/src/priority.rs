//! Gives up what a caller may have of priority over the machine's other processes: nobody else's run is to wait for a hostile command, and
//! a real-time one would starve the machine, whatever the control group says.

use std::io;

use rustix::process::{Resource, getpriority_process, setpriority_process};

use crate::oom_score::OWN as OOM_SCORE;
use crate::rlimit;

/// Makes this process an ordinary one, whose children cannot become another. It must still have the caller's identity, because its file
/// in `/proc` is the caller's.
pub(crate) fn give_up() -> io::Result<()> {
    for resource in [Resource::Rtprio, Resource::Nice] {
        rlimit::lower(resource, 0)?;
    }
    sys::priority::leave_real_time()?;
    if getpriority_process(None)? < 0 {
        setpriority_process(None, 0)?;
    }
    let is_spared = sys::kernel_file::read(OOM_SCORE).is_ok_and(|score| score.starts_with('-'));
    if is_spared { std::fs::write(OOM_SCORE, "0") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_priority_is_left() {
        // Without root there is none to be had.
        let spared = std::fs::write(OOM_SCORE, "-1").is_ok();
        let first = setpriority_process(None, -1).is_ok();
        let now = || (std::fs::read_to_string(OOM_SCORE).unwrap(), getpriority_process(None).unwrap());
        let before = now();
        assert!((!spared || before.0 == "-1\n") && (!first || before.1 == -1), "{before:?}");
        give_up().unwrap();
        let (score, nice) = now();
        assert!(!score.starts_with('-') && nice >= 0, "{score}{nice}");
    }
}
