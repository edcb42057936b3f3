//! Frames that go out many at once: unchanged, in order, and only where the
//! other end takes them so.

use crate::net::Net;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use weir_lab::net::Offloads;
use weir_lab::testenv;
use weir_link::xdp::{PAGE_POOLS_MAX, TxBurst};
use weir_tap::{Config, NoBurst, Pull, Tap};

/// Fewer than a veth queues, so that none is lost however late they are taken.
const FRAMES: usize = 200;

/// What stays of one test's frames keeps the other's from going out so.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config() -> Config {
    Config {
        chunks: 1024,
        ring: 256,
        hang_max: None,
        tx_burst: true,
        ..Config::default()
    }
}

/// Of all lengths that there are, each of bytes of its own.
fn frame(number: usize) -> Vec<u8> {
    let len = match number {
        0 => 14,
        1 => 1514,
        _ => 14 + number * 7919 % 1501,
    };
    let mut bytes: Vec<u8> = (0..len).map(|at| (number * 31 + at) as u8).collect();
    // To an unused protocol.
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    bytes
}

fn give_all(tap: &mut Tap, frames: usize) {
    let link = tap.links().next().unwrap();
    for number in 0..frames {
        let mut own = tap.alloc().unwrap();
        assert!(own.set(&frame(number)));
        assert!(tap.give(link, own).unwrap());
    }
    tap.push().unwrap();
}

/// A tap at the far end, until it has this many frames: it is signalled when it is
/// there.
fn take_all(net: &Net, frames: usize, is_there: mpsc::Sender<()>) -> Vec<Vec<u8>> {
    net.b.run(move || {
        let mut tap = Tap::map(config()).unwrap();
        let link = tap.tap(net.eth_b.name()).unwrap();
        tap.ready().unwrap();
        is_there.send(()).unwrap();
        let mut taken = Vec::new();
        let until = Instant::now() + Duration::from_secs(20);
        while taken.len() < frames && Instant::now() < until {
            tap.pull(Pull::Frame(Duration::from_millis(20))).unwrap();
            while let Some(frame) = tap.take(link).unwrap() {
                let mut bytes = Vec::new();
                frame.copy_to(&mut bytes);
                taken.push(bytes);
            }
        }
        taken
    })
}

#[test]
fn many_frames_at_once_arrive_unchanged_and_in_order() {
    if !testenv::root() {
        return;
    }
    let _alone = alone();
    let net = Net::new();
    let (is_there, there) = mpsc::channel();
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| take_all(&net, FRAMES, is_there));
        there.recv().unwrap();
        net.middle.run(|| {
            let mut tap = Tap::map(config()).unwrap();
            let link = tap.tap("right").unwrap();
            assert_eq!(tap.link_tx_burst(link), Ok(()));
            tap.ready().unwrap();
            give_all(&mut tap, FRAMES);
            let counts = tap.counts();
            // Where another test's program has held a call up, a socket sends.
            if counts.burst_stalls == 0 {
                assert_eq!(counts.burst_frames, FRAMES as u64);
                assert_eq!(counts.syscalls_tx, 2, "128 at once at most");
            }
            assert_eq!(tap.census().tx, 0, "their chunks are free at once");
            let census = tap.unmap().unwrap();
            assert_eq!(census.free, census.total());
        });
        let taken = taken.join().unwrap();
        assert_eq!(taken.len(), FRAMES);
        for (number, bytes) in taken.iter().enumerate() {
            assert_eq!(*bytes, frame(number), "frame {number}");
        }
    });
}

#[test]
fn where_the_other_end_takes_none_so_a_socket_sends_them() {
    if !testenv::root() {
        return;
    }
    let net = Net::new();
    let (is_there, there) = mpsc::channel();
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| take_all(&net, 1, is_there));
        there.recv().unwrap();
        net.middle.run(|| {
            let mut tap = Tap::map(config()).unwrap();
            let link = tap.tap("right").unwrap();
            tap.ready().unwrap();
            give_all(&mut tap, 1);
            assert_eq!(tap.counts().burst_frames, 0, "one is quicker without");
            // The far end has its frame, and ends.
            assert_eq!(taken.join().unwrap().len(), 1);
            let before = net.eth_b.counters().unwrap();
            // Changes are looked up each 10 ms.
            std::thread::sleep(Duration::from_millis(30));
            give_all(&mut tap, 100);
            assert_eq!(tap.counts().burst_frames, 0);
            assert_eq!(tap.link_tx_burst(link), Err(NoBurst::PeerTakesNone));
            let arrived = || net.eth_b.counters().unwrap().rx_frames - before.rx_frames;
            net.settle(|| arrived() >= 100);
            assert!(arrived() >= 100, "{}", arrived());
        });
    });
}

