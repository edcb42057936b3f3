//! How the figures agree with an earlier run's ranges.

use super::merge::{are_alike, ranges};
use super::page::rounded;
use super::{Outcome, PARTS, Part, part_name, stored};
use crate::error::CliError;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use serde_json::Value;
use std::path::Path;

/// The parts' JSON in the folder of an earlier run.
pub(super) struct Earlier(Vec<(&'static Part, Value)>);

/// How a part agrees with an earlier run.
pub(super) struct Compared {
    pub(super) part: &'static Part,
    pub(super) agreement: Agreement,
}

impl Earlier {
    pub(super) fn read(folder: &Path) -> Result<Earlier, CliError> {
        let mut found = Vec::new();
        for part in &PARTS {
            let there = stored(&folder.join(part_name(part)));
            let there = there.map_err(|why| CliError::refused(format!("--against: {why}")))?;
            found.extend(there.map(|json| (part, json)));
        }
        if found.is_empty() {
            return Err(CliError::refused(format!(
                "--against {}: there is no result: give the folder of an earlier `weir experiment \
                 all`",
                folder.display()
            )));
        }
        Ok(Earlier(found))
    }

    /// The parts of this run that the earlier folder lacks.
    pub(super) fn lacking(&self, here: &[Outcome]) -> Vec<&'static str> {
        let here = here.iter().filter(|outcome| outcome.result.is_ok());
        let missing = here.filter(|outcome| self.0.iter().all(|(part, _)| part != &outcome.part));
        missing.map(|outcome| outcome.part.name).collect()
    }

    /// The parts that both have; one that is computed has no figure with a range.
    pub(super) fn compare(&self, here: &[Outcome]) -> Vec<Compared> {
        let all = self.0.iter().filter_map(|(part, there)| {
            let outcome = here.iter().find(|outcome| outcome.part == *part)?;
            Some(Compared {
                part,
                agreement: agreement(outcome.result.as_ref().ok()?, there),
            })
        });
        all.collect()
    }
}

/// How the figures of a run agree with another's ranges.
#[derive(Debug, PartialEq)]
pub(super) struct Agreement {
    /// Figures that both have, with a range there.
    pub(super) figures: usize,
    /// Those outside.
    pub(super) outside: Vec<Outside>,
}

/// A figure outside of the other run's range.
#[derive(Debug, PartialEq)]
pub(super) struct Outside {
    /// Its JSON pointer.
    pub(super) figure: String,
    pub(super) here: f64,
    pub(super) range_there: [f64; 2],
}

/// Compares the figures of a part here with the ranges there.
pub(super) fn agreement(here: &Value, there: &Value) -> Agreement {
    let mut found = Agreement {
        figures: 0,
        outside: Vec::new(),
    };
    for (path, range) in ranges(there) {
        let Some(figure) = same(here, there, path).and_then(Value::as_f64) else {
            continue;
        };
        found.figures += 1;
        if figure < range[0] || figure > range[1] {
            found.outside.push(Outside {
                figure: path.clone(),
                here: figure,
                range_there: range,
            });
        }
    }
    found
}

/// The value of that JSON pointer here, if it is in the same rows as there.
fn same<'a>(here: &'a Value, there: &Value, path: &str) -> Option<&'a Value> {
    let ends = path.match_indices('/').map(|(at, _)| at);
    for end in ends {
        let (here, there) = (here.pointer(&path[..end])?, there.pointer(&path[..end])?);
        if !are_alike(here, there) {
            return None;
        }
    }
    here.pointer(path)
}

impl Outside {
    pub(super) fn text(&self) -> String {
        let [least, most] = self.range_there.map(rounded);
        format!(
            "{}: {}, there {least} to {most}",
            self.figure,
            rounded(self.here)
        )
    }
}

/// A table of all parts, with what is outside.
pub(super) fn text(all: &[Compared]) -> String {
    let columns = [Left("part"), Right("figures"), Right("outside"), Left("")];
    let rows = all.iter().flat_map(|Compared { part, agreement }| {
        let count = [agreement.figures, agreement.outside.len()].map(|count| count.to_string());
        let [figures, outside] = count;
        let head = vec![part.name.to_owned(), figures, outside, String::new()];
        let blank = String::new;
        let named = agreement
            .outside
            .iter()
            .map(move |one| vec![blank(), blank(), blank(), one.text()]);
        std::iter::once(head).chain(named)
    });
    format::table(&columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_outside_of_the_others_ranges_are_named() {
        let there = json!({"rows": [{"now": 2.0}], "ranges": {"/rows/0/now": [0.5, 7.0]}});
        let mut here = there.clone();
        let same = agreement(&here, &there);
        assert_eq!((same.figures, same.outside.len()), (1, 0));
        here["rows"][0]["now"] = json!(8.0);
        let found = agreement(&here, &there);
        let said: Vec<String> = found.outside.iter().map(Outside::text).collect();
        assert_eq!(said, ["/rows/0/now: 8.000, there 0.500 to 7.000"]);
    }

    #[test]
    fn figures_of_other_rows_are_not_compared() {
        let run = |first: &str, now: f64| {
            json!({
                "rows": [{ "by": first, "now": now }],
                "ranges": { "/rows/0/now": [0.5, 7.0] },
            })
        };
        assert_eq!(agreement(&run("OPT", 2.0), &run("OPT", 2.0)).figures, 1);
        assert_eq!(agreement(&run("MUX", 9.0), &run("OPT", 2.0)).figures, 0);
    }
}
