//! The neighbour cache, for both ARP (RFC 826, RFC 1122 §2.3.2) and neighbour discovery
//! (RFC 4861 §7.3).
//!
//! ```text
//!            ask, wait                answer              30 s         used
//!  (nothing) ─────────► Incomplete ─────────► Reachable ──────► Stale ─────► Probe
//!                       3 asks, gone          ▲                              │ 5 s, then
//!                                             └───────── answer ─────────────┘ 3 asks, gone
//! ```
//!
//! RFC 4861's state Delay is here the time of a Probe before its first solicitation.

use std::collections::BTreeMap;
use std::net::IpAddr;
use weir_wire::ethernet::Address;

/// Limit on neighbours in the cache; a further one displaces the neighbour that was unused for
/// longest.
pub const NEIGHBOURS_MAX: usize = 512;
/// Limit on Incomplete neighbours, above which a further one displaces another Incomplete one.
/// Traffic to unused addresses therefore displaces no reachable neighbour.
const INCOMPLETE_MAX: usize = NEIGHBOURS_MAX / 4;
/// Limit on frames that wait for one neighbour's address, such as the fragments of the longest
/// datagram at an MTU of 576 bytes; a further frame displaces the oldest.
pub const UNRESOLVED_MAX: usize = 128;
/// Limit on frames that wait for all neighbours. The newest [`UNRESOLVED_MIN`] frames of each
/// neighbour wait in any case, so that there may be that many times [`NEIGHBOURS_MAX`] more.
pub const UNRESOLVED_ALL_MAX: usize = 1024;
/// Frames that may wait for one neighbour's address, however many wait for others.
pub const UNRESOLVED_MIN: usize = 4;
/// Number of solicitations to a neighbour before it is given up.
pub const SOLICITS_MAX: u32 = 3;
/// Time between solicitations, in nanoseconds (RFC 4861: RETRANS_TIMER).
pub const RETRANS_TIMER_NS: u64 = 1_000_000_000;
/// Time for which a stale neighbour is used before it is solicited, in nanoseconds (RFC 4861:
/// DELAY_FIRST_PROBE_TIME).
pub const DELAY_FIRST_PROBE_NS: u64 = 5_000_000_000;
/// Time for which an answer makes a neighbour reachable, in nanoseconds (RFC 4861:
/// REACHABLE_TIME).
pub const REACHABLE_NS: u64 = 30_000_000_000;
/// Longest use of a header cache without reporting the use, in nanoseconds.
const HEADER_CACHE_MAX_NS: u64 = 1_000_000_000;

#[derive(Debug)]
enum State {
    Incomplete {
        waiting: Vec<Vec<u8>>,
    },
    Reachable {
        until_ns: u64,
    },
    Stale,
    /// Used with the known address, and solicited.
    Probe,
}

#[derive(Debug)]
struct Neighbour {
    hardware: Address,
    state: State,
    /// Number of solicitations so far, and the time of the next.
    solicits: u32,
    next_solicit_ns: u64,
    /// Time of the last packet sent to it: a neighbour that only sends to this host is displaced
    /// first.
    used_ns: u64,
}

/// A solicitation to be sent: the address, and its receiver unless it is multicast.
pub(super) type SolicitRequest = (IpAddr, Option<Address>);

/// The neighbours of one link.
#[derive(Default)]
pub(super) struct Neighbours {
    entries: BTreeMap<IpAddr, Neighbour>,
    solicits: Vec<SolicitRequest>,
    /// Number of neighbours being solicited, and the time of the earliest solicitation, or an
    /// earlier time.
    awaiting_answer: usize,
    due_ns: u64,
    /// Number of frames waiting for resolution.
    unresolved: usize,
    /// Number of frames dropped with displaced neighbours, not reported yet.
    displaced: u64,
    /// Incremented whenever a returned address may have become wrong.
    epoch: u32,
}

/// A hardware address to send to, and how long it may be used without a new look-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResolvedHop {
    pub(super) hardware: Address,
    pub(super) until_ns: u64,
    pub(super) epoch: u32,
}

