//! `weir experiment adapter`: what protocols cost by the kernel and by ours.

pub(super) mod program;
mod report;
mod under_exec;

use crate::error::{CliError, say};
use crate::report::plot;
use crate::report::stdout;
use crate::signals::ShutdownSignal;
use report::{Latency, Report, Throughput};
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use std::time::Instant;
use weir_experiments::adapter::program::SIZES;
use weir_experiments::adapter::{End, Split, Transport, World, pair, round_trips, transfer};
use weir_stack::iface::Mode;

/// Measure what TCP and UDP cost in the kernel and in the application's process
///
/// Repeats section 4 of Biersack and Rütsche, "Demultiplexing on the ATM
/// Adapter" (1996): one-byte round trips, split into the client's sending, the
/// server's receiving and sending, and the client's receiving; and throughput
/// by message size. SYS is the kernel; MUX is our stack as it finds each
/// packet's connection by its headers, OPT with a channel and a precomputed
/// header filter for the connection. Both hosts are in this process, on one
/// thread; what moves frames between them is not counted. Round trips go by the
/// clock, throughput by processor time. SYS needs root: it
/// runs in network namespaces that go with the command, its link is a TAP
/// interface. Our text of the paper has none of its tables.
///
/// Then one unmodified program, with ordinary sockets, measures round trips and
/// throughput by the clock under `weir exec --stack sys`, `mux` and `opt`: client
/// and server are processes in two network namespaces, with a veth pair between
/// them, whose costs are counted. It needs root, and libweir_exec.so where `weir
/// exec` looks for it; without them it is left out.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Round trips of a round
    #[arg(long, value_name = "N", default_value_t = 5000,
          value_parser = clap::value_parser!(u32).range(10..=10_000_000),
          allow_negative_numbers = true)]
    trips: u32,

    /// Megabytes that a throughput is measured by
    #[arg(long, value_name = "MB", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=10_000), allow_negative_numbers = true)]
    megabytes: u32,

    /// How often each is measured, in turns; the best counts
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=100), allow_negative_numbers = true)]
    rounds: u32,

    /// How often the program runs under each stack, in turns; the medians count
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(0..=100), allow_negative_numbers = true)]
    program_rounds: u32,

    /// Draw throughput by message size into this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Messages of one throughput, at most: small ones take long for a megabyte.
const MESSAGES_MAX: usize = 20_000;

const SEED: u64 = 1996;
/// The stacks' clock does not start at zero: nothing is older than that.
const START_NS: u64 = 1_000_000_000;

/// Whose protocols.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protocols {
    Sys,
    Mux,
    Opt,
}

impl Protocols {
    const ALL: [Protocols; 3] = [Protocols::Sys, Protocols::Mux, Protocols::Opt];

    /// The paper's name.
    fn name(self) -> &'static str {
        match self {
            Protocols::Sys => "SYS",
            Protocols::Mux => "MUX",
            Protocols::Opt => "OPT",
        }
    }

    /// The word of `weir exec --stack`.
    fn word(self) -> &'static str {
        match self {
            Protocols::Sys => "sys",
            Protocols::Mux => "mux",
            Protocols::Opt => "opt",
        }
    }

    /// How our stack is to be, if it is ours.
    fn mode(self) -> Option<Mode> {
        match self {
            Protocols::Sys => None,
            Protocols::Mux => Some(Mode::Mux),
            Protocols::Opt => Some(Mode::Opt),
        }
    }
}

fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    }
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    plot::prepare(args.svg.as_deref())?;
    let kernels = match World::new() {
        Ok(world) => Some(world),
        Err(failure) => {
            say(&format!("weir: SYS is left out: {failure}"));
            None
        }
    };
    let mut report = Report::new(args.trips, args.rounds);
    for transport in [Transport::Tcp, Transport::Udp] {
        for _ in 0..args.rounds {
            for protocols in Protocols::ALL {
                measure(args, kernels.as_ref(), transport, protocols, &mut report)?;
            }
        }
    }
    // A signal ended the command until here; from here on it ends processes, too.
    let stop = ShutdownSignal::watch_hangup_too()?;
    let ran = under_exec::run(args.program_rounds, args.trips, &stop);
    if let Some(why) = &ran.left_out {
        say(&format!(
            "weir: the program under `weir exec` is left out: {why}"
        ));
    }
    report.program(&ran);
    if let Some(folder) = &args.svg {
        report.draw(folder)?;
    }
    stdout::report(args.json, &report, || report.table())?;
    if stop.is_requested() {
        return Err(CliError::Stopped(stop.signal()));
    }
    Ok(())
}

/// One round of all that is measured of these protocols.
fn measure(
    args: &Args,
    kernels: Option<&World>,
    transport: Transport,
    protocols: Protocols,
    report: &mut Report,
) -> Result<(), CliError> {
    let (latency, throughput) = match (protocols.mode(), kernels) {
        (Some(mode), _) => both(args, || Ok(pair(mode, transport, SEED, START_NS)))?,
        (None, Some(world)) => both(args, || world.pair(transport).map_err(CliError::run))?,
        (None, None) => return Ok(()),
    };
    report.latency(Latency::new(transport, protocols, &latency));
    for (bytes, gbit_s) in SIZES.into_iter().zip(throughput) {
        report.throughput(Throughput {
            transport: name(transport),
            protocols: protocols.name(),
            bytes,
            gbit_s,
        });
    }
    Ok(())
}

/// Round trips, and throughput by message size, each between new ends.
fn both<E: End>(
    args: &Args,
    ends: impl Fn() -> Result<(E, E), CliError>,
) -> Result<(Split, Vec<f64>), CliError> {
    let latency = latency(args, ends()?)?;
    Ok((latency, throughput(args, ends()?)?))
}

fn latency<E: End>(args: &Args, (mut client, mut server): (E, E)) -> Result<Split, CliError> {
    let start = Instant::now();
    let mut clock = || START_NS + start.elapsed().as_nanos() as u64;
    let mut trips = |count| round_trips(&mut client, &mut server, count, 1, &mut clock);
    // Until the caches are warm.
    trips(args.trips / 10).map_err(CliError::run)?;
    trips(args.trips).map_err(CliError::run)
}

/// By this thread's processor time, so that other work does not count.
fn throughput<E: End>(args: &Args, (mut client, mut server): (E, E)) -> Result<Vec<f64>, CliError> {
    let time = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let start_ns = time();
    let mut clock = || START_NS + time() - start_ns;
    let rate = |bytes: usize| {
        let messages = (args.megabytes as usize * 1_000_000 / bytes).clamp(1, MESSAGES_MAX);
        let total = messages * bytes;
        let mut send = |total| transfer(&mut client, &mut server, bytes, total, &mut clock);
        // Until the windows are open.
        send(messages.div_ceil(4) * bytes).map_err(CliError::run)?;
        let ns = send(total).map_err(CliError::run)?;
        Ok(total as f64 * 8.0 / ns.max(1) as f64)
    };
    SIZES.into_iter().map(rate).collect()
}
