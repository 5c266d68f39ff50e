//! Reports a bench: a table on the terminal, the raw samples as JSON, and the page in `docs/`.
//!
//! Each bench rewrites the whole page, from its measurements alone.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use super::machine::Machine;
use super::sample::{Against, Better, Row, Section, Series, Verdict};

const PAGE: &str = "docs/benchmarks.md";
const RAW: &str = "benches/raw";

/// Formats a section as a plain table, for a terminal.
pub(crate) fn plain(section: &Section) -> String {
    let mut text = String::new();
    let table = cells(section);
    let columns = table.first().map_or(0, Vec::len);
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &table {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = " ".repeat(width - cell.chars().count());
            // The first column is words, the others are figures.
            let _ = if column == 0 { write!(line, "  {cell}{gap}") } else { write!(line, "  {gap}{cell}") };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for what in &section.skipped {
        let _ = writeln!(text, "  skipped: {what}");
    }
    text
}

/// Writes every sample as JSON, and returns the file's path.
pub(crate) fn write_raw(root: &Path, machine: &Machine, sections: &[Section]) -> Result<PathBuf> {
    let folder = root.join(RAW);
    fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let path = folder.join(format!("{}.json", machine.time.replace(':', "-")));
    let value = json!({ "machine": machine, "sections": sections });
    fs::write(&path, format!("{value:#}\n"))
        .with_context(|| format!("failed to write {}", path.display()))?;
    Ok(path)
}

/// Writes the page, and returns its path.
pub(crate) fn write_page(root: &Path, machine: &Machine, sections: &[Section]) -> Result<PathBuf> {
    let path = root.join(PAGE);
    fs::write(&path, page(machine, sections))
        .with_context(|| format!("failed to write {}", path.display()))?;
    Ok(path)
}

fn page(machine: &Machine, sections: &[Section]) -> String {
    let mut text = String::from(
        "# Benchmarks\n\nWritten by `cargo xtask bench`, which measures this machine's release build beside whatever peers are installed. Subjects take\n\
         turns; figures are medians unless a row says otherwise, and the last column but one is ours over the best peer's. The ratios matter, not\n\
         the figures: they come from one run on one machine. Every sample of a run is kept as JSON in `benches/raw/`.\n\n",
    );
    let _ = writeln!(text, "{}\n", machine_line(machine));
    for section in sections {
        let _ = writeln!(text, "## {}\n", section.title);
        for sentence in &section.about {
            let _ = writeln!(text, "- {sentence}");
        }
        for what in &section.skipped {
            let _ = writeln!(text, "- Skipped: {what}.");
        }
        let table = cells(section);
        let _ = writeln!(text);
        for (index, row) in table.iter().enumerate() {
            let _ = writeln!(text, "| {} |", row.join(" | "));
            if index == 0 {
                let _ = writeln!(text, "|---|{}", "---:|".repeat(row.len() - 1));
            }
        }
        let _ = writeln!(text);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Returns one line with the machine, the day and the peers.
pub(crate) fn machine_line(machine: &Machine) -> String {
    let peers: Vec<String> =
        machine.peers.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let Machine { processor, cores, kernel, .. } = machine;
    let busy = machine.busy().map(|sentence| format!(" {sentence}")).unwrap_or_default();
    format!(
        "{processor}, {cores} cores, Linux {kernel}, {}. Peers: {}.{busy}",
        machine.date(),
        peers.join(", ")
    )
}

/// Returns a section as cells: a heading, then a row each.
fn cells(section: &Section) -> Vec<Vec<String>> {
    let mut subjects: Vec<&str> = Vec::new();
    for series in section.rows.iter().flat_map(|row| &row.series) {
        if !subjects.contains(&series.subject.as_str()) {
            subjects.push(&series.subject);
        }
    }
    let heading = ["what", "unit"].into_iter().chain(subjects.iter().copied()).chain(["ratio", "target"]);
    let mut table = vec![heading.map(str::to_owned).collect::<Vec<_>>()];
    table.extend(section.rows.iter().map(|row| line(row, &subjects)));
    table
}

fn line(row: &Row, subjects: &[&str]) -> Vec<String> {
    let of = |subject: &&str| {
        let series = row.series.iter().find(|series: &&Series| series.subject == **subject);
        series.and_then(|series| series.quantile(row.part)).map_or_else(String::new, figure)
    };
    let ratio = row.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2}"));
    let verdicts: Vec<String> = row.verdicts().iter().map(|one| told(row, one)).collect();
    let mut cells = vec![row.what.clone(), row.unit.to_owned()];
    cells.extend(subjects.iter().map(of));
    cells.extend([ratio, verdicts.join(", ")]);
    cells
}

/// Formats a target and whether it is met. A target for a named subject shows its own ratio: the column has the best peer's.
fn told(row: &Row, Verdict { against, target, outcome }: &Verdict) -> String {
    let sign = if row.better == Better::Less { '≤' } else { '≥' };
    let verdict = match outcome {
        Some((_, true)) => " met",
        Some((_, false)) => " missed",
        None => "",
    };
    match (against, outcome) {
        (Against::Best, _) => format!("{sign} {target:.2}{verdict}"),
        (Against::Nobody, _) => format!("{sign} {target} {}{verdict}", row.unit),
        (Against::Subject(name), None) => format!("{sign} {target:.2} × {name}"),
        (Against::Subject(name), Some((ratio, _))) => {
            format!("{ratio:.2} {sign} {target:.2} × {name}{verdict}")
        }
    }
}

/// Formats a figure with about three significant digits.
fn figure(value: f64) -> String {
    match value.abs() {
        huge if huge >= 100.0 => format!("{value:.0}"),
        large if large >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Role, Target};
    use super::*;

    fn machine() -> Machine {
        Machine {
            processor: "A Processor".into(),
            cores: 2,
            kernel: "6.1.0".into(),
            time: "2026-01-02T03:04Z".into(),
            load: 0.1,
            peers: vec![("bwrap".into(), "0.8.0".into())],
        }
    }

    fn section() -> Section {
        let series = |subject: &str, role, samples: &[f64]| Series {
            samples: samples.to_vec(),
            ..Series::new(subject, role)
        };
        let mut section = Section::new("Starts");
        section.about = vec!["From start to end.".into()];
        section.rows = vec![Row {
            what: "cold".into(),
            unit: "ms",
            better: Better::Less,
            part: 0.5,
            target: Some(Target::Best(1.0)),
            series: vec![
                series("lockgate", Role::Ours, &[3.0, 5.0, 4.0]),
                series("bwrap", Role::Peer, &[16.0]),
            ],
        }];
        section.skipped = vec!["crun is not installed".into()];
        section
    }

    #[test]
    fn a_page_says_what_where_and_when() {
        let page = page(&machine(), &[section()]);
        assert!(
            page.contains("A Processor, 2 cores, Linux 6.1.0, 2026-01-02. Peers: bwrap 0.8.0.\n"),
            "{page}"
        );
        assert!(page.contains("- From start to end.\n- Skipped: crun is not installed.\n"), "{page}");
        assert!(page.contains(
            "| what | unit | lockgate | bwrap | ratio | target |\n|---|---:|---:|---:|---:|---:|\n"
        ));
        assert!(page.ends_with("| cold | ms | 4.00 | 16.0 | 0.25 | ≤ 1.00 met |\n"), "{page}");
    }

    #[test]
    fn a_terminal_gets_columns() {
        let text = plain(&section());
        assert!(text.starts_with("  what  unit  lockgate  bwrap  ratio      target\n"), "{text}");
        assert!(text.contains("\n  cold    ms      4.00   16.0   0.25  ≤ 1.00 met\n"), "{text}");
        assert!(text.ends_with("\n  skipped: crun is not installed\n"), "{text}");
    }

    #[test]
    fn a_target_of_one_peer_tells_whose_it_is() {
        let mut section = section();
        section.rows[0].target = Some(Target::Each(&[("bwrap", 0.2), ("sandlock", 0.5)]));
        let text = plain(&section);
        assert!(text.contains("   0.25  0.25 ≤ 0.20 × bwrap missed, ≤ 0.50 × sandlock\n"), "{text}");
    }

    #[test]
    fn raw_samples_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = write_raw(folder.path(), &machine(), &[section()]).unwrap();
        assert!(path.ends_with("benches/raw/2026-01-02T03-04Z.json"));
        let value: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(value["sections"][0]["rows"][0]["series"][0]["samples"], json!([3.0, 5.0, 4.0]));
    }
}
