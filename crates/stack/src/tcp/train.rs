//! Trains of segments: what a bulk sender writes in one go differs in number,
//! checksum and bytes alone. The headers of one that took the fast path say what
//! those of the next will be, all of them (Jacobson's header prediction), and so
//! what there is to do: check the sum, keep the bytes, move on.
//!
//! Segments are remembered only where an acknowledgment is already due at once,
//! and the application already told: then nothing else changes with the next.

use super::ack::Told;
use super::direct::Direct;
use super::pcb::{Pcb, State};
use super::seq::Seq;
use super::table::Tcp;
use crate::direct::Parts;
use crate::host::{DropReason, Received};
use crate::slab::Name;
use weir_wire::Protocol;
use weir_wire::checksum::Sum;
use weir_wire::tcp::Repr;

/// Words of the longest headers: IPv6, TCP with timestamps.
const WORDS: usize = (40 + Repr::LEN_MIN + 12) / 8;
/// A segment with fewer bytes of payload is not remembered.
const PAYLOAD_MIN: usize = 512;
/// Where the number is in the TCP header.
const SEQ_AT: usize = 4;

/// See the module.
pub(super) struct Train {
    name: Name,
    link: u8,
    /// Bytes of the IP header, of both headers, and of the packet.
    ip_len: usize,
    headers_len: usize,
    packet_len: usize,
    /// The headers, and which of their bits are those of the next; payload is
    /// none of them.
    value: [u64; WORDS],
    mask: [u64; WORDS],
    /// The sum of the pseudo-header and the TCP header without its number and
    /// its checksum.
    rest: Sum,
    ack: Seq,
    wnd: usize,
    timestamps: Option<(u32, u32)>,
    /// Bytes that all connections hold: the window depends on what is left.
    held: usize,
}

/// Whether a segment is so long that it is worth being remembered.
#[inline]
pub(super) fn is_long(parts: &Parts<'_>) -> bool {
    parts.transport.len() >= Repr::LEN_MIN + 12 + PAYLOAD_MIN
}

fn words(bytes: &[u8; 8 * WORDS]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

impl Train {
    /// What follows a packet in order, from which `told` was read.
    fn behind(
        packet: &[u8],
        parts: &Parts<'_>,
        told: &Told<'_>,
        (name, link): (Name, u8),
        held: usize,
    ) -> Train {
        let ip_len = packet.len() - parts.transport.len();
        let timestamps_len = if told.timestamps.is_some() { 12 } else { 0 };
        let headers_len = ip_len + Repr::LEN_MIN + timestamps_len;
        let (mut value, mut mask) = ([0; 8 * WORDS], [0; 8 * WORDS]);
        value[..headers_len].copy_from_slice(&packet[..headers_len]);
        mask[..headers_len].fill(0xff);
        let checksum_at = ip_len + usize::from(Repr::CHECKSUM_AT);
        for (at, len) in [(ip_len + SEQ_AT, 4), (checksum_at, 2)] {
            value[at..at + len].fill(0);
            mask[at..at + len].fill(0);
        }
        let header = Sum::new().bytes(&value[ip_len..headers_len]);
        Train {
            name,
            link,
            ip_len,
            headers_len,
            packet_len: packet.len(),
            value: words(&value),
            mask: words(&mask),
            rest: parts.pseudo(Protocol::TCP.0).and(header),
            ack: told.ack,
            wnd: told.wnd,
            timestamps: told.timestamps,
            held,
        }
    }

    /// Whether a packet's headers are those of the next, but for its number.
    #[inline]
    fn continues(&self, packet: &[u8]) -> bool {
        let Some(header) = packet.as_chunks().0.first_chunk::<WORDS>() else {
            return false;
        };
        let mut differs = 0;
        for ((word, value), mask) in header.iter().zip(&self.value).zip(&self.mask) {
            differs |= (u64::from_ne_bytes(*word) ^ value) & mask;
        }
        differs == 0 && packet.len() == self.packet_len
    }
}

impl Tcp {
    /// Takes a packet that is next in the train; `None` if it is not, and nothing
    /// has changed.
    #[inline]
    pub(super) fn take_next(
        &mut self,
        now_ns: u64,
        packet: &[u8],
        received: Received,
    ) -> Option<Direct> {
        let train = self.train.as_ref()?;
        let same_way = received.link == train.link && received.channel.is_none();
        let as_before = same_way && self.held == train.held;
        if received.vouched || !as_before || !train.continues(packet) {
            return None;
        }
        let pcb = self.pcbs.get_mut(train.name)?;
        self.latest = Some(train.name);
        match pcb.take_next(now_ns, train, packet)? {
            true => Some(Direct::Taken),
            false => Some(Direct::Dropped(DropReason::ChecksumWrong)),
        }
    }

    /// Remembers a long segment that was taken, if the next may be like it.
    #[inline(never)]
    pub(super) fn remember(
        &mut self,
        name: Name,
        packet: &[u8],
        parts: &Parts<'_>,
        received: Received,
    ) {
        let ip_len = packet.len() - parts.transport.len();
        let is_v6 = packet[0] >> 4 == 6;
        let whole = ip_len == if is_v6 { 40 } else { 20 };
        if received.vouched || received.channel.is_some() || !whole {
            return;
        }
        if let Some(pcb) = self.pcbs.get(name)
            && pcb.needs_nothing_more()
            && let Some(told) = pcb.told(parts.transport)
        {
            let (whose, held) = ((name, received.link), self.held);
            self.train = Some(Train::behind(packet, parts, &told, whose, held));
        }
    }
}

impl Pcb {
    /// Whether more bytes in order leave nothing to do but to keep them.
    #[inline]
    fn needs_nothing_more(&self) -> bool {
        let receives = matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2
        );
        receives
            && !self.released
            && self.ack_now
            && self.quick == 0
            && self.is_ready
            && self.is_told
    }

    /// [`Pcb::take_plain`] of a packet that continues a train.
    #[inline]
    fn take_next(&mut self, now_ns: u64, train: &Train, packet: &[u8]) -> Option<bool> {
        let (headers, payload) = packet.split_at_checked(train.headers_len)?;
        let header = headers
            .get(train.ip_len..)?
            .first_chunk::<{ Repr::LEN_MIN }>()?;
        let word = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
        let seq = Seq(u32::from_be_bytes(word(SEQ_AT)));
        let checksum_at = usize::from(Repr::CHECKSUM_AT);
        let checksum = u16::from_be_bytes([header[checksum_at], header[checksum_at + 1]]);
        let in_order = seq == self.receive.nxt
            && payload.len() <= self.receive.window()
            && payload.len() <= self.receive.spare();
        let plain = self.needs_nothing_more()
            && self.is_plain()
            && self.knows(train.ack, train.wnd)
            && !self.is_old(now_ns, train.timestamps);
        if !in_order || !plain {
            return None;
        }
        let sum = train.rest.double(seq.0).word(checksum);
        if sum.and(self.receive.stage_summed(payload)).finish() != 0 {
            return Some(false);
        }
        self.count_in(now_ns, payload.len());
        self.heard(now_ns);
        self.note_timestamp(now_ns, seq, train.timestamps);
        self.send.window(seq, train.ack, train.wnd);
        self.receive.commit(payload.len());
        self.received(now_ns, payload.len(), train.timestamps);
        Some(true)
    }
}
