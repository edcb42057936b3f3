//! The policy of a session: whether a frame is within the rate and the quota, and its outcome.
//!
//! ```text
//!  row ─► lease of this CPU ─────────► within ──────────────────────────► counted, goes on
//!           │ used up           └─────► over ───┐
//!           ▼                                   │
//!         policy ─► meter (GCRA) ────► within ─► quota ─────────────────► counted, goes on
//!                     │ over                  │    │ spent
//!                     └───────────────────────┴────┴─► counted as policed ─► drop, mark, portal
//! ```
//!
//! A CPU *leases* a quantum of bytes of the meter at a time, and passes frames from the lease
//! without touching the policy and its meter, which other CPUs use. What is leased is charged, so a
//! lease never lets more through than the rate and the burst. The lease also notes until when frames
//! are over that are no smaller than one that was: a meter's time never goes back.

use super::super::layout::{
    LEASE_BYTES, LEASE_CPUS, POLICY_BYTES, at, lease, place, policy as entry,
};
use super::{At, CTX, DirectionOf, Emit, FRAME, Routines, Spec, stack};
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

/// Of the routine: the lease of this CPU or 0, its note and then the policy, the frame's bytes, and the
/// row, then the policy's flags.
const LEASE: Reg = Reg::R6;
const NOTE: Reg = Reg::R7;
const POLICY: Reg = Reg::R7;
const BYTES: Reg = Reg::R8;
const ROW: Reg = Reg::R9;
const FLAGS: Reg = Reg::R9;
/// The key of a look-up in an array, on the routine's stack.
const INDEX: i16 = -4;

impl Emit<'_> {
    /// Stores the frame's outcome: 0, or an action with its code point.
    pub(super) fn police(&mut self, routines: &Routines) {
        if !self.spec.polices {
            return;
        }
        let done = self.asm.label();
        self.set(stack::POLICED, 0);
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::ROW)]);
        self.jump(op::JGE, Reg::R1, self.spec.subscribers as i32, done);
        let bytes = if self.spec.counts_ip {
            stack::IP_BYTES
        } else {
            stack::WIRE
        };
        self.push(&[Insn::load(op::DW, Reg::R2, Reg::FP, bytes)]);
        self.police_row(routines);
        self.asm.bind(done);
    }

    /// Stores the outcome of a frame of row r1 with r2 bytes.
    pub(super) fn police_row(&mut self, routines: &Routines) {
        self.asm.call(routines.police);
        self.push(&[Insn::store(op::DW, Reg::FP, stack::POLICED, Reg::R0)]);
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

/// The routine that gives the outcome of a frame of row r1 with r2 bytes: 0, or an action with its code
/// point.
pub(super) fn emit_police(asm: &mut Asm, spec: &Spec, police: Label, first_place: u16) {
    if !spec.polices {
        return;
    }
    let direction = match spec.direction_of {
        DirectionOf::One(direction) => direction,
        // Frames that may go either way are not policed.
        DirectionOf::Each(_) => Direction::Up,
    };
    let mut code = Routine {
        asm,
        first_place,
        direction: direction as i16,
    };
    let [ask, not_leased, used_up, within] = [(); 4].map(|()| code.asm.label());
    let [over, spent, quota] = [(); 3].map(|()| code.asm.label());
    code.asm.bind(police);
    code.asm.extend([
        Insn::mov64(ROW, Reg::R1),
        Insn::mov64(BYTES, Reg::R2),
        Insn::mov64(LEASE, 0),
        Insn::call(PROCESSOR_ID),
        Insn::mov64(Reg::R1, Reg::R0),
    ]);
    code.jump(op::JGE, Reg::R1, spec.lease_cpus as i32, ask);
    code.asm.extend([
        Insn::alu64(op::LSH, Reg::R1, 1),
        Insn::alu64(op::ADD, Reg::R1, direction as i32),
        Insn::alu64(op::MUL, Reg::R1, spec.subscribers as i32),
        Insn::alu64(op::ADD, Reg::R1, ROW),
    ]);
    code.look_up_r1(place::LEASES, ask);
    code.asm.extend([
        Insn::mov64(LEASE, Reg::R0),
        Insn::load(op::W, Reg::R1, LEASE, lease::KIND),
    ]);
    code.jump(op::JEQ, Reg::R1, lease::ALL, within);
    code.jump(op::JNE, Reg::R1, lease::SOME, not_leased);
    code.asm
        .push(Insn::load(op::H, Reg::R1, LEASE, lease::BYTES));
    code.asm
        .jump(Insn::jump64(op::JLT, Reg::R1, BYTES), used_up);
    code.asm.extend([
        Insn::alu64(op::SUB, Reg::R1, BYTES),
        Insn::store(op::H, LEASE, lease::BYTES, Reg::R1),
    ]);
    code.asm.goto(within);

    code.asm.bind(used_up);
    code.asm.extend([
        Insn::load(op::H, Reg::R1, LEASE, lease::LEAST),
        Insn::load(op::DW, NOTE, LEASE, lease::NOTE),
    ]);
    code.asm.jump(Insn::jump64(op::JGT, Reg::R1, BYTES), ask);
    code.jump(op::JEQ, NOTE, 0, ask);
    code.asm.extend([
        Insn::call(KTIME_GET_COARSE_NS),
        Insn::mov64(Reg::R1, NOTE),
        Insn::alu64(op::AND, Reg::R1, !entry::ACTION_MASK),
    ]);
    code.asm.jump(Insn::jump64(op::JGE, Reg::R0, Reg::R1), ask);
    code.asm.extend([
        Insn::mov64(Reg::R0, NOTE),
        Insn::alu64(op::AND, Reg::R0, entry::ACTION_MASK),
        Insn::exit(),
    ]);

    code.asm.bind(not_leased);
    code.asm.push(Insn::mov64(LEASE, 0));
    code.asm.bind(ask);
    code.asm.push(Insn::mov64(Reg::R1, ROW));
    code.look_up_r1(place::POLICIES, within);
    code.asm.extend([
        Insn::mov64(POLICY, Reg::R0),
        Insn::load(op::DW, FLAGS, POLICY, entry::FLAGS),
    ]);
    code.jump(op::JEQ, FLAGS, 0, within);
    code.rate(over, quota);
    code.asm.bind(quota);
    code.quota(spent, within);
    code.asm.bind(over);
    code.action(entry::OVER_SHIFT);
    code.asm.bind(spent);
    code.action(entry::SPENT_SHIFT);
    code.asm.bind(within);
    code.asm.extend([Insn::mov64(Reg::R0, 0), Insn::exit()]);
}

/// What makes the routine.
struct Routine<'a> {
    asm: &'a mut Asm,
    first_place: u16,
    direction: i16,
}

