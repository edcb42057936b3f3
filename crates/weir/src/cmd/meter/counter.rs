//! A counter: what it takes over from earlier processes, and the threads that keep it going.
//!
//! ```text
//!  Counter::open ─► restore ─► (programs are attached) ─► start ─► Running ─► stop ─► Counter
//!                                                           ├ thread "sessions": feed.rs
//!                                                           ├ thread "quotas": quotas.rs
//!                                                           └ thread "periods": cut.rs
//! ```

use super::alarms::Alarms;
use super::clock::{Clock, monotonic_ns};
use super::feed::{Feed, Sources};
use super::forwarding::Losses;
use super::interfaces::{OwnCounters, Side};
use super::pins::Pins;
use super::policies::{self, Policies};
use super::quotas::Quotas;
use super::rows::{Rows, SharedTable, Table, locked};
use super::seed;
use super::stop::Stop;
use crate::error::{CliError, limited, say};
use crate::radius::Stats;
use crate::store;
use serde::Serialize;
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use weir_ledger::{Ledger, SessionLog, Spool, StoreLock};
use weir_link::names::SystemNames;
use weir_link::xdp::{Banks, Meter, MeterSpec, PreviousMeter};
use weir_meter::config::{Config, MeasureConfig};
use weir_meter::engine::Unit;
use weir_meter::period::{Moment, Schedule};
use weir_meter::radius::requests::RequestStats;
use weir_meter::services::Services;
use weir_meter::{Direction, SessionEvent, SessionEventKind, SessionInfo, SessionSource, Totals};

/// Keys of a session on average, for which the kernel's table has room.
const KEYS_OF_SESSION: usize = 2;
/// Events that are read from the log at a time.
const EVENTS_AT_ONCE: u32 = 10_000;
/// The least and most time between two looks for flows that have ended: each passes over the whole
/// table.
const FLOWS_NS: [u64; 2] = [1_000_000_000, 15_000_000_000];
/// The longest wait of the thread that cuts periods.
const WAIT: Duration = Duration::from_millis(50);

/// Where a counter keeps its records.
#[derive(Clone, Copy)]
pub(crate) struct Stores<'a> {
    /// The ledger, if not the usual one.
    pub(crate) store: Option<&'a Path>,
    /// The spool, if not `COUNTER.spool` beside the ledger.
    pub(crate) spool: Option<&'a Path>,
    /// Leaves the records in the spool, for `weir mediate`.
    pub(crate) no_store: bool,
    /// As [`Clock::new`] takes it.
    pub(crate) wall_set: Option<&'a Path>,
}

/// The work that was done, stable for scripts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Done {
    /// Periods whose records are durable.
    pub(crate) periods: u64,
    /// Their records.
    pub(crate) records: u64,
    /// Packets and bytes of the link, up then down.
    pub(crate) link: Totals,
    /// RADIUS packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) radius: Option<Stats>,
    /// Requests to access servers when quotas were spent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quota_requests: Option<RequestStats>,
}

/// A counter's state, for people and programs that watch it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct View {
    /// The work that was done.
    #[serde(flatten)]
    pub(crate) done: Done,
    /// Sessions that run.
    pub(crate) sessions: usize,
    /// Sessions for which the counters have room.
    pub(crate) capacity: u32,
    /// Bytes of the counters in the kernel.
    pub(crate) memory_bytes: u64,
    /// Chunks in the spool, which no ledger has acknowledged.
    pub(crate) chunks_waiting: u64,
    /// End of the last period whose records are durable, Unix nanoseconds; 0 before the first.
    pub(crate) durable_until_unix_ns: i64,
    /// How long the last period took from its end until its records were durable and delivered,
    /// microseconds.
    pub(crate) cut_us: u64,
    /// Of that, until they were durable.
    pub(crate) durable_us: u64,
    /// Frames that were counted, and then lost by this process; none if it does not forward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost_inside: Option<u64>,
    /// Present faults.
    pub(crate) alarms: Vec<&'static str>,
}

