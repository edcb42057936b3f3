//! Scratch memory: drops dead stores and assigns slots to words of `M[]` by graph
//! colouring.
//!
//! Slots below [`SHARED_MAX`] live across blocks and are coloured together. Higher
//! slots are written and read within one block.

use super::EmitError;
use super::select::{Code, SHARED_MAX};
use crate::lang::cbpf::code::{LD, LDX, MEM, ST, STX, class, mode};
use crate::lang::cbpf::{Insn, MEM_WORDS};

/// Drops dead stores and replaces every slot by a word; an error if more words are
/// needed than there are.
pub(super) fn assign(mut code: Code) -> Result<Code, EmitError> {
    if !code.insns.iter().any(|&insn| is_store(insn)) {
        return Ok(code);
    }
    let mut interference = [0_u64; SHARED_MAX];
    let mut live_in = vec![0_u64; code.blocks.len()];
    let mut keep = vec![true; code.insns.len()];
    for (index, block) in code.blocks.iter().enumerate().rev() {
        let mut live = block
            .end
            .targets()
            .fold(0, |live, target| live | live_in[target]);
        for position in (block.first..block.last).rev() {
            let insn = code.insns[position];
            let Some(bit) = shared_bit(insn) else {
                continue;
            };
            if is_store(insn) {
                if live & bit == 0 {
                    keep[position] = false;
                    continue;
                }
                live &= !bit;
                interfere(&mut interference, bit.trailing_zeros() as usize, live);
            } else {
                live |= bit;
            }
        }
        live_in[index] = live;
    }
    let words = colour(&interference, &used(&code, &keep));
    rewrite(&mut code, &keep, &words, &live_in)?;
    Ok(code)
}

fn is_store(insn: Insn) -> bool {
    matches!(class(insn.code), ST | STX)
}

fn is_reload(insn: Insn) -> bool {
    matches!(class(insn.code), LD | LDX) && mode(insn.code) == MEM
}

/// The bit of the shared slot that an instruction stores or reloads; else `None`.
fn shared_bit(insn: Insn) -> Option<u64> {
    let touches = is_store(insn) || is_reload(insn);
    (touches && (insn.k as usize) < SHARED_MAX).then(|| 1 << insn.k)
}

fn interfere(interference: &mut [u64; SHARED_MAX], slot: usize, live: u64) {
    interference[slot] |= live;
    let mut rest = live;
    while rest != 0 {
        interference[rest.trailing_zeros() as usize] |= 1 << slot;
        rest &= rest - 1;
    }
}

fn used(code: &Code, keep: &[bool]) -> u64 {
    let touched = code.insns.iter().zip(keep).filter(|(_, keep)| **keep);
    touched
        .filter_map(|(&insn, _)| shared_bit(insn))
        .fold(0, |used, bit| used | bit)
}

/// Colours the shared slots: slots live at one time have different words.
fn colour(interference: &[u64; SHARED_MAX], used: &u64) -> [usize; SHARED_MAX] {
    let mut words = [usize::MAX; SHARED_MAX];
    for slot in 0..SHARED_MAX {
        if used & (1 << slot) == 0 {
            continue;
        }
        let taken = (0..SHARED_MAX)
            .filter(|&other| interference[slot] & (1 << other) != 0)
            .filter(|&other| words[other] != usize::MAX)
            .fold(0_u64, |taken, other| taken | 1 << words[other]);
        words[slot] = taken.trailing_ones() as usize;
    }
    words
}

/// Drops dead stores and replaces slots by words. A local slot takes a word that no
/// shared slot live in its block has.
fn rewrite(
    code: &mut Code,
    keep: &[bool],
    words: &[usize; SHARED_MAX],
    live_in: &[u64],
) -> Result<(), EmitError> {
    let mut needed = 0;
    let mut insns = Vec::with_capacity(code.insns.len());
    for (index, block) in code.blocks.iter_mut().enumerate() {
        let old = block.first..block.last;
        let touched = code.insns[old.clone()]
            .iter()
            .filter_map(|&insn| shared_bit(insn));
        let live_out = block
            .end
            .targets()
            .fold(0, |live, target| live | live_in[target]);
        let live = touched.fold(live_in[index] | live_out, |live, bit| live | bit);
        let taken = (0..SHARED_MAX)
            .filter(|&slot| live & (1 << slot) != 0 && words[slot] != usize::MAX)
            .fold(0_u64, |taken, slot| taken | 1 << words[slot]);
        let mut local = LocalWords {
            taken,
            open: Vec::new(),
        };
        block.first = insns.len();
        for position in old {
            let mut insn = code.insns[position];
            if !keep[position] {
                continue;
            }
            if is_store(insn) || is_reload(insn) {
                let slot = insn.k as usize;
                let word = match words.get(slot) {
                    Some(&word) => word,
                    None => local.word(slot, is_store(insn)),
                };
                needed = needed.max(word + 1);
                insn.k = word as u32;
            }
            insns.push(insn);
        }
        block.last = insns.len();
    }
    code.insns = insns;
    if needed > MEM_WORDS {
        return Err(EmitError::Scratch { needed });
    }
    Ok(())
}

/// The words of local slots, each stored once and reloaded once.
struct LocalWords {
    taken: u64,
    open: Vec<(usize, usize)>,
}

impl LocalWords {
    fn word(&mut self, slot: usize, is_store: bool) -> usize {
        if is_store {
            // Any number from 16 on is beyond scratch memory; 63 keeps the shift valid.
            let word = (self.taken.trailing_ones() as usize).min(63);
            self.taken |= 1 << word;
            self.open.push((slot, word));
            return word;
        }
        let position = self.open.iter().position(|&(open, _)| open == slot);
        let (_, word) = self
            .open
            .swap_remove(position.expect("a slot is stored before it is read"));
        self.taken &= !(1 << word);
        word
    }
}
