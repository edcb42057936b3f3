//! The lines of an output: the records of a chunk, shaped.

use super::given::{Given, count};
use super::shape::{Column, Shape};
use crate::store::of;
use crate::usage::span;
use crate::{Ledger, LedgerError};
use rusqlite::{OptionalExtension, params};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use weir_meter::{Direction, Flags, Key, Manifest, Owner, OwnerKind, Totals};

/// A record as outputs have it.
#[derive(Clone, Debug)]
pub(super) struct Line<'a> {
    pub(super) chunk: &'a ChunkLine,
    /// The record's number in its chunk; of an aggregate, its own.
    pub(super) record: u64,
    pub(super) owner: Option<OwnerKind>,
    pub(super) subscriber: &'a str,
    pub(super) session: &'a str,
    /// The session's keys, separated by blanks.
    pub(super) keys: &'a str,
    pub(super) first_key: Option<Key>,
    /// Hexadecimal.
    pub(super) class: &'a str,
    pub(super) chargeable_user: &'a str,
    pub(super) service: &'a str,
    pub(super) direction: Option<Direction>,
    pub(super) flags: Flags,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// The access server's counts of the session so far in the direction: packets, bytes.
    pub(super) reported: Option<[u64; 2]>,
    /// The other measures, as a JSON object; empty without any.
    pub(super) more: &'a str,
}

/// The common part of a chunk's lines.
#[derive(Clone, Debug)]
pub(super) struct ChunkLine {
    pub(super) counter: String,
    pub(super) boot_epoch: u64,
    /// Hexadecimal, since it may be beyond the whole numbers of JSON readers.
    pub(super) boot_epoch_hex: String,
    pub(super) period: u64,
    pub(super) number: u32,
    pub(super) unix_ns: [i64; 2],
    /// RFC 3339, UTC.
    pub(super) times: [String; 2],
}

/// An owner as lines have it.
struct OwnerText {
    kind: OwnerKind,
    subscriber: String,
    session: String,
    keys: String,
    first_key: Option<Key>,
    class: String,
    chargeable_user: String,
    is_accepted: bool,
}

/// Owners that are remembered from chunk to chunk at most.
const OWNERS_MAX: usize = 100_000;

/// State of reading lines from chunk to chunk.
#[derive(Default)]
pub(super) struct Memory {
    owners: HashMap<i64, Rc<OwnerText>>,
    services: HashMap<i64, Rc<str>>,
    maxima: Option<HashSet<String>>,
    pub(super) given: Given,
}

/// Columns that distinguish aggregates.
type Group = (
    Option<(u8, String)>,
    Option<(String, String, String, String)>,
    Option<String>,
    Option<Direction>,
);

#[derive(Default)]
struct Sum {
    flags: Flags,
    packets: u64,
    bytes: u64,
    more: BTreeMap<String, u64>,
    first_key: Option<Key>,
}

impl Ledger {
    /// Hands over each line that the shape makes of a chunk, and adds them to what was given. Gives the
    /// number of lines.
    pub(super) fn lines(
        &self,
        sequence: i64,
        shape: &Shape,
        memory: &mut Memory,
        take: &mut dyn FnMut(&Line<'_>) -> Result<(), LedgerError>,
    ) -> Result<u64, LedgerError> {
        let error = of(&self.path);
        let manifest = self.manifest(sequence)?;
        let id = &manifest.id;
        let key = (id.counter.clone(), id.boot_epoch, id.period);
        memory.given.in_part |= shape.is_in_part();
        if self.is_audit(&id.counter).map_err(&error)? {
            memory.given.skipped.push(key);
            return Ok(0);
        }
        if !shape.filter.accepts_counter(&id.counter) {
            return Ok(0);
        }
        let late = self.is_late(sequence, &id.counter, manifest.unix_ns[0]);
        let late = if late.map_err(&error)? {
            Flags::ADJUSTMENT
        } else {
            Flags::default()
        };
        let chunk = chunk_line(&manifest, shape)?;
        let mut totals = Totals::default();
        let mut lines = 0;
        let mut put = |line: &Line<'_>| {
            count(&mut totals, line.direction, line.packets, line.bytes);
            lines += 1;
            take(line)
        };
        match &shape.by {
            None => self.each(sequence, shape, memory, &chunk, &mut |line| {
                put(&Line {
                    flags: line.flags.with(late),
                    ..line.clone()
                })
            })?,
            Some(by) => {
                let mut sums: BTreeMap<Group, Sum> = BTreeMap::new();
                let maxima = match memory.maxima.take() {
                    Some(maxima) => maxima,
                    None => self.maxima().map_err(&error)?,
                };
                self.each(sequence, shape, memory, &chunk, &mut |line| {
                    let sum = sums.entry(group(line, by)).or_default();
                    sum.add(line, &maxima);
                    Ok(())
                })?;
                memory.maxima = Some(maxima);
                for ((group, sum), record) in sums.iter().zip(0..) {
                    let more = if sum.more.is_empty() {
                        String::new()
                    } else {
                        serde_json::to_string(&sum.more).expect("counts are JSON")
                    };
                    put(&aggregate(group, sum, &chunk, record, &more, late))?;
                }
            }
        }
        memory.given.periods.push((key, totals));
        Ok(lines)
    }

