//! A tap: its memory and its links, and how they come and go.

use crate::config::{Config, Mode, check};
use crate::error::TapError;
use crate::flow_cache::FlowCache;
use crate::io::adaptive_poll::AdaptivePoll;
use crate::io::queue::{Shared, TapLink};
use crate::io::tx_burst::{BurstSender, NoBurst};
use crate::link_monitor::LinkMonitor;
use crate::news::LinkEvents;
use crate::shared::members::Members;
use crate::stats::Counts;
use crate::wake::Wakes;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weir_link::net::{Interface, InterfaceError};
use weir_link::xdp::{
    Bypass, CopyMode, Gate, GateError, HostFilter, HostFilterUpdater, LivenessLock, SharedPage,
    XskError,
};
use weir_ring::umem::ChunkCounts;
use weir_ring::{Pool, Umem};
use weir_wire::LinkType;

/// The number of this process among those that share the memory.
const ME: u16 = 1;

/// How long the kernel may take to close the sockets of a process that has
/// ended: 0.2 s and less, more where the machine is busy.
const CLOSING: Duration = Duration::from_secs(1);

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
/// [`Config::hang_max`] while there are frames: else they take the bypass. With
/// [`Bypass::Wire`] those that waited are behind others then, and the next call
/// drops and counts them; with the others nothing has passed them, and they come.
#[derive(Debug)]
pub struct Tap {
    pub(crate) links: Vec<Option<TapLink>>,
    /// Let go before the gate is somebody else's to have.
    pub(crate) liveness: Option<LivenessLock>,
    pub(crate) gate: Gate,
    pub(crate) state: Rc<SharedPage>,
    pub(crate) pool: Rc<Pool>,
    pub(crate) config: Config,
    pub(crate) counts: Counts,
    pub(crate) flow_cache: Option<FlowCache>,
    pub(crate) burst: Result<BurstSender, NoBurst>,
    /// The gate was opened.
    pub(crate) is_ready: bool,
    /// What the gate said when it was opened.
    pub(crate) epoch: u32,
    /// Until then frames show by their epoch whether they are old.
    pub(crate) check_until: u64,
    /// When the clock was looked at last.
    pub(crate) now_ns: u64,
    /// When there was a frame last.
    pub(crate) busy_at: u64,
    /// Since when there is none, and we wait for one.
    pub(crate) idle_since: Option<u64>,
    pub(crate) spin: AdaptivePoll,
    /// When we said last that we are alive; 0 where we have to.
    pub(crate) beaten_at: u64,
    /// What is left behind when the process ends.
    pub(crate) outlives: bool,
    /// Where other processes have it, too.
    pub(crate) members: Option<Members>,
    /// Links that others have still.
    pub(crate) untapped: Vec<TapLink>,
    /// Who asks whether the links of now are there.
    pub(crate) watch: Option<LinkMonitor>,
    /// What happens to the links of now.
    pub(crate) link_events: Option<LinkEvents>,
    /// What else ends a wait for frames.
    pub(crate) wakes: Wakes,
}

impl Tap {
    /// Makes memory for frames and gets it ready (`mbuf_map`). No link is
    /// tapped yet.
    ///
    /// # Errors
    /// For sizes that cannot be, and without privilege.
    pub fn map(config: Config) -> Result<Tap, TapError> {
        check(&config)?;
        let umem = Umem::create(config.chunks, config.chunk_bytes)?;
        let gate = Gate::new(config.bypass)?;
        Tap::from_parts(config, umem, gate, false)
    }

