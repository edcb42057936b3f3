//! A ring whose other side writes what it likes.
#![allow(unsafe_code)] // Memory that two have.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_ring::queue::{Consumer, Producer, RingMemory};
use weir_ring::umem::{Owner, UmemError};
use weir_ring::{Descriptor, Umem};

const ENTRIES: u32 = 8;

#[derive(Clone, Default)]
struct Ring(Rc<Shared>);

#[derive(Default)]
struct Shared {
    producer: Cell<u32>,
    consumer: Cell<u32>,
    entries: RefCell<[u64; ENTRIES as usize]>,
}

impl RingMemory for Ring {
    type Entry = u64;
    fn entries(&self) -> u32 {
        ENTRIES
    }
    fn producer(&self) -> u32 {
        self.0.producer.get()
    }
    fn consumer(&self) -> u32 {
        self.0.consumer.get()
    }
    fn set_producer(&self, position: u32) {
        self.0.producer.set(position);
    }
    fn set_consumer(&self, position: u32) {
        self.0.consumer.set(position);
    }
    fn load(&self, place: u32) -> u64 {
        self.0.entries.borrow()[place as usize]
    }
    fn store(&self, place: u32, entry: u64) {
        self.0.entries.borrow_mut()[place as usize] = entry;
    }
    fn needs_wakeup(&self) -> bool {
        true
    }
}

/// A generator of numbers, some of them near to where the ring is.
struct Wild(u64);

impl Wild {
    fn next(&mut self, near: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let word = (self.0 >> 32) as u32;
        match word % 3 {
            0 => word,
            _ => near.wrapping_add(word >> 8 & 15).wrapping_sub(4),
        }
    }
}

#[test]
fn a_wild_consumer_never_gives_more_room_than_there_is() {
    const SEED: u64 = 0x0004_0001;
    println!("seed {SEED:#x}");
    let (ring, mut wild) = (Ring::default(), Wild(SEED));
    let mut producer = Producer::new(ring.clone());
    let (mut corrupt, mut put) = (0, 0);
    for _ in 0..100_000 {
        ring.0.consumer.set(wild.next(ring.0.producer.get()));
        match producer.reserve(ENTRIES) {
            Ok(room) => {
                assert!(room <= ENTRIES);
                (0..room).for_each(|entry| producer.put(entry.into()));
                put += room;
                producer.submit();
            }
            Err(error) => {
                assert!(error.held > ENTRIES);
                corrupt += 1;
            }
        }
    }
    assert!(corrupt > 1_000 && put > 1_000, "{corrupt} {put}");
}

#[test]
fn a_wild_producer_never_shows_more_than_there_is() {
    const SEED: u64 = 0x0004_0002;
    println!("seed {SEED:#x}");
    let (ring, mut wild) = (Ring::default(), Wild(SEED));
    let mut consumer = Consumer::new(ring.clone());
    let (mut corrupt, mut taken) = (0, 0);
    for _ in 0..100_000 {
        ring.0.producer.set(wild.next(ring.0.consumer.get()));
        match consumer.peek(ENTRIES) {
            Ok(found) => {
                assert!(found <= ENTRIES);
                for _ in 0..found {
                    consumer.take();
                }
                taken += found;
                consumer.release();
            }
            Err(_) => corrupt += 1,
        }
    }
    assert!(corrupt > 1_000 && taken > 1_000, "{corrupt} {taken}");
}

#[test]
fn what_was_not_sent_can_be_taken_back() {
    let ring = Ring::default();
    let mut producer = Producer::new(ring.clone());
    assert_eq!(producer.reserve(5), Ok(5));
    (10..15).for_each(|entry| producer.put(entry));
    producer.submit();
    ring.0.consumer.set(2);
    assert_eq!(producer.reclaim_unsent().unwrap(), [14, 13, 12]);
    assert_eq!(ring.0.producer.get(), 2);
    assert_eq!(producer.held(), Ok(0));
    assert_eq!(producer.reserve(9), Ok(8));
}

