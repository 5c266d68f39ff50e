//! Flags that people know from other programs and type after `lockgate run`, and their equivalents here.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of `docker run`, of sandboxes and of shells.
const ELSEWHERE: [(&[&str], &str); 12] = [
    (&["-v", "--volume"], "--mount SRC:DST[:rw] shows a path of this machine inside"),
    (&["-e"], "--env NAME[=VALUE] sets a variable, or passes yours on"),
    (&["-w", "--cwd"], "--workdir DIR says where the command starts"),
    (&["-m"], "--memory SIZE limits memory"),
    (
        &["-i", "--interactive", "--tty"],
        "the command has your terminal where there is one; --terminal gives it one in any case",
    ),
    (&["-p", "--publish"], "ports that are reached from outside are an [[inbound]] of the policy"),
    (&["-q", "--quiet"], "a run tells only what was denied, failed or is weaker than it could be"),
    (&["--verbose"], "`lockgate runs logs latest` tells how a run was made and what it asked for"),
    (
        &["--deny"],
        "`lockgate policy deny HOST` denies what else is allowed; what no rule allows is denied anyway",
    ),
    (&["--net", "--network"], "see --allow and --preset: nothing else may be reached"),
    (&["--rm"], "nothing is left behind anyway, but what is written in the workspace"),
    (&["--name"], "--label NAME=VALUE is a word of yours by which a run is found again"),
];

/// Returns the equivalent of another program's flag.
pub(super) fn here(flag: &str) -> Option<&'static str> {
    ELSEWHERE.iter().find(|(flags, _)| flags.contains(&flag)).map(|(_, hint)| *hint)
}

/// Returns advice for an unknown flag. Everybody once forgets the `--` before the command. A hyphen and a digit were meant as a
/// limit, which behind `--` would become the command. For other unknown flags only a similar one is suggested.
pub(super) fn point_to(error: &mut clap::Error) {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg).cloned() else { return };
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    let said = match word.strip_prefix('-') {
        None => Some(format!("the command comes after `--`: lockgate run -- {word} …")),
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => {
            Some("a limit is more than nothing, as in --disk 4GiB".to_owned())
        }
        Some(_) => here(&word).map(str::to_owned),
    };
    // To pass it on behind `--` would make it the command.
    error.remove(ContextKind::Suggested);
    if said.is_some() || !is_nearly(&word, error) {
        error.remove(ContextKind::SuggestedArg);
        // It shows the flag that was suggested.
        error.remove(ContextKind::Usage);
    }
    if let Some(said) = said {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![said.into()]));
    }
}

/// Whether the suggested flag is similar to the typed one.
fn is_nearly(word: &str, error: &clap::Error) -> bool {
    let Some(ContextValue::String(suggested)) = error.get(ContextKind::SuggestedArg) else { return false };
    !policy::did_you_mean(word, [suggested.as_str()]).is_empty()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::RunAlone;
    use super::point_to;

    #[test]
    fn an_unknown_flag_is_answered_by_what_does_it_here() {
        let told = |word: &str| {
            let mut command = RunAlone::command();
            let mut error =
                command.try_get_matches_from_mut(["lockgate", "run", word, "--", "true"]).unwrap_err();
            point_to(&mut error);
            error.format(&mut command).to_string()
        };
        for (word, expected) in [
            ("-v", "--mount SRC:DST"),
            ("--volume=/a:/b", "--mount SRC:DST"),
            ("-e", "--env NAME"),
            ("-w", "--workdir DIR"),
            ("-q", "a run tells only"),
            ("--deny", "lockgate policy deny HOST"),
            ("--network", "--allow and --preset"),
            ("--rm", "nothing is left behind"),
            ("--verbose", "lockgate runs logs"),
            ("--timout", "'--timeout'"),
            ("-5", "a limit is more than nothing"),
            ("make", "the command comes after `--`"),
        ] {
            let text = told(word);
            assert!(text.contains(expected) && !text.contains("to pass"), "{word}: {text}");
        }
        for word in ["--verbose", "--deny", "--nonsense"] {
            let text = told(word);
            assert!(
                !text.contains("similar argument") && !text.contains("Usage: lockgate run --"),
                "{word}: {text}"
            );
        }
    }
}
