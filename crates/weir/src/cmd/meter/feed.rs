//! Begins and ends sessions on a thread of its own: no answer waits for a cut.
//!
//! ```text
//!  requests ─► events ─► kernel's table ─► log (one commit for all that came) ─► answers
//! ```

use super::alarms::Alarms;
use super::clock::Clock;
use super::control::Control;
use super::quotas::AccessServers;
use super::rows::{SharedTable, locked};
use super::stop::Stop;
use crate::error::{harmless, say};
use crate::radius::{Refused, Server, Sniffer, Stats, stats_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weir_ledger::{LedgerError, SessionLog, Shortening};
use weir_link::xdp::shorten_slice;
use weir_meter::{SessionEvent, SessionEventKind};

/// The longest wait for a request: silent sessions are looked for between two.
const WAIT: Duration = Duration::from_millis(500);
/// Between two attempts to make events durable that could not be.
const RETRY: Duration = Duration::from_millis(50);
/// Between two reports of RADIUS packets that were refused.
const REPORT: Duration = Duration::from_mins(1);
/// The log is shortened when it has this many more events than twice the sessions.
const EVENTS_SPARE: u64 = 100_000;
/// Events that are appended or deleted for the log to be shortened, between two batches: more than come
/// in meanwhile, so that it ends, and so few that an answer waits for milliseconds.
const SHORTENED_PER_EVENT: u32 = 3;
const SHORTENED_AT_ONCE: [u32; 2] = [256, 768];

/// Where sessions come from, beside the list.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) server: Option<Server>,
    pub(crate) sniffer: Option<Sniffer>,
    pub(crate) control: Option<Control>,
    /// The requests when quotas of sessions are spent.
    pub(crate) access_servers: AccessServers,
}

impl Sources {
    /// Takes up an event of the log, after a restart of the program.
    pub(crate) fn restore(&mut self, event: &SessionEvent) {
        if let Some(server) = &mut self.server {
            server.restore(event);
        }
        if let Some(sniffer) = &mut self.sniffer {
            sniffer.restore(event);
        }
    }
}

/// The sources of sessions, and the log that makes their events durable.
pub(super) struct Feed {
    server: Option<Server>,
    sniffer: Option<Sniffer>,
    control: Option<Control>,
    log: SessionLog,
    /// Events in the log.
    logged: u64,
    /// Number of the last one that was appended.
    last: u64,
    shortening: Option<Shortening>,
    spare: u64,
    table: SharedTable,
    clock: Clock,
    /// Events that are not durable yet.
    batch: Vec<SessionEvent>,
    /// Those of them, from the first on, that are applied.
    applied: usize,
    /// Those of them that were not applied, by their places, and why.
    refused: Vec<(usize, String)>,
    alarms: Alarms,
    /// RADIUS packets whose refusal was reported, and when.
    reported: Refused,
    /// As many requests that name no policy.
    reported_policies: u64,
    reported_at: Option<Instant>,
    /// Frames of the exchange that the listener has lost.
    lost: u64,
    stats: Arc<Mutex<Option<Stats>>>,
}

impl Feed {
    /// With a log that has `logged` events.
    pub(super) fn new(
        sources: Sources,
        log: SessionLog,
        logged: u64,
        table: SharedTable,
        clock: Clock,
    ) -> Feed {
        let Sources {
            server,
            sniffer,
            control,
            access_servers: _,
        } = sources;
        let stats = stats_of(server.as_ref(), sniffer.as_ref());
        Feed {
            server,
            sniffer,
            control,
            log,
            logged,
            last: 0,
            shortening: None,
            spare: EVENTS_SPARE,
            table,
            clock,
            batch: Vec::new(),
            applied: 0,
            refused: Vec::new(),
            alarms: Alarms::default(),
            reported: Refused::default(),
            reported_policies: 0,
            reported_at: None,
            lost: 0,
            stats: Arc::new(Mutex::new(stats)),
        }
    }

    /// Whether there is anything to wait for.
    pub(super) fn has_sources(&self) -> bool {
        self.server.is_some() || self.sniffer.is_some() || self.control.is_some()
    }

    /// Counts of RADIUS packets so far, by outcome.
    pub(super) fn stats(&self) -> Arc<Mutex<Option<Stats>>> {
        self.stats.clone()
    }

    /// Answers requests until it is to stop.
    pub(super) fn run(&mut self, stop: &Stop) {
        // A session's packets are its own soon after its Start, though another thread keeps the CPU.
        let _ = shorten_slice();
        while !stop.is_requested() {
            if self.batch.is_empty() {
                self.wait(stop);
                self.receive();
            }
            if !self.make_durable() {
                stop.wait(RETRY);
            }
            self.report_refused();
            let stats = self.stats_now();
            *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
        }
    }

    fn stats_now(&self) -> Option<Stats> {
        stats_of(self.server.as_ref(), self.sniffer.as_ref())
    }

