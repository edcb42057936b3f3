//! Policies in the kernel: every frame against the plain rules, and rates against the clock.

use super::oracle::{Counts, Oracle, Owner};
use super::{HOOKS, assert_adds_up, frames, permitted, policed, run, services};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use weir_lab::rng::Rng;
use weir_link::bpf::{FRAME_BYTES_MIN, Hook, Program, TestRun};
use weir_link::xdp::{CutOwner, Meter};
use weir_meter::parse::Headers;
use weir_meter::policy::{self, Policy, PolicyAction, RateLimit};
use weir_meter::services::Services;
use weir_meter::{Direction, Key};
use weir_wire::LinkType;

/// No frame of more than a byte conforms.
const NOTHING: RateLimit = RateLimit {
    bits_per_second: 8_000,
    burst_bytes: 1,
};
/// Every frame conforms.
const ALL: RateLimit = RateLimit {
    bits_per_second: 400_000_000_000,
    burst_bytes: u32::MAX,
};

pub(crate) fn policy(rates: [Option<RateLimit>; 2], quota_bytes: Option<u64>) -> Policy {
    Policy {
        name: "test".to_owned(),
        rates,
        over: PolicyAction::Drop,
        quota_bytes,
        spent: PolicyAction::Drop,
        spent_request: None,
    }
}

/// Policies of rows, each of another kind.
fn policies(rng: &mut Rng) -> Vec<Option<Policy>> {
    let actions = [
        PolicyAction::Drop,
        PolicyAction::Mark(46),
        PolicyAction::Mark(rng.below(64) as u8),
        PolicyAction::Portal,
    ];
    let mut policies = vec![None];
    for rates in [
        [None, Some(NOTHING)],
        [Some(NOTHING), Some(ALL)],
        [Some(ALL); 2],
    ] {
        for quota in [None, Some(1), Some(20_000)] {
            policies.push(Some(Policy {
                over: *rng.choose(&actions),
                spent: *rng.choose(&actions),
                ..policy(rates, quota)
            }));
        }
    }
    policies.push(Some(policy([None; 2], Some(5_000))));
    policies
}

/// The outcome of a frame by its row's policy; takes its bytes from the quota.
fn decide(
    policy: &Policy,
    left: &mut i64,
    bytes: u64,
    direction: Direction,
) -> Option<PolicyAction> {
    if let Some(limit) = &policy.rates[direction as usize]
        && limit.cost_ns(bytes) > limit.tolerance_ns()
    {
        return Some(policy.over);
    }
    if policy.quota_bytes.is_some() {
        if *left <= 0 {
            return Some(policy.spent);
        }
        *left -= bytes as i64;
    }
    None
}

/// The frame with its code point.
fn marked(frame: &[u8], code_point: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let headers = Headers::parse(&frame, frame.len() as u32, LinkType::EN10MB);
    if headers.addresses.is_some() {
        let start = ip_start(&frame);
        policy::mark(&mut frame[start..], code_point);
    }
    frame
}

/// Where the IP packet starts in a frame that has one.
fn ip_start(frame: &[u8]) -> usize {
    let mut at = 12;
    loop {
        match u16::from_be_bytes([frame[at], frame[at + 1]]) {
            0x8100 | 0x88a8 => at += 4,
            0x8864 => return at + 10,
            _ => return at + 2,
        }
    }
}

