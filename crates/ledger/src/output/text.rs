//! CSV and JSON Lines.

use super::given::count;
use super::lines::Line;
use crate::prove::PeriodKey;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use weir_meter::{Direction, OwnerKind, Totals};

/// The columns.
#[derive(Serialize)]
struct Columns<'a> {
    counter: &'a str,
    boot_epoch: &'a str,
    period: u64,
    chunk: u32,
    record: u64,
    start: &'a str,
    end: &'a str,
    owner: Option<OwnerKind>,
    subscriber: Cow<'a, str>,
    session: Cow<'a, str>,
    keys: Cow<'a, str>,
    class: &'a str,
    chargeable_user: &'a str,
    service: Cow<'a, str>,
    direction: Option<Direction>,
    flags: u8,
    packets: u64,
    bytes: u64,
    reported_packets: Option<u64>,
    reported_bytes: Option<u64>,
    more: &'a str,
}

impl<'a> Columns<'a> {
    fn of(line: &'a Line<'a>, cell: fn(&'a str) -> Cow<'a, str>) -> Columns<'a> {
        let chunk = line.chunk;
        Columns {
            // Names of counters have no character that a guard is for, but `-`.
            counter: &chunk.counter,
            boot_epoch: &chunk.boot_epoch_hex,
            period: chunk.period,
            chunk: chunk.number,
            record: line.record,
            start: &chunk.times[0],
            end: &chunk.times[1],
            owner: line.owner,
            subscriber: cell(line.subscriber),
            session: cell(line.session),
            keys: cell(line.keys),
            class: line.class,
            chargeable_user: line.chargeable_user,
            service: cell(line.service),
            direction: line.direction,
            flags: line.flags.0,
            packets: line.packets,
            bytes: line.bytes,
            reported_packets: line.reported.map(|it| it[0]),
            reported_bytes: line.reported.map(|it| it[1]),
            more: line.more,
        }
    }
}

/// The fields that are read back from a line.
#[derive(Deserialize)]
struct Read {
    counter: String,
    boot_epoch: String,
    period: u64,
    #[serde(default)]
    direction: Option<Direction>,
    packets: u64,
    bytes: u64,
}

/// A text that no spreadsheet takes for a formula: with an apostrophe before it, if it begins with
/// `=`, `+`, `-`, `@`, a tab, a carriage return, or an apostrophe. So one apostrophe, if there is one,
/// is to be taken away by the reader of the cell.
fn guarded(text: &str) -> Cow<'_, str> {
    match text.as_bytes().first() {
        Some(b'=' | b'+' | b'-' | b'@' | b'\t' | b'\r' | b'\'') => Cow::Owned(format!("'{text}")),
        _ => Cow::Borrowed(text),
    }
}

pub(super) fn csv_line<W: Write>(csv: &mut csv::Writer<W>, line: &Line<'_>) -> io::Result<()> {
    let mut columns = Columns::of(line, guarded);
    let counter = guarded(columns.counter);
    columns.counter = &counter;
    csv.serialize(columns).map_err(io::Error::from)
}

pub(super) fn json_line(out: &mut impl Write, line: &Line<'_>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Columns::of(line, Cow::Borrowed))?;
    out.write_all(b"\n")
}

pub(super) fn csv_totals(file: File) -> Result<BTreeMap<PeriodKey, Totals>, String> {
    let mut totals = BTreeMap::new();
    for line in csv::Reader::from_reader(BufReader::new(file)).deserialize() {
        let mut line: Read = line.map_err(|error: csv::Error| error.to_string())?;
        if let Some(counter) = line.counter.strip_prefix('\'') {
            line.counter = counter.to_owned();
        }
        add(&line, &mut totals)?;
    }
    Ok(totals)
}

pub(super) fn json_totals(file: File) -> Result<BTreeMap<PeriodKey, Totals>, String> {
    let mut totals = BTreeMap::new();
    for line in BufReader::new(file).lines() {
        let line = line.map_err(|error| error.to_string())?;
        let line = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        add(&line, &mut totals)?;
    }
    Ok(totals)
}

fn add(line: &Read, totals: &mut BTreeMap<PeriodKey, Totals>) -> Result<(), String> {
    let epoch = u64::from_str_radix(&line.boot_epoch, 16).map_err(|error| error.to_string())?;
    let key = (line.counter.clone(), epoch, line.period);
    let sum = totals.entry(key).or_default();
    count(sum, line.direction, line.packets, line.bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_no_formula() {
        for (text, cell) in [
            ("alice", "alice"),
            ("", ""),
            ("=1+2", "'=1+2"),
            ("+49", "'+49"),
            ("-1", "'-1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("'quoted", "''quoted"),
            ("a=b", "a=b"),
        ] {
            assert_eq!(guarded(text), cell);
        }
    }
}
