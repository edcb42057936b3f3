//! Questions to the ledger: how much, by subscriber, service and time.

use crate::ledger::kind_number;
use crate::store::of;
use crate::{Ledger, LedgerError};
use jiff::{Timestamp, ToSpan, Unit, tz::TimeZone};
use rusqlite::named_params;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use weir_meter::{Owner, OwnerKind};

/// Into which spans of time usage is divided. A period belongs to the span in which it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Group {
    /// All in one.
    #[default]
    Whole,
    /// Hours of the time zone's clock.
    Hour,
    /// Calendar days: 23 to 25 hours where daylight saving begins or ends.
    Day,
    /// Calendar months.
    Month,
}

/// A query for usage.
#[derive(Clone, Debug, Default)]
pub struct UsageQuery {
    /// Only periods that start at this Unix time in nanoseconds or later.
    pub since_unix_ns: Option<i64>,
    /// Only periods that start before this one.
    pub until_unix_ns: Option<i64>,
    /// Only this subscriber.
    pub subscriber: Option<String>,
    /// Only this service.
    pub service: Option<String>,
    /// Only the records of this counter. Without it all that are charged: none of an audit counter.
    pub counter: Option<String>,
    /// Spans of time.
    pub group: Group,
}

/// Usage of a service by a subscriber in a span of time; directions are up, then down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Start of the span, as the time zone writes it; none for all in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Name of the subscriber; for unattributed traffic, its key; empty for the overflow.
    pub subscriber: String,
    /// Whose traffic.
    pub owner: OwnerKind,
    /// The service.
    pub service: String,
    /// Packets.
    pub packets: [u64; 2],
    /// Bytes.
    pub bytes: [u64; 2],
    /// Other measures. Those that do not add up are the largest of a period.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub more: BTreeMap<String, [u64; 2]>,
}

type Key = (Option<Timestamp>, i64, String, String);

impl Ledger {
    /// Rows by time, then subscribers before unattributed traffic, then by name and service.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or a span does not fit the calendar.
    pub fn usage(&self, query: &UsageQuery, zone: &TimeZone) -> Result<Vec<Row>, LedgerError> {
        let error = of(&self.path);
        let mut select = self
            .db
            .prepare_cached(
                "SELECT chunk.start_ns, owner.kind, owner.subscriber, owner.owner, service.name,
                        usage.direction, sum(usage.packets), sum(usage.bytes), usage.more
                 FROM usage
                 JOIN chunk ON chunk.sequence = usage.chunk
                 JOIN owner ON owner.id = usage.owner
                 JOIN service ON service.id = usage.service
                 WHERE chunk.start_ns >= :since AND chunk.start_ns < :until
                   AND (:subscriber IS NULL OR owner.subscriber = :subscriber)
                   AND (:service IS NULL OR service.name = :service)
                   AND (CASE WHEN :counter IS NULL
                        THEN chunk.counter NOT IN (SELECT counter FROM role WHERE role = 'audit')
                        ELSE chunk.counter = :counter END)
                 GROUP BY chunk.start_ns, usage.owner, usage.service, usage.direction, usage.more",
            )
            .map_err(&error)?;
        let mut found = select
            .query(named_params! {
                ":since": query.since_unix_ns.unwrap_or(i64::MIN),
                ":until": query.until_unix_ns.unwrap_or(i64::MAX),
                ":subscriber": query.subscriber,
                ":service": query.service,
                ":counter": query.counter,
            })
            .map_err(&error)?;
        let maxima = self.maxima().map_err(&error)?;
        let mut rows: BTreeMap<Key, Row> = BTreeMap::new();
        while let Some(row) = found.next().map_err(&error)? {
            let part = Part::read(row).map_err(&error)?;
            let span = span_start(part.start_ns, query.group, zone)?;
            let key = (span, part.kind, part.name(), part.service.clone());
            let sum = rows.entry(key).or_insert_with_key(|key| Row {
                time: key.0.map(|time| written(time, query.group, zone)),
                subscriber: key.2.clone(),
                owner: kind(part.kind),
                service: part.service.clone(),
                packets: [0; 2],
                bytes: [0; 2],
                more: BTreeMap::new(),
            });
            part.add_to(sum, &maxima);
        }
        Ok(rows.into_values().collect())
    }

