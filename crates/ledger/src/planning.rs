//! Figures for planning: busy hour, 95th percentile and trend of links and services; and the use of
//! sessions, for comparison with agreements (NetTap 2000 paper, §2).

use crate::store::of;
use crate::usage::span;
use crate::{Group, Ledger, LedgerError, UsageQuery};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rusqlite::named_params;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The load of a link, or of a service on it, over time. Directions are up, then down; rates are bits a
/// second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// The counter of the link.
    pub counter: String,
    /// The service; `None` for all together.
    pub service: Option<String>,
    /// Number of periods.
    pub periods: u64,
    /// Bytes of all periods.
    pub bytes: [u64; 2],
    /// Mean rate over the periods.
    pub mean: [u64; 2],
    /// The rate that 95 of 100 periods do not exceed (nearest rank; a period without traffic counts).
    pub percentile_95: [u64; 2],
    /// The greatest rate of a period.
    pub peak: [u64; 2],
    /// The hour of the clock with the most bytes in both directions, as the time zone writes its start.
    pub busy_hour: String,
    /// Mean rate in that hour.
    pub busy_rate: [u64; 2],
    /// Growth of the daily mean rate in a week, as a share of the mean (least squares); `None` with
    /// fewer than three days.
    pub weekly_growth: Option<f64>,
}

/// The usage of a session. Directions are up, then down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionUse {
    /// The subscriber.
    pub subscriber: String,
    /// The session.
    pub session: String,
    /// Packets and bytes that arrived at the counter.
    pub packets: [u64; 2],
    /// Bytes.
    pub bytes: [u64; 2],
    /// Packets of them that its policy did not let pass (measure `policed_packets`).
    pub policed_packets: [u64; 2],
    /// Bytes (measure `policed_bytes`).
    pub policed_bytes: [u64; 2],
    /// Mean rate of what passed over the periods with traffic, bits a second.
    pub rate: [u64; 2],
    /// The greatest rate of a period.
    pub peak: [u64; 2],
}

/// Samples of a link or service: bytes by period's start and end, and direction.
type Series = BTreeMap<[i64; 2], [u64; 2]>;

const DAY_NS: i64 = 86_400_000_000_000;

impl Ledger {
    /// The load of each link, and of each service on it, in the periods of a query; of its subscriber
    /// alone, if it names one. Its grouping means nothing.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or a time is beyond the calendar.
    pub fn load(&self, query: &UsageQuery, zone: &TimeZone) -> Result<Vec<Load>, LedgerError> {
        let error = of(&self.path);
        let periods = self.periods(query).map_err(&error)?;
        let mut series: BTreeMap<(String, Option<String>), Series> = BTreeMap::new();
        let mut select = self
            .db
            .prepare(
                "SELECT chunk.counter, service.name, chunk.start_ns, chunk.end_ns,
                        usage.direction, sum(usage.bytes)
                 FROM usage
                 JOIN chunk ON chunk.sequence = usage.chunk
                 JOIN owner ON owner.id = usage.owner
                 JOIN service ON service.id = usage.service
                 WHERE chunk.start_ns >= :since AND chunk.start_ns < :until
                   AND (:subscriber IS NULL OR owner.subscriber = :subscriber)
                   AND (:service IS NULL OR service.name = :service)
                   AND (:counter IS NULL OR chunk.counter = :counter)
                 GROUP BY 1, 2, 3, 4, 5",
            )
            .map_err(&error)?;
        let mut rows = select
            .query(named_params! {
                ":since": query.since_unix_ns.unwrap_or(i64::MIN),
                ":until": query.until_unix_ns.unwrap_or(i64::MAX),
                ":subscriber": query.subscriber,
                ":service": query.service,
                ":counter": query.counter,
            })
            .map_err(&error)?;
        while let Some(row) = rows.next().map_err(&error)? {
            let columns = || -> rusqlite::Result<_> {
                let counter: String = row.get(0)?;
                let service: String = row.get(1)?;
                let period = [row.get(2)?, row.get(3)?];
                let direction = usize::from(row.get::<_, u8>(4)? & 1);
                Ok((counter, service, period, direction, row.get::<_, i64>(5)?))
            };
            let (counter, service, period, direction, bytes) = columns().map_err(&error)?;
            for service in [None, Some(service)] {
                let samples = series.entry((counter.clone(), service)).or_default();
                let sum = &mut samples.entry(period).or_default()[direction];
                *sum = sum.saturating_add(bytes.cast_unsigned());
            }
        }
        let loads = series.into_iter().map(|((counter, service), mut samples)| {
            for period in periods.get(&counter).into_iter().flatten() {
                samples.entry(*period).or_default();
            }
            load_of(counter, service, &samples, zone)
        });
        loads.collect()
    }

