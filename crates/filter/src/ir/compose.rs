//! Composition of programs: conjunction with a guard, and a limit on verdicts.

use super::{BasicBlock, Block, Cmp, Edge, Operand, Program, Term, Value};

impl Program {
    /// Returns the conjunction of both programs with the verdict of `self`. `guard`
    /// runs first; where `guard` rejects, no instruction of `self` runs.
    ///
    /// The guard enforces a rule on a filter from an untrusted source. All of that
    /// filter is behind the guard, so no jump, load or return can bypass the rule.
    ///
    /// ```
    /// use weir_filter::{interp, ir::Program};
    ///
    /// let all = Program::constant(96);
    /// let none = Program::constant(0);
    /// assert_eq!(interp::run(&all.guarded_by(&all), &[], 0), 96);
    /// assert_eq!(interp::run(&all.guarded_by(&none), &[], 0), 0);
    /// ```
    #[must_use]
    pub fn guarded_by(&self, guard: &Program) -> Program {
        let mut out = guard.clone();
        let first = Block(guard.blocks.len() as u32);
        let reject = Block(first.0 + self.blocks.len() as u32);
        for block in &mut out.blocks {
            if let Term::Return(verdict) = block.term {
                block.term = match verdict {
                    Operand::Imm(0) => Term::Return(verdict),
                    Operand::Imm(_) => Term::Jump(Edge::to(first)),
                    Operand::Val(_) => Term::Branch {
                        cmp: Cmp::Ne,
                        a: verdict,
                        b: Operand::Imm(0),
                        then: Edge::to(first),
                        otherwise: Edge::to(reject),
                    },
                };
            }
        }
        out.append(self);
        out.blocks.push(returning(Operand::Imm(0)));
        out.normalise();
        out
    }

    /// Returns the program with verdicts above `snap_len_max` lowered to it.
    ///
    /// # Panics
    /// If `snap_len_max` is zero, since a verdict of zero rejects.
    #[must_use]
    pub fn snapped_to(self, snap_len_max: u32) -> Program {
        assert!(snap_len_max > 0, "a snap length of zero accepts nothing");
        let is_longer = |block: &BasicBlock| match block.term {
            Term::Return(Operand::Imm(len)) => len > snap_len_max,
            Term::Return(Operand::Val(_)) => true,
            _ => false,
        };
        if !self.blocks.iter().any(is_longer) {
            return self;
        }
        let mut out = self;
        let cut = Block(out.blocks.len() as u32);
        let mut whole = Vec::new();
        for block in &mut out.blocks {
            let Term::Return(verdict) = block.term else {
                continue;
            };
            block.term = match verdict {
                Operand::Imm(len) => Term::Return(Operand::Imm(len.min(snap_len_max))),
                Operand::Val(_) => {
                    let own = Block(cut.0 + 1 + whole.len() as u32);
                    whole.push(returning(verdict));
                    Term::Branch {
                        cmp: Cmp::Gt,
                        a: verdict,
                        b: Operand::Imm(snap_len_max),
                        then: Edge::to(cut),
                        otherwise: Edge::to(own),
                    }
                }
            };
        }
        out.blocks.push(returning(Operand::Imm(snap_len_max)));
        out.blocks.append(&mut whole);
        out.normalise();
        out
    }

    /// Appends the values and blocks of `other`, renumbered.
    fn append(&mut self, other: &Program) {
        let values = self.values.len() as u32;
        let blocks = self.blocks.len() as u32;
        let shift = |operand| match operand {
            Operand::Val(Value(number)) => Operand::Val(Value(number + values)),
            constant => constant,
        };
        let renamed = other.values.iter().map(|op| op.map_operands(shift));
        self.values.extend(renamed);
        for block in &other.blocks {
            let mut block = block.clone();
            for value in block.params.iter_mut().chain(&mut block.insts) {
                value.0 += values;
            }
            block.term.map_operands(shift);
            for edge in block.term.edges_mut() {
                edge.block.0 += blocks;
            }
            self.blocks.push(block);
        }
    }
}

fn returning(verdict: Operand) -> BasicBlock {
    BasicBlock {
        params: Vec::new(),
        insts: Vec::new(),
        term: Term::Return(verdict),
    }
}
