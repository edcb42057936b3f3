//! `mediator.toml`.

mod outputs;

use crate::config::{self, Wrong};
use outputs::OutputTable;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use toml::Spanned;
use weir_ledger::{Output, Point, Role};
use weir_meter::config::duration_ns;

/// A mediator as its file describes it.
#[derive(Debug)]
pub(super) struct Config {
    /// The ledger; without it, where commands look by default.
    pub(super) store: Option<PathBuf>,
    /// Between two looks at the counters' spools.
    pub(super) interval: Duration,
    /// How long records are kept; none for ever.
    pub(super) keep: Option<Duration>,
    /// The NATS server whose chunks are taken.
    pub(super) nats: Option<String>,
    pub(super) counters: Vec<Counter>,
    pub(super) points: Vec<Point>,
    pub(super) outputs: Vec<Output>,
}

/// A counter, by its spool on this machine.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) spool: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    store: Option<PathBuf>,
    interval: Option<Spanned<String>>,
    keep: Option<Spanned<String>>,
    nats: Option<Spanned<String>>,
    #[serde(default)]
    counter: Vec<Spanned<CounterTable>>,
    #[serde(default)]
    point: Vec<Spanned<PointTable>>,
    #[serde(default)]
    output: Vec<Spanned<OutputTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CounterTable {
    spool: Spanned<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PointTable {
    name: Spanned<String>,
    charge: Option<Spanned<String>>,
    #[serde(default)]
    sum: Vec<Spanned<String>>,
    #[serde(default)]
    audit: Vec<Spanned<String>>,
}

/// Between two looks, if the file does not say.
const INTERVAL: Duration = Duration::from_secs(1);
/// Shortest and longest `interval`, and `keep`.
const INTERVALS: [Duration; 2] = [Duration::from_millis(1), Duration::from_hours(1)];
const KEEPS: [Duration; 2] = [Duration::from_hours(1), Duration::from_hours(24 * 36_525)];
/// Names of outputs are parts of file names.
const NAME_LEN_MAX: usize = 64;

/// Reads the text of a `mediator.toml`.
pub(super) fn parse(text: &str) -> Result<Config, Wrong> {
    let file: File = config::parse(text)?;
    let interval = file.interval.map(|given| duration(text, &given, INTERVALS));
    let keep = file.keep.map(|given| duration(text, &given, KEEPS));
    if let Some(nats) = &file.nats {
        weir_ledger::check_nats_url(nats.get_ref())
            .map_err(|why| Wrong::at(text, nats.span().start, why))?;
    } else if file.counter.is_empty() {
        return Err(Wrong::in_all(
            "no counter is in it: add [[counter]] with spool = \"FILE\", or nats = \"nats://HOST\"",
        ));
    }
    let mut spools = BTreeSet::new();
    for counter in &file.counter {
        let spool = check_path(text, "spool", &counter.get_ref().spool)?;
        if !spools.insert(spool.clone()) {
            let why = format!("the spool {} is given twice", spool.display());
            return Err(Wrong::at(text, counter.span().start, why));
        }
    }
    let mut names = BTreeSet::new();
    let mut outputs = Vec::new();
    for output in &file.output {
        let output = outputs::read(text, output)?;
        if !names.insert(output.1.name.clone()) {
            let why = format!("an output of the name `{}` is there already", output.1.name);
            return Err(Wrong::at(text, output.0, why));
        }
        outputs.push(output.1);
    }
    let points = points(text, &file.point)?;
    let counters = file.counter.into_iter().map(|counter| Counter {
        spool: counter.into_inner().spool.into_inner(),
    });
    Ok(Config {
        store: file.store,
        interval: interval.transpose()?.unwrap_or(INTERVAL),
        keep: keep.transpose()?,
        nats: file.nats.map(Spanned::into_inner),
        counters: counters.collect(),
        points,
        outputs,
    })
}

/// The points, and their counters' roles.
fn points(text: &str, tables: &[Spanned<PointTable>]) -> Result<Vec<Point>, Wrong> {
    let (mut names, mut counters) = (BTreeSet::new(), BTreeSet::new());
    let mut points = Vec::new();
    for table in tables {
        let at = |why: &str| Err(Wrong::at(text, table.span().start, why));
        let PointTable {
            name,
            charge,
            sum,
            audit,
        } = table.get_ref();
        check_name(text, "point", name)?;
        if !names.insert(name.get_ref()) {
            let why = format!("a point of the name `{}` is there already", name.get_ref());
            return Err(Wrong::at(text, name.span().start, why));
        }
        match (charge, sum.len()) {
            (None, 0) => {
                return at(
                    "which counters are charged? give `charge`, the name of one, or `sum`, \
                           those of several in parallel",
                );
            }
            (Some(_), 1..) => {
                return at(
                    "`charge` and `sum` exclude each other: one counter is charged, or \
                           several in parallel are",
                );
            }
            _ => {}
        }
        let charged = charge.iter().map(|counter| (counter, Role::Charge));
        let summed = sum.iter().map(|counter| (counter, Role::Sum));
        let audited = audit.iter().map(|counter| (counter, Role::Audit));
        let mut of_point = Vec::new();
        for (counter, role) in charged.chain(summed).chain(audited) {
            check_name(text, "counter", counter)?;
            if !counters.insert(counter.get_ref()) {
                let why = format!(
                    "counter `{}` has a role already: it has one, at one point",
                    counter.get_ref()
                );
                return Err(Wrong::at(text, counter.span().start, why));
            }
            of_point.push((counter.get_ref().clone(), role));
        }
        // As the ledger has them.
        of_point.sort();
        points.push(Point {
            name: name.get_ref().clone(),
            counters: of_point,
        });
    }
    points.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(points)
}

/// Rejects what is no name of an output, a point or a counter.
fn check_name(text: &str, of: &str, name: &Spanned<String>) -> Result<(), Wrong> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let given = name.get_ref();
    if given.is_empty()
        || given.len() > NAME_LEN_MAX
        || given.starts_with('.')
        || !given.chars().all(plain)
    {
        let why = format!(
            "`{given}` is no name of an {of}: give 1 to {NAME_LEN_MAX} letters, digits, `.`, `_` \
             or `-`, the first no `.`"
        );
        let why = if of == "output" {
            why
        } else {
            why.replace(" an ", " a ")
        };
        return Err(Wrong::at(text, name.span().start, why));
    }
    Ok(())
}

