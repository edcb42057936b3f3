//! A counter: its periods, from the kernel's cells to records that are durable.

use super::live::{Pins, WAIT};
use super::rows::Rows;
use super::{Args, seed};
use crate::error::{CliError, say};
use crate::radius::{Refused, Server, Stats};
use crate::store;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weir_ledger::{Ledger, LedgerError, Spool, StoreLock};
use weir_link::names::SystemNames;
use weir_link::xdp::{CutOwner, Meter, MeterSpec};
use weir_meter::config::Config;
use weir_meter::engine::Unit;
use weir_meter::period::{ChunkWriter, Cut, Moment, Schedule};
use weir_meter::services::Services;
use weir_meter::{Chunk, Flags, Measure, Owner, OwnerKind, SessionEvent, SessionInfo, Totals};

/// Keys of a session on average, for which the kernel's table has room.
const KEYS_OF_SESSION: usize = 2;
/// Events that are read from the spool at a time.
const EVENTS_AT_ONCE: u32 = 10_000;
/// The log of sessions is shortened when it has so many more events than sessions.
const EVENTS_SPARE: u64 = 100_000;
/// Between two attempts to store records that could not be stored.
const RETRY_NS: u64 = 1_000_000_000;
/// Between two reports of RADIUS packets that were refused.
const REPORT_NS: u64 = 60_000_000_000;

/// What was done, stable for scripts.
#[derive(Debug, Default, Serialize)]
pub(super) struct Done {
    /// Periods whose records are durable.
    periods: u64,
    /// Their records.
    records: u64,
    /// Packets and bytes of the link, up then down.
    link: Totals,
    /// RADIUS packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) radius: Option<Stats>,
}

pub(super) struct Counter<'a> {
    config: &'a Config,
    services: Services,
    pub(super) meter: Meter,
    /// Counters of another configuration, that an earlier process has left.
    previous: Option<Meter>,
    /// Since when they count.
    previous_began: Moment,
    is_adopted: bool,
    rows: Rows,
    spool: Spool,
    _lock: StoreLock,
    ledger: Option<Ledger>,
    pub(super) schedule: Schedule,
    began: Moment,
    /// Until when counters that an earlier process has left were durable.
    left_ended: Option<Moment>,
    /// When the period that was cut ended, if this process has cut it.
    cut_ended: Option<Moment>,
    /// When to try again to store the period that was cut.
    pub(super) retry_ns: Option<u64>,
    gap_unix_ns: Option<[i64; 2]>,
    events: u64,
    /// Events that are applied, of those that the log is to have next.
    applied: usize,
    /// What does not work, by its source.
    alarms: BTreeMap<&'static str, String>,
    pub(super) done: Done,
    /// RADIUS packets whose refusal was reported, and when.
    reported: Refused,
    reported_ns: Option<u64>,
}

