//! `cargo xtask check`: formatting, the rules of the house, the supply chain and clippy, cheapest first.
//!
//! A check reads and reports; it must never change a file.

mod circles;
mod code;
mod docs;
mod finding;
mod layers;
mod names;
mod sizes;
mod supply_chain;
mod tree;
mod unsafe_code;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::steps::Steps;
use crate::workspace::Workspace;
use finding::Finding;
use tree::Tree;

const FORMAT_LIMIT: Duration = Duration::from_secs(120);
const CLIPPY_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs `cargo xtask check`.
pub(crate) fn run() -> Result<()> {
    let workspace = Workspace::locate()?;
    let mut steps = Steps::default();
    let result = steps_of_check(&workspace, &mut steps);
    eprint!("\n{}", steps.table());
    result
}

/// Runs the same checks as steps of a larger command.
pub(crate) fn steps_of_check(workspace: &Workspace, steps: &mut Steps) -> Result<()> {
    steps.run("format", || workspace.cargo(&["fmt", "--check"], FORMAT_LIMIT).run())?;
    steps.run("house rules", || house_rules(&workspace.root))?;
    steps.run("supply chain", || supply_chain::check(workspace))?;
    steps.run("clippy", || {
        let args = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        workspace.cargo(&args, CLIPPY_LIMIT).run()
    })
}

fn house_rules(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let findings: Vec<Finding> =
        [layers::check, circles::check, unsafe_code::check, sizes::check, names::check, docs::check]
            .into_iter()
            .flat_map(|check| check(&tree))
            .collect();
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => bail!("one rule of the house is broken"),
        count => bail!("{count} rules of the house are broken"),
    }
}
