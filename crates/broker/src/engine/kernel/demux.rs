//! The kernel demultiplexer of one interface.

use super::attaching::Attaching;
use super::pins::Pins;
use super::worker::{Done, Job, Worker};
use super::{namespace, random, system};
use crate::engine::{InterfaceDemux, PortStats, Queue, Reserved};
use crate::interface::InterfaceInfo;
use crate::protocol::{Attach, ErrorKind, Refusal};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use weir_demux::fanout::{Buckets, Layout};
use weir_demux::kernel::{
    Change, Clock, Hook as PlanHook, KernelPlan, MapRole, Options, PortSettings, Recompile,
};
use weir_demux::{Binding, BindingId, Filter};
use weir_link::bpf::{Hook, Map, Program};
use weir_link::live::{Dispatcher, IN_FLIGHT_MAX, cost};
use weir_link::net::{Interface, XdpMode};
use weir_link::plan::{PlanMaps, PortMaps};

/// Number of slots for ports of one interface; the worker uses one of them.
const SLOTS: u32 = 1 << 12;

/// Number of spare rings for each size in use: 2 MiB for the first port of an
/// interface with the default ring of 1 MiB. Making a ring takes a tenth of a
/// millisecond per MiB, and more to insert it into the map.
const SPARE_RINGS: usize = 2;
/// Message for a verifier that accepts a program only with `CAP_PERFMON`.
const NO_BARRIERS: &str = "the ports' filters run without the kernel's barriers against \
                           speculative execution: its verifier takes them only so";
/// Size in bytes above which no spare rings are made.
const AHEAD_RING_MAX: u64 = 4 << 20;
/// The ring size that the first port most likely requests, in bytes.
const RING_DEFAULT: u64 = 1 << 20;

/// Demultiplexes the frames of one interface in the kernel. When it is dropped,
/// its programs, maps and rings are released, except those that readers hold.
#[derive(Debug)]
pub struct KernelDemux {
    ifindex: u32,
    is_loopback: bool,
    /// The network namespace's inode: interface numbers are valid per
    /// namespace.
    namespace: u64,
    plan: Plan,
    maps: PlanMaps,
    attached: Option<Attach>,
    dispatchers: Vec<Dispatcher>,
    /// The first dispatchers, until the first binding takes effect.
    attaching: Option<Attaching>,
    /// The move from tc to XDP in progress: both programs are attached, and tc
    /// skips frames that XDP has marked.
    leaving: Option<u64>,
    moves: u64,
    /// The programs in the slots do not match the plan: loading failed.
    is_stale: bool,
    /// The kernel has refused to remove a binding.
    is_behind: bool,
    /// Changes write maps only; programs are loaded at the commit.
    is_batching: bool,
    pins: Option<Pins>,
    worker: Worker,
    free: Vec<u32>,
    /// Spare rings and their slots, by size.
    spare: BTreeMap<u64, Vec<(u32, Map)>>,
    /// Number of rings of each size that the worker was asked for.
    ordered: BTreeMap<u64, usize>,
    reservations: BTreeMap<u64, VecDeque<(u32, Queue)>>,
    ready: Vec<(u32, Result<Reserved, Refusal>)>,
    used: BTreeMap<u32, u64>,
    grace_requested: bool,
    /// Slots of closed ports whose bindings the kernel may still have.
    bound_still: Vec<u32>,
}

/// The plan, with a short debug form.
struct Plan(KernelPlan);

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plan({} bindings)", self.0.len())
    }
}

impl KernelDemux {
    pub(super) fn new(
        facts: &InterfaceInfo,
        attach: Option<Attach>,
        namespace: u64,
        events_fd: Arc<OwnedFd>,
        pins: Option<Pins>,
    ) -> Result<KernelDemux, Refusal> {
        if let Some(pins) = &pins {
            pins.sweep().map_err(system)?;
        }
        // Beside making the maps, which takes about 10 ms: counters of each port for each CPU.
        let first = attach.filter(|attach| !ingress(*attach).is_xdp());
        let mut attaching = None;
        if let Some(attach) = first {
            let begun = attach_to_tc(facts.ifindex, facts.is_loopback, attach, pins.as_ref())?;
            attaching = Some((attach, begun));
        }
        let plan = plan(facts);
        let maps = PlanMaps::new(&plan).map_err(system)?;
        if let Some(pins) = &pins {
            maps.pin(&pins.folder).map_err(system)?;
        }
        let plan = (plan, maps);
        let mut divider = KernelDemux::create(facts, namespace, events_fd, pins, plan, attaching)?;
        divider.order(RING_DEFAULT);
        Ok(divider)
    }

