//! A filter made ready for a plan: its accept paths as keys and residual
//! tests.

mod constraints;
mod paths;
mod signature;

use crate::expr::{Exprs, Formula};
use crate::limits;
pub(crate) use signature::FilterSignature;
use std::fmt;
use std::sync::{Arc, OnceLock};
use weir_filter::backend::native::Code;
use weir_filter::interp;
use weir_filter::ir::{BinOp, Cmp, Op, Operand, Program, Value};
use weir_filter::opt;

/// A filter made ready to be bound: its program and, if they are few enough,
/// its accept paths.
///
/// Cloning it is cheap, and one filter may be bound many times, in several
/// plans.
///
/// ```
/// use weir_demux::{Analysis, Filter};
/// use weir_filter::ir::Program;
///
/// let arp: Program = "filter {
/// b0:
///   v0 = load.2 [12]
///   br eq v0, 0x806, b1, b2
/// b1:
///   ret 262144
/// b2:
///   ret 0
/// }"
/// .parse()
/// .unwrap();
/// let filter = Filter::new(arp);
/// let Analysis::Paths(paths) = filter.analysis() else { panic!() };
/// assert_eq!(paths.len(), 1);
/// assert_eq!(paths[0].key[0].1, 0x806);
/// ```
#[derive(Clone, Debug)]
pub struct Filter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    program: Arc<Program>,
    exprs: Exprs,
    analysis: Analysis,
    kind: FilterSignature,
    /// The program has not been optimised, as tables hold all of it.
    plain: bool,
    /// Machine code, once it is wanted; none where this machine has none.
    code: OnceLock<Option<Code>>,
}

/// What became of a filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Analysis {
    /// It accepts a frame exactly if all conditions of at least one of these
    /// hold; where several do, they agree on the snap length. None at all: it
    /// rejects every frame.
    Paths(Vec<Path>),
    /// It has too many paths, or too complex ones (see
    /// [`limits`](crate::limits)): its program is opaque.
    Opaque,
}

/// One way to be accepted: the fields of the key have their values and every
/// residual test holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// Fields and the values they must have, each expression once, in the
    /// order of their names.
    pub key: Vec<(Field, u32)>,
    /// What else must hold.
    pub tests: Vec<Test>,
    /// How much of the frame is delivered.
    pub snap: Snap,
}

/// Bits of an expression: a part of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Field {
    /// The expression.
    pub expr: Value,
    /// Which of its bits.
    pub mask: u32,
}

/// A residual test. As everywhere, one that needs a load outside the frame or
/// a division by zero does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// `lo <= expr <= hi`
    Range {
        /// The expression.
        expr: Value,
        /// The least value allowed.
        lo: u32,
        /// The greatest value allowed.
        hi: u32,
    },
    /// `expr & mask != value`
    Differs {
        /// The expression.
        expr: Value,
        /// Which of its bits.
        mask: u32,
        /// What they must not be.
        value: u32,
    },
    /// A comparison of two expressions.
    Compare {
        /// The comparison.
        cmp: Cmp,
        /// Its left operand.
        a: Value,
        /// Its right operand.
        b: Value,
    },
    /// The captured bytes reach to `base + end` at least: the filter loads
    /// from there, though no other test needs the value.
    Extent {
        /// The variable part of the position.
        base: Option<Value>,
        /// The constant part: one past the last byte loaded.
        end: u64,
    },
}

impl Test {
    /// The expressions it uses, at most two.
    pub fn exprs(self) -> impl Iterator<Item = Value> {
        let (first, second) = match self {
            Test::Range { expr, .. } | Test::Differs { expr, .. } => (Some(expr), None),
            Test::Compare { a, b, .. } => (Some(a), Some(b)),
            Test::Extent { base, .. } => (base, None),
        };
        first.into_iter().chain(second)
    }

    pub(crate) fn map_exprs(self, mut change: impl FnMut(Value) -> Value) -> Test {
        match self {
            Test::Range { expr, lo, hi } => Test::Range {
                expr: change(expr),
                lo,
                hi,
            },
            Test::Differs { expr, mask, value } => Test::Differs {
                expr: change(expr),
                mask,
                value,
            },
            Test::Compare { cmp, a, b } => Test::Compare {
                cmp,
                a: change(a),
                b: change(b),
            },
            Test::Extent { base, end } => Test::Extent {
                base: base.map(change),
                end,
            },
        }
    }
}

/// The snap length that an accept path gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Snap {
    /// The same on every frame; not zero.
    Const(u32),
    /// An expression's value; a path whose snap length is zero does not
    /// accept, which is then among its tests.
    Expr(Value),
}

impl Filter {
    /// Analyses a program, which must be verified
    /// ([`Program::verify`]). Optimise it first: what the optimiser removes
    /// is neither searched nor tested later.
    ///
    /// # Panics
    /// May panic if the program is not verified.
    pub fn new(program: impl Into<Arc<Program>>) -> Filter {
        let filter = Filter::analysed(program.into(), false);
        if *filter.analysis() == Analysis::Opaque {
            filter.make_native();
        }
        filter
    }

