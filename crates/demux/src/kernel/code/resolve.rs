//! From candidates to entries, and to the deliveries they make: one piece of
//! code for all subtables, with loops.
//!
//! ```text
//!  each candidate: the hash of its key
//!    each entry of its home: is it the subtable, and the key?
//!      does it come before the limit?
//!        each test: does it hold?
//!      note entry and rank; a taker's is now the best, and the limit
//!        unless a claim is or may come before it
//! ```

use super::super::layout::{
    LANES_MAX, SLOT_KERNEL, TEST_BYTES, UNIT_BYTES, candidate, counter, entry, port, scratch,
    subtable, test,
};
use super::super::maps::MapRole;
use super::super::table::{PLACE_BITS, PRELOADED, TAG_MIN, TAGS};
use super::{CALLEE_SAVED, Coder, LEN, SCRATCH};
use crate::binding::Rank;
use weir_filter::backend::ebpf::{Insn, Label, Reg, helper, op};

/// Bit 47 of a rank: the binding takes.
pub(super) const TAKING_BIT: i32 = 47;

/// Offset of a word in what the store has of a subtable.
fn in_subtable(word: u32) -> i16 {
    (word * 8) as i16
}

/// Offset of a word in an entry.
pub(super) fn in_entry(word: u32) -> i16 {
    (word * 8) as i16
}

/// Where the loops go on.
#[derive(Clone, Copy)]
struct Loops {
    candidates: Label,
    lines: Label,
    /// At an entry that has the key.
    entry: Label,
    tests: Label,
    accept: Label,
    /// Likewise.
    accept_entry: Label,
}

