//! Dynamic transport ports (RFC 6056).

use crate::rng::PrfRng;

/// The range of dynamic ports (RFC 6335 §6).
const FIRST: u16 = 49_152;
const COUNT: u32 = 65_536 - FIRST as u32;

/// A free transport port that is hard to guess: the first free one from a random start (RFC 6056
/// §3.3.1). `None` if all are taken.
pub(crate) fn free(rng: &mut PrfRng, mut is_free: impl FnMut(u16) -> bool) -> Option<u16> {
    let start = rng.below(COUNT);
    (0..COUNT)
        .map(|step| FIRST + ((start + step) % COUNT) as u16)
        .find(|port| is_free(*port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_free_port_is_found() {
        let mut rng = PrfRng::new(1, "test");
        assert_eq!(free(&mut rng, |port| port == 65_535), Some(65_535));
        assert_eq!(free(&mut rng, |port| port == FIRST), Some(FIRST));
        assert_eq!(free(&mut rng, |_| false), None);
        let first = free(&mut rng, |_| true);
        assert_ne!(first, free(&mut rng, |_| true));
    }
}