/// A counter whose threads do not run.
pub(crate) struct Counter {
    pub(super) config: Config,
    pub(super) services: Services,
    pub(super) table: SharedTable,
    pub(super) banks: Arc<Banks>,
    pub(super) pins: Pins,
    /// Counters of other configurations, that earlier processes have left.
    pub(super) previous: Vec<PreviousMeter>,
    /// Since when they count.
    pub(super) previous_began: Moment,
    is_adopted: bool,
    pub(super) spool: Spool,
    _lock: StoreLock,
    log: Option<SessionLog>,
    /// Events in the log.
    logged: u64,
    pub(super) ledger: Option<Ledger>,
    pub(super) schedule: Schedule,
    pub(super) began: Moment,
    /// Until when counters that an earlier process has left were durable.
    left_ended: Option<Moment>,
    /// When the period that was cut ended, if this process has cut it.
    pub(super) cut_ended: Option<Moment>,
    /// How long the last period took from its end until its records were durable.
    pub(super) durable_ns: u64,
    /// When to try again to store the period that was cut.
    pub(super) retry_ns: Option<u64>,
    /// When to look for flows that have ended.
    flows_ns: u64,
    pub(super) gap_unix_ns: Option<[i64; 2]>,
    /// Frames that this process has lost.
    pub(super) losses: Losses,
    pub(super) clock: Clock,
    /// The interfaces' own counts.
    pub(super) own: OwnCounters,
    /// An earlier process' note of those counts at its last cut.
    left_own: Option<Vec<u8>>,
    pub(super) alarms: Alarms,
    pub(super) done: Done,
}

impl Counter {
    /// Opens the counter's stores, and its counters in the kernel: those that an earlier process has
    /// pinned, or new ones. `subscribers` is the list of the configuration.
    pub(crate) fn open(
        stores: Stores<'_>,
        config: &Config,
        subscribers: &[SessionInfo],
        names: &SystemNames,
        pins: Pins,
    ) -> Result<Counter, CliError> {
        let store = store::path_made(stores.store)?;
        let spool_path = match stores.spool {
            Some(path) => path.to_owned(),
            None => spool_beside(&store, &config.counter),
        };
        let spool = Spool::open(&spool_path).map_err(CliError::run)?;
        // Two counters of one name must not take each other's sessions and periods.
        let lock = spool.lock().map_err(CliError::run)?;
        let log = SessionLog::beside(&spool_path).map_err(CliError::run)?;
        let ledger = if stores.no_store {
            None
        } else {
            Some(Ledger::open(&store).map_err(CliError::run)?)
        };
        let services = Services::new(config.services.clone());
        let capacity = config.capacity_live(subscribers.len());
        let spec = spec(config, capacity, &services, names);
        let opened = Meter::open(&pins.folder, &spec).map_err(CliError::run)?;
        policies::set_portal(config, &opened.meter)?;
        let clock = Clock::new(stores.wall_set.map(Path::to_owned));
        let began = clock.now();
        let table = Table {
            rows: Rows::new(
                capacity,
                &config.keys,
                config.adoption_ns,
                Policies::new(config),
                seed(),
            ),
            meter: opened.meter,
        };
        let mut counter = Counter {
            config: config.clone(),
            banks: table.meter.banks(),
            table: Arc::new(Mutex::new(table)),
            pins,
            previous: opened.previous,
            previous_began: began,
            is_adopted: opened.is_adopted,
            spool,
            _lock: lock,
            log: Some(log),
            logged: 0,
            ledger,
            schedule: Schedule::new(began, config.period_ns),
            began,
            services,
            left_ended: None,
            cut_ended: None,
            durable_ns: 0,
            retry_ns: None,
            flows_ns: began.monotonic_ns,
            gap_unix_ns: None,
            losses: Losses::default(),
            clock,
            own: OwnCounters::default(),
            left_own: None,
            alarms: Alarms::default(),
            done: Done::default(),
        };
        counter.note_left()?;
        counter.note_meaning()?;
        Ok(counter)
    }

