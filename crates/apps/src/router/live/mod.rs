//! The router on live links: the core of [`engine`](crate::router::engine)
//! between taps.
//!
//! `kernel_routes` imports routes, `address_monitor` follows the host's
//! addresses, and `flow_cache` keeps the kernel's cached decisions valid.

pub(crate) mod address_monitor;
mod chain;
mod chain_cache;
pub(crate) mod flow_cache;
pub(crate) mod kernel_routes;
mod metering;

pub use chain::{LogSink, Stages};

use crate::router::engine::config::{Config, ConfigError, InterfaceInfo};
use crate::router::engine::{LinkId, Origin, Reason, RouteError, Router, Verdict};
use crate::router::live::address_monitor::{AddressUpdate, Addresses};
use crate::router::live::chain::{Decision, LiveChain};
use crate::router::live::flow_cache::{Revalidator, cache};
use crate::router::live::kernel_routes::RouteImporter;
use crate::router::live::metering::OutsideMeter;
use crate::shape::{Output, Shaper};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_link::net::{Address, AddressMonitor, Interface, InterfaceError, Neighbours};
use weir_stack::Prefix;
use weir_tap::{Frame, HostFilter, HostFilterError, MeterStage, Pull, Tap, TapError};

const _: () = assert!(crate::router::engine::LINKS_MAX == weir_link::xdp::LINKS_MAX as usize);

/// Number of frames of one link that are processed together.
const BATCH: usize = 64;
/// Number of batches taken from one link before output is sent, on links that
/// send bursts.
const BATCHES: usize = 2;
/// Longest sleep, and so the interval at which `visit` is called when idle.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// `POLL_INTERVAL` in nanoseconds.
const POLL_INTERVAL_NS: u64 = POLL_INTERVAL.as_nanos() as u64;

/// Number of neighbour updates passed to the host between two batches: each
/// takes system calls, for which frames wait.
const UPDATES_PER_BATCH: usize = 4;

