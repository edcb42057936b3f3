//! The measurements, interleaved so that variations of the machine affect all
//! candidates.

use super::candidate::Candidate;
use super::report::{Report, Round};
use super::{Args, Test};
use crate::error::CliError;
use crate::signals::ShutdownSignal;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};
use weir_lab::load::{Rate, Search};
use weir_lab::rfc2544::{
    CheckLevel, CheckResult, Dut, Error, Running, Setup, Testbed, Tester, TrialResult, TrialSpec,
    back_to_back, gentle, latency, loss, throughput,
};

/// The longest burst tried, as a duration; 2 s in RFC 2544 §26.4.
const BURST_MAX: Duration = Duration::from_secs(2);

/// Number of searches for the longest burst; 50 in RFC 2544 §26.4.
const BURST_ROUNDS: u32 = 5;

/// Largest number of frames in a trial, from the highest rate and the longest
/// trial; each needs a bit, up to 128 MiB in total.
const FRAMES_MAX: u64 = 1 << 30;

/// Largest number of frames in a timed trial: each needs eight bytes.
const TIMED_MAX: u64 = 1 << 22;

/// Measures all candidates in turn, for each size and round, so that other load
/// on the machine affects all of them.
pub(super) fn measure(
    args: &Args,
    setup: &Setup,
    contestants: &[Candidate],
    stop: &ShutdownSignal,
) -> Result<Report, CliError> {
    if args.realtime {
        // This thread must not wait for the real-time threads that it is to
        // end: the sender and a program that never sleeps occupy both CPUs.
        weir_lab::affinity::set_foremost(None).map_err(CliError::run)?;
    }
    let names = contestants.iter().map(|one| one.name().to_owned());
    let mut report = Report::new(args, setup, names.collect());
    let steps = args.sizes.len() * args.repeat as usize * contestants.len();
    let bar = ProgressBar::new(steps as u64);
    let style = ProgressStyle::with_template("{bar:20} {pos}/{len} {elapsed} left {eta}  {msg}");
    bar.set_style(style.map_err(CliError::run)?);
    for &size in &args.sizes {
        for _ in 0..args.repeat {
            for (index, contestant) in contestants.iter().enumerate() {
                let mut work = SizeRun {
                    args,
                    stop,
                    bar: &bar,
                    size,
                    name: contestant.name(),
                    round: Round::default(),
                };
                let began = Instant::now();
                match work.all(contestant, setup) {
                    Ok(()) => {}
                    Err(Error::Stopped) => return Ok(report),
                    // Without privilege nothing can be compared.
                    Err(Error::Net(error @ weir_lab::net::Error::NotPermitted { .. })) => {
                        return Err(CliError::run(error));
                    }
                    Err(error) => work.round.troubles.push(error.to_string()),
                }
                bar.inc(1);
                // Without a terminal there is no progress bar.
                if bar.is_hidden() {
                    let (place, took) = (bar.position(), began.elapsed().as_secs_f64());
                    let name = contestant.name();
                    eprintln!("{place}/{steps} {name}, {size} B ({took:.1} s)");
                }
                report.add(index, size, work.round);
            }
        }
    }
    bar.finish_and_clear();
    Ok(report)
}

/// One candidate's turn at one size.
struct SizeRun<'a> {
    args: &'a Args,
    stop: &'a ShutdownSignal,
    bar: &'a ProgressBar,
    size: usize,
    name: &'a str,
    round: Round,
}

