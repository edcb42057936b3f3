//! The measurements of RFC 2544 §26, each a series of trials.

use super::tester::{TrialResult, TrialSpec};
use super::{CheckResult, Error};
use crate::load::{Outcome, Rate, Search, SearchError, Trial};
use std::time::Duration;

/// Runs a trial: a [`Tester`](super::Tester), or a model in tests.
pub type RunTrial<'a> = dyn FnMut(TrialSpec) -> Result<TrialResult, Error> + 'a;

/// Throughput (§26.1): the highest rate without loss.
#[derive(Clone, PartialEq, Debug)]
pub struct Throughput {
    /// Frames per second achieved; `None` if frames are lost even at the lowest
    /// rate of the search.
    pub rate: Option<f64>,
    /// Whether the sender set the limit: the device may be faster.
    pub limited_by_sender: bool,
    /// The sum of all trials, which shows anything other than loss.
    pub judged: CheckResult,
    /// Number of trials.
    pub trials: usize,
}

/// Searches the throughput. A damaged frame counts as lost, a duplicated one as
/// one frame.
///
/// # Errors
/// For an invalid search, and if a trial fails.
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

/// Minimum number of frames in a trial, so that a loss of one in a thousand is
/// noticed at any rate.
const FRAMES_MIN: f64 = 2000.0;

/// A trial at that rate for that time or longer.
pub(super) fn at_rate(rate: f64, time: Duration) -> TrialSpec {
    TrialSpec {
        rate: Rate::PerSecond(rate),
        frames: (rate * time.as_secs_f64()).round().max(FRAMES_MIN) as u64,
    }
}

/// A trial of ten thousand frames at a low rate, for a
/// [`Whole`](super::CheckLevel::Whole) tester: tests that the device forwards
/// frames unchanged.
///
/// # Errors
/// If the trial fails.
pub fn gentle(attempt: &mut RunTrial<'_>) -> Result<CheckResult, Error> {
    let gave = attempt(at_rate(GENTLE_RATE, GENTLE_TIME))?;
    Ok(gave.checked)
}

const GENTLE_RATE: f64 = 20_000.0;
const GENTLE_TIME: Duration = Duration::from_millis(500);

/// Latency (§26.2): the frames' time in transit.
#[derive(Clone, PartialEq, Debug)]
pub struct Latency {
    /// Frames per second that were sent.
    pub rate: f64,
    /// The frames' results.
    pub judged: CheckResult,
    /// The minimum.
    pub min: Duration,
    /// The median.
    pub p50: Duration,
    /// The 90th percentile.
    pub p90: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The 99.9th percentile.
    pub p999: Duration,
    /// The maximum.
    pub max: Duration,
    /// Number of frames timed.
    pub timed: usize,
}

/// Times every frame of one trial, except the first tenth, at a rate, with a
/// [`Timed`](super::CheckLevel::Timed) tester; `None` if no frame arrived.
///
/// # Errors
/// If the trial fails.
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

/// The percentile of sorted values by nearest rank; the minimum for a share of
/// 0, `None` without values.
pub fn percentile(sorted: &[u64], share: f64) -> Option<u64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let last = sorted.len().checked_sub(1)?;
    sorted.get(rank.saturating_sub(1).min(last)).copied()
}

/// A point of the frame loss curve (§26.3).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LossPoint {
    /// The requested share of the highest rate.
    pub share: f64,
    /// Frames per second that were sent.
    pub rate: f64,
    /// The frames' results.
    pub judged: CheckResult,
}

impl LossPoint {
    /// The share of frames that did not arrive correctly.
    pub fn lost(&self) -> f64 {
        let CheckResult { sent, good, .. } = self.judged;
        sent.saturating_sub(good) as f64 / (sent as f64).max(1.0)
    }
}

/// The frame loss curve: from the highest rate down in steps of a tenth, until
/// two successive trials lose nothing. The highest rate is the one that the
/// sender reaches with this device: a virtual link has no rate of its own.
///
/// # Errors
/// If a trial fails.
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

/// Number of frames of the trial that finds the highest rate.
const FLAT_FRAMES: u64 = 200_000;

/// The highest rate that the sender reaches.
fn flat_rate(attempt: &mut RunTrial<'_>) -> Result<f64, Error> {
    let flat = attempt(TrialSpec {
        rate: Rate::Flat,
        frames: FLAT_FRAMES,
    })?;
    Ok(flat.sent.rate())
}

/// Back-to-back frames (§26.4): the longest burst at the highest rate without
/// loss.
#[derive(Clone, PartialEq, Debug)]
pub struct BackToBack {
    /// Frames of the burst, averaged over all rounds.
    pub frames: f64,
    /// The minimum over the rounds.
    pub frames_min: u64,
    /// The maximum over the rounds.
    pub frames_max: u64,
    /// Frames per second within a burst.
    pub rate: f64,
    /// Whether no round found a limit: the device sustains the highest rate for
    /// the whole time.
    pub no_end: bool,
}

/// Searches the longest burst of at most that time, in several rounds.
///
/// # Errors
/// If a trial fails.
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

/// The longest burst to within 1 %, of at most `most` frames.
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
    // `low` passes and `high` does not. Starts upwards by powers of four: most
    // bursts are much shorter than `most`.
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
