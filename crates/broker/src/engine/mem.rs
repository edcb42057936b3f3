//! Interfaces in memory: the engine without a kernel, for tests of code above
//! it and of application protocols.
//!
//! The holder of the backend [sends](MemBackend::send) frames; a port's ring is
//! a queue that [`MemBackend::receive`] reads. Unlike the kernel's plan, a taking
//! fan-out takes also the frames of buckets that no port has.

use super::{Backend, InterfaceDemux, MadePath, PortStats, Queue, Reserved};
use crate::interface::InterfaceInfo;
use crate::protocol::{Attach, ErrorKind, Refusal};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use weir_demux::fanout::{Buckets, Layout, bucket};
use weir_demux::{Binding, BindingId, Filter, Plan, Target, Verdict};
use weir_link::live::{EgressCounts, EgressRules};
use weir_wire::LinkType;

/// Number of slots of one interface.
const SLOTS_MAX: u32 = 1 << 12;

/// Bytes of a ring that a frame takes besides its own.
const RECORD_LEN: u64 = 48;

/// A frame delivered to a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortFrame {
    /// The captured bytes, up to the port's snap length.
    pub bytes: Vec<u8>,
    /// Its length on the wire.
    pub wire_len: u32,
    /// The binding's tag.
    pub tag: u32,
    /// Number of frames lost since the previous one.
    pub lost_before: u64,
}

struct Slot {
    queue: Queue,
    frames: VecDeque<PortFrame>,
    used: u64,
    lost_before: u64,
    counted: PortStats,
}

struct Shared {
    plan: Plan,
    verdict: Verdict,
    slots: BTreeMap<u32, Slot>,
    fanouts: BTreeMap<u32, Buckets>,
    attached: Option<Attach>,
}

/// A machine with interfaces in memory. Clones share one machine.
#[derive(Clone)]
pub struct MemBackend {
    inner: Arc<Mutex<Machine>>,
    wake_fd: Arc<OwnedFd>,
}

#[derive(Default)]
struct Machine {
    interfaces: BTreeMap<u32, InterfaceInfo>,
    demuxed: BTreeMap<u32, Arc<Mutex<Shared>>>,
    requested_paths: Vec<u32>,
    /// Whether rings of closed ports linger.
    rings_stay: bool,
    loads: usize,
    /// The simulated time to bind a filter.
    bind_time: Duration,
    /// Whether a commit fails.
    refuses: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}

impl MemBackend {
    /// A machine without interfaces.
    ///
    /// # Panics
    /// When the process has no more descriptors.
    #[expect(clippy::new_without_default, reason = "making a machine is an act")]
    pub fn new() -> MemBackend {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake_fd = eventfd(0, flags).expect("a descriptor for an event");
        MemBackend {
            inner: Arc::default(),
            wake_fd: Arc::new(wake_fd),
        }
    }

    /// Signals watchers that something has changed.
    pub fn notify(&self) {
        let _ = rustix::io::write(&self.wake_fd, &1u64.to_ne_bytes());
    }

    /// Makes each new filter take `time`, as if the kernel verified many filters.
    pub fn take_to_bind(&self, time: Duration) {
        lock(&self.inner).bind_time = time;
    }

    /// Adds an Ethernet interface; returns its ifindex.
    pub fn add(&self, name: &str) -> u32 {
        let mut machine = lock(&self.inner);
        let ifindex = machine.interfaces.keys().last().map_or(2, |last| last + 1);
        let facts = InterfaceInfo {
            name: name.to_owned(),
            ifindex,
            linktype: LinkType::EN10MB,
            header_len: 14,
            is_loopback: false,
            address: vec![2, 0, 0, 0, 0, ifindex as u8],
            broadcast: vec![0xff; 6],
            mtu: 1500,
            addresses: Vec::new(),
            is_up: true,
            is_running: true,
            dropped: 0,
        };
        machine.interfaces.insert(ifindex, facts);
        ifindex
    }

