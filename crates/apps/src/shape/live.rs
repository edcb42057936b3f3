//! Two links, and the shaper of each.

use super::config::ShapeConfig;
use super::output::Output;
use super::shaper::Shaper;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use weir_tap::switch::{Decision, Settings, Switch};
use weir_tap::{Bypass, ChunkCounts, Config, Frame, LinkId, Pull, Tap, TapError};

/// Number of frames taken from a link before output is sent.
const BATCH: usize = 64;

/// Longest sleep, and so the interval at which `visit` is called when idle.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A view of a running shaper.
#[derive(Clone, Copy)]
pub struct Snapshot<'a> {
    /// The names of the links.
    pub names: &'a [String; 2],
    /// The tap that carries the frames.
    pub tap: &'a Tap,
    /// Which frames pass.
    pub switch: &'a Switch,
    /// The queues of each link, if it has a scheduler.
    pub shapers: &'a [Option<Shaper<Frame>>],
    /// The shaper has ended; the view is final.
    pub is_last: bool,
}

/// Taps the two links in the calling thread's network namespace, and shapes what leaves each
/// of them. Calls `visit` when frames flow, then about every 50 ms, and once more at the end;
/// `visit` returns whether to continue. While one of `wakes` is readable, `visit` is called more
/// often. Frames that wait when it ends are dropped and counted.
///
/// After any end of the process the bypass applies, until the next one is ready; with
/// `restore`, an end that `visit` requested restores the links. Returns the final state of the
/// chunks: all are free.
///
/// # Errors
/// See [`TapError`].
pub fn run(
    config: &ShapeConfig,
    shapers: [Option<Shaper<Frame>>; 2],
    tap: Config,
    seed: u64,
    restore: bool,
    wakes: Vec<OwnedFd>,
    mut visit: impl FnMut(Snapshot<'_>) -> ControlFlow<()>,
) -> Result<ChunkCounts, TapError> {
    let [a, b] = &config.links;
    // Frames that wait have been overtaken once the bypass has joined the links.
    let is_overtaken = tap.bypass == Bypass::Wire;
    let mut tap = Tap::between(tap, a, b)?;
    wakes.into_iter().for_each(|fd| tap.wake_on(fd));
    let mut running = Running {
        names: config.links.clone(),
        links: tap.links().collect(),
        switch: Switch::new(Settings::wire(2), seed),
        output: Output::new(shapers.into()),
        began: Instant::now(),
        batch: Vec::with_capacity(BATCH),
        is_overtaken,
        epoch: 0,
    };
    let ran = running.run(&mut tap, &mut visit);
    running.output.flush();
    let view = Snapshot {
        is_last: true,
        ..running.view(&tap)
    };
    let _ = visit(view);
    drop(running);
    if restore && ran.is_ok() {
        tap.restore();
    }
    let unmapped = tap.unmap();
    ran?;
    unmapped
}

struct Running {
    names: [String; 2],
    links: Vec<LinkId>,
    switch: Switch,
    output: Output,
    began: Instant,
    batch: Vec<Frame>,
    is_overtaken: bool,
    /// The gate's epoch when it was last looked at.
    epoch: u32,
}

impl Running {
    fn run(
        &mut self,
        tap: &mut Tap,
        visit: &mut impl FnMut(Snapshot<'_>) -> ControlFlow<()>,
    ) -> Result<(), TapError> {
        tap.ready()?;
        self.epoch = tap.epoch();
        let mut look_at = 0;
        let mut wait = Duration::ZERO;
        loop {
            let now = self.now();
            if tap.is_woken() || now >= look_at {
                look_at = now + POLL_INTERVAL.as_nanos() as u64;
                tap.watch_links()?;
                if visit(self.view(tap)).is_break() {
                    return Ok(());
                }
            }
            tap.pull(Pull::Frame(wait))?;
            self.notice_bypass(tap);
            let now = self.now();
            for from in 0..2 {
                self.take(tap, from, now)?;
            }
            let next = self.output.send(tap, &self.links, self.now())?;
            wait = next.map_or(POLL_INTERVAL, |next| next.min(POLL_INTERVAL));
            tap.push()?;
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn view<'a>(&'a self, tap: &'a Tap) -> Snapshot<'a> {
        Snapshot {
            names: &self.names,
            tap,
            switch: &self.switch,
            shapers: self.output.shapers(),
            is_last: false,
        }
    }

    /// Drops what waits if the bypass has joined the links meanwhile, since this process
    /// counted as hung: later frames of the same flows are ahead.
    fn notice_bypass(&mut self, tap: &Tap) {
        let epoch = tap.epoch();
        if std::mem::replace(&mut self.epoch, epoch) != epoch && self.is_overtaken {
            self.output.flush();
        }
    }

    /// Takes frames of a link, and queues them at the other one.
    fn take(&mut self, tap: &mut Tap, from: usize, now: u64) -> Result<(), TapError> {
        tap.take_many(self.links[from], BATCH, &mut self.batch)?;
        let (to, second) = (1 - from, (now / 1_000_000_000) as u32);
        for frame in self.batch.drain(..) {
            match self.switch.decide(from, frame.bytes(), second) {
                Decision::Port(_) => {}
                Decision::Flood { vlan } if self.switch.passes(to, vlan) => {}
                Decision::Flood { .. } | Decision::Drop(_) => continue,
            }
            self.output.give(tap, &self.links, to, frame, now)?;
        }
        Ok(())
    }
}
