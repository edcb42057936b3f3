//! [`Tcp`]: all connections of a stack, with look-up for each segment, timers, and the order of
//! output.

use super::buffer::receive_buffer::MemoryAvailable;
use super::buffer::send_buffer::WAKE_DIVISOR;
use super::input::train::Train;
use super::input::{Arrived, Effect};
use super::listen::bind::ReuseportGroups;
use super::listen::fastopen::Cookies;
use super::listen::handshake::{Listener, Secret};
use super::output::OutputStatus;
use super::pcb::{Pcb, State};
use super::pcb_cache::PcbCache;
use super::seq::Seq;
use super::time_wait::limit::TimeWaitQueue;
use super::time_wait::minisock::TimeWaitTable;
use super::timer_heap::TimerHeap;
use super::{TcpConfig, TcpError, TcpOptions};
use crate::deadline::from_ns;
use crate::iface::{DropReason, Incoming, Interface};
use crate::links::{Interfaces, TxSinks};
use crate::pcb::{ChunkSource, Key, Listeners, PcbId, Table, Weir};
use crate::rng::PrfRng;
use crate::shard::Shard;
use crate::slab::{Handle, Slab};
use crate::stack::TxSink;
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use weir_wire::AddrPair;
use weir_wire::tcp::{Flags, Options, Repr, Segment};

/// Limit on the connections of one stack, those in TIME-WAIT included.
pub const CONNECTIONS_MAX: usize = 1 << 21;
/// Duration of TIME-WAIT in nanoseconds: 60 s, twice the maximum segment lifetime (RFC 9293
/// §3.4.2, which allows a longer one), as short as in other stacks.
pub(super) const TIME_WAIT_NS: u64 = 60_000_000_000;
/// Longest time, in nanoseconds, that a connection without an application waits for the peer's
/// FIN.
const FIN_WAIT_2_NS: u64 = 60_000_000_000;

/// Out-of-order data leaves 1/4 of the memory to other uses.
const RESERVE_DIVISOR: usize = 4;

/// Bytes sent in one poll, after which the caller receives again. More would displace the next
/// data from the CPU's caches and delay acknowledgments.
const POLL_BYTES: usize = 128 << 10;

/// All TCP connections of one stack.
pub(crate) struct Tcp {
    pub(crate) config: TcpConfig,
    pub(super) secret: Secret,
    pub(super) pcbs: Slab<Box<Pcb>>,
    pub(super) table: Weir,
    pub(super) listeners: Slab<Listener>,
    pub(super) listening: Listeners,
    pub(super) reuseport: ReuseportGroups,
    pub(super) timers: TimerHeap,
    /// Connections with output, by link. Handles are stored as numbers, so that each is read
    /// with the width with which it was written.
    output_queue: Vec<VecDeque<u64>>,
    /// Connections with an event for the application.
    pub(super) notify_queue: VecDeque<Handle>,
    pub(super) listener_notify_queue: VecDeque<Handle>,
    pub(super) cookies: Cookies,
    /// Number of listeners' connections that are not open yet.
    pub(super) half_open: usize,
    /// Connections that only wait for their time to end.
    pub(super) time_wait: TimeWaitQueue,
    /// The reduced state of connections in TIME-WAIT.
    pub(super) minisocks: TimeWaitTable,
    /// PCBs of ended connections.
    pub(super) pcb_cache: PcbCache,
    /// Bytes of storage: the limit for all buffers, and the present sum.
    pub(super) memory: usize,
    pub(crate) charged_bytes: usize,
    /// Connections that cannot write for lack of memory, by the amount that they need.
    pub(super) memory_waiters: BTreeSet<(u32, Handle)>,
    /// The connection of the last segment, or one that began since.
    pub(super) last_pcb: Option<Handle>,
    /// The expected next segment, if it continues the last one.
    pub(super) train: Option<Train>,
    pub(super) rng: PrfRng,
    /// This stack's part of a host of several stacks.
    pub(crate) shard: Option<Box<Shard>>,
}

