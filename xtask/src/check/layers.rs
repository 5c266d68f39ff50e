//! Checks the layers: which crates of the workspace a crate may import, and which outside crates would bring I/O into a pure one.
//!
//! Only linked crates count: `[dependencies]`, also those of one target. Tests may import what they test against.

use toml::{Table, Value};

use super::finding::Finding;
use super::tree::Tree;

/// A crate, the workspace crates it may import, and the outside crates (or families, ending in `*`) it may not.
struct Layer {
    name: &'static str,
    may: &'static [&'static str],
    never: &'static [&'static str],
}

/// Crates that open or drive sockets.
const NETWORK: &[&str] = &["async-std", "hyper*", "mio", "reqwest", "smol", "socket2", "tokio*", "ureq"];

/// The layers, bottom up. A new crate gets its entry here and in ARCHITECTURE.md in the same commit.
const LAYERS: &[Layer] = &[
    Layer { name: "policy", may: &[], never: NETWORK },
    Layer { name: "sys", may: &[], never: &[] },
    Layer { name: "credential", may: &["policy"], never: NETWORK },
    Layer { name: "image", may: &[], never: &[] },
    Layer { name: "sandbox", may: &["policy", "sys"], never: &[] },
    Layer { name: "egress", may: &["policy", "credential"], never: &[] },
    Layer {
        name: "runtime",
        may: &["policy", "credential", "image", "sandbox", "egress"],
        never: &["axum*", "clap*"],
    },
    Layer { name: "platform", may: &["policy", "credential", "runtime"], never: &[] },
    Layer { name: "cli", may: &["policy", "image", "sandbox", "egress", "runtime", "platform"], never: &[] },
];

/// Finds every import that the table does not allow, in every crate beneath `crates/`.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let shared = tree.text("Cargo.toml").and_then(|text| text.parse::<Table>().ok()).unwrap_or_default();
    tree.packages("crates").iter().flat_map(|name| check_crate(tree, name, &shared)).collect()
}

fn check_crate(tree: &Tree, name: &str, shared: &Table) -> Vec<Finding> {
    let path = format!("crates/{name}/Cargo.toml");
    let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
        let what = format!("`{name}` is in no layer");
        return vec![Finding::new(
            &path,
            1,
            what,
            "give it a row in xtask/src/check/layers.rs and ARCHITECTURE.md",
        )];
    };
    let text = tree.text(&path).unwrap_or_default();
    let manifest = match text.parse::<Table>() {
        Ok(manifest) => manifest,
        Err(error) => return vec![Finding::new(&path, 1, error.message(), "correct the TOML")],
    };
    imports(&manifest)
        .filter_map(|(key, value)| {
            let package = package(key, value, shared);
            let (what, mend) = layer.judge(&package)?;
            Some(Finding::new(&path, line_of(&text, key), what, mend))
        })
        .collect()
}

impl Layer {
    /// Returns what is wrong with importing `package` here and how to fix it, or nothing if the import is allowed.
    fn judge(&self, package: &str) -> Option<(String, String)> {
        let (name, may) = (self.name, self.may);
        let house = package.strip_prefix("lockgate-").unwrap_or(package);
        if LAYERS.iter().any(|layer| layer.name == house) {
            let allowed = if may.is_empty() { "no crate of the house".to_owned() } else { may.join(", ") };
            let mend = format!("it may import {allowed}: move the code, or pass the value in");
            return (!may.contains(&house)).then(|| (format!("`{name}` imports `{house}`"), mend));
        }
        let banned = self.never.iter().any(|entry| match entry.strip_suffix('*') {
            Some(family) => package.starts_with(family),
            None => package == *entry,
        });
        let mend = "this room does without it: move the code to a crate that may";
        banned.then(|| (format!("`{name}` depends on `{package}`"), mend.to_owned()))
    }
}

/// Iterates over the `[dependencies]` entries of a manifest, those of `[target.….dependencies]` included.
fn imports(manifest: &Table) -> impl Iterator<Item = (&str, &Value)> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(Table::values).filter_map(Value::as_table);
    std::iter::once(manifest)
        .chain(targets)
        .filter_map(|table| table.get("dependencies").and_then(Value::as_table))
        .flat_map(|table| table.iter().map(|(key, value)| (key.as_str(), value)))
}

