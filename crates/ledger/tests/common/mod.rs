//! What tests of the ledger share.

#![allow(dead_code, unreachable_pub)] // Each test uses some of it.

use std::fs;
use std::path::{Path, PathBuf};
use weir_ledger::{Format, Output, Shape, Target};
use weir_meter::{
    Chunk, ChunkId, Direction, Flags, Key, Manifest, Measure, Owner, OwnerKind, Record, Totals,
};

/// A folder that goes with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let folder =
            std::env::temp_dir().join(format!("weir-ledger-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub const MINUTE: i64 = 60_000_000_000;

/// A period's chunk: alice with one record a direction, and an address without an owner.
pub fn chunk(period: u64, start: i64, packets: u64) -> Chunk {
    let owner = |kind, subscriber: &str, key| Owner {
        kind,
        subscriber: subscriber.to_owned(),
        session: "nas/1".to_owned(),
        keys: vec![key],
        class: vec![b"gold".to_vec()],
        chargeable_user: None,
        started_unix_ns: 0,
        reported: None,
    };
    let record = |owner, direction, packets| Record {
        owner,
        service: 0,
        direction,
        flags: Flags::default(),
        counts: vec![packets, packets * 100, 3],
    };
    let totals = Totals {
        packets: [packets + 1, packets],
        bytes: [(packets + 1) * 100, packets * 100],
    };
    let measure = |name: &str, additive| Measure {
        name: name.to_owned(),
        additive,
    };
    Chunk {
        manifest: Manifest {
            id: ChunkId {
                counter: "pop-1".to_owned(),
                boot_epoch: u64::MAX - 1,
                period,
                number: 0,
            },
            last: true,
            monotonic_ns: [0, 1],
            unix_ns: [start, start + MINUTE],
            wall_step_ns: 0,
            records: 3,
            totals,
            link: totals,
            lost_inside: 0,
            gap_unix_ns: None,
            interfaces: Vec::new(),
            previous: [0; 32],
        },
        measures: vec![
            measure("packets", true),
            measure("bytes", true),
            measure("peak", false),
        ],
        services: vec!["web".to_owned()],
        owners: vec![
            owner(
                OwnerKind::Session,
                "alice",
                Key::Ipv4([192, 0, 2, 1].into()),
            ),
            owner(
                OwnerKind::Unattributed,
                "",
                Key::Ipv4([192, 0, 2, 9].into()),
            ),
        ],
        records: vec![
            record(0, Direction::Up, packets),
            record(0, Direction::Down, packets),
            record(1, Direction::Up, 1),
        ],
    }
}

/// An output of files.
pub fn files(name: &str, format: Format, folder: &Path) -> Output {
    Output {
        name: name.to_owned(),
        target: Target::Files {
            format,
            folder: folder.to_owned(),
        },
        shape: Shape::default(),
    }
}
