//! A tap: its memory and its links, and how links are added and removed.

use crate::config::{Config, Mode, check};
use crate::error::TapError;
use crate::flow_cache::FlowCache;
use crate::io::adaptive_poll::AdaptivePoll;
use crate::io::queue::{Shared, TapLink};
use crate::io::tx_burst::{BurstSender, NoBurst};
use crate::link_changes::LinkEvents;
use crate::link_monitor::LinkMonitor;
use crate::shared::members::Members;
use crate::stats::Counts;
use crate::wake::Wakes;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weir_link::net::{Interface, InterfaceError};
use weir_link::xdp::{
    Bypass, CopyMode, Gate, GateError, HostFilter, HostFilterUpdater, LivenessLock, MeterStage,
    SharedPage, XskError,
};
use weir_ring::umem::ChunkCounts;
use weir_ring::{Pool, Umem};
use weir_wire::LinkType;

/// The number of the first process of the memory.
const ME: u16 = 1;

/// Time limit for the kernel to close the sockets of a process that has ended:
/// usually 0.2 s or less, more on a busy machine.
const CLOSING: Duration = Duration::from_secs(1);

/// The number of a tapped link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub(crate) usize);

impl LinkId {
    /// The number, from 0.
    pub fn number(self) -> usize {
        self.0
    }
}

/// The target of a pull.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pull {
    /// This number of chunks that can be allocated, without waiting.
    Chunks(u32),
    /// A frame on any link; waits for at most this time.
    Frame(Duration),
}

/// The frames of an application: the memory for them, and the links that they
/// come from and go to. A tap belongs to the thread that made it.
///
/// While there are frames, call [`pull`](Self::pull) or [`push`](Self::push)
/// more often than [`Config::hang_max`]; otherwise frames take the bypass. With
/// [`Bypass::Wire`] the frames that waited are then behind others, and the next
/// call drops and counts them. With another bypass no frame has passed them,
/// and they are delivered.
#[derive(Debug)]
pub struct Tap {
    pub(crate) links: Vec<Option<TapLink>>,
    /// Dropped before the gate, so that another process can take the gate over.
    pub(crate) liveness: Option<LivenessLock>,
    pub(crate) gate: Gate,
    pub(crate) page: Rc<SharedPage>,
    pub(crate) pool: Rc<Pool>,
    pub(crate) config: Config,
    pub(crate) counts: Counts,
    pub(crate) flow_cache: Option<FlowCache>,
    pub(crate) burst: Result<BurstSender, NoBurst>,
    /// The gate was opened.
    pub(crate) is_ready: bool,
    /// The gate's epoch when it was opened.
    pub(crate) epoch: u32,
    /// The time until which a frame's epoch shows whether it is stale.
    pub(crate) check_until: u64,
    /// The time at the last reading of the clock, in ns.
    pub(crate) now_ns: u64,
    /// The time of the last frame, in ns.
    pub(crate) busy_at: u64,
    /// The time since which this process has waited for a frame.
    pub(crate) idle_since: Option<u64>,
    pub(crate) spin: AdaptivePoll,
    /// The time of the last heartbeat; 0 if one is due.
    pub(crate) beaten_at: u64,
    /// The programs on the links stay when the process ends.
    pub(crate) outlives: bool,
    /// The other processes, if the tap is shared.
    pub(crate) members: Option<Members>,
    /// Untapped links that other processes still hold.
    pub(crate) untapped: Vec<TapLink>,
    /// Frames that earlier processes' flow caches held back.
    pub(crate) held_back_before: u64,
    /// Checks whether the present links exist.
    pub(crate) watch: Option<LinkMonitor>,
    /// Follows changes of the present links.
    pub(crate) link_events: Option<LinkEvents>,
    /// Descriptors that end a wait for frames.
    pub(crate) wakes: Wakes,
}

