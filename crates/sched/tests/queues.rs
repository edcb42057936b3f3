//! RED, CoDel and FQ-CoDel against what their papers and RFCs say.

mod support;

use std::collections::VecDeque;
use support::Packet;
use weir_lab::seeds::seeds;
use weir_sched::{
    CoDelConfig, Config, Discipline, FqCodelConfig, Limit, Next, Order, RedConfig, Scheduler,
};
use weir_wire::rng::SplitMix64;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A link so fast that only queues decide.
fn fast(discipline: Discipline, seed: u64) -> Scheduler<Packet> {
    let mut config = Config::new(125_000_000_000, Order::Priority);
    config.class(1, discipline);
    Scheduler::new(&config, seed).unwrap()
}

fn random_below(rng: &mut SplitMix64, end: u64) -> u64 {
    rng.bits() % end
}

/// With a constant queue the distance between drops is uniform on 1 to 1/p_b, so that
/// 2 p_b / (1 + p_b) of the frames are dropped (Floyd and Jacobson 1993, §7).
#[test]
fn red_drops_by_the_curve_of_the_paper() {
    let config = RedConfig {
        limit: Limit {
            frames: 1_000_000,
            bytes: 1_000_000_000,
        },
        min: 20_000,
        max: 100_000,
        probability: 0.1,
        weight: 1.0,
        is_ecn: false,
    };
    let mut drops = Vec::new();
    for average in (24_000..100_000).step_by(4_000) {
        let mut link = fast(Discipline::Red(config), average);
        let mut dropped = Vec::new();
        // Fill to the wanted size, then keep it: one in, one out.
        let mut number = 0;
        while link.counts(0).waiting_bytes < average {
            link.enqueue(1, 0, 0, Packet::new(0, 0, number, 1_000, 1), &mut dropped);
            number += 1;
        }
        let frames = 400_000;
        dropped.clear();
        for _ in 0..frames {
            if link.enqueue(1, 0, 0, Packet::new(0, 0, number, 1_000, 1), &mut dropped) {
                // At another time, so that the rate does not hold it back.
                assert!(matches!(
                    link.dequeue(number * SECOND, &mut Vec::new()),
                    Next::Frame(_)
                ));
            }
            number += 1;
        }
        let base = 0.1 * (average - 20_000) as f64 / 80_000.0;
        // The distance is a whole number: 1 to n, the last one with what is left.
        let expected = 2.0 * base / (1.0 + base);
        let found = dropped.len() as f64 / f64::from(frames);
        drops.push((average, expected, found));
    }
    for (average, expected, found) in drops {
        let error = (found - expected).abs() / expected;
        assert!(
            error < 0.02,
            "at {average} bytes {found}, by the paper {expected}"
        );
    }
}

#[test]
fn red_marks_below_the_upper_threshold_and_drops_above() {
    let config = RedConfig {
        min: 5_000,
        max: 50_000,
        probability: 1.0,
        weight: 1.0,
        ..RedConfig::default()
    };
    let mut link = fast(Discipline::Red(config), 1);
    let mut dropped = Vec::new();
    for number in 0..200 {
        let mut packet = Packet::new(0, 0, number, 1_000, 1);
        packet.is_ecn = true;
        link.enqueue(1, 0, 0, packet, &mut dropped);
    }
    let counts = link.counts(0);
    assert_eq!(counts.waiting, 50, "{counts:?}");
    assert!(counts.marked > 20, "{counts:?}");
    assert_eq!(counts.dropped, 150, "{counts:?}");
    assert_eq!(dropped.len(), 150);
    assert!(dropped.iter().all(|packet| !packet.is_marked));
}

