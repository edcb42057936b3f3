//! Multicast membership: the host's side of IGMP (RFC 3376, RFC 2236) and MLD (RFC 3810,
//! RFC 2710), without source lists.
//!
//! A query is answered after a random time of at least [`ANSWER_MIN_NS`], so that frequent
//! queries cause few reports. While a router uses an older version, the host does too.

use super::{DropReason, Header, Incoming, Interface};
use crate::rng::PrfRng;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_wire::icmp::Message;
use weir_wire::membership::{self, MembershipMessage, Record, Version};
use weir_wire::{AddrPair, EtherType, Protocol, ethernet, ipv4};

use super::routes::ALL_NODES;

/// Limit on joined groups, including the solicited-node groups of addresses.
pub const GROUPS_MAX: usize = 512;
/// Shortest time from a query to its answer, in nanoseconds.
pub const ANSWER_MIN_NS: u64 = 10_000_000;

/// The group of all IPv4 hosts of the link.
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// How often a change is reported (RFC 3376 §8.1: Robustness Variable).
const ROBUSTNESS: u8 = 2;
/// Longest time until a change is reported again, in nanoseconds: in the latest version
/// (RFC 3376 §8.11) and in older ones (RFC 2236 §8.10).
const UNSOLICITED_REPORT_NS: u64 = 1_000_000_000;
const UNSOLICITED_REPORT_LEGACY_NS: u64 = 10_000_000_000;
/// Time after the last query of an older version for which the host uses that version, in
/// nanoseconds (RFC 3376 §8.12: 2 × 125 s + 10 s).
const OLDER_QUERIER_NS: u64 = 260_000_000_000;
/// Limit on the records in one report, in bytes.
const RECORDS_LEN_MAX: usize = 1200;

struct Group {
    /// Number of sockets and addresses that joined; 0 while the group is being left.
    members: u32,
    /// Remaining reports of the change, and the time of the next.
    reports_remaining: u8,
    report_ns: u64,
    /// When the answer to a query is due.
    answer_ns: u64,
}

/// The version that the routers of one IP version use.
#[derive(Clone, Copy)]
struct Querier {
    /// Until when versions 1 and 2 are in use: separate times, so that one message of a version
    /// does not keep it in use by means of the other's messages (RFC 3376 §7.2.1).
    older: [u64; 2],
    /// When the answer to a general query is due.
    answer_ns: u64,
}

/// The memberships of one link.
pub(super) struct Groups {
    joined: BTreeMap<IpAddr, Group>,
    queriers: [Querier; 2],
    rng: PrfRng,
}

/// A report to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
enum MembershipReport {
    Latest(Vec<(IpAddr, Record)>),
    Legacy(IpAddr, Record, Version),
}

impl Groups {
    pub(super) fn new(seed: u128) -> Groups {
        let querier = Querier {
            older: [0; 2],
            answer_ns: u64::MAX,
        };
        Groups {
            joined: BTreeMap::new(),
            queriers: [querier; 2],
            rng: PrfRng::new(seed, "groups"),
        }
    }

    /// Whether packets to this group are accepted.
    pub(super) fn is_in(&self, group: IpAddr) -> bool {
        is_all_nodes(group) || self.joined.get(&group).is_some_and(Group::is_wanted)
    }

    /// Adds a member; `false` if the limit on groups is reached. Reported unless `silently`.
    pub(super) fn join(&mut self, group: IpAddr, silently: bool) -> bool {
        if is_all_nodes(group) {
            return true;
        }
        if let Some(joined) = self.joined.get_mut(&group) {
            let again = !joined.is_wanted();
            joined.members += 1;
            if again {
                (joined.reports_remaining, joined.report_ns) = (ROBUSTNESS, 0);
            }
            return true;
        }
        if self.joined.len() >= GROUPS_MAX {
            return false;
        }
        let tells = if silently { 0 } else { ROBUSTNESS };
        self.joined.insert(
            group,
            Group {
                members: 1,
                reports_remaining: tells,
                report_ns: 0,
                answer_ns: u64::MAX,
            },
        );
        true
    }

