//! The search for the lossless rate, on models with a known answer.

use std::convert::Infallible;
use std::time::Duration;
use weir_lab::load::{Outcome, Search, SearchError, Trial};
use weir_lab::rng::Rng;

const TRIAL: Duration = Duration::from_millis(500);

/// A sender with a maximum rate `sender`, and a receiver that loses frames
/// above `receiver`.
struct Model {
    sender: f64,
    receiver: f64,
}

impl Model {
    fn trial(&self, rate: f64, elapsed: Duration) -> Result<Trial, Infallible> {
        let seconds = elapsed.as_secs_f64();
        let sent = (rate.min(self.sender) * seconds).ceil() as u64;
        let kept = (self.receiver * seconds) as u64;
        Ok(Trial {
            sent,
            received: sent.min(kept),
            elapsed,
        })
    }

    fn search(&self, search: &Search) -> Outcome {
        search.run(|rate, time| self.trial(rate, time)).unwrap()
    }
}

fn plan(resolution: f64) -> Search {
    Search {
        resolution,
        trial: TRIAL,
        ..Search::QUICK
    }
}

#[test]
fn it_finds_any_capacity_within_the_resolution() {
    let seed = 0x7f4a_2544;
    let mut rng = Rng::new(seed);
    for round in 0..500 {
        let resolution = [0.001, 0.01, 0.02, 0.1][round % 4];
        // Uniform over the orders of magnitude from 10^3.3 to 10^7.
        let receiver = 10f64.powf(3.3 + 3.7 * rng.below(1 << 20) as f64 / f64::from(1 << 20));
        let outcome = Model {
            sender: f64::INFINITY,
            receiver,
        }
        .search(&plan(resolution));
        let rate = outcome.rate.expect("the least rate passes");
        let why = format!("seed {seed:#x} round {round}: {receiver} found as {rate}");
        // One frame more or less in a trial of half a second.
        assert!(rate <= receiver + 2.0, "{why}");
        assert!(rate * (1.0 + resolution) >= receiver - 5.0, "{why}");
        assert!(!outcome.limited_by_sender, "{why}");
        let steps = (2e4f64).ln() / resolution.ln_1p();
        let bound = (steps + 1.0).log2().ceil() as usize + 1;
        assert!(
            outcome.trials.len() <= bound,
            "{why}: {}",
            outcome.trials.len()
        );
    }
}

#[test]
fn the_same_trials_give_the_same_outcome() {
    let model = Model {
        sender: f64::INFINITY,
        receiver: 1.234e6,
    };
    assert_eq!(model.search(&plan(0.01)), model.search(&plan(0.01)));
}

#[test]
fn what_loses_everything_has_no_rate() {
    let outcome = Model {
        sender: f64::INFINITY,
        receiver: 0.0,
    }
    .search(&plan(0.02));
    assert_eq!(outcome.rate, None);
    assert!(!outcome.limited_by_sender);
}

#[test]
fn a_slow_sender_is_told_from_a_slow_receiver() {
    for receiver in [4e6, f64::INFINITY] {
        let outcome = Model {
            sender: 3e6,
            receiver,
        }
        .search(&plan(0.02));
        assert!(outcome.limited_by_sender);
        assert_eq!(outcome.rate, Some(3e6));
    }
    let outcome = Model {
        sender: 3e6,
        receiver: 2e6,
    }
    .search(&plan(0.02));
    assert!(!outcome.limited_by_sender);
    // Not even the highest rate is too high: the search's range sets the limit.
    let outcome = Model {
        sender: f64::INFINITY,
        receiver: f64::INFINITY,
    }
    .search(&plan(0.02));
    assert!(outcome.limited_by_sender);
    assert_eq!(outcome.rate, Some(2e7));
}

