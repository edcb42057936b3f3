//! The window against a set of all numbers that came, and the high half of
//! extended sequence numbers.

use std::collections::HashSet;
use weir_esp::replay::{Refused, Window};
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;

fn size(rng: &mut Rng) -> u32 {
    *rng.choose(&[1, 2, 31, 32, 63, 64, 65, 127, 128, 1000, 4096, 70_000])
}

#[test]
fn the_window_knows_what_came() {
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let size = size(&mut rng);
        let mut window = Window::new(size, 0);
        let (mut came, mut top) = (HashSet::new(), 0_u64);
        for _ in 0..3000 {
            let reach = 2 * size as usize + 2;
            let number = match rng.below(10) {
                0 => top + 1 + rng.below(3 * reach) as u64,
                1..5 => top + 1,
                _ => top.saturating_sub(rng.below(reach) as u64),
            };
            let expected = if number > top {
                Ok(())
            } else if number == 0 || top - number >= u64::from(size) {
                Err(Refused::TooOld)
            } else if came.contains(&number) {
                Err(Refused::Replayed)
            } else {
                Ok(())
            };
            assert_eq!(window.check(number), expected, "{number} of {top}, {size}");
            // Some are not authentic, and leave the window as it is.
            if expected.is_ok() && rng.chance(80) {
                window.note(number);
                came.insert(number);
                top = top.max(number);
            }
            assert_eq!(window.top(), top);
        }
    }
}

/// Within the window, and up to 2^32 less the window ahead, the whole number is
/// the one that was sent (RFC 4303 appendix A).
#[test]
fn the_high_half_is_found() {
    for seed in seeds(40) {
        let mut rng = Rng::new(seed);
        let size = size(&mut rng);
        let edge = u64::from(rng.word() % 5) << 32;
        let mut top = edge
            .saturating_add(rng.bits() % 5000)
            .saturating_sub(2500)
            .max(1);
        let mut window = Window::new(size, top);
        for _ in 0..500 {
            let behind = (rng.bits() % u64::from(size)).min(top - 1);
            assert_eq!(window.extend((top - behind) as u32), Some(top - behind));
            let ahead = match rng.below(3) {
                0 => 1,
                1 => 1 + rng.bits() % 100_000,
                _ => (1 << 32) - u64::from(size) - rng.bits() % 1000,
            };
            assert_eq!(window.extend((top + ahead) as u32), Some(top + ahead));
            top += 1 + rng.bits() % 10;
            window.note(top);
        }
    }
}

#[test]
fn at_the_first_and_the_last_number_nothing_is_invented() {
    let window = Window::new(64, 5);
    // Left of the first number.
    assert_eq!(window.extend(0xffff_fff0), None);
    assert_eq!(window.check(0), Err(Refused::TooOld));
    let window = Window::new(64, u64::MAX);
    assert_eq!(window.extend(3), None, "there is no number above the last");
    assert_eq!(window.extend(0xffff_fff0), Some(u64::MAX - 15));
}

/// A window that begins at a number knows no earlier numbers.
#[test]
fn a_window_that_goes_on_lets_nothing_old_in() {
    for top in [1, 62, 63, 64, 65, 1 << 32, (1 << 32) - 1] {
        let mut window = Window::new(100, top);
        for old in (1..=top).rev().take(200) {
            assert!(window.check(old).is_err(), "{old} of {top}");
        }
        for new in top + 1..top + 300 {
            assert_eq!(window.check(new), Ok(()));
            window.note(new);
            assert_eq!(window.check(new), Err(Refused::Replayed));
        }
    }
}
