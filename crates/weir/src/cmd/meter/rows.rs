//! Which row of the kernel's counters is which session's.

use super::adoption::Adoption;
use super::policies::Policies;
use siphasher::sip::SipHasher13;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_link::xdp::Meter;
use weir_meter::policy::SpentRequest;
use weir_meter::sessions::{Applied, Sessions, Slot};
use weir_meter::{Key, KeyKind, Owner, OwnerKind, SessionEvent, SessionInfo};

/// Sessions and the kernel's table of keys, which change together.
pub(super) struct Table {
    pub(super) rows: Rows,
    pub(super) meter: Meter,
}

/// The table as the thread of sessions and the one that cuts periods have it.
pub(super) type SharedTable = Arc<Mutex<Table>>;

impl Table {
    /// As [`Rows::apply`].
    pub(super) fn apply(&mut self, event: &SessionEvent) -> Result<(), String> {
        self.rows.apply(&mut self.meter, event)
    }

    /// As [`Rows::claim`].
    pub(super) fn claim(&mut self) -> Result<(), String> {
        self.rows.claim(&mut self.meter)
    }

    /// As [`Rows::release_ended`].
    pub(super) fn release_ended(&mut self) {
        self.rows.release_ended(&mut self.meter);
    }
}

/// The table, whatever a thread that had it did.
pub(super) fn locked(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sessions, and the row of each. A row is noted with a hash of its session's identifier in the
/// kernel's maps, by which the next process finds it again.
///
/// A row of a session that has ended has counts in the bank that is counted in, until the next cut:
/// it is free when the records of that cut are durable.
pub(super) struct Rows {
    policies: Policies,
    adoption: Adoption,
    sessions: Sessions,
    row_of_slot: HashMap<Slot, u32>,
    /// By row: looked up for each row at each cut.
    slot_of_row: Vec<Option<Slot>>,
    free: Vec<u32>,
    next: u32,
    capacity: u32,
    /// Tags of rows that earlier processes have left.
    named: HashSet<u64>,
    /// Rows of an earlier process, by their tags, that no session has claimed yet.
    left: HashMap<u64, u32>,
    /// Those of `left` whose last counts are in the bank that was cut last.
    left_cut: HashMap<u64, u32>,
    /// Keys of an earlier process that no session has claimed yet.
    keys_left: HashMap<Key, u32>,
    /// Sessions that had ended at the last cut, and have not begun again.
    releasable: HashSet<Slot>,
    /// Sessions for which the kernel lacks the row or a key.
    incomplete: BTreeSet<Slot>,
    /// Rows that were given to a session, and have an earlier one's policy.
    fresh: HashSet<u32>,
}

impl Rows {
    pub(super) fn new(
        capacity: usize,
        kinds: &[KeyKind],
        adoption_ns: u64,
        policies: Policies,
        seed: u64,
    ) -> Rows {
        Rows {
            policies,
            adoption: Adoption::new(adoption_ns),
            sessions: Sessions::new(capacity, kinds, seed),
            row_of_slot: HashMap::new(),
            slot_of_row: Vec::new(),
            free: Vec::new(),
            next: 0,
            capacity: u32::try_from(capacity).unwrap_or(u32::MAX),
            named: HashSet::new(),
            left: HashMap::new(),
            left_cut: HashMap::new(),
            keys_left: HashMap::new(),
            releasable: HashSet::new(),
            incomplete: BTreeSet::new(),
            fresh: HashSet::new(),
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
        self.named.extend(self.left.keys());
        let used: HashSet<u32> = self.left.values().copied().collect();
        self.free = (0..self.next).filter(|row| !used.contains(row)).collect();
        self.keys_left = meter.keys().unwrap_or_default().into_iter().collect();
    }

    /// Notes whose rows the counters of another configuration have.
    pub(super) fn note_previous(&mut self, meter: &Meter) {
        let tags = (0..meter.subscribers()).map(|row| meter.tag(row));
        self.named.extend(tags.filter(|tag| *tag != 0));
    }

    /// Begins a session of the list, as [`replay`](Self::replay).
    pub(super) fn replay_up(&mut self, info: &SessionInfo) -> Result<(), String> {
        let applied = self.sessions.up(info, 0);
        applied.map(drop).map_err(|error| error.to_string())
    }

    /// Applies an event of the log. The kernel, which has what these events came to, is not changed
    /// before [`claim`](Self::claim).
    pub(super) fn replay(&mut self, event: &SessionEvent) -> Result<(), String> {
        let applied = self.sessions.apply(event);
        let applied = applied.map_err(|error| error.to_string())?;
        // Nothing is counted for a session that has ended, unless the kernel has a row of it.
        let from = self.sessions.ended().len() - applied.ended;
        let named = &self.named;
        let is_done = |_, session: &weir_meter::sessions::Session| {
            session.has_ended && !named.contains(&tag(&session.info.id))
        };
        if applied.ended > 0 {
            self.sessions.release_ended_if(from, is_done);
        }
        Ok(())
    }

    /// Gives the sessions of the log their rows and keys in the kernel, and ends the keys there that
    /// none of them has: their sessions ended while no process ran.
    pub(super) fn claim(&mut self, meter: &mut Meter) -> Result<(), String> {
        let mut failed = Ok(());
        let sessions = self.sessions.iter();
        let sessions: Vec<(Slot, bool)> = sessions
            .map(|(slot, session)| (slot, session.has_ended))
            .collect();
        for (slot, has_ended) in sessions {
            if !has_ended {
                failed = failed.and(self.enter(meter, slot));
            } else if let Some(session) = self.sessions.get(slot)
                && let Some(row) = self.left.remove(&tag(&session.info.id))
            {
                self.row_of_slot.insert(slot, row);
                self.put_slot(row, Some(slot));
            }
        }
        for (key, _) in self.keys_left.drain() {
            let removed = meter.remove(key).map(drop);
            failed = failed.and(removed.map_err(|error| error.to_string()));
        }
        failed
    }

    /// Applies an event, in the kernel, too: as much of it as the kernel has room for. The rest is
    /// entered with the session's next event, or when there is room.
    pub(super) fn apply(&mut self, meter: &mut Meter, event: &SessionEvent) -> Result<(), String> {
        let applied = self
            .sessions
            .apply(event)
            .map_err(|error| error.to_string())?;
        self.take_over(meter, &applied)
    }

    fn take_over(&mut self, meter: &mut Meter, applied: &Applied) -> Result<(), String> {
        let mut failed = Ok(());
        for key in &applied.lost {
            self.adoption.end(key);
            let removed = meter.remove(*key).map(drop);
            failed = failed.and(removed.map_err(|error| error.to_string()));
        }
        let Some(slot) = applied.slot else {
            return failed;
        };
        self.releasable.remove(&slot);
        failed = failed.and(self.enter(meter, slot));
        for key in &applied.gained {
            self.adoption.begin(meter, *key, slot);
        }
        failed
    }

    /// The session that adopts the unattributed traffic of this key in a period.
    pub(super) fn adopter(&self, key: &Key, period: u64) -> Option<Owner> {
        let slot = self.adoption.of(key, period)?;
        self.sessions.get(slot)?;
        Some(self.owner_of(Some(slot)))
    }

    /// Enters a session's row, and all its keys, in the kernel.
    fn enter(&mut self, meter: &mut Meter, slot: Slot) -> Result<(), String> {
        let mut failed = Ok(());
        let row = match self.row_of_slot.get(&slot) {
            Some(row) => Some(*row),
            None => self.row(meter, slot).map_err(|why| failed = Err(why)).ok(),
        };
        let session = self.sessions.get(slot).expect("a session has the slot");
        if let Some(row) = row {
            // Before a key leads there.
            let policy = self.policies.of(&session.info);
            let set = meter.set_policy(row, policy, self.fresh.remove(&row));
            failed = failed.and(set.map_err(|error| error.to_string()));
        }
        for key in &session.info.keys {
            if self.sessions.of_key(key) != Some(slot) {
                continue;
            }
            let left = self.keys_left.remove(key);
            let entered = match row {
                Some(row) if left == Some(row) => continue,
                // A store that changes nothing if it is there.
                Some(row) => meter.insert(*key, row).map(drop),
                // Not the key's earlier session's any more.
                None => meter.remove(*key).map(drop),
            };
            failed = failed.and(entered.map_err(|error| error.to_string()));
        }
        match failed {
            Ok(()) => self.incomplete.remove(&slot),
            Err(_) => self.incomplete.insert(slot),
        };
        failed
    }

    /// The row of a session that has none: the one that it had before, or a free one.
    fn row(&mut self, meter: &Meter, slot: Slot) -> Result<u32, String> {
        let session = self.sessions.get(slot).expect("a session has the slot");
        let tag = tag(&session.info.id);
        let left = self
            .left
            .remove(&tag)
            .or_else(|| self.left_cut.remove(&tag));
        let is_fresh = left.is_none();
        let row = match left.or_else(|| self.free.pop()) {
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
        if is_fresh {
            self.fresh.insert(row);
        }
        self.row_of_slot.insert(slot, row);
        self.put_slot(row, Some(slot));
        Ok(row)
    }

    fn slot_of(&self, row: u32) -> Option<Slot> {
        self.slot_of_row.get(row as usize).copied().flatten()
    }

    fn put_slot(&mut self, row: u32, slot: Option<Slot>) {
        let row = row as usize;
        if self.slot_of_row.len() <= row {
            self.slot_of_row.resize(row + 1, None);
        }
        self.slot_of_row[row] = slot;
    }

    /// Whose a row is.
    pub(super) fn owner(&self, row: u32) -> Owner {
        self.owner_of(self.slot_of(row))
    }

    /// The sessions by their tags, for rows of counters of another configuration.
    pub(super) fn by_tag(&self) -> HashMap<u64, Slot> {
        let sessions = self.sessions.iter();
        sessions
            .map(|(slot, session)| (tag(&session.info.id), slot))
            .collect()
    }

    /// A session as the owner of records.
    pub(super) fn owner_of(&self, slot: Option<Slot>) -> Owner {
        let session = slot.and_then(|slot| self.sessions.get(slot));
        let Some(session) = session else {
            // Of a session that ended, and whose event was lost with the spool.
            return Owner::unattributed(OwnerKind::Overflow, None);
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
            reported: info.reported,
        }
    }

    /// To be called right before a cut: nothing is counted after it for a session that has ended.
    pub(super) fn note_cut(&mut self) {
        self.releasable.extend(self.sessions.ended());
        self.left_cut.extend(self.left.drain());
    }

    /// Frees the rows of sessions that had ended at the last cut: their last records are durable.
    /// Enters sessions that had no room in the kernel, if there is room now.
    pub(super) fn release_ended(&mut self, meter: &mut Meter) {
        self.adoption.forget_before(meter.period());
        for (_, row) in self.left_cut.drain() {
            forget(meter, row);
            self.free.push(row);
        }
        let releasable = std::mem::take(&mut self.releasable);
        for slot in &releasable {
            self.incomplete.remove(slot);
            if let Some(row) = self.row_of_slot.remove(slot) {
                self.put_slot(row, None);
                forget(meter, row);
                self.free.push(row);
            }
        }
        self.sessions
            .release_ended_if(0, |slot, _| releasable.contains(&slot));
        for slot in self.incomplete.clone() {
            if self
                .sessions
                .get(slot)
                .is_some_and(|session| !session.has_ended)
            {
                // Said when the session began.
                let _ = self.enter(meter, slot);
            }
        }
    }

    /// The rows that sessions have had: all are below this one.
    pub(super) fn rows(&self) -> u32 {
        self.next
    }

    /// The session of a row, and what its access server is asked when the quota is spent, if it runs
    /// and its policy has that.
    pub(super) fn spent_request(&self, row: u32) -> Option<(&SessionInfo, &SpentRequest)> {
        let session = self.sessions.get(self.slot_of(row)?)?;
        let policy = self.policies.of(&session.info)?;
        let request = policy.spent_request.as_ref()?;
        (!session.has_ended).then_some((&session.info, request))
    }

    /// The sessions.
    pub(super) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The keys of the session with this identifier that are not its own; `None` if it is not known.
    pub(super) fn lost(&self, id: &str) -> Option<Vec<Key>> {
        let slot = self.sessions.of_id(id)?;
        Some(self.sessions.lost(slot))
    }

    /// Sessions that run.
    pub(super) fn count(&self) -> usize {
        self.sessions.len()
    }

    /// A session that runs, by its identifier.
    pub(super) fn running_session(&self, id: &str) -> Option<&SessionInfo> {
        let session = self.sessions.get(self.sessions.of_id(id)?)?;
        (!session.has_ended).then_some(&session.info)
    }

    /// Whether keys of this kind are looked up.
    pub(super) fn looks_up(&self, kind: KeyKind) -> bool {
        self.sessions.looks_up(kind)
    }

    /// Whether the configuration has a policy of this name.
    pub(super) fn has_policy(&self, name: &str) -> bool {
        self.policies.has(name)
    }
}

/// Makes a row free of its ended session: no key leads there.
fn forget(meter: &Meter, row: u32) {
    // Refused for rows that do not exist.
    let _ = meter.set_policy(row, None, true);
    meter.set_tag(row, 0);
}

/// A number, not 0, that stands for a session from one process to the next, in each build.
fn tag(id: &str) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(id.as_bytes());
    hasher.finish() | 1
}

#[cfg(test)]
mod tests;
