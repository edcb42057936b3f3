//! The stage: generated code that counts a frame, at the beginning of a program at XDP or tc, or as its
//! function where the frame's way is decided.
//!
//! ```text
//!  bank ─► fields of the frame ─► row: key's, else unknown address's, else overflow
//!  (once)  parse.rs                │  find.rs
//!                                  ▼
//!                       class: tables, filters ─► cell and total += packets, bytes ─► measures
//!                       classify.rs               count.rs                           measure.rs
//! ```
//!
//! The frames that are most have a short way (quick.rs). The bank is read once, so that a cell and a
//! total are always of the same bank, and before the row is looked up, so that a row of a session that
//! ended before a cut has no counts after it. Whatever the frame is, it is counted in exactly one cell.
//! With policies, its outcome is decided before it is counted, and done afterwards (police.rs).

mod classify;
mod count;
mod find;
mod measure;
mod parse;
mod police;
mod process;
mod quick;
#[cfg(test)]
mod tests;
mod v4;

pub(in crate::xdp) use process::{count_program, emit_handed, settle_program};

use super::layout::{at, kind, place};
use super::measures::Measured;
use crate::xdp::abi::{DATA, DATA_END};
use weir_filter::backend::ebpf::{Asm, EmitError, Insn, Label, Reg, helper, op};
use weir_filter::ir::Program as Filter;
use weir_meter::Direction;

/// Where the first map of a stage has a word that is zero, which the verifier does not know.
pub(in crate::xdp) const ZERO: i16 = at::ZERO as i16;

const CTX: Reg = Reg::R6;
const FRAME: Reg = Reg::R7;
const END: Reg = Reg::R8;

/// On the stack, 8 bytes each.
mod stack {
    pub(super) const BANK: i16 = -8;
    /// Bytes on the wire to count.
    pub(super) const WIRE: i16 = -16;
    pub(super) const PACKETS: i16 = -24;
    pub(super) const IP_BYTES: i16 = -32;
    /// Where the IP packet starts in the frame.
    pub(super) const START: i16 = -40;
    pub(super) const OUTER: i16 = -48;
    pub(super) const INNER: i16 = -56;
    /// The session with bit 16, or 0.
    pub(super) const PPPOE: i16 = -64;
    /// `kind::V4`, `kind::V6` or 0: that of the address.
    pub(super) const FAMILY: i16 = -72;
    pub(super) const ADDRESS: i16 = -80;
    pub(super) const ADDRESS_REST: i16 = -88;
    pub(super) const PROTOCOL: i16 = -96;
    pub(super) const TRANSPORT: i16 = -104;
    pub(super) const SRC_PORT: i16 = -112;
    pub(super) const DST_PORT: i16 = -120;
    pub(super) const CLASS: i16 = -128;
    pub(super) const ROW: i16 = -136;
    /// The key of a look-up in an array.
    pub(super) const INDEX: i16 = -144;
    /// Where the transport header starts in the frame.
    pub(super) const TRANSPORT_AT: i16 = -152;
    /// Bytes of the frame as the hook has it.
    pub(super) const LENGTH: i16 = -160;
    /// 0, or the outcome of a policed frame.
    pub(super) const POLICED: i16 = -168;
    /// The number of the frame's cell, when it is counted.
    pub(super) const NUMBER: i16 = -176;
    /// The time.
    pub(super) const NOW: i16 = -184;
    /// Of a frame that may go either way: its direction, and the destination address.
    pub(super) const DIRECTION: i16 = -192;
    pub(super) const OTHER: i16 = -200;
    pub(super) const OTHER_REST: i16 = -208;
    pub(super) const TOP: i16 = -208;
    /// With measures: the frame's cell.
    pub(super) const CELL: i16 = -216;
    /// The protocol of a fragment.
    pub(super) const FRAGMENT: i16 = -224;
    /// The common part of a flow's packets.
    pub(super) const FLOW: i16 = -272;
    pub(super) const TOP_MEASURES: i16 = -272;
}

/// Kinds of what a packet carries, as [`stack::TRANSPORT`] has them.
mod transport {
    pub(super) const NOT_IP: i32 = 0;
    pub(super) const FRAGMENT: i32 = 1;
    pub(super) const PORTLESS: i32 = 2;
    pub(super) const PORTS: i32 = 3;
}

