//! Tapes at random: what the fuzz target `route` does, for a moment.
#![allow(unreachable_pub, reason = "shared with the fuzz target")]

#[path = "common/tape.rs"]
mod tape;

use weir_lab::rng::Rng;

#[test]
fn any_life_is_survived() {
    let seed = std::env::var("WEIR_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(8200);
    println!("WEIR_SEED={seed}");
    let mut rng = Rng::new(seed);
    for _ in 0..60 {
        let mut bytes = Vec::new();
        for _ in 0..1 + rng.below(8) {
            // Steps, most of them frames that are nearly good.
            bytes.push(rng.bits() as u8 | if rng.chance(70) { 0x44 } else { 0 });
            bytes.push(rng.bits() as u8);
            bytes.extend([2, 0, 0, 0, 0, rng.below(3) as u8, 2, 0, 0, 0, 9, 9]);
            let starts: [&[u8]; 4] = [
                &[
                    8, 0, 0x45, 0, 0, 60, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 1, 0, 2,
                ],
                &[
                    8, 0, 0x48, 0, 0, 60, 0, 1, 0, 0, 1, 1, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 7, 7, 4,
                ],
                &[
                    8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 9, 9, 10, 0, 0, 3, 0, 0, 0, 0, 0, 0,
                    10, 0, 0, 1,
                ],
                &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 58, 255, 0xfd, 0, 0, 0],
            ];
            let start = *rng.choose(&starts);
            bytes.extend(start);
            let len = rng.below(700);
            bytes.extend((0..len).map(|_| rng.bits() as u8));
        }
        tape::play(&bytes);
    }
}
