//! What cached verdicts cost the application, and others' keys: however many
//! there are, and whatever was lost on the way.

use crate::flow_cache::{flows, net};
use crate::net::Net;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_lab::load::{Rate, Sink};
use weir_lab::testenv;
use weir_link::bpf::Hook;
use weir_tap::{
    BridgeFlowKind, Bypass, Config, Context, FlowAction, FlowCache, FlowCacheConfig, FlowKey,
    FlowKind, Frame, InsertOutcome, Pull, Tap, Verdict,
};

const LONG: Duration = Duration::from_secs(60);

fn flow(number: u32) -> FlowKey {
    let [_, _, a, b] = number.to_be_bytes();
    FlowKey::FiveTuple {
        link: 0,
        protocol: 17,
        src: (Ipv4Addr::new(10, 9, a, b).into(), 7),
        dst: (Ipv4Addr::new(10, 9, 0, 2).into(), 9),
    }
}

/// A tap of both links that remembers flows from the first to the second.
fn tap(entries_max: u32) -> Tap {
    let config = Config {
        bypass: Bypass::Drop,
        hang_max: None,
        flow_cache: Some(FlowCacheConfig {
            kinds: &[FlowKind::FiveTuple],
            entries_max,
        }),
        ..Config::default()
    };
    let mut tap = Tap::between(config, "left", "right").unwrap();
    tap.restore();
    tap.ready().unwrap();
    tap
}

fn remember(tap: &mut Tap, number: u32) {
    let action = FlowAction::Forward { link: 1 };
    let remembered = tap.flow_cache().unwrap().insert(flow(number), action, LONG);
    assert!(
        matches!(remembered, InsertOutcome::Yes(_)),
        "{remembered:?}"
    );
}

/// What this thread has used of a processor.
fn used() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How long this thread could have run, but another did.
fn kept_waiting() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let ns = told.split_whitespace().nth(1).unwrap();
    Duration::from_nanos(ns.parse().unwrap())
}

/// A sender of random keys makes no turn long: none of 60,000 ever has a
/// second frame, or ages.
#[test]
fn a_turn_is_short_however_many_keys_wait() {
    if !testenv::root() {
        return;
    }
    let net = net();
    net.middle.run(|| {
        let mut tap = tap(1 << 16);
        for number in 0..60_000 {
            remember(&mut tap, number);
        }
        let (mut longest, end) = (Duration::ZERO, Instant::now() + Duration::from_millis(400));
        while Instant::now() < end {
            let before = used();
            tap.pull(Pull::Frame(Duration::ZERO)).unwrap();
            longest = longest.max(used() - before);
        }
        assert!(longest < Duration::from_millis(5), "{longest:?}");
        let before = used();
        tap.flow_cache().unwrap().forget(&flow(3)).unwrap();
        let forgetting = used() - before;
        assert!(forgetting < Duration::from_millis(1), "{forgetting:?}");
        tap.unmap().unwrap();
    });
}

/// Frames that a full ring has dropped keep no later key from taking effect.
#[test]
fn keys_begin_at_once_after_frames_were_lost() {
    if !testenv::root() {
        return;
    }
    const SENT: u64 = 12_000;
    let net = net();
    let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&seen);
    let waited = Arc::new(AtomicU64::new(0));
    let bridge_waited = Arc::clone(&waited);
    let bridge = net.bridge(
        |bridge| {
            let bridge = bridge.cache_verdicts(&[BridgeFlowKind::FiveTuple], 128, LONG);
            bridge.configure(|config| config.ring = 64)
        },
        move || {
            move |_: &mut Frame, _: &mut Context<'_>| {
                let so_far = kept_waiting().as_micros() as u64;
                bridge_waited.store(so_far, Ordering::Relaxed);
                match counted.fetch_add(1, Ordering::Relaxed) {
                    // More frames come than the ring takes.
                    50 => std::thread::sleep(Duration::from_millis(150)),
                    300.. => return Verdict::ForwardAndCache(BridgeFlowKind::FiveTuple),
                    _ => {}
                }
                Verdict::Forward
            }
        },
    );
    // Each of the flows comes rarely: without a pause none is to be held back.
    let before = kept_waiting();
    let sent = flows(&net, 128)
        .send(SENT, Rate::PerSecond(10_000.0))
        .unwrap();
    net.settle(|| sink.counted().unwrap().frames >= SENT - sent.dropped);
    let waited = Duration::from_micros(waited.load(Ordering::Relaxed))
        + kept_waiting().saturating_sub(before);
    let report = bridge.end();
    assert!(report.lost() > 100, "the ring was full: {report:?}");
    // Frames that arrive while a thread of ours waits are handled at once after.
    let held = report.fast.held_back_frames;
    let of_pauses = waited.as_micros() as u64 * 10_000 / 1_000_000;
    println!("{held} held, {waited:?} of pauses");
    assert!(held <= of_pauses, "{waited:?}: {report:?}");
    // Three frames of a flow or so, until it has begun.
    let at_least = (SENT - sent.dropped - report.lost() - held - 300) / 2;
    assert!(report.fast.traffic.frames > at_least, "{report:?}");
}

/// A driver that ceases to take redirected frames is noticed at once.
#[test]
fn entries_end_when_a_driver_takes_no_more() {
    if !testenv::root() {
        return;
    }
    let net = Net::new();
    net.middle.run(|| {
        let mut sink = Some(Sink::new(&net.eth_b, Hook::XdpNative).unwrap());
        let mut tap = tap(64);
        let mut until = |what: &str, is_so: &mut dyn FnMut(&mut FlowCache) -> bool| {
            // By turns of a millisecond: a pause of the machine is one of them.
            let mut turns = 0;
            while !is_so(tap.flow_cache().unwrap()) {
                turns += 1;
                assert!(turns < 300, "{what}: {turns} turns");
                tap.pull(Pull::Frame(Duration::from_millis(1))).unwrap();
            }
        };
        for number in 0..4 {
            until("it takes frames", &mut |fast| fast.takes(1));
            let action = FlowAction::Forward { link: 1 };
            until("it is remembered", &mut |fast| {
                matches!(
                    fast.insert(flow(number), action, LONG),
                    InsertOutcome::Yes(_)
                )
            });
            // Only with a program there does a veth take redirected frames.
            drop(sink.take());
            until("it has ended", &mut |fast| {
                fast.entry(&flow(number)).is_none()
            });
            sink = Some(Sink::new(&net.eth_b, Hook::XdpNative).unwrap());
        }
        tap.unmap().unwrap();
    });
}
