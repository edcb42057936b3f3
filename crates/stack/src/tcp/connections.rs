//! All connections of a stack: segments find theirs, deadlines come due,
//! connections with something to send take turns.

use super::buffer::receive_buffer::Left;
use super::buffer::send_buffer::STARVED_PART;
use super::input::train::Train;
use super::input::{Arrived, Effect};
use super::listen::bind::Mates;
use super::listen::fastopen::Cookies;
use super::listen::handshake::{Listener, Secret};
use super::output::Turn;
use super::pcb::{Pcb, State};
use super::pcb_cache::Parts;
use super::seq::Seq;
use super::time_wait::limit::Quiet;
use super::time_wait::minisock::Waiting;
use super::timer_heap::Deadlines;
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

/// Connections of one stack, those in TIME-WAIT included.
pub const CONNECTIONS_MAX: usize = 1 << 21;
/// Twice a segment's longest life (RFC 9293 §3.4.2, as short as others make
/// it), in nanoseconds.
pub(super) const TIME_WAIT_NS: u64 = 60_000_000_000;
/// How long a connection without an application waits for the peer's FIN.
const FIN_WAIT_2_NS: u64 = 60_000_000_000;

/// What part of the memory bytes out of order leave to others.
const RESERVE_PART: usize = 4;

/// Bytes that go out before the caller has another look at what came: more
/// would push what is next out of the caches, and let acknowledgments wait.
const POLL_BYTES: usize = 128 << 10;

