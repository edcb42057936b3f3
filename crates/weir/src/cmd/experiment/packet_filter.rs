//! `weir experiment packet-filter`: the 1987 paper's measurements, §6.

mod report;

use crate::error::CliError;
use crate::report::stdout;
use indicatif::{ProgressBar, ProgressStyle};
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;
use weir_experiments::packet_filter::{
    Bench, Figures, MeasureError, Progress, STEPS, Settings, receiver,
};

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
          value_parser = clap::value_parser!(u64).range(10..=60_000),
          allow_negative_numbers = true)]
    each: u64,

    /// How often each is made; the best counts
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=100), allow_negative_numbers = true)]
    rounds: u32,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    /// Be the process behind the pipe: frames of this many bytes on standard
    /// input, in reads of at most this many
    #[arg(long, hide = true, num_args = 2, value_names = ["FRAME", "READ"])]
    receiver: Option<Vec<usize>>,
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if let Some(sizes) = &args.receiver {
        let (frames, elapsed) = receiver(sizes[0], sizes[1]).map_err(CliError::run)?;
        return writeln!(io::stdout(), "{frames} {}", elapsed.as_nanos()).map_err(CliError::output);
    }
    let figures = measure(args).map_err(CliError::run)?;
    stdout::report(args.json, &report::json(&figures), || {
        report::table(&figures)
    })
}

fn measure(args: &Args) -> Result<Figures, MeasureError> {
    let this = std::env::current_exe().map_err(MeasureError::StartReceiver)?;
    let words = ["experiment", "packet-filter", "--receiver"].map(OsString::from);
    let bar = ProgressBar::new(STEPS);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
        bar.set_style(style);
    }
    let figures = Bench::new(&Settings {
        time: Duration::from_millis(args.each),
        rounds: args.rounds,
        receiver: &[&[this.into()][..], &words].concat(),
        progress: &Bar(&bar),
    })?
    .measure()?;
    bar.finish_and_clear();
    Ok(figures)
}

/// Settings of a bench without a display of its steps, for another measurement.
pub(super) fn bench_settings<T>(
    time: Duration,
    rounds: u32,
    measure: impl FnOnce(&Settings<'_>) -> T,
) -> Result<T, CliError> {
    let this = std::env::current_exe().map_err(MeasureError::StartReceiver);
    let this = this.map_err(CliError::run)?;
    let words = ["experiment", "packet-filter", "--receiver"].map(OsString::from);
    let bar = ProgressBar::hidden();
    Ok(measure(&Settings {
        time,
        rounds,
        receiver: &[&[this.into()][..], &words].concat(),
        progress: &Bar(&bar),
    }))
}

/// The steps, shown on a terminal.
struct Bar<'a>(&'a ProgressBar);

impl Progress for Bar<'_> {
    fn begin(&self, step: &str) {
        self.0.set_message(step.to_owned());
    }

    fn done(&self) {
        self.0.inc(1);
    }
}
