//! The in-memory link: repeatable, with the configured impairments.

use weir_lab::rng::Rng;
use weir_link::mem::{
    Counters, DropReason, End, Impairments, InvalidImpairments, MemLink, Received,
};

const MS: u64 = 1_000_000;

fn one_way(a_to_b: Impairments, seed: u64) -> MemLink {
    MemLink::new(a_to_b, Impairments::default(), seed).unwrap()
}

/// Sends `count` numbered frames, one a microsecond; returns each result and
/// the frames received.
fn run(
    impairments: Impairments,
    seed: u64,
    count: u64,
) -> (Vec<Result<(), DropReason>>, Vec<Received>, Counters) {
    let mut link = one_way(impairments, seed);
    let mut told = Vec::new();
    let mut came = Vec::new();
    for number in 0..count {
        let now_ns = number * 1000;
        told.push(link.send(End::A, now_ns, &frame(number)));
        came.extend(std::iter::from_fn(|| link.receive(End::B, now_ns)));
    }
    came.extend(std::iter::from_fn(|| link.receive(End::B, u64::MAX)));
    let counters = link.counters(End::A);
    check_sums(&counters, came.len());
    (told, came, counters)
}

fn frame(number: u64) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn number(frame: &Received) -> u64 {
    u64::from_be_bytes(frame.bytes[..8].try_into().unwrap())
}

/// Checks that every frame sent is accounted for.
fn check_sums(counters: &Counters, came: usize) {
    let dropped = counters.too_long + counters.queue_full + counters.held_full + counters.lost;
    assert_eq!(counters.sent, counters.carried + dropped);
    assert_eq!(counters.received, came as u64);
    assert_eq!(counters.carried + counters.duplicated, counters.received);
}

#[test]
fn a_perfect_link_carries_all_at_once_both_ways() {
    let mut link = MemLink::perfect();
    assert_eq!(link.next_arrival_ns(End::B), None);
    link.send(End::A, 5, b"ping").unwrap();
    link.send(End::A, 5, b"").unwrap();
    link.send(End::B, 6, b"pong").unwrap();
    assert_eq!(link.next_arrival_ns(End::B), Some(5));
    assert_eq!(link.receive(End::B, 4), None);
    let ping = Received {
        bytes: b"ping".to_vec(),
        sent_ns: 5,
        arrived_ns: 5,
    };
    assert_eq!(link.receive(End::B, 5), Some(ping));
    assert_eq!(link.receive(End::B, 5).unwrap().bytes, b"");
    assert_eq!(link.receive(End::B, 9), None);
    assert_eq!(link.receive(End::A, 6).unwrap().bytes, b"pong");
    check_sums(&link.counters(End::A), 2);
    check_sums(&link.counters(End::B), 1);
}

#[test]
fn the_same_seed_gives_the_same_link() {
    let all = Impairments {
        loss_ppm: 100_000,
        duplicate_ppm: 50_000,
        corrupt_ppm: 50_000,
        delay_ns: MS,
        jitter_ns: MS,
        rate_bits_per_s: Some(600_000_000),
        queue_frames_max: 3,
        ..Impairments::default()
    };
    let once = run(all, 42, 5000);
    assert_eq!(once, run(all, 42, 5000));
    assert_ne!(once, run(all, 43, 5000));
}