/// Each call leaves a pool of pages where one of its frames is kept: of such
/// there are few, and a socket sends while they last.
#[test]
fn frames_that_stay_unfreed_are_sent_by_a_socket_in_the_end() {
    if !testenv::root() {
        return;
    }
    let _alone = alone();
    const EACH: u64 = 32;
    let net = Net::new();
    for device in [&net.eth_b, &net.right] {
        let offloads = Offloads {
            generic_receive: true,
            ..Offloads::OFF
        };
        device.set_offloads(offloads).unwrap();
    }
    let kept = TxBurst::new().unwrap();
    // It has each frame, and does not read.
    let keeper = net.b.capture().unwrap();
    net.middle.run(|| {
        let mut tap = Tap::map(config()).unwrap();
        let link = tap.tap("right").unwrap();
        assert_eq!(tap.link_tx_burst(link), Ok(()));
        tap.ready().unwrap();
        for _ in 0..2 * PAGE_POOLS_MAX {
            give_all(&mut tap, EACH as usize);
        }
        let most = EACH * u64::from(PAGE_POOLS_MAX);
        let sent = tap.counts().burst_frames;
        println!("{sent} frames in bulk");
        // Those of others on this machine count, too.
        assert!(sent <= most, "{sent} of {most}");
        // Freed, they make room for more, as soon as the kernel has looked.
        drop(keeper);
        let began = Instant::now();
        while tap.counts().burst_frames == sent {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "none after {sent}"
            );
            std::thread::sleep(Duration::from_millis(100));
            give_all(&mut tap, EACH as usize);
        }
        // Others of these tests come after, and have frames go out in bulk.
        while kept.pools() > PAGE_POOLS_MAX / 2 {
            let left = kept.pools();
            assert!(began.elapsed() < Duration::from_secs(60), "{left} stay");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(tap.link_counts(link).tx_ring_full, 0);
        let census = tap.unmap().unwrap();
        assert_eq!(census.free, census.total());
    });
}

/// Who changes XDP programs anywhere holds such calls up: then sockets send for a
/// while.
#[test]
fn after_a_call_that_was_held_up_a_socket_sends() {
    if !testenv::root() {
        return;
    }
    let _alone = alone();
    let net = Net::new();
    let (is_there, there) = mpsc::channel();
    let done = Done::default();
    let is_done = || done.0.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        // However this ends, the others do.
        let _done = done.clone();
        scope.spawn(|| {
            net.b.run(|| {
                let mut tap = Tap::map(config()).unwrap();
                let link = tap.tap(net.eth_b.name()).unwrap();
                tap.ready().unwrap();
                is_there.send(()).unwrap();
                while !is_done() {
                    tap.pull(Pull::Frame(Duration::from_millis(20))).unwrap();
                    while tap.take(link).unwrap().is_some() {}
                }
            });
        });
        there.recv().unwrap();
        scope.spawn(|| {
            while !is_done() {
                // It attaches a program, and takes it off.
                drop(TxBurst::new().unwrap());
            }
        });
        net.middle.run(|| {
            let mut tap = Tap::map(config()).unwrap();
            let link = tap.tap("right").unwrap();
            assert_eq!(tap.link_tx_burst(link), Ok(()));
            tap.ready().unwrap();
            let began = Instant::now();
            while tap.counts().burst_stalls == 0 {
                assert!(began.elapsed() < Duration::from_secs(60), "never");
                give_all(&mut tap, 64);
            }
            let held = Instant::now();
            let before = tap.counts();
            give_all(&mut tap, 64);
            let after = tap.counts();
            // The pause lasts a second.
            if held.elapsed() < Duration::from_millis(900) {
                assert_eq!(after.burst_frames, before.burst_frames);
                assert!(after.syscalls_tx > before.syscalls_tx);
            }
            assert_eq!(tap.link_counts(link).tx_ring_full, 0);
        });
    });
}

/// Set when one of its holders goes.
#[derive(Clone, Default)]
struct Done(Arc<AtomicBool>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Frames that may be cut up by the device take another way than those that a
/// program redirects: they could not be kept in order.
#[test]
fn not_on_a_device_that_cuts_frames_up() {
    if !testenv::root() {
        return;
    }
    let net = Net::new();
    let segments = Offloads {
        tx_checksums: true,
        tcp_segmentation: true,
        generic_receive: true,
        ..Offloads::OFF
    };
    net.eth_b.set_offloads(segments).unwrap();
    net.right.set_offloads(segments).unwrap();
    net.middle.run(|| {
        let mut tap = Tap::map(config()).unwrap();
        let link = tap.tap("right").unwrap();
        tap.ready().unwrap();
        give_all(&mut tap, 100);
        assert_eq!(tap.counts().burst_frames, 0);
        let interface = "right".to_owned();
        assert_eq!(
            tap.link_tx_burst(link),
            Err(NoBurst::Segments { interface })
        );
    });
}

/// Nor without a request; and a shared tap's frames are of several processes.
#[test]
fn says_why_not() {
    if !testenv::root() {
        return;
    }
    let net = Net::new();
    net.middle.run(|| {
        let quiet = Config {
            tx_burst: false,
            ..config()
        };
        let mut tap = Tap::map(quiet).unwrap();
        let link = tap.tap("left").unwrap();
        assert_eq!(tap.link_tx_burst(link), Err(NoBurst::NotRequested));
        drop(tap);
        let path = format!("weir-bulk-{}", std::process::id());
        let path = std::env::temp_dir().join(path);
        let mut tap = Tap::map(config()).unwrap();
        let link = tap.tap("right").unwrap();
        tap.share(&path).unwrap();
        let why = tap.link_tx_burst(link);
        let _ = std::fs::remove_file(&path);
        assert_eq!(why, Err(NoBurst::Shared));
    });
}
