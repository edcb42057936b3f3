//! All orders in which the two sides of a ring of frames can meet: every frame arrives once, in order
//! and whole, and neither side sleeps while the other has done what it waits for.
//!
//! `cargo test -p weir-ring --test loom_frame_ring` (seconds).

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use weir_ring::frame_ring::{Consumer, Memory, Producer, arm, disarm};

/// A ring of one frame of 8 bytes, so that the producer waits for room.
const WORDS: usize = 2;
const FRAMES: u64 = 2;

struct Ring {
    producer: AtomicU64,
    consumer: AtomicU64,
    /// Relaxed, so that a read that is not ordered behind its write may see what was there before.
    words: [AtomicU64; WORDS],
    asleep: AtomicBool,
    waiting: AtomicBool,
    /// What wakes the consumer, and the producer.
    bells: [(Mutex<bool>, Condvar); 2],
    /// What positions are published with, and whether barriers are barriers.
    publish: Ordering,
    barrier: bool,
}

#[derive(Clone)]
struct Side(Arc<Ring>);

impl Side {
    fn new(publish: Ordering, barrier: bool) -> Side {
        Side(Arc::new(Ring {
            producer: AtomicU64::new(0),
            consumer: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            asleep: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            bells: std::array::from_fn(|_| (Mutex::new(false), Condvar::new())),
            publish,
            barrier,
        }))
    }

    fn wake(&self, who: usize) {
        let (woken, bell) = &self.0.bells[who];
        *woken.lock().unwrap() = true;
        bell.notify_one();
    }

    fn sleep(&self, who: usize) {
        let (woken, bell) = &self.0.bells[who];
        let mut woken = woken.lock().unwrap();
        while !*woken {
            woken = bell.wait(woken).unwrap();
        }
        *woken = false;
    }

    fn word(&self, position: u64) -> &AtomicU64 {
        &self.0.words[(position / 8) as usize % WORDS]
    }
}

impl Memory for Side {
    fn bytes(&self) -> u64 {
        8 * WORDS as u64
    }
    fn producer(&self) -> u64 {
        self.0.producer.load(Ordering::Acquire)
    }
    fn consumer(&self) -> u64 {
        self.0.consumer.load(Ordering::Acquire)
    }
    fn set_producer(&self, position: u64) {
        self.0.producer.store(position, self.0.publish);
    }
    fn set_consumer(&self, position: u64) {
        self.0.consumer.store(position, self.0.publish);
    }
    fn load(&self, position: u64) -> u64 {
        self.word(position).load(Ordering::Relaxed)
    }
    fn store(&self, position: u64, word: u64) {
        self.word(position).store(word, Ordering::Relaxed);
    }
    fn read(&self, position: u64, to: &mut [u8]) {
        to.copy_from_slice(&self.load(position).to_ne_bytes()[..to.len()]);
    }
    fn write(&self, position: u64, from: &[u8]) {
        if let Ok(word) = from.try_into() {
            self.store(position, u64::from_ne_bytes(word));
        }
    }
    fn barrier(&self) {
        if self.0.barrier {
            fence(Ordering::SeqCst);
        }
    }
    fn set_asleep(&self, asleep: bool) {
        self.0.asleep.swap(asleep, Ordering::Relaxed);
    }
    fn take_asleep(&self) -> bool {
        self.0.asleep.swap(false, Ordering::Relaxed)
    }
    fn set_waiting(&self, waiting: bool) {
        self.0.waiting.swap(waiting, Ordering::Relaxed);
    }
    fn take_waiting(&self) -> bool {
        self.0.waiting.swap(false, Ordering::Relaxed)
    }
}

fn send(side: Side) {
    let mut producer = Producer::new(side.clone());
    for number in 1..=FRAMES {
        while !producer.put(&[&number.to_ne_bytes()]) {
            if producer.wait_for_room(8) {
                side.sleep(1);
            }
        }
        if producer.submit() {
            side.wake(0);
        }
    }
}

fn explore(publish: Ordering, barrier: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let side = Side::new(publish, barrier);
        let mut rings = vec![Consumer::new(side.clone())];
        let theirs = side.clone();
        let sender = thread::spawn(move || send(theirs));
        let mut expected = 1;
        while expected <= FRAMES {
            let Some(len) = rings[0].peek() else {
                if arm(&rings) {
                    side.sleep(0);
                    disarm(&rings);
                }
                continue;
            };
            let mut frame = [0; 8];
            rings[0].read(0, &mut frame);
            rings[0].take(len);
            assert_eq!((len, u64::from_ne_bytes(frame)), (8, expected), "torn");
            expected += 1;
            if rings[0].has_taken() {
                side.wake(1);
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn every_frame_arrives_once_and_no_side_sleeps_on() {
    explore(Ordering::Release, true);
}

const BROKEN: &str = "WEIR_TEST_BROKEN_FRAME_RING";

/// Half of the next test, in a process of its own: loom aborts at a deadlock.
#[test]
fn the_broken_model() {
    match std::env::var(BROKEN).as_deref() {
        Ok("barrier") => explore(Ordering::Release, false),
        Ok("order") => explore(Ordering::Relaxed, true),
        _ => {}
    }
}

/// The model notices what it is there for.
#[test]
fn without_barrier_or_order_the_model_fails() {
    for (broken, says) in [("barrier", "deadlock; threads = "), ("order", "torn")] {
        let output = weir_lab::command::Command::itself()
            .args(["--exact", "the_broken_model", "--nocapture"])
            .env(BROKEN, broken)
            .output()
            .expect("it can be run");
        assert!(!output.status.success(), "{broken}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(says), "{broken}: {text}");
    }
}
