//! An IPv4 packet of a raw socket as a frame: its route, its neighbour, and what the kernel fills in
//! (raw(7)).

use super::ports::{self, Sender};
use super::sockets::lock;
use super::{Result, route};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use weir_wire::arp;
use weir_wire::checksum::internet_checksum;
use weir_wire::ethernet::{Address, EtherType, Frame, Repr};

/// A neighbour's address, by ARP (RFC 826).
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    index: u32,
    ip: Ipv4Addr,
    /// `None`: it did not answer.
    address: Option<Address>,
    until: Instant,
}

/// How long an answer holds: Linux' `base_reachable_time`. And how long silence does.
const REACHABLE: Duration = Duration::from_secs(30);
const SILENT: Duration = Duration::from_secs(3);
/// Requests for an address, and how long to wait for the answer: Linux' `mcast_solicit`, and less than
/// its `retrans_time`, since the application waits.
const REQUESTS: u32 = 3;
const ANSWER: Duration = Duration::from_millis(200);
/// Neighbours that are known at a time.
const NEIGHBOURS_MAX: usize = 1024;

static NEIGHBOURS: Mutex<VecDeque<Neighbour>> = Mutex::new(VecDeque::new());

/// IPv4's least header, and where its fields begin (RFC 791 §3.1).
const HEADER_LEN: usize = 20;
const TOTAL_LEN: usize = 2;
const ID: usize = 4;
const CHECKSUM: usize = 10;
const SOURCE: usize = 12;

/// Sends a packet to an address. A packet to a neighbour that does not answer is lost, as the
/// kernel's would be.
pub(super) fn send(packet: &[u8], to: Ipv4Addr) -> Result<()> {
    let (hop, own) = route::find(to)?;
    let packet = completed(packet, own)?;
    ports::with(route::index(&hop.interface)?, |port| {
        let (src, dst) = if hop.interface == route::LOOPBACK {
            (Address([0; 6]), Some(Address([0; 6])))
        } else {
            let src = port.address()?;
            (src, neighbour(port, src, own, hop.address)?)
        };
        let Some(dst) = dst else {
            return Ok(());
        };
        let mut frame = vec![0; Repr::LEN + packet.len()];
        let header = Repr {
            dst,
            src,
            ether_type: EtherType::IPV4,
        };
        header.emit(&mut frame);
        frame[Repr::LEN..].copy_from_slice(&packet);
        port.send(&frame)
    })
}

/// The packet with what the kernel fills in: length, checksum, and source and identification if they
/// are zero.
fn completed(packet: &[u8], own: Ipv4Addr) -> Result<Vec<u8>> {
    let len = u16::try_from(packet.len()).map_err(|_| libc::EMSGSIZE)?;
    let header = packet
        .first()
        .map_or(0, |byte| usize::from(byte & 0x0f) * 4);
    if header < HEADER_LEN || packet.len() < header {
        return Err(libc::EINVAL);
    }
    let mut packet = packet.to_vec();
    packet[TOTAL_LEN..TOTAL_LEN + 2].copy_from_slice(&len.to_be_bytes());
    if packet[ID..ID + 2] == [0; 2] {
        static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(1);
        let id = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        packet[ID..ID + 2].copy_from_slice(&id.to_be_bytes());
    }
    if packet[SOURCE..SOURCE + 4] == [0; 4] {
        packet[SOURCE..SOURCE + 4].copy_from_slice(&own.octets());
    }
    packet[CHECKSUM..CHECKSUM + 2].fill(0);
    let sum = internet_checksum(&packet[..header]);
    packet[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    Ok(packet)
}

/// The address of a neighbour: of the kernel's table, of an earlier answer, or asked for; `None` if it
/// does not answer.
fn neighbour(
    port: &mut Sender,
    src: Address,
    own: Ipv4Addr,
    ip: Ipv4Addr,
) -> Result<Option<Address>> {
    if ip.is_broadcast() {
        return Ok(Some(Address::BROADCAST));
    }
    if ip.is_multicast() {
        // RFC 1112 §6.4.
        let [_, second, third, fourth] = ip.octets();
        return Ok(Some(Address([1, 0, 0x5e, second & 0x7f, third, fourth])));
    }
    let now = Instant::now();
    let index = port.index();
    if let Some(mut known) = lock(&NEIGHBOURS) {
        known.retain(|one| one.until > now);
        if let Some(one) = known.iter().find(|one| (one.index, one.ip) == (index, ip)) {
            return Ok(one.address);
        }
    }
    let table = std::fs::read_to_string("/proc/net/arp").unwrap_or_default();
    let address = match in_table(&table, port.name(), ip) {
        Some(address) => Some(address),
        None => asked(port, src, own, ip)?,
    };
    if let Some(mut known) = lock(&NEIGHBOURS) {
        if known.len() == NEIGHBOURS_MAX {
            known.pop_front();
        }
        let holds = if address.is_some() { REACHABLE } else { SILENT };
        known.push_back(Neighbour {
            index,
            ip,
            address,
            until: Instant::now() + holds,
        });
    }
    Ok(address)
}

/// What the kernel's table (`/proc/net/arp`) has.
fn in_table(table: &str, interface: &str, ip: Ipv4Addr) -> Option<Address> {
    /// `ATF_COM`: a complete entry.
    const COMPLETE: u32 = 2;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, _, flags, hardware, .., device] = fields[..] else {
            return None;
        };
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
        let is_it = device == interface && address.parse() == Ok(ip) && flags & COMPLETE != 0;
        is_it.then(|| hardware.parse().ok())?
    })
}

