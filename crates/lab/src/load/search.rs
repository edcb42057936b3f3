//! The highest rate at which no frame is lost: throughput, as RFC 2544 §26.1
//! defines it.

use std::time::Duration;

/// The range and precision of a search.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Search {
    /// The lowest rate, in frames per second; a device that loses frames even here has no
    /// throughput.
    pub rate_min: f64,
    /// The highest rate, in frames per second.
    pub rate_max: f64,
    /// The ratio between the next higher tried rate and the result, minus one: 0.02 for two per
    /// cent.
    pub resolution: f64,
    /// Number of attempts before a rate counts as lossy, or as unreachable for the sender. RFC 2544
    /// allows one; more tolerate a machine with other load.
    pub attempts_max: u32,
    /// Duration of a trial of the search.
    pub trial: Duration,
    /// Duration of the last trial, which confirms the rate; at least 60 s by RFC 2544 §24, 0 for
    /// none.
    pub confirmation: Duration,
}

impl Search {
    /// From 1,000 to 20 million frames per second within 2 %, single trials of 0.2 s, no
    /// confirmation.
    pub const QUICK: Search = Search {
        rate_min: 1e3,
        rate_max: 2e7,
        resolution: 0.02,
        attempts_max: 1,
        trial: Duration::from_millis(200),
        confirmation: Duration::ZERO,
    };
}

/// The result of one trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trial {
    /// Frames sent.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
    /// Duration of sending.
    pub elapsed: Duration,
}

impl Trial {
    /// Frames lost.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    /// The rate achieved, in frames per second.
    pub fn rate(&self) -> f64 {
        self.sent as f64 / self.elapsed.as_secs_f64()
    }
}

/// A trial and its requested rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RatedTrial {
    /// Requested rate, in frames per second.
    pub rate: f64,
    /// The trial.
    pub trial: Trial,
}

/// The result of a search.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// The highest rate found without loss, in frames per second achieved; `None` if frames are
    /// lost even at the lowest rate.
    pub rate: Option<f64>,
    /// Whether the sender, not the device, set the limit: the sender did not reach a higher rate,
    /// or the highest rate passed.
    pub limited_by_sender: bool,
    /// Every trial, in order.
    pub trials: Vec<RatedTrial>,
}

/// Why a search ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum SearchError<E> {
    /// Invalid rates or resolution.
    #[error(
        "no search from {rate_min} to {rate_max} frames per second within {resolution}: rates and resolution must be positive and the first rate the lower one"
    )]
    Plan {
        /// The lowest rate.
        rate_min: f64,
        /// The highest.
        rate_max: f64,
        /// The resolution.
        resolution: f64,
    },
    /// More frames were received than sent: the count is wrong, or frames from another source
    /// arrived.
    #[error("{received} frames received of {sent} sent: something else is counted as well")]
    MoreThanSent {
        /// Frames sent.
        sent: u64,
        /// Frames received.
        received: u64,
    },
    /// The trial failed.
    #[error(transparent)]
    Trial(#[from] E),
}

impl Search {
    /// Searches with `trial`, which sends at a rate for a time and counts the frames received.
    ///
    /// The candidate rates are `rate_max` and those below it in steps of the resolution. The search
    /// bisects them, so that the number of trials is bounded and the same trials give the same
    /// result.
    ///
    /// # Errors
    /// For invalid rates or resolution, and if a trial fails.
    pub fn run<E>(
        &self,
        trial: impl FnMut(f64, Duration) -> Result<Trial, E>,
    ) -> Result<Outcome, SearchError<E>> {
        let steps = self.steps().ok_or(SearchError::Plan {
            rate_min: self.rate_min,
            rate_max: self.rate_max,
            resolution: self.resolution,
        })?;
        let mut run = Run {
            search: self,
            trial,
            trials: Vec::new(),
            best: None,
            sender_is_slow: false,
        };
        // Lossless below `low`; lossy or unreachable from `high` on.
        let (mut low, mut high) = (0, steps + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if run.try_rate(self.rate(middle, steps), self.trial)? {
                low = middle + 1
            } else {
                high = middle
            }
        }
        let all_pass = high > steps;
        if !self.confirmation.is_zero() {
            run.best = None;
            run.confirm(low, steps)?;
        }
        Ok(Outcome {
            rate: run.best,
            limited_by_sender: run.best.is_some() && (all_pass || run.sender_is_slow),
            trials: run.trials,
        })
    }

