//! The bench of the packet filter's tables: two hosts and a link, on which each figure is
//! measured in turn.

use super::bench_demux::BenchDemux;
use super::cost::{self, Kind};
use super::cpus::Cpus;
use super::receive::{Batches, Demultiplexed, receive};
use super::{BreakEven, Figures, Line, MeasureError, Row, filters, paper, send};
use std::ffi::OsString;
use std::time::Duration;
use weir_demux::Filter;
use weir_lab::load::{Template, Udp};
use weir_lab::net::{Device, Host, Lab, Offloads};

/// Bytes of the paper's frames.
const SIZES: [usize; 2] = [128, 1500];

/// Two hosts, and how to measure.
pub struct Bench<'a> {
    _lab: Lab,
    pub(super) b: Host,
    pub(super) eth_a: Device,
    pub(super) eth_b: Device,
    pub(super) cpus: Cpus,
    pub(super) time: Duration,
    rounds: u32,
    pub(super) receiver: &'a [OsString],
    progress: &'a dyn Progress,
}

/// Settings of a measurement.
pub struct Settings<'a> {
    /// How long each figure is measured.
    pub time: Duration,
    /// How often; the best counts.
    pub rounds: u32,
    /// The program and first words of the process behind the pipe: a command
    /// that runs [`receiver`](super::receiver) with the two numbers that follow
    /// them, and prints its two results with a blank between.
    pub receiver: &'a [OsString],
    /// The report of each step.
    pub progress: &'a dyn Progress,
}

/// Reports of the steps of a measurement.
pub trait Progress: Sync {
    /// A step begins.
    fn begin(&self, step: &str);
    /// The step is done.
    fn done(&self);
}

/// Steps of a measurement.
pub const STEPS: u64 = 6 + 8 + 4 + 3;

impl<'a> Bench<'a> {
    /// Makes two hosts and their link, which go with the value.
    ///
    /// # Errors
    /// If there is no right to make network namespaces.
    pub fn new(settings: &Settings<'a>) -> Result<Bench<'a>, MeasureError> {
        let lab = Lab::new();
        let (a, b) = (lab.host("a")?, lab.host("b")?);
        let link = lab
            .link(&a, &b)
            .addresses(send::A, send::B, 24)
            .neighbours()
            // As in 1987, datagrams carry no checksums.
            .offloads(Offloads {
                tx_checksums: true,
                ..Offloads::OFF
            });
        let (eth_a, eth_b) = link.connect()?;
        Ok(Bench {
            _lab: lab,
            b,
            eth_a,
            eth_b,
            cpus: Cpus::new()?,
            time: settings.time,
            rounds: settings.rounds,
            receiver: settings.receiver,
            progress: settings.progress,
        })
    }

    /// Measures all figures.
    ///
    /// # Errors
    /// If something of the measurement fails.
    pub fn measure(&self) -> Result<Figures, MeasureError> {
        let mut rows = Vec::new();
        self.sending(&mut rows)?;
        let [kernel, process] = self.receiving(&mut rows)?;
        self.interpreting(&mut rows)?;
        let lines = self.lines()?;
        let break_even = lines
            .iter()
            .map(|line| BreakEven::new(line, process - kernel))
            .collect();
        Ok(Figures {
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
        mut measure: impl FnMut() -> Result<f64, MeasureError>,
    ) -> Result<f64, MeasureError> {
        self.progress.begin(what);
        let mut best = f64::INFINITY;
        for _ in 0..self.rounds {
            best = best.min(measure()?);
        }
        self.progress.done();
        Ok(best)
    }

    /// Table 6-1.
    fn sending(&self, rows: &mut Vec<Row>) -> Result<(), MeasureError> {
        for (bytes, paper) in SIZES.into_iter().zip(paper::SEND) {
            let row = |what: &'static str, paper, ns| Row::new("6-1", what, Some(bytes), paper, ns);
            let frame = self.frame(bytes);
            let ns = self.best("sending", || {
                send::frames(&self.eth_a, &self.eth_b, &frame, 1, self.time)
            })?;
            rows.push(row("send, packet filter", Some(paper.0), ns));
            let ns = self.best("sending", || send::datagrams(self, bytes))?;
            rows.push(row("send, UDP", Some(paper.1), ns));
            let ns = self.best("sending", || {
                send::frames(&self.eth_a, &self.eth_b, &frame, 64, self.time)
            })?;
            rows.push(row("send, packet filter, 64 a call", None, ns));
        }
        Ok(())
    }

    /// Tables 6-8 and 6-9; gives the costs of the kernel and of a process
    /// with batches, for the shorter frames.
    fn receiving(&self, rows: &mut Vec<Row>) -> Result<[f64; 2], MeasureError> {
        let all = [self.stack_filter(0)?];
        let mut short = [0.0; 2];
        let tables = [
            ("6-8", Batches::No, paper::RECEIVE),
            ("6-9", Batches::Yes, paper::RECEIVE_BATCHES),
        ];
        for (table, batches, paper) in tables {
            for (bytes, paper) in SIZES.into_iter().zip(paper) {
                let demultiplexers = [
                    (Demultiplexed::InKernel, "receive, kernel", paper.0),
                    (Demultiplexed::ByProcess, "receive, user process", paper.1),
                ];
                for (index, (demultiplexed, what, paper)) in demultiplexers.into_iter().enumerate()
                {
                    let ns =
                        self.best(what, || receive(self, bytes, &all, demultiplexed, batches))?;
                    if bytes == SIZES[0] {
                        short[index] = ns;
                    }
                    rows.push(Row::new(table, what, Some(bytes), Some(paper), ns));
                }
            }
        }
        Ok(short)
    }

    /// Nanoseconds for a received frame of this length, one at a time: with the kernel
    /// as the demultiplexer, and with a process (table 6-8).
    ///
    /// # Errors
    /// If something of the measurement fails.
    pub fn one_at_a_time(&self, frame_bytes: usize) -> Result<[f64; 2], MeasureError> {
        let all = [self.stack_filter(0)?];
        let measure = |demultiplexed| {
            self.best("receive", || {
                receive(self, frame_bytes, &all, demultiplexed, Batches::No)
            })
        };
        Ok([
            measure(Demultiplexed::InKernel)?,
            measure(Demultiplexed::ByProcess)?,
        ])
    }

    /// Table 6-10.
    fn interpreting(&self, rows: &mut Vec<Row>) -> Result<(), MeasureError> {
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
    fn lines(&self) -> Result<Vec<Line>, MeasureError> {
        let frame = self.frame(SIZES[0]);
        let line = |kind: Kind| {
            self.progress.begin("testing filters");
            let points = cost::points(kind, &frame);
            self.progress.done();
            Ok(Line::new(kind, points?))
        };
        Kind::ALL.into_iter().map(line).collect()
    }

    /// Frames of one flow, from a to b.
    pub(super) fn flow(&self, bytes: usize) -> Udp {
        Udp {
            frame_bytes: bytes,
            ..Udp::new(self.eth_a.mac(), self.eth_b.mac(), send::A, send::B)
        }
    }

    /// One of them.
    fn frame(&self, bytes: usize) -> Vec<u8> {
        Template::from(&self.flow(bytes)).frame
    }

    /// A filter of the stack language with this many instructions: two for each
    /// field it compares, and one more. It accepts the flow.
    fn stack_filter(&self, instructions: usize) -> Result<Filter, MeasureError> {
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
        filters::stack_language(&text)
    }
}
