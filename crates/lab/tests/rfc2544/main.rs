//! The tester: its arithmetic on a model with known limits, and live tests on
//! devices with known faults.

mod faulty;

use faulty::{Fault, Faulty};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_lab::load::{Rate, Search, Sent};
use weir_lab::rfc2544::{
    Baseline, CheckLevel, CheckResult, Cpus, Dut, Error, Layout, Program, Ready, Setup, SinkKind,
    Testbed, Tester, TrialResult, TrialSpec, back_to_back, gentle, latency, loss, percentile,
    throughput,
};
use weir_lab::testenv;

/// A device with a rate and a queue in frames, and a sender with a maximum
/// rate.
struct Model {
    rate: f64,
    queue: u64,
    sender: f64,
}

impl Model {
    fn trial(&self, ask: TrialSpec) -> TrialResult {
        let rate = match ask.rate {
            Rate::Flat => self.sender,
            Rate::PerSecond(rate) => rate.min(self.sender),
        };
        let elapsed = ask.frames as f64 / rate;
        let passed = (elapsed * self.rate) as u64 + self.queue;
        TrialResult {
            sent: Sent {
                frames: ask.frames,
                elapsed: Duration::from_secs_f64(elapsed),
                ..Sent::default()
            },
            checked: CheckResult {
                sent: ask.frames,
                good: passed.min(ask.frames),
                ..CheckResult::default()
            },
            times: (1..=1000).rev().collect(),
        }
    }
}

#[test]
fn the_throughput_of_a_known_device_is_found() {
    for limit in [1_500.0, 20_000.0, 777_777.0, 6e6] {
        let model = Model {
            rate: limit,
            queue: 0,
            sender: 8e6,
        };
        let found = throughput(&Search::QUICK, &mut |ask| Ok(model.trial(ask))).unwrap();
        let rate = found.rate.unwrap();
        assert!(
            rate <= limit * 1.001 && rate > limit / 1.021,
            "{rate} of {limit}"
        );
        assert!(!found.limited_by_sender);
        assert!(found.judged.lost() > 0);
    }
}

#[test]
fn what_limits_is_named() {
    let slow_sender = Model {
        rate: 1e6,
        queue: 0,
        sender: 5e5,
    };
    let found = throughput(&Search::QUICK, &mut |ask| Ok(slow_sender.trial(ask))).unwrap();
    assert!(found.limited_by_sender);
    assert!(
        (4.9e5..=5.001e5).contains(&found.rate.unwrap()),
        "{found:?}"
    );
    let dead = Model {
        rate: 0.0,
        queue: 0,
        sender: 5e5,
    };
    let found = throughput(&Search::QUICK, &mut |ask| Ok(dead.trial(ask))).unwrap();
    assert_eq!((found.rate, found.limited_by_sender), (None, false));
    // One lost frame in a thousand is noticed at any rate.
    let mut every_thousandth = |ask: TrialSpec| {
        let mut gave = slow_sender.trial(ask);
        gave.checked.good -= gave.checked.sent / 1000;
        Ok(gave)
    };
    let found = throughput(&Search::QUICK, &mut every_thousandth).unwrap();
    assert_eq!(found.rate, None);
}

#[test]
fn the_curve_of_loss_ends_after_two_trials_without() {
    let model = Model {
        rate: 1e6,
        queue: 0,
        sender: 2e6,
    };
    let time = Duration::from_secs(1);
    let points = loss(time, &mut |ask| Ok(model.trial(ask))).unwrap();
    let shares: Vec<_> = points.iter().map(|p| (p.share * 10.0).round()).collect();
    assert_eq!(shares, [10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0]);
    assert!((points[0].lost() - 0.5).abs() < 0.001, "{points:?}");
    assert!((points[4].lost() - 1.0 / 6.0).abs() < 0.001, "{points:?}");
    assert_eq!((points[5].lost(), points[6].lost()), (0.0, 0.0));
}