impl Tap {
    /// Makes and prepares the memory for frames (`mbuf_map`). No link is tapped
    /// yet.
    ///
    /// # Errors
    /// For invalid sizes, and without privilege.
    pub fn map(config: Config) -> Result<Tap, TapError> {
        check(&config)?;
        let umem = Umem::create(config.chunks, config.chunk_bytes)?;
        let gate = Gate::new(config.bypass)?;
        Tap::from_parts(config, umem, gate, false)
    }

    /// As [`map`](Self::map) and [`tap`](Self::tap) of two links, which the
    /// bypass by wire joins. The programs on the links stay when the process
    /// ends in any way, unless the bypass is the host's; a later process takes
    /// them over.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn between(config: Config, a: &str, b: &str) -> Result<Tap, TapError> {
        Tap::between_metered(config, a, b, &[])
    }

    /// As [`between`](Self::between); the frames that come in at either link are counted by the
    /// stage in the same place of `meters`, if it has any, whatever becomes of them. Then the
    /// programs stay when the process is killed, with any bypass.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn between_metered(
        config: Config,
        a: &str,
        b: &str,
        meters: &[MeterStage],
    ) -> Result<Tap, TapError> {
        let interfaces = [ethernet(a)?, ethernet(b)?];
        if interfaces[0].index == interfaces[1].index {
            return Err(TapError::Same {
                interface: a.to_owned(),
            });
        }
        Tap::open_persistent(config, interfaces.into(), meters, |gate| gate.join(0, 1))
    }

    /// As [`map`](Self::map) and [`tap`](Self::tap) of these links, in order;
    /// the host's own protocols keep the frames that `host` accepts. As with
    /// [`between_metered`](Self::between_metered), the programs on the links stay when the
    /// process ends, unless the bypass is the host's, and frames are counted by
    /// `meters`, if it has any.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn across(
        config: Config,
        interfaces: &[&str],
        host: Option<HostFilter>,
        meters: &[MeterStage],
    ) -> Result<Tap, TapError> {
        let interfaces = interfaces.iter().map(|name| ethernet(name));
        let interfaces = interfaces.collect::<Result<_, TapError>>()?;
        Tap::open_persistent(config, interfaces, meters, |gate| match host {
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
        meters: &[MeterStage],
        prepare: impl FnOnce(&mut Gate) -> Result<(), GateError>,
    ) -> Result<Tap, TapError> {
        check(&config)?;
        let outlives = config.bypass != Bypass::Kernel;
        let all: Vec<&Interface> = interfaces.iter().collect();
        // Calls that may fail come before the state that outlives the process.
        let umem = Umem::create(config.chunks, config.chunk_bytes)?;
        // Frames are counted through a kill, even where the host gets them.
        let is_pinned = outlives || !meters.is_empty();
        let mut gate = Gate::attach_metered(&all, config.bypass, is_pinned, meters)?;
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

    /// Removes from links the state that [`between`](Self::between) or
    /// [`across`](Self::across) left there; returns `false` if there is none.
    /// State shared by a link that is gone and another one is removed with the
    /// other.
    ///
    /// # Errors
    /// See [`TapError`]; also while a process uses the links, and for a link
    /// that does not exist if the others have no such state.
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
            .map(|flow_cache| FlowCache::new(flow_cache, &tap.page));
        match flow_cache.transpose() {
            Ok(flow_cache) => tap.flow_cache = flow_cache,
            Err(error) => {
                let _ = tap.unmap();
                return Err(error);
            }
        }
        Ok(tap)
    }

    /// A tap without links.
    pub(crate) fn of(config: Config, gate: Gate, pool: Rc<Pool>, outlives: bool) -> Tap {
        Tap {
            pool,
            links: Vec::new(),
            page: Rc::clone(gate.page()),
            held_back_before: gate.page().held_back(),
            liveness: None,
            gate,
            config,
            counts: Counts::default(),
            flow_cache: None,
            burst: Err(NoBurst::NotRequested),
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

    /// Frees everything (`mbuf_unmap`) and untaps tapped links. Returns the
    /// final chunk counts: if no frame is held elsewhere, all are free. A
    /// process leaves a [shared](Self::share) tap, and the last one frees
    /// everything.
    ///
    /// # Errors
    /// If a link cannot be restored.
    pub fn unmap(mut self) -> Result<ChunkCounts, TapError> {
        if self.is_shared() {
            let (census, is_last) = self.leave()?;
            if !is_last {
                return Ok(census);
            }
        }
        self.page.shut();
        self.liveness = None;
        let links = self.links.iter_mut().filter_map(Option::take);
        links.chain(self.untapped.drain(..)).for_each(TapLink::end);
        let census = self.pool.chunk_counts();
        // A tap that never became ready leaves only the state that was there
        // before.
        let stays = self.outlives && (self.is_ready || self.gate.is_adopted());
        if !stays {
            self.gate.end()?;
        }
        Ok(census)
    }

    /// Whether the programs that an earlier process has left on all links
    /// counted their frames in the same meter, until those of this one took
    /// their places.
    pub fn was_metered(&self) -> bool {
        self.gate.was_metered()
    }

    /// Why an interface of an earlier process's tap, which was moved to another
    /// network namespace, stays promiscuous.
    pub fn still_promiscuous(&self) -> Option<&GateError> {
        self.gate.still_promiscuous()
    }

    /// Makes [`unmap`](Self::unmap) restore the links, even if the bypass would
    /// stay.
    pub fn restore(&mut self) {
        self.outlives = false;
    }

    /// Handles that change, from any thread, the filters of the host's own
    /// protocols on the links tapped now.
    ///
    /// # Errors
    /// If the process has no more descriptors.
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
    /// more. A link that is tapped already is only counted.
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
        // For links that are tapped before the first pull, events start with
        // that pull.
        if self.link_events.is_some() {
            self.listen()?;
        }
        Ok(LinkId(number))
    }

    /// Binds to an interface, in the mode that all links support.
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
            // No socket is in the map yet that could receive frames.
            for (queue, at) in link.queues.iter_mut().zip(0..) {
                queue.note_all_drained(&self.page, number as u32, at);
            }
        }
        if let Ok(sender) = &self.burst {
            link.burst = sender.add(&link, number);
        }
        link.put_sockets(&self.gate, number)?;
        self.page.set_longest(number as u32, link.longest);
        self.links[number] = Some(link);
        Ok(())
    }

    /// Divides the chunks among the present queues, and lends them; otherwise,
    /// with many queues, the first ones would get all chunks.
    fn share_out(&mut self) -> Result<(), TapError> {
        let queues = || self.links.iter().flatten().flat_map(|link| &link.queues);
        let kept = self.config.reserved + self.config.held;
        let each = (self.config.chunks - kept) / queues().count().max(1) as u32;
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                queue.ring.set_share(each.max(1));
            }
        }
        self.refill()
    }

    /// Rebinds all links in copy mode: the memory is used in one mode, and one
    /// link does not support zero-copy.
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

    /// Untaps a link (`interface_untap`). The last untap among all processes
    /// returns the link to the host; returns whether this was the last. Sends
    /// the given frames first; drops frames that the application has not taken.
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

    /// Size of the longest packet that a link can send, without the link-layer header: its
    /// interface's MTU at the last pull, or less if the sockets cannot send as much. `None` if it
    /// is not tapped.
    pub fn mtu(&self, link: LinkId) -> Option<usize> {
        let link = self.links.get(link.0)?.as_ref()?;
        Some(link.mtu())
    }

    /// The flow cache, if [`Config::flow_cache`](crate::Config::flow_cache) enables it.
    #[inline]
    pub fn flow_cache(&mut self) -> Option<&mut FlowCache> {
        self.flow_cache.as_mut()
    }

    /// The flow cache, for reading.
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