impl Neighbours {
    /// [`Neighbours::resolve`], for a header cache: valid as long as the neighbour is surely
    /// reachable, at most [`HEADER_CACHE_MAX_NS`].
    pub(super) fn hop(&mut self, now_ns: u64, ip: IpAddr) -> Option<ResolvedHop> {
        let hardware = self.resolve(now_ns, ip)?;
        let until_ns = match self.entries.get(&ip)?.state {
            State::Reachable { until_ns } => {
                until_ns.min(now_ns.saturating_add(HEADER_CACHE_MAX_NS))
            }
            // While the neighbour is solicited, its known address is used.
            _ => now_ns.saturating_add(HEADER_CACHE_MAX_NS),
        };
        Some(ResolvedHop {
            hardware,
            until_ns,
            epoch: self.epoch,
        })
    }

    /// The hop to the host itself, by a link that returns frames.
    pub(super) fn own_hop(&self, now_ns: u64, hardware: Address) -> ResolvedHop {
        ResolvedHop {
            hardware,
            until_ns: now_ns.saturating_add(HEADER_CACHE_MAX_NS),
            epoch: self.epoch,
        }
    }

    /// Differs from an earlier result if an address returned then may be wrong.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Routes have changed: resolved next hops may be wrong.
    pub(super) fn invalidate_cached_hops(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The MAC address of a neighbour; `None` if it is unknown: it is then solicited, and frames
    /// can wait for it.
    pub(super) fn resolve(&mut self, now_ns: u64, ip: IpAddr) -> Option<Address> {
        let Some(neighbour) = self.entries.get_mut(&ip) else {
            let waiting = Vec::new();
            self.enter(ip, Address::default(), State::Incomplete { waiting });
            self.solicit(now_ns, ip);
            self.entries.get_mut(&ip)?.used_ns = now_ns;
            return None;
        };
        neighbour.used_ns = now_ns;
        let hardware = neighbour.hardware;
        match neighbour.state {
            State::Incomplete { .. } => return None,
            State::Reachable { until_ns } if until_ns > now_ns => {}
            State::Reachable { .. } | State::Stale => {
                neighbour.state = State::Probe;
                self.solicit(now_ns, ip);
            }
            State::Probe => {}
        }
        Some(hardware)
    }

    /// The transport layer confirms that packets sent through a neighbour arrive (RFC 4861 §7.3.1,
    /// RFC 1122 §2.3.2.1).
    pub(super) fn confirm(&mut self, now_ns: u64, ip: IpAddr) {
        let Some(neighbour) = self
            .entries
            .get_mut(&ip)
            .filter(|known| known.is_resolved())
        else {
            return;
        };
        self.awaiting_answer -= usize::from(neighbour.is_awaiting_answer());
        neighbour.state = reachable(now_ns);
    }

    /// Packets sent through a neighbour do not arrive: another station may have its address. It is
    /// solicited by multicast, and its known address is used until an answer.
    pub(super) fn suspect(&mut self, now_ns: u64, ip: IpAddr) {
        let Some(neighbour) = self
            .entries
            .get_mut(&ip)
            .filter(|known| known.is_resolved())
        else {
            return;
        };
        if self.awaiting_answer == 0 {
            self.due_ns = u64::MAX;
        }
        self.awaiting_answer += usize::from(!neighbour.is_awaiting_answer());
        self.epoch = self.epoch.wrapping_add(1);
        neighbour.state = State::Probe;
        neighbour.solicits = 1;
        neighbour.next_solicit_ns = now_ns.saturating_add(RETRANS_TIMER_NS);
        self.due_ns = self.due_ns.min(neighbour.next_solicit_ns);
        self.solicits.push((ip, None));
    }

    /// Solicits a neighbour: an unknown one at once, a known one after a delay without
    /// confirmation.
    fn solicit(&mut self, now_ns: u64, ip: IpAddr) {
        let Some(neighbour) = self.entries.get_mut(&ip) else {
            return;
        };
        if self.awaiting_answer == 0 {
            self.due_ns = u64::MAX;
        }
        let known = neighbour.is_resolved();
        let wait_ns = if known {
            DELAY_FIRST_PROBE_NS
        } else {
            RETRANS_TIMER_NS
        };
        neighbour.solicits = u32::from(!known);
        neighbour.next_solicit_ns = now_ns.saturating_add(wait_ns);
        self.due_ns = self.due_ns.min(neighbour.next_solicit_ns);
        if !known {
            self.solicits.push((ip, None));
        }
        self.awaiting_answer += 1;
    }

    /// Queues a frame until the address is resolved; returns how many frames were dropped for it
    /// and its neighbour.
    pub(super) fn enqueue_unresolved(&mut self, ip: IpAddr, frame: Vec<u8>) -> u64 {
        let Some(Neighbour {
            state: State::Incomplete { waiting },
            ..
        }) = self.entries.get_mut(&ip)
        else {
            return 1;
        };
        let room = UNRESOLVED_ALL_MAX.saturating_sub(self.unresolved);
        let full = waiting.len() >= room.clamp(UNRESOLVED_MIN, UNRESOLVED_MAX);
        if full {
            waiting.remove(0);
        }
        waiting.push(frame);
        self.unresolved += usize::from(!full);
        std::mem::take(&mut self.displaced) + u64::from(full)
    }

    /// Takes the frames that waited, unless the neighbour still has this state.
    fn take_unresolved(&mut self, state: State) -> Vec<Vec<u8>> {
        let State::Incomplete { waiting } = state else {
            return Vec::new();
        };
        self.unresolved -= waiting.len();
        waiting
    }

    fn enter(&mut self, ip: IpAddr, hardware: Address, state: State) {
        if self.entries.len() == NEIGHBOURS_MAX {
            let unanswered = self.entries.values().filter(|known| !known.is_resolved());
            let is_flood =
                matches!(state, State::Incomplete { .. }) && unanswered.count() >= INCOMPLETE_MAX;
            let oldest = self
                .entries
                .iter()
                .filter(|(_, neighbour)| !is_flood || !neighbour.is_resolved())
                .min_by_key(|(_, neighbour)| neighbour.used_ns);
            if let Some((&oldest, _)) = oldest {
                self.displaced += self.remove(oldest).len() as u64;
            }
        }
        self.entries.insert(
            ip,
            Neighbour {
                hardware,
                state,
                solicits: 0,
                next_solicit_ns: 0,
                used_ns: 0,
            },
        );
    }

    /// Removes a neighbour; returns the frames that waited for it.
    fn remove(&mut self, ip: IpAddr) -> Vec<Vec<u8>> {
        let Some(neighbour) = self.entries.remove(&ip) else {
            return Vec::new();
        };
        self.awaiting_answer -= usize::from(neighbour.is_awaiting_answer());
        self.epoch = self.epoch.wrapping_add(1);
        self.take_unresolved(neighbour.state)
    }

    /// Whether the cache has an entry for the neighbour.
    pub(super) fn knows(&self, ip: IpAddr) -> bool {
        self.entries.contains_key(&ip)
    }

    /// Enters a neighbour's address from its own message; to be confirmed when used (RFC 4861
    /// §7.2.3). Returns the frames that waited.
    pub(super) fn update(&mut self, ip: IpAddr, hardware: Address) -> Vec<Vec<u8>> {
        match self.entries.get(&ip) {
            Some(known) if known.is_resolved() && known.hardware == hardware => Vec::new(),
            Some(_) => self.set_resolved(ip, hardware, State::Stale),
            None => {
                self.enter(ip, hardware, State::Stale);
                Vec::new()
            }
        }
    }

    /// Handles an ARP reply: the address is reachable. Returns the frames that waited; `None` if
    /// the neighbour was not solicited, so that the reply is ignored.
    pub(super) fn answered(
        &mut self,
        now_ns: u64,
        ip: IpAddr,
        hardware: Address,
    ) -> Option<Vec<Vec<u8>>> {
        let known = self.entries.get(&ip)?;
        let asked = known.is_awaiting_answer() && known.solicits > 0;
        asked.then(|| self.set_resolved(ip, hardware, reachable(now_ns)))
    }

    /// Handles a neighbour advertisement (RFC 4861 §7.2.5). Returns the frames that waited; `None`
    /// if the neighbour is not in the cache.
    pub(super) fn advertised(
        &mut self,
        now_ns: u64,
        ip: IpAddr,
        hardware: Option<Address>,
        (solicited, replaces): (bool, bool),
    ) -> Option<Vec<Vec<u8>>> {
        let known = self.entries.get_mut(&ip)?;
        let link_addr = match (known.is_resolved(), hardware) {
            (false, hardware) => hardware?,
            (true, hardware) => hardware.unwrap_or(known.hardware),
        };
        let changed = known.is_resolved() && link_addr != known.hardware;
        if changed && !replaces {
            if let State::Reachable { .. } = known.state {
                known.state = State::Stale;
                self.epoch = self.epoch.wrapping_add(1);
            }
            return Some(Vec::new());
        }
        let first = !known.is_resolved();
        match (solicited, first || changed) {
            (true, _) => Some(self.set_resolved(ip, link_addr, reachable(now_ns))),
            (false, true) => Some(self.set_resolved(ip, link_addr, State::Stale)),
            (false, false) => Some(Vec::new()),
        }
    }

    fn set_resolved(&mut self, ip: IpAddr, hardware: Address, state: State) -> Vec<Vec<u8>> {
        let Some(neighbour) = self.entries.get_mut(&ip) else {
            return Vec::new();
        };
        self.awaiting_answer -= usize::from(neighbour.is_awaiting_answer());
        self.epoch = self.epoch.wrapping_add(1);
        neighbour.hardware = hardware;
        let before = std::mem::replace(&mut neighbour.state, state);
        self.take_unresolved(before)
    }

    /// Repeats due solicitations, and removes neighbours that never answered; returns these with
    /// the frames that waited for them.
    pub(super) fn poll(&mut self, now_ns: u64) -> Vec<(IpAddr, Vec<Vec<u8>>)> {
        if self.awaiting_answer == 0 || now_ns < self.due_ns {
            return Vec::new();
        }
        self.due_ns = u64::MAX;
        let mut silent = Vec::new();
        for (&ip, neighbour) in &mut self.entries {
            if !neighbour.is_awaiting_answer() {
                continue;
            }
            if neighbour.next_solicit_ns > now_ns {
                self.due_ns = self.due_ns.min(neighbour.next_solicit_ns);
                continue;
            }
            if neighbour.solicits == SOLICITS_MAX {
                silent.push(ip);
                continue;
            }
            neighbour.solicits += 1;
            neighbour.next_solicit_ns = now_ns.saturating_add(RETRANS_TIMER_NS);
            self.due_ns = self.due_ns.min(neighbour.next_solicit_ns);
            let probe = matches!(neighbour.state, State::Probe);
            self.solicits
                .push((ip, probe.then_some(neighbour.hardware)));
        }
        let silent = silent.into_iter();
        silent.map(|ip| (ip, self.remove(ip))).collect()
    }

    /// When [`Neighbours::poll`] is due, or an earlier time.
    pub(super) fn next_ns(&self) -> Option<u64> {
        (self.awaiting_answer > 0).then_some(self.due_ns)
    }

    /// Whether solicitations are to be sent.
    pub(super) fn has_solicits(&self) -> bool {
        !self.solicits.is_empty()
    }

    /// The solicitations to be sent.
    pub(super) fn take_solicits(&mut self) -> Vec<SolicitRequest> {
        std::mem::take(&mut self.solicits)
    }
}

impl Neighbour {
    fn is_awaiting_answer(&self) -> bool {
        matches!(self.state, State::Incomplete { .. } | State::Probe)
    }

