//! The samples of each subject, their quantiles, and the comparison of subjects.
//!
//! It knows no unit and starts nothing.

use anyhow::Result;
use serde::Serialize;

/// Whether more or less is better.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Better {
    Less,
    More,
}

/// A subject's part in a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// The product.
    Ours,
    /// What a user would pick instead. The ratio is to the best of these.
    Peer,
    /// For scale only, such as the bare cost of starting a program.
    Reference,
}

/// The samples of one subject, in the order they were taken.
#[derive(Clone, Serialize)]
pub(crate) struct Series {
    pub(crate) subject: String,
    pub(crate) role: Role,
    pub(crate) samples: Vec<f64>,
}

impl Series {
    pub(crate) fn new(subject: &str, role: Role) -> Self {
        Self { subject: subject.to_owned(), role, samples: Vec::new() }
    }

    /// Returns the sample below which this part of all lies, or nothing if there is none.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index below the length"
        )]
        let at = (last as f64 * part).round() as usize;
        sorted.get(at).copied()
    }
}

/// Takes samples of each subject, by index. The order rotates with each round, so no subject always follows the same one.
pub(crate) fn in_turns(
    mut series: Vec<Series>,
    rounds: usize,
    sample: impl Fn(usize) -> Result<f64>,
) -> Result<Vec<Series>> {
    for round in 0..rounds {
        for turn in 0..series.len() {
            let index = (round + turn) % series.len();
            series[index].samples.push(sample(index)?);
        }
    }
    Ok(series)
}

/// What the product must reach.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    /// A ratio to the best peer.
    Best(f64),
    /// A ratio to each of these subjects.
    Each(&'static [(&'static str, f64)]),
    /// A figure in the unit of the row.
    Figure(f64),
}

/// What a target compares the product with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    /// The best peer.
    Best,
    /// The subject of this name.
    Subject(&'static str),
    /// Nobody: the figure counts.
    Nobody,
}

/// The result of one target.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) against: Against,
    pub(crate) target: f64,
    /// The ratio or figure that was measured and whether it suffices, or none without that subject.
    pub(crate) outcome: Option<(f64, bool)>,
}

/// One line of a table: one measurement of several subjects.
#[derive(Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    /// The quantile the table shows; 0.5 is the median.
    pub(crate) part: f64,
    pub(crate) target: Option<Target>,
    pub(crate) series: Vec<Series>,
}

impl Row {
    /// Returns the product's figure divided by the best peer's.
    pub(crate) fn ratio(&self) -> Option<f64> {
        Some(self.ours()? / self.best_of(|one| one.role == Role::Peer)?)
    }

    fn ours(&self) -> Option<f64> {
        self.best_of(|one| one.role == Role::Ours)
    }

    /// Returns the best figure of some subjects.
    fn best_of(&self, is_meant: impl Fn(&Series) -> bool) -> Option<f64> {
        let meant = self.series.iter().filter(|one| is_meant(one));
        let figures = meant.filter_map(|one| one.quantile(self.part)).filter(|figure| *figure > 0.0);
        match self.better {
            Better::Less => figures.reduce(f64::min),
            Better::More => figures.reduce(f64::max),
        }
    }

    fn ratio_to(&self, name: &str) -> Option<f64> {
        Some(self.ours()? / self.best_of(|one| one.subject == name)?)
    }

    /// Returns each target with its result.
    pub(crate) fn verdicts(&self) -> Vec<Verdict> {
        let verdict = |against, target: f64| {
            let measured = match against {
                Against::Best => self.ratio(),
                Against::Subject(name) => self.ratio_to(name),
                Against::Nobody => self.ours(),
            };
            let outcome = measured.map(|measured| match self.better {
                Better::Less => (measured, measured <= target),
                Better::More => (measured, measured >= target),
            });
            Verdict { against, target, outcome }
        };
        match self.target {
            None => Vec::new(),
            Some(Target::Best(target)) => vec![verdict(Against::Best, target)],
            Some(Target::Each(all)) => {
                all.iter().map(|(name, target)| verdict(Against::Subject(name), *target)).collect()
            }
            Some(Target::Figure(target)) => vec![verdict(Against::Nobody, target)],
        }
    }