    /// Adopts the state that a former broker left; `None` if it is unusable.
    pub(super) fn adopt(
        facts: &InterfaceInfo,
        namespace: u64,
        events_fd: Arc<OwnedFd>,
        pins: Pins,
    ) -> Result<Option<KernelDemux>, Refusal> {
        let plan = plan(facts);
        let ports = PortMaps::pinned(&pins.folder).map_err(system)?;
        let Some(ports) = ports.filter(|ports| ports.ports_max() == SLOTS) else {
            return Ok(None);
        };
        let maps = PlanMaps::create(&plan, ports).map_err(system)?;
        maps.pin(&pins.folder).map_err(system)?;
        let mut dispatchers = Vec::new();
        let xdp = match Interface::numbered(facts.ifindex).map_err(system)?.xdp {
            Some(xdp) if xdp.mode == XdpMode::Native => Hook::XdpNative,
            _ => Hook::XdpGeneric,
        };
        for hook in [xdp, Hook::TcIngress, Hook::TcEgress] {
            let adopted = Dispatcher::adopt(&pins.folder, hook).map_err(system)?;
            dispatchers.extend(adopted.filter(|one| one.ifindex() == facts.ifindex));
        }
        let attached = dispatchers.iter().find_map(|one| hook_index(one.hook()));
        let Some(attached) = attached else {
            return Ok(None);
        };
        let pins = Some(pins);
        let mut divider =
            KernelDemux::create(facts, namespace, events_fd, pins, (plan, maps), None)?;
        divider.dispatchers = dispatchers;
        divider.attached = Some(attached);
        divider.is_batching = true;
        Ok(Some(divider))
    }

    /// `attaching` is dropped before the pins on an error: it pins what it attaches, and they
    /// sweep the folder.
    fn create(
        facts: &InterfaceInfo,
        namespace: u64,
        events_fd: Arc<OwnedFd>,
        pins: Option<Pins>,
        (plan, maps): (KernelPlan, PlanMaps),
        attaching: Option<(Attach, Attaching)>,
    ) -> Result<KernelDemux, Refusal> {
        let rings = maps.map(MapRole::Rings).try_clone().map_err(system)?;
        let spare = SLOTS - 1;
        let worker = Worker::start(rings, spare, events_fd).map_err(system)?;
        let (attached, attaching) = attaching.unzip();
        Ok(KernelDemux {
            ifindex: facts.ifindex,
            is_loopback: facts.is_loopback,
            namespace,
            plan: Plan(plan),
            maps,
            attached,
            dispatchers: Vec::new(),
            is_stale: attaching.is_some(),
            attaching,
            leaving: None,
            moves: 0,
            is_behind: false,
            is_batching: false,
            pins,
            worker,
            free: (0..spare).rev().collect(),
            spare: BTreeMap::new(),
            ordered: BTreeMap::new(),
            reservations: BTreeMap::new(),
            ready: Vec::new(),
            used: BTreeMap::new(),
            grace_requested: false,
            bound_still: Vec::new(),
        })
    }

    /// Has the worker make rings of a size: for all waiting requests and some
    /// spare ones.
    fn order(&mut self, bytes: u64) {
        let waiting = self.reservations.get(&bytes).map_or(0, VecDeque::len);
        let spare = if bytes <= AHEAD_RING_MAX {
            SPARE_RINGS
        } else {
            0
        };
        let there = self.spare.get(&bytes).map_or(0, Vec::len);
        let ordered = self.ordered.entry(bytes).or_insert(0);
        while there + *ordered < waiting + spare {
            let Some(slot) = self.free.pop() else { break };
            *ordered += 1;
            let bytes = bytes as u32;
            self.worker.submit(Job::Add { slot, bytes });
        }
    }

