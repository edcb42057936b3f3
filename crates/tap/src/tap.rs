//! The six calls.

use crate::clock;
use crate::complete::complete;
use crate::config::{Config, Mode};
use crate::counts::{Counts, LinkCounts};
use crate::error::TapError;
use crate::link::{Push, Shared, TapLink};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weir_link::net::Interface;
use weir_link::xdp::{Bypass, CopyMode, DeathWord, Gate, State, Why, XskError, wait_readable};
use weir_ring::umem::{Census, LINKS_MAX};
use weir_ring::{Frame, Pool, Umem};
use weir_wire::LinkType;

/// The number of this process among those that share the memory.
const ME: u16 = 1;

/// How long after the gate was opened a frame may still come that was let in
/// before it shut.
const UNDER_WAY: u64 = 100_000_000;

/// How long the kernel may take to close the sockets of a process that has
/// ended: 0.2 s and less, more where the machine is busy.
const CLOSING: Duration = Duration::from_secs(1);

/// How long frames on the bypass may take through the host's queues, before
/// ours may follow.
const SETTLE: Duration = Duration::from_millis(1);

/// A tapped link, as the tap numbers it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub(crate) usize);

impl LinkId {
    /// Its number, from 0.
    pub fn number(self) -> usize {
        self.0
    }
}

/// What to pull.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pull {
    /// So many chunks that can be allocated, now.
    Chunks(u32),
    /// A frame on any link; wait for it so long at most.
    Frame(Duration),
}

/// A program's frames: memory for them, and the links that they come from and
/// go to. It belongs to the thread that made it.
///
/// Call [`pull`](Self::pull) or [`push`](Self::push) more often than
/// [`Config::hang_max`] while there are frames: else they take the bypass, and
/// those that waited are dropped and counted with the next call.
#[derive(Debug)]
pub struct Tap {
    links: Vec<Option<TapLink>>,
    gate: Gate,
    state: Rc<State>,
    death: Option<DeathWord>,
    pool: Rc<Pool>,
    config: Config,
    counts: Counts,
    /// The gate was opened.
    is_ready: bool,
    /// What the gate said when it was opened.
    epoch: u32,
    /// Until then frames show by their epoch whether they are old.
    check_until: u64,
    /// When there was a frame last.
    busy_at: u64,
    /// What is left behind when the process ends.
    outlives: bool,
}

impl Tap {
    /// Makes memory for frames and gets it ready (`mbuf_map`). No link is
    /// tapped yet.
    ///
    /// # Errors
    /// For sizes that cannot be, and without privilege.
    pub fn map(config: Config) -> Result<Tap, TapError> {
        check(&config)?;
        let gate = Gate::new(config.bypass)?;
        Tap::over(config, gate, false)
    }

