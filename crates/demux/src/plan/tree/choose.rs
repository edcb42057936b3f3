//! The choice of the field that divides a leaf.

use super::{Bits, EntryRef, Rules};
use weir_filter::ir::Value;

/// The cost of visiting a node. A search of one entry among `n` in a tree yet
/// to be built is assumed to cost √n: trees of rules with many wildcards are
/// deeper than a logarithm. A power rates a sample as it would rate all
/// entries.
const VISIT: f64 = 1.0;
/// The cost of an entry in a leaf, relative to `VISIT`.
const ENTRY: f64 = 0.5;

/// The field by which to divide entries; `None` if a list of them costs a frame
/// less.
pub(super) fn field(names: &[EntryRef], rules: &Rules<'_>) -> Option<Bits> {
    let mut required: Vec<(Value, u32, u32)> = Vec::new();
    for name in names {
        required.extend(rules.required(*name));
    }
    required.sort_unstable();
    let mut best = (VISIT + ENTRY * names.len() as f64, None);
    let mut values: Vec<u32> = Vec::new();
    for of_expr in required.chunk_by(|a, b| a.0 == b.0) {
        for of_mask in of_expr.chunk_by(|a, b| a.1 == b.1) {
            let (expr, mask, _) = of_mask[0];
            let covering = of_expr.iter().filter(|(_, bits, _)| bits & mask == mask);
            values.clear();
            values.extend(covering.map(|(.., value)| value & mask));
            values.sort_unstable();
            let cost = cost(names.len(), &values);
            if cost < best.0 {
                best = (cost, Some(Bits { expr, mask }));
            }
        }
    }
    best.1
}

/// The expected cost of a frame that one of `count` entries accepts, after a
/// division by a field in which some entries have these sorted values and the
/// others have none.
fn cost(count: usize, values: &[u32]) -> f64 {
    let runs = values.chunk_by(|a, b| a == b).map(|run| run.len() as f64);
    let below: f64 = runs.map(|len| len * len.sqrt()).sum();
    let rest = count.saturating_sub(values.len()) as f64;
    let largest = values.chunk_by(|a, b| a == b).map(<[u32]>::len).max();
    // One child with all entries is no division.
    if largest.is_none_or(|largest| largest >= count) {
        return f64::INFINITY;
    }
    let rest = if rest > 0.0 { VISIT + rest.sqrt() } else { 0.0 };
    VISIT + below / count as f64 + rest
}
