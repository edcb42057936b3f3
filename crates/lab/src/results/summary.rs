//! Summaries of measurements over several runs.

use super::{Bar, Better, Commit, LineRef, Measurement, Platform};
use std::collections::BTreeSet;
use thiserror::Error;

/// The values of one measurement in several runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// All values in ascending order; at least one.
    sorted: Vec<f64>,
}

impl Figures {
    /// From these values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Figures> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        (!sorted.is_empty()).then_some(Figures { sorted })
    }

    /// The median: the middle value, or the mean of the two middle values.
    pub fn median(&self) -> f64 {
        let middle = self.sorted.len() / 2;
        match self.sorted.len() % 2 {
            0 => (self.sorted[middle - 1] + self.sorted[middle]) / 2.0,
            _ => self.sorted[middle],
        }
    }

    /// The smallest.
    pub fn min(&self) -> f64 {
        self.sorted[0]
    }

    /// The largest.
    pub fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.sorted.len()
    }

    /// Number of runs that meet a requirement.
    pub fn meeting(&self, bar: Bar) -> usize {
        let met = |value: &&f64| bar.met(**value) == Some(true);
        self.sorted.iter().filter(met).count()
    }
}

/// All runs of one measurement on one machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Summary {
    /// The measurement's name.
    pub name: String,
    /// The unit.
    pub unit: String,
    /// The peer of a ratio.
    pub peer: Option<String>,
    /// Which values are better.
    pub better: Better,
    /// The requirement, by the last run.
    pub bar: Bar,
    /// The values.
    pub figures: Figures,
    /// The bench, by the last run.
    pub bench: String,
    /// The command that runs the bench, by the last run.
    pub command: String,
    /// The machine.
    pub platform: Platform,
    /// The lowest and highest load average at the start of the runs.
    pub load: (f64, f64),
    /// The commits measured.
    pub commits: BTreeSet<Commit>,
    /// Start times of the first and the last run.
    pub times: (String, String),
}

impl Summary {
    /// Whether the median meets the requirement; `None` without one.
    pub fn met(&self) -> Option<bool> {
        self.bar.met(self.figures.median())
    }
}

/// Why measurements cannot be summarised together.
#[derive(Debug, Error)]
#[error("{place}: `{name}` is in {unit}, but in {other}")]
pub struct SummaryError {
    name: String,
    place: LineRef,
    unit: String,
    /// The first unit, and its position.
    other: String,
}

/// Combines runs: one summary for each name and machine, in the order of their
/// first measurement.
///
/// # Errors
/// If measurements of one name have different units or peers.
pub fn summarise(measurements: &[(LineRef, Measurement)]) -> Result<Vec<Summary>, SummaryError> {
    let mut groups: Vec<Vec<&(LineRef, Measurement)>> = Vec::new();
    let mut known = std::collections::HashMap::new();
    let mut units = std::collections::HashMap::new();
    for item @ (place, one) in measurements {
        let (other, first) = *units.entry(&one.name).or_insert((place, one));
        if (&one.unit, &one.peer) != (&first.unit, &first.peer) {
            return Err(SummaryError {
                name: one.name.clone(),
                place: place.clone(),
                unit: unit(&one.unit, one.peer.as_deref()),
                other: format!("{} at {other}", unit(&first.unit, first.peer.as_deref())),
            });
        }
        let at = *known
            .entry((&one.name, &one.machine.platform))
            .or_insert(groups.len());
        match groups.get_mut(at) {
            Some(group) => group.push(item),
            None => groups.push(vec![item]),
        }
    }
    Ok(groups.iter().filter_map(|group| summary(group)).collect())
}

/// A unit with its peer.
pub(super) fn unit(symbol: &str, peer: Option<&str>) -> String {
    [Some(symbol), peer]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
}

fn summary(runs: &[&(LineRef, Measurement)]) -> Option<Summary> {
    let all = || runs.iter().map(|(_, one)| one);
    let last = all().next_back()?;
    let loads = Figures::of(all().map(|one| one.machine.load))?;
    let times: BTreeSet<&String> = all().map(|one| &one.time).collect();
    Some(Summary {
        name: last.name.clone(),
        unit: last.unit.clone(),
        peer: last.peer.clone(),
        better: last.better,
        bar: last.bar,
        figures: Figures::of(all().map(|one| one.value))?,
        bench: last.bench.clone(),
        command: last.command.clone(),
        platform: last.machine.platform.clone(),
        load: (loads.min(), loads.max()),
        commits: all().filter_map(|one| one.commit.clone()).collect(),
        times: (times.first()?.to_string(), times.last()?.to_string()),
    })
}
