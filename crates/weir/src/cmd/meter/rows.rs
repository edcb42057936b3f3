//! Which row of the kernel's counters is which session's.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use weir_link::xdp::Meter;
use weir_meter::sessions::{Applied, Sessions, Slot};
use weir_meter::{
    Key, KeyKind, Owner, OwnerKind, SessionEvent, SessionEventKind, SessionInfo, SessionSource,
};

/// Sessions, and the row of each. A row is noted with a hash of its session's identifier in the
/// kernel's maps, by which the next process finds it again.
pub(super) struct Rows {
    sessions: Sessions,
    row_of_slot: HashMap<Slot, u32>,
    slot_of_row: HashMap<u32, Slot>,
    free: Vec<u32>,
    next: u32,
    capacity: u32,
    /// Rows of an earlier process, by their notes, that no session has claimed yet.
    left: HashMap<u64, u32>,
    /// Keys of an earlier process that no session has claimed yet.
    keys_left: HashMap<Key, u32>,
}

impl Rows {
    pub(super) fn new(capacity: usize, kinds: &[KeyKind], seed: u64) -> Rows {
        Rows {
            sessions: Sessions::new(capacity, kinds, seed),
            row_of_slot: HashMap::new(),
            slot_of_row: HashMap::new(),
            free: Vec::new(),
            next: 0,
            capacity: u32::try_from(capacity).unwrap_or(u32::MAX),
            left: HashMap::new(),
            keys_left: HashMap::new(),
        }
    }

    /// Notes the rows and keys that an earlier process has left in the kernel.
    pub(super) fn adopt(&mut self, meter: &Meter) {
        for row in 0..meter.subscribers() {
            match meter.tag(row) {
                0 => {}
                tag => {
                    self.left.insert(tag, row);
                    self.next = row + 1;
                }
            }
        }
        let used: std::collections::HashSet<u32> = self.left.values().copied().collect();
        self.free = (0..self.next).filter(|row| !used.contains(row)).collect();
        self.keys_left = meter.keys().unwrap_or_default().into_iter().collect();
    }

    /// Begins or changes a session, in the kernel, too.
    pub(super) fn up(
        &mut self,
        meter: &mut Meter,
        info: &SessionInfo,
        started_unix_ns: i64,
    ) -> Result<(), String> {
        let applied = self.sessions.up(info, started_unix_ns);
        let applied = applied.map_err(|error| error.to_string())?;
        self.take_over(meter, &applied)
    }

    /// Applies an event, in the kernel, too.
    pub(super) fn apply(&mut self, meter: &mut Meter, event: &SessionEvent) -> Result<(), String> {
        let applied = self
            .sessions
            .apply(event)
            .map_err(|error| error.to_string())?;
        self.take_over(meter, &applied)
    }

    fn take_over(&mut self, meter: &mut Meter, applied: &Applied) -> Result<(), String> {
        for key in &applied.lost {
            self.keys_left.remove(key);
            meter.remove(*key).map_err(|error| error.to_string())?;
        }
        let Some(slot) = applied.slot else {
            return Ok(());
        };
        let row = match self.row_of_slot.get(&slot) {
            Some(row) => *row,
            None => self.row(meter, slot)?,
        };
        for key in &applied.gained {
            // A store that changes nothing if an earlier process has made it.
            if self.keys_left.remove(key) != Some(row) {
                meter.insert(*key, row).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// The row of a session that has none: the one that it had before, or a free one.
    fn row(&mut self, meter: &Meter, slot: Slot) -> Result<u32, String> {
        let session = self.sessions.get(slot).expect("a session has the slot");
        let tag = tag(&session.info.id);
        let row = match self.left.remove(&tag).or_else(|| self.free.pop()) {
            Some(row) => row,
            None if self.next < self.capacity => {
                self.next += 1;
                self.next - 1
            }
            None => {
                return Err(format!(
                    "{} sessions are there: raise `capacity`",
                    self.capacity
                ));
            }
        };
        meter.set_tag(row, tag);
        self.row_of_slot.insert(slot, row);
        self.slot_of_row.insert(row, slot);
        Ok(row)
    }

    /// Ends the keys that no session has claimed: their sessions ended while no process ran.
    pub(super) fn end_unclaimed(&mut self, meter: &mut Meter) -> Result<(), String> {
        for (key, _) in self.keys_left.drain() {
            meter.remove(key).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Whose a row is.
    pub(super) fn owner(&self, row: u32) -> Owner {
        let slot = self.slot_of_row.get(&row);
        let session = slot.and_then(|slot| self.sessions.get(*slot));
        let Some(session) = session else {
            // Of a session that ended, and whose event was lost with the spool.
            return Owner {
                kind: OwnerKind::Overflow,
                subscriber: String::new(),
                session: String::new(),
                keys: Vec::new(),
                class: Vec::new(),
                chargeable_user: None,
                started_unix_ns: 0,
            };
        };
        let info = &session.info;
        Owner {
            kind: OwnerKind::Session,
            subscriber: info.subscriber.clone(),
            session: info.id.clone(),
            keys: info.keys.clone(),
            class: info.class.clone(),
            chargeable_user: info.chargeable_user.clone(),
            started_unix_ns: session.started_unix_ns,
        }
    }

    /// Frees the rows of sessions that have ended: their last records are durable.
    pub(super) fn release_ended(&mut self, meter: &mut Meter) {
        for (_, row) in self.left.drain() {
            meter.set_tag(row, 0);
            self.free.push(row);
        }
        let gone: Vec<Slot> = self
            .row_of_slot
            .keys()
            .copied()
            .filter(|slot| {
                self.sessions
                    .get(*slot)
                    .is_none_or(|session| session.has_ended)
            })
            .collect();
        for slot in gone {
            if let Some(row) = self.row_of_slot.remove(&slot) {
                self.slot_of_row.remove(&row);
                meter.set_tag(row, 0);
                self.free.push(row);
            }
        }
        self.sessions.release_ended();
    }

    /// An event for each session that runs, of those that came by events.
    pub(super) fn running(&self, now_unix_ns: i64) -> Vec<SessionEvent> {
        let slots = self.row_of_slot.keys();
        let sessions = slots.filter_map(|slot| self.sessions.get(*slot));
        let sessions = sessions.filter(|session| !session.has_ended && session.started_unix_ns > 0);
        sessions
            .map(|session| SessionEvent {
                number: 0,
                received_unix_ns: now_unix_ns,
                happened_unix_ns: Some(session.started_unix_ns),
                source: SessionSource::Radius,
                kind: SessionEventKind::Up(session.info.clone()),
            })
            .collect()
    }
}

/// A number, not 0, that stands for a session from one process to the next.
fn tag(id: &str) -> u64 {
    // DefaultHasher::new() has the same keys in each process of one build.
    let mut hasher = std::hash::DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish() | 1
}
