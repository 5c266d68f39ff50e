//! Prints the table of promises, or writes it to `docs/conformance.md` with `--write`.
//! It runs no test.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let table = lockgate_conformance::table();
    if std::env::args().nth(1).as_deref() != Some("--write") {
        print!("{table}");
        return ExitCode::SUCCESS;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
    match std::fs::write(&page, table) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("failed to write {}: {error}", page.display());
            ExitCode::FAILURE
        }
    }
}
