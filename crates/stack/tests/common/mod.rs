//! Two stacks at the ends of an in-memory link, and the time between them.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod offload;
pub(crate) mod packet;
pub(crate) mod peer;
pub(crate) mod stream;
pub(crate) mod world;

use offload::{Frames, finish};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use weir_link::mem::{End, Impairments, MemLink};
use weir_stack::iface::{Channel, RxMeta};
use weir_stack::{Config, Stack};
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, EtherType, Protocol, arp, ethernet, ipv4, ipv6, nd, tcp};

pub(crate) const HARDWARE: [Address; 2] =
    [Address([2, 0, 0, 0, 0, 1]), Address([2, 0, 0, 0, 0, 2])];
pub(crate) const V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
pub(crate) const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The configuration of the host at one end.
pub(crate) fn config(end: usize) -> Config {
    Config::new(HARDWARE[end])
        .address(format!("{}/24", V4[end]).parse().unwrap())
        .address(format!("{}/64", V6[end]).parse().unwrap())
}

pub(crate) struct Pair {
    pub(crate) stacks: [Stack; 2],
    pub(crate) link: MemLink,
    pub(crate) now_ns: u64,
    /// Print each frame that is sent.
    trace: bool,
    /// A hash of all frames that were sent, and when.
    pub(crate) digest: u64,
    /// Frames that were sent, and from which end, if they are to be kept.
    pub(crate) kept: Option<Vec<(usize, Vec<u8>)>>,
    /// Frames come by the channels of their connections, once there are some.
    pub(crate) by_channel: bool,
    pub(crate) channels: [Option<Channel>; 2],
    /// When each stack wants to be polled.
    due_ns: [Option<u64>; 2],
}

const ENDS: [End; 2] = [End::A, End::B];

impl Pair {
    pub(crate) fn new(impairments: Impairments, seed: u64) -> Pair {
        Pair::with([config(0), config(1)], impairments, seed)
    }

    pub(crate) fn with(configs: [Config; 2], impairments: Impairments, seed: u64) -> Pair {
        let seeds = [u128::from(seed), u128::from(seed) << 64 | 1];
        let mut stacks = configs
            .iter()
            .zip(seeds)
            .map(|(config, seed)| Stack::new(config, seed).unwrap());
        Pair {
            stacks: [stacks.next().unwrap(), stacks.next().unwrap()],
            link: MemLink::new(impairments, impairments, seed).unwrap(),
            now_ns: 0,
            digest: 0,
            kept: None,
            by_channel: false,
            channels: [None; 2],
            trace: std::env::var_os("WEIR_TRACE").is_some(),
            due_ns: [None; 2],
        }
    }

    /// Lets both stacks do what they can now.
    pub(crate) fn settle(&mut self) {
        for (end, stack) in self.stacks.iter_mut().enumerate() {
            while let Some(frame) = self.link.receive(ENDS[end], self.now_ns) {
                let received = RxMeta {
                    channel: self.channels[end],
                    ..RxMeta::default()
                };
                stack.receive_with(self.now_ns, &frame.bytes, received);
            }
        }
        self.poll_all();
    }

    /// Lets both stacks send what they can now.
    pub(crate) fn poll_all(&mut self) {
        for (end, stack) in self.stacks.iter_mut().enumerate() {
            let mut frames = Frames::default();
            self.due_ns[end] = stack.poll(self.now_ns, &mut frames);
            let finished = |(frame, partial)| finish(frame, partial);
            for frame in frames.0.into_iter().flat_map(finished) {
                let mut hasher = DefaultHasher::new();
                (self.digest, self.now_ns, end, &frame).hash(&mut hasher);
                self.digest = hasher.finish();
                let sent = self.link.send(ENDS[end], self.now_ns, &frame);
                if let Some(kept) = &mut self.kept {
                    kept.push((end, frame.clone()));
                }
                if self.trace {
                    println!("{:>14} {end} {} {sent:?}", self.now_ns, describe(&frame));
                }
            }
        }
    }

    /// Goes to the next time at which something happens; false if nothing
    /// ever will.
    pub(crate) fn advance(&mut self) -> bool {
        let arrivals = ENDS.map(|end| self.link.next_arrival_ns(end));
        let next = arrivals.into_iter().chain(self.due_ns).flatten().min();
        // A deadline that has passed must not hold the time.
        let moved = next.map(|next_ns| next_ns.max(self.now_ns));
        self.now_ns = moved.unwrap_or(self.now_ns);
        moved.is_some()
    }

