//! The search for a program's accept paths.
//!
//! The search is depth first from the entry block. It computes values as
//! expressions and gathers conditions in a [`PathCondition`]; where the
//! conditions decide a branch, it follows one side only. So the paths found are
//! disjoint and together exact: a frame is accepted along the one path whose
//! conditions all hold and whose loads all lie in the frame.
//!
//! **Tests that may be left out.** If a path takes one side of a branch and
//! later passes the block on the other side as well, the test does not matter.
//! A frame that passes all the path's other conditions but fails this test
//! enters that block at once, and from there runs the same suffix with the same
//! values to the same verdict. (Of several such tests take the first that
//! fails; the code between branch and block is skipped, and the rest follows by
//! induction.) `a or b` is then two paths, `a` and `b`, instead of `a` and `not
//! a and b`; they may overlap, but never with different verdicts. The loads in
//! between are still required, which is harmless: the path stays within the set
//! that the filter accepts, and the exact path within the path.

use super::constraints::{Atom, Cond, PathCondition, Simplified, reduce};
use super::{Analysis, Field, Path, Snap, Test};
use crate::expr::{ExprError, Exprs};
use crate::limits;
use weir_filter::ir::{Block, Cmp, Edge, Op, Operand, Program, Term, Value};

/// The analysis of a verified program, and the expressions it names.
pub(super) fn analyse(program: &Program) -> (Exprs, Analysis) {
    let mut walk = PathSearch {
        program,
        accepting: accepting_blocks(program),
        exprs: Exprs::with_capacity(CONDS_RESERVED),
        env: vec![Operand::Imm(0); program.values.len()],
        trail: PathState {
            blocks: Vec::with_capacity(CONDS_RESERVED),
            branches: Vec::new(),
            atoms: Vec::with_capacity(CONDS_RESERVED),
            extents: Vec::with_capacity(CONDS_RESERVED),
        },
        stack: Vec::new(),
        paths: Vec::new(),
        steps: 0,
    };
    match walk.search() {
        Ok(()) => {
            drop_covered(&mut walk.paths);
            (walk.exprs, Analysis::Paths(walk.paths))
        }
        Err(LimitExceeded) => (Exprs::default(), Analysis::Opaque),
    }
}

/// Number of conditions to reserve room for: most filters need no more.
const CONDS_RESERVED: usize = 16;

/// The search exceeds a limit.
struct LimitExceeded;

/// For each block, whether a path from it may accept.
fn accepting_blocks(program: &Program) -> Vec<bool> {
    let mut accepting = vec![false; program.blocks.len()];
    for (index, block) in program.blocks.iter().enumerate().rev() {
        accepting[index] = match &block.term {
            Term::Return(verdict) => *verdict != Operand::Imm(0),
            term => term.edges().any(|edge| accepting[edge.block.index()]),
        };
    }
    accepting
}

struct PathSearch<'p> {
    program: &'p Program,
    accepting: Vec<bool>,
    exprs: Exprs,
    /// The value of each IR value on the present path. Entries are never
    /// restored: blocks on the path set all values that it may use.
    env: Vec<Operand>,
    trail: PathState,
    stack: Vec<PendingBranch>,
    paths: Vec<Path>,
    steps: usize,
}

/// The present path. Pending alternatives share its beginning, so each stores
/// only the length of the shared part.
struct PathState {
    blocks: Vec<Block>,
    branches: Vec<Branch>,
    /// Conditions, each with the index of the branch that it comes from.
    atoms: Vec<(Atom, usize)>,
    /// Loads: base, and one past the last byte.
    extents: Vec<(Option<Value>, u64)>,
}

/// A branch both sides of which can accept.
struct Branch {
    /// The block on the side not taken.
    otherwise: Block,
    /// The arguments that side would pass.
    args: Vec<Operand>,
}

/// The condition belongs to no branch and cannot be left out.
const ALWAYS: usize = usize::MAX;

