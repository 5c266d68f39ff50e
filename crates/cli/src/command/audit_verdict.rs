//! What `lockgate audit verify` found: a line for people as each chain is found to hold, or one JSON object at the end.

use std::path::PathBuf;

use egress::VerifyReport;
use serde::Serialize;

use super::audit_words::many;
use crate::exit::Usage;
use crate::output::{self, Form};

/// The records of a run, or of one of its companions, in a file.
pub(super) struct Chain {
    pub(super) companion: Option<String>,
    pub(super) path: PathBuf,
}

impl Chain {
    pub(super) fn of_run(path: PathBuf) -> Self {
        Self { companion: None, path }
    }

    /// What its messages begin with.
    pub(super) fn whose(&self) -> String {
        let whose = |name: &String| format!("companion {}: ", output::plain(name));
        self.companion.as_ref().map(whose).unwrap_or_default()
    }
}

/// What was found of all chains up to the first that does not hold.
pub(super) struct Verdict {
    form: Form,
    why: Option<String>,
    own: Option<Counts>,
    unchecked: Vec<String>,
    companions: Vec<OfCompanion>,
}

/// What is told of a chain that holds.
#[derive(Serialize)]
struct Counts {
    records: u64,
    signatures: u64,
    unsigned_tail: u64,
    omitted: u64,
    closed: bool,
}

/// What is told of a companion's chain.
#[derive(Serialize)]
struct OfCompanion {
    name: String,
    holds: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(flatten)]
    counts: Option<Counts>,
}

/// The object that is printed.
#[derive(Serialize)]
struct Object<'a> {
    holds: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    #[serde(flatten)]
    own: Option<&'a Counts>,
    unchecked_companions: &'a [String],
    companions: &'a [OfCompanion],
}

impl Verdict {
    pub(super) fn new(form: Form) -> Self {
        Self { form, why: None, own: None, unchecked: Vec::new(), companions: Vec::new() }
    }

    /// Takes what was found of a chain that holds, and which companions' chains were not looked at.
    pub(super) fn holds(
        &mut self,
        chain: &Chain,
        report: &VerifyReport,
        unchecked: &[String],
    ) -> Result<(), anyhow::Error> {
        let VerifyReport { records, signatures, unsigned_tail, omitted, closed } = *report;
        let counts = Counts { records, signatures, unsigned_tail, omitted, closed };
        match chain.companion.clone() {
            Some(name) => {
                self.companions.push(OfCompanion { name, holds: true, why: None, counts: Some(counts) });
            }
            None => self.own = Some(counts),
        }
        self.unchecked.extend(unchecked.iter().cloned());
        match self.form {
            Form::Json => Ok(()),
            Form::Text => Ok(output::answer(&line(chain, report, unchecked))?),
        }
    }

    /// Takes why a chain does not hold, and makes the error for it.
    pub(super) fn broken(&mut self, chain: &Chain, why: &str) -> anyhow::Error {
        if let Some(name) = &chain.companion {
            self.companions.retain(|known| known.name != *name);
            let (name, why) = (name.clone(), Some(why.to_owned()));
            self.companions.push(OfCompanion { name, holds: false, why, counts: None });
        }
        self.why = Some(format!("{}{why}", chain.whose()));
        Usage::no(format!("{}the audit does not hold: {why}", chain.whose()))
    }

    /// Takes why there is nothing that could hold, and makes the error for it.
    pub(super) fn no(&mut self, why: String) -> anyhow::Error {
        self.why = Some(why.clone());
        Usage::no(why)
    }

    /// Prints the object, if it was asked for and something was found.
    pub(super) fn answer(&self, holds: bool) -> Result<(), anyhow::Error> {
        let is_found = holds || self.why.is_some();
        match self.form {
            Form::Json if is_found => Ok(output::answer(&self.json(holds)?)?),
            Form::Json | Form::Text => Ok(()),
        }
    }

    pub(super) fn json(&self, holds: bool) -> Result<String, anyhow::Error> {
        let (own, why) = (self.own.as_ref(), self.why.as_deref());
        let Self { unchecked, companions, .. } = self;
        Ok(serde_json::to_string(&Object { holds, why, own, unchecked_companions: unchecked, companions })?)
    }
}

/// Returns the line for people of a chain that holds.
fn line(chain: &Chain, report: &VerifyReport, unchecked: &[String]) -> String {
    let end = end_of(report.closed, report.unsigned_tail);
    let (records, signatures) = (many(report.records, "record"), many(report.signatures, "signature"));
    let omitted = match report.omitted {
        0 => String::new(),
        omitted => {
            let omitted = many(omitted, "record");
            format!("; {omitted} of requests that no rule granted left out, because it was full")
        }
    };
    let left = match unchecked {
        [] => String::new(),
        names => {
            format!("; its companions' chains ({}) were not checked", output::plain(&names.join(", ")))
        }
    };
    format!("{}valid: {records}, {signatures}, {end}{omitted}{left}", chain.whose())
}

/// Says how a chain ends whose last records may not be signed yet.
fn end_of(closed: bool, unsigned_tail: u64) -> String {
    let last = match unsigned_tail {
        _ if closed => return "properly closed".into(),
        0 => return "still open, or cut after the last record".into(),
        1 => "record is".into(),
        tail => format!("{tail} records are"),
    };
    format!("still open, or cut; the last {last} chained but not yet signed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_object_tells_of_every_chain_which_it_is() {
        let chain = |name: Option<&str>| Chain { companion: name.map(str::to_owned), path: PathBuf::new() };
        let report = VerifyReport { records: 3, signatures: 2, unsigned_tail: 0, omitted: 0, closed: true };
        let mut verdict = Verdict::new(Form::Json);
        for name in [None, Some("db"), Some("cache")] {
            verdict.holds(&chain(name), &report, &[]).unwrap();
        }
        let counts = r#""records":3,"signatures":2,"unsigned_tail":0,"omitted":0,"closed":true"#;
        let cache = format!(r#"{{"name":"cache","holds":true,{counts}}}"#);
        let db = cache.replace("cache", "db");
        let rest =
            |companions: &str| format!(r#"{counts},"unchecked_companions":[],"companions":[{companions}]}}"#);
        assert_eq!(
            verdict.json(true).unwrap(),
            format!(r#"{{"holds":true,{}"#, rest(&format!("{db},{cache}")))
        );
        let error = verdict.broken(&chain(Some("db")), "it is empty");
        assert_eq!(error.to_string(), "companion db: the audit does not hold: it is empty");
        let db = r#"{"name":"db","holds":false,"why":"it is empty"}"#;
        assert_eq!(
            verdict.json(false).unwrap(),
            format!(
                r#"{{"holds":false,"why":"companion db: it is empty",{}"#,
                rest(&format!("{cache},{db}"))
            )
        );
    }

    #[test]
    fn one_record_is_no_records() {
        assert!(end_of(false, 1).ends_with("the last record is chained but not yet signed"));
        assert!(end_of(false, 2).ends_with("the last 2 records are chained but not yet signed"));
        assert_eq!(end_of(true, 2), "properly closed");
    }
}
