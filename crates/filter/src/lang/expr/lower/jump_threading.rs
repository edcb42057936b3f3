//! Jump threading in the front end, as libpcap's optimiser does it.
//!
//! Optimisation belongs to [`opt`](crate::opt), but this part is observable. A load
//! beyond the captured bytes rejects the frame, so it matters which tests run, and
//! in which order. An expression that no packet can match is refused. libpcap's
//! rules are:
//!
//! 1. A test is skipped if its outcome follows from a test that every path to it has
//!    passed: `tcp port 80 and tcp` tests for TCP once.
//! 2. A test with the same target for both outcomes is skipped together with its
//!    loads: all tests of `udp or not udp port 53`.
//! 3. In a chain of alternatives, a test of the value that was tested right before
//!    the chain moves up to that test: `src host a or dst host b or src host c` runs
//!    in the order a, c, b.
//!
//! The rules repeat until nothing changes. Tests are visited in libpcap's order, since
//! the result depends on it.

use crate::ir::Cmp;

use super::graph::{Graph, Target, ops};
use crate::lang::expr::generate::{Op, PredicateArena, Source, Temp, Test};

/// Maximum number of tests in a graph that is threaded; the dominator sets need quadratic
/// memory.
const TESTS_MAX: usize = 1_000;
const OPS_MAX: usize = 16 * TESTS_MAX;
/// Maximum number of tests in a graph in which tests move, and of moves in any graph:
/// each move recomputes the dominators.
const MOVING_TESTS_MAX: usize = 200;
const MOVES_MAX: usize = 400;
/// Maximum number of rounds in sequence that only move tests; the moves might not
/// terminate.
const ROUNDS_MAX: usize = 100;

/// The comparisons of classic BPF; all others swap the outgoing edges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cmp4 {
    Eq,
    Gt,
    Ge,
    Set,
    /// No comparison: an end, or a test that only sets registers.
    None,
}

/// The kind of a vertex's comparison; equal tests have equal kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Compare {
    code: Cmp4,
    /// Whether the right operand is a constant.
    constant: bool,
}

/// A test, or one of the two ends, which have no outgoing edges.
#[derive(Clone, Copy, Debug)]
struct Vertex {
    target: Target,
    compare: Compare,
    /// Value numbers of the operands.
    left: u32,
    right: u32,
    /// Targets if the classic comparison holds, and if it does not.
    out: [Option<usize>; 2],
    /// Whether the test is the negation of the classic comparison.
    swapped: bool,
    /// The outcome of the comparison, if both operands are literals.
    literal: Option<bool>,
    level: usize,
}

/// An edge: its source vertex, and its index there.
#[derive(Clone, Copy, Debug)]
struct Edge {
    from: usize,
    side: usize,
}

/// Threads the jumps of `graph` in place. Large or unoptimised graphs stay unchanged.
pub(super) fn thread(code: &PredicateArena, graph: &mut Graph) {
    let needed = graph
        .targets
        .iter()
        .filter(|target| target.is_some())
        .count();
    if code.unoptimised || needed > TESTS_MAX || code.ops.len() > OPS_MAX {
        return;
    }
    let Target::Test(_) = graph.root else {
        return;
    };
    let mut threading = JumpThreading::new(code, graph);
    if code.registers > 0 || needed > MOVING_TESTS_MAX {
        threading.moves_left = 0;
    }
    threading.run();
    for vertex in &threading.vertices {
        let (Target::Test(test), [Some(holds), Some(fails)]) = (vertex.target, vertex.out) else {
            continue;
        };
        let target = |index: usize| threading.vertices[index].target;
        let out = if vertex.swapped {
            (target(fails), target(holds))
        } else {
            (target(holds), target(fails))
        };
        graph.targets[test as usize] = Some(out);
    }
    graph.drop_unreachable();
}

impl Graph {
    fn drop_unreachable(&mut self) {
        let mut reached = vec![false; self.targets.len()];
        let mut stack = vec![self.root];
        while let Some(target) = stack.pop() {
            if let Target::Test(test) = target {
                let test = test as usize;
                if let (false, Some((then, otherwise))) = (reached[test], self.targets[test]) {
                    reached[test] = true;
                    stack.extend([then, otherwise]);
                }
            }
        }
        for (target, reached) in self.targets.iter_mut().zip(reached) {
            if !reached {
                *target = None;
            }
        }
    }
}

