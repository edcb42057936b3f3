//! Tables 6-8 and 6-9: the cost of receiving, with demultiplexing in the kernel
//! or in a process.
//!
//! ```text
//!  kernel   generator ─► link ─► plan ─► ring ─► this process
//!  process  generator ─► link ─► plan ─► ring ─► this process ─► pipe ─► another
//! ```
//!
//! The generator offers more frames than the receiver takes: the receiver never
//! waits for frames, only for its turn on the CPU.

use super::Bench;
use super::bench_demux::BenchDemux;
use crate::error::CliError;
use std::io::{IoSlice, PipeWriter, Read, Write, pipe};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weir_demux::Filter;
use weir_demux::kernel::record::Record;
use weir_lab::load::{Generator, Rate};
use weir_link::bpf::Hook;
use weir_link::live::Dispatcher;
use weir_ring::{Batch, Reader, Woke};

/// Who gives frames to their receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Demultiplexed {
    /// The kernel.
    InKernel,
    /// A process, through a pipe.
    ByProcess,
}

/// Whether frames are taken, and passed on, many at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Batches {
    No,
    Yes,
}

impl Batches {
    fn records_max(self) -> usize {
        match self {
            Batches::No => 1,
            Batches::Yes => usize::MAX,
        }
    }
}

/// How long to wait for the first frame.
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of frames between two readings of the clock.
const FRAMES_PER_CLOCK_READ: u64 = 256;

/// Bytes of a read from the pipe, with batches: all that a pipe holds.
const READ_BYTES: usize = 64 << 10;

/// Where the generator writes the frame's number: behind the UDP header.
const NUMBER: usize = 42;

/// Nanoseconds for each frame that arrives where it should.
pub(super) fn receive(
    bench: &Bench,
    frame_bytes: usize,
    filters: &[Filter],
    demultiplexed: Demultiplexed,
    batches: Batches,
) -> Result<f64, CliError> {
    let mut divider = BenchDemux::new(filters)?;
    let hook = Hook::XdpNative;
    let attach = || Dispatcher::attach(bench.eth_b.index(), hook, None);
    let dispatcher = bench.b.run(attach).map_err(CliError::run)?;
    dispatcher.set(&divider.program).map_err(CliError::run)?;
    let flow = bench.flow(frame_bytes);
    let generator = Generator::new(&bench.eth_a, &flow).map_err(CliError::run)?;
    let mut generator = generator.realtime();
    let sending = bench
        .cpus
        .start_source(|| generator.start(u64::MAX, Rate::Flat))?;
    let sending = sending.map_err(CliError::run)?;
    let received = match demultiplexed {
        Demultiplexed::InKernel => count(&mut divider.reader, batches, bench.time),
        Demultiplexed::ByProcess => pass_on(&mut divider.reader, batches, bench.time, frame_bytes),
    };
    sending.stop().map_err(CliError::run)?;
    bench.cpus.free()?;
    let (frames, elapsed) = received?;
    if frames == 0 {
        return Err(CliError::run("no frame arrived"));
    }
    Ok(elapsed.as_nanos() as f64 / frames as f64)
}

