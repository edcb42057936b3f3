//! The receiving end, with its checker.

use super::checker::{self, Expected, shared};
use super::{Error, SinkKind};
use crate::net::Device;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use weir_link::bpf::{Attachment, Load, Map, MapMemory, MapSpec, Program};

/// Polling interval for the last frame.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Results of a trial's frames in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CheckResult {
    /// Frames sent.
    pub sent: u64,
    /// Correct frames, each counted once.
    pub good: u64,
    /// Duplicates of received frames.
    pub duplicated: u64,
    /// Correct frames received after one sent later (RFC 4737 §3.3).
    pub reordered: u64,
    /// Frames of the trial with wrong length or bytes.
    pub corrupted: u64,
    /// Frames that are not part of the trial: the device's own, and late ones
    /// of an earlier trial.
    pub other: u64,
}

impl CheckResult {
    /// Frames that did not arrive, not even damaged.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.good + self.corrupted)
    }

    /// The sum of both results.
    pub(super) fn with(self, more: CheckResult) -> CheckResult {
        CheckResult {
            sent: self.sent + more.sent,
            good: self.good + more.good,
            duplicated: self.duplicated + more.duplicated,
            reordered: self.reordered + more.reordered,
            corrupted: self.corrupted + more.corrupted,
            other: self.other + more.other,
        }
    }
}

/// A checker at a device. Dropping it removes the program.
#[derive(Debug)]
pub(super) struct Receiver {
    shared: MapMemory,
    seen: MapMemory,
    times: MapMemory,
    _attachment: Attachment,
}

impl Receiver {
    /// Attaches to a device, for trials of at most `frames_max` frames.
    pub(super) fn new(
        device: &Device,
        sink: SinkKind,
        expected: &Expected,
        frames_max: u64,
    ) -> Result<Receiver, Error> {
        let entries = |count: u64| u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let array = |name, value_bytes, count| {
            let spec = MapSpec {
                mmapable: true,
                ..MapSpec::array(value_bytes, entries(count))
            };
            Map::create(name, &spec)
        };
        let times_max = if expected.timed { frames_max } else { 1 };
        // In the order of their indices.
        let maps = [
            array("judge", shared::BYTES, 1)?,
            array("seen", 8, frames_max.div_ceil(64))?,
            array("times", 8, times_max)?,
        ];
        let hook = sink.hook();
        let load = Load {
            name: "judge",
            maps: &maps.each_ref().map(AsFd::as_fd),
            ..Load::at(hook)
        };
        let program = Program::load(&checker::program(hook, expected), &load)?;
        let attach = || Attachment::new(&program, device.index(), hook);
        let [shared, seen, times] = maps;
        Ok(Receiver {
            _attachment: device.host().run(attach)?,
            shared: shared.map_memory(true)?,
            seen: seen.map_memory(true)?,
            times: times.map_memory(true)?,
        })
    }

    /// Clears the results, and checks the frames of that trial from now on.
    pub(super) fn begin(&self, tag: [u8; 2], frames: u64) {
        self.set(shared::LIMIT, 0);
        for word in 0..frames.div_ceil(64) as usize {
            if let Some(cell) = self.seen.u64(word, 0) {
                cell.store(0, Ordering::Relaxed);
            }
        }
        for counter in [
            shared::NEXT,
            shared::GOOD,
            shared::DUPLICATED,
            shared::REORDERED,
            shared::CORRUPTED,
            shared::OTHER,
        ] {
            self.set(counter, 0);
        }
        self.set(shared::TAG, u16::from_ne_bytes(tag).into());
        self.set(shared::LIMIT, frames);
    }

    /// The results so far, of `sent` frames.
    pub(super) fn judged(&self, sent: u64) -> CheckResult {
        CheckResult {
            sent,
            good: self.get(shared::GOOD),
            duplicated: self.get(shared::DUPLICATED),
            reordered: self.get(shared::REORDERED),
            corrupted: self.get(shared::CORRUPTED),
            other: self.get(shared::OTHER),
        }
    }

    /// Waits until all sent frames have arrived, or none has arrived for that
    /// time.
    pub(super) fn wait_drained(&self, sent: u64, patience: Duration) {
        let came = || self.get(shared::GOOD) + self.get(shared::CORRUPTED);
        let (mut last, mut since) = (came(), Instant::now());
        while last < sent && since.elapsed() < patience {
            thread::sleep(POLL_INTERVAL);
            let now = came();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }

    /// The latencies, in nanoseconds, of a timed trial's correct frames with
    /// these numbers, unsorted.
    pub(super) fn times(&self, numbers: impl Iterator<Item = u64>) -> Vec<u64> {
        let came = |number: &u64| {
            let word = self.seen.load_u64((number / 64) as usize, 0);
            word.is_some_and(|word| word >> (number % 64) & 1 == 1)
        };
        let time = |number| self.times.load_u64(number as usize, 0);
        numbers.filter(came).filter_map(time).collect()
    }

    fn get(&self, offset: usize) -> u64 {
        let value = self.shared.load_u64(0, offset);
        value.expect("the map was made for these numbers")
    }

    fn set(&self, offset: usize, value: u64) {
        let cell = self.shared.u64(0, offset);
        let cell = cell.expect("the map was made for these numbers");
        cell.store(value, Ordering::Release);
    }
}
