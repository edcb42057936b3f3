//! Filters as data: which of their paths the tables can hold.

use super::expr::Expr;
use super::layout::{candidate, test};
use super::prefilter::{Span, range_bits};
use super::subtable::{Field, Signature};
use crate::expr::Exprs;
use crate::filter::{Analysis, Filter, Path, Snap, Test};
use std::collections::BTreeSet;
use weir_filter::ir::{Cmp, Value};

/// Residual tests of one entry, at most; with more, the filter's program runs
/// whole.
pub(super) const TESTS_MAX: usize = 60;

/// Loads at computed offsets in one expression of a table's key or tests, at most; with
/// more, the filter is opaque, and [`verifier_cost`](super::verifier_cost()) prices the
/// loads. An option of TCP takes three.
pub(super) const EXPR_LOADS_MAX: usize = 4;

/// An accept path, ready to be entered.
#[derive(Clone)]
pub(super) struct LoweredPath {
    pub(super) signature: Signature,
    /// The subtable of that name, if there is one.
    pub(super) subtable: Option<u32>,
    /// The bounds of the range that its subtable's entries ask for.
    pub(super) span: Option<Span>,
    /// One for each field.
    pub(super) values: Vec<u32>,
    pub(super) tests: Vec<LoweredTest>,
    pub(super) snap: u32,
}

/// A residual test: a kind, up to two expressions, up to two constants.
#[derive(Clone)]
pub(super) struct LoweredTest {
    pub(super) kind: u64,
    pub(super) exprs: Vec<Expr>,
    pub(super) cmp: Option<Cmp>,
    pub(super) a: u32,
    pub(super) b: u32,
}

/// The identity of a subtable: the fields that its filters compare with constants, and all else
/// that distinguishes it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SubtableSignature(Signature);

/// The subtables that the tables need for a filter; none if its program is opaque.
pub fn subtable_signatures(filter: &Filter) -> BTreeSet<SubtableSignature> {
    let lowered_paths = lower_paths(filter).unwrap_or_default();
    lowered_paths
        .into_iter()
        .map(|d| SubtableSignature(d.signature))
        .collect()
}

/// The paths of a filter; `None` if its program must are opaque.
pub(super) fn lower_paths(filter: &Filter) -> Option<Vec<LoweredPath>> {
    let Analysis::Paths(paths) = filter.analysis() else {
        return None;
    };
    let exprs = filter.exprs();
    paths.iter().map(|path| lowered(path, exprs)).collect()
}

fn lowered(path: &Path, exprs: &Exprs) -> Option<LoweredPath> {
    let Snap::Const(snap) = path.snap else {
        return None;
    };
    let keyed = path.key.iter().map(|(field, value)| {
        let expr = Expr::of(exprs, field.expr);
        ((expr, field.mask), *value)
    });
    let mut keyed: Vec<(Field, u32)> = keyed.collect();
    keyed.sort();
    let tests: Option<Vec<LoweredTest>> =
        path.tests.iter().map(|t| lowered_test(*t, exprs)).collect();
    let tests = tests?;
    let (fields, values): (Vec<Field>, Vec<u32>) = keyed.into_iter().unzip();
    let mut ranges = tests.iter().filter(|test| test.kind == test::RANGE);
    let range = ranges.find(|test| test.exprs.iter().all(|expr| range_bits(expr).is_some()));
    let range_of = range.and_then(|test| test.exprs.first().cloned());
    let is_narrow = |((_, mask), _): &(&Field, &u32)| range.is_some() && *mask <= 0xff;
    let narrow = fields.iter().zip(&values).filter(is_narrow);
    let lowered = LoweredPath {
        signature: Signature {
            narrow: narrow.map(|(_, value)| *value).collect(),
            range: range_of,
            fields,
        },
        subtable: None,
        span: range.map(|test| (test.a, test.b)),
        values,
        tests,
        snap,
    };
    lowered.fits().then_some(lowered)
}

/// The bits of a prefix of 32 bits that a coarser subtable asks for: whole bytes.
/// `None` if the mask is not a prefix's.
pub(super) fn coarser(mask: u32) -> Option<u32> {
    let len = mask.leading_ones();
    let is_prefix = len + mask.trailing_zeros() == u32::BITS;
    is_prefix.then(|| u32::MAX.checked_shl(u32::BITS - len / 8 * 8).unwrap_or(0))
}

