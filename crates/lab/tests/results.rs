//! Results files: reading, summarising, comparing.

use std::path::PathBuf;
use weir_lab::results::{
    Bar, Better, LineRef, Measurement, Verdict, compare, read, recorder, summarise,
};

/// A temporary file.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let name = format!("weir-results-{}-{name}", std::process::id());
        let file = File(std::env::temp_dir().join(name));
        std::fs::write(&file.0, text).unwrap();
        file
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A line as a recorder writes it, with the changes that `change` makes.
fn line(name: &str, value: f64, change: impl FnOnce(&mut Measurement)) -> String {
    let text = format!(
        r#"{{"name":"{name}","value":{value},"unit":"s","better":"less","bar":{{"at_most":8.0}},
        "met":true,"bench":"weir-x y","command":"cargo bench","time":"2026-11-24T03:00:00Z",
        "machine":{{"kernel":"6.18","cpu":"A","cores":2,"memory":1024,"load":0.5}},
        "commit":{{"id":"0123456789abcdef","dirty":true}},"version":"0.1.0"}}"#
    );
    let mut measurement: Measurement = serde_json::from_str(&text).unwrap();
    change(&mut measurement);
    serde_json::to_string(&measurement).unwrap() + "\n"
}

fn runs(name: &str, values: &[f64]) -> String {
    values
        .iter()
        .map(|value| line(name, *value, |_| {}))
        .collect()
}

fn measured(text: &str) -> Vec<(LineRef, Measurement)> {
    let parse = |(text, line): (&str, usize)| {
        let file = "a".into();
        (LineRef { file, line }, serde_json::from_str(text).unwrap())
    };
    text.lines().zip(1..).map(parse).collect()
}

#[test]
fn runs_of_a_name_come_together_for_each_machine() {
    let other = |one: &mut Measurement| {
        one.machine.platform.cpu = "B".into();
        one.bar = Bar::AtMost(9.0);
    };
    let later = |one: &mut Measurement| {
        one.time = "2026-11-25T03:00:00Z".into();
        one.machine.load = 2.0;
        one.commit = None;
    };
    let text = [
        runs("a: a", &[3.0, 9.0]),
        runs("a: b", &[1.0, 2.0]),
        line("a: a", 10.0, other),
        line("a: a", 1.0, later),
    ];
    let all = summarise(&measured(&text.concat())).unwrap();
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["a: a", "a: b", "a: a"]);
    let first = &all[0];
    let figures = &first.figures;
    assert_eq!(
        (
            figures.median(),
            figures.min(),
            figures.max(),
            figures.runs()
        ),
        (3.0, 1.0, 9.0, 3)
    );
    assert_eq!((first.met(), figures.meeting(first.bar)), (Some(true), 2));
    assert_eq!(first.load, (0.5, 2.0));
    assert_eq!(first.times.0, "2026-11-24T03:00:00Z");
    assert_eq!(first.times.1, "2026-11-25T03:00:00Z");
    let commits: Vec<String> = first.commits.iter().map(ToString::to_string).collect();
    assert_eq!(commits, ["0123456789ab (dirty)"]);
    assert_eq!(all[1].figures.median(), 1.5);
    assert_eq!(
        (all[2].platform.cpu.as_str(), all[2].met()),
        ("B", Some(false))
    );
}

#[test]
fn a_name_has_one_unit() {
    let ratio = |one: &mut Measurement| one.peer = Some("x".into());
    let text = runs("a: a", &[1.0]) + &line("a: a", 1.0, ratio);
    let error = summarise(&measured(&text)).unwrap_err().to_string();
    assert_eq!(error, "a:2: `a: a` is in s x, but in s at a:1");
}

#[test]
fn what_is_worse_than_every_old_run_is_a_regression() {
    let more = |one: &mut Measurement| one.better = Better::More;
    let up = |name: &str, values: &[f64]| -> String {
        values
            .iter()
            .map(|value| line(name, *value, more))
            .collect()
    };
    let old = [
        runs("cost: same", &[5.0, 6.0, 7.0]),
        runs("cost: worse", &[5.0, 6.0, 7.0]),
        runs("cost: better", &[5.0, 6.0, 7.0]),
        up("rate: worse", &[5.0, 6.0, 7.0]),
        up("rate: better", &[5.0, 6.0, 7.0]),
        runs("gone", &[1.0]),
    ];
    // One bad run does not change the median.
    let new = [
        runs("cost: same", &[7.0, 90.0, 6.0]),
        runs("new", &[1.0]),
        runs("cost: worse", &[7.1]),
        runs("cost: better", &[4.9]),
        up("rate: worse", &[4.9, 5.0, 4.8]),
        up("rate: better", &[7.1]),
    ];
    let all = compare(&measured(&old.concat()), &measured(&new.concat()));
    let found: Vec<_> = all
        .iter()
        .map(|one| (one.name.as_str(), one.verdict))
        .collect();
    assert_eq!(
        found,
        [
            ("cost: same", Some(Verdict::Same)),
            ("cost: worse", Some(Verdict::Regression)),
            ("cost: better", Some(Verdict::Improvement)),
            ("rate: worse", Some(Verdict::Regression)),
            ("rate: better", Some(Verdict::Improvement)),
            ("gone", None),
            ("new", None),
        ]
    );
    assert!(all[5].new.is_none() && all[6].old.is_none());
}

#[test]
fn a_malformed_line_is_named() {
    let good = runs("a: a", &[1.0]);
    for (name, bad, said) in [
        ("torn", &good[..40], "EOF while parsing"),
        ("text", "no JSON", "expected ident"),
        ("object", "{}", "missing field `name`"),
        (
            "value",
            r#"{"name":"a","value":null}"#,
            "invalid type: null",
        ),
    ] {
        let file = File::new(name, &format!("{good}\n{bad}\n{good}"));
        let error = read(&file.0).unwrap_err().to_string();
        let place = format!("{}:3: not a measurement: ", file.0.display());
        assert!(error.starts_with(&place) && error.contains(said), "{error}");
    }
    let file = File::new("good", &format!("{good}\n{good}"));
    let read_back = read(&file.0).unwrap();
    let lines: Vec<usize> = read_back.iter().map(|(place, _)| place.line).collect();
    assert_eq!(lines, [1, 3]);
    let missing = file.0.with_extension("none");
    let error = read(&missing).unwrap_err().to_string();
    assert!(error.contains(".none: No such file"), "{error}");
}

#[test]
fn a_recorder_of_tests_records_nothing() {
    let results = recorder!();
    assert!(!results.is_on());
    results.record(
        "a: a",
        f64::NAN,
        weir_lab::results::Unit::Seconds,
        Bar::None,
    );
}
