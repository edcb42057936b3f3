//! The ICMP error for a packet that is too big for its tunnel (RFC 1191, RFC
//! 4443 §3.2), and how many of them a second.

use crate::ip::Headers;
use std::net::IpAddr;
use weir_wire::checksum::AddrPair;
use weir_wire::icmp::Repr;
use weir_wire::{Protocol, ipv4, ipv6};

/// ICMP errors a second, and at once.
const PER_SECOND: u64 = 100;

/// Bytes of an IPv4 packet that are quoted (RFC 1812 §4.3.2.3: up to 576 in all).
const QUOTED_V4: usize = 576 - ipv4::Repr::LEN - Repr::LEN;

/// Bytes of an IPv6 packet that are quoted: the error fits 1,280 bytes.
const QUOTED_V6: usize = 1280 - ipv6::Repr::LEN - Repr::LEN;

/// A bucket of tokens, in ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimit {
    filled_at: u64,
    tokens: u64,
}

impl RateLimit {
    pub(crate) fn new() -> RateLimit {
        RateLimit {
            filled_at: 0,
            tokens: PER_SECOND,
        }
    }

    pub(crate) fn take(&mut self, now: u64) -> bool {
        const EACH: u64 = 1_000_000_000 / PER_SECOND;
        let new = now.saturating_sub(self.filled_at) / EACH;
        if new > 0 {
            self.tokens = (self.tokens + new).min(PER_SECOND);
            self.filled_at = now;
        }
        let has = self.tokens > 0;
        self.tokens -= u64::from(has);
        has
    }
}

/// The error that says that `packet` has more than `mtu` bytes, from `local`, or
/// if that is of the other version of IP, from where the packet was to go.
/// `None` if no error may be sent about it (RFC 1812 §4.3.2.7, RFC 4443 §2.4).
pub(crate) fn too_big(
    packet: &[u8],
    headers: &Headers,
    mtu: usize,
    local: IpAddr,
) -> Option<Vec<u8>> {
    let is_error = match headers.protocol {
        Protocol::ICMPV4 if !headers.is_v6 => {
            !matches!(headers.payload(packet).first(), Some(0 | 8 | 13 | 14))
        }
        Protocol::ICMPV6 if headers.is_v6 => headers
            .payload(packet)
            .first()
            .is_none_or(|kind| *kind < 128),
        _ => false,
    };
    let is_later = headers.fragment.is_some_and(|fragment| !fragment.is_first);
    let may_have_error = match headers.src {
        IpAddr::V4(src) => {
            !src.is_unspecified()
                && !src.is_multicast()
                && !src.is_broadcast()
                && !src.is_loopback()
        }
        IpAddr::V6(src) => !src.is_unspecified() && !src.is_multicast() && !src.is_loopback(),
    };
    if is_error || is_later || !may_have_error {
        return None;
    }
    let from = if local.is_ipv6() == headers.is_v6 {
        local
    } else {
        headers.dst
    };
    let addresses = AddrPair::new(from, headers.src)?;
    let quoted = match addresses {
        AddrPair::V4(..) => &packet[..headers.len.min(QUOTED_V4)],
        AddrPair::V6(..) => &packet[..headers.len.min(QUOTED_V6)],
    };
    let payload_len = Repr::LEN + quoted.len();
    let (mut made, header, repr) = match addresses {
        AddrPair::V4(src, dst) => {
            let mut made = vec![0; ipv4::Repr::LEN + payload_len];
            let header = ipv4::Repr {
                src,
                dst,
                protocol: Protocol::ICMPV4,
                ttl: 64,
                traffic_class: 0,
                identification: 0,
                dont_fragment: true,
                payload_len,
            };
            header.emit(&mut made);
            let repr = Repr {
                kind: 3,
                code: 4,
                rest: mtu.min(0xffff) as u32,
            };
            (made, ipv4::Repr::LEN, repr)
        }
        AddrPair::V6(src, dst) => {
            let mut made = vec![0; ipv6::Repr::LEN + payload_len];
            let header = ipv6::Repr {
                src,
                dst,
                next_header: Protocol::ICMPV6,
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
                payload_len,
            };
            header.emit(&mut made);
            let repr = Repr {
                kind: 2,
                code: 0,
                rest: mtu as u32,
            };
            (made, ipv6::Repr::LEN, repr)
        }
    };
    made[header + Repr::LEN..].copy_from_slice(quoted);
    repr.emit(&mut made[header..], addresses);
    Some(made)
}