    fn wait(&mut self, stop: &Stop) {
        let mut has_more = self.shortening.is_some();
        has_more |= self.control.as_ref().is_some_and(Control::has_more);
        if let Some(sniffer) = &mut self.sniffer {
            has_more |= !sniffer.arm();
        }
        let wait = if has_more { Duration::ZERO } else { WAIT };
        let wait = Timespec::try_from(wait).unwrap_or_default();
        let mut fds = vec![PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        let server = self.server.iter();
        let sockets = server.flat_map(Server::sockets);
        let sniffer = self.sniffer.iter().map(AsFd::as_fd);
        let readable = sockets.chain(sniffer);
        fds.extend(readable.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        if let Some(control) = &self.control {
            control.fds(&mut fds);
        }
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            // As if nothing came: what is wrong with a source is said when it is read.
            Err(_) => stop.wait(RETRY),
        }
    }

    fn receive(&mut self) {
        if let Some(server) = &mut self.server {
            match server.receive(&mut self.batch) {
                Ok(()) => self.alarms.over("RADIUS"),
                Err(error) => self.alarms.warn("RADIUS", &error.to_string()),
            }
        }
        if let Some(sniffer) = &mut self.sniffer {
            match sniffer.receive(&mut self.batch) {
                Ok(()) => self.alarms.over("RADIUS listener"),
                Err(why) => self.alarms.warn("RADIUS listener", &why),
            }
            let lost = sniffer.lost();
            if lost > self.lost {
                self.lost = lost;
                self.alarms.refused(&format!(
                    "{lost} frames of the RADIUS exchange were lost before they were seen: sessions \
                     may be missing until their next Interim-Update"
                ));
            }
        }
        if let Some(control) = &mut self.control {
            let table = locked(&self.table);
            control.receive(&mut self.batch, self.clock.now().unix_ns, &table);
        }
    }

    /// Applies received events, makes them durable, and answers. If it cannot be made durable, it stays for
    /// the next attempt, and nothing is answered.
    fn make_durable(&mut self) -> bool {
        self.apply();
        if !self.batch.is_empty()
            && let Err(error) = self.log.append(&mut self.batch)
        {
            if let Some(server) = &mut self.server {
                server.not_durable();
            }
            if let Some(control) = &mut self.control {
                control.not_durable(&error.to_string());
            }
            self.alarms.warn("log of sessions", &error.to_string());
            return false;
        }
        self.alarms.over("log of sessions");
        if let Some(server) = &mut self.server {
            server.answer();
        }
        if let Some(control) = &mut self.control {
            control.answer(&self.batch, &self.refused);
        }
        let events = self.batch.len();
        self.logged += events as u64;
        self.last = self.batch.last().map_or(self.last, |event| event.number);
        self.batch.clear();
        self.refused.clear();
        self.applied = 0;
        self.shorten_log(events);
        true
    }

    /// The kernel attributes before the answer, and before the disk has the event: a session whose
    /// event is not durable begins again with the client's next attempt. Events that the disk
    /// refused are not applied again.
    fn apply(&mut self) {
        if self.applied == self.batch.len() {
            return;
        }
        let mut table = locked(&self.table);
        for (at, event) in self.batch.iter_mut().enumerate().skip(self.applied) {
            if let Err(why) = table.apply(event) {
                self.refused.push((at, why));
            }
            if let SessionEventKind::Up(info) = &event.kind {
                event.lost = table.rows.lost(&info.id);
            }
        }
        drop(table);
        for (_, why) in self.refused.iter().filter(|(at, _)| *at >= self.applied) {
            self.alarms.refused(why);
        }
        self.applied = self.batch.len();
    }

    /// Says which RADIUS packets were refused, and which named no policy, at most once a minute.
    fn report_refused(&mut self) {
        let Some(stats) = self.stats_now() else {
            return;
        };
        let (refused, policies) = (stats.refused(), stats.unknown_policies);
        let is_due = self.reported_at.is_none_or(|at| at.elapsed() >= REPORT);
        let is_known = refused == self.reported && policies == self.reported_policies;
        if is_known || !is_due {
            return;
        }
        if refused != self.reported {
            say(&format!("weir: RADIUS packets refused so far: {refused}"));
        }
        if policies != self.reported_policies {
            let server = self.server.iter().map(Server::unknown_policy);
            let sniffer = self.sniffer.iter().map(Sniffer::unknown_policy);
            let mut names = server.chain(sniffer);
            let name = names.find(|name| !name.is_empty()).unwrap_or_default();
            let name = harmless(name);
            say(&format!(
                "weir: RADIUS requests so far whose Filter-Id names no policy: {policies}, the last \
                 `{name}`: add [policy.{name}]; the sessions go on as they were"
            ));
        }
        (self.reported, self.reported_policies) = (refused, policies);
        self.reported_at = Some(Instant::now());
    }

    /// Shortens the log by a step, when it has grown long, after a batch of this many events: to one
    /// event for each session that runs, and those that come meanwhile. It grows by this many before
    /// that the cost of each stays the same.
    fn shorten_log(&mut self, events: usize) {
        let is_long = |sessions| self.logged > 2 * sessions as u64 + self.spare;
        if self.shortening.is_none() && (self.last == 0 || !is_long(0)) {
            return;
        }
        let [least, most] = SHORTENED_AT_ONCE;
        let limit = u32::try_from(events).unwrap_or(most);
        let limit = limit.saturating_mul(SHORTENED_PER_EVENT).clamp(least, most);
        let table = locked(&self.table);
        let sessions = table.rows.sessions();
        if self.shortening.is_none() && !is_long(sessions.len()) {
            return;
        }
        let last = self.last;
        let shortening = self.shortening.take();
        let mut shortening = shortening.unwrap_or_else(|| Shortening::new(last, sessions));
        let events = shortening.events(sessions, limit, self.clock.now().unix_ns);
        drop(table);
        match shortening.step(&mut self.log, events, limit) {
            Ok([appended, deleted]) => {
                self.logged = (self.logged + appended).saturating_sub(deleted);
                self.shortening = (!shortening.is_done()).then_some(shortening);
            }
            Err(error) => self.put_off(&error),
        }
    }

    /// The log stays as it is, and is shortened later: not with each event.
    fn put_off(&mut self, error: &LedgerError) {
        self.alarms.warn("log of sessions", &error.to_string());
        self.spare += EVENTS_SPARE;
    }
}

#[cfg(test)]
mod tests;
