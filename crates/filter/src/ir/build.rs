//! Construction of programs, a block at a time.

use super::{BasicBlock, BinOp, Block, Cmp, Edge, Op, Operand, Program, Term, Value, Width};

/// Builds a [`Program`]. The caller creates each block before an edge leads to it,
/// fills it once, and calls [`finish`](Builder::finish). That orders the blocks so
/// that edges lead forward, and drops unreachable ones.
///
/// ```
/// use weir_filter::ir::{Builder, Cmp, Width};
///
/// let mut builder = Builder::new();
/// let (entry, accept, reject) = (builder.entry(), builder.block(), builder.block());
/// builder.switch_to(entry);
/// let ethertype = builder.load(Width::B2, None, 12);
/// builder.branch(Cmp::Eq, ethertype, 0x0806, accept, reject);
/// builder.switch_to(accept);
/// builder.ret(262_144);
/// builder.switch_to(reject);
/// builder.ret(0);
/// let arp = builder.finish();
/// arp.verify().unwrap();
/// ```
#[derive(Debug)]
pub struct Builder {
    values: Vec<Op>,
    blocks: Vec<BlockDraft>,
    current: Block,
}

#[derive(Debug, Default)]
struct BlockDraft {
    params: Vec<Value>,
    insts: Vec<Value>,
    term: Option<Term>,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// A builder with an empty entry block, which is current.
    pub fn new() -> Builder {
        Builder {
            values: Vec::new(),
            blocks: vec![BlockDraft::default()],
            current: Block::ENTRY,
        }
    }

    /// The entry block.
    pub fn entry(&self) -> Block {
        Block::ENTRY
    }

    /// The number of values so far, for callers that enforce a limit.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// The number of blocks so far, for callers that enforce a limit.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Adds an empty block.
    pub fn block(&mut self) -> Block {
        self.blocks.push(BlockDraft::default());
        Block(self.blocks.len() as u32 - 1)
    }

    /// Adds a parameter to `block`, after its existing ones.
    pub fn param(&mut self, block: Block) -> Value {
        let value = self.define(Op::Param);
        self.blocks[block.index()].params.push(value);
        value
    }

    /// Makes `block` current: later instructions are added to it.
    pub fn switch_to(&mut self, block: Block) {
        self.current = block;
    }

    /// The current block.
    pub fn current(&self) -> Block {
        self.current
    }

    /// Whether the current block has a terminator.
    pub fn is_terminated(&self) -> bool {
        self.blocks[self.current.index()].term.is_some()
    }

    fn define(&mut self, op: Op) -> Value {
        self.values.push(op);
        Value(self.values.len() as u32 - 1)
    }

    fn push(&mut self, op: Op) -> Value {
        assert!(!self.is_terminated(), "the block has ended");
        let value = self.define(op);
        self.blocks[self.current.index()].insts.push(value);
        value
    }

    /// Adds a load from `base + offset` to the current block.
    pub fn load(&mut self, width: Width, base: Option<Value>, offset: u32) -> Value {
        self.push(Op::Load {
            width,
            base,
            offset,
        })
    }

    /// Adds an instruction that yields the length of the frame on the wire.
    pub fn wire_len(&mut self) -> Value {
        self.push(Op::Len)
    }

    /// Adds an arithmetic instruction.
    pub fn bin(&mut self, op: BinOp, a: impl Into<Operand>, b: impl Into<Operand>) -> Value {
        let (a, b) = (a.into(), b.into());
        self.push(Op::Bin { op, a, b })
    }

    /// Adds a comparison that yields 1 or 0.
    pub fn test(&mut self, cmp: Cmp, a: impl Into<Operand>, b: impl Into<Operand>) -> Value {
        let (a, b) = (a.into(), b.into());
        self.push(Op::Test { cmp, a, b })
    }

    /// Ends the current block with `term`.
    ///
    /// # Panics
    /// If the current block has a terminator, as every method that adds to the block.
    pub fn terminate(&mut self, term: Term) {
        assert!(!self.is_terminated(), "the block has ended");
        self.blocks[self.current.index()].term = Some(term);
    }

    /// Ends the current block with a branch to blocks without parameters.
    pub fn branch(
        &mut self,
        cmp: Cmp,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
        then: Block,
        otherwise: Block,
    ) {
        self.terminate(Term::Branch {
            cmp,
            a: a.into(),
            b: b.into(),
            then: Edge::to(then),
            otherwise: Edge::to(otherwise),
        });
    }

