//! `lockgate config`: the merged configuration, and where each value came from.

use policy::{Merged, ProviderId};
use runtime::{Settings, StateDirectory, Verdict};
use sandbox::Caller;

use super::spec;
use crate::arguments::Config;
use crate::exit::{self, Done};
use crate::output::{self, Form};

pub(crate) fn config(command: Config) -> Done {
    let Config::Show { spec, origin, json } = command;
    let caller = super::caller()?;
    let state = StateDirectory::to_read(&caller)?;
    super::tell_unknown_variables(&caller);
    let Verdict { layers, spec } = Settings::judge(&spec::request(&spec)?, &caller, Some(&state))?;
    let rows = spec.as_ref().map_or_else(|_| layers.origins(), |spec| layers.in_force(spec));
    let rows = from_here(without_providers(rows, &layers.forbidden_searches()), &caller);
    match Form::of(json) {
        Form::Json => rows.iter().try_for_each(|Merged { field, value, origin }| {
            output::data(&serde_json::json!({"field": field, "value": value, "origin": origin}).to_string())
        }),
        Form::Text if origin => {
            said_by_files(rows).iter().try_for_each(|row| tell(row, &format!("  # {}", row.origin)))
        }
        Form::Text => joined(said_by_files(rows)).iter().try_for_each(|row| tell(row, "")),
    }?;
    let refused = match spec {
        Ok(spec) => {
            spec.notices.iter().for_each(|notice| output::tell(&format!("note: {notice}")));
            runtime::refuse_missing(&spec, &state).err().map(anyhow::Error::from)
        }
        Err(error) => Some(spec::named_by_flag(error)),
    };
    if let Some(error) = refused {
        let (_, remedy) = exit::code_and_remedy(&error);
        let remedy = remedy.map(|remedy| format!("\n  {remedy}")).unwrap_or_default();
        output::tell(&format!("a run would be refused: {}{remedy}", output::said(&error)));
    }
    Ok(0)
}

/// Prints one setting as a line of a file. A project's file may contain any names.
fn tell(row: &Merged, remark: &str) -> std::io::Result<()> {
    output::data(&output::plain(&format!("{} = {}{remark}", row.field, in_a_line(&row.value))))
}

/// Formats a value in TOML, on one line, so that it is read back as the same.
fn in_a_line(value: &toml::Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        toml::Value::String(text) => output::toml_string(text),
        toml::Value::Array(list) => format!("[{}]", joined(list.iter().map(in_a_line).collect())),
        toml::Value::Table(table) if table.is_empty() => "{}".to_owned(),
        toml::Value::Table(table) => {
            let entry =
                |(key, value): (&String, &toml::Value)| format!("{} = {}", in_a_key(key), in_a_line(value));
            format!("{{ {} }}", joined(table.iter().map(entry).collect()))
        }
        other => other.to_string(),
    }
}

fn in_a_key(key: &str) -> String {
    let is_bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if is_bare { key.to_owned() } else { output::toml_string(key) }
}

/// Leaves out what no file may say: the names under which this program keeps the users and passwords of a platform's proxies.
fn said_by_files(mut rows: Vec<Merged>) -> Vec<Merged> {
    let proxies = rows.iter_mut().filter(|row| row.field == "proxy");
    let proxies = proxies.filter_map(|row| row.value.as_array_mut()).flatten();
    for proxy in proxies.filter_map(toml::Value::as_table_mut) {
        if proxy.get("credential").and_then(toml::Value::as_str).is_some_and(ProviderId::is_own) {
            proxy.remove("credential");
        }
    }
    rows
}

/// Makes the paths of flags absolute: those of a file are below the folder of that file.
fn from_here(mut rows: Vec<Merged>, caller: &Caller) -> Vec<Merged> {
    let shown = rows.iter_mut().filter(|row| ["mount", "copy"].contains(&row.field.as_str()));
    let shown = shown.filter_map(|row| row.value.as_array_mut()).flatten();
    for source in shown.filter_map(|entry| entry.get_mut("source")) {
        let is_home = |path: &str| std::path::Path::new(path).starts_with("~");
        let path = source.as_str().filter(|path| !path.starts_with('/') && !is_home(path));
        if let Some(path) = path.and_then(|path| caller.directory.join(path).to_str().map(str::to_owned)) {
            *source = path.into();
        }
    }
    rows
}