    /// Names of measures whose values do not add up.
    pub(crate) fn maxima(&self) -> rusqlite::Result<HashSet<String>> {
        self.db
            .prepare_cached("SELECT name FROM measure WHERE NOT additive")?
            .query_map([], |row| row.get(0))?
            .collect()
    }
}

/// One row of the database.
struct Part {
    start_ns: i64,
    kind: i64,
    subscriber: String,
    owner: String,
    service: String,
    direction: usize,
    packets: u64,
    bytes: u64,
    more: Option<String>,
}

impl Part {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Part> {
        Ok(Part {
            start_ns: row.get(0)?,
            kind: row.get(1)?,
            subscriber: row.get(2)?,
            owner: row.get(3)?,
            service: row.get(4)?,
            direction: usize::from(row.get::<_, u8>(5)? & 1),
            packets: row.get::<_, i64>(6)?.cast_unsigned(),
            bytes: row.get::<_, i64>(7)?.cast_unsigned(),
            more: row.get(8)?,
        })
    }

    /// The subscriber's name, or the key of unattributed traffic.
    fn name(&self) -> String {
        if self.kind != kind_number(OwnerKind::Unattributed) {
            return self.subscriber.clone();
        }
        let owner: Option<Owner> = serde_json::from_str(&self.owner).ok();
        let key = owner.and_then(|owner| owner.keys.first().copied());
        key.map(|key| key.to_string()).unwrap_or_default()
    }

    fn add_to(&self, row: &mut Row, maxima: &HashSet<String>) {
        row.packets[self.direction] += self.packets;
        row.bytes[self.direction] += self.bytes;
        let Some(more) = &self.more else { return };
        let more: BTreeMap<String, u64> = serde_json::from_str(more).unwrap_or_default();
        for (name, count) in more {
            let maximum = maxima.contains(&name);
            let sum = &mut row.more.entry(name).or_default()[self.direction];
            *sum = if maximum {
                count.max(*sum)
            } else {
                sum.saturating_add(count)
            };
        }
    }
}

pub(crate) fn kind(number: i64) -> OwnerKind {
    match number {
        0 => OwnerKind::Session,
        1 => OwnerKind::Unattributed,
        _ => OwnerKind::Overflow,
    }
}

fn span_start(
    unix_ns: i64,
    group: Group,
    zone: &TimeZone,
) -> Result<Option<Timestamp>, LedgerError> {
    span(unix_ns, group, zone).map(|span| span.map(|[start, _]| start))
}

/// Start and end of the span of time that an instant is in; `None` for all in one.
pub(crate) fn span(
    unix_ns: i64,
    group: Group,
    zone: &TimeZone,
) -> Result<Option<[Timestamp; 2]>, LedgerError> {
    let beyond = |error: jiff::Error| LedgerError::Time(format!("{unix_ns} ns: {error}"));
    let time = Timestamp::from_nanosecond(unix_ns.into()).map_err(beyond)?;
    let time = time.to_zoned(zone.clone());
    let hour = jiff::ZonedRound::new()
        .smallest(Unit::Hour)
        .mode(jiff::RoundMode::Floor);
    let start = match group {
        Group::Whole => return Ok(None),
        Group::Hour => time.round(hour),
        Group::Day => time.start_of_day(),
        Group::Month => time.first_of_month().and_then(|first| first.start_of_day()),
    };
    let start = start.map_err(beyond)?;
    let end = match group {
        Group::Whole | Group::Hour => start.checked_add(1.hour()),
        Group::Day => start.tomorrow().and_then(|next| next.start_of_day()),
        Group::Month => start
            .checked_add(1.month())
            .and_then(|next| next.start_of_day()),
    };
    let end = end.map_err(beyond)?;
    Ok(Some([start.timestamp(), end.timestamp()]))
}

fn written(time: Timestamp, group: Group, zone: &TimeZone) -> String {
    let time = time.to_zoned(zone.clone());
    let format = match group {
        Group::Whole | Group::Hour => "%Y-%m-%dT%H:%M%:z",
        Group::Day => "%Y-%m-%d",
        Group::Month => "%Y-%m",
    };
    time.strftime(format).to_string()
}
