//! Periods, from the kernel's cells to records that are durable.

use super::clock::monotonic_ns;
use super::counter::{Base, Counter};
use super::rows::{Rows, SharedTable, locked};
use crate::error::{CliError, say};
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;
use weir_ledger::{LedgerError, Meaning, Spool};
use weir_link::xdp::{Cell, CutOwner, Meter, PreviousMeter};
use weir_meter::config::Config;
use weir_meter::period::{ChunkWriter, Cut, Moment};
use weir_meter::{Chunk, Flags, Measure, Owner, OwnerKind, Totals};

/// Between two attempts to store records that could not be stored.
const RETRY_NS: u64 = 1_000_000_000;
/// Cells whose owners are looked up at a time, while no session can begin: about 0.1 ms.
const CELLS_AT_ONCE: usize = 512;
/// Chunks that wait for the disk: as many as let neither side wait for the other's.
const CHUNKS_WAITING: usize = 2;

/// The columns of a meter's chunks.
struct Columns {
    epoch: u64,
    services: Vec<String>,
    polices: bool,
    /// Those of the measures.
    more: Vec<Measure>,
}

impl Counter {
    /// Completes what an earlier process has begun: a period that was cut and may not be durable,
    /// and counters of other configurations.
    pub(super) fn finish_cut(&mut self) -> Result<(), CliError> {
        for previous in std::mem::take(&mut self.previous) {
            // What is in both banks, as their last periods. No program counts there any more.
            say("weir: the counters of an earlier configuration are read and replaced");
            self.close_previous(previous)?;
        }
        let epoch = self.banks.boot_epoch();
        let forgotten = self.spool.forget_meanings(&self.config.counter, epoch);
        forgotten.map_err(CliError::run)?;
        if self.banks.pending().is_some() {
            self.store_cut(self.clock.now())?;
        }
        Ok(())
    }

    fn close_previous(&mut self, mut previous: PreviousMeter) -> Result<(), CliError> {
        let meter = &mut previous.meter;
        let noted = self.spool.meaning(&self.config.counter, meter.boot_epoch());
        let noted = noted.map_err(CliError::run)?;
        let table = locked(&self.table);
        let Meaning { services, measures } = noted
            .filter(|noted| fits(noted, meter))
            .unwrap_or_else(|| self.guessed(meter, &table.meter));
        let by_tag = table.rows.by_tag();
        drop(table);
        for _ in 0..1 + usize::from(meter.pending().is_some()) {
            if meter.pending().is_none() {
                meter.cut().map_err(CliError::run)?;
            }
            let cut = meter.pending().expect("it was cut");
            let span = [self.previous_began, self.clock.now()];
            let about = about(cut.period(), span, cut.totals(), None);
            let owner = |rows: &Rows, owner| match owner {
                CutOwner::Row(row) => {
                    let slot = by_tag.get(&meter.tag(row)).copied();
                    (rows.owner_of(slot), Flags::default())
                }
                other => (unknown_owner(other), Flags::default()),
            };
            let kind = Columns {
                epoch: meter.boot_epoch(),
                services: services.clone(),
                polices: meter.polices(),
                more: measures.clone(),
            };
            let base = Base {
                ended: about.ended,
                own: Vec::new(),
            };
            let (config, table) = (&self.config, &self.table);
            let make = |emit: &mut dyn FnMut(Chunk)| {
                each_chunk((config, table), kind, &about, cut.cells(), owner, emit);
            };
            let stored = store(&mut self.spool, &config.counter, &base.bytes(), make);
            stored.map_err(CliError::run)?;
            meter.settle();
            self.previous_began = about.ended;
        }
        Meter::forget(&self.pins.folder, previous).map_err(CliError::run)
    }

    /// What the cells of an earlier meter mean, of which nothing was noted: what those of this one do, if
    /// they are the same.
    fn guessed(&self, earlier: &Meter, now: &Meter) -> Meaning {
        let mut meaning = self.meaning();
        if !earlier.means_the_same(now) {
            let numbers = 0..earlier.classes();
            meaning.services = numbers.map(|number| format!("class-{number}")).collect();
        }
        if !earlier.measures_the_same(now) {
            meaning.measures.clear();
        }
        meaning
    }

    /// What the cells of this configuration's meter mean.
    pub(super) fn meaning(&self) -> Meaning {
        Meaning {
            services: self.services.names(),
            measures: more_measures(&self.config),
        }
    }

    /// Ends the period at a boundary, and makes its records durable. A full disk leaves the period
    /// to be stored later: the kernel goes on counting.
    pub(super) fn cut(&mut self, boundary_ns: u64) -> Result<(), CliError> {
        let ended = self.clock.now().at(boundary_ns);
        let stored = self.store_pending().and_then(|()| self.store_cut(ended));
        self.stored(stored)
    }

    /// Tries again to store a period that could not be stored.
    pub(super) fn retry(&mut self) -> Result<(), CliError> {
        let stored = self.store_pending();
        self.stored(stored)
    }