/// Returns the package behind a dependency's key, which may be renamed here or in the workspace's own table.
fn package(key: &str, value: &Value, shared: &Table) -> String {
    let inherited = value.get("workspace").and_then(Value::as_bool) == Some(true);
    let table = shared.get("workspace").and_then(|table| table.get("dependencies"));
    let entry = if inherited { table.and_then(|table| table.get(key)).unwrap_or(value) } else { value };
    entry.get("package").and_then(Value::as_str).unwrap_or(key).to_owned()
}

/// Returns the line that names a dependency, as `key = …`, `key.… = …` or `[dependencies.key]`.
fn line_of(text: &str, key: &str) -> usize {
    let names = |line: &str| {
        let rest = line.trim_start().trim_start_matches('"').strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with(['.', '=', ' ', '\t', '"']))
            || line.trim_end().ends_with(&format!("dependencies.{key}]"))
    };
    let beneath = text.find("dependencies").map_or(0, |at| text[..at].lines().count().saturating_sub(1));
    text.lines().skip(beneath).position(names).map_or(1, |at| beneath + at + 1)
}

#[cfg(test)]
mod tests {
    use super::super::tree::made::tree;
    use super::*;

    const ROOT: &str = "[workspace.dependencies]\n\
        policy = { package = \"lockgate-policy\", path = \"crates/policy\" }\n\
        vault = { package = \"lockgate-credential\", path = \"crates/credential\" }\n\
        tokio = \"1\"\n";

    fn findings(name: &str, dependencies: &str) -> Vec<String> {
        let manifest = format!("[package]\nname = \"lockgate-{name}\"\n\n{dependencies}\n");
        let path = format!("crates/{name}/Cargo.toml");
        let (_folder, tree) = tree(&[("Cargo.toml", ROOT), (&path, &manifest)]);
        check(&tree)
            .iter()
            .map(|finding| format!("{}:{}: {}", finding.path, finding.line, finding.what))
            .collect()
    }

    #[test]
    fn what_the_table_allows_is_silent() {
        assert!(
            findings("sandbox", "[dependencies]\npolicy.workspace = true\nsys = { path = \"../sys\" }")
                .is_empty()
        );
        assert!(
            findings("policy", "[dependencies]\nserde = \"1\"\n[dev-dependencies]\ntokio = \"1\"").is_empty()
        );
        assert!(findings("egress", "[dependencies]\ntokio = \"1\"\nclap = \"4\"").is_empty());
    }

    #[test]
    fn the_sandbox_cannot_name_a_secret_by_any_spelling() {
        let expected = "`sandbox` imports `credential`";
        for (entry, line) in [
            ("[dependencies]\npolicy.workspace = true\nvault.workspace = true", 6),
            ("[dependencies]\nlockgate-credential = { path = \"../credential\" }", 5),
            ("[dependencies]\nx = { package = \"lockgate-credential\", path = \"../credential\" }", 5),
            ("[dependencies.credential]\npath = \"../credential\"", 4),
            ("[target.'cfg(unix)'.dependencies]\ncredential = { path = \"../credential\" }", 5),
        ] {
            assert_eq!(
                findings("sandbox", entry),
                [format!("crates/sandbox/Cargo.toml:{line}: {expected}")],
                "{entry}"
            );
        }
    }

    #[test]
    fn policy_stays_pure() {
        for name in ["tokio", "tokio-rustls", "hyper", "hyper-util", "socket2"] {
            let found = findings("policy", &format!("[dependencies]\n{name} = \"1\""));
            assert_eq!(found, [format!("crates/policy/Cargo.toml:5: `policy` depends on `{name}`")]);
        }
    }

    #[test]
    fn runtime_has_no_server_no_command_line_and_no_system_calls() {
        let found =
            findings("runtime", "[dependencies]\naxum = \"0.8\"\nclap = \"4\"\nsys = { path = \"../sys\" }");
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn a_crate_without_a_place_is_found() {
        assert_eq!(findings("extra", ""), ["crates/extra/Cargo.toml:1: `extra` is in no layer"]);
    }

    #[test]
    fn a_crate_that_imports_everything_above_it_is_found_once_for_each() {
        let all: String = LAYERS.iter().map(|layer| format!("lockgate-{} = \"1\"\n", layer.name)).collect();
        assert_eq!(findings("sys", &format!("[dependencies]\n{all}")).len(), LAYERS.len());
    }
}
