//! The measurements of RFC 2544 §26, made of trials.

use super::tester::{TrialResult, TrialSpec};
use super::{CheckResult, Error};
use crate::load::{Outcome, Rate, Search, SearchError, Trial};
use std::time::Duration;

/// What gives a trial: a [`Tester`](super::Tester), or a model in tests.
pub type RunTrial<'a> = dyn FnMut(TrialSpec) -> Result<TrialResult, Error> + 'a;

/// §26.1: the highest rate at which nothing is lost.
#[derive(Clone, PartialEq, Debug)]
pub struct Throughput {
    /// Frames per second really sent; `None` if frames are lost even at the
    /// lowest rate of the search.
    pub rate: Option<f64>,
    /// The sender set the limit, not the device: it may be faster.
    pub limited_by_sender: bool,
    /// All trials together: whether anything but loss was seen.
    pub judged: CheckResult,
    /// How many trials.
    pub trials: usize,
}

/// Searches the throughput. A frame that was damaged counts as lost, and one
/// that came twice as one.
///
/// # Errors
/// For a search without sense, and when a trial fails.
pub fn throughput(search: &Search, attempt: &mut RunTrial<'_>) -> Result<Throughput, Error> {
    let mut judged = CheckResult::default();
    let found = search.run(|rate, time| {
        let ask = at_rate(rate, time);
        let gave = attempt(ask)?;
        judged = judged.with(gave.checked);
        Ok::<_, Error>(Trial {
            sent: gave.checked.sent,
            received: gave.checked.good,
            elapsed: gave.sent.elapsed.max(Duration::from_nanos(1)),
        })
    });
    let Outcome {
        rate,
        limited_by_sender,
        trials,
    } = found.map_err(|error| match error {
        SearchError::Trial(error) => error,
        other => Error::Search(other.to_string()),
    })?;
    Ok(Throughput {
        rate,
        limited_by_sender,
        judged,
        trials: trials.len(),
    })
}

/// Frames of a trial at least, however slow: a device that loses one in a
/// thousand loses one of them.
const FRAMES_MIN: f64 = 2000.0;

/// So many frames a second for so long, or longer.
pub(super) fn at_rate(rate: f64, time: Duration) -> TrialSpec {
    TrialSpec {
        rate: Rate::PerSecond(rate),
        frames: (rate * time.as_secs_f64()).round().max(FRAMES_MIN) as u64,
    }
}

/// A trial of ten thousand frames at a gentle rate, for a
/// [`Whole`](super::CheckLevel::Whole) tester: whether the device passes on what it
/// is given.
///
/// # Errors
/// When the trial fails.
pub fn gentle(attempt: &mut RunTrial<'_>) -> Result<CheckResult, Error> {
    let gave = attempt(at_rate(GENTLE_RATE, GENTLE_TIME))?;
    Ok(gave.checked)
}

const GENTLE_RATE: f64 = 20_000.0;
const GENTLE_TIME: Duration = Duration::from_millis(500);

/// §26.2: how long frames are on the way.
#[derive(Clone, PartialEq, Debug)]
pub struct Latency {
    /// Frames per second that were sent.
    pub rate: f64,
    /// What became of them.
    pub judged: CheckResult,
    /// The shortest.
    pub min: Duration,
    /// Half of all are not longer.
    pub p50: Duration,
    /// Of ten, nine are not longer.
    pub p90: Duration,
    /// Of a hundred, 99 are not longer.
    pub p99: Duration,
    /// Of a thousand, 999 are not longer.
    pub p999: Duration,
    /// The longest.
    pub max: Duration,
    /// How many frames were timed.
    pub timed: usize,
}

/// Times every frame of one trial but for the first tenth, at a rate, with a
/// [`Timed`](super::CheckLevel::Timed) tester; `None` if none came.
///
/// # Errors
/// When the trial fails.
pub fn latency(
    rate: f64,
    time: Duration,
    attempt: &mut RunTrial<'_>,
) -> Result<Option<Latency>, Error> {
    let mut gave = attempt(at_rate(rate, time))?;
    gave.times.sort_unstable();
    let at = |share| percentile(&gave.times, share).map(Duration::from_nanos);
    let numbers = || {
        Some(Latency {
            rate: gave.sent.rate(),
            judged: gave.checked,
            min: at(0.0)?,
            p50: at(0.5)?,
            p90: at(0.9)?,
            p99: at(0.99)?,
            p999: at(0.999)?,
            max: at(1.0)?,
            timed: gave.times.len(),
        })
    };
    Ok(numbers())
}

