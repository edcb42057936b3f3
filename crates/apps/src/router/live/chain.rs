//! A chain of stages between the router and its outside link.
//!
//! ```text
//!  inside link ─► router ─► stages, in order ─► outside link
//!  outside link ─► stages, in reverse ─► router ─► inside link
//!  inside link ─► to the pool: stages, in order, in reverse ─► router     (hairpinning)
//! ```
//!
//! What the router sends by itself on the outside link (ICMP errors, packets
//! that waited for a neighbour) goes through the stages, too. A packet that a
//! stage has made in another version of IP comes back to the router for its way.

use super::chain_cache::{Entries, Fresh};
use super::metering::OutsideMeter;
use super::{LiveRouter, RunError};
use crate::router::engine::{LinkId, Router, Verdict};
use crate::shape::{Output, Shaper};
use std::collections::HashMap;
use std::time::Instant;
use weir_chain::{
    Batch, Bytes, Chain, Direction, Fate, Packet, Routed, Sent, SentFrame, Ticket, Trace, UNROUTED,
};
use weir_link::xdp::ProcessCounter;
use weir_tap::{FlowAction, Frame, Pull, Tap};
use weir_wire::ethernet::{self, Address};
use weir_wire::field::{read_u16, write};
use weir_wire::{EtherType, checksum};

/// Number of frames that stages may hold. A further one is dropped.
const HELD_MAX: usize = 65_536;

/// Takes a line of a stage's log, with the number of the stage.
pub type LogSink = Box<dyn FnMut(usize, &str)>;

/// The stages of a live router.
pub struct Stages {
    /// The stages.
    pub chain: Chain,
    /// The number of the outside link: its index in the configuration.
    pub outside: usize,
    /// The clock of the stages: time 0.
    pub began: Instant,
    /// Gets each line of the stages' logs, with the number of the stage.
    pub log: LogSink,
    /// The queues of each link, if it has a scheduler; by the links' numbers. No entry of the flow
    /// cache sends on such a link: its frames would overtake what waits.
    pub shapers: Vec<Option<Shaper<Frame>>>,
    /// Counts the frames of the outside link, if its meter is of a
    /// [translated stage](weir_link::xdp::Meter::translated_stage).
    pub counter: Option<ProcessCounter>,
}

/// The outcome of one frame.
#[derive(Debug)]
pub(super) enum Decision {
    Gone,
    Held(Ticket),
    /// Its first bytes go out on a link.
    Send {
        link: LinkId,
        len: usize,
    },
    /// Other bytes go out in its place.
    Replaced {
        link: LinkId,
        bytes: Vec<u8>,
    },
}

/// The chain and what it holds.
pub(super) struct LiveChain {
    stages: Stages,
    held: HashMap<Ticket, Frame>,
    verdicts: Vec<Verdict>,
    pub(super) entries: Entries,
    /// Entries to insert, if there is a flow cache.
    fresh: Option<Vec<Fresh>>,
    /// Whether frames for a link go through queues, by the links' numbers.
    has_queues: Vec<bool>,
    /// Frames that were to be held when too many were.
    pub(super) held_full: u64,
    meter: Option<OutsideMeter>,
}

impl LiveChain {
    /// `has_cache` is whether the tap has a flow cache.
    pub(super) fn new(mut stages: Stages, has_cache: bool, output: &Output) -> LiveChain {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        let passed = stages.began.elapsed().as_nanos() as u64;
        let meter = stages.counter.take().map(OutsideMeter::new);
        LiveChain {
            stages,
            meter,
            held: HashMap::new(),
            verdicts: Vec::new(),
            entries: Entries::new(now_ns.saturating_sub(passed)),
            fresh: has_cache.then(Vec::new),
            has_queues: output.has_queues().collect(),
            held_full: 0,
        }
    }

    pub(super) fn chain(&self) -> &Chain {
        &self.stages.chain
    }

    pub(super) fn began(&self) -> Instant {
        self.stages.began
    }

    /// The meter of the outside link.
    pub(super) fn meter(&self) -> Option<&OutsideMeter> {
        self.meter.as_ref()
    }

    /// The meter of the outside link, which is taken out.
    pub(super) fn take_meter(&mut self) -> Option<OutsideMeter> {
        self.meter.take()
    }

