//! JSON and TOML: parses a whole tree, judges its values, and writes what is left anew.

use serde_json::{Map, Value};

use super::super::judge::{Fate, Judge};
use super::super::telling;
use super::NotUnderstood;

/// The key under which the tree holds a date of TOML: no real key can be this one.
const DATE: &str = "\0date";
/// The deepest nesting that is followed.
const DEEPEST: usize = 64;

pub(super) fn json(text: &str, judge: &mut Judge<'_>) -> Result<String, NotUnderstood> {
    let tree: Value = serde_json::from_str(text).map_err(|e| NotUnderstood::at(e.line()))?;
    let tree = judged(tree, judge)?;
    let mut anew = serde_json::to_string_pretty(&tree).map_err(|_| NotUnderstood::somewhere())?;
    anew.push('\n');
    Ok(anew)
}

pub(super) fn toml(text: &str, judge: &mut Judge<'_>) -> Result<String, NotUnderstood> {
    let line = |e: &toml::de::Error| e.span().map(|span| 1 + text[..span.start].matches('\n').count());
    let tree: toml::Table = toml::from_str(text).map_err(|e| NotUnderstood { line: line(&e) })?;
    let tree = judged(from_toml(toml::Value::Table(tree))?, judge)?;
    toml::to_string(&to_toml(tree)?).map_err(|_| NotUnderstood::somewhere())
}

/// Returns the tree without what is left out. Only an object is configuration.
pub(super) fn judged(tree: Value, judge: &mut Judge<'_>) -> Result<Value, NotUnderstood> {
    let Value::Object(mut object) = tree else { return Err(NotUnderstood::at(1)) };
    each(judge, &mut Vec::new(), &mut object);
    Ok(Value::Object(object))
}

fn each(judge: &mut Judge<'_>, path: &mut Vec<String>, object: &mut Map<String, Value>) {
    // The command whose words a list beside it contains.
    let program = object.get("command").and_then(Value::as_str).unwrap_or_default().to_owned();
    object.retain(|key, value| {
        path.push(key.clone());
        let kept = keeps(judge, path, &program, value);
        path.pop();
        kept
    });
}

fn keeps(judge: &mut Judge<'_>, path: &mut Vec<String>, program: &str, value: &mut Value) -> bool {
    let parts: Vec<&str> = path.iter().map(String::as_str).collect();
    let (name, key) = (parts.join("."), parts.last().copied().unwrap_or_default());
    let sensitive = telling::is_sensitive(key);
    let leave_out = |judge: &mut Judge<'_>| judge.leave_out(&name) == Fate::Keep;
    if path.len() > DEEPEST || telling::is_telling(key) {
        return leave_out(judge);
    }
    match value {
        Value::Null | Value::Bool(_) => !judge.is_outside(&parts),
        Value::Number(number) => {
            if sensitive && !telling::is_count(key, &number.to_string()) {
                return leave_out(judge);
            }
            !judge.is_outside(&parts)
        }
        Value::String(text) => match judge.value(&parts, text) {
            Fate::Keep => true,
            Fate::Become(anew) => {
                *text = anew;
                true
            }
            Fate::LeaveOut => false,
        },
        Value::Object(_) | Value::Array(_) if sensitive => leave_out(judge),
        Value::Object(object) => {
            if judge.is_outside(&parts) {
                return false;
            }
            each(judge, path, object);
            true
        }
        Value::Array(list) => {
            if judge.is_outside(&parts) {
                return false;
            }
            // `["--api-key", "…"]`: the words of a command are judged together.
            let words: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
            if words.iter().any(|word| word.starts_with('-')) && telling::is_telling_to(program, &words) {
                return leave_out(judge);
            }
            list.retain_mut(|value| keeps(judge, path, program, value));
            true
        }
    }
}

fn from_toml(value: toml::Value) -> Result<Value, NotUnderstood> {
    Ok(match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => {
            serde_json::Number::from_f64(number).map(Value::Number).ok_or_else(NotUnderstood::somewhere)?
        }
        toml::Value::Boolean(value) => value.into(),
        toml::Value::Datetime(date) => {
            Value::Object(Map::from_iter([(DATE.into(), date.to_string().into())]))
        }
        toml::Value::Array(list) => Value::Array(list.into_iter().map(from_toml).collect::<Result<_, _>>()?),
        toml::Value::Table(table) => {
            let pair = |(key, value)| from_toml(value).map(|value| (key, value));
            Value::Object(table.into_iter().map(pair).collect::<Result<_, _>>()?)
        }
    })
}

