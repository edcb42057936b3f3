//! Checks before the program forwards a frame itself: those of a router for
//! each packet (RFC 1812 §5.2.2, RFC 8200 §3), and checksums left to the
//! device.

use super::{CTX, ENTRY, Emit, IP, LEN, SEND, TYPE, wire};
use crate::xdp::flow_cache::key::value;
use crate::xdp::gate::shared_page::{LINKS_MAX, at};
use weir_filter::backend::ebpf::{Insn, Label, Reg, helper, op};

impl Emit<'_> {
    /// Whether the frame can be forwarded by the program; jumps to `out` if the
    /// frame is sent unchanged.
    pub(super) fn check(&mut self, out: Label, state: u16) {
        let routed = self.asm.label();
        self.push(&[
            Insn::mov64(Reg::R1, CTX),
            Insn::call(helper::XDP_GET_BUFF_LEN),
            Insn::store(op::DW, Reg::FP, LEN, Reg::R0),
            Insn::store(op::DW, Reg::FP, SEND, Reg::R0),
            Insn::load(op::W, Reg::R1, ENTRY, value::HOW),
        ]);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, value::DROP), out);
        self.check_flow(out);
        self.link_accepts(state);
        self.push(&[Insn::load(op::W, Reg::R1, ENTRY, value::HOW)]);
        if self.spec.completes {
            self.checksum_is_complete();
            self.push(&[Insn::load(op::W, Reg::R1, ENTRY, value::HOW)]);
        }
        // Routed, or rewritten.
        self.asm
            .jump(Insn::jump64(op::JLT, Reg::R1, value::ROUTE), out);
        let v6 = self.asm.label();
        let pass_to_userspace = self.pass_to_userspace;
        self.branch_on_ethertype(v6, pass_to_userspace);
        self.header_v4();
        self.asm.goto(routed);
        self.asm.bind(v6);
        self.is_v6(pass_to_userspace);
        self.header_v6();
        self.asm.bind(routed);
        // r1 holds the packet's length.
        let [mtu, len] = [Reg::R2, Reg::R3];
        self.push(&[
            Insn::load(op::W, mtu, ENTRY, value::MTU),
            Insn::load(op::DW, len, Reg::FP, LEN),
        ]);
        self.asm
            .jump(Insn::jump64(op::JGT, Reg::R1, mtu), pass_to_userspace);
        self.push(&[Insn::alu64(op::ADD, Reg::R1, i32::from(IP))]);
        self.asm
            .jump(Insn::jump64(op::JGT, Reg::R1, len), pass_to_userspace);
        self.push(&[Insn::store(op::DW, Reg::FP, SEND, Reg::R1)]);
    }

    /// A frame longer than the other link's maximum goes to the application,
    /// which drops and counts or reports it.
    fn link_accepts(&mut self, state: u16) {
        const _: () = assert!(LINKS_MAX.is_power_of_two());
        self.push(&Insn::load_map_value(Reg::R1, state, 0));
        self.push(&[
            Insn::load(op::W, Reg::R2, ENTRY, value::OUT),
            Insn::alu64(op::AND, Reg::R2, LINKS_MAX as i32 - 1),
            Insn::alu64(op::LSH, Reg::R2, 2),
            Insn::alu64(op::ADD, Reg::R1, Reg::R2),
            Insn::load(op::W, Reg::R1, Reg::R1, at::LONGEST as i16),
            Insn::load(op::DW, Reg::R2, Reg::FP, LEN),
        ]);
        let pass_to_userspace = self.pass_to_userspace;
        self.asm
            .jump(Insn::jump64(op::JGT, Reg::R2, Reg::R1), pass_to_userspace);
    }

    /// Checks IPv4 length (into r1), TTL and header checksum (RFC 1812 §5.2.2).
    fn header_v4(&mut self) {
        self.load(op::B, Reg::R1, IP + 8);
        self.pass_to_userspace_if(op::JLE, Reg::R1, 1);
        self.load(op::W, Reg::R3, IP);
        for at in [4, 8, 12, 16] {
            self.load(op::W, Reg::R1, IP + at);
            self.push(&[Insn::alu64(op::ADD, Reg::R3, Reg::R1)]);
        }
        self.fold(Reg::R3);
        self.pass_to_userspace_if(op::JNE, Reg::R3, 0xffff);
        self.load(op::H, Reg::R1, IP + 2);
        self.push(&[Insn::to_be(Reg::R1, 16)]);
        self.pass_to_userspace_if(op::JLT, Reg::R1, 20);
    }

    fn header_v6(&mut self) {
        let short = self.asm.label();
        self.load(op::B, Reg::R1, IP + 7);
        self.pass_to_userspace_if(op::JLE, Reg::R1, 1);
        self.load(op::H, Reg::R1, IP + 4);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R1, 0), short);
        // A jumbogram (RFC 2675).
        self.load(op::B, Reg::R2, IP + 6);
        self.pass_to_userspace_if(op::JEQ, Reg::R2, 0);
        self.asm.bind(short);
        self.push(&[Insn::to_be(Reg::R1, 16), Insn::alu64(op::ADD, Reg::R1, 40)]);
    }

    /// Folds a sum of less than 48 bits into 16 bits, with end-around carry.
    fn fold(&mut self, sum: Reg) {
        for _ in 0..3 {
            self.push(&[
                Insn::mov64(Reg::R1, sum),
                Insn::alu64(op::RSH, Reg::R1, 16),
                Insn::alu64(op::AND, sum, 0xffff),
                Insn::alu64(op::ADD, sum, Reg::R1),
            ]);
        }
    }

    /// A partial checksum is completed by the tap, so such a frame goes to the
    /// application.
    fn checksum_is_complete(&mut self) {
        let [v6, compare, whole] = [(); 3].map(|()| self.asm.label());
        let pass_to_userspace = self.pass_to_userspace;
        self.load(op::H, Reg::R1, TYPE);
        for tag in [0x8100, 0x88a8] {
            self.pass_to_userspace_if(op::JEQ, Reg::R1, wire(tag));
        }
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, wire(0x86dd)), v6);
        self.asm
            .jump(Insn::jump64(op::JNE, Reg::R1, wire(0x0800)), whole);
        self.is_v4(pass_to_userspace);
        self.not_fragment_v4(whole);
        self.load(op::H, Reg::R3, IP + 2);
        self.push(&[
            Insn::to_be(Reg::R3, 16),
            Insn::alu64(op::SUB, Reg::R3, 20),
            Insn::to_be(Reg::R3, 16),
        ]);
        self.pseudo_sum(IP + 12, 2);
        self.load(op::B, Reg::R2, IP + 9);
        self.checksum_field(IP + 20, compare, whole);
        self.asm.bind(v6);
        self.is_v6(pass_to_userspace);
        self.load(op::H, Reg::R3, IP + 4);
        self.pseudo_sum(IP + 8, 8);
        self.load(op::B, Reg::R2, IP + 6);
        self.checksum_field(IP + 40, compare, whole);
        self.asm.bind(compare);
        self.push(&[
            Insn::to_be(Reg::R2, 16),
            Insn::alu64(op::ADD, Reg::R3, Reg::R2),
        ]);
        self.fold(Reg::R3);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R3, Reg::R4), pass_to_userspace);
        self.asm.bind(whole);
    }

    fn pseudo_sum(&mut self, addresses: i16, words: i16) {
        for word in 0..words {
            self.load(op::W, Reg::R1, addresses + 4 * word);
            self.push(&[Insn::alu64(op::ADD, Reg::R3, Reg::R1)]);
        }
    }

    /// r4 receives the checksum field of TCP or UDP; r2 holds the protocol.
    fn checksum_field(&mut self, at: i16, compare: Label, none: Label) {
        let pass_to_userspace = self.pass_to_userspace;
        for (protocol, field) in [(6, 16), (17, 6)] {
            let other = self.asm.label();
            self.asm
                .jump(Insn::jump64(op::JNE, Reg::R2, protocol), other);
            self.within(at + field + 2, pass_to_userspace);
            self.load(op::H, Reg::R4, at + field);
            self.asm.goto(compare);
            self.asm.bind(other);
        }
        self.asm.goto(none);
    }
}
