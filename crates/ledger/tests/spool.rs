//! The counter's own store: periods that are stored while they are made, and what cells mean.

mod common;

use common::{Folder, MINUTE, chunk};
use weir_ledger::{Meaning, Spool};
use weir_meter::{Chunk, Measure};

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

#[test]
fn what_cells_mean_is_kept_until_they_are_recorded() {
    let folder = Folder::new("meaning");
    let mut spool = Spool::open(&folder.at("spool")).unwrap();
    let meaning = |service: &str| Meaning {
        services: vec![service.to_owned(), "other".to_owned()],
        measures: vec![Measure {
            name: "flows".to_owned(),
            additive: true,
        }],
    };
    for (counter, epoch, service) in [
        ("a", 1, "x"),
        ("a", 1, "y"),
        ("a", u64::MAX, "z"),
        ("b", 1, "w"),
    ] {
        let noted = spool.note_meaning(counter, epoch, &meaning(service));
        noted.unwrap();
    }
    drop(spool);
    let mut spool = Spool::open(&folder.at("spool")).unwrap();
    assert_eq!(spool.meaning("a", 1).unwrap(), Some(meaning("y")));
    assert_eq!(spool.meaning("a", 2).unwrap(), None);
    spool.forget_meanings("a", u64::MAX).unwrap();
    assert_eq!(spool.meaning("a", 1).unwrap(), None);
    assert_eq!(spool.meaning("a", u64::MAX).unwrap(), Some(meaning("z")));
    assert_eq!(spool.meaning("b", 1).unwrap(), Some(meaning("w")));
}

#[test]
fn a_spool_of_the_first_layout_goes_on() {
    let folder = Folder::new("layout-1");
    let path = folder.at("spool");
    let mut spool = Spool::open(&path).unwrap();
    spool.store(&mut chunks(0, 2), b"base").unwrap();
    drop(spool);
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch("DROP TABLE meaning; PRAGMA user_version = 1;")
        .unwrap();
    drop(db);
    let spool = Spool::open(&path).unwrap();
    assert_eq!(spool.waiting().unwrap(), 2);
    assert_eq!(spool.meaning("pop-1", 1).unwrap(), None);
}
