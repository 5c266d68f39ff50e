//! The behaviour of the world's models, whatever interface is used. It has no state: the conversation in each request says how far the
//! script is.
//!
//! ```text
//! no task, or no tool to do it with ─► a plain answer
//! a task, nothing done yet          ─► a call that writes the file      ─► one result
//! one result                        ─► a call that runs the command     ─► two results
//! two results                       ─► a last word
//! ```
//!
//! A request that continues a thread has only what is new in it: the id of the message before contains the rest.
//!
//! A task is a line of the user's: `LOCKGATE-TASK file=<absolute path> content=<word> command=<shell text to the line's end>`.

use lockgate_world::{PLAIN_ANSWER, TASK_ANSWER};
use serde_json::{Value, json};

/// How a tool was declared, which decides how it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// With a JSON object.
    Function,
    /// With a text.
    Custom,
    /// OpenAI's own, with a command line.
    LocalShell,
}

/// A tool of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) name: String,
    pub(super) form: Form,
}

/// The model's next step.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Say(&'static str),
    /// Calls a tool. The input has the form's type: an object, a text, or a list of words.
    Call {
        tool: Offer,
        input: Value,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Task {
    file: String,
    content: String,
    command: String,
}

/// A conversation, read from its beginning.
pub(super) struct Conversation {
    offers: Vec<Offer>,
    task: Option<Task>,
    results: usize,
}

impl Conversation {
    pub(super) fn new(offers: Vec<Offer>) -> Self {
        Self { offers, task: None, results: 0 }
    }

    /// Encodes the state of a conversation whose tools are functions.
    pub(super) fn note(&self) -> Value {
        let offers: Vec<&str> = self.offers.iter().map(|offer| offer.name.as_str()).collect();
        let task = self.task.as_ref().map(|task| [&task.file, &task.content, &task.command]);
        json!({ "offers": offers, "task": task, "results": self.results })
    }

    /// Decodes what [`Self::note`] encodes.
    pub(super) fn of_note(note: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let offer = |name: &Value| Some(Offer { name: text(name)?, form: Form::Function });
        let task = |task: &Vec<Value>| {
            let [file, content, command] = task.as_slice() else { return None };
            Some(Task { file: text(file)?, content: text(content)?, command: text(command)? })
        };
        Some(Self {
            offers: note["offers"].as_array()?.iter().filter_map(offer).collect(),
            task: note["task"].as_array().and_then(task),
            results: usize::try_from(note["results"].as_u64()?).ok()?,
        })
    }

    /// Adds a text of the user's; a task in it starts the script anew.
    pub(super) fn user(&mut self, text: &str) {
        if let Some(task) = Task::of(text) {
            (self.task, self.results) = (Some(task), 0);
        }
    }

    /// Adds several texts of the user's: a text, or a list of parts with a `text`.
    pub(super) fn user_content(&mut self, content: &Value) {
        match content {
            Value::String(text) => self.user(text),
            Value::Array(parts) => {
                parts.iter().filter_map(|part| part["text"].as_str()).for_each(|text| self.user(text))
            }
            _ => {}
        }
    }

    /// Adds the result of a tool.
    pub(super) fn result(&mut self) {
        self.results += 1;
    }

    pub(super) fn results(&self) -> usize {
        self.results
    }

    pub(super) fn next(&self) -> Step {
        let Some(task) = &self.task else { return Step::Say(PLAIN_ANSWER) };
        let call = match self.results {
            0 => self.write(task),
            1 => self.run(&task.command),
            _ => return Step::Say(TASK_ANSWER),
        };
        call.map_or(Step::Say(PLAIN_ANSWER), |(tool, input)| Step::Call { tool: tool.clone(), input })
    }

    fn write(&self, task: &Task) -> Option<(&Offer, Value)> {
        let Task { file, content, .. } = task;
        let word = content;
        let content = format!("{word}\n");
        let written = self.offers.iter().find_map(|offer| {
            let input = match (offer.name.as_str(), offer.form) {
                // Claude Code, pi, Codex.
                ("Write", _) => json!({ "file_path": file, "content": content }),
                ("write", _) => json!({ "path": file, "content": content }),
                ("apply_patch", Form::Function) => json!({ "input": patch(file, &content) }),
                ("apply_patch", Form::Custom) => patch(file, &content).into(),
                _ => return None,
            };
            Some((offer, input))
        });
        written.or_else(|| self.run(&format!("printf '%s\\n' '{word}' > '{file}'")))
    }

    fn run(&self, command: &str) -> Option<(&Offer, Value)> {
        let words = json!(["bash", "-lc", command]);
        self.offers.iter().find_map(|offer| {
            let input = match (offer.name.as_str(), offer.form) {
                (_, Form::LocalShell) => words.clone(),
                ("Bash", _) => json!({ "command": command, "description": "Runs the task's command" }),
                ("bash" | "shell_command", _) => json!({ "command": command }),
                ("shell", _) => json!({ "command": words }),
                ("exec_command", _) => json!({ "cmd": command }),
                // Codex runs JavaScript that calls the tool above.
                ("exec", Form::Custom) => {
                    format!("text(await tools.exec_command({}))", json!({ "cmd": command })).into()
                }
                _ => return None,
            };
            Some((offer, input))
        })
    }
}

/// Returns a patch in Codex's form that adds a file.
fn patch(file: &str, content: &str) -> String {
    let lines: String = content.lines().map(|line| format!("+{line}\n")).collect();
    format!("*** Begin Patch\n*** Add File: {file}\n{lines}*** End Patch\n")
}

impl Task {
    fn of(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| Some(line.split_once("LOCKGATE-TASK ")?.1))?;
        let (words, command) = line.split_once("command=")?;
        let word = |key| words.split_whitespace().find_map(|word| word.strip_prefix(key)).map(str::to_owned);
        Some(Self { file: word("file=")?, content: word("content=")?, command: command.trim().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str =
        "Please:\nLOCKGATE-TASK file=/w/a.txt content=kiwi command=wc -c a.txt | tee b\nThanks";

    fn offer(name: &str, form: Form) -> Offer {
        Offer { name: name.to_owned(), form }
    }

    fn steps(offers: &[Offer]) -> [Step; 3] {
        [0, 1, 2].map(|results| {
            let mut conversation = Conversation::new(offers.to_vec());
            conversation.user(TASK);
            (0..results).for_each(|_| conversation.result());
            conversation.next()
        })
    }

    fn calls(offers: &[Offer]) -> [Value; 2] {
        let [first, second, last] = steps(offers);
        assert_eq!(last, Step::Say(TASK_ANSWER));
        [first, second].map(|step| match step {
            Step::Call { tool, input } => json!([tool.name, input]),
            Step::Say(text) => text.into(),
        })
    }

    #[test]
    fn the_tools_of_each_agent_are_used() {
        let function = |name| offer(name, Form::Function);
        let command = "wc -c a.txt | tee b";
        let claude = calls(&[function("Task"), function("Bash"), function("Write")]);
        assert_eq!(claude[0], json!(["Write", { "file_path": "/w/a.txt", "content": "kiwi\n" }]));
        assert_eq!((&claude[1][0], &claude[1][1]["command"]), (&json!("Bash"), &json!(command)));
        let pi = calls(&[function("read"), function("bash"), function("write")]);
        assert_eq!(pi[0], json!(["write", { "path": "/w/a.txt", "content": "kiwi\n" }]));
        let codex = calls(&[function("exec_command"), offer("apply_patch", Form::Custom)]);
        let patch = "*** Begin Patch\n*** Add File: /w/a.txt\n+kiwi\n*** End Patch\n";
        assert_eq!(codex, [json!(["apply_patch", patch]), json!(["exec_command", { "cmd": command }])]);
        let shell = calls(&[function("shell")]);
        let write = "printf '%s\\n' 'kiwi' > '/w/a.txt'";
        assert_eq!(shell[0], json!(["shell", { "command": ["bash", "-lc", write] }]));
        let local = calls(&[offer("local_shell", Form::LocalShell)]);
        assert_eq!(local[1], json!(["local_shell", ["bash", "-lc", command]]));
    }

    #[test]
    fn without_a_task_or_a_tool_it_only_talks() {
        assert_eq!(steps(&[offer("search", Form::Function)])[0], Step::Say(PLAIN_ANSWER));
        let mut conversation = Conversation::new(vec![offer("bash", Form::Function)]);
        conversation.user("hello");
        assert_eq!(conversation.next(), Step::Say(PLAIN_ANSWER));
    }

    #[test]
    fn a_second_task_begins_anew() {
        let mut conversation = Conversation::new(vec![offer("bash", Form::Function)]);
        conversation.user(TASK);
        (0..2).for_each(|_| conversation.result());
        conversation.user(TASK);
        assert!(matches!(conversation.next(), Step::Call { .. }));
    }
}