/// Gives `take` the batches of `time`, from the first on.
fn read(
    reader: &mut Reader,
    batches: Batches,
    time: Duration,
    mut take: impl FnMut(&Batch<'_>) -> Result<(), CliError>,
) -> Result<(u64, Duration), CliError> {
    let (mut frames, mut looked) = (0, 0);
    let (mut start, mut last) = (None, None);
    loop {
        if reader
            .wait(Some(FIRST_FRAME_TIMEOUT))
            .map_err(CliError::run)?
            == Woke::TimedOut
        {
            return Err(CliError::run("no frame arrived for seconds"));
        }
        let batch = reader.peek_at_most(batches.records_max());
        let batch = batch.map_err(CliError::run)?;
        for frame in frames_of(&batch) {
            let number = Some(number(frame));
            if number <= last {
                return Err(CliError::run("frames arrived out of order"));
            }
            last = number;
        }
        take(&batch)?;
        let Some(start) = start else {
            start = Some(Instant::now());
            continue;
        };
        frames += batch.len() as u64;
        if frames - looked >= FRAMES_PER_CLOCK_READ {
            looked = frames;
            let elapsed = Instant::now() - start;
            if elapsed >= time {
                return Ok((frames, elapsed));
            }
        }
    }
}

/// The frames of a batch; records of another format are skipped.
fn frames_of<'a>(batch: &'a Batch<'_>) -> impl Iterator<Item = &'a [u8]> {
    batch
        .iter()
        .filter_map(|record| Some(Record::parse(record).ok()?.bytes))
}

/// The generator's number for a frame.
fn number(frame: &[u8]) -> u64 {
    let bytes = frame.get(NUMBER..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn count(
    reader: &mut Reader,
    batches: Batches,
    time: Duration,
) -> Result<(u64, Duration), CliError> {
    read(reader, batches, time, |_| Ok(()))
}

/// Passes frames on through a pipe, and returns the count of the process at its
/// other end.
fn pass_on(
    reader: &mut Reader,
    batches: Batches,
    time: Duration,
    frame_bytes: usize,
) -> Result<(u64, Duration), CliError> {
    let read_bytes = match batches {
        Batches::No => frame_bytes,
        Batches::Yes => READ_BYTES,
    };
    let (mut child, mut pipe) = start_receiver(frame_bytes, read_bytes)?;
    let passed = read(reader, batches, time, |batch| write_all(&mut pipe, batch));
    drop(pipe);
    let mut counted = String::new();
    let heard = child
        .stdout
        .take()
        .map(|mut out| out.read_to_string(&mut counted));
    let ended = child.wait().map_err(CliError::run)?;
    passed?;
    let odd = || CliError::run(format!("the receiver said `{counted}` and ended ({ended})"));
    heard.ok_or_else(odd)?.map_err(CliError::run)?;
    let (frames, nanos) = counted.trim().split_once(' ').ok_or_else(odd)?;
    let [frames, nanos] = [frames, nanos].map(|number| number.parse::<u64>().ok());
    let nanos = Duration::from_nanos(nanos.ok_or_else(odd)?);
    Ok((frames.ok_or_else(odd)?, nanos))
}

fn start_receiver(frame_bytes: usize, read_bytes: usize) -> Result<(Child, PipeWriter), CliError> {
    let failed =
        |error| CliError::run(format!("cannot start the process behind the pipe: {error}"));
    let (input, pipe) = pipe().map_err(failed)?;
    let this = std::env::current_exe().map_err(failed)?;
    let child = Command::new(this)
        .args(["experiment", "packet-filter", "--receiver"])
        .args([frame_bytes.to_string(), read_bytes.to_string()])
        .stdin(input)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    Ok((child, pipe))
}

/// One system call for the batch, unless the pipe is full.
fn write_all(pipe: &mut PipeWriter, batch: &Batch<'_>) -> Result<(), CliError> {
    let failed = |error| CliError::run(format!("the pipe to the receiver: {error}"));
    let mut frames = frames_of(batch);
    if batch.len() == 1 {
        let frame = frames.next().unwrap_or_default();
        return pipe.write_all(frame).map_err(failed);
    }
    let mut slices: Vec<IoSlice<'_>> = frames.map(IoSlice::new).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        let written = pipe.write_vectored(left).map_err(failed)?;
        IoSlice::advance_slices(&mut left, written);
    }
    Ok(())
}

/// The process behind the pipe: counts frames from standard input, and prints
/// how many came after the first read, and in how many nanoseconds.
pub(super) fn receiver(frame_bytes: usize, read_bytes: usize) -> Result<(), CliError> {
    let mut input = std::io::stdin().lock();
    let mut buffer = vec![0; read_bytes];
    let mut read = || rustix::io::read(&mut input, &mut buffer).map_err(CliError::run);
    let first = read()?;
    let start = Instant::now();
    let (mut bytes, mut last) = (0, first);
    while last > 0 {
        last = read()?;
        bytes += last;
    }
    let elapsed = start.elapsed().as_nanos();
    let frames = bytes / frame_bytes.max(1);
    writeln!(std::io::stdout(), "{frames} {elapsed}").map_err(CliError::output)
}
