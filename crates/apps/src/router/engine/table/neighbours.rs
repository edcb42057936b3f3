//! Hardware addresses of neighbours on every link: ARP (RFC 826, RFC 1122
//! §2.3.2) and neighbour discovery (RFC 4861 §7.3).
//!
//! The states and times are those of the neighbour table of `weir_stack`. That
//! table serves one host on one link and scans all entries when it is full. A
//! router's table must not: a sender to many unused addresses would fill it.
//! Here every operation costs the same for any number of neighbours. Neighbours
//! under solicitation are counted apart and cannot displace resolved ones.

use super::routes::LinkId;
use hashbrown::HashMap;
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use weir_stack::iface::{DELAY_FIRST_PROBE_NS, REACHABLE_NS, RETRANS_TIMER_NS, SOLICITS_MAX};
use weir_wire::ethernet::Address;

/// Number of frames that wait for all neighbours. One neighbour may queue as
/// many frames as there is room left for the others, so at most half for one
/// alone. One more frame displaces the neighbour's oldest, and also the next
/// oldest if its queue exceeds the present limit, so that all neighbours with
/// traffic reach equal shares (dynamic thresholds of switches: Choudhury and
/// Hahne 1998). The newest frame is queued in any case (RFC 1122 §2.3.2.2, RFC
/// 4861 §7.2.2); so the total is at most this number plus one frame for each
/// unresolved neighbour.
pub const UNRESOLVED_ALL_MAX: usize = 4096;

/// The key of a neighbour: its link and IP address.
pub(in crate::router::engine) type NeighbourKey = (LinkId, IpAddr);

#[derive(Debug)]
enum State {
    /// Configured: never solicited, never removed.
    Static,
    /// Under first solicitation, without a hardware address.
    Incomplete {
        unresolved: VecDeque<Vec<u8>>,
    },
    Reachable {
        until_ns: u64,
    },
    Stale,
    /// In use while its reachability is probed.
    Probe,
}

#[derive(Debug)]
struct Neighbour {
    key: NeighbourKey,
    hardware: Address,
    state: State,
    /// Number of solicitations sent, and the time of the next, while one is
    /// due.
    solicits_sent: u32,
    next_solicit_ns: u64,
    /// Used since the clock hand last passed (CLOCK replacement).
    used: bool,
}

/// A solicitation to be sent: the target, and the hardware address if it is
/// unicast.
pub(in crate::router::engine) type Solicit = (NeighbourKey, Option<Address>);

/// The result of resolving a neighbour.
pub(in crate::router::engine) enum Resolution {
    /// The neighbour's hardware address.
    Resolved(Address),
    /// The neighbour is being solicited: [`Neighbours::enqueue_unresolved`] the
    /// frame.
    Pending,
    /// Too many neighbours are being solicited.
    TableFull,
}

/// Number of slots in `Neighbours::recent`, a power of two.
const RECENT: usize = 64;

/// The neighbour table.
pub(in crate::router::engine) struct Neighbours {
    slots: Vec<Option<Neighbour>>,
    numbers: HashMap<NeighbourKey, u32, ahash::RandomState>,
    /// A direct-mapped cache of the slots of recently used neighbours, by
    /// address; the slot itself says whether the entry is still valid.
    recent: [u32; RECENT],
    free: Vec<u32>,
    /// The due time of each neighbour under solicitation.
    due: BTreeSet<(u64, u32)>,
    incomplete: usize,
    unresolved: usize,
    /// The position of the clock hand, from which the search for a victim
    /// continues.
    clock_hand: usize,
    solicits: Vec<Solicit>,
    max: usize,
    incomplete_max: usize,
    /// A neighbour has another hardware address, or was removed.
    changed: bool,
}

impl Neighbours {
    /// A table of up to `max` neighbours, of which at most a quarter may be
    /// unresolved.
    pub(in crate::router::engine) fn new(max: usize, seed: u64) -> Neighbours {
        let state = ahash::RandomState::with_seeds(seed, !seed, seed.rotate_left(17), 0x77656972);
        Neighbours {
            slots: Vec::new(),
            numbers: HashMap::with_hasher(state),
            recent: [0; RECENT],
            free: Vec::new(),
            due: BTreeSet::new(),
            incomplete: 0,
            unresolved: 0,
            clock_hand: 0,
            solicits: Vec::new(),
            max: max.max(4),
            incomplete_max: (max / 4).max(1),
            changed: false,
        }
    }

