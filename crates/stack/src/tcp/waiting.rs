//! Connections in TIME-WAIT that no application has any more. Nothing is left of one
//! but how to answer what may still come for it (RFC 9293 §3.6.1, §3.10.7.4): so a
//! record stands for it in the table of connections, an eighth of a PCB's size. A
//! segment that comes makes it a PCB again, for as long as that takes, so that there
//! is one account of what is done with segments.

use super::Tcp;
use super::pcb::{Pcb, State, Timestamps};
use super::seq::Seq;
use super::table::TIME_WAIT_NS;
use crate::due::{at, ns};
use crate::host::Host;
use crate::pcb::{Key, PcbId, Table};
use crate::slab::{Name, Slab};
use std::collections::VecDeque;
use std::num::NonZeroU64;

/// Names of records in the table of connections are from here on; those of PCBs are
/// below.
const RECORDS: u32 = 1 << 29;

/// How much longer one may wait than it must, so that all end in the order in which
/// they began.
const LATE_NS: u64 = 1_000_000_000;

/// What is left of a connection.
pub(super) struct Record {
    key: Key,
    expires_ns: u64,
    challenged_ns: Option<NonZeroU64>,
    snd_nxt: Seq,
    wnd_max: u32,
    rcv_nxt: Seq,
    rcv_edge: Seq,
    rcv_scale: u8,
    /// The offset of our clock, and TS.Recent.
    timestamps: Option<(u32, u32)>,
    timestamps_always: bool,
    sack: bool,
    link: u8,
    hop_limit: u8,
    traffic_class: u8,
}

/// All records.
pub(super) struct Waiting {
    records: Slab<Record>,
    /// Who waits, in the order in which they end; also some that are gone.
    order: VecDeque<Name>,
    /// When the first of them ends, or before; `u64::MAX` if there is none.
    next_ns: u64,
    /// When the last of them ends.
    last_ns: u64,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting {
            records: Slab::new(),
            order: VecDeque::new(),
            next_ns: u64::MAX,
            last_ns: 0,
        }
    }
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// When the first of them ends, or before; `u64::MAX` if there is none.
    #[inline]
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// When the one ends that is to end first, and who that is.
    pub(super) fn first(&mut self) -> Option<(u64, Name)> {
        while let Some(&name) = self.order.front() {
            if let Some(record) = self.records.get(name) {
                self.next_ns = record.expires_ns;
                return Some((record.expires_ns, name));
            }
            self.order.pop_front();
        }
        self.next_ns = u64::MAX;
        None
    }

    fn add(&mut self, mut record: Record) -> PcbId {
        record.expires_ns = record.expires_ns.max(self.last_ns);
        self.last_ns = record.expires_ns;
        self.next_ns = self.next_ns.min(record.expires_ns);
        let name = self.records.insert(record);
        self.order.push_back(name);
        if self.order.len() > 2 * self.records.len() + 64 {
            let records = &self.records;
            self.order.retain(|name| records.get(*name).is_some());
        }
        PcbId(RECORDS + name.index)
    }
}

impl Tcp {
    /// Puts a record in the place of a connection in TIME-WAIT that has nothing to
    /// send and that no application has; whether it was such a one.
    pub(super) fn shrink(&mut self, name: Name) -> bool {
        let Some(pcb) = self.pcbs.get(name) else {
            return false;
        };
        let Some(record) = pcb.record() else {
            return false;
        };
        // Its application took long to let it go.
        if record.expires_ns.saturating_add(LATE_NS) < self.waiting.last_ns {
            return false;
        }
        let key = record.key;
        let id = self.waiting.add(record);
        let renamed = self.table.rename(&key, id);
        debug_assert!(renamed, "what is known is in the table");
        self.deadlines.remove(name.index);
        self.quiet.passes_on(name);
        self.drop_pcb(name);
        true
    }

    /// Makes a record a PCB again, if there is one under this name.
    pub(super) fn revive(&mut self, now_ns: u64, host: &Host, PcbId(id): PcbId) -> Option<Name> {
        let index = id.checked_sub(RECORDS)?;
        let name = self.waiting.records.at(index)?;
        let record = self.waiting.records.remove(name)?;
        let mut pcb = Pcb::new(
            &self.config,
            host,
            record.key.ends(),
            // As if its FIN were all that it has sent.
            record.snd_nxt.minus(2),
            now_ns,
        );
        pcb.restore(&record);
        let name = self.pcbs.insert(pcb);
        self.table.rename(&record.key, PcbId(name.index));
        self.line_up(name);
        Some(name)
    }

    /// Forgets those whose time has come.
    pub(super) fn end_waits(&mut self, now_ns: u64) {
        while let Some((at_ns, name)) = self.waiting.first()
            && at_ns <= now_ns
        {
            self.end_wait(name);
        }
    }

    pub(super) fn end_wait(&mut self, name: Name) {
        if let Some(record) = self.waiting.records.remove(name) {
            self.table.remove(&record.key);
            self.quiet.over();
        }
    }
}

impl Pcb {
    /// Whether a record of it is enough.
    #[inline]
    pub(super) fn may_shrink(&self) -> bool {
        self.state == State::TimeWait && self.released && !self.is_ready && !self.wants_turn()
    }

    /// What is left of it once it has nothing to do but to wait.
    fn record(&self) -> Option<Record> {
        let expires_ns = ns(self.timers.idle_ns)?;
        if !self.may_shrink() {
            return None;
        }
        Some(Record {
            key: Key::new(self.local, self.remote)?,
            expires_ns,
            challenged_ns: self.challenged_ns,
            snd_nxt: self.send.nxt,
            wnd_max: self.send.wnd_max,
            rcv_nxt: self.receive.nxt,
            rcv_edge: self.receive.edge,
            rcv_scale: self.receive.scale,
            timestamps: self.timestamps.map(|ours| (ours.offset, ours.recent)),
            timestamps_always: self.timestamps_always,
            sack: self.sack,
            link: self.link,
            hop_limit: self.options.hop_limit,
            traffic_class: self.options.traffic_class,
        })
    }

    /// Makes it the connection that a record stands for.
    fn restore(&mut self, record: &Record) {
        self.state = State::TimeWait;
        (self.released, self.is_quiet) = (true, true);
        self.timers.idle_ns = at(record.expires_ns);
        self.challenged_ns = record.challenged_ns;
        let send = &mut self.send;
        (send.una, send.nxt, send.closed) = (record.snd_nxt, record.snd_nxt, true);
        send.first_window(record.rcv_nxt, record.snd_nxt, record.wnd_max as usize);
        let fin = record.rcv_nxt.minus(1);
        self.receive.start(fin);
        self.receive.fin = Some(fin);
        self.receive.edge = record.rcv_edge;
        self.receive.scale = record.rcv_scale;
        self.acknowledged = record.rcv_nxt;
        self.timestamps = record.timestamps.map(|(offset, recent)| Timestamps {
            offset,
            recent,
            recent_ns: record.expires_ns - TIME_WAIT_NS,
        });
        self.timestamps_always = record.timestamps_always;
        (self.sack, self.ecn) = (record.sack, false);
        self.link = record.link;
        self.options.hop_limit = record.hop_limit;
        self.options.traffic_class = record.traffic_class;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_small() {
        let size = size_of::<Option<Record>>();
        assert!(size <= 104, "{size} bytes");
    }
}
