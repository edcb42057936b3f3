//! Two ends, and the header between them: the outer header of tunnel mode (RFC
//! 4301 §5.1.2), ECN (RFC 6040), UDP encapsulation (RFC 3948).

use crate::ip::{self, ESP, Headers};
use crate::sa::payload_max;
use std::net::IpAddr;
use weir_wire::checksum::AddrPair;
use weir_wire::field::{read_u16, read_u32, write};
use weir_wire::{Protocol, ipv4, ipv6, udp};

/// The transport port of UDP encapsulation (RFC 3948).
pub const UDP_PORT: u16 = 4500;

/// The smallest MTU of the path between two ends, in bytes: an IPv6 packet of
/// 1,280 bytes, which may not be refused as too big, fits in IPv6, UDP and ESP.
pub const MTU_MIN: usize = 1364;

/// Hop limit and TTL of what a gateway sends.
const TTL: u8 = 64;

/// The content of an ESP packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// A whole IP packet.
    Tunnel,
    /// The payload of an IP packet between the ends themselves.
    Transport,
}

/// The flag DF of an outer IPv4 header (RFC 4301 §8.1). That of an IPv6 packet
/// counts as set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DontFragment {
    /// As that of the packet.
    Copy,
    /// Set.
    Set,
    /// Clear.
    Clear,
}

/// The transport ports of UDP encapsulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpPorts {
    /// This end's.
    pub local: u16,
    /// The peer's.
    pub remote: u16,
}

/// Two ends that have SAs with each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// The name in the configuration.
    pub name: String,
    /// The content of ESP packets.
    pub mode: Mode,
    /// This end's address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// UDP encapsulation, if any.
    pub udp: Option<UdpPorts>,
    /// The code point of outer headers; `None` copies that of the packet.
    pub dscp: Option<u8>,
    /// DF of outer headers.
    pub dont_fragment: DontFragment,
    /// The MTU of the path between the ends, in bytes.
    pub mtu: usize,
    /// Interval of keepalives while nothing is sent, in ns; 0 for none.
    pub keepalive: u64,
}

impl Tunnel {
    /// Length of the headers before the SPI, in bytes.
    pub fn outer_len(&self) -> usize {
        let ip = match self.local {
            IpAddr::V4(_) => ipv4::Repr::LEN,
            IpAddr::V6(_) => ipv6::Repr::LEN,
        };
        ip + self.udp.map_or(0, |_| udp::Repr::LEN)
    }

    /// The longest packet that fits through a path of this MTU, in bytes; of tunnel
    /// mode.
    pub fn inner_mtu(&self, mtu: usize) -> usize {
        payload_max(mtu.saturating_sub(self.outer_len()))
    }