impl SizeRun<'_> {
    fn all(&mut self, contestant: &Candidate, setup: &Setup) -> Result<(), Error> {
        let setup = Setup {
            destinations: contestant.destinations,
            ..*setup
        };
        let bench = Testbed::new(contestant.layout(), &setup)?;
        let mut running = contestant.start(&bench)?;
        self.tests(&bench, running.as_mut())?;
        running.stop()
    }

    fn tests(&mut self, bench: &Testbed, running: &mut dyn Running) -> Result<(), Error> {
        let judged = self.with(bench, running, CheckLevel::Whole, "contents", gentle)?;
        self.faults("at 20,000 frames per second", judged, true);
        let wants = |test| self.args.tests.contains(&test);
        let [for_latency, for_loss, for_bursts] =
            [Test::Latency, Test::Loss, Test::BackToBack].map(wants);
        // Latency is measured at a share of the throughput.
        let share = self.args.latency_rate.is_none() && for_latency;
        if wants(Test::Throughput) || share {
            let search = self.args.search();
            let found = self.with(bench, running, CheckLevel::Quick, "throughput", |attempt| {
                throughput(&search, attempt)
            })?;
            self.faults("in search of the throughput", found.judged, false);
            self.round.throughput = Some(found);
        }
        if for_latency {
            self.latency(bench, running)?;
        }
        let time = self.args.duration;
        if for_loss {
            let points = self.with(bench, running, CheckLevel::Quick, "loss", |attempt| {
                loss(time, attempt)
            })?;
            self.round.loss = points;
        }
        if for_bursts {
            let found = self.with(
                bench,
                running,
                CheckLevel::Quick,
                "back-to-back",
                |attempt| back_to_back(BURST_MAX, BURST_ROUNDS, attempt),
            )?;
            self.round.back_to_back = Some(found);
        }
        Ok(())
    }

    fn latency(&mut self, bench: &Testbed, running: &mut dyn Running) -> Result<(), Error> {
        let of_throughput = || {
            let rate = self.round.throughput.as_ref()?.rate?;
            Some(rate * self.args.latency_at / 100.0)
        };
        let Some(rate) = self.args.latency_rate.or_else(of_throughput) else {
            return Ok(());
        };
        let time = self.args.confirm.max(self.args.duration);
        self.round.latency =
            self.with(bench, running, CheckLevel::Timed, "latency", |attempt| {
                latency(rate, time, attempt)
            })?;
        if let Some(found) = &self.round.latency {
            let judged = found.judged;
            self.faults("when latency was measured", judged, false);
        }
        Ok(())
    }

    /// Runs a measurement with its trials: shows progress, and stops on request
    /// or when the device under test has ended.
    fn with<T>(
        &self,
        bench: &Testbed,
        running: &mut dyn Running,
        level: CheckLevel,
        what: &str,
        measurement: impl FnOnce(
            &mut dyn FnMut(TrialSpec) -> Result<TrialResult, Error>,
        ) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let most = (Search::QUICK.rate_max * self.longest().as_secs_f64()) as u64;
        let most = most.min(if level == CheckLevel::Timed {
            TIMED_MAX
        } else {
            FRAMES_MAX
        });
        let asked = || self.stop.is_requested();
        let tester = Tester::new(bench, self.size, level, most.max(1 << 18))?;
        let mut tester = tester.stop_when(&asked);
        measurement(&mut |ask| {
            running.check()?;
            let rate = match ask.rate {
                Rate::Flat => String::from("as fast as it goes"),
                Rate::PerSecond(rate) => format!("{:.0} frames/s", rate),
            };
            self.bar
                .set_message(format!("{}, {} B, {what}: {rate}", self.name, self.size));
            let hurries = self.args.realtime;
            let mut hurry = |on| if hurries { running.hurry(on) } else { Ok(()) };
            tester.trial_with(ask, &mut hurry)
        })
    }

    fn longest(&self) -> Duration {
        let bursts = self.args.tests.contains(&Test::BackToBack);
        let burst = if bursts { BURST_MAX } else { Duration::ZERO };
        self.args.duration.max(self.args.confirm).max(burst)
    }

    /// Records violations that a bridge or router must not commit; counts loss
    /// only if `is_gentle`.
    fn faults(&mut self, when: &str, judged: CheckResult, is_gentle: bool) {
        let lost = if is_gentle { judged.lost() } else { 0 };
        for (count, what) in [
            (lost, "lost"),
            (judged.reordered, "out of order"),
            (judged.duplicated, "duplicated"),
            (judged.corrupted, "damaged"),
        ] {
            if count > 0 {
                let sent = crate::report::format::frames(judged.sent);
                let count = crate::report::format::grouped(count);
                self.round
                    .troubles
                    .push(format!("{count} of {sent} {what} {when}"));
            }
        }
    }
}