    /// Adds a static neighbour.
    pub(in crate::router::engine) fn set_static(&mut self, place: NeighbourKey, hardware: Address) {
        let _ = self.enter(place, hardware, State::Static);
    }

    /// Whether a neighbour has changed its address or was removed since the
    /// last call.
    pub(in crate::router::engine) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Number of neighbours, resolved or being solicited.
    pub(in crate::router::engine) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The hardware address to send to, if it is known; otherwise starts a
    /// solicitation.
    #[inline]
    pub(in crate::router::engine) fn resolve(
        &mut self,
        now_ns: u64,
        place: NeighbourKey,
    ) -> Resolution {
        let Some(number) = self.number(place) else {
            return self.solicit_new(now_ns, place);
        };
        let Some(neighbour) = self.slots[number as usize].as_mut() else {
            return Resolution::TableFull;
        };
        neighbour.used = true;
        match neighbour.state {
            State::Static | State::Probe => {}
            State::Reachable { until_ns } if until_ns > now_ns => {}
            State::Incomplete { .. } => return Resolution::Pending,
            State::Reachable { .. } | State::Stale => {
                neighbour.state = State::Probe;
                neighbour.solicits_sent = 0;
                neighbour.next_solicit_ns = now_ns.saturating_add(DELAY_FIRST_PROBE_NS);
                self.due.insert((neighbour.next_solicit_ns, number));
            }
        }
        Resolution::Resolved(neighbour.hardware)
    }

    /// The slot of a neighbour, without hashing for a recently used one; `None`
    /// if it is unknown.
    #[inline]
    fn number(&mut self, place: NeighbourKey) -> Option<u32> {
        let at = recent_at(place);
        let recent = self.recent[at];
        if let Some(Some(neighbour)) = self.slots.get(recent as usize)
            && neighbour.key == place
        {
            return Some(recent);
        }
        let number = *self.numbers.get(&place)?;
        self.recent[at] = number;
        Some(number)
    }

    fn solicit_new(&mut self, now_ns: u64, place: NeighbourKey) -> Resolution {
        if self.incomplete >= self.incomplete_max {
            return Resolution::TableFull;
        }
        let waiting = VecDeque::new();
        let Some(number) = self.enter(
            place,
            Address::default(),
            State::Incomplete {
                unresolved: waiting,
            },
        ) else {
            return Resolution::TableFull;
        };
        let next_ask_ns = now_ns.saturating_add(RETRANS_TIMER_NS);
        if let Some(neighbour) = self.slots[number as usize].as_mut() {
            neighbour.solicits_sent = 1;
            neighbour.next_solicit_ns = next_ask_ns;
        }
        self.due.insert((next_ask_ns, number));
        self.solicits.push((place, None));
        Resolution::Pending
    }

    /// Queues a frame until the neighbour is resolved; returns the number of
    /// frames dropped for it.
    pub(in crate::router::engine) fn enqueue_unresolved(
        &mut self,
        place: NeighbourKey,
        frame: Vec<u8>,
    ) -> u64 {
        let room = UNRESOLVED_ALL_MAX.saturating_sub(self.unresolved);
        let Some(State::Incomplete {
            unresolved: waiting,
        }) = self.state(place)
        else {
            return 1;
        };
        let mut dropped = 0;
        while dropped < 2 && !waiting.is_empty() && waiting.len() >= room {
            waiting.pop_front();
            dropped += 1;
        }
        waiting.push_back(frame);
        self.unresolved = self.unresolved + 1 - dropped;
        dropped as u64
    }

    fn state(&mut self, place: NeighbourKey) -> Option<&mut State> {
        let number = *self.numbers.get(&place)?;
        Some(&mut self.slots[number as usize].as_mut()?.state)
    }

    /// Whether the table has this neighbour.
    pub(in crate::router::engine) fn knows(&self, place: NeighbourKey) -> bool {
        self.numbers.contains_key(&place)
    }

