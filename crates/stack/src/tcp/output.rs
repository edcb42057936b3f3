//! Segments go out (RFC 9293 §3.8, §3.10.8).

use super::info::count;
use super::input::DELAYED_ACK_NS;
use super::pcb::{Pcb, State};
use super::send::{Ready, Send};
use super::seq::Seq;
use crate::host::{Gso, Header, Host, Offload, Partial, Way};
use crate::stack::Outlet;
use std::net::SocketAddr;
use weir_wire::Protocol;
use weir_wire::tcp::{Flags, Options, Repr};

/// Segments that one connection sends before the next one's turn.
const TURN: usize = 16;
/// Bytes of payload in a segment that the link cuts: with all headers no more
/// than an IP packet's length can say.
const BURST_MAX: usize = 65_535 - 60 - 60;
/// The code point of data that may be marked (RFC 3168 §5: ECT(0)).
const MARKABLE: u8 = 2;

/// What came of a connection's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// It has sent all that it may now.
    Done,
    /// It has more to send.
    More,
    /// The link takes no more.
    Full,
}

/// A segment to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Bytes, or a SYN or FIN, that were not sent before.
    New(Seq, Seq),
    /// What may be lost.
    Again(Seq, Seq),
    /// Nothing but an acknowledgment.
    Ack,
    /// An old number, which the peer answers with its window.
    Probe,
}

/// One that is to be written.
struct Outgoing {
    start: Seq,
    payload_len: usize,
    header: Header,
    repr: Repr,
}

impl Outgoing {
    /// Writes it to the link, which cuts it into segments of `most` bytes if
    /// it is longer; false if the link takes no more.
    fn emit(
        &self,
        way: &Way,
        send: &Send,
        host: &mut Host,
        out: &mut dyn Outlet,
        most: usize,
    ) -> bool {
        let header_len = self.repr.header_len();
        let len = header_len + self.payload_len;
        let Some(frame) = out.reserve(way.len() + len) else {
            return false;
        };
        let (head, segment) = frame.split_at_mut(way.len());
        let (header, payload) = segment.split_at_mut(header_len);
        way.write(head, self.header.traffic_class, len);
        if host.offload.checksum {
            send.payload(self.start, payload);
            self.repr.emit_partial(header, way.pseudo(len));
            let gso = (self.payload_len > most).then(|| Gso {
                size: most as u16,
                header_len: (way.len() + header_len) as u16,
                v6: way.is_v6(),
            });
            out.submit_partial(Partial {
                checksum_start: way.len() as u16,
                checksum_offset: Repr::CHECKSUM_AT,
                gso,
            });
        } else {
            let sum = send.payload_summed(self.start, payload);
            self.repr.emit_summed(header, way.pseudo(len).and(sum));
            out.submit();
        }
        host.counters.frames_out += 1;
        true
    }

    /// Lets it wait for the next hop's address.
    fn hold(&self, now_ns: u64, send: &Send, host: &mut Host) {
        let header_len = self.repr.header_len();
        let len = header_len + self.payload_len;
        host.hold(now_ns, &self.header, len, |segment| {
            send.payload(self.start, &mut segment[header_len..]);
            self.repr.emit(segment, self.header.addresses);
        });
    }
}

impl Pcb {
    /// Sends what may be sent now; `sent` counts the bytes.
    pub(super) fn output(
        &mut self,
        now_ns: u64,
        host: &mut Host,
        out: &mut dyn Outlet,
        sent: &mut usize,
    ) -> Turn {
        if self.state == State::Closed {
            return Turn::Done;
        }
        if let Some(arrives) = self.advice.take() {
            host.advise(now_ns, self.remote.ip(), arrives);
        }
        let room = self.set_path(host.path_mtu(now_ns, self.remote.ip()));
        self.restart_after_idle(now_ns);
        let mut way = None;
        let mut turn = Turn::More;
        for _ in 0..TURN {
            let is_syn = self.next_is_syn();
            let options = self.options(now_ns, is_syn);
            let most = room - options.len();
            let Some(next) = self.next(most, self.burst(host.offload, most)) else {
                self.recovery.force = false;
                turn = Turn::Done;
                break;
            };
            let segment = self.segment(next, options, is_syn);
            let way = way.get_or_insert_with(|| host.way(now_ns, &self.header()));
            match way {
                Some(way) if !segment.emit(way, &self.send, host, out, most) => {
                    turn = Turn::Full;
                    break;
                }
                Some(_) => {}
                None => segment.hold(now_ns, &self.send, host),
            }
            *sent += segment.payload_len;
            self.sent(now_ns, next);
        }
        let (pipe, cwnd) = (self.pipe(), self.congestion.cwnd);
        if now_ns == self.last_sent_ns || pipe >= cwnd {
            let limited = pipe + self.mss > cwnd;
            let (una, nxt) = (self.send.una, self.send.nxt);
            let outstanding = self.board.outstanding();
            self.congestion.used(una, nxt, outstanding, limited);
        }
        self.schedule_loss(now_ns);
        turn
    }

