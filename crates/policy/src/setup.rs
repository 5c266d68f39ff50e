//! Set-up commands, which run one after the other before the command, in the same sandbox and under the same rules. The sandbox
//! runs them; this module only compiles them.

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;
use crate::origin::Origin;
use crate::quantity::Span;
use crate::written::SetupConfig;

/// The most set-up commands of a run, and the most octets of one with its arguments.
const MOST: usize = 16;
const LONGEST: usize = 64 << 10;
/// The default timeout.
const PATIENCE: Span = Span::from_secs(300);
/// The longest name in messages, in characters.
const LONGEST_NAME: usize = 80;

/// What happens if a set-up command fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFailure {
    /// The failure is reported, and the command runs all the same.
    GoOn,
    /// The run ends, and the command does not run.
    EndRun,
}

/// A compiled set-up command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The command and its arguments, never empty.
    pub command: Vec<String>,
    /// What happens if it fails.
    pub on_failure: OnFailure,
    /// Its timeout.
    pub timeout: Span,
}

impl Setup {
    fn compile(origin: &Origin, index: usize, config: &SetupConfig) -> Result<Self, ConfigError> {
        let field = format!("setup[{index}]");
        let named = origin.to_string();
        let bad = |problem: String| ConfigError::new(&named, format!("{field}.command"), problem);
        if config.command.first().is_none_or(String::is_empty) {
            return Err(bad("it names no program".into()));
        }
        if config.command.iter().any(|word| word.contains('\0')) {
            return Err(bad("a word cannot hold NUL".into()));
        }
        if config.command.iter().map(String::len).sum::<usize>() > LONGEST {
            return Err(bad("it is longer than 64KiB".into()));
        }
        let timeout = match &config.timeout {
            None => PATIENCE,
            Some(text) => crate::origin::parse(origin, &format!("{field}.timeout"), text)?,
        };
        let on_failure = if config.required { OnFailure::EndRun } else { OnFailure::GoOn };
        Ok(Self { command: config.command.clone(), on_failure, timeout })
    }

    /// Returns the command for messages, as one short line.
    #[must_use]
    pub fn name(&self) -> String {
        let mut name: String =
            self.command.join(" ").chars().take(LONGEST_NAME + 1).flat_map(char::escape_debug).collect();
        if let Some((cut, _)) = name.char_indices().nth(LONGEST_NAME) {
            name.truncate(cut);
            name.push('…');
        }
        name
    }
}

/// Adds the set-up commands of a layer after those of the layers before.
pub(crate) fn apply(
    origin: &Origin,
    config: &[SetupConfig],
    setup: &mut Vec<Setup>,
) -> Result<(), ConfigError> {
    for (index, entry) in config.iter().enumerate() {
        setup.push(Setup::compile(origin, index, entry)?);
    }
    if setup.len() > MOST {
        let problem = format!("there are {}, and a run may have {MOST}", setup.len());
        return Err(ConfigError::new(&origin.to_string(), "setup", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(word: &str) -> SetupConfig {
        SetupConfig { command: vec![word.into()], ..SetupConfig::default() }
    }

    // S4.54
    #[test]
    fn set_up_commands_are_bounded_and_those_of_a_later_layer_come_after() {
        let mut all = Vec::new();
        apply(&Origin::Named("file".into()), &vec![one("true"); MOST - 1], &mut all).unwrap();
        apply(&Origin::Flags, &[one("last")], &mut all).unwrap();
        assert_eq!((all.len(), all[MOST - 1].name().as_str()), (MOST, "last"));
        assert_eq!((all[0].on_failure, all[0].timeout.to_string().as_str()), (OnFailure::GoOn, "5m"));
        let error = apply(&Origin::Flags, &[one("one more")], &mut all).unwrap_err();
        assert!(error.to_string().contains("a run may have 16"), "{error}");
        for (word, fits) in [("x".repeat(LONGEST), true), ("x".repeat(LONGEST + 1), false)] {
            assert_eq!(Setup::compile(&Origin::Flags, 0, &one(&word)).is_ok(), fits);
        }
    }

    #[test]
    fn a_name_is_one_short_line() {
        let name = |words: &[&str]| {
            let command = words.iter().map(|word| (*word).to_owned()).collect();
            Setup { command, on_failure: OnFailure::GoOn, timeout: PATIENCE }.name()
        };
        assert_eq!(name(&["git", "clone", "a\n\u{1b}[2J"]), r"git clone a\n\u{1b}[2J");
        assert_eq!(name(&[&"é".repeat(100)]).chars().count(), LONGEST_NAME + 1);
        assert_eq!(name(&[&"x".repeat(LONGEST_NAME)]), "x".repeat(LONGEST_NAME));
    }
}