    /// Records the address of a neighbour from a packet that it sent. The
    /// address is stale and is confirmed when it is used (RFC 4861 §7.2.3).
    /// Returns the frames that waited.
    pub(in crate::router::engine) fn received_from(
        &mut self,
        place: NeighbourKey,
        hardware: Address,
    ) -> VecDeque<Vec<u8>> {
        let known = self.numbers.get(&place);
        let known = known.and_then(|number| self.slots[*number as usize].as_ref());
        match known {
            Some(known) if matches!(known.state, State::Static) => VecDeque::new(),
            Some(known) if known.is_resolved() && known.hardware == hardware => VecDeque::new(),
            Some(_) => self.set_reachable(place, hardware, State::Stale),
            None => {
                let _ = self.enter(place, hardware, State::Stale);
                VecDeque::new()
            }
        }
    }

    /// Records an ARP reply: the neighbour becomes reachable. Returns the
    /// frames that waited; `None` if the neighbour was not solicited, and so
    /// the reply is not trusted.
    pub(in crate::router::engine) fn answered(
        &mut self,
        now_ns: u64,
        place: NeighbourKey,
        hardware: Address,
    ) -> Option<VecDeque<Vec<u8>>> {
        let number = *self.numbers.get(&place)?;
        let known = self.slots[number as usize].as_ref()?;
        let asked = known.is_incomplete() && known.solicits_sent > 0;
        asked.then(|| self.set_reachable(place, hardware, reachable(now_ns)))
    }

    /// Records a neighbour advertisement, with or without an address (RFC 4861
    /// §7.2.5). Returns the frames that waited; `None` if it was not solicited.
    pub(in crate::router::engine) fn advertised(
        &mut self,
        now_ns: u64,
        place: NeighbourKey,
        hardware: Option<Address>,
        (solicited, replaces): (bool, bool),
    ) -> Option<VecDeque<Vec<u8>>> {
        let number = *self.numbers.get(&place)?;
        let known = self.slots[number as usize].as_mut()?;
        if matches!(known.state, State::Static) {
            return Some(VecDeque::new());
        }
        let first = !known.is_resolved();
        let link_addr = match (first, hardware) {
            (true, hardware) => hardware?,
            (false, hardware) => hardware.unwrap_or(known.hardware),
        };
        let changed = !first && link_addr != known.hardware;
        if changed && !replaces {
            if let State::Reachable { .. } = known.state {
                known.state = State::Stale;
            }
            return Some(VecDeque::new());
        }
        match (solicited, first || changed) {
            (true, _) => Some(self.set_reachable(place, link_addr, reachable(now_ns))),
            (false, true) => Some(self.set_reachable(place, link_addr, State::Stale)),
            (false, false) => Some(VecDeque::new()),
        }
    }

    fn set_reachable(
        &mut self,
        place: NeighbourKey,
        hardware: Address,
        state: State,
    ) -> VecDeque<Vec<u8>> {
        let Some(&number) = self.numbers.get(&place) else {
            return VecDeque::new();
        };
        let Some(neighbour) = self.slots[number as usize].as_mut() else {
            return VecDeque::new();
        };
        if neighbour.is_incomplete() {
            self.due.remove(&(neighbour.next_solicit_ns, number));
        }
        // No cached decision uses a neighbour that is unresolved.
        self.changed |= neighbour.is_resolved() && neighbour.hardware != hardware;
        neighbour.hardware = hardware;
        match std::mem::replace(&mut neighbour.state, state) {
            State::Incomplete {
                unresolved: waiting,
            } => {
                self.incomplete -= 1;
                self.unresolved -= waiting.len();
                waiting
            }
            _ => VecDeque::new(),
        }
    }

