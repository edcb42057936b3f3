//! Compares new runs with old ones.

use super::summary::Figures;
use super::{Bar, Better, LineRef, Measurement};

/// The new median compared with the range of the old runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Outside the range, on the worse side.
    Regression,
    /// Outside the range, on the better side.
    Improvement,
    /// Inside the range.
    Same,
}

/// One measurement in old and new runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// The measurement's name.
    pub name: String,
    /// The unit, by the new runs.
    pub unit: String,
    /// The peer of a ratio.
    pub peer: Option<String>,
    /// The old runs; `None` for a new name.
    pub old: Option<Figures>,
    /// The new runs; `None` for a removed name.
    pub new: Option<Figures>,
    /// The comparison; `None` if one side is missing.
    pub verdict: Option<Verdict>,
    /// The requirement, by the last new run.
    pub bar: Bar,
}

impl Comparison {
    /// Whether the old median meets the requirement and the new one does not.
    pub fn is_requirement_lost(&self) -> bool {
        let met = |figures: &Option<Figures>| self.bar.met(figures.as_ref()?.median());
        met(&self.old) == Some(true) && met(&self.new) == Some(false)
    }
}

/// Compares measurements by name, whatever their machine: old names in their
/// order, then new names.
pub fn compare(old: &[(LineRef, Measurement)], new: &[(LineRef, Measurement)]) -> Vec<Comparison> {
    let mut seen = std::collections::HashSet::new();
    let all = old.iter().chain(new).map(|(_, one)| one);
    let names = all
        .filter(|one| seen.insert(&one.name))
        .map(|one| &one.name);
    names
        .filter_map(|name| comparison(name, old, new))
        .collect()
}

fn comparison(
    name: &str,
    old: &[(LineRef, Measurement)],
    new: &[(LineRef, Measurement)],
) -> Option<Comparison> {
    fn of<'m>(
        all: &'m [(LineRef, Measurement)],
        name: &str,
    ) -> (Option<Figures>, Option<&'m Measurement>) {
        let runs: Vec<_> = all
            .iter()
            .map(|(_, one)| one)
            .filter(|one| one.name == name)
            .collect();
        (
            Figures::of(runs.iter().map(|one| one.value)),
            runs.last().copied(),
        )
    }
    let ((old, before), (new, after)) = (of(old, name), of(new, name));
    let last = after.or(before)?;
    let both = old.as_ref().zip(new.as_ref());
    Some(Comparison {
        name: name.to_owned(),
        unit: last.unit.clone(),
        peer: last.peer.clone(),
        verdict: both.map(|(old, new)| verdict(old, new.median(), last.better)),
        bar: last.bar,
        old,
        new,
    })
}

fn verdict(old: &Figures, new: f64, better: Better) -> Verdict {
    match (new < old.min(), new > old.max(), better) {
        (false, false, _) => Verdict::Same,
        (true, _, Better::Less) | (_, true, Better::More) => Verdict::Improvement,
        _ => Verdict::Regression,
    }
}