    /// As [`map`](Self::map) and [`tap`](Self::tap) of two links, which are
    /// joined for the bypass by wire. What is at the links stays when the
    /// process ends in any way, unless the bypass is the host's; a process
    /// after it takes it over.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn between(config: Config, a: &str, b: &str) -> Result<Tap, TapError> {
        check(&config)?;
        let interfaces = [ethernet(a)?, ethernet(b)?];
        let [first, second] = &interfaces;
        if first.index == second.index {
            return Err(TapError::Same {
                interface: a.to_owned(),
            });
        }
        let outlives = config.bypass != Bypass::Kernel;
        let mut gate = Gate::attach(&[first, second], config.bypass, outlives)?;
        if let Err(error) = gate.join(0, 1) {
            let _ = gate.end();
            return Err(error.into());
        }
        let mut tap = Tap::over(config, gate, outlives)?;
        let bound = interfaces.into_iter().try_for_each(|interface| {
            let number = tap.links.len();
            tap.links.push(None);
            tap.bind(interface, number)
        });
        match bound {
            Ok(()) => Ok(tap),
            Err(error) => {
                // What an earlier process has left goes on without us.
                if !tap.gate.is_adopted() {
                    tap.outlives = false;
                }
                let _ = tap.unmap();
                Err(error)
            }
        }
    }

    /// Takes off two links what [`between`](Self::between) has left there;
    /// `false` if there is nothing.
    ///
    /// # Errors
    /// See [`TapError`]; also while a process has them.
    pub fn clean(a: &str, b: &str) -> Result<bool, TapError> {
        let interfaces = [ethernet(a)?, ethernet(b)?];
        let [first, second] = &interfaces;
        Ok(Gate::clean(&[first, second])?)
    }

    fn over(config: Config, gate: Gate, outlives: bool) -> Result<Tap, TapError> {
        let umem = Umem::create(config.chunks, config.chunk_bytes)?;
        Ok(Tap {
            pool: Pool::new(umem, ME, config.kept),
            links: Vec::new(),
            state: Rc::clone(gate.state()),
            death: None,
            gate,
            config,
            counts: Counts::default(),
            is_ready: false,
            epoch: 0,
            check_until: 0,
            busy_at: 0,
            outlives,
        })
    }

    /// Gives everything back (`mbuf_unmap`): links that are tapped still are
    /// untapped. Counts what becomes of all chunks: with no frame held
    /// elsewhere, all are free.
    ///
    /// # Errors
    /// When a link cannot be left as it was.
    pub fn unmap(mut self) -> Result<Census, TapError> {
        self.state.shut();
        self.death = None;
        for link in self.links.iter_mut().filter_map(Option::take) {
            for queue in link.queues {
                drop(queue.socket);
                queue.ring.end();
            }
        }
        let census = self.pool.census();
        if !self.outlives {
            self.gate.end()?;
        }
        Ok(census)
    }

    /// Has [`unmap`](Self::unmap) leave the links as they were before, also
    /// where the bypass would stay.
    pub fn restore(&mut self) {
        self.outlives = false;
    }

    /// Taps a link (`interface_tap`): the host gets none of its frames any
    /// more. Once tapped, it is only counted.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn tap(&mut self, interface: &str) -> Result<LinkId, TapError> {
        let interface = ethernet(interface)?;
        let known = self.links.iter_mut().zip(0..).find_map(|(link, number)| {
            let link = link.as_mut()?;
            (link.interface.index == interface.index).then_some((link, number))
        });
        if let Some((link, number)) = known {
            link.holders += 1;
            return Ok(LinkId(number));
        }
        let number = self.gate.add(&interface)?;
        while self.links.len() <= number {
            self.links.push(None);
        }
        if let Err(error) = self.bind(interface, number) {
            let _ = self.gate.remove(number);
            return Err(error);
        }
        Ok(LinkId(number))
    }

    /// Binds to an interface, in the mode that all links can have.
    fn bind(&mut self, interface: Interface, number: usize) -> Result<(), TapError> {
        let all = self.links.iter().flatten();
        let first = all.clone().next();
        let shared = Shared {
            pool: &self.pool,
            other: first.and_then(|link| Some(&link.queues.first()?.socket)),
            mode: first.map(|link| link.mode),
        };
        let until = Instant::now() + CLOSING;
        let bound = loop {
            let bound = TapLink::bind(interface.clone(), &self.config, shared, number);
            match bound {
                Err(TapError::Socket(XskError::Busy { .. })) if Instant::now() < until => {
                    std::thread::sleep(CLOSING / 100);
                }
                bound => break bound,
            }
        };
        let link = match bound {
            Err(TapError::Socket(XskError::NotByDriver { .. } | XskError::NoQueue { .. }))
                if shared.mode == Some(CopyMode::ZeroCopy) && self.config.mode == Mode::Auto =>
            {
                self.rebind_by_copy()?;
                return self.bind(interface, number);
            }
            bound => bound?,
        };
        link.put_sockets(&self.gate, number)?;
        self.links[number] = Some(link);
        self.refill()
    }

    /// The memory of all links is in one mode: where one cannot do without
    /// copies, none does.
    fn rebind_by_copy(&mut self) -> Result<(), TapError> {
        self.config.mode = Mode::Only(CopyMode::Copy);
        for number in 0..self.links.len() {
            let Some(link) = self.links[number].take() else {
                continue;
            };
            for queue in link.queues {
                drop(queue.socket);
                queue.ring.end();
            }
            let holders = link.holders;
            self.bind(link.interface, number)?;
            if let Some(link) = &mut self.links[number] {
                link.holders = holders;
            }
        }
        Ok(())
    }

    /// Untaps a link (`interface_untap`): with its last holder it returns to
    /// the host. Tells whether that was the last.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn untap(&mut self, link: LinkId) -> Result<bool, TapError> {
        let place = self.links.get_mut(link.0);
        let place = place.ok_or(TapError::NotTapped { link: link.0 })?;
        let found = place.as_mut().ok_or(TapError::NotTapped { link: link.0 })?;
        found.holders -= 1;
        if found.holders > 0 {
            return Ok(false);
        }
        self.gate.remove(link.0)?;
        for queue in place.take().into_iter().flat_map(|link| link.queues) {
            drop(queue.socket);
            queue.ring.end();
        }
        Ok(true)
    }

    /// Says that this thread takes frames from now on: before, they take the
    /// bypass. The first [`pull`](Self::pull) says so by itself.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn ready(&mut self) -> Result<(), TapError> {
        if self.death.is_none() {
            self.state.shut();
            // Without it, death shows in the heartbeat, a limit later.
            self.death = self.state.hold_death_word().ok();
        }
        self.state.set_limit(self.config.hang_max);
        self.is_ready = true;
        self.open()
    }

    /// Drops what waits, and opens the gate.
    fn open(&mut self) -> Result<(), TapError> {
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                let old = |error| ring_error(&link.interface, error);
                while queue.ring.take().map_err(old)?.is_some() {
                    link.counts.stale += 1;
                }
                queue.ring.release();
                // Elsewhere the device may be reading them.
                if link.mode == CopyMode::Copy {
                    let unsent = queue.ring.take_back();
                    let unsent = unsent.map_err(|error| ring_error(&link.interface, error))?;
                    link.counts.stale += u64::from(unsent);
                }
            }
        }
        self.refill()?;
        let now = clock::now();
        self.epoch = self.state.open(now);
        self.check_until = now + UNDER_WAY;
        self.busy_at = now;
        Ok(())
    }

    /// The gate has shut: we were taken for dead or hung. What waits is old.
    #[cold]
    fn come_back(&mut self) -> Result<(), TapError> {
        self.open()?;
        if self.config.bypass == Bypass::Wire {
            std::thread::sleep(SETTLE);
            self.state.beat(clock::now());
        }
        Ok(())
    }

    /// Gets chunks, or waits for a frame (`mbuf_pull`); tells whether there
    /// are as many, or is one.
    ///
    /// Where the program was found hung, it is ready again with this call.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn pull(&mut self, what: Pull) -> Result<bool, TapError> {
        self.alive()?;
        match what {
            Pull::Chunks(count) => {
                self.reap()?;
                Ok(self.pool.free() >= count as usize)
            }
            Pull::Frame(time) => self.wait(time),
        }
    }

    /// Beats, and comes back where we were taken for hung.
    #[inline]
    fn alive(&mut self) -> Result<u64, TapError> {
        let now = clock::now();
        self.state.beat(now);
        if !self.is_ready {
            self.ready()?;
        } else if self.state.gate() != (true, self.epoch) {
            self.come_back()?;
        }
        Ok(now)
    }

    fn wait(&mut self, time: Duration) -> Result<bool, TapError> {
        let begun = clock::now();
        let end = begun.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let spin = u64::try_from(self.config.spin.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let now = self.alive()?;
            if self.is_any_ready()? {
                self.busy_at = now;
                return Ok(true);
            }
            self.reap()?;
            if now >= end {
                return Ok(false);
            }
            self.kick_rx()?;
            if now.saturating_sub(self.busy_at) < spin {
                std::hint::spin_loop();
                continue;
            }
            // The limit counts from the next frame on.
            self.state.sleep();
            if !self.is_any_ready()? {
                self.counts.calls_wait += 1;
                let fds: Vec<BorrowedFd<'_>> = self.sockets().collect();
                let left = Duration::from_nanos(end - now);
                // A link that is down has an error, and no frame.
                let woken = wait_readable(&fds, left).map_err(|source| TapError::System {
                    what: "wait for frames",
                    source,
                })?;
                if woken && !self.is_any_ready()? {
                    self.check_links()?;
                }
                // To be woken once says that frames come: look for more.
                if woken {
                    self.busy_at = clock::now();
                }
            }
        }
    }

    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let queues = self.links.iter().flatten().flat_map(|link| &link.queues);
        queues.map(|queue| queue.socket.as_fd())
    }

    #[inline]
    fn is_any_ready(&mut self) -> Result<bool, TapError> {
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                let ready = queue.ring.ready(1);
                if ready.map_err(|error| ring_error(&link.interface, error))? > 0 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Whether all links are still there.
    ///
    /// # Errors
    /// [`TapError::Gone`] names the first that is not.
    pub fn check_links(&self) -> Result<(), TapError> {
        if self.gate.is_attached()? {
            return Ok(());
        }
        let gone = self.links.iter().flatten().find(|link| {
            let now = Interface::numbered(link.interface.index);
            !now.is_ok_and(|interface| interface.xdp.is_some())
        });
        let name = gone.map(|link| link.interface.name.clone());
        Err(TapError::Gone {
            interface: name.unwrap_or_default(),
        })
    }

    /// Wakes the device where it must be called to receive.
    fn kick_rx(&mut self) -> Result<(), TapError> {
        let busily = self.config.busy_poll.is_some();
        for link in self.links.iter_mut().flatten() {
            if link.mode == CopyMode::Copy && !busily {
                continue;
            }
            for queue in &link.queues {
                if busily || queue.ring.wants_rx_kick() {
                    self.counts.calls_rx += 1;
                    let kicked = queue.socket.kick_rx();
                    kicked.map_err(|source| TapError::System {
                        what: "have the device receive",
                        source,
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Sends what was given, on all links, and gets chunks back
    /// (`mbuf_push`).
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn push(&mut self) -> Result<(), TapError> {
        self.alive()?;
        let mut is_down = false;
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                match queue.push(link.mode, &mut self.counts) {
                    Ok(()) => {}
                    Err(Push::Down(dropped)) => {
                        link.counts.no_room += u64::from(dropped);
                        is_down = true;
                    }
                    Err(Push::Ring(error)) => return Err(ring_error(&link.interface, error)),
                    Err(Push::System(source)) => {
                        let what = "send";
                        return Err(TapError::System { what, source });
                    }
                }
            }
        }
        if is_down {
            self.check_links()?;
        }
        self.reap()
    }

    /// Takes back what was sent, and lends it to be filled.
    #[inline]
    fn reap(&mut self) -> Result<(), TapError> {
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                let reaped = queue.ring.reap();
                reaped.map_err(|error| ring_error(&link.interface, error))?;
            }
        }
        self.refill()
    }

    #[inline]
    fn refill(&mut self) -> Result<(), TapError> {
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                let filled = queue.ring.refill();
                filled.map_err(|error| ring_error(&link.interface, error))?;
            }
        }
        Ok(())
    }

    /// An empty frame of one chunk; `None` if no chunk is free: then
    /// [`push`](Self::push), or [`pull`](Self::pull) some.
    pub fn alloc(&self) -> Option<Frame> {
        self.pool.alloc()
    }

    /// The next frame that came in at a link, on any of its queues.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn take(&mut self, link: LinkId) -> Result<Option<Frame>, TapError> {
        for queue in 0..self.queues(link) {
            if let Some(frame) = self.take_from(link, queue)? {
                self.release(link, queue);
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// The next frame of a queue; [`release`](Self::release) some time after.
    #[inline]
    pub(crate) fn take_from(
        &mut self,
        link: LinkId,
        queue: usize,
    ) -> Result<Option<Frame>, TapError> {
        let Some(link) = self.links.get_mut(link.0).and_then(Option::as_mut) else {
            return Err(TapError::NotTapped { link: link.0 });
        };
        let Some(queue) = link.queues.get_mut(queue) else {
            return Ok(None);
        };
        loop {
            let taken = queue.ring.take();
            let taken = taken.map_err(|error| ring_error(&link.interface, error))?;
            let Some(mut frame) = taken else {
                return Ok(None);
            };
            // One that was let in before the gate shut is behind those that
            // took the bypass.
            if self.busy_at < self.check_until
                && frame.meta().is_some_and(|meta| meta as u32 != self.epoch)
                && self.state.trips().no_meta == 0
            {
                link.counts.stale += 1;
                continue;
            }
            if link.completes && complete(&mut frame) {
                link.counts.completed += 1;
            }
            link.counts.rx_frames += 1;
            link.counts.rx_bytes += frame.len() as u64;
            return Ok(Some(frame));
        }
    }

    /// Gives the places of what was taken from a queue back.
    #[inline]
    pub(crate) fn release(&mut self, link: LinkId, queue: usize) {
        let link = self.links.get_mut(link.0).and_then(Option::as_mut);
        if let Some(queue) = link.and_then(|link| link.queues.get_mut(queue)) {
            queue.ring.release();
        }
    }

    /// Sends a frame on a link, with the next [`push`](Self::push). Where the
    /// tx ring is full, it is pushed first; where that does not help, the
    /// frame is dropped and counted: `false`.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn give(&mut self, link: LinkId, frame: Frame) -> Result<bool, TapError> {
        self.give_to(link, 0, frame)
    }

    /// As [`give`](Self::give), on a queue (modulo how many there are).
    #[inline]
    pub(crate) fn give_to(
        &mut self,
        link: LinkId,
        queue: usize,
        frame: Frame,
    ) -> Result<bool, TapError> {
        let bytes = frame.len() as u64;
        match self.put(link, queue, frame)? {
            None => {}
            Some(frame) => {
                self.push()?;
                if self.put(link, queue, frame)?.is_some() {
                    self.count(link, |counts| counts.no_room += 1);
                    return Ok(false);
                }
            }
        }
        self.count(link, |counts| {
            counts.tx_frames += 1;
            counts.tx_bytes += bytes;
        });
        Ok(true)
    }

    #[inline]
    fn put(&mut self, link: LinkId, queue: usize, frame: Frame) -> Result<Option<Frame>, TapError> {
        let Some(link) = self.links.get_mut(link.0).and_then(Option::as_mut) else {
            return Err(TapError::NotTapped { link: link.0 });
        };
        let count = link.queues.len();
        let queue = if queue < count { queue } else { queue % count };
        let put = link.queues[queue].put(frame);
        put.map_err(|error| ring_error(&link.interface, error))
    }

    #[inline]
    fn count(&mut self, link: LinkId, add: impl FnOnce(&mut LinkCounts)) {
        if let Some(Some(link)) = self.links.get_mut(link.0) {
            add(&mut link.counts);
        }
    }

    /// How many queues a link has; 0 for one that is not tapped.
    pub fn queues(&self, link: LinkId) -> usize {
        let link = self.links.get(link.0).and_then(Option::as_ref);
        link.map_or(0, |link| link.queues.len())
    }

    /// The interface of a link, as it was when it was tapped.
    pub fn interface(&self, link: LinkId) -> Option<&Interface> {
        let link = self.links.get(link.0)?.as_ref()?;
        Some(&link.interface)
    }

    /// How a link's frames get to the memory, and where in the kernel they
    /// are taken.
    pub fn mode(&self, link: LinkId) -> Option<(CopyMode, weir_link::bpf::Hook)> {
        let mode = self.links.get(link.0)?.as_ref()?.mode;
        Some((mode, self.gate.hook(link.0)))
    }

    /// The tapped links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        let links = self.links.iter().zip(0..);
        links.filter_map(|(link, number)| link.as_ref().map(|_| LinkId(number)))
    }

    /// What a link has carried.
    pub fn link_counts(&self, link: LinkId) -> LinkCounts {
        let Some(Some(found)) = self.links.get(link.0) else {
            return LinkCounts::default();
        };
        LinkCounts {
            bypassed: self.state.bypassed(link.0 as u32),
            ..found.counted()
        }
    }

    /// What the tap has cost.
    pub fn counts(&self) -> Counts {
        let trips = self.state.trips();
        Counts {
            hung: trips.hung,
            died: trips.died,
            ..self.counts
        }
    }

    /// Who has the chunks.
    pub fn census(&self) -> Census {
        self.pool.census()
    }

    /// Whether frames come to this tap now; else why not.
    ///
    /// # Errors
    /// The reason.
    pub fn is_open(&self) -> Result<(), Why> {
        match self.state.gate().0 {
            true => Ok(()),
            false => Err(self.state.why()),
        }
    }
}

fn ring_error(interface: &Interface, source: weir_ring::queue::Corrupt) -> TapError {
    TapError::Ring {
        interface: interface.name.clone(),
        source,
    }
}

fn ethernet(name: &str) -> Result<Interface, TapError> {
    let interface = Interface::named(name)?;
    match interface.linktype {
        Some(LinkType::EN10MB) => Ok(interface),
        _ => Err(TapError::NotEthernet {
            interface: interface.name,
        }),
    }
}

fn check(config: &Config) -> Result<(), TapError> {
    let setting = |what, value: u64, range| {
        let error = TapError::Setting { what, value, range };
        Err(error)
    };
    const _: () = assert!(LINKS_MAX >= weir_link::xdp::LINKS_MAX);
    if !config.ring.is_power_of_two() || !(64..=1 << 16).contains(&config.ring) {
        let range = "a power of two from 64 to 65536";
        return setting("a ring", config.ring.into(), range);
    }
    if config.kept >= config.chunks {
        let range = "fewer than there are chunks";
        return setting("a reserve", config.kept.into(), range);
    }
    if let Some(limit) = config.hang_max
        && limit < Duration::from_millis(1)
    {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        return setting("a limit (in µs)", micros, "1 ms or more");
    }
    Ok(())
}