    /// Repeats due solicitations, and removes neighbours that do not answer.
    /// Returns the frames that waited for those, for ICMP errors to their
    /// senders.
    pub(in crate::router::engine) fn poll(&mut self, now_ns: u64) -> Vec<(LinkId, Vec<u8>)> {
        let mut silent = Vec::new();
        while let Some(&(due_ns, number)) = self.due.first()
            && due_ns <= now_ns
        {
            self.due.pop_first();
            let Some(neighbour) = self.slots[number as usize].as_mut() else {
                continue;
            };
            if neighbour.solicits_sent == SOLICITS_MAX {
                let place = neighbour.key;
                let waited = self.remove(place);
                silent.extend(waited.into_iter().map(|frame| (place.0, frame)));
                continue;
            }
            neighbour.solicits_sent += 1;
            neighbour.next_solicit_ns = now_ns.saturating_add(RETRANS_TIMER_NS);
            let probe = matches!(neighbour.state, State::Probe);
            self.due.insert((neighbour.next_solicit_ns, number));
            let to = probe.then_some(neighbour.hardware);
            self.solicits.push((neighbour.key, to));
        }
        silent
    }

    /// The time at which [`Neighbours::poll`] is due, in ns; `None` if it is
    /// not.
    pub(in crate::router::engine) fn next_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| *due_ns)
    }

    /// Whether solicitations wait to be sent.
    pub(in crate::router::engine) fn has_solicits(&self) -> bool {
        !self.solicits.is_empty()
    }

    /// Removes and returns the solicitations to be sent.
    pub(in crate::router::engine) fn take_solicits(&mut self) -> Vec<Solicit> {
        std::mem::take(&mut self.solicits)
    }

    /// Adds a neighbour, in place of another if the table is full. Returns its
    /// slot, or `None` if no other may be replaced.
    fn enter(&mut self, place: NeighbourKey, hardware: Address, state: State) -> Option<u32> {
        let incomplete = matches!(state, State::Incomplete { .. });
        self.remove(place);
        if self.numbers.len() >= self.max {
            let other = self.displaced()?;
            self.remove(other);
        }
        let neighbour = Neighbour {
            key: place,
            hardware,
            state,
            solicits_sent: 0,
            next_solicit_ns: 0,
            used: false,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = Some(neighbour);
                number
            }
            None => {
                self.slots.push(Some(neighbour));
                (self.slots.len() - 1) as u32
            }
        };
        self.numbers.insert(place, number);
        self.incomplete += usize::from(incomplete);
        Some(number)
    }

    /// The neighbour to replace, by the CLOCK algorithm: one not used recently,
    /// and neither static nor unresolved. `None` if there is none.
    fn displaced(&mut self) -> Option<NeighbourKey> {
        for _ in 0..2 * self.slots.len() {
            self.clock_hand = (self.clock_hand + 1) % self.slots.len();
            let Some(neighbour) = self.slots[self.clock_hand].as_mut() else {
                continue;
            };
            let stays = matches!(neighbour.state, State::Static | State::Incomplete { .. });
            if !stays && !std::mem::take(&mut neighbour.used) {
                return Some(neighbour.key);
            }
        }
        None
    }

    fn remove(&mut self, place: NeighbourKey) -> VecDeque<Vec<u8>> {
        let Some(number) = self.numbers.remove(&place) else {
            return VecDeque::new();
        };
        let Some(neighbour) = self.slots[number as usize].take() else {
            return VecDeque::new();
        };
        self.changed |= neighbour.is_resolved();
        self.free.push(number);
        self.due.remove(&(neighbour.next_solicit_ns, number));
        match neighbour.state {
            State::Incomplete {
                unresolved: waiting,
            } => {
                self.incomplete -= 1;
                self.unresolved -= waiting.len();
                waiting
            }
            _ => VecDeque::new(),
        }
    }
}

impl Neighbour {
    fn is_incomplete(&self) -> bool {
        matches!(self.state, State::Incomplete { .. } | State::Probe)
    }

    /// Whether the neighbour's hardware address is known.
    fn is_resolved(&self) -> bool {
        !matches!(self.state, State::Incomplete { .. })
    }
}

/// The index in the cache of recently used neighbours.
#[inline]
fn recent_at((link, ip): NeighbourKey) -> usize {
    let bits = match ip {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits() as u64,
    };
    let mixed = (bits ^ u64::from(link) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize % RECENT
}

fn reachable(now_ns: u64) -> State {
    State::Reachable {
        until_ns: now_ns.saturating_add(REACHABLE_NS),
    }
}
