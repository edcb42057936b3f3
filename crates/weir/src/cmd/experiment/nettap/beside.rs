//! Figure 7: the same on another machine, from the JSON that it printed.

use super::{ALL, Row, listed};
use crate::error::CliError;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use crate::report::plot::Curve;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes of such a file, at most.
const FILE_LEN_MAX: u64 = 1 << 20;

/// The other machine's measurements.
#[derive(Deserialize, Debug)]
pub(in crate::cmd::experiment) struct Beside {
    rows: Vec<OtherRow>,
}

#[derive(Deserialize, Debug)]
struct OtherRow {
    name: String,
    points: Vec<OtherPoint>,
}

#[derive(Deserialize, Debug)]
struct OtherPoint {
    size: usize,
    frames_per_second: Option<f64>,
}

/// Both machines, at one size of frames.
#[derive(Serialize, Debug)]
pub(super) struct Comparison {
    /// Bytes of a frame.
    size: usize,
    rows: Vec<Compared>,
    /// Pairs of which one is faster here, the other one there, by more than a tenth each.
    reversed: Vec<[&'static str; 2]>,
}

#[derive(Serialize, Debug)]
struct Compared {
    name: &'static str,
    here: f64,
    there: f64,
}

impl Beside {
    /// Reads the file; it must have rates of frames of one of these sizes.
    pub(in crate::cmd::experiment) fn read(
        path: &Path,
        sizes: &[usize],
    ) -> Result<Beside, CliError> {
        let name = path.display();
        let mut text = String::new();
        let read =
            File::open(path).and_then(|file| file.take(FILE_LEN_MAX + 1).read_to_string(&mut text));
        read.map_err(|error| CliError::refused(format!("--beside: cannot read {name}: {error}")))?;
        if text.len() as u64 > FILE_LEN_MAX {
            return Err(CliError::refused(format!(
                "--beside: {name} is longer than {FILE_LEN_MAX} bytes: write what `weir experiment \
                 nettap --json` prints on the other machine"
            )));
        }
        let other: Beside = serde_json::from_str(&text).map_err(|error| {
            CliError::refused(format!(
                "--beside: {name} is not what `weir experiment nettap --json` prints: {error}"
            ))
        })?;
        let has = |size: &usize| ALL.iter().any(|one| other.rate(one.ours, *size).is_some());
        if !sizes.iter().any(has) {
            return Err(CliError::refused(format!(
                "--beside: {name} has no rate of frames of {} bytes: measure on both machines with \
                 the same --sizes",
                listed(sizes)
            )));
        }
        Ok(other)
    }

    fn rate(&self, name: &str, size: usize) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.name == name)?;
        let point = row.points.iter().find(|point| point.size == size)?;
        point.frames_per_second
    }

    /// Compares at the first of these sizes that both machines have rates of.
    pub(super) fn compare(&self, sizes: &[usize], rows: &[Row]) -> Option<Comparison> {
        let compared = |size| -> Vec<Compared> {
            let both = rows.iter().filter_map(|row| {
                Some(Compared {
                    name: row.name,
                    here: row.at(size)?.frames_per_second?,
                    there: self.rate(row.name, size)?,
                })
            });
            both.collect()
        };
        let size = sizes.iter().find(|size| !compared(**size).is_empty())?;
        let rows = compared(*size);
        let reversed = reversed(&rows);
        Some(Comparison {
            size: *size,
            rows,
            reversed,
        })
    }

    pub(super) fn curves(&self) -> Vec<Curve> {
        let curves = self.rows.iter().map(|row| {
            let points = row.points.iter();
            let points =
                points.filter_map(|it| Some((it.size as f64, it.frames_per_second? / 1e3)));
            (row.name.clone(), points.collect())
        });
        curves.collect()
    }
}

fn reversed(rows: &[Compared]) -> Vec<[&'static str; 2]> {
    const CLEAR: f64 = 1.1;
    let mut found = Vec::new();
    for (index, one) in rows.iter().enumerate() {
        for other in &rows[index + 1..] {
            let (here, there) = (one.here / other.here, one.there / other.there);
            if here > CLEAR && there * CLEAR < 1.0 || here * CLEAR < 1.0 && there > CLEAR {
                found.push([one.name, other.name]);
            }
        }
    }
    found
}