#[derive(Clone, Copy)]
struct Mark {
    blocks: usize,
    branches: usize,
    atoms: usize,
    extents: usize,
}

/// An alternative from which the search continues later.
struct PendingBranch {
    facts: PathCondition,
    /// A condition that is yet to be assumed.
    cond: Option<Cond>,
    /// More such conditions, the last one first.
    conds: Vec<Cond>,
    /// The index of the branch that the conditions come from.
    branch: usize,
    /// A branch to record when the path continues here.
    enters_by: Option<Branch>,
    next: Next,
    mark: Mark,
}

#[derive(Clone)]
enum Next {
    Enter(Block, Vec<Operand>),
    Accept(Snap),
}

impl PathState {
    fn mark(&self) -> Mark {
        Mark {
            blocks: self.blocks.len(),
            branches: self.branches.len(),
            atoms: self.atoms.len(),
            extents: self.extents.len(),
        }
    }

    fn cut(&mut self, mark: Mark) {
        self.blocks.truncate(mark.blocks);
        self.branches.truncate(mark.branches);
        self.atoms.truncate(mark.atoms);
        self.extents.truncate(mark.extents);
    }

    fn add_extent(&mut self, base: Option<Value>, end: u64) {
        // Pending alternatives share the list, so it is never changed in place.
        let known = |&(known_base, known_end)| known_base == base && known_end >= end;
        if !self.extents.iter().any(known) {
            self.extents.push((base, end));
        }
    }
}