struct JumpThreading {
    /// The vertices in preorder; the root is the first.
    vertices: Vec<Vertex>,
    /// The reachable vertices from the root down, in decreasing order of their longest
    /// path to an end. Within a level, the vertex finished last comes first.
    down: Vec<usize>,
    /// The reachable vertices except the ends, in increasing order of level. Within a
    /// level the order is that of `down`.
    up: Vec<usize>,
    /// The last edge into each vertex, and for each edge the previous edge into the
    /// same vertex.
    entering: Vec<Option<usize>>,
    before: Vec<Option<usize>>,
    /// For each vertex, the vertices on every path to it.
    dominators: Sets,
    /// For each edge, the edges on every path through it.
    edge_dominators: Sets,
    moves_left: usize,
    changed: bool,
    /// Whether anything but a move has changed in this round.
    simplified: bool,
    /// Work memory of [`find_levels`](Self::find_levels).
    seen: Vec<bool>,
    finished: Vec<usize>,
    stack: Vec<(usize, bool)>,
}

impl JumpThreading {
    fn new(code: &PredicateArena, graph: &Graph) -> JumpThreading {
        let vertices = vertices(code, graph);
        let count = vertices.len();
        JumpThreading {
            vertices,
            down: Vec::with_capacity(count),
            up: Vec::with_capacity(count),
            entering: vec![None; count],
            before: vec![None; 2 * count],
            dominators: Sets::new(count, count),
            edge_dominators: Sets::new(2 * count, 2 * count),
            moves_left: MOVES_MAX,
            changed: false,
            simplified: false,
            seen: vec![false; count],
            finished: Vec::with_capacity(count),
            stack: Vec::new(),
        }
    }

    fn run(&mut self) {
        let mut rounds = 0;
        loop {
            self.changed = false;
            self.simplified = false;
            self.find_levels();
            self.find_edge_dominators();
            self.decide_literals();
            self.thread_edges();
            if self.moves_left > 0 {
                self.find_dominators();
                self.find_entering();
                self.move_alternatives();
            }
            if !self.changed {
                return;
            }
            rounds = if self.simplified { 0 } else { rounds + 1 };
            if rounds >= ROUNDS_MAX {
                return;
            }
        }
    }

    fn find_levels(&mut self) {
        self.seen.fill(false);
        self.finished.clear();
        self.stack.push((0, false));
        while let Some((index, leaving)) = self.stack.pop() {
            let out = self.vertices[index].out;
            if leaving {
                let levels = out.map(|out| out.map_or(0, |out| self.vertices[out].level + 1));
                self.vertices[index].level = levels[0].max(levels[1]);
                self.finished.push(index);
            } else if !std::mem::replace(&mut self.seen[index], true) {
                self.stack.push((index, true));
                self.stack.extend(out[1].map(|out| (out, false)));
                self.stack.extend(out[0].map(|out| (out, false)));
            }
        }
        self.down.clear();
        self.down.extend(self.finished.iter().rev());
        self.up.clear();
        self.up.extend(self.finished.iter().rev());
        let vertices = &self.vertices;
        // Both sorts are stable, so the order within a level is kept.
        self.down
            .sort_by_key(|&index| std::cmp::Reverse(vertices[index].level));
        self.up.sort_by_key(|&index| vertices[index].level);
        self.up.retain(|&index| vertices[index].level > 0);
    }

    fn find_dominators(&mut self) {
        let mut sets = std::mem::take(&mut self.dominators);
        sets.fill();
        sets.clear(0);
        for &index in &self.down {
            sets.insert(index, index);
            for out in self.vertices[index].out.into_iter().flatten() {
                sets.intersect(out, index);
            }
        }
        self.dominators = sets;
    }

    fn find_edge_dominators(&mut self) {
        let mut sets = std::mem::take(&mut self.edge_dominators);
        sets.fill();
        for side in [0, 1] {
            sets.clear(self.edge_number(Edge { from: 0, side }));
        }
        for &from in &self.down {
            for side in [0, 1] {
                let edge = self.edge_number(Edge { from, side });
                sets.insert(edge, edge);
                if let Some(out) = self.vertices[from].out[side] {
                    for side in [0, 1] {
                        sets.intersect(self.edge_number(Edge { from: out, side }), edge);
                    }
                }
            }
        }
        self.edge_dominators = sets;
    }