    /// Changes an interface's properties.
    pub fn change(&self, ifindex: u32, change: impl FnOnce(&mut InterfaceInfo)) {
        if let Some(facts) = lock(&self.inner).interfaces.get_mut(&ifindex) {
            change(facts);
        }
    }

    /// Removes an interface.
    pub fn remove(&self, ifindex: u32) {
        lock(&self.inner).interfaces.remove(&ifindex);
    }

    /// Receives a frame on an interface; returns whether the host gets it.
    pub fn send(&self, ifindex: u32, frame: &[u8]) -> bool {
        let divided = lock(&self.inner).demuxed.get(&ifindex).cloned();
        let Some(shared) = divided else { return true };
        let shared = &mut *lock(&shared);
        if shared.attached.is_none() {
            return true;
        }
        let wire_len = frame.len() as u32;
        shared.plan.run(frame, wire_len, &mut shared.verdict);
        for delivery in shared.verdict.deliveries() {
            let port = match delivery.target {
                Target::Port(slot) => Some((slot, delivery.tag)),
                Target::Fanout(number) => {
                    let buckets = shared.fanouts.get(&number);
                    let bucket = bucket(frame, Layout::ETHERNET);
                    buckets.and_then(|buckets| buckets.get(bucket))
                }
                _ => None,
            };
            if let Some((slot, tag)) = port
                && let Some(slot) = shared.slots.get_mut(&slot)
            {
                slot.put(frame, delivery.snap_len, tag);
            }
        }
        let mut targets = shared.verdict.deliveries().iter();
        !shared.verdict.is_taken() || targets.any(|delivery| delivery.target == Target::Kernel)
    }

    /// The next frame of a slot; `None` if there is none.
    pub fn receive(&self, ifindex: u32, slot: u32) -> Option<PortFrame> {
        let divided = lock(&self.inner).demuxed.get(&ifindex).cloned()?;
        let mut shared = lock(&divided);
        let slot = shared.slots.get_mut(&slot)?;
        let got = slot.frames.pop_front()?;
        slot.used -= RECORD_LEN + got.bytes.len() as u64;
        Some(got)
    }

    /// Sets whether readers hold the rings of their closed ports.
    pub fn hold_rings(&self, held: bool) {
        lock(&self.inner).rings_stay = held;
    }

    /// Number of program loads that a kernel would have made: one for each
    /// change of bindings, or one for all of a batch.
    pub fn loads(&self) -> usize {
        lock(&self.inner).loads
    }

    /// Sets whether commits of batches fail.
    pub fn refuse_commits(&self, refused: bool) {
        lock(&self.inner).refuses = refused;
    }

    /// Numbers of slots in use and of bindings on an interface; both are zero
    /// when everything is released.
    pub fn in_use(&self, ifindex: u32) -> (usize, usize) {
        let divided = lock(&self.inner).demuxed.get(&ifindex).cloned();
        divided.map_or((0, 0), |shared| {
            let shared = lock(&shared);
            (shared.slots.len(), shared.plan.len())
        })
    }
}

impl Slot {
    fn put(&mut self, frame: &[u8], snap_len: u32, tag: u32) {
        let most = if self.queue.snap_len == 0 {
            u32::MAX
        } else {
            self.queue.snap_len
        };
        let len = frame.len().min(snap_len.min(most) as usize);
        let room = RECORD_LEN + len as u64;
        if self.used + room > self.queue.ring.0 {
            self.lost_before += 1;
            self.counted.lost += 1;
            return;
        }
        self.used += room;
        self.counted.delivered += 1;
        self.counted.bytes += frame.len() as u64;
        self.frames.push_back(PortFrame {
            bytes: frame[..len].to_vec(),
            wire_len: frame.len() as u32,
            tag,
            lost_before: std::mem::take(&mut self.lost_before),
        });
    }
}

/// Demultiplexes one interface in memory.
pub struct MemDemux {
    machine: Arc<Mutex<Machine>>,
    ifindex: u32,
    shared: Arc<Mutex<Shared>>,
    ready: Vec<(u32, Result<Reserved, Refusal>)>,
    is_batching: bool,
}

