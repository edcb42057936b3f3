//! The policy of a session: whether a frame is within the rate and the quota, and its outcome.
//!
//! ```text
//!  row ─► policy ─► lease of this CPU ──┐
//!           │         │ used up         ├─► within ─► quota ─► counted, goes on
//!           │         ▼                 │               │ spent
//!           └──────► meter (GCRA) ──────┘               ▼
//!                     │ over ─────────────────► counted as policed ─► drop, mark, portal
//! ```
//!
//! A CPU *leases* a quantum of bytes of the meter at a time, and passes frames from the lease
//! without touching the meter, which other CPUs use. What is leased is charged, so a lease never
//! lets more through than the rate and the burst.

use super::super::layout::{LEASE_BYTES, LEASE_CPUS, POLICY_BYTES, at, place, policy as entry};
use super::{At, CTX, Emit, FRAME, Routines, Spec, stack};
use crate::xdp::abi::{
    JSGT, JSLE, KTIME_GET_COARSE_NS, PROCESSOR_ID, XDP_DROP, compare_exchange, fetch_add,
};
use weir_filter::backend::ebpf::{Asm, Insn, Label, Reg, helper, op};
use weir_meter::Direction;
use weir_meter::policy::COST_SHIFT;

/// `TC_ACT_SHOT`.
const TC_ACT_SHOT: i32 = 2;
/// `bpf_skb_store_bytes(skb, offset, from, len, flags)`. Linux 4.1.
const SKB_STORE_BYTES: i32 = 9;
/// `bpf_l3_csum_replace(skb, offset, from, to, size)`. Linux 4.1.
const L3_CSUM_REPLACE: i32 = 10;

/// Attempts to charge a meter while other CPUs do: then the frame counts as over.
const ATTEMPTS: usize = 4;

/// The policy, the frame's bytes, and the policy's flags.
const POLICY: Reg = Reg::R7;
const BYTES: Reg = Reg::R8;
const FLAGS: Reg = Reg::R9;