/// The reason why a router does not run, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An interface does not exist.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// An interface is not Ethernet.
    #[error("interface `{name}` carries no Ethernet frames: a router needs such links")]
    NotEthernet {
        /// The interface's name.
        name: String,
    },
    /// A route does not fit.
    #[error("{prefix}: {source}")]
    Route {
        /// The prefix of the route.
        prefix: String,
        /// The reason.
        source: RouteError,
    },
    /// The links cannot be tapped, or are gone.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The host filter is invalid.
    #[error("[kernel]: host: {0}")]
    Host(#[from] HostFilterError),
    /// The kernel does not count frames for the process.
    #[error("frames of the outside cannot be metered: {0}")]
    Meter(#[from] weir_link::bpf::TestRunError),
    /// The kernel does not report its routes or interfaces.
    #[error("the kernel does not report its routes ({0})")]
    Kernel(#[source] io::Error),
}

/// A view of a running router.
#[derive(Clone, Copy)]
pub struct Snapshot<'a> {
    /// The names of the links, in order.
    pub names: &'a [String],
    /// The engine.
    pub router: &'a Router,
    /// The tap that carries the frames.
    pub tap: &'a Tap,
    /// Numbers of kernel routes over other interfaces, and of those without
    /// room.
    pub skipped: (u64, u64),
    /// The reason why the host filters still cover the host's former addresses.
    pub host_refused: Option<&'a str>,
    /// The stages between the router and its outside link, if there are some.
    pub chain: Option<&'a weir_chain::Chain>,
    /// Frames of the outside that could not be metered for a subscriber.
    pub unmetered: u64,
    /// The queues of each link, if it has a scheduler; empty if no link has one.
    pub shapers: &'a [Option<Shaper<Frame>>],
    /// The router has ended; the view is final.
    pub is_last: bool,
}

/// Checks a configuration against the existing interfaces, without changing them; returns what is wrong,
/// missing interfaces last. Without an interface whose addresses the configuration does not state, next
/// hops are not checked: the network that they are in is not known.
pub fn check(config: &Config) -> Vec<RunError> {
    let mut wrong = Vec::new();
    let (mut missing, mut known) = (Vec::new(), Vec::new());
    let mut is_complete = true;
    for (number, link) in config.links.iter().enumerate() {
        match Interface::named(&link.name) {
            Ok(interface) => known.push(Ok(interface)),
            Err(error) => {
                missing.push(RunError::from(error));
                is_complete &= !link.addresses.is_empty();
                known.push(Err(stand_in(number)));
            }
        }
    }
    let present = || {
        known
            .iter()
            .enumerate()
            .filter_map(|(at, one)| Some((at, one.as_ref().ok()?)))
    };
    for (number, interface) in present() {
        let mut before = present().take_while(|(at, _)| *at < number);
        if before.any(|(_, other)| other.index == interface.index) {
            wrong.push(config.same_link(number, &interface.name).into());
        }
    }
    let host = host_addresses().and_then(|addresses| host_filter(config, &addresses));
    wrong.extend(host.err());
    let mut infos = Vec::new();
    for one in known {
        match one.map_or_else(Ok, |interface| facts(&interface)) {
            Ok(info) => infos.push(info),
            Err(error) => {
                is_complete = false;
                wrong.push(error);
            }
        }
    }
    if is_complete {
        wrong.extend(with_facts(config, &infos).err());
    }
    wrong.extend(missing);
    wrong
}

/// A link's interface that is not there.
fn stand_in(number: usize) -> InterfaceInfo {
    InterfaceInfo {
        hardware: weir_wire::ethernet::Address([2, 0, 0, 0, 0, number as u8]),
        mtu: usize::from(u16::MAX),
        addresses: Vec::new(),
    }
}

/// Taps the links of a configuration in the calling thread's network namespace,
/// and routes between them. Calls `visit` when frames flow, then about every 50
/// ms, and once more at the end; `visit` returns whether to continue. While one
/// of `wakes` is readable, `visit` is called more often: at once without
/// traffic, and within 1 ms with traffic.
///
/// The frames that come in at each link are counted by the stage in the same
/// place of `meters`, if it has any.
///
/// With the bypass [`Drop`](weir_tap::Bypass::Drop), after any end of the
/// router no frame passes until the next router is ready or [`Tap::clean`] runs.
/// With `restore`, an end that `visit` requested restores the links.
///
/// # Errors
/// See [`RunError`].
pub fn run(
    config: &Config,
    tap: weir_tap::Config,
    meters: &[MeterStage],
    restore: bool,
    wakes: Vec<OwnedFd>,
    visit: impl FnMut(Snapshot<'_>) -> ControlFlow<()>,
) -> Result<(), RunError> {
    run_through(config, tap, meters, None, restore, wakes, visit)
}

/// As [`run`], with stages between the router and its outside link.
///
/// # Errors
/// See [`RunError`].
pub fn run_through(
    config: &Config,
    tap: weir_tap::Config,
    meters: &[MeterStage],
    stages: Option<Stages>,
    restore: bool,
    wakes: Vec<OwnedFd>,
    mut visit: impl FnMut(Snapshot<'_>) -> ControlFlow<()>,
) -> Result<(), RunError> {
    // Opened before the addresses are read, so that no change is missed.
    let addresses = AddressMonitor::open().map_err(RunError::Kernel)?;
    let host_has = host_addresses()?;
    let interfaces = interfaces(config)?;
    let router = make(config, &interfaces)?;
    let indices: Vec<u32> = interfaces.iter().map(|interface| interface.index).collect();
    let learner = if config.kernel.routes {
        let learner = RouteImporter::open(&config.kernel.tables, indices.clone());
        Some(learner.map_err(RunError::Kernel)?)
    } else {
        None
    };
    let filter = host_filter(config, &host_has)?;
    let host = if filter.is_some() {
        Some(Neighbours::open().map_err(RunError::Kernel)?)
    } else {
        None
    };
    let names: Vec<String> = interfaces.iter().map(|i| i.name.clone()).collect();
    let links: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut tap = Tap::across(tap, &links, filter, meters)?;
    let follow = |tap: &Tap| {
        let changes = tap.host_filter_updaters()?;
        let addresses = Addresses::follow(addresses, config, &interfaces, host_has, changes);
        addresses.map_err(RunError::Kernel)
    };
    let addresses = match follow(&tap) {
        Ok(addresses) => addresses,
        Err(error) => {
            let _ = tap.unmap();
            return Err(error);
        }
    };
    let mut stages = stages;
    let shapers = stages
        .as_mut()
        .map(|stages| std::mem::take(&mut stages.shapers));
    let has_cache = tap.flow_cache().is_some();
    let output = Output::new(shapers.unwrap_or_default());
    let stages = stages.map(|stages| LiveChain::new(stages, has_cache, &output));
    let mut running = LiveRouter {
        names,
        router,
        config: config.clone(),
        is_importing: learner.is_some(),
        importer: learner,
        host,
        addresses,
        routes_refused: 0,
        host_refused: None,
        indices,
        links: tap.links().collect(),
        began: stages.as_ref().map_or_else(Instant::now, LiveChain::began),
        stages,
        output,
        wait: POLL_INTERVAL,
        batch: Vec::with_capacity(BATCH),
        verdicts: Vec::with_capacity(BATCH),
        revalidator: Revalidator::default(),
    };
    let ran = running
        .wake_on(&mut tap, wakes)
        .and_then(|()| running.settle_left())
        .and_then(|()| running.run(&mut tap, &mut visit));
    if let Some(fast) = tap.flow_cache() {
        fast.tally();
    }
    running.output.flush();
    let view = Snapshot {
        is_last: true,
        ..running.view(&tap)
    };
    let _ = visit(view);
    let meter = running.stages.as_mut().and_then(LiveChain::take_meter);
    drop(running);
    if restore && ran.is_ok() {
        tap.restore();
    }
    let unmapped = tap.unmap();
    // No frame comes to the process any more.
    let settled = meter.map_or(Ok(()), |meter| meter.settle_all());
    ran?;
    unmapped?;
    Ok(settled?)
}

fn interfaces(config: &Config) -> Result<Vec<Interface>, RunError> {
    let names = config.links.iter();
    let interfaces = names.map(|link| Interface::named(&link.name));
    let interfaces: Vec<Interface> = interfaces.collect::<Result<_, InterfaceError>>()?;
    for (number, interface) in interfaces.iter().enumerate() {
        let mut before = interfaces[..number].iter();
        // An earlier link has another name of the same interface.
        if before.any(|other| other.index == interface.index) {
            return Err(config.same_link(number, &interface.name).into());
        }
    }
    Ok(interfaces)
}

fn host_addresses() -> Result<Vec<Address>, RunError> {
    Ok(to_host(&weir_link::net::interfaces()?))
}

/// The host's addresses on these interfaces to which packets from other
/// machines come.
pub(crate) fn to_host(all: &[Interface]) -> Vec<Address> {
    let addresses = all.iter().flat_map(|interface| &interface.addresses);
    let addresses = addresses.filter(|address| !address.ip.is_loopback());
    addresses.cloned().collect()
}

/// The filter for the host's own frames on the links, with these addresses.
fn host_filter(config: &Config, addresses: &[Address]) -> Result<Option<HostFilter>, RunError> {
    let text = config.kernel.host.filter();
    let filter = text.map(|text| HostFilter::new(addresses, &text));
    Ok(filter.transpose()?)
}

fn make(config: &Config, interfaces: &[Interface]) -> Result<Router, RunError> {
    let facts = interfaces.iter().map(facts);
    let facts = facts.collect::<Result<Vec<InterfaceInfo>, RunError>>()?;
    let mut router = with_facts(config, &facts)?;
    for (number, interface) in interfaces.iter().enumerate() {
        router.set_link_up(number as LinkId, interface.running);
    }
    Ok(router)
}

fn with_facts(config: &Config, facts: &[InterfaceInfo]) -> Result<Router, RunError> {
    let (settings, routes) = config.settings(facts)?;
    let full = |prefix: String| move |source| RunError::Route { prefix, source };
    let mut router = Router::new(&settings, seed()).map_err(full("the links' networks".into()))?;
    for (prefix, target) in routes {
        let inserted = router
            .routes_mut()
            .insert(prefix, Origin::Configured, target);
        inserted.map_err(full(prefix.to_string()))?;
    }
    Ok(router)
}

fn facts(interface: &Interface) -> Result<InterfaceInfo, RunError> {
    if interface.loopback {
        let interface = interface.name.clone();
        return Err(TapError::Loopback { interface }.into());
    }
    let hardware: Result<[u8; 6], _> = interface.address.as_slice().try_into();
    let is_ethernet = interface.header_bytes() == weir_wire::ethernet::Repr::LEN;
    match hardware {
        Ok(hardware) if is_ethernet => Ok(InterfaceInfo {
            hardware: weir_wire::ethernet::Address(hardware),
            mtu: interface.mtu as usize,
            addresses: prefixes(interface),
        }),
        _ => Err(RunError::NotEthernet {
            name: interface.name.clone(),
        }),
    }
}

/// An interface's addresses.
pub(crate) fn prefixes(interface: &Interface) -> Vec<Prefix> {
    let addresses = interface.addresses.iter();
    addresses
        .filter_map(|address| Prefix::new(address.ip, address.prefix_len))
        .collect()
}

/// A random seed that peers cannot predict.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

struct LiveRouter {
    names: Vec<String>,
    router: Router,
    config: Config,
    importer: Option<RouteImporter>,
    /// The kernel may have further route changes.
    is_importing: bool,
    /// The host's neighbour tables, if its own protocols use the links, too.
    host: Option<Neighbours>,
    addresses: Addresses,
    /// Number of routes to the router's own addresses for which there was no
    /// room.
    routes_refused: u64,
    host_refused: Option<String>,
    indices: Vec<u32>,
    links: Vec<weir_tap::LinkId>,
    began: Instant,
    stages: Option<LiveChain>,
    output: Output,
    /// The time until the next frame leaves a queue, or [`POLL_INTERVAL`].
    wait: Duration,
    batch: Vec<Frame>,
    verdicts: Vec<Verdict>,
    revalidator: Revalidator,
}

impl LiveRouter {
    /// Registers the descriptors that end a wait for frames.
    fn wake_on(&self, tap: &mut Tap, wakes: Vec<OwnedFd>) -> Result<(), RunError> {
        let learner = self.importer.iter().map(RouteImporter::fd);
        let own = learner.chain([self.addresses.fd()]);
        let own: io::Result<Vec<OwnedFd>> = own.collect();
        let own = own.map_err(RunError::Kernel)?;
        wakes.into_iter().chain(own).for_each(|fd| tap.wake_on(fd));
        Ok(())
    }

    /// Counts the frames that an earlier process had in hand when it was killed, before any comes to
    /// this one.
    fn settle_left(&mut self) -> Result<(), RunError> {
        let meter = self.stages.as_ref().and_then(LiveChain::meter);
        Ok(meter.map_or(Ok(()), OutsideMeter::settle_all)?)
    }

    fn run(
        &mut self,
        tap: &mut Tap,
        visit: &mut impl FnMut(Snapshot<'_>) -> ControlFlow<()>,
    ) -> Result<(), RunError> {
        // Import all routes before the first frame.
        while self.learn()? || !self.router.routes().is_up_to_date() {
            self.router.poll(self.now_ns());
        }
        self.set_clock();
        tap.ready()?;
        for link in 0..self.links.len() {
            self.take_link(tap, link);
        }
        let batches = if tap.uses_tx_burst() { BATCHES } else { 1 };
        let (mut now_ns, mut look_ns) = (0, 0);
        let mut rounds = 0_u32;
        loop {
            if tap.is_woken() || now_ns >= look_ns {
                look_ns = now_ns + POLL_INTERVAL_NS;
                tap.watch_links()?;
                self.update_links(tap)?;
                self.update_addresses()?;
                self.is_importing = self.importer.is_some();
                if visit(self.view(tap)).is_break() {
                    return Ok(());
                }
            }
            rounds = rounds.wrapping_add(1);
            let idle = !tap.pull(Pull::Frame(self.idle_time()))?;
            now_ns = self.now_ns();
            for link in 0..self.links.len() {
                for _ in 0..batches {
                    let is_whole = self.batch(tap, link, now_ns)?;
                    self.send_own(tap)?;
                    if !is_whole {
                        break;
                    }
                }
            }
            if let Some(stages) = &mut self.stages {
                stages.settle_lost(now_ns);
            }
            self.router.poll(now_ns);
            self.poll_stages(tap, now_ns)?;
            self.send_own(tap)?;
            if !self.output.is_empty() {
                let now = self.now_ns();
                let wait = self.output.send(tap, &self.links, now)?;
                self.wait = wait.unwrap_or(POLL_INTERVAL);
            }
            tap.push()?;
            self.confirm_neighbours();
            if self.is_importing && (idle || rounds.is_multiple_of(16)) {
                self.is_importing = self.learn()?;
            }
            if let Some(fast) = tap.flow_cache() {
                let stages = self.stages.as_mut();
                self.revalidator
                    .follow(fast, &mut self.router, stages, now_ns);
            }
        }
    }

    fn view<'a>(&'a self, tap: &'a Tap) -> Snapshot<'a> {
        let (elsewhere, refused) = self
            .importer
            .as_ref()
            .map_or((0, 0), RouteImporter::skipped);
        Snapshot {
            names: &self.names,
            router: &self.router,
            tap,
            skipped: (elsewhere, refused + self.routes_refused),
            host_refused: self.host_refused.as_deref(),
            chain: self.stages.as_ref().map(LiveChain::chain),
            unmetered: self
                .stages
                .as_ref()
                .and_then(LiveChain::meter)
                .map_or(0, OutsideMeter::refused),
            shapers: self.output.shapers(),
            is_last: false,
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The time until work is due.
    fn idle_time(&self) -> Duration {
        if self.revalidator.is_busy() || self.is_importing {
            return Duration::ZERO;
        }
        let of_stages = self.stages.as_ref();
        let of_stages = of_stages.and_then(|stages| stages.chain().next_deadline());
        let due = self.router.next_ns().into_iter().chain(of_stages).min();
        let due = due.map(|due| {
            let left = due.saturating_sub(self.now_ns());
            Duration::from_nanos(left)
        });
        let due = due.map_or(POLL_INTERVAL, |due| due.min(POLL_INTERVAL));
        due.min(self.wait)
    }

    fn set_clock(&mut self) {
        let day = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let day_ms = day.map(|time| (time.as_millis() % 86_400_000) as u32);
        if let Some(day_ms) = day_ms {
            self.router.set_clock(self.now_ns(), day_ms);
        }
    }

    fn learn(&mut self) -> Result<bool, RunError> {
        match &mut self.importer {
            Some(learner) => learner.work(&mut self.router).map_err(RunError::Kernel),
            None => Ok(false),
        }
    }

    /// Updates the state and MTU of changed links.
    fn update_links(&mut self, tap: &mut Tap) -> Result<(), RunError> {
        let mut is_changed = false;
        for link in 0..self.links.len() {
            if tap.take_changed(self.links[link]).is_some() {
                self.take_link(tap, link);
                is_changed = true;
            }
        }
        match &mut self.importer {
            Some(learner) if is_changed => learner.resync().map_err(RunError::Kernel),
            _ => Ok(()),
        }
    }

    /// Updates the state and MTU of one link.
    fn take_link(&mut self, tap: &Tap, link: usize) {
        let id = self.links[link];
        let (Some(interface), Some(mtu)) = (tap.interface(id), tap.mtu(id)) else {
            return;
        };
        let number = link as LinkId;
        self.router.set_link_up(number, interface.running);
        self.router.set_mtu(number, self.config.mtu(link, mtu));
    }

    /// Updates the router's addresses.
    fn update_addresses(&mut self) -> Result<(), RunError> {
        for news in self.addresses.all() {
            match news {
                AddressUpdate::Addresses(links) => {
                    for (link, addresses) in (0..).zip(links) {
                        let set = self.router.set_addresses(link, addresses);
                        self.routes_refused += u64::from(set.is_err());
                    }
                }
                AddressUpdate::Host(refused) => self.host_refused = refused,
                AddressUpdate::Failed(error) => return Err(RunError::Kernel(error)),
            }
        }
        Ok(())
    }

    /// Processes one batch of one link; each frame moves from ring to ring.
    /// Returns whether the batch was full.
    fn batch(&mut self, tap: &mut Tap, link: usize, now_ns: u64) -> Result<bool, RunError> {
        let mut held = std::mem::take(&mut self.batch);
        let count = tap.take_many(self.links[link], BATCH, &mut held)?;
        if held.iter().all(|frame| frame.frags() == 1) {
            self.forward(tap, link, now_ns, &mut held)?;
        } else {
            self.batch_multi_frag(tap, link, now_ns, &mut held)?;
        }
        self.batch = held;
        Ok(count == BATCH)
    }

    /// Processes frames of one fragment (chunk) each.
    #[inline]
    fn forward(
        &mut self,
        tap: &mut Tap,
        link: usize,
        now_ns: u64,
        held: &mut Vec<Frame>,
    ) -> Result<(), RunError> {
        if held.is_empty() {
            return Ok(());
        }
        if self.stages.is_some() {
            return self.forward_chained(tap, link, now_ns, held);
        }
        self.router
            .process(now_ns, link as LinkId, held, &mut self.verdicts);
        let alike = match tap.flow_cache() {
            Some(_) => self.router.cacheable(),
            None => 0,
        };
        let (station, _) = self.router.link(link as LinkId);
        let frames = held.drain(..).zip(&self.verdicts).enumerate();
        for (place, (mut frame, verdict)) in frames {
            let Verdict::Forward { link: out, len } = *verdict else {
                continue;
            };
            if alike >> place & 1 == 1 {
                let (_, mtu) = self.router.link(out);
                let came = (link as LinkId, station);
                cache(tap, came, (out, mtu), &frame.bytes()[..len]);
            }
            frame.set_len(len);
            if !self.output.give(tap, &self.links, out, frame, now_ns)? {
                self.router.tx_dropped(out, 1, len as u64);
            }
        }
        Ok(())
    }

    /// Processes frames of which some have several fragments, in order.
    #[cold]
    fn batch_multi_frag(
        &mut self,
        tap: &mut Tap,
        link: usize,
        now_ns: u64,
        held: &mut Vec<Frame>,
    ) -> Result<(), RunError> {
        let mut one = Vec::with_capacity(1);
        for frame in held.drain(..) {
            if frame.frags() > 1 {
                self.long(tap, link, now_ns, frame)?;
            } else {
                one.push(frame);
                self.forward(tap, link, now_ns, &mut one)?;
            }
        }
        Ok(())
    }

    /// Processes a frame of several fragments, which is copied together for its
    /// verdict.
    #[cold]
    fn long(
        &mut self,
        tap: &mut Tap,
        link: usize,
        now_ns: u64,
        mut frame: Frame,
    ) -> Result<(), RunError> {
        let mut bytes = Vec::new();
        frame.copy_to(&mut bytes);
        if let Some(stages) = &mut self.stages {
            let frames = std::slice::from_mut(&mut bytes);
            let mut decisions = stages.decide(&mut self.router, now_ns, link as LinkId, frames);
            let decision = decisions.pop().unwrap_or(Decision::Gone);
            return self.carry_out(tap, now_ns, frame, decision, Some(&bytes));
        }
        let mut verdicts = Vec::with_capacity(1);
        self.router
            .process(now_ns, link as LinkId, &mut [&mut bytes[..]], &mut verdicts);
        if let Some(Verdict::Forward { link, len }) = verdicts.first().copied() {
            let sent = frame.set(&bytes[..len])
                && self.output.give(tap, &self.links, link, frame, now_ns)?;
            if !sent {
                self.router.tx_dropped(link, 1, len as u64);
            }
        }
        Ok(())
    }

    /// Passes neighbour updates to the host's own protocols, if they use the
    /// links. The kernel resolves an address again if it rejects an update, for
    /// example because a link is down.
    fn confirm_neighbours(&mut self) {
        let Some(host) = &mut self.host else { return };
        for _ in 0..UPDATES_PER_BATCH {
            let Some(heard) = self.router.next_neighbour_update() else {
                return;
            };
            let _ = host.confirm(&weir_link::net::NeighbourUpdate {
                ifindex: self.indices[usize::from(heard.link)],
                address: heard.address,
                hardware: heard.hardware.0,
                solicited: heard.solicited,
                replaces: heard.replaces,
                router: heard.router,
            });
        }
    }

    /// Sends all output of the router. Frames that arrive meanwhile are queued
    /// behind forwarded ones. A frame that a link does not accept is dropped,
    /// so that other links do not wait.
    fn send_own(&mut self, tap: &mut Tap) -> Result<(), RunError> {
        while let Some((link, bytes)) = self.router.next_output() {
            let now_ns = self.now_ns();
            let bytes = match &mut self.stages {
                Some(stages) => match stages.of_router(&mut self.router, now_ns, link, bytes) {
                    Some(bytes) => bytes,
                    None => continue,
                },
                None => bytes,
            };
            self.send_made(tap, link, &bytes)?;
        }
        Ok(())
    }
}

impl Snapshot<'_> {
    /// Every drop counter, by the name of its [`Reason`].
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let drops = self.router.counters().drops();
        drops.map(|(reason, count): (Reason, u64)| (reason.name(), count))
    }
}
