//! Blocks put in a row, jumps given their distances.
//!
//! A conditional jump reaches 255 instructions ahead. The row is made from its
//! end, so every target's place is known; one out of reach gets an island right
//! behind the block that needs it: a `ja`, or a copy of the `ret` that it would
//! lead to. Nothing falls into an island, as a block that jumps conditionally
//! never falls through, and blocks further ahead use it too. So a program of
//! n far jumps to one target takes about n/255 islands.

use super::select::{Code, End};
use super::tail_merge::is_bare_return;
use crate::lang::cbpf::code::{JA, JMP, LD, LDX, MEM, class, mode};
use crate::lang::cbpf::{Insn, verify};

/// How far a conditional jump reaches.
const REACH: usize = 255;

/// The finished program, its blocks in the given order.
pub(super) fn layout(code: &Code, order: &[usize]) -> Vec<Insn> {
    let row = lay(code, order, false);
    let reloads = row
        .iter()
        .any(|insn| matches!(class(insn.code), LD | LDX) && mode(insn.code) == MEM);
    // The kernel's check of what has been stored takes a `ret` for something
    // that goes on at the next instruction.
    if reloads && verify(&row).is_err() {
        return lay(code, order, true);
    }
    row
}

/// Lays out the blocks; `fence` says whether to put a jump that nothing
/// reaches behind a `ret` in the middle.
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

/// Places count instructions from the end of the program.
struct Layout<'c> {
    code: &'c Code,
    /// The program from its end.
    row: Vec<Insn>,
    /// Where each block starts.
    start: Vec<usize>,
    /// The nearest place that leads to each block: its start or an island.
    nearest: Vec<usize>,
    fence: bool,
}

impl Layout<'_> {
    fn block(&mut self, index: usize) {
        let block = &self.code.blocks[index];
        if self.fence && !self.row.is_empty() && matches!(block.end, End::Return(_)) {
            // To the last instruction, which is a `ret` and reads nothing.
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
                // An island moves the other target one further away.
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
            // The check takes a `ret` behind a branch amiss as well.
            End::Return(insn) if is_bare_return(block) && !self.fence => insn,
            _ => Insn::stmt(JMP | JA, (self.row.len() - self.start[target]) as u32),
        };
        self.row.push(insn);
        self.nearest[target] = self.row.len();
    }
}