impl Emit<'_> {
    /// Stores the frame's outcome: 0, or an action with its code point.
    pub(super) fn police(&mut self, routines: &Routines) {
        if !self.spec.polices {
            return;
        }
        let [over, spent, quota, done] = [(); 4].map(|()| self.asm.label());
        self.set(stack::POLICED, 0);
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::ROW)]);
        self.jump(op::JGE, Reg::R1, self.spec.subscribers as i32, done);
        self.look_up_r1(place::POLICIES, done);
        let bytes = if self.spec.counts_ip {
            stack::IP_BYTES
        } else {
            stack::WIRE
        };
        self.push(&[
            Insn::mov64(POLICY, Reg::R0),
            Insn::load(op::DW, FLAGS, POLICY, entry::FLAGS),
            Insn::load(op::DW, BYTES, Reg::FP, bytes),
        ]);
        self.jump(op::JEQ, FLAGS, 0, done);
        self.rate(routines, over, quota);
        self.asm.bind(quota);
        self.quota(spent, done);
        self.asm.bind(over);
        self.action(entry::OVER_SHIFT);
        self.asm.goto(done);
        self.asm.bind(spent);
        self.action(entry::SPENT_SHIFT);
        self.asm.bind(done);
    }

    /// Goes to `within` or `over`.
    fn rate(&mut self, routines: &Routines, over: Label, within: Label) {
        // Frames that may go either way are not policed.
        let direction = self.direction.unwrap_or(Direction::Up) as i16;
        let meter = direction * entry::METER_BYTES;
        let [direct, single] = [(); 2].map(|()| self.asm.label());
        self.jump(op::JSET, FLAGS, entry::HAS_RATE << direction, direct);
        self.asm.goto(within);
        self.asm.bind(direct);

        // The lease of this CPU.
        let [no_lease, refill] = [(); 2].map(|()| self.asm.label());
        self.set(stack::LEASE, 0);
        self.push(&[Insn::call(PROCESSOR_ID), Insn::mov64(Reg::R1, Reg::R0)]);
        self.jump(op::JGE, Reg::R1, self.spec.lease_cpus as i32, no_lease);
        self.push(&[
            Insn::alu64(op::MUL, Reg::R1, self.spec.subscribers as i32),
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::ROW),
            Insn::alu64(op::ADD, Reg::R1, Reg::R2),
        ]);
        self.look_up_r1(place::LEASES, no_lease);
        let lease = direction * LEASE_BYTES as i16 / 2;
        self.push(&[
            Insn::store(op::DW, Reg::FP, stack::LEASE, Reg::R0),
            Insn::load(op::W, Reg::R1, Reg::R0, lease),
        ]);
        self.asm.jump(Insn::jump64(op::JLT, Reg::R1, BYTES), refill);
        self.push(&[
            Insn::alu64(op::SUB, Reg::R1, BYTES),
            Insn::store(op::W, Reg::R0, lease, Reg::R1),
        ]);
        self.asm.goto(within);

        // A quantum, if that is more than the frame.
        self.asm.bind(refill);
        self.clock(direction);
        self.push(&[
            Insn::load(op::DW, Reg::R2, POLICY, meter + entry::COST),
            Insn::alu64(op::RSH, Reg::R2, entry::COST_BITS),
        ]);
        self.asm.jump(Insn::jump64(op::JLE, Reg::R2, BYTES), single);
        self.push(&[Insn::store(op::DW, Reg::FP, stack::TAKEN, Reg::R2)]);
        self.charge(routines, meter);
        self.jump(op::JEQ, Reg::R0, 0, single);
        let lost = self.asm.label();
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::LEASE)]);
        self.jump(op::JEQ, Reg::R1, 0, lost);
        self.push(&[
            Insn::load(op::W, Reg::R2, Reg::R1, lease),
            Insn::load(op::DW, Reg::R3, Reg::FP, stack::TAKEN),
            Insn::alu64(op::ADD, Reg::R2, Reg::R3),
            Insn::alu64(op::SUB, Reg::R2, BYTES),
            Insn::store(op::W, Reg::R1, lease, Reg::R2),
        ]);
        self.asm.bind(lost);
        self.asm.goto(within);

        // Just what the frame needs beyond the lease.
        self.asm.bind(single);
        let lost = self.asm.label();
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::LEASE)]);
        self.jump(op::JEQ, Reg::R1, 0, lost);
        self.push(&[
            Insn::load(op::W, Reg::R3, Reg::R1, lease),
            Insn::mov64(Reg::R2, BYTES),
            Insn::alu64(op::SUB, Reg::R2, Reg::R3),
        ]);
        self.charge(routines, meter);
        self.jump(op::JEQ, Reg::R0, 0, over);
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::LEASE)]);
        self.jump(op::JEQ, Reg::R1, 0, lost);
        self.push(&[Insn::store(op::W, Reg::R1, lease, 0)]);
        self.asm.goto(within);

        self.asm.bind(no_lease);
        self.clock(direction);
        self.asm.bind(lost);
        self.push(&[Insn::mov64(Reg::R2, BYTES)]);
        self.charge(routines, meter);
        self.jump(op::JEQ, Reg::R0, 0, over);
        self.asm.goto(within);
    }

    /// Stores the time: by the exact clock if the coarse one errs too much for the rate.
    fn clock(&mut self, direction: i16) {
        let [exact, read] = [(); 2].map(|()| self.asm.label());
        self.jump(op::JSET, FLAGS, entry::IS_EXACT << direction, exact);
        self.push(&[Insn::call(KTIME_GET_COARSE_NS)]);
        self.asm.goto(read);
        self.asm.bind(exact);
        self.push(&[Insn::call(helper::KTIME_GET_NS)]);
        self.asm.bind(read);
        self.push(&[Insn::store(op::DW, Reg::FP, stack::NOW, Reg::R0)]);
    }

    /// Charges the meter with r2 bytes; r0 is 1 if they conform, else 0.
    fn charge(&mut self, routines: &Routines, meter: i16) {
        self.push(&[
            Insn::mov64(Reg::R1, POLICY),
            Insn::alu64(op::ADD, Reg::R1, i32::from(meter)),
            Insn::load(op::DW, Reg::R3, Reg::FP, stack::NOW),
        ]);
        self.asm.call(routines.charge);
    }

    /// Takes the frame from the quota. The frame that uses it up passes.
    fn quota(&mut self, spent: Label, done: Label) {
        let limited = self.asm.label();
        self.jump(op::JSET, FLAGS, entry::HAS_QUOTA, limited);
        self.asm.goto(done);
        self.asm.bind(limited);
        self.push(&[Insn::load(op::DW, Reg::R1, POLICY, entry::QUOTA)]);
        self.asm.jump(Insn::jump64(JSLE, Reg::R1, 0), spent);
        self.push(&[
            Insn::mov64(Reg::R1, 0),
            Insn::alu64(op::SUB, Reg::R1, BYTES),
            fetch_add(POLICY, entry::QUOTA, Reg::R1),
        ]);
        self.asm.jump(Insn::jump64(JSGT, Reg::R1, 0), done);
        self.asm.goto(spent);
    }

    /// Stores the action that stands at this bit of the flags.
    fn action(&mut self, shift: i32) {
        self.push(&[
            Insn::mov64(Reg::R1, FLAGS),
            Insn::alu64(op::RSH, Reg::R1, shift),
            Insn::alu64(op::AND, Reg::R1, entry::ACTION_MASK),
            Insn::store(op::DW, Reg::FP, stack::POLICED, Reg::R1),
        ]);
    }

    /// Does with the frame what was decided, after it was counted.
    pub(super) fn act(&mut self) {
        if !self.spec.polices {
            return;
        }
        let [mark, portal, drop, on] = [(); 4].map(|()| self.asm.label());
        self.push(&[
            Insn::load(op::DW, Reg::R9, Reg::FP, stack::POLICED),
            Insn::mov64(Reg::R1, Reg::R9),
            Insn::alu64(op::AND, Reg::R1, entry::KIND_MASK),
        ]);
        self.jump(op::JEQ, Reg::R1, 0, on);
        self.jump(op::JEQ, Reg::R1, entry::MARK, mark);
        self.jump(op::JEQ, Reg::R1, entry::PORTAL, portal);
        self.asm.bind(drop);
        let dropped = match self.hook {
            At::Xdp | At::Routine | At::Process => XDP_DROP,
            At::Tc => TC_ACT_SHOT,
        };
        self.push(&[Insn::mov32(Reg::R0, dropped), Insn::exit()]);
        self.asm.bind(portal);
        self.value_of(Reg::R2, place::CONTROL);
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::R2, at::PORTAL as i16)]);
        self.jump(op::JEQ, Reg::R1, 0, drop);
        self.push(&[
            Insn::mov64(Reg::R2, 0),
            Insn::call(helper::REDIRECT),
            Insn::exit(),
        ]);
        self.asm.bind(mark);
        self.push(&[Insn::alu64(op::RSH, Reg::R9, entry::CODE_POINT_SHIFT)]);
        self.mark(on);
        self.asm.bind(on);
    }

    /// Puts code point r9 into the packet, if the frame has one, and goes to `on`.
    fn mark(&mut self, on: Label) {
        let [v4, v6] = [(); 2].map(|()| self.asm.label());
        self.load_frame();
        self.push(&[
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::START),
            Insn::alu64(op::AND, Reg::R2, super::parse::START_MASK),
            Insn::alu64(op::ADD, FRAME, Reg::R2),
            Insn::load(op::DW, Reg::R5, Reg::FP, stack::FAMILY),
        ]);
        self.within(FRAME, 20, on);
        self.jump(op::JEQ, Reg::R5, super::kind::V4 as i32, v4);
        self.jump(op::JEQ, Reg::R5, super::kind::V6 as i32, v6);
        self.asm.goto(on);
        self.asm.bind(v4);
        // r3: the first word as it is, r4: marked.
        self.push(&[
            Insn::load(op::H, Reg::R3, FRAME, 0),
            Insn::to_be(Reg::R3, 16),
            Insn::mov64(Reg::R4, Reg::R3),
            Insn::alu64(op::AND, Reg::R4, 0xff03),
            Insn::alu64(op::LSH, Reg::R9, 2),
            Insn::alu64(op::OR, Reg::R4, Reg::R9),
        ]);
        match self.hook {
            At::Xdp | At::Routine | At::Process => self.push(&[
                Insn::store(op::B, FRAME, 1, Reg::R4),
                // RFC 1624 equation 3.
                Insn::load(op::H, Reg::R5, FRAME, 10),
                Insn::to_be(Reg::R5, 16),
                Insn::alu64(op::XOR, Reg::R5, 0xffff),
                Insn::alu64(op::XOR, Reg::R3, 0xffff),
                Insn::alu64(op::ADD, Reg::R5, Reg::R3),
                Insn::alu64(op::ADD, Reg::R5, Reg::R4),
                Insn::mov64(Reg::R3, Reg::R5),
                Insn::alu64(op::RSH, Reg::R3, 16),
                Insn::alu64(op::AND, Reg::R5, 0xffff),
                Insn::alu64(op::ADD, Reg::R5, Reg::R3),
                Insn::mov64(Reg::R3, Reg::R5),
                Insn::alu64(op::RSH, Reg::R3, 16),
                Insn::alu64(op::ADD, Reg::R5, Reg::R3),
                Insn::alu64(op::XOR, Reg::R5, 0xffff),
                Insn::alu64(op::AND, Reg::R5, 0xffff),
                Insn::to_be(Reg::R5, 16),
                Insn::store(op::H, FRAME, 10, Reg::R5),
            ]),
            At::Tc => {
                // Helpers, since a program that writes by itself gets its own copy of every frame.
                self.push(&[
                    Insn::store(op::DW, Reg::FP, stack::NOW, Reg::R4),
                    Insn::to_be(Reg::R3, 16),
                    Insn::to_be(Reg::R4, 16),
                    Insn::mov64(Reg::R5, 2),
                    Insn::load(op::DW, Reg::R2, Reg::FP, stack::START),
                    Insn::alu64(op::ADD, Reg::R2, 10),
                    Insn::mov64(Reg::R1, CTX),
                    Insn::call(L3_CSUM_REPLACE),
                    Insn::load(op::DW, Reg::R3, Reg::FP, stack::NOW),
                    Insn::store(op::B, Reg::FP, stack::NOW, Reg::R3),
                    Insn::load(op::DW, Reg::R2, Reg::FP, stack::START),
                    Insn::alu64(op::ADD, Reg::R2, 1),
                ]);
                self.store_bytes(1);
            }
        }
        self.asm.goto(on);
        self.asm.bind(v6);
        self.push(&[
            Insn::load(op::H, Reg::R4, FRAME, 0),
            Insn::to_be(Reg::R4, 16),
            Insn::alu64(op::AND, Reg::R4, 0xf03f),
            Insn::alu64(op::LSH, Reg::R9, 6),
            Insn::alu64(op::OR, Reg::R4, Reg::R9),
            Insn::to_be(Reg::R4, 16),
        ]);
        match self.hook {
            At::Xdp | At::Routine | At::Process => {
                self.push(&[Insn::store(op::H, FRAME, 0, Reg::R4)])
            }
            At::Tc => {
                self.push(&[
                    Insn::store(op::H, Reg::FP, stack::NOW, Reg::R4),
                    Insn::load(op::DW, Reg::R2, Reg::FP, stack::START),
                ]);
                self.store_bytes(2);
            }
        }
    }

    /// Writes this many bytes, of [`stack::NOW`], at r2 of the frame.
    fn store_bytes(&mut self, bytes: i32) {
        self.push(&[
            Insn::mov64(Reg::R1, CTX),
            Insn::mov64(Reg::R3, Reg::FP),
            Insn::alu64(op::ADD, Reg::R3, i32::from(stack::NOW)),
            Insn::mov64(Reg::R4, bytes),
            Insn::mov64(Reg::R5, 0),
            Insn::call(SKB_STORE_BYTES),
        ]);
    }
}