    /// The periods of each counter: those without traffic, too.
    fn periods(
        &self,
        query: &UsageQuery,
    ) -> rusqlite::Result<BTreeMap<String, BTreeSet<[i64; 2]>>> {
        let mut select = self.db.prepare(
            "SELECT counter, start_ns, end_ns FROM chunk WHERE start_ns >= ?1 AND start_ns < ?2",
        )?;
        let range = [
            query.since_unix_ns.unwrap_or(i64::MIN),
            query.until_unix_ns.unwrap_or(i64::MAX),
        ];
        let mut periods: BTreeMap<String, BTreeSet<[i64; 2]>> = BTreeMap::new();
        let mut rows = select.query(range)?;
        while let Some(row) = rows.next()? {
            let period = [row.get(1)?, row.get(2)?];
            periods.entry(row.get(0)?).or_default().insert(period);
        }
        Ok(periods)
    }

    /// The use of each session in the periods of a query, of what is charged.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn sessions(&self, query: &UsageQuery) -> Result<Vec<SessionUse>, LedgerError> {
        self.session_rows(query).map_err(of(&self.path))
    }

    fn session_rows(&self, query: &UsageQuery) -> rusqlite::Result<Vec<SessionUse>> {
        let mut select = self.db.prepare(
            "SELECT owner.subscriber, owner.session, chunk.start_ns, chunk.end_ns, usage.direction,
                    sum(usage.packets), sum(usage.bytes),
                    sum(coalesce(json_extract(usage.more, '$.policed_packets'), 0)),
                    sum(coalesce(json_extract(usage.more, '$.policed_bytes'), 0))
             FROM usage
             JOIN chunk ON chunk.sequence = usage.chunk
             JOIN owner ON owner.id = usage.owner
             WHERE owner.kind = 0 AND chunk.start_ns >= :since AND chunk.start_ns < :until
               AND (:subscriber IS NULL OR owner.subscriber = :subscriber)
               AND (CASE WHEN :counter IS NULL
                    THEN chunk.counter NOT IN (SELECT counter FROM role WHERE role = 'audit')
                    ELSE chunk.counter = :counter END)
             GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3",
        )?;
        let mut rows = select.query(named_params! {
            ":since": query.since_unix_ns.unwrap_or(i64::MIN),
            ":until": query.until_unix_ns.unwrap_or(i64::MAX),
            ":subscriber": query.subscriber,
            ":counter": query.counter,
        })?;
        let mut sessions: Vec<SessionUse> = Vec::new();
        // Nanoseconds of periods with traffic, of the last session.
        let mut active = [0_i64; 2];
        while let Some(row) = rows.next()? {
            let (subscriber, session): (String, String) = (row.get(0)?, row.get(1)?);
            let is_same = sessions
                .last()
                .is_some_and(|last| last.subscriber == subscriber && last.session == session);
            if !is_same {
                active = [0; 2];
                sessions.push(SessionUse {
                    subscriber,
                    session,
                    ..SessionUse::default()
                });
            }
            let last = sessions.last_mut().expect("there is one now");
            let direction = usize::from(row.get::<_, u8>(4)? & 1);
            let count = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
            let length = row.get::<_, i64>(3)?.saturating_sub(row.get(2)?);
            let (bytes, policed) = (count(6)?, count(8)?);
            last.packets[direction] += count(5)?;
            last.bytes[direction] += bytes;
            last.policed_packets[direction] += count(7)?;
            last.policed_bytes[direction] += policed;
            active[direction] = active[direction].saturating_add(length);
            let passed = last.bytes[direction].saturating_sub(last.policed_bytes[direction]);
            last.rate[direction] = rate(passed, active[direction]);
            let now = rate(bytes.saturating_sub(policed), length);
            last.peak[direction] = last.peak[direction].max(now);
        }
        Ok(sessions)
    }
}

