//! A filter prepared for a plan: its accept paths as keys and residual tests.
//!
//! `paths` searches the paths, `constraints` gathers the conditions of one
//! path, `signature` names the subtables that a filter's paths need.

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

/// A filter prepared for binding: its program and, if they are few enough, its
/// accept paths.
///
/// A clone is cheap (one reference count). One filter may be bound many times,
/// and in several plans.
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
    /// The program has not been optimised: tables can hold all of it, and then
    /// it does not run.
    plain: bool,
    /// Machine code, compiled on demand; `None` if this machine cannot run any.
    code: OnceLock<Option<Code>>,
}

/// The result of a filter's analysis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Analysis {
    /// The filter accepts a frame exactly if all conditions of at least one of
    /// these paths hold; where several paths match, they agree on the snap
    /// length. An empty list rejects every frame.
    Paths(Vec<Path>),
    /// The filter has too many paths, or too complex ones (see
    /// [`limits`](crate::limits)); it is opaque, and its program runs.
    Opaque,
}

/// One accept path: it matches if the fields of the key have their values and
/// every residual test holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// Fields and the values that they must have, each expression once, in the
    /// order of their names.
    pub key: Vec<(Field, u32)>,
    /// The residual tests, which must hold besides the key.
    pub tests: Vec<Test>,
    /// Number of bytes of the frame that are delivered.
    pub snap: Snap,
}

/// Some bits of an expression: one part of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Field {
    /// The expression.
    pub expr: Value,
    /// The bits of the expression that count.
    pub mask: u32,
}

/// A residual test. A test that needs a load outside the frame or a division by
/// zero does not hold.
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
        /// The bits of the expression that count.
        mask: u32,
        /// The value that these bits must not have.
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
    /// The captured bytes reach at least to `base + end`: the filter loads from
    /// there, though no other test needs the value.
    Extent {
        /// The variable part of the position.
        base: Option<Value>,
        /// The constant part: one past the last byte loaded.
        end: u64,
    },
}

impl Test {
    /// The expressions that the test uses, at most two.
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
    /// The same length on every frame; not zero.
    Const(u32),
    /// The value of an expression. A path whose snap length is zero does not
    /// accept; that condition is among the path's tests.
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

    /// As [`new`](Filter::new), for a program that has not been optimised. A
    /// program whose analysis [is only keys](Filter::is_keys) is not optimised
    /// until it runs, since optimising takes most of the time from text to
    /// filter. Any other program is optimised here.
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

    /// Compiles native code for [`run`](Filter::run), if that is not done yet.
    /// Returns `false` if this machine has no native code, or no room for it.
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

    /// Runs the filter's program on one frame; returns the snap length, or zero
    /// if the program rejects the frame.
    ///
    /// The program runs as native code where a plan needs that
    /// ([`Analysis::Opaque`], and filters of the linear list) and the machine
    /// allows it, else in the interpreter. A caller that runs single filters
    /// should compile them itself.
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

    /// The signature that filters share if they differ only in their constants.
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

    /// The filter's accept paths, or `Opaque`.
    pub fn analysis(&self) -> &Analysis {
        &self.0.analysis
    }

    /// Whether the accept paths consist of keys only, and each field is loaded
    /// from a fixed place or from behind one header. Then tables hold all of
    /// the filter and its program does not run, so optimising it would gain
    /// nothing.
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
