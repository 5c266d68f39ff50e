//! Links the chain of a run to those of its companions: it names each companion, its image, and the hash of the first record of its
//! chain. So no companion's chain can be exchanged, removed or added unseen. Nor can it take the place of the run's own: a companion's
//! chain begins with its name.

use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};

use super::entry::{Digest, Entry};
use super::word::GateAction;

/// The longest first record that is read, in octets.
const LONGEST: u64 = 64 << 10;

/// A companion as its run's chain names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompanionChain {
    /// Its name.
    pub name: String,
    /// The digest of its image.
    pub image: String,
    /// The hash of the first record of its own chain.
    pub first: Digest,
}

/// Returns the hash that a chain's first record states, or none if that record is not whole yet.
///
/// # Errors
/// When the chain cannot be read, or does not begin with a record.
pub fn first_hash(reader: impl Read) -> io::Result<Option<Digest>> {
    #[derive(Deserialize)]
    struct Hashed {
        hash: Digest,
    }
    let mut line = String::new();
    io::BufReader::new(reader.take(LONGEST)).read_line(&mut line)?;
    if !line.ends_with('\n') {
        return Ok(None);
    }
    let Hashed { hash } = serde_json::from_str(&line)?;
    Ok(Some(hash))
}

/// Returns the companions that a verified chain names.
///
/// # Errors
/// When the chain cannot be read.
pub fn named_companions(reader: impl BufRead) -> io::Result<Vec<CompanionChain>> {
    let mut named = Vec::new();
    for line in reader.lines() {
        let entry: Entry = serde_json::from_str(&line?)?;
        if entry.gate_action() == Some(GateAction::Companion)
            && let Entry { target: name, image: Some(image), chain: Some(first), .. } = entry
        {
            named.push(CompanionChain { name, image, first });
        }
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::audit::chain::Audit;
    use crate::audit::{Outcome, SigningKey, verify};
    use crate::fixture::records_in;

    #[test]
    fn a_chain_names_companions_by_the_beginnings_of_theirs() {
        let mut file = tempfile::tempfile().unwrap();
        let (key, _) = SigningKey::generate().unwrap();
        let public = key.public();
        let run = "abcdefghjkmn".parse().unwrap();
        let mut audit = Audit::begin(Some((Arc::new(file.try_clone().unwrap()), key)), &run, None).unwrap();
        let db = CompanionChain { name: "db".into(), image: "sha256:1".into(), first: "a".repeat(64) };
        audit.name_companion(&db);
        let mut asked = audit.of_exchange(policy::Plane::Forward, "companion", "http://x/".into());
        asked.outcome = Outcome::Allowed;
        audit.append(&asked);
        audit.close();
        let text = records_in(&mut file);
        assert_eq!(named_companions(text.as_bytes()).unwrap(), [db]);
        assert_eq!(verify(text.as_bytes(), &public).unwrap().records, 4);
        assert_eq!((audit.summary().allowed, audit.summary().denied), (1, 0), "it is no request");
        let first = first_hash(text.as_bytes()).unwrap().unwrap();
        assert!(text.lines().next().unwrap().contains(&first) && first.len() == 64);
        assert!(text.lines().nth(1).unwrap().contains(&format!("\"prev\":\"{first}\"")));
    }

    #[test]
    fn a_chain_says_in_its_first_record_whose_it_is() {
        for name in [None, Some("db")] {
            let mut file = tempfile::tempfile().unwrap();
            let (key, _) = SigningKey::generate().unwrap();
            let run = "abcdefghjkmn".parse().unwrap();
            let companion = name.map(|name| policy::Hostname::parse(name).unwrap());
            let sink = (Arc::new(file.try_clone().unwrap()), key);
            drop(Audit::begin(Some(sink), &run, companion.as_ref()).unwrap());
            let opened: Entry = serde_json::from_str(records_in(&mut file).trim_end()).unwrap();
            assert_eq!(opened.gate_action(), Some(GateAction::Open));
            assert_eq!(opened.opened_for(), name);
        }
    }

    #[test]
    fn what_is_no_whole_record_yet_has_no_hash() {
        assert_eq!(first_hash(&b""[..]).unwrap(), None);
        assert_eq!(first_hash(&b"{\"hash\":\"0\"}"[..]).unwrap(), None);
        assert!(first_hash(&b"{}\n"[..]).is_err());
        assert_eq!(first_hash(&vec![b' '; 1 << 20][..]).unwrap(), None);
    }
}
