//! The verifier, which section 7 of the paper proposes: valid instructions, stack depth
//! and branches are checked ahead of time. At run time only accesses outside the packet
//! and divisions by zero remain to be checked.

use super::disassemble::inst_text;
use super::inst::{Action, Inst, Operator, action_of, inst_at, operator_of};
use super::{Dialect, Filter};

/// Maximum number of pairs of a word and a stack depth at which it is reached. Only
/// branches make several depths for one word.
const STATES_MAX: usize = 8_192;

/// A broken rule of the dialect. Words are numbered from zero.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerifyError {
    /// The program exceeds the dialect's limit on words.
    #[error("the program has {count} words; the dialect {dialect} allows {max}", max = .dialect.words_max())]
    TooLong {
        /// Number of words.
        count: usize,
        /// The dialect.
        dialect: Dialect,
    },
    /// A word with an undefined action in its low ten bits.
    #[error("word {at} ({word:#06x}) has the action {action}, which the dialect {dialect} does not have", action = .word & 0x3ff)]
    UndefinedAction {
        /// Index of the word.
        at: usize,
        /// The word.
        word: u16,
        /// The dialect.
        dialect: Dialect,
    },
    /// A word with an undefined operator in its high six bits.
    #[error("word {at} ({word:#06x}) has the operator {operator}, which the dialect {dialect} does not have", operator = .word >> 10)]
    UndefinedOperator {
        /// Index of the word.
        at: usize,
        /// The word.
        word: u16,
        /// The dialect.
        dialect: Dialect,
    },
    /// An instruction whose literal is beyond the end of the program.
    #[error("word {at} ({inst}) takes a literal, but the program ends before it")]
    MissingLiteral {
        /// Index of the word.
        at: usize,
        /// The instruction as text.
        inst: String,
    },
    /// An instruction that needs more cells than the stack has.
    #[error("word {at} ({inst}) needs {needed} on the stack, where there is {depth} at that point")]
    Underflow {
        /// Index of the word.
        at: usize,
        /// The instruction as text.
        inst: String,
        /// Cells that the instruction needs.
        needed: usize,
        /// Cells on the stack.
        depth: usize,
    },
    /// An instruction that pushes beyond the limit of the stack.
    #[error("word {at} ({inst}) pushes beyond the {max} cells of the dialect {dialect}'s stack", max = .dialect.stack_max())]
    Overflow {
        /// Index of the word.
        at: usize,
        /// The instruction as text.
        inst: String,
        /// The dialect.
        dialect: Dialect,
    },
    /// A branch with a target, or a next word, beyond the program.
    #[error("word {at} ({inst}) leads to word {target}, but the program has words 0 to {last}")]
    Branch {
        /// Index of the word.
        at: usize,
        /// The instruction as text.
        inst: String,
        /// Index of the target.
        target: usize,
        /// Index of the last word.
        last: usize,
    },
    /// Branches reach words with too many different stack depths.
    #[error(
        "by word {at} the program's branches meet with different numbers of cells on the stack \
         in more than {STATES_MAX} ways; let them meet with equal ones"
    )]
    TooManyDepths {
        /// Index of the word at which the limit is exceeded.
        at: usize,
    },
}

/// Checks a program against the rules of its dialect.
///
/// A program that passes never overflows or underflows the stack, and meets no
/// undefined action, operator or branch on any frame. The empty program passes; it
/// accepts every frame.
pub fn verify(filter: &Filter) -> Result<(), VerifyError> {
    analyse(filter).map(|_| ())
}

/// The result of verification that [`lower`](super::lower) needs.
pub(super) struct Analysis {
    /// Whether each word has several predecessors.
    pub(super) leader: Vec<bool>,
}

/// A bit set of stack depths; every stack has fewer than 256 cells.
#[derive(Clone, Copy, Default)]
struct Depths([u64; 4]);

impl Depths {
    fn insert(&mut self, depth: usize) {
        self.0[depth / 64] |= 1 << (depth % 64);
    }

