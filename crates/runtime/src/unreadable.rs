//! Tells why a file of settings cannot be read, and what was perhaps meant.

use policy::Limits;

/// Returns the parser's words, each line cut to what a person reads, and what was perhaps meant, on a line of its own.
#[must_use]
pub fn why_unreadable(error: &toml::de::Error) -> String {
    let told = cut(error.to_string().trim_end());
    match policy::did_it_mean(error.message()).or_else(|| should_be(error.message(), key_of(&told))) {
        Some(meant) => format!("{told}\n{meant}"),
        None => told,
    }
}

/// The keys whose values are lists of tables.
const TABLES: [&str; 7] = ["companion", "copy", "inbound", "mount", "provider", "proxy", "setup"];

/// Returns the last part of the key whose value the parser's words underline: of `1 | egress.allow = [{ ports = 443 }]`, `ports`,
/// and of `1 | [setup]` the table's.
fn key_of(told: &str) -> &str {
    let is_quoted = |line: &str| line.split(" | ").next().is_some_and(|it| it.trim().parse::<u64>().is_ok());
    let mut pairs = told.lines().zip(told.lines().skip(1)).filter(|(line, _)| is_quoted(line));
    let Some((line, at)) = pairs.find_map(|(line, under)| Some((line, under.find('^')?))) else { return "" };
    let (before, value) = line.char_indices().nth(at).map_or((line, ""), |(at, _)| line.split_at(at));
    let header = value.strip_prefix('[').and_then(|header| header.trim_end().strip_suffix(']'));
    let key = match header.filter(|_| before.trim_end().ends_with('|')) {
        Some(header) => header,
        None => before.trim_end().strip_suffix('=').unwrap_or_default(),
    };
    key.trim_end().rsplit([' ', '.', ',', '{', '|']).next().unwrap_or_default()
}

/// Returns how a value of the wrong type is written, where the parser's words are a programmer's.
fn should_be(message: &str, key: &str) -> Option<String> {
    if message.contains("expected a sequence") && TABLES.contains(&key) {
        return Some(format!("each stands under double brackets of its own: [[{key}]]"));
    }
    if message.contains("expected a table, as in { set") {
        return Some("variables stand in `env.set`, as in env.set = { NAME = \"value\" }".into());
    }
    if key == "command" && message.contains("expected a sequence") {
        return Some("a command is a list of words, as in command = [\"make\", \"test\"]".into());
    }
    match (key, message.contains("invalid value")) {
        ("pids", true) => {
            let (fewest, most) = (Limits::FEWEST_PIDS, Limits::MOST_PIDS);
            return Some(format!("it is a whole number from {fewest} to {most}"));
        }
        ("denied_status", true) => return Some("it is a status from 400 to 599".into()),
        _ => {}
    }
    // The first of which all words are in the message.
    let [list, number] = [
        "a list of words stands in brackets, as in [\"github\"]; a rule under double ones, as in [[egress.allow]]",
        "it is a whole number, without quotes, as in 100",
    ];
    [
        (&["unknown field `allow`"][..], "rules stand in `egress`, each under [[egress.allow]]"),
        (&["unknown field `deny`"], "rules stand in `egress`, each under [[egress.deny]]"),
        (
            &["invalid type: integer", "expected a sequence"],
            "a list of numbers stands in brackets, as in [443]",
        ),
        (&["expected a sequence"], list),
        (&["expected a map"], "a table of names and values stands in braces, as in { NAME = \"value\" }"),
        (
            &["invalid type: sequence", "expected a table"],
            "it is one table: under single brackets, as in [limits], or in braces",
        ),
        (&["invalid type: sequence", "string"], "it is one word in quotes, without brackets"),
        (&["expected a string"], "it stands in quotes, as in \"90s\" or \"2GiB\""),
        (&["invalid value", "expected u16"], "it is a whole number, from 1 to 65535"),
        (&["expected u16"], "it is a number without quotes, as in 443"),
        (&["invalid value", "expected u32"], "it is a whole number from 1 to 4294967295"),
        (&["invalid value", "expected u64"], "it is a whole number, and not below zero"),
        (&["expected f64"], "it is a number without quotes, as in 1.5"),
        (&["expected u32"], number),
        (&["expected u64"], number),
        (&["expected a boolean"], "it is true or false, without quotes"),
    ]
    .into_iter()
    .find_map(|(words, meant)| words.iter().all(|it| message.contains(it)).then(|| meant.to_owned()))
}

/// Shortens every line of a parser's message to what a person reads.
fn cut(text: &str) -> String {
    const MOST: usize = 1000;
    let short = |line: &str| match line.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    };
    text.lines().map(short).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_a_wrong_type_is_told_how_it_is_written() {
        for (text, meant) in [
            ("egress.allow = [{ host = \"a.example.com\", ports = 443 }]", "as in [443]"),
            ("presets = \"github\"", "as in [\"github\"]"),
            ("limits.pids = \"100\"", "without quotes, as in 100"),
            ("labels = [\"x\"]", "as in { NAME = \"value\" }"),
            ("web_search = \"yes\"", "it is true or false"),
            ("env = [\"A=1\"]", "env.set = { NAME = \"value\" }"),
            ("[[env]]\nA = \"1\"", "env.set = { NAME = \"value\" }"),
            ("[[companion]]\nname = \"db\"\nenv = [\"A=1\"]", "as in { NAME = \"value\" }"),
            ("env.set = 07:32:00", "as in { NAME = \"value\" }"),
            ("[[limits]]\npids = 5", "under single brackets"),
            ("egress.denied_status = \"451\"", "without quotes, as in 443"),
            ("egress.allow = [{ host = \"a.example.com\", ports = [70000] }]", "from 1 to 65535"),
            ("limits.pids = -1", "from 2 to 4194303"),
            ("limits = { memory = \"1GiB\", pids = 99999999999 }", "from 2 to 4194303"),
            ("egress.denied_status = -1", "from 400 to 599"),
            ("setup = [{ command = \"git fetch\" }]", "as in command = [\"make\""),
            ("[setup]\ncommand = [\"make\"]", "[[setup]]"),
            ("companion = [{ name = \"é\", image = \"x\", ports = 5432 }]", "as in [443]"),
            ("inbound = [{ container_port = 80, allowed_sources = \"x\" }]", "as in [\"github\"]"),
            ("image = [\"x\"]", "without brackets"),
            ("timeout = [\"90s\"]", "without brackets"),
            ("mount = \"x\"", "[[mount]]"),
            ("[[llm.price]]\nmodel = \"m\"\ninput = \"1.0\"\noutput = 1.0", "as in 1.5"),
            ("provider = \"x\"", "[[provider]]"),
            ("setup = \"x\"", "[[setup]]"),
            ("proxy = \"x\"", "[[proxy]]"),
            ("timeout = 90", "as in \"90s\""),
            ("terminal = true", "`auto`, `always`, `never`, in quotes"),
        ] {
            let why = why_unreadable(&toml::from_str::<policy::RunConfig>(text).unwrap_err());
            let last = why.lines().last().unwrap_or_default();
            assert!(last.contains(meant), "{text}: {why}");
        }
    }
}
