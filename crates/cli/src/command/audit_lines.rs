//! Reads the lines of an audit, each of bounded length. What a line says is none of its business.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use egress::LONGEST_RECORD;

use crate::exit::Usage;
use crate::output;

/// Opens an audit.
pub(super) fn open(path: &Path) -> Result<BufReader<File>, anyhow::Error> {
    let file = runtime::open_regular(path)
        .map_err(|e| anyhow::anyhow!("failed to open the audit {}: {e}", path.display()))?;
    Ok(BufReader::new(file))
}

/// Returns the lines of an audit. Octets that are no text are replaced: the line is damaged, and those behind it are shown.
pub(super) fn lines(
    path: &Path,
) -> Result<impl Iterator<Item = Result<String, anyhow::Error>>, anyhow::Error> {
    let mut reader = open(path)?;
    Ok(std::iter::from_fn(move || {
        let mut octets = Vec::new();
        match read_line(&mut reader, &mut octets) {
            Ok(0) => None,
            Ok(_) => {
                octets.pop_if(|last| *last == b'\n');
                Some(Ok(String::from_utf8_lossy(&octets).into_owned()))
            }
            Err(error) => Some(Err(error)),
        }
    }))
}

/// Reads a line of bounded length, with its end. Returns how many octets were read.
pub(super) fn read_line(reader: &mut impl BufRead, octets: &mut Vec<u8>) -> Result<usize, anyhow::Error> {
    let read = reader.take(LONGEST_RECORD as u64 + 1).read_until(b'\n', octets)?;
    if read > LONGEST_RECORD {
        let why = format!("a line of the audit has more than {LONGEST_RECORD} octets, which no record has");
        return Err(Usage::nothing(why, "it is damaged, or none: lockgate audit verify says from where on"));
    }
    Ok(read)
}

/// Prints the lines of an audit: a run's as they are, a companion's with its name.
pub(super) fn copy_lines(path: &Path, companion: Option<&str>) -> Result<(), anyhow::Error> {
    for line in lines(path)? {
        let line = line?;
        output::data(&companion.map_or_else(|| line.clone(), |name| named(&line, name)))?;
    }
    Ok(())
}

/// Returns a companion's record with the companion in a field of its own, before the others, which stay as they were written. What is
/// no record has none.
fn named(line: &str, companion: &str) -> String {
    let fields = line.strip_prefix('{').filter(|fields| fields.starts_with('"'));
    let name = serde_json::Value::from(companion);
    fields.map_or_else(|| line.to_owned(), |fields| format!("{{\"companion\":{name},{fields}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_companions_record_is_told_with_its_name_and_else_as_it_was_written() {
        let record = r#"{"seq":0,"hash":"0a","us":1.0}"#;
        assert_eq!(named(record, "d\"b"), r#"{"companion":"d\"b","seq":0,"hash":"0a","us":1.0}"#);
        for damaged in ["", "{}", "\u{fffd}{\"seq\":1}", "half a rec"] {
            assert_eq!(named(damaged, "db"), damaged);
        }
    }
}