    /// Notes what the cells in the kernel mean, before something is counted there.
    fn note_meaning(&mut self) -> Result<(), CliError> {
        let meaning = self.meaning();
        let (counter, epoch) = (&self.config.counter, self.banks.boot_epoch());
        let noted = self.spool.note_meaning(counter, epoch, &meaning);
        noted.map_err(CliError::run)
    }

    /// Calls this with the counters in the kernel: for the programs that count in them, which are
    /// attached after [`restore`](Self::restore) and before [`start`](Self::start).
    pub(crate) fn with_meter<T>(&self, call: impl FnOnce(&Meter) -> T) -> T {
        call(&locked(&self.table).meter)
    }

    /// Whether the kernel has no counts of earlier processes.
    pub(super) fn is_new(&self) -> bool {
        !self.is_adopted && self.previous.is_empty()
    }

    /// The pins of the counter's link.
    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// The work that was done.
    pub(crate) fn done(&self) -> Done {
        self.done
    }

    /// Bytes of the counters in the kernel.
    pub(crate) fn memory_bytes(&self) -> u64 {
        locked(&self.table).meter.memory_bytes()
    }

    /// Reads the notes of earlier processes: the owners of the counters' rows, and until when they
    /// counted.
    fn note_left(&mut self) -> Result<(), CliError> {
        let mut table = locked(&self.table);
        let Table { rows, meter } = &mut *table;
        if self.is_adopted {
            rows.adopt(meter);
        }
        for previous in &self.previous {
            rows.note_previous(&previous.meter);
        }
        let epoch_now = meter.boot_epoch();
        let (monotonic_ns, unix_ns) = meter.made();
        drop(table);
        if self.is_adopted && unix_ns > 0 {
            // No period is durable yet, unless the spool says otherwise.
            let made = Moment {
                monotonic_ns,
                unix_ns,
            };
            (self.began, self.left_ended) = (made, Some(made));
        }
        let last = self.spool.last(&self.config.counter);
        let Some((epoch, _, base)) = last.map_err(CliError::run)? else {
            return Ok(());
        };
        let Some(base) = Base::read(&base) else {
            return Ok(());
        };
        let mut previous = self.previous.iter();
        if epoch == epoch_now {
            self.began = base.ended;
            self.left_ended = Some(base.ended);
            // If the next one was cut, what the interfaces had counted then was lost with its process.
            self.left_own = self.banks.pending().is_none().then_some(base.own);
        } else if previous.any(|it| it.meter.boot_epoch() == epoch) {
            self.previous_began = base.ended;
        } else {
            // The machine was restarted, or the counters were taken away.
            self.gap_unix_ns = Some([base.ended.unix_ns, self.began.unix_ns]);
        }
        Ok(())
    }

    /// Takes up the sessions of the list and of the log; `seen` has each event of other sources than
    /// the list, in order.
    ///
    /// The log notes the list, too: a subscriber that has left the list still owns what was counted
    /// for it.
    pub(crate) fn restore(
        &mut self,
        subscribers: &[SessionInfo],
        mut seen: impl FnMut(&SessionEvent),
    ) -> Result<(), CliError> {
        let listed = self.listed()?;
        let now_ns = self.clock.now().unix_ns;
        let event = |kind| SessionEvent {
            number: 0,
            received_unix_ns: now_ns,
            happened_unix_ns: Some(0),
            source: SessionSource::List,
            lost: None,
            kind,
        };
        let is_logged = |info: &SessionInfo| listed.get(&info.id) == Some(&(true, info.clone()));
        let began = subscribers.iter().filter(|info| !is_logged(info));
        let mut news: Vec<SessionEvent> = began
            .map(|info| event(SessionEventKind::Up(info.clone())))
            .collect();
        {
            let mut table = locked(&self.table);
            let known: std::collections::HashSet<&str> =
                subscribers.iter().map(|info| &*info.id).collect();
            for (is_up, info) in listed.values() {
                if known.contains(&*info.id) {
                    continue;
                }
                let ended = event(SessionEventKind::Down(info.clone()));
                let replayed = table.rows.replay_up(info);
                if let Err(why) = replayed.and_then(|()| table.rows.replay(&ended)) {
                    self.alarms.refused(&why);
                }
                news.extend(is_up.then_some(ended));
            }
            for info in subscribers {
                let up = table.rows.replay_up(info);
                up.map_err(|why| CliError::refused(format!("subscribers: {why}")))?;
            }
        }
        self.each_event(|counter, event| {
            if event.source == SessionSource::List {
                return;
            }
            let replayed = locked(&counter.table).rows.replay(event);
            if let Err(why) = replayed {
                counter.alarms.refused(&why);
            }
            seen(event);
        })?;
        if let Err(why) = locked(&self.table).claim() {
            say(&format!("weir: {why}"));
        }
        if !news.is_empty() {
            let appended = self.log().append(&mut news);
            let appended = appended.map_err(|error| CliError::Run(error.into()));
            if self.is_working("log of sessions", appended)? {
                self.logged += news.len() as u64;
            }
        }
        Ok(())
    }