impl Tcp {
    pub(crate) fn new(links: usize, seed: u128) -> Tcp {
        let mut rng = PrfRng::new(seed, "tcp");
        let table = Weir::new(rng.wide());
        let listening = Listeners::new(rng.wide());
        Tcp {
            config: TcpConfig::default(),
            secret: Secret(rng.wide()),
            pcbs: Slab::new(),
            table,
            listeners: Slab::new(),
            listening,
            reuseport: ReuseportGroups::new(),
            timers: TimerHeap::default(),
            output_queue: vec![VecDeque::new(); links],
            notify_queue: VecDeque::new(),
            listener_notify_queue: VecDeque::new(),
            cookies: Cookies::default(),
            half_open: 0,
            time_wait: TimeWaitQueue::default(),
            minisocks: TimeWaitTable::default(),
            pcb_cache: PcbCache::default(),
            memory: super::MEMORY_DEFAULT,
            charged_bytes: 0,
            memory_waiters: BTreeSet::new(),
            last_pcb: None,
            train: None,
            rng,
            shard: None,
        }
    }

    pub(crate) fn set_chunk_source(&mut self, supply: &ChunkSource) {
        self.table.set_chunk_source(supply);
    }

    /// Number of connections of listeners that are not open yet.
    pub(crate) fn half_open(&self) -> usize {
        self.half_open
    }

    /// Number of connections, those in TIME-WAIT included.
    pub(crate) fn connections(&self) -> usize {
        self.pcbs.len() + self.minisocks.len()
    }

    /// Processes a received segment.
    pub(crate) fn receive(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        incoming: &Incoming<'_>,
    ) -> Result<(), DropReason> {
        let segment = Segment::new(incoming.payload).map_err(|_| DropReason::Malformed)?;
        if !incoming.checksum_ok && !segment.checksum_is_right(incoming.addresses) {
            return Err(DropReason::ChecksumWrong);
        }
        if incoming.to_group {
            return Err(DropReason::NotOurAddress);
        }
        // Not moved about: what was just written in pieces is not read well as one.
        let ends = (
            SocketAddr::new(incoming.dst(), segment.dst_port()),
            SocketAddr::new(incoming.src(), segment.src_port()),
        );
        let (local, remote) = (&ends.0, &ends.1);
        let seems = incoming.connection.or(self.last_pcb);
        let known = match seems.filter(|name| self.is_between(*name, local, remote)) {
            None => self.lookup_or_revive(now_ns, host, (local, remote))?,
            known => known,
        };
        let repr = Repr::parse(&segment);
        let arrived = Arrived {
            repr: &repr,
            seq: Seq(segment.seq()),
            payload: segment.payload(),
            ce: incoming.traffic_class & 3 == 3,
        };
        if let Some(name) = known {
            let left = self.memory_available();
            let pcb = self
                .pcbs
                .get_mut(name)
                .expect("what is in the table is there");
            if pcb.pair.link != incoming.link {
                self.after_event(now_ns, name);
                return Err(DropReason::OtherLink);
            }
            let early = pcb.opening.early_listener();
            let asks = pcb.state == State::SynSent;
            let asked = if asks { pcb.opening.tfo.clone() } else { None };
            let retried = pcb.recovery.retries > 0;
            let challenged = pcb.ack.challenged_ns;
            pcb.receive.set_memory(left);
            let effect = pcb.arrives(now_ns, &arrived);
            pcb.arm();
            if let Some(asked) = asked.filter(|_| effect == Effect::Opened) {
                self.cookies.learn(remote.ip(), &asked, &arrived, retried);
            }
            self.last_pcb = Some(name);
            host.counters.segments_standard += 1;
            host.counters.challenges += u64::from(pcb.ack.challenged_ns != challenged);
            match effect {
                Effect::Nothing => self.after_event(now_ns, name),
                Effect::Unexpected => {
                    self.after_event(now_ns, name);
                    return Err(DropReason::SegmentUnexpected);
                }
                Effect::Opened => {
                    match early.and_then(|name| self.listeners.get_mut(name)) {
                        Some(listener) => listener.tfo_pending -= 1,
                        None if early.is_some() => {}
                        None => self.opened(now_ns, host, name),
                    }
                    self.after_event(now_ns, name);
                }
                Effect::SendRst => {
                    self.after_event(now_ns, name);
                    self.send_rst(now_ns, host, incoming, &arrived);
                }
                Effect::ReuseTimeWait => {
                    self.pcbs.get_mut(name).expect("it was there").end(None);
                    self.after_event(now_ns, name);
                    return self.arrives_at_listener(now_ns, host, incoming, &ends, &arrived);
                }
            }
            return Ok(());
        }
        self.arrives_at_listener(now_ns, host, incoming, &ends, &arrived)
    }

