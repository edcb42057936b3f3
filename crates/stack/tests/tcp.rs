//! TCP between two of our stacks: whatever the link does, the bytes arrive.

mod common;

use common::stream::{exchange, forget};
use common::{Pair, V4, V6, config};
use weir_link::mem::Impairments;
use weir_stack::rng::Rng;
use weir_stack::tcp::{Algorithm, TcpConfig};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

#[test]
fn bytes_arrive_over_a_perfect_link() {
    for at in [V4, V6] {
        for bytes in [[0, 0], [1, 0], [0, 1], [100_000, 3], [1_000_000, 1_000_000]] {
            let mut pair = Pair::new(
                Impairments {
                    delay_ns: MS,
                    ..Impairments::default()
                },
                1,
            );
            let took_ns = exchange(&mut pair, at, bytes, 10_000, 10 * S);
            assert!(took_ns < S, "{bytes:?} took {took_ns} ns");
            forget(&mut pair);
        }
    }
}

/// What a random link does to frames.
fn impairments(rng: &mut Rng) -> Impairments {
    let mut ppm = |most: u32| {
        if rng.below(3) == 0 {
            0
        } else {
            rng.below(most)
        }
    };
    let (loss_ppm, duplicate_ppm, corrupt_ppm) = (ppm(300_000), ppm(100_000), ppm(50_000));
    let delay_ns = u64::from(rng.below(50)) * MS;
    Impairments {
        loss_ppm,
        duplicate_ppm,
        corrupt_ppm,
        delay_ns,
        jitter_ns: u64::from(rng.below(2)) * u64::from(rng.below(20)) * MS,
        rate_bits_per_s: (rng.below(2) == 0).then(|| 1_000_000 + u64::from(rng.below(100_000_000))),
        ..Impairments::default()
    }
}

fn tcp_config(rng: &mut Rng) -> TcpConfig {
    let buffer = |rng: &mut Rng| match rng.below(3) {
        0 => 1 + rng.below(3000) as usize,
        1 => 4096 + rng.below(60_000) as usize,
        _ => 1 << 20,
    };
    TcpConfig {
        receive_buffer: buffer(rng),
        send_buffer: buffer(rng),
        sack: rng.below(4) > 0,
        timestamps: rng.below(4) > 0,
        ecn: rng.below(2) == 0,
        congestion: if rng.below(2) == 0 {
            Algorithm::Cubic
        } else {
            Algorithm::NewReno
        },
    }
}

/// One run in a world drawn from its seed.
fn run(seed: u64) {
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let link = impairments(&mut rng);
    let mut configs = [config(0), config(1)];
    for config in &mut configs {
        config.mtu = 1280 + rng.below(300) as usize;
    }
    let mut pair = Pair::with(configs, link, seed);
    let mut tiny = false;
    for stack in &mut pair.stacks {
        let config = tcp_config(&mut rng);
        tiny |= config.receive_buffer < 4096 || config.send_buffer < 4096;
        stack.tcp_configure(config);
    }
    let most = if tiny { 5_000 } else { 200_000 };
    let bytes = [rng.below(most) as usize, rng.below(most) as usize];
    let appetite = 1 + rng.below(20_000) as usize;
    let at = if rng.below(2) == 0 { V4 } else { V6 };
    exchange(&mut pair, at, bytes, appetite, 4000 * S);
}

/// Loss up to 30 %, duplication, corruption, reordering, any rate, windows
/// from one byte on: a run that fails prints the seed that replays it;
/// `WEIR_SEED=n` runs that one, `WEIR_RUNS=n` so many.
#[test]
fn bytes_arrive_whatever_the_link_does() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse::<u64>().ok())
    };
    if let Some(seed) = number("WEIR_SEED") {
        return run(seed);
    }
    for seed in 0..number("WEIR_RUNS").unwrap_or(30) {
        run(seed);
    }
}