    pub(super) fn manifest(&self, sequence: i64) -> Result<Manifest, LedgerError> {
        let manifest: String = self
            .db
            .prepare_cached("SELECT manifest FROM chunk WHERE sequence = ?1")
            .and_then(|mut select| select.query_row([sequence], |row| row.get(0)))
            .map_err(of(&self.path))?;
        serde_json::from_str(&manifest).map_err(|why| self.damaged(sequence, &why))
    }

    fn damaged(&self, sequence: i64, why: &serde_json::Error) -> LedgerError {
        LedgerError::Damaged {
            id: format!("in row {sequence} of {}", self.path.display()),
            why: why.to_string(),
        }
    }

    fn is_audit(&self, counter: &str) -> rusqlite::Result<bool> {
        self.db
            .prepare_cached("SELECT 1 FROM role WHERE counter = ?1 AND role = 'audit'")?
            .exists([counter])
    }

    /// Whether a later period of the counter came before this chunk.
    fn is_late(&self, sequence: i64, counter: &str, start_ns: i64) -> rusqlite::Result<bool> {
        self.db
            .prepare_cached(
                "SELECT 1 FROM chunk WHERE counter = ?1 AND start_ns > ?2 AND sequence < ?3 LIMIT 1",
            )?
            .exists(params![counter, start_ns, sequence])
    }