    /// Removes a member.
    pub(super) fn leave(&mut self, group: IpAddr, silently: bool) {
        let Some(joined) = self.joined.get_mut(&group).filter(|one| one.is_wanted()) else {
            return;
        };
        joined.members -= 1;
        if joined.is_wanted() {
            return;
        }
        if silently {
            self.joined.remove(&group);
            return;
        }
        (joined.reports_remaining, joined.report_ns) = (ROBUSTNESS, 0);
        joined.answer_ns = u64::MAX;
    }

    /// Handles a message of another station.
    fn process_message(&mut self, now_ns: u64, heard: MembershipMessage, v6: bool) {
        let (version, group, within_ms) = match heard {
            MembershipMessage::Query {
                version,
                group,
                within_ms,
            } => (version, group, within_ms),
            // One report suffices for an older router (RFC 2236 §3).
            MembershipMessage::Report(group) => {
                let older = self.version(now_ns, v6).is_some();
                if let Some(joined) = self.joined.get_mut(&group).filter(|_| older) {
                    joined.answer_ns = u64::MAX;
                }
                return;
            }
        };
        let latest = if v6 { 2 } else { 3 };
        if version < latest {
            let older = &mut self.queriers[usize::from(v6)].older;
            older[usize::from(version) - 1] = now_ns.saturating_add(OLDER_QUERIER_NS);
        }
        let within_ns = u64::from(within_ms) * 1_000_000;
        if let Some(group) = group {
            let answer_ns = self.random_within(now_ns, within_ns);
            if let Some(joined) = self.joined.get_mut(&group).filter(|one| one.is_wanted()) {
                joined.answer_ns = joined.answer_ns.min(answer_ns);
            }
        } else if self.version(now_ns, v6).is_none() {
            let answer_ns = self.random_within(now_ns, within_ns);
            let querier = &mut self.queriers[usize::from(v6)];
            querier.answer_ns = querier.answer_ns.min(answer_ns);
        } else {
            let rng = &mut self.rng;
            for (group, joined) in &mut self.joined {
                if group.is_ipv6() == v6 && joined.is_wanted() {
                    joined.answer_ns = joined.answer_ns.min(random_within(rng, now_ns, within_ns));
                }
            }
        }
    }

    fn random_within(&mut self, now_ns: u64, within_ns: u64) -> u64 {
        random_within(&mut self.rng, now_ns, within_ns)
    }

    /// The older version in use for this IP version, if any.
    fn version(&self, now_ns: u64, v6: bool) -> Option<Version> {
        let older = (1..).zip(self.queriers[usize::from(v6)].older);
        let mut there = older.filter(|(_, until_ns)| *until_ns > now_ns);
        there.next().map(|(version, _)| version)
    }

    /// The reports that are due.
    fn poll(&mut self, now_ns: u64) -> Vec<MembershipReport> {
        let mut tells = Vec::new();
        for v6 in [false, true] {
            let older = self.version(now_ns, v6);
            let querier = &mut self.queriers[usize::from(v6)];
            let all = querier.answer_ns <= now_ns;
            if all {
                querier.answer_ns = u64::MAX;
            }
            let mut records = Vec::new();
            for (&group, joined) in &mut self.joined {
                if group.is_ipv6() != v6 {
                    continue;
                }
                let Some(record) = joined.due(now_ns, all, older.is_some(), &mut self.rng) else {
                    continue;
                };
                match older {
                    // The leave message is sent regardless of which host reported last: that is
                    // always permitted (RFC 2236 §3).
                    Some(version) => tells.push(MembershipReport::Legacy(group, record, version)),
                    None => records.push((group, record)),
                }
            }
            let each = if v6 { 20 } else { 8 };
            for some in records.chunks(RECORDS_LEN_MAX / each) {
                tells.push(MembershipReport::Latest(some.to_vec()));
            }
        }
        self.joined
            .retain(|_, joined| joined.is_wanted() || joined.reports_remaining > 0);
        tells
    }

