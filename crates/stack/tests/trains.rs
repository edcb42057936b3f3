//! Segments that follow one another, one of which differs from the others in any
//! bit: the result is the same by the fast path, which foresees it, as by
//! the standard one.

mod common;

use common::{V4, V6, config};
use std::net::SocketAddr;
use weir_stack::Stack;
use weir_stack::iface::Mode;
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

/// Whatever is done between two segments of a train, or if much time goes by, what
/// comes of them is the same.
#[test]
fn what_happens_between_two_segments_counts() {
    type Act = fn(&mut Stack, TcpId, u64);
    let acts: [(&str, Act); 13] = [
        ("nothing", |_, _, _| {}),
        ("told", |stack, to, _| {
            assert_eq!(stack.tcp_next_event(), Some(to));
        }),
        ("poll", |stack, _, now_ns| {
            stack.poll(now_ns, &mut Vec::new());
        }),
        ("read", |stack, to, _| {
            assert!(stack.tcp_read(to, &mut [0; 5000]).is_ok());
        }),
        ("write", |stack, to, _| {
            stack.tcp_write(to, b"hello").unwrap();
        }),
        ("write and poll", |stack, to, now_ns| {
            stack.tcp_write(to, b"hello").unwrap();
            stack.poll(now_ns, &mut Vec::new());
        }),
        ("shutdown", |stack, to, now_ns| {
            stack.tcp_shutdown(now_ns, to).unwrap();
        }),
        ("close", |stack, to, now_ns| stack.tcp_close(now_ns, to)),
        ("abort", |stack, to, now_ns| stack.tcp_abort(now_ns, to)),
        ("memory", |stack, _, _| stack.tcp_limit_memory(1)),
        ("window", |stack, to, _| {
            let mut options = stack.tcp_options(to).unwrap();
            options.receive_buffer = std::num::NonZeroU32::new(1);
            stack.tcp_set_options(to, options).unwrap();
        }),
        ("quick", |stack, to, now_ns| {
            stack.tcp_set_quick_ack(now_ns, to, true).unwrap();
        }),
        ("slow", |stack, to, now_ns| {
            stack.tcp_set_quick_ack(now_ns, to, false).unwrap();
        }),
    ];
    let bytes: Vec<u8> = (0..40_000).map(|at| (at * at / 7) as u8).collect();
    for (what, act) in acts {
        for wait_ns in [0, 1000, 10 * NOW_NS] {
            let [mux, opt] = [Mode::Mux, Mode::Opt].map(|mode| {
                let mut world = World::new(mode, false, true);
                let frames = world.frames(&bytes);
                let (before, after) = frames.split_at(frames.len() / 2);
                for frame in before {
                    world.receiver.receive(NOW_NS, frame);
                }
                let now_ns = NOW_NS + wait_ns;
                act(&mut world.receiver, world.to, now_ns);
                for frame in after {
                    world.receiver.receive(now_ns, frame);
                }
                let mut said: Vec<Vec<u8>> = Vec::new();
                world.receiver.poll(now_ns, &mut said);
                let mut read = vec![0; 1 << 16];
                let count = world.receiver.tcp_read(world.to, &mut read);
                world.receiver.poll(now_ns + NOW_NS, &mut said);
                let info = world.receiver.tcp_info(now_ns, world.to);
                (said, count, read, info.map(|info| format!("{info:?}")))
            });
            assert!(mux == opt, "{what}, {wait_ns}: {mux:?} {opt:?}");
        }
    }
}
