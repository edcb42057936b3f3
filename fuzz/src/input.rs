//! How the bytes of an input are read. The writers are for seeds: each gives
//! the input that the reader takes apart again.

use weir_filter::lang::expr::{Names, Transport};

/// The first value of a frame's second byte that makes it shorter on the wire.
const SHORTER: u8 = 246;

/// The frame of an input: its length in one byte, its wire length beyond that
/// in another, then its bytes; and what follows. The last ten values of the
/// second byte stand for fewer bytes on the wire than were captured, as a
/// capture file may claim.
pub fn frame(input: &[u8]) -> (&[u8], u32, &[u8]) {
    let [len, beyond, rest @ ..] = input else {
        return (&[], 0, &[]);
    };
    let (bytes, rest) = rest.split_at(usize::from(*len).min(rest.len()));
    let len = bytes.len() as u32;
    let wire_len = match *beyond {
        SHORTER.. => len.saturating_sub(8 * u32::from(*beyond - SHORTER)),
        _ => len + u32::from(*beyond),
    };
    (bytes, wire_len, rest)
}

/// The input of which [`frame`] reads the first 255 bytes of `bytes`.
pub fn with_frame(bytes: &[u8], wire_len: u32, rest: &[u8]) -> Vec<u8> {
    let bytes = &bytes[..bytes.len().min(255)];
    let beyond = wire_len.saturating_sub(bytes.len() as u32);
    let beyond = beyond.min(u32::from(SHORTER) - 1);
    let mut input = vec![bytes.len() as u8, beyond as u8];
    input.extend(bytes);
    input.extend(rest);
    input
}

/// A few names, so that no input asks the system for any.
pub struct FewNames;

impl Names for FewNames {
    fn hosts(&self, name: &str) -> Vec<std::net::IpAddr> {
        match name {
            "localhost" => vec![[127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()],
            "a" => vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()],
            _ => Vec::new(),
        }
    }

    fn network(&self, name: &str) -> Option<u32> {
        (name == "loopback").then_some(127 << 24)
    }

    fn service(&self, name: &str, transport: Transport) -> Option<u16> {
        match (name, transport) {
            ("http", _) => Some(80),
            ("domain", _) => Some(53),
            ("ssh", Transport::Tcp) => Some(22),
            ("tftp", Transport::Udp) => Some(69),
            _ => None,
        }
    }

    fn protocol(&self, name: &str) -> Option<u8> {
        match name {
            "tcp" => Some(6),
            "udp" => Some(17),
            "ospf" => Some(89),
            _ => None,
        }
    }

    fn ether_host(&self, name: &str) -> Option<[u8; 6]> {
        (name == "localhost").then_some([2, 0, 0, 0, 0, 1])
    }
}