    /// When [`Groups::poll`] is due.
    pub(super) fn due_ns(&self) -> u64 {
        let groups = self.joined.values().map(Group::due_ns);
        let queriers = self.queriers.iter().map(|querier| querier.answer_ns);
        groups.chain(queriers).min().unwrap_or(u64::MAX)
    }
}

impl Group {
    fn is_wanted(&self) -> bool {
        self.members > 0
    }

    fn due_ns(&self) -> u64 {
        match self.reports_remaining {
            0 => self.answer_ns,
            _ => self.answer_ns.min(self.report_ns),
        }
    }

    /// The report of this group that is due, if any.
    fn due(&mut self, now_ns: u64, all: bool, older: bool, rng: &mut PrfRng) -> Option<Record> {
        if self.reports_remaining > 0 && self.report_ns <= now_ns {
            self.reports_remaining -= 1;
            let again_ns = if older {
                UNSOLICITED_REPORT_LEGACY_NS
            } else {
                UNSOLICITED_REPORT_NS
            };
            self.report_ns = random_within(rng, now_ns, again_ns);
            self.answer_ns = u64::MAX;
            if self.is_wanted() {
                return Some(Record::Joined);
            }
            // Older versions report once.
            if older {
                self.reports_remaining = 0;
            }
            return Some(Record::Left);
        }
        let due = self.is_wanted() && (all || self.answer_ns <= now_ns);
        due.then(|| {
            self.answer_ns = u64::MAX;
            Record::In
        })
    }
}

/// A random time after `now_ns`, within `within_ns` nanoseconds.
fn random_within(rng: &mut PrfRng, now_ns: u64, within_ns: u64) -> u64 {
    let within_ns = within_ns.max(ANSWER_MIN_NS);
    let spread_us = u32::try_from((within_ns - ANSWER_MIN_NS) / 1000).unwrap_or(u32::MAX);
    let after_ns = ANSWER_MIN_NS + u64::from(rng.below(spread_us)) * 1000;
    now_ns.saturating_add(after_ns)
}

/// Whether every station is a member of the group, without reports.
fn is_all_nodes(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group == ALL_HOSTS,
        IpAddr::V6(group) => group == ALL_NODES,
    }
}

impl Interface {
    /// A socket joins a group; `false` if the limit is reached.
    pub(crate) fn join(&mut self, group: IpAddr) -> bool {
        let room = self.groups.join(group, false);
        self.reschedule();
        room
    }

    /// A socket leaves a group.
    pub(crate) fn leave(&mut self, group: IpAddr) {
        self.groups.leave(group, false);
        self.reschedule();
    }

    /// Whether packets to this group are accepted.
    pub(crate) fn is_in(&self, group: IpAddr) -> bool {
        self.groups.is_in(group)
    }

    /// Handles an IGMP message.
    pub(crate) fn igmp(&mut self, now_ns: u64, incoming: &Incoming<'_>) -> Result<(), DropReason> {
        let heard = membership::parse_igmp(incoming.payload).map_err(|_| DropReason::Malformed)?;
        // Routers do not forward these messages (RFC 3376 §4). Since any host may send them from
        // elsewhere, the source must also be in a network of the link, or be the address 0.0.0.0 of
        // a snooping switch.
        let near = incoming.src().is_unspecified() || self.is_near(incoming.src());
        if incoming.hop_limit != 1 || !near {
            return Err(DropReason::GroupRefused);
        }
        let heard = heard.ok_or(DropReason::GroupRefused)?;
        self.groups.process_message(now_ns, heard, false);
        self.reschedule();
        Ok(())
    }