    /// Adds a connection to the table, which must not have it.
    pub(super) fn enter(&mut self, now_ns: u64, pcb: Box<Pcb>) -> Handle {
        let key = pcb.pair.key();
        let name = self.pcbs.insert(pcb);
        let entered = self.table.insert(key, PcbId(name.index));
        assert!(entered.is_ok(), "looked up before");
        self.last_pcb = Some(name);
        self.after_event(now_ns, name);
        name
    }

    pub(crate) fn limit_memory(&mut self, bytes: usize) {
        self.memory = bytes;
        self.train = None;
        self.wake_memory_waiters();
    }

    /// The memory that remains.
    #[inline]
    pub(super) fn memory_available(&self) -> MemoryAvailable {
        let bytes = self.memory.saturating_sub(self.charged_bytes);
        let ahead = bytes.saturating_sub(self.memory / RESERVE_DIVISOR);
        MemoryAvailable { bytes, ooo: ahead }
    }

    /// Updates the count of storage by this connection's buffers, and notifies connections that
    /// wait for memory if there is some again.
    pub(super) fn account(&mut self, name: Handle) {
        if let Some(pcb) = self.pcbs.get_mut(name)
            && pcb.account(&mut self.charged_bytes)
        {
            self.wake_memory_waiters();
        }
    }

    /// Notifies the connections that wait for memory, each only if the amount that it needs is
    /// there, so that none is notified in vain again and again.
    pub(super) fn wake_memory_waiters(&mut self) {
        let left = self.memory_available().bytes;
        if left < self.memory / WAKE_DIVISOR {
            return;
        }
        while let Some((need, name)) = self.memory_waiters.first().copied()
            && need as usize <= left
        {
            self.memory_waiters.pop_first();
            if let Some(pcb) = self.pcbs.get_mut(name) {
                pcb.listed.memory_wanted = 0;
                if !std::mem::replace(&mut pcb.listed.in_notify_queue, true) {
                    self.notify_queue.push_back(name);
                }
            }
        }
    }

    /// Completes any event of a connection: updates its memory, its timer, its turn to send,
    /// its notification, and its end.
    pub(super) fn after_event(&mut self, now_ns: u64, name: Handle) {
        let Some(pcb) = self.pcbs.get_mut(name).map(Box::as_mut) else {
            return;
        };
        if pcb.is_ending() {
            return self.after_event_ending(now_ns, name);
        }
        let fed = pcb.account(&mut self.charged_bytes);
        if pcb.timers.shrink_ns.is_none() && pcb.holds_memory() {
            pcb.release(now_ns);
        }
        pcb.schedule(
            name,
            &mut self.timers,
            &mut self.output_queue,
            &mut self.notify_queue,
        );
        if fed {
            self.wake_memory_waiters();
        }
    }

    /// [`Tcp::after_event`] for a connection that is over or only waits.
    #[inline(never)]
    fn after_event_ending(&mut self, now_ns: u64, name: Handle) {
        let Some(pcb) = self.pcbs.get_mut(name).map(Box::as_mut) else {
            return;
        };
        let fed = pcb.account(&mut self.charged_bytes);
        let is_over = pcb.state == State::Closed;
        let quietens = pcb.start_time_wait(now_ns);
        if pcb.timers.shrink_ns.is_none() && !is_over && pcb.holds_memory() {
            pcb.release(now_ns);
        }
        pcb.schedule(
            name,
            &mut self.timers,
            &mut self.output_queue,
            &mut self.notify_queue,
        );
        let may_shrink = pcb.can_be_minisock();
        if is_over {
            self.release_tuple(name);
        }
        if quietens {
            self.enter_time_wait(now_ns, name);
        }
        if may_shrink {
            self.replace_by_minisock(name);
        }
        if fed {
            self.wake_memory_waiters();
        }
    }