/// See the module.
pub(crate) struct Tcp {
    pub(crate) config: TcpConfig,
    pub(super) secret: Secret,
    pub(super) pcbs: Slab<Box<Pcb>>,
    pub(super) table: Weir,
    pub(super) listeners: Slab<Listener>,
    pub(super) listening: Listeners,
    pub(super) mates: Mates,
    pub(super) deadlines: Deadlines,
    /// Those with something to send, by link: their names as numbers, which come
    /// out again as they went in, in one piece.
    ready: Vec<VecDeque<u64>>,
    /// Those with something to tell the application.
    pub(super) told: VecDeque<Handle>,
    pub(super) told_listeners: VecDeque<Handle>,
    pub(super) cookies: Cookies,
    /// Connections of listeners that are not open yet.
    pub(super) half_open: usize,
    /// Those that only wait for their time to end.
    pub(super) quiet: Quiet,
    /// Of those, what is left of the ones in TIME-WAIT.
    pub(super) waiting: Waiting,
    /// Of those that are over.
    pub(super) parts: Parts,
    /// Bytes of storage that all buffers may have, and have.
    pub(super) memory: usize,
    pub(crate) held: usize,
    /// Those that cannot write for want of memory, by how much they need.
    pub(super) starved: BTreeSet<(u32, Handle)>,
    /// Whose segment came last, or who began since.
    pub(super) latest: Option<Handle>,
    /// What the next segment is like, if it follows the one before.
    pub(super) train: Option<Train>,
    pub(super) rng: PrfRng,
    /// Which of several stacks of one host this is.
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
            mates: Mates::new(),
            deadlines: Deadlines::default(),
            ready: vec![VecDeque::new(); links],
            told: VecDeque::new(),
            told_listeners: VecDeque::new(),
            cookies: Cookies::default(),
            half_open: 0,
            quiet: Quiet::default(),
            waiting: Waiting::default(),
            parts: Parts::default(),
            memory: super::MEMORY_DEFAULT,
            held: 0,
            starved: BTreeSet::new(),
            latest: None,
            train: None,
            rng,
            shard: None,
        }
    }

    pub(crate) fn set_chunk_source(&mut self, supply: &ChunkSource) {
        self.table.set_chunk_source(supply);
    }

    /// Connections that are not open yet, and that nobody here opened.
    pub(crate) fn half_open(&self) -> usize {
        self.half_open
    }

    /// Connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.pcbs.len() + self.waiting.len()
    }

    /// Takes a segment from the network.
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
        let seems = incoming.connection.or(self.latest);
        let known = match seems.filter(|name| self.is_between(*name, local, remote)) {
            None => self.woken(now_ns, host, (local, remote))?,
            known => known,
        };
        let repr = Repr::parse(&segment);
        let arrived = Arrived {
            repr: &repr,
            seq: Seq(segment.seq()),
            payload: segment.payload(),
            marked: incoming.traffic_class & 3 == 3,
        };
        if let Some(name) = known {
            let left = self.left();
            let pcb = self
                .pcbs
                .get_mut(name)
                .expect("what is in the table is there");
            if pcb.link != incoming.link {
                self.settle(now_ns, name);
                return Err(DropReason::OtherLink);
            }
            let early = pcb.opening.as_ref().and_then(|opening| opening.listener);
            let asks = pcb.state == State::SynSent;
            let asked = if asks { pcb.opening.clone() } else { None };
            let retried = pcb.recovery.retries > 0;
            let challenged = pcb.challenged_ns;
            pcb.receive.set_memory(left);
            let effect = pcb.arrives(now_ns, &arrived);
            pcb.arm();
            if let Some(asked) = asked.filter(|_| effect == Effect::Opened) {
                self.cookies.learn(remote.ip(), &asked, &arrived, retried);
            }
            self.latest = Some(name);
            host.counters.segments_standard += 1;
            host.counters.challenges += u64::from(pcb.challenged_ns != challenged);
            match effect {
                Effect::Nothing => self.settle(now_ns, name),
                Effect::Unexpected => {
                    self.settle(now_ns, name);
                    return Err(DropReason::SegmentUnexpected);
                }
                Effect::Opened => {
                    match early.and_then(|name| self.listeners.get_mut(name)) {
                        Some(listener) => listener.fast_pending -= 1,
                        None if early.is_some() => {}
                        None => self.opened(now_ns, host, name),
                    }
                    self.settle(now_ns, name);
                }
                Effect::Refuse => {
                    self.settle(now_ns, name);
                    self.refuse(now_ns, host, incoming, &arrived);
                }
                Effect::Reopen => {
                    self.pcbs.get_mut(name).expect("it was there").end(None);
                    self.settle(now_ns, name);
                    return self.arrives_at_listener(now_ns, host, incoming, &ends, &arrived);
                }
            }
            return Ok(());
        }
        self.arrives_at_listener(now_ns, host, incoming, &ends, &arrived)
    }

    /// Enters a connection that is not there.
    pub(super) fn enter(&mut self, now_ns: u64, pcb: Box<Pcb>) -> Handle {
        let key = Key::new(pcb.local, pcb.remote).expect("made of one version");
        let name = self.pcbs.insert(pcb);
        let entered = self.table.insert(key, PcbId(name.index));
        assert!(entered.is_ok(), "looked up before");
        self.latest = Some(name);
        self.settle(now_ns, name);
        name
    }

    pub(crate) fn limit_memory(&mut self, bytes: usize) {
        self.memory = bytes;
        self.train = None;
        self.feed();
    }

    /// The memory that is left.
    #[inline]
    pub(super) fn left(&self) -> Left {
        let bytes = self.memory.saturating_sub(self.held);
        let ahead = bytes.saturating_sub(self.memory / RESERVE_PART);
        Left { bytes, ahead }
    }

    /// Counts the storage of a connection's buffers; those that waited for
    /// memory are told when there is some again.
    pub(super) fn account(&mut self, name: Handle) {
        if let Some(pcb) = self.pcbs.get_mut(name)
            && pcb.account(&mut self.held)
        {
            self.feed();
        }
    }

    /// Tells those that waited for memory, if there is some again: each only
    /// when what it needs is there, so that nobody is told in vain again and
    /// again.
    pub(super) fn feed(&mut self) {
        let left = self.left().bytes;
        if left < self.memory / STARVED_PART {
            return;
        }
        while let Some((need, name)) = self.starved.first().copied()
            && need as usize <= left
        {
            self.starved.pop_first();
            if let Some(pcb) = self.pcbs.get_mut(name) {
                pcb.starved_of = 0;
                if !std::mem::replace(&mut pcb.is_told, true) {
                    self.told.push_back(name);
                }
            }
        }
    }

    /// After anything happened to a connection: its memory, its deadline, its
    /// turn to send, what there is to tell, and its end.
    pub(super) fn settle(&mut self, now_ns: u64, name: Handle) {
        let Some(pcb) = self.pcbs.get_mut(name).map(Box::as_mut) else {
            return;
        };
        if pcb.is_ending() {
            return self.settle_ending(now_ns, name);
        }
        let fed = pcb.account(&mut self.held);
        if pcb.timers.release_ns.is_none() && pcb.holds_memory() {
            pcb.release(now_ns);
        }
        pcb.come_up(name, &mut self.deadlines, &mut self.ready, &mut self.told);
        if fed {
            self.feed();
        }
    }

    /// [`Tcp::settle`] of one that is over, or has only to wait.
    #[inline(never)]
    fn settle_ending(&mut self, now_ns: u64, name: Handle) {
        let Some(pcb) = self.pcbs.get_mut(name).map(Box::as_mut) else {
            return;
        };
        let fed = pcb.account(&mut self.held);
        let is_over = pcb.state == State::Closed;
        let quietens = pcb.quieten(now_ns);
        if pcb.timers.release_ns.is_none() && !is_over && pcb.holds_memory() {
            pcb.release(now_ns);
        }
        pcb.come_up(name, &mut self.deadlines, &mut self.ready, &mut self.told);
        let may_shrink = pcb.may_shrink();
        if is_over {
            self.over(name);
        }
        if quietens {
            self.waits(now_ns, name);
        }
        if may_shrink {
            self.shrink(name);
        }
        if fed {
            self.feed();
        }
    }

    /// Has the next poll look at a connection's timers.
    pub(super) fn due_now(&mut self, name: Handle) {
        if let Some(pcb) = self.pcbs.get_mut(name)
            && pcb.is_known
        {
            pcb.due_ns = 0;
            self.deadlines.set(name.index, 0);
        }
    }

    pub(super) fn make_ready(&mut self, link: u8, name: Handle) {
        self.ready[usize::from(link)].push_back(name.bits());
    }

    /// A connection is over: another may have its ends, and without an
    /// application it is gone.
    #[inline(never)]
    fn over(&mut self, name: Handle) {
        let Some(pcb) = self.pcbs.get_mut(name) else {
            return;
        };
        if std::mem::take(&mut pcb.is_known) {
            let key = Key::new(pcb.local, pcb.remote).expect("made of one version");
            self.table.remove(&key);
            self.deadlines.remove(name.index);
            let early = pcb.opening.take().and_then(|opening| opening.listener);
            if let Some(listener) = early.and_then(|name| self.listeners.get_mut(name)) {
                listener.fast_pending -= 1;
            }
            // One that was not accepted has no application.
            pcb.released |= pcb.listener.is_some();
            if pcb.is_quiet {
                self.quiet.over();
            }
            let was_half_open = std::mem::take(&mut pcb.is_half_open);
            self.half_open -= usize::from(was_half_open);
            if let Some(listener) = pcb.listener.and_then(|name| self.listeners.get_mut(name)) {
                if was_half_open {
                    listener.half_open -= 1;
                } else if pcb.receive.readable() > 0 {
                    // What the peer has said is still there to be accepted.
                    pcb.released = false;
                } else {
                    listener.opened.retain(|opened| opened.0 != name);
                }
            }
        }
        if pcb.released {
            self.drop_pcb(name);
        }
    }

    /// A PCB is gone, and no name leads to it any more.
    pub(super) fn drop_pcb(&mut self, name: Handle) {
        if let Some(pcb) = self.pcbs.remove(name) {
            self.held -= pcb.held as usize;
            if pcb.starved_of > 0 {
                self.starved.remove(&(pcb.starved_of, name));
            }
            self.parts.keep(pcb);
        }
        self.feed();
        // Those that are gone have nothing to tell.
        if self.told.len() > 2 * self.pcbs.len() + 64 {
            let pcbs = &self.pcbs;
            self.told.retain(|name| pcbs.get(*name).is_some());
        }
    }

    /// Does what is due, and lets connections send in turns; gives the next
    /// deadline, `u64::MAX` if there is none.
    #[inline]
    pub(crate) fn poll<O: TxSinks + ?Sized>(
        &mut self,
        now_ns: u64,
        hosts: &mut Interfaces,
        outs: &mut O,
    ) -> u64 {
        if self.deadlines.next_ns() <= now_ns {
            self.strike(now_ns, hosts);
        }
        if self.waiting.next_ns() <= now_ns {
            self.end_waits(now_ns);
        }
        let mut more = false;
        for link in 0..self.ready.len() {
            if self.ready[link].is_empty() {
                continue;
            }
            let host = hosts.at_mut(link as u8);
            more |= self.take_turns(now_ns, host, outs.sink(host.link));
        }
        match more {
            false => self.deadlines.next_ns().min(self.waiting.next_ns()),
            true => now_ns,
        }
    }

    /// Does what is due.
    fn strike(&mut self, now_ns: u64, hosts: &mut Interfaces) {
        while let Some(index) = self.deadlines.pop(now_ns) {
            if let Some(name) = self.pcbs.at(index) {
                let pcb = self.pcbs.get_mut(name).expect("it is at its place");
                pcb.due_ns = u64::MAX;
                let host = hosts.at_mut(pcb.link);
                match pcb.timeout(now_ns) {
                    true => self.abort(now_ns, host, name, Some(TcpError::TimedOut)),
                    false => self.settle(now_ns, name),
                }
            }
        }
    }

    /// Lets the connections of a link send; whether it stopped at so many bytes.
    fn take_turns(&mut self, now_ns: u64, host: &mut Interface, out: &mut dyn TxSink) -> bool {
        let link = usize::from(host.link);
        let mut sent = 0;
        while sent < POLL_BYTES
            && let Some(bits) = self.ready[link].pop_front()
        {
            let name = Handle::from_bits(bits);
            let Some(pcb) = self.pcbs.get_mut(name).map(Box::as_mut) else {
                continue;
            };
            match pcb.output(now_ns, host, out, &mut sent) {
                Turn::Done => pcb.is_ready = false,
                Turn::More => self.ready[link].push_back(bits),
                Turn::Full => {
                    self.ready[link].push_front(bits);
                    break;
                }
            }
            if pcb.send.has_sent_enough() && !std::mem::replace(&mut pcb.is_told, true) {
                self.told.push_back(name);
            }
            pcb.be_due(name, &mut self.deadlines);
            if pcb.may_shrink() {
                self.shrink(name);
            }
        }
        sent >= POLL_BYTES
    }

    /// Answers a segment that nobody wanted (RFC 9293 §3.10.7.1).
    pub(super) fn refuse(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        incoming: &Incoming<'_>,
        arrived: &Arrived<'_>,
    ) {
        if arrived.has(Flags::RST) {
            return;
        }
        let (seq, ack, flags) = match arrived.has(Flags::ACK) {
            true => (arrived.repr.ack, 0, Flags::RST),
            false => (
                0,
                arrived.seq.plus(arrived.len()).0,
                Flags::RST | Flags::ACK,
            ),
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

    /// Ends a connection at once, and tells the peer.
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
                src_port: pcb.local.port(),
                dst_port: pcb.remote.port(),
                seq: pcb.send.nxt.0,
                ack: pcb.receive.nxt.0,
                flags: Flags::RST | Flags::ACK,
                window: 0,
                urgent: 0,
                // RFC 7323 §3.2: a RST has them too.
                options: Options {
                    timestamps: pcb.timestamps.map(|ours| (pcb.clock(now_ns), ours.recent)),
                    ..Options::default()
                },
            };
            send(now_ns, host, pcb.options, pcb.addresses(), &repr);
        }
        pcb.end(error);
        self.settle(now_ns, name);
    }

    /// Whether there is a connection between these ends.
    pub(super) fn is_taken(&mut self, local: SocketAddr, remote: SocketAddr) -> bool {
        Key::new(local, remote).is_some_and(|key| self.table.find(&key).is_some())
    }

    /// The connection between these ends; one of which a record is left is made a
    /// PCB again. If the table takes others for them, there can be none.
    fn woken(
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
        let name = name.or_else(|| self.revive(now_ns, host, &key, id));
        match name.filter(|name| self.is_between(*name, local, remote)) {
            None => Err(DropReason::SegmentUnexpected),
            name => Ok(name),
        }
    }

    /// The connection between these ends, if it has a PCB.
    pub(super) fn between(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<Handle> {
        let pcb = self.table.find(&Key::new(local, remote)?)?;
        let name = self.pcbs.at(pcb.0);
        name.filter(|name| self.is_between(*name, &local, &remote))
    }

    /// Whether a connection is the one between these ends.
    pub(super) fn is_between(&self, name: Handle, local: &SocketAddr, remote: &SocketAddr) -> bool {
        let pcb = self.pcbs.get(name).filter(|pcb| pcb.is_known);
        pcb.is_some_and(|pcb| pcb.local == *local && pcb.remote == *remote)
    }
}

