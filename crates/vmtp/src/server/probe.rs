//! Probes (RFC 1045 §2.5.4): what transaction a client has.

use super::record::{Record, State};
use super::table::Places;
use super::{HELD_LEN_MAX, JUMP_MAX, RETRY_INTERVAL, Server};
use crate::Entity;
use crate::packet::{Flags, Repr, code, manager};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::time::Duration;

impl<L: Copy + Ord> Server<L> {
    /// A packet of a client without a record: probes the client.
    pub(super) fn meet(&mut self, now: Duration, from: L, head: Repr, data: &[u8]) {
        if self.table.len() >= self.limits.clients {
            let Some(victim) = self.table.record_victim(now, from) else {
                self.drops.no_room += 1;
                self.notify(from, &head, code::BUSY, 0);
                return;
            };
            self.table.forget(victim);
        }
        let held = (data.len() <= HELD_LEN_MAX).then(|| (head, data.to_vec()));
        let number = self.table.insert(Record {
            client: head.client,
            link: from,
            server: head.server,
            transaction: 0,
            state: State::Probing { retries: 0, held },
            nonce: None,
            since: now,
            is_sending: false,
            is_waiting: false,
            places: Places::default(),
        });
        self.table.set_deadline(number, Some(now + RETRY_INTERVAL));
        self.probe(number);
    }

    /// A request far ahead of the client's last: probes the client, and drops the
    /// request, which the client repeats. No timer repeats the probe; the next
    /// such request does.
    pub(super) fn ask_again(&mut self, number: u64) {
        self.drops.stale += 1;
        self.probe(number);
    }

    /// Asks a record's client for its transaction.
    pub(super) fn probe(&mut self, number: u64) {
        let next = nonce(&self.nonces, self.probes);
        let Some(record) = self.table.get_mut(number) else {
            return;
        };
        if record.nonce.is_none() {
            self.probes += 1;
        }
        let nonce = *record.nonce.get_or_insert(next);
        let (to, client) = (record.link, record.client);
        let probe = Repr {
            client: self.entity,
            transaction: nonce,
            server: client,
            flags: Flags::PUBLIC.with(Flags::CO_RESIDENT),
            code: manager::PROBE,
            co_resident: client,
            ..Repr::default()
        };
        self.answer(to, probe);
    }

    pub(super) fn handle_probe_answer(&mut self, now: Duration, from: L, head: &Repr) {
        let found = self.table.find(head.server, from);
        let Some(number) = found.filter(|_| head.client == self.entity) else {
            self.drops.not_ours += 1;
            return;
        };
        let record = self.table.get_mut(number).expect("it was found");
        if record.nonce != Some(head.transaction) {
            self.drops.stale += 1;
            return;
        }
        record.nonce = None;
        let (is_new, held) = match &mut record.state {
            State::Probing { held, .. } => (true, held.take()),
            _ => (false, None),
        };
        // Every transaction before the client's present one is over, and so is that
        // one unless the client awaits the response.
        let [present, awaits, _] = head.user_data;
        let over = present.wrapping_sub(u32::from(awaits != 0));
        if !is_new && over.wrapping_sub(record.transaction) as i32 <= 0 {
            // Never back: a transaction would be executed again.
            return;
        }
        (record.transaction, record.since) = (over, now);
        self.discard(now, number);
        if let Some((held, data)) = held {
            let ahead = held.transaction.wrapping_sub(over) as i32;
            if (1..=JUMP_MAX).contains(&ahead) {
                // The other packets were dropped: the client shall send them again
                // at once.
                let asks = Repr {
                    acknowledge: true,
                    ..held
                };
                self.handle_request(now, from, asks, &data);
                return;
            }
            self.drops.stale += 1;
        }
        if awaits != 0 {
            let own = self.entity;
            self.ask_for_request(from, head.server, own, present);
        }
    }

    /// Asks a client for the whole request that it awaits the response of.
    fn ask_for_request(&mut self, to: L, client: Entity, server: Entity, transaction: u32) {
        let request = Repr {
            client,
            transaction,
            server,
            ..Repr::default()
        };
        self.notify(to, &request, code::RETRY_ALL, 0);
    }

    /// Answers a client's probe: the transaction that is known of the client.
    pub(super) fn answer_probe(&mut self, from: L, head: &Repr) {
        let number = self.table.find(head.client, from);
        let record = number.and_then(|number| self.table.get(number));
        let last = record.map_or(0, |record| record.transaction);
        let answer = Repr {
            multicast: false,
            acknowledge: false,
            response: true,
            delivery: 0,
            server: self.entity,
            flags: Flags::PUBLIC.with(Flags::CO_RESIDENT).with(Flags::DATAGRAM),
            code: code::OK,
            co_resident: self.entity,
            user_data: [last, 0, 0],
            message_delivery: 0,
            segment_size: 0,
            ..*head
        };
        self.answer(from, answer);
    }
}

/// The number of a probe. A client sees the numbers of its own probes; from a
/// keyed hash's other values they do not follow.
fn nonce(key: &SipHasher13, count: u64) -> u32 {
    let mut hasher = *key;
    hasher.write(&count.to_be_bytes());
    hasher.finish() as u32
}
