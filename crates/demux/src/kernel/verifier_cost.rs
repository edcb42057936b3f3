//! The kernel verifier's cost of an opaque filter.
//!
//! The verifier goes through a program along all paths, and does not go on
//! along one where it has been before in the same state. A state is what is
//! known of the values that are still used: a value that was compared, and is
//! used again whatever the outcome was, is known on one path and unknown on
//! another. So a few dozen of such values make a million steps, which take
//! the kernel many seconds.

use super::code::LOAD_JUMPS;
use super::lowered_path::lower_paths;
use crate::filter::Filter;
use std::collections::{BTreeMap, BTreeSet};
use weir_filter::backend::ebpf::path_jumps;
use weir_filter::ir::{Cmp, Op, Operand, Program, Term, Value};

/// An estimate of the instructions that the verifier goes through for a
/// filter, by all states that differ, which is often far too high
/// where it is high at all; it is not followed beyond `most`. 0 if tables hold
/// the filter, which asks no more of the verifier than its subtables.
pub fn verifier_cost(filter: &Filter, most: u64) -> u64 {
    match lower_paths(filter) {
        Some(_) => 0,
        None => {
            let jumps = u64::from(path_jumps(filter.program(), LOAD_JUMPS));
            let on_path = u64::from(path_computed_loads(filter.program())) * PATH_LOAD_STEPS;
            let in_all = u64::from(program_computed_loads(filter.program())) * LOAD_STEPS;
            let least = OPAQUE_COST + jumps * JUMP_STEPS + on_path.max(in_all);
            least.max(steps(filter.program(), most))
        }
    }
}

/// The maximum number of loads at computed offsets on one path of a filter that is opaque; 0
/// if tables hold the filter. The verifier's time for a path grows faster than their number.
pub fn computed_loads(filter: &Filter) -> u32 {
    match lower_paths(filter) {
        Some(_) => 0,
        None => path_computed_loads(filter.program()),
    }
}

/// The number of loads at computed offsets in all of a filter that is opaque; 0 if tables
/// hold the filter. The verifier goes through the load routine for each of them, whether or
/// not they are on one path.
pub fn all_computed_loads(filter: &Filter) -> u32 {
    match lower_paths(filter) {
        Some(_) => 0,
        None => program_computed_loads(filter.program()),
    }
}

fn program_computed_loads(program: &Program) -> u32 {
    let values = program.blocks.iter().flat_map(|block| &block.insts);
    let loads = values.filter(|value| is_computed_load(program, **value));
    loads.count() as u32
}

fn path_computed_loads(program: &Program) -> u32 {
    let mut loads = vec![0_u32; program.blocks.len()];
    // Edges lead forward.
    for (at, block) in program.blocks.iter().enumerate().rev() {
        let behind = block.term.edges().map(|edge| loads[edge.block.index()]);
        let own = block
            .insts
            .iter()
            .filter(|value| is_computed_load(program, **value));
        loads[at] = behind.max().unwrap_or(0) + own.count() as u32;
    }
    loads.first().copied().unwrap_or(0)
}

fn is_computed_load(program: &Program, value: Value) -> bool {
    matches!(program.op(value), Op::Load { base: Some(_), .. })
}

/// Least cost of a conditional jump on the longest path: of the 8,192 jumps that the verifier keeps
/// pending, all opaque filters share those that the subtables leave.
const JUMP_STEPS: u64 = 1 << 7;
/// Additional cost of each opaque filter: a plan has room for
/// [`OPAQUE_MAX`](super::limits::OPAQUE_MAX).
const OPAQUE_COST: u64 = 2_800;

/// Additional cost of a load at a computed offset on the longest path. On Linux without
/// `CAP_PERFMON`, each adds milliseconds to the verifier's time (measured by
/// `costly_filters_of_users_do_not_keep_root_waiting` of the broker), more than other jumps.
const PATH_LOAD_STEPS: u64 = 1 << 12;
/// Least cost of each load at a computed offset. On Linux without `CAP_PERFMON` it takes the
/// verifier some 0.26 ms at each hook of tc, whichever paths the loads are on (measured by
/// `accepted_filters_are_verified_in_good_time` of `weir-link`).
const LOAD_STEPS: u64 = 1 << 11;
/// Cost of a load at a computed offset beyond its instruction: the verifier follows all paths of
/// the load routine.
const COMPUTED_LOAD_STEPS: usize = 64;

/// A comparison, by its block, that proves something of a value.
type CompareBranch = BTreeSet<(Value, usize)>;

