//! The official libraries of Anthropic and OpenAI, for Python and for Node: whole answers and streams, by their default addresses and by
//! the gateway's, with placeholders only. No variable names a proxy. S1.25, S4.25, S4.46; C14.

use std::fs;

use lockgate_clients::{Agents, Ended, Held, Run, Site};
use lockgate_world::{PLAIN_ANSWER, Record};
use serde_json::Value;

const PYTHON: &str = r#"import anthropic, openai, sys
base, claude, gpt = sys.argv[1:] or [None, "claude-world", "gpt-world"]
messages = [{"role": "user", "content": "hello"}]
if claude != "-":
    client = anthropic.Anthropic(max_retries=0, **({"base_url": base} if base else {}))
    asked = dict(model=claude, max_tokens=100, messages=messages)
    print("messages:", client.messages.create(**asked).content[0].text)
    with client.messages.stream(**asked) as stream:
        pieces = list(stream.text_stream)
    print("messages in %s pieces:" % ("several" if len(pieces) > 1 else "no"), "".join(pieces))
client = openai.OpenAI(max_retries=0, **({"base_url": base} if base else {}))
print("responses:", client.responses.create(model=gpt, input="hello").output_text)
pieces = [event.delta for event in client.responses.create(model=gpt, input="hello", stream=True) if event.type == "response.output_text.delta"]
print("responses in %s pieces:" % ("several" if len(pieces) > 1 else "no"), "".join(pieces))
print("chat:", client.chat.completions.create(model=gpt, messages=messages).choices[0].message.content)
chunks = client.chat.completions.create(model=gpt, messages=messages, stream=True)
pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
print("chat in %s pieces:" % ("several" if len(pieces) > 1 else "no"), "".join(pieces))
"#;

const NODE: &str = r#"const Anthropic = require("@anthropic-ai/sdk"), OpenAI = require("openai");
const given = process.argv.slice(2), [base, claude, gpt] = given.length ? given : [undefined, "claude-world", "gpt-world"];
const messages = [{ role: "user", content: "hello" }], at = { maxRetries: 0, ...(base ? { baseURL: base } : {}) };
const tell = (what, pieces) => console.log(`${what} in ${pieces.length > 1 ? "several" : "no"} pieces:`, pieces.join(""));
(async () => {
  if (claude !== "-") {
    const client = new (Anthropic.default ?? Anthropic)(at), asked = { model: claude, max_tokens: 100, messages };
    console.log("messages:", (await client.messages.create(asked)).content[0].text);
    const pieces = [];
    await client.messages.stream(asked).on("text", (piece) => pieces.push(piece)).finalText();
    tell("messages", pieces);
  }
  const client = new (OpenAI.default ?? OpenAI)(at);
  console.log("responses:", (await client.responses.create({ model: gpt, input: "hello" })).output_text);
  let pieces = [];
  for await (const event of await client.responses.create({ model: gpt, input: "hello", stream: true }))
    if (event.type === "response.output_text.delta") pieces.push(event.delta);
  tell("responses", pieces);
  console.log("chat:", (await client.chat.completions.create({ model: gpt, messages })).choices[0].message.content);
  pieces = [];
  for await (const chunk of await client.chat.completions.create({ model: gpt, messages, stream: true }))
    if (chunk.choices[0]?.delta?.content) pieces.push(chunk.choices[0].delta.content);
  tell("chat", pieces);
})().catch((error) => { console.error(error); process.exit(3); });
"#;

/// A language: its script, and its command line.
#[derive(Clone, Copy)]
enum Library {
    Python,
    Node,
}

impl Library {
    fn script(self) -> &'static str {
        match self {
            Self::Python => PYTHON,
            Self::Node => NODE,
        }
    }

    fn started(self, agents: &Agents) -> String {
        match self {
            Self::Python => format!("{} ask", agents.python().display()),
            Self::Node => {
                format!("NODE_PATH={} {} ask", agents.libraries().display(), agents.program("node").display())
            }
        }
    }
}

#[test]
fn python_by_the_default_addresses() {
    by_the_default_addresses(Library::Python);
}

#[test]
fn node_by_the_default_addresses() {
    by_the_default_addresses(Library::Node);
}

#[test]
fn python_by_the_gateway() {
    by_the_gateway(Library::Python);
}

#[test]
fn node_by_the_gateway() {
    by_the_gateway(Library::Node);
}