#[test]
fn an_idle_red_queue_forgets() {
    let config = RedConfig {
        min: 5_000,
        max: 10_000,
        weight: 0.1,
        ..RedConfig::default()
    };
    let mut config_of_link = Config::new(1_000_000, Order::Priority);
    config_of_link.class(1, Discipline::Red(config));
    let mut link = Scheduler::new(&config_of_link, 1).unwrap();
    let mut dropped = Vec::new();
    for number in 0..100 {
        link.enqueue(0, 0, 0, Packet::new(0, 0, number, 1_000, 0), &mut dropped);
    }
    assert!(!dropped.is_empty());
    let mut now = 0;
    while link.waiting() > 0 {
        now += MS;
        link.dequeue(now, &mut dropped);
    }
    dropped.clear();
    now += SECOND;
    for number in 0..5 {
        assert!(link.enqueue(
            now,
            0,
            0,
            Packet::new(0, 0, number, 1_000, now),
            &mut dropped
        ));
    }
}

/// RFC 8289 §5, written down as plainly as it stands there.
struct Reference {
    queue: VecDeque<Packet>,
    target: u64,
    interval: u64,
    first_above_time: u64,
    drop_next: u64,
    count: u64,
    lastcount: u64,
    dropping: bool,
    drops: Vec<u64>,
}

impl Reference {
    fn bytes(&self) -> u64 {
        self.queue.iter().map(|packet| u64::from(packet.len)).sum()
    }

    fn control_law(&self, t: u64, count: u64) -> u64 {
        t + (self.interval as f64 / (count as f64).sqrt()) as u64
    }

    fn dodequeue(&mut self, now: u64) -> (Option<Packet>, bool) {
        let mut ok_to_drop = false;
        let p = self.queue.pop_front();
        match &p {
            None => self.first_above_time = 0,
            Some(p) => {
                let sojourn_time = now - p.since;
                if sojourn_time < self.target || self.bytes() <= 1_514 {
                    self.first_above_time = 0;
                } else if self.first_above_time == 0 {
                    self.first_above_time = now + self.interval;
                } else if now >= self.first_above_time {
                    ok_to_drop = true;
                }
            }
        }
        (p, ok_to_drop)
    }

    fn drop(&mut self, p: Option<Packet>) {
        self.drops.extend(p.map(|p| p.number));
    }

    fn deque(&mut self, now: u64) -> Option<Packet> {
        let (mut p, mut ok_to_drop) = self.dodequeue(now);
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while now >= self.drop_next && self.dropping {
                self.drop(p);
                self.count += 1;
                (p, ok_to_drop) = self.dodequeue(now);
                if ok_to_drop {
                    self.drop_next = self.control_law(self.drop_next, self.count);
                } else {
                    self.dropping = false;
                }
            }
        } else if ok_to_drop {
            self.drop(p);
            (p, _) = self.dodequeue(now);
            self.dropping = true;
            let delta = self.count - self.lastcount;
            self.count = 1;
            if delta > 1 && now - self.drop_next < 16 * self.interval {
                self.count = delta;
            }
            self.drop_next = self.control_law(now, self.count);
            self.lastcount = self.count;
        }
        p
    }
}

#[test]
fn codel_equals_the_rfc() {
    let mut drops = 0;
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut rng = SplitMix64::new(seed);
        let (target, interval) = (5 * MS, 100 * MS);
        let config = CoDelConfig {
            limit: Limit {
                frames: 100_000,
                bytes: u64::MAX,
            },
            target,
            interval,
            is_ecn: false,
        };
        let mut link = fast(Discipline::CoDel(config), seed);
        let mut reference = Reference::new(target, interval);
        let (mut now, mut dropped) = (SECOND, Vec::new());
        // Busy and quiet times, of some 300 ms each.
        let mut load = 1;
        for number in 0..20_000 {
            if number % 300 == 0 {
                load = random_below(&mut rng, 4);
            }
            now += MS / 2 + random_below(&mut rng, MS);
            for _ in 0..random_below(&mut rng, load + 1) {
                let len = 60 + random_below(&mut rng, 1_455) as u32;
                let packet = Packet::new(0, 0, number, len, now);
                link.enqueue(now, 0, 0, packet.clone(), &mut dropped);
                reference.queue.push_back(packet);
            }
            let found = match link.dequeue(now, &mut dropped) {
                Next::Frame(packet) => Some(packet),
                Next::At(at) => panic!("held until {at} at {now}"),
                Next::Empty => None,
            };
            assert_eq!(found, reference.deque(now), "seed {seed}, frame {number}");
        }
        let found: Vec<u64> = dropped.iter().map(|packet| packet.number).collect();
        assert_eq!(found, reference.drops, "seed {seed}");
        drops += found.len();
    }
    assert!(
        drops > 1_000,
        "{drops} drops: the load is too small for a test"
    );
}

