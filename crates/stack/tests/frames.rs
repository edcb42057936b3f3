//! Whatever frames come, the stack stays whole: tapes at random, each by its
//! seed. `fuzz/` finds better ones.

#[path = "common/tape.rs"]
mod tape;

use weir_lab::seeds::seeds;
use weir_stack::rng::Rng;

#[test]
fn no_frame_harms() {
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let tape: Vec<u8> = (0..2000).map(|_| rng.bits() as u8).collect();
        tape::run(&tape);
    }
}
