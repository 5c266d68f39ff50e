//! Explains why a command was not found inside, as far as this machine shows it: the person sees another machine than the command.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use policy::shell_word;

/// Builtins of shells, which are no programs.
const OF_THE_SHELL: [&str; 10] =
    ["cd", "export", "source", "alias", "set", "unset", "ulimit", "umask", "exec", "eval"];
/// Programs that run another as root.
const TO_BE_ROOT: [&str; 3] = ["sudo", "doas", "su"];
/// The longest first line that names an interpreter, execve(2).
const FIRST_LINE: u64 = 256;

/// The places in which a command was searched for.
pub(crate) struct SearchedPlaces {
    /// The caller's own search path.
    pub(crate) path: Option<String>,
    /// The caller's home, and the directory inside where a user's own programs are found by name.
    pub(crate) home: Option<PathBuf>,
    pub(crate) programs: PathBuf,
    /// The workspace, and the directory in it in which the command was to begin.
    pub(crate) workspace: PathBuf,
    pub(crate) directory: PathBuf,
    /// The directories of this machine's system that are inside.
    pub(crate) system: Vec<PathBuf>,
    /// Whether the command sees all of this machine, as without a sandbox.
    pub(crate) sees_this_machine: bool,
    /// Whether the command sees an image, in which programs of this machine have not what they need.
    pub(crate) is_image: bool,
}

impl SearchedPlaces {
    /// Returns a hint for a command that was not found; it continues a sentence after a semicolon.
    pub(crate) fn hint(&self, command: &str) -> Option<String> {
        if OF_THE_SHELL.contains(&command) {
            return Some(format!("`{command}` is a shell's own word: sh -c '{command} …'"));
        }
        if let Some((name, value)) = command.split_once('=')
            && is_variable(name)
        {
            let value = shell_word(value);
            return Some(format!(
                "a variable is set by a flag before the command: --env {name}={value} -- CMD"
            ));
        }
        if command.contains(char::is_whitespace) {
            return Some(
                "a command and its arguments are words of their own, without quotes around all of them"
                    .into(),
            );
        }
        if TO_BE_ROOT.contains(&command) && !self.sees_this_machine {
            return Some(
                "nothing inside becomes another user, so leave it out; what has to be installed for the command goes into an image \
                 (--image)"
                    .into(),
            );
        }
        if command.contains('/') {
            let workspace = self.workspace.canonicalize().ok()?;
            let file = self.directory.join(command).canonicalize().ok();
            if file.as_ref().is_some_and(|file| file.starts_with(&workspace)) {
                let interpreter = interpreter_of(&file?)?;
                let ends = if interpreter.ends_with("\\r") { ": its lines end as on Windows" } else { "" };
                return Some(format!(
                    "it is there, and its interpreter `{interpreter}` may not be inside{ends}"
                ));
            }
            if self.is_image {
                return Some(
                    "or it is there, and its interpreter, or the loader that it names, is not".into(),
                );
            }
            return self.brought_from_home(&self.directory.join(command));
        }
        if self.is_image {
            return None;
        }
        let mut places = self.path.as_deref()?.split(':').filter(|place| place.starts_with('/'));
        let file =
            places.find_map(|place| Some(Path::new(place).join(command)).filter(|file| is_program(file)))?;
        let here = shown(&file);
        match interpreter_of(&file).filter(|interpreter| !Path::new(interpreter).exists()) {
            Some(interpreter) => {
                Some(format!("here it is {here}, and its interpreter `{interpreter}` is not there"))
            }
            None if self.sees_this_machine => None,
            None if self.is_shown(&file) && file.canonicalize().is_ok_and(|file| self.is_shown(&file)) => {
                Some(format!("it is inside at {here}, which the run's PATH does not name"))
            }
            None => self.brought_from_home(&file).or_else(|| {
                // A mount takes no link.
                let (file, source) = (file.to_str()?, file.canonicalize().ok()?);
                Some(format!("here it is {here}, and {}", brought(source.to_str()?, file, file)))
            }),
        }
    }

    /// Whether a path is in a tree of this machine's that a run shows.
    fn is_shown(&self, path: &Path) -> bool {
        self.system.iter().any(|tree| path.starts_with(tree))
    }

