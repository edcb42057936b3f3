//! `weir lab rfc2544`: measures bridges and routers side by side.

mod candidate;
mod plot;
mod report;
mod required;
mod run;

pub(crate) use report::{Report, SizeResult};

use crate::error::CliError;
use crate::signals::ShutdownSignal;
use candidate::Candidate;
use clap::ValueEnum;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use weir_lab::load::Search;
use weir_lab::results::Recorder;
use weir_lab::rfc2544::{
    Baseline, Cpus, DESTINATIONS_MAX, SIZE_MAX, SIZE_MIN, SIZES, Setup, SinkKind,
};

/// Measure bridges and routers according to RFC 2544, side by side
///
/// Needs root. A tester with two ends and a host between them are created as
/// network namespaces; the device under test is started in that host, between
/// its two interfaces. Every frame is numbered, and lost, reordered, duplicated
/// and damaged frames are counted separately. docs/how-to/measure.md explains
/// the method. With WEIR_RESULTS=FILE in the environment, measurements are
/// appended to the file; see `weir lab results`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit status: 0; 1 if the report has faults, a network cannot be made, a tested program does not
run or something else failed; 2 if an option or a tested command is wrong; 130 or 143 after SIGINT
or SIGTERM.")]
pub(crate) struct Args {
    /// A bridge to test: a command, with {a} and {b} for the interfaces; `weir`
    /// is this program
    ///
    /// It must print `ready` on standard error (or output) when it forwards
    /// frames, and end cleanly on SIGTERM.
    #[arg(long, value_name = "COMMAND")]
    dut: Vec<String>,
    /// As --dut, for a router: {a} has 198.18.0.1/24, {b} has 198.19.0.1/24,
    /// and frames go from 198.18.0.2 to 198.19.0.2
    #[arg(long, value_name = "COMMAND")]
    router: Vec<String>,
    /// A baseline to compare with
    #[arg(long, value_name = "NAME", value_parser = peer)]
    peer: Vec<Baseline>,
    /// Frame sizes in bytes, FCS included
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = SIZES, value_parser = size)]
    sizes: Vec<usize>,
    /// The measurements
    #[arg(
        long,
        value_name = "TESTS",
        value_delimiter = ',',
        default_value = "throughput,latency"
    )]
    tests: Vec<Test>,
    /// Duration of a trial in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = seconds)]
    duration: Duration,
    /// Duration in seconds of the trial that confirms a throughput; 0 for none
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds_or_none)]
    confirm: Duration,
    /// Seconds to wait for further frames after the last one (RFC 2544: 2)
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = seconds)]
    settle: Duration,
    /// Resolution of the rate, in per cent
    #[arg(long, value_name = "PERCENT", default_value = "2", value_parser = percent)]
    resolution: f64,
    /// Number of trials at a rate before it counts as lossy (RFC 2544: 1)
    #[arg(long, value_name = "N", default_value = "3",
          value_parser = clap::value_parser!(u32).range(1..=100),
          allow_negative_numbers = true)]
    attempts: u32,
    /// Number of rounds, whose median is reported
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=1000),
          allow_negative_numbers = true)]
    repeat: u32,
    /// Load for the latency measurement, in per cent of the throughput
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = percent)]
    latency_at: f64,
    /// Measure latency at this rate instead, in frames per second
    #[arg(long, value_name = "RATE", conflicts_with = "latency_at", value_parser = rate)]
    latency_rate: Option<f64>,
    /// Send in both directions, a frame each way in turn
    #[arg(long)]
    both_ways: bool,
    /// Send to this many addresses, in pseudorandom order, each in a network of
    /// its own that the router has a route to in the kernel's table; several
    /// numbers are measured side by side
    #[arg(long, value_name = "N", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=i64::from(DESTINATIONS_MAX)),
          allow_negative_numbers = true)]
    destinations: Vec<u32>,
    /// The hook that receives frames; it affects every result
    #[arg(long, value_enum, default_value = "xdp")]
    sink: Sink,
    /// Wait this many seconds instead of for `ready`
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    ready_after: Option<Duration>,
    /// During trials, run the tested programs with real-time priority, like the
    /// sender
    ///
    /// For a machine with other load: during a trial almost nothing else runs
    /// on either CPU.
    #[arg(long)]
    realtime: bool,
    /// The CPUs of the sender and of the tested program; by default the first
    /// two
    #[arg(long, value_name = "CPU,CPU", value_parser = cpus)]
    cpus: Option<Cpus>,
    /// Seed of the frames' contents
    #[arg(long, value_name = "NUMBER", default_value = "2544")]
    seed: u64,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// Write figures of the results to this folder
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
}