    /// Runs until `done` or for so long; whether it is done.
    pub(crate) fn run(&mut self, for_ns: u64, mut done: impl FnMut(&mut Pair) -> bool) -> bool {
        let end_ns = self.now_ns + for_ns;
        let mut still = 0;
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            let before = self.now_ns;
            if !self.advance() || self.now_ns > end_ns {
                return false;
            }
            still = if self.now_ns == before { still + 1 } else { 0 };
            assert!(still < 10_000, "time stands still at {} ns", self.now_ns);
        }
    }
}

/// The TCP segment in a frame, without options before it: its header, and how
/// many bytes it carries.
pub(crate) fn parse(frame: &[u8]) -> Option<(tcp::Repr, usize)> {
    let frame = ethernet::Frame::new(frame).ok()?;
    let (protocol, payload) = match frame.ether_type() {
        EtherType::IPV4 => {
            let packet = ipv4::Packet::new(frame.payload()).ok()?;
            (packet.protocol(), packet.payload())
        }
        EtherType::IPV6 => {
            let packet = ipv6::Packet::new(frame.payload()).ok()?;
            (packet.next_header(), packet.payload())
        }
        _ => return None,
    };
    let segment = tcp::Segment::new(payload).ok()?;
    (protocol == Protocol::TCP).then(|| (tcp::Repr::parse(&segment), segment.payload().len()))
}

/// A TCP segment in a line.
fn describe(frame: &[u8]) -> String {
    let segment =
        match ethernet::Frame::new(frame).map(|frame| (frame.ether_type(), frame.payload())) {
            Ok((EtherType::IPV4, packet)) => ipv4::Packet::new(packet).unwrap().payload().to_vec(),
            Ok((EtherType::IPV6, packet)) => ipv6::Packet::new(packet).unwrap().payload().to_vec(),
            other => return format!("{:?}", other.map(|(ether_type, _)| ether_type)),
        };
    let Ok(segment) = tcp::Segment::new(&segment) else {
        return "no TCP".to_owned();
    };
    let repr = tcp::Repr::parse(&segment);
    let flags: String = "FSRPAUEC"
        .chars()
        .enumerate()
        .filter(|(bit, _)| repr.flags.0 >> bit & 1 == 1)
        .map(|(_, name)| name)
        .collect();
    let sack = repr.options.sack;
    format!(
        "{flags} seq {} +{} ack {} win {} sack {:?}",
        repr.seq,
        segment.payload().len(),
        repr.ack,
        repr.window,
        sack.as_slice()
    )
}

/// Host 1 announces its hardware address to host 0, by ARP.
pub(crate) fn arp_reply() -> Vec<u8> {
    let mut frame = vec![0; ethernet::Repr::LEN + arp::Repr::LEN];
    let (dst, src, ether_type) = (HARDWARE[0], HARDWARE[1], EtherType::ARP);
    ethernet::Repr {
        dst,
        src,
        ether_type,
    }
    .emit(&mut frame);
    let reply = arp::Repr {
        operation: arp::Operation::REPLY,
        sender: HARDWARE[1],
        sender_ip: V4[1].parse().unwrap(),
        target: HARDWARE[0],
        target_ip: V4[0].parse().unwrap(),
    };
    reply.emit(&mut frame[ethernet::Repr::LEN..]);
    frame
}

/// Host 1 announces its hardware address to host 0, by neighbour discovery.
pub(crate) fn advertisement() -> Vec<u8> {
    let (src, dst) = (V6[1].parse().unwrap(), V6[0].parse().unwrap());
    let kind = nd::Kind::Advertisement {
        router: false,
        solicited: true,
        replaces: true,
    };
    let message = nd::Repr {
        kind,
        target: src,
        hardware: Some(HARDWARE[1]),
    };
    let start = ethernet::Repr::LEN + ipv6::Repr::LEN;
    let mut frame = vec![0; start + message.len()];
    let (to, from, ether_type) = (HARDWARE[0], HARDWARE[1], EtherType::IPV6);
    ethernet::Repr {
        dst: to,
        src: from,
        ether_type,
    }
    .emit(&mut frame);
    let header = ipv6::Repr {
        src,
        dst,
        next_header: Protocol::ICMPV6,
        hop_limit: 255,
        traffic_class: 0,
        flow_label: 0,
        payload_len: message.len(),
    };
    header.emit(&mut frame[ethernet::Repr::LEN..]);
    message.emit(&mut frame[start..], AddrPair::V6(src, dst));
    frame
}
