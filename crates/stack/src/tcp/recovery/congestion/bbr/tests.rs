//! BBR on a simulated path: a bottleneck with a rate and a buffer, a round-trip time, and losses.

use super::model::inflight_at_loss;
use super::states::FULL_BW_COUNT;
use super::*;
use crate::tcp::recovery::congestion::delivery_rate::RateSample;
use crate::tcp::recovery::congestion::{WINDOW_MAX, initial_window};
use std::collections::VecDeque;

const MSS: usize = 1000;
const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
/// 10 MB/s and 20 ms: 200 segments.
const PATH: Path = Path {
    rate: 10_000_000,
    rtt_ns: 20 * MS,
    buffer: 400_000,
    loss_ppm: 0,
};

/// A simulated path.
#[derive(Clone, Copy, Debug)]
struct Path {
    rate: u64,
    rtt_ns: u64,
    buffer: u64,
    loss_ppm: u32,
}

/// A segment in flight, and the time of its acknowledgment unless the path has dropped it.
struct Flight {
    sent: Sent,
    acked_ns: Option<u64>,
}

struct Sim {
    bbr: Bbr,
    cwnd: usize,
    path: Path,
    now_ns: u64,
    /// The bottleneck is busy until then.
    busy_ns: u64,
    flight: VecDeque<Flight>,
    next: Seq,
    /// Recovery ends when this is acknowledged.
    recovery: Option<Seq>,
    rng: Rng,
    min_rtt_ns: u64,
    /// States and when they began.
    phases: Vec<(Phase, u64)>,
    /// The application writes nothing until then.
    paused_until_ns: u64,
    sent_bytes: u64,
    lost_bytes: u64,
}

impl Sim {
    fn new(path: Path) -> Sim {
        Sim {
            bbr: Bbr::new(1),
            cwnd: initial_window(MSS),
            path,
            now_ns: S,
            busy_ns: 0,
            flight: VecDeque::new(),
            next: Seq(0),
            recovery: None,
            rng: Rng::new(7),
            min_rtt_ns: path.rtt_ns,
            phases: vec![(Phase::Startup, S)],
            paused_until_ns: 0,
            sent_bytes: 0,
            lost_bytes: 0,
        }
    }

    fn window(&self) -> Window {
        Window {
            cwnd: self.cwnd,
            ssthresh: WINDOW_MAX,
            mss: MSS,
        }
    }

    fn inflight(&self) -> usize {
        self.flight.len() * MSS
    }

    /// Sends what may be sent; returns when more may.
    fn send(&mut self) -> u64 {
        if self.now_ns < self.paused_until_ns {
            self.bbr.on_ran_out();
            return self.paused_until_ns;
        }
        let window = self.window();
        let (now_ns, inflight) = (self.now_ns, self.inflight());
        self.cwnd = self
            .bbr
            .before_send(window, now_ns, inflight, self.min_rtt_ns);
        loop {
            let is_limited = self.inflight() + MSS > self.cwnd;
            self.bbr.set_cwnd_limited(is_limited);
            if is_limited {
                return u64::MAX;
            }
            match self.bbr.budget(self.now_ns) {
                Ok(_) => self.send_one(),
                Err(at_ns) => return at_ns,
            }
        }
    }

    fn send_one(&mut self) {
        let sent = Sent {
            start: self.next,
            end: self.next.plus(MSS),
            sent_ns: self.now_ns,
            retransmitted: false,
            sacked: false,
            lost: false,
        };
        self.next = sent.end;
        let queued_ns = self.busy_ns.saturating_sub(self.now_ns);
        let queued = queued_ns as f64 * self.path.rate as f64 / 1e9;
        let is_dropped = self.rng.below(1_000_000) < self.path.loss_ppm;
        let acked_ns = (queued <= self.path.buffer as f64 && !is_dropped).then(|| {
            let takes_ns = MSS as u64 * S / self.path.rate;
            self.busy_ns = self.busy_ns.max(self.now_ns) + takes_ns;
            self.busy_ns + self.path.rtt_ns
        });
        let transmit = Transmit {
            now_ns: self.now_ns,
            bytes: MSS,
            inflight: self.inflight() + MSS,
            is_first: self.flight.is_empty(),
        };
        self.flight.push_back(Flight { sent, acked_ns });
        let flight = &self.flight;
        self.bbr.on_sent(&transmit, || flight[0].sent.sent_ns);
        self.sent_bytes += MSS as u64;
    }