    /// Each record that the filter accepts.
    fn each(
        &self,
        sequence: i64,
        shape: &Shape,
        memory: &mut Memory,
        chunk: &ChunkLine,
        take: &mut dyn FnMut(&Line<'_>) -> Result<(), LedgerError>,
    ) -> Result<(), LedgerError> {
        let error = of(&self.path);
        let reported = self.reported(sequence).map_err(&error)?;
        let mut select = self
            .db
            .prepare_cached(
                "SELECT record, owner, service, direction, flags, packets, bytes, more
                 FROM usage WHERE chunk = ?1 ORDER BY record",
            )
            .map_err(&error)?;
        let mut rows = select.query([sequence]).map_err(&error)?;
        while let Some(row) = rows.next().map_err(&error)? {
            let columns = || -> rusqlite::Result<_> {
                Ok((
                    row.get::<_, i64>(0)?.cast_unsigned(),
                    row.get::<_, i64>(1)?,
                    row.get::<_, i64>(2)?,
                    row.get::<_, u8>(3)?,
                    row.get::<_, u8>(4)?,
                    row.get::<_, i64>(5)?.cast_unsigned(),
                    row.get::<_, i64>(6)?.cast_unsigned(),
                    row.get_ref(7)?.as_str_or_null()?.unwrap_or_default(),
                ))
            };
            let (record, owner_id, service, direction, flags, packets, bytes, more) =
                columns().map_err(&error)?;
            let direction = if direction == 0 {
                Direction::Up
            } else {
                Direction::Down
            };
            let owner = self.owner_text(owner_id, sequence, shape, memory)?;
            let service = self.service_name(service, memory).map_err(&error)?;
            if !owner.is_accepted
                || !shape.filter.accepts_service(&service)
                || !shape.filter.accepts_direction(direction)
            {
                continue;
            }
            let at = direction as usize;
            take(&Line {
                chunk,
                record,
                owner: Some(owner.kind),
                subscriber: &owner.subscriber,
                session: &owner.session,
                keys: &owner.keys,
                first_key: owner.first_key,
                class: &owner.class,
                chargeable_user: &owner.chargeable_user,
                service: shape.class(&service),
                direction: Some(direction),
                flags: Flags(flags),
                packets,
                bytes,
                reported: reported.get(&owner_id).map(|it| [it[2 + at], it[at]]),
                more,
            })?;
        }
        Ok(())
    }

    /// The access servers' counts of a chunk's sessions: bytes, then packets, each up then down.
    fn reported(&self, sequence: i64) -> rusqlite::Result<HashMap<i64, [u64; 4]>> {
        let mut select = self.db.prepare_cached(
            "SELECT owner, bytes_up, bytes_down, packets_up, packets_down FROM reported
             WHERE chunk = ?1",
        )?;
        let rows = select.query_map([sequence], |row| {
            let count = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
            Ok((row.get(0)?, [count(1)?, count(2)?, count(3)?, count(4)?]))
        })?;
        rows.collect()
    }

    fn owner_text(
        &self,
        id: i64,
        sequence: i64,
        shape: &Shape,
        memory: &mut Memory,
    ) -> Result<Rc<OwnerText>, LedgerError> {
        if let Some(owner) = memory.owners.get(&id) {
            return Ok(Rc::clone(owner));
        }
        let json: String = self
            .db
            .prepare_cached("SELECT owner FROM owner WHERE id = ?1")
            .and_then(|mut select| select.query_row([id], |row| row.get(0)))
            .map_err(of(&self.path))?;
        let owner: Owner =
            serde_json::from_str(&json).map_err(|why| self.damaged(sequence, &why))?;
        let keys: Vec<String> = owner.keys.iter().map(ToString::to_string).collect();
        let class: Vec<String> = owner.class.iter().map(|class| hex(class)).collect();
        let user = owner.chargeable_user.as_deref().map(hex);
        let text = Rc::new(OwnerText {
            is_accepted: shape.filter.accepts_owner(owner.kind, &owner.subscriber),
            kind: owner.kind,
            subscriber: owner.subscriber,
            session: owner.session,
            keys: keys.join(" "),
            first_key: owner.keys.first().copied(),
            class: class.join(" "),
            chargeable_user: user.unwrap_or_default(),
        });
        if memory.owners.len() >= OWNERS_MAX {
            memory.owners.clear();
        }
        memory.owners.insert(id, Rc::clone(&text));
        Ok(text)
    }

    fn service_name(&self, id: i64, memory: &mut Memory) -> rusqlite::Result<Rc<str>> {
        if let Some(name) = memory.services.get(&id) {
            return Ok(Rc::clone(name));
        }
        let name: Option<String> = self
            .db
            .prepare_cached("SELECT name FROM service WHERE id = ?1")?
            .query_row([id], |row| row.get(0))
            .optional()?;
        let name: Rc<str> = name.unwrap_or_default().into();
        memory.services.insert(id, Rc::clone(&name));
        Ok(name)
    }
}

fn chunk_line(manifest: &Manifest, shape: &Shape) -> Result<ChunkLine, LedgerError> {
    let mut unix_ns = manifest.unix_ns;
    if let Some(of) = &shape.span
        && let Some(ends) = span(unix_ns[0], of.group, &of.zone)?
    {
        unix_ns = ends.map(|end| i64::try_from(end.as_nanosecond()).unwrap_or(i64::MAX));
    }
    let id = &manifest.id;
    Ok(ChunkLine {
        counter: id.counter.clone(),
        boot_epoch: id.boot_epoch,
        boot_epoch_hex: format!("{:016x}", id.boot_epoch),
        period: id.period,
        number: id.number,
        unix_ns,
        times: unix_ns.map(time),
    })
}

fn group(line: &Line<'_>, by: &[Column]) -> Group {
    let has = |column| by.contains(&column);
    let session = || {
        let texts = [line.session, line.keys, line.class, line.chargeable_user];
        texts.map(str::to_owned).into()
    };
    (
        has(Column::Subscriber).then(|| {
            let kind = line.owner.map_or(0, |kind| kind as u8);
            (kind, line.subscriber.to_owned())
        }),
        has(Column::Session).then(session),
        has(Column::Service).then(|| line.service.to_owned()),
        line.direction.filter(|_| has(Column::Direction)),
    )
}

impl Sum {
    fn add(&mut self, line: &Line<'_>, maxima: &HashSet<String>) {
        self.flags = self.flags.with(line.flags);
        self.packets = self.packets.saturating_add(line.packets);
        self.bytes = self.bytes.saturating_add(line.bytes);
        self.first_key = self.first_key.or(line.first_key);
        if line.more.is_empty() {
            return;
        }
        let more: BTreeMap<String, u64> = serde_json::from_str(line.more).unwrap_or_default();
        for (name, value) in more {
            let is_maximum = maxima.contains(&name);
            let sum = self.more.entry(name).or_default();
            *sum = if is_maximum {
                value.max(*sum)
            } else {
                sum.saturating_add(value)
            };
        }
    }
}

fn aggregate<'a>(
    (owner, session, service, direction): &'a Group,
    sum: &Sum,
    chunk: &'a ChunkLine,
    record: u64,
    more: &'a str,
    late: Flags,
) -> Line<'a> {
    let (session, keys, class, chargeable_user) = match session {
        Some((session, keys, class, user)) => (&**session, &**keys, &**class, &**user),
        None => ("", "", "", ""),
    };
    let kind = owner.as_ref().map(|(kind, _)| match kind {
        0 => OwnerKind::Session,
        1 => OwnerKind::Unattributed,
        _ => OwnerKind::Overflow,
    });
    Line {
        chunk,
        record,
        owner: kind,
        subscriber: owner.as_ref().map_or("", |(_, name)| name),
        session,
        keys,
        first_key: sum.first_key.filter(|_| !keys.is_empty()),
        class,
        chargeable_user,
        service: service.as_deref().unwrap_or_default(),
        direction: *direction,
        flags: sum.flags.with(late),
        packets: sum.packets,
        bytes: sum.bytes,
        reported: None,
        more,
    }
}

fn time(unix_ns: i64) -> String {
    let time = jiff::Timestamp::from_nanosecond(unix_ns.into());
    time.map(|time| time.to_string()).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