/// A measurement of RFC 2544 §26.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Test {
    /// The highest rate without loss (§26.1)
    Throughput,
    /// Percentiles of the latency (§26.2)
    Latency,
    /// Frame loss at higher rates (§26.3)
    Loss,
    /// The longest burst without loss (§26.4)
    BackToBack,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Sink {
    /// XDP in the driver
    Xdp,
    /// tc, after the kernel has made a socket buffer
    Tc,
}

impl Args {
    fn setup(&self) -> Result<Setup, CliError> {
        let cpus = match self.cpus {
            Some(cpus) => cpus,
            None => Cpus::first_two().map_err(CliError::run)?,
        };
        Ok(Setup {
            sink: match self.sink {
                Sink::Xdp => SinkKind::Xdp,
                Sink::Tc => SinkKind::Tc,
            },
            cpus,
            both_ways: self.both_ways,
            settle: self.settle,
            seed: self.seed,
            destinations: 0,
        })
    }

    fn search(&self) -> Search {
        Search {
            resolution: self.resolution / 100.0,
            attempts_max: self.attempts,
            trial: self.duration,
            confirmation: self.confirm,
            ..Search::QUICK
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let contestants = Candidate::all(args)?;
    let stop = ShutdownSignal::watch_hangup_too()?;
    let setup = args.setup()?;
    crate::report::plot::prepare(args.svg.as_deref())?;
    let results = Recorder::of_command("weir lab rfc2544").seed(args.seed);
    let report = run::measure(args, &setup, &contestants, &stop)?;
    // For a measurement that was ended early, medians cover fewer rounds.
    if !stop.is_requested() {
        required::record(&results, args, &contestants, &report).map_err(CliError::run)?;
    }
    if let Some(folder) = &args.svg {
        plot::figures(folder, &report)?;
    }
    let text = if args.json {
        serde_json::to_string(&report).map_err(CliError::run)?
    } else {
        report.text()
    };
    writeln!(std::io::stdout(), "{text}").map_err(CliError::output)?;
    match (stop.is_requested(), report.troubles()) {
        (true, _) => Err(CliError::Stopped(stop.signal())),
        (false, 0) => Ok(()),
        (false, count) => {
            let count = crate::report::format::counted(count as u64, "fault");
            Err(CliError::run(format!("{count} found, see the report")))
        }
    }
}

/// Measures as this command line says, for a caller that presents the report in
/// another way.
pub(crate) fn measured(line: &[&str], stop: &ShutdownSignal) -> Result<Report, CliError> {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    let line = [&["rfc2544"], line].concat();
    let args = <Line as clap::Parser>::try_parse_from(line);
    let args = args.map_err(CliError::refused)?.args;
    let contestants = Candidate::all(&args)?;
    run::measure(&args, &args.setup()?, &contestants, stop)
}

fn peer(name: &str) -> Result<Baseline, String> {
    name.parse().map_err(|error| format!("{error}"))
}

pub(crate) fn size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok();
    let fits = size.filter(|size| (SIZE_MIN..=SIZE_MAX).contains(size));
    fits.ok_or_else(|| format!("a frame of Ethernet has {SIZE_MIN} to {SIZE_MAX} bytes"))
}

fn number(text: &str, from: f64, to: f64, what: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let fits = number.filter(|number| (from..=to).contains(number));
    fits.ok_or_else(|| format!("give {what} from {from} to {to}"))
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    number(text, 0.01, 3600.0, "seconds").map(Duration::from_secs_f64)
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    number(text, 0.0, 3600.0, "seconds").map(Duration::from_secs_f64)
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, 0.1, 100.0, "per cent")
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, 1.0, 2e7, "frames per second")
}

