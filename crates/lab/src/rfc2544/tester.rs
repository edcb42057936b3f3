//! Trials: frames sent at a rate through the device under test, and their
//! results.

use super::Error;
use super::checker::Expected;
use super::frame::{self, SHORTEST, SIZE_MAX, SIZE_MIN, TAG_AT, TIME_AT};
use super::receiver::{CheckResult, Receiver};
use super::testbed::Testbed;
use crate::load::{Generator, Rate, Sent, Template};
use std::fmt;
use std::thread;
use std::time::Duration;

/// Polling interval for the end of a trial and for a stop request.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Polling interval for the first frame.
const FIRST_FRAME_POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Learning frames in each direction (RFC 2544 §23), far enough apart for a
/// slow bridge.
const LEARNING_FRAMES: u64 = 8;
const LEARNING_RATE: f64 = 2000.0;

/// Bytes compared by [`CheckLevel::Quick`]: the headers, and those around the
/// number. A multiple of 8.
const COMPARED: usize = 64;

/// The settings of a trial.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TrialSpec {
    /// Frames per second, of all directions together.
    pub rate: Rate,
    /// Number of frames.
    pub frames: u64,
}

/// The result of a trial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrialResult {
    /// The sender's result.
    pub sent: Sent,
    /// The receivers' results, of all directions together.
    pub checked: CheckResult,
    /// Latencies in nanoseconds of the correct frames, except the first tenth,
    /// unordered; empty for an untimed trial.
    pub times: Vec<u64>,
}

/// How thoroughly frames are checked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CheckLevel {
    /// The length and the first 64 bytes: cheap for the receiver.
    Quick,
    /// Every byte.
    Whole,
    /// As `Quick`, with latencies. Each frame is sent separately.
    Timed,
}

/// Sends frames of one size through a device and checks those that arrive.
pub struct Tester<'a> {
    bench: &'a Testbed,
    stop: &'a dyn Fn() -> bool,
    directions: Vec<(usize, Template)>,
    level: CheckLevel,
    receivers: Vec<Receiver>,
    frames_max: u64,
    trials: u16,
    patient: bool,
}

impl fmt::Debug for Tester<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tester")
            .field("look", &self.level)
            .field("ways", &self.directions.len())
            .field("trials", &self.trials)
            .finish_non_exhaustive()
    }
}

