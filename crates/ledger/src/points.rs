//! Points: where traffic is charged, and which counters see it there.
//!
//! A packet may cross several counters. A point says which of their records are charged: those of one
//! counter (`charge`), or of several that lie in parallel, so that a packet crosses one of them
//! (`sum`). An `audit` counter sees the same packets once more. Its records are never charged beside
//! the others: they are compared, and stand in where a charging counter has a gap.

use crate::ledger::insert;
use crate::store::{immediate, of};
use crate::{Ledger, LedgerError, encode};
use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;
use std::collections::BTreeMap;
use weir_meter::{
    Chunk, ChunkId, Direction, Flags, Manifest, Measure, Owner, OwnerKind, Record, Totals,
};

/// The purpose of a counter's records, at its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// They are charged.
    Charge,
    /// They are charged, with those of the point's other counters of this role.
    Sum,
    /// They are compared with what is charged, and fill its gaps.
    Audit,
}

impl Role {
    /// The role's name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Charge => "charge",
            Role::Sum => "sum",
            Role::Audit => "audit",
        }
    }

    /// The role of this name.
    pub fn of_name(name: &str) -> Option<Role> {
        let all = [Role::Charge, Role::Sum, Role::Audit];
        all.into_iter().find(|role| role.name() == name)
    }
}

/// Counters that see the same traffic. One that no point names is charged by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Its name.
    pub name: String,
    /// Counters and their roles.
    pub counters: Vec<(String, Role)>,
}

impl Point {
    /// The counters whose records are charged, and the fills of their gaps.
    fn charging(&self) -> Vec<String> {
        let counters = self.counters.iter();
        let charging = counters.filter(|(_, role)| *role != Role::Audit);
        let mut charging: Vec<String> = charging.map(|(counter, _)| counter.clone()).collect();
        charging.push(fill_counter(&self.name));
        charging
    }

    fn audits(&self) -> impl Iterator<Item = &String> {
        let counters = self.counters.iter();
        counters.filter_map(|(counter, role)| (*role == Role::Audit).then_some(counter))
    }
}

/// The counter that records bear that fill gaps: no other counter's name has a colon.
pub fn fill_counter(point: &str) -> String {
    format!("{point}:fill")
}

/// A row in which what is charged and what an audit counter has seen are not the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditRow {
    /// The point.
    pub point: String,
    /// The audit counter.
    pub audit: String,
    /// Whose traffic.
    pub owner: OwnerKind,
    /// The subscriber; of unattributed traffic the key.
    pub subscriber: String,
    /// The service.
    pub service: String,
    /// The direction.
    pub direction: Direction,
    /// Packets that are charged, and that the audit counter has.
    pub packets: [u64; 2],
    /// Bytes, likewise.
    pub bytes: [u64; 2],
}

/// The comparison of an audit counter with what is charged at its point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// The point.
    pub point: String,
    /// The audit counter.
    pub audit: String,
    /// The time that both have periods of, Unix nanoseconds; `None` if there is none.
    pub unix_ns: Option<[i64; 2]>,
    /// Totals that are charged.
    pub charged: Totals,
    /// Totals of the audit counter.
    pub audited: Totals,
    /// Where they differ.
    pub differences: Vec<AuditRow>,
}

/// Whose traffic of which service in which direction: kind of owner, subscriber or key as JSON, service,
/// direction.
type Key = (i64, String, String, u8);

/// Packets, bytes, and one of the owners.
type Sums = BTreeMap<Key, ([u64; 2], i64)>;

/// A span of time, Unix nanoseconds.
type Span = [i64; 2];

/// How far ends of periods of different counters may lie apart and be the same: 1 s.
const SLACK_NS: i64 = 1_000_000_000;

