//! `mediator.toml`.

use crate::config::{self, Wrong};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use toml::Spanned;
use weir_ledger::Format;
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
    pub(super) counters: Vec<Counter>,
    pub(super) outputs: Vec<Output>,
}

/// A counter, by its spool on this machine.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) spool: PathBuf,
}

/// An output: files in a folder.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) name: String,
    pub(super) format: Format,
    pub(super) folder: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    store: Option<PathBuf>,
    interval: Option<Spanned<String>>,
    keep: Option<Spanned<String>>,
    #[serde(default)]
    counter: Vec<Spanned<CounterTable>>,
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
struct OutputTable {
    name: Spanned<String>,
    format: Spanned<String>,
    folder: Spanned<PathBuf>,
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
    if file.counter.is_empty() {
        return Err(Wrong::in_all(
            "no counter is in it: add [[counter]] with spool = \"FILE\"",
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
        let OutputTable {
            name,
            format,
            folder,
        } = output.get_ref();
        check_name(text, name)?;
        if !names.insert(name.get_ref()) {
            let why = format!(
                "an output of the name `{}` is there already",
                name.get_ref()
            );
            return Err(Wrong::at(text, name.span().start, why));
        }
        outputs.push(Output {
            name: name.get_ref().clone(),
            format: output_format(text, format)?,
            folder: check_path(text, "folder", folder)?,
        });
    }
    let counters = file.counter.into_iter().map(|counter| Counter {
        spool: counter.into_inner().spool.into_inner(),
    });
    Ok(Config {
        store: file.store,
        interval: interval.transpose()?.unwrap_or(INTERVAL),
        keep: keep.transpose()?,
        counters: counters.collect(),
        outputs,
    })
}

fn check_name(text: &str, name: &Spanned<String>) -> Result<(), Wrong> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let given = name.get_ref();
    if given.is_empty()
        || given.len() > NAME_LEN_MAX
        || given.starts_with('.')
        || !given.chars().all(plain)
    {
        let why = format!(
            "`{given}` is no name of an output: give 1 to {NAME_LEN_MAX} letters, digits, `.`, `_` \
             or `-`, the first no `.`"
        );
        return Err(Wrong::at(text, name.span().start, why));
    }
    Ok(())
}

fn output_format(text: &str, format: &Spanned<String>) -> Result<Format, Wrong> {
    match &**format.get_ref() {
        "csv" => Ok(Format::Csv),
        "json-lines" => Ok(Format::JsonLines),
        other => {
            let why = format!("there is no format `{other}`: give csv or json-lines");
            Err(Wrong::at(text, format.span().start, why))
        }
    }
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
                "csv or json-lines",
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
