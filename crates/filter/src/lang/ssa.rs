//! SSA construction for languages with forward jumps, in one pass (after Braun et
//! al., "Simple and Efficient Construction of SSA Form", 2013).
//!
//! The front end keeps a state: the operand in each register or stack cell. A block
//! with several predecessors is opened after all of them are known, and gets
//! parameters only for the cells that differ.

use std::collections::BTreeMap;

use crate::ir::{BasicBlock, BinOp, Block, Cmp, Edge, Op, Operand, Program, Term, Value, Width};

/// A program under construction. `K` identifies a place in the source at which a
/// block starts; the order of `K` is the order in which blocks are opened.
pub(super) struct SsaBuilder<K> {
    program: Program,
    open: OpenBlock,
    entries: BTreeMap<K, Vec<PredEdge>>,
}

/// The block that instructions are added to.
struct OpenBlock {
    params: Vec<Value>,
    insts: Vec<Value>,
    state: Vec<Operand>,
    is_open: bool,
}

/// An edge into a pending block: its source, its index there, and the state on it.
struct PredEdge {
    from: Block,
    slot: usize,
    state: Vec<Operand>,
}

impl<K: Ord> SsaBuilder<K> {
    /// An empty program whose entry block is open with the given state.
    pub(super) fn new(state: Vec<Operand>) -> SsaBuilder<K> {
        SsaBuilder {
            program: Program {
                values: Vec::new(),
                blocks: Vec::new(),
            },
            open: OpenBlock {
                params: Vec::new(),
                insts: Vec::new(),
                state,
                is_open: true,
            },
            entries: BTreeMap::new(),
        }
    }

    /// Whether a block is open, so that instructions may be added.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_open
    }

    /// The operand in each cell.
    pub(super) fn state(&self) -> &[Operand] {
        &self.open.state
    }

    /// The operand in each cell, mutable.
    pub(super) fn state_mut(&mut self) -> &mut Vec<Operand> {
        &mut self.open.state
    }

    /// The first pending place: an edge leads to it, but it is not opened yet.
    pub(super) fn next_pending(&self) -> Option<&K> {
        self.entries.first_key_value().map(|(key, _)| key)
    }

    /// Opens the block at `place`, after all edges to it are known. Cells that are
    /// not `live` become zero. Returns the number of parameters; without an edge to
    /// `place`, no block is opened and the result is 0.
    pub(super) fn enter(&mut self, place: &K, live: impl Fn(usize) -> bool) -> usize {
        let Some(entries) = self.entries.remove(place) else {
            return 0;
        };
        let block = Block(self.program.blocks.len() as u32);
        let mut state = entries[0].state.clone();
        let mut params = Vec::new();
        for (cell, shared) in state.iter_mut().enumerate() {
            if !live(cell) {
                *shared = Operand::Imm(0);
            } else if entries.iter().any(|entry| entry.state[cell] != *shared) {
                let param = self.define(Op::Param);
                params.push(param);
                *shared = Operand::Val(param);
                for entry in &entries {
                    self.edge(entry).args.push(entry.state[cell]);
                }
            }
        }
        for entry in &entries {
            self.edge(entry).block = block;
        }
        let count = params.len();
        self.open = OpenBlock {
            params,
            insts: Vec::new(),
            state,
            is_open: true,
        };
        count
    }

    fn edge(&mut self, entry: &PredEdge) -> &mut Edge {
        let term = &mut self.program.blocks[entry.from.index()].term;
        let edge = term.edges_mut().nth(entry.slot);
        edge.expect("an entry is made from an edge")
    }

    /// Ends the open block with a jump to `place`.
    pub(super) fn jump(&mut self, place: K) {
        let from = self.close(Term::Jump(Edge::to(Block::ENTRY)));
        self.leads_to(from, 0, place);
    }

    /// Ends the open block with a branch; both edges carry the current state.
    pub(super) fn branch(&mut self, cmp: Cmp, operands: [Operand; 2], then: K, otherwise: K) {
        self.branch_to(cmp, operands, then, |_| otherwise);
    }

    /// Ends the open block with a branch. `otherwise` may change the state on the
    /// edge that it returns the place of.
    pub(super) fn branch_to(
        &mut self,
        cmp: Cmp,
        [a, b]: [Operand; 2],
        then: K,
        otherwise: impl FnOnce(&mut Vec<Operand>) -> K,
    ) {
        let from = self.close(Term::Branch {
            cmp,
            a,
            b,
            then: Edge::to(Block::ENTRY),
            otherwise: Edge::to(Block::ENTRY),
        });
        self.leads_to(from, 0, then);
        let otherwise = otherwise(&mut self.open.state);
        self.leads_to(from, 1, otherwise);
    }

    /// Ends the open block with a verdict.
    pub(super) fn ret(&mut self, verdict: Operand) {
        self.close(Term::Return(verdict));
    }

    /// Returns `verdict` if the comparison holds, else continues in a new block with
    /// the same state.
    pub(super) fn ret_if(&mut self, cmp: Cmp, [a, b]: [Operand; 2], verdict: u32) {
        let state = std::mem::take(&mut self.open.state);
        let from = self.close(Term::Branch {
            cmp,
            a,
            b,
            then: Edge::to(Block(self.program.blocks.len() as u32 + 1)),
            otherwise: Edge::to(Block(self.program.blocks.len() as u32 + 2)),
        });
        debug_assert_eq!(from.index() + 1, self.program.blocks.len());
        self.program.blocks.push(BasicBlock {
            params: Vec::new(),
            insts: Vec::new(),
            term: Term::Return(Operand::Imm(verdict)),
        });
        self.open = OpenBlock {
            params: Vec::new(),
            insts: Vec::new(),
            state,
            is_open: true,
        };
    }

    fn leads_to(&mut self, from: Block, slot: usize, place: K) {
        let state = self.open.state.clone();
        let ways = self.entries.entry(place).or_default();
        ways.push(PredEdge { from, slot, state });
    }

    fn close(&mut self, term: Term) -> Block {
        assert!(self.open.is_open, "no path leads here");
        self.open.is_open = false;
        self.program.blocks.push(BasicBlock {
            params: std::mem::take(&mut self.open.params),
            insts: std::mem::take(&mut self.open.insts),
            term,
        });
        Block(self.program.blocks.len() as u32 - 1)
    }

    fn define(&mut self, op: Op) -> Value {
        self.program.values.push(op);
        Value(self.program.values.len() as u32 - 1)
    }

    /// Adds an instruction to the open block.
    pub(super) fn push(&mut self, op: Op) -> Operand {
        assert!(self.open.is_open, "no path leads here");
        let value = self.define(op);
        self.open.insts.push(value);
        Operand::Val(value)
    }

    /// Adds an arithmetic instruction.
    pub(super) fn bin(
        &mut self,
        op: BinOp,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
    ) -> Operand {
        let (a, b) = (a.into(), b.into());
        self.push(Op::Bin { op, a, b })
    }

    /// Adds a load at `base + offset`. A sum of constants beyond 32 bits becomes
    /// `u32::MAX`, which is outside every frame.
    pub(super) fn load(&mut self, width: Width, base: impl Into<Operand>, offset: u32) -> Operand {
        let (base, offset) = match base.into() {
            Operand::Val(base) => (Some(base), offset),
            Operand::Imm(base) => (None, offset.saturating_add(base)),
        };
        self.push(Op::Load {
            width,
            base,
            offset,
        })
    }

    /// Returns the program with its blocks in topological order.
    pub(super) fn finish(mut self) -> Program {
        self.program.normalise();
        self.program
    }
}