    /// The sessions of lists that the log has, by identifier, and whether each ran when it was noted
    /// last.
    fn listed(&mut self) -> Result<HashMap<String, (bool, SessionInfo)>, CliError> {
        let mut listed = HashMap::new();
        self.each_event(|counter, event| {
            counter.logged += 1;
            let (is_up, info) = match &event.kind {
                SessionEventKind::Up(info) => (true, info),
                SessionEventKind::Down(info) => (false, info),
                SessionEventKind::AllDown { .. } => return,
            };
            if event.source == SessionSource::List {
                listed.insert(info.id.clone(), (is_up, info.clone()));
            }
        })?;
        Ok(listed)
    }

    fn each_event(
        &mut self,
        mut each: impl FnMut(&mut Counter, &SessionEvent),
    ) -> Result<(), CliError> {
        let mut after = 0;
        loop {
            let events = self.log().events(after, EVENTS_AT_ONCE);
            let events = events.map_err(CliError::run)?;
            let Some(last) = events.last() else {
                return Ok(());
            };
            after = last.number;
            for event in &events {
                each(self, event);
            }
        }
    }

    fn log(&mut self) -> &mut SessionLog {
        self.log.as_mut().expect("no thread of sessions runs")
    }

    /// Counts the frames that a killed process had in hand, and had not counted: of counters of other
    /// configurations, and if they `are_left` of these.
    pub(crate) fn settle_handed(&self, are_left: bool) -> Result<(), CliError> {
        let settle = |meter: &Meter| meter.settle_handed(Direction::Down).map_err(CliError::run);
        if are_left {
            settle(&locked(&self.table).meter)?;
        }
        self.previous
            .iter()
            .try_for_each(|previous| settle(&previous.meter))
    }

