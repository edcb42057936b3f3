//! The counter's own store: periods that are stored while they are made.

mod common;

use common::{Folder, MINUTE, chunk};
use weir_ledger::Spool;
use weir_meter::Chunk;

/// The chunks of a period of this many.
fn chunks(period: u64, count: u32) -> Vec<Chunk> {
    let chunk = |number| {
        let mut chunk = chunk(period, MINUTE * period as i64, 10 + u64::from(number));
        chunk.manifest.id.number = number;
        chunk.manifest.last = number + 1 == count;
        chunk
    };
    (0..count).map(chunk).collect()
}

/// The chunks in a spool.
fn stored(spool: &Spool) -> Vec<Vec<u8>> {
    let (mut after, mut stored) = (0, Vec::new());
    while let Some(next) = spool.next(after).unwrap() {
        after = next.sequence;
        stored.push(next.encoded.bytes);
    }
    stored
}

#[test]
fn a_period_that_is_stored_while_it_is_made_is_whole_or_absent() {
    let folder = Folder::new("streamed");
    let mut spool = Spool::open(&folder.at("spool")).unwrap();
    let mut whole = Spool::open(&folder.at("whole")).unwrap();
    for period in 0..3 {
        // Its maker fails.
        let mut begun = spool.begin("pop-1").unwrap();
        for chunk in &mut chunks(period, 2)[..1] {
            begun.put(chunk).unwrap();
        }
        drop(begun);
        assert_eq!(spool.waiting().unwrap(), 3 * period);
        // Whole, and a second time.
        for base in [period, 99] {
            let mut begun = spool.begin("pop-1").unwrap();
            for chunk in &mut chunks(period, 3) {
                begun.put(chunk).unwrap();
            }
            begun.commit(&base.to_le_bytes()).unwrap();
        }
        let last = spool.last("pop-1").unwrap().unwrap();
        assert_eq!((last.1, last.2), (period, period.to_le_bytes().to_vec()));
        let mut all = chunks(period, 3);
        whole.store(&mut all, &period.to_le_bytes()).unwrap();
    }
    // The same chunks, each with the hash of the one before.
    assert_eq!(stored(&spool).len(), 9);
    assert_eq!(stored(&spool), stored(&whole));
}
