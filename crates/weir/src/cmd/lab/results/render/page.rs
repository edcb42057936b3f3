//! The page docs/reference/results.md: a chapter for each machine, in which
//! missed requirements come first.

use super::{Section, Summary};

const HEAD: &str = "\
# Results

<!-- Generated: weir lab results render --format page -->

What the project's benches have measured, beside what is required of them. The
data are the files in `docs/results/`; of each measurement on each machine the
runs of the newest measured commit count. [Benchmarks](../contributing/benchmarks.md)
explains the columns and how to measure again, [Performance](../explanation/performance.md)
what bounds the figures. Ratios are to the named peer in the same run.
";

/// The parts of a chapter: heading, and whether its rows meet their
/// requirements.
const PARTS: [(&str, Option<bool>); 3] = [
    ("Missed requirements", Some(false)),
    ("Met requirements", Some(true)),
    ("Without a requirement", None),
];

/// The whole page.
pub(super) fn written(rows: &[Summary]) -> String {
    let chapters = if rows.is_empty() {
        "No results are recorded.".to_owned()
    } else {
        super::written(rows, "\n\n", chapter)
    };
    format!("{HEAD}\n{chapters}")
}

fn chapter(section: &Section<'_>) -> String {
    let mut out = format!(
        "## {}\n\nMeasured at {}.\n",
        section.machine(),
        section.origin()
    );
    for (heading, met) in PARTS {
        let rows = section.rows.iter().copied();
        let rows: Vec<&Summary> = rows.filter(|row| row.met() == met).collect();
        if !rows.is_empty() {
            out += &format!("\n### {heading}\n\n{}", section.table(&rows));
        }
    }
    format!("{out}\n### Commands\n\n{}", section.list_of_commands())
}
