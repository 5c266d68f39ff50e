//! Words that people know from other programs and type here, and their equivalents. The tables are data; what is left of clap's own
//! advice is what fits.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of `docker run`, of sandboxes and of shells, after `lockgate run`.
const FLAGS: [(&[&str], &str); 19] = [
    (&["-v", "--volume"], "--mount SRC:DST[:rw] shows a path of this machine inside"),
    (&["-e"], "--env NAME[=VALUE] sets a variable, or passes yours on"),
    (&["--env-file"], "--env NAME=VALUE sets a variable; `env.set` of a policy file sets many"),
    (&["-w", "--cwd"], "--workdir DIR says where the command starts"),
    (&["-m"], "--memory SIZE limits memory"),
    (
        &["-i", "--interactive", "--tty"],
        "the command has your terminal where there is one; --terminal gives it one in any case",
    ),
    (
        &["-d", "--detach"],
        "a run ends with its command; `lockgate run -- CMD &` has the shell go on meanwhile",
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
    (&["--read-only"], "--workspace-mode ro lets the command read the workspace and write nothing in it"),
    (
        &["--dry-run"],
        "`lockgate policy ls` and `lockgate policy check` say what a run may do, and run nothing",
    ),
    (&["--config"], "--policy FILE names a policy file"),
    (&["--entrypoint"], "the entry point is the image's own, and what comes after `--` are its arguments"),
    (&["--privileged"], "no run has rights over this machine; see --mount, --open and --allow"),
];

/// The flags by which other programs go on showing what comes, and what does it here.
const FOLLOW: [&str; 2] = ["-f", "--follow"];
/// The commands that show what has come so far.
const SHOWING: [[&str; 2]; 3] = [["runs", "logs"], ["runs", "show"], ["audit", "show"]];
const FOLLOWING: &str = "this shows what has come so far; `lockgate audit follow RUN` shows the requests of a run as they are decided";

/// Commands of `docker`, and slips: the command they were typed after, themselves, and what was meant.
const COMMANDS: [(&str, &[&str], &str); 19] = [
    ("", &["ps"], "`lockgate runs ls` lists runs"),
    ("", &["ls", "list"], "`lockgate runs ls` lists runs, `image ls` images, `policy ls` the rules in force"),
    ("", &["log", "logs"], "`lockgate runs logs latest` shows what happened in a run"),
    ("", &["exec"], "nothing enters a run that goes on: `lockgate run -- CMD` begins another"),
    ("", &["stop", "kill"], "`lockgate runs stop RUN` ends a run"),
    ("", &["rm", "remove"], "`lockgate runs rm RUN` removes a run from the record, `image rm NAME` an image"),
    ("", &["inspect", "show"], "`lockgate runs show RUN` shows a run"),
    ("", &["pull"], "`lockgate image pull REGISTRY/REPOSITORY` gets an image"),
    ("", &["images"], "`lockgate image ls` lists images"),
    ("", &["init"], "`lockgate policy init` writes a lockgate.toml that allows nothing yet"),
    (
        "",
        &["allow", "deny"],
        "`lockgate policy allow HOST` adds a host to lockgate.toml; `run --allow HOST` is for one run",
    ),
    ("policy", &["show", "list"], "`lockgate policy ls` lists the rules in force"),
    (
        "policy",
        &["rm", "remove"],
        "take the rule out of lockgate.toml; `lockgate policy deny HOST` beats every rule",
    ),
    ("policy", &["log", "logs"], "`lockgate audit show` tells what a run asked for, and what was decided"),
    ("creds", &["add"], "`lockgate creds set PROVIDER` stores a credential"),
    ("creds", &["get"], "no command shows a value: `lockgate creds show PROVIDER` tells what is stored"),
    ("runs", &["kill", "ps"], "`lockgate runs ls` lists runs, `lockgate runs stop RUN` ends one"),
    ("audit", &["ls", "list"], "`lockgate runs ls` lists runs, `lockgate audit show RUN` the records of one"),
    ("config", &["ls", "list"], "`lockgate config show` shows the configuration in force"),
];

/// Returns the equivalent of another program's flag.
pub(super) fn here(flag: &str) -> Option<&'static str> {
    FLAGS.iter().find(|(flags, _)| flags.contains(&flag)).map(|(_, hint)| *hint)
}