    /// Ends the current block with a jump that passes `args`.
    pub fn jump(&mut self, block: Block, args: Vec<Operand>) {
        self.terminate(Term::Jump(Edge { block, args }));
    }

    /// Ends the current block with a verdict.
    pub fn ret(&mut self, verdict: impl Into<Operand>) {
        self.terminate(Term::Return(verdict.into()));
    }

    /// Returns the program: reachable blocks in an order in which edges lead forward,
    /// and values numbered in that order.
    ///
    /// # Panics
    /// If a reachable block has no terminator, or the graph has a cycle. Both are
    /// mistakes of the caller, never of the caller's input.
    pub fn finish(self) -> Program {
        let drafts: Vec<BasicBlock> = self
            .blocks
            .into_iter()
            .map(|draft| BasicBlock {
                params: draft.params,
                insts: draft.insts,
                // Only an unreachable block may lack a terminator; `normalise` panics
                // on this marker in a reachable one.
                term: draft
                    .term
                    .unwrap_or_else(|| Term::Jump(Edge::to(Block(u32::MAX)))),
            })
            .collect();
        let mut program = Program {
            values: self.values,
            blocks: drafts,
        };
        program.normalise();
        program
    }
}

impl Program {
    /// Puts reachable blocks in topological order, each `then` target nearest to its
    /// branch, drops unreachable blocks and their values, and renumbers the rest.
    ///
    /// # Panics
    /// If a reachable edge has no target block, or the graph has a cycle.
    pub fn normalise(&mut self) {
        let order = topological_order(&self.blocks);
        let mut block_names = vec![Block(u32::MAX); self.blocks.len()];
        for (new, old) in order.iter().enumerate() {
            block_names[old.index()] = Block(new as u32);
        }
        let mut blocks: Vec<BasicBlock> = Vec::with_capacity(order.len());
        for old in &order {
            let empty = BasicBlock {
                params: Vec::new(),
                insts: Vec::new(),
                term: Term::Return(Operand::Imm(0)),
            };
            blocks.push(std::mem::replace(&mut self.blocks[old.index()], empty));
        }

        let mut value_names = vec![Value(u32::MAX); self.values.len()];
        let mut values = Vec::new();
        for block in &mut blocks {
            for value in block.params.iter_mut().chain(&mut block.insts) {
                let op = self.values[value.index()];
                value_names[value.index()] = Value(values.len() as u32);
                *value = value_names[value.index()];
                values.push(op.map_operands(|operand| renamed(operand, &value_names)));
            }
        }
        // Terminators may use values of any block, so they are renumbered after all
        // values have their new numbers.
        for block in &mut blocks {
            block
                .term
                .map_operands(|operand| renamed(operand, &value_names));
            for edge in block.term.edges_mut() {
                edge.block = block_names[edge.block.index()];
            }
        }
        self.values = values;
        self.blocks = blocks;
    }
}

fn renamed(operand: Operand, names: &[Value]) -> Operand {
    match operand {
        Operand::Val(value) => Operand::Val(names[value.index()]),
        constant => constant,
    }
}

/// Reachable blocks in topological order. Iterative, since a chain of 100,000
/// blocks would exhaust the call stack.
fn topological_order(blocks: &[BasicBlock]) -> Vec<Block> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; blocks.len()];
    let mut post_order = Vec::with_capacity(blocks.len());
    let mut stack = vec![(Block::ENTRY, false)];
    while let Some((block, leaving)) = stack.pop() {
        if leaving {
            marks[block.index()] = Mark::Done;
            post_order.push(block);
            continue;
        }
        match marks[block.index()] {
            Mark::Done => continue,
            Mark::Open => panic!("the control-flow graph has a cycle through b{}", block.0),
            Mark::New => marks[block.index()] = Mark::Open,
        }
        stack.push((block, true));
        // The edge pushed last is visited first and comes last in the order. `then` is
        // pushed first, so that its block follows the branch.
        for edge in blocks[block.index()].term.edges() {
            assert!(
                edge.block.index() < blocks.len(),
                "b{} has no terminator or leads nowhere",
                block.0
            );
            match marks[edge.block.index()] {
                Mark::New => stack.push((edge.block, false)),
                Mark::Open => panic!("the control-flow graph has a cycle through b{}", block.0),
                Mark::Done => {}
            }
        }
    }
    post_order.reverse();
    post_order
}