impl Routine<'_> {
    fn jump(&mut self, condition: u8, register: Reg, than: i32, to: Label) {
        self.asm.jump(Insn::jump64(condition, register, than), to);
    }

    /// r0 = value number r1 of an array.
    fn look_up_r1(&mut self, place: u16, none: Label) {
        self.asm.extend([
            Insn::store(op::W, Reg::FP, INDEX, Reg::R1),
            Insn::mov64(Reg::R2, Reg::FP),
            Insn::alu64(op::ADD, Reg::R2, i32::from(INDEX)),
        ]);
        self.asm
            .extend(Insn::load_map(Reg::R1, self.first_place + place));
        self.asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
        self.jump(op::JEQ, Reg::R0, 0, none);
    }

    /// Goes to `within` or `over`.
    fn rate(&mut self, over: Label, within: Label) {
        let meter = self.direction * entry::METER_BYTES;
        let [limited, single, needed, refused] = [(); 4].map(|()| self.asm.label());
        self.jump(op::JSET, FLAGS, entry::HAS_RATE << self.direction, limited);
        self.asm.goto(within);
        self.asm.bind(limited);
        self.clock();

        // A quantum for the lease, if that is more than the frame.
        self.jump(op::JEQ, LEASE, 0, single);
        self.asm.extend([
            Insn::load(op::DW, Reg::R2, POLICY, meter + entry::COST),
            Insn::alu64(op::RSH, Reg::R2, entry::COST_BITS),
        ]);
        self.asm.jump(Insn::jump64(op::JLE, Reg::R2, BYTES), single);
        self.charge(single, single);
        self.asm.extend([
            Insn::load(op::DW, Reg::R2, POLICY, meter + entry::COST),
            Insn::alu64(op::RSH, Reg::R2, entry::COST_BITS),
            Insn::load(op::H, Reg::R1, LEASE, lease::BYTES),
            Insn::alu64(op::ADD, Reg::R1, Reg::R2),
            Insn::alu64(op::SUB, Reg::R1, BYTES),
            Insn::store(op::H, LEASE, lease::BYTES, Reg::R1),
        ]);
        self.asm.goto(within);

        // Just what the frame needs beyond the lease.
        self.asm.bind(single);
        self.asm.push(Insn::mov64(Reg::R2, BYTES));
        self.jump(op::JEQ, LEASE, 0, needed);
        self.asm.extend([
            Insn::load(op::H, Reg::R1, LEASE, lease::BYTES),
            Insn::alu64(op::SUB, Reg::R2, Reg::R1),
        ]);
        // A program that has interrupted this one may have leased more than the frame.
        self.jump(JSGT, Reg::R2, 0, needed);
        self.asm.push(Insn::mov64(Reg::R2, 0));
        self.asm.bind(needed);
        self.charge(refused, over);
        self.jump(op::JEQ, LEASE, 0, within);
        self.asm.push(Insn::store(op::H, LEASE, lease::BYTES, 0));
        self.asm.goto(within);

        // The note: the time by the coarse clock, rounded down, with the action in its low bits.
        self.asm.bind(refused);
        self.jump(op::JEQ, LEASE, 0, over);
        self.jump(op::JSET, FLAGS, entry::IS_EXACT << self.direction, over);
        self.jump(op::JGT, BYTES, u16::MAX.into(), over);
        self.asm.extend([
            Insn::store(op::H, LEASE, lease::LEAST, BYTES),
            Insn::alu64(op::SUB, Reg::R1, Reg::R5),
            Insn::alu64(op::AND, Reg::R1, !entry::ACTION_MASK),
            Insn::mov64(Reg::R2, FLAGS),
            Insn::alu64(op::RSH, Reg::R2, entry::OVER_SHIFT),
            Insn::alu64(op::AND, Reg::R2, entry::ACTION_MASK),
            Insn::alu64(op::OR, Reg::R1, Reg::R2),
            Insn::store(op::DW, LEASE, lease::NOTE, Reg::R1),
        ]);
        self.asm.goto(over);
    }

    /// r3 = the time: by the exact clock if the coarse one errs too much for the rate.
    fn clock(&mut self) {
        let [exact, read] = [(); 2].map(|()| self.asm.label());
        self.jump(op::JSET, FLAGS, entry::IS_EXACT << self.direction, exact);
        self.asm.push(Insn::call(KTIME_GET_COARSE_NS));
        self.asm.goto(read);
        self.asm.bind(exact);
        self.asm.push(Insn::call(helper::KTIME_GET_NS));
        self.asm.bind(read);
        self.asm.push(Insn::mov64(Reg::R3, Reg::R0));
    }

    /// Charges the meter with r2 bytes at time r3. If they do not conform, goes to `refused`: they do at
    /// time r1 less r5. If other CPUs charge it all the while, goes to `busy`. r3 stays.
    fn charge(&mut self, refused: Label, busy: Label) {
        let meter = self.direction * entry::METER_BYTES;
        let (cost, tolerance, next, scratch) = (Reg::R2, Reg::R5, Reg::R1, Reg::R4);
        let charged = self.asm.label();
        let unused = 64 - entry::COST_BITS;
        self.asm.extend([
            Insn::load(op::DW, scratch, POLICY, meter + entry::COST),
            Insn::alu64(op::LSH, scratch, unused),
            Insn::alu64(op::RSH, scratch, unused),
            Insn::alu64(op::MUL, cost, scratch),
            Insn::alu64(op::RSH, cost, COST_SHIFT as i32),
            Insn::load(op::DW, tolerance, POLICY, meter + entry::TOLERANCE),
        ]);
        for _ in 0..ATTEMPTS {
            let later = self.asm.label();
            self.asm.extend([
                Insn::load(op::DW, Reg::R0, POLICY, meter + entry::TAT),
                Insn::mov64(next, Reg::R0),
            ]);
            self.asm.jump(Insn::jump64(op::JGE, next, Reg::R3), later);
            self.asm.push(Insn::mov64(next, Reg::R3));
            self.asm.bind(later);
            self.asm.extend([
                Insn::alu64(op::ADD, next, cost),
                Insn::mov64(scratch, next),
                Insn::alu64(op::SUB, scratch, Reg::R3),
            ]);
            self.asm
                .jump(Insn::jump64(op::JGT, scratch, tolerance), refused);
            self.asm.extend([
                Insn::mov64(scratch, Reg::R0),
                compare_exchange(POLICY, meter + entry::TAT, next),
            ]);
            self.asm
                .jump(Insn::jump64(op::JEQ, Reg::R0, scratch), charged);
        }
        self.asm.goto(busy);
        self.asm.bind(charged);
    }

    /// Takes the frame from the quota. The frame that uses it up passes.
    fn quota(&mut self, spent: Label, within: Label) {
        let limited = self.asm.label();
        self.jump(op::JSET, FLAGS, entry::HAS_QUOTA, limited);
        self.asm.goto(within);
        self.asm.bind(limited);
        self.asm
            .push(Insn::load(op::DW, Reg::R1, POLICY, entry::QUOTA));
        self.asm.jump(Insn::jump64(JSLE, Reg::R1, 0), spent);
        self.asm.extend([
            Insn::mov64(Reg::R1, 0),
            Insn::alu64(op::SUB, Reg::R1, BYTES),
            fetch_add(POLICY, entry::QUOTA, Reg::R1),
        ]);
        self.asm.jump(Insn::jump64(JSGT, Reg::R1, 0), within);
        self.asm.goto(spent);
    }

    /// Ends with the action that stands at this bit of the flags.
    fn action(&mut self, shift: i32) {
        self.asm.extend([
            Insn::mov64(Reg::R0, FLAGS),
            Insn::alu64(op::RSH, Reg::R0, shift),
            Insn::alu64(op::AND, Reg::R0, entry::ACTION_MASK),
            Insn::exit(),
        ]);
    }
}

const _: () = assert!(POLICY_BYTES == 64 && LEASE_BYTES == 16 && LEASE_CPUS <= 64);
