//! Measurements of one name, over several runs.

use super::{Bar, Better, Commit, LineRef, Measurement, Platform};
use std::collections::BTreeSet;
use thiserror::Error;

/// What a value was in several runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// All values, the smallest first; there is one at least.
    sorted: Vec<f64>,
}

impl Figures {
    /// Of these values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Figures> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        (!sorted.is_empty()).then_some(Figures { sorted })
    }

    /// The middle one, or the mean of both in the middle.
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

    /// How many runs there are.
    pub fn runs(&self) -> usize {
        self.sorted.len()
    }

    /// How many runs meet a requirement.
    pub fn meeting(&self, bar: Bar) -> usize {
        let met = |value: &&f64| bar.met(**value) == Some(true);
        self.sorted.iter().filter(met).count()
    }
}

/// All runs of one measurement on one machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Summary {
    /// What was measured.
    pub name: String,
    /// What the values count.
    pub unit: String,
    /// What they are divided by, if they are ratios.
    pub peer: Option<String>,
    /// Which values are better.
    pub better: Better,
    /// What is required, by the last run.
    pub bar: Bar,
    /// The values.
    pub figures: Figures,
    /// The bench, by the last run.
    pub bench: String,
    /// The command that measures it, by the last run.
    pub command: String,
    /// The machine.
    pub platform: Platform,
    /// The load averages at the start of the runs: least and most.
    pub load: (f64, f64),
    /// The commits that were measured.
    pub commits: BTreeSet<Commit>,
    /// When the first and the last run began.
    pub times: (String, String),
}

impl Summary {
    /// Whether the median meets what is required; `None` if nothing is.
    pub fn met(&self) -> Option<bool> {
        self.bar.met(self.figures.median())
    }
}

/// Why measurements do not go together.
#[derive(Debug, Error)]
#[error("{place}: `{name}` is in {unit}, but in {other}")]
pub struct SummaryError {
    name: String,
    place: LineRef,
    unit: String,
    /// The first unit, and where it is.
    other: String,
}

/// Brings runs together: one summary for each name and machine, in the order
/// in which they are first met.
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

/// A unit and its peer.
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
