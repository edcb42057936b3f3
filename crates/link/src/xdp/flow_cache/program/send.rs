//! Rewrites headers, and sends or drops the frame.

use super::{COUNTS, CTX, ENTRY, Emit, FRAME, IP, LEN, SEND, TYPE, place, wire};
use crate::xdp::abi::{XDP_ADJUST_TAIL, XDP_DROP, XDP_REDIRECT};
use crate::xdp::flow_cache::key::value;
use crate::xdp::flow_cache::slot;
use weir_filter::backend::ebpf::{Insn, Reg, helper, op};

impl Emit<'_> {
    /// Routing: removes padding, sets the MAC addresses, decrements the TTL.
    pub(super) fn rewrite_headers(&mut self) {
        let [whole, done, v6] = [(); 3].map(|()| self.asm.label());
        self.push(&[
            Insn::load(op::DW, Reg::R2, Reg::FP, SEND),
            Insn::load(op::DW, Reg::R1, Reg::FP, LEN),
        ]);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, Reg::R2), whole);
        self.push(&[
            Insn::alu64(op::SUB, Reg::R2, Reg::R1),
            Insn::mov64(Reg::R1, CTX),
            Insn::call(XDP_ADJUST_TAIL),
        ]);
        self.pass_to_userspace_if(op::JNE, Reg::R0, 0);
        self.find_frame();
        self.asm.bind(whole);
        let pass_to_userspace = self.pass_to_userspace;
        self.within(IP + 20, pass_to_userspace);
        for word in 0..3 {
            let at = value::MACS + 4 * word;
            self.push(&[
                Insn::load(op::W, Reg::R1, ENTRY, at),
                Insn::store(op::W, FRAME, 4 * word, Reg::R1),
            ]);
        }
        self.load(op::H, Reg::R1, TYPE);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, wire(0x86dd)), v6);
        self.decrement_hop_limit(IP + 8);
        // RFC 1624, equation 3: the TTL is the word's high byte.
        self.load(op::H, Reg::R1, IP + 10);
        self.push(&[
            Insn::to_be(Reg::R1, 16),
            Insn::alu64(op::XOR, Reg::R1, 0xffff),
            Insn::alu64(op::ADD, Reg::R1, 0xfeff),
            Insn::mov64(Reg::R2, Reg::R1),
            Insn::alu64(op::RSH, Reg::R2, 16),
            Insn::alu64(op::AND, Reg::R1, 0xffff),
            Insn::alu64(op::ADD, Reg::R1, Reg::R2),
            Insn::alu64(op::XOR, Reg::R1, 0xffff),
            Insn::to_be(Reg::R1, 16),
            Insn::store(op::H, FRAME, IP + 10, Reg::R1),
        ]);
        self.asm.goto(done);
        self.asm.bind(v6);
        self.decrement_hop_limit(IP + 7);
        self.asm.bind(done);
    }

    fn decrement_hop_limit(&mut self, at: i16) {
        self.load(op::B, Reg::R1, at);
        self.push(&[
            Insn::alu64(op::SUB, Reg::R1, 1),
            Insn::store(op::B, FRAME, at, Reg::R1),
        ]);
    }

    /// Sends or drops the frame, and counts it in this CPU's cells.
    pub(super) fn send(&mut self) {
        let [dropped, count, done] = [(); 3].map(|()| self.asm.label());
        const VERDICT: Reg = FRAME;
        self.count();
        self.push(&[Insn::load(op::W, Reg::R1, ENTRY, value::HOW)]);
        for drop in [value::DROP, value::DROP_FLOW] {
            self.asm.jump(Insn::jump64(op::JEQ, Reg::R1, drop), dropped);
        }
        self.push(&Insn::load_map(Reg::R1, place::OUTS));
        self.push(&[
            Insn::load(op::W, Reg::R2, ENTRY, value::OUT),
            Insn::mov64(Reg::R3, XDP_DROP),
            Insn::call(helper::REDIRECT_MAP),
            Insn::mov64(VERDICT, Reg::R0),
        ]);
        self.asm
            .jump(Insn::jump32(op::JNE, Reg::R0, XDP_REDIRECT), done);
        self.asm.goto(count);
        self.asm.bind(dropped);
        self.push(&[Insn::mov64(VERDICT, XDP_DROP)]);
        self.asm.bind(count);
        self.push(&[
            Insn::load(op::DW, Reg::R0, Reg::FP, COUNTS),
            Insn::load(op::DW, Reg::R1, Reg::R0, slot::FRAMES),
            Insn::alu64(op::ADD, Reg::R1, 1),
            Insn::store(op::DW, Reg::R0, slot::FRAMES, Reg::R1),
            Insn::load(op::DW, Reg::R1, Reg::R0, slot::BYTES_SENT),
            Insn::load(op::DW, Reg::R2, Reg::FP, SEND),
            Insn::alu64(op::ADD, Reg::R1, Reg::R2),
            Insn::store(op::DW, Reg::R0, slot::BYTES_SENT, Reg::R1),
        ]);
        self.asm.bind(done);
        self.push(&[Insn::mov64(Reg::R0, VERDICT), Insn::exit()]);
    }
}
