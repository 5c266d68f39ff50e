//! The coding agents Claude Code, Codex and pi each do a whole task without a proxy variable and without a key. S4.25; C14.

use std::fs;
use std::path::Path;

use lockgate_clients::{Agents, Ended, Held, Site};
use lockgate_world::TASK_ANSWER;

/// An agent and its model provider.
struct Agent {
    program: &'static str,
    /// The command line, with the prompt in `$prompt` and the program's path in `$agent`.
    command: &'static str,
    provider: &'static str,
    host: &'static str,
    variables: &'static [&'static str],
    policy: &'static str,
    /// The path of its requests to a model, and the header and scheme of its key.
    path: &'static str,
    header: &'static str,
    scheme: &'static str,
}

const CLAUDE: Agent = Agent {
    program: "claude",
    command: "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 \"$agent\" -p \"$prompt\" --allowedTools Write,Bash,Edit,Read",
    provider: "anthropic",
    host: "api.anthropic.com",
    variables: &["ANTHROPIC_API_KEY"],
    policy: "",
    path: "/v1/messages",
    header: "x-api-key",
    scheme: "",
};

const CODEX: Agent = Agent {
    program: "codex",
    command: "\"$agent\" exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox \
              -c openai_base_url=https://api.openai.com/v1 -c analytics.enabled=false -c features.plugins=false \"$prompt\"",
    provider: "openai",
    host: "api.openai.com",
    variables: &["OPENAI_API_KEY", "CODEX_API_KEY"],
    policy: "",
    path: "/v1/responses",
    header: "authorization",
    scheme: "Bearer ",
};

const PI: Agent = Agent {
    program: "pi",
    command: "PI_OFFLINE=1 \"$agent\" -p \"$prompt\"",
    provider: "anthropic",
    host: "api.anthropic.com",
    variables: &["ANTHROPIC_API_KEY"],
    policy: "",
    path: "/v1/messages",
    header: "x-api-key",
    scheme: "",
};

/// A first tool call, a second one, and the final message.
const TURNS: usize = 3;

#[test]
fn claude_code() {
    completes(&CLAUDE);
}

#[test]
fn claude_code_by_a_subscription() {
    let variables = &["CLAUDE_CODE_OAUTH_TOKEN"];
    let (header, scheme) = ("authorization", "Bearer ");
    completes(&Agent { provider: "claude-subscription", variables, header, scheme, ..CLAUDE });
}

#[test]
fn codex() {
    completes(&CODEX);
}

#[test]
fn codex_within_a_budget_of_tokens() {
    // Its WebSocket is refused, and it asks the same over HTTP.
    completes(&Agent { policy: "llm.budget.tokens = 1000000\n", ..CODEX });
}

#[test]
fn pi() {
    completes(&PI);
}

#[test]
fn a_connection_that_is_never_used_is_no_denial() {
    // Claude Code opens a connection in advance and closes it; the person must not be told of a refusal.
    let Some(agents) = Agents::with(&[CLAUDE.program]) else { return };
    let Some(site) = Site::for_test(&[]) else { return };
    let _held = Held::for_model(&site, CLAUDE.provider, CLAUDE.host);
    let ended = task(&CLAUDE, &agents, &site);
    assert!(ended.code == 0 && !ended.stderr.contains("denied"), "{ended}");
}

// S0.32, S0.33: its tools' files exist afterwards, and the model has received the result of each call.
fn completes(agent: &Agent) {
    let Some(agents) = Agents::with(&[agent.program]) else { return };
    let Some(site) = Site::for_test(&[]) else { return };
    let held = Held::for_model(&site, agent.provider, agent.host);
    let ended = task(agent, &agents, &site);
    ended.says(TASK_ANSWER);

    let read = |name: &str| fs::read_to_string(site.workspace().join(name)).unwrap_or_default();
    assert_eq!((read("written"), read("copied")), ("kiwi\n".to_owned(), "kiwi\n".to_owned()), "{ended}");
    had_placeholders_only(agent, &read("environment"));

    let key = format!("{}{}", agent.scheme, held.text());
    assert!(held.brought(agent.host, agent.header, &key) >= TURNS, "{:?}", site.requests());
    let requests = site.requests();
    let turns = requests.iter().filter(|request| {
        request.text("method") == "POST" && request.text("path").split('?').next() == Some(agent.path)
    });
    assert_eq!(turns.count(), TURNS, "{requests:?}");
    let elsewhere: Vec<_> = site.visits().into_iter().filter(|visit| visit.event == "tls").collect();
    assert!(elsewhere.iter().all(|visit| visit.text("sni") == agent.host), "{elsewhere:?}");
    held.is_nowhere(&ended);
}

/// Gives the agent the task in a sandbox, which leaves its environment and its home in the workspace.
fn task(agent: &Agent, agents: &Agents, site: &Site) -> Ended {
    let written = site.workspace().join("written");
    let prompt = format!(
        "Please do this.\nLOCKGATE-TASK file={} content=kiwi command=cat written > copied; env > within; echo ran",
        written.display()
    );
    let prompt = site_file(&site.workspace(), "prompt", &prompt);
    let run = agents.shown_to(site.run().policy(agent.policy).flags(["--provider", agent.provider]).bare());
    run.script(&format!(
        "PATH='{}':$PATH; agent='{}'; prompt=$(cat '{prompt}'); tr '\\0' '\\n' < /proc/$$/environ > at-start; env > environment\n\
         {} </dev/null\n\
         cp -r \"$HOME\" home; test -s within",
        agents.programs().display(),
        agents.program(agent.program).display(),
        agent.command,
    ))
}

fn site_file(folder: &Path, name: &str, content: &str) -> String {
    fs::write(folder.join(name), content).expect("room for a file");
    folder.join(name).display().to_string()
}

/// Checks that each variable of the provider has a placeholder, and that no proxy is named.
fn had_placeholders_only(agent: &Agent, environment: &str) {
    for name in agent.variables {
        let value = environment.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        assert!(value.is_some_and(|value| value.starts_with("lgph_")), "{name}: {environment}");
    }
    let proxies = environment
        .lines()
        .filter(|line| line.split('=').next().is_some_and(|name| name.to_lowercase().ends_with("_proxy")));
    assert_eq!(proxies.count(), 0, "{environment}");
}