fn cpus(text: &str) -> Result<Cpus, String> {
    let two = text.split_once(',');
    let two = two.and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    let (tester, dut) = two.ok_or("give two CPUs, such as 0,1")?;
    let allowed = weir_lab::affinity::allowed().map_err(|error| error.to_string())?;
    match [tester, dut].into_iter().find(|cpu| !allowed.contains(cpu)) {
        None => Ok(Cpus { tester, dut }),
        Some(cpu) => Err(format!(
            "CPU {cpu} is not one of {allowed:?}, which this process may use"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use weir_lab::rfc2544::Dut;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(line: &[&str]) -> Result<Args, String> {
        let line = [&["weir"], line].concat();
        let parsed = Line::try_parse_from(line);
        parsed
            .map(|line| line.args)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_issues_line_is_understood() {
        let line = [
            "--dut",
            "weir bridge {a} {b}",
            "--peer",
            "linux-bridge",
            "--sizes",
            "64,128,256,384,512,640,1024,1518",
        ];
        let args = parsed(&line).unwrap();
        assert_eq!(args.sizes, [64, 128, 256, 384, 512, 640, 1024, 1518]);
        assert_eq!(args.peer, [Baseline::LinuxBridge]);
        assert_eq!(args.tests, [Test::Throughput, Test::Latency]);
        let contestants = Candidate::all(&args).unwrap();
        let names: Vec<_> = contestants.iter().map(|one| one.name()).collect();
        assert_eq!(names, ["weir bridge {a} {b}", "linux-bridge"]);
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_the_range() {
        for (line, said) in [
            (["--sizes", "63"], "64 to 1518"),
            (["--sizes", "1519"], "64 to 1518"),
            (["--duration", "0"], "0.01 to 3600"),
            (["--resolution", "0"], "0.1 to 100"),
            (["--peer", "bridge"], "linux-bridge"),
            (["--cpus", "0"], "such as 0,1"),
            (["--cpus", "0,9999"], "may use"),
            (["--tests", "speed"], "back-to-back"),
            (["--sink", "bpf"], "xdp"),
            (["--destinations", "0"], "1..=1048576"),
        ] {
            let error = parsed(&line).unwrap_err();
            assert!(error.contains(said), "{line:?}: {error}");
        }
    }

    #[test]
    fn each_is_measured_with_each_number_of_destinations() {
        let line = ["--peer", "linux-routing", "--router", "weir route {a} {b}"];
        let line = [&line[..], &["--destinations", "10,1000000"]].concat();
        let contestants = Candidate::all(&parsed(&line).unwrap()).unwrap();
        let names: Vec<_> = contestants.iter().map(|one| one.name()).collect();
        assert_eq!(
            names,
            [
                "weir route {a} {b}, 10 destinations",
                "weir route {a} {b}, 1,000,000 destinations",
                "linux-routing, 10 destinations",
                "linux-routing, 1,000,000 destinations",
            ]
        );
    }

    #[test]
    fn something_is_to_be_tested_and_commands_are_to_make_sense() {
        for (line, said) in [
            (&[][..], "nothing to test"),
            (&["--dut", ""], "is empty"),
            (&["--dut", "weir bridge 'a"], "quotes"),
        ] {
            let error = Candidate::all(&parsed(line).unwrap()).unwrap_err();
            assert!(error.to_string().contains(said), "{line:?}: {error}");
        }
    }
}
