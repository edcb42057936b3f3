//! Minisocks: the reduced state of connections in TIME-WAIT that no application has. A minisock
//! holds what is necessary to answer further segments (RFC 9293 §3.6.1, §3.10.7.4). It stands
//! for the connection in the table of connections, at an eighth of a PCB's size. A segment that
//! arrives turns the minisock into a PCB again while it is processed, so that there is only one
//! implementation of segment processing.

use crate::deadline::{as_ns, from_ns};
use crate::iface::Interface;
use crate::pcb::{Key, PcbId, Table};
use crate::slab::{Handle, Slab};
use crate::tcp::Tcp;
use crate::tcp::connections::TIME_WAIT_NS;
use crate::tcp::pcb::{Pcb, State, Timestamps};
use crate::tcp::seq::Seq;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;

/// Handles of minisocks in the table of connections begin here; those of PCBs are below.
const MINISOCK_TAG: u32 = 1 << 29;

/// Minisocks that end within the same span of this length, in nanoseconds, go in the order in
/// which they were added, and so at most one span late.
const SLOT_NS: u64 = 1_000_000_000;

/// The reduced state of one connection.
pub(in crate::tcp) struct TimeWaitSock {
    key: Key,
    expires_ns: u64,
    challenged_ns: Option<NonZeroU64>,
    snd_nxt: Seq,
    wnd_max: u32,
    rcv_nxt: Seq,
    rcv_adv: Seq,
    rcv_scale: u8,
    /// The offset of our clock, and TS.Recent.
    timestamps: Option<(u32, u32)>,
    timestamps_required: bool,
    sack: bool,
    link: u8,
    hop_limit: u8,
    traffic_class: u8,
}

/// All minisocks.
pub(in crate::tcp) struct TimeWaitTable {
    records: Slab<TimeWaitSock>,
    /// By the span in which they end: when each ends, and its handle; removed ones may still be
    /// listed.
    slots: BTreeMap<u64, VecDeque<(u64, Handle)>>,
    /// Number of handles in all spans.
    entries: usize,
    /// A time at or before the first end; `u64::MAX` if there is none.
    next_ns: u64,
}

impl Default for TimeWaitTable {
    fn default() -> TimeWaitTable {
        TimeWaitTable {
            records: Slab::new(),
            slots: BTreeMap::new(),
            entries: 0,
            next_ns: u64::MAX,
        }
    }
}

impl TimeWaitTable {
    pub(in crate::tcp) fn len(&self) -> usize {
        self.records.len()
    }

    /// A time at or before the first end; `u64::MAX` if there is none.
    #[inline]
    pub(in crate::tcp) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// End and handle of the minisock that ends first.
    pub(in crate::tcp) fn first(&mut self) -> Option<(u64, Handle)> {
        while let Some(mut slot) = self.slots.first_entry() {
            while let Some(&(at_ns, name)) = slot.get().front() {
                if self.records.get(name).is_some() {
                    self.next_ns = at_ns;
                    return Some((at_ns, name));
                }
                slot.get_mut().pop_front();
                self.entries -= 1;
            }
            slot.remove();
        }
        self.next_ns = u64::MAX;
        None
    }

    /// The minisock keeps its own end, however often it is added: the lateness within its span
    /// never adds up.
    #[inline]
    fn add(&mut self, record: TimeWaitSock) -> PcbId {
        let ends_ns = record.expires_ns;
        let name = self.records.insert(record);
        let slot = self.slots.entry(ends_ns / SLOT_NS).or_default();
        let at_ns = slot.back().map_or(ends_ns, |(last, _)| ends_ns.max(*last));
        slot.push_back((at_ns, name));
        self.entries += 1;
        self.next_ns = self.next_ns.min(at_ns);
        if self.entries > 2 * self.records.len() + 64 {
            self.sweep();
        }
        PcbId(MINISOCK_TAG + name.index)
    }

    /// Drops the handles of removed minisocks.
    fn sweep(&mut self) {
        let records = &self.records;
        self.slots.retain(|_, slot| {
            slot.retain(|(_, name)| records.get(*name).is_some());
            !slot.is_empty()
        });
        self.entries = self.slots.values().map(VecDeque::len).sum();
    }
}

