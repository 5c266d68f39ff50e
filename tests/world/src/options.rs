//! Parses the command line into absolute paths. It must not create or open anything.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::Error;

/// The parsed command line.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) records: Option<PathBuf>,
    pub(crate) tables: Option<PathBuf>,
    pub(crate) keys: Option<PathBuf>,
    pub(crate) ca_directory: Option<PathBuf>,
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
}

impl Options {
    /// Reads the arguments that follow the program's own name.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, Error> {
        let (mut records, mut tables, mut keys, mut ca_directory) = (None, None, None, None);
        loop {
            let Some(argument) = arguments.next() else {
                return Err(Error::Arguments("`--` and a command are missing".to_owned()));
            };
            let slot = match argument.to_str() {
                Some("--") => break,
                Some("--records") => &mut records,
                Some("--tables") => &mut tables,
                Some("--keys") => &mut keys,
                Some("--ca-dir") => &mut ca_directory,
                _ => return Err(Error::Arguments(format!("`{}` is unknown", argument.display()))),
            };
            let Some(value) = arguments.next() else {
                return Err(Error::Arguments(format!("`{}` needs a path", argument.display())));
            };
            *slot = Some(std::path::absolute(&value).map_err(Error::file(value))?);
        }
        let program = arguments.next().ok_or_else(|| Error::Arguments("a command is missing".to_owned()))?;
        Ok(Self { records, tables, keys, ca_directory, program, arguments: arguments.collect() })
    }
}
