//! Short frames, built byte by byte.

use std::net::Ipv4Addr;

/// Minimum length of an Ethernet frame, without its FCS, in bytes.
const SHORTEST: usize = 60;

/// A broadcast Ethernet frame of at least 60 bytes.
pub fn to_all(source: [u8; 6], ethertype: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(source);
    frame.extend(ethertype.to_be_bytes());
    frame.extend(body);
    frame.resize(frame.len().max(SHORTEST), 0);
    frame
}

/// An IPv4 packet with an empty UDP datagram from port 9 to port 9, without
/// checksums.
pub fn datagram(from: impl Into<Ipv4Addr>, to: impl Into<Ipv4Addr>) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend(from.into().octets());
    packet.extend(to.into().octets());
    packet.extend([0, 9, 0, 9, 0, 8, 0, 0]);
    packet
}
