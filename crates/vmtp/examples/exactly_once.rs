//! The exactly-once test at full length: a million transactions at 5 % loss and
//! 5 % duplication.
//!
//! ```sh
//! cargo run --release -p weir-vmtp --example exactly_once -- [TRANSACTIONS [SEED]]
//! ```

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut number = |default| match numbers.next() {
        Some(Ok(number)) => number,
        Some(Err(error)) => panic!("usage: exactly_once [TRANSACTIONS [SEED]]: {error}"),
        None => default,
    };
    let (count, seed) = (number(1_000_000), number(1987));
    let began = Instant::now();
    let outcome = common::exactly_once(seed, count, common::STORM);
    println!(
        "seed {seed}: {outcome:?} in {:.1} s",
        began.elapsed().as_secs_f64()
    );
}
