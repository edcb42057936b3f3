//! Pull and push, and the heartbeat that keeps the gate open.

use crate::clock;
use crate::error::TapError;
use crate::flow_cache::LEASE;
use crate::io::queue::{Push, Queue};
use crate::link_monitor::LinkMonitor;
use crate::shared::members::SLEEP_MAX_NS;
use crate::tap::{LinkId, Pull, Tap, ring_error};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use weir_link::xdp::{Bypass, CopyMode, GateError, wait_readable};
use weir_ring::queue::Corrupt;

/// Time after the gate was opened during which a frame admitted before it shut
/// may still arrive, in ns.
const IN_FLIGHT_MAX_NS: u64 = 100_000_000;

/// Time that bypassed frames may take through the host's queues, before the
/// tap's frames may follow.
const BYPASS_DRAIN: Duration = Duration::from_millis(1);

/// Interval of a live process's heartbeat, in ns: a fiftieth of the shortest
/// limit for hangs.
const HEARTBEAT_INTERVAL_NS: u64 = 20_000;

/// Number of polling rounds between two checks for returned chunks.
const REAP_ROUNDS: u32 = 32;

impl Tap {
    /// Declares that this thread takes frames from now on; before, they take
    /// the bypass. The first [`pull`](Self::pull) does so itself.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn ready(&mut self) -> Result<(), TapError> {
        if self.link_events.is_none() {
            self.listen()?;
        }
        self.is_ready = true;
        if self.is_shared() {
            return self.recover_from_hang();
        }
        self.lock_liveness()?;
        self.open()
    }

    /// Has the kernel detect the end of this thread.
    pub(crate) fn lock_liveness(&mut self) -> Result<(), TapError> {
        if self.liveness.is_none() {
            self.page.shut();
            let held = self.page.lock_liveness(self.pool.me() - 1);
            let held = held.map_err(|source| TapError::System {
                what: "have the kernel watch for this thread's end",
                source,
            })?;
            let names = || self.links().filter_map(|link| self.interface(link));
            self.liveness = Some(held.ok_or_else(|| GateError::InUse {
                interfaces: names().map(|interface| interface.name.clone()).collect(),
                by: None,
            })?);
        }
        self.page.set_limit(self.config.hang_max);
        Ok(())
    }

    /// Drops waiting frames, and opens the gate.
    fn open(&mut self) -> Result<(), TapError> {
        let before = self.epoch;
        // Another process may have opened it just now.
        let epoch = self.members.as_ref().map(|_| self.page.gate().1);
        for link in self.links.iter_mut().flatten() {
            let mode = link.mode;
            link.pushed = link.counts.tx_frames;
            for queue in &mut link.queues {
                let dropped = match &self.members {
                    None => queue
                        .drop_old(before, epoch)
                        .and_then(|dropped| Ok(dropped + take_back(queue, mode)?)),
                    Some(members) => members
                        .with_rx(queue, |queue| queue.drop_old(before, epoch))
                        .and_then(|dropped| dropped.unwrap_or(Ok(0)))
                        .and_then(|dropped| {
                            let unsent = members.with_tx(queue, |queue| take_back(queue, mode))?;
                            Ok(dropped + unsent.unwrap_or(Ok(0))?)
                        }),
                };
                let dropped = dropped.map_err(|error| ring_error(&link.interface, error))?;
                link.counts.stale += dropped;
            }
        }
        self.reap()?;
        self.open_gate();
        Ok(())
    }

    fn open_gate(&mut self) {
        if let Some(cache) = &mut self.flow_cache {
            cache.flush();
        }
        let epoch = self.page.open(clock::now());
        self.is_of(epoch);
    }

    /// Sets the epoch of frames from now on.
    fn is_of(&mut self, epoch: u32) {
        let now = clock::now();
        self.epoch = epoch;
        self.check_until = now + IN_FLIGHT_MAX_NS;
        self.busy_at = now;
    }

    /// Whether bypassed frames go to the other link, past frames that wait
    /// here.
    pub(crate) fn is_passed(&self) -> bool {
        self.config.bypass == Bypass::Wire || self.is_shared()
    }

    /// Recovers after the gate has shut, since this process counted as dead or
    /// hung. Waiting frames are stale if the bypass has passed them.
    #[cold]
    fn recover_from_hang(&mut self) -> Result<(), TapError> {
        if !self.is_passed() {
            self.open_gate();
            return Ok(());
        }
        self.drop_unsubmitted();
        if let (true, epoch) = self.page.gate()
            && self.is_shared()
        {
            // Another process has opened the gate.
            self.is_of(epoch);
            return Ok(());
        }
        self.open()?;
        if self.config.bypass == Bypass::Wire {
            std::thread::sleep(BYPASS_DRAIN);
            self.page.beat(clock::now());
        }
        Ok(())
    }

    /// Drops frames between the rings of a shared tap: other frames are past
    /// them.
    #[cold]
    pub(crate) fn drop_unsubmitted(&mut self) {
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                let kept = queue.inbox.drain(..).chain(queue.outbox.drain(..));
                link.counts.stale += kept.count() as u64;
            }
        }
        if let Some(members) = &self.members {
            members.has_nothing_to_send();
        }
    }

    /// Gets chunks, or waits for a frame (`mbuf_pull`); returns whether there
    /// are enough chunks, or a frame.
    ///
    /// If the application counted as hung, this call makes it ready again.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn pull(&mut self, what: Pull) -> Result<bool, TapError> {
        match what {
            Pull::Chunks(count) => {
                self.alive()?;
                self.reap()?;
                Ok(self.pool.ready(count))
            }
            Pull::Frame(time) => self.wait(time),
        }
    }

    /// Writes the heartbeat, and recovers if this process counted as hung.
    #[inline]
    fn alive(&mut self) -> Result<u64, TapError> {
        let now = clock::now();
        self.now_ns = now;
        let (mut is_well, mut is_late) = (true, false);
        if let Some(members) = &mut self.members {
            is_well = members.is_healthy(now);
            is_late = has_elapsed(self.config.hang_max, members.called_at, now);
            members.called_at = now;
        }
        // Each write takes the cache line from the CPU that receives frames.
        if is_well && now.saturating_sub(self.beaten_at) >= HEARTBEAT_INTERVAL_NS {
            self.beaten_at = now;
            self.page.beat(now);
        }
        if !self.is_ready {
            self.ready()?;
        } else if self.page.gate() != (true, self.epoch) {
            self.recover_from_hang()?;
        } else if is_late {
            // Other processes kept the gate open, and have passed the frames
            // here.
            self.drop_unsubmitted();
        }
        if let Some(cache) = &mut self.flow_cache {
            cache.work(now);
        }
        self.housekeep(now)?;
        Ok(now)
    }

    fn wait(&mut self, time: Duration) -> Result<bool, TapError> {
        let mut end = None;
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut rounds = 0_u32;
        self.wakes.is_woken = false;
        loop {
            let now = self.alive()?;
            if self.wakes.is_due(now) {
                self.poll_control(now)?;
            }
            let end = *end.get_or_insert(now.saturating_add(time));
            self.note_drained(now);
            if self.is_any_ready()? {
                self.busy_at = now;
                // After a sleep, the arrival was recorded already.
                if let Some(since) = self.idle_since.take() {
                    self.spin.on_frame(now.saturating_sub(since));
                }
                return Ok(true);
            }
            let since = *self.idle_since.get_or_insert(now);
            let is_over = now >= end || self.wakes.is_woken;
            rounds = rounds.wrapping_add(1);
            let spins = self.spin.should_poll(now.saturating_sub(since));
            match &mut self.members {
                // Reading the rings takes their cache lines from the kernel.
                None if rounds.is_multiple_of(REAP_ROUNDS) || is_over || !spins => self.reap()?,
                None => {}
                Some(members) => members.is_idle(),
            }
            if is_over {
                return Ok(false);
            }
            self.kick_rx()?;
            if spins {
                std::hint::spin_loop()
            } else {
                self.sleep(since, end - now)?
            }
        }
    }

    /// Sleeps until a frame comes, for at most `left` ns; there has been no
    /// frame since `since`.
    fn sleep(&mut self, since: u64, mut left: u64) -> Result<(), TapError> {
        // The limit for hangs counts from the next frame on.
        self.page.sleep();
        self.beaten_at = 0;
        if self.is_any_ready()? {
            return Ok(());
        }
        self.counts.syscalls_wait += 1;
        let mut fds = self.sockets();
        fds.extend(self.wakes.fds());
        fds.extend(self.link_events.as_ref().map(AsFd::as_fd));
        if let Some(members) = &self.members {
            // The process has other work besides frames.
            fds.push(members.listener.as_fd());
            left = left.min(SLEEP_MAX_NS);
        }
        if let Some(cache) = &self.flow_cache {
            let often = if cache.is_pressed() {
                LEASE / 100
            } else {
                LEASE / 2
            };
            left = left.min(often.as_nanos() as u64);
        }
        let left = Duration::from_nanos(left);
        // A link that is down reports an error, and no frame.
        let woken = wait_readable(&fds, left).map_err(|source| TapError::System {
            what: "wait for frames",
            source,
        })?;
        if !woken {
            return Ok(());
        }
        // The wake-up may have another cause than a frame.
        self.wakes.poll_soon();
        // The kernel has recorded the arrival, which precedes the wake-up.
        match self.page.heartbeat() {
            0 => {}
            came => self.spin.on_frame(came.saturating_sub(since)),
        }
        // A wake-up suggests that frames are coming: poll for more.
        self.idle_since = None;
        if !self.is_any_ready()? {
            self.watch_links()?;
        }
        Ok(())
    }

    /// The sockets from which this process takes frames.
    fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        let mut sockets = Vec::new();
        for link in self.links.iter().flatten() {
            let count = link.queues.len();
            for (queue, at) in link.queues.iter().zip(0..) {
                let members = self.members.as_ref();
                if members.is_none_or(|members| members.serves(link.owners, at, count)) {
                    sockets.push(queue.socket.as_fd());
                }
            }
        }
        sockets
    }

    #[inline]
    fn is_any_ready(&mut self) -> Result<bool, TapError> {
        for link in self.links.iter_mut().flatten() {
            let (count, held_by) = (link.queues.len(), link.owners);
            for (queue, at) in link.queues.iter_mut().zip(0..) {
                let ready = match &self.members {
                    None => queue.ring.ready(1).map(|count| count > 0),
                    Some(members) => Ok(members.is_ready(queue, held_by, at, count)),
                };
                if ready.map_err(|error| ring_error(&link.interface, error))? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Checks that all links still exist; call it now and then. A thread asks
    /// the kernel, whose answer may take tenths of a second; a later call
    /// reports the answer.
    ///
    /// # Errors
    /// [`TapError::Gone`] names the first link that does not exist.
    pub fn watch_links(&mut self) -> Result<(), TapError> {
        if self.watch.is_none() {
            let links = self.links.iter().enumerate();
            let links = links.filter_map(|(number, link)| link.as_ref().map(|_| number));
            let attached = self.gate.attachment_check(links);
            // The next request reports an error.
            let begun = attached.and_then(|attached| {
                LinkMonitor::new(move || matches!(attached.are_attached(), Ok(true)))
            });
            self.watch = begun.ok();
        }
        if self.watch.as_mut().is_some_and(LinkMonitor::are_there) {
            return Ok(());
        }
        // The thread may not start, for lack of threads or descriptors.
        self.watch = None;
        for (number, link) in self.links.iter().enumerate() {
            if let Some(link) = link
                && !self.gate.is_attached(number)?
            {
                let interface = link.interface.name.clone();
                return Err(TapError::Gone { interface });
            }
        }
        Ok(())
    }

    /// Wakes the device if it needs a call to receive.
    fn kick_rx(&mut self) -> Result<(), TapError> {
        let busily = self.config.busy_poll.is_some();
        for link in self.links.iter_mut().flatten() {
            if link.mode == CopyMode::Copy && !busily {
                continue;
            }
            for queue in &link.queues {
                if busily || queue.ring.wants_rx_kick() {
                    queue.kick_rx(&mut self.counts)?;
                }
            }
        }
        Ok(())
    }

    /// Sends the given frames on all links, and gets chunks back (`mbuf_push`).
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn push(&mut self) -> Result<(), TapError> {
        let now = self.alive()?;
        let mut is_down = false;
        let is_passed = self.is_passed();
        if let Ok(burst) = &mut self.burst {
            burst.poll_features(&mut self.links, now);
        }
        let links = self.links.iter_mut().enumerate();
        for (number, link) in links.filter_map(|(number, link)| Some((number, link.as_mut()?))) {
            // The last check before sending: frames given before a change of
            // the gate are stale.
            if is_passed && self.page.gate() != (true, self.epoch) {
                break;
            }
            let mut burst = self.burst.as_mut().ok().filter(|_| link.burst.is_ok());
            for queue in &mut link.queues {
                let pushed = match &self.members {
                    None => burst
                        .as_mut()
                        .map_or(Ok(()), |burst| {
                            burst.push(queue, number, now, &mut self.counts)
                        })
                        .and_then(|()| queue.push(link.mode, &mut self.counts)),
                    Some(members) => queue.push_enqueued(members, link.mode, &mut self.counts),
                };
                match pushed {
                    Ok(()) => {}
                    Err(Push::Down(dropped)) => {
                        link.counts.tx_ring_full += u64::from(dropped);
                        is_down = true;
                    }
                    Err(Push::Ring(error)) => return Err(ring_error(&link.interface, error)),
                    Err(Push::System(source)) => {
                        let what = "send";
                        return Err(TapError::System { what, source });
                    }
                }
            }
            let given = link.counts.tx_frames - link.pushed;
            link.pushed = link.counts.tx_frames;
            if is_passed && given > 0 && self.page.gate() != (true, self.epoch) {
                link.counts.overtaken += given;
            }
        }
        if is_down {
            self.watch_links()?;
        }
        if self.is_shared() {
            // Already done in the loop.
            Ok(())
        } else {
            self.reap_if_worthwhile()
        }
    }

    /// As [`reap`](Self::reap), if many chunks can be lent.
    #[inline]
    fn reap_if_worthwhile(&mut self) -> Result<(), TapError> {
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                let reaped = queue.ring.reap().and_then(|_| queue.ring.refill_some());
                reaped.map_err(|error| ring_error(&link.interface, error))?;
            }
        }
        Ok(())
    }

    /// Takes back the chunks of sent frames, and lends chunks to the fill
    /// rings.
    #[inline]
    fn reap(&mut self) -> Result<(), TapError> {
        if self.is_shared() {
            return self.tend();
        }
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                let reaped = queue.ring.reap();
                reaped.map_err(|error| ring_error(&link.interface, error))?;
            }
        }
        self.refill()
    }

    #[inline]
    pub(crate) fn refill(&mut self) -> Result<(), TapError> {
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                let filled = queue.ring.refill();
                filled.map_err(|error| ring_error(&link.interface, error))?;
            }
        }
        Ok(())
    }

    /// The time of the last clock reading by [`pull`](Self::pull) or
    /// [`push`](Self::push) (`CLOCK_MONOTONIC`, ns).
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now_ns
    }

    /// Whether [`Config::syscall_per_frame`](crate::Config::syscall_per_frame)
    /// is set.
    pub(crate) fn syscall_per_frame(&self) -> bool {
        self.config.syscall_per_frame
    }

    /// Makes the kernel look for frames of a queue, whether useful or not.
    pub(crate) fn call_rx(&mut self, link: LinkId, queue: usize) -> Result<(), TapError> {
        let link = self.links.get(link.0).and_then(Option::as_ref);
        if let Some(queue) = link.and_then(|link| link.queues.get(queue)) {
            queue.kick_rx(&mut self.counts)?;
        }
        Ok(())
    }
}

/// Takes back frames that were not sent yet; returns their number: 0 outside
/// copy mode, where the device may still be reading them.
fn take_back(queue: &mut Queue, mode: CopyMode) -> Result<u64, Corrupt> {
    match mode {
        CopyMode::Copy => queue.ring.reclaim_unsent().map(u64::from),
        CopyMode::ZeroCopy => Ok(0),
    }
}

/// Whether more than `limit` has passed since `then`; `then` = 0 means never.
#[inline]
fn has_elapsed(limit: Option<Duration>, then: u64, now: u64) -> bool {
    let passed = u128::from(now.saturating_sub(then));
    then != 0 && limit.is_some_and(|limit| passed > limit.as_nanos())
}