/// The routine that charges the meter at r1 with r2 bytes at time r3; 1 if they conform, else 0.
pub(super) fn emit_charge(asm: &mut Asm, spec: &Spec, charge: Label) {
    if !spec.polices {
        return;
    }
    let (cost, tolerance, next, ahead, before) = (Reg::R2, Reg::R5, Reg::R4, Reg::R6, Reg::R7);
    let over = asm.label();
    asm.bind(charge);
    let unused = 64 - entry::COST_BITS;
    asm.extend([
        Insn::load(op::DW, Reg::R4, Reg::R1, entry::COST),
        Insn::alu64(op::LSH, Reg::R4, unused),
        Insn::alu64(op::RSH, Reg::R4, unused),
        Insn::alu64(op::MUL, cost, Reg::R4),
        Insn::alu64(op::RSH, cost, COST_SHIFT as i32),
        Insn::load(op::DW, tolerance, Reg::R1, entry::TOLERANCE),
    ]);
    for _ in 0..ATTEMPTS {
        let [later, again] = [(); 2].map(|()| asm.label());
        asm.extend([
            Insn::load(op::DW, Reg::R0, Reg::R1, entry::TAT),
            Insn::mov64(before, Reg::R0),
            Insn::mov64(next, Reg::R0),
        ]);
        asm.jump(Insn::jump64(op::JGE, next, Reg::R3), later);
        asm.push(Insn::mov64(next, Reg::R3));
        asm.bind(later);
        asm.extend([
            Insn::alu64(op::ADD, next, cost),
            Insn::mov64(ahead, next),
            Insn::alu64(op::SUB, ahead, Reg::R3),
        ]);
        asm.jump(Insn::jump64(op::JGT, ahead, tolerance), over);
        asm.push(compare_exchange(Reg::R1, entry::TAT, next));
        asm.jump(Insn::jump64(op::JNE, Reg::R0, before), again);
        asm.extend([Insn::mov64(Reg::R0, 1), Insn::exit()]);
        asm.bind(again);
    }
    asm.bind(over);
    asm.extend([Insn::mov64(Reg::R0, 0), Insn::exit()]);
}

const _: () = assert!(POLICY_BYTES == 64 && LEASE_BYTES == 8 && LEASE_CPUS <= 64);