#[test]
fn chances_are_kept_and_do_not_disturb_one_another() {
    let count = 30_000;
    let within = |seen: u64, ppm: u64| {
        let expected = count * ppm / 1_000_000;
        // Five standard deviations of a binomial, rounded up.
        let slack = 5 * expected.isqrt() + 1;
        assert!(
            seen.abs_diff(expected) <= slack,
            "{seen} of {count}, expected {expected}"
        );
    };
    for ppm in [0, 1_000, 50_000, 500_000, 1_000_000] {
        let losing = Impairments {
            loss_ppm: ppm as u32,
            ..Impairments::default()
        };
        let (told, _, counters) = run(losing, 7, count);
        within(counters.lost, ppm);
        let doubling = Impairments {
            duplicate_ppm: ppm as u32,
            ..losing
        };
        let (with_doubles, _, counters) = run(doubling, 7, count);
        assert_eq!(told, with_doubles, "the same frames are lost");
        if ppm < 1_000_000 {
            within(counters.duplicated * 1_000_000 / (1_000_000 - ppm), ppm);
        }
        let corrupting = Impairments {
            corrupt_ppm: ppm as u32,
            ..Impairments::default()
        };
        let (_, came, counters) = run(corrupting, 7, count);
        within(counters.corrupted, ppm);
        let changed = came.iter().zip(0..).filter(|(came, sent)| {
            let bits = came
                .bytes
                .iter()
                .zip(frame(*sent))
                .map(|(a, b)| (a ^ b).count_ones());
            let flipped: u32 = bits.sum();
            assert!(flipped <= 1);
            flipped == 1
        });
        assert_eq!(changed.count() as u64, counters.corrupted);
    }
}

#[test]
fn losses_do_not_cluster() {
    let losing = Impairments {
        loss_ppm: 500_000,
        ..Impairments::default()
    };
    let (told, ..) = run(losing, 3, 100_000);
    // With independent losses of one half, a quarter of the frames are second
    // losses in a row.
    let pairs = told
        .windows(2)
        .filter(|pair| pair.iter().all(Result::is_err))
        .count();
    assert!((24_000..26_000).contains(&pairs), "{pairs}");
}

#[test]
fn delay_and_jitter_are_kept_and_jitter_reorders() {
    let jittery = Impairments {
        delay_ns: 3 * MS,
        jitter_ns: MS,
        ..Impairments::default()
    };
    let (_, came, _) = run(jittery, 1, 20_000);
    let delays: Vec<u64> = came
        .iter()
        .map(|came| came.arrived_ns - came.sent_ns)
        .collect();
    assert!(delays.iter().all(|delay| (3 * MS..=4 * MS).contains(delay)));
    let mean = delays.iter().sum::<u64>() / delays.len() as u64;
    assert!(mean.abs_diff(3 * MS + MS / 2) < MS / 50, "{mean}");
    assert!(came.is_sorted_by_key(|came| came.arrived_ns));
    assert!(!came.is_sorted_by_key(number), "some overtake");

    let ordered = Impairments {
        keep_order: true,
        ..jittery
    };
    let (_, came, _) = run(ordered, 1, 20_000);
    assert!(came.is_sorted_by_key(number));
    assert!(
        came.iter()
            .all(|came| came.arrived_ns - came.sent_ns >= 3 * MS)
    );
}

#[test]
fn frames_that_arrive_together_keep_their_order() {
    let (_, came, _) = run(
        Impairments {
            delay_ns: MS,
            ..Impairments::default()
        },
        1,
        1000,
    );
    assert!(came.is_sorted_by_key(number));
}