#[test]
fn the_longest_burst_of_a_known_device_is_found() {
    for queue in [1, 100, 5_000] {
        let model = Model {
            rate: 1e6,
            queue,
            sender: 2e6,
        };
        // Half of a burst is forwarded while it arrives.
        let real = (2 * queue) as f64;
        let longest = Duration::from_secs(2);
        let found = back_to_back(longest, 3, &mut |ask| Ok(model.trial(ask))).unwrap();
        assert!(
            (found.frames - real).abs() <= real * 0.02 + 2.0,
            "{found:?}, not {real}"
        );
        assert_eq!(found.frames_min, found.frames_max);
        assert!(!found.no_end);
        assert_eq!(found.rate, 2e6);
    }
    let model = Model {
        rate: 3e6,
        queue: 0,
        sender: 2e6,
    };
    let found = back_to_back(Duration::from_secs(2), 1, &mut |ask| Ok(model.trial(ask))).unwrap();
    assert!(found.no_end);
    assert_eq!(found.frames, 4e6);
}

#[test]
fn percentiles_are_of_the_nearest_rank() {
    let hundred: Vec<u64> = (1..=100).collect();
    for (share, value) in [
        (0.0, 1),
        (0.5, 50),
        (0.9, 90),
        (0.99, 99),
        (0.999, 100),
        (1.0, 100),
    ] {
        assert_eq!(percentile(&hundred, share), Some(value), "{share}");
    }
    assert_eq!(percentile(&[7], 0.999), Some(7));
    assert_eq!(percentile(&[1, 2], 0.5), Some(1));
    assert_eq!(percentile(&[], 0.5), None);
    let model = Model {
        rate: 1e6,
        queue: 0,
        sender: 1e6,
    };
    let found = latency(1e5, Duration::from_secs(1), &mut |ask| Ok(model.trial(ask)));
    let found = found.unwrap().unwrap();
    let nanos = [
        found.min, found.p50, found.p90, found.p99, found.p999, found.max,
    ];
    assert_eq!(
        nanos.map(|time| time.as_nanos()),
        [1, 500, 900, 990, 999, 1000]
    );
    let nothing = |ask: TrialSpec| {
        Ok(TrialResult {
            times: Vec::new(),
            ..model.trial(ask)
        })
    };
    let found = latency(1e5, Duration::from_secs(1), &mut { nothing });
    assert!(found.unwrap().is_none());
}

#[test]
fn peers_have_names() {
    for peer in Baseline::ALL {
        assert_eq!(peer.to_string().parse(), Ok(peer));
    }
    let error = "bridge".parse::<Baseline>().unwrap_err().to_string();
    assert!(
        error.contains("linux-bridge") && error.contains("`bridge`"),
        "{error}"
    );
}

fn setup(sink: SinkKind) -> Setup {
    Setup {
        sink,
        cpus: Cpus::first_two().unwrap(),
        both_ways: false,
        settle: Duration::from_secs(1),
        seed: 2544,
        destinations: 0,
    }
}

/// Live tests run one at a time: each sends with real-time priority on the
/// first CPU.
fn my_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A gentle trial with fewer frames.
const FEW: TrialSpec = TrialSpec {
    rate: Rate::PerSecond(50_000.0),
    frames: 3000,
};

#[test]
fn the_kernels_own_pass_every_frame_as_it_should_be() {
    if !testenv::root() {
        return;
    }
    let _turn = my_turn();
    for sink in [SinkKind::Xdp, SinkKind::Tc] {
        for peer in [
            Baseline::Cable,
            Baseline::LinuxBridge,
            Baseline::LinuxRouting,
            Baseline::XdpRedirect,
        ] {
            passes_all(peer, sink, 67, false);
            passes_all(peer, sink, 1518, true);
        }
    }
}

fn passes_all(peer: Baseline, sink: SinkKind, size: usize, both_ways: bool) {
    let what = format!("{peer} into {sink}, {size} bytes, both ways: {both_ways}");
    let setup = Setup {
        both_ways,
        ..setup(sink)
    };
    let bench = Testbed::new(peer.layout(), &setup).unwrap();
    let mut running = peer.start(&bench).unwrap();
    let mut tester = Tester::new(&bench, size, CheckLevel::Whole, 10_000).unwrap();
    let judged = tester.trial(FEW).unwrap().checked;
    let right = CheckResult {
        sent: 3000,
        good: 3000,
        other: judged.other,
        ..CheckResult::default()
    };
    assert_eq!(judged, right, "{what}");
    drop(tester);
    let mut tester = Tester::new(&bench, size, CheckLevel::Timed, 10_000).unwrap();
    let gave = tester.trial(FEW).unwrap();
    assert_eq!(gave.checked.good, 3000, "{what}");
    assert_eq!(gave.times.len(), 2700, "{what}");
    let mut times = gave.times;
    times.sort_unstable();
    let (least, median) = (times[0], times[times.len() / 2]);
    assert!(
        least > 50 && median < 1_000_000,
        "{what}: {least} {median} ns"
    );
    running.check().unwrap();
    running.stop().unwrap();
}

