//! All orders in which the two sides of an `AF_XDP` ring can meet: every entry
//! arrives once, in order and whole.
//!
//! `cargo test -p weir-ring --test loom_queue` (seconds). The kernel's side is
//! that of `net/xdp/xsk_queue.h`, which is the same protocol.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use weir_ring::queue::{Consumer, Producer, RingMemory};

/// A ring of `PLACES` entries; three go through, so that a place is used again.
const PLACES: usize = 2;
const ENTRIES: u64 = 3;

struct Ring {
    producer: AtomicU32,
    consumer: AtomicU32,
    /// Relaxed, so that a read that is not ordered behind its write may see
    /// what was there before. Both halves are the entry: torn ones show.
    halves: [[AtomicU64; 2]; PLACES],
    /// What the positions are published with; less than release must fail.
    publish: Ordering,
}

impl Ring {
    fn new(publish: Ordering, first: u32) -> Ring {
        Ring {
            producer: AtomicU32::new(first),
            consumer: AtomicU32::new(first),
            halves: std::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]),
            publish,
        }
    }
}

/// A side's view of the ring.
#[derive(Clone)]
struct Side(Arc<Ring>);

impl RingMemory for Side {
    type Entry = [u64; 2];

    fn entries(&self) -> u32 {
        PLACES as u32
    }
    fn producer(&self) -> u32 {
        self.0.producer.load(Ordering::Acquire)
    }
    fn consumer(&self) -> u32 {
        self.0.consumer.load(Ordering::Acquire)
    }
    fn set_producer(&self, position: u32) {
        self.0.producer.store(position, self.0.publish);
    }
    fn set_consumer(&self, position: u32) {
        self.0.consumer.store(position, self.0.publish);
    }
    fn load(&self, place: u32) -> [u64; 2] {
        let halves = &self.0.halves[place as usize];
        [0, 1].map(|half| halves[half].load(Ordering::Relaxed))
    }
    fn store(&self, place: u32, entry: [u64; 2]) {
        for (half, word) in self.0.halves[place as usize].iter().zip(entry) {
            half.store(word, Ordering::Relaxed);
        }
    }
    fn needs_wakeup(&self) -> bool {
        false
    }
}

fn all_orders(publish: Ordering, first: u32) {
    loom::model(move || {
        let side = Side(Arc::new(Ring::new(publish, first)));
        let theirs = side.clone();
        let sender = thread::spawn(move || {
            let mut producer = Producer::new(theirs);
            let mut next = 1;
            while next <= ENTRIES {
                let room = producer.reserve(2).unwrap();
                for _ in 0..room {
                    if next <= ENTRIES {
                        producer.put([next, next]);
                        next += 1;
                    }
                }
                producer.submit();
                if room == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::new(side);
        let mut expected = 1;
        while expected <= ENTRIES {
            let found = consumer.peek(2).unwrap();
            for _ in 0..found {
                assert_eq!(consumer.take(), [expected, expected]);
                expected += 1;
            }
            consumer.release();
            if found == 0 {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
        assert_eq!(consumer.peek(1).unwrap(), 0);
    });
}

#[test]
fn every_entry_arrives_once_in_order_and_whole() {
    all_orders(Ordering::Release, 0);
}

#[test]
fn also_where_positions_wrap() {
    all_orders(Ordering::Release, u32::MAX - 1);
}

#[test]
#[should_panic]
fn the_model_sees_a_position_that_is_ahead_of_its_entry() {
    all_orders(Ordering::Relaxed, 0);
}