/// A length of time within limits, written as in `counter.toml`.
fn duration(text: &str, given: &Spanned<String>, limits: [Duration; 2]) -> Result<Duration, Wrong> {
    let wrong = |why: String| {
        let why = format!("`{}` is no length of time here: {why}", given.get_ref());
        Wrong::at(text, given.span().start, why)
    };
    let length = duration_ns(given.get_ref()).map_err(wrong)?;
    let length = Duration::from_nanos(length);
    if length < limits[0] || length > limits[1] {
        let [least, most] = limits.map(|limit| limit.as_secs_f64());
        return Err(wrong(format!("from {least} s to {most} s")));
    }
    Ok(length)
}

/// Rejects a path that names nothing.
fn check_path(text: &str, key: &str, path: &Spanned<PathBuf>) -> Result<PathBuf, Wrong> {
    if path.get_ref().as_os_str().is_empty() {
        let why = format!("{key} is empty: name a file or a folder");
        return Err(Wrong::at(text, path.span().start, why));
    }
    Ok(path.get_ref().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_counters_and_outputs() {
        let text = "interval = '2s'\nkeep = '400d'\n[[counter]]\nspool = 'a'\n[[output]]\nname = 'b'\n\
                    format = 'csv'\nfolder = 'out'\n";
        let config = parse(text).unwrap();
        assert_eq!(config.interval, Duration::from_secs(2));
        assert_eq!(config.keep, Some(Duration::from_secs(400 * 86_400)));
        assert_eq!((config.counters.len(), config.outputs.len()), (1, 1));
    }

    #[test]
    fn a_mistake_has_its_place_and_a_remedy() {
        let counter = "[[counter]]\nspool = 'a'\n";
        let output = |keys: &str| format!("{counter}[[output]]\nname = 'x'\n{keys}");
        for (text, place, why) in [
            (String::new(), "m.toml: ", "add [[counter]]"),
            (format!("{counter}{counter}"), "m.toml:3:1: ", "given twice"),
            (
                format!("interval = '0s'\n{counter}"),
                "m.toml:1:12: ",
                "no length of time",
            ),
            (
                format!("keep = 'ever'\n{counter}"),
                "m.toml:1:8: ",
                "ms, s, m, h or d",
            ),
            (
                format!("keep = '1ms'\n{counter}"),
                "m.toml:1:8: ",
                "from 3600 s",
            ),
            (
                "[[counter]]\nspool = ''\n".to_owned(),
                "m.toml:2:9: ",
                "spool is empty",
            ),
            (
                format!("{counter}[[output]]\nname = '../x'\nformat = 'csv'\nfolder = '.'\n"),
                "m.toml:4:8: ",
                "no name of an output",
            ),
            (
                format!("{counter}[[output]]\nname = 'x'\nformat = 'xml'\nfolder = '.'\n"),
                "m.toml:5:10: ",
                "give csv, json-lines,",
            ),
            (
                format!("nats = 'http://a'\n{counter}"),
                "m.toml:1:8: ",
                "give nats://HOST:PORT",
            ),
            (
                format!("{counter}[[point]]\nname = 'p'\naudit = ['a']\n"),
                "m.toml:3:1: ",
                "which counters are charged?",
            ),
            (
                format!("{counter}[[point]]\nname = 'p'\ncharge = 'a'\nsum = ['b', 'c']\n"),
                "m.toml:3:1: ",
                "exclude each other",
            ),
            (
                format!("{counter}[[point]]\nname = 'p'\ncharge = 'a'\naudit = ['b', 'a']\n"),
                "m.toml:6:15: ",
                "`a` has a role already",
            ),
            (
                output("format = 'csv'\n"),
                "m.toml:3:1: ",
                "where do its files go? give `folder`",
            ),
            #[cfg(feature = "postgres")]
            (
                output("format = 'postgresql'\nconnection = 'host=db sslmode=allow'\n"),
                "m.toml:6:14: ",
                "there is no `sslmode=allow`",
            ),
            (
                output("format = 'csv'\nfolder = '.'\ntable = 'x'\n"),
                "m.toml:7:9: ",
                "`table` means nothing",
            ),
            (
                output("format = 'ipfix'\nfolder = '.'\ncollector = 'x:1'\n"),
                "m.toml:7:13: ",
                "`folder` or `collector`, not both",
            ),
            (
                output("format = 'csv'\nfolder = '.'\nby = ['port']\n"),
                "m.toml:7:7: ",
                "subscriber, session, service or direction",
            ),
            (
                output("format = 'csv'\nfolder = '.'\nspan = 'week'\n"),
                "m.toml:7:8: ",
                "hour, day or month",
            ),
            (
                output("format = 'csv'\nfolder = '.'\nspan = 'day'\nzone = 'Mars'\n"),
                "m.toml:8:8: ",
                "no time zone",
            ),
            (
                output("format = 'csv'\nfolder = '.'\nfilter = { owners = ['me'] }\n"),
                "m.toml:7:",
                "session, unattributed or overflow",
            ),
            (
                format!("{counter}stor = 'x'\n"),
                "m.toml:3:1: ",
                "unknown field `stor`",
            ),
        ] {
            let said = parse(&text).unwrap_err().of("m.toml");
            assert!(said.starts_with(place) && said.contains(why), "{said}");
        }
    }
}