    /// Processes the next acknowledgment; segments sent before without one are lost.
    fn acknowledge(&mut self) {
        while let Some(Flight { sent, acked_ns }) = self.flight.pop_front() {
            let window = self.window();
            let Some(_) = acked_ns else {
                if self.recovery.is_none() {
                    self.bbr.on_congestion_event(window, 0);
                    self.recovery = Some(self.next);
                }
                self.bbr.on_lost(window, &sent);
                self.lost_bytes += MSS as u64;
                continue;
            };
            self.bbr.on_delivered(&sent);
            self.bbr.count_delivered(MSS, self.now_ns);
            self.bbr.on_rtt(self.now_ns - sent.sent_ns);
            if self.recovery.is_some_and(|end| end.at_most(sent.end)) {
                self.cwnd = self.bbr.on_recovery_end(window);
                self.recovery = None;
            }
            break;
        }
        let ack = Ack {
            now_ns: self.now_ns,
            srtt_ns: self.min_rtt_ns,
            min_rtt_ns: self.min_rtt_ns,
            inflight: self.inflight(),
            sack: true,
            in_recovery: self.recovery.is_some(),
            ..Ack::default()
        };
        self.cwnd = self.bbr.on_ack(self.window(), &ack);
        if self
            .phases
            .last()
            .is_none_or(|last| last.0 != self.bbr.phase)
        {
            self.phases.push((self.bbr.phase, self.now_ns));
        }
        assert!(self.cwnd >= self.bbr.min_pipe_cwnd() && self.bbr.rate() > 0);
    }

    /// Runs for a time; returns the delivered bytes a second.
    fn run(&mut self, time_ns: u64) -> f64 {
        let (start, end_ns) = (self.bbr.sampler.delivered, self.now_ns + time_ns);
        while self.now_ns < end_ns {
            let send_ns = self.send();
            let ack_ns = self.flight.iter().find_map(|flight| flight.acked_ns);
            let ack_ns = ack_ns.unwrap_or(u64::MAX);
            self.now_ns = send_ns.min(ack_ns).max(self.now_ns);
            assert!(self.now_ns < u64::MAX, "nothing happens any more");
            if ack_ns <= self.now_ns {
                self.acknowledge();
            }
        }
        (self.bbr.sampler.delivered - start) as f64 * 1e9 / time_ns as f64
    }

    fn visited(&self) -> Vec<Phase> {
        self.phases.iter().map(|phase| phase.0).collect()
    }
}

/// The draft's test "Exiting STARTUP on Bandwidth Plateau", and Drain by the bytes in flight.
#[test]
fn startup_finds_the_bandwidth_and_drain_empties_the_queue() {
    let mut sim = Sim::new(PATH);
    assert_eq!(sim.bbr.phase.pacing_gain(), STARTUP_PACING_GAIN);
    while sim.bbr.phase == Phase::Startup {
        sim.run(MS);
    }
    assert!(sim.bbr.full_bw_reached && sim.bbr.full_bw_count == FULL_BW_COUNT);
    let max_bw = sim.bbr.max_bw() as f64 / PATH.rate as f64;
    assert!(
        (0.98..1.02).contains(&max_bw),
        "{max_bw} of the path's rate"
    );
    assert!(sim.now_ns < S + 15 * PATH.rtt_ns, "{} ns", sim.now_ns);
    while sim.bbr.phase == Phase::Drain {
        sim.run(MS / 10);
    }
    assert!(sim.inflight() <= 220_000, "{} in flight", sim.inflight());
    // The queue is empty: Down ends as it begins.
    let visited = sim.visited();
    assert_eq!(
        visited,
        [Phase::Startup, Phase::Drain, Phase::ProbeBwCruise]
    );
}

#[test]
fn probe_bw_goes_round_and_uses_the_path() {
    let mut sim = Sim::new(PATH);
    sim.run(S);
    sim.phases.clear();
    let rate = sim.run(3 * S) / PATH.rate as f64;
    assert!(rate > 0.95, "{rate} of the path's rate");
    let next = |phase| match phase {
        Phase::ProbeBwDown => Phase::ProbeBwCruise,
        Phase::ProbeBwCruise => Phase::ProbeBwRefill,
        Phase::ProbeBwRefill => Phase::ProbeBwUp,
        _ => Phase::ProbeBwDown,
    };
    let visited = sim.visited();
    assert!(visited.len() > 8, "{visited:?}");
    for pair in visited.windows(2) {
        assert_eq!(pair[1], next(pair[0]), "{visited:?}");
    }
    // As often as Reno on this path would have a loss: each 63 round trips at most.
    let ups = sim
        .phases
        .iter()
        .filter(|phase| phase.0 == Phase::ProbeBwUp);
    let ups: Vec<u64> = ups.map(|phase| phase.1).collect();
    for pair in ups.windows(2) {
        assert!(pair[1] - pair[0] < 80 * PATH.rtt_ns, "{ups:?}");
    }
}

