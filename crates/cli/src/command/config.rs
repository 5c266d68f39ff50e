//! `lockgate config`: the merged configuration, and where each value came from.

use runtime::{Settings, StateDirectory};

use super::spec;
use crate::arguments::Config;
use crate::exit::Done;
use crate::output::{self, Form};

pub(crate) fn config(command: Config) -> Done {
    let Config::Show { spec, origin, json } = command;
    let caller = super::caller()?;
    let state = StateDirectory::of(&caller)?;
    let (layers, _) = Settings::layers(&spec::request(&spec)?, &caller, &state)?;
    for row in layers.origins() {
        let line = match Form::of(json) {
            Form::Json => {
                serde_json::json!({"field": row.field, "value": row.value, "origin": row.origin}).to_string()
            }
            // A project's file may have any names.
            Form::Text => {
                let origin = if origin { format!("  # {}", row.origin) } else { String::new() };
                output::plain(&format!("{} = {}{origin}", row.field, row.value))
            }
        };
        output::data(&line)?;
    }
    if let Err(error) = layers.compile() {
        let error = runtime::Error::from(error);
        let remedy = error.remedy().map(|remedy| format!("\n  {remedy}")).unwrap_or_default();
        output::tell(&format!("a run would be refused: {}{remedy}", error.sentence()));
    }
    Ok(0)
}