    /// Counts frames of the outside that were lost, if none is in hand; see
    /// [`OutsideMeter::settle_lost`].
    pub(super) fn settle_lost(&mut self, now: u64) {
        if let Some(meter) = self.meter.as_mut().filter(|_| self.held.is_empty()) {
            meter.settle_lost(now);
        }
    }

    fn is_outside(&self, link: LinkId) -> bool {
        usize::from(link) == self.stages.outside
    }

    fn outside(&self) -> LinkId {
        self.stages.outside as LinkId
    }

    /// Decides on frames that arrived on a link, in order.
    pub(super) fn decide<F: AsMut<[u8]>>(
        &mut self,
        router: &mut Router,
        now: u64,
        link: LinkId,
        frames: &mut [F],
    ) -> Vec<Decision> {
        let mut decisions = Vec::with_capacity(frames.len());
        if self.is_outside(link) {
            let came = frames.iter_mut().map(|frame| frame.as_mut().len());
            let came = came.filter(|_| self.meter.is_some()).collect();
            let packets = frames.iter_mut().map(|frame| Packet::new(frame.as_mut()));
            let batch = Batch::new(packets.collect());
            self.inward(router, now, batch, came, &mut decisions);
            return decisions;
        }
        let mut rest: Vec<Bytes<'_>> = Vec::with_capacity(frames.len());
        let slices = frames.iter_mut().map(|frame| Bytes::Shared(frame.as_mut()));
        for mut bytes in slices {
            if self.stages.chain.turns(bytes.as_mut()) {
                // In order: earlier frames go first.
                self.leaving(router, now, link, &mut rest, &mut decisions);
                self.turn(router, now, link, Packet::of_bytes(bytes), &mut decisions);
            } else {
                rest.push(bytes);
            }
        }
        self.leaving(router, now, link, &mut rest, &mut decisions);
        decisions
    }

    /// Frames from the inside: the router, then the stages for those that leave.
    fn leaving(
        &mut self,
        router: &mut Router,
        now: u64,
        link: LinkId,
        frames: &mut Vec<Bytes<'_>>,
        decisions: &mut Vec<Decision>,
    ) {
        if frames.is_empty() {
            return;
        }
        let mut verdicts = std::mem::take(&mut self.verdicts);
        router.process(now, link, frames, &mut verdicts);
        let alike = router.cacheable();
        let mut packets = Vec::with_capacity(frames.len());
        let mut places = Vec::with_capacity(frames.len());
        for (number, (bytes, verdict)) in frames.drain(..).zip(&verdicts).enumerate() {
            let decision = match *verdict {
                Verdict::Done => Decision::Gone,
                Verdict::Forward { link, len } if self.is_outside(link) => {
                    let is_alike = alike >> number & 1 == 1;
                    let mut bytes = bytes.truncated(len);
                    let stations = bytes.as_mut().first_chunk().copied();
                    let routed = routed(router, link, stations).filter(|_| is_alike);
                    places.push((decisions.len(), len, routed));
                    packets.push(Packet::of_bytes(bytes));
                    Decision::Gone
                }
                Verdict::Forward { link, len } => Decision::Send { link, len },
            };
            decisions.push(decision);
        }
        self.verdicts = verdicts;
        let mut batch = Batch::new(packets);
        self.stages.chain.run(now, Direction::Outward, &mut batch);
        let outside = self.outside();
        let (station, _) = router.link(link);
        let mut packets = batch.into_packets();
        for (packet, (place, len, routed)) in packets.iter_mut().zip(places) {
            let (bytes, trace) = packet.take_parts();
            if let Some(routed) = routed {
                self.cache(link, station, trace, Direction::Outward, routed);
            }
            let decision = passed(trace, bytes, outside, len);
            decisions[place] = self.with_way(router, now, decision);
        }
    }

    /// Frames from the outside: the stages, then the router. `came` is as in
    /// [`after_stages`](Self::after_stages).
    fn inward(
        &mut self,
        router: &mut Router,
        now: u64,
        mut batch: Batch<'_>,
        came: Vec<usize>,
        decisions: &mut Vec<Decision>,
    ) {
        self.stages.chain.run(now, Direction::Inward, &mut batch);
        self.after_stages(router, now, batch, came, decisions);
    }