    /// Starts the threads, when the programs count; `was_counting` says that those of an earlier
    /// process did until these took their places. First it completes what that process has begun: a
    /// period that was cut and may not be durable, and counters of other configurations.
    pub(crate) fn start(
        mut self,
        was_counting: bool,
        sides: Vec<Side>,
        mut sources: Sources,
    ) -> Result<Running, CliError> {
        let left = self.left_own.take().filter(|_| was_counting);
        self.own = OwnCounters::new(sides, !self.is_adopted, left.as_deref());
        if self.is_adopted
            && !was_counting
            && let Some(ended) = self.left_ended
        {
            // The interface was made again, for example.
            self.gap_unix_ns = Some([ended.unix_ns, self.clock.now().unix_ns]);
        }
        self.finish_cut()?;
        // The first period is at least as long as the rest of the present one.
        self.schedule = Schedule::new(self.clock.now(), self.config.period_ns);
        let stop = Arc::new(Stop::new()?);
        let log = self.log.take().expect("no thread of sessions runs");
        let servers = std::mem::take(&mut sources.access_servers);
        let (table, clock) = (self.table.clone(), self.clock.clone());
        let asks = (!servers.is_empty()).then(|| Quotas::new(servers, table, clock));
        let mut feed = Feed::new(
            sources,
            log,
            self.logged,
            self.table.clone(),
            self.clock.clone(),
        );
        let radius = feed.stats();
        let failed = |error| CliError::run(format!("cannot start a thread: {}", limited(&error)));
        let sessions = if feed.has_sources() {
            let stop = stop.clone();
            let thread = Builder::new().name("sessions".into());
            let thread = thread.spawn(move || feed.run(&stop));
            Some(thread.map_err(failed)?)
        } else {
            None
        };
        let quota_requests = asks.as_ref().map(Quotas::stats);
        let quotas = match asks {
            Some(mut quotas) => {
                let stop = stop.clone();
                let thread = Builder::new().name("quotas".into());
                let thread = thread.spawn(move || quotas.run(&stop));
                Some(thread.map_err(failed)?)
            }
            None => None,
        };
        let beat = Arc::new(AtomicU64::new(monotonic_ns()));
        let shown = Arc::new(Mutex::new(self.view(0)));
        let table = self.table.clone();
        let (stopped, beats, shows) = (stop.clone(), beat.clone(), shown.clone());
        let thread = Builder::new().name("periods".into());
        let periods = thread.spawn(move || {
            let ended = self.run(&stopped, &beats, &shows);
            (Box::new(self), ended)
        });
        Ok(Running {
            stop,
            sessions,
            quotas,
            quota_requests,
            periods: periods.map_err(failed)?,
            beat,
            shown,
            table,
            radius,
        })
    }

    /// Cuts each period when it is due, until it is to stop.
    fn run(&mut self, stop: &Stop, beat: &AtomicU64, shown: &Mutex<View>) -> Result<(), CliError> {
        while !stop.is_requested() {
            let now_ns = monotonic_ns();
            beat.store(now_ns, Ordering::Relaxed);
            if let Some(boundary_ns) = self.schedule.due(now_ns) {
                self.cut(boundary_ns)?;
            } else if self.retry_ns.is_some_and(|retry_ns| retry_ns <= now_ns) {
                self.retry()?;
            } else if self.flows_ns <= now_ns {
                self.flows_ns = now_ns.saturating_add(self.flows_interval_ns());
                self.banks.end_idle_flows(now_ns).map_err(CliError::run)?;
                continue;
            } else {
                stop.wait(WAIT);
                continue;
            }
            let view = self.view(monotonic_ns() - now_ns);
            *shown.lock().unwrap_or_else(PoisonError::into_inner) = view;
        }
        Ok(())
    }

    /// Between two looks for flows that have ended: a fraction of the time after which they do.
    fn flows_interval_ns(&self) -> u64 {
        let idle = self.config.measures.iter().find_map(|it| match it {
            MeasureConfig::Flows { idle_ns, .. } => Some(*idle_ns),
            _ => None,
        });
        idle.map_or(u64::MAX, |ns| (ns / 4).clamp(FLOWS_NS[0], FLOWS_NS[1]))
    }

    /// The counter's state, when its last cut took this time.
    pub(super) fn view(&self, took_ns: u64) -> View {
        // No session waits for the disk.
        let chunks_waiting = self.spool.waiting().unwrap_or(0);
        let table = locked(&self.table);
        View {
            done: self.done,
            sessions: table.rows.count(),
            capacity: table.meter.subscribers(),
            memory_bytes: table.meter.memory_bytes(),
            chunks_waiting,
            durable_until_unix_ns: if self.done.periods > 0 {
                self.began.unix_ns
            } else {
                0
            },
            cut_us: took_ns / 1000,
            durable_us: self.durable_ns / 1000,
            lost_inside: None,
            alarms: self.alarms.sources().collect(),
        }
    }
}