    /// Whether the MAC address is known.
    fn is_resolved(&self) -> bool {
        !matches!(self.state, State::Incomplete { .. })
    }
}

fn reachable(now_ns: u64) -> State {
    State::Reachable {
        until_ns: now_ns.saturating_add(REACHABLE_NS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));
    const HARDWARE: Address = Address([2, 0, 0, 0, 0, 9]);
    const OTHER: Address = Address([2, 0, 0, 0, 0, 10]);

    #[test]
    fn frames_wait_for_the_answer() {
        let mut neighbours = Neighbours::default();
        let frame = |number: usize| vec![number as u8];
        let count = UNRESOLVED_MAX + 2;
        for number in 0..count {
            assert_eq!(neighbours.resolve(0, IP), None);
            let dropped = u64::from(number >= UNRESOLVED_MAX);
            assert_eq!(neighbours.enqueue_unresolved(IP, frame(number)), dropped);
        }
        assert_eq!(neighbours.take_solicits(), [(IP, None)]);
        let waited = neighbours.answered(5, IP, HARDWARE);
        assert_eq!(waited.unwrap(), (2..count).map(frame).collect::<Vec<_>>());
        assert_eq!(neighbours.unresolved, 0);
        assert_eq!(neighbours.resolve(6, IP), Some(HARDWARE));
        assert_eq!(
            (neighbours.take_solicits(), neighbours.next_ns()),
            (vec![], None)
        );
    }

    /// Frames to many addresses without a station: a bounded number of frames waits, all others are
    /// counted, and the newest few of each wait in any case.
    #[test]
    fn a_flood_to_absent_neighbours_waits_within_bounds() {
        let mut neighbours = Neighbours::default();
        let ip = |number: usize| IpAddr::V4(std::net::Ipv4Addr::from_bits(number as u32));
        let held = |neighbours: &Neighbours| {
            let known = neighbours.entries.values();
            let waiting = known.map(|known| match &known.state {
                State::Incomplete { waiting } => waiting.len(),
                _ => 0,
            });
            waiting.sum::<usize>()
        };
        let (mut sent, mut dropped) = (0, 0);
        for round in 0..10 {
            for number in 0..2 * NEIGHBOURS_MAX {
                for _ in 0..10 {
                    neighbours.resolve(sent, ip(number));
                    dropped += neighbours.enqueue_unresolved(ip(number), vec![round]);
                    sent += 1;
                }
                let all = held(&neighbours);
                assert_eq!(neighbours.unresolved, all);
                let most = UNRESOLVED_ALL_MAX + UNRESOLVED_MIN * NEIGHBOURS_MAX;
                assert!(all <= most, "{all} wait");
                assert_eq!(dropped + all as u64, sent);
            }
        }
        // A neighbour that answers gets its newest frames, and room for further ones.
        let last = ip(2 * NEIGHBOURS_MAX - 1);
        let waited = neighbours.answered(sent, last, HARDWARE).unwrap();
        assert_eq!(waited, vec![vec![9]; UNRESOLVED_MIN]);
        while let Some(next_ns) = neighbours.next_ns() {
            neighbours.poll(next_ns);
        }
        assert_eq!((neighbours.unresolved, held(&neighbours)), (0, 0));
    }

    #[test]
    fn a_stale_neighbour_is_used_and_asked_and_given_up() {
        let mut neighbours = Neighbours::default();
        neighbours.update(IP, HARDWARE);
        assert_eq!(neighbours.next_ns(), None);
        assert_eq!(neighbours.resolve(1, IP), Some(HARDWARE));
        assert_eq!(neighbours.take_solicits(), []);
        assert_eq!(neighbours.answered(1, IP, OTHER), None);
        let mut asks = 0;
        while let Some(next_ns) = neighbours.next_ns() {
            let silent = neighbours.poll(next_ns);
            assert!(silent.iter().all(|(_, waited)| waited.is_empty()));
            for ask in neighbours.take_solicits() {
                assert_eq!(ask, (IP, Some(HARDWARE)));
                asks += 1;
            }
        }
        assert_eq!(asks, SOLICITS_MAX);
        assert!(!neighbours.knows(IP));
    }

    /// RFC 1122 §2.3.2.1: confirmation by transport protocols counts.
    #[test]
    fn progress_confirms_and_its_absence_asks_all() {
        let mut neighbours = Neighbours::default();
        neighbours.update(IP, HARDWARE);
        neighbours.resolve(1, IP);
        assert!(neighbours.next_ns().is_some());
        neighbours.confirm(2, IP);
        assert_eq!(neighbours.next_ns(), None);
        assert_eq!(neighbours.resolve(REACHABLE_NS, IP), Some(HARDWARE));
        assert_eq!(neighbours.next_ns(), None, "reachable for as long");
        neighbours.suspect(3, IP);
        neighbours.suspect(3, IP);
        assert_eq!(neighbours.take_solicits(), [(IP, None), (IP, None)]);
        assert_eq!(neighbours.resolve(4, IP), Some(HARDWARE));
        neighbours.answered(5, IP, OTHER);
        assert_eq!(neighbours.resolve(6, IP), Some(OTHER));
        assert_eq!(
            (neighbours.awaiting_answer, neighbours.next_ns()),
            (0, None)
        );
        // An answer to another station's solicitation may correct a wrong entry.
        neighbours.suspect(7, IP);
        neighbours.advertised(8, IP, Some(HARDWARE), (true, true));
        assert_eq!(
            (neighbours.resolve(9, IP), neighbours.awaiting_answer),
            (Some(HARDWARE), 0)
        );
        // Unknown neighbours get no entry.
        let stranger = "192.0.2.77".parse().unwrap();
        neighbours.confirm(9, stranger);
        neighbours.suspect(9, stranger);
        assert!(!neighbours.knows(stranger));
    }

    #[test]
    fn queued_frames_are_dropped_with_a_silent_neighbour() {
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.resolve(0, IP), None);
        neighbours.enqueue_unresolved(IP, vec![1]);
        let mut dropped = 0;
        while let Some(next_ns) = neighbours.next_ns() {
            let silent = neighbours.poll(next_ns);
            dropped += silent.iter().map(|(_, waited)| waited.len()).sum::<usize>();
        }
        assert_eq!(
            (dropped, neighbours.take_solicits().len()),
            (1, SOLICITS_MAX as usize)
        );
    }

