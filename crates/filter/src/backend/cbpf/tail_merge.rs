//! Tail merging on instructions, and the order of blocks.
//!
//! Instructions depend on registers only. So blocks with equal instructions and equal
//! ends are one block, whatever values they compute. A block whose tail equals another
//! block falls through into that block, and the two are placed next to each other.

use super::select::{Code, CodeBlock, End};
use crate::lang::cbpf::Insn;
use crate::lang::cbpf::code::{K, RET};
use std::collections::BTreeMap;

/// Longest tail that is searched, in instructions without the end.
const TAIL_MAX: usize = 8;

/// The absence of a block.
const NONE: usize = usize::MAX;

/// The contents of a block.
type Key = (Vec<Insn>, End);

/// Merges equal code and returns the order of blocks for the layout. Edges lead
/// forward, and a block that falls through into another precedes it directly.
pub(super) fn share(code: &mut Code) -> Vec<usize> {
    let blocks = merge(code);
    let live = live(code);
    let before = fall_into_tails(code, &blocks, &live);
    order(code, &live, before)
}

fn key(code: &Code, block: &CodeBlock, skip: usize) -> Key {
    let insns = code.insns[block.first + skip..block.last].to_vec();
    (insns, block.end)
}

/// Redirects each jump to the representative of equal blocks, in reverse order.
fn merge(code: &mut Code) -> BTreeMap<Key, usize> {
    let mut blocks: BTreeMap<Key, usize> = BTreeMap::new();
    let mut same: Vec<usize> = (0..code.blocks.len()).collect();
    for index in (0..code.blocks.len()).rev() {
        let end = match code.blocks[index].end {
            End::Jump(target) => match code.blocks[same[target]] {
                target if is_bare_return(&target) => target.end,
                _ => End::Jump(same[target]),
            },
            End::Branch {
                then, otherwise, ..
            } if same[then] == same[otherwise] => End::Jump(same[then]),
            End::Branch {
                code,
                k,
                then,
                otherwise,
            } => End::Branch {
                code,
                k,
                then: same[then],
                otherwise: same[otherwise],
            },
            end => end,
        };
        code.blocks[index].end = end;
        let key = key(code, &code.blocks[index], 0);
        same[index] = *blocks.entry(key).or_insert(index);
    }
    blocks
}

/// Whether the block consists of a `ret` with a constant.
pub(super) fn is_bare_return(block: &CodeBlock) -> bool {
    matches!(block.end, End::Return(insn) if insn.code == RET | K) && block.first == block.last
}

fn live(code: &Code) -> Vec<bool> {
    let mut live = vec![false; code.blocks.len()];
    live[0] = true;
    for index in 0..code.blocks.len() {
        if live[index] {
            code.blocks[index]
                .end
                .targets()
                .for_each(|target| live[target] = true);
        }
    }
    live
}

/// Cuts the tail off each block that can fall through into an equal block. Returns,
/// for each block, the block to place directly before it.
fn fall_into_tails(code: &mut Code, blocks: &BTreeMap<Key, usize>, live: &[bool]) -> Vec<usize> {
    let mut before = vec![NONE; code.blocks.len()];
    for index in 0..code.blocks.len() {
        let block = code.blocks[index];
        let length = block.last - block.first;
        if !live[index] || length == 0 {
            continue;
        }
        for skip in length.saturating_sub(TAIL_MAX).max(1)..=length {
            let Some(&tail) = blocks.get(&key(code, &block, skip)) else {
                continue;
            };
            // The candidate may have lost its own tail since it was entered.
            let whole = code.blocks[tail].last - code.blocks[tail].first == length - skip;
            if live[tail] && whole && before[tail] == NONE {
                before[tail] = index;
                code.blocks[index].last = block.first + skip;
                code.blocks[index].end = End::Jump(tail);
                break;
            }
        }
    }
    for (index, block) in code.blocks.iter().enumerate() {
        if let (true, End::Jump(target)) = (live[index], block.end)
            && before[target] == NONE
        {
            before[target] = index;
        }
    }
    before
}

/// Concatenates rows of blocks that fall through. A row has the position of its last
/// member in the old order, so that its targets follow. Rows that end in a bare return
/// come last.
fn order(code: &Code, live: &[bool], before: Vec<usize>) -> Vec<usize> {
    let mut falls = vec![false; code.blocks.len()];
    for &first in before.iter().filter(|&&first| first != NONE) {
        falls[first] = true;
    }
    let mut rows = Vec::new();
    for (last, &live) in live.iter().enumerate() {
        if !live || falls[last] {
            continue;
        }
        let (mut place, mut first, mut row) = (last, last, vec![last]);
        while before[first] != NONE {
            first = before[first];
            place = place.max(first);
            row.push(first);
        }
        rows.push((is_bare_return(&code.blocks[last]), place, row));
    }
    rows.sort_unstable_by_key(|row| (row.0, row.1));
    let in_order = rows
        .into_iter()
        .flat_map(|(_, _, row)| row.into_iter().rev());
    in_order.collect()
}
