//! How a log of sessions is shortened while events are appended to it, in steps that are short.
//!
//! ```text
//!  rows  1 … last │ events, and one for each session that runs …
//!        ▲        └── 1. appended, some sessions in each step
//!        └─────────── 2. then deleted, the oldest first
//! ```
//!
//! An event says which keys of its session are another's by then (`lost`), so what the log comes to does
//! not depend on what stood before, and the log is right after each step: a process may end between any
//! two. Events of sessions that have ended and are not recorded yet stay.

use crate::{LedgerError, SessionLog};
use std::collections::HashSet;
use weir_meter::sessions::{Sessions, Slot};
use weir_meter::{SessionEvent, SessionEventKind};

/// A log that is being shortened.
#[derive(Debug)]
pub struct Shortening {
    /// The last event that will be deleted.
    last: u64,
    /// Slots of sessions that may have such events, and the first that is not appended yet.
    slots: Slot,
    next: Slot,
    /// Sessions that had ended: their events stay.
    kept: HashSet<String>,
    /// All events up to this one have been looked at.
    deleted: u64,
    is_done: bool,
}

impl Shortening {
    /// Of a log whose last event is number `last`, and these sessions, to which all its events have
    /// been applied.
    pub fn new(last: u64, sessions: &Sessions) -> Shortening {
        Shortening {
            last,
            slots: sessions.slots(),
            next: 0,
            kept: HashSet::new(),
            deleted: 0,
            is_done: false,
        }
    }

    /// Whether the log is as short as it will be.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// The events that the next step appends, of at most `limit` sessions. All events so far have
    /// been applied to them, and none is appended before the step.
    pub fn events(
        &mut self,
        sessions: &Sessions,
        limit: u32,
        now_unix_ns: i64,
    ) -> Vec<SessionEvent> {
        let end = self.next.saturating_add(limit).min(self.slots);
        let mut events = Vec::new();
        for slot in self.next..end {
            events.extend(sessions.event(slot, now_unix_ns));
            let ended = sessions.get(slot).filter(|session| session.has_ended);
            self.kept.extend(ended.map(|it| it.info.id.clone()));
        }
        self.next = end;
        events
    }

    /// Appends these events, or, when there are no more, deletes up to `limit` old ones. Gives how
    /// many were appended and deleted.
    ///
    /// # Errors
    ///
    /// If the file cannot be written: then this shortening is over, and another may begin.
    pub fn step(
        &mut self,
        log: &mut SessionLog,
        mut events: Vec<SessionEvent>,
        limit: u32,
    ) -> Result<[u64; 2], LedgerError> {
        if !events.is_empty() {
            log.append(&mut events)?;
            return Ok([events.len() as u64, 0]);
        }
        if self.next < self.slots {
            return Ok([0; 2]);
        }
        let old = log.events(self.deleted, limit)?;
        let old: Vec<_> = old.iter().filter(|it| it.number <= self.last).collect();
        let Some(last) = old.last() else {
            self.is_done = true;
            return Ok([0; 2]);
        };
        let is_done = |event: &&&SessionEvent| !self.is_kept(&event.kind);
        let numbers: Vec<u64> = old.iter().filter(is_done).map(|it| it.number).collect();
        log.remove(&numbers)?;
        self.deleted = last.number;
        Ok([0, numbers.len() as u64])
    }

    fn is_kept(&self, kind: &SessionEventKind) -> bool {
        match kind {
            SessionEventKind::Up(info) | SessionEventKind::Down(info) => {
                self.kept.contains(&info.id)
            }
            SessionEventKind::AllDown { server } => {
                self.kept.iter().any(|id| id.starts_with(server.as_str()))
            }
        }
    }
}
