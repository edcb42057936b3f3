//! Bytes that go straight to who reads: the stream is the same, whatever of it
//! comes in order, fits, or has to wait for what was there before.

mod common;

use common::{V4, V6, config};
use std::net::SocketAddr;
use weir_stack::Stack;
use weir_stack::host::Received;

/// Bytes of a stream that repeats late.
fn byte(at: usize) -> u8 {
    (at as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_be_bytes()[1]
}

/// Numbers that are as good as chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % most
    }
}

/// What a link vouches for, or not.
fn vouched(vouched: bool) -> Received {
    Received {
        vouched,
        ..Received::default()
    }
}

/// Sends a stream over a link that loses, doubles and exchanges frames, to a
/// reader with room for so much at a time; gives how much went straight to it.
fn run(address: &str, seed: u64, room_max: usize, rough: bool) -> usize {
    const LEN: usize = 300_000;
    let mut chance = Chance(seed);
    let [mut sender, mut receiver] = [0, 1].map(|end| Stack::new(&config(end), 7).unwrap());
    let server = SocketAddr::new(address.parse().unwrap(), 80);
    let listener = receiver.tcp_listen(server, 1).unwrap();
    let from = sender.tcp_connect(0, None, server).unwrap();
    let (mut now_ns, mut to, mut written) = (0, None, 0);
    let (mut heard, mut straight) = (Vec::new(), 0);
    while heard.len() < LEN {
        now_ns += 1_000_000;
        assert!(
            now_ns < 600_000_000_000,
            "seed {seed}: {} bytes",
            heard.len()
        );
        let bytes: Vec<u8> = (written..LEN.min(written + 20_000)).map(byte).collect();
        written += sender.tcp_write(from, &bytes).unwrap_or(0);
        let mut frames: Vec<Vec<u8>> = Vec::new();
        sender.poll(now_ns, &mut frames);
        if rough {
            for at in 1..frames.len() {
                match chance.below(20) {
                    0 => frames.swap(at - 1, at),
                    1 => frames[at - 1] = frames[at].clone(),
                    _ => {}
                }
            }
        }
        for frame in &frames {
            let received = vouched(chance.below(8) > 0);
            let Some(to) = to else {
                receiver.receive_with(now_ns, frame, received);
                to = receiver.tcp_accept(now_ns, listener).ok();
                continue;
            };
            let mut out = vec![0; chance.below(room_max)];
            let count = receiver.receive_into(now_ns, frame, received, to, &mut out);
            straight += count;
            heard.extend_from_slice(&out[..count]);
            if chance.below(3) == 0 {
                let count = receiver.tcp_read(to, &mut out).unwrap_or(0);
                heard.extend_from_slice(&out[..count]);
            }
        }
        if let Some(to) = to {
            // Mostly all, so that the next can go straight.
            let some = chance.below(2 * room_max);
            let mut rest = vec![0; if chance.below(4) > 0 { LEN } else { some }];
            let count = receiver.tcp_read(to, &mut rest).unwrap_or(0);
            heard.extend_from_slice(&rest[..count]);
        }
        let mut answers: Vec<Vec<u8>> = Vec::new();
        receiver.poll(now_ns, &mut answers);
        for answer in &answers {
            sender.receive_with(now_ns, answer, vouched(true));
        }
    }
    assert!(
        heard.iter().enumerate().all(|(at, came)| *came == byte(at)),
        "seed {seed}"
    );
    straight
}

#[test]
fn the_stream_is_the_same_whichever_way_its_bytes_go() {
    for seed in 0..20 {
        for address in [V4[1], V6[1]] {
            assert!(run(address, seed, 5000, false) > 0, "seed {seed}");
            run(address, seed, 5000, true);
            // A segment never fits.
            assert_eq!(run(address, seed, 500, seed % 2 == 0), 0, "seed {seed}");
        }
    }
}