    /// The IP header of this connection's packets.
    fn header(&self) -> Header {
        Header {
            dont_fragment: true,
            ..Header::new(self.addresses(), Protocol::TCP)
        }
    }

    /// Bytes that one segment may carry if the link cuts it; never more than
    /// may be in the network.
    fn burst(&self, offload: Offload, most: usize) -> usize {
        let cuts = match self.local {
            SocketAddr::V4(_) => offload.tso4,
            SocketAddr::V6(_) => offload.tso6,
        };
        // A mark of ours goes with one segment alone.
        if !cuts || self.send_cwr || self.recovery.force {
            return most;
        }
        let room = self.congestion.cwnd.saturating_sub(self.pipe());
        (room.min(BURST_MAX) / most * most).max(most)
    }

    /// After a pause the network is unknown again (RFC 5681 §4.1).
    fn restart_after_idle(&mut self, now_ns: u64) {
        let idle_ns = now_ns.saturating_sub(self.last_sent_ns);
        if self.restarts && self.board.is_empty() && idle_ns > self.rtt.rto_ns() {
            self.congestion.restart();
        }
    }

    fn next(&mut self, most: usize, burst: usize) -> Option<Next> {
        if self.next_is_syn() {
            return self.next_opening();
        }
        let (pipe, cwnd, force) = (self.pipe(), self.congestion.cwnd, self.recovery.force);
        let fits = |len: usize| force || pipe == 0 || pipe + len <= cwnd;
        let mut waits = false;
        if let Some(sent) = self.board.next_lost(most) {
            let len = sent.end.since(sent.start);
            let allowed = sent.start == self.send.una || self.send.allows(sent.end);
            if allowed && fits(len) {
                return Some(Next::Again(sent.start, sent.end));
            }
            // New bytes do not overtake those that are waited for.
            waits = allowed;
        }
        if !waits
            && !self.board.is_full()
            && let Ready::Bytes(len, fin) = self.send.ready(most, burst)
            && fits(len)
        {
            let end = self.send.nxt.plus(len + usize::from(fin));
            return Some(Next::New(self.send.nxt, end));
        }
        match (self.probe_window, self.ack_now) {
            (true, _) => Some(Next::Probe),
            (false, true) => Some(Next::Ack),
            (false, false) => None,
        }
    }

    fn next_opening(&mut self) -> Option<Next> {
        if self.send.nxt == self.send.iss {
            return Some(Next::New(self.send.iss, self.first_end()));
        }
        // Bytes behind a SYN do not go again before it has arrived.
        if let Some(sent) = self.board.next_lost(1)
            && sent.start == self.send.iss
        {
            return Some(Next::Again(sent.start, sent.end));
        }
        let answers = self.ack_now && self.state == State::SynReceived;
        answers.then_some(Next::Ack)
    }

    /// The options of the next segment.
    fn options(&mut self, now_ns: u64, is_syn: bool) -> Options {
        let timestamps = self
            .timestamps
            .map(|ours| (self.clock(now_ns), ours.recent));
        let mut options = Options {
            timestamps,
            ..Options::default()
        };
        if is_syn {
            let first = self.state == State::SynSent;
            options.mss = Some(self.mss_ours());
            options.sack_permitted = self.sack;
            // An answer scales only if it was asked to (RFC 7323 §2.2).
            let scales = first || self.scales;
            options.window_scale = scales.then_some(self.receive.scale);
            // What a network may not let through goes once.
            let once = self.listener.is_some() || self.send.nxt == self.send.iss;
            let opening = self.opening.as_ref().filter(|_| once);
            options.fast_open = opening.and_then(|opening| opening.option);
        } else if self.sack {
            let blocks = if timestamps.is_some() { 3 } else { 4 };
            options.sack = self.receive.sack(blocks);
        }
        options
    }

