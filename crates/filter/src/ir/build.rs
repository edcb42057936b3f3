//! Makes programs block by block.

use super::{BasicBlock, BinOp, Block, Cmp, Edge, Op, Operand, Program, Term, Value, Width};

/// Makes a [`Program`]. Create all blocks you will jump to, fill each once,
/// and [`finish`](Builder::finish): blocks are then ordered so that edges lead
/// forward, and those that nothing reaches are left out.
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

    /// How many values there are so far; for callers that keep to a limit.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// How many blocks there are so far.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// A new, empty block.
    pub fn block(&mut self) -> Block {
        self.blocks.push(BlockDraft::default());
        Block(self.blocks.len() as u32 - 1)
    }

    /// A new parameter of `block`, after those it has.
    pub fn param(&mut self, block: Block) -> Value {
        let value = self.define(Op::Param);
        self.blocks[block.index()].params.push(value);
        value
    }

    /// Makes `block` the one that instructions are added to.
    pub fn switch_to(&mut self, block: Block) {
        self.current = block;
    }

    /// The block that instructions are added to.
    pub fn current(&self) -> Block {
        self.current
    }

    /// Whether the current block has its terminator.
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

    /// Loads from `base + offset`.
    pub fn load(&mut self, width: Width, base: Option<Value>, offset: u32) -> Value {
        self.push(Op::Load {
            width,
            base,
            offset,
        })
    }

    /// The length of the frame on the wire.
    pub fn wire_len(&mut self) -> Value {
        self.push(Op::Len)
    }

    /// Arithmetic.
    pub fn bin(&mut self, op: BinOp, a: impl Into<Operand>, b: impl Into<Operand>) -> Value {
        let (a, b) = (a.into(), b.into());
        self.push(Op::Bin { op, a, b })
    }

    /// A comparison as a value.
    pub fn test(&mut self, cmp: Cmp, a: impl Into<Operand>, b: impl Into<Operand>) -> Value {
        let (a, b) = (a.into(), b.into());
        self.push(Op::Test { cmp, a, b })
    }

    /// Ends the current block.
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

    /// The program: reachable blocks in an order in which edges lead forward,
    /// values renumbered in that order.
    ///
    /// # Panics
    /// If a reachable block has no terminator or the graph has a cycle: both
    /// are mistakes of the caller, never of its input.
    pub fn finish(self) -> Program {
        let drafts: Vec<BasicBlock> = self
            .blocks
            .into_iter()
            .map(|draft| BasicBlock {
                params: draft.params,
                insts: draft.insts,
                // A block without an end is only allowed when unreachable;
                // the marker below would fail verification.
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
    /// Puts reachable blocks in topological order (each `then` side nearest
    /// to its branch), drops the others and the dead values, and renumbers
    /// both.
    ///
    /// # Panics
    /// If a reachable edge leads nowhere or the graph has a cycle.
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
        // Edges may pass values on to blocks of any kind, so terminators are
        // renamed once every value has its new name.
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

/// Reachable blocks so that each comes before all that its edges lead to.
/// Iterative: a chain of 100,000 blocks must not exhaust the call stack.
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
        // Last pushed is visited first and so ends up last: push `then` first
        // to lay it out right behind the branch.
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