    fn stored(&mut self, stored: Result<(), CliError>) -> Result<(), CliError> {
        self.retry_ns = None;
        if !self.is_working("records", stored)? {
            self.retry_ns = Some(monotonic_ns().saturating_add(RETRY_NS));
            return Ok(());
        }
        let delivered = self.deliver();
        self.is_working("ledger", delivered)?;
        Ok(())
    }

    /// Ends the period now, and makes its records durable.
    pub(crate) fn cut_now(&mut self) -> Result<(), CliError> {
        self.store_pending()?;
        self.store_cut(self.clock.now())
    }

    /// Stores what was counted between the last cut and the end of the programs.
    pub(crate) fn cut_rest(&mut self) -> Result<(), CliError> {
        locked(&self.table).rows.note_cut();
        self.own.note_cut();
        let cut = self.banks.cut().map_err(CliError::run)?;
        if cut.totals() == Totals::default() {
            return Ok(());
        }
        self.store_cut(self.clock.now())
    }

    /// Stores the period that was cut and is not durable, if there is one.
    fn store_pending(&mut self) -> Result<(), CliError> {
        match self.banks.pending() {
            Some(_) => self.store_cut(self.clock.now()),
            None => Ok(()),
        }
    }

    /// Whether it worked; an alarm if that may be otherwise later.
    pub(super) fn is_working(
        &mut self,
        source: &'static str,
        done: Result<(), CliError>,
    ) -> Result<bool, CliError> {
        match done {
            Ok(()) => {
                self.alarms.over(source);
                Ok(true)
            }
            Err(CliError::Run(error)) if is_transient(&error) => {
                self.alarms.warn(source, &format!("{error:#}"));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the records of the period that was cut durable; cuts one, which ends at `ended`, if
    /// there is none.
    fn store_cut(&mut self, ended: Moment) -> Result<(), CliError> {
        let banks = self.banks.clone();
        if banks.pending().is_none() {
            locked(&self.table).rows.note_cut();
            self.own.note_cut();
            banks.cut().map_err(CliError::run)?;
            self.cut_ended = Some(ended);
        }
        let ended = self.cut_ended.unwrap_or(ended);
        let cut = banks.pending().expect("it was cut");
        let span = [self.began, ended];
        let mut about = about(cut.period(), span, cut.totals(), self.gap_unix_ns);
        about.lost_inside = self.losses.unrecorded();
        about.interfaces = self.own.of_cut();
        let period = about.period;
        let owner = |rows: &Rows, owner| match owner {
            CutOwner::Row(row) => (rows.owner(row), Flags::default()),
            CutOwner::Unknown(key) => match rows.adopter(&key, period) {
                Some(adopter) => (adopter, Flags::ADOPTED),
                None => (unknown_owner(owner), Flags::default()),
            },
            CutOwner::Overflow => (unknown_owner(owner), Flags::default()),
        };
        let kind = Columns {
            epoch: banks.boot_epoch(),
            services: self.services.names(),
            polices: banks.polices(),
            more: more_measures(&self.config),
        };
        let base = Base {
            ended,
            own: self.own.note(),
        };
        let (config, table) = (&self.config, &self.table);
        let make = |emit: &mut dyn FnMut(Chunk)| {
            each_chunk((config, table), kind, &about, cut.cells(), owner, emit);
        };
        let records = store(&mut self.spool, &config.counter, &base.bytes(), make)
            .map_err(|error| CliError::Run(error.into()))?;
        self.durable_ns = monotonic_ns().saturating_sub(ended.monotonic_ns);
        banks.settle();
        self.losses.note(about.lost_inside);
        locked(&self.table).release_ended();
        self.began = ended;
        self.cut_ended = None;
        self.gap_unix_ns = None;
        self.done.periods += 1;
        self.done.records += records;
        for direction in 0..2 {
            self.done.link.packets[direction] += about.link.packets[direction];
            self.done.link.bytes[direction] += about.link.bytes[direction];
        }
        Ok(())
    }

    /// Puts what the spool has into the ledger, if this process has it. A chunk that the ledger
    /// refuses for good stays in the spool, and does not hold up the others.
    pub(crate) fn deliver(&mut self) -> Result<(), CliError> {
        let Some(ledger) = &mut self.ledger else {
            return Ok(());
        };
        let failed = |error: LedgerError| CliError::Run(error.into());
        let mut after = 0;
        let mut refused = None;
        while let Some(stored) = self.spool.next(after).map_err(failed)? {
            after = stored.sequence;
            let chunk = match ledger.accept(&stored.encoded) {
                Ok((chunk, _)) => chunk,
                Err(error @ (LedgerError::Damaged { .. } | LedgerError::Contradiction(_))) => {
                    refused = refused.or(Some(error.to_string()));
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            let (id, hash) = (&chunk.manifest.id, &stored.encoded.hash);
            self.spool.acknowledge(id, hash).map_err(failed)?;
        }
        match refused {
            Some(why) => self
                .alarms
                .warn("chunks", &format!("{why}; it stays in the spool")),
            None => self.alarms.over("chunks"),
        }
        Ok(())
    }
}

/// Makes the chunks of a period durable, and gives the number of their records. One thread makes them
/// while this one writes: a few are in memory, not all.
fn store(
    spool: &mut Spool,
    counter: &str,
    base: &[u8],
    make: impl FnOnce(&mut dyn FnMut(Chunk)) + Send,
) -> Result<u64, LedgerError> {
    let mut period = spool.begin(counter)?;
    let mut records = 0;
    thread::scope(|scope| {
        let (give, chunks) = mpsc::sync_channel(CHUNKS_WAITING);
        // Once the receiver has gone, since the disk is full, for example, chunks go nowhere.
        let maker = thread::Builder::new()
            .name("chunks".into())
            .spawn_scoped(scope, move || make(&mut |chunk| drop(give.send(chunk))))
            .map_err(LedgerError::Thread)?;
        for mut chunk in chunks {
            records += chunk.records.len() as u64;
            period.put(&mut chunk)?;
        }
        // A period without its last chunks is none.
        maker.join().unwrap_or_else(|panic| resume_unwind(panic));
        period.commit(base)
    })?;
    Ok(records)
}

/// Makes the chunks of a period. Owners are looked up in blocks, between which sessions can begin.
fn each_chunk(
    (config, table): (&Config, &SharedTable),
    kind: Columns,
    about: &Cut,
    cells: impl Iterator<Item = Cell>,
    owner_of: impl Fn(&Rows, CutOwner) -> (Owner, Flags),
    emit: &mut dyn FnMut(Chunk),
) {
    let mut writer = ChunkWriter::new(
        &config.counter,
        kind.epoch,
        about,
        [measures(kind.polices), kind.more.clone()].concat(),
        kind.services,
        config.chunk_records,
        emit,
    );
    let mut cells = cells.fuse();
    let mut last = None;
    let (mut flags, mut counts) = (Flags::default(), Vec::new());
    loop {
        let block: Vec<Cell> = cells.by_ref().take(CELLS_AT_ONCE).collect();
        if block.is_empty() {
            break;
        }
        let table = locked(table);
        let owners: Vec<Option<(Owner, Flags)>> = block
            .iter()
            .map(|cell| {
                let is_another = last.replace(cell.owner) != Some(cell.owner);
                is_another.then(|| owner_of(&table.rows, cell.owner))
            })
            .collect();
        drop(table);
        for (cell, owner) in block.iter().zip(owners) {
            if let Some((owner, of_owner)) = owner {
                writer.owner(owner);
                flags = of_owner;
            }
            counts.clear();
            counts.extend([cell.packets, cell.bytes]);
            if kind.polices {
                counts.extend(cell.policed);
            }
            if !kind.more.is_empty() {
                counts.extend(&cell.more);
            }
            let flags = if cell.at_least {
                flags.with(Flags::AT_LEAST)
            } else {
                flags
            };
            writer.record(cell.class, cell.direction, flags, &counts);
        }
    }
    writer.finish();
}

/// Whether what failed may work later.
fn is_transient(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<LedgerError>();
    error.is_some_and(LedgerError::is_transient)
}

/// Whether a note is of as many classes and columns as a meter has.
fn fits(noted: &Meaning, meter: &Meter) -> bool {
    noted.services.len() == usize::from(meter.classes())
        && noted.measures.len() == meter.measure_columns()
}

fn about(period: u64, span: [Moment; 2], link: Totals, gap_unix_ns: Option<[i64; 2]>) -> Cut {
    Cut {
        period,
        began: span[0],
        ended: span[1],
        link,
        lost_inside: 0,
        gap_unix_ns,
        interfaces: Vec::new(),
    }
}

/// The columns of records: of these, what was policed.
fn measures(polices: bool) -> Vec<Measure> {
    let names = ["packets", "bytes", "policed_packets", "policed_bytes"];
    let names = &names[..if polices { 4 } else { 2 }];
    let measure = |name: &&str| Measure {
        name: (*name).to_owned(),
        additive: true,
    };
    names.iter().map(measure).collect()
}

/// The columns of the configuration's measures.
fn more_measures(config: &Config) -> Vec<Measure> {
    let measures = config.measures.iter();
    let columns = measures.flat_map(|measure| measure.measurement(0).columns());
    columns.collect()
}

/// The owner of a cell that is no session's that is known.
fn unknown_owner(owner: CutOwner) -> Owner {
    match owner {
        CutOwner::Unknown(key) => Owner::unattributed(OwnerKind::Unattributed, Some(key)),
        CutOwner::Row(_) | CutOwner::Overflow => Owner::unattributed(OwnerKind::Overflow, None),
    }
}