impl Tcp {
    /// Replaces a PCB by a minisock if it is in TIME-WAIT, has nothing to send and no application;
    /// returns whether it was.
    pub(in crate::tcp) fn replace_by_minisock(&mut self, name: Handle) -> bool {
        let Some(pcb) = self.pcbs.get(name) else {
            return false;
        };
        let (Some(expires_ns), true) = (
            as_ns(pcb.timers.keepalive_or_time_wait_ns),
            pcb.can_be_minisock(),
        ) else {
            return false;
        };
        let key = pcb.pair.key();
        let id = self.minisocks.add(pcb.record(key, expires_ns));
        let renamed = self.table.rename(&key, id);
        debug_assert!(renamed, "what is known is in the table");
        self.timers.remove(name.index);
        self.time_wait.became_minisock(name);
        self.drop_pcb(name);
        true
    }

    /// Turns the minisock of this handle and key into a PCB again; `None` if there is none.
    pub(in crate::tcp) fn restore_minisock(
        &mut self,
        now_ns: u64,
        host: &Interface,
        key: &Key,
        PcbId(id): PcbId,
    ) -> Option<Handle> {
        let index = id.checked_sub(MINISOCK_TAG)?;
        let name = self.minisocks.records.at(index)?;
        self.minisocks
            .records
            .get(name)
            .filter(|one| one.key == *key)?;
        let record = self.minisocks.records.remove(name)?;
        let mut pcb = Pcb::new(
            self.pcb_cache.get(),
            &self.config,
            host,
            &record.key.ends(),
            // As if the PCB had sent nothing but its FIN.
            record.snd_nxt.minus(2),
            now_ns,
        );
        pcb.restore(&record);
        let name = self.pcbs.insert(pcb);
        self.table.rename(&record.key, PcbId(name.index));
        self.enqueue_time_wait(name);
        Some(name)
    }

    /// Removes the minisocks that have ended.
    pub(in crate::tcp) fn expire_time_waits(&mut self, now_ns: u64) {
        while let Some((at_ns, name)) = self.minisocks.first()
            && at_ns <= now_ns
        {
            self.remove_minisock(name);
        }
    }

    pub(in crate::tcp) fn remove_minisock(&mut self, name: Handle) {
        if let Some(record) = self.minisocks.records.remove(name) {
            self.table.remove(&record.key);
            self.time_wait.leave();
        }
    }
}

impl Pcb {
    /// Whether a minisock is sufficient for the connection.
    #[inline]
    pub(in crate::tcp) fn can_be_minisock(&self) -> bool {
        self.state == State::TimeWait
            && self.user.orphaned
            && !self.listed.in_output_queue
            && !self.wants_output()
    }

    /// The connection's reduced state, written in place: a value just written is slow to move.
    #[inline]
    fn record(&self, key: Key, expires_ns: u64) -> TimeWaitSock {
        TimeWaitSock {
            key,
            expires_ns,
            challenged_ns: self.ack.challenged_ns,
            snd_nxt: self.send.nxt,
            wnd_max: self.send.wnd_max,
            rcv_nxt: self.receive.nxt,
            rcv_adv: self.receive.rcv_adv,
            rcv_scale: self.receive.scale,
            timestamps: self
                .negotiated
                .timestamps
                .map(|ours| (ours.offset, ours.recent)),
            timestamps_required: self.negotiated.timestamps_required,
            sack: self.negotiated.sack,
            link: self.pair.link,
            hop_limit: self.user.options.hop_limit,
            traffic_class: self.user.options.traffic_class,
        }
    }