    /// Handles an MLD message with a correct checksum; `None` for another message.
    pub(super) fn mld(
        &mut self,
        now_ns: u64,
        incoming: &Incoming<'_>,
        message: &Message<'_>,
    ) -> Option<Result<(), DropReason>> {
        let AddrPair::V6(src, _) = incoming.addresses else {
            return None;
        };
        let heard = membership::parse_mld(message)?;
        // RFC 3810 §6.2, RFC 2710 §3: the source must be link-local, the hop limit 1, and the
        // router alert present.
        let near = incoming.hop_limit == 1 && src.is_unicast_link_local() && incoming.alert;
        Some(match heard {
            Ok(heard) if near => {
                self.groups.process_message(now_ns, heard, true);
                self.reschedule();
                Ok(())
            }
            Ok(_) => Err(DropReason::GroupRefused),
            Err(_) => Err(DropReason::Malformed),
        })
    }

    /// Sends due reports.
    pub(super) fn poll_groups(&mut self, now_ns: u64) {
        for tell in self.groups.poll(now_ns) {
            let v6 = match &tell {
                MembershipReport::Latest(records) => {
                    records.iter().any(|(group, _)| group.is_ipv6())
                }
                MembershipReport::Legacy(group, ..) => group.is_ipv6(),
            };
            let src = self.membership_source(v6);
            let told = match tell {
                MembershipReport::Latest(records) => Some(membership::report(&records, src)),
                MembershipReport::Legacy(group, record, version) => {
                    membership::legacy_report(group, record, version, src)
                }
            };
            if let Some((message, addresses)) = told {
                self.send_membership(addresses, &message);
            }
        }
    }

    /// The source of reports: the IPv6 link-local address, or the unspecified address while there
    /// is none (RFC 3590).
    fn membership_source(&self, v6: bool) -> IpAddr {
        let nobody: IpAddr = if v6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let fits = |address: &IpAddr| match address {
            IpAddr::V6(address) => v6 && address.is_unicast_link_local(),
            IpAddr::V4(_) => !v6,
        };
        let ours = self.routes.addresses().iter().filter(|one| one.is_ours());
        let mut ours = ours.map(|owned| owned.prefix.address());
        ours.find(fits).unwrap_or(nobody)
    }