/// The draft's test "Entering and Exiting PROBE_RTT".
#[test]
fn probe_rtt_comes_each_five_seconds_and_lasts_200_ms() {
    let mut sim = Sim::new(PATH);
    sim.run(4 * S);
    assert!(!sim.visited().contains(&Phase::ProbeRtt));
    while sim.bbr.phase != Phase::ProbeRtt {
        sim.run(MS);
    }
    let (start_ns, cwnd) = (sim.now_ns, sim.bbr.prior_cwnd);
    assert!((4 * S..6 * S).contains(&(start_ns - S)));
    sim.run(100 * MS);
    assert!(sim.inflight() <= 101_000, "half of what the path holds");
    while sim.bbr.phase == Phase::ProbeRtt {
        sim.run(MS);
    }
    let took_ns = sim.now_ns - start_ns;
    assert!((200 * MS..300 * MS).contains(&took_ns), "{took_ns} ns");
    assert_eq!(sim.bbr.phase, Phase::ProbeBwCruise);
    assert!(sim.cwnd > cwnd / 2, "the window is back");
}

/// The draft's test "Skipping PROBE_RTT Due to Application-Limited Sending".
#[test]
fn an_idle_connection_needs_no_probe_rtt() {
    let mut sim = Sim::new(PATH);
    sim.run(2 * S);
    let bw = sim.bbr.max_bw();
    sim.paused_until_ns = sim.now_ns + 6 * S;
    sim.run(6 * S + 2 * MS);
    assert!(sim.bbr.idle_restart);
    sim.run(500 * MS);
    assert!(!sim.bbr.idle_restart && !sim.visited().contains(&Phase::ProbeRtt));
    assert!(sim.bbr.max_bw() >= bw * 9 / 10, "the model has stayed");
}

/// The draft's tests "Increasing Bandwidth 10x", "Decreasing Bandwidth 10x".
#[test]
fn the_model_follows_the_path() {
    let mut sim = Sim::new(PATH);
    sim.run(3 * S);
    sim.path.rate *= 10;
    sim.path.buffer *= 10;
    sim.run(12 * S);
    let max_bw = sim.bbr.max_bw() as f64 / sim.path.rate as f64;
    assert!(
        (0.9..1.05).contains(&max_bw),
        "{max_bw} of ten times the rate"
    );
    sim.path = PATH;
    sim.run(6 * S);
    let bw = sim.bbr.bw as f64 / PATH.rate as f64;
    assert!(bw < 1.3, "{bw} of a tenth of the rate");
}

/// The draft's test "Correctly Managing Sub-Packet BDPs".
#[test]
fn a_path_of_less_than_a_segment_is_kept_busy() {
    let mut sim = Sim::new(Path {
        rate: 50_000,
        rtt_ns: 2 * MS,
        buffer: 100_000,
        loss_ppm: 0,
    });
    sim.run(2 * S);
    let rate = sim.run(2 * S) / 50_000.0;
    assert!(rate > 0.9, "{rate} of the path's rate");
    assert!(sim.cwnd <= 8 * MSS, "{} bytes", sim.cwnd);
}

#[test]
fn random_losses_below_the_threshold_are_tolerated() {
    for (loss_ppm, least) in [(1_000, 0.9), (5_000, 0.8), (10_000, 0.6)] {
        let mut sim = Sim::new(Path { loss_ppm, ..PATH });
        sim.run(S);
        let rate = sim.run(20 * S) / PATH.rate as f64;
        println!("{loss_ppm} of a million lost: {rate:.3}");
        assert!(rate > least, "{loss_ppm}: {rate}");
    }
}

