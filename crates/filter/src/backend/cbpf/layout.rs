//! Layout: concatenates the blocks and resolves the distances of jumps.
//!
//! A conditional jump reaches 255 instructions ahead. The program is built from its
//! end, so every target's position is known. For a target out of reach, a branch island
//! (LLVM) is placed right behind the block that needs it. The island is a `ja`, or a copy
//! of the `ret` that the `ja` would lead to. No block falls through into an island,
//! since a block that ends in a conditional jump never falls through. Earlier blocks
//! share the island, so n far jumps to one target need about n/255 islands.

use super::select::{Code, End};
use super::tail_merge::is_bare_return;
use crate::lang::cbpf::code::{JA, JMP, LD, LDX, MEM, class, mode};
use crate::lang::cbpf::{Insn, verify};

/// Largest distance of a conditional jump, in instructions.
const REACH: usize = 255;

/// Returns the program, with its blocks in the given order.
pub(super) fn layout(code: &Code, order: &[usize]) -> Vec<Insn> {
    let row = lay(code, order, false);
    let reloads = row
        .iter()
        .any(|insn| matches!(class(insn.code), LD | LDX) && mode(insn.code) == MEM);
    // The kernel's check of scratch memory treats a `ret` as if control continued at
    // the next instruction.
    if reloads && verify(&row).is_err() {
        return lay(code, order, true);
    }
    row
}

/// Concatenates the blocks. With `fence`, an unreachable jump follows each `ret` in
/// the middle of the program.
fn lay(code: &Code, order: &[usize], fence: bool) -> Vec<Insn> {
    let mut layout = Layout {
        row: Vec::with_capacity(code.insns.len() + code.blocks.len()),
        start: vec![0; code.blocks.len()],
        nearest: vec![0; code.blocks.len()],
        fence,
        code,
    };
    for &index in order.iter().rev() {
        layout.block(index);
    }
    layout.row.reverse();
    layout.row
}

/// State of the layout. Positions count instructions from the end of the program.
struct Layout<'c> {
    code: &'c Code,
    /// The program in reverse order.
    row: Vec<Insn>,
    /// Start of each block.
    start: Vec<usize>,
    /// Nearest position that leads to each block: its start, or an island.
    nearest: Vec<usize>,
    fence: bool,
}

impl Layout<'_> {
    fn block(&mut self, index: usize) {
        let block = &self.code.blocks[index];
        if self.fence && !self.row.is_empty() && matches!(block.end, End::Return(_)) {
            // The jump leads to the last instruction, a `ret`, which reads nothing.
            self.row
                .push(Insn::stmt(JMP | JA, self.row.len() as u32 - 1));
        }
        self.end(block.end);
        let insns = &self.code.insns[block.first..block.last];
        self.row.extend(insns.iter().rev());
        self.start[index] = self.row.len();
        self.nearest[index] = self.row.len();
    }

    fn end(&mut self, end: End) {
        match end {
            End::Return(insn) => self.row.push(insn),
            End::Jump(target) => {
                let distance = self.row.len() - self.start[target];
                if distance > 0 {
                    self.row.push(Insn::stmt(JMP | JA, distance as u32));
                }
            }
            End::Branch {
                code,
                k,
                then,
                otherwise,
            } => {
                // Adding an island moves the other target one instruction away.
                while let Some(&far) = [then, otherwise]
                    .iter()
                    .find(|&&target| self.row.len() - self.nearest[target] > REACH)
                {
                    self.island(far);
                }
                let [jt, jf] =
                    [then, otherwise].map(|target| (self.row.len() - self.nearest[target]) as u8);
                self.row.push(Insn::jump(code, k, jt, jf));
            }
        }
    }

    fn island(&mut self, target: usize) {
        let block = &self.code.blocks[target];
        let insn = match block.end {
            // The kernel's check misjudges a `ret` behind a branch too.
            End::Return(insn) if is_bare_return(block) && !self.fence => insn,
            _ => Insn::stmt(JMP | JA, (self.row.len() - self.start[target]) as u32),
        };
        self.row.push(insn);
        self.nearest[target] = self.row.len();
    }
}
