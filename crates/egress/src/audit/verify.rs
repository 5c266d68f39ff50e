//! Verifies a chain: that no record was changed, removed or added, and how far signatures vouch for it.

use std::io::{BufRead, Read};

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};

use super::entry::{Entry, digest};
use super::word::GateAction;

/// The longest record that is read, in octets. What this program writes is bounded far below it.
pub const LONGEST_RECORD: usize = 256 << 10;

/// The result for a chain that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// Records in the chain.
    pub records: u64,
    /// Signatures that were checked.
    pub signatures: u64,
    /// Records after the last signature, which only their hashes vouch for.
    pub unsigned_tail: u64,
    /// Records of exchanges that no rule granted, left out because the audit of the run was full.
    pub omitted: u64,
    /// Whether the last record closes the chain. A chain without it was cut, by a crash or by somebody.
    pub closed: bool,
}

/// Why a chain does not verify.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The file could not be read.
    #[error("read the audit: {0}")]
    Read(#[source] std::io::Error),
    /// The key is not a public key.
    #[error("use the key: it is not 32 octets in hexadecimal")]
    Key,
    /// The chain has no record.
    #[error("find a record: the audit is empty")]
    Empty,
    /// A line is not a record.
    #[error("line {line}: it is not an audit record: {why}")]
    Malformed {
        /// Its number, from 1.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// The last line has no end.
    #[error("line {line}: the last line is cut: the disk was full, or the process was killed while it wrote")]
    Cut {
        /// Its number, from 1.
        line: u64,
    },
    /// A record was changed, removed or added.
    #[error("line {line}: the chain is broken: {why}")]
    Broken {
        /// Its number, from 1.
        line: u64,
        /// How it shows.
        why: &'static str,
    },
}

/// Verifies a chain with a public key in hexadecimal.
///
/// # Errors
/// The first line at which the chain breaks.
pub fn verify(mut reader: impl BufRead, public_key: &str) -> Result<VerifyReport, VerifyError> {
    let key = unhex(public_key).filter(|key| key.len() == 32).ok_or(VerifyError::Key)?;
    let mut report = VerifyReport { records: 0, signatures: 0, unsigned_tail: 0, omitted: 0, closed: false };
    let mut prev = "0".repeat(64);
    let mut octets = Vec::new();
    loop {
        octets.clear();
        let mut record = reader.by_ref().take(LONGEST_RECORD as u64 + 1);
        if record.read_until(b'\n', &mut octets).map_err(VerifyError::Read)? == 0 {
            return if report.records == 0 { Err(VerifyError::Empty) } else { Ok(report) };
        }
        let line = report.records + 1;
        let broken = |why| Err(VerifyError::Broken { line, why });
        let malformed = |why: &str| match octets.ends_with(b"\n") {
            true => VerifyError::Malformed { line, why: why.into() },
            false => VerifyError::Cut { line },
        };
        if octets.len() > LONGEST_RECORD {
            return Err(VerifyError::Malformed {
                line,
                why: format!("it is longer than {LONGEST_RECORD} octets"),
            });
        }
        let text = std::str::from_utf8(&octets).map_err(|_| malformed("it is not UTF-8"))?;
        let (body, hash, sig) =
            split(text.trim_end_matches('\n')).ok_or_else(|| malformed("it has no hash at its end"))?;
        if digest(body.as_bytes()) != hash {
            return broken("its content does not match its hash");
        }
        let entry: Entry =
            serde_json::from_str(&body).map_err(|e| VerifyError::Malformed { line, why: e.to_string() })?;
        if report.closed {
            return broken("it stands after the record that closes the chain");
        }
        if entry.prev != prev || entry.seq != report.records {
            return broken("it does not follow the record before it");
        }
        let ends = matches!(entry.gate_action(), Some(GateAction::Open | GateAction::Close));
        if sig.is_none() && (ends || line == 1) {
            return broken("it must be signed, as the first and the last record of a chain are");
        }
        match sig {
            Some(sig) => {
                let signed = unhex(sig).is_some_and(|s| {
                    UnparsedPublicKey::new(&ED25519, &key).verify(hash.as_bytes(), &s).is_ok()
                });
                if !signed {
                    return broken("its signature is not by this key");
                }
                report.signatures += 1;
                report.unsigned_tail = 0;
            }
            None => report.unsigned_tail += 1,
        }
        if entry.gate_action() == Some(GateAction::Omit) {
            report.omitted = report.omitted.saturating_add(entry.omitted.unwrap_or(0));
        }
        report.closed = entry.closes();
        report.records += 1;
        prev = hash.to_owned();
    }
}

/// Splits a line into the object without its last fields, the hash, and the signature if there is one.
fn split(line: &str) -> Option<(String, &str, Option<&str>)> {
    let at = line.rfind(",\"hash\":\"")?;
    let rest = line[at..].strip_prefix(",\"hash\":\"")?.strip_suffix("\"}")?;
    let (hash, sig) = match rest.split_once("\",\"sig\":\"") {
        Some((hash, sig)) => (hash, Some(sig)),
        None => (rest, None),
    };
    Some((format!("{}}}", &line[..at]), hash, sig))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    // In lower case only, or a change of a letter's case would not show.
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        return None;
    }
    let digits = text.is_ascii() && text.len().is_multiple_of(2);
    let octet = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    if digits { (0..text.len()).step_by(2).map(octet).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::chain::Audit;
    use crate::audit::key::SigningKey;
    use crate::audit::word::Word;
    use crate::fixture::records_in;
    use std::sync::Arc;

    fn chain(records: usize) -> (String, String) {
        let mut file = tempfile::tempfile().unwrap();
        let (key, _) = SigningKey::generate().unwrap();
        let public = key.public();
        let run = "abcdefghjkmn".parse().unwrap();
        let mut audit = Audit::begin(Some((Arc::new(file.try_clone().unwrap()), key)), &run, None).unwrap();
        for n in 0..records {
            let target = format!("http://x/{n}\",\"hash\":\"0");
            let asked = audit.of_exchange(policy::Plane::Forward, "GET", target);
            audit.append(&asked);
        }
        audit.close();
        let text = records_in(&mut file);
        (text, public)
    }

    #[test]
    fn an_untouched_chain_holds() {
        let (text, key) = chain(600);
        let report = verify(text.as_bytes(), &key).unwrap();
        assert_eq!(report.records, 602);
        assert!(report.closed && report.signatures >= 3 && report.unsigned_tail == 0);
    }

    proptest::proptest! {
        #[test]
        fn any_change_shows(line in 0usize..8, at in 0usize..400, bit in 0u8..7, drop: bool) {
            let (text, key) = chain(6);
            let mut lines: Vec<Vec<u8>> = text.lines().map(|l| l.as_bytes().to_vec()).collect();
            let line = line % (lines.len() - 1); // without its end a chain is only open
            if drop {
                lines.remove(line);
            } else {
                let at = at % lines[line].len();
                lines[line][at] ^= 1 << bit;
            }
            let changed = lines.join(&b'\n');
            let found = verify(changed.as_slice(), &key);
            proptest::prop_assert!(found.is_err(), "{:?}", found);
        }
    }

    /// Writes a chain of these records, in the format of every version so far.
    fn written(records: &[(&str, &str, &str)]) -> (String, String) {
        let (key, _) = SigningKey::generate().unwrap();
        let (mut text, mut prev) = (String::new(), "0".repeat(64));
        for (seq, (plane, action, outcome)) in records.iter().enumerate() {
            let body = format!(
                "{{\"seq\":{seq},\"ts\":\"2026-01-02T03:04:05.000006Z\",\"run\":\"abcdefghjkmn\",\"plane\":\"{plane}\",\
                 \"action\":\"{action}\",\"target\":\"x\",\"outcome\":\"{outcome}\",\"sent\":0,\"received\":0,\"us\":0,\
                 \"prev\":\"{prev}\""
            );
            prev = digest(format!("{body}}}").as_bytes());
            let sig = key.sign(prev.as_bytes());
            text.push_str(&format!("{body},\"hash\":\"{prev}\",\"sig\":\"{sig}\"}}\n"));
        }
        (text, key.public())
    }

    #[test]
    fn words_that_this_version_does_not_know_are_no_break() {
        let (text, key) = written(&[
            ("gate", "open", "allowed"),
            ("carrier-pigeon", "GET", "allowed"),
            ("forward", "GET", "postponed"),
            ("gate", "rename", "allowed"),
            ("carrier-pigeon", "close", "allowed"), // of an exchange
            ("gate", "close", "allowed"),
        ]);
        let report = verify(text.as_bytes(), &key).unwrap();
        assert_eq!((report.records, report.closed), (6, true));
        let read = |line: &str| serde_json::from_str::<Entry>(line).unwrap();
        let entries: Vec<Entry> = text.lines().map(read).collect();
        assert_eq!(entries[1].plane, Word::Other("carrier-pigeon".into()));
        assert_eq!(entries[2].outcome, Word::Other("postponed".into()));
        assert_eq!(entries[2].plane.to_string(), "forward");
        let of_requests: Vec<bool> = entries.iter().map(Entry::is_request).collect();
        assert_eq!(of_requests, [false, true, true, false, true, false]);
        let closing: Vec<bool> = entries.iter().map(Entry::closes).collect();
        assert_eq!(closing, [false, false, false, false, false, true]);
        // No record may follow the one that closes the chain.
        let (text, key) =
            written(&[("gate", "open", "allowed"), ("gate", "close", "allowed"), ("gate", "x", "y")]);
        assert!(matches!(verify(text.as_bytes(), &key), Err(VerifyError::Broken { line: 3, .. })));
    }

    #[test]
    fn a_last_line_that_is_cut_is_told_as_that() {
        let (text, key) = chain(2);
        let last = text.trim_end().rfind('\n').unwrap() + 1;
        for left in [1, 20, text.len() - last - 2] {
            let cut = verify(&text.as_bytes()[..last + left], &key);
            assert!(matches!(cut, Err(VerifyError::Cut { line: 4 })), "{cut:?}");
        }
        // What follows it says that it was not the last.
        let followed = text.replacen("\"}\n", "\n", 1);
        assert!(matches!(verify(followed.as_bytes(), &key), Err(VerifyError::Malformed { line: 1, .. })));
    }

    #[test]
    fn a_line_without_an_end_is_not_read_to_its_end() {
        let (text, key) = chain(1);
        let endless = text.as_bytes().chain(std::io::repeat(b'x'));
        let found = verify(std::io::BufReader::new(endless), &key);
        assert!(matches!(found, Err(VerifyError::Malformed { line: 4, .. })), "{found:?}");
    }

    #[test]
    fn a_first_or_a_last_record_without_its_signature_shows() {
        let (text, key) = chain(2);
        let lines: Vec<&str> = text.lines().collect();
        let unsigned = |bare: usize| {
            let signed = |line: &str| line.contains("\",\"sig\":\"");
            assert!(signed(lines[bare]), "{}", lines[bare]);
            let at = lines[bare].rfind(",\"sig\":\"").unwrap();
            let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            lines[bare] = format!("{}}}", &lines[bare][..at]);
            verify(lines.join("\n").as_bytes(), &key)
        };
        for (bare, told) in [(0, 1), (lines.len() - 1, lines.len() as u64)] {
            let found = unsigned(bare);
            assert!(matches!(found, Err(VerifyError::Broken { line, .. }) if line == told), "{found:?}");
        }
    }

    #[test]
    fn another_key_does_not_vouch() {
        let (text, _) = chain(1);
        let (_, other) = chain(1);
        assert!(matches!(verify(text.as_bytes(), &other), Err(VerifyError::Broken { line: 1, .. })));
    }
}
