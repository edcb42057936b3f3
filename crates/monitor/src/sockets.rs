//! Which process a conversation belongs to: sockets as `/proc/net` lists them.

use crate::digest::{Flow, Host, Kind};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Largest number of sockets that are read from one file.
const SOCKETS_MAX: usize = 262_144;

/// A socket of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Socket {
    /// IP protocol: TCP's or UDP's.
    pub protocol: u8,
    /// The local end.
    pub local: (IpAddr, u16),
    /// The other end; port 0 if it is not connected.
    pub remote: (IpAddr, u16),
    /// The owner.
    pub uid: u32,
    /// The number by which processes name it; 0 if no process has it.
    pub inode: u64,
}

/// The sockets in the text of `/proc/net/tcp`, `tcp6`, `udp` or `udp6`; lines that are not understood
/// are passed over.
pub fn parse(text: &str, protocol: u8) -> Vec<Socket> {
    let lines = text.lines().skip(1).take(SOCKETS_MAX);
    lines.filter_map(|line| socket(line, protocol)).collect()
}

fn socket(line: &str, protocol: u8) -> Option<Socket> {
    let mut words = line.split_ascii_whitespace();
    let _number = words.next()?;
    let (local, remote) = (end(words.next()?)?, end(words.next()?)?);
    // State, queues, timer, retransmissions.
    let mut words = words.skip(4);
    let uid = words.next()?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    Some(Socket {
        protocol,
        local,
        remote,
        uid,
        inode,
    })
}

/// `0100007F:1F90`: words of 32 bits in the host's order, here little-endian or big-endian as
/// this process is.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (number, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(8 * number)?);
            }
            // A socket of IPv6 may have a peer of IPv4.
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some((address, port))
}

/// Sockets, by the addresses of a conversation.
#[derive(Default, Debug)]
pub struct Sockets {
    connected: HashMap<(u8, IpAddr, u16, IpAddr, u16), Socket>,
    bound: HashMap<(u8, IpAddr, u16), Socket>,
    any_address: HashMap<(u8, u16), Socket>,
}

impl Sockets {
    /// Arranges sockets for look-up.
    pub fn new(sockets: impl IntoIterator<Item = Socket>) -> Sockets {
        let mut all = Sockets::default();
        for socket in sockets {
            let (protocol, local, remote) = (socket.protocol, socket.local, socket.remote);
            if remote.1 != 0 {
                let key = (protocol, local.0, local.1, remote.0, remote.1);
                all.connected.insert(key, socket);
            } else if local.0.is_unspecified() {
                all.any_address.insert((protocol, local.1), socket);
            } else {
                all.bound.insert((protocol, local.0, local.1), socket);
            }
        }
        all
    }

    /// The socket of a conversation: a connected one, else a bound one of either end. `is_own` says
    /// whether an address is this host's, for sockets bound to all addresses.
    pub fn of(&self, flow: &Flow, is_own: impl Fn(&IpAddr) -> bool) -> Option<&Socket> {
        let (Kind::Ip(protocol), Host::Ip(a), Host::Ip(b)) = (flow.kind, flow.a, flow.b) else {
            return None;
        };
        let ends = [
            (a, flow.a_port, b, flow.b_port),
            (b, flow.b_port, a, flow.a_port),
        ];
        let connected = ends
            .iter()
            .find_map(|(local, local_port, remote, remote_port)| {
                let key = (protocol, *local, *local_port, *remote, *remote_port);
                self.connected.get(&key)
            });
        let bound = || {
            ends.iter().find_map(|(local, port, ..)| {
                let of_address = self.bound.get(&(protocol, *local, *port));
                of_address.or_else(|| {
                    let any = self.any_address.get(&(protocol, *port));
                    any.filter(|_| is_own(local))
                })
            })
        };
        connected.or_else(bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F90 0100007F:3039 01 00000000:00000000 00:00000000 00000000  1000        0 222 1 0000000000000000 100 0 0 10 0
   2: nonsense
";

    #[cfg(target_endian = "little")]
    #[test]
    fn sockets_are_found_by_their_conversations() {
        let udp6 = "head\n 1: 00000000000000000000000000000000:0035 00000000000000000000000000000000:0000 07 0:0 0:0 0 7 0 333 2\n";
        let sockets = parse(TCP, 6).into_iter().chain(parse(udp6, 17));
        let sockets = Sockets::new(sockets);
        let localhost = Host::Ip([127, 0, 0, 1].into());
        let other = Host::Ip([127, 0, 0, 9].into());
        let flow = |kind, b, a_port, b_port| Flow {
            a: localhost,
            b,
            kind: Kind::Ip(kind),
            a_port,
            b_port,
        };
        let inode = |flow: Flow| {
            let is_own = |address: &IpAddr| Host::Ip(*address) == localhost;
            sockets
                .of(&flow, is_own)
                .map(|socket| (socket.inode, socket.uid))
        };
        assert_eq!(inode(flow(6, localhost, 0x1f90, 0x3039)), Some((222, 1000)));
        assert_eq!(inode(flow(6, localhost, 0x3039, 0x1f90)), Some((222, 1000)));
        assert_eq!(
            inode(flow(6, other, 0x1f90, 1)),
            Some((111, 0)),
            "it listens"
        );
        assert_eq!(
            inode(flow(6, other, 1, 0x1f90)),
            None,
            "another host's port"
        );
        assert_eq!(inode(flow(17, other, 53, 1)), Some((333, 7)));
        assert_eq!(inode(flow(17, other, 1, 53)), None, "not this host's port");
        assert_eq!(inode(flow(17, other, 1, 2)), None);
    }
}
