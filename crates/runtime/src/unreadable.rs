//! Tells why a file of settings cannot be read, and what was perhaps meant.

/// Returns the parser's words, each line cut to what a person reads, and what was perhaps meant, on a line of its own.
#[must_use]
pub fn why_unreadable(error: &toml::de::Error) -> String {
    let told = cut(error.to_string().trim_end());
    match policy::did_it_mean(error.message()).or_else(|| should_be(error.message()).map(str::to_owned)) {
        Some(meant) => format!("{told}\n{meant}"),
        None => told,
    }
}

/// Returns how a value of the wrong type is written, where the parser's words are a programmer's.
fn should_be(message: &str) -> Option<&'static str> {
    [
        ("unknown field `allow`", "rules stand in `egress`, each under [[egress.allow]]"),
        ("unknown field `deny`", "rules stand in `egress`, each under [[egress.deny]]"),
        ("expected a sequence", "a list of words stands in brackets, as in [\"github\"]; a rule under double ones, as in [[egress.allow]]"),
        ("expected a string", "it stands in quotes, as in \"90s\" or \"2GiB\""),
        ("expected u16", "a port is a number from 1 to 65535, without quotes"),
    ]
    .into_iter()
    .find_map(|(words, meant)| message.contains(words).then_some(meant))
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