fn equals_the_rules(services: &Services, counts_ip: bool, seed: u64) {
    if !permitted() {
        return;
    }
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut meter = Meter::create(&policed(services, counts_ip)).unwrap();
    let keys = frames::address_keys();
    let policies = policies(&mut rng);
    let mut rows: BTreeMap<u32, (&Policy, i64)> = BTreeMap::new();
    for (key, row) in &keys {
        meter.insert(*key, *row).unwrap();
        let policy = policies[*row as usize % policies.len()].as_ref();
        meter.set_policy(*row, policy, true).unwrap();
        if let Some(policy) = policy {
            let quota = policy.quota_bytes.unwrap_or(0).cast_signed();
            rows.insert(*row, (policy, quota));
        }
    }
    let oracle = Oracle::new(services, &keys, counts_ip);
    let directions = [Direction::Up, Direction::Down];
    let programs: Vec<(Direction, Hook, Program)> = directions
        .into_iter()
        .flat_map(|direction| HOOKS.map(|hook| (direction, hook)))
        .map(|(direction, hook)| {
            let program = meter.stage(direction).program(hook).unwrap();
            (direction, hook, program)
        })
        .collect();
    let mut output = vec![0; 4096];
    for _ in 0..6 {
        // Packets and bytes, and those of them that were policed.
        let mut expected: BTreeMap<(Owner, u16, u8), [u64; 4]> = BTreeMap::new();
        for _ in 0..400 {
            let frame = frames::frame(&mut rng);
            if frame.len() < FRAME_BYTES_MIN {
                continue;
            }
            let number = rng.below(programs.len());
            let (mut direction, mut hook, _) = programs[number];
            let ran = match programs[number]
                .2
                .test_run(&TestRun::new(&frame), &mut output)
            {
                Ok(ran) => ran,
                // The kernel refuses to make an skb of some cut packets.
                Err(_) => {
                    (direction, hook) = (programs[number - 1].0, programs[number - 1].1);
                    let program = &programs[number - 1].2;
                    program
                        .test_run(&TestRun::new(&frame), &mut output)
                        .unwrap()
                }
            };
            let mut one = Counts::new();
            oracle.count(&mut one, &frame, direction);
            let ((owner, class, _), (packets, bytes)) = one.pop_first().unwrap();
            let action = match owner {
                Owner::Row(row) => rows
                    .get_mut(&row)
                    .and_then(|(policy, left)| decide(policy, left, bytes, direction)),
                Owner::Unknown(_) | Owner::Overflow => None,
            };
            let counts = expected
                .entry((owner, class, direction as u8))
                .or_insert([0; 4]);
            for (count, more) in counts.iter_mut().zip([packets, bytes].into_iter().cycle()) {
                *count += more;
            }
            if action.is_none() {
                counts[2] -= packets;
                counts[3] -= bytes;
            }
            let is_xdp = hook == Hook::XdpNative;
            // Without a portal its frames are dropped.
            let (returned, after) = match action {
                Some(PolicyAction::Drop | PolicyAction::Portal) => {
                    (if is_xdp { 1 } else { 2 }, frame.clone())
                }
                Some(PolicyAction::Mark(code_point)) => (
                    if is_xdp { 2 } else { u32::MAX },
                    marked(&frame, code_point),
                ),
                None => (if is_xdp { 2 } else { u32::MAX }, frame.clone()),
            };
            assert_eq!(ran.returned, returned, "{action:?} {hook:?} {frame:02x?}");
            assert_eq!(
                output[..ran.output_len],
                after,
                "{action:?} {hook:?} {frame:02x?}"
            );
        }
        let cut = meter.cut().unwrap();
        assert_adds_up(&cut);
        let mut found = BTreeMap::new();
        let mut policed = [[0; 2]; 2];
        for cell in cut.cells() {
            let owner = match cell.owner {
                CutOwner::Row(row) => Owner::Row(row),
                CutOwner::Unknown(key) => Owner::Unknown(key),
                CutOwner::Overflow => Owner::Overflow,
            };
            let counts = [cell.packets, cell.bytes, cell.policed[0], cell.policed[1]];
            found.insert((owner, cell.class, cell.direction as u8), counts);
            let sums = &mut policed[cell.direction as usize];
            *sums = [sums[0] + cell.policed[0], sums[1] + cell.policed[1]];
        }
        let totals = cut.policed();
        for (direction, policed) in policed.iter().enumerate() {
            let total = [totals.packets[direction], totals.bytes[direction]];
            assert_eq!(*policed, total);
        }
        meter.settle();
        assert_eq!(found, expected);
    }
    for (row, (policy, left)) in rows {
        let expected = policy.quota_bytes.map(|_| left);
        assert_eq!(meter.quota_left(row), expected, "row {row}");
    }
}

#[test]
fn every_frame_is_policed_by_the_rules() {
    equals_the_rules(&services(), false, 21);
}

#[test]
fn bytes_of_ip_packets_are_policed_by_the_rules() {
    equals_the_rules(&services(), true, 22);
}

/// Without services by filter most frames go the stage's short way.
#[test]
fn frames_that_go_the_short_way_are_policed_by_the_rules() {
    let mut services = services().list().to_vec();
    services.retain(|service| service.filter.is_none());
    let services = Services::new(services);
    equals_the_rules(&services, false, 23);
    equals_the_rules(&services, true, 24);
}

/// The address of the session that [`one_session`] has.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);

/// A meter with a session in row 0, and its program for frames that go up; `None` if not permitted.
fn one_session() -> Option<(Meter, Program)> {
    if !permitted() {
        return None;
    }
    let mut meter = Meter::create(&policed(&services(), false)).unwrap();
    meter.insert(Key::Ipv4(ADDRESS), 0).unwrap();
    let program = meter.stage(Direction::Up).program(Hook::XdpNative).unwrap();
    Some((meter, program))
}

