//! Records as lines of JSON, and as the table that a person reads.

use crate::error::CliError;
use crate::report::format::{self, Column};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufWriter, Stdout, Write};
use weir_meter::engine::Unit;
use weir_meter::measure::Gaps;
use weir_meter::{Chunk, Direction, Flags, Key, Measure, Owner, OwnerKind, Totals};

/// A record with all that it refers to.
#[derive(Serialize)]
struct RecordLine<'a> {
    kind: &'static str,
    counter: &'a str,
    boot_epoch: u64,
    period: u64,
    chunk: u32,
    number: usize,
    start_unix_ns: i64,
    end_unix_ns: i64,
    owner: OwnerKind,
    #[serde(skip_serializing_if = "str::is_empty")]
    subscriber: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    session: &'a str,
    keys: Vec<String>,
    service: &'a str,
    direction: Direction,
    flags: Vec<&'static str>,
    counts: BTreeMap<&'a str, u64>,
}

/// A period, after its records.
#[derive(Serialize)]
struct PeriodLine<'a> {
    kind: &'static str,
    counter: &'a str,
    boot_epoch: u64,
    period: u64,
    start_unix_ns: i64,
    end_unix_ns: i64,
    wall_step_ns: i64,
    chunks: u32,
    records: u64,
    /// Sums of the records; `link` is counted apart.
    sum: Totals,
    link: Totals,
    is_proven: bool,
}

/// Names of flags.
fn flag_names(flags: Flags) -> Vec<&'static str> {
    let all = [
        (Flags::AT_LEAST, "at_least"),
        (Flags::ADOPTED, "adopted"),
        (Flags::ADJUSTMENT, "adjustment"),
        (Flags::FROM_AUDIT, "from_audit"),
    ];
    let set = all.into_iter().filter(|(flag, _)| flags.contains(*flag));
    set.map(|(_, name)| name).collect()
}

fn add(sum: &mut Totals, more: &Totals) {
    for direction in 0..2 {
        sum.packets[direction] += more.packets[direction];
        sum.bytes[direction] += more.bytes[direction];
    }
}

/// Prints records as lines of JSON.
pub(super) struct JsonLines {
    out: BufWriter<Stdout>,
    sum: Totals,
    records: u64,
}

impl Default for JsonLines {
    fn default() -> JsonLines {
        JsonLines {
            out: BufWriter::new(io::stdout()),
            sum: Totals::default(),
            records: 0,
        }
    }
}

impl JsonLines {
    pub(super) fn print(&mut self, chunk: &Chunk) -> io::Result<()> {
        let manifest = &chunk.manifest;
        for (number, record) in chunk.records.iter().enumerate() {
            let owner = &chunk.owners[record.owner as usize];
            let names = chunk.measures.iter().map(|measure| &*measure.name);
            let line = RecordLine {
                kind: "record",
                counter: &manifest.id.counter,
                boot_epoch: manifest.id.boot_epoch,
                period: manifest.id.period,
                chunk: manifest.id.number,
                number,
                start_unix_ns: manifest.unix_ns[0],
                end_unix_ns: manifest.unix_ns[1],
                owner: owner.kind,
                subscriber: &owner.subscriber,
                session: &owner.session,
                keys: owner.keys.iter().map(Key::to_string).collect(),
                service: &chunk.services[usize::from(record.service)],
                direction: record.direction,
                flags: flag_names(record.flags),
                counts: names.zip(record.counts.iter().copied()).collect(),
            };
            self.line(&line)?;
        }
        add(&mut self.sum, &manifest.totals);
        self.records += chunk.records.len() as u64;
        if manifest.last {
            let (sum, records) = (self.sum, self.records);
            (self.sum, self.records) = (Totals::default(), 0);
            self.line(&PeriodLine {
                kind: "period",
                counter: &manifest.id.counter,
                boot_epoch: manifest.id.boot_epoch,
                period: manifest.id.period,
                start_unix_ns: manifest.unix_ns[0],
                end_unix_ns: manifest.unix_ns[1],
                wall_step_ns: manifest.wall_step_ns,
                chunks: manifest.id.number + 1,
                records,
                sum,
                link: manifest.link,
                is_proven: sum == manifest.link,
            })?;
        }
        Ok(())
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, line)?;
        self.out.write_all(b"\n")
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Whose traffic a row of the table is: the kind, and its name.
type RowOwner = (u8, String);

/// An owner's sums and remarks by service and direction.
type Rows = BTreeMap<(u16, u8), (Flags, Vec<u64>)>;

/// Sums of a capture's records by owner, service and direction.
#[derive(Default)]
pub(super) struct Table {
    /// Frames that belong to sessions.
    pub(super) of_sessions: u64,
    rows: HashMap<RowOwner, Rows>,
    measures: Vec<Measure>,
    services: Vec<String>,
    link: Totals,
    sum: Totals,
    unattributed: Totals,
    periods: u64,
    first_ns: Option<i64>,
    last_ns: i64,
}

impl Table {
    /// Takes note of the frames of sessions.
    pub(super) fn see(&mut self, chunk: &Chunk) {
        for record in &chunk.records {
            if chunk.owners[record.owner as usize].kind == OwnerKind::Session {
                self.of_sessions += record.counts[0];
            }
        }
    }

