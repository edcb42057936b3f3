//! Fields of a frame: the rules of [`weir_meter::parse`] for Ethernet, step by step.

use super::super::layout::kind;
use super::{At, CTX, Emit, FRAME, skb, stack, transport};
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};
use weir_meter::Direction;
use weir_meter::parse::{EXTENSIONS_MAX, TAGS_MAX};

/// Where the code reads; then where the IP packet starts.
const AT: Reg = Reg::R9;
/// Protocol number and offset of its header in the IP packet.
const PROTOCOL: Reg = Reg::R4;
const HEADER_AT: Reg = Reg::R5;

/// Largest offset of a transport header in the IP packet that is read: more is never captured.
const HEADER_AT_MAX: i32 = 0x3fff;

/// Largest offset of the IP packet in the frame, as a mask: 14, four tags and PPPoE's 8.
pub(super) const START_MASK: i32 = 0x3f;

/// Sizes of a TCP header's first word of four bits, and of a UDP header.
const TCP_OFFSET_AT: i16 = 12;
const UDP_HEADER: i32 = 8;

/// A number in network order, as it is loaded.
pub(super) fn wire(number: u16) -> i32 {
    number.to_be().into()
}

impl Emit<'_> {
    /// Fills the fields on the stack.
    pub(super) fn parse(&mut self) {
        let [v4, v6, done] = [(); 3].map(|()| self.asm.label());
        self.link(v4, v6, done);
        self.asm.bind(v4);
        let [portless, behind_ip] = [(); 2].map(|()| self.asm.label());
        let fragment = self.asm.label();
        self.ipv4(fragment, behind_ip, done);
        self.asm.bind(v6);
        self.ipv6(fragment, portless, behind_ip, done);
        self.asm.bind(behind_ip);
        self.ports(portless, done);
        self.asm.bind(portless);
        self.set(stack::TRANSPORT, transport::PORTLESS);
        self.push(&[Insn::store(op::DW, Reg::FP, stack::PROTOCOL, PROTOCOL)]);
        self.asm.goto(done);
        self.asm.bind(fragment);
        self.set(stack::TRANSPORT, transport::FRAGMENT);
        if self.spec.has_flows() {
            self.push(&[Insn::store(op::DW, Reg::FP, stack::FRAGMENT, PROTOCOL)]);
        }
        self.asm.bind(done);
        if self.hook == At::Tc {
            self.segments();
        }
        self.forget(&[
            stack::OUTER,
            stack::INNER,
            stack::PPPOE,
            stack::FAMILY,
            stack::TRANSPORT,
            stack::PROTOCOL,
        ]);
    }

    /// Tags and PPPoE, then to `v4` or `v6`, with [`AT`] at the packet; else to `done`.
    fn link(&mut self, v4: Label, v6: Label, done: Label) {
        self.within(FRAME, 14, done);
        self.push(&[
            Insn::load(op::H, Reg::R2, FRAME, 12),
            Insn::mov64(AT, FRAME),
            Insn::alu64(op::ADD, AT, 14),
        ]);
        let untagged = self.asm.label();
        for number in 0..=TAGS_MAX {
            let tag = self.asm.label();
            self.jump(op::JEQ, Reg::R2, wire(0x8100), tag);
            self.jump(op::JNE, Reg::R2, wire(0x88a8), untagged);
            self.asm.bind(tag);
            if number == TAGS_MAX {
                self.asm.goto(done);
            } else {
                self.tag(done);
            }
        }
        self.asm.bind(untagged);
        let [packet_v4, packet_v6] = [(); 2].map(|()| self.asm.label());
        self.jump(op::JEQ, Reg::R2, wire(0x0800), packet_v4);
        self.jump(op::JEQ, Reg::R2, wire(0x86dd), packet_v6);
        self.jump(op::JNE, Reg::R2, wire(0x8864), done);
        self.pppoe(packet_v4, packet_v6, done);
        for (packet, to) in [(packet_v4, v4), (packet_v6, v6)] {
            self.asm.bind(packet);
            // As a number of which the verifier knows no more than its range, so that it follows
            // the code behind once and not for each number of tags.
            self.push(&[
                Insn::mov64(Reg::R2, AT),
                Insn::alu64(op::SUB, Reg::R2, FRAME),
                Insn::alu64(op::AND, Reg::R2, START_MASK),
                Insn::store(op::DW, Reg::FP, stack::START, Reg::R2),
                Insn::mov64(AT, FRAME),
                Insn::alu64(op::ADD, AT, Reg::R2),
                Insn::load(op::DW, Reg::R3, Reg::FP, stack::LENGTH),
                Insn::alu64(op::SUB, Reg::R3, Reg::R2),
                Insn::store(op::DW, Reg::FP, stack::IP_BYTES, 0),
            ]);
            self.asm.goto(to);
        }
    }

    fn tag(&mut self, done: Label) {
        let [next, second] = [(); 2].map(|()| self.asm.label());
        self.within(AT, 4, done);
        self.push(&[
            Insn::load(op::H, Reg::R3, AT, 0),
            Insn::load(op::H, Reg::R2, AT, 2),
            Insn::alu64(op::ADD, AT, 4),
            Insn::to_be(Reg::R3, 16),
            Insn::alu64(op::AND, Reg::R3, 0xfff),
        ]);
        self.jump(op::JEQ, Reg::R3, 0, next);
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::OUTER)]);
        self.jump(op::JNE, Reg::R1, 0, second);
        self.push(&[Insn::store(op::DW, Reg::FP, stack::OUTER, Reg::R3)]);
        self.asm.goto(next);
        self.asm.bind(second);
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::INNER)]);
        self.jump(op::JNE, Reg::R1, 0, next);
        self.push(&[Insn::store(op::DW, Reg::FP, stack::INNER, Reg::R3)]);
        self.asm.bind(next);
    }

    fn pppoe(&mut self, v4: Label, v6: Label, done: Label) {
        self.within(AT, 6, done);
        self.push(&[Insn::load(op::H, Reg::R2, AT, 0)]);
        self.jump(op::JNE, Reg::R2, wire(0x1100), done);
        self.push(&[
            Insn::load(op::H, Reg::R2, AT, 2),
            Insn::to_be(Reg::R2, 16),
            Insn::alu64(op::OR, Reg::R2, 1 << 16),
            Insn::store(op::DW, Reg::FP, stack::PPPOE, Reg::R2),
        ]);
        self.within(AT, 8, done);
        self.push(&[
            Insn::load(op::H, Reg::R2, AT, 6),
            Insn::alu64(op::ADD, AT, 8),
        ]);
        self.jump(op::JEQ, Reg::R2, wire(0x0021), v4);
        self.jump(op::JEQ, Reg::R2, wire(0x0057), v6);
        self.asm.goto(done);
    }

    /// Stores r2 as the bytes of the packet, but at most r3, those behind the link header.
    fn ip_bytes_of_r2(&mut self) {
        let fits = self.asm.label();
        self.asm.jump(Insn::jump64(op::JLE, Reg::R2, Reg::R3), fits);
        self.push(&[Insn::mov64(Reg::R2, Reg::R3)]);
        self.asm.bind(fits);
        self.push(&[Insn::store(op::DW, Reg::FP, stack::IP_BYTES, Reg::R2)]);
    }

    /// r3 is how many bytes there are behind the link header.
    fn ipv4(&mut self, fragment: Label, behind_ip: Label, done: Label) {
        self.within(AT, 20, done);
        self.push(&[
            Insn::load(op::B, Reg::R2, AT, 0),
            Insn::mov64(HEADER_AT, Reg::R2),
            Insn::alu64(op::RSH, Reg::R2, 4),
        ]);
        self.jump(op::JNE, Reg::R2, 4, done);
        self.push(&[
            Insn::alu64(op::AND, HEADER_AT, 15),
            Insn::alu64(op::LSH, HEADER_AT, 2),
        ]);
        self.jump(op::JLT, HEADER_AT, 20, done);
        let [address, other] = match self.direction {
            Some(Direction::Up) | None => [12, 16],
            Some(Direction::Down) => [16, 12],
        };
        if self.needs_other() {
            self.push(&[
                Insn::load(op::W, Reg::R2, AT, other),
                Insn::store(op::DW, Reg::FP, stack::OTHER, Reg::R2),
            ]);
        }
        let whole = self.asm.label();
        self.push(&[
            Insn::load(op::W, Reg::R2, AT, address),
            Insn::store(op::DW, Reg::FP, stack::ADDRESS, Reg::R2),
            Insn::store(op::DW, Reg::FP, stack::FAMILY, kind::V4 as i32),
            Insn::load(op::H, Reg::R2, AT, 2),
            Insn::to_be(Reg::R2, 16),
        ]);
        self.jump(op::JGE, Reg::R2, 20, whole);
        self.push(&[Insn::mov64(Reg::R2, Reg::R3)]);
        self.asm.bind(whole);
        self.ip_bytes_of_r2();
        self.push(&[
            Insn::load(op::B, PROTOCOL, AT, 9),
            Insn::load(op::H, Reg::R2, AT, 6),
        ]);
        self.jump(op::JSET, Reg::R2, wire(0x3fff), fragment);
        self.asm.goto(behind_ip);
    }

    fn ipv6(&mut self, fragment: Label, portless: Label, behind_ip: Label, done: Label) {
        self.within(AT, 40, done);
        self.push(&[
            Insn::load(op::B, Reg::R2, AT, 0),
            Insn::alu64(op::RSH, Reg::R2, 4),
        ]);
        self.jump(op::JNE, Reg::R2, 6, done);
        let [address, other] = match self.direction {
            Some(Direction::Up) | None => [8, 24],
            Some(Direction::Down) => [24, 8],
        };
        if self.needs_other() {
            self.push(&[
                Insn::load(op::DW, Reg::R2, AT, other),
                Insn::store(op::DW, Reg::FP, stack::OTHER, Reg::R2),
                Insn::load(op::DW, Reg::R2, AT, other + 8),
                Insn::store(op::DW, Reg::FP, stack::OTHER_REST, Reg::R2),
            ]);
        }
        let [stated, whole, known] = [(); 3].map(|()| self.asm.label());
        self.push(&[
            Insn::load(op::DW, Reg::R2, AT, address),
            Insn::store(op::DW, Reg::FP, stack::ADDRESS, Reg::R2),
            Insn::load(op::DW, Reg::R2, AT, address + 8),
            Insn::store(op::DW, Reg::FP, stack::ADDRESS_REST, Reg::R2),
            Insn::store(op::DW, Reg::FP, stack::FAMILY, kind::V6 as i32),
            Insn::load(op::B, PROTOCOL, AT, 6),
            Insn::load(op::H, Reg::R2, AT, 4),
            Insn::to_be(Reg::R2, 16),
        ]);
        self.jump(op::JNE, Reg::R2, 0, stated);
        self.jump(op::JEQ, PROTOCOL, 0, whole);
        self.asm.bind(stated);
        self.push(&[Insn::alu64(op::ADD, Reg::R2, 40)]);
        self.asm.goto(known);
        self.asm.bind(whole);
        self.push(&[Insn::mov64(Reg::R2, Reg::R3)]);
        self.asm.bind(known);
        self.ip_bytes_of_r2();
        self.push(&[Insn::mov64(HEADER_AT, 40)]);
        for _ in 0..EXTENSIONS_MAX {
            self.extension(fragment, portless, behind_ip);
        }
        for extension in [0, 43, 60, 44] {
            self.jump(op::JEQ, PROTOCOL, extension, portless);
        }
        self.asm.goto(behind_ip);
    }

    /// Skips an extension header; any other header is `behind_ip`.
    fn extension(&mut self, fragment: Label, portless: Label, behind_ip: Label) {
        let [is_fragment, skip, next] = [(); 3].map(|()| self.asm.label());
        self.jump(op::JEQ, PROTOCOL, 44, skip);
        self.jump(op::JEQ, PROTOCOL, 0, skip);
        self.jump(op::JEQ, PROTOCOL, 43, skip);
        self.jump(op::JNE, PROTOCOL, 60, behind_ip);
        self.asm.bind(skip);
        self.jump(op::JGT, HEADER_AT, HEADER_AT_MAX, portless);
        self.push(&[
            Insn::mov64(Reg::R2, AT),
            Insn::alu64(op::ADD, Reg::R2, HEADER_AT),
        ]);
        self.within(Reg::R2, 8, portless);
        self.push(&[
            Insn::mov64(Reg::R3, PROTOCOL),
            Insn::load(op::B, PROTOCOL, Reg::R2, 0),
        ]);
        self.jump(op::JEQ, Reg::R3, 44, is_fragment);
        self.push(&[
            Insn::load(op::B, Reg::R3, Reg::R2, 1),
            Insn::alu64(op::ADD, Reg::R3, 1),
            Insn::alu64(op::LSH, Reg::R3, 3),
            Insn::alu64(op::ADD, HEADER_AT, Reg::R3),
        ]);
        self.asm.goto(next);
        self.asm.bind(is_fragment);
        self.push(&[Insn::load(op::H, Reg::R3, Reg::R2, 2)]);
        self.jump(op::JSET, Reg::R3, wire(0xfff9), fragment);
        self.push(&[Insn::alu64(op::ADD, HEADER_AT, 8)]);
        self.asm.bind(next);
    }

    fn ports(&mut self, portless: Label, done: Label) {
        let ported = self.asm.label();
        // Where the header is, for the headers of segments too.
        self.push(&[
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::START),
            Insn::alu64(op::ADD, Reg::R2, HEADER_AT),
            Insn::store(op::DW, Reg::FP, stack::TRANSPORT_AT, Reg::R2),
        ]);
        for protocol in [6, 17, 33, 132] {
            self.jump(op::JEQ, PROTOCOL, protocol, ported);
        }
        self.jump(op::JNE, PROTOCOL, 136, portless);
        self.asm.bind(ported);
        self.push(&[
            Insn::mov64(Reg::R1, HEADER_AT),
            Insn::alu64(op::ADD, Reg::R1, 4),
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::IP_BYTES),
        ]);
        self.asm
            .jump(Insn::jump64(op::JGT, Reg::R1, Reg::R2), portless);
        self.jump(op::JGT, HEADER_AT, HEADER_AT_MAX, portless);
        self.push(&[
            Insn::mov64(Reg::R2, AT),
            Insn::alu64(op::ADD, Reg::R2, HEADER_AT),
        ]);
        self.within(Reg::R2, 4, portless);
        for (port, to) in [(0, stack::SRC_PORT), (2, stack::DST_PORT)] {
            self.push(&[
                Insn::load(op::H, Reg::R3, Reg::R2, port),
                Insn::to_be(Reg::R3, 16),
                Insn::store(op::DW, Reg::FP, to, Reg::R3),
            ]);
        }
        self.set(stack::TRANSPORT, transport::PORTS);
        self.push(&[Insn::store(op::DW, Reg::FP, stack::PROTOCOL, PROTOCOL)]);
        self.asm.goto(done);
    }

    /// Counts a super-frame as the segments that it becomes on the wire, each with its headers.
    fn segments(&mut self) {
        let [done, sized, udp, counted] = [(); 4].map(|()| self.asm.label());
        self.push(&[
            Insn::load(op::W, Reg::R3, CTX, skb::GSO_SIZE),
            Insn::load(op::W, Reg::R4, CTX, skb::GSO_SEGS),
        ]);
        self.jump(op::JEQ, Reg::R3, 0, done);
        // r5: bytes of the headers, which each segment has.
        self.push(&[
            Insn::load(op::DW, Reg::R5, Reg::FP, stack::TRANSPORT_AT),
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::PROTOCOL),
        ]);
        self.jump(op::JNE, Reg::R2, 6, udp);
        self.jump(op::JGT, Reg::R5, HEADER_AT_MAX, done);
        self.push(&[
            Insn::mov64(Reg::R2, FRAME),
            Insn::alu64(op::ADD, Reg::R2, Reg::R5),
        ]);
        self.within(Reg::R2, 20, done);
        self.push(&[
            Insn::load(op::B, Reg::R2, Reg::R2, TCP_OFFSET_AT),
            Insn::alu64(op::RSH, Reg::R2, 4),
            Insn::alu64(op::LSH, Reg::R2, 2),
            Insn::alu64(op::ADD, Reg::R5, Reg::R2),
        ]);
        self.asm.goto(sized);
        self.asm.bind(udp);
        self.jump(op::JNE, Reg::R2, 17, done);
        self.push(&[Insn::alu64(op::ADD, Reg::R5, UDP_HEADER)]);
        self.asm.bind(sized);
        self.jump(op::JNE, Reg::R4, 0, counted);
        // Not every source of such frames says how many segments they are.
        self.push(&[Insn::load(op::DW, Reg::R4, Reg::FP, stack::LENGTH)]);
        self.asm.jump(Insn::jump64(op::JLE, Reg::R4, Reg::R5), done);
        self.push(&[
            Insn::alu64(op::SUB, Reg::R4, Reg::R5),
            Insn::alu64(op::ADD, Reg::R4, Reg::R3),
            Insn::alu64(op::SUB, Reg::R4, 1),
            Insn::alu64(op::DIV, Reg::R4, Reg::R3),
        ]);
        self.asm.bind(counted);
        self.push(&[
            Insn::store(op::DW, Reg::FP, stack::PACKETS, Reg::R4),
            Insn::alu64(op::SUB, Reg::R4, 1),
            Insn::mov64(Reg::R3, Reg::R4),
            Insn::alu64(op::MUL, Reg::R3, Reg::R5),
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::WIRE),
            Insn::alu64(op::ADD, Reg::R2, Reg::R3),
            Insn::store(op::DW, Reg::FP, stack::WIRE, Reg::R2),
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::START),
            Insn::alu64(op::SUB, Reg::R5, Reg::R2),
            Insn::alu64(op::MUL, Reg::R4, Reg::R5),
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::IP_BYTES),
            Insn::alu64(op::ADD, Reg::R2, Reg::R4),
            Insn::store(op::DW, Reg::FP, stack::IP_BYTES, Reg::R2),
        ]);
        self.asm.bind(done);
    }
}
