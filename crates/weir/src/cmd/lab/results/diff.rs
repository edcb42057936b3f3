//! `weir lab results diff`: whether new runs are worse than old ones.

use super::{figure, read_file, unit};
use crate::error::{CliError, harmless, say};
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use weir_lab::results::{Comparison, Figures, LineRef, Measurement, Verdict, compare, summarise};

/// Compare new runs with old ones
///
/// A measurement is a regression if the median of its new runs is worse than every old run: several
/// old runs show how far the values vary by themselves. A requirement is lost if the old median
/// meets the new runs' requirement and the new median does not. Both fail. The requirement says
/// which direction is worse; without one the unit does: costs should be low, rates high.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The file of the old runs
    old: PathBuf,
    /// The file of the new runs
    new: PathBuf,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let (old, new) = (read_file(&args.old)?, read_file(&args.new)?);
    // Old and new runs must have the same unit.
    summarise(&[&old[..], &new[..]].concat()).map_err(CliError::run)?;
    if machines(&old) != machines(&new) {
        say("weir: the old and the new runs are of different machines");
    }
    let all = compare(&old, &new);
    let report = harmless(&report(&all));
    writeln!(std::io::stdout(), "{report}").map_err(CliError::output)?;
    let counts = [
        (count(&all, Verdict::Regression), "regression"),
        (lost(&all), "lost requirement"),
    ];
    let wrong = counts.into_iter().filter(|(count, _)| *count > 0);
    let wrong: Vec<String> = wrong
        .map(|(count, what)| format::counted(count, what))
        .collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(CliError::run(format!(
            "{}, see the report",
            wrong.join(" and ")
        )))
    }
}

fn lost(all: &[Comparison]) -> u64 {
    all.iter().filter(|one| one.is_requirement_lost()).count() as u64
}

fn machines(all: &[(LineRef, Measurement)]) -> BTreeSet<String> {
    let platforms = all.iter().map(|(_, one)| one.machine.platform.to_string());
    platforms.collect()
}

fn count(all: &[Comparison], verdict: Verdict) -> u64 {
    let same = |one: &&Comparison| one.verdict == Some(verdict);
    all.iter().filter(same).count() as u64
}

fn report(all: &[Comparison]) -> String {
    let columns = [
        Left("measurement"),
        Right("old, least"),
        Right("most"),
        Right("runs"),
        Right("new, median"),
        Right("runs"),
        Left("unit"),
        Left(""),
    ];
    let both = all.iter().filter_map(|one| {
        let (old, new, verdict) = (one.old.as_ref()?, one.new.as_ref()?, one.verdict?);
        Some(vec![
            one.name.clone(),
            figure(old.min()),
            figure(old.max()),
            old.runs().to_string(),
            figure(new.median()),
            new.runs().to_string(),
            unit(&one.unit, one.peer.as_deref()),
            match (one.is_requirement_lost(), verdict) {
                (true, _) => "REQUIREMENT LOST",
                (_, Verdict::Regression) => "REGRESSION",
                (_, Verdict::Improvement) => "better",
                (_, Verdict::Same) => "",
            }
            .to_owned(),
        ])
    });
    let both: Vec<_> = both.collect();
    let sum = format!(
        "{}, {} better, {} within the old range",
        format::counted(count(all, Verdict::Regression), "regression"),
        count(all, Verdict::Improvement),
        count(all, Verdict::Same),
    );
    let mut parts = vec![format::table(&columns, both), sum];
    parts.extend(only("Only in the old file:", all, |one| {
        (&one.old, &one.new)
    }));
    parts.extend(only("Only in the new file:", all, |one| {
        (&one.new, &one.old)
    }));
    parts.join("\n\n")
}

/// The names in the first of two files that are missing in the second.
fn only(
    title: &str,
    all: &[Comparison],
    files: fn(&Comparison) -> (&Option<Figures>, &Option<Figures>),
) -> Option<String> {
    let names = all.iter().filter(|one| {
        let (here, there) = files(one);
        here.is_some() && there.is_none()
    });
    let names: String = names.map(|one| format!("\n  {}", one.name)).collect();
    (!names.is_empty()).then(|| format!("{title}{names}"))
}
