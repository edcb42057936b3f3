//! The MTU of the path between two ends as ICMP errors about ESP packets report
//! it (RFC 4301 §8.2, RFC 1191, RFC 8201).
//!
//! An error counts only if it quotes an ESP packet with the SPI of an outbound SA:
//! that is what a host off the path does not know. It only lowers the MTU, to a
//! least one, and for a limited time.

use crate::ip::{ESP, Headers};
use std::net::IpAddr;
use weir_wire::Protocol;
use weir_wire::field::{array, read_u16, read_u32};

/// Least MTU that is believed, in bytes: RFC 791 §3.2 and 1122 §3.3.3 for IPv4;
/// RFC 8200 §5 for IPv6.
const LEAST: [usize; 2] = [576, 1280];

/// Time for which it is believed, in ns (RFC 1191 §6.3, RFC 8201 §4).
pub(crate) const BELIEVED: u64 = 600_000_000_000;

/// An error about a packet of ours that was too big.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Report {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    /// Source and destination port, if the ESP packet was in UDP.
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) spi: u32,
    pub(crate) mtu: usize,
}

/// The report of an ICMP error; `None` of other packets.
pub(crate) fn report(headers: &Headers, packet: &[u8]) -> Option<Report> {
    if headers.fragment.is_some() {
        return None;
    }
    let (error, quoted) = headers.payload(packet).split_at_checked(8)?;
    let mtu = match (headers.protocol, error[0], error[1]) {
        (Protocol::ICMPV4, 3, 4) if !headers.is_v6 => read_u16(error, 6).into(),
        (Protocol::ICMPV6, 2, _) if headers.is_v6 => read_u32(error, 4),
        _ => return None,
    };
    // Routers from before RFC 1191 say 0: there is no hint in that.
    if mtu == 0 {
        return None;
    }
    let (local, remote, protocol, header) = if headers.is_v6 {
        let header = quoted.get(..40).filter(|header| header[0] >> 4 == 6)?;
        let (src, dst) = (array::<16>(header, 8), array::<16>(header, 24));
        (IpAddr::from(src), IpAddr::from(dst), header[6], 40)
    } else {
        let header = quoted.get(..20).filter(|header| header[0] >> 4 == 4)?;
        let (src, dst) = (array::<4>(header, 12), array::<4>(header, 16));
        let len = usize::from(header[0] & 0xf) * 4;
        (IpAddr::from(src), IpAddr::from(dst), header[9], len.max(20))
    };
    let rest = quoted.get(header..)?;
    let (ports, spi) = match Protocol(protocol) {
        ESP => (None, rest.get(..4)?),
        Protocol::UDP => {
            let ports = rest.get(..4)?;
            (
                Some((read_u16(ports, 0), read_u16(ports, 2))),
                rest.get(8..12)?,
            )
        }
        _ => return None,
    };
    Some(Report {
        local,
        remote,
        ports,
        spi: read_u32(spi, 0),
        mtu: (mtu as usize).max(LEAST[usize::from(headers.is_v6)]),
    })
}
