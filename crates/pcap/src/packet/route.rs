//! Where an IPv4 packet goes next: as the kernel's main table of routes says, in `/proc`, which any
//! user may read.

use super::Result;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

/// Linux' loopback interface.
pub(super) const LOOPBACK: &str = "lo";

/// The next hop of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hop {
    pub(super) interface: String,
    pub(super) address: Ipv4Addr,
}

/// Routes of a table, at most: with more, the rest is not read.
const ROUTES_MAX: usize = 100_000;
/// `RTF_UP`, `RTF_GATEWAY` and `RTF_REJECT` (route(8)).
const UP: u32 = 1;
const GATEWAY: u32 = 2;
const REJECT: u32 = 0x200;

/// The next hop on the way to an address, and the host's own address on that way.
pub(super) fn find(to: Ipv4Addr) -> Result<(Hop, Ipv4Addr)> {
    let own = own_address(to)?;
    if own == to || to.is_loopback() {
        let interface = LOOPBACK.to_owned();
        return Ok((
            Hop {
                interface,
                address: to,
            },
            own,
        ));
    }
    let table = std::fs::read_to_string("/proc/net/route").map_err(|_| libc::ENETUNREACH)?;
    let hop = among(&table, to).ok_or(libc::ENETUNREACH)?;
    Ok((hop, own))
}

/// The number of an interface.
pub(super) fn index(interface: &str) -> Result<u32> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None);
    let any = any.map_err(|error| error.raw_os_error())?;
    name_to_index(&any, interface).map_err(|error| error.raw_os_error())
}

/// The address that the kernel would send from; nothing is sent.
fn own_address(to: Ipv4Addr) -> Result<Ipv4Addr> {
    let number = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::ENETUNREACH);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(number)?;
    // A broadcast address too: the right to send to one is not asked for.
    socket.set_broadcast(true).map_err(number)?;
    socket.connect((to, 9)).map_err(number)?;
    match socket.local_addr().map_err(number)?.ip() {
        IpAddr::V4(own) => Ok(own),
        IpAddr::V6(_) => Err(libc::ENETUNREACH),
    }
}

/// The route of the longest prefix, of those the one with the least metric.
fn among(table: &str, to: Ipv4Addr) -> Option<Hop> {
    let routes = table.lines().skip(1).take(ROUTES_MAX).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, network, gateway, flags, _, _, metric, mask, ..] = fields[..] else {
            return None;
        };
        // The words as they are in memory.
        let number = |text| u32::from_str_radix(text, 16).ok().map(u32::from_be);
        let (network, gateway, mask) = (number(network)?, number(gateway)?, number(mask)?);
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let metric: u32 = metric.parse().ok()?;
        let is_on = flags & UP != 0 && to.to_bits() & mask == network;
        let address = if flags & GATEWAY != 0 {
            gateway.into()
        } else {
            to
        };
        let hop = (flags & REJECT == 0).then(|| Hop {
            interface: interface.to_owned(),
            address,
        });
        is_on.then_some((mask.count_ones(), std::cmp::Reverse(metric), hop))
    });
    routes
        .max_by_key(|(length, metric, _)| (*length, *metric))?
        .2
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
*\t000010AC\t00000000\t0201\t0\t0\t0\t0000FFFF\t0\t0\t0
tun0\t0005000A\t00000000\t0000\t0\t0\t0\t00FFFFFF\t0\t0\t0
nonsense
";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_longest_prefix_and_then_the_least_metric_wins() {
        let hop = |to: [u8; 4]| among(TABLE, to.into());
        let to = |interface: &str, address: [u8; 4]| {
            Some(Hop {
                interface: interface.to_owned(),
                address: address.into(),
            })
        };
        assert_eq!(hop([10, 0, 0, 7]), to("eth0", [10, 0, 0, 7]));
        assert_eq!(hop([192, 0, 2, 1]), to("eth0", [10, 0, 0, 1]));
        assert_eq!(hop([10, 0, 5, 1]), to("eth0", [10, 0, 0, 1]), "it is down");
        assert_eq!(hop([172, 16, 0, 1]), None, "it is refused");
        assert_eq!(among("", [10, 0, 0, 1].into()), None);
    }
}