impl MemDemux {
    fn changed(&self) {
        lock(&self.machine).loads += usize::from(!self.is_batching);
    }

    /// Loads programs, for as long as the kernel would verify them.
    fn verify(&self) {
        self.changed();
        let time = lock(&self.machine).bind_time;
        std::thread::sleep(time);
    }
}

impl InterfaceDemux for MemDemux {
    fn attached(&self) -> Option<Attach> {
        lock(&self.shared).attached
    }

    fn cost(&self) -> String {
        "nothing: there is no host".into()
    }

    fn attach(&mut self, attach: Attach) -> Result<(), Refusal> {
        lock(&self.shared).attached = Some(attach);
        Ok(())
    }

    fn reserve(&mut self, token: u32, queue: &Queue) {
        let mut shared = lock(&self.shared);
        let free = (0..SLOTS_MAX).find(|slot| !shared.slots.contains_key(slot));
        let result = match (free, std::fs::File::open("/dev/null")) {
            (Some(slot), Ok(file)) => {
                let new = Slot {
                    queue: *queue,
                    frames: VecDeque::new(),
                    used: 0,
                    lost_before: 0,
                    counted: PortStats::default(),
                };
                shared.slots.insert(slot, new);
                let fds = vec![("nothing".to_owned(), OwnedFd::from(file))];
                Ok(Reserved { slot, fds, ring: 0 })
            }
            (None, _) => Err(Refusal::new(ErrorKind::Limit, "all slots are in use")),
            (_, Err(error)) => Err(Refusal::new(ErrorKind::System, error)),
        };
        drop(shared);
        self.ready.push((token, result));
    }

    fn reserved(&mut self) -> Vec<(u32, Result<Reserved, Refusal>)> {
        std::mem::take(&mut self.ready)
    }

    fn bind(&mut self, binding: Binding) -> Result<BindingId, Refusal> {
        self.verify();
        let bound = lock(&self.shared).plan.bind(binding);
        bound.map_err(|error| Refusal::new(ErrorKind::Limit, error))
    }

    fn rebind(&mut self, id: BindingId, filter: Filter) -> Result<(), Refusal> {
        self.verify();
        let changed = lock(&self.shared).plan.change_filter(id, filter);
        changed.map_err(|error| Refusal::new(ErrorKind::Limit, error))
    }

    fn unbind(&mut self, id: BindingId) {
        self.changed();
        let _ = lock(&self.shared).plan.unbind(id);
    }

    fn add_fanout(&mut self, buckets: &Buckets) -> Result<u32, Refusal> {
        let mut shared = lock(&self.shared);
        let mut numbers = 0..;
        // The lowest free number, as in the kernel's plan.
        let free = numbers.find(|number| !shared.fanouts.contains_key(number));
        let number = free.expect("fewer than all numbers are taken");
        shared.fanouts.insert(number, buckets.clone());
        Ok(number)
    }

    fn change_fanout(&mut self, number: u32, buckets: &Buckets) -> Result<(), Refusal> {
        lock(&self.shared).fanouts.insert(number, buckets.clone());
        Ok(())
    }

    fn remove_fanout(&mut self, number: u32) {
        lock(&self.shared).fanouts.remove(&number);
    }

    fn release(&mut self, slot: u32) {
        lock(&self.shared).slots.remove(&slot);
    }

    fn take_over(&mut self, _: u32, _: &Queue) -> Option<u32> {
        None
    }