impl<'a> Counter<'a> {
    pub(super) fn new(
        args: &Args,
        config: &'a Config,
        names: &SystemNames,
        pins: &Pins,
    ) -> Result<Counter<'a>, CliError> {
        let services = Services::new(config.services.clone());
        let size = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let spec = MeterSpec {
            subscribers: size(config.capacity),
            keys: size(config.capacity.saturating_mul(KEYS_OF_SESSION))
                .min(weir_link::xdp::SUBSCRIBERS_MAX),
            unknown: size(config.unattributed_max),
            services: &services,
            names,
            counts_ip: config.unit == Unit::Ip,
        };
        let store = store::path_made(args.store.as_deref())?;
        let spool = match &args.spool {
            Some(path) => path.clone(),
            None => spool_beside(&store, &config.counter),
        };
        let spool = Spool::open(&spool).map_err(CliError::run)?;
        // Two counters of one name must not take each other's sessions and periods.
        let lock = spool.lock().map_err(CliError::run)?;
        let ledger = if args.no_store {
            None
        } else {
            Some(Ledger::open(&store).map_err(CliError::run)?)
        };
        let opened = Meter::open(&pins.folder, &spec).map_err(CliError::run)?;
        let began = now();
        Ok(Counter {
            config,
            rows: Rows::new(config.capacity, &config.keys, seed()),
            meter: opened.meter,
            previous: opened.previous,
            previous_began: began,
            is_adopted: opened.is_adopted,
            spool,
            _lock: lock,
            ledger,
            schedule: Schedule::new(began, config.period_ns),
            began,
            services,
            left_ended: None,
            cut_ended: None,
            retry_ns: None,
            gap_unix_ns: None,
            events: 0,
            applied: 0,
            alarms: BTreeMap::new(),
            done: Done::default(),
            reported: Refused::default(),
            reported_ns: None,
        })
    }

    /// What earlier processes have left: whose rows the counters are, and until when they counted.
    pub(super) fn restore(&mut self, subscribers: &[SessionInfo]) -> Result<(), CliError> {
        if self.is_adopted {
            self.rows.adopt(&self.meter);
        }
        if let Some(previous) = &self.previous {
            self.rows.note_previous(previous);
        }
        let last = self
            .spool
            .last(&self.config.counter)
            .map_err(CliError::run)?;
        if let Some((epoch, _, base)) = last
            && let Some(base) = Base::read(&base)
        {
            if epoch == self.meter.boot_epoch() {
                self.began = base.ended;
                self.left_ended = Some(base.ended);
            } else if let Some(previous) = &self.previous
                && epoch == previous.boot_epoch()
            {
                self.previous_began = base.ended;
            } else {
                // The machine was restarted, or the counters were taken away.
                self.gap_unix_ns = Some([base.ended.unix_ns, self.began.unix_ns]);
            }
        }
        for info in subscribers {
            let up = self.rows.replay_up(info);
            up.map_err(|why| CliError::refused(format!("subscribers: {why}")))?;
        }
        Ok(())
    }

    /// Takes up the sessions of the log.
    pub(super) fn replay(&mut self, mut server: Option<&mut Server>) -> Result<(), CliError> {
        let mut after = 0;
        loop {
            let events = self
                .spool
                .events(after, EVENTS_AT_ONCE)
                .map_err(CliError::run)?;
            let Some(last) = events.last() else { break };
            after = last.number;
            self.events += events.len() as u64;
            for event in &events {
                if let Err(why) = self.rows.replay(event) {
                    say(&format!("weir: {why}"));
                }
                if let Some(server) = server.as_deref_mut() {
                    server.restore(event);
                }
            }
        }
        if let Err(why) = self.rows.claim(&mut self.meter) {
            say(&format!("weir: {why}"));
        }
        Ok(())
    }

    /// Completes what an earlier process has begun: a period that was cut and may not be durable.
    /// `was_counting` until the programs of this process took over.
    pub(super) fn finish_cut(&mut self, was_counting: bool) -> Result<(), CliError> {
        if self.is_adopted
            && !was_counting
            && let Some(ended) = self.left_ended
        {
            // The interface was made again, for example.
            self.gap_unix_ns = Some([ended.unix_ns, now().unix_ns]);
        }
        if let Some(previous) = self.previous.take() {
            // What is in both banks, as their last periods. No program counts there any more.
            say("weir: the counters of an earlier configuration are read and replaced");
            self.close_previous(previous)?;
        }
        if self.meter.pending().is_some() {
            self.store_cut(now())?;
        }
        Ok(())
    }

    fn close_previous(&mut self, mut previous: Meter) -> Result<(), CliError> {
        let services = if previous.means_the_same(&self.meter) {
            self.services.names()
        } else {
            let numbers = 0..previous.classes();
            numbers.map(|number| format!("class-{number}")).collect()
        };
        let by_tag = self.rows.by_tag();
        for _ in 0..1 + usize::from(previous.pending().is_some()) {
            if previous.pending().is_none() {
                previous.cut().map_err(CliError::run)?;
            }
            let cut = previous.pending().expect("it was cut");
            let span = [self.previous_began, now()];
            let mut chunks = Vec::new();
            let about = about(cut.period(), span, cut.totals(), None);
            let emit = &mut |chunk| chunks.push(chunk);
            let mut writer = ChunkWriter::new(
                &self.config.counter,
                previous.boot_epoch(),
                &about,
                measures(),
                services.clone(),
                self.config.chunk_records,
                emit,
            );
            let mut last = None;
            for cell in cut.cells() {
                if last != Some(cell.owner) {
                    writer.owner(match cell.owner {
                        CutOwner::Row(row) => {
                            let slot = by_tag.get(&previous.tag(row));
                            self.rows.owner_of(slot.copied())
                        }
                        other => unknown_owner(other),
                    });
                    last = Some(cell.owner);
                }
                let counts = [cell.packets, cell.bytes];
                writer.record(cell.class, cell.direction, Flags::default(), &counts);
            }
            writer.finish();
            let base = Base { ended: about.ended };
            self.spool
                .store(&mut chunks, &base.bytes())
                .map_err(CliError::run)?;
            previous.settle();
            self.previous_began = about.ended;
        }
        Ok(())
    }

    /// Answers RADIUS requests for a moment.
    pub(super) fn serve(&mut self, server: &mut Server) {
        let (rows, meter, spool) = (&mut self.rows, &mut self.meter, &mut self.spool);
        let applied = &mut self.applied;
        let mut log = |events: &mut [SessionEvent]| {
            // The kernel attributes before the answer, and before the disk has the event: a session
            // whose event is not durable begins again with the client's next attempt. Events that
            // the disk refused come again, and are not applied again.
            for event in events.iter().skip(*applied) {
                if let Err(why) = rows.apply(meter, event) {
                    say(&format!("weir: {why}"));
                }
            }
            *applied = events.len();
            spool.log(events).map_err(|error| error.to_string())?;
            *applied = 0;
            Ok(())
        };
        match server.serve(WAIT, &mut log) {
            Ok(events) => {
                self.events += events.len() as u64;
                self.over("RADIUS");
            }
            Err(why) => {
                self.warn("RADIUS", &why);
                std::thread::sleep(WAIT);
            }
        }
        self.report_refused(server);
    }

    /// Says which RADIUS packets were refused, at most once a minute.
    fn report_refused(&mut self, server: &Server) {
        let refused = server.stats().refused();
        let now_ns = monotonic_ns();
        let is_due = self.reported_ns.is_none_or(|at| now_ns - at >= REPORT_NS);
        if refused == self.reported || !is_due {
            return;
        }
        say(&format!("weir: RADIUS packets refused so far: {refused}"));
        self.reported = refused;
        self.reported_ns = Some(now_ns);
    }

    /// Ends the period at a boundary, and makes its records durable. A full disk leaves the period
    /// to be stored later: the kernel goes on counting.
    pub(super) fn cut(&mut self, boundary_ns: u64) -> Result<(), CliError> {
        let ended = now().at(boundary_ns);
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
        let shortened = self.shorten_log();
        self.is_working("log of sessions", shortened)?;
        let delivered = self.deliver();
        self.is_working("ledger", delivered)?;
        Ok(())
    }

    pub(super) fn cut_now(&mut self) -> Result<(), CliError> {
        self.store_pending()?;
        self.store_cut(now())
    }

    /// Stores what was counted between the last cut and the end of the programs.
    pub(super) fn cut_rest(&mut self) -> Result<(), CliError> {
        self.rows.note_cut();
        let cut = self.meter.cut().map_err(CliError::run)?;
        if cut.totals() == Totals::default() {
            return Ok(());
        }
        self.store_cut(now())
    }

    /// Stores the period that was cut and is not durable, if there is one.
    fn store_pending(&mut self) -> Result<(), CliError> {
        match self.meter.pending() {
            Some(_) => self.store_cut(now()),
            None => Ok(()),
        }
    }

    /// Whether it worked; an alarm if that may be otherwise later.
    fn is_working(
        &mut self,
        source: &'static str,
        done: Result<(), CliError>,
    ) -> Result<bool, CliError> {
        match done {
            Ok(()) => {
                self.over(source);
                Ok(true)
            }
            Err(CliError::Run(error)) if is_transient(&error) => {
                self.warn(source, &format!("{error:#}"));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the records of the period that was cut durable; cuts one, which ends at `ended`, if
    /// there is none.
    fn store_cut(&mut self, ended: Moment) -> Result<(), CliError> {
        let epoch = self.meter.boot_epoch();
        if self.meter.pending().is_none() {
            self.rows.note_cut();
            self.meter.cut().map_err(CliError::run)?;
            self.cut_ended = Some(ended);
        }
        let ended = self.cut_ended.unwrap_or(ended);
        let cut = self.meter.pending().expect("it was cut");
        let began = self.began;
        let about = about(cut.period(), [began, ended], cut.totals(), self.gap_unix_ns);
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut emit = |chunk| chunks.push(chunk);
        let mut writer = ChunkWriter::new(
            &self.config.counter,
            epoch,
            &about,
            measures(),
            self.services.names(),
            self.config.chunk_records,
            &mut emit,
        );
        let mut last = None;
        for cell in cut.cells() {
            if last != Some(cell.owner) {
                writer.owner(match cell.owner {
                    CutOwner::Row(row) => self.rows.owner(row),
                    other => unknown_owner(other),
                });
                last = Some(cell.owner);
            }
            let counts = [cell.packets, cell.bytes];
            writer.record(cell.class, cell.direction, Flags::default(), &counts);
        }
        writer.finish();
        let base = Base { ended };
        self.spool
            .store(&mut chunks, &base.bytes())
            .map_err(|error| CliError::Run(error.into()))?;
        self.meter.settle();
        self.rows.release_ended(&mut self.meter);
        self.began = ended;
        self.cut_ended = None;
        self.gap_unix_ns = None;
        self.done.periods += 1;
        for chunk in &chunks {
            self.done.records += chunk.records.len() as u64;
        }
        for direction in 0..2 {
            self.done.link.packets[direction] += about.link.packets[direction];
            self.done.link.bytes[direction] += about.link.bytes[direction];
        }
        Ok(())
    }

    /// Puts what the spool has into the ledger, if this process has it. A chunk that the ledger
    /// refuses for good stays in the spool, and does not hold up the others.
    pub(super) fn deliver(&mut self) -> Result<(), CliError> {
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
            Some(why) => self.warn("chunks", &format!("{why}; it stays in the spool")),
            None => self.over("chunks"),
        }
        Ok(())
    }

    /// Replaces the log of events by one event for each session that runs, when it has grown long.
    fn shorten_log(&mut self) -> Result<(), CliError> {
        if self.events <= EVENTS_SPARE {
            return Ok(());
        }
        let running = self.rows.running(now().unix_ns);
        if self.events <= running.len() as u64 + EVENTS_SPARE {
            return Ok(());
        }
        let shortened = self.spool.replace_events(running);
        self.events = shortened.map_err(|error| CliError::Run(error.into()))?;
        Ok(())
    }

    fn warn(&mut self, source: &'static str, why: &str) {
        if self.alarms.get(source).map(String::as_str) != Some(why) {
            say(&format!(
                "weir: {why}; the kernel goes on counting, and nothing is lost"
            ));
            self.alarms.insert(source, why.to_owned());
        }
    }

    fn over(&mut self, source: &'static str) {
        if self.alarms.remove(source).is_some() {
            say(&format!("weir: {source}: works again"));
        }
    }
}

/// Whether what failed may work later.
fn is_transient(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<LedgerError>();
    error.is_some_and(LedgerError::is_transient)
}

/// What the spool notes beside a period: where the next one begins.
struct Base {
    ended: Moment,
}

impl Base {
    fn bytes(&self) -> Vec<u8> {
        let (monotonic, unix) = (self.ended.monotonic_ns, self.ended.unix_ns);
        [monotonic.to_le_bytes(), unix.to_le_bytes()].concat()
    }

    fn read(bytes: &[u8]) -> Option<Base> {
        let (monotonic, unix) = bytes.split_first_chunk()?;
        Some(Base {
            ended: Moment {
                monotonic_ns: u64::from_le_bytes(*monotonic),
                unix_ns: i64::from_le_bytes(unix.try_into().ok()?),
            },
        })
    }
}

fn about(period: u64, span: [Moment; 2], link: Totals, gap_unix_ns: Option<[i64; 2]>) -> Cut {
    Cut {
        period,
        began: span[0],
        ended: span[1],
        link,
        lost_inside: 0,
        gap_unix_ns,
    }
}

fn measures() -> Vec<Measure> {
    ["packets", "bytes"]
        .map(|name| Measure {
            name: name.to_owned(),
            additive: true,
        })
        .into()
}

/// The owner of a cell that is no session's that is known.
fn unknown_owner(owner: CutOwner) -> Owner {
    match owner {
        CutOwner::Unknown(key) => Owner::unattributed(OwnerKind::Unattributed, Some(key)),
        CutOwner::Row(_) | CutOwner::Overflow => Owner::unattributed(OwnerKind::Overflow, None),
    }
}

/// The spool of a counter beside the store that its records go to: stores in one folder do not share
/// spools, since a chunk of one is none of the other's chain. The usual store is not named.
fn spool_beside(store: &Path, counter: &str) -> PathBuf {
    match store.file_name() {
        Some(name) if name != store::FILE_NAME => {
            let mut spool = name.to_owned();
            spool.push(format!(".{counter}.spool"));
            store.with_file_name(spool)
        }
        _ => store.with_file_name(format!("{counter}.spool")),
    }
}

pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn now() -> Moment {
    let wall = clock_gettime(ClockId::Realtime);
    Moment {
        monotonic_ns: monotonic_ns(),
        unix_ns: wall
            .tv_sec
            .saturating_mul(1_000_000_000)
            .saturating_add(wall.tv_nsec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_in_one_folder_have_spools_of_their_own() {
        for (store, spool) in [
            ("/a/usage.db", "/a/pop-1.spool"),
            ("/a/b.db", "/a/b.db.pop-1.spool"),
            ("c.db", "c.db.pop-1.spool"),
        ] {
            assert_eq!(spool_beside(Path::new(store), "pop-1"), Path::new(spool));
        }
    }
}
