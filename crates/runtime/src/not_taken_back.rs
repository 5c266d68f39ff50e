//! The note of what a run left that could not be taken back.

use sandbox::ENGINE_LATE;

/// Returns the note, with the way out: what is gone for good, as an engine that was removed, would be noted at each start for ever.
pub(crate) fn not_taken_back(problem: &str, run: &str) -> String {
    let note = format!("could not take back {problem} (of run {run}); the next run tries again");
    if problem.ends_with(ENGINE_LATE) {
        // It is there, and only slow.
        return note;
    }
    format!("{note}, `lockgate runs rm --force {run}` gives it up and removes the run's record")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_left_is_told_with_the_way_out() {
        let told = not_taken_back("engine abcdefghjkmn /gone: refused", "abcdefghjkmn");
        assert!(told.contains("`lockgate runs rm --force abcdefghjkmn` gives it up"), "{told}");
        let told = not_taken_back(&format!("engine abcdefghjkmn /slow: {ENGINE_LATE}"), "abcdefghjkmn");
        assert!(told.ends_with("the next run tries again"), "{told}");
    }
}
