//! `weir experiment setup`: connections opened as nearly at once as possible.

use super::NOT_IN_OUR_COPY;
use crate::error::CliError;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use crate::report::plot::{self, Frame, draw};
use crate::report::stdout;
use serde::Serialize;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Instant;
use weir_experiments::setup::{CONNECTIONS_MAX, Report, Settings, SetupError, run as open};
use weir_experiments::tpca::Algorithm;

/// Open thousands of TCP connections at once, and write on each
///
/// Repeats section 4 of McKenney and Dove, "Efficient Demultiplexing of
/// Incoming TCP Packets" (1992): a client opens connections to a server as
/// nearly at once as possible, and writes five times 100 bytes on each. Both
/// are whole stacks in this process, joined in memory; before each, the
/// algorithm's table finds the PCB of every segment. Times are this machine's.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Connections, for every algorithm [default: the paper's 3,600 for BSD and
    /// 5,040 for Sequent, ours beside them, and 100,000 for ours]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX as i64),
          allow_negative_numbers = true)]
    connections: Option<u32>,

    /// Hash chains of Sequent's table
    #[arg(long, value_name = "H", default_value = "19")]
    chains: NonZeroU32,

    /// Where all that is random begins
    #[arg(long, value_name = "N", default_value_t = 1992)]
    seed: u64,

    /// Draw PCBs examined by the number of connections into this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// The values of a run in the paper's text (§4).
#[derive(Serialize, Clone, Copy, Debug)]
struct Stated {
    setup_s: f64,
    examined: u64,
    segments: u64,
}

#[derive(Serialize, Debug)]
struct Row {
    algorithm: &'static str,
    connections: u32,
    paper: Option<Stated>,
    setup_ms: f64,
    total_ms: f64,
    examined_setup: u64,
    examined_client: u64,
    examined_server: u64,
    segments_client: u64,
    segments_server: u64,
    bytes: u64,
}

impl Row {
    fn new(settings: &Settings, report: &Report) -> Row {
        let ms = |ns: u64| ns as f64 / 1e6;
        Row {
            algorithm: settings.algorithm.name(),
            connections: settings.connections,
            paper: stated(settings),
            setup_ms: ms(report.setup_ns),
            total_ms: ms(report.total_ns),
            examined_setup: report.examined_setup,
            examined_client: report.examined[0],
            examined_server: report.examined[1],
            segments_client: report.segments[0],
            segments_server: report.segments[1],
            bytes: report.bytes,
        }
    }

    fn examined(&self) -> u64 {
        self.examined_client + self.examined_server
    }

    fn segments(&self) -> u64 {
        self.segments_client + self.segments_server
    }

    /// PCBs examined for a segment.
    fn each(&self) -> f64 {
        self.examined() as f64 / self.segments() as f64
    }
}

fn stated(settings: &Settings) -> Option<Stated> {
    let chains = settings.chains.get();
    let (setup_s, examined, segments) = match (settings.algorithm, settings.connections) {
        (Algorithm::Bsd, 3600) => (906.0, 84_000_000, 46_800),
        (Algorithm::Sequent, 5040) if chains == 19 => (193.0, 8_700_000, 65_520),
        _ => return None,
    };
    Some(Stated {
        setup_s,
        examined,
        segments,
    })
}

/// The paper's runs, and ours beside them.
const RUNS: [(Algorithm, u32); 5] = [
    (Algorithm::Bsd, 3600),
    (Algorithm::Weir, 3600),
    (Algorithm::Sequent, 5040),
    (Algorithm::Weir, 5040),
    (Algorithm::Weir, 100_000),
];

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let settings = |(algorithm, connections)| Settings {
        connections,
        algorithm,
        chains: args.chains,
        seed: args.seed,
    };
    let wanted: Vec<Settings> = match args.connections {
        None => RUNS.map(settings).to_vec(),
        Some(connections) => Algorithm::ALL
            .map(|algorithm| settings((algorithm, connections)))
            .to_vec(),
    };
    let (mut runs, mut left_out) = (Vec::new(), Vec::new());
    for settings in wanted {
        match settings.check() {
            Ok(()) => runs.push(settings),
            Err(SetupError::Lists(..)) => left_out.push(settings.algorithm.name()),
            Err(error) => return Err(CliError::refused(error)),
        }
    }
    plot::prepare(args.svg.as_deref())?;
    let rows = runs.iter().map(measure).collect::<Result<Vec<_>, _>>()?;
    if let Some(folder) = &args.svg {
        figure(folder, &runs)?;
    }
    let json = Json {
        chains: args.chains,
        seed: args.seed,
        runs: &rows,
        left_out: &left_out,
    };
    stdout::report(args.json, &json, || table(args, &rows, &left_out))
}