/// Loses one frame in some trials at any rate.
#[test]
fn attempts_forgive_noise_and_one_attempt_does_not() {
    let search = |attempts_max| {
        let mut trials = 0;
        let search = Search {
            attempts_max,
            ..plan(0.02)
        };
        let noisy = |rate: f64, elapsed: Duration| {
            trials += 1;
            let sent = (rate * elapsed.as_secs_f64()) as u64;
            let lost = u64::from(rate > 5e6 || trials % 2 == 1);
            Ok::<_, Infallible>(Trial {
                sent,
                received: sent - lost,
                elapsed,
            })
        };
        search.run(noisy).unwrap().rate
    };
    assert!(search(2).unwrap() * 1.02 >= 5e6 - 10.0);
    assert!(search(1).is_none_or(|rate| rate * 1.02 < 4.9e6));
}

/// A queue that hides an excessive rate in a short trial.
#[test]
fn a_longer_trial_at_the_end_corrects_the_rate() {
    let (capacity, queue) = (1e6, 1e5);
    let trial = |rate: f64, elapsed: Duration| {
        let sent = (rate * elapsed.as_secs_f64()) as u64;
        let kept = (capacity * elapsed.as_secs_f64() + queue) as u64;
        Ok::<_, Infallible>(Trial {
            sent,
            received: sent.min(kept),
            elapsed,
        })
    };
    let short = plan(0.02).run(trial).unwrap().rate.unwrap();
    assert!(short > 1.15e6, "{short}");
    let confirmed = Search {
        confirmation: Duration::from_secs(60),
        ..plan(0.02)
    };
    let outcome = confirmed.run(trial).unwrap();
    let rate = outcome.rate.unwrap();
    assert!(rate <= 1.002e6 && rate * 1.02 >= 1e6, "{rate}");
    let last = outcome.trials.last().unwrap();
    assert_eq!(last.trial.elapsed, Duration::from_secs(60));
}

/// Withstands bursts at any rate, but only low rates for longer: long trials
/// are few.
#[test]
fn a_device_that_bears_bursts_is_confirmed_in_few_trials() {
    let trial = |rate: f64, elapsed: Duration| {
        let sent = (rate * elapsed.as_secs_f64()) as u64;
        let capacity = if elapsed > TRIAL { 5e4 } else { 1e7 };
        let kept = (capacity * elapsed.as_secs_f64()) as u64;
        Ok::<_, Infallible>(Trial {
            sent,
            received: sent.min(kept),
            elapsed,
        })
    };
    let search = Search {
        confirmation: 4 * TRIAL,
        attempts_max: 3,
        ..plan(0.02)
    };
    let outcome = search.run(trial).unwrap();
    let rate = outcome.rate.unwrap();
    assert!(rate <= 5e4 && rate * 1.02 >= 5e4 - 1.0, "{rate}");
    let long = outcome.trials.iter();
    let long = long.filter(|tried| tried.trial.elapsed > TRIAL).count();
    assert!(long <= 48, "{long} long trials");
}

#[test]
fn nonsense_is_refused() {
    let model = Model {
        sender: 1e9,
        receiver: 1e9,
    };
    let wrong = [
        Search {
            rate_min: 0.0,
            ..Search::QUICK
        },
        Search {
            rate_min: 3e7,
            ..Search::QUICK
        },
        Search {
            resolution: 0.0,
            ..Search::QUICK
        },
        Search {
            resolution: f64::NAN,
            ..Search::QUICK
        },
        Search {
            rate_max: f64::INFINITY,
            ..Search::QUICK
        },
    ];
    for search in wrong {
        let error = search
            .run(|rate, time| model.trial(rate, time))
            .unwrap_err();
        assert!(matches!(error, SearchError::Plan { .. }), "{error}");
    }
    let more = |_: f64, elapsed: Duration| {
        Ok::<_, Infallible>(Trial {
            sent: 5,
            received: 6,
            elapsed,
        })
    };
    let error = Search::QUICK.run(more).unwrap_err();
    assert!(matches!(error, SearchError::MoreThanSent { .. }), "{error}");
}