/// The least of the sorted values that is not less than that share of them
/// (the nearest rank); the least of all for none, nothing where there is none.
pub fn percentile(sorted: &[u64], share: f64) -> Option<u64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let last = sorted.len().checked_sub(1)?;
    sorted.get(rank.saturating_sub(1).min(last)).copied()
}

/// §26.3: a point of the curve of loss.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LossPoint {
    /// The share of the highest rate that was asked for.
    pub share: f64,
    /// Frames per second that were sent.
    pub rate: f64,
    /// What became of them.
    pub judged: CheckResult,
}

impl LossPoint {
    /// The share of the frames that did not come as they should.
    pub fn lost(&self) -> f64 {
        let CheckResult { sent, good, .. } = self.judged;
        sent.saturating_sub(good) as f64 / (sent as f64).max(1.0)
    }
}

/// The curve of loss: from the highest rate down by tenths of it, until two
/// trials after each other lose nothing. The highest rate is what the sender
/// reaches at this device: a virtual link has no rate of its own.
///
/// # Errors
/// When a trial fails.
pub fn loss(time: Duration, attempt: &mut RunTrial<'_>) -> Result<Vec<LossPoint>, Error> {
    let highest = flat_rate(attempt)?;
    let (mut points, mut lossless) = (Vec::new(), 0);
    for tenths in (1..=10_u8).rev() {
        let share = f64::from(tenths) / 10.0;
        let gave = attempt(at_rate(highest * share, time))?;
        let point = LossPoint {
            share,
            rate: gave.sent.rate(),
            judged: gave.checked,
        };
        points.push(point);
        lossless = if point.lost() == 0.0 { lossless + 1 } else { 0 };
        if lossless == 2 {
            break;
        }
    }
    Ok(points)
}

/// Frames of the trial that finds the highest rate.
const FLAT_FRAMES: u64 = 200_000;

/// The highest rate that the sender reaches here.
fn flat_rate(attempt: &mut RunTrial<'_>) -> Result<f64, Error> {
    let flat = attempt(TrialSpec {
        rate: Rate::Flat,
        frames: FLAT_FRAMES,
    })?;
    Ok(flat.sent.rate())
}

/// §26.4: the longest burst at the highest rate of which nothing is lost.
#[derive(Clone, PartialEq, Debug)]
pub struct BackToBack {
    /// Frames of the burst, the mean of all rounds.
    pub frames: f64,
    /// The least of a round.
    pub frames_min: u64,
    /// The most of a round.
    pub frames_max: u64,
    /// Frames per second within a burst.
    pub rate: f64,
    /// No round met an end: the device takes the highest rate for as long as
    /// was tried.
    pub no_end: bool,
}

/// Searches the longest burst of at most that time in each of some rounds.
///
/// # Errors
/// When a trial fails.
pub fn back_to_back(
    longest: Duration,
    rounds: u32,
    attempt: &mut RunTrial<'_>,
) -> Result<BackToBack, Error> {
    let rate = flat_rate(attempt)?;
    let most = ((rate * longest.as_secs_f64()) as u64).max(1);
    let mut found = Vec::new();
    for _ in 0..rounds.max(1) {
        found.push(longest_burst(most, attempt)?);
    }
    let sum: u64 = found.iter().sum();
    Ok(BackToBack {
        frames: sum as f64 / found.len() as f64,
        frames_min: found.iter().copied().min().unwrap_or_default(),
        frames_max: found.iter().copied().max().unwrap_or_default(),
        rate,
        no_end: found.iter().all(|&burst| burst == most),
    })
}

/// The longest burst within a hundredth, of at most so many frames.
fn longest_burst(most: u64, attempt: &mut RunTrial<'_>) -> Result<u64, Error> {
    let mut passes = |frames| {
        let gave = attempt(TrialSpec {
            rate: Rate::Flat,
            frames,
        })?;
        Ok::<_, Error>(gave.checked.good == gave.checked.sent)
    };
    if passes(most)? {
        return Ok(most);
    }
    // `low` passes and `high` does not. First up by powers of four: most
    // bursts are much shorter than what was tried first.
    let (mut low, mut high) = (0, most);
    let mut next = 64;
    while next < high {
        if !passes(next)? {
            high = next;
            break;
        }
        low = next;
        next *= 4;
    }
    while high - low > (low / 100).max(1) {
        let middle = low + (high - low) / 2;
        if passes(middle)? {
            low = middle
        } else {
            high = middle
        }
    }
    Ok(low)
}
