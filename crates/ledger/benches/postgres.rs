//! Rows a second into PostgreSQL: the ledger's output compared with a raw binary COPY of the same rows
//! into a table of the same columns.
//!
//! Run by `cargo bench -p weir-ledger --bench postgres`. The server is this bench's own, on a socket, with
//! fsync off on both sides. The raw copy sends bytes that the server itself has written (`COPY … TO`) from
//! memory; the output reads the ledger, and enters the chunks' identities, too. Both run in turn for
//! several rounds; the best of each counts.

use std::io::{Read, Write};
use std::time::Instant;
use weir_lab::postgres::Postgres;
use weir_lab::results::{Bar, Unit, recorder};
use weir_ledger::{Ledger, Output, Shape, Target, encode};
use weir_meter::{
    Chunk, ChunkId, Direction, Flags, Key, Manifest, Measure, Owner, OwnerKind, Record, Totals,
};

const ROUNDS: u64 = 5;
/// Chunks of a round, and subscribers in each; a subscriber has four records.
const CHUNKS: u32 = 8;
const SUBSCRIBERS: u32 = 12_500;

fn chunk(period: u64, number: u32) -> Chunk {
    let owner = |at: u32| {
        let name = number * SUBSCRIBERS + at;
        Owner {
            kind: OwnerKind::Session,
            subscriber: format!("subscriber-{name}@example.net"),
            session: format!("radius/192.0.2.1/nas-7/{name:08x}/1796040000"),
            keys: vec![Key::Ipv4((0x0a00_0000 + name).into())],
            class: vec![b"gold".to_vec()],
            chargeable_user: None,
            started_unix_ns: 0,
            reported: None,
        }
    };
    let record = |at: u32, service: u16, direction| Record {
        owner: at,
        service,
        direction,
        flags: Flags::default(),
        counts: vec![u64::from(at) + 1, (u64::from(at) + 1) * 700],
    };
    let records: Vec<Record> = (0..SUBSCRIBERS)
        .flat_map(|at| {
            [0, 1].into_iter().flat_map(move |service| {
                [Direction::Up, Direction::Down].map(|it| record(at, service, it))
            })
        })
        .collect();
    let mut totals = Totals::default();
    for record in &records {
        totals.packets[record.direction as usize] += record.counts[0];
        totals.bytes[record.direction as usize] += record.counts[1];
    }
    let measure = |name: &str| Measure {
        name: name.to_owned(),
        additive: true,
    };
    let start = period as i64 * 300_000_000_000;
    Chunk {
        manifest: Manifest {
            id: ChunkId {
                counter: "pop-1".to_owned(),
                boot_epoch: 1,
                period,
                number,
            },
            last: number + 1 == CHUNKS,
            monotonic_ns: [0, 1],
            unix_ns: [start, start + 300_000_000_000],
            wall_step_ns: 0,
            records: records.len() as u32,
            totals,
            link: totals,
            lost_inside: 0,
            gap_unix_ns: None,
            interfaces: Vec::new(),
            previous: [0; 32],
        },
        measures: vec![measure("packets"), measure("bytes")],
        services: vec!["web".to_owned(), "other".to_owned()],
        owners: (0..SUBSCRIBERS).map(owner).collect(),
        records,
    }
}

fn main() {
    let results = recorder!();
    let Some(server) = Postgres::start() else {
        return;
    };
    let folder = std::env::temp_dir().join(format!("weir-bench-pg-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut ledger = Ledger::open(&folder.join("ledger")).expect("a ledger");
    let output = Output {
        name: "db".to_owned(),
        target: Target::Postgres {
            connection: server.connection(),
            table: "usage".to_owned(),
        },
        shape: Shape::default(),
    };
    let mut client = postgres::Client::connect(&server.connection(), postgres::NoTls)
        .expect("the server answers");
    let rows = f64::from(CHUNKS * SUBSCRIBERS * 4);
    let mut best = [0.0_f64; 2];
    for round in 0..ROUNDS {
        for number in 0..CHUNKS {
            ledger
                .accept(&encode(&chunk(round, number)))
                .expect("accepted");
        }
        let began = Instant::now();
        let delivered = ledger.deliver(&output).expect("delivered");
        let ours = rows / began.elapsed().as_secs_f64();
        assert_eq!(
            delivered.iter().map(|it| it.records).sum::<u64>() as f64,
            rows
        );
        let mut bytes = Vec::new();
        let same =
            format!("COPY (SELECT * FROM usage WHERE period = {round}) TO STDOUT (FORMAT binary)");
        client
            .copy_out(&same)
            .expect("the rows are read")
            .read_to_end(&mut bytes)
            .expect("whole");
        client
            .batch_execute("CREATE TABLE IF NOT EXISTS raw (LIKE usage)")
            .expect("a table");
        let began = Instant::now();
        let mut transaction = client.transaction().expect("a transaction");
        let mut copy = transaction
            .copy_in("COPY raw FROM STDIN (FORMAT binary)")
            .expect("a copy");
        for part in bytes.chunks(1 << 16) {
            copy.write_all(part).expect("sent");
        }
        copy.finish().expect("copied");
        transaction.commit().expect("committed");
        let raw = rows / began.elapsed().as_secs_f64();
        println!(
            "round {round}: output {ours:.0} rows/s, raw COPY {raw:.0} rows/s, {:.2}",
            ours / raw
        );
        best = [best[0].max(ours), best[1].max(raw)];
    }
    println!(
        "best: output {:.0} rows/s, raw COPY {:.0} rows/s, {:.2}",
        best[0],
        best[1],
        best[0] / best[1]
    );
    results.record("output", best[0], Unit::PerSecond("rows"), Bar::None);
    results.record("raw COPY", best[1], Unit::PerSecond("rows"), Bar::None);
    results.record(
        "output, of raw COPY",
        best[0] / best[1],
        Unit::RateOf("raw COPY"),
        Bar::AtLeast(0.8),
    );
    drop(ledger);
    let _ = std::fs::remove_dir_all(&folder);
}
