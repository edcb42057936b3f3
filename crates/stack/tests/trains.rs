//! Segments that follow one another, one of which differs from the others in any
//! bit: what comes of it is the same by the fast path, which foresees it, as by
//! the standard one.

mod common;

use common::{V4, V6, config};
use std::net::SocketAddr;
use weir_stack::Stack;
use weir_stack::host::Mode;
use weir_stack::tcp::{TcpConfig, TcpId};
use weir_wire::checksum;

/// Bytes that are sent before it counts: more segments than are acknowledged at
/// once at first.
const BEFORE: usize = 200_000;
const NOW_NS: u64 = 1_000_000_000;

struct World {
    sender: Stack,
    receiver: Stack,
    from: TcpId,
    to: TcpId,
}

impl World {
    /// A connection on which much has come.
    fn new(mode: Mode, v6: bool, timestamps: bool) -> World {
        let mut stacks = [0, 1].map(|end| {
            let mut config = config(end);
            config.mode = if end == 0 { Mode::Opt } else { mode };
            let mut stack = Stack::new(&config, 7 + end as u128).unwrap();
            stack.tcp_configure(TcpConfig {
                timestamps,
                ..TcpConfig::default()
            });
            stack
        });
        let address = if v6 { V6[1] } else { V4[1] };
        let server = SocketAddr::new(address.parse().unwrap(), 80);
        let listener = stacks[1].tcp_listen(server, 1).unwrap();
        let from = stacks[0].tcp_connect(NOW_NS, None, server).unwrap();
        let mut to = None;
        let (mut written, mut read, mut buffer) = (0, 0, vec![0; 1 << 16]);
        while read < BEFORE {
            let bytes = vec![5; BEFORE - written];
            written += stacks[0].tcp_write(from, &bytes).unwrap_or(0);
            let [a, b] = &mut stacks;
            deliver(a, b);
            to = to.or_else(|| b.tcp_accept(NOW_NS, listener).ok());
            while let Some(Ok(count)) = to.map(|to| b.tcp_read(to, &mut buffer)) {
                read += count;
            }
            deliver(b, a);
        }
        let [sender, receiver] = stacks;
        World {
            sender,
            receiver,
            from,
            to: to.expect("it was accepted"),
        }
    }

    /// The frames that carry `bytes`.
    fn frames(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        assert_eq!(
            self.sender.tcp_write(self.from, bytes).unwrap(),
            bytes.len()
        );
        let mut frames = Vec::new();
        self.sender.poll(NOW_NS, &mut frames);
        frames
    }

    /// What the receiver says to them, and what can be read.
    fn receive(&mut self, frames: &[Vec<u8>]) -> (Vec<Vec<u8>>, Vec<u8>) {
        for frame in frames {
            self.receiver.receive(NOW_NS, frame);
        }
        let mut said = Vec::new();
        self.receiver.poll(NOW_NS, &mut said);
        let mut read = vec![0; 1 << 16];
        let count = self.receiver.tcp_read(self.to, &mut read).unwrap_or(0);
        read.truncate(count);
        self.receiver.poll(NOW_NS, &mut said);
        (said, read)
    }
}

fn deliver(from: &mut Stack, to: &mut Stack) {
    let mut frames: Vec<Vec<u8>> = Vec::new();
    from.poll(NOW_NS, &mut frames);
    for frame in frames {
        to.receive(NOW_NS, &frame);
    }
}

/// A frame with a bit turned; with `summed`, the checksums that cover it follow.
fn turned(frame: &[u8], bit: usize, v6: bool, summed: bool) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let word_at = bit / 16 * 2;
    let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let old = word(&frame, word_at);
    frame[bit / 8] ^= 0x80 >> (bit % 8);
    let new = word(&frame, word_at);
    let (tcp, addresses) = if v6 { (54, 22..54) } else { (34, 26..34) };
    let sums = [
        (24, !v6 && (14..34).contains(&word_at)),
        (tcp + 16, word_at >= tcp || addresses.contains(&word_at)),
    ];
    for (at, covers) in sums {
        if summed && covers && word_at != at {
            let sum = checksum::update(word(&frame, at), old, new);
            frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }
    frame
}

#[test]
fn a_segment_that_differs_is_taken_for_what_it_is() {
    let bytes: Vec<u8> = (0..16_000).map(|at| (at * at / 7) as u8).collect();
    for (v6, timestamps) in [(false, true), (false, false), (true, true), (true, false)] {
        let frames = World::new(Mode::Mux, v6, timestamps).frames(&bytes);
        let (same, all) = World::new(Mode::Opt, v6, timestamps).receive(&frames);
        assert_eq!(
            (all.len(), same.len()),
            (bytes.len(), 1),
            "{}",
            frames.len()
        );
        assert!(all == bytes);
        let headers = (if v6 { 54 } else { 34 }) + (if timestamps { 32 } else { 20 });
        for bit in 0..8 * (headers + 2) {
            for summed in [false, true] {
                let mut frames = frames.clone();
                let at = frames.len() / 2;
                frames[at] = turned(&frames[at], bit, v6, summed);
                let [mux, opt] = [Mode::Mux, Mode::Opt].map(|mode| {
                    let mut world = World::new(mode, v6, timestamps);
                    let came = world.receive(&frames);
                    (came, world.receiver.tcp_error(world.to))
                });
                assert!(
                    mux == opt,
                    "bit {bit} of v6 {v6}, timestamps {timestamps}, summed {summed}"
                );
            }
        }
    }
}