    /// Makes the next poll run the connection's timers.
    pub(super) fn due_now(&mut self, name: Handle) {
        if let Some(pcb) = self.pcbs.get_mut(name)
            && pcb.listed.in_table
        {
            pcb.timers.due_ns = 0;
            self.timers.set(name.index, 0);
        }
    }

    pub(super) fn queue_output(&mut self, link: u8, name: Handle) {
        self.output_queue[usize::from(link)].push_back(name.bits());
    }

    /// Releases the addresses and ports of a connection that is over. Without an application
    /// the connection is removed as well.
    #[inline(never)]
    fn release_tuple(&mut self, name: Handle) {
        let Some(pcb) = self.pcbs.get_mut(name) else {
            return;
        };
        if std::mem::take(&mut pcb.listed.in_table) {
            let key = pcb.pair.key();
            self.table.remove(&key);
            self.timers.remove(name.index);
            let early = pcb.opening.tfo.take().and_then(|opening| opening.listener);
            if let Some(listener) = early.and_then(|name| self.listeners.get_mut(name)) {
                listener.tfo_pending -= 1;
            }
            // A connection that was not accepted has no application.
            pcb.user.orphaned |= pcb.opening.listener.is_some();
            if pcb.listed.in_time_wait_queue {
                self.time_wait.leave();
            }
            let was_half_open = std::mem::take(&mut pcb.opening.is_half_open);
            self.half_open -= usize::from(was_half_open);
            if let Some(listener) = pcb
                .opening
                .listener
                .and_then(|name| self.listeners.get_mut(name))
            {
                if was_half_open {
                    listener.half_open -= 1;
                } else if pcb.receive.readable() > 0 {
                    // The data that the peer has sent can still be accepted and read.
                    pcb.user.orphaned = false;
                } else {
                    listener.accept_queue.retain(|opened| opened.0 != name);
                }
            }
        }
        if pcb.user.orphaned {
            self.drop_pcb(name);
        }
    }

    /// Removes a PCB; its handles become invalid.
    pub(super) fn drop_pcb(&mut self, name: Handle) {
        if let Some(pcb) = self.pcbs.remove(name) {
            self.charged_bytes -= pcb.listed.charged_bytes as usize;
            if pcb.listed.memory_wanted > 0 {
                self.memory_waiters
                    .remove(&(pcb.listed.memory_wanted, name));
            }
            self.pcb_cache.put(pcb);
        }
        self.wake_memory_waiters();
        // Removed connections have no events.
        if self.notify_queue.len() > 2 * self.pcbs.len() + 64 {
            let pcbs = &self.pcbs;
            self.notify_queue.retain(|name| pcbs.get(*name).is_some());
        }
    }

    /// Runs the timers that are due and lets connections send in turn; returns the next
    /// deadline, `u64::MAX` if there is none.
    #[inline]
    pub(crate) fn poll<O: TxSinks + ?Sized>(
        &mut self,
        now_ns: u64,
        hosts: &mut Interfaces,
        outs: &mut O,
    ) -> u64 {
        if self.timers.next_ns() <= now_ns {
            self.run_timers(now_ns, hosts);
        }
        if self.minisocks.next_ns() <= now_ns {
            self.expire_time_waits(now_ns);
        }
        let mut more = false;
        for link in 0..self.output_queue.len() {
            if self.output_queue[link].is_empty() {
                continue;
            }
            let host = hosts.at_mut(link as u8);
            more |= self.run_output_queue(now_ns, host, outs.sink(host.link));
        }
        if more {
            now_ns
        } else {
            self.timers.next_ns().min(self.minisocks.next_ns())
        }
    }