#[test]
#[should_panic = "room is reserved first"]
fn to_put_without_room_is_our_own_mistake() {
    let mut producer = Producer::new(Ring::default());
    (0..9).for_each(|entry| producer.put(entry));
}

#[test]
fn pieces_lie_inside_of_one_chunk() {
    let umem = Umem::create(4, 2048).unwrap();
    let holds = |address, len| {
        let options = 0;
        umem.holds(&Descriptor {
            address,
            len,
            options,
        })
    };
    assert!(holds(0, 2048) && holds(3 * 2048 + 256, 1792) && holds(100, 0));
    assert!(!holds(1, 2048), "into the next chunk");
    assert!(!holds(4 * 2048, 1) && !holds(u64::MAX, 1) && !holds(0, u32::MAX));
}

#[test]
fn memory_is_shared_by_its_descriptor_and_nothing_else_is() {
    use std::os::fd::AsFd;
    let umem = Umem::create(16, 4096).unwrap();
    umem.set_owner(3, Owner::Process(7));
    umem.set_owner(4, Owner::Fill(2));
    umem.set_owner(5, Owner::Tx(65_535));
    // SAFETY: no chunk's bytes are looked at here.
    let other = unsafe { Umem::open(umem.as_fd().try_clone_to_owned().unwrap()).unwrap() };
    assert_eq!((other.chunks(), other.chunk_bytes()), (16, 4096));
    let owners = [2, 3, 4, 5].map(|chunk| other.owner(chunk));
    let expected = [
        Owner::Free,
        Owner::Process(7),
        Owner::Fill(2),
        Owner::Tx(65_535),
    ];
    assert_eq!(owners, expected);
    assert!(other.change_owner(3, Owner::Process(7), Owner::Free));
    assert!(!umem.change_owner(3, Owner::Process(7), Owner::Free));
    let census = umem.chunk_counts();
    assert_eq!((census.free, census.fill, census.tx), (14, 1, 1));
    assert_eq!(census.total(), 16);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: as above.
    let refused = unsafe { Umem::open(file.into()) };
    assert!(matches!(refused, Err(UmemError::NotOurs)));
    for (chunks, bytes) in [(0, 2048), (1, 1024), (1, 8192), (1 << 19, 2048)] {
        let refused = Umem::create(chunks, bytes);
        assert!(matches!(refused, Err(UmemError::Size { .. })));
    }
}

/// What was put in and not shown can be taken out again, the oldest first,
/// wherever in the ring it is.
#[test]
fn the_oldest_entries_are_withdrawn_and_the_others_move_up() {
    for start in [0, 5, u32::MAX - 2] {
        let ring = Ring::default();
        ring.set_producer(start);
        ring.set_consumer(start);
        let mut producer = Producer::new(ring.clone());
        assert_eq!(producer.unsubmitted_len(), 0);
        producer.reserve(6).unwrap();
        producer.put(1);
        producer.submit();
        (2..=6).for_each(|entry| producer.put(entry));
        assert_eq!(producer.unsubmitted_len(), 5, "one was shown");
        assert_eq!(
            (producer.unsubmitted_at(0), producer.unsubmitted_at(4)),
            (2, 6)
        );
        producer.pop_unsubmitted(3);
        assert_eq!(producer.unsubmitted_len(), 2);
        assert_eq!(
            (producer.unsubmitted_at(0), producer.unsubmitted_at(1)),
            (5, 6)
        );
        producer.put(7);
        producer.submit();
        let mut consumer = Consumer::new(ring);
        assert_eq!(consumer.peek(ENTRIES).unwrap(), 4);
        let taken: Vec<u64> = (0..4).map(|_| consumer.take()).collect();
        assert_eq!(taken, [1, 5, 6, 7]);
        assert_eq!(producer.unsubmitted_len(), 0);
        producer.pop_unsubmitted(0);
    }
}