    /// Turns the PCB into the connection of a minisock.
    fn restore(&mut self, record: &TimeWaitSock) {
        self.state = State::TimeWait;
        (self.user.orphaned, self.listed.in_time_wait_queue) = (true, true);
        self.timers.keepalive_or_time_wait_ns = from_ns(record.expires_ns);
        self.ack.challenged_ns = record.challenged_ns;
        let send = &mut self.send;
        (send.una, send.nxt, send.closed) = (record.snd_nxt, record.snd_nxt, true);
        send.first_window(record.rcv_nxt, record.snd_nxt, record.wnd_max as usize);
        let fin = record.rcv_nxt.minus(1);
        self.receive.start(fin);
        self.receive.fin = Some(fin);
        self.receive.rcv_adv = record.rcv_adv;
        self.receive.scale = record.rcv_scale;
        self.ack.last_sent = record.rcv_nxt;
        self.negotiated.timestamps = record.timestamps.map(|(offset, recent)| {
            Timestamps::new(offset, recent, record.expires_ns - TIME_WAIT_NS)
        });
        self.negotiated.timestamps_required = record.timestamps_required;
        (self.negotiated.sack, self.ecn.enabled) = (record.sack, false);
        self.pair.link = record.link;
        self.user.options.hop_limit = record.hop_limit;
        self.user.options.traffic_class = record.traffic_class;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iface::{Config, DropReason};
    use crate::pcb::Key6;
    use crate::stack::Stack;
    use crate::tcp::TcpError;
    use std::net::{Ipv6Addr, SocketAddr};
    use weir_wire::ethernet::Address;
    use weir_wire::tcp::{Flags, Options, Repr};
    use weir_wire::{AddrPair, EtherType, Protocol, ethernet, ipv6};

    const STATION: Address = Address([2, 0, 0, 0, 0, 1]);
    const OURS: (Ipv6Addr, u16) = (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 80);

    /// A segment without bytes and options, in its frame.
    fn segment(from: (Ipv6Addr, u16), flags: Flags, seq: u32, ack: u32) -> Vec<u8> {
        let repr = Repr {
            src_port: from.1,
            dst_port: OURS.1,
            seq,
            ack,
            flags,
            window: 1000,
            urgent: 0,
            options: Options::default(),
        };
        let (src, dst) = (from.0, OURS.0);
        let ip_at = ethernet::Repr::LEN;
        let tcp_at = ip_at + ipv6::Repr::LEN;
        let mut frame = vec![0; tcp_at + Repr::LEN_MIN];
        ethernet::Repr {
            dst: STATION,
            src: Address([2, 0, 0, 0, 0, 2]),
            ether_type: EtherType::IPV6,
        }
        .emit(&mut frame);
        ipv6::Repr {
            src,
            dst,
            next_header: Protocol::TCP,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            payload_len: Repr::LEN_MIN,
        }
        .emit(&mut frame[ip_at..]);
        repr.emit(&mut frame[tcp_at..], AddrPair::V6(src, dst));
        frame
    }

    /// A connection that the table confuses with this one by its hash is another one, both for a
    /// PCB and for a minisock.
    #[test]
    fn a_minisock_is_taken_for_no_other_connection() {
        let config = Config::new(STATION).address("2001:db8::1/32".parse().unwrap());
        let mut stack = Stack::new(&config, 4).unwrap();
        let listener = stack.tcp_listen(OURS.into(), 5).unwrap();
        let remote = (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2), 4000);
        let twin = stack.tcp.table.twin(&Key6::new(OURS, remote)).remote();
        let unexpected = |stack: &Stack| stack.counters().dropped(DropReason::SegmentUnexpected);
        // The link answers no solicitations here: frames to send wait.
        let tell = |stack: &mut Stack, from, flags, seq, ack| {
            stack.receive(1, &segment(from, flags, seq, ack));
            stack.poll(1, &mut Vec::new());
        };
        tell(&mut stack, remote, Flags::SYN, 100, 0);
        let name = stack.tcp.pcbs.at(0).unwrap();
        let ack = stack.tcp.pcbs.get(name).unwrap().send.nxt.0;
        tell(&mut stack, twin, Flags::SYN, 100, 0);
        assert_eq!((stack.tcp_connections(), unexpected(&stack)), (1, 1));
        tell(&mut stack, remote, Flags::ACK, 101, ack);
        let id = stack.tcp_accept(1, listener).unwrap();
        stack.tcp_close(1, id);
        let last = ack.wrapping_add(1);
        tell(&mut stack, twin, Flags::ACK, 101, last);
        let state = |stack: &Stack| stack.tcp.pcbs.get(name).map(|pcb| pcb.state);
        assert_eq!(state(&stack), Some(State::FinWait1));
        tell(&mut stack, remote, Flags::ACK | Flags::FIN, 101, last);
        assert_eq!((state(&stack), stack.tcp_connections()), (None, 1));
        tell(&mut stack, twin, Flags::SYN, 9000, 0);
        tell(&mut stack, twin, Flags::RST, 102, 0);
        assert_eq!((stack.tcp_connections(), unexpected(&stack)), (1, 4));
        let (local, peer) = (SocketAddr::from(OURS), SocketAddr::from(twin));
        let opened = stack.tcp_connect(1, Some(local), peer);
        assert_eq!(opened, Err(TcpError::AddrInUse(local)));
        tell(&mut stack, remote, Flags::RST, 102, 0);
        assert_eq!(stack.tcp_connections(), 0);
    }

