//! What the generator asks of a machine, and the buffer that code grows in.

use super::location::{Address, Location, Reg, RegSet, Src};
use crate::ir::{BinOp, Cmp, Width};
use dynasmrt::SimpleAssembler;

/// A place in the code that jumps lead to: [`REJECT`], or a block's number plus
/// one, or what [`Code::label`] gives.
pub(super) type Label = u32;

/// Where the frame is rejected.
pub(super) const REJECT: Label = 0;

/// What a program asks of its surroundings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requirements {
    /// It reads the length on the wire.
    pub(super) len: bool,
    /// It divides.
    pub(super) division: bool,
    /// Stack slots.
    pub(super) slots: usize,
    /// Blocks, and so labels.
    pub(super) blocks: usize,
    /// The code may be longer than the short jumps of the machine reach.
    pub(super) far: bool,
}

/// One kind of processor. Every operation may use the machine's scratch
/// registers, which no [`Location`] names but [`TargetAsm::SPARE`].
///
/// Operands follow these rules: not both are constants; a comparison has its
/// constant on the right; a divisor is not zero.
pub(super) trait TargetAsm {
    /// A place for one value during parallel moves; `mov` leaves it alone.
    const SPARE: Location;

    /// The registers that hold values, and the one of the length on the wire.
    fn registers(len: bool, division: bool) -> (RegSet, Reg);

    /// An empty program with its entry code.
    fn begin(needs: Requirements) -> Self;

    /// The code so far.
    fn code(&mut self) -> &mut Code;

    /// Ends the program.
    fn into_code(self) -> Code;

    /// Rejects unless `extent` bytes are captured behind `base`.
    fn check(&mut self, base: Option<Location>, extent: u64);

    /// Loads, in order or raw, from a checked position.
    fn load(&mut self, to: Location, width: Width, raw: bool, from: Address);

    /// Arithmetic.
    fn bin(&mut self, op: BinOp, to: Location, a: Src, b: Src);

    /// A comparison as 0 or 1.
    fn test(&mut self, cmp: Cmp, to: Location, a: Location, b: Src);

    /// Goes to `target` if the comparison holds.
    fn branch(&mut self, cmp: Cmp, a: Location, b: Src, target: Label);

    /// Goes to `target`.
    fn jump(&mut self, target: Label);

    /// Copies.
    fn mov(&mut self, to: Location, from: Src);

    /// Ends with a verdict.
    fn ret(&mut self, verdict: Src);

    /// Writes the distance of a jump into its bytes; both are offsets.
    fn patch(bytes: &mut [u8], at: usize, target: usize);
}

/// Code that is being made.
#[derive(Debug)]
pub(super) struct Code {
    /// The assembler that `dynasm!` writes to.
    pub(super) ops: SimpleAssembler,
    labels: Vec<u32>,
    jumps: Vec<(u32, Label)>,
}

impl Code {
    /// No code; labels for as many blocks.
    pub(super) fn new(blocks: usize) -> Code {
        let mut ops = SimpleAssembler::new();
        ops.ops.reserve(512);
        Code {
            ops,
            labels: vec![0; blocks + 1],
            jumps: Vec::with_capacity(2 * blocks),
        }
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.ops.ops.len()
    }

    /// A label that is no block's.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(0);
        self.labels.len() as Label - 1
    }

    /// Binds `label` to here.
    pub(super) fn bind(&mut self, label: Label) {
        self.labels[label as usize] = self.ops.ops.len() as u32;
    }

    /// Notes that the jump that starts (or, on x86-64, ends) here leads to
    /// `target`; [`TargetAsm::patch`] knows which.
    pub(super) fn jumps_to(&mut self, target: Label) {
        self.jumps.push((self.ops.ops.len() as u32, target));
    }

    /// The finished bytes.
    pub(super) fn finish<M: TargetAsm>(mut self) -> Vec<u8> {
        for &(at, label) in &self.jumps {
            let target = self.labels[label as usize] as usize;
            M::patch(&mut self.ops.ops, at as usize, target);
        }
        self.ops.ops
    }
}