/// Returns what was probably meant by a command that does not exist.
fn meant(after: &str, word: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|(at, words, _)| *at == after && words.contains(&word)).map(|(.., hint)| *hint)
}

/// Replaces clap's advice on what is unknown. `words` are those of the command line, without the program's name.
pub(super) fn point_to(error: &mut clap::Error, described: &clap::Command, words: &[String]) {
    match error.kind() {
        ErrorKind::UnknownArgument => point_to_flag(error, words),
        ErrorKind::InvalidSubcommand => point_to_command(error, described, words),
        _ => {}
    }
}

/// Returns advice for an unknown flag. Everybody once forgets the `--` before the command. A hyphen and a digit were meant as a
/// limit, which behind `--` would become the command. For other unknown flags only a similar one is suggested.
fn point_to_flag(error: &mut clap::Error, words: &[String]) {
    let of_a_run = words.first().is_some_and(|word| word == "run");
    let shows = SHOWING.iter().any(|[one, two]| words.starts_with(&[(*one).into(), (*two).into()]));
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg).cloned() else { return };
    let said = match word.strip_prefix('-') {
        _ if !of_a_run => (shows && FOLLOW.contains(&word.as_str())).then(|| FOLLOWING.to_owned()),
        None => Some(format!("the command comes after `--`: lockgate run -- {word} …")),
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => {
            Some("a limit is more than nothing, as in --disk 4GiB".to_owned())
        }
        Some(_) => here(&word).map(str::to_owned),
    };
    // To pass it on behind `--` would make it the command, or a name of something.
    error.remove(ContextKind::Suggested);
    if said.is_some() || !is_nearly(&word, error) {
        error.remove(ContextKind::SuggestedArg);
        if of_a_run {
            // It shows the flag that was suggested.
            error.remove(ContextKind::Usage);
        }
    }
    if let Some(said) = said {
        say(error, said);
    }
}

fn point_to_command(error: &mut clap::Error, described: &clap::Command, words: &[String]) {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand).cloned() else { return };
    error.remove(ContextKind::Suggested);
    let before = words.iter().take_while(|it| **it != word).filter(|it| !it.starts_with('-'));
    let before: Vec<String> = before.cloned().collect();
    let after = before.join(" ");
    let similar = similar(error, described, &before);
    if let Some(meant) = meant(&after, &word) {
        error.remove(ContextKind::SuggestedSubcommand);
        say(error, meant.to_owned());
    } else if after.is_empty() && !policy::did_you_mean(&word, [RUN]).is_empty() {
        // To clap `rn` is like `runs` alone, for it weighs a word by its beginning.
        let others = similar.into_iter().filter(|name| name != RUN);
        suggest(error, std::iter::once(RUN.to_owned()).chain(others).collect());
    } else {
        suggest(error, similar);
    }
}

/// Returns the commands that clap suggests, without those that no help names.
fn similar(error: &clap::Error, described: &clap::Command, before: &[String]) -> Vec<String> {
    let all = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(all)) => all.clone(),
        Some(ContextValue::String(one)) => vec![one.clone()],
        _ => Vec::new(),
    };
    let group = before.iter().try_fold(described, |command, word| command.find_subcommand(word));
    let is_hidden = |name: &str| {
        group.and_then(|group| group.find_subcommand(name)).is_some_and(clap::Command::is_hide_set)
    };
    all.into_iter().filter(|name| !is_hidden(name)).collect()
}

fn suggest(error: &mut clap::Error, commands: Vec<String>) {
    error.remove(ContextKind::SuggestedSubcommand);
    if !commands.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(commands));
    }
}

/// The command that is typed most.
const RUN: &str = "run";

/// Names the word of the command line that is not UTF-8, which clap does not. What comes behind `--` may be anything.
pub(super) fn point_to_octets(words: impl Iterator<Item = OsString>) -> Option<clap::Error> {
    let mut before = String::new();
    for word in words.take_while(|word| word != "--") {
        match word.into_string() {
            Ok(word) => before = word,
            Err(word) => {
                let flag = if before.starts_with("--") { format!("{before} ") } else { String::new() };
                let word = word.as_encoded_bytes().escape_ascii();
                let what = format!(
                    "`{flag}{word}` is not UTF-8, as a policy and its flags are\n\n  tip: give a path another name or a link, \
                     and set a variable inside, where it may be any octets"
                );
                return Some(clap::Error::raw(ErrorKind::InvalidUtf8, what));
            }
        }
    }
    None
}