impl Coder<'_> {
    /// Looks up all candidates, and ends at `done` with none left.
    pub(super) fn resolve(&mut self, done: Label) {
        let finished = self.asm.label();
        let candidates = self.asm.label();
        self.get(op::W, Reg::R1, SCRATCH, scratch::CANDIDATES);
        self.branch(op::JEQ, Reg::R1, 0, done);
        self.set(op::W, SCRATCH, scratch::CURSOR, 0);
        self.for_each_candidate(candidates, finished);
        self.resolve_one(candidates);
        self.asm.bind(finished);
        self.set(op::W, SCRATCH, scratch::CANDIDATES, 0);
    }

    /// Looks up the candidate at r9, with the hash of its key in r0, and continues
    /// at `candidates`.
    pub(super) fn resolve_one(&mut self, candidates: Label) {
        let mut label = || self.asm.label();
        let loops = Loops {
            candidates,
            lines: label(),
            entry: label(),
            tests: label(),
            accept: label(),
            accept_entry: label(),
        };
        self.lookup_home(loops);
        self.for_each_line(loops);
        self.compare_key(loops);
        self.compare_rank(loops);
        self.for_each_test(loops);
        self.asm.bind(loops.accept);
        self.accept(loops);
    }

    /// r9 = the next candidate, r0 = the hash of its key.
    fn for_each_candidate(&mut self, candidates: Label, finished: Label) {
        self.asm.bind(candidates);
        self.round(finished);
        self.get(op::W, Reg::R1, SCRATCH, scratch::CURSOR);
        self.get(op::W, Reg::R2, SCRATCH, scratch::CANDIDATES);
        self.branch(op::JGE, Reg::R1, Reg::R2, finished);
        let most = scratch::CANDIDATES_MAX as i32;
        self.branch(op::JGE, Reg::R1, most, finished);
        self.mov(Reg::R2, Reg::R1);
        self.add(Reg::R2, 1);
        self.set(op::W, SCRATCH, scratch::CURSOR, Reg::R2);
        self.mov(CALLEE_SAVED, Reg::R1);
        self.alu(op::MUL, CALLEE_SAVED, candidate::BYTES as i32);
        self.add(CALLEE_SAVED, SCRATCH);
        self.add(CALLEE_SAVED, i32::from(scratch::CANDIDATE));
        self.hash(None, candidates);
    }

    /// r0 = the hash of the candidate's key: see `plan::hash`. The key has
    /// `lanes` words, or the candidate says how many.
    pub(super) fn hash(&mut self, lanes: Option<usize>, candidates: Label) {
        let sum = self.asm.label();
        self.get(op::W, Reg::R5, CALLEE_SAVED, candidate::UNIT);
        self.unit(Reg::R5, Reg::R1, subtable::UNITS_MAX, candidates);
        if lanes.is_none() {
            self.get(op::W, Reg::R4, CALLEE_SAVED, candidate::LANES);
        }
        self.get(op::DW, Reg::R0, Reg::R5, in_subtable(subtable::START));
        for lane in 0..lanes.unwrap_or(LANES_MAX) {
            if lanes.is_none() {
                self.branch(op::JLE, Reg::R4, lane as i32, sum);
            }
            let key = candidate::KEY + 8 * lane as i16;
            let factors = in_subtable(subtable::FACTORS + 2 * lane as u32);
            self.get(op::W, Reg::R1, CALLEE_SAVED, key);
            self.get(op::W, Reg::R2, CALLEE_SAVED, key + 4);
            self.get(op::DW, Reg::R3, Reg::R5, factors);
            self.add(Reg::R1, Reg::R3);
            self.get(op::DW, Reg::R3, Reg::R5, factors + 8);
            self.add(Reg::R2, Reg::R3);
            self.alu(op::MUL, Reg::R1, Reg::R2);
            self.add(Reg::R0, Reg::R1);
        }
        self.asm.bind(sum);
        self.alu(op::RSH, Reg::R0, 32);
        self.mov(Reg::R1, Reg::R0);
        self.alu(op::RSH, Reg::R1, 16);
        self.alu(op::XOR, Reg::R0, Reg::R1);
        self.get(op::W, Reg::R1, Reg::R5, in_subtable(subtable::MIX));
        self.push(Insn::alu32(op::MUL, Reg::R0, Reg::R1));
        self.mov(Reg::R1, Reg::R0);
        self.alu(op::RSH, Reg::R1, 15);
        self.alu(op::XOR, Reg::R0, Reg::R1);
    }

    /// The links of the home of the hash in r0, in scratch memory, a bit for
    /// each place that has the hash's tag; on to the next candidate if there is
    /// no entry of this home.
    fn lookup_home(&mut self, loops: Loops) {
        /// The lowest and the highest bit of each tag.
        const LOW: i32 = 0x1111_1111;
        const HIGH: i32 = LOW << (PLACE_BITS - 1);
        let size = self.plan.image.table.size();
        self.mov(Reg::R3, Reg::R0);
        self.alu(op::AND, Reg::R0, (size.cells - 1) as i32);
        self.set(op::W, CALLEE_SAVED, candidate::HOME, Reg::R0);
        self.alu(op::LSH, Reg::R0, UNIT_BYTES.ilog2() as i32);
        self.map_value(Reg::R1, MapRole::Index, size.spare * UNIT_BYTES);
        self.add(Reg::R1, Reg::R0);
        // The values are not used: these loads only bring the lines into the cache.
        for place in 1..=PRELOADED {
            self.get(op::DW, Reg::R2, Reg::R1, (place * UNIT_BYTES) as i16);
        }
        self.get(op::DW, Reg::R2, Reg::R1, in_entry(entry::LINKS));
        self.branch(op::JEQ, Reg::R2, 0, loops.candidates);
        self.set(op::DW, SCRATCH, scratch::LINKS, Reg::R2);
        // The tag at each place, to be compared with the links' at once.
        self.push(Insn::alu32(op::RSH, Reg::R3, 16));
        self.push(Insn::alu32(op::MUL, Reg::R3, TAGS as i32));
        self.push(Insn::alu32(op::RSH, Reg::R3, 16));
        self.push(Insn::alu32(op::ADD, Reg::R3, TAG_MIN as i32));
        self.push(Insn::alu32(op::MUL, Reg::R3, LOW));
        self.push(Insn::alu32(op::XOR, Reg::R2, Reg::R3));
        // The highest bit of each that is zero now; and, by the borrow of one,
        // of some with another tag: the key decides.
        self.push(Insn::alu32(op::MOV, Reg::R1, Reg::R2));
        self.push(Insn::alu32(op::SUB, Reg::R1, LOW));
        self.push(Insn::alu32(op::XOR, Reg::R2, -1));
        self.push(Insn::alu32(op::AND, Reg::R1, Reg::R2));
        self.push(Insn::alu32(op::AND, Reg::R1, HIGH));
        self.push(Insn::alu32(op::RSH, Reg::R1, PLACE_BITS as i32 - 1));
        self.set(op::W, SCRATCH, scratch::LINKS, Reg::R1);
    }

    /// r5 = the next entry of the home. Its number comes from the links: so it is
    /// read after them.
    fn for_each_line(&mut self, loops: Loops) {
        /// In this product with `1 << 4n` the top four bits are n.
        const PLACE_OF: i32 = 0x0123_4567;
        let [near, known] = [(); 2].map(|()| self.asm.label());
        let size = self.plan.image.table.size();
        self.asm.bind(loops.lines);
        self.round(loops.candidates);
        self.get(op::W, Reg::R1, SCRATCH, scratch::LINKS);
        self.branch(op::JNE, Reg::R1, 0, near);
        // None is left near the home: on to the spare lines.
        self.get(op::W, Reg::R5, SCRATCH, scratch::LINKS + 4);
        self.branch(op::JEQ, Reg::R5, 0, loops.candidates);
        self.set(op::W, SCRATCH, scratch::ENTRY, Reg::R5);
        self.entry(Reg::R5, Reg::R1, loops.candidates);
        // They are sorted by rank.
        self.get(op::DW, Reg::R1, Reg::R5, in_entry(entry::RANK));
        self.get(op::DW, Reg::R2, SCRATCH, scratch::LIMIT);
        self.branch(op::JGE, Reg::R1, Reg::R2, loops.candidates);
        self.get(op::W, Reg::R1, Reg::R5, in_entry(entry::LINKS) + 4);
        self.set(op::W, SCRATCH, scratch::LINKS + 4, Reg::R1);
        self.asm.goto(known);

        self.asm.bind(near);
        self.mov(Reg::R2, Reg::R1);
        self.push(Insn::neg64(Reg::R2));
        self.alu(op::AND, Reg::R2, Reg::R1);
        self.alu(op::XOR, Reg::R1, Reg::R2);
        self.set(op::W, SCRATCH, scratch::LINKS, Reg::R1);
        self.push(Insn::alu32(op::MUL, Reg::R2, PLACE_OF));
        self.push(Insn::alu32(
            op::RSH,
            Reg::R2,
            u32::BITS as i32 - PLACE_BITS as i32,
        ));
        self.get(op::W, Reg::R5, CALLEE_SAVED, candidate::HOME);
        self.add(Reg::R5, Reg::R2);
        self.alu(op::AND, Reg::R5, (size.cells - 1) as i32);
        self.add(Reg::R5, size.spare as i32);
        self.set(op::W, SCRATCH, scratch::ENTRY, Reg::R5);
        self.entry_address(Reg::R5, Reg::R1);
        self.asm.bind(known);
    }

    /// On to the next entry unless the entry at r5 has the candidate's subtable and
    /// key.
    fn compare_key(&mut self, loops: Loops) {
        let subtable = in_entry(entry::REST_SUBTABLE) + 4;
        self.get(op::W, Reg::R1, Reg::R5, subtable);
        self.get(op::W, Reg::R2, CALLEE_SAVED, candidate::SUBTABLE);
        self.branch(op::JNE, Reg::R1, Reg::R2, loops.lines);
        self.get(op::W, Reg::R3, CALLEE_SAVED, candidate::LANES);
        for lane in 0..LANES_MAX {
            self.branch(op::JLE, Reg::R3, lane as i32, loops.entry);
            if lane == entry::KEY_WORDS {
                self.rest_of_key(loops);
            }
            let (base, word) = match lane.checked_sub(entry::KEY_WORDS) {
                None => (Reg::R5, entry::KEY + lane as u32),
                Some(lane) => (Reg::R4, lane as u32),
            };
            self.get(op::DW, Reg::R1, base, in_entry(word));
            self.get(
                op::DW,
                Reg::R2,
                CALLEE_SAVED,
                candidate::KEY + 8 * lane as i16,
            );
            self.branch(op::JNE, Reg::R1, Reg::R2, loops.lines);
        }
        self.asm.goto(loops.entry);
    }

    /// r4 = the address of the rest of the entry at r5.
    fn rest_of_key(&mut self, loops: Loops) {
        self.get(op::W, Reg::R4, Reg::R5, in_entry(entry::REST_SUBTABLE));
        let last = self.plan.image.units * (UNIT_BYTES / TEST_BYTES);
        self.branch(op::JGT, Reg::R4, last as i32, loops.lines);
        self.alu(op::LSH, Reg::R4, TEST_BYTES.ilog2() as i32);
        self.map_value(Reg::R1, MapRole::Store, 0);
        self.add(Reg::R4, Reg::R1);
    }

    /// On with the entry at r5 if it comes before the limit.
    fn compare_rank(&mut self, loops: Loops) {
        self.asm.bind(loops.entry);
        self.get(op::DW, Reg::R1, Reg::R5, in_entry(entry::RANK));
        self.get(op::DW, Reg::R2, SCRATCH, scratch::LIMIT);
        self.branch(op::JGE, Reg::R1, Reg::R2, loops.lines);
        self.get(op::W, Reg::R1, Reg::R5, in_entry(entry::REST_SUBTABLE));
        self.branch(op::JEQ, Reg::R1, 0, loops.accept_entry);
        self.get(op::W, Reg::R2, CALLEE_SAVED, candidate::REST_KEY);
        self.add(Reg::R1, Reg::R2);
        self.set(op::W, SCRATCH, scratch::TEST, Reg::R1);
    }

    /// The tests of an entry, up to one that does not hold.
    fn for_each_test(&mut self, loops: Loops) {
        self.asm.bind(loops.tests);
        self.round(loops.lines);
        self.reload_len();
        self.get(op::W, Reg::R4, SCRATCH, scratch::TEST);
        let last = self.plan.image.units * (UNIT_BYTES / TEST_BYTES);
        self.branch(op::JGT, Reg::R4, last as i32, loops.lines);
        self.mov(Reg::R1, Reg::R4);
        self.add(Reg::R1, 1);
        self.set(op::W, SCRATCH, scratch::TEST, Reg::R1);
        self.alu(op::LSH, Reg::R4, 4);
        self.map_value(Reg::R1, MapRole::Store, 0);
        self.add(Reg::R4, Reg::R1);
        self.get(op::B, Reg::R1, Reg::R4, 0);
        self.get(op::W, Reg::R2, Reg::R4, 4);
        self.branch(op::JEQ, Reg::R1, test::END as i32, loops.accept);
        let valued = self.asm.label();
        self.branch(op::JNE, Reg::R1, test::EXTENT as i32, valued);
        self.branch(op::JGT, Reg::R2, LEN, loops.lines);
        self.asm.goto(loops.tests);

        self.asm.bind(valued);
        self.value(1, loops);
        let [range, differs, from] = [(); 3].map(|()| self.asm.label());
        self.branch(op::JEQ, Reg::R1, test::RANGE as i32, range);
        self.branch(op::JEQ, Reg::R1, test::DIFFERS as i32, differs);
        self.branch(op::JEQ, Reg::R1, test::EXTENT_FROM as i32, from);
        self.compare(loops);

        self.asm.bind(range);
        self.branch(op::JLT, Reg::R0, Reg::R2, loops.lines);
        self.get(op::W, Reg::R2, Reg::R4, 8);
        self.branch(op::JGT, Reg::R0, Reg::R2, loops.lines);
        self.asm.goto(loops.tests);

        self.asm.bind(differs);
        self.alu(op::AND, Reg::R0, Reg::R2);
        self.get(op::W, Reg::R2, Reg::R4, 8);
        self.branch(op::JEQ, Reg::R0, Reg::R2, loops.lines);
        self.asm.goto(loops.tests);

        self.asm.bind(from);
        self.add(Reg::R0, Reg::R2);
        self.branch(op::JGT, Reg::R0, LEN, loops.lines);
        self.asm.goto(loops.tests);
    }

    /// r0 = the value of which the byte `at` of the test at r4 says which, if
    /// this program knows it and the frame has it. r1, r2 and r4 stay.
    fn value(&mut self, at: i16, loops: Loops) {
        let most = candidate::VALUES_MAX as i32;
        self.get(op::B, Reg::R3, Reg::R4, at);
        if self.shared.is_empty() {
            self.get(op::W, Reg::R5, CALLEE_SAVED, candidate::VALUES);
            self.branch(op::JGE, Reg::R3, Reg::R5, loops.lines);
            self.branch(op::JGE, Reg::R3, most, loops.lines);
            self.alu(op::LSH, Reg::R3, 3);
            self.add(Reg::R3, CALLEE_SAVED);
            self.get(op::DW, Reg::R0, Reg::R3, candidate::VALUE);
        } else {
            self.branch(op::JGE, Reg::R3, most, loops.lines);
            self.add(Reg::R3, CALLEE_SAVED);
            self.get(op::B, Reg::R3, Reg::R3, candidate::VALUE_INDICES);
            let most = (scratch::SHARED_MAX + scratch::OWN_MAX) as i32;
            self.branch(op::JGE, Reg::R3, most, loops.lines);
            self.alu(op::LSH, Reg::R3, 3);
            self.add(Reg::R3, SCRATCH);
            self.get(op::DW, Reg::R0, Reg::R3, scratch::SHARED);
        }
        self.branch(op::JEQ, Reg::R0, candidate::NO_VALUE, loops.lines);
    }

    /// Compares r0 with another value, as the test at r4 says: see
    /// [`cmp_number`](crate::kernel::lowered_path::cmp_number).
    fn compare(&mut self, loops: Loops) {
        let [bits, none, judge] = [(); 3].map(|()| self.asm.label());
        self.mov(Reg::R2, Reg::R0);
        self.value(2, loops);
        self.get(op::B, Reg::R1, Reg::R4, 3);
        // r2 is the left operand now, r0 the right one.
        self.branch(op::JGE, Reg::R1, 0b01000, bits);
        self.mov(Reg::R3, 0b001);
        self.branch(op::JLT, Reg::R2, Reg::R0, judge);
        self.mov(Reg::R3, 0b010);
        self.branch(op::JEQ, Reg::R2, Reg::R0, judge);
        self.mov(Reg::R3, 0b100);
        self.asm.goto(judge);
        self.asm.bind(bits);
        self.mov(Reg::R3, 0b10000);
        self.alu(op::AND, Reg::R2, Reg::R0);
        self.branch(op::JEQ, Reg::R2, 0, none);
        self.mov(Reg::R3, 0b01000);
        self.asm.bind(none);
        self.asm.bind(judge);
        self.alu(op::AND, Reg::R1, Reg::R3);
        self.branch(op::JEQ, Reg::R1, 0, loops.lines);
        self.asm.goto(loops.tests);
    }

    /// The entry accepts: it is noted.
    fn accept(&mut self, loops: Loops) {
        self.get(op::W, Reg::R5, SCRATCH, scratch::ENTRY);
        self.entry(Reg::R5, Reg::R1, loops.candidates);
        self.asm.bind(loops.accept_entry);
        self.get(op::DW, Reg::R2, Reg::R5, in_entry(entry::RANK));
        self.get(op::W, Reg::R3, Reg::R5, in_entry(entry::TAG_SNAP) + 4);
        self.note(self.plan.fans_out(), loops.lines);
    }

    /// Notes that the entry at r5 (its unit in scratch memory) accepts: rank
    /// r2, snap length r3. Goes on at `done`. Its target can only be a fan-out if
    /// `fans_out` says so.
    pub(super) fn note(&mut self, fans_out: bool, done: Label) {
        let [copy, room] = [(); 2].map(|()| self.asm.label());
        if fans_out {
            self.share(done);
        }
        self.mov(Reg::R1, Reg::R2);
        self.alu(op::RSH, Reg::R1, TAKING_BIT);
        self.alu(op::AND, Reg::R1, 1);
        self.get(op::W, Reg::R4, SCRATCH, scratch::ENTRY);
        self.branch(op::JEQ, Reg::R1, 0, copy);
        self.get(op::DW, Reg::R1, SCRATCH, scratch::BEST);
        self.branch(op::JGE, Reg::R2, Reg::R1, done);
        self.set(op::DW, SCRATCH, scratch::BEST, Reg::R2);
        self.set(op::W, SCRATCH, scratch::TAKER, Reg::R4);
        self.set(op::W, SCRATCH, scratch::TAKER + 4, Reg::R3);
        self.get(op::W, Reg::R1, Reg::R5, in_entry(entry::SLOT));
        let claim = Insn::jump32(op::JEQ, Reg::R1, SLOT_KERNEL as i32);
        self.asm.jump(claim, done);
        let first_claim = self.plan.claims.first();
        if first_claim != Rank::LAST {
            self.constant(Reg::R1, first_claim.to_bits());
            self.branch(op::JGT, Reg::R2, Reg::R1, done);
        }
        self.set(op::DW, SCRATCH, scratch::LIMIT, Reg::R2);
        self.asm.goto(done);

        self.asm.bind(copy);
        let most = scratch::MATCHES_MAX as i32;
        self.get(op::W, Reg::R1, SCRATCH, scratch::MATCHES);
        self.branch(op::JLT, Reg::R1, most, room);
        if fans_out {
            self.get(op::W, Reg::R1, SCRATCH, scratch::NOTED_SLOT);
        } else {
            self.get(op::W, Reg::R1, Reg::R5, in_entry(entry::SLOT));
        }
        self.set(op::W, SCRATCH, scratch::PORT_SLOT, Reg::R1);
        self.count_lost(1);
        self.asm.goto(done);
        self.asm.bind(room);
        self.mov(Reg::R5, Reg::R1);
        self.add(Reg::R5, 1);
        self.set(op::W, SCRATCH, scratch::MATCHES, Reg::R5);
        self.put_match();
        self.asm.goto(done);
    }

    /// Puts rank r2, unit r4 and snap length r3 into place r1.
    pub(super) fn put_match(&mut self) {
        self.alu(op::LSH, Reg::R1, 4);
        self.add(Reg::R1, SCRATCH);
        self.set(op::DW, Reg::R1, scratch::MATCH, Reg::R2);
        self.set(op::W, Reg::R1, scratch::MATCH + 8, Reg::R4);
        self.set(op::W, Reg::R1, scratch::MATCH + 12, Reg::R3);
    }

    /// Counts frames as lost for the port whose slot is in scratch memory:
    /// `count`, and for the next record as many more as the header says.
    pub(super) fn count_lost(&mut self, count: i32) {
        let [no_port, no_counter] = [(); 2].map(|()| self.asm.label());
        self.map(Reg::R1, MapRole::Ports);
        self.slot_key();
        self.push(Insn::call(helper::MAP_LOOKUP_ELEM));
        self.branch(op::JEQ, Reg::R0, 0, no_port);
        self.mov(Reg::R1, count);
        self.push(atomic(op::DW, Reg::R0, port::LOST, Reg::R1, ATOMIC_ADD));
        self.asm.bind(no_port);
        self.map(Reg::R1, MapRole::Counters);
        self.slot_key();
        self.push(Insn::call(helper::MAP_LOOKUP_ELEM));
        self.branch(op::JEQ, Reg::R0, 0, no_counter);
        self.get(op::DW, Reg::R1, Reg::R0, counter::LOST);
        self.add(Reg::R1, count);
        self.set(op::DW, Reg::R0, counter::LOST, Reg::R1);
        self.asm.bind(no_counter);
    }
}

pub(super) const ATOMIC_ADD: i32 = 0;
pub(super) const ATOMIC_EXCHANGE: i32 = 0xe1;

/// An atomic operation on memory at `base` with `src`.
pub(super) fn atomic(size: u8, base: Reg, offset: i16, src: Reg, operation: i32) -> Insn {
    const ATOMIC: u8 = 0xc0;
    Insn {
        code: op::STX | ATOMIC | size,
        imm: operation,
        ..Insn::store(size, base, offset, src)
    }
}