    fn count(&self) -> usize {
        self.0.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        (0..256).filter(move |depth| self.0[depth / 64] & (1 << (depth % 64)) != 0)
    }
}

pub(super) fn analyse(filter: &Filter) -> Result<Analysis, VerifyError> {
    let Filter { dialect, words, .. } = filter;
    let (dialect, count) = (*dialect, words.len());
    if count > dialect.words_max() {
        return Err(VerifyError::TooLong { count, dialect });
    }
    // The last entry is the end of the program.
    let mut depths = vec![Depths::default(); count + 1];
    let mut ways = vec![0_usize; count + 1];
    depths[0].insert(0);
    let mut states = 0;
    for at in 0..count {
        let here = depths[at];
        if here.count() == 0 {
            continue;
        }
        states += here.count();
        if states > STATES_MAX {
            return Err(VerifyError::TooManyDepths { at });
        }
        let inst = decode(dialect, words, at)?;
        let targets = targets(dialect, words, at, &inst)?;
        for target in targets.iter().flatten() {
            ways[*target] += 1;
        }
        for depth in here.iter() {
            let after = depth_after(dialect, words, at, &inst, depth)?;
            for target in targets.iter().flatten() {
                depths[*target].insert(after);
            }
        }
    }
    let leader = ways.iter().map(|&ways| ways > 1).collect();
    Ok(Analysis { leader })
}

fn decode(dialect: Dialect, words: &[u16], at: usize) -> Result<Inst, VerifyError> {
    let word = words[at];
    if action_of(dialect, word).is_none() {
        return Err(VerifyError::UndefinedAction { at, word, dialect });
    }
    if operator_of(dialect, word).is_none() {
        return Err(VerifyError::UndefinedOperator { at, word, dialect });
    }
    inst_at(dialect, words, at).ok_or_else(|| VerifyError::MissingLiteral {
        at,
        inst: inst_text(dialect, &words[at..]).0,
    })
}

/// The targets of a branch, when taken and when not.
///
/// The distance counts from the literal. Distance 0 executes the literal itself, a word
/// of zero, which does nothing; distance 1 continues after it. Sun's interpreter rejects
/// a frame for which a branch, taken or not, leads to the end of the program; this
/// verifier refuses such a program.
pub(super) fn branch_targets(at: usize, inst: &Inst) -> [usize; 2] {
    [at + 1 + inst.literal as usize, at + inst.len]
}

fn targets(
    dialect: Dialect,
    words: &[u16],
    at: usize,
    inst: &Inst,
) -> Result<[Option<usize>; 2], VerifyError> {
    if !matches!(inst.action, Action::Branch { .. }) {
        return Ok([Some(at + inst.len), None]);
    }
    let targets = branch_targets(at, inst);
    let last = words.len() - 1;
    match targets.iter().find(|target| **target > last) {
        Some(&target) => Err(VerifyError::Branch {
            at,
            inst: inst_text(dialect, &words[at..]).0,
            target,
            last,
        }),
        None => Ok(targets.map(Some)),
    }
}

fn depth_after(
    dialect: Dialect,
    words: &[u16],
    at: usize,
    inst: &Inst,
    depth: usize,
) -> Result<usize, VerifyError> {
    let text = || inst_text(dialect, &words[at..]).0;
    let underflow = |needed, depth| VerifyError::Underflow {
        at,
        inst: text(),
        needed,
        depth,
    };
    let (needed, change) = inst.action.effect();
    if depth < needed {
        return Err(underflow(needed, depth));
    }
    let pushed = depth.saturating_add_signed(change);
    if pushed > dialect.stack_max() {
        let inst = text();
        return Err(VerifyError::Overflow { at, inst, dialect });
    }
    if inst.operator == Operator::Nop {
        return Ok(pushed);
    }
    match pushed.checked_sub(2) {
        Some(below) => Ok(below + inst.operator.leaves(dialect)),
        None => Err(underflow(2, pushed)),
    }
}
