//! Windows of the algorithms that follow losses.

use super::cubic::{BETA, C};
use super::*;

const MSS: usize = 1000;
const RTT: u64 = 100_000_000;

fn ack(bytes: usize, now_ns: u64) -> Ack {
    Ack {
        now_ns,
        bytes,
        srtt_ns: RTT,
        ..Ack::default()
    }
}

/// A round trip in which the whole window is acknowledged.
fn round(congestion: &mut Congestion, now_ns: &mut u64) {
    *now_ns += RTT;
    for _ in 0..congestion.cwnd / MSS {
        congestion.on_ack(&ack(MSS, *now_ns));
    }
}

#[test]
fn slow_start_doubles_and_reno_adds_one() {
    let mut reno = Congestion::new(Algorithm::NewReno, MSS, 1);
    let mut now_ns = 0;
    round(&mut reno, &mut now_ns);
    assert_eq!(reno.cwnd, 20 * MSS);
    reno.on_congestion_event(reno.cwnd);
    assert_eq!(reno.ssthresh, 10 * MSS);
    reno.cwnd = reno.ssthresh;
    for more in 1..=5 {
        round(&mut reno, &mut now_ns);
        assert_eq!(reno.cwnd, (10 + more) * MSS);
    }
    reno.on_rto();
    assert_eq!(reno.cwnd, MSS);
}

/// RFC 9438, figure 1: K seconds after a loss the window is back.
#[test]
fn cubic_is_back_at_its_maximum_after_k() {
    let mut cubic = Congestion::new(Algorithm::Cubic, MSS, 1);
    let mut now_ns = 0;
    cubic.cwnd = 1000 * MSS;
    cubic.on_congestion_event(cubic.cwnd);
    assert_eq!(cubic.ssthresh, 700 * MSS);
    cubic.cwnd = cubic.ssthresh;
    let k = (1000.0 * (1.0 - BETA) / C).cbrt();
    let rounds = (k * 1e9 / RTT as f64) as usize;
    let mut windows = Vec::new();
    for _ in 0..2 * rounds {
        round(&mut cubic, &mut now_ns);
        windows.push(cubic.cwnd / MSS);
    }
    let at_k = windows[rounds];
    assert!((985..1015).contains(&at_k), "{at_k} after {k} s");
    // Concave, flat, convex.
    let gained = |from: usize, to: usize| windows[to] - windows[from];
    assert!(gained(0, rounds / 2) > 5 * gained(rounds / 2, rounds));
    assert!(gained(3 * rounds / 2, 2 * rounds - 1) > 5 * gained(rounds, 3 * rounds / 2));
}

#[test]
fn windows_never_vanish_nor_burst() {
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        let mut congestion = Congestion::new(algorithm, MSS, 1);
        let mut now_ns = 0;
        for step in 0..2000_u64 {
            match step % 97 {
                13 => {
                    congestion.on_congestion_event(congestion.cwnd / 2);
                    congestion.cwnd = congestion.ssthresh;
                }
                57 => congestion.on_rto(),
                71 => congestion.on_idle(),
                83 => congestion.shift_epoch(),
                91 => now_ns += 60_000_000_000,
                _ => {}
            }
            let before = congestion.cwnd;
            congestion.on_ack(&ack(2 * MSS, now_ns));
            now_ns += RTT / 10;
            assert!(congestion.cwnd >= MSS && congestion.ssthresh >= 2 * MSS);
            assert!(
                congestion.cwnd <= before + 2 * MSS,
                "{before} {}",
                congestion.cwnd
            );
        }
    }
}

/// The windows of a seeded course of events, in segments, one of each 50 steps: congestion window
/// and slow-start threshold.
fn trace(algorithm: Algorithm) -> Vec<(usize, usize)> {
    let mut rng = crate::rng::Rng::new(9438);
    let mut congestion = Congestion::new(algorithm, MSS, 1);
    let (mut now_ns, mut una, mut trace) = (0, Seq(0), Vec::new());
    for step in 0..1000 {
        let window = congestion.cwnd;
        let nxt = una.plus(window);
        congestion.on_transmit(una, nxt, window, rng.below(8) > 0);
        now_ns += u64::from(rng.below(2 * RTT as u32));
        match rng.below(100) {
            0..5 => {
                congestion.on_congestion_event(window / 2);
                congestion.cwnd = congestion.ssthresh;
            }
            5 if rng.below(4) == 0 => {
                congestion.on_congestion_event(window);
                congestion.on_rto();
            }
            6 if rng.below(4) == 0 => congestion.on_idle(),
            7 => congestion.set_mss(MSS / 2 * (1 + rng.below(2) as usize)),
            _ => {}
        }
        if congestion.is_in_use() {
            congestion.on_ack(&ack(window, now_ns));
        } else {
            congestion.shift_epoch();
        }
        una = nxt;
        if step % 50 == 49 {
            let ssthresh = congestion.threshold().unwrap_or(0);
            trace.push((congestion.cwnd / MSS, ssthresh / MSS));
        }
    }
    trace
}

/// The windows do not depend on how the code is divided.
#[test]
fn windows_are_those_of_before() {
    let expected = [
        (245862, 229376),
        (173315, 86657),
        (90981, 87142),
        (33713, 32567),
        (25833, 25091),
        (7173, 7015),
        (2872, 2707),
        (900, 830),
        (312, 284),
        (17, 15),
        (24, 20),
        (24, 20),
        (17, 14),
        (34, 33),
        (28, 24),
        (22, 21),
        (23, 13),
        (26, 23),
        (54, 20),
        (14, 9),
    ];
    assert_eq!(trace(Algorithm::Cubic), expected);
    let expected = [
        (81954, 81920),
        (2580, 1284),
        (197, 164),
        (26, 6),
        (27, 14),
        (10, 4),
        (19, 2),
        (19, 4),
        (14, 3),
        (7, 2),
        (16, 6),
        (14, 4),
        (10, 2),
        (12, 11),
        (10, 3),
        (8, 4),
        (18, 3),
        (10, 4),
        (43, 3),
        (8, 1),
    ];
    assert_eq!(trace(Algorithm::NewReno), expected);
}

#[test]
fn algorithms_have_linux_names() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.name().parse(), Ok(algorithm));
    }
    let refused = "vegas".parse::<Algorithm>().unwrap_err().to_string();
    assert_eq!(
        refused,
        "`vegas` is no congestion control: give cubic, reno or bbr"
    );
}
