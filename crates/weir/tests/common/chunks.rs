//! Chunks of a counter, for tests of the ledger's commands.

use weir_ledger::{Ledger, Spool};
use weir_meter::{
    Chunk, ChunkId, Direction, Flags, Key, Manifest, Measure, Owner, OwnerKind, Record, Totals,
};

/// A chunk of a period of one minute: a record for each of these packet counts.
pub(crate) fn chunk(counter: &str, period: u64, packets: &[u64]) -> Chunk {
    let start = i64::try_from(period).unwrap() * 60_000_000_000;
    let sum = packets.iter().sum::<u64>();
    let totals = Totals {
        packets: [sum, 0],
        bytes: [sum * 64, 0],
    };
    let owners = (0..packets.len()).map(|number| Owner {
        kind: OwnerKind::Session,
        subscriber: format!("subscriber-{number}"),
        session: format!("{counter}/{number}"),
        keys: vec![Key::Vlan(7, Some(number as u16))],
        class: Vec::new(),
        chargeable_user: None,
        started_unix_ns: 0,
        reported: None,
    });
    let records = packets.iter().zip(0..).map(|(packets, owner)| Record {
        owner,
        service: 0,
        direction: Direction::Up,
        flags: Flags::default(),
        counts: vec![*packets, packets * 64],
    });
    let measure = |name: &str| Measure {
        name: name.to_owned(),
        additive: true,
    };
    Chunk {
        manifest: Manifest {
            id: ChunkId {
                counter: counter.to_owned(),
                boot_epoch: 1,
                period,
                number: 0,
            },
            last: true,
            monotonic_ns: [0, 1],
            unix_ns: [start, start + 60_000_000_000],
            wall_step_ns: 0,
            records: u32::try_from(packets.len()).unwrap(),
            totals,
            link: totals,
            lost_inside: 0,
            gap_unix_ns: None,
            interfaces: Vec::new(),
            previous: [0; 32],
        },
        measures: vec![measure("packets"), measure("bytes")],
        services: vec!["all".to_owned()],
        owners: owners.collect(),
        records: records.collect(),
    }
}

/// Packets of service `test` in all records of a spool, and those of them that were policed.
pub(crate) fn policed(folder: &super::Folder) -> [u64; 2] {
    let spool = Spool::open(folder.path("spool").as_ref()).unwrap();
    let mut ledger = Ledger::open(folder.path("scratch.db").as_ref()).unwrap();
    let (mut after, mut sums) = (0, [0; 2]);
    while let Some(stored) = spool.next(after).unwrap() {
        after = stored.sequence;
        let (chunk, _) = ledger.accept(&stored.encoded).unwrap();
        let names: Vec<&str> = chunk.measures.iter().map(|it| &*it.name).collect();
        assert_eq!(
            names,
            ["packets", "bytes", "policed_packets", "policed_bytes"]
        );
        for record in &chunk.records {
            if chunk.services[usize::from(record.service)] == "test" {
                sums[0] += record.counts[0];
                sums[1] += record.counts[2];
            }
        }
    }
    sums
}
