//! `weir experiment nettap`: bridges and routers by the size of frames, as the
//! NetTap paper plots them.

mod beside;
mod net_counter;

use super::NOT_IN_OUR_COPY;
use crate::cmd::lab::rfc2544::{self, Report, SizeResult, measured};
use crate::error::{CliError, say};
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use crate::report::plot::{self, Curve, Frame, draw};
use crate::signals::ShutdownSignal;
pub(super) use beside::Beside;
use beside::Comparison;
use net_counter::{Counted, NetCounter};
use serde::Serialize;
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_lab::results::Figures;

/// Bridge and route frames of all sizes, beside the kernel and its interfaces
///
/// Repeats section 7 of Blott, Brustoloni and Martin, "NetTap: An Efficient and
/// Reliable PC-Based Platform for Network Programming" (2000): figures 5 and 7
/// (throughput without loss), figure 6 (latency), and what its text states. As
/// root; `weir lab rfc2544` measures, between virtual links. NetCounter is `weir
/// bridge --meter` with a list of 250 subscribers, three services and periods of
/// a second.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Sizes of frames in bytes, check sequence included; by default 64, 512
    /// and 1518, which take two or three minutes
    ///
    /// The paper's text speaks of 64, 128, 256, 384, 512, 640, 1024 and 1518.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = rfc2544::size)]
    sizes: Vec<usize>,

    /// Seconds of a trial, 0.1 by default; one to confirm a throughput is four
    /// times as long
    #[arg(long, value_name = "SECONDS", value_parser = rfc2544::seconds)]
    duration: Option<Duration>,

    /// A minute or so: by default 64 and 1518 bytes, and trials half as long
    #[arg(long)]
    quick: bool,

    /// Compare with another machine, as figure 7 does: a file of what `--json` printed there
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,

    /// Draw figures 5 and 6, and 7 with `--beside`, into this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn sizes(&self) -> &[usize] {
        match (&self.sizes[..], self.quick) {
            ([], true) => &[64, 1518],
            ([], false) => &SIZES,
            (sizes, _) => sizes,
        }
    }

    /// Seconds.
    fn duration(&self) -> f64 {
        let by_default = if self.quick { 0.05 } else { 0.1 };
        self.duration.map_or(by_default, |time| time.as_secs_f64())
    }
}

/// Sizes of frames in bytes, by default.
pub(super) const SIZES: [usize; 3] = [64, 512, 1518];

/// A measured candidate: its counterpart in the paper, and the way to run it.
struct Candidate {
    ours: &'static str,
    paper: &'static str,
    option: &'static str,
    value: &'static str,
    /// The paper's rates for frames of 64 bytes, in thousands per second: on
    /// the 333 MHz Celeron, and on the 600 MHz Pentium III.
    kpps: [Option<f64>; 2],
    /// µs, on the Celeron.
    latency_us: Option<f64>,
}

const fn contestant(
    ours: &'static str,
    paper: &'static str,
    (option, value): (&'static str, &'static str),
    kpps: [Option<f64>; 2],
    latency_us: Option<f64>,
) -> Candidate {
    Candidate {
        ours,
        paper,
        option,
        value,
        kpps,
        latency_us,
    }
}

const NONE: [Option<f64>; 2] = [None, None];

/// Stands for the command of the bridge that counts, which needs files.
const NET_COUNTER: &str = "NetCounter";

/// In the order of the paper's text.
const ALL: [Candidate; 8] = [
    contestant(
        "weir bridge",
        "NetTap bridging",
        ("--dut", "weir bridge {a} {b}"),
        [Some(92.0), Some(90.0)],
        Some(45.0),
    ),
    contestant(
        "weir bridge --meter",
        "NetCounter on NetTap",
        ("--dut", NET_COUNTER),
        [Some(67.0), Some(80.0)],
        Some(49.0),
    ),
    contestant(
        "weir route",
        "(no router on NetTap)",
        ("--router", "weir route {a} {b}"),
        NONE,
        None,
    ),
    contestant(
        "linux-bridge",
        "kernel-level bridging",
        ("--peer", "linux-bridge"),
        NONE,
        Some(28.0),
    ),
    contestant(
        "linux-routing",
        "kernel-level IP forwarding",
        ("--peer", "linux-routing"),
        [Some(59.0), Some(71.0)],
        Some(37.0),
    ),
    contestant(
        "libpcap-bridge",
        "BPF bridging",
        ("--peer", "libpcap-bridge"),
        NONE,
        Some(48.0),
    ),
    contestant(
        "tun-relay",
        "divert socket IP forwarding",
        ("--peer", "tun-relay"),
        NONE,
        Some(68.0),
    ),
    contestant(
        "weir bridge, cached",
        "(no cached verdicts)",
        ("--dut", "weir bridge {a} {b} --flow-cache on"),
        NONE,
        None,
    ),
];