    fn edge_number(&self, edge: Edge) -> usize {
        edge.from + edge.side * self.vertices.len()
    }

    fn edge_of(&self, number: usize) -> Edge {
        let count = self.vertices.len();
        Edge {
            from: number % count,
            side: number / count,
        }
    }

    fn find_entering(&mut self) {
        self.entering.fill(None);
        for &from in &self.down {
            for side in [0, 1] {
                if let Some(out) = self.vertices[from].out[side] {
                    let edge = self.edge_number(Edge { from, side });
                    self.before[edge] = self.entering[out].replace(edge);
                }
            }
        }
    }

    /// The edges into a vertex at the time of the last `find_entering`, the last first.
    fn entering(&self, vertex: usize) -> impl Iterator<Item = Edge> + use<'_> {
        let edges = std::iter::successors(self.entering[vertex], |edge| self.before[*edge]);
        edges.map(|edge| self.edge_of(edge))
    }

    /// Makes a comparison of two literals lead to one target.
    fn decide_literals(&mut self) {
        for vertex in &mut self.vertices {
            if let Some(holds) = vertex.literal {
                let way = vertex.out[usize::from(!holds)];
                if vertex.out != [way; 2] {
                    vertex.out = [way; 2];
                    self.changed = true;
                    self.simplified = true;
                }
            }
        }
    }

    fn thread_edges(&mut self) {
        for index in 0..self.up.len() {
            for side in [0, 1] {
                let from = self.up[index];
                self.thread_edge(Edge { from, side });
            }
        }
    }

    /// Redirects an edge past its target while the target's outcome is decided.
    fn thread_edge(&mut self, edge: Edge) {
        let Some(mut to) = self.vertices[edge.from].out[edge.side] else {
            return;
        };
        let here = self.vertices[to];
        if here.compare.code == Cmp4::None {
            return;
        }
        if let ([Some(a), Some(b)], true) = (here.out, here.out[0] == here.out[1]) {
            debug_assert_eq!(a, b);
            to = a;
            self.vertices[edge.from].out[edge.side] = Some(to);
            self.changed = true;
            self.simplified = true;
        }
        let number = self.edge_number(edge);
        'again: loop {
            for word in 0..self.edge_dominators.words {
                let mut bits = self.edge_dominators.word(number, word);
                while bits != 0 {
                    let known = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    if let Some(next) = self.decided(to, self.edge_of(known)) {
                        to = next;
                        self.vertices[edge.from].out[edge.side] = Some(to);
                        self.changed = true;
                        if self.vertices[to].out[0].is_some() {
                            continue 'again;
                        }
                        return;
                    }
                }
            }
            return;
        }
    }

    /// The target to which `test` leads after the edge `passed`; `None` if undecided.
    fn decided(&self, test: usize, passed: Edge) -> Option<usize> {
        let (test, known) = (&self.vertices[test], &self.vertices[passed.from]);
        let same = test.compare == known.compare && test.left == known.left;
        if !same || test.compare.code == Cmp4::None {
            return None;
        }
        if test.right == known.right {
            return test.out[passed.side];
        }
        // A value equal to one constant is unequal to any other.
        let equal = passed.side == 0 && test.compare.code == Cmp4::Eq && test.compare.constant;
        if equal { test.out[1] } else { None }
    }

    fn move_alternatives(&mut self) {
        for index in 0..self.up.len() {
            for side in [0, 1] {
                if self.moves_left > 0 {
                    self.move_alternative(self.up[index], side);
                }
            }
        }
    }

    /// Applies rule 3 to the chain at `start`: the vertices behind it that share its
    /// target at `side`. A test of the value tested right before the chain moves up.
    fn move_alternative(&mut self, start: usize, side: usize) {
        let Some(last) = self.entering(start).next() else {
            return;
        };
        let value = self.vertices[last.from].left;
        let other = |edge: Edge| self.vertices[edge.from].left != value;
        if self.entering(start).any(other) {
            return;
        }
        let shared = self.vertices[start].out[side];
        let in_chain = |this: &Self, vertex: usize| {
            this.vertices[vertex].out[side] == shared && this.dominators.has(vertex, start)
        };
        let first_way = usize::from(self.vertices[last.from].out[0] != Some(start));
        let mut differs = Edge {
            from: last.from,
            side: first_way,
        };
        let mut at_top = true;
        loop {
            let Some(vertex) = self.follow(differs) else {
                return;
            };
            if !in_chain(self, vertex) {
                return;
            }
            if self.vertices[vertex].left != value {
                break;
            }
            differs = Edge {
                from: vertex,
                side: 1 - side,
            };
            at_top = false;
        }
        let Some(other) = self.follow(differs) else {
            return;
        };
        let mut same = Edge {
            from: other,
            side: 1 - side,
        };
        let pulled = loop {
            let Some(vertex) = self.follow(same) else {
                return;
            };
            if !in_chain(self, vertex) {
                return;
            }
            if self.vertices[vertex].left == value {
                break vertex;
            }
            same = Edge {
                from: vertex,
                side: 1 - side,
            };
        };
        let count = self.vertices.len();
        self.vertices[same.from].out[same.side] = self.vertices[pulled].out[1 - side];
        self.vertices[pulled].out[1 - side] = Some(other);
        if at_top {
            let mut next = self.entering[start];
            while let Some(edge) = next {
                let out = &mut self.vertices[edge % count].out;
                let way = usize::from(out[0] != Some(start));
                out[way] = Some(pulled);
                next = self.before[edge];
            }
        } else {
            self.vertices[differs.from].out[differs.side] = Some(pulled);
        }
        self.changed = true;
        self.moves_left -= 1;
        self.find_dominators();
    }

    fn follow(&self, edge: Edge) -> Option<usize> {
        self.vertices[edge.from].out[edge.side]
    }
}