    fn resume(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn begin_batch(&mut self) {
        self.is_batching = true;
    }

    fn commit(&mut self) -> Result<(), Refusal> {
        self.is_batching = false;
        self.changed();
        if lock(&self.machine).refuses {
            Err(Refusal::new(ErrorKind::System, "refused, as a test asks"))
        } else {
            Ok(())
        }
    }

    fn hand_over(&mut self) {}

    fn life(&self) -> Weak<()> {
        Weak::new()
    }

    fn counted(&self, slot: u32) -> PortStats {
        let shared = lock(&self.shared);
        shared
            .slots
            .get(&slot)
            .map_or(PortStats::default(), |slot| slot.counted)
    }
}

impl Drop for MemDemux {
    fn drop(&mut self) {
        lock(&self.machine).demuxed.remove(&self.ifindex);
    }
}

impl Backend for MemBackend {
    type Demux = MemDemux;

    fn by_name(&mut self, name: &str) -> Result<InterfaceInfo, Refusal> {
        let machine = lock(&self.inner);
        let found = machine.interfaces.values().find(|facts| facts.name == name);
        found.cloned().ok_or_else(|| {
            Refusal::new(
                ErrorKind::Interface,
                format!("there is no interface `{name}`"),
            )
        })
    }

    fn by_index(&mut self, ifindex: u32) -> Option<InterfaceInfo> {
        lock(&self.inner).interfaces.get(&ifindex).cloned()
    }

    fn demux(
        &mut self,
        facts: &InterfaceInfo,
        _attach: Option<Attach>,
    ) -> Result<MemDemux, Refusal> {
        let shared = Arc::new(Mutex::new(Shared {
            plan: Plan::new(0x5eed),
            verdict: Verdict::new(),
            slots: BTreeMap::new(),
            fanouts: BTreeMap::new(),
            attached: None,
        }));
        let mut machine = lock(&self.inner);
        machine.demuxed.insert(facts.ifindex, Arc::clone(&shared));
        Ok(MemDemux {
            machine: Arc::clone(&self.inner),
            ifindex: facts.ifindex,
            shared,
            ready: Vec::new(),
            is_batching: false,
        })
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn changes(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake_fd.as_fd())
    }

    fn adopt(&mut self, _: &InterfaceInfo) -> Result<Option<MemDemux>, Refusal> {
        Ok(None)
    }

    fn sweep(&mut self, _: &[u32]) -> Result<(), Refusal> {
        Ok(())
    }

    fn prepare_path(&mut self, _: &InterfaceInfo, _: EgressRules) {}

    fn end_spare_paths(&mut self, _: u32) {}

    fn make_path(&mut self, token: u32, _: &InterfaceInfo, _: EgressRules) {
        lock(&self.inner).requested_paths.push(token);
    }

    fn cancel_path(&mut self, token: u32) {
        lock(&self.inner)
            .requested_paths
            .retain(|one| *one != token);
    }

    fn made_paths(&mut self) -> Vec<(u32, Result<MadePath, Refusal>)> {
        let asked = std::mem::take(&mut lock(&self.inner).requested_paths);
        let refuse = |token| {
            let message = "there is no kernel to send by; `MemFabric::send` does it";
            (token, Err(Refusal::new(ErrorKind::Interface, message)))
        };
        asked.into_iter().map(refuse).collect()
    }

    fn adopt_path(&mut self, _: &str) -> bool {
        false
    }

    fn retire_path(&mut self, _: &str) {}

    fn has_path(&self, _: &str) -> bool {
        false
    }

    fn egress_counts(&self, _: &str) -> EgressCounts {
        EgressCounts::default()
    }

    fn sender(&mut self, _: &InterfaceInfo) -> Result<OwnedFd, Refusal> {
        let message = "there is no kernel to send by; `MemFabric::send` does it";
        Err(Refusal::new(ErrorKind::Interface, message))
    }

    fn hand_over(&mut self) {}

    fn gone_rings(&self, rings: &[u32]) -> Vec<u32> {
        let stay = lock(&self.inner).rings_stay;
        rings.iter().copied().filter(|_| !stay).collect()
    }

    fn saw_changes(&mut self) {}

    fn namespace(&self) -> Option<u64> {
        None
    }

    fn clear_wake(&mut self) {
        let _ = rustix::io::read(&self.wake_fd, &mut [0; 8]);
    }
}
