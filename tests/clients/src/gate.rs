//! A sidecar alone in the small internet, and a list of messages to it, one connection each. It returns the answers and which servers were
//! reached meanwhile; the tests judge them.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::ended::run_to_end;
use crate::needs::product;
use crate::site::Site;

/// The time limit of a whole corpus, one row after another.
const LIMIT: Duration = Duration::from_secs(60);
/// Starts the sidecar, runs `talk`, and ends the sidecar. In any case the world ends both.
const SCRIPT: &str = r#""$PRODUCT" sidecar --policy "$1" --forward 127.0.0.1:8081 --gateway 127.0.0.1:8080 --audit "$4" & sidecar=$!
"$TALK" "$AT" "$2" "$3"; code=$?; kill $sidecar; wait $sidecar; exit $code"#;

/// The port of the sidecar that is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// Port 8081, the explicit proxy.
    Forward,
    /// Port 8080, the gateway, which is a proxy too.
    Gateway,
}

impl Plane {
    fn address(self) -> &'static str {
        match self {
            Self::Forward => "127.0.0.1:8081",
            Self::Gateway => "127.0.0.1:8080",
        }
    }
}

/// The answer to one row.
#[derive(Debug)]
pub struct Answer {
    /// The status of the first response; 0 if there was none.
    pub status: u16,
    /// Whether the sidecar closed the connection before it had answered.
    pub closed: bool,
    /// The duration in milliseconds.
    pub ms: u64,
    /// Everything received.
    pub received: String,
    /// What the world's servers recorded meanwhile, without the resolvers.
    pub seen: Vec<Value>,
}

impl Answer {
    /// The records of one event.
    pub fn events<'a>(&'a self, event: &'a str) -> impl Iterator<Item = &'a Value> {
        self.seen.iter().filter(move |record| record["event"] == event)
    }
}

/// Sends every row (`{"id", "send", "tables"?, "answers"?}`) to the explicit proxy by the program `talk`, and returns the answers by their
/// ids.
///
/// # Panics
/// When the sidecar does not serve, or the rows take longer than a minute.
#[must_use]
pub fn ask(site: &Site, talk: &str, policy: &str, rows: &[Value]) -> HashMap<String, Answer> {
    ask_at(Plane::Forward, site, talk, policy, rows)
}

/// Sends every row to the given port.
///
/// # Panics
/// As [`ask`].
#[must_use]
pub fn ask_at(
    plane: Plane,
    site: &Site,
    talk: &str,
    policy: &str,
    rows: &[Value],
) -> HashMap<String, Answer> {
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let (policy, rows) = (site.file("gate.toml", policy), site.file("rows.jsonl", text));
    let (answers, audit) = (site.outside().join("answers.jsonl"), site.outside().join("audit.jsonl"));
    let mut command = site.world().command("sh");
    command.args(["-c", SCRIPT, "sh"]).args([&policy, &rows, &answers, &audit]);
    command
        .env("PRODUCT", product().expect("`ready` was asked first"))
        .env("TALK", talk)
        .env("AT", plane.address());
    command.env("TALK_TABLES", site.world().folder().join("tables.json"));
    command.env("XDG_STATE_HOME", site.state()).current_dir(site.workspace());
    let ended = run_to_end(&mut command, LIMIT);
    assert!(ended.code == 0, "{ended}");
    let answers = fs::read_to_string(&answers).expect("the answers");
    let read = answers.lines().map(|line| serde_json::from_str::<Value>(line).expect("an answer"));
    read.map(|answer| (answer["id"].as_str().expect("an id").to_owned(), judged(site, &answer))).collect()
}

fn judged(site: &Site, answer: &Value) -> Answer {
    let received = answer["received"].as_str().unwrap_or_default().to_owned();
    let status =
        received.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|s| s.parse().ok());
    let records = fs::read_to_string(site.world().folder().join("records.jsonl")).unwrap_or_default();
    let number = |key: &str| usize::try_from(answer[key].as_u64().expect("an offset")).expect("a small file");
    // A record that was being written when an offset was taken belongs to the row before.
    let whole = |at: usize| match records[..at].ends_with('\n') || at == 0 {
        true => at,
        false => records[at..].find('\n').map_or(records.len(), |left| at + left + 1),
    };
    let seen = records[whole(number("from"))..whole(number("to"))]
        .lines()
        .map(|line| serde_json::from_str(line).expect("a record"));
    let resolvers = ["resolver", "other-resolver"];
    let seen = seen
        .filter(|record: &Value| !resolvers.contains(&record["server"].as_str().unwrap_or_default()))
        .collect();
    let (closed, ms) = (answer["closed"] == true, answer["ms"].as_u64().unwrap_or(u64::MAX));
    Answer { status: status.unwrap_or(0), closed, ms, received, seen }
}
