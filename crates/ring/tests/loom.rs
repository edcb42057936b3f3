//! All orders in which the kernel's producers and the reader can meet: no
//! record is lost, torn or read twice, and none leaves the reader asleep.
//!
//! `cargo test -p weir-ring --test loom` (seconds). Every step of the model
//! is one of `__bpf_ringbuf_reserve`, `bpf_ringbuf_commit` or of the cursor.

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use weir_ring::cursor::{BUSY, Cursor, DISCARDED, HEADER_BYTES, Memory};

/// Every record of the model has 8 bytes, its content one number.
const RECORD_BYTES: u64 = 16;

/// A ring of `PLACES` records.
const PLACES: usize = 4;

struct Ring {
    consumer: AtomicU64,
    producer: AtomicU64,
    headers: [AtomicU32; PLACES],
    /// Relaxed, so that a read that is not ordered behind its write may see
    /// what was there before.
    contents: [AtomicU64; PLACES],
    reserving: Mutex<()>,
    woken: Mutex<bool>,
    bell: Condvar,
    /// Whether the reader's barrier is one: without it the model must fail.
    barrier: bool,
}

impl Ring {
    fn new(barrier: bool) -> Ring {
        Ring {
            consumer: AtomicU64::new(0),
            producer: AtomicU64::new(0),
            headers: std::array::from_fn(|_| AtomicU32::new(0)),
            contents: std::array::from_fn(|_| AtomicU64::new(0)),
            reserving: Mutex::new(()),
            woken: Mutex::new(false),
            bell: Condvar::new(),
            barrier,
        }
    }

    fn place(position: u64) -> usize {
        (position / RECORD_BYTES) as usize % PLACES
    }

    /// The kernel's half.
    fn produce(&self, content: u64, discard: bool) {
        let position = {
            let _locked = self.reserving.lock().unwrap();
            let position = self.producer.load(Ordering::Relaxed);
            let used = position + RECORD_BYTES - self.consumer.load(Ordering::Acquire);
            assert!(
                used <= RECORD_BYTES * PLACES as u64,
                "the model is sized for all"
            );
            self.headers[Ring::place(position)].store(BUSY | 8, Ordering::Relaxed);
            let next = position + RECORD_BYTES;
            self.producer.store(next, Ordering::Release);
            position
        };
        let place = Ring::place(position);
        self.contents[place].store(content, Ordering::Relaxed);
        let header = 8 | if discard { DISCARDED } else { 0 };
        self.headers[place].swap(header, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if self.consumer.load(Ordering::Acquire) == position {
            *self.woken.lock().unwrap() = true;
            self.bell.notify_one();
        }
    }

    fn sleep(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.bell.wait(woken).unwrap();
        }
        *woken = false;
    }
}

impl Memory for Ring {
    fn bytes(&self) -> u64 {
        RECORD_BYTES * PLACES as u64
    }

    fn producer(&self) -> u64 {
        self.producer.load(Ordering::Acquire)
    }

    fn header(&self, position: u64) -> u32 {
        self.headers[Ring::place(position)].load(Ordering::Acquire)
    }

    fn publish(&self, position: u64) {
        self.consumer.store(position, Ordering::Release);
    }

    fn note(&self, _position: u64) {}

    fn barrier(&self) {
        if self.barrier {
            fence(Ordering::SeqCst);
        }
    }
}

/// Reads until `bytes` of the ring have gone by; sleeps in between.
fn read(ring: &Ring, bytes: u64) -> Vec<u64> {
    let mut cursor = Cursor::resume(ring, 0, 0);
    let mut read = Vec::new();
    while cursor.next() < bytes {
        let span = cursor.scan(ring, 8, u64::MAX).expect("no header is wrong");
        let mut position = span.start;
        while position < span.end {
            let place = Ring::place(position);
            if ring.headers[place].load(Ordering::Relaxed) & DISCARDED == 0 {
                read.push(ring.contents[place].load(Ordering::Relaxed));
            }
            position += RECORD_BYTES;
        }
        cursor.release(ring, span.end);
        if cursor.next() < bytes && span.start == span.end && cursor.arm(ring) {
            ring.sleep();
        }
    }
    read
}

/// `producers` threads with these contents each, in every order.
fn explore(producers: &'static [&'static [u64]], barrier: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let ring = Arc::new(Ring::new(barrier));
        let threads: Vec<_> = producers
            .iter()
            .map(|contents| {
                let ring = ring.clone();
                thread::spawn(move || contents.iter().for_each(|c| ring.produce(*c, *c == 0)))
            })
            .collect();
        let records: usize = producers.iter().map(|contents| contents.len()).sum();
        let found = read(&ring, records as u64 * RECORD_BYTES);
        for contents in producers {
            // Each producer's own, in its order.
            let own: Vec<u64> = found
                .iter()
                .copied()
                .filter(|c| contents.contains(c))
                .collect();
            let sent: Vec<u64> = contents.iter().copied().filter(|c| *c != 0).collect();
            assert_eq!(own, sent);
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn one_producer_wakes_the_reader_whenever_it_sleeps() {
    explore(&[&[1, 2, 3]], true);
}

#[test]
fn two_producers_wake_the_reader_in_either_order_of_commits() {
    explore(&[&[1], &[2]], true);
}

#[test]
fn discarded_records_hold_nothing_up() {
    explore(&[&[0, 1]], true);
}

/// Half of the next test, in a process of its own: loom aborts at a deadlock.
#[test]
fn the_model_without_the_barrier() {
    if std::env::var_os(WITHOUT_BARRIER).is_some() {
        explore(&[&[1, 2]], false);
    }
}

const WITHOUT_BARRIER: &str = "WEIR_TEST_WITHOUT_BARRIER";

/// The model notices what it is there for.
#[test]
fn without_the_barrier_a_wake_up_is_lost() {
    let output = weir_lab::command::Command::itself()
        .args(["--exact", "the_model_without_the_barrier", "--nocapture"])
        .env(WITHOUT_BARRIER, "1")
        .output()
        .expect("it can be run");
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("deadlock; threads = "), "{text}");
}

#[test]
fn a_record_that_is_being_written_ends_the_batch() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(true));
        ring.produce(1, false);
        ring.headers[1].store(BUSY | 8, Ordering::Relaxed);
        ring.producer.store(2 * RECORD_BYTES, Ordering::Release);
        let mut cursor = Cursor::resume(&*ring, 0, 0);
        let span = cursor.scan(&*ring, 8, u64::MAX).unwrap();
        assert_eq!((span.end, span.records), (RECORD_BYTES, 1));
        cursor.release(&*ring, span.end);
        assert_eq!(
            ring.consumer.load(Ordering::Relaxed),
            RECORD_BYTES - HEADER_BYTES
        );
        assert!(!cursor.is_ready(&*ring));
        assert!(cursor.arm(&*ring));
        assert_eq!(ring.consumer.load(Ordering::Relaxed), RECORD_BYTES);
    });
}