impl Reference {
    fn new(target: u64, interval: u64) -> Reference {
        Reference {
            queue: VecDeque::new(),
            target,
            interval,
            first_above_time: 0,
            drop_next: 0,
            count: 0,
            lastcount: 0,
            dropping: false,
            drops: Vec::new(),
        }
    }
}

/// RFC 8290 §4, written down as plainly as it stands there; a flow is the queue of its number.
struct FqReference {
    queues: Vec<Reference>,
    credits: Vec<i64>,
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    quantum: i64,
    limit: usize,
    drops: Vec<u64>,
}

impl FqReference {
    /// §4.1: classified, added to its queue, which is new if it is in neither list; from the longest
    /// queue, if all are too long, half of the packets are dropped, up to 64.
    fn enqueue(&mut self, packet: Packet) {
        let queue = packet.flow as usize;
        self.queues[queue].queue.push_back(packet);
        if !self.new.contains(&queue) && !self.old.contains(&queue) {
            self.new.push_back(queue);
            self.credits[queue] = self.quantum;
        }
        let total: usize = self.queues.iter().map(|it| it.queue.len()).sum();
        if total > self.limit {
            let longest = self.queues.iter_mut().max_by_key(|it| it.bytes()).unwrap();
            let half = longest.queue.len().div_ceil(2).min(64);
            let gone = longest.queue.drain(..half);
            self.drops.extend(gone.map(|packet| packet.number));
        }
    }

    /// §4.2: the first new queue, or else the first old one; one without credit gets a quantum and
    /// becomes the last old one; one that is empty becomes that if it was new, and is removed otherwise.
    fn dequeue(&mut self, now: u64) -> Option<Packet> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let queue = *list.front()?;
            if self.credits[queue] <= 0 {
                self.credits[queue] += self.quantum;
                list.pop_front();
                self.old.push_back(queue);
                continue;
            }
            let packet = self.queues[queue].deque(now);
            self.drops.append(&mut self.queues[queue].drops);
            if let Some(packet) = packet {
                self.credits[queue] -= i64::from(packet.len);
                return Some(packet);
            }
            list.pop_front();
            if is_new {
                self.old.push_back(queue);
            }
        }
    }
}