/// A bridge that never sleeps, and the same with a call before and after each frame.
const CALLS: [&str; 2] = [
    "weir bridge {a} {b} --spin-us 1000000",
    "weir bridge {a} {b} --spin-us 1000000 --calls-each",
];
/// How many of both are measured, at a rate that both bear. Their order changes from pair to pair,
/// since the machine may become slower or faster meanwhile.
const CALL_PAIRS: usize = 6;

/// The bridges in the order of their measurement, as indices of [`CALLS`].
fn calls_order() -> impl Iterator<Item = [usize; 2]> {
    (0..CALL_PAIRS).map(|pair| [pair % 2, 1 - pair % 2])
}

/// The results of a candidate.
#[derive(Serialize, Debug)]
struct Row {
    name: &'static str,
    paper: &'static str,
    paper_celeron_kpps: Option<f64>,
    paper_pentium_kpps: Option<f64>,
    paper_latency_us: Option<f64>,
    points: Vec<Point>,
}

#[derive(Serialize, Debug)]
struct Point {
    size: usize,
    frames_per_second: Option<f64>,
    latency_us: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<String>,
}

impl Row {
    fn new(index: usize, contestant: &Candidate, report: &Report) -> Row {
        let mine = report.results.iter().filter(|found| found.index == index);
        Row::of(contestant, mine.map(Point::new).collect())
    }

    fn of(contestant: &Candidate, points: Vec<Point>) -> Row {
        Row {
            name: contestant.ours,
            paper: contestant.paper,
            paper_celeron_kpps: contestant.kpps[0],
            paper_pentium_kpps: contestant.kpps[1],
            paper_latency_us: contestant.latency_us,
            points,
        }
    }

    fn at(&self, size: usize) -> Option<&Point> {
        self.points.iter().find(|point| point.size == size)
    }
}

