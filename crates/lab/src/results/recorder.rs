//! The recorder: appends measurements to the file that `WEIR_RESULTS` names.

use super::{Bar, Checkout, Commit, FILE, Machine, Measurement, Unit};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a measurement was not recorded.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The value is not a finite number, such as a ratio to 0; JSON cannot
    /// represent it.
    #[error("{name}: {value} is not a finite number")]
    NotFinite {
        /// The measurement's name.
        name: String,
        /// Its value.
        value: f64,
    },
    /// The file cannot be written.
    #[error("cannot append to {}, which {FILE} names: {error}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// Creates the [`Recorder`](crate::results::Recorder) of the calling bench.
#[macro_export]
macro_rules! recorder {
    () => {
        $crate::results::Recorder::of_bench(
            env!("CARGO_PKG_NAME"),
            env!("CARGO_CRATE_NAME"),
            env!("CARGO_MANIFEST_DIR").as_ref(),
        )
    };
}

/// Appends measurements to a results file, or discards them.
#[derive(Debug)]
pub struct Recorder(Option<Recording>);

/// The properties that all lines of one process share.
#[derive(Debug)]
struct Recording {
    file: PathBuf,
    /// The file, opened at the start of the process: a bench may drop
    /// privileges later. An error is reported with the first measurement.
    open: Option<File>,
    bench: String,
    command: String,
    time: String,
    machine: Machine,
    commit: Option<Commit>,
    seed: Option<u64>,
}

impl Recorder {
    /// The recorder of a bench that Cargo started: [`recorder!`] fills in the
    /// arguments. It records nothing without `WEIR_RESULTS`, and nothing under
    /// `cargo test`, which runs benches only to test that they run.
    ///
    /// [`recorder!`]: crate::recorder
    pub fn of_bench(package: &str, bench: &str, folder: &Path) -> Recorder {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let is_bench = |argument: &String| argument == "--bench";
        if !arguments.iter().any(is_bench) {
            return Recorder(None);
        }
        let arguments = arguments.iter().filter(|argument| !is_bench(argument));
        let mut command = format!("cargo bench -p {package} --bench {bench}");
        for (number, argument) in arguments.enumerate() {
            command += if number == 0 { " -- " } else { " " };
            command += &quoted(argument);
        }
        Recorder::named(format!("{package} {bench}"), command, folder)
    }

    /// The recorder of a subcommand of `weir`, for the checkout around the
    /// current folder. It records nothing without `WEIR_RESULTS`.
    pub fn of_command(name: &str) -> Recorder {
        let arguments = std::env::args().skip(1);
        let words = arguments.map(|argument| format!(" {}", quoted(&argument)));
        let command = format!("weir{}", words.collect::<String>());
        let folder = std::env::current_dir().unwrap_or_default();
        Recorder::named(name.to_owned(), command, &folder)
    }

    fn named(bench: String, command: String, folder: &Path) -> Recorder {
        let file = std::env::var_os(FILE).filter(|file| !file.is_empty());
        Recorder(file.map(|file| Recording::new(file.into(), bench, command, folder)))
    }

