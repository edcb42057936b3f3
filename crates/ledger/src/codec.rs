//! The bytes of a chunk: eight of magic and version, then postcard's encoding of [`Chunk`].
//!
//! postcard writes integers as LEB128: a row of two measures takes about ten bytes.

use crate::LedgerError;
use crate::error::name;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use weir_meter::sessions::KEYS_MAX;
use weir_meter::{Chunk, ChunkId, Key, Manifest, Measure, Owner, OwnerKind, Record, Totals};

/// The largest chunk that is accepted, in bytes: about six million rows.
pub const CHUNK_BYTES_MAX: usize = 64 << 20;

/// The largest count: SQLite's integers are signed.
const COUNT_MAX: u64 = i64::MAX as u64;

/// "weirchk" and the version.
const MAGIC: &[u8; 8] = b"weirchk\x03";
/// Of chunks whose manifests have no counts of interfaces: those that spools of earlier versions
/// hold.
const MAGIC_2: &[u8; 8] = b"weirchk\x02";
/// Of chunks whose owners have no reported counts either.
const MAGIC_1: &[u8; 8] = b"weirchk\x01";

/// A chunk as bytes, with their hash.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Their SHA-256: what the next chunk names as `previous`.
    pub hash: [u8; 32],
}

impl Encoded {
    /// Bytes that came from elsewhere, not yet checked.
    pub fn of(bytes: Vec<u8>) -> Encoded {
        let hash = Sha256::digest(&bytes).into();
        Encoded { bytes, hash }
    }
}

/// The bytes of a chunk.
pub fn encode(chunk: &Chunk) -> Encoded {
    let bytes = postcard::to_extend(chunk, MAGIC.to_vec());
    Encoded::of(bytes.expect("a vector takes all of a chunk"))
}

/// The chunk of these bytes, whatever they are.
///
/// # Errors
///
/// If they are no chunk, or one that contradicts itself: an index beyond its table, another number
/// of measures, records or another sum than its manifest says; or if a count is beyond 63 bits, which
/// is all that SQLite's sums have, or an owner is larger than any counter makes one.
pub fn decode(bytes: &[u8]) -> Result<Chunk, LedgerError> {
    let damaged = |id: String, why: &str| LedgerError::Damaged {
        id,
        why: why.to_owned(),
    };
    let unknown = || "of unknown identity".to_owned();
    if bytes.len() > CHUNK_BYTES_MAX {
        return Err(damaged(unknown(), "longer than 64 MiB"));
    }
    let unread = |error: postcard::Error| damaged(unknown(), &error.to_string());
    let (chunk, rest) = if let Some(body) = bytes.strip_prefix(MAGIC) {
        postcard::take_from_bytes::<Chunk>(body).map_err(unread)?
    } else if let Some(body) = bytes.strip_prefix(MAGIC_2) {
        let (chunk, rest) = postcard::take_from_bytes::<Chunk2>(body).map_err(unread)?;
        (chunk.into(), rest)
    } else if let Some(body) = bytes.strip_prefix(MAGIC_1) {
        let (chunk, rest) = postcard::take_from_bytes::<Chunk1>(body).map_err(unread)?;
        (chunk.into(), rest)
    } else {
        let why = "it does not begin as a chunk of version 1, 2 or 3";
        return Err(damaged(unknown(), why));
    };
    let wrong = |why: &str| Err(damaged(name(&chunk.manifest.id), why));
    if !rest.is_empty() {
        return wrong("bytes behind its end");
    }
    let (owners, services) = (chunk.owners.len(), chunk.services.len());
    let fits = |index: usize, of: usize| index < of;
    for record in &chunk.records {
        if !fits(record.owner as usize, owners) || !fits(record.service.into(), services) {
            return wrong("a record names an owner or a service that the chunk lacks");
        }
        if record.counts.len() != chunk.measures.len() {
            return wrong("a record has not one count a measure");
        }
        if record.counts.iter().any(|count| *count > COUNT_MAX) {
            return wrong("a count is beyond 63 bits");
        }
    }
    if chunk.manifest.records as usize != chunk.records.len() {
        return wrong("its manifest gives another number of records");
    }
    for owner in &chunk.owners {
        let class: usize = owner.class.iter().map(Vec::len).sum();
        if owner.keys.len() > KEYS_MAX || class > Owner::CLASS_BYTES_MAX {
            return wrong("an owner has more than 256 keys or 4,096 bytes of Class attributes");
        }
    }
    let Manifest { totals, link, .. } = &chunk.manifest;
    let all = [totals.packets, totals.bytes, link.packets, link.bytes];
    if all.as_flattened().iter().any(|total| *total > COUNT_MAX) {
        return wrong("a total is beyond 63 bits");
    }
    match sums(&chunk) {
        Some(sums) if sums == chunk.manifest.totals => Ok(chunk),
        _ => wrong("its records do not add up to the totals of its manifest"),
    }
}