#[test]
fn another_kind_of_policy_within_a_session_is_in_force_at_once() {
    let Some((meter, program)) = one_session() else {
        return;
    };
    let frame = packet(ADDRESS);
    let set = |policy: Option<Policy>, is_new| {
        meter.set_policy(0, policy.as_ref(), is_new).unwrap();
    };
    let returned =
        |times: usize| -> Vec<u32> { (0..times).map(|_| run(&program, &frame)).collect() };
    // A CPU has a lease of 64 KiB, from which no later frame may pass.
    let leased = policy([Some(ALL), None], None);
    set(Some(leased.clone()), true);
    assert_eq!(returned(2), [2, 2]);
    set(Some(policy([None; 2], Some(2_500))), false);
    assert_eq!(returned(4), [2, 2, 2, 1]);
    set(Some(leased.clone()), false);
    assert_eq!(returned(2), [2, 2]);
    set(Some(policy([Some(NOTHING), None], Some(9_000))), false);
    assert_eq!(returned(2), [1, 1]);
    // Without a policy, frames pass; then a session with one has no lease of the row's earlier ones.
    set(None, false);
    assert_eq!(returned(2), [2, 2]);
    set(Some(policy([Some(NOTHING), None], None)), true);
    assert_eq!(returned(2), [1, 1]);
    // The other direction has no rate.
    set(Some(policy([None, Some(NOTHING)], None)), false);
    assert_eq!(returned(2), [2, 2]);
}

#[test]
fn another_rate_within_a_session_is_in_force_at_once() {
    let Some((meter, program)) = one_session() else {
        return;
    };
    let frame = packet(ADDRESS);
    let set = |rates| meter.set_policy(0, Some(&policy(rates, None)), false);
    // A CPU has a lease of 64 KiB.
    set([Some(ALL); 2]).unwrap();
    assert_eq!(run(&program, &frame), 2);
    // The other direction's rate is not this one's.
    set([Some(ALL), Some(NOTHING)]).unwrap();
    assert_eq!(run(&program, &frame), 2);
    set([Some(NOTHING); 2]).unwrap();
    assert_eq!(run(&program, &frame), 1);
    // Nor has a lease outlived a policy without a rate.
    set([Some(ALL); 2]).unwrap();
    assert_eq!(run(&program, &frame), 2);
    set([None; 2]).unwrap();
    set([Some(NOTHING); 2]).unwrap();
    assert_eq!(run(&program, &frame), 1);
}

/// As at each Interim-Update: what was leased is charged, and is not lost.
#[test]
fn the_same_rate_again_leaves_what_is_leased() {
    let Some((meter, program)) = one_session() else {
        return;
    };
    // A byte is a millisecond, so that the burst is all there is.
    let limit = RateLimit {
        bits_per_second: 8_000,
        burst_bytes: 1 << 20,
    };
    let policy = policy([Some(limit), None], None);
    let (frame, frames) = (packet(ADDRESS), 2000);
    meter.set_policy(0, Some(&policy), true).unwrap();
    let passed = (0..frames).filter(|_| {
        meter.set_policy(0, Some(&policy), false).unwrap();
        run(&program, &frame) == 2
    });
    let passed = passed.count();
    // All but what CPUs have leased where the thread does not run any more: a sixteenth at most.
    let most = (1 << 20) / frame.len();
    assert!(passed >= most - most / 16 - 1, "{passed} of {most}");
    assert!(passed < frames, "{passed}");
}

/// A UDP packet of 1,000 bytes from this address.
fn packet(from: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0; 1000];
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 3, 218, 0, 0, 0, 0, 64, 17]);
    frame[26..30].copy_from_slice(&from.octets());
    frame[30..38].copy_from_slice(&[192, 0, 2, 1, 4, 0, 1, 187]);
    frame
}

#[test]
fn a_small_frame_passes_where_a_large_one_is_over() {
    let Some((meter, program)) = one_session() else {
        return;
    };
    let large = packet(ADDRESS);
    let mut small = large[..400].to_vec();
    small[16..18].copy_from_slice(&386_u16.to_be_bytes());
    // A byte is a millisecond.
    let limit = RateLimit {
        bits_per_second: 8_000,
        burst_bytes: 10_000,
    };
    let policy = policy([Some(limit), None], None);
    let in_time = (0..ATTEMPTS).any(|_| {
        let began = Instant::now();
        meter.set_policy(0, Some(&policy), true).unwrap();
        let first: Vec<u32> = (0..9).map(|_| run(&program, &large)).collect();
        // 1,000 bytes are left.
        let then = [&small, &large, &large, &small, &large, &small];
        let then = then.map(|frame| run(&program, frame));
        if began.elapsed() > Duration::from_millis(150) {
            return false;
        }
        assert_eq!(first, [2; 9]);
        assert_eq!(then, [2, 1, 1, 2, 1, 1]);
        true
    });
    assert!(in_time, "each attempt took longer than 0.15 s");
}

/// Bytes of row 0 that passed, in the period that ends now.
fn passed(meter: &mut Meter) -> f64 {
    let cut = meter.cut().unwrap();
    let cells = cut.cells().filter(|cell| cell.owner == CutOwner::Row(0));
    let passed: u64 = cells.map(|cell| cell.bytes - cell.policed[1]).sum();
    meter.settle();
    passed as f64
}