    /// Adds the records of a chunk.
    pub(super) fn add(&mut self, chunk: &Chunk) {
        let manifest = &chunk.manifest;
        self.measures.clone_from(&chunk.measures);
        self.services.clone_from(&chunk.services);
        self.first_ns.get_or_insert(manifest.unix_ns[0]);
        self.last_ns = manifest.unix_ns[1];
        if manifest.last {
            self.periods += 1;
            add(&mut self.link, &manifest.link);
        }
        for record in &chunk.records {
            let owner = &chunk.owners[record.owner as usize];
            let direction = record.direction as usize;
            let row = Totals {
                packets: at(direction, record.counts[0]),
                bytes: at(direction, record.counts[1]),
            };
            add(&mut self.sum, &row);
            if owner.kind != OwnerKind::Session {
                add(&mut self.unattributed, &row);
            }
            let rows = self.rows.entry(who(owner)).or_default();
            let place = (record.service, record.direction as u8);
            let empty = || (Flags::default(), vec![0; record.counts.len()]);
            let (flags, counts) = rows.entry(place).or_insert_with(empty);
            *flags = flags.with(record.flags);
            for (sum, count) in counts.iter_mut().zip(&record.counts) {
                *sum += count;
            }
        }
    }

    /// Prints the table with the `top` subscribers, and the proof.
    pub(super) fn print(
        &self,
        name: &str,
        frames: u64,
        top: usize,
        unit: Unit,
    ) -> Result<(), CliError> {
        let mut out = BufWriter::new(io::stdout());
        self.write(&mut out, name, frames, top, unit)
            .and_then(|()| out.flush())
            .map_err(CliError::output)
    }

    fn write(
        &self,
        out: &mut impl Write,
        name: &str,
        frames: u64,
        top: usize,
        unit: Unit,
    ) -> io::Result<()> {
        let unit = match unit {
            Unit::Ip => "IP bytes",
            Unit::Wire => "frame bytes",
        };
        let frames = format::frames(frames);
        let periods = format::counted(self.periods, "period");
        writeln!(out, "{name}: {frames}, {periods}, {unit}")?;
        if let Some(first) = self.first_ns {
            let (first, last) = (format::time(Some(first)), format::time(Some(self.last_ns)));
            writeln!(out, "from {first} to {last}")?;
        }
        let mut owners: Vec<(u64, &RowOwner)> = self
            .rows
            .iter()
            .map(|(who, rows)| (rows.values().map(|(_, counts)| counts[1]).sum(), who))
            .collect();
        // Subscribers first, those with the most bytes first.
        owners
            .sort_by(|(bytes_a, a), (bytes_b, b)| (a.0, bytes_b, &a.1).cmp(&(b.0, bytes_a, &b.1)));
        let shown = if top == 0 { owners.len() } else { top };
        let rows: Vec<Vec<String>> = owners
            .iter()
            .take(shown)
            .flat_map(|(_, who)| self.cells(who))
            .chain(self.ends())
            .collect();
        let headings = self.headings();
        let columns: Vec<Column<'_>> = headings
            .iter()
            .enumerate()
            .map(|(number, heading)| match number {
                0..3 => Column::Left(heading),
                _ => Column::Right(heading),
            })
            .collect();
        writeln!(out, "\n{}", format::table(&columns, rows.iter().cloned()))?;
        if owners.len() > shown {
            let beyond = format::grouped((owners.len() - shown) as u64);
            writeln!(
                out,
                "\n{beyond} more subscribers and unattributed keys are not shown: --top 0 shows all"
            )?;
        }
        writeln!(out, "\n{}", self.proof())
    }

