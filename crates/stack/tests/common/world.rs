//! One stack, what it sends, and the test's time; frames that come to it.

use super::packet::{self, frame};
use super::{HARDWARE, ip};
use std::net::{IpAddr, Ipv6Addr};
use weir_stack::iface::{DadMode, Event};
use weir_stack::{Config, Stack};
use weir_wire::ethernet::Address;
use weir_wire::{EtherType, arp, icmp, ipv6, nd};

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const ROUTER: &str = "fe80::1";
pub(crate) const OTHER: Address = HARDWARE[1];

/// A stack, what it sent, and the time.
pub(crate) struct World {
    pub(crate) stack: Stack,
    pub(crate) now_ns: u64,
    sent: Vec<Vec<u8>>,
}

impl World {
    pub(crate) fn new(config: &Config) -> World {
        let mut world = World {
            stack: Stack::new(config, 7).unwrap(),
            now_ns: 5,
            sent: Vec::new(),
        };
        world.poll();
        world
    }

    pub(crate) fn poll(&mut self) -> Option<u64> {
        self.stack.poll(self.now_ns, &mut self.sent)
    }

    pub(crate) fn receive(&mut self, frame: &[u8]) {
        self.stack.receive(self.now_ns, frame);
        self.poll();
    }

    /// Lets time pass, each deadline at its time.
    pub(crate) fn pass(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        let mut polls = 0;
        while let Some(next_ns) = self.poll().filter(|next_ns| *next_ns <= end_ns) {
            self.now_ns = self.now_ns.max(next_ns);
            polls += 1;
            assert!(polls < 10_000, "time stands still at {}", self.now_ns);
        }
        self.now_ns = end_ns;
        self.poll();
    }

    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent)
    }

    pub(crate) fn has(&self, address: &str) -> bool {
        self.stack.addresses().any(|one| one == ip(address))
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.stack.next_event()).collect()
    }

    /// The first hop of a datagram to an address, if there is one.
    pub(crate) fn hop(&mut self, to: &str) -> Option<IpAddr> {
        self.take();
        let any = match ip(to) {
            IpAddr::V4(_) => "0.0.0.0:0",
            IpAddr::V6(_) => "[::]:0",
        };
        let socket = self.stack.udp_bind(any.parse().unwrap()).unwrap();
        let sent = self
            .stack
            .udp_send(self.now_ns, socket, (ip(to), 9).into(), b"x");
        self.poll();
        self.stack.udp_close(socket);
        sent.ok()?;
        self.take().iter().find_map(|frame| {
            let packet = &frame[14..];
            match &frame[12..14] {
                [8, 6] => Some(
                    arp::Repr::parse(&arp::Packet::new(packet).unwrap())
                        .target_ip
                        .into(),
                ),
                [0x86, 0xdd] => neighbour(packet).map(|one| one.target.into()),
                _ => None,
            }
        })
    }
}

/// The neighbour message in a packet.
pub(crate) fn neighbour(packet: &[u8]) -> Option<nd::Repr> {
    let packet = ipv6::Packet::new(packet).ok()?;
    let message = icmp::Message::new(packet.payload()).ok()?;
    nd::Repr::parse(&message)?.ok()
}

pub(crate) fn arps(frames: &[Vec<u8>]) -> Vec<arp::Repr> {
    let arps = frames.iter().filter(|frame| frame[12..14] == [8, 6]);
    arps.map(|frame| arp::Repr::parse(&arp::Packet::new(&frame[14..]).unwrap()))
        .collect()
}

pub(crate) fn arp_from(sender_ip: &str, target_ip: &str, operation: arp::Operation) -> Vec<u8> {
    let mut bytes = [0; arp::Repr::LEN];
    arp::Repr {
        operation,
        sender: OTHER,
        sender_ip: sender_ip.parse().unwrap(),
        target: Address::default(),
        target_ip: target_ip.parse().unwrap(),
    }
    .emit(&mut bytes);
    frame([Address::BROADCAST, OTHER], EtherType::ARP, &bytes)
}

/// An ICMPv6 message of this type, `rest` and body, to host 0.
pub(crate) fn icmpv6(
    src: &str,
    dst: &str,
    hop_limit: u8,
    kind: u8,
    rest: u32,
    body: &[u8],
) -> Vec<u8> {
    let addresses = (src.parse().unwrap(), dst.parse().unwrap());
    let ends = [HARDWARE[0], OTHER];
    packet::icmpv6(ends, addresses, hop_limit, kind, rest, body)
}

pub(crate) fn solicitation(src: &str, target: Ipv6Addr) -> Vec<u8> {
    let dst = Ipv6Addr::from_bits(
        0xff02_0000_0000_0000_0000_0001_ff00_0000 | target.to_bits() & 0xff_ffff,
    );
    icmpv6(src, &dst.to_string(), 255, 135, 0, &target.octets())
}

pub(crate) fn advertisement_of(target: Ipv6Addr) -> Vec<u8> {
    let body = [&target.octets()[..], &[2, 1], &OTHER.0].concat();
    icmpv6(ROUTER, "ff02::1", 255, 136, 0x2000_0000, &body)
}

/// What a router advertises.
pub(crate) fn router_says(router: &str, lifetime_s: u16, options: &[Vec<u8>]) -> Vec<u8> {
    let body = [&[0; 8][..], &options.concat()].concat();
    let rest = 64 << 24 | u32::from(lifetime_s);
    icmpv6(router, "ff02::1", 255, 134, rest, &body)
}

pub(crate) fn prefix_option(prefix: &str, flags: u8, valid_s: u32, preferred_s: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, flags];
    option.extend(valid_s.to_be_bytes());
    option.extend(preferred_s.to_be_bytes());
    option.extend([0; 4]);
    option.extend(prefix.parse::<Ipv6Addr>().unwrap().octets());
    option
}

pub(crate) fn auto() -> Config {
    let mut config = Config::new(HARDWARE[0]);
    config.autoconf = true;
    config.secret = Some(99);
    config
}

pub(crate) fn v4_config(detect: DadMode) -> Config {
    let mut config = Config::new(HARDWARE[0]).address("192.0.2.1/24".parse().unwrap());
    config.dad_mode = detect;
    config
}