fn to_toml(value: Value) -> Result<toml::Value, NotUnderstood> {
    Ok(match value {
        Value::Null => return Err(NotUnderstood::somewhere()),
        Value::Bool(value) => value.into(),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.into(),
            (None, Some(part)) => part.into(),
            (None, None) => return Err(NotUnderstood::somewhere()),
        },
        Value::String(text) => text.into(),
        Value::Array(list) => toml::Value::Array(list.into_iter().map(to_toml).collect::<Result<_, _>>()?),
        Value::Object(object) => {
            if let Some(date) = object.get(DATE).and_then(Value::as_str) {
                return date.parse().map(toml::Value::Datetime).map_err(|_| NotUnderstood::somewhere());
            }
            let pair = |(key, value)| to_toml(value).map(|value| (key, value));
            toml::Value::Table(object.into_iter().map(pair).collect::<Result<_, _>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::Form;
    use super::super::tried::tried;

    #[test]
    fn json_keeps_settings_and_loses_credentials() {
        let text = r#"{"model": "m", "env": {"BOUND_TOKEN": "hush", "OTHER_API_KEY": "hush", "MAX_TOKENS": "5", "N": 1},
            "permissions": {"allow": ["Bash(ls)"], "deny": []}, "apiKeyHelper": "print hush", "auth": {"x": "hush"},
            "mcpServers": {"a": {"command": "x", "args": ["--api-key", "hush"], "url": "https://me:hush@bound.example/"},
            "b": {"args": ["run", "https://me:hush@other.example/x"], "headers": {"Authorization": "Bearer hush"}}},
            "token": "a", "token": "hush", "password": 4711, "old": null}"#;
        let (anew, left_out) = tried(Form::Json, "", text).unwrap();
        let tree: serde_json::Value = serde_json::from_str(&anew).unwrap();
        let expected = serde_json::json!({"model": "m", "env": {"BOUND_TOKEN": "{}", "MAX_TOKENS": "5", "N": 1},
            "permissions": {"allow": ["Bash(ls)"], "deny": []}, "mcpServers": {
            "a": {"command": "x", "url": "https://me:{}@bound.example/"},
            "b": {"args": ["run", "https://other.example/x"], "headers": {}}}, "old": null});
        assert_eq!(tree, expected);
        for name in [
            "`env.OTHER_API_KEY`",
            "`apiKeyHelper`",
            "`auth`",
            "`mcpServers.a.args`",
            "`token`",
            "`password`",
        ] {
            assert!(left_out.iter().any(|left| left == name), "{name} of {left_out:?}");
        }
    }

    #[test]
    fn toml_keeps_settings_and_loses_credentials() {
        let text = "# hush\r\nmodel = 'm'\r\nwhen = 2024-05-01T00:00:00Z\r\n[registry]\r\ntoken = \"\"\"hush\"\"\"\r\n\
            [registries]\nown.token = \"hush\"\nother = { token = 'hush', index = 'https://other.example/' }\n\
            [http]\nproxy = \"me:hush@proxy\"\n[[index]]\nurl = \"https://me:hush@bound.example/simple\"\n\
            [mcp.a]\nbearer_token_env_var = \"SOME_TOKEN\"\n\"api\\u002dkey\" = \"hush\"\n";
        let rest =
            "outside = [\"http.proxy\"]\n[credentials]\n\"registries.*.token\" = \"registries.*.index\"";
        let (anew, left_out) = tried(Form::Toml, rest, text).unwrap();
        let expected = "model = \"m\"\nwhen = 2024-05-01T00:00:00Z\n\n[registry]\n\n[registries.own]\ntoken = \"{}\"\n\n\
            [registries.other]\nindex = \"https://other.example/\"\n\n[http]\n\n[[index]]\n\
            url = \"https://me:{}@bound.example/simple\"\n\n[mcp.a]\nbearer_token_env_var = \"SOME_TOKEN\"\n";
        let same: (toml::Table, toml::Table) =
            (toml::from_str(&anew).unwrap(), toml::from_str(expected).unwrap());
        assert_eq!(same.0, same.1, "{anew}");
        assert_eq!(left_out.len(), 4, "{left_out:?}");
    }

    #[test]
    fn what_is_no_such_tree_does_not_enter() {
        for text in ["", "[1]", "\"hush\"", "{\"a\": hush}", "{} {}", "// hush\n{}", "{\"a\": 1,}"] {
            assert!(tried(Form::Json, "", text).is_err(), "{text}");
        }
        for text in ["hush", "a = hush", "a = 1\na = 2", "[a]\n[a]", "a = \"hush", "a = inf"] {
            assert!(tried(Form::Toml, "", text).is_err(), "{text}");
        }
        let deep = format!("{}1{}", "{\"a\":".repeat(100), "}".repeat(100));
        assert_eq!(tried(Form::Json, "", &deep).unwrap().1.len(), 1);
        assert!(tried(Form::Json, "", &format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000))).is_err());
    }

    /// Leaves out each entry of an object, in JSON and, where it can be written so, in TOML.
    fn each_is_left_out(entries: &serde_json::Value) {
        for (name, value) in entries.as_object().unwrap() {
            let tree = serde_json::json!({"of": {name: value}});
            let (anew, left_out) = tried(Form::Json, "", &tree.to_string()).unwrap();
            let held = format!("{anew}{}", left_out.concat());
            assert!(
                !left_out.is_empty() && !held.contains("0b5c7f0e") && !held.contains("q7Fh2"),
                "{name}: {anew}"
            );
            let (_, left_out) = tried(Form::Toml, "", &toml::to_string(&tree).unwrap()).unwrap();
            assert!(!left_out.is_empty(), "{name}");
        }
    }

    #[test]
    fn credentials_are_left_out_by_every_name_and_shape() {
        each_is_left_out(&serde_json::json!({
            "MYSQL_PWD": "hush", "DB_PWD": "hush", "SMTP_PW": "hush", "JIRA_PAT": "hush", "ENCRYPTION_KEY": "hush",
            "AZURE_STORAGE_KEY": "hush", "HEROKU_KEY": "0b5c7f0e-4f5a-4f0e-9d0a-2f1b3c4d5e6f",
            "OWN_PAT": {"value": "hush", "force": true},
            "CONNECTION": "Server=h;Uid=me;Pwd=hush;", "DSN": "me:hush@tcp(h)/db", "OTHER": "me/hush@tcp(h)",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-honeycomb-team=hush", "BLOB": "https://h.example/c?sv=1&sig=hush",
            "url": "https://host/0b5c7f0e-4f5a-4f0e-9d0a-2f1b3c4d5e6f/sse",
            "index": "sparse+https://dl.packages.example/q7Fh2Kd93LmXz81P/o/r/cargo/index.git",
            "headers": {"X-Key": "hush"}, "http_headers": {"X-Goog-Key": "hush"},
            "more": {"Ocp-Apim-Subscription-Key": "hush"}, "query_params": {"code": "hush"},
            "a": {"command": "db-mcp", "args": ["-p", "hush"]}, "b": {"args": ["--pat", "hush"]},
            "c": {"args": ["--pwd", "hush"]}, "d": {"command": ["mysql", "-phush"]},
            "e": {"command": "npx", "args": ["-y", "mysql-mcp", "-p", "hush"]},
            "environment": {"DB_PWD": "HUSH_HUSH"},
        }));
    }

    #[test]
    fn ordinary_settings_enter() {
        let text = serde_json::json!({
            "keybindings": {"submit": "enter"}, "bind": [{"key": "ctrl+p", "command": "find"}],
            "public_key_path": "/home/me/.ssh/id.pub", "env": {"KEYBOARD_LAYOUT": "de", "EDITOR": "vim -f"},
            "permissions": {"allow": ["Bash(mkdir -p:*)", "Bash(pwd:*)", "Bash(git add -p)", "WebFetch(domain:docs.rs)"]},
            "a": {"command": "serve", "args": ["-p", "8080"]}, "b": {"command": "mkdir", "args": ["-p", "dir"]},
            "c": {"command": "npx", "args": ["-y", "-p", "@scope/pkg", "cmd"]}, "env_key": "OWN_KEY",
            "d": {"command": "uvx", "args": ["--from", "git+https://github.com/o/r", "x"], "url": "https://mcp.example.org/v1/sse"},
            "env_http_headers": {"X-Key": "OWN_KEY"}, "query_params": {"api-version": "2025-04-01-preview"},
            "from": "https://github.com/o/r/archive/3fae0c1d2b4e5f60718293a4b5c6d7e8f9012345.tar.gz",
        });
        let (anew, left_out) = tried(Form::Json, "", &text.to_string()).unwrap();
        assert!(left_out.is_empty(), "{left_out:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&anew).unwrap(), text);
    }
}