impl PathSearch<'_> {
    fn search(&mut self) -> Result<(), LimitExceeded> {
        if !self.accepting[0] {
            return Ok(());
        }
        self.stack.push(PendingBranch {
            facts: PathCondition::default(),
            cond: None,
            conds: Vec::new(),
            branch: ALWAYS,
            enters_by: None,
            next: Next::Enter(Block::ENTRY, Vec::new()),
            mark: self.trail.mark(),
        });
        while let Some(mut pending) = self.stack.pop() {
            self.trail.cut(pending.mark);
            self.trail.branches.extend(pending.enters_by.take());
            self.follow(pending)?;
        }
        Ok(())
    }

    /// Follows one path to its end; pushes alternatives on the stack.
    fn follow(&mut self, mut here: PendingBranch) -> Result<(), LimitExceeded> {
        loop {
            if !self.assume_pending(&mut here)? {
                return Ok(());
            }
            match here.next {
                Next::Accept(snap) => return self.accept(&here.facts, snap),
                Next::Enter(block, ref args) => {
                    let block_of = self.program.block(block);
                    self.spend(1 + args.len() + block_of.insts.len())?;
                    let params = &block_of.params;
                    for (param, arg) in params.iter().zip(args) {
                        self.env[param.index()] = *arg;
                    }
                    if !self.run_block(block, &mut here.facts)? {
                        return Ok(());
                    }
                    let Some(next) = self.leave(block, here.facts)? else {
                        return Ok(());
                    };
                    here = next;
                }
            }
        }
    }

    /// Assumes the pending conditions; returns `false` if they contradict the
    /// path. Where one of two conditions suffices, the path forks.
    fn assume_pending(&mut self, here: &mut PendingBranch) -> Result<bool, LimitExceeded> {
        while let Some(cond) = here.cond.take().or_else(|| here.conds.pop()) {
            match reduce(&self.exprs, cond) {
                Simplified::Known(true) => {}
                Simplified::Known(false) => return Ok(false),
                Simplified::Atom(atom) => {
                    if !self.assume(&mut here.facts, atom, here.branch)? {
                        return Ok(false);
                    }
                }
                Simplified::Both(first, second) => here.conds.extend([second, first]),
                Simplified::Either(first, second) => {
                    let mut conds = here.conds.clone();
                    conds.extend([second, first.negated()]);
                    self.defer(PendingBranch {
                        facts: here.facts.clone(),
                        cond: None,
                        conds,
                        branch: here.branch,
                        enters_by: None,
                        next: here.next.clone(),
                        mark: self.trail.mark(),
                    })?;
                    here.conds.push(first);
                }
            }
        }
        Ok(true)
    }

    fn defer(&mut self, pending: PendingBranch) -> Result<(), LimitExceeded> {
        self.spend(1 + pending.facts.len() + pending.conds.len())?;
        self.stack.push(pending);
        Ok(())
    }

    /// Counts steps before the work is done; an error if the limit is exceeded.
    fn spend(&mut self, steps: usize) -> Result<(), LimitExceeded> {
        self.steps += steps;
        if self.steps > limits::STEPS_MAX {
            return Err(LimitExceeded);
        }
        Ok(())
    }

    fn assume(
        &mut self,
        facts: &mut PathCondition,
        atom: Atom,
        branch: usize,
    ) -> Result<bool, LimitExceeded> {
        if self.trail.atoms.len() == limits::CONDITIONS_MAX {
            return Err(LimitExceeded);
        }
        self.trail.atoms.push((atom, branch));
        Ok(facts.add(&self.exprs, atom))
    }

    /// Evaluates a block's instructions; returns `false` if one rejects every
    /// frame.
    fn run_block(
        &mut self,
        block: Block,
        facts: &mut PathCondition,
    ) -> Result<bool, LimitExceeded> {
        self.trail.blocks.push(block);
        let program = self.program;
        for &value in &program.block(block).insts {
            let env = &self.env;
            let resolve = |operand: Operand| match operand {
                Operand::Val(value) => env[value.index()],
                constant => constant,
            };
            let op = program.op(value).map_operands(resolve);
            if let Op::Bin {
                op: division,
                b: Operand::Val(divisor),
                ..
            } = op
                && division.may_reject()
            {
                let not_zero = Atom::Differs {
                    expr: divisor,
                    mask: u32::MAX,
                    value: 0,
                };
                if !self.assume(facts, not_zero, ALWAYS)? {
                    return Ok(false);
                }
            }
            let result = match self.exprs.intern(op) {
                Ok(operand) => operand,
                Err(ExprError::NoValue) => return Ok(false),
                Err(ExprError::Limit) => return Err(LimitExceeded),
            };
            self.env[value.index()] = result;
            self.note_load(op, result);
        }
        Ok(true)
    }

    fn note_load(&mut self, op: Op, result: Operand) {
        if let (Op::Load { .. }, Operand::Val(expr)) = (op, result)
            && let Op::Load {
                width,
                base,
                offset,
            } = self.exprs.op(expr)
        {
            let end = u64::from(offset) + u64::from(width.bytes());
            self.trail.add_extent(base, end);
        }
    }

    fn resolve(&self, operand: Operand) -> Operand {
        match operand {
            Operand::Val(value) => self.env[value.index()],
            constant => constant,
        }
    }

    fn resolved_args(&self, edge: &Edge) -> Vec<Operand> {
        edge.args.iter().map(|arg| self.resolve(*arg)).collect()
    }

    /// The next block of a path at a block's end; `None` if the path cannot
    /// accept.
    fn leave(
        &mut self,
        block: Block,
        facts: PathCondition,
    ) -> Result<Option<PendingBranch>, LimitExceeded> {
        let go = |cond, next, mark| PendingBranch {
            facts: PathCondition::default(),
            cond,
            conds: Vec::new(),
            branch: ALWAYS,
            enters_by: None,
            next,
            mark,
        };
        let mark = self.trail.mark();
        let program = self.program;
        let mut pending = match &program.block(block).term {
            Term::Return(verdict) => match self.resolve(*verdict) {
                Operand::Imm(0) => return Ok(None),
                Operand::Imm(snap) => go(None, Next::Accept(Snap::Const(snap)), mark),
                Operand::Val(expr) => {
                    let snap = match self.exprs.max(expr) {
                        1 => Snap::Const(1),
                        _ => Snap::Expr(expr),
                    };
                    let accepted = Cond::new(Cmp::Ne, Operand::Val(expr), Operand::Imm(0));
                    go(Some(accepted), Next::Accept(snap), mark)
                }
            },
            Term::Jump(edge) => {
                if !self.accepting[edge.block.index()] {
                    return Ok(None);
                }
                let args = self.resolved_args(edge);
                go(None, Next::Enter(edge.block, args), mark)
            }
            Term::Branch {
                cmp,
                a,
                b,
                then,
                otherwise,
            } => {
                let cond = Cond::new(*cmp, self.resolve(*a), self.resolve(*b));
                return self.branch(cond, then, otherwise, facts);
            }
        };
        pending.facts = facts;
        Ok(Some(pending))
    }

    fn branch(
        &mut self,
        cond: Cond,
        then: &Edge,
        otherwise: &Edge,
        facts: PathCondition,
    ) -> Result<Option<PendingBranch>, LimitExceeded> {
        let accepting = |edge: &Edge| self.accepting[edge.block.index()];
        let (go_then, go_otherwise) = (accepting(then), accepting(otherwise));
        let mark = self.trail.mark();
        let (cond, edge, facts) = match (go_then, go_otherwise) {
            (true, true) => {
                let alternative = PendingBranch {
                    facts: facts.clone(),
                    cond: Some(cond.negated()),
                    conds: Vec::new(),
                    branch: mark.branches,
                    enters_by: Some(self.branch_away_from(then)),
                    next: Next::Enter(otherwise.block, self.resolved_args(otherwise)),
                    mark,
                };
                self.defer(alternative)?;
                let branch = self.branch_away_from(otherwise);
                self.trail.branches.push(branch);
                (cond, then, facts)
            }
            (true, false) => (cond, then, facts),
            (false, true) => (cond.negated(), otherwise, facts),
            (false, false) => return Ok(None),
        };
        let forked = go_then && go_otherwise;
        Ok(Some(PendingBranch {
            facts,
            cond: Some(cond),
            conds: Vec::new(),
            branch: if forked { mark.branches } else { ALWAYS },
            enters_by: None,
            next: Next::Enter(edge.block, self.resolved_args(edge)),
            mark,
        }))
    }

    fn branch_away_from(&self, edge: &Edge) -> Branch {
        Branch {
            otherwise: edge.block,
            args: self.resolved_args(edge),
        }
    }

    /// Records the path at an accepting return.
    fn accept(&mut self, facts: &PathCondition, snap: Snap) -> Result<(), LimitExceeded> {
        if self.paths.len() == limits::PATHS_MAX {
            return Err(LimitExceeded);
        }
        let PathState {
            branches,
            atoms,
            extents,
            ..
        } = &self.trail;
        self.spend(branches.len() + atoms.len() + extents.len())?;
        let needless: Vec<bool> = (self.trail.branches.iter())
            .map(|branch| self.rejoins(branch))
            .collect();
        let path = if needless.contains(&true) {
            // A remaining test may have been dropped because it followed from a
            // test that is left out: gather the remaining conditions again.
            let mut rest = PathCondition::default();
            for &(atom, branch) in &self.trail.atoms {
                if branch == ALWAYS || !needless[branch] {
                    rest.add(&self.exprs, atom);
                }
            }
            self.path(&rest, snap)
        } else {
            self.path(facts, snap)
        };
        if path.key.len() > limits::FIELDS_MAX {
            return Err(LimitExceeded);
        }
        if !self.paths.contains(&path) {
            self.paths.push(path);
        }
        Ok(())
    }

    /// Whether the path passes the block on the branch's other side, with the
    /// same arguments.
    fn rejoins(&self, branch: &Branch) -> bool {
        let params = &self.program.block(branch.otherwise).params;
        let same = |(param, arg): (&Value, &Operand)| self.env[param.index()] == *arg;
        self.trail.blocks.binary_search(&branch.otherwise).is_ok()
            && params.iter().zip(&branch.args).all(same)
    }

    fn path(&self, facts: &PathCondition, snap: Snap) -> Path {
        let exprs = &self.exprs;
        let mut key = Vec::with_capacity(facts.constraints.len());
        let mut tests = Vec::new();
        for known in &facts.constraints {
            let (expr, mask) = (known.expr, known.mask);
            if mask != 0 {
                key.push((Field { expr, mask }, known.value));
            }
            let bounded = known.lo > 0 || known.hi < exprs.max(expr);
            if bounded && mask != exprs.bits(expr) {
                let (lo, hi) = (known.lo, known.hi);
                tests.push(Test::Range { expr, lo, hi });
            }
        }
        key.sort_unstable();
        let differs = facts.differs.iter();
        tests.extend(differs.map(|&(expr, mask, value)| Test::Differs { expr, mask, value }));
        let compares = facts.compares.iter();
        tests.extend(compares.map(|&(cmp, a, b)| Test::Compare { cmp, a, b }));
        let snap_expr = match snap {
            Snap::Expr(expr) => Some(expr),
            Snap::Const(_) => None,
        };
        self.require_extents(&key, &mut tests, snap_expr);
        Path { key, tests, snap }
    }

    /// Adds a test for each load of the path that no used expression performs
    /// anyway.
    fn require_extents(&self, key: &[(Field, u32)], tests: &mut Vec<Test>, snap: Option<Value>) {
        let mut used = vec![false; self.exprs.len()];
        let from_key = key.iter().map(|(field, _)| field.expr);
        let from_tests = tests.iter().flat_map(|test| test.exprs());
        for expr in from_key.chain(from_tests).chain(snap) {
            used[expr.index()] = true;
        }
        self.close(&mut used);
        let mut extents = self.trail.extents.clone();
        // Widest first, deepest base first: one test then implies the others.
        extents.sort_unstable_by(|a, b| b.cmp(a));
        for (base, end) in extents {
            let reaches = |index: usize| match self.exprs.op(Value(index as u32)) {
                Op::Load {
                    width,
                    base: load_base,
                    offset,
                } => load_base == base && u64::from(offset) + u64::from(width.bytes()) >= end,
                _ => false,
            };
            // Loads far into the frame are often among the used ones: search
            // from the end.
            let mut covered = (0..used.len())
                .rev()
                .any(|index| used[index] && reaches(index));
            covered |= tests.iter().any(|test| {
                matches!(test, Test::Extent { base: known, end: reach }
                    if *known == base && *reach >= end)
            });
            if !covered {
                tests.push(Test::Extent { base, end });
                if let Some(base) = base {
                    used[base.index()] = true;
                    self.close(&mut used);
                }
            }
        }
    }

    /// Marks the operands of marked expressions.
    fn close(&self, used: &mut [bool]) {
        for index in (0..used.len()).rev() {
            if used[index] {
                let operands = self.exprs.op(Value(index as u32)).operands();
                for expr in operands.filter_map(Operand::value) {
                    used[expr.index()] = true;
                }
            }
        }
    }
}

/// Drops each path that another path covers: one with the same snap length
/// whose conditions are all among its own.
fn drop_covered(paths: &mut Vec<Path>) {
    // The comparison is quadratic, and pays only for few paths.
    if !(2..=COVER_MAX).contains(&paths.len()) {
        return;
    }
    let mut index = 0;
    while index < paths.len() {
        let others = paths
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index);
        if others
            .clone()
            .any(|(_, other)| covers(other, &paths[index]))
        {
            paths.remove(index);
        } else {
            index += 1;
        }
    }
}

/// Number of paths, at most, that are compared with each other.
const COVER_MAX: usize = 64;

fn covers(wide: &Path, narrow: &Path) -> bool {
    let shown = |(field, value): &(Field, u32)| {
        narrow.key.iter().any(|(known, known_value)| {
            known.expr == field.expr
                && known.mask & field.mask == field.mask
                && known_value & field.mask == *value
        })
    };
    wide.snap == narrow.snap
        && wide.key.iter().all(shown)
        && wide.tests.iter().all(|test| narrow.tests.contains(test))
}
