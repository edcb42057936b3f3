//! Two links, and the shaper of each.

use super::config::ShapeConfig;
use super::shaper::Shaper;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use weir_sched::Next;
use weir_tap::switch::{Decision, Settings, Switch};
use weir_tap::{Bypass, ChunkCounts, Config, Frame, LinkId, Pull, Tap, TapError};

/// Number of frames taken from a link before output is sent.
const BATCH: usize = 64;

/// Largest number of frames that were given to a link and that its device has not taken. A
/// frame in the device's queue cannot be overtaken any more.
const UNSENT_MAX: u32 = 256;

/// Interval at which a device with unsent frames is asked whether it took some.
const RETRY: Duration = Duration::from_micros(50);

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
    pub shapers: &'a [Option<Shaper<Frame>>; 2],
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
        shapers,
        began: Instant::now(),
        batch: Vec::with_capacity(BATCH),
        is_overtaken,
        epoch: 0,
    };
    let ran = running.run(&mut tap, &mut visit);
    running.flush();
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
    shapers: [Option<Shaper<Frame>>; 2],
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
            wait = POLL_INTERVAL;
            for link in 0..2 {
                wait = wait.min(self.send(tap, link)?);
            }
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
            shapers: &self.shapers,
            is_last: false,
        }
    }

    /// Drops what waits if the bypass has joined the links meanwhile, since this process
    /// counted as hung: later frames of the same flows are ahead.
    fn notice_bypass(&mut self, tap: &Tap) {
        let epoch = tap.epoch();
        if std::mem::replace(&mut self.epoch, epoch) != epoch && self.is_overtaken {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.shapers.iter_mut().flatten().for_each(Shaper::flush);
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
            match &mut self.shapers[to] {
                Some(shaper) => shaper.enqueue(now, frame),
                None => _ = tap.give(self.links[to], frame)?,
            }
        }
        Ok(())
    }

    /// Gives a link the frames that leave now; returns the time until the next one does.
    fn send(&mut self, tap: &mut Tap, link: usize) -> Result<Duration, TapError> {
        let now = self.now();
        let wait = match &mut self.shapers[link] {
            Some(shaper) => send(shaper, tap, self.links[link], now)?,
            None => None,
        };
        Ok(wait.unwrap_or(POLL_INTERVAL))
    }
}

/// Gives a link the frames of its queues that leave `now`; returns the time until the next one
/// does, or `None` if none waits.
pub(crate) fn send(
    shaper: &mut Shaper<Frame>,
    tap: &mut Tap,
    link: LinkId,
    now: u64,
) -> Result<Option<Duration>, TapError> {
    if shaper.waiting() == 0 {
        return Ok(None);
    }
    let room = UNSENT_MAX.saturating_sub(tap.unsent(link)?);
    for _ in 0..room {
        match shaper.dequeue(now) {
            Next::Frame(frame) => _ = tap.give(link, frame)?,
            Next::At(at) => return Ok(Some(Duration::from_nanos(at.saturating_sub(now)))),
            Next::Empty => return Ok(None),
        }
    }
    Ok(Some(RETRY))
}
