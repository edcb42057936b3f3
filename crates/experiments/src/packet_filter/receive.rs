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

use super::bench_demux::BenchDemux;
use super::{Bench, MeasureError};
use std::ffi::OsString;
use std::io::{self, IoSlice, PipeWriter, Read, Write, pipe};
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
    bench: &Bench<'_>,
    frame_bytes: usize,
    filters: &[Filter],
    demultiplexed: Demultiplexed,
    batches: Batches,
) -> Result<f64, MeasureError> {
    let mut demux = BenchDemux::new(filters)?;
    let hook = Hook::XdpNative;
    let attach = || Dispatcher::attach(bench.eth_b.index(), hook, None);
    let dispatcher = bench.b.run(attach)?;
    dispatcher.set(&demux.program)?;
    let flow = bench.flow(frame_bytes);
    let mut generator = Generator::new(&bench.eth_a, &flow)?.realtime();
    let sending = bench
        .cpus
        .start_source(|| generator.start(u64::MAX, Rate::Flat))??;
    let received = match demultiplexed {
        Demultiplexed::InKernel => count(&mut demux.reader, batches, bench.time),
        Demultiplexed::ByProcess => pass_on(bench, &mut demux.reader, batches, frame_bytes),
    };
    sending.stop()?;
    bench.cpus.free()?;
    let (frames, elapsed) = received?;
    if frames == 0 {
        return Err(MeasureError::NoFrame);
    }
    Ok(elapsed.as_nanos() as f64 / frames as f64)
}

/// Gives `take` the batches of `time`, from the first on.
fn read(
    reader: &mut Reader,
    batches: Batches,
    time: Duration,
    mut take: impl FnMut(&Batch<'_>) -> Result<(), MeasureError>,
) -> Result<(u64, Duration), MeasureError> {
    let (mut frames, mut looked) = (0, 0);
    let (mut start, mut last) = (None, None);
    loop {
        if reader.wait(Some(FIRST_FRAME_TIMEOUT))? == Woke::TimedOut {
            return Err(MeasureError::FirstFrame);
        }
        let batch = reader.peek_at_most(batches.records_max())?;
        for frame in frames_of(&batch) {
            let number = Some(number(frame));
            if number <= last {
                return Err(MeasureError::OutOfOrder);
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
) -> Result<(u64, Duration), MeasureError> {
    read(reader, batches, time, |_| Ok(()))
}

/// Passes frames on through a pipe, and returns the count of the process at its
/// other end.
fn pass_on(
    bench: &Bench<'_>,
    reader: &mut Reader,
    batches: Batches,
    frame_bytes: usize,
) -> Result<(u64, Duration), MeasureError> {
    let read_bytes = match batches {
        Batches::No => frame_bytes,
        Batches::Yes => READ_BYTES,
    };
    let (mut child, mut pipe) = start_receiver(bench.receiver, frame_bytes, read_bytes)?;
    let passed = read(reader, batches, bench.time, |batch| {
        write_all(&mut pipe, batch)
    });
    drop(pipe);
    let mut said = String::new();
    let output = child
        .stdout
        .take()
        .map_or(Ok(0), |mut out| out.read_to_string(&mut said));
    let status = child.wait()?;
    passed?;
    output?;
    counted(&said).ok_or(MeasureError::Receiver { said, status })
}

/// Frames and nanoseconds, as [`receiver`] prints them.
fn counted(said: &str) -> Option<(u64, Duration)> {
    let (frames, nanos) = said.trim().split_once(' ')?;
    Some((
        frames.parse().ok()?,
        Duration::from_nanos(nanos.parse().ok()?),
    ))
}

fn start_receiver(
    command: &[OsString],
    frame_bytes: usize,
    read_bytes: usize,
) -> Result<(Child, PipeWriter), MeasureError> {
    let (input, pipe) = pipe().map_err(MeasureError::StartReceiver)?;
    let child = Command::new(&command[0])
        .args(&command[1..])
        .args([frame_bytes.to_string(), read_bytes.to_string()])
        .stdin(input)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(MeasureError::StartReceiver)?;
    Ok((child, pipe))
}

/// One system call for the batch, unless the pipe is full.
fn write_all(pipe: &mut PipeWriter, batch: &Batch<'_>) -> Result<(), MeasureError> {
    let mut frames = frames_of(batch);
    if batch.len() == 1 {
        let frame = frames.next().unwrap_or_default();
        return pipe.write_all(frame).map_err(MeasureError::Pipe);
    }
    let mut slices: Vec<IoSlice<'_>> = frames.map(IoSlice::new).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let written = pipe.write_vectored(rest).map_err(MeasureError::Pipe)?;
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

/// The process behind the pipe: counts frames from standard input. Returns how
/// many came after the first read, and in how long.
///
/// # Errors
/// If standard input cannot be read.
pub fn receiver(frame_bytes: usize, read_bytes: usize) -> Result<(usize, Duration), MeasureError> {
    let mut input = std::io::stdin().lock();
    let mut buffer = vec![0; read_bytes];
    let mut read = || rustix::io::read(&mut input, &mut buffer).map_err(io::Error::from);
    let first = read()?;
    let start = Instant::now();
    let (mut bytes, mut last) = (0, first);
    while last > 0 {
        last = read()?;
        bytes += last;
    }
    Ok((bytes / frame_bytes.max(1), start.elapsed()))
}