/// A buffer of a tenth of the path's bytes: losses bound the bytes in flight, and stay rare.
#[test]
fn a_shallow_buffer_sets_the_long_term_bound() {
    let mut sim = Sim::new(Path {
        buffer: 20_000,
        ..PATH
    });
    sim.run(S);
    assert_ne!(sim.bbr.inflight_longterm, INFINITE);
    let (sent, lost) = (sim.sent_bytes, sim.lost_bytes);
    let rate = sim.run(10 * S) / PATH.rate as f64;
    let lost = (sim.lost_bytes - lost) as f64 / (sim.sent_bytes - sent) as f64;
    println!("{rate:.3} of the rate, {lost:.4} lost");
    assert!(rate > 0.85, "{rate} of the path's rate");
    assert!(lost < 0.02, "{lost} lost");
}

/// The overflow of the buffer in Startup costs the first cycle no rate, though its losses are
/// detected later.
#[test]
fn the_losses_of_startup_are_not_taken_for_a_slower_path() {
    for buffer in [50_000, 100_000, 150_000, 200_000] {
        let mut sim = Sim::new(Path { buffer, ..PATH });
        sim.run(300 * MS);
        assert!(sim.lost_bytes > 0);
        let rate = sim.run(500 * MS) / PATH.rate as f64;
        assert!(rate > 0.85, "{buffer}: {rate} of the path's rate");
    }
}

#[test]
fn the_bandwidth_is_the_most_of_two_cycles() {
    let mut bbr = Bbr::new(1);
    let sample = |rate, is_app_limited, bbr: &mut Bbr| {
        bbr.update_max_bw(&RateSample {
            delivery_rate: rate,
            is_app_limited,
            ..RateSample::default()
        });
        bbr.max_bw()
    };
    assert_eq!(sample(100, false, &mut bbr), 100);
    assert_eq!(sample(90, false, &mut bbr), 100);
    bbr.advance_max_bw_filter();
    assert_eq!(sample(80, false, &mut bbr), 100, "the cycle before counts");
    bbr.advance_max_bw_filter();
    assert_eq!(bbr.max_bw(), 80);
    assert_eq!(
        sample(70, true, &mut bbr),
        80,
        "the application was the limit"
    );
    bbr.advance_max_bw_filter();
    assert_eq!(bbr.max_bw(), 80, "a cycle without samples does not count");
    assert_eq!(
        sample(120, true, &mut bbr),
        120,
        "so fast it can be in any case"
    );
}

#[test]
fn aggregation_is_the_most_of_ten_round_trips() {
    let mut filter = ExtraAcked::default();
    assert_eq!(filter.update(0, 50, false), 50);
    for round in 1..10 {
        assert_eq!(filter.update(round, 10, false), 50, "{round}");
        assert_eq!(
            filter.update(round, 20, true),
            20,
            "in Startup this one alone"
        );
    }
    assert_eq!(filter.update(10, 5, false), 20);
    assert_eq!(filter.update(1_000_000, 7, false), 7);
}

#[test]
fn the_least_round_trip_expires() {
    let mut bbr = Bbr::new(1);
    let rtt = |now_ns, rtt_ns, bbr: &mut Bbr| {
        bbr.now_ns = now_ns;
        bbr.update_min_rtt(&RateSample {
            rtt_ns: Some(rtt_ns),
            ..RateSample::default()
        });
        bbr.min_rtt_ns
    };
    assert_eq!(rtt(S, 20 * MS, &mut bbr), 20 * MS);
    assert_eq!(rtt(2 * S, 30 * MS, &mut bbr), 20 * MS);
    assert!(!bbr.probe_rtt_expired);
    assert_eq!(rtt(7 * S, 30 * MS, &mut bbr), 20 * MS);
    assert!(bbr.probe_rtt_expired, "after five seconds");
    assert_eq!(rtt(12 * S, 40 * MS, &mut bbr), 30 * MS, "after ten");
}

/// 2 % of 98 000 bytes, and of the lost part of the segment.
#[test]
fn the_volume_at_which_losses_are_too_many_may_be_within_a_segment() {
    let sample = RateSample {
        tx_in_flight: 100_000,
        lost: 2_500,
        ..RateSample::default()
    };
    // (0.02 * 98 000 - 500) / 0.98 = 1 489.8
    assert_eq!(inflight_at_loss(&sample, 2_000), 99_489);
}