    /// Number of steps between the lowest and the highest rate.
    fn steps(&self) -> Option<u32> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let fine = [self.rate_min, self.rate_max, self.resolution];
        if !fine.into_iter().all(positive) || self.rate_min > self.rate_max {
            return None;
        }
        Some(((self.rate_max / self.rate_min).ln() / self.resolution.ln_1p()) as u32)
    }

    fn rate(&self, step: u32, steps: u32) -> f64 {
        self.rate_max / (1.0 + self.resolution).powf(f64::from(steps - step))
    }
}

struct Run<'a, F> {
    search: &'a Search,
    trial: F,
    trials: Vec<RatedTrial>,
    /// The highest rate achieved without loss.
    best: Option<f64>,
    /// The sender did not reach the lowest failing rate, and nothing was lost at it.
    sender_is_slow: bool,
}

impl<F> Run<'_, F> {
    /// Whether a higher rate may be possible: in one of the attempts nothing was lost and the
    /// sender reached the rate.
    fn try_rate<E>(&mut self, asked: f64, time: Duration) -> Result<bool, SearchError<E>>
    where
        F: FnMut(f64, Duration) -> Result<Trial, E>,
    {
        let mut lost = true;
        for _ in 0..self.search.attempts_max.max(1) {
            if !self.is_lossless(asked, time)? {
                continue;
            }
            lost = false;
            let sent = self.trials.last().map_or(0.0, |tried| tried.trial.rate());
            if sent * (1.0 + self.search.resolution) >= asked {
                return Ok(true);
            }
        }
        self.sender_is_slow = !lost;
        Ok(false)
    }

    /// Confirms the rate below step `end`, or finds a lower rate that can be confirmed, in doubling
    /// steps and then by bisection. A device that withstands a high rate only briefly thus costs
    /// few additional long trials.
    fn confirm<E>(&mut self, end: u32, steps: u32) -> Result<(), SearchError<E>>
    where
        F: FnMut(f64, Duration) -> Result<Trial, E>,
    {
        let time = self.search.confirmation;
        // The rate below `pass` was confirmed; `fail` and above were not.
        let (mut pass, mut fail, mut step) = (0, end + 1, 1);
        let mut next = end;
        while next > 0 {
            if self.passes(self.search.rate(next - 1, steps), time)? {
                pass = next;
                break;
            }
            fail = next;
            next = next.saturating_sub(step);
            step *= 2;
        }
        while fail - pass > 1 {
            let middle = pass + (fail - pass) / 2;
            if self.passes(self.search.rate(middle - 1, steps), time)? {
                pass = middle
            } else {
                fail = middle
            }
        }
        Ok(())
    }

    /// Whether nothing is lost at that rate in one of the attempts.
    fn passes<E>(&mut self, asked: f64, time: Duration) -> Result<bool, SearchError<E>>
    where
        F: FnMut(f64, Duration) -> Result<Trial, E>,
    {
        for _ in 0..self.search.attempts_max.max(1) {
            if self.is_lossless(asked, time)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// One attempt.
    fn is_lossless<E>(&mut self, asked: f64, time: Duration) -> Result<bool, SearchError<E>>
    where
        F: FnMut(f64, Duration) -> Result<Trial, E>,
    {
        let trial = (self.trial)(asked, time)?;
        self.trials.push(RatedTrial { rate: asked, trial });
        let Trial { sent, received, .. } = trial;
        if received > sent {
            return Err(SearchError::MoreThanSent { sent, received });
        }
        let is_lossless = received == sent && sent > 0;
        if is_lossless {
            self.best = Some(
                self.best
                    .map_or(trial.rate(), |best| best.max(trial.rate())),
            );
        }
        Ok(is_lossless)
    }
}