impl Point {
    fn new(found: &SizeResult) -> Point {
        Point {
            size: found.size,
            frames_per_second: found.rate(),
            latency_us: found.median_ns().map(|ns| ns as f64 / 1e3),
            faults: found.faults.clone(),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    plot::prepare(args.svg.as_deref())?;
    let stop = ShutdownSignal::watch_hangup_too()?;
    let other = args
        .beside
        .as_deref()
        .map(|path| Beside::read(path, args.sizes()));
    let other = other.transpose()?;
    let mut seen = HashSet::new();
    if let Some(size) = args.sizes().iter().find(|size| !seen.insert(**size)) {
        return Err(CliError::refused(format!(
            "--sizes names {size} twice: give each size once"
        )));
    }
    let (sizes, duration) = (listed(args.sizes()), args.duration().to_string());
    let confirm = (args.duration() * 4.0).to_string();
    let times = [
        ["--duration", &duration],
        ["--confirm", &confirm],
        ["--resolution", "5"],
        ["--attempts", "2"],
    ]
    .concat();
    let counter = NetCounter::new()?;
    let counting = counter.command()?;
    let value = |one: &'static Candidate| match one.value {
        NET_COUNTER => &*counting,
        value => value,
    };
    let who = ALL.iter().flat_map(|one| [one.option, value(one)]);
    let mut line: Vec<&str> = who.collect();
    line.extend(["--sizes", &sizes]);
    line.extend(&times);
    let report = measured(&line, &stop)?;
    // Commands come first, bridges before routers.
    let mut order: Vec<usize> = (0..ALL.len()).collect();
    let options = ["--dut", "--router", "--peer"];
    order.sort_by_key(|index| options.iter().position(|o| *o == ALL[*index].option));
    let rows: Vec<Row> = ALL
        .iter()
        .enumerate()
        .map(|(index, contestant)| {
            let place = order.iter().position(|place| *place == index);
            Row::new(place.unwrap_or(index), contestant, &report)
        })
        .collect();
    let by_calls = if stop.is_requested() {
        None
    } else {
        let bridges = calls_order().flatten();
        let mut line: Vec<&str> = bridges.flat_map(|which| ["--dut", CALLS[which]]).collect();
        line.extend(["--sizes", "64", "--tests", "latency"]);
        line.extend(["--latency-rate", "50000"]);
        line.extend(&times);
        calls(&measured(&line, &stop)?)
    };
    if stop.is_requested() {
        return Err(CliError::Stopped(stop.signal()));
    }
    if let Some(folder) = &args.svg {
        figures(folder, &rows, other.as_ref())?;
    }
    let comparison = other.map(|other| other.compare(args.sizes(), &rows));
    if matches!(comparison, Some(None)) {
        say("weir: --beside: of what was measured there, nothing has a rate here: no figure 7");
    }
    let found = Found {
        rows,
        calls_us: by_calls.as_ref().map(|calls| calls.medians_us),
        calls_added_us: by_calls.as_ref().map(|calls| calls.added_us),
        paper_calls_us: PAPER_CALLS_US,
        net_counter_packets: counter.counted()?,
        beside: comparison.flatten(),
    };
    let text = if args.json {
        serde_json::to_string(&found).map_err(CliError::run)?
    } else {
        table(args.sizes(), &found)
    };
    writeln!(std::io::stdout(), "{text}").map_err(CliError::output)
}

fn listed(sizes: &[usize]) -> String {
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    sizes.join(",")
}

/// The latency of a bridge without and with a call before and after each frame.
#[derive(Debug)]
struct Calls {
    /// Medians without and with calls, in µs.
    medians_us: [f64; 2],
    /// The additional cost of calls in each pair, in µs: the least, the median, the most.
    added_us: [f64; 3],
}

impl Calls {
    /// Of the pairs' latencies in µs; `None` if there are none.
    fn of(pairs: &[[f64; 2]]) -> Option<Calls> {
        let all = |which: usize| Figures::of(pairs.iter().map(|pair| pair[which]));
        let added = Figures::of(pairs.iter().map(|[without, with]| with - without))?;
        Some(Calls {
            medians_us: [all(0)?.median(), all(1)?.median()],
            added_us: [added.min(), added.median(), added.max()],
        })
    }
}

/// Pairs without and with calls, of what `latency` gives for the number of a measurement.
fn call_pairs(latency: impl Fn(usize) -> Option<f64>) -> Option<Vec<[f64; 2]>> {
    let pairs = calls_order().enumerate().map(|(number, order)| {
        let mut pair = [0.0; 2];
        for (place, which) in order.into_iter().enumerate() {
            pair[which] = latency(2 * number + place)?;
        }
        Some(pair)
    });
    pairs.collect()
}

/// The measurements in the order of [`calls_order`]; `None` if one of them is missing.
fn calls(report: &Report) -> Option<Calls> {
    let latency = |index| {
        let found = report.results.iter().find(|found| found.index == index)?;
        Some(found.median_ns()? as f64 / 1e3)
    };
    Calls::of(&call_pairs(latency)?)
}

/// All that is reported; the form of `--json`.
#[derive(Serialize)]
struct Found {
    rows: Vec<Row>,
    /// Medians without and with a call for each frame; the paper: 4.5 more.
    calls_us: Option<[f64; 2]>,
    /// The additional cost of the call in pairs of measurements: the least, the median, the most.
    calls_added_us: Option<[f64; 3]>,
    paper_calls_us: f64,
    /// The records of the bridge that counts.
    net_counter_packets: Counted,
    /// Figure 7.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<Comparison>,
}

/// The paper's cost of a call before and after each frame, in microseconds.
const PAPER_CALLS_US: f64 = 4.5;

fn table(sizes: &[usize], found: &Found) -> String {
    let rows = &found.rows[..];
    let rate = |point: &Point| point.frames_per_second.map(|rate| rate / 1e3);
    let figure_5 = by_size(sizes, rows, |point| Some(format!("{:.0}", rate(point)?)));
    let figure_6 = by_size(sizes, rows, |point| {
        Some(format!("{:.2}", point.latency_us?))
    });
    let calls = match (found.calls_us, found.calls_added_us) {
        (Some([without, with]), Some([least, added, most])) => format!(
            "A call before and after each frame: the paper +{PAPER_CALLS_US} µs; ours {added:+.2} µs, \
             {least:+.2} to {most:+.2} in {CALL_PAIRS} pairs ({without:.2}, {with:.2}), at 50,000 \
             frames/s, 64 B"
        ),
        _ => "A call before and after each frame: not measured".into(),
    };
    let faults = rows.iter().flat_map(|row| {
        let all = row.points.iter();
        all.flat_map(|point| {
            point
                .faults
                .iter()
                .map(|fault| (row.name, point.size, fault))
        })
    });
    let faults: String = faults
        .map(|(name, size, fault)| format!("\n{name}, {size} bytes: {fault}"))
        .collect();
    let figure_7 = found.beside.as_ref().map(|it| it.text() + "\n\n");
    let figure_7 = figure_7.unwrap_or_default();
    format!(
        "Figure 5: thousands of frames a second without loss, by bytes of a frame\n\n\
         {figure_5}\n\n{}\n\n{figure_7}Figure 6: median latency at half of that, µs\n\n{figure_6}\n\n\
         {calls}\nNetCounter has recorded {} of subscribers and {} of nobody known{}{faults}",
        stated(rows),
        format::counted(found.net_counter_packets.attributed, "packet"),
        format::grouped(found.net_counter_packets.unattributed),
        if faults.is_empty() { "" } else { "\n\nFaults:" },
    )
}

fn by_size(sizes: &[usize], rows: &[Row], cell: impl Fn(&Point) -> Option<String>) -> String {
    let names: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let mut columns = vec![Left("")];
    columns.extend(names.iter().map(|name| Right(name.as_str())));
    let cells = rows.iter().map(|row| {
        let mut cells = vec![row.name.to_owned()];
        cells.extend(sizes.iter().map(|size| {
            let point = row.at(*size);
            point.and_then(&cell).unwrap_or_else(|| "none".into())
        }));
        cells
    });
    format::table(&columns, cells)
}

/// The paper's stated rates beside the measured ones: frames of 64 bytes.
fn stated(rows: &[Row]) -> String {
    let columns = [
        Left("the paper's"),
        Right("Celeron, K/s"),
        Right("Pentium III, K/s"),
        Right("Celeron, µs"),
        Left("ours"),
        Right("K/s"),
        Right("µs"),
    ];
    let cells = rows.iter().map(|row| {
        let number = |value: Option<f64>| {
            let text = value.map(|value| format!("{value:.0}"));
            text.unwrap_or_else(|| NOT_IN_OUR_COPY.to_owned())
        };
        let ours = row.points.first();
        let own = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "none".into(), |value| format!("{value:.digits$}"))
        };
        vec![
            row.paper.to_owned(),
            number(row.paper_celeron_kpps),
            number(row.paper_pentium_kpps),
            number(row.paper_latency_us),
            row.name.to_owned(),
            own(ours.and_then(|o| o.frames_per_second.map(|r| r / 1e3)), 0),
            own(ours.and_then(|o| o.latency_us), 2),
        ]
    });
    format::table(&columns, cells)
}