/// A quantum at once, then one by one; a late caller catches up one quantum.
#[test]
fn the_pacer_keeps_the_rate() {
    let mut bbr = Bbr::new(1);
    (bbr.mss, bbr.pacing_rate) = (MSS, 10_000_000);
    let mut sent = 0;
    let mut now_ns = S;
    while now_ns < 2 * S {
        match bbr.budget(now_ns) {
            Ok(budget) => {
                assert!((1..=10_000).contains(&budget));
                sent += MSS;
                let transmit = Transmit {
                    now_ns,
                    bytes: MSS,
                    inflight: MSS,
                    is_first: true,
                };
                bbr.on_sent(&transmit, || 0);
            }
            // Each time half a millisecond late.
            Err(at_ns) => now_ns = at_ns + MS / 2,
        }
    }
    assert!((9_980_000..=10_040_000).contains(&sent), "{sent}");
    bbr.pacing_rate = 0;
    let next_send_ns = bbr.next_send_ns;
    let syn = Transmit {
        now_ns,
        bytes: 1,
        inflight: 1,
        is_first: true,
    };
    bbr.on_sent(&syn, || 0);
    assert_eq!(bbr.next_send_ns, next_send_ns, "a SYN holds nothing back");
    assert!(bbr.rate() > 0);
}

/// For any events in any order with any numbers.
#[test]
fn nothing_makes_the_window_or_the_rate_vanish() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut bbr = Bbr::new(seed);
        let mss = [MSS, 1, 536, 9000][rng.below(4) as usize];
        let (mut cwnd, mut now_ns) = (initial_window(mss), 0_u64);
        let mut in_flight = VecDeque::new();
        for _ in 0..5_000 {
            now_ns += match rng.below(20) {
                0 => u64::from(rng.below(20_000)) * MS,
                1..10 => 0,
                _ => u64::from(rng.below(5_000_000)),
            };
            let window = Window {
                cwnd,
                ssthresh: WINDOW_MAX,
                mss,
            };
            let start = Seq(rng.bits() as u32);
            let sent = Sent {
                start,
                end: start.plus(1 + rng.below(70_000) as usize),
                sent_ns: now_ns,
                retransmitted: false,
                sacked: false,
                lost: false,
            };
            let old = in_flight.pop_front().unwrap_or(sent);
            let bits = 1 + rng.below(31);
            let inflight = rng.below(1 << bits) as usize;
            match rng.below(9) {
                0..=2 => {
                    cwnd = bbr.before_send(window, now_ns, inflight, u64::from(rng.below(3)) * MS);
                    let bytes = sent.end.since(sent.start);
                    let transmit = Transmit {
                        now_ns,
                        bytes,
                        inflight: inflight + bytes,
                        is_first: rng.below(20) == 0,
                    };
                    bbr.on_sent(&transmit, || now_ns / 2);
                    in_flight.extend([old, sent]);
                }
                3..=5 => {
                    bbr.on_delivered(&old);
                    bbr.count_delivered(old.end.since(old.start), now_ns);
                    if rng.below(2) == 0 {
                        bbr.on_rtt(rng.bits() >> rng.below(64));
                    }
                    bbr.set_cwnd_limited(rng.below(2) == 0);
                    let ack = Ack {
                        now_ns,
                        srtt_ns: rng.bits() >> rng.below(64),
                        min_rtt_ns: rng.bits() >> rng.below(64),
                        inflight,
                        sack: rng.below(4) > 0,
                        ..Ack::default()
                    };
                    cwnd = bbr.on_ack(window, &ack);
                    assert!(cwnd >= bbr.min_pipe_cwnd(), "seed {seed}: {cwnd}");
                }
                6 => bbr.on_lost(window, &old),
                7 => match rng.below(5) {
                    0 => cwnd = bbr.on_rto(window),
                    1 => bbr.on_ran_out(),
                    2 => bbr.release(),
                    3 => cwnd = bbr.on_recovery_end(window),
                    _ => {
                        bbr.on_congestion_event(window, inflight);
                    }
                },
                _ => match bbr.budget(now_ns) {
                    Ok(budget) => assert!(budget > 0),
                    Err(at_ns) => assert!(at_ns > now_ns),
                },
            }
            assert!(
                cwnd >= window.mss && cwnd <= WINDOW_MAX,
                "seed {seed}: {cwnd}"
            );
            assert!(bbr.rate() > 0 && bbr.paced_bytes(S) > 0);
        }
    }
}

/// The size of BBR's state beside the PCB.
#[test]
fn the_state_is_small() {
    let size = size_of::<Bbr>();
    assert!(size <= 512, "{size} bytes");
}
