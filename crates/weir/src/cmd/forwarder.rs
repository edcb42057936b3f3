//! What all commands that forward between links of a tap share (`bridge`, `shape`, `route`, `run` and its short
//! forms): reports at intervals, signs of life, messages, the orderly end, and the removal of what was left.

use crate::cmd::meter::forwarding as meter;
use crate::error::{CliError, say};
use crate::idle_links::IdleLinks;
use crate::input::tap_args::StatsArgs;
use crate::longest::MtuWarnings;
use crate::report::metrics::{Exposition, Metrics};
use crate::report::stats_file::StatsFile;
use crate::report::tx_burst::{TxBurstMode, TxBurstReport};
use crate::signals::ShutdownSignal;
use crate::watchdog::Watchdog;
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use weir_tap::{Tap, TapError};

/// Interval of the reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// What a command reports, as JSON and as metrics.
pub(super) trait Shown: Serialize {
    /// The metrics.
    fn exposition(&self) -> Exposition;
}

/// Where reports go.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    pub(super) json: Option<StatsFile>,
    pub(super) metrics: Option<Metrics>,
}

impl Outputs {
    /// The outputs that these options name. A process that a supervisor has started does not fail because
    /// of them.
    pub(super) fn open(args: &StatsArgs, is_supervised: bool) -> Result<Outputs, CliError> {
        let json = args.stats_json.as_deref().map(|path| {
            if is_supervised {
                Ok(StatsFile::of(path))
            } else {
                StatsFile::open(path)
            }
        });
        let json = json.transpose()?;
        let metrics = match args.metrics.map(Metrics::serve) {
            Some(Err(error)) if is_supervised => {
                say(&format!("weir: {error}"));
                None
            }
            metrics => metrics.transpose()?,
        };
        Ok(Outputs { json, metrics })
    }

    /// Writes the last report, if there is one.
    pub(super) fn end(self, report: Option<&impl Shown>) -> Result<(), CliError> {
        let written = self.json.zip(report);
        written.map_or(Ok(()), |(file, report)| file.end(report))
    }
}

/// A command that forwards.
#[derive(Debug)]
pub(super) struct Forwarder {
    pub(super) life: Watchdog,
    stop: ShutdownSignal,
    outputs: Outputs,
    tx_burst: TxBurstMode,
    longest: MtuWarnings,
    idle: IdleLinks,
    is_ready: bool,
    /// When a report was due last.
    reported: Option<Instant>,
    /// Why the host filter was refused.
    refused: Option<String>,
}

impl Forwarder {
    /// Raises the priority of the process; without privilege it keeps its normal one.
    pub(super) fn new(
        life: Watchdog,
        stop: ShutdownSignal,
        outputs: Outputs,
        tx_burst: TxBurstMode,
    ) -> Forwarder {
        let _ = weir_link::xdp::raise_priority();
        Forwarder {
            life,
            stop,
            outputs,
            tx_burst,
            longest: MtuWarnings::default(),
            idle: IdleLinks::default(),
            is_ready: false,
            reported: None,
            refused: None,
        }
    }

    /// What ends a wait for frames.
    pub(super) fn wakes(&self) -> Result<OwnedFd, CliError> {
        self.stop.wakes()
    }

    /// Where metrics are served.
    pub(super) fn metrics(&self) -> Option<&Metrics> {
        self.outputs.metrics.as_ref()
    }

    /// Whether frames were forwarded: [`look`](Self::look) was called before the end.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Whether a signal has asked for the end, which the service manager hears.
    pub(super) fn is_asked(&mut self) -> bool {
        let is_asked = self.stop.is_requested();
        if is_asked {
            self.life.stopping();
        }
        is_asked
    }

    /// Gives a sign of life, and says what an operator should know of the links. The first time, frames
    /// begin to flow: `introduce` prints this text on the links' modes, and it says `ready`. `is_last`: at
    /// the end, perhaps before the first frame.
    pub(super) fn look(&mut self, tap: &Tap, is_last: bool, introduce: impl FnOnce(&str)) {
        if !is_last {
            self.idle.look(tap);
            if !std::mem::replace(&mut self.is_ready, true) {
                // The supervisor gets the message first.
                self.life.ready();
                introduce(&format!("weir: {}", self.modes(tap)));
                say("ready");
            }
        }
        self.life.beat();
        self.longest.warn(tap);
    }

    fn modes(&self, tap: &Tap) -> String {
        let modes = tap.links().filter_map(|link| {
            let (name, (mode, hook)) = (&tap.interface(link)?.name, tap.mode(link)?);
            let bulk = TxBurstReport::of(tap, link, self.tx_burst);
            Some(format!("{name} by {mode} at {hook}{bulk}"))
        });
        modes.collect::<Vec<_>>().join("; ")
    }

    /// Says it if the host filter was refused, each time that the reason changes.
    pub(super) fn say_refused(&mut self, refused: Option<&str>) {
        if self.refused.as_deref() != refused {
            self.refused = refused.map(str::to_owned);
            if let Some(why) = refused {
                say(&format!("weir: the host filter is unchanged: {why}"));
            }
        }
    }

    /// Whether a report is due, for the outputs or because it `is_wanted` elsewhere.
    pub(super) fn is_due(&mut self, is_wanted: bool) -> bool {
        let now = Instant::now();
        let is_due = self.reported.is_none_or(|at| now - at >= REPORT_INTERVAL);
        let is_shown = self.outputs.json.is_some() || self.outputs.metrics.is_some();
        if !is_due || !is_wanted && !is_shown {
            return false;
        }
        self.reported = Some(now);
        true
    }

    /// Shows a report.
    pub(super) fn show(&mut self, report: &impl Shown) {
        if let Some(file) = &mut self.outputs.json {
            // If the write fails now, the one at the end may succeed.
            let _ = file.write(report);
        }
        if let Some(metrics) = &self.outputs.metrics {
            metrics.show(report.exposition());
        }
    }

    /// Ends; gives the outputs for the last report. A process that did not begin to forward has none.
    pub(super) fn end(self, is_as_asked: bool) -> Outputs {
        self.life.end(is_as_asked);
        if self.is_ready {
            self.outputs
        } else {
            Outputs::default()
        }
    }
}

/// Removes from these links what an earlier process has left there.
pub(super) fn clean(links: &[&str]) -> Result<(), CliError> {
    let found = Tap::clean(links).map_err(failure)?;
    meter::clean(links)?;
    if !found {
        say(&format!("weir: nothing is left at {}", links.join(", ")));
    }
    Ok(())
}

/// The message on a tap's error, and its exit status.
pub(super) fn failure(error: TapError) -> CliError {
    match error {
        TapError::Same { .. }
        | TapError::NotEthernet { .. }
        | TapError::Loopback { .. }
        | TapError::Setting { .. } => CliError::refused(error),
        error => CliError::run(error),
    }
}

/// A seed that peers do not know.
pub(super) fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
