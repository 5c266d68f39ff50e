//! Converts profiles/presets.toml into `$OUT_DIR/presets.json`. People edit TOML; the program parses the file at every start that names
//! a preset or a provider, which takes a tenth of the time as JSON.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

const PRESETS: &str = "../../profiles/presets.toml";

fn main() -> Result<(), Box<dyn Error>> {
    let path = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join(PRESETS);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", path.display());
    let table: toml::Table = toml::from_str(&fs::read_to_string(&path)?)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    fs::write(Path::new(&env::var("OUT_DIR")?).join("presets.json"), serde_json::to_string(&table)?)?;
    Ok(())
}