#[test]
fn frames_go_to_many_destinations_by_their_routes() {
    if !testenv::root() || !testenv::programs(&["ip"]) {
        return;
    }
    let _turn = my_turn();
    for (both_ways, sink) in [(false, SinkKind::Xdp), (true, SinkKind::Tc)] {
        let setup = Setup {
            both_ways,
            destinations: 700,
            ..setup(sink)
        };
        let bench = Testbed::new(Layout::Router, &setup).unwrap();
        let running = Baseline::LinuxRouting.start(&bench).unwrap();
        let mut tester = Tester::new(&bench, 64, CheckLevel::Whole, 10_000).unwrap();
        let judged = tester.trial(FEW).unwrap().checked;
        assert_eq!((judged.good, judged.corrupted), (3000, 0), "{judged:?}");
        drop(tester);
        // Without one of the routes, its packets are lost.
        let gone = if both_ways {
            "48.0.1.0/24"
        } else {
            "16.0.1.0/24"
        };
        let mut command = testenv::program("ip").expect("the test has asked for it");
        command.args(["route", "del", gone]);
        assert!(bench.dut().output(command).unwrap().status.success());
        let mut tester = Tester::new(&bench, 64, CheckLevel::Whole, 10_000).unwrap();
        let judged = tester.trial(FEW).unwrap().checked;
        // Each of 700 destinations gets 3 to 5 of 3000 frames, in one direction
        // 1 to 3.
        assert!((1..=5).contains(&judged.lost()), "{judged:?}");
        drop(tester);
        running.stop().unwrap();
    }
}

/// Losses depend on the machine; the forwarded frames must be correct.
#[test]
fn programs_pass_frames_as_they_should_be() {
    if !testenv::root() {
        return;
    }
    let _turn = my_turn();
    for peer in [Baseline::LibpcapBridge, Baseline::TunRelay] {
        let setup = Setup {
            both_ways: true,
            settle: Duration::from_millis(200),
            ..setup(SinkKind::Xdp)
        };
        let bench = Testbed::new(peer.layout(), &setup).unwrap();
        let mut running = match peer.start(&bench) {
            Err(error @ weir_lab::rfc2544::Error::Missing { .. }) => {
                testenv::skip(&error.to_string());
                continue;
            }
            started => started.unwrap(),
        };
        let mut tester = Tester::new(&bench, 300, CheckLevel::Whole, 10_000).unwrap();
        let gave = tester.trial_with(FEW, &mut |on| running.hurry(on)).unwrap();
        let CheckResult {
            good,
            duplicated,
            reordered,
            corrupted,
            ..
        } = gave.checked;
        assert!(good > 100, "{peer}: {:?}", gave.checked);
        assert_eq!([duplicated, reordered, corrupted], [0; 3], "{peer}");
        running.check().unwrap();
        drop(tester);
        running.stop().unwrap();
    }
}

#[test]
fn a_lossless_rate_is_found_for_the_bridge() {
    if !testenv::root() {
        return;
    }
    let _turn = my_turn();
    let bench = Testbed::new(Layout::Bridge, &setup(SinkKind::Xdp)).unwrap();
    let running = Baseline::LinuxBridge.start(&bench).unwrap();
    let mut tester = Tester::new(&bench, 64, CheckLevel::Quick, 1 << 20).unwrap();
    let search = Search {
        resolution: 0.5,
        attempts_max: 3,
        trial: Duration::from_millis(20),
        ..Search::QUICK
    };
    let found = throughput(&search, &mut |ask| tester.trial(ask)).unwrap();
    let rate = found.rate.expect("the kernel's bridge passes frames");
    assert!(rate > 10_000.0, "{found:?}");
    drop(tester);
    running.stop().unwrap();
}

