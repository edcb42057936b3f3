//! `weir experiment packet-filter`: the 1987 paper's measurements, §6.

mod bench_demux;
mod cost;
mod cpus;
mod paper;
mod receive;
mod report;
mod send;

use crate::error::CliError;
use crate::filterset::compile::Compiler;
use crate::report::stdout;
use bench_demux::BenchDemux;
use cost::Kind;
use cpus::Cpus;
use indicatif::{ProgressBar, ProgressStyle};
use receive::{Batches, Demultiplexed, receive};
use report::{BreakEven, Line, Report, Row};
use std::time::Duration;
use weir_demux::Filter;
use weir_filter::lang::Language;
use weir_lab::load::{Template, Udp};
use weir_lab::net::{Device, Host, Lab, Offloads};
use weir_wire::LinkType;

/// Measure what the 1987 paper measured, on this machine's kernel
///
/// Repeats section 6 of Mogul, Rashid and Accetta, "The Packet Filter": what
/// it costs to send (table 6-1), to receive with the kernel or with a process
/// as the demultiplexer (6-8, 6-9), to interpret filters (6-10), to test one
/// more filter (section 6.1), and how many filters it would take for a
/// process to be better (section 6.5.3). As root, in network namespaces that
/// the command makes and that go with it. Other work on the machine shows.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// How long each measurement takes, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300,
          value_parser = clap::value_parser!(u64).range(10..=60_000))]
    each: u64,

    /// How often each is made; the best counts
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    /// Be the process behind the pipe: frames of so many bytes on standard
    /// input, in reads of at most so many
    #[arg(long, hide = true, num_args = 2, value_names = ["FRAME", "READ"])]
    receiver: Option<Vec<usize>>,
}

/// Bytes of the paper's frames.
const SIZES: [usize; 2] = [128, 1500];

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if let Some(sizes) = &args.receiver {
        return receive::receiver(sizes[0], sizes[1]);
    }
    let report = Bench::new(args)?.measure()?;
    stdout::report(args.json, &report.json(), || report.table())
}

/// Two hosts, and how to measure.
struct Bench {
    _lab: Lab,
    b: Host,
    eth_a: Device,
    eth_b: Device,
    cpus: Cpus,
    time: Duration,
    rounds: u32,
    progress: ProgressBar,
}

/// Measurements, for the progress bar.
const STEPS: u64 = 6 + 8 + 4 + 3;

