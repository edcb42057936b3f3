//! The host filter: the frames of a tapped link that go to the host's own
//! protocols. The program at the link runs it before it passes a frame to the
//! application.

pub(super) mod update;

use super::gate::program;
use crate::net::Address;
use std::net::{IpAddr, Ipv4Addr};
use weir_filter::backend::ebpf::EmitError;
use weir_filter::ir::{Op, Program};
use weir_filter::lang::expr::{self, Context};
use weir_filter::opt::optimise;
use weir_wire::LinkType;

/// Largest number of addresses of one host.
pub const HOST_ADDRESSES_MAX: usize = 256;

/// Why a host filter was not created.
#[derive(Debug, thiserror::Error)]
pub enum HostFilterError {
    /// Too many addresses.
    #[error(
        "the host has {found} addresses, of which a filter takes {HOST_ADDRESSES_MAX}: take some off its interfaces"
    )]
    TooMany {
        /// Number of addresses.
        found: usize,
    },
    /// The text is not a valid filter.
    #[error("`{text}` is not a filter of the host's frames: {source}")]
    Text {
        /// The text.
        text: String,
        /// The compiler's error.
        source: expr::Error,
    },
    /// The filter does not fit into the program.
    #[error("the filter of the host's frames is too large: {0}")]
    TooLarge(#[from] EmitError),
}

/// A filter of frames for the host's own protocols.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostFilter {
    text: String,
    program: Program,
}

impl HostFilter {
    /// The filter of a host with these addresses. It accepts packets to one of
    /// them, to broadcast addresses or to link-local groups (224.0.0.0/24,
    /// ff02::/16), and frames other than IPv4, IPv6 and ARP. Of these it
    /// accepts the ones that `text` accepts, in pcap-filter(7)'s language, or
    /// all if `text` is empty.
    ///
    /// ARP, neighbour solicitations and advertisements (RFC 4861) are never
    /// accepted: the process that taps a link answers for its addresses.
    ///
    /// # Errors
    /// See [`HostFilterError`].
    pub fn new(addresses: &[Address], text: &str) -> Result<HostFilter, HostFilterError> {
        let found = addresses.len();
        if found > HOST_ADDRESSES_MAX {
            return Err(HostFilterError::TooMany { found });
        }
        let compile = |text: &str| {
            let compiled = expr::compile(text, &Context::new(LinkType::EN10MB));
            compiled.map_err(|source| HostFilterError::Text {
                text: text.to_owned(),
                source,
            })
        };
        let mut whole = for_host(addresses);
        if !text.trim().is_empty() {
            // The text is compiled alone first: text such as `a) or (b` would
            // otherwise escape its parentheses.
            compile(text)?;
            whole = format!("({whole}) and ({text})");
        }
        let mut program = compile(&whole)?;
        optimise(&mut program);
        let filter = HostFilter {
            text: whole,
            program,
        };
        program::check(&filter)?;
        Ok(filter)
    }

    /// The filter's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    pub(super) fn needs_len(&self) -> bool {
        self.program.values.contains(&Op::Len)
    }
}

fn for_host(addresses: &[Address]) -> String {
    let (v4, v6): (Vec<Address>, Vec<Address>) =
        addresses.iter().partition(|address| address.ip.is_ipv4());
    let to = |addresses: &[Address], more: &[String]| {
        let hosts = addresses.iter().flat_map(|address| {
            let all = broadcast(address).map(IpAddr::V4);
            [Some(address.ip), all].into_iter().flatten()
        });
        let tests = hosts.map(|host| format!("dst host {host}"));
        let tests: Vec<String> = tests.chain(more.iter().cloned()).collect();
        tests.join(" or ")
    };
    let groups = ["dst net 224.0.0.0/24", "dst host 255.255.255.255"].map(str::to_owned);
    format!(
        "(ip and ({})) or (ip6 and ({}) and not (ip6[6] = 58 and (ip6[40] = 135 or ip6[40] = 136))) \
         or not (ip or ip6 or arp)",
        to(&v4, &groups),
        to(&v6, &["dst net ff02::/16".to_owned()]),
    )
}

