//! `lockgate policy check`: verdicts by the code that enforces. A row may carry the resolver's answer in place of the real one.
//! Not checked are the sender's own keys, placeholders, the credential itself, budgets and rates. Nothing is dialled.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::IpAddr;

use egress::{Answers, Files, Gate, GateOptions};
use policy::{Denial, Guard, Method, Policy, Target};
use runtime::Patient;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::hint;
use super::spec::settings;
use super::url::whole;
use crate::arguments::{PolicyCheck, Spec};
use crate::exit::{Done, Usage};
use crate::output;

/// One row of input; other fields are ignored.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Row {
    /// Repeated in the verdict octet for octet.
    #[serde(deserialize_with = "on_one_line")]
    id: Box<RawValue>,
    target: String,
    /// In place of `--method`.
    method: Option<String>,
    resolves: Option<Vec<String>>,
}

/// The id of a row that is otherwise invalid.
#[derive(Deserialize)]
struct Named {
    #[serde(deserialize_with = "on_one_line")]
    id: Box<RawValue>,
}

/// Reads a value as it is written, but for a carriage return: it can only be a blank between tokens (RFC 8259 section 2), and would not
/// be printed as it is.
fn on_one_line<'de, D: Deserializer<'de>>(from: D) -> Result<Box<RawValue>, D::Error> {
    let value = Box::<RawValue>::deserialize(from)?;
    match value.get().contains('\r') {
        false => Ok(value),
        true => RawValue::from_string(value.get().replace('\r', " ")).map_err(serde::de::Error::custom),
    }
}

#[derive(Serialize)]
struct VerdictRow {
    id: Box<RawValue>,
    verdict: &'static str,
    guard: Option<&'static str>,
    rule: Option<String>,
    effective: Option<Effective>,
}

impl VerdictRow {
    fn deny(id: Box<RawValue>, guard: Guard, rule: Option<String>) -> Self {
        Self { id, verdict: "deny", guard: Some(guard.code()), rule, effective: None }
    }
}

#[derive(Serialize)]
struct Effective {
    scheme: &'static str,
    host: String,
    port: u16,
    path: String,
    query: Option<String>,
}

impl Effective {
    fn of(target: &Target) -> Self {
        Self {
            scheme: target.scheme().as_str(),
            host: target.host().to_string(),
            port: target.port().number(),
            path: target.path().as_str().to_owned(),
            query: target.query().map(str::to_owned),
        }
    }
}

pub(crate) fn check(arguments: &PolicyCheck) -> Done {
    let policy = settings(&arguments.spec)?.spec.policy;
    let method = method_of(&arguments.method)?;
    match &arguments.target {
        Some(target) => one(&policy, &method, target, arguments),
        None => rows(&policy, &method, BufReader::new(Patient::of(std::io::stdin())), output::data),
    }
}

/// Parses the value of `--method`.
pub(super) fn method_of(text: &str) -> Result<Method, anyhow::Error> {
    Method::parse(text).ok_or_else(|| {
        let upper = text.to_ascii_uppercase();
        let remedy = match Method::parse(&upper) {
            Some(_) => format!("write it in upper case: {upper}"),
            None => "as in GET".to_owned(),
        };
        Usage::error(format!("`{}` is not a method", output::plain(text)), remedy)
    })
}

fn one(policy: &Policy, method: &Method, target: &str, arguments: &PolicyCheck) -> Done {
    let flags = &arguments.spec;
    // `CONNECT` has no URL: its target is a host and a port.
    let target = if method.as_str() == "CONNECT" { target.to_owned() } else { whole(target) };
    let verdict = egress::check(&gate(policy, None)?, method, &target)?;
    if arguments.json {
        return one_as_json(verdict.outcome, flags);
    }
    match verdict.outcome {
        Ok((rule, target)) => {
            output::answer(&output::plain(&format!("allow  {method} {target}  by {rule}")))?;
            Ok(0)
        }
        Err(denial) => {
            let rule = denial.rule.map(|rule| format!("  ({rule})")).unwrap_or_default();
            output::answer(&output::plain(&format!("deny   {}: {}{rule}", denial.guard, denial.reason)))?;
            let had = hint::providers_of(policy);
            let lines = |hint| hint::lines(hint, &target, &had, flags, hint::RuleTime::Now);
            for line in denial.hint.iter().flat_map(lines) {
                output::answer(&format!("       {}", output::plain(&line)))?;
            }
            Ok(1)
        }
    }
}

