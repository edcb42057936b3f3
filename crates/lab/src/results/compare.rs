//! Whether new runs are worse than old ones.

use super::summary::Figures;
use super::{Bar, Better, LineRef, Measurement};

/// How a new median lies to the range of the old runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Outside, on the bad side.
    Regression,
    /// Outside, on the good side.
    Improvement,
    /// Within.
    Same,
}

/// One measurement, in old and new runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// What was measured.
    pub name: String,
    /// What the values count, by the new runs.
    pub unit: String,
    /// What they are divided by, if they are ratios.
    pub peer: Option<String>,
    /// The old runs, unless the name is new.
    pub old: Option<Figures>,
    /// The new runs, unless the name is gone.
    pub new: Option<Figures>,
    /// What the new median is; `None` where one side is missing.
    pub verdict: Option<Verdict>,
    /// What is required, by the last new run.
    pub bar: Bar,
}

impl Comparison {
    /// Whether the old median meets what is required and the new one does not.
    pub fn is_requirement_lost(&self) -> bool {
        let met = |figures: &Option<Figures>| self.bar.met(figures.as_ref()?.median());
        met(&self.old) == Some(true) && met(&self.new) == Some(false)
    }
}

/// Compares measurements by name, whatever machine they are of: the old ones
/// in their order, then those that are new.
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