    /// Sends a message with the router alert option (RFC 2113, RFC 2711).
    fn send_membership(&mut self, addresses: AddrPair, message: &[u8]) {
        const ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
        match addresses {
            AddrPair::V4(src, dst) => {
                let repr = ipv4::Repr {
                    src,
                    dst,
                    protocol: Protocol::IGMP,
                    ttl: 1,
                    traffic_class: 0xc0,
                    identification: 0,
                    dont_fragment: true,
                    payload_len: message.len(),
                };
                let start = ethernet::Repr::LEN;
                let mut frame = vec![0; start + ipv4::Repr::ALERT_LEN];
                repr.emit_alert(&mut frame[start..]);
                frame.extend_from_slice(message);
                if let Some(hardware) = self.group_hardware(dst.into()) {
                    self.queue_frame(hardware, EtherType::IPV4, frame);
                }
            }
            AddrPair::V6(_, dst) => {
                let header = Header {
                    hop_limit: 1,
                    ..Header::new(addresses, Protocol::IPV6_HOP_BY_HOP)
                };
                if let Some(hardware) = self.group_hardware(dst.into()) {
                    self.send_to_hardware(&header, hardware, &[&ALERT[..], message].concat());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A general query.
    fn query(version: u8) -> MembershipMessage {
        MembershipMessage::Query {
            version,
            group: None,
            within_ms: 1000,
        }
    }

    /// All reports until none is due, with their times.
    fn told(groups: &mut Groups, mut now_ns: u64) -> Vec<(u64, MembershipReport)> {
        let mut all = Vec::new();
        while groups.due_ns() < u64::MAX {
            now_ns = now_ns.max(groups.due_ns());
            all.extend(groups.poll(now_ns).into_iter().map(|tell| (now_ns, tell)));
        }
        all
    }

    fn records(told: &[(u64, MembershipReport)]) -> Vec<(IpAddr, Record)> {
        let latest = told.iter().flat_map(|(_, tell)| match tell {
            MembershipReport::Latest(records) => records.clone(),
            MembershipReport::Legacy(..) => panic!("{tell:?}"),
        });
        latest.collect()
    }

    #[test]
    fn changes_are_reported_twice_and_queries_answered_in_time() {
        let mut groups = Groups::new(7);
        let group = ip("224.1.2.3");
        assert!(groups.join(group, false) && groups.join(group, false));
        let joined = told(&mut groups, 0);
        assert_eq!(records(&joined), [(group, Record::Joined); 2]);
        assert!(joined[0].0 == 0 && joined[1].0 <= UNSOLICITED_REPORT_NS);
        groups.leave(group, false);
        assert_eq!((told(&mut groups, 0), groups.is_in(group)), (vec![], true));
        groups.process_message(5, query(3), false);
        let answer = told(&mut groups, 5);
        assert_eq!(records(&answer), [(group, Record::In)]);
        assert!((ANSWER_MIN_NS..=1_000_000_005).contains(&answer[0].0));
        groups.leave(group, false);
        assert!(!groups.is_in(group));
        assert_eq!(records(&told(&mut groups, 5)), [(group, Record::Left); 2]);
        assert!(groups.joined.is_empty());
    }

    #[test]
    fn an_older_router_is_spoken_to_in_its_way() {
        let mut groups = Groups::new(7);
        let group = ip("ff15::7");
        groups.join(group, true);
        assert_eq!(told(&mut groups, 0), []);
        groups.process_message(0, query(1), true);
        let answer = told(&mut groups, 0);
        assert!(
            matches!(&answer[..], [(_, MembershipReport::Legacy(told, Record::In, 1))] if *told == group),
            "{answer:?}"
        );
        // Another station reports in place of this host.
        groups.process_message(0, query(1), true);
        groups.process_message(0, MembershipMessage::Report(group), true);
        assert_eq!(told(&mut groups, 0), []);
        // The router is gone, and its version with it.
        groups.leave(group, false);
        let left = told(&mut groups, OLDER_QUERIER_NS);
        assert_eq!(records(&left), [(group, Record::Left); 2]);
    }

    #[test]
    fn the_oldest_router_is_not_kept_by_later_ones() {
        let mut groups = Groups::new(7);
        groups.process_message(0, query(1), false);
        for at_ns in (0..=OLDER_QUERIER_NS).step_by(OLDER_QUERIER_NS as usize / 2) {
            groups.process_message(at_ns, query(2), false);
        }
        assert_eq!(groups.version(OLDER_QUERIER_NS - 1, false), Some(1));
        assert_eq!(groups.version(OLDER_QUERIER_NS, false), Some(2));
        assert_eq!(groups.version(2 * OLDER_QUERIER_NS, false), None);
    }

    #[test]
    fn what_is_asked_all_the_time_is_answered_now_and_then() {
        let mut groups = Groups::new(7);
        for number in 0..600_u32 {
            let group = Ipv4Addr::from_bits(0xe001_0000 + number).into();
            assert_eq!(groups.join(group, true), number < GROUPS_MAX as u32);
        }
        let query = MembershipMessage::Query {
            version: 3,
            group: None,
            within_ms: 0,
        };
        let mut answers = 0;
        // A query each microsecond, for 50 ms.
        for now_us in 0..50_000 {
            groups.process_message(now_us * 1000, query, false);
            if groups.due_ns() <= now_us * 1000 {
                answers += groups.poll(now_us * 1000).len();
            }
        }
        assert!((4..=5 * 4).contains(&answers), "{answers}");
    }
}