impl Pcb {
    /// Whether it is over, or has only to wait.
    #[inline]
    fn is_ending(&self) -> bool {
        matches!(
            self.state,
            State::FinWait2 | State::TimeWait | State::Closed
        )
    }

    /// Sees to it that it comes up when something is due, to be sent, or to be told.
    #[inline(always)]
    fn come_up(
        &mut self,
        name: Handle,
        deadlines: &mut Deadlines,
        ready: &mut [VecDeque<u64>],
        told: &mut VecDeque<Handle>,
    ) {
        self.be_due(name, deadlines);
        if !self.is_ready && self.wants_turn() {
            self.is_ready = true;
            ready[usize::from(self.link)].push_back(name.bits());
        }
        let untold = self.listener.is_none() && !self.released;
        if untold && !std::mem::replace(&mut self.is_told, true) {
            told.push_back(name);
        }
    }

    /// Sees to it that it comes up when the first of its timers is due.
    #[inline]
    fn be_due(&mut self, name: Handle, deadlines: &mut Deadlines) {
        let at_ns = self.timers.next_ns();
        if at_ns < self.due_ns {
            self.due_ns = at_ns;
            deadlines.set(name.index, at_ns);
        }
    }

    /// Counts the storage of its buffers among that of all; whether it is another
    /// than before.
    fn account(&mut self, held: &mut usize) -> bool {
        let holds = self.send.capacity() + self.receive.capacity();
        let before = self.held as usize;
        if holds != before {
            *held = *held - before + holds;
            self.held = holds as u32;
        }
        holds != before
    }

    /// Nothing but time is left to wait for: it starts to run, or does again;
    /// whether that is new.
    fn quieten(&mut self, now_ns: u64) -> bool {
        let quiet_ns = match self.state {
            State::TimeWait => TIME_WAIT_NS,
            State::FinWait2 if self.released => FIN_WAIT_2_NS,
            _ => return false,
        };
        let is_new = !std::mem::replace(&mut self.is_quiet, true);
        let again = self.state == State::TimeWait && self.timers.idle_ns.is_none();
        if is_new || again {
            self.timers.idle_ns = from_ns(now_ns + quiet_ns);
        }
        is_new
    }
}

/// Sends a segment without a connection, or beside it.
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