fn measure(settings: &Settings) -> Result<Row, CliError> {
    let start = Instant::now();
    // The stacks' clock does not start at zero: nothing is older than that.
    let mut clock = || 1_000_000_000 + start.elapsed().as_nanos() as u64;
    let report = open(settings, &mut clock).map_err(CliError::run)?;
    Ok(Row::new(settings, &report))
}

#[derive(Serialize)]
struct Json<'a> {
    chains: NonZeroU32,
    seed: u64,
    runs: &'a [Row],
    /// Algorithms whose lists would take too long.
    left_out: &'a [&'static str],
}

fn table(args: &Args, rows: &[Row], left_out: &[&'static str]) -> String {
    let columns = [
        Left("algorithm"),
        Right("connections"),
        Right("paper"),
        Right("set up"),
        Right("all"),
        Right("paper, PCBs"),
        Right("PCBs"),
        Right("till set up"),
        Right("paper, segments"),
        Right("segments"),
        Right("PCBs each"),
    ];
    let cells = rows.iter().map(|row| {
        let paper = |of: fn(&Stated) -> String| {
            let stated = row.paper.as_ref();
            stated.map_or_else(|| NOT_IN_OUR_COPY.to_owned(), of)
        };
        vec![
            row.algorithm.into(),
            format::grouped(row.connections.into()),
            paper(|stated| format!("{} s", stated.setup_s)),
            format!("{:.1} ms", row.setup_ms),
            format!("{:.1} ms", row.total_ms),
            paper(|stated| format::grouped(stated.examined)),
            format::grouped(row.examined()),
            format::grouped(row.examined_setup),
            paper(|stated| format::grouped(stated.segments)),
            format::grouped(row.segments()),
            format!("{:.2}", row.each()),
        ]
    });
    let left_out = match left_out {
        [] => String::new(),
        names => format!(
            "\nNot run, whose lists would take too long: {}.",
            names.join(", ")
        ),
    };
    format!(
        "Connections opened at once, five writes of 100 bytes on each: {} chains, seed {}\n\n{}\n\n\
         set up: from the first SYN to the last SYN-ACK at the client; all: until the server has \
         read everything;\nPCBs: examined by client and server.{left_out}",
        args.chains,
        args.seed,
        format::table(&columns, cells),
    )
}

/// Points of a curve.
const POINTS: u32 = 6;
/// Largest number of connections in the figure.
const FIGURE_MAX: u32 = 10_000;

/// PCBs examined for a segment, by the number of connections.
fn figure(folder: &Path, runs: &[Settings]) -> Result<(), CliError> {
    let mut curves = Vec::new();
    for algorithm in Algorithm::ALL {
        let of = runs.iter().filter(|run| run.algorithm == algorithm);
        let Some(last) = of.max_by_key(|run| run.connections.min(FIGURE_MAX)) else {
            continue;
        };
        let most = last.connections.min(FIGURE_MAX);
        let curve = (1..=POINTS).map(|part| {
            let connections = (most * part / POINTS).max(1);
            let row = measure(&Settings {
                connections,
                ..*last
            })?;
            Ok((f64::from(connections), row.each()))
        });
        let curve = curve.collect::<Result<Vec<_>, CliError>>()?;
        curves.push((algorithm.name().to_owned(), curve));
    }
    let frame = Frame {
        title: "PCBs examined for a segment while connections open at once",
        x: "connections",
        y: "PCBs examined",
    };
    let figure = draw(&frame, &curves, &[]);
    plot::write(folder, [("setup.svg".to_owned(), figure)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's two runs are among ours, and nothing else has its values.
    #[test]
    fn the_papers_values_stand_by_its_runs() {
        let of = |chains, (algorithm, connections)| {
            let chains = NonZeroU32::new(chains).unwrap();
            let settings = Settings {
                connections,
                algorithm,
                chains,
                seed: 1,
            };
            stated(&settings).map(|stated| (stated.setup_s, stated.examined, stated.segments))
        };
        let bsd = Some((906.0, 84_000_000, 46_800));
        let sequent = Some((193.0, 8_700_000, 65_520));
        assert_eq!(
            RUNS.map(|run| of(19, run)),
            [bsd, None, sequent, None, None]
        );
        assert_eq!(RUNS.map(|run| of(51, run)), [bsd, None, None, None, None]);
    }
}