impl Bench {
    fn new(args: &Args) -> Result<Bench, CliError> {
        let lab = Lab::new();
        let host = |name| lab.host(name).map_err(CliError::run);
        let (a, b) = (host("a")?, host("b")?);
        let link = lab
            .link(&a, &b)
            .addresses(send::A, send::B, 24)
            .neighbours()
            // As in 1987, datagrams carry no checksums.
            .offloads(Offloads {
                tx_checksums: true,
                ..Offloads::OFF
            });
        let (eth_a, eth_b) = link.connect().map_err(CliError::run)?;
        let progress = ProgressBar::new(STEPS);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
            progress.set_style(style);
        }
        Ok(Bench {
            _lab: lab,
            b,
            eth_a,
            eth_b,
            cpus: Cpus::new()?,
            time: Duration::from_millis(args.each),
            rounds: args.rounds,
            progress,
        })
    }

    fn measure(&self) -> Result<Report, CliError> {
        let mut rows = Vec::new();
        self.sending(&mut rows)?;
        let [kernel, process] = self.receiving(&mut rows)?;
        self.interpreting(&mut rows)?;
        let lines = self.lines()?;
        let break_even = lines
            .iter()
            .map(|line| BreakEven::new(line, process - kernel))
            .collect();
        self.progress.finish_and_clear();
        Ok(Report {
            rows,
            lines,
            break_even,
            time: self.time,
            rounds: self.rounds,
        })
    }

    /// The least of some rounds, in nanoseconds.
    fn best(
        &self,
        what: &str,
        mut measure: impl FnMut() -> Result<f64, CliError>,
    ) -> Result<f64, CliError> {
        self.progress.set_message(what.to_owned());
        let mut best = f64::INFINITY;
        for _ in 0..self.rounds {
            best = best.min(measure()?);
        }
        self.progress.inc(1);
        Ok(best)
    }

    /// Table 6-1.
    fn sending(&self, rows: &mut Vec<Row>) -> Result<(), CliError> {
        for (bytes, paper) in SIZES.into_iter().zip(paper::SEND) {
            let way = |what: &'static str, paper, ns| Row::new("6-1", what, Some(bytes), paper, ns);
            let frame = self.frame(bytes);
            let ns = self.best("sending", || {
                send::frames(&self.eth_a, &self.eth_b, &frame, 1, self.time)
            })?;
            rows.push(way("send, packet filter", Some(paper.0), ns));
            let ns = self.best("sending", || send::datagrams(self, bytes))?;
            rows.push(way("send, UDP", Some(paper.1), ns));
            let ns = self.best("sending", || {
                send::frames(&self.eth_a, &self.eth_b, &frame, 64, self.time)
            })?;
            rows.push(way("send, packet filter, 64 a call", None, ns));
        }
        Ok(())
    }

    /// Tables 6-8 and 6-9; gives the costs of the kernel and of a process
    /// with batches, for the shorter frames.
    fn receiving(&self, rows: &mut Vec<Row>) -> Result<[f64; 2], CliError> {
        let all = [self.stack_filter(0)?];
        let mut short = [0.0; 2];
        let tables = [
            ("6-8", Batches::No, paper::RECEIVE),
            ("6-9", Batches::Yes, paper::RECEIVE_BATCHES),
        ];
        for (table, batches, paper) in tables {
            for (bytes, paper) in SIZES.into_iter().zip(paper) {
                let ways = [
                    (Demultiplexed::InKernel, "receive, kernel", paper.0),
                    (Demultiplexed::ByProcess, "receive, user process", paper.1),
                ];
                for (place, (demultiplexed, what, paper)) in ways.into_iter().enumerate() {
                    let ns =
                        self.best(what, || receive(self, bytes, &all, demultiplexed, batches))?;
                    if bytes == SIZES[0] {
                        short[place] = ns;
                    }
                    rows.push(Row::new(table, what, Some(bytes), Some(paper), ns));
                }
            }
        }
        Ok(short)
    }

    /// Table 6-10.
    fn interpreting(&self, rows: &mut Vec<Row>) -> Result<(), CliError> {
        let frame = self.frame(SIZES[0]);
        for (instructions, paper) in paper::INSTRUCTIONS {
            let filter = [self.stack_filter(instructions)?];
            let what = format!("receive, instructions: {instructions}");
            let ns = self.best(&what, || {
                let kernel = Demultiplexed::InKernel;
                receive(self, SIZES[0], &filter, kernel, Batches::Yes)
            })?;
            let alone = cost::program(&mut BenchDemux::new(&filter)?, &frame)?;
            let row = Row::new("6-10", &what, Some(SIZES[0]), Some(paper), ns);
            rows.push(row.with_program(alone));
        }
        Ok(())
    }

    /// §6.1's line, for several kinds of filters.
    fn lines(&self) -> Result<Vec<Line>, CliError> {
        let frame = self.frame(SIZES[0]);
        let line = |kind: Kind| {
            self.progress.set_message("testing filters");
            let points = cost::points(kind, &frame);
            self.progress.inc(1);
            Ok(Line::new(kind, points?))
        };
        Kind::ALL.into_iter().map(line).collect()
    }

    /// Frames of one flow, from a to b.
    fn flow(&self, bytes: usize) -> Udp {
        Udp {
            frame_bytes: bytes,
            ..Udp::new(self.eth_a.mac(), self.eth_b.mac(), send::A, send::B)
        }
    }

    /// One of them.
    fn frame(&self, bytes: usize) -> Vec<u8> {
        Template::from(&self.flow(bytes)).frame
    }

    /// A filter of the stack language with so many instructions: two for each
    /// field it compares, and one more. It accepts the flow.
    fn stack_filter(&self, instructions: usize) -> Result<Filter, CliError> {
        /// Words of the frame that no frame of the flow differs in.
        const WORDS: [usize; 10] = [6, 7, 8, 10, 11, 13, 14, 15, 16, 18];
        let frame = self.frame(SIZES[0]);
        let fields = WORDS.iter().take(instructions / 2);
        let mut text: String = fields
            .map(|word| {
                let value = u16::from_be_bytes([frame[2 * word], frame[2 * word + 1]]);
                format!("PUSHWORD+{word}, PUSHLIT | CAND, {value},\n")
            })
            .collect();
        if instructions > 0 {
            text += "PUSHONE\n";
        }
        let compiled = Compiler::default()
            .compile(Language::Cspf, text.as_bytes(), LinkType::EN10MB)
            .map_err(CliError::run)?;
        Ok(Filter::new(compiled.program))
    }
}
