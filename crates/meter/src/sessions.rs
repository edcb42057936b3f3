//! The sessions of a counter and their keys: whose traffic a frame is.
//!
//! Each key belongs to one session at a time. When a session begins, or gains a key, that another
//! session has, the key passes to it: from then on its packets are the new session's, and the old
//! session keeps its other keys. A key that a session has lost does not come back to it when the new
//! owner ends.
//!
//! Keys are looked up in the order of [`KeyKind::ALL`]; see there why.

use crate::key::{mask_v4, mask_v6};
use crate::parse::{Addresses, Headers};
use crate::{Direction, Key, KeyKind, SessionEvent, SessionEventKind, SessionInfo, SessionSource};
use ahash::RandomState;
use std::net::IpAddr;

/// Keys of one session, at most.
pub const KEYS_MAX: usize = 256;

/// The number of a session in its table: the index of what is kept for each session beside it.
pub type Slot = u32;

type Map<K, V> = hashbrown::HashMap<K, V, RandomState>;

/// Why an event of a session is not applied.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum SessionError {
    /// There is no room for one more session.
    #[error("session `{id}` of {subscriber}: {capacity} sessions are there: raise `capacity`")]
    Full {
        /// The session.
        id: String,
        /// Its subscriber.
        subscriber: String,
        /// Sessions at most.
        capacity: usize,
    },
    /// The session has too many keys.
    #[error("session `{id}` has {keys} keys, and may have {KEYS_MAX}")]
    Keys {
        /// The session.
        id: String,
        /// How many.
        keys: usize,
    },
}

/// The changes by an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The session that began or changed; `None` if sessions ended, or the event named a session
    /// that is not known.
    pub slot: Option<Slot>,
    /// The keys that the session has gained.
    pub gained: Vec<Key>,
    /// The keys that have lost their session without gaining another.
    pub lost: Vec<Key>,
    /// The session's keys whose kind the counter does not look up.
    pub unused: Vec<Key>,
    /// How many sessions ended.
    pub ended: usize,
}

/// A session that is known, or has ended in the current period.
#[derive(Clone, Debug)]
pub struct Session {
    /// The session's properties.
    pub info: SessionInfo,
    /// When it began, nanoseconds of Unix time.
    pub started_unix_ns: i64,
    /// Whether it has ended: it is kept until its last record is made.
    pub has_ended: bool,
}

/// The table of sessions.
#[derive(Debug)]
pub struct Sessions {
    slots: Vec<Option<Session>>,
    free: Vec<Slot>,
    ended: Vec<Slot>,
    capacity: usize,
    kinds: Vec<KeyKind>,
    by_id: Map<String, Slot>,
    pppoe: Map<u16, Slot>,
    /// An inner tag of 0 stands for any frame of the outer one.
    vlan: Map<(u16, u16), Slot>,
    mac: Map<[u8; 6], Slot>,
    v4: Map<u32, Slot>,
    v6: Map<u128, Slot>,
    /// A table for each length in use, the longest first.
    prefixes_v4: Vec<(u8, Map<u32, Slot>)>,
    prefixes_v6: Vec<(u8, Map<u128, Slot>)>,
    hash: RandomState,
}

impl Sessions {
    /// A table for at most `capacity` sessions that looks up keys of these kinds; `seed` is a random
    /// number, against chosen keys that collide.
    pub fn new(capacity: usize, kinds: &[KeyKind], seed: u64) -> Sessions {
        let hash = RandomState::with_seed(seed as usize);
        Sessions {
            slots: Vec::new(),
            free: Vec::new(),
            ended: Vec::new(),
            capacity,
            kinds: kinds.to_vec(),
            by_id: Map::with_hasher(hash.clone()),
            pppoe: Map::with_hasher(hash.clone()),
            vlan: Map::with_hasher(hash.clone()),
            mac: Map::with_hasher(hash.clone()),
            v4: Map::with_hasher(hash.clone()),
            v6: Map::with_hasher(hash.clone()),
            prefixes_v4: Vec::new(),
            prefixes_v6: Vec::new(),
            hash,
        }
    }