/// The directed broadcast address of an IPv4 network (RFC 919); a prefix of 31
/// or 32 bits has none (RFC 3021).
fn broadcast(address: &Address) -> Option<Ipv4Addr> {
    match address.ip {
        IpAddr::V4(ip) if (1..31).contains(&address.prefix_len) => {
            let hosts = u32::MAX >> address.prefix_len;
            Some(Ipv4Addr::from_bits(ip.to_bits() | hosts))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_filter::backend::interp;

    fn addresses() -> Vec<Address> {
        let of = |ip: &str, prefix_len| Address {
            ip: ip.parse().unwrap(),
            prefix_len,
        };
        vec![
            of("192.0.2.1", 24),
            of("203.0.113.1", 32),
            of("2001:db8::1", 64),
        ]
    }

    fn v4(dst: [u8; 4], protocol: u8, dst_port: u16) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
        frame.extend([198, 51, 100, 9]);
        frame.extend(dst);
        frame.extend([1, 2]);
        frame.extend(dst_port.to_be_bytes());
        frame.resize(60, 0);
        frame
    }

    fn v6(dst: &str, next: u8, kind: u8) -> Vec<u8> {
        let dst: std::net::Ipv6Addr = dst.parse().unwrap();
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, next, 255]);
        frame.extend([0xfe; 16]);
        frame.extend(dst.octets());
        frame.push(kind);
        frame.resize(74, 0);
        frame
    }

    fn other(ether_type: u16) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&ether_type.to_be_bytes());
        frame
    }

    #[test]
    fn the_host_has_what_is_for_it_and_no_more() {
        let all = HostFilter::new(&addresses(), "").unwrap();
        let some = HostFilter::new(&addresses(), "tcp port 179 or icmp6").unwrap();
        for (frame, by_all, by_some) in [
            (v4([192, 0, 2, 1], 6, 179), true, true),
            (v4([203, 0, 113, 1], 6, 179), true, true),
            (v4([192, 0, 2, 1], 6, 22), true, false),
            (v4([192, 0, 2, 2], 6, 179), false, false),
            (v4([192, 0, 2, 255], 17, 67), true, false),
            (v4([203, 0, 113, 255], 17, 67), false, false),
            (v4([255; 4], 17, 67), true, false),
            (v4([224, 0, 0, 5], 89, 0), true, false),
            (v4([224, 0, 1, 5], 89, 0), false, false),
            (v6("2001:db8::1", 58, 128), true, true),
            (v6("2001:db8::2", 58, 128), false, false),
            (v6("ff02::2", 58, 133), true, true),
            (v6("ff02::1:ff00:1", 58, 135), false, false),
            (v6("2001:db8::1", 58, 136), false, false),
            // Another message with the same byte.
            (v6("2001:db8::1", 6, 136), true, false),
            (v6("ff05::2", 17, 0), false, false),
            (other(0x0806), false, false),
            (other(0x88cc), true, false),
            (other(0x8100), true, false),
        ] {
            let len = frame.len() as u32;
            let of = |filter: &HostFilter| interp::run(filter.program(), &frame, len) != 0;
            assert_eq!((of(&all), of(&some)), (by_all, by_some), "{frame:02x?}");
        }
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for text in ["tcp port", "tcp) or (udp"] {
            let error = HostFilter::new(&addresses(), text).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        let many = vec![addresses()[0]; HOST_ADDRESSES_MAX + 1];
        let error = HostFilter::new(&many, "").unwrap_err();
        assert!(error.to_string().contains("257 addresses"), "{error}");
    }

    #[test]
    fn all_addresses_that_there_may_be_fit() {
        let address = |n: u32| Address {
            ip: match n % 2 {
                0 => Ipv4Addr::from_bits(n << 11 | 1).into(),
                _ => std::net::Ipv6Addr::from_bits(u128::from(n) << 80 | 1).into(),
            },
            prefix_len: 20,
        };
        let all: Vec<Address> = (1..=HOST_ADDRESSES_MAX as u32).map(address).collect();
        HostFilter::new(&all, "len > 100 or tcp port 179").unwrap();
    }
}