fn figures(folder: &Path, rows: &[Row], other: Option<&Beside>) -> Result<(), CliError> {
    let curves = |of: fn(&Point) -> Option<f64>| -> Vec<Curve> {
        let curves = rows.iter().map(|row| {
            let points = row.points.iter();
            let points = points.filter_map(|point| Some((point.size as f64, of(point)?)));
            (format!("{} ({})", row.name, row.paper), points.collect())
        });
        curves.collect()
    };
    let rates = curves(|point| Some(point.frames_per_second? / 1e3));
    let times = curves(|point| point.latency_us);
    let of = |title, y| Frame {
        title,
        x: "bytes of a frame",
        y,
    };
    let per_second = "thousand frames per second";
    let five = of("Throughput, as figure 5", per_second);
    let seven = of("Throughput of the other machine, as figure 7", per_second);
    let six = of("Latency at half of the throughput, as figure 6", "µs");
    let mut plots = vec![
        ("nettap-5.svg".to_owned(), draw(&five, &rates, &[])),
        ("nettap-6.svg".to_owned(), draw(&six, &times, &[])),
    ];
    if let Some(other) = other {
        let drawn = draw(&seven, &other.curves(), &[]);
        plots.push(("nettap-7.svg".to_owned(), drawn));
    }
    plot::write(folder, plots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn sizes_are_given_once_or_each() {
        let of = |line: &[&str]| {
            let line = [&["weir"], line].concat();
            let args = <Line as clap::Parser>::try_parse_from(line).unwrap().args;
            (args.sizes().to_vec(), args.duration())
        };
        assert_eq!(of(&[]), (vec![64, 512, 1518], 0.1));
        assert_eq!(of(&["--quick"]), (vec![64, 1518], 0.05));
        let each = ["--sizes", "64", "--sizes", "1518", "--duration", "0.05"];
        assert_eq!(of(&each), (vec![64, 1518], 0.05));
        assert_eq!(of(&["--quick", "--sizes", "64,128"]), (vec![64, 128], 0.05));
        let wrong = <Line as clap::Parser>::try_parse_from(["weir", "--sizes", "1519"]);
        let said = wrong.map(drop).unwrap_err().to_string();
        assert!(said.contains("64 to 1518 bytes"), "{said}");
    }

    /// The paper's section 7 as its text has it.
    #[test]
    fn what_the_text_states_stands_by_its_application() {
        let of = |paper| {
            let found = ALL.iter().find(|one| one.paper == paper).unwrap();
            (found.kpps, found.latency_us)
        };
        let both = |a, b| [Some(a), Some(b)];
        assert_eq!(of("NetTap bridging"), (both(92.0, 90.0), Some(45.0)));
        assert_eq!(of("NetCounter on NetTap"), (both(67.0, 80.0), Some(49.0)));
        let kernel = of("kernel-level IP forwarding");
        assert_eq!(kernel, (both(59.0, 71.0), Some(37.0)));
        assert_eq!(of("kernel-level bridging"), (NONE, Some(28.0)));
        assert_eq!(of("BPF bridging"), (NONE, Some(48.0)));
        assert_eq!(of("divert socket IP forwarding"), (NONE, Some(68.0)));
    }

    /// Rows as they would be measured: one figure that there is, one that there
    /// is not.
    fn found(calls: Option<Calls>) -> Found {
        let point = |frames_per_second, latency_us, faults: &[&str]| Point {
            size: 64,
            frames_per_second,
            latency_us,
            faults: faults.iter().map(|fault| (*fault).to_owned()).collect(),
        };
        let row = |contestant: &Candidate, point| Row::of(contestant, vec![point]);
        Found {
            rows: vec![
                row(&ALL[0], point(Some(863_200.0), Some(4.4), &[])),
                row(&ALL[5], point(None, None, &["no libpcap"])),
            ],
            calls_us: calls.as_ref().map(|calls| calls.medians_us),
            calls_added_us: calls.as_ref().map(|calls| calls.added_us),
            paper_calls_us: PAPER_CALLS_US,
            net_counter_packets: Counted {
                attributed: 1_234_567,
                unattributed: 8,
            },
            beside: None,
        }
    }

    #[test]
    fn the_table_has_the_papers_figures_and_ours() {
        let pairs = [[3.1, 5.35], [3.0, 4.0], [3.2, 6.2]];
        let text = table(&[64], &found(Calls::of(&pairs)));
        let line = |begins: &str| {
            let found = text.lines().find(|line| line.starts_with(begins));
            let words = found.unwrap_or_else(|| panic!("{begins}: {text}"));
            words.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("weir bridge"), "weir bridge 863");
        assert_eq!(line("libpcap-bridge"), "libpcap-bridge none");
        assert_eq!(
            line("NetTap bridging"),
            "NetTap bridging 92 90 45 weir bridge 863 4.40"
        );
        let lacking = "not in our copy not in our copy 48 libpcap-bridge none none";
        assert_eq!(line("BPF bridging"), format!("BPF bridging {lacking}"));
        assert!(
            text.contains("ours +2.25 µs, +1.00 to +3.00 in 6 pairs (3.10, 5.35)"),
            "{text}"
        );
        assert!(
            text.ends_with("libpcap-bridge, 64 bytes: no libpcap"),
            "{text}"
        );
        assert!(
            text.contains("recorded 1,234,567 packets of subscribers and 8 of nobody known"),
            "{text}"
        );
        assert!(table(&[64], &found(None)).contains("each frame: not measured"));
    }

    #[test]
    fn each_pairs_bridges_are_told_apart() {
        let line: Vec<&str> = calls_order().flatten().map(|which| CALLS[which]).collect();
        let latency = |index: usize| {
            let has_calls = line.get(index)?.ends_with("--calls-each");
            Some(if has_calls { 5.0 } else { 3.0 })
        };
        assert_eq!(call_pairs(latency), Some(vec![[3.0, 5.0]; 6]));
        assert_ne!(line[0], line[2], "the order alternates");
        assert_eq!(
            call_pairs(|index| latency(index).filter(|_| index < 11)),
            None
        );
    }

    #[test]
    fn the_json_says_what_was_not_measured() {
        let json = serde_json::to_value(found(None)).unwrap();
        assert_eq!(json["rows"][0]["points"][0]["frames_per_second"], 863_200.0);
        assert!(json["rows"][1]["points"][0]["latency_us"].is_null());
        assert!(json["rows"][1]["paper_celeron_kpps"].is_null());
        assert!(json["calls_us"].is_null());
        let json = serde_json::to_value(found(Calls::of(&[[3.0, 4.0]]))).unwrap();
        assert_eq!(json["calls_us"][1], 4.0);
        assert_eq!(json["calls_added_us"][0], 1.0);
    }
}
