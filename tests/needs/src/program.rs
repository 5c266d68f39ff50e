//! Finds what is built and made for the tests, by the environment or from where the test itself was built, and asks whether a program
//! works. It never builds anything.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns the path of one of our programs: from its variable (`LOCKGATE_BIN`, and `LOCKGATE_PROBE_BIN` for `probe`), or beside this test.
///
/// # Errors
/// When the variable names no file, or the program is not built.
pub fn program(name: &str) -> Result<PathBuf, String> {
    let variable = match name {
        "lockgate" => "LOCKGATE_BIN".to_owned(),
        other => format!("LOCKGATE_{}_BIN", other.to_uppercase().replace('-', "_")),
    };
    if let Some(path) = env::var_os(&variable).map(PathBuf::from) {
        let wrong = format!("{variable} names no file: {}", path.display());
        return if path.is_file() { Ok(path) } else { Err(wrong) };
    }
    // A test is in `deps`, one below the programs of the same build; an example or a program is beside them or below.
    let own = own_path()?;
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    beside.ok_or_else(|| format!("`{name}` is not built; build it, or name it in {variable}"))
}

/// Returns the path of a file that `cargo xtask setup` makes in the target directory, which contains this test as well.
///
/// # Errors
/// When it is not there.
pub fn made_by_setup(file: &str) -> Result<PathBuf, String> {
    let own = own_path()?;
    let found = own.ancestors().map(|above| above.join(file)).find(|path| path.is_file());
    found.ok_or_else(|| format!("no {file} in the target directory; `cargo xtask setup` makes it, as root"))
}

/// Runs a command with an empty stdin, for what it shows by its exit status.
///
/// # Errors
/// When it does not start or fails: `otherwise`, and its own words.
pub fn succeeds(command: &mut Command, otherwise: &str) -> Result<(), String> {
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{otherwise}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{otherwise}: {error}")),
    }
}

fn own_path() -> Result<PathBuf, String> {
    env::current_exe().map_err(|error| format!("this test's own path is unknown: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_here_is_told_by_name() {
        let told = program("no-such").unwrap_err();
        assert_eq!(told, "`no-such` is not built; build it, or name it in LOCKGATE_NO_SUCH_BIN");
        assert!(made_by_setup("no/such").unwrap_err().starts_with("no no/such in the target directory"));
        let (mut good, mut bad, mut none) =
            (Command::new("true"), Command::new("sh"), Command::new("/no/such"));
        assert_eq!(succeeds(&mut good, "x"), Ok(()));
        assert_eq!(succeeds(bad.args(["-c", "echo why >&2; exit 1"]), "x").unwrap_err(), "x: why");
        assert!(succeeds(&mut none, "x").unwrap_err().starts_with("x: No such file"));
    }
}