    /// Runs the timers that are due.
    fn run_timers(&mut self, now_ns: u64, hosts: &mut Interfaces) {
        while let Some(index) = self.timers.pop(now_ns) {
            if let Some(name) = self.pcbs.at(index) {
                let pcb = self.pcbs.get_mut(name).expect("it is at its place");
                pcb.timers.due_ns = u64::MAX;
                let host = hosts.at_mut(pcb.pair.link);
                if pcb.timeout(now_ns) {
                    self.abort(now_ns, host, name, Some(TcpError::TimedOut))
                } else {
                    self.after_event(now_ns, name)
                }
            }
        }
    }

    /// Lets the connections of a link send; returns whether the byte limit stopped it.
    fn run_output_queue(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        out: &mut dyn TxSink,
    ) -> bool {
        let link = usize::from(host.link);
        let mut sent = 0;
        while sent < POLL_BYTES
            && let Some(bits) = self.output_queue[link].pop_front()
        {
            let name = Handle::from_bits(bits);
            let Some(pcb) = self.pcbs.get_mut(name).map(Box::as_mut) else {
                continue;
            };
            match pcb.output(now_ns, host, out, &mut sent) {
                OutputStatus::Done => pcb.listed.in_output_queue = false,
                OutputStatus::MoreToSend => self.output_queue[link].push_back(bits),
                OutputStatus::DeviceFull => {
                    self.output_queue[link].push_front(bits);
                    break;
                }
            }
            if pcb.send.has_sent_enough()
                && !std::mem::replace(&mut pcb.listed.in_notify_queue, true)
            {
                self.notify_queue.push_back(name);
            }
            pcb.schedule_timers(name, &mut self.timers);
            if pcb.can_be_minisock() {
                self.replace_by_minisock(name);
            }
        }
        sent >= POLL_BYTES
    }

    /// Answers a segment without a connection by a RST (RFC 9293 §3.10.7.1).
    pub(super) fn send_rst(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        incoming: &Incoming<'_>,
        arrived: &Arrived<'_>,
    ) {
        if arrived.has(Flags::RST) {
            return;
        }
        let (seq, ack, flags) = if arrived.has(Flags::ACK) {
            (arrived.repr.ack, 0, Flags::RST)
        } else {
            (
                0,
                arrived.seq.plus(arrived.len()).0,
                Flags::RST | Flags::ACK,
            )
        };
        let repr = Repr {
            src_port: arrived.repr.dst_port,
            dst_port: arrived.repr.src_port,
            seq,
            ack,
            flags,
            window: 0,
            urgent: 0,
            options: Options::default(),
        };
        let back = match incoming.addresses {
            AddrPair::V4(src, dst) => AddrPair::V4(dst, src),
            AddrPair::V6(src, dst) => AddrPair::V6(dst, src),
        };
        send(now_ns, host, TcpOptions::default(), back, &repr);
    }

    /// Ends a connection at once and sends a RST.
    pub(super) fn abort(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        name: Handle,
        error: Option<TcpError>,
    ) {
        let Some(pcb) = self.pcbs.get_mut(name) else {
            return;
        };
        if !matches!(pcb.state, State::Closed | State::SynSent | State::TimeWait) {
            let repr = Repr {
                src_port: pcb.pair.local.port(),
                dst_port: pcb.pair.remote.port(),
                seq: pcb.send.nxt.0,
                ack: pcb.receive.nxt.0,
                flags: Flags::RST | Flags::ACK,
                window: 0,
                urgent: 0,
                // RFC 7323 §3.2: a RST has timestamps, too.
                options: Options {
                    timestamps: pcb.negotiated.timestamp_option(now_ns),
                    ..Options::default()
                },
            };
            send(now_ns, host, pcb.user.options, pcb.pair.addresses(), &repr);
        }
        pcb.end(error);
        self.after_event(now_ns, name);
    }

    /// Whether a connection between these two exists.
    pub(super) fn is_tuple_in_use(&mut self, local: SocketAddr, remote: SocketAddr) -> bool {
        Key::new(local, remote).is_some_and(|key| self.table.find(&key).is_some())
    }