fn say(error: &mut clap::Error, said: String) {
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![said.into()]));
}

/// Whether the suggested flag is similar to the typed one.
fn is_nearly(word: &str, error: &clap::Error) -> bool {
    let Some(ContextValue::String(suggested)) = error.get(ContextKind::SuggestedArg) else { return false };
    !policy::did_you_mean(word, [suggested.as_str()]).is_empty()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::{Arguments, RunAlone};
    use super::{COMMANDS, point_to};

    fn told(mut command: clap::Command, words: &[&str]) -> String {
        let all = ["lockgate"].iter().chain(words);
        let mut error = command.try_get_matches_from_mut(all).unwrap_err();
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        point_to(&mut error, &command, &words);
        error.format(&mut command).to_string()
    }

    #[test]
    fn an_unknown_flag_is_answered_by_what_does_it_here() {
        let told = |word: &str| told(RunAlone::command(), &["run", word, "--", "true"]);
        for (word, expected) in [
            ("-v", "--mount SRC:DST"),
            ("--volume=/a:/b", "--mount SRC:DST"),
            ("-e", "--env NAME"),
            ("--env-file=x", "--env NAME=VALUE"),
            ("-w", "--workdir DIR"),
            ("-d", "ends with its command"),
            ("-q", "a run tells only"),
            ("--deny", "lockgate policy deny HOST"),
            ("--network", "--allow and --preset"),
            ("--rm", "nothing is left behind"),
            ("--verbose", "lockgate runs logs"),
            ("--config", "--policy FILE"),
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

    #[test]
    fn nowhere_is_an_unknown_flag_to_be_passed_as_a_value() {
        for words in [
            &["policy", "allow", "--port", "x"][..],
            &["audit", "show", "--denied"],
            &["runs", "stop", "--all"],
        ] {
            let text = told(Arguments::command(), words);
            assert!(text.contains("unexpected argument") && !text.contains("to pass"), "{text}");
        }
        for flag in ["-f", "--follow"] {
            let text = told(Arguments::command(), &["runs", "logs", flag, "latest"]);
            assert!(text.contains("what has come so far; `lockgate audit follow"), "{text}");
            // It was meant as `--force`.
            assert!(!told(Arguments::command(), &["creds", "rm", flag, "x"]).contains("follow RUN"));
        }
    }

    #[test]
    fn an_unknown_command_is_answered_by_the_one_that_does_it() {
        for (after, words, hint) in COMMANDS {
            for word in words {
                let typed: Vec<&str> = after.split(' ').filter(|it| !it.is_empty()).chain([*word]).collect();
                let text = told(Arguments::command(), &typed);
                assert!(text.contains(hint) && !text.contains("similar subcommand"), "{typed:?}: {text}");
            }
        }
        assert!(told(Arguments::command(), &["runs", "sotp"]).contains("'stop'"));
        for word in ["doctr", "demo-upstrea"] {
            let text = told(Arguments::command(), &[word]);
            assert!(!text.contains("'demo-upstream'"), "{text}");
            assert_eq!(text.contains("'doctor'"), word == "doctr", "{text}");
        }
        for word in ["rn", "rnu", "runn"] {
            let text = told(Arguments::command(), &[word]);
            assert!(text.contains("'run'") && text.contains("'runs'"), "{word}: {text}");
        }
    }

    #[test]
    fn a_word_that_is_not_utf_8_is_named() {
        use std::ffi::OsString;
        use std::os::unix::ffi::OsStringExt;

        let words = |last: &[&[u8]]| {
            let all = [&b"run"[..], b"--env"].into_iter().chain(last.iter().copied());
            super::point_to_octets(
                all.map(|word| OsString::from_vec(word.to_vec())).collect::<Vec<_>>().into_iter(),
            )
        };
        let text = words(&[b"K=\xff\x1b"]).unwrap().to_string();
        assert!(text.contains("`--env K=\\xff\\x1b` is not UTF-8"), "{text}");
        assert!(words(&[b"K=1", b"--", b"\xff"]).is_none());
    }
}