    /// Passes finished work to the requests that wait for it.
    fn take_in(&mut self) {
        let done: Vec<Done> = self.worker.done().collect();
        for one in done {
            match one {
                Done::Added { slot, bytes, ring } => self.added(slot, u64::from(bytes), ring),
                Done::Removed { slot } => self.free.push(slot),
                Done::Moved(number) => {
                    // Unless the interface has moved back or on since.
                    if self.leaving == Some(number) {
                        self.leaving = None;
                        let _ = self.leave(|hook| hook == Hook::TcIngress);
                    }
                }
                Done::Grace { epoch } => {
                    self.grace_requested = false;
                    let change = self.plan.0.reclaim(epoch);
                    // Writes only: nothing is renewed.
                    let _ = self.maps.apply(&self.plan.0, &change);
                    self.request_grace_period();
                }
            }
        }
    }

    fn added(&mut self, slot: u32, bytes: u64, ring: Result<Map, String>) {
        if let Some(ordered) = self.ordered.get_mut(&bytes) {
            *ordered = ordered.saturating_sub(1);
        }
        match ring {
            Ok(ring) => {
                self.spare.entry(bytes).or_default().push((slot, ring));
                self.serve(bytes);
            }
            Err(error) => {
                self.free.push(slot);
                if let Some((token, _)) = self
                    .reservations
                    .get_mut(&bytes)
                    .and_then(VecDeque::pop_front)
                {
                    let refusal = system(format!("no ring of {bytes} bytes: {error}"));
                    self.ready.push((token, Err(refusal)));
                }
            }
        }
    }

    /// Hands out spare rings of a size while requests wait.
    fn serve(&mut self, bytes: u64) {
        let ahead = self.spare.entry(bytes).or_default();
        let waiting = self.reservations.entry(bytes).or_default();
        while !ahead.is_empty()
            && let Some((token, queue)) = waiting.pop_front()
            && let Some((slot, ring)) = ahead.pop()
        {
            let settings = PortSettings {
                snap_len: queue.snap_len,
                clock: if queue.timestamps {
                    Clock::Boot
                } else {
                    Clock::None
                },
                ..PortSettings::default()
            };
            let result = self
                .maps
                .set_port(slot, settings, true)
                .and_then(|()| self.maps.clear_counters(slot))
                .map_err(system)
                .and_then(|()| {
                    Ok(Reserved {
                        slot,
                        ring: ring.info().map_err(system)?.id,
                        fds: vec![("ring".to_owned(), ring.into())],
                    })
                });
            self.used.insert(slot, bytes);
            if result.is_err() {
                self.used.remove(&slot);
                self.worker.submit(Job::Remove { slot });
            }
            self.ready.push((token, result));
        }
    }

    /// Applies a change to the kernel's maps.
    fn apply(&mut self, change: &Change) -> Result<(), Refusal> {
        // If making new tables fails, the programs are still those of the old
        // tables.
        self.is_stale |= change.programs == Recompile::Required;
        self.maps.apply(&self.plan.0, change).map_err(system)?;
        if self.is_batching {
            Ok(())
        } else {
            self.take_effect()
        }
    }

    /// Has the attached programs run the present plan.
    fn take_effect(&mut self) -> Result<(), Refusal> {
        if self.is_stale {
            self.load_all()?;
        }
        // The programs and tables match the plan: they contain no unbound
        // binding.
        self.is_behind = false;
        for slot in std::mem::take(&mut self.bound_still) {
            self.worker.submit(Job::Remove { slot });
        }
        self.request_grace_period();
        Ok(())
    }

    fn load_all(&mut self) -> Result<(), Refusal> {
        self.is_stale = true;
        self.plan.0.prepare_recompile();
        let mut programs = Vec::new();
        for hook in self.hooks() {
            programs.push((hook, self.program(hook)?));
        }
        self.settle()?;
        for dispatcher in &self.dispatchers {
            let program = programs.iter().find(|one| one.0 == dispatcher.hook());
            if let Some((_, program)) = program {
                dispatcher.set(program).map_err(system)?;
            }
        }
        self.is_stale = false;
        Ok(())
    }

