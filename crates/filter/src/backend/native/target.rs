//! The interface of the generator to an architecture, and the code buffer.

use super::location::{Address, Location, Reg, RegSet, Src};
use crate::ir::{BinOp, Cmp, Width};
use dynasmrt::SimpleAssembler;

/// A label: [`REJECT`], or a block's number plus one, or a result of [`Code::label`].
pub(super) type Label = u32;

/// The label of the code that rejects the frame.
pub(super) const REJECT: Label = 0;

/// Properties of a program that its entry code and its registers depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requirements {
    /// The program reads the length on the wire.
    pub(super) len: bool,
    /// The program divides by other than a constant power of two.
    pub(super) division: bool,
    /// Number of stack slots.
    pub(super) slots: usize,
    /// Number of blocks, and of their labels.
    pub(super) blocks: usize,
    /// Whether the code may exceed the range of the architecture's short jumps.
    pub(super) far: bool,
}

/// An architecture. Every operation may use scratch registers, which no [`Location`]
/// names except [`TargetAsm::SPARE`].
///
/// Operands follow these rules: at most one is a constant; a comparison has its
/// constant on the right; a divisor is not zero.
pub(super) trait TargetAsm {
    /// A location for one value during parallel moves, preserved by `mov`.
    const SPARE: Location;

    /// The registers for values, and the register of the length on the wire.
    fn registers(len: bool, division: bool) -> (RegSet, Reg);

    /// Starts a program with its entry code.
    fn begin(needs: Requirements) -> Self;

    /// The code buffer.
    fn code(&mut self) -> &mut Code;

    /// Ends the program and returns its code.
    fn into_code(self) -> Code;

    /// Rejects the frame unless `extent` bytes are captured behind `base`.
    fn check(&mut self, base: Option<Location>, extent: u64);

    /// Loads from a checked position, in numeric order or raw.
    fn load(&mut self, to: Location, width: Width, raw: bool, from: Address);

    /// `to = a op b`.
    fn bin(&mut self, op: BinOp, to: Location, a: Src, b: Src);

    /// `to` = 1 if the comparison holds, else 0.
    fn test(&mut self, cmp: Cmp, to: Location, a: Location, b: Src);

    /// Jumps to `target` if the comparison holds.
    fn branch(&mut self, cmp: Cmp, a: Location, b: Src, target: Label);

    /// Jumps to `target`.
    fn jump(&mut self, target: Label);

    /// `to = from`.
    fn mov(&mut self, to: Location, from: Src);

    /// Returns `verdict`.
    fn ret(&mut self, verdict: Src);

    /// Sets the distance of the jump at offset `at` to reach offset `target`.
    fn patch(bytes: &mut [u8], at: usize, target: usize);
}

/// Code under construction.
#[derive(Debug)]
pub(super) struct Code {
    /// The assembler that `dynasm!` writes to.
    pub(super) ops: SimpleAssembler,
    labels: Vec<u32>,
    jumps: Vec<(u32, Label)>,
}

impl Code {
    /// An empty buffer with a label for each of `blocks`.
    pub(super) fn new(blocks: usize) -> Code {
        let mut ops = SimpleAssembler::new();
        ops.ops.reserve(512);
        Code {
            ops,
            labels: vec![0; blocks + 1],
            jumps: Vec::with_capacity(2 * blocks),
        }
    }

    /// Bytes of code so far.
    pub(super) fn len(&self) -> usize {
        self.ops.ops.len()
    }

    /// Creates a label that belongs to no block.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(0);
        self.labels.len() as Label - 1
    }

    /// Binds `label` to the current offset.
    pub(super) fn bind(&mut self, label: Label) {
        self.labels[label as usize] = self.ops.ops.len() as u32;
    }

    /// Records a jump to `target`. The jump starts here, or on x86-64 ends here, as
    /// [`TargetAsm::patch`] expects.
    pub(super) fn jumps_to(&mut self, target: Label) {
        self.jumps.push((self.ops.ops.len() as u32, target));
    }

    /// Patches all jumps and returns the bytes.
    pub(super) fn finish<M: TargetAsm>(mut self) -> Vec<u8> {
        for &(at, label) in &self.jumps {
            let target = self.labels[label as usize] as usize;
            M::patch(&mut self.ops.ops, at as usize, target);
        }
        self.ops.ops
    }
}