    /// Returns how a program of the caller's home is brought in, as a line that can be typed.
    fn brought_from_home(&self, file: &Path) -> Option<String> {
        let home = self.home.as_deref().filter(|_| !self.sees_this_machine && is_program(file))?;
        let resolved = file.canonicalize().ok()?;
        let is_at_home = file.starts_with(home) || resolved.starts_with(home.canonicalize().ok()?);
        let name = file.file_name().filter(|_| is_at_home)?.to_str()?;
        let here = shown(file);
        let tool = sandbox::tool_with(file, home).or_else(|| sandbox::tool_with(&resolved, home));
        if let Some(tool) = tool {
            return Some(format!(
                "here it is {here}, and --tool {tool} brings it; then its name is `{name}`"
            ));
        }
        if let Some(tree) = tree_of(&resolved, home) {
            let tree = tree.to_str()?;
            return Some(format!("here it is {here}, and {}", brought(tree, tree, resolved.to_str()?)));
        }
        let target = self.programs.join(name);
        Some(format!("here it is {here}, and {}", brought(resolved.to_str()?, target.to_str()?, name)))
    }
}

/// Returns what shows a path of this machine inside and executes a program there. In a flag a colon ends the path.
fn brought(source: &str, target: &str, program: &str) -> String {
    let program = shell_word(program);
    if source.contains(':') || target.contains(':') {
        let [source, target] = [source, target].map(|path| toml::Value::from(path).to_string());
        return format!(
            "a [[mount]] of a policy file brings it, with source = {source} and target = {target}; then it is {program}"
        );
    }
    format!("this brings it: --mount {} -- {program}", shell_word(&format!("{source}:{target}")))
}

/// Returns the directory without which a program is nothing: the `node_modules` that npm installed it in, or the Python environment
/// whose interpreter it names. Both contain their own path.
fn tree_of(program: &Path, home: &Path) -> Option<PathBuf> {
    let is_of_node = |folder: &&Path| folder.file_name().is_some_and(|name| name == "node_modules");
    if let Some(modules) = program.ancestors().filter(is_of_node).last() {
        return Some(modules.to_owned());
    }
    let interpreter = PathBuf::from(interpreter_of(program)?);
    let environment = interpreter.parent()?.parent()?;
    let is_one = interpreter.starts_with(home) && environment != home && program.starts_with(environment);
    is_one.then(|| environment.to_owned())
}

/// Returns a path without control characters.
fn shown(path: &Path) -> String {
    path.display().to_string().escape_debug().to_string()
}

