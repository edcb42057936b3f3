//! A frame's key for each shape, and a look at its bucket: most shapes have
//! nothing for most frames, and this is all they cost.

use super::super::layout::{UNIT_BYTES, bucket, candidate, scratch};
use super::super::maps::Part;
use super::super::shape::{GuardState, Shape};
use super::{Coder, KEPT, SCRATCH};
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};

/// A one in each byte, and the top bit of each.
const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

/// Offset of a word in a bucket.
pub(super) fn in_bucket(word: u32) -> i16 {
    (word * 8) as i16
}

impl Coder<'_> {
    /// Leaves a candidate if the frame may have an entry in a shape.
    pub(super) fn shape(&mut self, shape: &Shape) {
        let next = self.asm.label();
        self.checked = 0;
        self.reload_len();
        self.guards(shape, next);
        self.key(shape, next);
        self.hash(shape);
        self.look(shape, next);
        self.candidate(shape, next);
        self.asm.bind(next);
    }

    /// Leaves if a field has a value that no entry has. What a guard asks for
    /// is data: none at all, once entries differ.
    fn guards(&mut self, shape: &Shape, next: Label) {
        for (index, guard) in shape.guards.iter().enumerate() {
            if guard.state == GuardState::Open {
                continue;
            }
            let (expr, _) = &shape.fields[guard.field];
            self.eval(expr, next);
            let at = shape.guard_unit * UNIT_BYTES + index as u32 * 8;
            self.map_value(Reg::R2, Part::Store, at);
            self.get(op::DW, Reg::R3, Reg::R2, 0);
            self.push(Insn::alu32(op::AND, Reg::R1, Reg::R3));
            self.alu(op::RSH, Reg::R3, 32);
            self.branch(op::JNE, Reg::R1, Reg::R3, next);
        }
    }

    /// Puts the key into scratch memory.
    fn key(&mut self, shape: &Shape, next: Label) {
        for lane in 0..shape.lanes {
            let mut first = true;
            for part in shape.parts.iter().filter(|part| part.lane == lane) {
                let (expr, mask) = &shape.fields[part.field];
                self.eval(expr, next);
                self.push(Insn::alu32(op::AND, Reg::R1, *mask as i32));
                if part.shift > 0 {
                    self.alu(op::LSH, Reg::R1, part.shift as i32);
                }
                if first {
                    self.mov(KEPT, Reg::R1);
                } else {
                    self.alu(op::OR, KEPT, Reg::R1);
                }
                first = false;
            }
            self.set(op::DW, SCRATCH, scratch::KEY + 8 * lane as i16, KEPT);
        }
    }

    /// r0 = the key's hash: see `plan::hash`.
    fn hash(&mut self, shape: &Shape) {
        self.constant(Reg::R0, shape.hash.start);
        for (lane, (low, high)) in shape.hash.factors.iter().enumerate() {
            self.get(op::DW, Reg::R1, SCRATCH, scratch::KEY + 8 * lane as i16);
            self.mov(Reg::R2, Reg::R1);
            self.alu(op::RSH, Reg::R2, 32);
            self.push(Insn::mov32(Reg::R1, Reg::R1));
            self.constant(Reg::R3, *low);
            self.add(Reg::R1, Reg::R3);
            self.constant(Reg::R3, *high);
            self.add(Reg::R2, Reg::R3);
            self.alu(op::MUL, Reg::R1, Reg::R2);
            self.add(Reg::R0, Reg::R1);
        }
        self.alu(op::RSH, Reg::R0, 32);
        self.mov(Reg::R1, Reg::R0);
        self.alu(op::RSH, Reg::R1, 16);
        self.alu(op::XOR, Reg::R0, Reg::R1);
        self.push(Insn::alu32(op::MUL, Reg::R0, shape.hash.mix as i32));
        self.mov(Reg::R1, Reg::R0);
        self.alu(op::RSH, Reg::R1, 15);
        self.alu(op::XOR, Reg::R0, Reg::R1);
    }

    /// Leaves unless the bucket has the tag, or goes on elsewhere. r3 = the
    /// tag, r4 = the bucket's number.
    fn look(&mut self, shape: &Shape, next: Label) {
        debug_assert_eq!(shape.hash.factors.len(), shape.lanes);
        self.mov(Reg::R4, Reg::R0);
        self.alu(op::AND, Reg::R4, (self.plan.image.buckets - 1) as i32);
        self.mov(Reg::R2, Reg::R4);
        self.alu(op::LSH, Reg::R2, 6);
        self.map_value(Reg::R1, Part::Index, 0);
        self.add(Reg::R1, Reg::R2);
        self.mov(Reg::R3, Reg::R0);
        self.alu(op::RSH, Reg::R3, 24);
        self.alu(op::OR, Reg::R3, 0x80);
        // A byte of the difference is zero where the tag is: then what is
        // borrowed shows in its top bit. A false alarm does no harm.
        self.constant(Reg::R0, ONES);
        self.mov(Reg::R5, Reg::R3);
        self.alu(op::MUL, Reg::R5, Reg::R0);
        self.get(op::DW, Reg::R2, Reg::R1, in_bucket(bucket::TAGS));
        self.alu(op::XOR, Reg::R2, Reg::R5);
        self.mov(Reg::R5, Reg::R2);
        self.alu(op::SUB, Reg::R5, Reg::R0);
        self.alu(op::XOR, Reg::R2, -1);
        self.alu(op::AND, Reg::R5, Reg::R2);
        self.constant(Reg::R0, TOPS);
        self.alu(op::AND, Reg::R5, Reg::R0);
        self.get(op::DW, Reg::R2, Reg::R1, in_bucket(bucket::OVERFLOW));
        self.alu(op::OR, Reg::R5, Reg::R2);
        self.branch(op::JEQ, Reg::R5, 0, next);
    }

    /// Notes the key, and the values that tests of the shape's entries use.
    fn candidate(&mut self, shape: &Shape, next: Label) {
        self.get(op::W, Reg::R1, SCRATCH, scratch::CANDIDATES);
        // It cannot be: there are as many places as shapes in a group.
        let most = scratch::CANDIDATES_MAX as i32;
        self.branch(op::JGE, Reg::R1, most, next);
        self.mov(Reg::R2, Reg::R1);
        self.add(Reg::R2, 1);
        self.set(op::W, SCRATCH, scratch::CANDIDATES, Reg::R2);
        self.mov(KEPT, Reg::R1);
        self.alu(op::MUL, KEPT, candidate::BYTES as i32);
        self.add(KEPT, SCRATCH);
        self.add(KEPT, i32::from(scratch::CANDIDATE));
        self.set(op::W, KEPT, candidate::SHAPE, shape.number as i32);
        self.set(op::W, KEPT, candidate::LANES, shape.lanes as i32);
        self.set(op::W, KEPT, candidate::BUCKET, Reg::R4);
        self.set(op::W, KEPT, candidate::TAG, Reg::R3);
        self.set(op::W, KEPT, candidate::VALUES, shape.values.len() as i32);
        for lane in 0..shape.lanes as i16 {
            self.get(op::DW, Reg::R1, SCRATCH, scratch::KEY + 8 * lane);
            self.set(op::DW, KEPT, candidate::KEY + 8 * lane, Reg::R1);
        }
        let key_checked = self.checked;
        for (index, expr) in shape.values.iter().enumerate() {
            let none = self.asm.label();
            let at = candidate::VALUE + 8 * index as i16;
            self.set(op::DW, KEPT, at, 0);
            // What one value needs of the frame, another may do without.
            self.checked = key_checked;
            self.eval(expr, none);
            self.set(op::W, KEPT, at, Reg::R1);
            self.set(op::W, KEPT, at + 4, 1);
            self.asm.bind(none);
        }
    }
}