/// The reachable vertices in preorder: a vertex is numbered when first visited.
fn vertices(code: &PredicateArena, graph: &Graph) -> Vec<Vertex> {
    let mut values = Values::new(3 * (code.ops.len() + code.tests.len()));
    let mut vertices: Vec<Vertex> = Vec::with_capacity(code.tests.len() + 2);
    let mut places: Vec<Option<usize>> = vec![None; code.tests.len()];
    let mut ends = [None; 2];
    let mut stack = vec![(graph.root, None::<Edge>)];
    while let Some((target, edge)) = stack.pop() {
        let place = match target {
            Target::Test(test) => &mut places[test as usize],
            Target::Accept => &mut ends[0],
            Target::Reject => &mut ends[1],
        };
        let index = place.unwrap_or(vertices.len());
        if place.replace(index).is_none() {
            let vertex = match target {
                Target::Test(test) => values.vertex(code, test),
                end => Vertex::end(end),
            };
            if let Target::Test(test) = target
                && let Some((then, otherwise)) = graph.targets[test as usize]
            {
                let ways = if vertex.swapped {
                    [otherwise, then]
                } else {
                    [then, otherwise]
                };
                for side in [1, 0] {
                    stack.push((ways[side], Some(Edge { from: index, side })));
                }
            }
            vertices.push(vertex);
        }
        if let Some(edge) = edge {
            vertices[edge.from].out[edge.side] = Some(index);
        }
    }
    vertices
}

impl Vertex {
    fn end(target: Target) -> Vertex {
        Vertex {
            target,
            compare: Compare {
                code: Cmp4::None,
                constant: false,
            },
            left: 0,
            right: 0,
            out: [None; 2],
            swapped: false,
            literal: None,
            level: 0,
        }
    }
}

/// Value numbering: equal operations on equal values have equal numbers.
struct Values {
    /// Hash table with open addressing. The number of an entry is its index plus one;
    /// an entry of zeros is free.
    table: Vec<[u32; 4]>,
    /// The number of each operation of the current test.
    of_ops: Vec<u32>,
}

impl Values {
    fn new(names_max: usize) -> Values {
        Values {
            table: vec![[0; 4]; (2 * names_max).next_power_of_two()],
            of_ops: Vec::new(),
        }
    }

    fn name(&mut self, key: [u32; 4]) -> u32 {
        let [a, b, c, d] = key.map(u64::from);
        let mixed = (a << 32 | b).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (c << 32 | d).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        let mask = self.table.len() - 1;
        let mut slot = (mixed ^ mixed >> 29) as usize & mask;
        // Fewer than half of the entries are used, so a free one exists.
        while self.table[slot] != key {
            if self.table[slot] == [0; 4] {
                self.table[slot] = key;
                break;
            }
            slot = (slot + 1) & mask;
        }
        slot as u32 + 1
    }