fn asked(port: &mut Sender, src: Address, own: Ipv4Addr, ip: Ipv4Addr) -> Result<Option<Address>> {
    let mut frame = [0; Repr::LEN + arp::Repr::LEN];
    let header = Repr {
        dst: Address::BROADCAST,
        src,
        ether_type: EtherType::ARP,
    };
    header.emit(&mut frame);
    let request = arp::Repr {
        operation: arp::Operation::REQUEST,
        sender: src,
        sender_ip: own,
        target: Address([0; 6]),
        target_ip: ip,
    };
    request.emit(&mut frame[Repr::LEN..]);
    port.ask(&frame, "arp[6:2] = 2", REQUESTS, ANSWER, |bytes| {
        let frame = Frame::new(bytes).ok()?;
        let reply = arp::Packet::new(frame.payload()).ok()?;
        let reply = arp::Repr::parse(&reply);
        (reply.operation == arp::Operation::REPLY && reply.sender_ip == ip).then_some(reply.sender)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_checksum_and_what_is_zero_are_filled_in() {
        let mut packet = [0; 24];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[10, 0, 0, 1]);
        let own = Ipv4Addr::new(10, 0, 0, 2);
        let made = completed(&packet, own).unwrap();
        assert_eq!(made[..2], packet[..2]);
        assert_eq!(made[2..4], [0, 24]);
        assert_ne!(made[4..6], [0, 0]);
        assert_eq!(made[12..16], [10, 0, 0, 2]);
        assert_eq!(internet_checksum(&made[..20]), 0);
        packet[12] = 9;
        packet[5] = 7;
        let made = completed(&packet, own).unwrap();
        assert_eq!((made[12], made[5]), (9, 7));
    }

    #[test]
    fn what_is_no_packet_is_refused() {
        let own = Ipv4Addr::LOCALHOST;
        for (packet, error) in [
            (vec![], libc::EINVAL),
            (vec![0x45; 19], libc::EINVAL),
            (vec![0x44; 40], libc::EINVAL),
            (vec![0x4f; 40], libc::EINVAL),
            (vec![0x45; 70_000], libc::EMSGSIZE),
        ] {
            assert_eq!(completed(&packet, own), Err(error), "{}", packet.len());
        }
    }

    #[test]
    fn complete_entries_of_the_kernels_table_are_read() {
        let table = "\
IP address       HW type     Flags       HW address            Mask     Device
10.0.0.1         0x1         0x2         02:00:00:00:00:01     *        eth0
10.0.0.3         0x1         0x0         00:00:00:00:00:00     *        eth0
10.0.0.4         0x1         0x2         02:00:00:00:00:04     *        eth1
nonsense
";
        let found = |last| in_table(table, "eth0", Ipv4Addr::new(10, 0, 0, last));
        assert_eq!(found(1), Some(Address([2, 0, 0, 0, 0, 1])));
        for last in [2, 3, 4] {
            assert_eq!(found(last), None);
        }
    }
}
