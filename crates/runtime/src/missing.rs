//! Why a command was not found inside, as far as that can be told from here: said to the person, who sees another machine.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Words that a shell carries out itself, and no program is called.
const OF_THE_SHELL: [&str; 10] =
    ["cd", "export", "source", "alias", "set", "unset", "ulimit", "umask", "exec", "eval"];
/// The longest first line that names an interpreter, execve(2).
const FIRST_LINE: u64 = 256;

/// Where a command was looked for, and whence.
pub(crate) struct Looked {
    /// The caller's own search path.
    pub(crate) path: Option<String>,
    /// The folder it works in, which is inside as well.
    pub(crate) workspace: PathBuf,
}

impl Looked {
    /// What there is to say beside that it was not found; it goes on after a semicolon.
    pub(crate) fn hint(&self, command: &str) -> Option<String> {
        if command.contains(char::is_whitespace) {
            return Some(
                "a command and its arguments are words of their own, without quotes around all of them"
                    .into(),
            );
        }
        if OF_THE_SHELL.contains(&command) {
            return Some(format!("`{command}` is a shell's own word: sh -c '{command} …'"));
        }
        if command.contains('/') {
            let interpreter = interpreter_of(&self.workspace.join(command))?;
            return Some(format!(
                "it is there, and its interpreter `{}` is not inside",
                interpreter.escape_debug()
            ));
        }
        let mut places = self.path.as_deref()?.split(':').filter(|place| place.starts_with('/'));
        let found =
            places.find_map(|place| Some(Path::new(place).join(command)).filter(|path| is_program(path)))?;
        let found = found.display().to_string();
        Some(format!(
            "here it is {}, which is not inside: --tool NAME brings a toolchain of your home, --mount a folder",
            found.escape_debug()
        ))
    }
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// The interpreter that a script's first line names.
fn interpreter_of(script: &Path) -> Option<String> {
    let is_file = std::fs::metadata(script).is_ok_and(|it| it.is_file());
    let mut head = Vec::new();
    File::open(script).ok().filter(|_| is_file)?.take(FIRST_LINE).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|octet| *octet == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    line.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_told_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("script"), "#! /none/python3 -u\nx").unwrap();
        std::fs::write(at("data"), "x").unwrap();
        std::fs::write(at("tool"), "x").unwrap();
        std::fs::set_permissions(at("tool"), PermissionsExt::from_mode(0o755)).unwrap();
        let path = Some(format!("relative:/none:{}", folder.path().display()));
        let looked = Looked { path, workspace: folder.path().to_owned() };
        for (command, said) in [
            ("make test", Some("words of their own")),
            ("cd", Some("sh -c 'cd …'")),
            ("./script", Some("its interpreter `/none/python3` is not inside")),
            ("./none", None),
            ("./data", None),
            ("tool", Some("--tool NAME")),
            ("data", None),
            ("none", None),
        ] {
            let hint = looked.hint(command);
            assert!(
                hint.as_deref().is_some_and(|hint| said.is_some_and(|said| hint.contains(said)))
                    || hint.is_none() && said.is_none(),
                "{command}: {hint:?}"
            );
        }
    }
}