    #[test]
    fn an_unsolicited_answer_is_not_believed() {
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.answered(0, IP, HARDWARE), None);
        assert_eq!(
            neighbours.advertised(0, IP, Some(HARDWARE), (true, true)),
            None
        );
        assert_eq!(neighbours.resolve(0, IP), None);
        neighbours.answered(0, IP, HARDWARE);
        assert_eq!(neighbours.answered(0, IP, OTHER), None);
        assert_eq!(neighbours.resolve(1, IP), Some(HARDWARE));
    }

    /// The table of RFC 4861, appendix C.
    #[test]
    fn advertisements_follow_the_state_machine() {
        let none = Some(Vec::new());
        let fresh = || {
            let mut neighbours = Neighbours::default();
            neighbours.resolve(0, IP);
            neighbours.take_solicits();
            neighbours
        };
        let asks_when_used = |neighbours: &mut Neighbours, hardware| {
            assert_eq!(neighbours.resolve(1, IP), Some(hardware));
            neighbours.next_ns().map_or(0, |next_ns| {
                neighbours.poll(next_ns);
                neighbours.take_solicits().len()
            })
        };
        // Incomplete: an advertisement without an address changes nothing.
        let mut neighbours = fresh();
        assert_eq!(neighbours.advertised(0, IP, None, (true, true)), None);
        assert_eq!(
            neighbours.advertised(0, IP, Some(HARDWARE), (true, false)),
            none
        );
        assert_eq!(asks_when_used(&mut neighbours, HARDWARE), 0);
        // Unsolicited: Stale, to be confirmed.
        let mut neighbours = fresh();
        neighbours.advertised(0, IP, Some(HARDWARE), (false, false));
        assert_eq!(asks_when_used(&mut neighbours, HARDWARE), 1);
        // Another address without the override flag makes the entry stale.
        let mut neighbours = fresh();
        neighbours.advertised(0, IP, Some(HARDWARE), (true, false));
        neighbours.advertised(0, IP, Some(OTHER), (true, false));
        assert_eq!(asks_when_used(&mut neighbours, HARDWARE), 1);
        // With the override flag the address is replaced.
        neighbours.advertised(0, IP, Some(OTHER), (true, true));
        assert_eq!(asks_when_used(&mut neighbours, OTHER), 0);
        neighbours.advertised(0, IP, Some(HARDWARE), (false, true));
        assert_eq!(asks_when_used(&mut neighbours, HARDWARE), 1);
    }

    /// Packets from forged senders on the link that have no entry.
    #[test]
    fn a_silent_neighbour_displaces_no_reachable_one() {
        let mut neighbours = Neighbours::default();
        neighbours.resolve(7, IP);
        neighbours.answered(7, IP, HARDWARE);
        for number in 0..2000_u32 {
            let ip = IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
            neighbours.resolve(8 + u64::from(number), ip);
        }
        assert_eq!(neighbours.entries.len(), NEIGHBOURS_MAX);
        assert!(neighbours.knows(IP));
        // A station that answers is still found among them.
        let last = IpAddr::V4(std::net::Ipv4Addr::from_bits(1999));
        neighbours.answered(3000, last, OTHER);
        assert_eq!(neighbours.resolve(3000, last), Some(OTHER));
    }

    #[test]
    fn strangers_displace_strangers_first() {
        let mut neighbours = Neighbours::default();
        neighbours.resolve(7, IP);
        neighbours.answered(7, IP, HARDWARE);
        for number in 0..2000_u32 {
            let ip = IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
            neighbours.update(ip, OTHER);
        }
        assert_eq!(neighbours.entries.len(), NEIGHBOURS_MAX);
        assert!(neighbours.knows(IP));
    }
}
