//! Composed entries: what the stages of a chain did to the first packets of a
//! flow, repeated. `weir_chain::Composed` is the oracle of this code.

use super::{ENTRY, Emit, FRAME, IP, TYPE, wire};
use crate::xdp::flow_cache::key::value;
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};

/// Offset of the checksum in a header of TCP and of UDP.
const TCP_CHECKSUM: i16 = 16;
const UDP_CHECKSUM: i16 = 6;
/// Offset of the flags in a header of TCP; FIN, SYN and RST.
const TCP_FLAGS: i16 = 13;
const TCP_CONTROL: i32 = 0x07;
/// Bytes of the headers.
const TCP: i16 = 20;
const UDP: i16 = 8;

impl Emit<'_> {
    /// The checks of a composed entry that do not depend on the frame's way: r1
    /// holds the action, and does again behind it. Jumps to `out` if the frame
    /// is to be dropped.
    pub(super) fn check_flow(&mut self, out: Label) {
        let [plain, v6, checked] = [(); 3].map(|()| self.asm.label());
        self.asm
            .jump(Insn::jump64(op::JLT, Reg::R1, value::REWRITE), plain);
        self.load(op::H, Reg::R1, TYPE);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, wire(0x86dd)), v6);
        // The key is of a whole packet, without options.
        self.load_checked(op::B, Reg::R2, IP + 9, IP + 20);
        self.load(op::H, Reg::R3, IP + 2);
        self.push(&[Insn::to_be(Reg::R3, 16), Insn::alu64(op::SUB, Reg::R3, 20)]);
        self.transport_is_plain(IP + 20, checked);
        self.asm.bind(v6);
        self.load_checked(op::B, Reg::R2, IP + 6, IP + 40);
        self.load(op::H, Reg::R3, IP + 4);
        self.push(&[Insn::to_be(Reg::R3, 16)]);
        self.transport_is_plain(IP + 40, checked);
        self.asm.bind(checked);
        self.push(&[Insn::load(op::W, Reg::R1, ENTRY, value::HOW)]);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, value::DROP_FLOW), out);
        // Frames to other stations are not the router's.
        let pass_to_userspace = self.pass_to_userspace;
        for (size, at) in [(op::W, 0), (op::H, 4)] {
            self.load(size, Reg::R2, at);
            self.push(&[Insn::load(size, Reg::R3, ENTRY, value::STATION + at)]);
            self.asm
                .jump(Insn::jump64(op::JNE, Reg::R2, Reg::R3), pass_to_userspace);
        }
        self.asm.bind(plain);
    }

    /// Loads a field of a header that ends at `end`.
    fn load_checked(&mut self, size: u8, to: Reg, at: i16, end: i16) {
        let pass_to_userspace = self.pass_to_userspace;
        self.within(end, pass_to_userspace);
        self.load(size, to, at);
    }

    /// Jumps to `checked` if the transport header at `at` is whole and, of TCP,
    /// neither begins nor ends a connection. r2 holds the protocol, r3 the
    /// payload's length by the IP header, as a signed number.
    fn transport_is_plain(&mut self, at: i16, checked: Label) {
        let tcp = self.asm.label();
        let pass_to_userspace = self.pass_to_userspace;
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R2, 6), tcp);
        self.pass_to_userspace_if(crate::xdp::abi::JSLT, Reg::R3, UDP.into());
        self.within(at + UDP, pass_to_userspace);
        self.asm.goto(checked);
        self.asm.bind(tcp);
        self.pass_to_userspace_if(crate::xdp::abi::JSLT, Reg::R3, TCP.into());
        self.within(at + TCP, pass_to_userspace);
        self.load(op::B, Reg::R2, at + TCP_FLAGS);
        self.push(&[Insn::alu64(op::AND, Reg::R2, TCP_CONTROL)]);
        self.pass_to_userspace_if(op::JNE, Reg::R2, 0);
        self.asm.goto(checked);
    }

    /// Translates addresses and ports, and sets the DSCP; jumps to `out` if
    /// there is neither.
    pub(super) fn rewrite_flow(&mut self, out: Label) {
        let [v6, marked] = [(); 2].map(|()| self.asm.label());
        self.push(&[Insn::load(op::W, Reg::R1, ENTRY, value::HOW)]);
        self.asm
            .jump(Insn::jump64(op::JNE, Reg::R1, value::REWRITE), out);
        self.load(op::H, Reg::R1, TYPE);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, wire(0x86dd)), v6);
        self.translate();
        self.dscp_v4(marked);
        self.asm.goto(marked);
        self.asm.bind(v6);
        self.dscp_v6(marked);
        self.asm.bind(marked);
    }

    fn translate(&mut self) {
        let [done, udp, update, store] = [(); 4].map(|()| self.asm.label());
        let pass_to_userspace = self.pass_to_userspace;
        self.push(&[Insn::load(op::B, Reg::R1, ENTRY, value::TRANSLATES)]);
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R1, 0), done);
        // Checked before: padding alone was cut off since.
        self.within(IP + 20 + UDP, pass_to_userspace);
        for (from, to) in [(0, 12), (4, 16), (8, 20)] {
            self.push(&[
                Insn::load(op::W, Reg::R1, ENTRY, value::ADDRESSES + from),
                Insn::store(op::W, FRAME, IP + to, Reg::R1),
            ]);
        }
        self.push(&[Insn::load(op::W, Reg::R2, ENTRY, value::HEADER)]);
        self.follow(IP + 10);
        self.push(&[Insn::load(op::W, Reg::R2, ENTRY, value::TRANSPORT)]);
        self.load(op::B, Reg::R3, IP + 9);
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R3, 17), udp);
        self.within(IP + 20 + TCP, pass_to_userspace);
        self.follow(IP + 20 + TCP_CHECKSUM);
        self.asm.goto(done);
        self.asm.bind(udp);
        // A checksum of zero means no checksum (RFC 768).
        self.load(op::H, Reg::R1, IP + 20 + UDP_CHECKSUM);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R1, 0), update);
        self.asm.goto(done);
        self.asm.bind(update);
        self.follow(IP + 20 + UDP_CHECKSUM);
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R1, 0), store);
        self.asm.goto(done);
        self.asm.bind(store);
        self.push(&[
            Insn::mov64(Reg::R1, 0xffff),
            Insn::store(op::H, FRAME, IP + 20 + UDP_CHECKSUM, Reg::R1),
        ]);
        self.asm.bind(done);
    }

    /// Adds the delta in r2 to the checksum at `at`: RFC 1624, equation 3. The
    /// new checksum is in r1, in network order; r4 is lost.
    fn follow(&mut self, at: i16) {
        self.load(op::H, Reg::R1, at);
        self.push(&[
            Insn::to_be(Reg::R1, 16),
            Insn::alu64(op::XOR, Reg::R1, 0xffff),
            Insn::alu64(op::ADD, Reg::R1, Reg::R2),
        ]);
        // The sum of two numbers of 16 bits: once is enough, as there is at most
        // one carry, which makes no second one.
        self.push(&[
            Insn::mov64(Reg::R4, Reg::R1),
            Insn::alu64(op::RSH, Reg::R4, 16),
            Insn::alu64(op::AND, Reg::R1, 0xffff),
            Insn::alu64(op::ADD, Reg::R1, Reg::R4),
            Insn::alu64(op::XOR, Reg::R1, 0xffff),
            Insn::to_be(Reg::R1, 16),
            Insn::store(op::H, FRAME, at, Reg::R1),
        ]);
    }

    /// Sets the DSCP of an IPv4 packet, unless the entry has none.
    fn dscp_v4(&mut self, none: Label) {
        self.push(&[Insn::load(op::B, Reg::R3, ENTRY, value::DSCP)]);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R3, value::NO_DSCP), none);
        self.load(op::B, Reg::R1, IP + 1);
        self.push(&[
            Insn::mov64(Reg::R5, Reg::R1),
            Insn::alu64(op::AND, Reg::R5, 3),
            Insn::alu64(op::OR, Reg::R3, Reg::R5),
            Insn::store(op::B, FRAME, IP + 1, Reg::R3),
            // ~m + m', of words whose upper byte is 0x45 before and after.
            Insn::mov64(Reg::R2, 0xffff),
            Insn::alu64(op::SUB, Reg::R2, Reg::R1),
            Insn::alu64(op::ADD, Reg::R2, Reg::R3),
            Insn::mov64(Reg::R4, Reg::R2),
            Insn::alu64(op::RSH, Reg::R4, 16),
            Insn::alu64(op::AND, Reg::R2, 0xffff),
            Insn::alu64(op::ADD, Reg::R2, Reg::R4),
        ]);
        self.follow(IP + 10);
    }

    /// Sets the DSCP of an IPv6 packet, whose traffic class lies across two
    /// bytes, unless the entry has none.
    fn dscp_v6(&mut self, none: Label) {
        self.push(&[Insn::load(op::B, Reg::R3, ENTRY, value::DSCP)]);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R3, value::NO_DSCP), none);
        self.load(op::B, Reg::R1, IP + 1);
        self.push(&[
            // ECN, and the new traffic class.
            Insn::mov64(Reg::R2, Reg::R1),
            Insn::alu64(op::RSH, Reg::R2, 4),
            Insn::alu64(op::AND, Reg::R2, 3),
            Insn::alu64(op::OR, Reg::R3, Reg::R2),
            Insn::mov64(Reg::R2, Reg::R3),
            Insn::alu64(op::RSH, Reg::R2, 4),
            Insn::alu64(op::OR, Reg::R2, 0x60),
            Insn::store(op::B, FRAME, IP, Reg::R2),
            Insn::alu64(op::AND, Reg::R3, 0x0f),
            Insn::alu64(op::LSH, Reg::R3, 4),
            Insn::alu64(op::AND, Reg::R1, 0x0f),
            Insn::alu64(op::OR, Reg::R1, Reg::R3),
            Insn::store(op::B, FRAME, IP + 1, Reg::R1),
        ]);
    }
}
