//! Tapes at random: what the fuzz target `chain` does, for a moment.
#![allow(unreachable_pub, reason = "shared with the fuzz target")]

#[path = "common/tape.rs"]
mod tape;

use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;

#[test]
fn any_life_is_survived() {
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let len = 200 + rng.below(4000);
        let bytes: Vec<u8> = (0..len).map(|_| rng.bits() as u8).collect();
        tape::run(&bytes);
    }
}

/// Seeds of the fuzz target, too.
#[test]
fn the_seeds_are_survived() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/chain");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder of seeds") {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        tape::run(&bytes);
        count += 1;
    }
    assert!(count >= 3, "{count} seeds");
}
