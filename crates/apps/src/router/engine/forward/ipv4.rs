//! IPv4 forwarding (RFC 1812 §5).

use super::icmp_errors::Problem;
use super::options::{self, Options};
use crate::router::engine::ETHERNET;
use crate::router::engine::hash::mixed;
use crate::router::engine::table::routes::{Hop, LinkId};
use crate::router::engine::{FibResult, Reason, Router, Verdict};
use std::net::Ipv4Addr;
use weir_wire::field::{array, read_u16, write};
use weir_wire::{checksum, ipv4};

const DONT_FRAGMENT: u16 = 0x4000;

/// Checks a packet's header (RFC 1812 §5.2.2) and returns its destination.
pub(in crate::router::engine) fn check(packet: &[u8]) -> Result<u32, Reason> {
    let view = ipv4::Packet::new(packet).map_err(|_| Reason::Malformed)?;
    if view.total_len() > packet.len() {
        return Err(Reason::Malformed);
    }
    if !view.checksum_is_right() {
        return Err(Reason::ChecksumWrong);
    }
    Ok(view.dst().to_bits())
}

/// Whether a source address is invalid on every link (RFC 1812 §5.3.7). Class E
/// is valid: Linux forwards it, too.
fn is_martian_source(src: Ipv4Addr) -> bool {
    src.octets()[0] == 0 || src.is_loopback() || src.is_multicast() || src.is_broadcast()
}

impl Router {
    /// Forwards a packet with a valid header by the route with this number: that of its
    /// destination, or of the next hop that the caller has chosen.
    pub(in crate::router::engine) fn forward_v4(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frame: &mut [u8],
        route: u32,
        next_hop: Option<Ipv4Addr>,
    ) -> Result<Verdict, Reason> {
        let packet = &frame[ETHERNET..];
        let src = Ipv4Addr::from(array::<4>(packet, 12));
        let dst = Ipv4Addr::from(array::<4>(packet, 16));
        let group_frame = frame[0] & 1 == 1;
        if dst.is_multicast() || dst.is_broadcast() {
            return Err(Reason::Multicast);
        }
        if is_martian_source(src) {
            return Err(Reason::SourceMartian);
        }
        if dst.octets()[0] == 0 || dst.is_loopback() {
            return Err(Reason::DestinationMartian);
        }
        let to = next_hop.unwrap_or(dst);
        let flow = || mixed(u64::from(src.to_bits()) << 32 | u64::from(to.to_bits()));
        let way = self.select_hop(route, flow);
        let way = match next_hop {
            Some(next_hop) => way.directly_to(next_hop.into()),
            None => way,
        };
        if self.is_ours_v4(src) && !self.is_turned {
            return Err(Reason::SourceMartian);
        }
        let hop = match way {
            FibResult::Hop(hop) => hop,
            FibResult::Local if group_frame => return Err(Reason::GroupFrame),
            FibResult::Local => return self.local_v4(now_ns, frame),
            FibResult::Broadcast => return Err(Reason::DirectedBroadcast),
            FibResult::Refused(reason) => {
                if !group_frame {
                    self.report(now_ns, frame, Problem::of(reason));
                }
                return Err(reason);
            }
        };
        if group_frame {
            return Err(Reason::GroupFrame);
        }
        let options = self.read_options(now_ns, frame)?;
        if frame[ETHERNET + 8] <= 1 {
            self.report(now_ns, frame, Some(Problem::TimeExceeded));
            return Err(Reason::TtlExceeded);
        }
        self.send_on_v4(now_ns, link, frame, hop, &options)
    }

    pub(in crate::router::engine) fn is_ours_v4(&self, address: Ipv4Addr) -> bool {
        self.own_v4.binary_search(&address).is_ok()
    }

    fn read_options(&mut self, now_ns: u64, frame: &[u8]) -> Result<Options, Reason> {
        let packet = &frame[ETHERNET..];
        let header_len = ipv4::header_len(packet);
        if header_len == ipv4::Repr::LEN {
            return Ok(Options::default());
        }
        match options::parse(&packet[..header_len]) {
            Ok(options) if options.source_route => Err(Reason::SourceRoute),
            Ok(options) => Ok(options),
            Err(pointer) => {
                self.report(now_ns, frame, Some(Problem::Parameter(pointer)));
                Err(Reason::OptionMalformed)
            }
        }
    }

    fn send_on_v4(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frame: &mut [u8],
        hop: Hop,
        options: &Options,
    ) -> Result<Verdict, Reason> {
        let packet = &mut frame[ETHERNET..];
        let total_len = usize::from(read_u16(packet, 2));
        let dst = Ipv4Addr::from(array::<4>(packet, 16));
        let mtu = self.links[usize::from(hop.link)].mtu;
        if total_len > mtu && read_u16(packet, 6) & DONT_FRAGMENT != 0 {
            self.report(now_ns, frame, Some(Problem::TooBig(mtu)));
            return Err(Reason::TooBig);
        }
        if hop.link == link && self.redirects && !self.is_turned {
            self.redirect_v4(now_ns, frame, hop);
        }
        let packet = &mut frame[ETHERNET..];
        decrement_ttl(packet);
        if options.is_to_be_filled() {
            let own = self.links[usize::from(hop.link)].source(dst.into());
            let time = self.day_ms(now_ns);
            options::fill(packet, options, own, time);
        }
        self.counters.forwarded_v4 += 1;
        let len = ETHERNET + total_len;
        if total_len > mtu {
            return self.fragment(now_ns, hop, &frame[..len], mtu);
        }
        if ipv4::header_len(&frame[ETHERNET..]) == ipv4::Repr::LEN {
            self.note_cacheable(hop, link);
        }
        self.dispatch(now_ns, hop, dst.into(), frame, len)
    }

    /// The time of day in milliseconds, with the highest bit set if it is
    /// unknown (RFC 791, timestamp).
    fn day_ms(&self, now_ns: u64) -> u32 {
        const DAY_MS: u64 = 86_400_000;
        match self.clock {
            Some((day_ms, since_ns)) => {
                let passed = now_ns.saturating_sub(since_ns) / 1_000_000;
                ((u64::from(day_ms) + passed) % DAY_MS) as u32
            }
            None => 1 << 31 | (now_ns / 1_000_000 % DAY_MS) as u32,
        }
    }
}

/// Decrements the TTL and updates the checksum (RFC 1624).
fn decrement_ttl(packet: &mut [u8]) {
    let old = read_u16(packet, 8);
    let new = old - 0x0100;
    let sum = checksum::update(read_u16(packet, 10), old, new);
    write(packet, 8, &new.to_be_bytes());
    write(packet, 10, &sum.to_be_bytes());
}