/// Where the stage runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::xdp) enum At {
    Xdp,
    Tc,
    /// In a routine of a program at XDP, which says how long the frame was when it came.
    Routine,
    /// As [`Routine`](At::Routine), of a program that a process runs by a system call: other
    /// programs of the CPU may interrupt it.
    Process,
}

/// The parameters of a stage.
#[derive(Clone, Debug)]
pub(in crate::xdp) struct Spec {
    pub(super) seed: u64,
    pub(super) subscribers: u32,
    pub(super) slot_pages: u32,
    pub(super) v4_lines: u32,
    pub(super) unknown_pages: u32,
    /// Services that the configuration lists; four classes follow.
    pub(super) listed: u16,
    /// Services by filter, by number.
    pub(super) filters: Vec<(u16, Filter)>,
    pub(super) counts_ip: bool,
    /// Whether frames are policed.
    pub(super) polices: bool,
    /// Bytes of a total.
    pub(super) total: u32,
    /// Pages of `carry`: of the overflow row, and shared.
    pub(super) carry_pages: (u32, u32),
    pub(super) lease_cpus: u32,
    pub(super) measures: Vec<Measured>,
    pub(super) flow_pages: u32,
    pub(super) flow_idle_ns: u64,
    /// Whether the table of unknown keys notes when each was entered.
    pub(super) adopts: bool,
    pub(super) direction_of: DirectionOf,
}

/// Which way frames go.
#[derive(Clone, Debug)]
pub(super) enum DirectionOf {
    /// All the same way.
    One(Direction),
    /// Up what this says, and down all else.
    Each(Up),
}

/// The test for frames that go up.
#[derive(Clone, Debug)]
pub(super) enum Up {
    /// Its source is a session's.
    Sessions,
    /// Its source address is in one of these: values and masks, and the kind of address.
    Prefixes(Vec<([u64; 2], [u64; 2], u32)>),
    /// A filter accepts it.
    Filter(Filter),
}

impl Spec {
    pub(super) fn classes(&self) -> u32 {
        u32::from(self.listed) + 4
    }

    pub(super) fn unknown(&self) -> u32 {
        self.unknown_pages * super::layout::SLOTS
    }

    pub(super) fn has_flows(&self) -> bool {
        self.flow_pages > 0
    }

    /// Where the stack ends that the stage's own fields take.
    pub(super) fn stack_top(&self) -> i16 {
        if self.measures.is_empty() {
            stack::TOP
        } else {
            stack::TOP_MEASURES
        }
    }

    /// Rows of a bank: of sessions, of unknown keys, of the overflow.
    pub(super) fn rows(&self) -> u32 {
        self.subscribers + self.unknown() + 1
    }
}

/// Routines of the stage, to be added behind the program.
#[must_use]
pub(in crate::xdp) struct Routines {
    find: Label,
    v4: Label,
    claim: Label,
    police: Label,
    flow: Label,
    pub(super) carry: Label,
    first_place: u16,
}

impl Routines {
    fn new(asm: &mut Asm, first_place: u16) -> Routines {
        Routines {
            find: asm.label(),
            v4: asm.label(),
            claim: asm.label(),
            police: asm.label(),
            flow: asm.label(),
            carry: asm.label(),
            first_place,
        }
    }
}

/// Adds the stage. The context is in r1 before and in r6 after it; all other registers are lost.
/// The stage's maps begin at `first_place`.
pub(in crate::xdp) fn emit(
    asm: &mut Asm,
    spec: &Spec,
    hook: At,
    first_place: u16,
) -> Result<Routines, EmitError> {
    emit_with(asm, spec, (hook, first_place), |emit, routines| {
        emit.general(routines)
    })
}