impl<'a> Tester<'a> {
    /// For frames of that size, FCS included, from [`SIZE_MIN`] to
    /// [`SIZE_MAX`], and trials of at most `frames_max` frames.
    ///
    /// # Errors
    /// For another size, and without privilege.
    pub fn new(
        bench: &'a Testbed,
        size: usize,
        check: CheckLevel,
        frames_max: u64,
    ) -> Result<Tester<'a>, Error> {
        if !(SIZE_MIN..=SIZE_MAX).contains(&size) {
            return Err(Error::Size { size });
        }
        let setup = bench.setup();
        let from = if setup.both_ways { 0..2 } else { 0..1 };
        let (mut ways, mut receivers) = (Vec::new(), Vec::new());
        for from in from {
            let way = bench.direction(from);
            let mut template = frame::sent(&way, size, setup.seed);
            let len = template.frame.len();
            let expected = Expected {
                template: frame::expected(&way, &template),
                directions: if setup.both_ways { 2 } else { 1 },
                compared: if check == CheckLevel::Whole {
                    len
                } else {
                    COMPARED
                },
                timed: check == CheckLevel::Timed,
            };
            template.time_at = expected.timed.then_some(TIME_AT);
            let end = &bench.ends()[1 - from];
            receivers.push(Receiver::new(end, setup.sink, &expected, frames_max)?);
            ways.push((from, template));
        }
        let tester = Tester {
            bench,
            stop: &|| false,
            directions: ways,
            level: check,
            receivers,
            frames_max,
            trials: 0,
            patient: false,
        };
        tester.teach()?;
        Ok(tester)
    }

    /// Stops a trial, with [`Error::Stopped`], as soon as `stop` returns true.
    pub fn stop_when(self, stop: &'a dyn Fn() -> bool) -> Tester<'a> {
        Tester { stop, ..self }
    }

    /// Sends with the caller's priority instead of real-time priority: for a
    /// long run on a machine with other work, which then determines the rate.
    #[must_use]
    pub fn patient(self) -> Tester<'a> {
        Tester {
            patient: true,
            ..self
        }
    }

    /// Sends learning frames to a bridge.
    fn teach(&self) -> Result<(), Error> {
        if self.bench.layout().routes() {
            return Ok(());
        }
        let ends = self.bench.ends();
        let frames = [0, 1].map(|from| {
            let way = self.bench.direction(from);
            let mut template = frame::sent(&way, SIZE_MIN, 0);
            // A tag of no trial.
            template.frame[TAG_AT..SHORTEST].fill(0);
            (&ends[from], template)
        });
        let mut generator = self.generator(&frames)?;
        match generator.send(2 * LEARNING_FRAMES, Rate::PerSecond(LEARNING_RATE)) {
            // An end without a receiver accepts no frames, which is not an
            // error.
            Ok(_) | Err(crate::load::GeneratorError::NotTaken { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn generator(&self, ways: &[(&crate::net::Device, Template)]) -> Result<Generator, Error> {
        let cpu = self.bench.setup().cpus.tester;
        let generator = Generator::in_turn(ways)?.on_cpu(cpu);
        Ok(if self.patient {
            generator
        } else {
            generator.realtime()
        })
    }

    /// Sends, and waits until no more frames arrive.
    ///
    /// # Errors
    /// If the device accepts no frames at all, or the kernel refuses.
    pub fn trial(&mut self, spec: TrialSpec) -> Result<TrialResult, Error> {
        self.trial_with(spec, &mut |_| Ok(()))
    }

    /// As [`Tester::trial`]; calls `hurry` with true when the first frame was
    /// sent, and with false when the last one has arrived. In between, the
    /// device under test may monopolise its CPU
    /// ([`Running::hurry`](super::Running::hurry)), but not longer: before and
    /// after, the sender waits for other work of the kernel.
    ///
    /// # Errors
    /// As for [`Tester::trial`], and the errors of `hurry`.
    pub fn trial_with(
        &mut self,
        spec: TrialSpec,
        hurry: &mut dyn FnMut(bool) -> Result<(), Error>,
    ) -> Result<TrialResult, Error> {
        let frames = spec.frames.clamp(1, self.frames_max);
        // Never the tag of the learning frames.
        self.trials = self.trials.checked_add(1).unwrap_or(1);
        let tag = self.trials.to_be_bytes();
        let mut generator = self.trials_generator(tag)?;
        for receiver in &self.receivers {
            receiver.begin(tag, frames);
        }
        let sending = generator.start(frames, spec.rate)?;
        while sending.sent() == 0 && !sending.is_done() && !(self.stop)() {
            thread::sleep(FIRST_FRAME_POLL_INTERVAL);
        }
        hurry(true)?;
        while !sending.is_done() && !(self.stop)() {
            thread::sleep(POLL_INTERVAL);
        }
        let ways = self.receivers.len() as u64;
        let settle = self.bench.setup().settle;
        for (way, receiver) in (0..).zip(&self.receivers) {
            receiver.wait_drained(frames_in_direction(sending.sent(), way, ways), settle);
        }
        hurry(false)?;
        if (self.stop)() {
            sending.stop()?;
            return Err(Error::Stopped);
        }
        Ok(self.gave(sending.wait()?))
    }

    /// The generator of a trial's frames.
    fn trials_generator(&self, tag: [u8; 2]) -> Result<Generator, Error> {
        let ends = self.bench.ends();
        let ways = self.directions.iter().map(|(from, template)| {
            let mut template = template.clone();
            template.frame[TAG_AT..SHORTEST].copy_from_slice(&tag);
            (&ends[*from], template)
        });
        let generator = self.generator(&ways.collect::<Vec<_>>())?;
        Ok(match self.level {
            CheckLevel::Timed => generator.unbatched(),
            CheckLevel::Quick | CheckLevel::Whole => generator,
        })
    }

    fn gave(&self, sent: Sent) -> TrialResult {
        let mut judged = CheckResult::default();
        let mut times = Vec::new();
        let ways = self.receivers.len() as u64;
        for (way, receiver) in (0..).zip(&self.receivers) {
            judged = judged.with(receiver.judged(frames_in_direction(sent.frames, way, ways)));
            if self.level == CheckLevel::Timed {
                let mine = |number: &u64| number % ways == way;
                times.extend(receiver.times((sent.frames / 10..sent.frames).filter(mine)));
            }
        }
        TrialResult {
            sent,
            checked: judged,
            times,
        }
    }
}

/// Number of frames, of `frames` sent in turn, that go in direction `way`.
fn frames_in_direction(frames: u64, way: u64, ways: u64) -> u64 {
    frames / ways + u64::from(way < frames % ways)
}