fn steps(program: &Program, most: u64) -> u64 {
    let used = Used::of(program);
    let mut told: Vec<CompareBranch> = vec![CompareBranch::new(); program.blocks.len()];
    let mut forms = ConstCounts::of(program);
    let mut all = 0_u64;
    for (at, block) in program.blocks.iter().enumerate() {
        let told_here = std::mem::take(&mut told[at]);
        let states = forms.states(&told_here, |value| used.is_from(at, value));
        let loads = block
            .insts
            .iter()
            .filter(|value| is_computed_load(program, **value));
        let steps = block.insts.len() + 1 + loads.count() * COMPUTED_LOAD_STEPS;
        all = all.saturating_add(states.saturating_mul(steps as u64));
        if all > most {
            break;
        }
        for value in &block.insts {
            forms.compute(program, *value);
        }
        for (taken, edge) in block.term.edges().enumerate() {
            let to = edge.block.index();
            forms.pass(&program.blocks[to].params, &edge.args);
            let new = compared(&block.term, taken).map(|value| (value, at));
            let passed = told_here.iter().copied().chain(new);
            told[to].extend(passed.filter(|(value, _)| used.is_from(to, *value)));
        }
    }
    all
}

/// The value of which a comparison proves something on its first or second
/// edge: equality fixes the value, inequality proves nothing.
fn compared(term: &Term, taken: usize) -> Option<Value> {
    let Term::Branch { cmp, a, b, .. } = term else {
        return None;
    };
    let tells = match cmp {
        Cmp::Eq => taken == 0,
        Cmp::Ne => taken == 1,
        _ => true,
    };
    a.value().or(b.value()).filter(|_| tells)
}

/// As how many constants the verifier may know each value, where it was not
/// compared: what is computed of the frame as none, a parameter as one for
/// each edge that passes one.
struct ConstCounts {
    of: Vec<u64>,
    /// Those with any.
    several: Vec<Value>,
}

impl ConstCounts {
    fn of(program: &Program) -> ConstCounts {
        ConstCounts {
            of: vec![0; program.values.len()],
            several: Vec::new(),
        }
    }

    fn operand(&self, operand: Operand) -> u64 {
        operand.value().map_or(1, |value| self.of[value.index()])
    }

    fn set(&mut self, value: Value, forms: u64) {
        if forms > 0 && self.of[value.index()] == 0 {
            self.several.push(value);
        }
        self.of[value.index()] = forms;
    }

    fn compute(&mut self, program: &Program, value: Value) {
        let forms = match program.op(value) {
            Op::Param | Op::Len | Op::Load { .. } => 0,
            Op::Bin { a, b, .. } | Op::Test { a, b, .. } => {
                self.operand(a).saturating_mul(self.operand(b))
            }
        };
        self.set(value, forms);
    }

    fn pass(&mut self, params: &[Value], args: &[Operand]) {
        for (param, arg) in params.iter().zip(args) {
            let forms = self.of[param.index()].saturating_add(self.operand(*arg));
            self.set(*param, forms);
        }
    }

    /// Of all values together that are still used: each as one of these
    /// constants, as a comparison has proven, or unknown.
    fn states(&self, told: &CompareBranch, is_used: impl Fn(Value) -> bool) -> u64 {
        let mut each: BTreeMap<Value, u64> = BTreeMap::new();
        for value in self.several.iter().filter(|value| is_used(**value)) {
            each.insert(*value, self.of[value.index()]);
        }
        for (value, _) in told {
            let forms = each.entry(*value).or_insert(0);
            *forms = forms.saturating_add(1);
        }
        let all = each.values().map(|forms| forms.saturating_add(1));
        all.fold(1, u64::saturating_mul)
    }
}

/// For each block the values from before that are used in it or later: a bit
/// for each.
struct Used {
    bits: Vec<u64>,
    words: usize,
}

impl Used {
    fn of(program: &Program) -> Used {
        let words = program.values.len().div_ceil(64);
        let mut used = Used {
            bits: vec![0; words * program.blocks.len()],
            words,
        };
        // Edges lead forward.
        for (at, block) in program.blocks.iter().enumerate().rev() {
            for edge in block.term.edges() {
                let (from, to) = (edge.block.index() * words, at * words);
                (0..words).for_each(|word| used.bits[to + word] |= used.bits[from + word]);
            }
            used.set(at, block.term.operands());
            for value in block.insts.iter().rev() {
                used.clear(at, *value);
                used.set(at, program.op(*value).operands());
            }
            block.params.iter().for_each(|param| used.clear(at, *param));
        }
        used
    }

    fn set(&mut self, block: usize, operands: impl Iterator<Item = Operand>) {
        for value in operands.filter_map(Operand::value) {
            self.bits[block * self.words + value.index() / 64] |= 1 << (value.index() % 64);
        }
    }

    fn clear(&mut self, block: usize, value: Value) {
        self.bits[block * self.words + value.index() / 64] &= !(1 << (value.index() % 64));
    }

    fn is_from(&self, block: usize, value: Value) -> bool {
        self.bits[block * self.words + value.index() / 64] >> (value.index() % 64) & 1 == 1
    }
}
