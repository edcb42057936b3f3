//! How fast a stream goes where frames are lost, in the simulator's time.

mod common;

use common::{V4, config, ip};
use std::net::SocketAddr;
use weir_link::mem::{End, Impairments, MemLink};
use weir_stack::tcp::{TcpError, TcpId};
use weir_stack::{Stack, TxSink};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
const ENDS: [End; 2] = [End::A, End::B];

/// Two hosts on a line with loss, where each frame is answered before the next.
struct Line {
    stacks: [Stack; 2],
    link: MemLink,
    now_ns: u64,
    due_ns: [Option<u64>; 2],
}

/// Frames of one end, to the line.
struct Out<'a> {
    link: &'a mut MemLink,
    end: End,
    now_ns: u64,
    frame: Vec<u8>,
}

impl TxSink for Out<'_> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    fn submit(&mut self) {
        // It says whether the frame is lost.
        let _ = self.link.send(self.end, self.now_ns, &self.frame);
    }
}

impl Line {
    fn poll(&mut self, end: usize) {
        let mut out = Out {
            link: &mut self.link,
            end: ENDS[end],
            now_ns: self.now_ns,
            frame: Vec::new(),
        };
        self.due_ns[end] = self.stacks[end].poll(self.now_ns, &mut out);
    }

    /// Goes on to the next thing that happens.
    fn step(&mut self) {
        for end in [0, 1] {
            if let Some(frame) = self.link.receive(ENDS[end], self.now_ns) {
                self.stacks[end].receive(self.now_ns, &frame.bytes);
            }
            self.poll(end);
        }
        let arrivals = ENDS.map(|end| self.link.next_arrival_ns(end));
        let next_ns = arrivals.into_iter().chain(self.due_ns).flatten().min();
        self.now_ns = self.now_ns.max(next_ns.unwrap());
    }
}

/// Mb/s over so long, and what part of the segments went again.
fn rate(delay_ns: u64, loss_ppm: u32, seed: u64, time_ns: u64) -> (f64, f64) {
    let calm = Impairments {
        delay_ns,
        keep_order: true,
        ..Impairments::default()
    };
    let lossy = Impairments { loss_ppm, ..calm };
    let stacks =
        [0, 1].map(|end| Stack::new(&config(end), u128::from(seed) + end as u128).unwrap());
    let mut line = Line {
        stacks,
        link: MemLink::new(calm, calm, seed).unwrap(),
        now_ns: 0,
        due_ns: [None; 2],
    };
    let at = SocketAddr::new(ip(V4[1]), 80);
    let listener = line.stacks[1].tcp_listen(at, 1).unwrap();
    let sender = line.stacks[0].tcp_connect(0, None, at).unwrap();
    let mut receiver: Option<TcpId> = None;
    let (block, mut room) = (vec![1; 64 << 10], vec![0; 64 << 10]);
    let (mut read, mut begun_ns) = (0, None);
    while begun_ns.is_none_or(|begun_ns| line.now_ns < begun_ns + time_ns) {
        line.step();
        match receiver {
            None => {
                receiver = line.stacks[1].tcp_accept(line.now_ns, listener).ok();
                if receiver.is_some() {
                    line.link = MemLink::new(lossy, lossy, seed).unwrap();
                    begun_ns = Some(line.now_ns);
                }
            }
            Some(id) => loop {
                match line.stacks[1].tcp_read(id, &mut room) {
                    Ok(count) => read += count,
                    Err(TcpError::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            },
        }
        while line.stacks[0].tcp_write(sender, &block).is_ok() {}
        for end in [0, 1] {
            line.poll(end);
        }
    }
    let info = line.stacks[0].tcp_info(line.now_ns, sender).unwrap();
    let again = f64::from(info.counts.retransmitted) / f64::from(info.counts.segments_out);
    (read as f64 * 8e3 / time_ns as f64, again)
}

/// What a window that is cut at each loss gives (Mathis, Semke, Mahdavi and Ott 1997),
/// in Mb/s: CUBIC is to be no slower (RFC 9438 §4.3).
fn expected(delay_ns: u64, loss_ppm: u32) -> f64 {
    let (mss, rtt_s) = (1448.0, 2e-9 * delay_ns as f64);
    1.22 * mss * 8e-6 / (rtt_s * (f64::from(loss_ppm) / 1e6).sqrt())
}

/// With 5 % lost, what goes again is lost often enough that time-outs count, which
/// on a short path are two thousand round trips long.
#[test]
fn loss_costs_no_more_than_the_window() {
    let cases = [
        (50_000, 10_000, 50 * MS, 0.8),
        (10 * MS, 10_000, 20 * S, 0.8),
        (10 * MS, 50_000, 20 * S, 0.6),
    ];
    for (delay_ns, loss_ppm, time_ns, part) in cases {
        let mut rates = [0, 1, 2].map(|seed| rate(delay_ns, loss_ppm, seed, time_ns).0);
        rates.sort_by(f64::total_cmp);
        let expected = expected(delay_ns, loss_ppm);
        println!("{delay_ns} ns, {loss_ppm} ppm: {rates:.1?} of {expected:.1} Mb/s");
        assert!(rates[1] >= part * expected, "{rates:?} of {expected}");
    }
}