    /// The columns that have a cell of their own: all but the histogram's.
    fn plain_columns(&self) -> impl Iterator<Item = (usize, &Measure)> {
        let all = self.measures.iter().enumerate();
        all.filter(|(_, measure)| !measure.name.starts_with("gap_"))
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.measures
            .iter()
            .position(|measure| measure.name == name)
    }

    fn headings(&self) -> Vec<String> {
        let mut headings: Vec<String> = ["subscriber", "service", "direction"]
            .map(str::to_owned)
            .into();
        headings.extend(
            self.plain_columns()
                .map(|(_, measure)| measure.name.clone()),
        );
        if self.column("active_ms").is_some() {
            headings.push("kbit/s active".into());
        }
        if self.column("gap_0us").is_some() {
            headings.push("median gap".into());
        }
        headings
    }

    /// The lines of an owner: its name stands in the first one.
    fn cells(&self, who: &RowOwner) -> Vec<Vec<String>> {
        let rows = self.rows[who].iter();
        let lines = rows.map(|(&(service, direction), (flags, counts))| {
            let direction = if direction == 0 { "up" } else { "down" };
            let service = self.services[usize::from(service)].clone();
            let mut cells = vec![String::new(), service, direction.to_owned()];
            cells.extend(self.counts(*flags, counts));
            cells
        });
        let mut lines: Vec<Vec<String>> = lines.collect();
        if let Some(first) = lines.first_mut() {
            first[0].clone_from(&who.1);
        }
        lines
    }

    /// The cells of numbers of a row.
    fn counts(&self, flags: Flags, counts: &[u64]) -> Vec<String> {
        let mut cells = Vec::new();
        for (column, measure) in self.plain_columns() {
            let least = measure.name == "flows" && flags.contains(Flags::AT_LEAST);
            let mark = if least { "≥ " } else { "" };
            cells.push(format!("{mark}{}", format::grouped(counts[column])));
        }
        if let Some(column) = self.column("active_ms") {
            // Bits in a millisecond are kbit in a second.
            let rate = (counts[1] * 8).checked_div(counts[column]);
            cells.push(rate.map_or_else(|| "-".into(), format::grouped));
        }
        if let Some(column) = self.column("gap_0us") {
            cells.push(median(&counts[column..column + Gaps::BUCKETS]));
        }
        cells
    }

    /// The lines below: what no subscriber used, and the link.
    fn ends(&self) -> Vec<Vec<String>> {
        let line = |name: &str, totals: &Totals, direction: usize| {
            vec![
                name.to_owned(),
                String::new(),
                ["up", "down"][direction].to_owned(),
                format::grouped(totals.packets[direction]),
                format::grouped(totals.bytes[direction]),
            ]
        };
        let blank = vec![String::new(); 5];
        vec![
            blank,
            line("all unattributed", &self.unattributed, 0),
            line("", &self.unattributed, 1),
            line("link", &self.link, 0),
            line("", &self.link, 1),
        ]
    }

    fn proof(&self) -> String {
        let shown = |totals: &Totals| {
            let packets = format::counted(totals.packets.iter().sum(), "packet");
            let bytes = format::counted(totals.bytes.iter().sum(), "byte");
            format!("{packets}, {bytes}")
        };
        let (sum, link) = (shown(&self.sum), shown(&self.link));
        if self.sum == self.link {
            format!("proof: sum of the records = link total: {sum}")
        } else {
            format!("NO PROOF: the records have {sum}; the link has {link}")
        }
    }
}

fn at(direction: usize, count: u64) -> [u64; 2] {
    let mut counts = [0; 2];
    counts[direction] = count;
    counts
}

fn who(owner: &Owner) -> RowOwner {
    let key = owner.keys.first().map(Key::to_string);
    match owner.kind {
        OwnerKind::Session => (0, owner.subscriber.clone()),
        OwnerKind::Unattributed => {
            let key = key.unwrap_or_else(|| "without an address".into());
            (1, format!("({key})"))
        }
        OwnerKind::Overflow => (2, "(further addresses)".into()),
    }
}

/// The bucket with the median gap, as a person reads it; `-` without gaps.
fn median(buckets: &[u64]) -> String {
    let total: u64 = buckets.iter().sum();
    if total == 0 {
        return "-".into();
    }
    let mut before = 0;
    let found = buckets.iter().position(|count| {
        before += count;
        before * 2 >= total
    });
    let bucket = found.unwrap_or(0);
    match Gaps::least_us(bucket) {
        0 => "< 1 µs".into(),
        us @ 1..1000 => format!("≥ {us} µs"),
        us => format!("≥ {} ms", us / 1000),
    }
}