    /// Returns a row with the same samples, another quantile and no target.
    pub(crate) fn at(&self, part: f64, what: &str) -> Self {
        Self { what: what.to_owned(), part, target: None, ..self.clone() }
    }
}

/// Rows that belong together, and a description of what they measure.
#[derive(Clone, Serialize)]
pub(crate) struct Section {
    pub(crate) title: &'static str,
    /// What is measured and how, in a sentence or two each.
    pub(crate) about: Vec<String>,
    pub(crate) rows: Vec<Row>,
    /// What could not be measured, by name.
    pub(crate) skipped: Vec<String>,
}

impl Section {
    pub(crate) fn new(title: &'static str) -> Self {
        Self { title, about: Vec::new(), rows: Vec::new(), skipped: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(better: Better, figures: &[(Role, &[f64])]) -> Row {
        let series = figures
            .iter()
            .map(|(role, samples)| Series { samples: samples.to_vec(), ..Series::new("it", *role) });
        Row {
            what: String::new(),
            unit: "ms",
            better,
            part: 0.5,
            target: Some(Target::Best(1.0)),
            series: series.collect(),
        }
    }

    #[test]
    fn the_ratio_is_to_the_best_peer_and_to_no_reference() {
        let figures: [(Role, &[f64]); 4] = [
            (Role::Ours, &[3.0, 1.0, 2.0]),
            (Role::Peer, &[4.0]),
            (Role::Peer, &[8.0]),
            (Role::Reference, &[0.1, 100.0]),
        ];
        assert_eq!(row(Better::Less, &figures).ratio(), Some(0.5));
        assert_eq!(row(Better::More, &figures).ratio(), Some(0.25));
        let outcome = |better| row(better, &figures).verdicts().pop().and_then(|one| one.outcome);
        assert_eq!(outcome(Better::Less), Some((0.5, true)));
        assert_eq!(outcome(Better::More), Some((0.25, false)));
    }

    #[test]
    fn a_peer_has_a_target_of_its_own() {
        let named = |name: &str, role, figure| Series { samples: vec![figure], ..Series::new(name, role) };
        let series =
            [named("ours", Role::Ours, 3.0), named("a", Role::Peer, 4.0), named("b", Role::Peer, 2.0)];
        let target = Some(Target::Each(&[("a", 0.8), ("b", 0.8), ("absent", 0.8)]));
        let row = Row { target, series: series.to_vec(), ..row(Better::Less, &[]) };
        let outcomes: Vec<_> = row.verdicts().into_iter().map(|one| one.outcome).collect();
        assert_eq!(outcomes, [Some((0.75, true)), Some((1.5, false)), None]);
        assert_eq!(row.ratio(), Some(1.5));
    }

    #[test]
    fn a_figure_counts_without_a_peer() {
        let outcome = |target| {
            let series = vec![Series { samples: vec![3.0], ..Series::new("ours", Role::Ours) }];
            let row = Row { target: Some(Target::Figure(target)), series, ..row(Better::Less, &[]) };
            row.verdicts().pop().and_then(|one| one.outcome)
        };
        assert_eq!([outcome(4.0), outcome(2.0)], [Some((3.0, true)), Some((3.0, false))]);
    }

    #[test]
    fn the_order_turns_with_each_round() {
        let asked = std::cell::RefCell::new(Vec::new());
        let both = vec![Series::new("a", Role::Ours), Series::new("b", Role::Peer)];
        let sample = |index| {
            asked.borrow_mut().push(index);
            Ok(0.0)
        };
        assert!(in_turns(both, 2, sample).is_ok_and(|all| all.iter().all(|one| one.samples.len() == 2)));
        assert_eq!(asked.into_inner(), [0, 1, 1, 0]);
    }

    #[test]
    fn without_a_peer_there_is_no_ratio() {
        assert_eq!(row(Better::Less, &[(Role::Ours, &[1.0]), (Role::Peer, &[])]).ratio(), None);
        assert_eq!(Series::new("it", Role::Ours).quantile(0.5), None);
    }
}