/// Bits a second; 0 in no time.
fn rate(bytes: u64, ns: i64) -> u64 {
    let ns = u128::from(ns.max(0).cast_unsigned());
    let bits = u128::from(bytes) * 8 * 1_000_000_000;
    u64::try_from(bits.checked_div(ns).unwrap_or(0)).unwrap_or(u64::MAX)
}

fn length([start, end]: [i64; 2]) -> i64 {
    end.saturating_sub(start)
}

fn load_of(
    counter: String,
    service: Option<String>,
    samples: &Series,
    zone: &TimeZone,
) -> Result<Load, LedgerError> {
    let mut bytes = [0_u64; 2];
    let mut time = 0_i64;
    let mut rates = [Vec::new(), Vec::new()];
    // Bytes by direction and nanoseconds, by the start of the hour, and by days since 1970.
    let mut hours: BTreeMap<Timestamp, ([u64; 2], i64)> = BTreeMap::new();
    let mut days: BTreeMap<i64, (u64, i64)> = BTreeMap::new();
    for (period, counts) in samples {
        let ns = length(*period);
        time = time.saturating_add(ns);
        let hour = span(period[0], Group::Hour, zone)?.expect("hours are spans")[0];
        let hour = hours.entry(hour).or_default();
        hour.1 = hour.1.saturating_add(ns);
        let day = days.entry(period[0].div_euclid(DAY_NS)).or_default();
        day.1 = day.1.saturating_add(ns);
        for (direction, count) in counts.iter().copied().enumerate() {
            bytes[direction] = bytes[direction].saturating_add(count);
            hour.0[direction] = hour.0[direction].saturating_add(count);
            day.0 = day.0.saturating_add(count);
            rates[direction].push(rate(count, ns));
        }
    }
    rates.iter_mut().for_each(|rates| rates.sort_unstable());
    let busiest = hours
        .iter()
        .max_by_key(|(_, (bytes, _))| bytes[0].saturating_add(bytes[1]));
    let (busy_hour, (busy_bytes, busy_ns)) = busiest.expect("a link with traffic has a period");
    let busy_hour = busy_hour.to_zoned(zone.clone());
    Ok(Load {
        counter,
        service,
        periods: samples.len() as u64,
        bytes,
        mean: bytes.map(|bytes| rate(bytes, time)),
        percentile_95: [0, 1].map(|direction: usize| percentile(&rates[direction])),
        peak: [0, 1].map(|direction: usize| rates[direction].last().copied().unwrap_or(0)),
        busy_hour: busy_hour.strftime("%Y-%m-%dT%H:%M%:z").to_string(),
        busy_rate: busy_bytes.map(|bytes| rate(bytes, *busy_ns)),
        weekly_growth: growth(&days),
    })
}

/// The 95th percentile of sorted values, by nearest rank.
fn percentile(sorted: &[u64]) -> u64 {
    let rank = (sorted.len() * 95).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// Growth in a week as a share of the mean, by a straight line through the daily mean rates.
fn growth(days: &BTreeMap<i64, (u64, i64)>) -> Option<f64> {
    if days.len() < 3 {
        return None;
    }
    let points: Vec<(f64, f64)> = days
        .iter()
        .map(|(day, (bytes, ns))| (*day as f64, rate(*bytes, *ns) as f64))
        .collect();
    let count = points.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let above: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    let below: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    (y > 0.0).then(|| 7.0 * above / below / y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_occurs() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&values), 95);
        assert_eq!(percentile(&values[..20]), 19);
        assert_eq!(percentile(&values[..1]), 1);
        assert_eq!(percentile(&[]), 0);
    }

    #[test]
    fn growth_is_the_slope_of_the_line() {
        let day = |rate: u64| (rate * 86_400 / 8, DAY_NS);
        let days = |rates: &[u64]| (0..).zip(rates.iter().map(|rate| day(*rate))).collect();
        let weekly = growth(&days(&[100, 110, 120])).unwrap();
        assert!((weekly - 70.0 / 110.0).abs() < 1e-6, "{weekly}");
        assert_eq!(growth(&days(&[100, 100, 100])), Some(0.0));
        assert_eq!(growth(&days(&[100, 110])), None);
        assert_eq!(growth(&days(&[0, 0, 0])), None);
    }
}