    /// The segment that is next.
    fn segment(&mut self, next: Next, options: Options, is_syn: bool) -> Outgoing {
        let (start, end) = match next {
            Next::New(start, end) | Next::Again(start, end) => (start, end),
            Next::Ack => (self.send.nxt, self.send.nxt),
            Next::Probe => (self.send.una.minus(1), self.send.una.minus(1)),
        };
        let payload_len = self.send.payload_len(start, end);
        let repr = Repr {
            src_port: self.local.port(),
            dst_port: self.remote.port(),
            seq: start.0,
            ack: if self.state == State::SynSent {
                0
            } else {
                self.receive.nxt.0
            },
            flags: self.flags(next, start, end, payload_len, is_syn),
            window: self.window_field(is_syn),
            urgent: 0,
            options,
        };
        let fresh = matches!(next, Next::New(..)) && payload_len > 0;
        Outgoing {
            start,
            payload_len,
            // Only new bytes may be marked (RFC 3168 §6.1.5).
            header: Header {
                traffic_class: if self.ecn && fresh && !self.is_opening() {
                    MARKABLE
                } else {
                    0
                },
                ..self.header()
            },
            repr,
        }
    }

    fn flags(&self, next: Next, start: Seq, end: Seq, payload_len: usize, is_syn: bool) -> Flags {
        let mut flags = self.send.flags(start, end);
        let mut set = |flag: Flags, when: bool| flags = if when { flags | flag } else { flags };
        set(Flags::ACK, self.state != State::SynSent);
        // What goes out together is to be read together.
        set(Flags::PSH, payload_len > self.mss && !is_syn);
        match self.state {
            State::SynSent => set(Flags::ECE | Flags::CWR, self.ecn),
            State::SynReceived if is_syn => set(Flags::ECE, self.ecn),
            _ => {
                set(Flags::ECE, self.echo_mark);
                let fresh = matches!(next, Next::New(..)) && payload_len > 0;
                set(Flags::CWR, self.send_cwr && fresh);
            }
        }
        flags
    }

    fn window_field(&mut self, is_syn: bool) -> u16 {
        match is_syn {
            true => self.receive.advertise_on_syn(),
            false => self.receive.advertise(self.mss),
        }
    }

    fn count_sent(&mut self, len: usize, again: bool) {
        let segments = len.div_ceil(self.mss.max(1)).max(1);
        let counts = &mut self.counts;
        count(&mut counts.segments_out, segments);
        if again {
            count(&mut counts.again, segments);
        }
    }

    /// A segment is out.
    fn sent(&mut self, now_ns: u64, next: Next) {
        match next {
            Next::New(start, end) => {
                if self.board.is_empty() {
                    self.recovery.since_ns = now_ns;
                }
                let len = self.send.payload_len(start, end);
                self.count_sent(len, false);
                self.board.push(start, end, now_ns);
                if !len.is_multiple_of(self.mss.max(1)) {
                    self.send.small = end;
                }
                self.probe_window = false;
                let answers = self.counts.bytes_in > 0 && !self.is_opening();
                if len > 0 && answers && now_ns < self.last_received_ns + DELAYED_ACK_NS {
                    self.interactive = true;
                }
                self.send.nxt = end;
                self.send.crumbs = false;
                self.recovery.out += end.since(start);
                self.send_cwr = false;
            }
            Next::Again(start, end) => {
                if start == self.send.una {
                    self.recovery.since_ns = now_ns;
                }
                let len = self.send.payload_len(start, end);
                self.count_sent(len, true);
                self.board.sent_again(start, now_ns);
                self.recovery.out += end.since(start);
            }
            Next::Ack => self.count_sent(0, false),
            Next::Probe => {
                self.count_sent(0, false);
                self.probe_window = false;
            }
        }
        if matches!(next, Next::New(..) | Next::Again(..)) {
            self.recovery.force = false;
            self.last_sent_ns = now_ns;
        }
        if self.state != State::SynSent {
            self.ack_now = false;
            self.timers.ack_ns = None;
            self.acknowledged = self.receive.nxt;
        }
    }
}
