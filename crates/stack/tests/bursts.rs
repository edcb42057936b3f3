//! Runs of frames that a link cuts: whatever it takes of them, the stream is the same.
mod common;
use common::offload::finish;
use common::{V4, V6, config};
use std::net::SocketAddr;
use weir_stack::iface::{BURST_MAX, BurstFrame, Offload, RxMeta, TxMeta};
use weir_stack::tcp::{State as TcpState, TcpConfig};
use weir_stack::{Stack, TxSink};

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
#[derive(Clone, Copy, PartialEq, Debug)]
enum Policy {
    All,
    Part,
    Single,
}
struct Out {
    frames: Vec<(Vec<u8>, Option<TxMeta>)>,
    room: usize,
    policy: Policy,
    chance: Chance,
    runs: usize,
    widest: usize,
    bytes_max: usize,
    refused: bool,
}
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
fn add(bytes: &[u8]) -> u32 {
    let mut s = 0;
    for pair in bytes.chunks(2) {
        s += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        s = u32::from(fold(s));
    }
    s
}
fn half(b: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([b[at], b[at + 1]]))
}
/// What the kernel would hold it to: lengths, sums, as a whole.
fn check(frame: &[u8], partial: TxMeta) -> (u32, usize, u8) {
    let at = usize::from(partial.checksum_start);
    let ip = &frame[14..at];
    let pseudo = match ip[0] >> 4 {
        4 => {
            assert_eq!(half(ip, 2), frame.len() - 14);
            assert_eq!(fold(add(ip)), 0xffff);
            add(&ip[12..20])
        }
        _ => {
            assert_eq!(half(ip, 4), frame.len() - 54);
            add(&ip[8..40])
        }
    } + 6
        + (frame.len() - at) as u32;
    let field = at + usize::from(partial.checksum_offset);
    assert_eq!(
        half(frame, field),
        usize::from(fold(pseudo)),
        "the pseudo header's sum"
    );
    let header_len = usize::from(frame[at + 12] >> 4) * 4;
    let len = frame.len() - at - header_len;
    if let Some(gso) = partial.gso {
        assert!(len > usize::from(gso.size));
        assert_eq!(usize::from(gso.header_len), at + header_len);
    }
    (
        u32::from_be_bytes(frame[at + 4..at + 8].try_into().unwrap()),
        len,
        frame[at + 13],
    )
}
impl TxSink for Out {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.room == 0 {
            self.refused = true;
            return None;
        }
        self.room -= 1;
        self.frames.push((vec![0; len], None));
        self.frames
            .last_mut()
            .map(|(frame, _)| frame.as_mut_slice())
    }
    fn submit(&mut self) {}
    fn submit_partial(&mut self, partial: TxMeta, payload: [&[u8]; 2]) {
        let (frame, left) = self.frames.last_mut().unwrap();
        frame.extend_from_slice(&payload.concat());
        check(frame, partial);
        *left = Some(partial);
    }
    fn submit_burst(&mut self, run: &[BurstFrame<'_>]) -> usize {
        assert!((1..=BURST_MAX).contains(&run.len()));
        self.runs += 1;
        self.widest = self.widest.max(run.len());
        let wholes: Vec<(Vec<u8>, TxMeta)> = run
            .iter()
            .map(|f| ([f.head, f.payload[0], f.payload[1]].concat(), f.meta))
            .collect();
        self.bytes_max = self
            .bytes_max
            .max(wholes.iter().map(|(f, _)| f.len()).sum());
        let told: Vec<_> = wholes.iter().map(|(f, p)| check(f, *p)).collect();
        for pair in told.windows(2) {
            assert_eq!(
                pair[0].0.wrapping_add(pair[0].1 as u32),
                pair[1].0,
                "one after the other"
            );
            assert_eq!(pair[0].2 & 9, 0, "PSH or FIN before the end");
        }
        let most = match self.policy {
            Policy::All => run.len(),
            Policy::Part => self.chance.below(run.len() + 1),
            Policy::Single => 1,
        };
        let taken = most.min(self.room);
        self.refused |= taken < run.len();
        self.room -= taken;
        self.frames
            .extend(wholes.into_iter().take(taken).map(|(f, p)| (f, Some(p))));
        taken
    }
}
struct Case {
    at: &'static str,
    run: u8,
    policy: Policy,
    mtu: usize,
    timestamps: bool,
    rough: usize,
    len: usize,
    window: usize,
    room: usize,
    seed: u64,
}
fn byte(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16).wrapping_mul(7)) as u8
}
fn transfer(case: &Case) -> (usize, usize, usize) {
    let mut chance = Chance(case.seed);
    let tcp = TcpConfig {
        receive_buffer: case.window,
        receive_initial: case.window.min(1 << 20),
        send_buffer: 4 << 20,
        timestamps: case.timestamps,
        ..TcpConfig::default()
    };
    let [mut sender, mut receiver] = [0, 1].map(|end| {
        let mut c = config(end);
        c.mtu = case.mtu;
        if end == 0 {
            c.offload = Offload {
                burst: case.run,
                ..Offload::ALL
            };
        }
        let mut s = Stack::new(&c, 7 + end as u128).unwrap();
        s.tcp_configure(tcp.clone());
        s
    });
    let server = SocketAddr::new(case.at.parse().unwrap(), 80);
    let listener = receiver.tcp_listen(server, 1).unwrap();
    let from = sender.tcp_connect(0, None, server).unwrap();
    let data: Vec<u8> = (0..case.len).map(byte).collect();
    let mut out = Out {
        frames: vec![],
        room: 0,
        policy: case.policy,
        chance: Chance(!case.seed),
        runs: 0,
        widest: 0,
        bytes_max: 0,
        refused: false,
    };
    let (mut now, mut to, mut heard, mut written, mut late) =
        (0_u64, None, Vec::new(), 0, Vec::<Vec<u8>>::new());
    let mut buffer = vec![0; 1 << 20];
    for step in 0..100_000 {
        now += if step % 200 == 199 {
            400_000_000
        } else {
            50_000 + chance.below(100_000) as u64
        };
        while written < data.len() {
            match sender.tcp_write(from, &data[written..]) {
                Ok(n) if n > 0 => written += n,
                _ => break,
            }
        }
        if written == data.len() {
            let _ = sender.tcp_shutdown(now, from);
        }
        out.room = if case.room == usize::MAX {
            usize::MAX
        } else {
            1 + chance.below(case.room)
        };
        out.refused = false;
        let mut wire = std::mem::take(&mut late);
        for _ in 0..64 {
            let next = sender.poll(now, &mut out);
            let again = next.is_some_and(|n| n <= now);
            if !again && !out.refused {
                let before = out.frames.len();
                sender.poll(now, &mut out);
                assert_eq!(
                    out.frames.len(),
                    before,
                    "a link that takes all is held for full: step {step}"
                );
            }
            if !again || out.refused {
                break;
            }
        }
        for (frame, partial) in out.frames.drain(..) {
            for frame in finish(frame, partial) {
                wire.push(frame);
            }
        }
        if case.rough > 0 {
            for at in 1..wire.len() {
                if chance.below(case.rough) == 0 {
                    wire.swap(at - 1, at);
                }
            }
            wire.retain(|f| {
                if chance.below(case.rough) == 0 {
                    if chance.below(3) == 0 {
                        late.push(f.clone());
                    }
                    false
                } else {
                    true
                }
            });
        }
        for frame in &wire {
            receiver.receive_with(now, frame, RxMeta::default());
        }
        if to.is_none() {
            to = receiver.tcp_accept(now, listener).ok();
        }
        if let Some(to) = to
            && (case.rough == 0 || chance.below(2) == 0)
        {
            while let Ok(count) = receiver.tcp_read(to, &mut buffer)
                && count > 0
            {
                heard.extend_from_slice(&buffer[..count]);
            }
        }
        let mut back: Vec<Vec<u8>> = Vec::new();
        receiver.poll(now, &mut back);
        now += 20_000;
        for frame in &back {
            if case.rough == 0 || chance.below(4 * case.rough) > 0 {
                sender.receive_with(now, frame, RxMeta::default());
            }
        }
        if heard.len() == data.len()
            && to.is_some_and(|to| receiver.tcp_state(to) == Some(TcpState::CloseWait))
        {
            break;
        }
    }
    assert!(heard == data, "{} of {}", heard.len(), data.len());
    assert_eq!(
        to.and_then(|to| receiver.tcp_state(to)),
        Some(TcpState::CloseWait)
    );
    (out.runs, out.widest, out.bytes_max)
}
#[test]
fn the_stream_is_the_same_whatever_is_taken() {
    let seeds = 2;
    let mut runs = 0;
    for seed in 0..seeds {
        for at in [V4[1], V6[1]] {
            for policy in [Policy::All, Policy::Part, Policy::Single] {
                for (rough, room) in [(0, usize::MAX), (0, 5), (300, usize::MAX), (300, 9)] {
                    let mut c = Chance(seed * 31 + rough as u64);
                    let case = Case {
                        at,
                        run: [4, 4, 2, 3, 1, 0][c.below(6)],
                        policy,
                        mtu: [1500, 1500, 9000, 1280, 1400, 16_000, 40_000, 65_535][c.below(8)],
                        timestamps: c.below(2) == 0,
                        rough,
                        len: 1_500_000 + c.below(100_000),
                        window: [8 << 20, 8 << 20, 300_000, 70_000][c.below(4)],
                        room,
                        seed,
                    };
                    let got = transfer(&case);
                    println!(
                        "{seed} {at} {policy:?} run {} mtu {} ts {} rough {rough} room {room} window {}: {got:?}",
                        case.run, case.mtu, case.timestamps, case.window
                    );
                    runs += got.0;
                }
            }
        }
    }
    assert!(runs > 0);
}
#[test]
fn a_link_that_takes_all_is_not_full() {
    for at in [V4[1], V6[1]] {
        for mtu in [1280, 1400, 1500, 4000, 9000, 16_000, 33_000, 65_535] {
            for timestamps in [false, true] {
                let got = transfer(&Case {
                    at,
                    run: 4,
                    policy: Policy::All,
                    mtu,
                    timestamps,
                    rough: 0,
                    len: 4_000_000,
                    window: 8 << 20,
                    room: usize::MAX,
                    seed: 1,
                });
                println!("{at} {mtu} {timestamps}: {got:?}");
            }
        }
    }
}
/// Two bulk connections, each always with something to send: each has its share.
#[test]
fn a_long_burst_delays_no_connection() {
    let mut worst = 1.0_f64;
    for at in [V4[1], V6[1]] {
        for mtu in [1500, 9000] {
            for run in [1, 4] {
                let tcp = TcpConfig {
                    receive_buffer: 8 << 20,
                    receive_initial: 1 << 20,
                    send_buffer: 4 << 20,
                    ..TcpConfig::default()
                };
                let [mut sender, mut receiver] = [0, 1].map(|end| {
                    let mut c = config(end);
                    c.mtu = mtu;
                    if end == 0 {
                        c.offload = Offload {
                            burst: run,
                            ..Offload::ALL
                        };
                    }
                    let mut s = Stack::new(&c, 7 + end as u128).unwrap();
                    s.tcp_configure(tcp.clone());
                    s
                });
                let server = SocketAddr::new(at.parse().unwrap(), 80);
                let listener = receiver.tcp_listen(server, 4).unwrap();
                let from = [0; 2].map(|_| sender.tcp_connect(0, None, server).unwrap());
                let mut out = Out {
                    frames: vec![],
                    room: usize::MAX,
                    policy: Policy::All,
                    chance: Chance(1),
                    runs: 0,
                    widest: 0,
                    bytes_max: 0,
                    refused: false,
                };
                let (mut now, mut to, mut got) = (0, vec![], [0_usize; 2]);
                let (data, mut buffer) = (vec![3; 1 << 20], vec![0; 1 << 20]);
                for _ in 0..300 {
                    now += 50_000;
                    for from in from {
                        let _ = sender.tcp_write(from, &data);
                    }
                    // One poll, then the arrived frames, as in a host under load.
                    sender.poll(now, &mut out);
                    for (frame, partial) in out.frames.drain(..) {
                        for frame in finish(frame, partial) {
                            receiver.receive_with(
                                now,
                                &frame,
                                RxMeta {
                                    checksum_ok: true,
                                    ..RxMeta::default()
                                },
                            );
                        }
                    }
                    if let Ok(one) = receiver.tcp_accept(now, listener) {
                        to.push(one);
                    }
                    for (to, got) in to.iter().zip(&mut got) {
                        while let Ok(n) = receiver.tcp_read(*to, &mut buffer)
                            && n > 0
                        {
                            *got += n;
                        }
                    }
                    let mut back: Vec<Vec<u8>> = Vec::new();
                    receiver.poll(now, &mut back);
                    now += 20_000;
                    for frame in &back {
                        sender.receive_with(
                            now,
                            frame,
                            RxMeta {
                                checksum_ok: true,
                                ..RxMeta::default()
                            },
                        );
                    }
                }
                let share = got[0].min(got[1]) as f64 / got[0].max(got[1]) as f64;
                println!(
                    "{at} mtu {mtu} run {run}: {got:?}, {share:.3}, {} runs",
                    out.runs
                );
                worst = worst.min(share);
            }
        }
    }
    assert!(worst > 0.5, "{worst}");
}