/// Leaves out providers that no run has. Beside `web_search = false` no file may name them either.
fn without_providers(mut rows: Vec<Merged>, left_out: &[String]) -> Vec<Merged> {
    let is_left_out = |name: Option<&str>| name.is_some_and(|name| left_out.iter().any(|one| one == name));
    let of_providers = |row: &Merged| ["providers", "provider"].contains(&row.field.as_str());
    for list in rows.iter_mut().filter(|row| of_providers(row)).filter_map(|row| row.value.as_array_mut()) {
        list.retain(|one| !is_left_out(one.get("id").unwrap_or(one).as_str()));
    }
    rows.retain(|row| !(of_providers(row) && row.value.as_array().is_some_and(Vec::is_empty)));
    rows
}

/// Merges the rows of a list to which several layers add into one.
fn joined(rows: Vec<Merged>) -> Vec<Merged> {
    let mut joined: Vec<Merged> = Vec::new();
    for mut row in rows {
        let before = joined.iter_mut().find(|before| before.field == row.field);
        match before.and_then(|before| before.value.as_array_mut()).zip(row.value.as_array_mut()) {
            Some((before, more)) => before.append(more),
            None => joined.push(row),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_as_a_file_is_what_a_file_may_say() {
        let proxies: toml::Table = toml::from_str(
            r#"proxy = [
                { id = "system", url = "http://a:1", credential = "@lockgate/system-proxy-1" },
                { id = "own", url = "http://b:1", credential = "corp" },
            ]"#,
        )
        .unwrap();
        let row = Merged { field: "proxy".into(), value: proxies["proxy"].clone(), origin: String::new() };
        let rows = said_by_files(vec![row]);
        let text = format!("proxy = {}", rows[0].value);
        let config: policy::RunConfig = toml::from_str(&text).unwrap();
        let credentials: Vec<_> = config.proxy.iter().map(|proxy| proxy.credential.as_deref()).collect();
        assert_eq!(credentials, [None, Some("corp")], "{text}");
    }

    #[test]
    fn a_path_of_a_flag_is_the_same_in_a_file_that_lies_elsewhere() {
        let written =
            r#"mount = [{ source = "x" }, { source = "~/x" }, { source = "/x" }, { source = "~x" }]"#;
        let value = toml::from_str::<toml::Table>(written).unwrap()["mount"].clone();
        let row = Merged { field: "mount".into(), value, origin: String::new() };
        let rows = from_here(vec![row], &Caller::new(0, 0, "/here"));
        let sources = rows[0].value.as_array().unwrap().iter().map(|mount| mount["source"].as_str().unwrap());
        assert_eq!(sources.collect::<Vec<_>>(), ["/here/x", "~/x", "/x", "/here/~x"]);
    }

    #[test]
    fn a_search_provider_that_is_forbidden_is_not_shown() {
        let mut layers = policy::Layers::default();
        let user = "providers = [\"tavily\", \"github\"]\n[[provider]]\nid = \"exa\"\nauthorized_uris = [\"https://exa.example/*\"]\n";
        for text in [user, "web_search = false\n"] {
            layers.push(policy::Origin::User("user".into()), toml::from_str(text).unwrap());
        }
        let rows = || joined(without_providers(layers.origins(), &layers.forbidden_searches()));
        let text: String = rows().iter().map(|row| format!("{} = {}\n", row.field, row.value)).collect();
        let config: policy::RunConfig = toml::from_str(&text).unwrap();
        assert!(config.providers == ["github"] && config.provider.is_empty(), "{text}");
        let mut shown = policy::Layers::default();
        shown.push(policy::Origin::Named("shown".into()), config);
        assert!(shown.compile().is_ok(), "{text}");
    }

    #[test]
    fn what_is_told_is_read_back_as_the_same() {
        let written = r#"v = ["a\nb\t\u001b", 'C:\"x"', "\u200b\U000e0041 ü", { "a b" = "one\r\ntwo", c = [] , d = {}, e = 1.5 }, true]"#;
        let table: toml::Table = toml::from_str(written).unwrap();
        let line = format!("v = {}", in_a_line(&table["v"]));
        assert_eq!(output::plain(&line), line, "nothing in it is left to be replaced");
        assert_eq!(toml::from_str::<toml::Table>(&line).unwrap(), table, "{line}");
    }

    #[test]
    fn a_list_of_two_layers_is_one() {
        let row =
            |field: &str, value: toml::Value| Merged { field: field.into(), value, origin: String::new() };
        let list = |entry: &str| toml::Value::from(vec![entry]);
        let rows = vec![row("a", list("x")), row("b", "y".into()), row("a", list("z"))];
        let lines: Vec<_> = joined(rows).iter().map(|row| format!("{} = {}", row.field, row.value)).collect();
        assert_eq!(lines, ["a = [\"x\", \"z\"]", "b = \"y\""]);
    }
}