    /// The connection between these two; `None` if there is none. A minisock becomes a PCB
    /// again. [`DropReason::SegmentUnexpected`] if the table gives another connection, which
    /// shows that there is none between these two.
    fn lookup_or_revive(
        &mut self,
        now_ns: u64,
        host: &Interface,
        (local, remote): (&SocketAddr, &SocketAddr),
    ) -> Result<Option<Handle>, DropReason> {
        let Some(key) = Key::new(*local, *remote) else {
            return Ok(None);
        };
        let Some(id) = self.table.find(&key) else {
            return Ok(None);
        };
        let name = self.pcbs.at(id.0);
        let name = name.or_else(|| self.restore_minisock(now_ns, host, &key, id));
        match name.filter(|name| self.is_between(*name, local, remote)) {
            None => Err(DropReason::SegmentUnexpected),
            name => Ok(name),
        }
    }

    /// The connection between these two, if it has a PCB.
    pub(super) fn lookup(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<Handle> {
        let pcb = self.table.find(&Key::new(local, remote)?)?;
        let name = self.pcbs.at(pcb.0);
        name.filter(|name| self.is_between(*name, &local, &remote))
    }

    /// Whether this is the connection between these two.
    pub(super) fn is_between(&self, name: Handle, local: &SocketAddr, remote: &SocketAddr) -> bool {
        let pcb = self.pcbs.get(name).filter(|pcb| pcb.listed.in_table);
        pcb.is_some_and(|pcb| pcb.pair.is_between(local, remote))
    }
}

impl Pcb {
    /// Whether the connection is over or only waits.
    #[inline]
    fn is_ending(&self) -> bool {
        matches!(
            self.state,
            State::FinWait2 | State::TimeWait | State::Closed
        )
    }

    /// Schedules the connection's timers, output and notification.
    #[inline(always)]
    fn schedule(
        &mut self,
        name: Handle,
        deadlines: &mut TimerHeap,
        ready: &mut [VecDeque<u64>],
        told: &mut VecDeque<Handle>,
    ) {
        self.schedule_timers(name, deadlines);
        if !self.listed.in_output_queue && self.wants_output() {
            self.listed.in_output_queue = true;
            ready[usize::from(self.pair.link)].push_back(name.bits());
        }
        let untold = self.opening.listener.is_none() && !self.user.orphaned;
        if untold && !std::mem::replace(&mut self.listed.in_notify_queue, true) {
            told.push_back(name);
        }
    }

    /// Schedules the first of the connection's timers.
    #[inline]
    fn schedule_timers(&mut self, name: Handle, deadlines: &mut TimerHeap) {
        let at_ns = self.timers.next_ns().min(self.congestion.wake_ns());
        if at_ns < self.timers.due_ns {
            self.timers.due_ns = at_ns;
            deadlines.set(name.index, at_ns);
        }
    }

    /// Updates the connection's share in the total storage; returns whether it has changed.
    fn account(&mut self, total: &mut usize) -> bool {
        let buffers = self.send.capacity() + self.receive.capacity();
        let bytes = buffers + self.congestion.memory();
        self.listed.account(bytes, total)
    }

    /// Starts, or restarts, the wait of a connection that has only time to wait for; returns
    /// whether it was not waiting before.
    fn start_time_wait(&mut self, now_ns: u64) -> bool {
        let quiet_ns = match self.state {
            State::TimeWait => TIME_WAIT_NS,
            State::FinWait2 if self.user.orphaned => FIN_WAIT_2_NS,
            _ => return false,
        };
        let is_new = !std::mem::replace(&mut self.listed.in_time_wait_queue, true);
        let again =
            self.state == State::TimeWait && self.timers.keepalive_or_time_wait_ns.is_none();
        if is_new || again {
            self.timers.keepalive_or_time_wait_ns = from_ns(now_ns + quiet_ns);
        }
        is_new
    }
}

/// Sends a segment without a connection, or besides its output.
pub(super) fn send(
    now_ns: u64,
    host: &mut Interface,
    options: TcpOptions,
    addresses: AddrPair,
    repr: &Repr,
) {
    let mut segment = vec![0; repr.header_len()];
    repr.emit(&mut segment, addresses);
    host.send(now_ns, &options.header(addresses), &segment);
}