impl LoweredPath {
    /// The same path with prefixes of whole bytes as its key, which it shares
    /// with others; ranges test the other bits. `None` if they were too many
    /// tests.
    pub(super) fn relaxed(&self) -> Option<LoweredPath> {
        let mut relaxed = self.clone();
        relaxed.signature.fields.clear();
        relaxed.signature.range = None;
        relaxed.signature.narrow.clear();
        relaxed.values.clear();
        relaxed.subtable = None;
        relaxed.span = None;
        for ((expr, mask), value) in self.signature.fields.iter().zip(&self.values) {
            let coarse = coarser(*mask).unwrap_or(*mask);
            if coarse != 0 {
                relaxed.signature.fields.push((expr.clone(), coarse));
                relaxed.values.push(value & coarse);
            }
            if coarse != *mask {
                relaxed.tests.push(LoweredTest {
                    kind: test::RANGE,
                    exprs: vec![expr.clone()],
                    cmp: None,
                    a: *value,
                    b: value | !mask,
                });
            }
        }
        relaxed.fits().then_some(relaxed)
    }

    fn fits(&self) -> bool {
        let fields = self.signature.fields.iter().map(|(expr, _)| expr);
        let mut exprs = fields.chain(self.tests.iter().flat_map(|test| &test.exprs));
        self.tests.len() <= TESTS_MAX
            && self.exprs().len() <= candidate::VALUES_MAX
            && exprs.all(|expr| expr.computed_loads() <= EXPR_LOADS_MAX)
    }

    /// The different expressions that its tests use.
    pub(super) fn exprs(&self) -> Vec<&Expr> {
        let mut exprs: Vec<&Expr> = self.tests.iter().flat_map(|test| &test.exprs).collect();
        exprs.sort();
        exprs.dedup();
        exprs
    }
}

fn lowered_test(residual: Test, exprs: &Exprs) -> Option<LoweredTest> {
    let make = |kind, of: &[Value], a, b| LoweredTest {
        kind,
        exprs: of.iter().map(|expr| Expr::of(exprs, *expr)).collect(),
        cmp: None,
        a,
        b,
    };
    Some(match residual {
        Test::Range { expr, lo, hi } => make(test::RANGE, &[expr], lo, hi),
        Test::Differs { expr, mask, value } => make(test::DIFFERS, &[expr], mask, value),
        Test::Compare { cmp, a, b } => LoweredTest {
            cmp: Some(cmp),
            ..make(test::COMPARE, &[a, b], 0, 0)
        },
        Test::Extent { base, end } => {
            // Further than any frame is never there; let the program say so.
            let end = u32::try_from(end).ok()?;
            match base {
                None => make(test::EXTENT, &[], end, 0),
                Some(base) => make(test::EXTENT_FROM, &[base], end, 0),
            }
        }
    })
}

impl LoweredTest {
    /// The test as it stands in the store; `place` gives the number of an
    /// expression among the values of the subtable.
    pub(super) fn words(&self, place: impl Fn(&Expr) -> u64) -> [u64; 2] {
        let mut places = self.exprs.iter().map(place);
        let first = places.next().unwrap_or(0);
        let second = places.next().unwrap_or(0);
        let cmp = self.cmp.map_or(0, cmp_number);
        let word = self.kind | first << 8 | second << 16 | cmp << 24 | u64::from(self.a) << 32;
        [word, u64::from(self.b)]
    }
}

/// Comparisons as data: bit 0 if they hold for "less", bit 1 for "equal",
/// bit 2 for "greater"; bit 3 for "some bit in common", bit 4 for "none".
pub(super) fn cmp_number(cmp: Cmp) -> u64 {
    match cmp {
        Cmp::Lt => 0b001,
        Cmp::Eq => 0b010,
        Cmp::Le => 0b011,
        Cmp::Gt => 0b100,
        Cmp::Ne => 0b101,
        Cmp::Ge => 0b110,
        Cmp::Set => 0b01000,
        Cmp::Clear => 0b10000,
    }
}