    fn source(&mut self, source: Source, begin: u32) -> u32 {
        match source {
            Source::Imm(constant) => self.name([10, constant, 0, 0]),
            Source::Temp(temp) => self.of_ops[(temp.0 - begin) as usize],
        }
    }

    fn vertex(&mut self, code: &PredicateArena, index: u32) -> Vertex {
        let test = &code.tests[index as usize];
        let mut vertex = Vertex::end(Target::Test(index));
        let Some((cmp, a, b)) = test.compare else {
            return vertex;
        };
        self.name_ops(code, test);
        let begin = test.ops.0;
        let (code4, swapped) = match cmp {
            Cmp::Eq => (Cmp4::Eq, false),
            Cmp::Ne => (Cmp4::Eq, true),
            Cmp::Gt => (Cmp4::Gt, false),
            Cmp::Le => (Cmp4::Gt, true),
            Cmp::Ge => (Cmp4::Ge, false),
            Cmp::Lt => (Cmp4::Ge, true),
            Cmp::Set => (Cmp4::Set, false),
            Cmp::Clear => (Cmp4::Set, true),
        };
        vertex.compare = Compare {
            code: code4,
            constant: matches!(b, Source::Imm(_)),
        };
        vertex.swapped = swapped;
        vertex.left = self.source(a, begin);
        vertex.right = self.source(b, begin);
        if let (Source::Imm(a), Source::Imm(b)) = (a, b) {
            vertex.literal = Some(cmp.eval(a, b) != swapped);
        }
        // `a & mask == 0` is the negation of `Set`.
        if let (Cmp4::Eq, Source::Temp(Temp(temp)), Source::Imm(0)) = (code4, a, b)
            && let Op::Mask(loaded, mask) = code.ops[temp as usize]
        {
            vertex.compare.code = Cmp4::Set;
            vertex.swapped = !swapped;
            vertex.left = self.source(loaded.into(), begin);
            vertex.right = self.source(Source::Imm(mask), begin);
        }
        vertex
    }

    fn name_ops(&mut self, code: &PredicateArena, test: &Test) {
        self.of_ops.clear();
        let begin = test.ops.0;
        for op in ops(code, test) {
            let name = match *op {
                Op::Load {
                    width,
                    base,
                    index,
                    offset,
                } => {
                    let base = base.map_or(0, |base| self.source(base.into(), begin));
                    let index = index.map_or(0, |index| self.source(index, begin));
                    self.name([width.bytes(), offset, base, index])
                }
                Op::Len => self.name([5, 0, 0, 0]),
                Op::Mask(a, mask) => {
                    let a = self.source(a.into(), begin);
                    self.name([6, a, mask, 0])
                }
                Op::Get(register) => self.name([7, register.0, 0, 0]),
                Op::Bin(op, a, b) => {
                    let (a, b) = (self.source(a, begin), self.source(b, begin));
                    self.name([16 + op as u32, a, b, 0])
                }
                Op::Set(..) => 0,
            };
            self.of_ops.push(name);
        }
    }
}

/// A bit set of small numbers for each of a number of items.
#[derive(Default)]
struct Sets {
    bits: Vec<u64>,
    words: usize,
}

impl Sets {
    fn new(things: usize, numbers: usize) -> Sets {
        let words = numbers.div_ceil(64);
        Sets {
            bits: vec![0; things * words],
            words,
        }
    }

    /// Makes every set contain all numbers.
    fn fill(&mut self) {
        self.bits.fill(u64::MAX);
    }

    fn clear(&mut self, thing: usize) {
        self.bits[thing * self.words..][..self.words].fill(0);
    }

    fn insert(&mut self, thing: usize, number: usize) {
        self.bits[thing * self.words + number / 64] |= 1 << (number % 64);
    }

    fn has(&self, thing: usize, number: usize) -> bool {
        self.bits[thing * self.words + number / 64] >> (number % 64) & 1 == 1
    }

    /// Intersects the set of `thing` with the set of `with`.
    fn intersect(&mut self, thing: usize, with: usize) {
        for word in 0..self.words {
            let other = self.bits[with * self.words + word];
            self.bits[thing * self.words + word] &= other;
        }
    }

    fn word(&self, thing: usize, word: usize) -> u64 {
        self.bits[thing * self.words + word]
    }
}
