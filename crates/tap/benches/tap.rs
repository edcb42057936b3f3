//! What a frame costs that goes from one link to another: alone, on a tap that
//! is shared, and with a second process (here a thread) on it; and what the
//! lock costs by itself. Processor time of the forwarding thread, so that
//! other load falsifies little; the kernel's copies are in it.
//!
//! `cargo bench -p weir-tap` as root (half a minute).

#[path = "../tests/bridge/net.rs"]
#[allow(dead_code, reason = "the bridge's tests use the rest")]
mod net;

use net::Net;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use weir_lab::load::{Rate, Sink};
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_link::bpf::Hook;
use weir_ring::robust_lock::{AtomicWord, LockOwner, TryLock, try_lock, unlock};
use weir_tap::{Config, LinkId, Pull, Tap};

const FRAMES: u64 = 1_000_000;

struct Cell(AtomicU32);

impl AtomicWord for Cell {
    fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
    fn change(&self, from: u32, to: u32) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        self.0.compare_exchange(from, to, success, failure).is_ok()
    }
    fn store(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }
}

fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn lock_alone(results: &Recorder) {
    const TIMES: u32 = 20_000_000;
    let (word, me) = (Cell(AtomicU32::new(0)), LockOwner::new(1, 1));
    let (begun, mut taken) = (cpu_ns(), 0_u32);
    for _ in 0..TIMES {
        let tried = try_lock(std::hint::black_box(&word), me, |_| true);
        taken += u32::from(tried == TryLock::Acquired);
        unlock(std::hint::black_box(&word));
    }
    let each = (cpu_ns() - begun) / f64::from(TIMES);
    assert_eq!(taken, TIMES);
    println!("lock and unlock, nobody else: {each:.1} ns");
    let name = "shared tap: lock and unlock, nobody else";
    results.record(name, each, Unit::Nanoseconds, Bar::None);
}

/// What one that forwards has done.
#[derive(Clone, Copy, Default)]
struct Cost {
    frames: u64,
    cpu_ns: f64,
    calls: u64,
    batches: u64,
}

/// Forwards until stopped; sleeps when idle, so that idle time costs little.
fn forward(tap: &mut Tap, stop: &AtomicBool) -> Cost {
    let links: Vec<LinkId> = tap.links().collect();
    let mut cost = Cost::default();
    tap.ready().unwrap();
    let (mut begun, calls) = (cpu_ns(), tap.counts().syscalls_tx);
    while !stop.load(Ordering::Relaxed) {
        if !tap.pull(Pull::Frame(Duration::from_millis(20))).unwrap() && cost.frames == 0 {
            begun = cpu_ns();
        }
        let mut count = 0;
        while count < 64
            && let Some(frame) = tap.take(links[0]).unwrap()
        {
            tap.give(links[1], frame).unwrap();
            count += 1;
        }
        tap.push().unwrap();
        cost.frames += count;
        cost.batches += u64::from(count > 0);
    }
    cost.cpu_ns = cpu_ns() - begun;
    cost.calls = tap.counts().syscalls_tx - calls;
    cost
}

/// `processes`: 0 for a tap that is not shared.
fn measure(processes: usize, results: &Recorder) {
    let net = Net::new();
    let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
    let path = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    let stop = AtomicBool::new(false);
    let ready = AtomicU32::new(0);
    let costs = std::thread::scope(|scope| {
        let (path, stop, ready, middle) = (&path, &stop, &ready, &net.middle);
        let run = move |number: usize| {
            middle.enter().unwrap();
            let config = Config {
                hang_max: None,
                ..Config::default()
            };
            let mut tap = match number {
                0 => {
                    let mut tap = Tap::map(config).unwrap();
                    tap.tap("left").unwrap();
                    tap.tap("right").unwrap();
                    if processes > 0 {
                        tap.share(path).unwrap();
                    }
                    tap
                }
                _ => Tap::join(path, config).unwrap(),
            };
            ready.fetch_add(1, Ordering::SeqCst);
            let cost = forward(&mut tap, stop);
            tap.unmap().unwrap();
            cost
        };
        let all = processes.max(1);
        let mut threads = Vec::new();
        for number in 0..all {
            threads.push(scope.spawn(move || run(number)));
            while ready.load(Ordering::SeqCst) as usize <= number {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let begun = Instant::now();
        net.generator().send(FRAMES, Rate::Flat).unwrap();
        let rate = FRAMES as f64 / begun.elapsed().as_secs_f64() / 1e6;
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::SeqCst);
        let costs: Vec<Cost> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        println!(
            "{}: {rate:.2} Mpps offered, {} arrived",
            match processes {
                0 => "alone".to_owned(),
                n => format!("shared, {n} process(es)"),
            },
            sink.counted().unwrap().frames,
        );
        costs
    });
    for cost in costs.iter().filter(|cost| cost.frames > 0) {
        let frames = cost.frames as f64;
        println!(
            "    {} frames: {:.0} ns of processor each, {:.4} calls to send each, {:.1} in a batch",
            cost.frames,
            cost.cpu_ns / frames,
            cost.calls as f64 / frames,
            frames / cost.batches as f64,
        );
        let name = match processes {
            0 => "shared tap: alone, processor time a frame".to_owned(),
            n => format!("shared tap: {n} process(es), processor time a frame"),
        };
        let each = cost.cpu_ns / frames;
        results.record(&name, each, Unit::Nanoseconds, Bar::None);
    }
}

fn main() {
    let results = recorder!();
    lock_alone(&results);
    println!("2 copies by the kernel each, none by weir");
    for processes in [0, 1, 0, 1, 2] {
        measure(processes, &results);
    }
}