    /// As [`new`](Filter::new), of a program that has not been optimised. One
    /// that [comes to keys](Filter::is_keys) as it is stays so until it runs:
    /// optimising takes most of the time from text to filter. Any other is
    /// optimised here.
    ///
    /// # Panics
    /// May panic if the program is not verified.
    pub fn from_plain(mut program: Program) -> Filter {
        if program.len() <= limits::PLAIN_LEN_MAX {
            let plain = Filter::analysed(Arc::new(program), true);
            if plain.is_keys() {
                return plain;
            }
            program = plain.program().clone();
        }
        opt::optimise(&mut program);
        Filter::new(program)
    }

    fn analysed(program: Arc<Program>, plain: bool) -> Filter {
        let (exprs, analysis) = paths::analyse(&program);
        let kind = FilterSignature::of(&exprs, &analysis);
        Filter(Arc::new(Inner {
            program,
            exprs,
            analysis,
            kind,
            plain,
            code: OnceLock::new(),
        }))
    }

    /// Makes native code to [`run`](Filter::run), if there is none yet;
    /// `false` if this machine has none, or has no room for it.
    pub(crate) fn make_native(&self) -> bool {
        let code = || {
            if !self.0.plain {
                return Code::compile(&self.0.program).ok();
            }
            let mut program = self.program().clone();
            opt::optimise(&mut program);
            Code::compile(&program).ok()
        };
        self.0.code.get_or_init(code).is_some()
    }

    /// Runs the program by itself on one frame; zero means rejected.
    ///
    /// Native code where a plan needs it ([`Analysis::Opaque`], and filters
    /// bound where they are few) and the machine allows it, else the
    /// interpreter: who runs single filters compiles them.
    #[inline]
    pub fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        match self.0.code.get() {
            Some(Some(code)) => code.run(bytes, wire_len),
            _ => self.interpret(bytes, wire_len),
        }
    }

    #[cold]
    fn interpret(&self, bytes: &[u8], wire_len: u32) -> u32 {
        interp::run(&self.0.program, bytes, wire_len)
    }

    /// What filters that differ in their constants only have in common.
    pub(crate) fn kind(&self) -> FilterSignature {
        self.0.kind
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.0.program
    }

    /// The expressions that the analysis names.
    pub fn exprs(&self) -> &Exprs {
        &self.0.exprs
    }

    /// Its accept paths.
    pub fn analysis(&self) -> &Analysis {
        &self.0.analysis
    }

    /// Whether its accept paths are keys and nothing else, each field of which
    /// is loaded from a fixed place or from behind one header. Then tables
    /// hold all of it, and the program runs nowhere: to optimise it first
    /// would gain nothing.
    pub fn is_keys(&self) -> bool {
        let Analysis::Paths(paths) = self.analysis() else {
            return false;
        };
        let op = |expr: Value| self.exprs().op(expr);
        let is_sum = |base: Value| matches!(op(base), Op::Bin { op: BinOp::Add, .. });
        let is_loaded = |field: &Field| match op(field.expr) {
            Op::Load { base, .. } => !base.is_some_and(is_sum),
            _ => false,
        };
        paths.iter().all(|path| {
            let is_const = matches!(path.snap, Snap::Const(_));
            is_const && path.tests.is_empty() && path.key.iter().all(|(field, _)| is_loaded(field))
        })
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Analysis::Paths(paths) = self.analysis() else {
            return writeln!(f, "runs whole: {} instructions", self.program().len());
        };
        let exprs = self.exprs();
        for path in paths {
            for (field, value) in &path.key {
                let formula = Formula(Operand::Val(field.expr), |expr| exprs.op(expr));
                write!(f, "{formula}")?;
                if field.mask != exprs.bits(field.expr) {
                    write!(f, " & {:#x}", field.mask)?;
                }
                write!(f, " == {}; ", Operand::Imm(*value))?;
            }
            for test in &path.tests {
                write!(f, "{}; ", TestText(*test, |expr| exprs.op(expr)))?;
            }
            match path.snap {
                Snap::Const(snap) => writeln!(f, "accept {snap}")?,
                Snap::Expr(expr) => {
                    let formula = Formula(Operand::Val(expr), |expr| exprs.op(expr));
                    writeln!(f, "accept {formula}")?;
                }
            }
        }
        Ok(())
    }
}

/// Writes a test with its expressions as formulas.
pub(crate) struct TestText<F>(pub(crate) Test, pub(crate) F);

impl<F: Fn(Value) -> weir_filter::ir::Op + Copy> fmt::Display for TestText<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let formula = |expr| Formula(Operand::Val(expr), self.1);
        match self.0 {
            Test::Range { expr, lo, hi } if hi == u32::MAX => {
                write!(f, "{} >= {lo}", formula(expr))
            }
            Test::Range { expr, lo, hi } => write!(f, "{} in {lo}..={hi}", formula(expr)),
            Test::Differs { expr, mask, value } if mask == u32::MAX => {
                write!(f, "{} != {}", formula(expr), Operand::Imm(value))
            }
            Test::Differs { expr, mask, value } => {
                write!(
                    f,
                    "{} & {mask:#x} != {}",
                    formula(expr),
                    Operand::Imm(value)
                )
            }
            Test::Compare { cmp, a, b } => write!(f, "{} {cmp} {}", formula(a), formula(b)),
            Test::Extent { base: None, end } => write!(f, "caplen >= {end}"),
            Test::Extent {
                base: Some(base),
                end,
            } => write!(f, "caplen >= {} + {end}", formula(base)),
        }
    }
}