/// A counter whose threads run. They end with [`stop`](Self::stop), not when this is dropped: the
/// kernel goes on counting then, as after a kill.
pub(crate) struct Running {
    stop: Arc<Stop>,
    sessions: Option<JoinHandle<()>>,
    quotas: Option<JoinHandle<()>>,
    quota_requests: Option<Arc<Mutex<RequestStats>>>,
    periods: JoinHandle<(Box<Counter>, Result<(), CliError>)>,
    beat: Arc<AtomicU64>,
    shown: Arc<Mutex<View>>,
    table: SharedTable,
    radius: Arc<Mutex<Option<Stats>>>,
}

impl Running {
    /// Whether it has ended by itself: [`stop`](Self::stop) says why.
    pub(crate) fn has_ended(&self) -> bool {
        let mut others = self.sessions.iter().chain(&self.quotas);
        self.periods.is_finished() || others.any(JoinHandle::is_finished)
    }

    fn quota_requests(&self) -> Option<RequestStats> {
        let stats = self.quota_requests.as_ref()?;
        Some(*stats.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How long ago the thread that cuts periods was seen to work.
    pub(crate) fn silent_for(&self) -> Duration {
        let beat_ns = self.beat.load(Ordering::Relaxed);
        Duration::from_nanos(monotonic_ns().saturating_sub(beat_ns))
    }

    /// The counter's present state.
    pub(crate) fn view(&self) -> View {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let mut view = shown.clone();
        drop(shown);
        view.done.radius = *self.radius.lock().unwrap_or_else(PoisonError::into_inner);
        view.done.quota_requests = self.quota_requests();
        view.sessions = locked(&self.table).rows.count();
        view
    }

    /// Ends the threads, and gives the counter, whose last period is not cut yet; and why the thread
    /// that cuts periods has ended, if by itself.
    pub(crate) fn stop(mut self) -> (Box<Counter>, Result<(), CliError>) {
        self.stop.request();
        for thread in self.sessions.take().into_iter().chain(self.quotas.take()) {
            if let Err(panic) = thread.join() {
                resume_unwind(panic);
            }
        }
        let quota_requests = self.quota_requests();
        match self.periods.join() {
            Ok((mut counter, ended)) => {
                let radius = self.radius.lock().unwrap_or_else(PoisonError::into_inner);
                counter.done.radius = *radius;
                counter.done.quota_requests = quota_requests;
                (counter, ended)
            }
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// The specification of a configuration's counters in the kernel.
pub(super) fn spec<'a>(
    config: &'a Config,
    capacity: usize,
    services: &'a Services,
    names: &'a SystemNames,
) -> MeterSpec<'a> {
    let size = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    MeterSpec {
        subscribers: size(capacity),
        keys: size(capacity.saturating_mul(KEYS_OF_SESSION)).min(weir_link::xdp::SUBSCRIBERS_MAX),
        unknown: size(config.unattributed_max),
        services,
        names,
        counts_ip: config.unit == Unit::Ip,
        polices: !config.policies.is_empty(),
        measures: &config.measures,
        adopts: config.adoption_ns > 0,
    }
}

/// The spool's note beside a period: where the next one begins.
pub(super) struct Base {
    pub(super) ended: Moment,
    /// [What interfaces had counted](OwnCounters::note) then; of earlier versions nothing.
    pub(super) own: Vec<u8>,
}

impl Base {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (monotonic, unix) = (self.ended.monotonic_ns, self.ended.unix_ns);
        let ended = [monotonic.to_le_bytes(), unix.to_le_bytes()].concat();
        [ended, self.own.clone()].concat()
    }

    fn read(bytes: &[u8]) -> Option<Base> {
        let (monotonic, rest) = bytes.split_first_chunk()?;
        let (unix, own) = rest.split_first_chunk()?;
        Some(Base {
            ended: Moment {
                monotonic_ns: u64::from_le_bytes(*monotonic),
                unix_ns: i64::from_le_bytes(*unix),
            },
            own: own.to_vec(),
        })
    }
}

/// The spool of a counter beside the store that its records go to: stores in one folder do not share
/// spools, since a chunk of one is not in the other's chain. The usual store is not named.
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