/// Formats a verdict as JSON, with the reason and the remedy.
fn one_as_json(outcome: Result<(String, Target), Denial>, flags: &Spec) -> Done {
    let is_denied = outcome.is_err();
    let value = match outcome {
        Ok((rule, target)) => {
            serde_json::json!({"verdict": "allow", "rule": rule, "effective": Effective::of(&target)})
        }
        Err(Denial { guard, reason, hint, rule }) => {
            let hint = hint.map(|hint| hint::suited(hint, flags).to_string());
            serde_json::json!({
                "verdict": "deny", "guard": guard.code(), "rule": rule, "reason": reason, "hint": hint,
            })
        }
    };
    output::answer(&value.to_string())?;
    Ok(u8::from(is_denied))
}

/// Describes a row's syntax error by its column. Each row is parsed alone, so the parser always reports line 1.
fn without_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

/// Builds a gate whose resolver gives the row's answer, or the system's.
pub(super) fn gate(
    policy: &Policy,
    resolves: Option<Vec<IpAddr>>,
) -> Result<std::rc::Rc<Gate>, anyhow::Error> {
    let run = runtime::new_run_id()?;
    let options = GateOptions {
        files: Files::open(None)?,
        answers: resolves.map(Answers::Given),
        ..GateOptions::new(policy.clone(), policy::Spending::default(), run)
    };
    Ok(Gate::open(options)?)
}

/// Answers the rows one by one, until their end or until nobody reads the answers any more.
fn rows(
    policy: &Policy,
    method: &Method,
    stdin: impl BufRead,
    mut print: impl FnMut(&str) -> std::io::Result<()>,
) -> Done {
    let (mut unreadable, mut others) = (None, 0_u64);
    for (number, line) in (1..).zip(stdin.split(b'\n')) {
        let line = line.map_err(|error| {
            Usage::error(format!("failed to read stdin: {error}"), "give it rows from a file or a pipe")
        })?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        // Each row that has an id is answered; the first invalid row also becomes the error at the end.
        let answer = match policy::from_json(&line) {
            Ok(row) => verdict_of(policy, method, row)?,
            Err(error) => {
                match unreadable {
                    None => unreadable = Some((number, error)),
                    Some(_) => others += 1,
                }
                let Ok(Named { id }) = policy::from_json(&line) else { continue };
                VerdictRow::deny(id, Guard::Syntax, None)
            }
        };
        match print(&serde_json::to_string(&answer)?) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            printed => printed?,
        }
    }
    match unreadable {
        None => Ok(0),
        Some((number, error)) => Err(Usage::error(
            match others {
                0 => format!("stdin, line {number}: {}", without_line(&error)),
                _ => format!("stdin, line {number}, and {others} more: {}", without_line(&error)),
            },
            "a row is {\"id\": …, \"target\": \"…\", \"method\": \"…\", \"resolves\": [\"ADDRESS\", …]}; without the last the system is asked",
        )),
    }
}