#[test]
fn fq_codel_equals_the_rfc() {
    const FLOWS: u64 = 8;
    let (mut by_codel, mut by_limit) = (0, 0);
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut rng = SplitMix64::new(seed);
        let mut fq = FqCodelConfig {
            // A number of queues with which no two flows share one.
            flows: 65_536,
            quantum: 300 + random_below(&mut rng, 1_500) as u32,
            ..FqCodelConfig::default()
        };
        let limit = 100 + random_below(&mut rng, 1_000) as u32;
        fq.codel.limit.frames = limit;
        fq.codel.limit.bytes = u64::MAX;
        fq.codel.is_ecn = false;
        let reference = || Reference::new(fq.codel.target, fq.codel.interval);
        let mut reference = FqReference {
            queues: (0..FLOWS).map(|_| reference()).collect(),
            credits: vec![0; FLOWS as usize],
            new: VecDeque::new(),
            old: VecDeque::new(),
            quantum: fq.quantum.into(),
            limit: limit as usize,
            drops: Vec::new(),
        };
        let mut link = fast(Discipline::FqCodel(fq), seed);
        let (mut now, mut dropped) = (SECOND, Vec::new());
        // Busy and quiet times of some 300 ms each, with as many flows as the time has.
        let (mut load, mut flows) = (1, 1);
        for number in 0..10_000_u64 {
            if number % 300 == 0 {
                load = random_below(&mut rng, 4);
                flows = 1 + random_below(&mut rng, FLOWS);
            }
            now += MS / 2 + random_below(&mut rng, MS);
            for each in 0..random_below(&mut rng, load + 1) {
                // The first flow sends most of them.
                let flow = random_below(&mut rng, flows) * random_below(&mut rng, 2);
                let len = 60 + random_below(&mut rng, 1_455) as u32;
                let packet = Packet::new(0, flow, number * 4 + each, len, now);
                let before = dropped.len();
                link.enqueue(now, 0, flow, packet.clone(), &mut dropped);
                by_limit += dropped.len() - before;
                reference.enqueue(packet);
            }
            let before = dropped.len();
            let found = match link.dequeue(now, &mut dropped) {
                Next::Frame(packet) => Some(packet),
                Next::At(at) => panic!("held until {at} at {now}"),
                Next::Empty => None,
            };
            by_codel += dropped.len() - before;
            assert_eq!(found, reference.dequeue(now), "seed {seed}, step {number}");
            // A link that has sent the last one asks for more.
            if reference.queues.iter().all(|it| it.queue.is_empty()) {
                assert_eq!(reference.dequeue(now), None);
            }
            let drops: Vec<u64> = dropped.drain(..).map(|packet| packet.number).collect();
            let expected = std::mem::take(&mut reference.drops);
            assert_eq!(drops, expected, "seed {seed}, step {number}");
        }
    }
    assert!(by_codel > 500 && by_limit > 500, "{by_codel}, {by_limit}");
}

/// A long flow and one that sends a frame now and then: the latter never waits for
/// the former's queue (RFC 8290 §1.3).
#[test]
fn a_sparse_flow_passes_a_standing_queue() {
    let mut config = Config::new(1_250_000, Order::Drr);
    // The link is asked once a ms.
    config.burst = 2_500;
    config.class(1, Discipline::FqCodel(FqCodelConfig::default()));
    let mut link = Scheduler::new(&config, 3).unwrap();
    let (mut now, mut worst, mut dropped) = (0, 0, Vec::new());
    for number in 0..50_000_u64 {
        // 1.2 times the rate, and a frame of the sparse flow every 50 ms.
        link.enqueue(
            now,
            0,
            1,
            Packet::new(0, 1, number, 1_500, now),
            &mut dropped,
        );
        if number % 50 == 0 {
            link.enqueue(now, 0, 2, Packet::new(0, 2, number, 100, now), &mut dropped);
        }
        now += MS;
        while let Next::Frame(packet) = link.dequeue(now, &mut dropped) {
            if packet.flow == 2 {
                worst = worst.max(now - packet.since);
            }
        }
    }
    assert!(dropped.iter().all(|packet| packet.flow == 1));
    assert!(!dropped.is_empty());
    assert!(worst <= 3 * MS, "{} us", worst / 1_000);
}

#[test]
fn a_full_fq_codel_drops_from_the_longest_flow() {
    let mut fq = FqCodelConfig::default();
    fq.codel.limit.frames = 1_000;
    let mut link = fast(Discipline::FqCodel(fq), 1);
    let mut dropped = Vec::new();
    for number in 0..10_000 {
        let flow = if number % 100 == 0 { 2 } else { 1 };
        link.enqueue(
            1,
            0,
            flow,
            Packet::new(0, flow, number, 100, 1),
            &mut dropped,
        );
        assert!(link.waiting() <= 1_000);
    }
    assert!(dropped.len() >= 9_000);
    assert!(dropped.iter().all(|packet| packet.flow == 1));
}
