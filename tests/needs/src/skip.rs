//! The only place where a test is skipped. A skip prints its reason, which `cargo xtask test` lists at the end, and is a failure where
//! [`REQUIRE`] says so. No skip is silent.

use std::env;

/// The variable that makes each skip a failure, if it is `all`: set where the machine must be able to run every test.
pub const REQUIRE: &str = "LOCKGATE_TEST_REQUIRE";

/// Returns what a test needs. If it is not here, prints the reason, and the test must return.
///
/// # Panics
/// As [`missing`].
#[must_use]
#[track_caller]
pub fn met<T>(need: Result<T, String>) -> Option<T> {
    need.map_err(|reason| missing(&reason)).ok()
}

/// Tells that something is missing for a test, which must return then.
///
/// # Panics
/// When [`REQUIRE`] is `all`.
#[track_caller]
#[expect(clippy::print_stderr, reason = "the reason is for whoever runs the tests")]
pub fn missing(reason: &str) {
    assert!(env::var_os(REQUIRE).is_none_or(|value| value != "all"), "this test cannot run: {reason}");
    // `xtask/src/skips.rs` reads this line.
    eprintln!("skipped: {reason}");
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};

    use super::*;

    #[test]
    fn what_is_here_is_returned() {
        assert_eq!(met(Ok::<_, String>(7)), Some(7));
    }

    /// Lacks something. The test below runs it, in an environment of its own.
    #[test]
    #[ignore = "it is a part of another test"]
    fn one_that_cannot_run() {
        assert_eq!(met(Err::<(), _>("no such thing".to_owned())), None);
    }

    #[test]
    fn a_skip_prints_its_reason_and_is_a_failure_where_everything_is_required() {
        let skip = |required: Option<&str>| -> Output {
            let mut command = Command::new(env::current_exe().expect("this test"));
            command.args(["--exact", "--ignored", "--nocapture", "skip::tests::one_that_cannot_run"]);
            command.env_remove(REQUIRE).envs(required.map(|value| (REQUIRE, value)));
            command.output().expect("this test, again")
        };
        for required in [None, Some(""), Some("some")] {
            let output = skip(required);
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{required:?}: {output:?}");
            assert!(told.lines().any(|line| line == "skipped: no such thing"), "{required:?}: {told}");
        }
        let output = skip(Some("all"));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{output:?}");
        assert!(told.contains("this test cannot run: no such thing"), "{told}");
    }
}
