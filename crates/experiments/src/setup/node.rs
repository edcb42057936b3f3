//! A host of the run: a whole stack, and before it the table under test.

use super::{LINK_FRAMES, Settings};
use crate::pcb::{Bsd, Mtf, Sequent};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use weir_stack::TxSink;
use weir_stack::pcb::{Key, PcbId, Table, Weir};
use weir_stack::tcp::TcpConfig;
use weir_stack::{Config, Prefix, Stack};
use weir_wire::ethernet::Address;

use super::super::tpca::Algorithm;

const SYN: u8 = 2;
const ACK: u8 = 16;

/// One direction of the link.
#[derive(Default)]
pub(super) struct Wire(VecDeque<Vec<u8>>);

impl Wire {
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= LINK_FRAMES
    }
}

impl TxSink for Wire {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.is_full() {
            return None;
        }
        self.0.push_back(vec![0; len]);
        self.0.back_mut().map(Vec::as_mut_slice)
    }

    fn submit(&mut self) {}
}

pub(super) struct Node {
    pub(super) stack: Stack,
    pub(super) table: Box<dyn Table>,
    entered: u32,
    /// TCP segments that came.
    pub(super) segments: u64,
    pub(super) link: Wire,
}

fn table(settings: &Settings, purpose: u64) -> Box<dyn Table> {
    let key = u128::from(settings.seed) << 64 | u128::from(purpose);
    match settings.algorithm {
        Algorithm::Bsd => Box::new(Bsd::new()),
        Algorithm::Mtf => Box::new(Mtf::new()),
        Algorithm::Sequent => Box::new(Sequent::new(settings.chains, key)),
        Algorithm::Weir => Box::new(Weir::new(key)),
    }
}

/// The ends of a TCP segment in a frame, destination's first, which is ours;
/// and its flags.
fn ends(frame: &[u8]) -> Option<(Key, u8)> {
    let is_tcp = frame.len() >= 54 && frame[12..15] == [8, 0, 0x45] && frame[23] == 6;
    if !is_tcp {
        return None;
    }
    let end = |address: usize, port: usize| {
        let octets: [u8; 4] = frame[address..address + 4].try_into().expect("four");
        let port = u16::from_be_bytes([frame[port], frame[port + 1]]);
        SocketAddr::new(IpAddr::V4(octets.into()), port)
    };
    Some((Key::new(end(30, 36), end(26, 34))?, frame[47]))
}

impl Node {
    /// A host with these addresses; `last` ends its hardware address.
    pub(super) fn new(
        settings: &Settings,
        addresses: impl Iterator<Item = Ipv4Addr>,
        last: u8,
    ) -> Node {
        let mut config = Config::new(Address([2, 0, 0, 0, 0, last]));
        for address in addresses {
            config = config.address(Prefix::new(address.into(), 24).expect("24 bits of 32"));
        }
        let seed = u128::from(settings.seed) << 8 | u128::from(last);
        let mut stack = Stack::new(&config, seed).expect("addresses of one network");
        stack.tcp_configure(TcpConfig {
            send_buffer: 4096,
            receive_buffer: 65_535,
            ..TcpConfig::default()
        });
        Node {
            stack,
            table: table(settings, last.into()),
            entered: 0,
            segments: 0,
            link: Wire::default(),
        }
    }

    pub(super) fn enter(&mut self, key: Key) {
        if self.table.insert(key, PcbId(self.entered)).is_ok() {
            self.entered += 1;
        }
    }

    /// Takes all that the other host has sent, without counting it.
    pub(super) fn meet(&mut self, now_ns: u64, other: &mut Node) {
        other.stack.poll(now_ns, &mut other.link);
        for frame in other.link.0.drain(..) {
            self.stack.receive(now_ns, &frame);
        }
    }

    /// Takes all that the other host has sent: the table finds each segment's
    /// PCB first.
    pub(super) fn take_from(&mut self, now_ns: u64, other: &mut Wire) {
        for frame in other.0.drain(..) {
            if let Some((key, flags)) = ends(&frame) {
                self.segments += 1;
                let known = self.table.find(&key).is_some();
                if !known && flags & (SYN | ACK) == SYN {
                    self.enter(key);
                }
            }
            self.stack.receive(now_ns, &frame);
        }
    }
}
