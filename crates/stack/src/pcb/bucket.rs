//! A bucket of our table: over IPv4 one cache line, over IPv6 one that leads to
//! four more.
//!
//! ```text
//! IPv4  │ 4 tags         │ 4 PCBs         │ 4 times 8 bytes: the images' rest  │
//!       0                16               32                                   64
//! IPv6  │ 8 tags         │ 8 PCBs         │ 8 times 32 bytes                   │
//!       0                32               64                                  320
//!
//! PCB   │ free │ one bit of "gone on" │ 30 bits: the PCB │
//! ```
//!
//! *Gone on* counts the entries that found this bucket full and went on to the
//! next, so that a look-up knows whether to; at its greatest it is not exact any
//! more and stays. (The idea of such counts is that of Folly's F14; with them,
//! removing leaves no tombstones.)

use super::PcbId;
use super::hash::Image;
use wide::u32x4;

const FREE: u32 = 1 << 31;
const GONE_ON: u32 = 1 << 30;
/// Names of PCBs are below.
pub(super) const PCB_END: u32 = 1 << 30;

/// See the module. `S` is the number of slots.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Bucket<const A: usize, const S: usize> {
    tags: [u32; S],
    pcbs: [u32; S],
    rests: [[u64; A]; S],
}

impl<const A: usize, const S: usize> Bucket<A, S> {
    pub(super) const EMPTY: Bucket<A, S> = Bucket {
        tags: [0; S],
        pcbs: [FREE; S],
        rests: [[0; A]; S],
    };

    /// The slots whose tag agrees, taken or not, a bit each.
    #[inline]
    pub(super) fn candidates(&self, tag: u32) -> u32 {
        let (fours, _) = self.tags.as_chunks::<4>();
        let tag = u32x4::splat(tag);
        fours.iter().rev().fold(0, |all, four| {
            all << 4 | u32x4::new(*four).simd_eq(tag).to_bitmask()
        })
    }

    /// The first of some candidates, if it has an image: what almost every
    /// look-up comes to.
    #[inline]
    pub(super) fn first(&self, candidates: u32, image: &Image<A>) -> Option<PcbId> {
        if candidates == 0 {
            return None;
        }
        let slot = (candidates.trailing_zeros() as usize).min(S - 1);
        let pcb = self.pcbs[slot];
        let mut differ = u64::from(pcb & FREE);
        for (known, word) in self.rests[slot].iter().zip(&image.rest) {
            differ |= known ^ word;
        }
        (differ == 0).then_some(PcbId(pcb & (PCB_END - 1)))
    }

    /// Compares the candidates with an image; gives the slot that has it. Adds
    /// to `examined` what was compared.
    #[inline]
    pub(super) fn examine(
        &self,
        mut candidates: u32,
        image: &Image<A>,
        examined: &mut u64,
    ) -> Option<(usize, PcbId)> {
        while candidates != 0 {
            let slot = (candidates.trailing_zeros() as usize).min(S - 1);
            let pcb = self.pcbs[slot];
            if pcb & FREE == 0 {
                *examined += 1;
                let mut differ = 0;
                for (known, word) in self.rests[slot].iter().zip(&image.rest) {
                    differ |= known ^ word;
                }
                if differ == 0 {
                    return Some((slot, PcbId(pcb & (PCB_END - 1))));
                }
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// Whether entries went on to the next bucket.
    #[inline]
    pub(super) fn is_passed(&self) -> bool {
        self.pcbs.iter().fold(0, |all, pcb| all | pcb) & GONE_ON != 0
    }

    /// Puts an entry into a free slot; false if there is none.
    pub(super) fn put(&mut self, image: &Image<A>, pcb: PcbId) -> bool {
        let Some(slot) = self.pcbs.iter().position(|pcb| pcb & FREE != 0) else {
            return false;
        };
        self.tags[slot] = image.tag;
        self.rests[slot] = image.rest;
        self.pcbs[slot] = self.pcbs[slot] & GONE_ON | pcb.0;
        true
    }

    /// Frees a slot.
    pub(super) fn free(&mut self, slot: usize) {
        self.pcbs[slot] = self.pcbs[slot] & GONE_ON | FREE;
    }

    /// The entry in a slot.
    pub(super) fn entry(&self, slot: usize) -> Option<(Image<A>, PcbId)> {
        let image = Image {
            tag: self.tags[slot],
            rest: self.rests[slot],
        };
        let pcb = self.pcbs[slot];
        (pcb & FREE == 0).then_some((image, PcbId(pcb & (PCB_END - 1))))
    }

    /// An entry found the bucket full.
    pub(super) fn pass(&mut self) {
        let gone_on = self.gone_on();
        if gone_on < (1 << S) - 1 {
            self.set_gone_on(gone_on + 1);
        }
    }

    /// An entry that did is gone.
    pub(super) fn forget(&mut self) {
        let gone_on = self.gone_on();
        if gone_on < (1 << S) - 1 {
            self.set_gone_on(gone_on - 1);
        }
    }

    fn gone_on(&self) -> u32 {
        let bits = self.pcbs.iter().enumerate();
        bits.fold(0, |all, (slot, pcb)| {
            all | u32::from(pcb & GONE_ON != 0) << slot
        })
    }

    fn set_gone_on(&mut self, gone_on: u32) {
        for (slot, pcb) in self.pcbs.iter_mut().enumerate() {
            let bit = if gone_on >> slot & 1 == 1 { GONE_ON } else { 0 };
            *pcb = *pcb & !GONE_ON | bit;
        }
    }
}