    /// The hooks of all dispatchers.
    fn hooks(&self) -> Vec<Hook> {
        let attaching = self.attaching.iter().flat_map(Attaching::hooks).copied();
        let attached = self.dispatchers.iter().map(Dispatcher::hook);
        attached.chain(attaching).collect()
    }

    /// Waits for dispatchers that are being attached. If the kernel has refused one, nothing
    /// is attached for the interface's ports until one tries again (`Engine::finish`).
    fn settle(&mut self) -> Result<(), Refusal> {
        let Some(attaching) = self.attaching.take() else {
            return Ok(());
        };
        let (attached, error) = attaching.finish();
        self.dispatchers.extend(attached);
        let Some(error) = error else { return Ok(()) };
        self.attached = None;
        Err(system(error))
    }

    fn program(&self, hook: Hook) -> Result<Program, Refusal> {
        let hook = plan_hook(hook);
        self.maps.load(&self.plan.0, hook).map_err(system)
    }

    /// Attaches the plan at a hook, unless it is attached there.
    fn ensure(&mut self, hook: Hook) -> Result<(), Refusal> {
        if self.dispatchers.iter().any(|one| one.hook() == hook) {
            return Ok(());
        }
        let pins = self.pins.as_ref().map(|pins| &*pins.folder);
        let program = self.program(hook)?;
        let attached = Dispatcher::attach_with(self.ifindex, hook, pins, Some(&program));
        self.dispatchers.push(attached.map_err(system)?);
        Ok(())
    }

    /// Detaches the plan from XDP hooks, except one.
    fn leave_xdp(&mut self, but: Option<Hook>) -> Result<(), Refusal> {
        self.leave(|hook| hook.is_xdp() && Some(hook) != but)
    }

    fn leave(&mut self, which: impl Fn(Hook) -> bool) -> Result<(), Refusal> {
        let pins = self.pins.as_ref().map(|pins| &*pins.folder);
        let mut left = self.dispatchers.extract_if(.., |one| which(one.hook()));
        left.try_for_each(|one| one.detach(pins).map_err(system))
    }

    /// Removes the rings of slots that belong to no port.
    fn sweep_rings(&mut self) -> Result<(), Refusal> {
        let rings = self.maps.map(MapRole::Rings);
        let mut found = BTreeSet::new();
        for slot in (0..SLOTS - 1).filter(|slot| !self.used.contains_key(slot)) {
            if rings.lookup(&slot.to_ne_bytes()).map_err(system)?.is_some() {
                found.insert(slot);
            }
        }
        self.free
            .retain(|slot| !self.used.contains_key(slot) && !found.contains(slot));
        for slot in found {
            self.worker.submit(Job::Remove { slot });
        }
        Ok(())
    }

    /// Requests a notification when all frames see the present writes (grace
    /// period).
    fn request_grace_period(&mut self) {
        if !self.grace_requested && !self.plan.0.is_quiescent() {
            self.grace_requested = true;
            let epoch = self.plan.0.epoch();
            self.worker.submit(Job::Grace { epoch });
        }
    }
}

/// Begins to attach to the hooks of tc.
fn attach_to_tc(
    ifindex: u32,
    is_loopback: bool,
    attach: Attach,
    pins: Option<&Pins>,
) -> Result<Attaching, Refusal> {
    let mut hooks = vec![ingress(attach)];
    // Frames sent on the loopback are received there: egress would see them twice.
    if !is_loopback {
        hooks.insert(0, Hook::TcEgress);
    }
    let pins = pins.map(|pins| Arc::clone(&pins.folder));
    Attaching::start(ifindex, hooks, pins).map_err(system)
}

fn plan(facts: &InterfaceInfo) -> KernelPlan {
    KernelPlan::new(Options {
        // Ports of link types without flows are not members of a fan-out.
        layout: Layout::of(facts.linktype).unwrap_or(Layout::ETHERNET),
        // Random, so that peers cannot choose collisions.
        seed: random(),
        ports_max: SLOTS,
        ..Options::default()
    })
}

/// The plan's name for a hook.
fn plan_hook(hook: Hook) -> PlanHook {
    match hook {
        Hook::XdpNative | Hook::XdpGeneric => PlanHook::Xdp,
        Hook::TcIngress => PlanHook::TcIngress,
        Hook::TcEgress => PlanHook::TcEgress,
    }
}

