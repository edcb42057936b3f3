//! The table's state for the next translator, and from an earlier one.

use super::tuple::tuples;
use super::{Mapping, Table, life};
use crate::flow::Direction;
use crate::nat::config::NatConfig;
use crate::nat::inside::Inside;
use crate::nat::log::Event;
use crate::nat::state::{Saved, SavedMapping, SavedRest, SavedSession};
use crate::stage::{RestoreError, Restored};
use std::cmp::Reverse;
use std::collections::HashSet;

impl<A: Inside> Table<A> {
    /// What the next translator goes on from.
    pub(in crate::nat) fn save(&self) -> Vec<u8> {
        let mut numbers = vec![u32::MAX; self.mappings.places().len()];
        let mut saved = Saved {
            block: self.ports.size,
            ..Saved::default()
        };
        for at in self.mappings.places() {
            let Some(mapping) = self.mappings.get(at) else {
                continue;
            };
            numbers[at as usize] = saved.mappings.len() as u32;
            saved.mappings.push(SavedMapping {
                transport: mapping.transport,
                inside: mapping.inside,
                outside: mapping.outside,
                is_static: mapping.is_static,
            });
        }
        for at in self.sessions.places() {
            let Some(session) = self.sessions.get(at) else {
                continue;
            };
            if session.is_ftp {
                // Its sequence numbers are not saved.
                continue;
            }
            saved.sessions.push(SavedSession {
                mapping: numbers[session.mapping as usize],
                remote: session.remote,
                used: session.used,
                seen: session.seen,
                is_inbound: session.is_inbound,
            });
        }
        let resting = self.ports.resting();
        let resting = resting.map(|(until, address, block)| SavedRest {
            until,
            address,
            block,
        });
        saved.resting.extend(resting);
        saved.bytes()
    }

    /// Goes on from what an earlier translator saved; the table is new.
    pub(in crate::nat) fn restore(
        &mut self,
        now: u64,
        config: &NatConfig<A>,
        saved: &[u8],
    ) -> Result<Restored, RestoreError> {
        let saved = Saved::read(saved).ok_or(RestoreError::Damaged)?;
        if saved.block != config.block {
            return Err(RestoreError::Block {
                was: saved.block,
                is: config.block,
            });
        }
        if self.sessions.len() > 0 {
            return Err(RestoreError::Late);
        }
        // Earlier blocks lasted until now.
        if let Some(start) = &mut self.start {
            *start = self.epoch.saturating_add(now);
        }
        let mut restored = Restored::default();
        for event in &mut self.events {
            if let Event::Forward { at, .. } = event {
                *at = now;
            }
        }
        let mappings = saved.mappings.iter();
        let mappings: Vec<Option<u32>> = mappings
            .map(|mapping| self.restore_mapping(now, config, mapping))
            .collect();
        let resting = saved.resting.iter();
        self.ports
            .keep(now, resting.map(|it| (it.until, it.address, it.block)));
        for session in &saved.sessions {
            let mapping = mappings.get(session.mapping as usize).copied().flatten();
            let done = mapping.and_then(|mapping| self.restore_session(now, mapping, session));
            match done {
                Some(()) => restored.sessions += 1,
                None => restored.left_out += 1,
            }
        }
        mappings.into_iter().flatten().for_each(|at| {
            self.end_mapping_if_idle(now, at);
        });
        self.kept = HashSet::new();
        Ok(restored)
    }

    /// The mapping as it was; `None` if it may not be.
    fn restore_mapping(
        &mut self,
        now: u64,
        config: &NatConfig<A>,
        saved: &SavedMapping<A>,
    ) -> Option<u32> {
        let (inside, outside) = (saved.inside, saved.outside);
        let of_inside = (saved.transport, inside.0, inside.1);
        let of_outside = (saved.transport, outside.0, outside.1);
        let known = self.by_outside.get(&of_outside).copied();
        if saved.is_static {
            let is_same = |at: &u32| {
                let mapping = self.mappings.get(*at);
                mapping.is_some_and(|it| it.is_static && it.inside == inside)
            };
            return known.filter(is_same);
        }
        if known.is_some()
            || self.by_inside.contains_key(&of_inside)
            || !config.is_translated(inside.0)
            || !config.pool.contains(&outside.0)
        {
            return None;
        }
        let id = self
            .ports
            .block_with(self.ports.pool_of(outside.0)?, outside.1)?;
        // A block is of one subscriber, and a subscriber has one address of the pool.
        let subscriber = match self.by_address.get(&self.owner_of(inside.0)) {
            Some(&at) => at,
            None => self.enter_subscriber(inside.0, id.pool),
        };
        let owner = self.subscribers.get(subscriber)?;
        let is_own = owner.blocks.contains(&id);
        let may = owner.pool == id.pool && (is_own || !self.kept.contains(&(id.pool, id.block)));
        if !may || !self.ports.take_this(id, saved.transport.index(), outside.1) {
            self.leave_if_idle(subscriber);
            return None;
        }
        self.kept.insert((id.pool, id.block));
        if !is_own && let Some(owner) = self.subscribers.get_mut(subscriber) {
            owner.blocks.push(id);
            self.events.push_back(Event::Allocated {
                at: now,
                subscriber: self.name_of(inside.0),
                pool: outside.0,
                ports: self.ports.range(id.block),
            });
        }
        Some(self.enter_mapping(Mapping {
            transport: saved.transport,
            inside,
            outside,
            subscriber,
            sessions: 0,
            is_static: false,
            expected: None,
        }))
    }

    fn restore_session(&mut self, now: u64, at: u32, saved: &SavedSession) -> Option<()> {
        let mapping = self.mappings.get(at)?;
        let transport = mapping.transport;
        let (out, _) = tuples(transport, mapping.inside, mapping.outside, saved.remote);
        if self.outward.contains_key(&out) {
            return None;
        }
        let used = saved.used.min(now);
        let due = used.saturating_add(life(saved.seen, transport, &self.timeouts));
        if due <= now {
            return None;
        }
        let direction = if saved.is_inbound {
            Direction::Inward
        } else {
            Direction::Outward
        };
        let place = self.try_begin(now, at, saved.remote, direction).ok()?;
        let handle = self.sessions.handle(place);
        let session = self.sessions.get_mut(place)?;
        (session.used, session.seen, session.due) = (used, saved.seen, due);
        self.due.push(Reverse((due, handle)));
        Some(())
    }
}