/// Floods until one passes what the rate gives: when the machine takes both CPUs away, the coarse clock
/// stands still, and what then flows over the bucket is gone.
const ATTEMPTS: usize = 8;

/// What a flood lasted.
struct Flood {
    /// From its first frame to its last one at most.
    most: Duration,
    /// A bucket that was empty once, and in the end, has had at least what the rate gives in so long.
    least: Duration,
}

/// Runs a program on frames as fast as it can for a while. A bucket is full when nothing has come for
/// `full_after`.
fn flood(program: &Program, frame: &[u8], lasts: Duration, full_after: Duration) -> Flood {
    let many = TestRun {
        repeat: 1000,
        ..TestRun::new(frame)
    };
    let run = |times: usize| {
        for _ in 0..times {
            program.test_run(&many, &mut []).unwrap();
        }
    };
    // More bytes than any burst here.
    const DRAIN: usize = 3;
    let began = Instant::now();
    run(DRAIN);
    let emptied = Instant::now();
    let (mut lost, mut last) = (Duration::ZERO, emptied);
    while began.elapsed() < lasts {
        run(1);
        // While the thread waited for a CPU, the bucket may have been full.
        let now = Instant::now();
        lost += (now - last).saturating_sub(full_after);
        last = now;
    }
    let drained = Instant::now();
    run(DRAIN);
    Flood {
        most: began.elapsed(),
        least: (drained - emptied).saturating_sub(lost),
    }
}

#[test]
fn what_passes_is_the_rate_and_the_burst() {
    let Some((mut meter, program)) = one_session() else {
        return;
    };
    let frame = packet(ADDRESS);
    for (bits_per_second, burst_bytes) in [
        (8_000_000, 100_000),
        (80_000_000, 100_000),
        (800_000_000, 100_000),
        (800_000_000, 10_000),
        (80_000_000, 2_000_000),
    ] {
        let limit = RateLimit {
            bits_per_second,
            burst_bytes,
        };
        let policy = policy([Some(limit), None], None);
        let full_after = Duration::from_nanos(limit.tolerance_ns());
        for threads in [1, 2] {
            let enough = (0..ATTEMPTS).any(|_| {
                meter.set_policy(0, Some(&policy), true).unwrap();
                let run = || flood(&program, &frame, Duration::from_millis(400), full_after);
                let began = Instant::now();
                let floods: Vec<Flood> = std::thread::scope(|scope| {
                    let each: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
                    each.into_iter().map(|it| it.join().unwrap()).collect()
                });
                let most = began.elapsed().max(floods[0].most).as_secs_f64();
                let least = floods[0].least.as_secs_f64();
                let passed = passed(&mut meter);
                let rate = bits_per_second as f64 / 8.0;
                let burst = f64::from(burst_bytes);
                println!(
                    "{limit:?}, {threads} threads: {passed} bytes in {least:.4} to {most:.4} s: \
                     {:.4} of rate and burst",
                    passed / (rate * least + burst)
                );
                assert!(passed <= rate * most + burst, "{limit:?}: {passed}");
                // A tick of the coarse clock, and what CPUs have leased.
                let slack = rate * 0.005 + burst / 8.0 + 2000.0;
                passed >= (rate * least + burst) * 0.99 - slack
            });
            assert!(
                enough,
                "{limit:?}: less than the rate and the burst each time"
            );
        }
    }
}

#[test]
fn a_quota_is_kept_by_the_session_and_not_by_the_next_one() {
    let Some((mut meter, program)) = one_session() else {
        return;
    };
    let frame = packet(ADDRESS);
    let quota = |bytes| policy([None; 2], Some(bytes));
    meter.set_policy(0, Some(&quota(2_500)), true).unwrap();
    let returned = |times: usize| {
        (0..times)
            .map(|_| run(&program, &frame))
            .collect::<Vec<_>>()
    };
    assert_eq!(returned(4), [2, 2, 2, 1]);
    assert_eq!(meter.quota_left(0), Some(-500));
    // As a process that takes over, with the same quota and with a larger one.
    meter.set_policy(0, Some(&quota(2_500)), false).unwrap();
    assert_eq!(returned(1), [1]);
    meter.set_policy(0, Some(&quota(4_500)), false).unwrap();
    assert_eq!(returned(3), [2, 2, 1]);
    meter.set_policy(0, Some(&quota(2_500)), true).unwrap();
    assert_eq!(returned(4), [2, 2, 2, 1]);
    meter.set_policy(0, None, true).unwrap();
    assert_eq!(returned(1), [2]);
    assert_eq!(meter.quota_left(0), None);
    assert_eq!(passed(&mut meter), 3.0 * 1000.0 + 2000.0 + 3000.0 + 1000.0);
}