    /// The router's part of the way in. `came` has the bytes that each packet had when it came from
    /// the outside link, if that is metered; nothing of packets that stages made.
    fn after_stages(
        &mut self,
        router: &mut Router,
        now: u64,
        batch: Batch<'_>,
        came: Vec<usize>,
        decisions: &mut Vec<Decision>,
    ) {
        let mut passing = Vec::new();
        let mut next_hops = Vec::new();
        let mut places = Vec::new();
        let mut packets = batch.into_packets();
        let mut came = came.into_iter();
        for packet in &mut packets {
            let (mut bytes, trace) = packet.take_parts();
            if let (Some(meter), Some(came)) = (&self.meter, came.next())
                && !matches!(trace.fate(), Fate::Held(_))
            {
                meter.count(bytes.as_mut(), came);
            }
            let decision = match trace.fate() {
                Fate::Pass => {
                    next_hops.push(trace.edits().next_hop);
                    places.push((decisions.len(), trace));
                    passing.push(bytes);
                    Decision::Gone
                }
                Fate::Held(ticket) => Decision::Held(ticket),
                Fate::Drop(_) | Fate::Taken => Decision::Gone,
            };
            decisions.push(decision);
        }
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let outside = self.outside();
        router.process_to(now, outside, &mut passing, &next_hops, &mut verdicts);
        let alike = router.cacheable();
        let (station, _) = router.link(outside);
        let frames = passing.into_iter().zip(&verdicts).zip(places).enumerate();
        for (number, ((mut bytes, verdict), (place, trace))) in frames {
            let Verdict::Forward { link, len } = *verdict else {
                continue;
            };
            let stations = bytes.as_mut().first_chunk().copied();
            let is_plain;
            (decisions[place], is_plain) = if self.is_outside(link) {
                // Back out by the link on which it came.
                self.one_outward(router, now, bytes.truncated(len))
            } else {
                (sent(bytes, link, len), true)
            };
            if is_plain
                && alike >> number & 1 == 1
                && let Some(routed) = routed(router, link, stations)
            {
                self.cache(outside, station, trace, Direction::Inward, routed);
            }
        }
        self.verdicts = verdicts;
    }

    /// Notes the entry of a packet that stages and router have decided on, if it
    /// has one. The packet came to `station` on `link`.
    fn cache(
        &mut self,
        link: LinkId,
        station: Address,
        trace: &mut Trace,
        direction: Direction,
        routed: Routed,
    ) {
        let Some(fresh) = &mut self.fresh else {
            return;
        };
        if !trace.is_cacheable() {
            return;
        }
        trace.record_route(direction, routed);
        let output = trace.edits().output.map(usize::from);
        let waits = output.and_then(|link| self.has_queues.get(link));
        if trace.fate() == Fate::Pass && waits == Some(&true) {
            // What the kernel sent would overtake the frames in the queues.
            return;
        }
        if let Some(composed) = self.stages.chain.compose(trace, direction) {
            fresh.extend(Fresh::of(link, station, composed));
        }
    }

    /// Informs the stages of an entry's use; returns whether it still holds.
    pub(super) fn holds(
        &mut self,
        router: &mut Router,
        now: u64,
        slot: u32,
        entry: (&FlowAction, u64),
    ) -> bool {
        self.entries
            .holds(&mut self.stages.chain, router, now, slot, entry)
    }

    /// Inserts the new entries, and ends those that a stage withdraws.
    fn update_cache(&mut self, tap: &mut Tap) {
        let fast = tap.flow_cache();
        let Some((fast, fresh)) = fast.zip(self.fresh.as_mut()) else {
            while self.stages.chain.withdrawn().is_some() {}
            return;
        };
        self.entries.insert(fast, fresh.drain(..));
        while let Some((stage, cookie)) = self.stages.chain.withdrawn() {
            self.entries.withdraw(fast, stage, cookie);
        }
    }

    /// One packet that leaves, through all stages; and whether they leave each one of its flow as it
    /// is, so that the entry of its way in holds.
    fn one_outward(&mut self, router: &mut Router, now: u64, bytes: Bytes<'_>) -> (Decision, bool) {
        let mut batch = Batch::new(vec![Packet::of_bytes(bytes)]);
        self.stages.chain.run(now, Direction::Outward, &mut batch);
        let (bytes, trace) = batch.into_packets().remove(0).finish();
        let composed = self.stages.chain.compose(&trace, Direction::Outward);
        let is_plain = composed.is_some_and(|composed| composed.is_plain());
        let len = bytes.len();
        let decision = passed(&trace, bytes, self.outside(), len);
        (self.with_way(router, now, decision), is_plain)
    }