fn verdict_of(policy: &Policy, method: &Method, row: Row) -> Result<VerdictRow, anyhow::Error> {
    // Text that is no address could not be dialled.
    let addresses = row.resolves.map(|list| list.iter().map(|text| text.parse()).collect());
    let Ok(resolves) = addresses.transpose() else {
        return Ok(VerdictRow::deny(row.id, Guard::Address, None));
    };
    let of_row = row.method.map(|text| Method::parse(&text));
    let Some(method) = of_row.unwrap_or_else(|| Some(method.clone())) else {
        // A request line without a method is no request that can be read.
        return Ok(VerdictRow::deny(row.id, Guard::Framing, None));
    };
    let verdict = egress::check(&gate(policy, resolves)?, &method, &row.target)?;
    Ok(match verdict.outcome {
        Ok((rule, target)) => VerdictRow {
            id: row.id,
            verdict: "allow",
            guard: None,
            rule: Some(rule),
            effective: Some(Effective::of(&target)),
        },
        Err(denial) => VerdictRow::deny(row.id, denial.guard, denial.rule),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_cannot_be_read_are_said_to_come_from_stdin() {
        let folder = std::io::BufReader::new(std::fs::File::open("/").unwrap());
        let error = rows(&Policy::default(), &Method::parse("GET").unwrap(), folder, |_| Ok(())).unwrap_err();
        assert!(error.downcast_ref::<Usage>().is_some(), "{error}");
        assert!(error.to_string().starts_with("failed to read stdin: "), "{error}");
    }

    #[test]
    fn rows_are_read_until_nobody_reads_the_answers() {
        let method = Method::parse("GET").unwrap();
        for (row, is_readable) in
            [(r#"{"id": 1, "target": "https://a.example", "method": ""}"#, true), (r#"{"id": 1}"#, false)]
        {
            let mut printed = 0;
            let stdin = format!("{row}\n").repeat(3);
            let done = rows(&Policy::default(), &method, stdin.as_bytes(), |_| {
                printed += 1;
                Err(ErrorKind::BrokenPipe.into())
            });
            assert_eq!((printed, done.is_ok()), (1, is_readable), "{row}");
        }
    }

    #[test]
    fn a_method_that_is_none_is_denied_as_the_sidecar_denies_it() {
        for (method, guard) in [("", "http_framing"), ("a b", "http_framing"), ("GET", "host_not_allowed")] {
            let row = format!(r#"{{"id": 1, "target": "https://a.example", "method": "{method}"}}"#);
            let row = serde_json::from_str(&row).unwrap();
            let verdict = verdict_of(&Policy::default(), &Method::parse("GET").unwrap(), row).unwrap();
            assert_eq!(verdict.guard, Some(guard), "{method}");
        }
    }

    #[test]
    fn the_deny_rule_for_where_a_row_leads_is_named_whichever_way_it_asks() {
        let rules = "[egress]\nallow = [{ url = \"http://d.example:18091/*\", addresses = [\"127.0.0.1\"] },\n\
            { host = \"e.example\", ports = [18091] }]\n\
            deny = [{ host = \"127.0.0.1\", ports = [18091], methods = [\"DELETE\"] },\n\
            { host = \"93.184.216.34\", ports = [18091], methods = [\"PUT\"] }]\n";
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), toml::from_str(rules).unwrap());
        let policy = layers.compile().unwrap().policy;
        let rule = |method: &str, target: &str| {
            let row = serde_json::json!({
                "id": 1, "target": target, "method": method, "resolves": ["93.184.216.34"],
            });
            let row = policy::from_json(row.to_string().as_bytes()).unwrap();
            let verdict = verdict_of(&policy, &Method::parse("GET").unwrap(), row).unwrap();
            (verdict.guard, verdict.rule.unwrap())
        };
        for (host, method, at) in [("d", "DELETE", 0), ("e", "PUT", 1)] {
            let url = format!("http://{host}.example:18091/x");
            let denied = (Some("deny_rule"), format!("egress.deny[{at}] in test"));
            assert_eq!(rule(method, &url), denied);
            assert_eq!(rule("POST", &format!("{url}?$httpMethod={method}")), denied);
            assert_eq!(rule("POST", &format!("{url}?$httpMethod=PATCH")).0, None);
        }
    }

    #[test]
    fn a_row_is_an_object() {
        let method = Method::parse("GET").unwrap();
        let list = "[1, \"https://a.example\", \"GET\", null]\n[1]\n".as_bytes();
        let error = rows(&Policy::default(), &method, list, |row| panic!("answered: {row}")).unwrap_err();
        let told = "stdin, line 1, and 1 more: invalid type: sequence, expected an object";
        assert!(error.to_string().starts_with(told), "{error}");
    }

    #[test]
    fn an_id_is_told_again_as_it_was_written() {
        let same = ["12345678901234567890123", "1e2", "\"\\u0041\"", "[1, null]"].map(|id| (id, id));
        for (id, expected) in same.into_iter().chain([("[1,\r2, \"\\r\"]", "[1, 2, \"\\r\"]")]) {
            let row: Row =
                policy::from_json(format!("{{\"id\": {id}, \"target\": \"x\"}}").as_bytes()).unwrap();
            let told = serde_json::to_string(&VerdictRow::deny(row.id, Guard::Syntax, None)).unwrap();
            assert!(told.starts_with(&format!("{{\"id\":{expected},")), "{told}");
        }
    }
}