    /// Sets the seed that measurements are recorded with.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Recorder {
        if let Some(recording) = &mut self.0 {
            recording.seed = Some(seed);
        }
        self
    }

    /// Whether measurements are written to a file.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records a measurement. The name states what is measured, begins with the
    /// subject and a colon, and is unique to this bench.
    ///
    /// A value that is not finite, such as a ratio to a peer without
    /// throughput, is reported on standard error instead, and the bench
    /// continues.
    ///
    /// # Panics
    /// If the file cannot be written. See [`Recorder::try_record`].
    pub fn record(&self, name: &str, value: f64, unit: Unit<'_>, bar: Bar) {
        match self.try_record(name, value, unit, bar) {
            Ok(()) => {}
            Err(error @ RecordError::NotFinite { .. }) => eprintln!("not recorded: {error}"),
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Recorder::record`].
    ///
    /// # Errors
    /// If the value is not finite, or the file cannot be written.
    pub fn try_record(
        &self,
        name: &str,
        value: f64,
        unit: Unit<'_>,
        bar: Bar,
    ) -> Result<(), RecordError> {
        let Some(recording) = &self.0 else {
            return Ok(());
        };
        if !value.is_finite() {
            let name = name.to_owned();
            return Err(RecordError::NotFinite { name, value });
        }
        recording.append(&recording.measurement(name, value, unit, bar))
    }
}

impl Recording {
    fn new(file: PathBuf, bench: String, command: String, folder: &Path) -> Recording {
        let now = jiff::Timestamp::now();
        Recording {
            open: opened(&file).ok(),
            file,
            bench,
            command,
            time: now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            machine: Machine::this(),
            commit: Checkout::around(folder).and_then(|checkout| checkout.commit()),
            seed: None,
        }
    }

    fn measurement(&self, name: &str, value: f64, unit: Unit<'_>, bar: Bar) -> Measurement {
        Measurement {
            name: name.to_owned(),
            value,
            unit: unit.symbol(),
            peer: unit.peer(),
            better: bar.better().unwrap_or(unit.better()),
            bar,
            met: bar.met(value),
            bench: self.bench.clone(),
            command: self.command.clone(),
            time: self.time.clone(),
            machine: self.machine.clone(),
            commit: self.commit.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seed: self.seed,
        }
    }

    /// Appends one line by one write: benches may share a file.
    fn append(&self, measurement: &Measurement) -> Result<(), RecordError> {
        let failed = |error| RecordError::Write {
            file: self.file.clone(),
            error,
        };
        let line = serde_json::to_string(measurement).map_err(|error| failed(error.into()))?;
        let line = line + "\n";
        let again;
        let mut file = match &self.open {
            Some(file) => file,
            None => {
                again = opened(&self.file).map_err(failed)?;
                &again
            }
        };
        let written = file.write(line.as_bytes()).map_err(failed)?;
        if written == line.len() {
            Ok(())
        } else {
            Err(failed(io::Error::other(
                "only a part of a line was written",
            )))
        }
    }
}

fn opened(file: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(file)
}

/// An argument in shell syntax.
pub(super) fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/%+".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder(file: &Path) -> Recorder {
        let (bench, command) = ("weir-x y".to_owned(), "cargo bench".to_owned());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        Recorder(Some(Recording::new(
            file.to_owned(),
            bench,
            command,
            folder,
        )))
    }

    /// A path in the temporary folder, removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("weir-results-{}-{name}", std::process::id());
            Scratch(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_line_has_what_was_measured_required_and_where() {
        let file = Scratch::new("line");
        let results = recorder(&file.0).seed(7);
        results.record("a: b", 7.5, Unit::Seconds, Bar::AtMost(8.0));
        results.record("a: c", 0.9, Unit::RateOf("x"), Bar::AtLeast(1.0));
        results.record("a: d", 3.0, Unit::PerSecond("frames"), Bar::None);
        let text = std::fs::read_to_string(&file.0).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 3, "{text}");
        let [first, second, third] = &lines[..] else {
            panic!()
        };
        for (key, value) in [
            ("name", "a: b".into()),
            ("value", 7.5.into()),
            ("unit", "s".into()),
            ("better", "less".into()),
            ("bar", serde_json::json!({"at_most": 8.0})),
            ("met", true.into()),
            ("bench", "weir-x y".into()),
            ("command", "cargo bench".into()),
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("seed", 7.into()),
        ] {
            assert_eq!(first[key], value, "{key}");
        }
        let time: jiff::Timestamp = first["time"].as_str().unwrap().parse().unwrap();
        assert!(jiff::Timestamp::now().duration_since(time).as_secs().abs() < 3600);
        for key in ["kernel", "cpu", "cores", "memory", "load"] {
            assert!(!first["machine"][key].is_null(), "{key}");
        }
        assert!(first.get("peer").is_none());
        assert_eq!(
            (&second["unit"], &second["peer"]),
            (&"× the rate of".into(), &"x".into())
        );
        assert_eq!(
            (&second["met"], &second["better"]),
            (&false.into(), &"more".into())
        );
        assert!(third.get("bar").is_none() && third.get("met").is_none());
        assert_eq!(
            (&third["unit"], &third["better"]),
            (&"frames/s".into(), &"more".into())
        );
    }

    /// Lines longer than one write of a pipe or a buffered writer.
    #[test]
    fn lines_of_several_writers_are_whole() {
        let file = Scratch::new("whole");
        let long = "x".repeat(9_000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let results = recorder(&file.0);
                    for _ in 0..20 {
                        results.record(&long, 1.0, Unit::Bytes, Bar::None);
                    }
                });
            }
        });
        let read = super::super::read(&file.0).unwrap();
        assert_eq!(read.len(), 80);
    }

    #[test]
    fn what_cannot_be_recorded_is_said_with_the_file() {
        let file = Scratch::new("folder/none");
        let error = recorder(&file.0)
            .try_record("a: b", 1.0, Unit::Bytes, Bar::None)
            .unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("folder/none, which WEIR_RESULTS names: No such file"),
            "{said}"
        );
        let file = Scratch::new("infinite");
        let ratio = 1.0 / 0.0;
        let error = recorder(&file.0).try_record("a: b", ratio, Unit::RateOf("x"), Bar::None);
        assert_eq!(
            error.unwrap_err().to_string(),
            "a: b: inf is not a finite number"
        );
        assert_eq!(std::fs::read(&file.0).unwrap(), b"");
        // A device that is always full.
        let full = Path::new("/dev/full");
        let error = recorder(full)
            .try_record("a: b", 1.0, Unit::Bytes, Bar::None)
            .unwrap_err();
        assert!(error.to_string().contains("/dev/full, which"), "{error}");
    }

    #[test]
    fn nothing_is_recorded_where_benches_only_run_as_tests() {
        // The test harness is not passed --bench.
        assert!(!crate::recorder!().is_on());
    }

    #[test]
    fn commands_can_be_given_to_a_shell() {
        assert_eq!(quoted("--sizes=64,128"), "--sizes=64,128");
        assert_eq!(quoted("weir bridge {a} {b}"), "'weir bridge {a} {b}'");
        assert_eq!(
            (quoted(""), quoted("a'b")),
            ("''".into(), r"'a'\''b'".into())
        );
    }
}