    /// Writes the outer headers of `out`, where the ESP packet begins at
    /// [`outer_len`](Self::outer_len); `inner` are the headers of what it
    /// carries, and of IPv4 `id` is the identification.
    pub(crate) fn outer(&self, inner: Option<&Headers>, id: u16, out: &mut [u8]) {
        let inner_class = inner.map_or(0, |inner| inner.traffic_class);
        let traffic_class = match self.dscp {
            Some(dscp) => dscp << 2 | inner_class & 3,
            None => inner_class,
        };
        let is_udp = self.udp.is_some();
        let protocol = if is_udp { Protocol::UDP } else { ESP };
        match (self.local, self.remote) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let payload_len = out.len() - ipv4::Repr::LEN;
                let repr = ipv4::Repr {
                    src,
                    dst,
                    protocol,
                    ttl: TTL,
                    traffic_class,
                    identification: id,
                    dont_fragment: match self.dont_fragment {
                        DontFragment::Copy => inner.is_some_and(|inner| inner.dont_fragment),
                        DontFragment::Set => true,
                        DontFragment::Clear => false,
                    },
                    payload_len,
                };
                repr.emit(out);
                self.udp_header(&mut out[ipv4::Repr::LEN..]);
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let payload_len = out.len() - ipv6::Repr::LEN;
                let repr = ipv6::Repr {
                    src,
                    dst,
                    next_header: protocol,
                    hop_limit: TTL,
                    traffic_class,
                    flow_label: 0,
                    payload_len,
                };
                repr.emit(out);
                self.udp_header(&mut out[ipv6::Repr::LEN..]);
            }
            // The configuration refuses ends of two families.
            _ => {}
        }
    }

    /// The UDP header of `datagram`. Without a checksum for IPv4 (RFC 3948
    /// §2.1); IPv6 requires one.
    fn udp_header(&self, datagram: &mut [u8]) {
        let Some(ports) = self.udp else { return };
        if let Some(addresses @ AddrPair::V6(..)) = AddrPair::new(self.local, self.remote) {
            let repr = udp::Repr {
                src_port: ports.local,
                dst_port: ports.remote,
            };
            return repr.emit(datagram, addresses);
        }
        let len = datagram.len() as u16;
        write(datagram, 0, &ports.local.to_be_bytes());
        write(datagram, 2, &ports.remote.to_be_bytes());
        write(datagram, 4, &len.to_be_bytes());
        write(datagram, 6, &[0, 0]);
    }

    /// A keepalive: a UDP datagram of one byte (RFC 3948 §2.3); `None` without
    /// UDP encapsulation.
    pub(crate) fn keepalive(&self, id: u16) -> Option<Vec<u8>> {
        self.udp?;
        let mut packet = vec![0; self.outer_len() + 1];
        *packet.last_mut()? = 0xff;
        self.outer(None, id, &mut packet);
        Some(packet)
    }

    /// Whether a packet comes to this end's address, and ports if there are
    /// any.
    pub(crate) fn is_here(&self, headers: &Headers, packet: &[u8]) -> bool {
        headers.dst == self.local
            && match self.udp {
                None => true,
                Some(ports) => {
                    headers.protocol == Protocol::UDP
                        && port(headers, packet, 2) == Some(ports.local)
                }
            }
    }

    /// The SPI of a packet that this end has sent to the other end; `None` if
    /// the packet is another one.
    pub(crate) fn sent_spi(&self, headers: &Headers, packet: &[u8]) -> Option<u32> {
        if (headers.src, headers.dst) != (self.local, self.remote) || headers.fragment.is_some() {
            return None;
        }
        let payload = headers.payload(packet);
        let esp = match self.udp {
            None if headers.protocol == ESP => payload,
            Some(ports)
                if port(headers, packet, 0) == Some(ports.local)
                    && port(headers, packet, 2) == Some(ports.remote) =>
            {
                payload.get(udp::Repr::LEN..)?
            }
            _ => return None,
        };
        match esp {
            [0xff] => Some(0),
            _ if esp.len() >= 4 => Some(read_u32(esp, 0)),
            _ => None,
        }
    }
}

fn port(headers: &Headers, packet: &[u8], at: usize) -> Option<u16> {
    let payload = headers.payload(packet);
    (headers.protocol == Protocol::UDP && payload.len() >= udp::Repr::LEN)
        .then(|| read_u16(payload, at))
}

/// What ECN becomes when a packet leaves a tunnel (RFC 6040 §4.2): sets it in
/// the inner packet. Returns `false` if the packet has to be dropped: it met
/// congestion, and its transport would not learn of that.
pub(crate) fn decapsulate_ecn(outer: u8, packet: &mut [u8], inner: &Headers) -> bool {
    const CE: u8 = 3;
    const ECT_1: u8 = 1;
    let (outer, ecn) = (outer & 3, inner.traffic_class & 3);
    match (ecn, outer) {
        (0, CE) => return false,
        (0 | CE, _) => {}
        (_, CE) => ip::set_ecn(packet, CE),
        (2, ECT_1) => ip::set_ecn(packet, ECT_1),
        _ => {}
    }
    true
}