/// The attach point of an ingress hook; `None` for an egress hook.
fn hook_index(hook: Hook) -> Option<Attach> {
    match hook {
        Hook::XdpNative => Some(Attach::XdpNative),
        Hook::XdpGeneric => Some(Attach::XdpGeneric),
        Hook::TcIngress => Some(Attach::Tc),
        Hook::TcEgress => None,
    }
}

/// The ingress hook of an attach point.
fn ingress(attach: Attach) -> Hook {
    match attach {
        Attach::Auto | Attach::Tc => Hook::TcIngress,
        Attach::XdpGeneric => Hook::XdpGeneric,
        Attach::XdpNative => Hook::XdpNative,
    }
}

impl InterfaceDemux for KernelDemux {
    fn attached(&self) -> Option<Attach> {
        self.attached
    }

    fn cost(&self) -> String {
        let hooks = self.hooks();
        let mut costs: Vec<&str> = hooks.iter().copied().map(cost).collect();
        let needs_perfmon = |hook: &Hook| self.maps.needs_perfmon(plan_hook(*hook));
        if hooks.iter().any(needs_perfmon) {
            costs.push(NO_BARRIERS);
        }
        costs.join("\n")
    }

    fn attach(&mut self, attach: Attach) -> Result<(), Refusal> {
        if namespace().map_err(system)? != self.namespace {
            return Err(system(
                "the thread has left the interface's network namespace",
            ));
        }
        self.settle()?;
        let to = ingress(attach);
        if self.dispatchers.is_empty() && !to.is_xdp() && !self.is_batching {
            let (ifindex, pins) = (self.ifindex, self.pins.as_ref());
            // The first binding waits for it.
            let attaching = attach_to_tc(ifindex, self.is_loopback, attach, pins)?;
            self.attaching = Some(attaching);
            self.attached = Some(attach);
            self.is_stale = true;
            if self.plan.0.is_empty() {
                return Ok(());
            }
            return self.take_effect();
        }
        if !self.is_loopback {
            self.ensure(Hook::TcEgress)?;
        }
        if !to.is_xdp() {
            self.leaving = None;
            self.ensure(to)?;
            self.attached = Some(attach);
            return self.leave_xdp(None);
        }
        if self
            .dispatchers
            .iter()
            .any(|one| one.hook().is_xdp() && one.hook() != to)
        {
            // An interface cannot have two kinds of XDP program at once: tc
            // demultiplexes meanwhile.
            self.leaving = None;
            self.ensure(Hook::TcIngress)?;
            self.attached = Some(Attach::Tc);
            self.leave_xdp(Some(to))?;
        }
        self.ensure(to)?;
        self.attached = Some(attach);
        if self
            .dispatchers
            .iter()
            .any(|one| one.hook() == Hook::TcIngress)
        {
            self.moves += 1;
            self.leaving = Some(self.moves);
            self.worker.schedule(IN_FLIGHT_MAX, Done::Moved(self.moves));
        }
        Ok(())
    }

    fn expect_ring(&mut self, bytes: u64) {
        let is_known = self.ordered.contains_key(&bytes) || self.spare.contains_key(&bytes);
        if !is_known && let Some(slot) = self.free.pop() {
            self.ordered.insert(bytes, 1);
            let bytes = bytes as u32;
            self.worker.submit(Job::Add { slot, bytes });
        }
    }

    fn reserve(&mut self, token: u32, queue: &Queue) {
        let bytes = queue.ring.0;
        self.reservations
            .entry(bytes)
            .or_default()
            .push_back((token, *queue));
        self.take_in();
        self.serve(bytes);
        self.order(bytes);
        let waiting = self.reservations.get_mut(&bytes);
        if self.ordered.get(&bytes) == Some(&0)
            && let Some(waiting) = waiting
            && let Some((token, _)) = waiting.pop_front()
        {
            let message = format!("all {SLOTS} places for ports of this interface are in use");
            self.ready
                .push((token, Err(Refusal::new(ErrorKind::Limit, message))));
        }
    }