/// As [`emit`], with this as the general way.
fn emit_with(
    asm: &mut Asm,
    spec: &Spec,
    (hook, first_place): (At, u16),
    general: impl FnOnce(&mut Emit<'_>, &Routines) -> Result<(), EmitError>,
) -> Result<Routines, EmitError> {
    let routines = Routines::new(asm, first_place);
    let mut emit = Emit {
        asm,
        spec,
        hook,
        first_place,
        is_sum: false,
        direction: match spec.direction_of {
            DirectionOf::One(direction) => Some(direction),
            DirectionOf::Each(_) => None,
        },
    };
    let done = emit.asm.label();
    emit.quick(&routines, done);
    general(&mut emit, &routines)?;
    emit.asm.bind(done);
    emit.act();
    Ok(routines)
}

/// Adds the stage as a routine at `routine`, for a program that counts a frame when it has decided:
/// r1 is the context, and r2 the bytes of the frame as it came.
pub(in crate::xdp) fn emit_routine(
    asm: &mut Asm,
    spec: &Spec,
    hook: At,
    (routine, first_place): (Label, u16),
) -> Result<(), EmitError> {
    asm.bind(routine);
    let routines = emit(asm, spec, hook, first_place)?;
    asm.extend([Insn::mov64(Reg::R0, 0), Insn::exit()]);
    emit_routines(asm, spec, routines);
    Ok(())
}

/// Adds the routines of a stage that was emitted.
pub(in crate::xdp) fn emit_routines(asm: &mut Asm, spec: &Spec, routines: Routines) {
    v4::emit_v4(asm, spec, routines.v4, routines.first_place);
    find::emit_find(asm, spec, routines.find, routines.first_place);
    find::emit_claim(asm, spec, routines.claim, routines.first_place);
    police::emit_police(asm, spec, routines.police, routines.first_place);
    count::emit_carry(asm, spec, routines.carry, routines.first_place);
    measure::emit_flow(asm, spec, routines.flow, routines.first_place);
}

struct Emit<'a> {
    asm: &'a mut Asm,
    spec: &'a Spec,
    hook: At,
    first_place: u16,
    /// Whether what is counted is no frame but the sum of many.
    is_sum: bool,
    /// `None` if each frame says it: [`stack::DIRECTION`].
    direction: Option<Direction>,
}

/// Offsets in `struct __sk_buff`.
mod skb {
    pub(super) const LEN: i16 = 0;
    pub(super) const VLAN_PRESENT: i16 = 20;
    pub(super) const VLAN_TCI: i16 = 24;
    pub(super) const DATA: i16 = 76;
    pub(super) const DATA_END: i16 = 80;
    pub(super) const GSO_SEGS: i16 = 164;
    pub(super) const GSO_SIZE: i16 = 176;
}

/// `bpf_skb_pull_data(skb, len)`. Linux 4.9.
const SKB_PULL_DATA: i32 = 39;

/// Bytes of a frame that are looked for in the first piece of an skb before more is pulled there:
/// headers of IPv4 and TCP with timestamps, all that a super-frame of the host's own may have there.
const LINEAR_MIN: i32 = 66;
/// Bytes that are pulled then: tags, PPPoE, IPv6 with some extension headers and TCP.
const LINEAR_PULLED: i32 = 128;

