//! `lockgate completion`: completions for a shell.

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory, ValueHint};

use crate::arguments::Arguments;
use crate::exit::Done;
use crate::output;

/// The values of flags that are words of a closed set.
const WORDS: [(&str, &[&str]); 4] = [
    ("backend", &["linux", "container", "docker", "process"]),
    ("wiring", &["redirect", "veth"]),
    ("workspace_mode", &["rw", "ro", "overlay"]),
    ("limits", &["required", "best-effort"]),
];

pub(crate) fn completion(shell: clap_complete::Shell) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(&Arguments::command())?, "lockgate", &mut script);
    output::text(&script)?;
    Ok(0)
}

/// Describes the command line without the internal commands, and with the values of flags. A run's own description names none: it
/// asks the policy, which knows more to say of a word that is none.
fn shown(all: &Command) -> Result<Command, anyhow::Error> {
    let known = |rows: Vec<(String, String)>| -> Vec<&'static str> {
        // For as long as this process lives, which ends with the script.
        rows.into_iter().map(|(name, _)| &*name.leak()).collect()
    };
    let mut values: Vec<(&str, Vec<&'static str>)> =
        WORDS.iter().map(|(flag, words)| (*flag, words.to_vec())).collect();
    values.push(("preset", known(policy::preset_names()?)));
    values.push(("provider", known(policy::provider_names()?)));
    values.push(("tool", known(sandbox::tool_names()?)));
    let subcommands = all.get_subcommands().filter(|it| !it.is_hide_set());
    Ok(Command::new("lockgate")
        .args(all.get_arguments())
        .subcommands(subcommands.map(|it| with_values(it.clone(), &values))))
}

fn with_values(command: Command, values: &[(&str, Vec<&'static str>)]) -> Command {
    command.mut_subcommands(|it| with_values(it, values)).mut_args(|argument| {
        let id = argument.get_id().as_str();
        let words = values.iter().find(|(flag, _)| *flag == id).filter(|_| argument.get_long().is_some());
        match (words, id) {
            (Some((_, words)), _) => argument.value_parser(PossibleValuesParser::new(words)),
            (None, "command") => argument.value_hint(ValueHint::CommandName),
            (None, "workspace") => argument.value_hint(ValueHint::DirPath),
            (None, _) => argument,
        }
    })
}

#[cfg(test)]
mod tests {
    use clap_complete::Shell;

    use super::*;

    #[test]
    fn flags_complete_to_their_values() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(
                shell,
                &mut shown(&Arguments::command()).unwrap(),
                "lockgate",
                &mut script,
            );
            let script = String::from_utf8(script).unwrap();
            for word in ["container", "overlay", "package-registries", "anthropic", "rustup"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
            assert!(!script.contains("engine-agent"), "{shell}");
        }
    }
}