    fn reserved(&mut self) -> Vec<(u32, Result<Reserved, Refusal>)> {
        self.take_in();
        std::mem::take(&mut self.ready)
    }

    fn bind(&mut self, binding: Binding) -> Result<BindingId, Refusal> {
        let bound = self.plan.0.bind(binding);
        let (id, change) = bound.map_err(|error| Refusal::new(ErrorKind::Limit, error))?;
        if let Err(refusal) = self.apply(&change) {
            self.unbind(id);
            return Err(refusal);
        }
        Ok(id)
    }

    fn rebind(&mut self, id: BindingId, filter: Filter) -> Result<(), Refusal> {
        let changed = self.plan.0.change_filter(id, filter);
        let change = changed.map_err(|error| Refusal::new(ErrorKind::Limit, error))?;
        self.apply(&change)
    }

    fn unbind(&mut self, id: BindingId) {
        if let Ok(change) = self.plan.0.unbind(id) {
            // A program that failed to load is tried again with the next
            // change; by then it has no effect for the unbound binding.
            self.is_behind |= self.apply(&change).is_err();
        }
    }

    fn add_fanout(&mut self, buckets: &Buckets) -> Result<u32, Refusal> {
        let added = self.plan.0.add_fanout(buckets);
        let (number, change) = added.map_err(|error| Refusal::new(ErrorKind::Limit, error))?;
        let applied = self.apply(&change);
        applied.inspect_err(|_| self.remove_fanout(number))?;
        Ok(number)
    }

    fn change_fanout(&mut self, number: u32, buckets: &Buckets) -> Result<(), Refusal> {
        let changed = self.plan.0.change_fanout(number, buckets);
        let change = changed.map_err(|error| Refusal::new(ErrorKind::Limit, error))?;
        let applied = self.apply(&change);
        // The slot of a member that left may still be in a bucket.
        self.is_behind |= applied.is_err();
        applied
    }

    fn remove_fanout(&mut self, number: u32) {
        if let Ok(change) = self.plan.0.remove_fanout(number) {
            self.is_behind |= self.apply(&change).is_err();
        }
    }

    fn release(&mut self, slot: u32) {
        if self.used.remove(&slot).is_none() {
            return;
        }
        // Another port's frames are not to come by a binding of this one's.
        if self.is_behind || self.is_batching {
            self.bound_still.push(slot)
        } else {
            self.worker.submit(Job::Remove { slot })
        }
    }

    fn life(&self) -> Weak<()> {
        self.worker.life()
    }

    fn take_over(&mut self, slot: u32, queue: &Queue) -> Option<u32> {
        let rings = self.maps.map(MapRole::Rings);
        let id = rings.lookup(&slot.to_ne_bytes()).ok()??;
        self.used.insert(slot, queue.ring.0);
        Some(u32::from_ne_bytes(id.try_into().ok()?))
    }

    fn resume(&mut self) -> Result<(), Refusal> {
        self.is_batching = false;
        self.load_all()?;
        if let Some(pins) = &self.pins {
            // The pins of the former broker: no program of it runs any more.
            self.maps.pin_only(&pins.folder).map_err(system)?;
        }
        // Both hooks, or neither, if the former broker died during a move.
        if let Some(attached) = self.attached {
            self.attach(attached)?;
        }
        self.request_grace_period();
        // Remove everything that belongs to no port.
        self.bound_still.clear();
        self.sweep_rings()
    }

    fn begin_batch(&mut self) {
        self.is_batching = true;
    }

    fn commit(&mut self) -> Result<(), Refusal> {
        self.is_batching = false;
        let done = self.take_effect();
        self.is_behind |= done.is_err();
        done
    }

    fn hand_over(&mut self) {
        // Of an interface whose ports are not bound yet: what is attached goes over, pinned.
        let _ = self.settle();
        if let Some(pins) = &mut self.pins {
            pins.is_kept = true;
        }
    }

    fn counted(&self, slot: u32) -> PortStats {
        let counters = self.maps.counters(slot).unwrap_or_default();
        PortStats {
            delivered: counters.delivered,
            bytes: counters.bytes,
            lost: counters.lost,
        }
    }
}

#[cfg(test)]
mod tests;