impl Ledger {
    /// Says which counters see the same traffic, in place of what was said before. What outputs have
    /// had already stays as it was.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn set_points(&mut self, points: &[Point]) -> Result<(), LedgerError> {
        if self.points()? == points {
            return Ok(());
        }
        let path = self.path.clone();
        let mut set = || {
            let transaction = immediate(&mut self.db)?;
            transaction.execute("DELETE FROM role", [])?;
            for point in points {
                for (counter, role) in &point.counters {
                    transaction.execute(
                        "INSERT OR REPLACE INTO role (counter, point, role) VALUES (?1, ?2, ?3)",
                        params![counter, point.name, role.name()],
                    )?;
                }
            }
            transaction.commit()
        };
        set().map_err(of(&path))?;
        self.looked_to = -1;
        Ok(())
    }

    /// The points, in the order of their names.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn points(&self) -> Result<Vec<Point>, LedgerError> {
        let rows = self
            .db
            .prepare_cached("SELECT point, counter, role FROM role ORDER BY point, counter")
            .and_then(|mut select| {
                let rows = select.query_map([], |row| {
                    let role: String = row.get(2)?;
                    Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, role))
                })?;
                rows.collect::<rusqlite::Result<Vec<_>>>()
            });
        let mut points: Vec<Point> = Vec::new();
        for (name, counter, role) in rows.map_err(of(&self.path))? {
            let role = Role::of_name(&role).unwrap_or(Role::Charge);
            match points.last_mut() {
                Some(point) if point.name == name => point.counters.push((counter, role)),
                _ => points.push(Point {
                    name,
                    counters: vec![(counter, role)],
                }),
            }
        }
        Ok(points)
    }

    /// Fills the gaps of charging counters, as soon as the audit counter and all charging counters have
    /// periods of a later time: with what the audit counter has more than they, for each subscriber,
    /// service and direction, in the periods around the gap. The records have the flag
    /// [`Flags::FROM_AUDIT`]. Gives the number of gaps.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn fill_gaps(&mut self) -> Result<u64, LedgerError> {
        let path = self.path.clone();
        let last = self
            .db
            .query_row("SELECT coalesce(max(sequence), 0) FROM chunk", [], |row| {
                row.get(0)
            })
            .map_err(of(&path))?;
        // Nothing new has come.
        if last == self.looked_to {
            return Ok(0);
        }
        let points = self.points()?;
        let mut filled = 0;
        for point in points {
            let Some(audit) = point.audits().next() else {
                continue;
            };
            let gaps = gaps(&self.db, &point).map_err(of(&path))?;
            for (counter, gap) in gaps {
                let mut fill = || {
                    let transaction = immediate(&mut self.db)?;
                    let done = fill_gap(&transaction, &point, audit, &counter, gap)?;
                    transaction.commit()?;
                    Ok(done)
                };
                filled += u64::from(fill().map_err(of(&path))?);
            }
        }
        self.looked_to = last;
        Ok(filled)
    }

    /// Compares what is charged at each point with each audit counter, in the periods within these Unix
    /// times in nanoseconds that both have. Half of a period or more within counts as within.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn audit(&self, since: Option<i64>, until: Option<i64>) -> Result<Vec<Audit>, LedgerError> {
        let error = of(&self.path);
        let mut audits = Vec::new();
        for point in self.points()? {
            for audit in point.audits() {
                audits.push(compare(&self.db, &point, audit, [since, until]).map_err(&error)?);
            }
        }
        Ok(audits)
    }
}