impl Emit<'_> {
    /// Counts any frame.
    fn general(&mut self, routines: &Routines) -> Result<(), EmitError> {
        let spec = self.spec;
        self.begin();
        self.parse();
        match &spec.direction_of {
            DirectionOf::One(_) => self.attribute(routines, None),
            DirectionOf::Each(up) => self.attribute_each(up, routines)?,
        }
        self.classify()?;
        self.police(routines);
        self.count(routines)
    }

    /// Stores direction and row of a frame that may go either way: first as one that goes up.
    fn attribute_each(&mut self, up: &Up, routines: &Routines) -> Result<(), EmitError> {
        let [goes_up, goes_down, known, done] = [(); 4].map(|()| self.asm.label());
        // After look-ups it costs the verifier less to remember.
        let is_filter = !matches!(up, Up::Sessions);
        if is_filter {
            self.begin_again();
        }
        match up {
            Up::Sessions => {
                self.attribute(routines, Some(goes_down));
                self.asm.goto(done);
            }
            Up::Prefixes(prefixes) => {
                self.unless_inside(prefixes, goes_down);
                self.asm.goto(known);
            }
            Up::Filter(filter) => {
                self.filter(filter, goes_up, goes_down)?;
                self.asm.bind(goes_up);
                self.asm.goto(known);
            }
        }
        self.asm.bind(goes_down);
        self.set(stack::DIRECTION, Direction::Down as i32);
        for (other, address) in [
            (stack::OTHER, stack::ADDRESS),
            (stack::OTHER_REST, stack::ADDRESS_REST),
        ] {
            self.push(&[
                Insn::load(op::DW, Reg::R1, Reg::FP, other),
                Insn::load(op::DW, Reg::R2, Reg::FP, address),
                Insn::store(op::DW, Reg::FP, address, Reg::R1),
                Insn::store(op::DW, Reg::FP, other, Reg::R2),
            ]);
        }
        self.asm.bind(known);
        self.begin_again();
        self.attribute(routines, None);
        self.asm.bind(done);
        if !is_filter {
            self.begin_again();
        }
        Ok(())
    }

    /// Has the verifier forget what filters and look-ups have shown of the frame.
    fn begin_again(&mut self) {
        self.load_frame();
        self.forget(&[
            stack::OUTER,
            stack::INNER,
            stack::PPPOE,
            stack::FAMILY,
            stack::DIRECTION,
        ]);
    }

    /// Whether the address of the other side is needed, too.
    fn needs_other(&self) -> bool {
        self.direction.is_none() || self.spec.has_flows()
    }

    fn load_frame(&mut self) {
        let (data, end) = match self.hook {
            At::Xdp | At::Routine | At::Process => (DATA, DATA_END),
            At::Tc => (skb::DATA, skb::DATA_END),
        };
        self.push(&[
            Insn::load(op::W, FRAME, CTX, data),
            Insn::load(op::W, END, CTX, end),
        ]);
    }

    /// Goes to `other` unless the frame's address is in one of these prefixes.
    fn unless_inside(&mut self, prefixes: &[([u64; 2], [u64; 2], u32)], other: Label) {
        let is_in = self.asm.label();
        self.push(&[
            Insn::load(op::DW, Reg::R5, Reg::FP, stack::FAMILY),
            Insn::load(op::DW, Reg::R3, Reg::FP, stack::ADDRESS),
            Insn::load(op::DW, Reg::R4, Reg::FP, stack::ADDRESS_REST),
        ]);
        self.jump(op::JEQ, Reg::R5, 0, other);
        for (value, mask, family) in prefixes {
            let next = self.asm.label();
            self.jump(op::JNE, Reg::R5, *family as i32, next);
            for (word, register) in [Reg::R3, Reg::R4].into_iter().enumerate() {
                if mask[word] == 0 {
                    continue;
                }
                let mask = Insn::load64(Reg::R1, mask[word]);
                let value = Insn::load64(Reg::R2, value[word]);
                self.push(&mask);
                self.push(&[Insn::alu64(op::AND, Reg::R1, register)]);
                self.push(&value);
                self.asm.jump(Insn::jump64(op::JNE, Reg::R1, Reg::R2), next);
            }
            self.asm.goto(is_in);
            self.asm.bind(next);
        }
        self.asm.goto(other);
        self.asm.bind(is_in);
    }

    fn push(&mut self, insns: &[Insn]) {
        insns.iter().for_each(|insn| self.asm.push(*insn));
    }

    fn set(&mut self, to: i16, value: i32) {
        self.asm.push(Insn::store(op::DW, Reg::FP, to, value));
    }

    fn jump(&mut self, condition: u8, register: Reg, than: i32, to: Label) {
        self.asm.jump(Insn::jump64(condition, register, than), to);
    }

    /// `to` = the value of one-entry map `place`.
    fn value_of(&mut self, to: Reg, place: u16) {
        let insns = Insn::load_map_value(to, self.first_place + place, 0);
        self.push(&insns);
    }

    /// Goes to `to` unless the first piece has `bytes` bytes behind `from`; r1 is lost.
    fn within(&mut self, from: Reg, bytes: i32, to: Label) {
        self.push(&[
            Insn::mov64(Reg::R1, from),
            Insn::alu64(op::ADD, Reg::R1, bytes),
        ]);
        self.asm.jump(Insn::jump64(op::JGT, Reg::R1, END), to);
    }

    /// Has the verifier forget what it knows of fields: it would follow the code behind, look-ups
    /// above all, once for each combination of values that it knows.
    fn forget(&mut self, fields: &[i16]) {
        self.value_of(Reg::R2, place::CONTROL);
        self.push(&[Insn::load(op::DW, Reg::R2, Reg::R2, at::ZERO as i16)]);
        for field in fields {
            self.push(&[
                Insn::load(op::DW, Reg::R1, Reg::FP, *field),
                Insn::alu64(op::ADD, Reg::R1, Reg::R2),
                Insn::store(op::DW, Reg::FP, *field, Reg::R1),
            ]);
        }
    }

    /// Bank, lengths, and the first piece of the frame.
    fn begin(&mut self) {
        self.push(&[Insn::mov64(CTX, Reg::R1)]);
        if matches!(self.hook, At::Routine | At::Process) {
            self.push(&[
                Insn::store(op::DW, Reg::FP, stack::WIRE, Reg::R2),
                Insn::store(op::DW, Reg::FP, stack::LENGTH, Reg::R2),
            ]);
        }
        self.choose_bank();
        self.set(stack::PACKETS, 1);
        for field in [stack::IP_BYTES, stack::START, stack::OUTER, stack::INNER] {
            self.set(field, 0);
        }
        for field in [
            stack::PPPOE,
            stack::FAMILY,
            stack::ADDRESS_REST,
            stack::PROTOCOL,
        ] {
            self.set(field, 0);
        }
        if self.direction.is_none() {
            for field in [stack::ADDRESS, stack::DIRECTION, stack::OTHER] {
                self.set(field, 0);
            }
        }
        if self.needs_other() {
            self.set(stack::OTHER_REST, 0);
        }
        self.set(stack::TRANSPORT, transport::NOT_IP);
        self.set(stack::TRANSPORT_AT, 0);
        match self.hook {
            At::Xdp => self.push(&[
                Insn::call(helper::XDP_GET_BUFF_LEN),
                Insn::store(op::DW, Reg::FP, stack::WIRE, Reg::R0),
                Insn::store(op::DW, Reg::FP, stack::LENGTH, Reg::R0),
            ]),
            At::Routine | At::Process => {}
            At::Tc => return self.begin_skb(),
        }
        self.load_frame();
    }

    /// Stores the bank to count in.
    fn choose_bank(&mut self) {
        self.value_of(Reg::R2, place::CONTROL);
        self.push(&[
            Insn::load(op::DW, Reg::R2, Reg::R2, at::BANK as i16),
            Insn::alu64(op::AND, Reg::R2, 1),
            Insn::store(op::DW, Reg::FP, stack::BANK, Reg::R2),
        ]);
    }

    fn begin_skb(&mut self) {
        let [has_headers, untagged] = [(); 2].map(|()| self.asm.label());
        self.push(&[
            Insn::load(op::W, Reg::R2, CTX, skb::LEN),
            Insn::store(op::DW, Reg::FP, stack::WIRE, Reg::R2),
            Insn::store(op::DW, Reg::FP, stack::LENGTH, Reg::R2),
        ]);
        self.load_frame();
        self.push(&[
            Insn::mov64(Reg::R1, FRAME),
            Insn::alu64(op::ADD, Reg::R1, LINEAR_MIN),
        ]);
        self.asm
            .jump(Insn::jump64(op::JLE, Reg::R1, END), has_headers);
        let short = self.asm.label();
        self.push(&[Insn::mov64(Reg::R1, CTX)]);
        self.jump(op::JLE, Reg::R2, LINEAR_PULLED, short);
        self.push(&[Insn::mov64(Reg::R2, LINEAR_PULLED)]);
        self.asm.bind(short);
        self.push(&[Insn::call(SKB_PULL_DATA)]);
        self.load_frame();
        self.asm.bind(has_headers);
        // The tag that the device or the kernel has taken out of the frame.
        self.push(&[Insn::load(op::W, Reg::R2, CTX, skb::VLAN_PRESENT)]);
        self.jump(op::JEQ, Reg::R2, 0, untagged);
        self.push(&[
            Insn::load(op::W, Reg::R2, CTX, skb::VLAN_TCI),
            Insn::alu64(op::AND, Reg::R2, 0xfff),
            Insn::store(op::DW, Reg::FP, stack::OUTER, Reg::R2),
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::WIRE),
            Insn::alu64(op::ADD, Reg::R2, 4),
            Insn::store(op::DW, Reg::FP, stack::WIRE, Reg::R2),
        ]);
        self.asm.bind(untagged);
    }
}
