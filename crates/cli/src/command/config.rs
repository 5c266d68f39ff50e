//! `lockgate config`: the merged configuration, and where each value came from.

use policy::Merged;
use runtime::{Settings, StateDirectory};

use super::spec;
use crate::arguments::Config;
use crate::exit::Done;
use crate::output::{self, Form};

pub(crate) fn config(command: Config) -> Done {
    let Config::Show { spec, origin, json } = command;
    let caller = super::caller()?;
    let state = StateDirectory::of(&caller)?;
    super::tell_unknown_variables(&caller);
    let (layers, _) = Settings::layers(&spec::request(&spec)?, &caller, Some(&state))?;
    let rows = layers.origins();
    match Form::of(json) {
        Form::Json => rows.iter().try_for_each(|Merged { field, value, origin }| {
            output::data(&serde_json::json!({"field": field, "value": value, "origin": origin}).to_string())
        }),
        Form::Text if origin => rows.iter().try_for_each(|row| tell(row, &format!("  # {}", row.origin))),
        Form::Text => joined(rows).iter().try_for_each(|row| tell(row, "")),
    }?;
    if let Err(error) = layers.compile() {
        let error = runtime::Error::from(error);
        let remedy = error.remedy().map(|remedy| format!("\n  {remedy}")).unwrap_or_default();
        output::tell(&format!("a run would be refused: {}{remedy}", error.sentence()));
    }
    Ok(0)
}

/// Formats one setting as a line of a file. A project's file may contain any names.
fn tell(row: &Merged, remark: &str) -> std::io::Result<()> {
    output::data(&output::plain(&format!("{} = {}{remark}", row.field, row.value)))
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
    fn a_list_of_two_layers_is_one() {
        let row =
            |field: &str, value: toml::Value| Merged { field: field.into(), value, origin: String::new() };
        let list = |entry: &str| toml::Value::from(vec![entry]);
        let rows = vec![row("a", list("x")), row("b", "y".into()), row("a", list("z"))];
        let lines: Vec<_> = joined(rows).iter().map(|row| format!("{} = {}", row.field, row.value)).collect();
        assert_eq!(lines, ["a = [\"x\", \"z\"]", "b = \"y\""]);
    }
}