/// A site with keys of three models, and a run that may use them without proxy variables.
struct Place<'site> {
    run: Run<'site>,
    anthropic: Held<'site>,
    openai: Held<'site>,
    openrouter: Held<'site>,
}

impl<'site> Place<'site> {
    fn at(site: &'site Site, library: Library, agents: &Agents) -> Self {
        fs::write(site.workspace().join("ask"), library.script()).expect("room for a script");
        let providers =
            ["anthropic", "openai", "openrouter"].into_iter().flat_map(|name| ["--provider", name]);
        Self {
            run: agents.shown_to(site.run().flags(providers).bare()),
            anthropic: Held::for_model(site, "anthropic", "api.anthropic.com"),
            openai: Held::for_model(site, "openai", "api.openai.com"),
            openrouter: Held::for_model(site, "openrouter", "openrouter.ai"),
        }
    }

    /// Checks that no key is left over, and that each host received its own `times` times: Anthropic's, OpenAI's, OpenRouter's. The first
    /// has it in `header`, behind `scheme`.
    fn keys_came(&self, ended: &Ended, header: &str, scheme: &str, times: [usize; 3]) {
        [&self.anthropic, &self.openai, &self.openrouter].iter().for_each(|held| held.is_nowhere(ended));
        let came = |held: &Held<'_>, host: &str, header: &str, scheme: &str| {
            held.brought(host, header, &format!("{scheme}{}", held.text()))
        };
        let came = [
            came(&self.anthropic, "api.anthropic.com", header, scheme),
            came(&self.openai, "api.openai.com", "authorization", "Bearer "),
            came(&self.openrouter, "openrouter.ai", "authorization", "Bearer "),
        ];
        assert_eq!(came, times, "{ended}");
    }
}

/// Checks that the plain answer arrived whole, and the stream in pieces.
fn answered(ended: &Ended, interfaces: &[&str]) {
    for interface in interfaces {
        ended.says(&format!("{interface}: {PLAIN_ANSWER}"));
        ended.says(&format!("{interface} in several pieces: {PLAIN_ANSWER}"));
    }
}

fn by_the_default_addresses(library: Library) {
    let Some(agents) = Agents::with(&["@anthropic-ai/sdk", "openai"]) else { return };
    let Some(site) = Site::for_test(&[]) else { return };
    let place = Place::at(&site, library, &agents);
    let ended = place.run.script(&format!("env > environment; {}", library.started(&agents)));
    answered(&ended, &["messages", "responses", "chat"]);
    // Where the library itself puts a key, a placeholder is replaced.
    place.keys_came(&ended, "authorization", "Bearer ", [2, 4, 0]);
}

fn by_the_gateway(library: Library) {
    let Some(agents) = Agents::with(&["@anthropic-ai/sdk", "openai"]) else { return };
    let Some(site) = Site::for_test(&[]) else { return };
    let place = Place::at(&site, library, &agents);
    let ask = library.started(&agents);
    // The gateway ignores any key that a client insists on.
    let first = place.run.script(&format!(
        "[ \"$MODEL_BASE_URL\" = http://sidecar:8080/llm ]; export OPENAI_API_KEY=made-up ANTHROPIC_API_KEY=made-up\n\
         {ask} \"$MODEL_BASE_URL\" anthropic/claude-world openai/gpt-world"
    ));
    answered(&first, &["messages", "responses", "chat"]);
    place.keys_came(&first, "x-api-key", "", [2, 4, 0]);
    let second = place.run.script(&format!("{ask} http://sidecar:8080/llm - openrouter/moonshotai/kimi-k2"));
    answered(&second, &["responses", "chat"]);
    place.keys_came(&second, "x-api-key", "", [2, 4, 4]);
    let asked = [
        ("api.anthropic.com", "claude-world"),
        ("api.openai.com", "gpt-world"),
        ("openrouter.ai", "moonshotai/kimi-k2"),
    ];
    for request in site.requests() {
        let (host, model) = (request.text("host"), model_of(&request));
        assert!(asked.contains(&(host, model.as_str())), "{host} was asked for {model}");
    }
}

fn model_of(request: &Record) -> String {
    let body: Value = serde_json::from_str(request.text("body")).expect("a body in JSON");
    body["model"].as_str().unwrap_or_default().to_owned()
}