/// First start and last end of the periods of some counters.
fn extent(db: &Connection, counters: &[String]) -> rusqlite::Result<Option<Span>> {
    let mut select =
        db.prepare_cached("SELECT min(start_ns), max(end_ns) FROM chunk WHERE counter = ?1")?;
    let mut extent: Option<Span> = None;
    for counter in counters {
        let (start, end): (Option<i64>, Option<i64>) =
            select.query_row([counter], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if let Some((start, end)) = start.zip(end) {
            let [first, last] = extent.unwrap_or([start, end]);
            extent = Some([first.min(start), last.max(end)]);
        }
    }
    Ok(extent)
}

fn compare(
    db: &Connection,
    point: &Point,
    audit: &str,
    [since, until]: [Option<i64>; 2],
) -> rusqlite::Result<Audit> {
    let charging = point.charging();
    let audit_only = [audit.to_owned()];
    let both = extent(db, &charging)?.zip(extent(db, &audit_only)?);
    let span = both.map(|(a, b)| {
        [
            a[0].max(b[0]).max(since.unwrap_or(i64::MIN)),
            a[1].min(b[1]).min(until.unwrap_or(i64::MAX)),
        ]
    });
    let span = span.filter(|[start, end]| start <= end);
    let mut comparison = Audit {
        point: point.name.clone(),
        audit: audit.to_owned(),
        unix_ns: span,
        charged: Totals::default(),
        audited: Totals::default(),
        differences: Vec::new(),
    };
    let Some(span) = span else {
        return Ok(comparison);
    };
    let charged = sums(db, &charging, span, Which::Middle)?;
    let audited = sums(db, &audit_only, span, Which::Middle)?;
    add_all(&mut comparison.charged, &charged);
    add_all(&mut comparison.audited, &audited);
    let mut keys: Vec<&Key> = charged.keys().chain(audited.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let side = |sums: &Sums| sums.get(key).map(|(counts, _)| *counts).unwrap_or_default();
        let (a, b) = (side(&charged), side(&audited));
        if a != b {
            let (kind, subscriber, service, direction) = key;
            comparison.differences.push(AuditRow {
                point: point.name.clone(),
                audit: audit.to_owned(),
                owner: crate::usage::kind(*kind),
                subscriber: name_of(*kind, subscriber),
                service: service.clone(),
                direction: direction_of(*direction),
                packets: [a[0], b[0]],
                bytes: [a[1], b[1]],
            });
        }
    }
    Ok(comparison)
}

fn direction_of(number: u8) -> Direction {
    if number == 0 {
        Direction::Up
    } else {
        Direction::Down
    }
}

/// The subscriber's name, or the key of unattributed traffic as text.
fn name_of(kind: i64, text: &str) -> String {
    if kind != 1 {
        return text.to_owned();
    }
    let key: Option<weir_meter::Key> = serde_json::from_str(text).ok();
    key.map(|key| key.to_string()).unwrap_or_default()
}

fn add_all(totals: &mut Totals, sums: &Sums) {
    for ((_, _, _, direction), ([packets, bytes], _)) in sums {
        let direction = usize::from(*direction & 1);
        totals.packets[direction] = totals.packets[direction].saturating_add(*packets);
        totals.bytes[direction] = totals.bytes[direction].saturating_add(*bytes);
    }
}

/// Which periods belong to a span.
#[derive(Clone, Copy)]
enum Which {
    /// Those whose middle is in the span.
    Middle,
    /// Those that have any time in common with the span.
    Overlap,
}

/// Sums of some counters over the periods that belong to a span.
fn sums(
    db: &Connection,
    counters: &[String],
    [start, end]: Span,
    which: Which,
) -> rusqlite::Result<Sums> {
    let belongs = match which {
        Which::Middle => "chunk.start_ns / 2 + chunk.end_ns / 2 BETWEEN ?2 AND ?3",
        Which::Overlap => "chunk.start_ns < ?3 AND chunk.end_ns > ?2",
    };
    let mut select = db.prepare_cached(&format!(
        "SELECT owner.kind,
                CASE owner.kind WHEN 1 THEN coalesce(json_extract(owner.owner, '$.keys[0]'), '')
                     ELSE owner.subscriber END,
                service.name, usage.direction,
                sum(usage.packets), sum(usage.bytes), min(owner.id)
         FROM chunk
         JOIN usage ON usage.chunk = chunk.sequence
         JOIN owner ON owner.id = usage.owner
         JOIN service ON service.id = usage.service
         WHERE chunk.counter = ?1 AND {belongs}
         GROUP BY 1, 2, 3, 4",
    ))?;
    let mut sums = Sums::new();
    for counter in counters {
        let mut rows = select.query(params![counter, start, end])?;
        while let Some(row) = rows.next()? {
            let key = (
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                row.get::<_, u8>(3)? & 1,
            );
            let (packets, bytes): (i64, i64) = (row.get(4)?, row.get(5)?);
            let (sum, owner) = sums.entry(key).or_insert(([0; 2], row.get(6)?));
            sum[0] += packets.cast_unsigned();
            sum[1] += bytes.cast_unsigned();
            *owner = row.get(6)?;
        }
    }
    Ok(sums)
}

/// The gaps of a point's charging counters that are not filled.
fn gaps(db: &Connection, point: &Point) -> rusqlite::Result<Vec<(String, Span)>> {
    let mut select = db.prepare_cached(
        "SELECT json_extract(manifest, '$.gap_unix_ns[0]'), json_extract(manifest, '$.gap_unix_ns[1]')
         FROM chunk WHERE counter = ?1 AND number = 0
           AND json_extract(manifest, '$.gap_unix_ns[1]') IS NOT NULL
         ORDER BY start_ns",
    )?;
    let mut is_filled = db.prepare_cached(
        "SELECT 1 FROM filled WHERE counter = ?1 AND from_ns = ?2 AND to_ns = ?3",
    )?;
    let mut gaps = Vec::new();
    for counter in point.charging() {
        let found = select
            .query_map([&counter], |row| Ok([row.get(0)?, row.get(1)?]))?
            .collect::<rusqlite::Result<Vec<Span>>>()?;
        for gap in found {
            if gap[0] < gap[1] && !is_filled.exists(params![counter, gap[0], gap[1]])? {
                gaps.push((counter.clone(), gap));
            }
        }
    }
    Ok(gaps)
}

/// The least span around a gap at whose ends periods of all these counters end, but for the slack.
fn window(db: &Connection, counters: &[String], gap: Span) -> rusqlite::Result<Span> {
    let mut select = db.prepare_cached(
        "SELECT min(start_ns), max(end_ns) FROM chunk
         WHERE counter = ?1 AND start_ns < ?3 - ?4 AND end_ns > ?2 + ?4",
    )?;
    let mut window = gap;
    loop {
        let before = window;
        for counter in counters {
            // A gap shorter than the slack is widened at first.
            let slack = SLACK_NS.min((window[1] - window[0]) / 2);
            let (start, end): (Option<i64>, Option<i64>) = select
                .query_row(params![counter, window[0], window[1], slack], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
            if let Some((start, end)) = start.zip(end) {
                window = [window[0].min(start), window[1].max(end)];
            }
        }
        if window == before {
            return Ok(window);
        }
    }
}

/// Whether the gap was filled: not yet if periods are awaited.
fn fill_gap(
    db: &Connection,
    point: &Point,
    audit: &str,
    counter: &str,
    gap: Span,
) -> rusqlite::Result<bool> {
    let charging = point.charging();
    let fills = fill_counter(&point.name);
    let audit_only = [audit.to_owned()];
    let all: Vec<String> = charging
        .iter()
        .filter(|it| **it != fills)
        .chain(&audit_only)
        .cloned()
        .collect();
    let window = window(db, &all, gap)?;
    for one in &all {
        let last = extent(db, std::slice::from_ref(one))?;
        if last.is_none_or(|[_, end]| end < window[1] - SLACK_NS) {
            return Ok(false);
        }
    }
    let audited = sums(db, &audit_only, window, Which::Middle)?;
    let charged = sums(db, &all[..all.len() - 1], window, Which::Middle)?;
    // Whatever was filled in that time already counts, too: never is it filled twice.
    let filled = sums(db, std::slice::from_ref(&fills), window, Which::Overlap)?;
    let mut missing = Vec::new();
    for (key, (audited, owner)) in &audited {
        let side = |sums: &Sums| sums.get(key).map(|(counts, _)| *counts).unwrap_or_default();
        let (charged, filled) = (side(&charged), side(&filled));
        let more = [0, 1].map(|at: usize| {
            let counted = charged[at].saturating_add(filled[at]);
            audited[at].saturating_sub(counted)
        });
        if more[0] > 0 {
            missing.push((key, more, *owner));
        }
    }
    if !missing.is_empty() {
        let chunk = fill_chunk(db, fills, window, &missing)?;
        let encoded = encode(&chunk);
        insert(db, &chunk, &encoded.hash)?;
    }
    db.execute(
        "INSERT INTO filled (counter, from_ns, to_ns) VALUES (?1, ?2, ?3)",
        params![counter, gap[0], gap[1]],
    )?;
    Ok(true)
}

/// A chunk with what is missing, as the next period of the counter of fills.
fn fill_chunk(
    db: &Connection,
    counter: String,
    window: Span,
    missing: &[(&Key, [u64; 2], i64)],
) -> rusqlite::Result<Chunk> {
    let last: Option<(i64, [u8; 32])> = db
        .query_row(
            "SELECT period, hash FROM chunk WHERE counter = ?1 ORDER BY period DESC LIMIT 1",
            [&counter],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    let measure = |name: &str| Measure {
        name: name.to_owned(),
        additive: true,
    };
    let mut totals = Totals::default();
    let (mut owners, mut services, mut records) = (Vec::new(), Vec::<String>::new(), Vec::new());
    for ((_, _, service, direction), counts, owner) in missing {
        let json: String =
            db.query_row("SELECT owner FROM owner WHERE id = ?1", [owner], |row| {
                row.get(0)
            })?;
        let owner: Owner = serde_json::from_str(&json).map_err(|error| {
            let kind = rusqlite::types::Type::Text;
            rusqlite::Error::FromSqlConversionFailure(0, kind, Box::new(error))
        })?;
        let at = match services.iter().position(|known| known == service) {
            Some(at) => at,
            None => {
                services.push(service.clone());
                services.len() - 1
            }
        };
        let direction = direction_of(*direction);
        totals.packets[direction as usize] += counts[0];
        totals.bytes[direction as usize] += counts[1];
        records.push(Record {
            owner: owners.len() as u32,
            service: at as u16,
            direction,
            flags: Flags::FROM_AUDIT,
            counts: counts.to_vec(),
        });
        owners.push(owner);
    }
    Ok(Chunk {
        manifest: Manifest {
            id: ChunkId {
                counter,
                boot_epoch: 0,
                period: last.map_or(0, |(period, _)| period.cast_unsigned() + 1),
                number: 0,
            },
            last: true,
            monotonic_ns: [0; 2],
            unix_ns: window,
            wall_step_ns: 0,
            records: records.len() as u32,
            totals,
            link: totals,
            lost_inside: 0,
            gap_unix_ns: None,
            interfaces: Vec::new(),
            previous: last.map_or([0; 32], |(_, hash)| hash),
        },
        measures: vec![measure("packets"), measure("bytes")],
        services,
        owners,
        records,
    })
}
