//! A peer of TCP that is made of segments, each as a test wants it.

use super::{HARDWARE, advertisement, arp_reply, config, ip, packet};
use std::net::SocketAddr;
use weir_stack::Stack;
use weir_stack::tcp::{ListenerId, TcpConfig, TcpError, TcpId};
use weir_wire::tcp::{Flags, Options, Repr, Segment};
use weir_wire::{AddrPair, EtherType, Protocol, ethernet, ipv4, ipv6};

pub(crate) const S: u64 = 1_000_000_000;
pub(crate) const SYN: Flags = Flags::SYN;
pub(crate) const ACK: Flags = Flags::ACK;
pub(crate) const RST: Flags = Flags::RST;
pub(crate) const FIN: Flags = Flags::FIN;

/// A peer made of segments, at the other end of the link.
pub(crate) struct Peer {
    pub(crate) stack: Stack,
    pub(crate) now_ns: u64,
    pub(crate) at: [&'static str; 2],
    pub(crate) port: u16,
    /// What answers are sent from.
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) options: Options,
    /// The window of sent segments.
    pub(crate) window: u16,
    /// The urgent pointer of sent segments.
    pub(crate) urgent: u16,
    /// The ECN bits of sent packets, and of the last received one.
    pub(crate) marks: u8,
    pub(crate) heard_marks: u8,
}

pub(crate) fn flags(one: Flags, two: Flags) -> Flags {
    one | two
}

impl Peer {
    pub(crate) fn new(at: [&'static str; 2]) -> Peer {
        Peer::with(at, TcpConfig::default())
    }

    pub(crate) fn with(at: [&'static str; 2], tcp: TcpConfig) -> Peer {
        let mut stack = Stack::new(&config(0), 9).unwrap();
        stack.tcp_configure(tcp);
        Peer {
            stack,
            now_ns: 0,
            at,
            port: 4000,
            seq: 1000,
            ack: 0,
            options: Options::default(),
            window: 10_000,
            urgent: 0,
            marks: 0,
            heard_marks: 0,
        }
    }

    pub(crate) fn listen(&mut self, backlog: usize) -> ListenerId {
        self.stack
            .tcp_listen(SocketAddr::new(ip(self.at[0]), 80), backlog)
            .unwrap()
    }

    pub(crate) fn segment(
        &self,
        flags: Flags,
        seq: u32,
        ack: u32,
        window: u16,
        payload: &[u8],
    ) -> Vec<u8> {
        let repr = Repr {
            src_port: self.port,
            dst_port: 80,
            seq,
            ack,
            flags,
            window,
            urgent: self.urgent,
            options: self.options,
        };
        let addresses = AddrPair::new(ip(self.at[1]), ip(self.at[0])).unwrap();
        let mut segment = vec![0; repr.header_len()];
        segment.extend_from_slice(payload);
        repr.emit(&mut segment, addresses);
        let ends = [HARDWARE[0], HARDWARE[1]];
        let mut frame = match addresses {
            AddrPair::V4(src, dst) => packet::v4(ends, (src, dst), Protocol::TCP, 64, &segment),
            AddrPair::V6(src, dst) => packet::v6(ends, (src, dst), Protocol::TCP, 64, &segment),
        };
        if self.marks > 0 {
            packet::mark(&mut frame, self.marks);
        }
        frame
    }

    pub(crate) fn tell(&mut self, flags: Flags, seq: u32, ack: u32, payload: &[u8]) {
        let frame = self.segment(flags, seq, ack, self.window, payload);
        self.stack.receive(self.now_ns, &frame);
    }

    /// The segments that come out now; questions for our address are answered.
    pub(crate) fn heard(&mut self) -> Vec<(Repr, Vec<u8>)> {
        let mut segments = Vec::new();
        loop {
            let mut frames: Vec<Vec<u8>> = Vec::new();
            self.stack.poll(self.now_ns, &mut frames);
            if frames.is_empty() {
                return segments;
            }
            for frame in frames {
                segments.extend(self.hear(&frame));
            }
        }
    }

    pub(crate) fn hear(&mut self, frame: &[u8]) -> Option<(Repr, Vec<u8>)> {
        let ethernet = ethernet::Frame::new(frame).unwrap();
        let segment = match ethernet.ether_type() {
            EtherType::ARP => {
                self.stack.receive(self.now_ns, &arp_reply());
                return None;
            }
            EtherType::IPV4 => {
                let packet = ipv4::Packet::new(ethernet.payload()).unwrap();
                self.heard_marks = packet.traffic_class();
                packet.payload()
            }
            _ => {
                let packet = ipv6::Packet::new(ethernet.payload()).unwrap();
                if packet.next_header() == Protocol::ICMPV6 {
                    self.stack.receive(self.now_ns, &advertisement());
                    return None;
                }
                packet.payload()
            }
        };
        let segment = Segment::new(segment).unwrap();
        Some((Repr::parse(&segment), segment.payload().to_vec()))
    }

    /// Opens a connection by hand.
    pub(crate) fn open(&mut self, listener: ListenerId) -> TcpId {
        self.tell(SYN, self.seq, 0, b"");
        let heard = self.heard();
        let [(answer, _)] = &heard[..] else {
            panic!("{heard:?}")
        };
        assert_eq!(answer.flags, flags(SYN, ACK));
        assert_eq!(answer.ack, self.seq.wrapping_add(1));
        (self.seq, self.ack) = (answer.ack, answer.seq.wrapping_add(1));
        self.tell(ACK, self.seq, self.ack, b"");
        let connection = self.stack.tcp_accept(self.now_ns, listener).unwrap();
        assert_eq!(self.heard().len(), 0);
        connection
    }

    pub(crate) fn read(&mut self, connection: TcpId) -> Result<Vec<u8>, TcpError> {
        let mut bytes = vec![0; 10_000];
        let count = self.stack.tcp_read(connection, &mut bytes)?;
        bytes.truncate(count);
        Ok(bytes)
    }
}
