//! Why a command was not found inside, as far as that can be told from here: said to the person, who sees another machine.

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
    /// The folder that is inside as well, and where in it the command was to begin.
    pub(crate) workspace: PathBuf,
    pub(crate) directory: PathBuf,
    /// Whether it sees all of this machine, as without a sandbox.
    pub(crate) sees_this_machine: bool,
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
            let workspace = self.workspace.canonicalize().ok()?;
            let file = self.directory.join(command).canonicalize().ok();
            let interpreter = interpreter_of(&file.filter(|file| file.starts_with(&workspace))?)?;
            return Some(format!("it is there, and its interpreter `{interpreter}` may not be inside"));
        }
        let mut places = self.path.as_deref()?.split(':').filter(|place| place.starts_with('/'));
        let file =
            places.find_map(|place| Some(Path::new(place).join(command)).filter(|file| is_program(file)))?;
        let here = file.display().to_string().escape_debug().to_string();
        match interpreter_of(&file).filter(|interpreter| !Path::new(interpreter).exists()) {
            Some(interpreter) => {
                Some(format!("here it is {here}, and its interpreter `{interpreter}` is not there"))
            }
            None if self.sees_this_machine => None,
            None => Some(format!(
                "here it is {here}; what is installed in a home is not inside unless --tool NAME or --mount brings it"
            )),
        }
    }
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// The interpreter that a script's first line names, without what a terminal would obey.
fn interpreter_of(script: &Path) -> Option<String> {
    // Somebody else's command may put a pipe in its place, which nobody would ever write to.
    let file = sandbox::open_regular(&script.canonicalize().ok()?).ok()??;
    let mut head = Vec::new();
    file.take(FIRST_LINE).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|octet| *octet == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    line.split_whitespace().next().map(|interpreter| interpreter.escape_debug().to_string())
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
        std::fs::write(at("broken"), "#!/none/python3\n").unwrap();
        std::fs::create_dir(at("below")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        for program in ["tool", "broken"] {
            std::fs::set_permissions(at(program), PermissionsExt::from_mode(0o755)).unwrap();
        }
        let path = Some(format!("relative:/none:{}", folder.path().display()));
        let [workspace, directory] = [folder.path(), folder.path()].map(Path::to_owned);
        let looked = Looked { path, workspace, directory, sees_this_machine: false };
        for (command, said) in [
            ("make test", Some("words of their own")),
            ("cd", Some("sh -c 'cd …'")),
            ("./script", Some("its interpreter `/none/python3` may not be inside")),
            ("./none", None),
            ("./pipe", None),
            ("../script", None),
            ("broken", Some("its interpreter `/none/python3` is not there")),
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
        let below = Looked { directory: at("below"), ..looked };
        assert!(below.hint("./script").is_none() && below.hint("../script").is_some());
        let bare = Looked { sees_this_machine: true, ..below };
        assert_eq!(bare.hint("tool"), None);
    }
}
