//! Usage as a person reads it.

use crate::error::CliError;
use crate::report::format::Column::{Left, Right};
use crate::report::format::{self, grouped};
use crate::report::plot::{self, Frame};
use jiff::tz::TimeZone;
use std::collections::{BTreeMap, BTreeSet};
use weir_ledger::{Group, Ledger, Row, UsageQuery};
use weir_meter::OwnerKind;

/// The table of these rows, one at least, and the sum below it.
pub(super) fn of(rows: &[Row]) -> String {
    let with_time = rows.iter().any(|row| row.time.is_some());
    let more: BTreeSet<&str> = rows
        .iter()
        .flat_map(|row| row.more.keys().map(String::as_str))
        .collect();
    let headings: Vec<String> = more
        .iter()
        .flat_map(|name| [format!("{name} up"), format!("{name} down")])
        .collect();
    let mut columns = Vec::new();
    columns.extend(with_time.then_some(Left("time")));
    columns.extend([
        Left("subscriber"),
        Left("service"),
        Right("packets up"),
        Right("bytes up"),
        Right("packets down"),
        Right("bytes down"),
    ]);
    columns.extend(headings.iter().map(|heading| Right(heading)));
    let cells = rows.iter().map(|row| {
        let mut cells = Vec::with_capacity(columns.len());
        cells.extend(with_time.then(|| row.time.clone().unwrap_or_default()));
        cells.extend([name(row), row.service.clone()]);
        for direction in 0..2 {
            cells.extend([row.packets[direction], row.bytes[direction]].map(grouped));
        }
        for name in &more {
            let counts = row.more.get(*name).copied().unwrap_or_default();
            cells.extend(counts.map(grouped));
        }
        cells
    });
    let mut text = format::table(&columns, cells);
    let (mut packets, mut bytes) = ([0_u64; 2], [0_u64; 2]);
    for row in rows {
        for direction in 0..2 {
            packets[direction] += row.packets[direction];
            bytes[direction] += row.bytes[direction];
        }
    }
    text += &format!(
        "\n\nTotal: {} with {} up, {} with {} down.",
        format::counted(packets[0], "packet"),
        format::counted(bytes[0], "byte"),
        format::counted(packets[1], "packet"),
        format::counted(bytes[1], "byte"),
    );
    text
}

/// How a row names whose traffic it is.
fn name(row: &Row) -> String {
    match row.owner {
        OwnerKind::Session => row.subscriber.clone(),
        OwnerKind::Unattributed => format!("unattributed {}", row.subscriber),
        OwnerKind::Overflow => "unattributed, others".to_owned(),
    }
}

/// Bytes up and down over time, in spans of a few to a few hundred.
pub(super) fn plot(
    ledger: &Ledger,
    query: &UsageQuery,
    zone: &TimeZone,
) -> Result<String, CliError> {
    let group = match query.group {
        Group::Whole => Group::Hour,
        group => group,
    };
    let query = UsageQuery {
        group,
        ..query.clone()
    };
    let rows = ledger.usage(&query, zone).map_err(CliError::run)?;
    let mut spans: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for row in &rows {
        let sums = spans.entry(row.time.as_deref().unwrap_or("")).or_default();
        sums[0] += row.bytes[0];
        sums[1] += row.bytes[1];
    }
    let (Some(first), Some(last)) = (spans.keys().next(), spans.keys().last()) else {
        return Err(CliError::run("there is nothing to draw: no records match"));
    };
    let unit = match group {
        Group::Whole | Group::Hour => "hours",
        Group::Day => "days",
        Group::Month => "months",
    };
    let title = format!("Usage from {first} to {last}");
    let frame = Frame {
        title: &title,
        x: &format!("{unit} with traffic, in order of time"),
        y: "bytes",
    };
    let curves = ["up", "down"]
        .into_iter()
        .enumerate()
        .map(|(direction, name)| {
            let points = spans
                .values()
                .zip(1..)
                .map(|(sums, at)| (f64::from(at), sums[direction] as f64));
            (name.to_owned(), points.collect())
        });
    let curves: Vec<_> = curves.collect();
    plot::draw(&frame, &curves, &[]).map_err(CliError::run)
}
