//! Direct data placement: a stack whose link writes payload into the reader's buffer sends and
//! delivers the same as a stack whose reader takes the bytes from the receive buffer.

mod common;
use common::{V4, V6, config};
use std::net::SocketAddr;
use weir_stack::Stack;
use weir_stack::iface::RxMeta;
struct Chance(u64);
impl Chance {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}
fn place(
    a: &mut Stack,
    now: u64,
    frame: &[u8],
    received: RxMeta,
    t: weir_stack::tcp::TcpId,
    out: &mut [u8],
    chance: &mut Chance,
) -> usize {
    // What a link may hand over by mistake changes nothing.
    if chance.below(4) == 0 {
        let l = chance.below(frame.len() + 1);
        let c = chance.below(2000);
        if a.tcp_head_len(t) != Some(l) || c + l != frame.len() {
            assert!(
                !a.receive_placed(now, &frame[..l], received, t, c),
                "head {l} count {c}"
            );
        }
    }
    if let Some(head_len) = a.tcp_head_len(t)
        && let Some((head, rest)) = frame.split_at_checked(head_len)
        && rest.len() <= out.len()
    {
        out[..rest.len()].copy_from_slice(rest);
        if a.receive_placed(now, head, received, t, rest.len()) {
            PLACED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return rest.len();
        }
        out.fill(0);
    }
    a.receive_with(now, frame, received);
    0
}
static PLACED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
fn run(address: &str, seed: u64, rough: bool) -> usize {
    let mut chance = Chance(seed);
    let mut sender = Stack::new(&config(0), 7).unwrap();
    let [mut a, mut b] = [0, 1].map(|_| Stack::new(&config(1), 9).unwrap());
    let server = SocketAddr::new(address.parse().unwrap(), 80);
    let [la, lb] = [&mut a, &mut b].map(|s| s.tcp_listen(server, 1).unwrap());
    if seed % 2 == 1 {
        let receive_buffer = std::num::NonZeroU32::new(4000 + 3000 * (seed as u32 % 7));
        for (s, l) in [(&mut a, la), (&mut b, lb)] {
            let o = s.tcp_listener_options(l).unwrap();
            s.tcp_set_listener_options(
                l,
                weir_stack::tcp::TcpOptions {
                    receive_buffer,
                    ..o
                },
            )
            .unwrap();
        }
    }
    let from = sender.tcp_connect(0, None, server).unwrap();
    let (mut now, mut ta, mut tb) = (0_u64, None, None);
    let (mut straight, mut written, mut total) = (0, 0_usize, 0_usize);
    let len = 200_000 + chance.below(100_000);
    let (mut shut, mut ended) = (false, 0);
    let mut back = 0;
    for step in 0..20_000 {
        now += [200_000, 1_000_000, 3_000_000, 41_000_000][chance.below(4)];
        if step % 500 == 499 {
            now += 2_000_000_000;
        }
        let n = chance.below(20_000).min(len - written);
        written += sender.tcp_write(from, &vec![5; n]).unwrap_or(0);
        if written == len && !shut {
            shut = true;
            let _ = sender.tcp_shutdown(now, from);
        }
        let mut frames: Vec<Vec<u8>> = Vec::new();
        sender.poll(now, &mut frames);
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
            let received = RxMeta {
                checksum_ok: chance.below(8) > 0,
                ..RxMeta::default()
            };
            let mut frame = frame.clone();
            if rough && !received.checksum_ok && frame.len() > 80 && chance.below(4) == 0 {
                let l = frame.len();
                frame[l - 1] ^= 1;
            }
            // Headers that lie, padding, cut ones.
            if rough && frame.len() > 60 {
                match chance.below(60) {
                    0 => {
                        let at = chance.below(74).min(frame.len() - 1);
                        frame[at] ^= 1 << chance.below(8);
                    }
                    1 => {
                        let l = 1 + chance.below(frame.len() - 1);
                        frame.truncate(l);
                    }
                    2 => frame.extend_from_slice(&[9; 7][..1 + chance.below(7)]),
                    _ => {}
                }
            }
            let frame = &frame;
            let (mut out, mut out2) = (vec![0; 70_000], vec![0; 70_000]);
            let got_a = match ta {
                Some(t) => {
                    let c = if chance.below(4) == 0 {
                        a.receive_with(now, frame, received);
                        0
                    } else {
                        place(&mut a, now, frame, received, t, &mut out, &mut chance)
                    };
                    straight += c;
                    if c == 0 {
                        a.tcp_read(t, &mut out).unwrap_or(0)
                    } else {
                        c
                    }
                }
                None => {
                    a.receive_with(now, frame, received);
                    ta = a.tcp_accept(now, la).ok();
                    0
                }
            };
            b.receive_with(now, frame, received);
            let got_b = match tb {
                Some(t) => b.tcp_read(t, &mut out2).unwrap_or(0),
                None => {
                    tb = b.tcp_accept(now, lb).ok();
                    0
                }
            };
            assert_eq!(got_a, got_b, "seed {seed} step {step}");
            assert!(out[..got_a] == out2[..got_b]);
            total += got_a;
        }
        if let (Some(x), Some(y)) = (ta, tb) {
            assert_eq!(a.tcp_state(x), b.tcp_state(y), "seed {seed} step {step}");
            if chance.below(4) == 0 && back < 100_000 {
                let n = chance.below(9000);
                let (p, q) = (
                    a.tcp_write(x, &vec![1; n]).ok(),
                    b.tcp_write(y, &vec![1; n]).ok(),
                );
                assert_eq!(p, q);
                back += n;
            }
        }
        let (mut fa, mut fb): (Vec<Vec<u8>>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
        let (na, nb) = (a.poll(now, &mut fa), b.poll(now, &mut fb));
        assert!(
            fa == fb,
            "seed {seed} step {step}: {} {} frames",
            fa.len(),
            fb.len()
        );
        assert_eq!(na, nb, "seed {seed} step {step}: next");
        for f in &fa {
            sender.receive_with(
                now,
                f,
                RxMeta {
                    checksum_ok: true,
                    ..RxMeta::default()
                },
            );
        }
        let mut sink = vec![0; 100_000];
        if chance.below(3) == 0 {
            let _ = sender.tcp_read(from, &mut sink);
        }
        if total == len {
            ended += 1;
            if ended > 50 {
                break;
            }
        }
    }
    if !rough {
        assert_eq!(total, len, "seed {seed}");
    }
    straight
}
#[test]
fn both_ways_send_the_same() {
    let mut all = 0;
    for seed in 0..10 {
        for at in [V4[1], V6[1]] {
            all += run(at, seed, false);
            run(at, seed, true);
        }
    }
    println!("straight {all} placed {PLACED:?}");
    assert!(all > 0);
}
