//! The cursor on memory that says anything.

use std::cell::Cell;
use weir_ring::cursor::{BUSY, Corrupt, Cursor, DISCARDED, Memory};

/// A ring of 64 bytes with these headers, one every 8 bytes.
struct Fake {
    producer: u64,
    headers: [u32; 8],
    consumer: Cell<u64>,
    note: Cell<u64>,
}

fn fake(producer: u64, headers: [u32; 8]) -> Fake {
    Fake {
        producer,
        headers,
        consumer: Cell::new(0),
        note: Cell::new(0),
    }
}

impl Memory for Fake {
    fn bytes(&self) -> u64 {
        64
    }
    fn producer(&self) -> u64 {
        self.producer
    }
    fn header(&self, position: u64) -> u32 {
        self.headers[position as usize % 64 / 8]
    }
    fn publish(&self, position: u64) {
        self.consumer.set(position);
    }
    fn note(&self, position: u64) {
        self.note.set(position);
    }
    fn barrier(&self) {}
}

#[test]
fn a_batch_ends_at_its_limits() {
    // Records of 0, 5, 8 (discarded) and 16 bytes: 8 + 16 + 16 + 24.
    let ring = fake(64, [0, 5, 0, 8 | DISCARDED, 0, 16, 0, 0]);
    let cursor = Cursor::resume(&ring, 0, 0);
    let scan = |records, bytes| {
        let span = cursor.scan(&ring, records, bytes).unwrap();
        (span.end, span.records)
    };
    assert_eq!(scan(10, 64), (64, 3));
    assert_eq!(scan(2, 64), (24, 2));
    assert_eq!(scan(10, 63), (40, 2));
    assert_eq!(scan(10, 0), (8, 1), "the first is of any length");
    assert_eq!(scan(0, 64), (0, 0));
}

#[test]
fn a_header_that_leads_outside_is_an_error() {
    for len in [57, 64, 1 << 20, u32::MAX >> 2] {
        let ring = fake(64, [len, 0, 0, 0, 0, 0, 0, 0]);
        let cursor = Cursor::resume(&ring, 0, 0);
        let header = len;
        let expected = Corrupt {
            position: 0,
            header,
        };
        assert_eq!(cursor.scan(&ring, 8, 64), Err(expected), "{len}");
    }
}

#[test]
fn a_reader_goes_on_where_the_last_one_released() {
    let headers = [0; 8];
    let next = |producer, published, noted| {
        Cursor::resume(&fake(producer, headers), published, noted).next()
    };
    assert_eq!(next(640, 632, 640), 640, "killed while awake");
    assert_eq!(next(640, 600, 616), 616, "killed between note and position");
    assert_eq!(next(640, 640, 600), 640, "another kind of reader");
    assert_eq!(next(0, 0, 0), 0, "a new ring");
    // What the holder of a ring may write there.
    assert_eq!(next(640, u64::MAX, 0), 640);
    assert_eq!(next(640, 648, u64::MAX), 640);
    assert_eq!(next(640, 601, 0), 640);
    assert_eq!(
        next(640, 8, 16),
        640,
        "further behind than the ring is long"
    );
}

#[test]
fn releasing_nothing_writes_nothing() {
    let ring = fake(64, [BUSY, 0, 0, 0, 0, 0, 0, 0]);
    let mut cursor = Cursor::resume(&ring, 0, 0);
    ring.consumer.set(99);
    let span = cursor.scan(&ring, 8, 64).unwrap();
    cursor.release(&ring, span.end);
    assert_eq!(ring.consumer.get(), 99);
    assert!(cursor.arm(&ring));
    assert_eq!(ring.consumer.get(), 99);
    cursor.release(&ring, 16);
    assert_eq!((ring.consumer.get(), ring.note.get()), (8, 16));
    assert!(!cursor.arm(&ring));
    assert_eq!(ring.consumer.get(), 16);
}