    /// A connection much older than others becomes a minisock again after it has answered, and so
    /// does one whose application closes it long after others; both end at their own time, and old
    /// handles are dropped.
    #[test]
    fn old_ones_are_records_again() {
        const S: u64 = 1_000_000_000;
        let config = Config::new(STATION).address("2001:db8::1/32".parse().unwrap());
        let mut stack = Stack::new(&config, 4).unwrap();
        let listener = stack.tcp_listen(OURS.into(), 5).unwrap();
        let remote = |port| (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2), port);
        let tell = |stack: &mut Stack, at_ns, port, flags, seq, ack| {
            stack.receive(at_ns, &segment(remote(port), flags, seq, ack));
            stack.poll(at_ns, &mut Vec::new());
        };
        // Each a second and a half after the one before; the second keeps its application.
        let mut kept = None;
        let mut acks = Vec::new();
        for number in 0..4u16 {
            let (at_ns, port) = (u64::from(number) * 3 * S / 2, 4000 + number);
            tell(&mut stack, at_ns, port, Flags::SYN, 100, 0);
            let pcbs = &stack.tcp.pcbs;
            let pcb = pcbs
                .iter()
                .find(|pcb| pcb.pair.remote == remote(port).into());
            let ack = pcb.unwrap().send.nxt.0;
            tell(&mut stack, at_ns, port, Flags::ACK, 101, ack);
            let id = stack.tcp_accept(at_ns, listener).unwrap();
            match number {
                1 => {
                    stack.tcp_shutdown(at_ns, id).unwrap();
                    kept = Some(id);
                }
                _ => stack.tcp_close(at_ns, id),
            }
            stack.poll(at_ns, &mut Vec::new());
            let ack = ack.wrapping_add(1);
            tell(&mut stack, at_ns, port, Flags::ACK | Flags::FIN, 101, ack);
            acks.push(ack);
        }
        let count = |stack: &Stack| (stack.tcp.pcbs.len(), stack.tcp.minisocks.len());
        assert_eq!(count(&stack), (1, 3));
        stack.tcp_close(5 * S, kept.unwrap());
        stack.poll(5 * S, &mut Vec::new());
        assert_eq!(count(&stack), (0, 4));
        for _ in 0..1000 {
            tell(&mut stack, 5 * S, 4000, Flags::ACK, 102, acks[0]);
            assert_eq!(count(&stack), (0, 4));
            assert!(stack.tcp.minisocks.entries <= 2 * 4 + 64);
        }
        for number in 0..4u16 {
            let ends_ns = u64::from(number) * 3 * S / 2 + TIME_WAIT_NS;
            stack.poll(ends_ns - 1, &mut Vec::new());
            assert_eq!(count(&stack), (0, 4 - usize::from(number)));
            stack.poll(ends_ns, &mut Vec::new());
            assert_eq!(count(&stack), (0, 3 - usize::from(number)));
        }
        let waiting = &stack.tcp.minisocks;
        assert_eq!((waiting.entries, waiting.next_ns), (0, u64::MAX));
        assert!(waiting.slots.is_empty());
    }

    /// The size in the list of minisocks.
    #[test]
    fn a_record_is_small() {
        let size = size_of::<Option<TimeWaitSock>>();
        assert!(size <= 104, "{size} bytes");
    }
}