impl Comparison {
    pub(super) fn text(&self) -> String {
        let columns = [
            Left(""),
            Right("here, K/s"),
            Right("there, K/s"),
            Right("there : here"),
        ];
        let rows = self.rows.iter().map(|row| {
            vec![
                row.name.to_owned(),
                format!("{:.0}", row.here / 1e3),
                format!("{:.0}", row.there / 1e3),
                format!("{:.2}", row.there / row.here),
            ]
        });
        let order = match self.reversed.as_slice() {
            [] => "The paper: the relative performance is the same on both machines. Here, too."
                .to_owned(),
            pairs => {
                let pairs: Vec<String> = pairs.iter().map(|pair| pair.join(" and ")).collect();
                format!(
                    "The paper: the relative performance is the same on both machines. Not here: \
                     {} change places.",
                    pairs.join("; ")
                )
            }
        };
        format!(
            "Figure 7: the other machine, {} bytes\n\n{}\n\n{order}",
            self.size,
            format::table(&columns, rows)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::Point;
    use super::*;

    /// Our rows with one rate, of one size.
    fn rows(rates: &[(usize, f64)], size: usize) -> Vec<Row> {
        let row = |&(index, rate): &(usize, f64)| {
            let point = Point {
                size,
                frames_per_second: Some(rate),
                latency_us: None,
                faults: Vec::new(),
            };
            Row::of(&ALL[index], vec![point])
        };
        rates.iter().map(row).collect()
    }

    /// The other machine's rows.
    fn other(rows: &[Row]) -> Beside {
        let text = serde_json::json!({ "rows": rows }).to_string();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn two_machines_stand_side_by_side() {
        let here = rows(&[(0, 900_000.0), (4, 300_000.0), (5, 200_000.0)], 64);
        let there = other(&rows(&[(0, 450_000.0), (5, 600_000.0)], 64));
        let comparison = there.compare(&[128, 64], &here).unwrap();
        assert_eq!(comparison.size, 64);
        let text = comparison.text();
        let line = |begins: &str| {
            let line = text.lines().find(|line| line.starts_with(begins));
            let words = line.unwrap_or_else(|| panic!("{begins}: {text}"));
            words.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("weir bridge"), "weir bridge 900 450 0.50");
        assert_eq!(line("libpcap-bridge"), "libpcap-bridge 200 600 3.00");
        assert!(!text.contains("linux-routing"), "{text}");
        let said = "Not here: weir bridge and libpcap-bridge change places.";
        assert!(text.ends_with(said), "{text}");
        let same = other(&here).compare(&[64], &here).unwrap();
        assert!(same.text().ends_with("Here, too."), "{}", same.text());
        assert!(there.compare(&[128], &here).is_none());
    }

    fn compared(name: &'static str, here: f64, there: f64) -> Compared {
        Compared { name, here, there }
    }

    #[test]
    fn only_clear_reversals_count() {
        let rows = [
            compared("a", 100.0, 300.0),
            compared("b", 105.0, 200.0),
            compared("c", 50.0, 400.0),
        ];
        // a and b are alike here.
        assert_eq!(reversed(&rows), [["a", "c"], ["b", "c"]]);
    }

    #[test]
    fn a_file_without_rates_of_these_sizes_is_named() {
        let path = std::env::temp_dir().join(format!("weir-beside-{}", std::process::id()));
        let read = |text: &str, sizes: &[usize]| {
            std::fs::write(&path, text).unwrap();
            let read = Beside::read(&path, sizes).map_err(|error| error.to_string());
            std::fs::remove_file(&path).unwrap();
            read.map(|_| ())
        };
        let error = read("[]", &[64]).unwrap_err();
        assert!(
            error.contains("weir-beside") && error.contains("--json"),
            "{error}"
        );
        let there = serde_json::json!({ "rows": rows(&[(0, 450_000.0)], 64) }).to_string();
        assert_eq!(read(&there, &[64, 512]), Ok(()));
        let error = read(&there, &[128, 512]).unwrap_err();
        assert!(error.contains("128,512 bytes"), "{error}");
        let error = Beside::read(Path::new("/nonexistent"), &[64]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("/nonexistent"), "{error}");
    }
}
