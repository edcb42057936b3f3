//! A bucket of our table: four slots in one cache line.
//!
//! ```text
//!       │ 4 tags │ 4 PCBs │ 4 homes │ 4 times the ports │
//!       0       16       32        48                   64
//!
//! PCB   │ taken │ one bit of the overflow count │ 30 bits: the PCB │
//! ```
//!
//! The *overflow count* is the number of entries that found this bucket full and went on to the
//! next one, so that a look-up knows whether to go on. At its maximum the count is no longer exact,
//! and stays. With such counts, as in Folly's F14, a removal leaves no tombstone.

use super::PcbId;
use super::hash::HashedKey;
use wide::u32x4;
use zerocopy::FromZeros;

const TAKEN: u32 = 1 << 31;
const OVERFLOW_BIT: u32 = 1 << 30;
/// Indices of PCBs are below.
pub(super) const PCB_END: u32 = 1 << 30;

/// Slots of a bucket.
pub(super) const SLOTS: usize = 4;

/// A bucket of four slots. All zeros: an empty one.
#[derive(FromZeros)]
#[repr(C, align(64))]
pub(super) struct Bucket {
    tags: [u32; SLOTS],
    pcbs: [u32; SLOTS],
    homes: [u32; SLOTS],
    ports: [u32; SLOTS],
}

impl Bucket {
    /// The slots with this tag, taken or not, a bit each.
    #[inline]
    pub(super) fn candidates(&self, tag: u32) -> u32 {
        u32x4::new(self.tags)
            .simd_eq(u32x4::splat(tag))
            .to_bitmask()
    }

    /// The first of some candidates, if it has the image: sufficient for almost every look-up.
    #[inline]
    pub(super) fn first(&self, candidates: u32, image: &HashedKey) -> Option<PcbId> {
        if candidates == 0 {
            return None;
        }
        let slot = candidates.trailing_zeros() as usize % SLOTS;
        let pcb = self.pcbs[slot];
        if pcb & TAKEN == 0 || !self.has(slot, image) {
            return None;
        }
        Some(PcbId(pcb & (PCB_END - 1)))
    }

    /// Whether a slot with the tag has the image.
    #[inline]
    fn has(&self, slot: usize, image: &HashedKey) -> bool {
        self.homes[slot] == image.place() && self.ports[slot] == image.ports
    }

    /// Prefetches the bucket. A load that misses the caches delays all that follow; a prefetch does
    /// not.
    #[inline]
    pub(super) fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        safe_arch::prefetch_t0(self);
        #[cfg(not(target_arch = "x86_64"))]
        std::hint::black_box(self.tags[0]);
    }

    /// The slot with an image. Adds the number of compared slots, those with the tag, to
    /// `examined`.
    pub(super) fn examine(&self, image: &HashedKey, examined: &mut u64) -> Option<(usize, PcbId)> {
        let mut candidates = self.candidates(image.tag());
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize % SLOTS;
            let pcb = self.pcbs[slot];
            if pcb & TAKEN != 0 {
                *examined += 1;
                if self.has(slot, image) {
                    return Some((slot, PcbId(pcb & (PCB_END - 1))));
                }
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// Whether entries overflowed to the next bucket.
    #[inline]
    pub(super) fn has_overflowed(&self) -> bool {
        self.pcbs.iter().fold(0, |all, pcb| all | pcb) & OVERFLOW_BIT != 0
    }

    /// The free slots, a bit each.
    #[inline]
    fn free_slots(&self) -> u32 {
        let taken = u32x4::new(self.pcbs) & u32x4::splat(TAKEN);
        taken.simd_eq(u32x4::ZERO).to_bitmask()
    }

    /// The taken slots whose entries have this home, compared by `mask`; a bit each.
    #[inline]
    pub(super) fn slots_of(&self, place: u32, mask: u32) -> u32 {
        let places = u32x4::new(self.homes) & u32x4::splat(mask);
        places.simd_eq(u32x4::splat(place)).to_bitmask() & !self.free_slots()
    }

    /// Puts an entry into a free slot; false if there is none.
    #[inline]
    pub(super) fn put(&mut self, image: &HashedKey, pcb: PcbId) -> bool {
        let free = self.free_slots();
        if free == 0 {
            return false;
        }
        let slot = free.trailing_zeros() as usize % SLOTS;
        self.tags[slot] = image.tag();
        self.homes[slot] = image.place();
        self.ports[slot] = image.ports;
        self.pcbs[slot] = self.pcbs[slot] & OVERFLOW_BIT | TAKEN | pcb.0;
        true
    }

    /// Assigns another PCB to a taken slot.
    pub(super) fn rename(&mut self, slot: usize, pcb: PcbId) {
        self.pcbs[slot] = self.pcbs[slot] & OVERFLOW_BIT | TAKEN | pcb.0;
    }

    /// Frees a slot.
    pub(super) fn free(&mut self, slot: usize) {
        self.pcbs[slot] &= OVERFLOW_BIT;
    }

    /// The entry in a slot.
    pub(super) fn entry(&self, slot: usize) -> Option<(HashedKey, PcbId)> {
        let image = HashedKey {
            x: u64::from(self.homes[slot]) << 32 | u64::from(self.tags[slot]),
            ports: self.ports[slot],
        };
        let pcb = self.pcbs[slot];
        (pcb & TAKEN != 0).then_some((image, PcbId(pcb & (PCB_END - 1))))
    }

    /// Counts an entry that found the bucket full.
    pub(super) fn count_overflow(&mut self) {
        let gone_on = self.overflow_count();
        if gone_on < (1 << SLOTS) - 1 {
            self.set_overflow_count(gone_on + 1);
        }
    }

    /// Counts one such entry less.
    pub(super) fn uncount_overflow(&mut self) {
        let gone_on = self.overflow_count();
        if gone_on < (1 << SLOTS) - 1 {
            self.set_overflow_count(gone_on - 1);
        }
    }

    fn overflow_count(&self) -> u32 {
        let bits = self.pcbs.iter().enumerate();
        bits.fold(0, |all, (slot, pcb)| {
            all | u32::from(pcb & OVERFLOW_BIT != 0) << slot
        })
    }

    fn set_overflow_count(&mut self, gone_on: u32) {
        for (slot, pcb) in self.pcbs.iter_mut().enumerate() {
            let bit = if gone_on >> slot & 1 == 1 {
                OVERFLOW_BIT
            } else {
                0
            };
            *pcb = *pcb & !OVERFLOW_BIT | bit;
        }
    }
}