    /// The decision on a packet that went out through all stages, with the way of one that a stage has
    /// made in another version of IP: the router finds it, and takes no hop for itself, as it has done
    /// so before. Only the outside is one.
    fn with_way(&mut self, router: &mut Router, now: u64, decision: Decision) -> Decision {
        let mut bytes = match decision {
            Decision::Replaced { bytes, .. } if bytes.starts_with(&UNROUTED) => bytes,
            other => return other,
        };
        give_hop(&mut bytes);
        match self.by_router(router, now, bytes) {
            Some((link, bytes)) if self.is_outside(link) => Decision::Replaced { link, bytes },
            Some((link, bytes)) => {
                router.tx_dropped(link, 1, bytes.len() as u64);
                Decision::Gone
            }
            None => Decision::Gone,
        }
    }

    /// A packet from the inside to an address that the stages translate: out,
    /// and in again.
    fn turn(
        &mut self,
        router: &mut Router,
        now: u64,
        link: LinkId,
        packet: Packet<'_>,
        decisions: &mut Vec<Decision>,
    ) {
        let mut batch = Batch::new(vec![packet]);
        self.stages.chain.run(now, Direction::Outward, &mut batch);
        let (bytes, trace) = batch.into_packets().remove(0).finish();
        if trace.fate() != Fate::Pass {
            decisions.push(passed(&trace, bytes, link, 0));
            return;
        }
        let mut batch = Batch::new(vec![Packet::of_bytes(bytes)]);
        self.stages.chain.run(now, Direction::Inward, &mut batch);
        let (bytes, trace) = batch.into_packets().remove(0).finish();
        if trace.fate() != Fate::Pass {
            decisions.push(passed(&trace, bytes, link, 0));
            return;
        }
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let mut frames = [bytes];
        let next_hops = [trace.edits().next_hop];
        router.set_turned(true);
        router.process_to(now, link, &mut frames, &next_hops, &mut verdicts);
        router.set_turned(false);
        let [bytes] = frames;
        decisions.push(match verdicts.first() {
            Some(&Verdict::Forward { link, len }) if !self.is_outside(link) => {
                sent(bytes, link, len)
            }
            _ => Decision::Gone,
        });
        self.verdicts = verdicts;
    }