#[test]
fn the_line_takes_its_time_and_its_queue_is_bounded() {
    let slow = Impairments {
        // 64 bytes in 5.12 µs.
        rate_bits_per_s: Some(100_000_000),
        queue_frames_max: 4,
        delay_ns: 7,
        ..Impairments::default()
    };
    let mut link = one_way(slow, 0);
    let told: Vec<_> = (0..8).map(|n| link.send(End::A, 100, &frame(n))).collect();
    // One frame on the line, four queued, the rest dropped.
    assert!(told[..5].iter().all(Result::is_ok));
    assert!(
        told[5..]
            .iter()
            .all(|told| *told == Err(DropReason::QueueFull))
    );
    let arrivals: Vec<u64> = std::iter::from_fn(|| link.receive(End::B, u64::MAX))
        .map(|came| came.arrived_ns)
        .collect();
    assert_eq!(arrivals, [1, 2, 3, 4, 5].map(|n| 100 + n * 5120 + 7));
    // When the line takes a frame, another can be queued.
    link.send(End::A, 100 + 5119, &frame(9)).unwrap_err();
    link.send(End::A, 100 + 5120, &frame(9)).unwrap();
    assert_eq!(link.counters(End::A).queue_full, 4);
    // After a pause the line is free.
    link.send(End::A, MS, &frame(10)).unwrap();
    let last = std::iter::from_fn(|| link.receive(End::B, u64::MAX))
        .last()
        .unwrap();
    assert_eq!(last.arrived_ns, MS + 5120 + 7);

    let (_, came, counters) = run(slow, 1, 50_000);
    let spent_ns = came.last().unwrap().arrived_ns - came[0].arrived_ns;
    assert_eq!(
        spent_ns,
        (came.len() as u64 - 1) * 5120,
        "the line never rests"
    );
    assert!(counters.queue_full > 39_000);
}

#[test]
fn too_long_and_too_many_are_dropped_with_their_reason() {
    let small = Impairments {
        frame_len_max: 100,
        held_frames_max: 3,
        held_bytes_max: 250,
        ..Impairments::default()
    };
    let mut link = one_way(small, 0);
    assert_eq!(link.send(End::A, 0, &[0; 101]), Err(DropReason::TooLong));
    link.send(End::A, 0, &[0; 100]).unwrap();
    link.send(End::A, 0, &[0; 100]).unwrap();
    assert_eq!(link.send(End::A, 0, &[0; 51]), Err(DropReason::HeldFull));
    link.send(End::A, 0, &[0; 50]).unwrap();
    assert_eq!(link.send(End::A, 0, &[]), Err(DropReason::HeldFull));
    link.receive(End::B, 0).unwrap();
    link.send(End::A, 0, &[0; 100]).unwrap();
    let counters = link.counters(End::A);
    assert_eq!(
        (counters.too_long, counters.held_full, counters.carried),
        (1, 2, 4)
    );
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let good = Impairments::default();
    for (bad, expected) in [
        (
            Impairments {
                loss_ppm: 1_000_001,
                ..good
            },
            InvalidImpairments::Chance(1_000_001),
        ),
        (
            Impairments {
                corrupt_ppm: u32::MAX,
                ..good
            },
            InvalidImpairments::Chance(u32::MAX),
        ),
        (
            Impairments {
                rate_bits_per_s: Some(0),
                ..good
            },
            InvalidImpairments::Rate,
        ),
    ] {
        assert_eq!(MemLink::new(good, bad, 0).unwrap_err(), expected);
    }
}

#[test]
fn wild_settings_and_times_never_panic() {
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let mut wild = || match rng.below(4) {
            0 => 0,
            1 => u64::MAX,
            2 => rng.bits(),
            _ => rng.below(1000) as u64,
        };
        let impairments = Impairments {
            loss_ppm: (wild() % 1_000_001) as u32,
            duplicate_ppm: (wild() % 1_000_001) as u32,
            corrupt_ppm: (wild() % 1_000_001) as u32,
            delay_ns: wild(),
            jitter_ns: wild(),
            keep_order: wild() % 2 == 0,
            rate_bits_per_s: Some(wild().max(1)),
            queue_frames_max: wild() as usize,
            frame_len_max: wild() as usize,
            held_frames_max: wild() as usize,
            held_bytes_max: (wild() % 100_000) as usize,
        };
        let mut link = one_way(impairments, wild());
        let mut came = 0;
        for _ in 0..20 {
            let bytes = vec![0; (wild() % 2000) as usize];
            let _ = link.send(End::A, wild(), &bytes);
            came += usize::from(link.receive(End::B, wild()).is_some());
        }
        came += std::iter::from_fn(|| link.receive(End::B, u64::MAX)).count();
        check_sums(&link.counters(End::A), came);
    }
}