/// Whether a shell would take it for the name of a variable.
fn is_variable(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// Returns the interpreter that a script's first line names, without control characters.
fn interpreter_of(script: &Path) -> Option<String> {
    // A command of a run may put a pipe in its place, which nobody would ever write to.
    let file = sandbox::open_without_links(&script.canonicalize().ok()?).ok()??;
    let mut head = Vec::new();
    file.take(FIRST_LINE).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|octet| *octet == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    // The kernel ends the name at a space or a tab only: with Windows line ends, the carriage return belongs to the name.
    let name = line.trim_start_matches([' ', '\t']).split([' ', '\t']).next().filter(|name| !name.is_empty());
    name.map(|interpreter| interpreter.escape_debug().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_told_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("script"), "#! /none/python3 -u\nx").unwrap();
        std::fs::write(at("windows"), "#!/bin/sh\r\nx").unwrap();
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
        let (home, programs) = (None, "/home/agent/.local/bin".into());
        let searched = SearchedPlaces {
            path,
            home,
            programs,
            workspace,
            directory,
            system: Vec::new(),
            sees_this_machine: false,
            is_image: false,
        };
        for (command, said) in [
            ("make test", Some("words of their own")),
            ("FOO=1", Some("--env FOO=1 -- CMD")),
            ("FOO=a b", Some("--env FOO='a b' -- CMD")),
            ("1F=1", None),
            ("sudo", Some("leave it out")),
            ("cd", Some("sh -c 'cd …'")),
            ("./script", Some("its interpreter `/none/python3` may not be inside")),
            ("./none", None),
            ("./pipe", None),
            ("../script", None),
            ("broken", Some("its interpreter `/none/python3` is not there")),
            ("./data", None),
            ("tool", Some("this brings it: --mount ")),
            ("./windows", Some("`/bin/sh\\r` may not be inside: its lines end as on Windows")),
            ("data", None),
            ("none", None),
        ] {
            let hint = searched.hint(command);
            assert!(
                hint.as_deref().is_some_and(|hint| said.is_some_and(|said| hint.contains(said)))
                    || hint.is_none() && said.is_none(),
                "{command}: {hint:?}"
            );
        }
        let shown = SearchedPlaces { system: vec![at("")], ..searched };
        let hint = shown.hint("tool").unwrap();
        assert!(
            hint.contains("it is inside at") && hint.ends_with("which the run's PATH does not name"),
            "{hint}"
        );
        let below = SearchedPlaces { system: Vec::new(), directory: at("below"), ..shown };
        assert!(below.hint("./script").is_none() && below.hint("../script").is_some());
        let bare = SearchedPlaces { sees_this_machine: true, ..below };
        assert_eq!(bare.hint("tool"), None);
        let image = SearchedPlaces { sees_this_machine: false, is_image: true, ..bare };
        assert_eq!(image.hint("tool"), None, "its libraries are not there");
        assert!(image.hint("/none").is_some_and(|hint| hint.contains("its interpreter, or the loader")));
    }

    #[test]
    fn a_path_with_a_colon_is_for_a_policy_and_not_for_a_flag() {
        let flag = brought("/opt/a b", "/opt/x", "x y");
        assert_eq!(flag, "this brings it: --mount '/opt/a b:/opt/x' -- 'x y'");
        let told = brought("/opt/bi:n/x", "/opt/x", "x");
        assert!(told.contains("source = \"/opt/bi:n/x\" and target = \"/opt/x\"; then it is x"), "{told}");
        assert!(!told.contains("--mount"), "{told}");
    }

    #[test]
    fn a_program_of_the_home_comes_with_the_line_that_brings_it() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().canonicalize().unwrap();
        for place in ["bin", "apps/1.2", ".cargo/bin", "work"] {
            std::fs::create_dir_all(home.join(place)).unwrap();
        }
        for program in ["apps/1.2/agent", ".cargo/bin/cargo-nextest"] {
            std::fs::write(home.join(program), "x").unwrap();
            std::fs::set_permissions(home.join(program), PermissionsExt::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::symlink("../apps/1.2/agent", home.join("bin/agent")).unwrap();
        let at = |place: &str| home.join(place);
        let searched = SearchedPlaces {
            path: Some(format!("{}:{}", at("bin").display(), at(".cargo/bin").display())),
            home: Some(home.clone()),
            programs: "/home/agent/.local/bin".into(),
            workspace: at("work"),
            directory: at("work"),
            system: Vec::new(),
            sees_this_machine: false,
            is_image: false,
        };
        let line =
            format!("--mount {}:/home/agent/.local/bin/agent -- agent", at("apps/1.2/agent").display());
        for command in ["agent", &at("bin/agent").display().to_string(), "../bin/agent"] {
            let hint = searched.hint(command).unwrap();
            assert!(hint.ends_with(&line), "{command}: {hint}");
        }
        // A program that needs the files around it.
        let script = |place: &str, name: &str, line: &str| {
            std::fs::create_dir_all(at(place).parent().unwrap()).unwrap();
            std::fs::write(at(place), line).unwrap();
            std::fs::set_permissions(at(place), PermissionsExt::from_mode(0o755)).unwrap();
            std::os::unix::fs::symlink(at(place), at("bin").join(name)).unwrap();
            searched.hint(name).unwrap()
        };
        let hint = script("npm/lib/node_modules/a/cli.js", "a", "#!/bin/sh\n");
        let [tree, program] = ["npm/lib/node_modules", "npm/lib/node_modules/a/cli.js"].map(at);
        let line = format!("--mount {0}:{0} -- {1}", tree.display(), program.display());
        assert!(hint.ends_with(&line), "{hint}");
        std::fs::create_dir_all(at("venvs/b/bin")).unwrap();
        std::os::unix::fs::symlink("/bin/sh", at("venvs/b/bin/python")).unwrap();
        let hint = script("venvs/b/bin/b", "b", &format!("#!{}\n", at("venvs/b/bin/python").display()));
        let line = format!("--mount {0}:{0} -- {1}", at("venvs/b").display(), at("venvs/b/bin/b").display());
        assert!(hint.ends_with(&line), "{hint}");
        let hint = searched.hint("cargo-nextest").unwrap();
        assert!(hint.contains("--tool rustup brings it"), "{hint}");
        let bare = SearchedPlaces { sees_this_machine: true, ..searched };
        assert_eq!(bare.hint(&at("bin/agent").display().to_string()), None);
    }
}