    /// Number of sessions that have not ended.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.ended.len()
    }

    /// Whether there is no session that has not ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A session by its slot; `None` if the slot is free.
    pub fn get(&self, slot: Slot) -> Option<&Session> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// The slot of the session with this identifier.
    pub fn of_id(&self, id: &str) -> Option<Slot> {
        self.by_id.get(id).copied()
    }

    /// Whether the counter looks up keys of this kind.
    pub fn looks_up(&self, kind: KeyKind) -> bool {
        self.kinds.contains(&kind)
    }

    /// The session that a key belongs to, if any: of exactly this key.
    pub fn of_key(&self, key: &Key) -> Option<Slot> {
        match *key {
            Key::Pppoe(session) => self.pppoe.get(&session).copied(),
            Key::Vlan(outer, inner) => self.vlan.get(&(outer, inner.unwrap_or(0))).copied(),
            Key::Mac(mac) => self.mac.get(&mac).copied(),
            Key::Ipv4(address) => self.v4.get(&address.to_bits()).copied(),
            Key::Ipv6(address) => self.v6.get(&address.to_bits()).copied(),
            Key::Prefix(IpAddr::V4(address), len) => {
                let table = self.prefixes_v4.iter().find(|(of, _)| *of == len)?;
                table.1.get(&address.to_bits()).copied()
            }
            Key::Prefix(IpAddr::V6(address), len) => {
                let table = self.prefixes_v6.iter().find(|(of, _)| *of == len)?;
                table.1.get(&address.to_bits()).copied()
            }
        }
    }

    /// The session that a frame belongs to if it goes in `direction`: its source belongs to the
    /// subscriber if that is [`Direction::Up`], else its destination.
    #[inline]
    pub fn owner(&self, headers: &Headers, direction: Direction) -> Option<Slot> {
        if let Some(session) = headers.pppoe
            && let Some(slot) = self.pppoe.get(&session)
        {
            return Some(*slot);
        }
        if let Some((outer, inner)) = headers.vlan
            && !self.vlan.is_empty()
        {
            let exact = inner.and_then(|inner| self.vlan.get(&(outer, inner)));
            if let Some(slot) = exact.or_else(|| self.vlan.get(&(outer, 0))) {
                return Some(*slot);
            }
        }
        let up = direction == Direction::Up;
        let mac = if up { headers.src_mac } else { headers.dst_mac };
        if let Some(mac) = mac
            && let Some(slot) = self.mac.get(&mac)
        {
            return Some(*slot);
        }
        match headers.addresses? {
            Addresses::V4(src, dst) => {
                let bits = if up { src } else { dst }.to_bits();
                let found = self.v4.get(&bits);
                found.copied().or_else(|| {
                    let mut tables = self.prefixes_v4.iter();
                    tables.find_map(|(len, table)| table.get(&mask_v4(bits, *len)).copied())
                })
            }
            Addresses::V6(src, dst) => {
                let bits = if up { src } else { dst }.to_bits();
                let found = self.v6.get(&bits);
                found.copied().or_else(|| {
                    let mut tables = self.prefixes_v6.iter();
                    tables.find_map(|(len, table)| table.get(&mask_v6(bits, *len)).copied())
                })
            }
        }
    }

    /// Applies an event.
    ///
    /// # Errors
    /// If there is no room for the session, or it has too many keys; nothing has changed then.
    pub fn apply(&mut self, event: &SessionEvent) -> Result<Applied, SessionError> {
        match &event.kind {
            SessionEventKind::Up(info) => {
                let started = event.happened_unix_ns.unwrap_or(event.received_unix_ns);
                self.begin(info, started, event.lost.as_deref())
            }
            SessionEventKind::Down(info) => Ok(self.down(&info.id)),
            SessionEventKind::AllDown { server } => {
                let mut applied = Applied::default();
                let of_server = |id: &&String| id.starts_with(server.as_str());
                let ids: Vec<String> = self.by_id.keys().filter(of_server).cloned().collect();
                for id in ids {
                    let ended = self.down(&id);
                    applied.ended += ended.ended;
                    applied.lost.extend(ended.lost);
                }
                Ok(applied)
            }
        }
    }

    /// A session begins or changes; its keys are those of `info` from now on.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn up(
        &mut self,
        info: &SessionInfo,
        started_unix_ns: i64,
    ) -> Result<Applied, SessionError> {
        self.begin(info, started_unix_ns, None)
    }

    /// As [`up`](Self::up); with `lost`, the session owns all its keys but these, whatever it owned
    /// before.
    fn begin(
        &mut self,
        info: &SessionInfo,
        started_unix_ns: i64,
        lost: Option<&[Key]>,
    ) -> Result<Applied, SessionError> {
        if info.keys.len() > KEYS_MAX {
            return Err(SessionError::Keys {
                id: info.id.clone(),
                keys: info.keys.len(),
            });
        }
        let slot = match self.by_id.get(&info.id) {
            Some(slot) => *slot,
            None => self.add(info, started_unix_ns)?,
        };
        let session = self.slots[slot as usize].as_mut().expect("it has the slot");
        if session.has_ended {
            session.has_ended = false;
            session.info.keys.clear();
            session.started_unix_ns = started_unix_ns;
            self.ended.retain(|ended| *ended != slot);
        }
        // A log that was shortened may have a later event first.
        session.started_unix_ns = session.started_unix_ns.min(started_unix_ns);
        let before = std::mem::replace(&mut session.info, info.clone()).keys;
        let mut applied = Applied {
            slot: Some(slot),
            ..Applied::default()
        };
        for key in before.iter().filter(|key| !info.keys.contains(key)) {
            if self.of_key(key) == Some(slot) {
                self.set(key, None);
                applied.lost.push(*key);
            }
        }
        for key in &info.keys {
            let is_own = self.of_key(key) == Some(slot);
            let owns = match lost {
                Some(lost) => !lost.contains(key),
                // One that it has lost does not come back.
                None => is_own || !before.contains(key),
            };
            if !self.looks_up(key.kind()) {
                applied.unused.push(*key);
            } else if owns && !is_own {
                self.set(key, Some(slot));
                applied.gained.push(*key);
            } else if is_own && !owns {
                self.set(key, None);
                applied.lost.push(*key);
            }
        }
        Ok(applied)
    }

    /// The keys of a session that are not its own: other sessions have gained them since.
    pub fn lost(&self, slot: Slot) -> Vec<Key> {
        let session = self.get(slot);
        let keys = session.iter().flat_map(|session| &session.info.keys);
        let is_lost = |key: &&Key| self.looks_up(key.kind()) && self.of_key(key) != Some(slot);
        keys.filter(is_lost).copied().collect()
    }

    /// The event that begins the session of a slot as it is now, for a log; `None` if none runs there.
    pub fn event(&self, slot: Slot, now_unix_ns: i64) -> Option<SessionEvent> {
        let session = self.get(slot).filter(|session| !session.has_ended)?;
        Some(SessionEvent {
            number: 0,
            received_unix_ns: now_unix_ns,
            happened_unix_ns: Some(session.started_unix_ns),
            source: SessionSource::of(&session.info.id),
            lost: Some(self.lost(slot)),
            kind: SessionEventKind::Up(session.info.clone()),
        })
    }

    /// All slots that sessions have had are below this one.
    pub fn slots(&self) -> Slot {
        self.slots.len() as Slot
    }

    fn add(&mut self, info: &SessionInfo, started_unix_ns: i64) -> Result<Slot, SessionError> {
        let used = self.slots.len() - self.free.len();
        if used >= self.capacity {
            return Err(SessionError::Full {
                id: info.id.clone(),
                subscriber: info.subscriber.clone(),
                capacity: self.capacity,
            });
        }
        let session = Some(Session {
            info: SessionInfo {
                keys: Vec::new(),
                ..info.clone()
            },
            started_unix_ns,
            has_ended: false,
        });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = session;
                slot
            }
            None => {
                self.slots.push(session);
                (self.slots.len() - 1) as Slot
            }
        };
        self.by_id.insert(info.id.clone(), slot);
        Ok(slot)
    }

    /// A session ends; a session that is not known changes nothing.
    pub fn down(&mut self, id: &str) -> Applied {
        let mut applied = Applied::default();
        let Some(&slot) = self.by_id.get(id) else {
            return applied;
        };
        let session = self.slots[slot as usize].as_mut().expect("it has the slot");
        if session.has_ended {
            return applied;
        }
        session.has_ended = true;
        let keys = session.info.keys.clone();
        self.ended.push(slot);
        applied.ended = 1;
        for key in keys {
            if self.of_key(&key) == Some(slot) {
                self.set(&key, None);
                applied.lost.push(key);
            }
        }
        applied
    }

    /// All sessions, also those that have ended and whose slots are not free yet.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Session)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, session)| Some((slot as Slot, session.as_ref()?)))
    }

    /// The slots of sessions that have ended, in the order of their ends.
    pub fn ended(&self) -> &[Slot] {
        &self.ended
    }

    /// Frees the slots of sessions that have ended; the caller has made their last records.
    pub fn release_ended(&mut self) {
        self.release_ended_if(0, |_, _| true);
    }

    /// As [`release_ended`](Self::release_ended), of [`ended`](Self::ended) from place `from` on,
    /// those of which `is_done`.
    pub fn release_ended_if(
        &mut self,
        from: usize,
        mut is_done: impl FnMut(Slot, &Session) -> bool,
    ) {
        for slot in self.ended.split_off(from.min(self.ended.len())) {
            let place = &mut self.slots[slot as usize];
            if let Some(session) = place.take_if(|session| is_done(slot, session)) {
                self.by_id.remove(&session.info.id);
                self.free.push(slot);
            } else {
                self.ended.push(slot);
            }
        }
    }

    /// Gives a key to a session, or takes it away.
    fn set(&mut self, key: &Key, slot: Option<Slot>) {
        fn put<K: std::hash::Hash + Eq>(map: &mut Map<K, Slot>, key: K, slot: Option<Slot>) {
            match slot {
                Some(slot) => drop(map.insert(key, slot)),
                None => drop(map.remove(&key)),
            }
        }
        match *key {
            Key::Pppoe(session) => put(&mut self.pppoe, session, slot),
            Key::Vlan(outer, inner) => put(&mut self.vlan, (outer, inner.unwrap_or(0)), slot),
            Key::Mac(mac) => put(&mut self.mac, mac, slot),
            Key::Ipv4(address) => put(&mut self.v4, address.to_bits(), slot),
            Key::Ipv6(address) => put(&mut self.v6, address.to_bits(), slot),
            Key::Prefix(IpAddr::V4(address), len) => {
                let table = of_length(&mut self.prefixes_v4, len, &self.hash);
                put(table, address.to_bits(), slot);
                self.prefixes_v4.retain(|(_, table)| !table.is_empty());
            }
            Key::Prefix(IpAddr::V6(address), len) => {
                let table = of_length(&mut self.prefixes_v6, len, &self.hash);
                put(table, address.to_bits(), slot);
                self.prefixes_v6.retain(|(_, table)| !table.is_empty());
            }
        }
    }
}

/// The table of prefixes of a length, made if it is not there.
fn of_length<'a, K>(
    tables: &'a mut Vec<(u8, Map<K, Slot>)>,
    len: u8,
    hash: &RandomState,
) -> &'a mut Map<K, Slot> {
    let at = tables.partition_point(|(of, _)| *of > len);
    if tables.get(at).is_none_or(|(of, _)| *of != len) {
        tables.insert(at, (len, Map::with_hasher(hash.clone())));
    }
    &mut tables[at].1
}

#[cfg(test)]
mod tests;