    /// A frame of the router's own; `None` if the stages keep it.
    pub(super) fn of_router(
        &mut self,
        router: &mut Router,
        now: u64,
        link: LinkId,
        frame: Vec<u8>,
    ) -> Option<Vec<u8>> {
        if !self.is_outside(link) {
            return Some(frame);
        }
        match self.one_outward(router, now, Bytes::Own(frame)).0 {
            Decision::Replaced { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Keeps a frame for the stage that holds it.
    pub(super) fn hold(&mut self, ticket: Ticket, frame: Frame) {
        if self.held.len() < HELD_MAX {
            self.held.insert(ticket, frame);
        } else {
            self.held_full += 1;
        }
    }

    /// Has the stages do what is due, and passes on what they send: calls `send`
    /// with frames for links.
    pub(super) fn poll(
        &mut self,
        router: &mut Router,
        now: u64,
        mut send: impl FnMut(LinkId, Out),
    ) {
        if self
            .stages
            .chain
            .next_deadline()
            .is_some_and(|due| due <= now)
        {
            self.stages.chain.poll(now);
        }
        for mut from in self.stages.chain.take_sent() {
            self.resume(router, now, &mut from, &mut send);
        }
        while let Some((stage, line)) = self.stages.chain.next_line() {
            (self.stages.log)(stage, &line);
        }
    }

    /// The router sends a frame that a stage made; if it has to resolve a
    /// neighbour first, the frame comes again by [`of_router`](Self::of_router).
    fn route(
        &mut self,
        router: &mut Router,
        now: u64,
        bytes: Vec<u8>,
        send: &mut impl FnMut(LinkId, Out),
    ) {
        if let Some((link, bytes)) = self.by_router(router, now, bytes) {
            send(link, Out::Made(bytes));
        }
    }

    /// The link of a packet by its destination, and the frame there; `None` if the router does not send
    /// it now.
    fn by_router(
        &mut self,
        router: &mut Router,
        now: u64,
        mut bytes: Vec<u8>,
    ) -> Option<(LinkId, Vec<u8>)> {
        let outside = self.outside();
        if let Some(station) = bytes.first_chunk_mut() {
            *station = router.link(outside).0.0;
        }
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let mut frames = [bytes];
        // It comes from an address of the router's.
        router.set_turned(true);
        router.process(now, outside, &mut frames, &mut verdicts);
        router.set_turned(false);
        let [mut bytes] = frames;
        let sent = match verdicts.first() {
            Some(&Verdict::Forward { link, len }) => {
                bytes.truncate(len);
                Some((link, bytes))
            }
            _ => None,
        };
        self.verdicts = verdicts;
        sent
    }

    /// The stages and the router behind the stage that sent or released a frame.
    fn resume(
        &mut self,
        router: &mut Router,
        now: u64,
        from: &mut Sent,
        send: &mut impl FnMut(LinkId, Out),
    ) {
        let (mut frame, made) = match &mut from.frame {
            SentFrame::Made(bytes) => {
                let mut bytes = std::mem::take(bytes);
                if from.direction == Direction::Inward
                    && let Some(station) = bytes.first_chunk_mut()
                {
                    *station = router.link(self.outside()).0.0;
                }
                (None, bytes)
            }
            SentFrame::Routed(bytes) => {
                return self.route(router, now, std::mem::take(bytes), send);
            }
            SentFrame::Released(ticket) => match self.held.remove(ticket) {
                Some(frame) => (Some(frame), Vec::new()),
                None => return,
            },
            SentFrame::Dropped(ticket, _) => {
                let dropped = self.held.remove(ticket);
                if let (Direction::Inward, Some(meter), Some(mut frame)) =
                    (from.direction, &self.meter, dropped)
                {
                    let came = frame.len();
                    meter.count(frame.as_mut(), came);
                }
                return;
            }
        };
        let came = match &frame {
            Some(frame) => vec![frame.len()],
            None => Vec::new(),
        };
        let bytes = match &mut frame {
            Some(frame) => Bytes::Shared(frame.as_mut()),
            None => Bytes::Own(made),
        };
        let is_made = matches!(bytes, Bytes::Own(_));
        let mut batch = Batch::new(vec![Packet::of_bytes(bytes)]);
        self.stages.chain.resume(now, from, &mut batch);
        let mut decisions = Vec::with_capacity(1);
        match from.direction {
            Direction::Outward => {
                let (bytes, trace) = batch.into_packets().remove(0).finish();
                let len = bytes.len();
                let decision = passed(&trace, bytes, self.outside(), len);
                decisions.push(self.with_way(router, now, decision));
            }
            Direction::Inward => {
                // What a stage made may come from an address of the router's.
                router.set_turned(is_made);
                self.after_stages(router, now, batch, came, &mut decisions);
                router.set_turned(false);
            }
        }
        match (decisions.pop(), frame) {
            (Some(Decision::Replaced { link, bytes }), _) => send(link, Out::Made(bytes)),
            (Some(Decision::Send { link, len }), Some(mut frame)) => {
                frame.set_len(len);
                send(link, Out::Frame(frame));
            }
            (Some(Decision::Held(ticket)), Some(frame)) => self.hold(ticket, frame),
            _ => {}
        }
    }
}

/// A frame to send.
pub(super) enum Out {
    Frame(Frame),
    Made(Vec<u8>),
}

/// The way of a packet whose frame has these first 12 bytes, as the router left
/// them.
fn routed(router: &Router, link: LinkId, stations: Option<[u8; 12]>) -> Option<Routed> {
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = stations?;
    Some(Routed {
        link,
        src: Address([s0, s1, s2, s3, s4, s5]),
        dst: Address([d0, d1, d2, d3, d4, d5]),
        mtu: u32::try_from(router.link(link).1).unwrap_or(u32::MAX),
    })
}

/// Gives a packet of IPv4 one more hop.
fn give_hop(frame: &mut [u8]) {
    let at = ethernet::Repr::LEN;
    let is_v4 = frame.len() >= at + 20 && read_u16(frame, at - 2) == EtherType::IPV4.0;
    if !is_v4 || frame[at + 8] == u8::MAX {
        return;
    }
    let old = read_u16(frame, at + 8);
    frame[at + 8] += 1;
    let sum = checksum::update(read_u16(frame, at + 10), old, read_u16(frame, at + 8));
    write(frame, at + 10, &sum.to_be_bytes());
}

/// The decision on a packet that went out through all stages.
fn passed(trace: &Trace, bytes: Bytes<'_>, link: LinkId, len: usize) -> Decision {
    match trace.fate() {
        Fate::Pass => {
            let link = trace.edits().output.unwrap_or(link);
            match bytes {
                Bytes::Own(bytes) => Decision::Replaced { link, bytes },
                Bytes::Shared(_) => Decision::Send { link, len },
            }
        }
        Fate::Held(ticket) => Decision::Held(ticket),
        Fate::Drop(_) | Fate::Taken => Decision::Gone,
    }
}

/// The decision on a packet that the router sends.
fn sent(bytes: Bytes<'_>, link: LinkId, len: usize) -> Decision {
    match bytes.truncated(len) {
        Bytes::Own(bytes) => Decision::Replaced { link, bytes },
        Bytes::Shared(_) => Decision::Send { link, len },
    }
}

impl LiveRouter {
    /// Processes frames of one fragment each, through router and stages.
    pub(super) fn forward_chained(
        &mut self,
        tap: &mut Tap,
        link: usize,
        now: u64,
        held: &mut Vec<Frame>,
    ) -> Result<(), RunError> {
        let Some(stages) = &mut self.stages else {
            return Ok(());
        };
        let decisions = stages.decide(&mut self.router, now, link as LinkId, held);
        for (frame, decision) in held.drain(..).zip(decisions) {
            self.carry_out(tap, now, frame, decision, None)?;
        }
        self.poll_stages(tap, now)
    }

    /// Sends a frame, or what takes its place. `bytes` are the frame's, if they
    /// are not in it.
    pub(super) fn carry_out(
        &mut self,
        tap: &mut Tap,
        now: u64,
        mut frame: Frame,
        decision: Decision,
        bytes: Option<&[u8]>,
    ) -> Result<(), RunError> {
        let (link, len, is_set) = match decision {
            Decision::Gone => return Ok(()),
            Decision::Held(ticket) => {
                if let Some(stages) = &mut self.stages {
                    stages.hold(ticket, frame);
                }
                return Ok(());
            }
            Decision::Send { link, len } => {
                let is_set = match bytes {
                    Some(bytes) => frame.set(&bytes[..len]),
                    None => {
                        frame.set_len(len);
                        true
                    }
                };
                (link, len, is_set)
            }
            Decision::Replaced { link, bytes } => (link, bytes.len(), frame.set(&bytes)),
        };
        if usize::from(link) >= self.links.len() {
            return Ok(());
        }
        if !is_set || !self.output.give(tap, &self.links, link, frame, now)? {
            self.router.tx_dropped(link, 1, len as u64);
        }
        Ok(())
    }

    /// Has the stages do what is due, and sends what they send.
    pub(super) fn poll_stages(&mut self, tap: &mut Tap, now: u64) -> Result<(), RunError> {
        let Some(stages) = &mut self.stages else {
            return Ok(());
        };
        let mut outs = Vec::new();
        stages.poll(&mut self.router, now, |link, out| outs.push((link, out)));
        stages.update_cache(tap);
        for (link, out) in outs {
            match out {
                Out::Made(bytes) => {
                    self.send_made(tap, link, &bytes)?;
                    if let Some(stages) = &mut self.stages {
                        stages.stages.chain.recycle(bytes);
                    }
                }
                Out::Frame(frame) => {
                    let len = frame.len();
                    self.carry_out(tap, now, frame, Decision::Send { link, len }, None)?;
                }
            }
        }
        Ok(())
    }

    /// Sends a frame that was made here. A frame that a link does not accept is
    /// dropped, so that other links do not wait.
    pub(super) fn send_made(
        &mut self,
        tap: &mut Tap,
        link: LinkId,
        bytes: &[u8],
    ) -> Result<(), RunError> {
        let mut room = tap.alloc();
        if room.is_none() {
            tap.push()?;
            tap.pull(Pull::Chunks(1))?;
            room = tap.alloc();
        }
        let filled = room.as_mut().is_some_and(|frame| frame.set(bytes));
        let now = self.now_ns();
        let is_link = usize::from(link) < self.links.len();
        let sent = match room {
            Some(frame) if filled && is_link => {
                self.output.give(tap, &self.links, link, frame, now)?
            }
            _ => false,
        };
        if !sent {
            self.router.tx_dropped(link, 1, bytes.len() as u64);
        }
        Ok(())
    }
}