/// A chunk of version 2.
#[derive(Deserialize)]
struct Chunk2 {
    manifest: Manifest2,
    measures: Vec<Measure>,
    services: Vec<String>,
    owners: Vec<Owner>,
    records: Vec<Record>,
}

impl From<Chunk2> for Chunk {
    fn from(chunk: Chunk2) -> Chunk {
        Chunk {
            manifest: chunk.manifest.into(),
            measures: chunk.measures,
            services: chunk.services,
            owners: chunk.owners,
            records: chunk.records,
        }
    }
}

/// The manifest of versions 1 and 2.
#[derive(Deserialize)]
struct Manifest2 {
    id: ChunkId,
    last: bool,
    monotonic_ns: [u64; 2],
    unix_ns: [i64; 2],
    wall_step_ns: i64,
    records: u32,
    totals: Totals,
    link: Totals,
    lost_inside: u64,
    gap_unix_ns: Option<[i64; 2]>,
    previous: [u8; 32],
}

impl From<Manifest2> for Manifest {
    fn from(old: Manifest2) -> Manifest {
        Manifest {
            id: old.id,
            last: old.last,
            monotonic_ns: old.monotonic_ns,
            unix_ns: old.unix_ns,
            wall_step_ns: old.wall_step_ns,
            records: old.records,
            totals: old.totals,
            link: old.link,
            lost_inside: old.lost_inside,
            gap_unix_ns: old.gap_unix_ns,
            interfaces: Vec::new(),
            previous: old.previous,
        }
    }
}

/// A chunk of version 1.
#[derive(Deserialize)]
struct Chunk1 {
    manifest: Manifest2,
    measures: Vec<Measure>,
    services: Vec<String>,
    owners: Vec<Owner1>,
    records: Vec<Record>,
}

#[derive(Deserialize)]
struct Owner1 {
    kind: OwnerKind,
    subscriber: String,
    session: String,
    keys: Vec<Key>,
    class: Vec<Vec<u8>>,
    chargeable_user: Option<Vec<u8>>,
    started_unix_ns: i64,
}

impl From<Chunk1> for Chunk {
    fn from(chunk: Chunk1) -> Chunk {
        let owners = chunk.owners.into_iter().map(|owner| Owner {
            kind: owner.kind,
            subscriber: owner.subscriber,
            session: owner.session,
            keys: owner.keys,
            class: owner.class,
            chargeable_user: owner.chargeable_user,
            started_unix_ns: owner.started_unix_ns,
            reported: None,
        });
        Chunk {
            manifest: chunk.manifest.into(),
            measures: chunk.measures,
            services: chunk.services,
            owners: owners.collect(),
            records: chunk.records,
        }
    }
}

/// The sums of a chunk's packets and bytes by direction; none if a sum is beyond 64 bits.
pub(crate) fn sums(chunk: &Chunk) -> Option<Totals> {
    let column = |name: &str| {
        chunk
            .measures
            .iter()
            .position(|measure| measure.name == name)
    };
    let (packets, bytes) = (column("packets"), column("bytes"));
    let mut sums = Totals::default();
    for record in &chunk.records {
        let direction = record.direction as usize;
        for (sum, column) in [
            (&mut sums.packets[direction], packets),
            (&mut sums.bytes[direction], bytes),
        ] {
            let Some(count) = column.map(|at| record.counts[at]) else {
                continue;
            };
            *sum = sum.checked_add(count)?;
        }
    }
    Some(sums)
}