    /// As [`map`](Self::map) and [`tap`](Self::tap) of two links, which are
    /// joined for the bypass by wire. What is at the links stays when the
    /// process ends in any way, unless the bypass is the host's; a process
    /// after it takes it over.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn between(config: Config, a: &str, b: &str) -> Result<Tap, TapError> {
        let interfaces = [ethernet(a)?, ethernet(b)?];
        if interfaces[0].index == interfaces[1].index {
            return Err(TapError::Same {
                interface: a.to_owned(),
            });
        }
        Tap::open_persistent(config, interfaces.into(), |gate| gate.join(0, 1))
    }

    /// As [`map`](Self::map) and [`tap`](Self::tap) of these links, in order,
    /// of which the host's own protocols are left what `host` accepts. As with
    /// [`between`](Self::between), what is at the links stays when the process
    /// ends, unless the bypass is the host's.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn across(
        config: Config,
        interfaces: &[&str],
        host: Option<HostFilter>,
    ) -> Result<Tap, TapError> {
        let interfaces = interfaces.iter().map(|name| ethernet(name));
        let interfaces = interfaces.collect::<Result<_, TapError>>()?;
        Tap::open_persistent(config, interfaces, |gate| match host {
            Some(host) => {
                gate.set_host_filter(host);
                gate.renew()
            }
            None => Ok(()),
        })
    }

    /// Taps links whose programs stay, unless the bypass is the host's.
    fn open_persistent(
        config: Config,
        interfaces: Vec<Interface>,
        prepare: impl FnOnce(&mut Gate) -> Result<(), GateError>,
    ) -> Result<Tap, TapError> {
        check(&config)?;
        let outlives = config.bypass != Bypass::Kernel;
        let all: Vec<&Interface> = interfaces.iter().collect();
        // What may be refused comes before what stays when its process ends.
        let umem = Umem::create(config.chunks, config.chunk_bytes)?;
        let mut gate = Gate::attach(&all, config.bypass, outlives)?;
        if let Err(error) = prepare(&mut gate) {
            if !gate.is_adopted() {
                let _ = gate.end();
            }
            return Err(error.into());
        }
        let mut tap = Tap::from_parts(config, umem, gate, outlives)?;
        let bound = interfaces.into_iter().try_for_each(|interface| {
            let number = tap.links.len();
            tap.links.push(None);
            tap.bind(interface, number)
        });
        match bound.and_then(|()| tap.share_out()) {
            Ok(()) => Ok(tap),
            Err(error) => {
                let _ = tap.unmap();
                Err(error)
            }
        }
    }

    /// Takes off links what [`between`](Self::between) or
    /// [`across`](Self::across) has left there; `false` if there is nothing.
    /// What was left at one that is gone, and at another, goes with the other.
    ///
    /// # Errors
    /// See [`TapError`]; also while a process has them, and for one that is not
    /// there if nothing is left at the others.
    pub fn clean(interfaces: &[&str]) -> Result<bool, TapError> {
        let (mut there, mut missing) = (Vec::new(), None);
        for name in interfaces {
            match ethernet(name) {
                Ok(interface) => there.push(interface),
                Err(error @ TapError::Interface(InterfaceError::Missing { .. })) => {
                    missing.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        let all: Vec<&Interface> = there.iter().collect();
        let found = !all.is_empty() && Gate::clean_stale(&all)?;
        missing.filter(|_| !found).map_or(Ok(found), Err)
    }

    fn from_parts(config: Config, umem: Umem, gate: Gate, outlives: bool) -> Result<Tap, TapError> {
        let pool = Pool::new(umem, ME, config.reserved);
        let mut tap = Tap::of(config, gate, pool, outlives);
        if config.tx_burst {
            tap.burst = BurstSender::new();
        }
        let flow_cache = config
            .flow_cache
            .map(|flow_cache| FlowCache::new(flow_cache, &tap.state));
        match flow_cache.transpose() {
            Ok(flow_cache) => tap.flow_cache = flow_cache,
            Err(error) => {
                let _ = tap.unmap();
                return Err(error);
            }
        }
        Ok(tap)
    }

    /// Without links.
    pub(crate) fn of(config: Config, gate: Gate, pool: Rc<Pool>, outlives: bool) -> Tap {
        Tap {
            pool,
            links: Vec::new(),
            state: Rc::clone(gate.state()),
            liveness: None,
            gate,
            config,
            counts: Counts::default(),
            flow_cache: None,
            burst: Err(NoBurst::NotAsked),
            is_ready: false,
            epoch: 0,
            check_until: 0,
            now_ns: 0,
            busy_at: 0,
            idle_since: None,
            spin: AdaptivePoll::new(config.spin),
            beaten_at: 0,
            outlives,
            members: None,
            untapped: Vec::new(),
            watch: None,
            link_events: None,
            wakes: Wakes::default(),
        }
    }

    /// Gives everything back (`mbuf_unmap`): links that are tapped still are
    /// untapped. Counts what becomes of all chunks: with no frame held
    /// elsewhere, all are free. From a [shared](Self::share) tap the process
    /// parts, and with the last all is given back.
    ///
    /// # Errors
    /// When a link cannot be left as it was.
    pub fn unmap(mut self) -> Result<ChunkCounts, TapError> {
        if self.is_shared() {
            let (census, is_last) = self.leave()?;
            if !is_last {
                return Ok(census);
            }
        }
        self.state.shut();
        self.liveness = None;
        let links = self.links.iter_mut().filter_map(Option::take);
        links.chain(self.untapped.drain(..)).for_each(TapLink::end);
        let census = self.pool.chunk_counts();
        // What never began leaves nothing but what was there before it.
        let stays = self.outlives && (self.is_ready || self.gate.is_adopted());
        if !stays {
            self.gate.end()?;
        }
        Ok(census)
    }

    /// Has [`unmap`](Self::unmap) leave the links as they were before, also
    /// where the bypass would stay.
    pub fn restore(&mut self) {
        self.outlives = false;
    }

    /// What changes what the host's own protocols are left of the links that
    /// are tapped now, from any thread.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn host_filter_updaters(&self) -> Result<Vec<HostFilterUpdater>, TapError> {
        let links = self.links.iter().enumerate();
        let links = links.filter_map(|(number, link)| Some((number, link.as_ref()?)));
        let flow_cache = self.flow_cache.as_ref().map(FlowCache::kernel);
        let changes = links.map(|(number, link)| {
            let flow_cache = flow_cache.map(|flow_cache| (flow_cache, link.completes));
            Ok(self.gate.host_filter_updater(number, flow_cache)?)
        });
        changes.collect()
    }

    /// Taps a link (`interface_tap`): the host gets none of its frames any
    /// more. Once tapped, it is only counted.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn tap(&mut self, interface: &str) -> Result<LinkId, TapError> {
        let mut links = self.links.iter().flatten();
        if self.is_shared() && links.all(|link| link.interface.name != interface) {
            return Err(TapError::IsShared);
        }
        let interface = ethernet(interface)?;
        let known = self.links.iter_mut().zip(0..).find_map(|(link, number)| {
            let link = link.as_mut()?;
            (link.interface.index == interface.index).then_some((link, number))
        });
        if let Some((link, number)) = known {
            link.holders += 1;
            return Ok(LinkId(number));
        }
        self.watch = None;
        let number = self.gate.add(&interface)?;
        while self.links.len() <= number {
            self.links.push(None);
        }
        let bound = self.bind(interface, number);
        if let Err(error) = bound.and_then(|()| self.share_out()) {
            let _ = self.gate.remove(number);
            self.links[number].take().into_iter().for_each(TapLink::end);
            return Err(error);
        }
        // Of links that are tapped before the first pull, that is when news begin.
        if self.link_events.is_some() {
            self.listen()?;
        }
        Ok(LinkId(number))
    }

    /// Binds to an interface, in the mode that all links can have.
    fn bind(&mut self, interface: Interface, number: usize) -> Result<(), TapError> {
        let all = self.links.iter().flatten();
        let first = all.clone().next();
        let shared = Shared {
            pool: &self.pool,
            shared_with: first.and_then(|link| Some(&link.queues.first()?.socket)),
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
        let mut link = match bound {
            Err(TapError::Socket(XskError::NotByDriver { .. } | XskError::NoQueue { .. }))
                if shared.mode == Some(CopyMode::ZeroCopy) && self.config.mode == Mode::Auto =>
            {
                self.rebind_by_copy()?;
                return self.bind(interface, number);
            }
            bound => bound?,
        };
        if let Some(cache) = &mut self.flow_cache {
            cache.add_link(number, link.interface.index);
            self.gate
                .use_flow_cache(number, cache.kernel(), link.completes)?;
            // No socket is there yet that could be handed anything.
            for (queue, at) in link.queues.iter_mut().zip(0..) {
                queue.note_all_drained(&self.state, number as u32, at);
            }
        }
        if let Ok(sender) = &self.burst {
            link.burst = sender.add(&link, number);
        }
        link.put_sockets(&self.gate, number)?;
        self.state.set_longest(number as u32, link.longest);
        self.links[number] = Some(link);
        Ok(())
    }

    /// Divides the chunks among the queues there are now, and lends them: those that
    /// are bound first would have them all, where queues are many.
    fn share_out(&mut self) -> Result<(), TapError> {
        let queues = || self.links.iter().flatten().flat_map(|link| &link.queues);
        let each = (self.config.chunks - self.config.reserved) / queues().count().max(1) as u32;
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                queue.ring.set_share(each.max(1));
            }
        }
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
            let (interface, holders) = (link.interface.clone(), link.holders);
            link.end();
            self.bind(interface, number)?;
            if let Some(link) = &mut self.links[number] {
                link.holders = holders;
            }
        }
        Ok(())
    }

    /// Untaps a link (`interface_untap`): with its last holder, of all
    /// processes, it returns to the host. Tells whether that was the last.
    /// What was given is sent first; frames that the program has not taken are
    /// dropped.
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
        self.watch = None;
        // A link that cannot send any more can be untapped all the same.
        if self.is_ready {
            let _ = self.push();
        }
        let place = &mut self.links[link.0];
        if let Some(bit) = self.members.as_ref().map(|members| members.bit()) {
            let mut untapped = place.take();
            for queue in untapped.iter_mut().flat_map(|link| &mut link.queues) {
                let kept = queue.inbox.drain(..).chain(queue.outbox.drain(..));
                self.counts.untapped += kept.count() as u64;
            }
            self.untapped.extend(untapped);
            return self.release_link(link.0 as u16, bit);
        }
        if let Some(cache) = &mut self.flow_cache {
            cache.remove_link(link.0);
        }
        self.gate.remove(link.0)?;
        place.take().into_iter().for_each(TapLink::end);
        Ok(true)
    }

    /// Bytes of the longest packet that a link can send, without the link-layer
    /// header: its interface's MTU at the last pull, or less where the sockets
    /// cannot send as much. `None` for one that is not tapped.
    pub fn mtu(&self, link: LinkId) -> Option<usize> {
        let link = self.links.get(link.0)?.as_ref()?;
        Some(link.mtu())
    }

    /// Answers that the kernel remembers, if [`Config::flow_cache`](crate::Config::flow_cache) says so.
    #[inline]
    pub fn flow_cache(&mut self) -> Option<&mut FlowCache> {
        self.flow_cache.as_mut()
    }

    /// The same, to read.
    pub fn flow_cache_stats(&self) -> Option<&FlowCache> {
        self.flow_cache.as_ref()
    }
}

pub(crate) fn ring_error(interface: &Interface, source: weir_ring::queue::Corrupt) -> TapError {
    TapError::Ring {
        interface: interface.name.clone(),
        source,
    }
}

fn ethernet(name: &str) -> Result<Interface, TapError> {
    let interface = Interface::named(name)?;
    if interface.loopback {
        let interface = interface.name;
        return Err(TapError::Loopback { interface });
    }
    match interface.linktype {
        Some(LinkType::EN10MB) => Ok(interface),
        _ => Err(TapError::NotEthernet {
            interface: interface.name,
        }),
    }
}