#[test]
fn each_fault_is_reported_by_its_name() {
    if !testenv::root() {
        return;
    }
    let _turn = my_turn();
    let of = |judged: CheckResult| {
        let CheckResult {
            duplicated,
            reordered,
            corrupted,
            ..
        } = judged;
        [judged.lost(), duplicated, reordered, corrupted]
    };
    // A changed tag makes it a frame of another trial, a changed number
    // possibly another frame.
    for (fault, counts) in [
        (Fault::None, [0, 0, 0, 0]),
        (Fault::Drops, [3, 0, 0, 0]),
        (Fault::Duplicates, [0, 3, 0, 0]),
        (Fault::Reorders, [0, 0, 3, 0]),
        (Fault::Corrupts(58), [3, 0, 0, 0]),
        (Fault::Corrupts(42), [0, 0, 0, 3]),
        (Fault::Corrupts(30), [0, 0, 0, 3]),
        (Fault::Corrupts(999), [0, 0, 0, 3]),
        (Fault::Cuts, [0, 0, 0, 3]),
        (Fault::Pads, [0, 0, 0, 3]),
    ] {
        let bench = Testbed::new(Layout::Bridge, &setup(SinkKind::Tc)).unwrap();
        let running = Faulty(fault).start(&bench).unwrap();
        let mut tester = Tester::new(&bench, 1018, CheckLevel::Whole, 1 << 20).unwrap();
        let judged = tester.trial(FEW).unwrap().checked;
        let found = of(judged);
        assert_eq!(found, counts, "{fault:?}: {judged:?}");
        drop(tester);
        running.stop().unwrap();
    }
}

#[test]
fn a_program_is_started_checked_and_ended() {
    if !testenv::root() {
        return;
    }
    let _turn = my_turn();
    let program = |script: &str, ready| Program {
        name: script.to_owned(),
        words: ["sh", "-c", script].map(str::to_owned).to_vec(),
        layout: Layout::Bridge,
        ready,
        open_input: false,
    };
    let said = Ready::Said("ready", Duration::from_secs(5));
    let bench = Testbed::new(Layout::Bridge, &setup(SinkKind::Xdp)).unwrap();
    let clean = "trap 'exit 0' TERM; echo {a} {b} is ready >&2; while :; do sleep 0.02; done";
    let mut running = program(clean, said).start(&bench).unwrap();
    running.check().unwrap();
    running.stop().unwrap();

    let failure = |script, ready| {
        let started = program(script, ready).start(&bench);
        let error = started.and_then(|running| running.stop()).unwrap_err();
        assert!(matches!(error, Error::Dut { .. }), "{error}");
        error.to_string()
    };
    let died = failure("echo no such thing; exit 3", said);
    assert!(
        died.contains("exit status: 3") && died.contains("no such thing"),
        "{died}"
    );
    let mute = Ready::Said("ready", Duration::from_millis(50));
    let silent = failure("echo steady; sleep 100", mute);
    assert!(
        silent.contains("did not print `ready`") && silent.contains("steady"),
        "{silent}"
    );
    let unclean = failure(
        "trap 'exit 7' TERM; while :; do sleep 0.02; done",
        Ready::After(Duration::from_millis(50)),
    );
    assert!(unclean.contains("exit status: 7"), "{unclean}");
    let deaf = failure(
        "echo alive; exec sleep 100",
        Ready::After(Duration::from_millis(50)),
    );
    assert!(deaf.contains("SIGTERM") && deaf.contains("alive"), "{deaf}");
}

#[test]
fn a_device_that_takes_nothing_or_is_no_size_is_refused() {
    if !testenv::root() {
        return;
    }
    let _turn = my_turn();
    let bench = Testbed::new(Layout::Cable, &setup(SinkKind::Xdp)).unwrap();
    for size in [0, 63, 1519] {
        let error = Tester::new(&bench, size, CheckLevel::Quick, 10)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&size.to_string()) && error.contains("64 to 1518"),
            "{error}"
        );
    }
    let bench = Testbed::new(Layout::Bridge, &setup(SinkKind::Xdp)).unwrap();
    let mut tester = Tester::new(&bench, 64, CheckLevel::Whole, 1 << 20).unwrap();
    let judged = gentle(&mut |ask| tester.trial(ask)).unwrap();
    assert_eq!((judged.good, judged.lost()), (0, judged.sent));
}
