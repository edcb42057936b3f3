//! A server's record of one client.

use crate::Entity;
use crate::packet::{Flags, Repr};
use crate::segment::{self, Assembly, SEGMENT_LEN_MAX};
use crate::server::Reply;
use crate::server::table::{Places, Spare};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Record<L> {
    pub(super) client: Entity,
    /// Where packets of the client come from; never changes.
    pub(super) link: L,
    /// The entity that the client asked, or the server's own once it has
    /// answered.
    pub(super) server: Entity,
    /// The client's last transaction.
    pub(super) transaction: u32,
    pub(super) state: State,
    /// The number of a probe that the client has not answered yet.
    pub(super) nonce: Option<u32>,
    /// When the client last sent something of its transaction, or was answered.
    pub(super) since: Duration,
    /// Whether the record is in the queue of those that send, and of those whose
    /// request waits for the application.
    pub(super) is_sending: bool,
    pub(super) is_waiting: bool,
    pub(super) places: Places,
}

#[derive(Debug)]
pub(super) enum State {
    /// The client was asked for its transaction; one of its packets waits.
    Probing {
        retries: u8,
        held: Option<(Repr, Vec<u8>)>,
    },
    /// Packets of the request are missing.
    Receiving {
        head: Repr,
        assembly: Assembly,
        retries: u8,
    },
    /// The application has the request, or will get its segment.
    Processing {
        head: Repr,
        segment: Option<Vec<u8>>,
    },
    /// The application has answered.
    Responded {
        reply: Reply,
        /// Blocks to send; `first` also if there are none.
        pending: u32,
        first: bool,
        resends: u8,
    },
    /// The transaction is over; its response is not kept.
    Discarded,
    /// The transaction was idempotent and is over: it may be executed again.
    Idle,
}

impl<L: Copy> Record<L> {
    /// As what the record may be forgotten early; `None` if it may not.
    pub(super) fn spare(&self) -> Option<Spare> {
        if self.is_sending || self.is_waiting {
            return None;
        }
        match &self.state {
            State::Probing { .. } | State::Idle => Some(Spare::Unmet),
            State::Discarded => Some(Spare::Over),
            State::Responded { reply, .. } if reply.segment.is_empty() => Some(Spare::Over),
            State::Responded { .. } => Some(Spare::Kept),
            State::Receiving { .. } => Some(Spare::Receiving),
            State::Processing { .. } => None,
        }
    }

    /// Bytes of segments that the record keeps. Until the application has
    /// answered, room is reserved for the longest response.
    pub(super) fn bytes(&self) -> usize {
        match &self.state {
            State::Receiving { .. } | State::Processing { .. } => SEGMENT_LEN_MAX,
            State::Responded { reply, .. } => reply.segment.len(),
            State::Probing { .. } | State::Discarded | State::Idle => 0,
        }
    }

    /// Appends the next packet of the response to `out`; `None` if all are sent.
    pub(super) fn emit(&mut self, packet_blocks: usize, out: &mut Vec<u8>) -> Option<L> {
        let State::Responded {
            reply,
            pending,
            first,
            resends,
        } = &mut self.state
        else {
            return None;
        };
        if !*first && *pending == 0 {
            return None;
        }
        let delivery = segment::first_blocks(*pending, packet_blocks);
        *pending &= !delivery;
        *first = false;
        let mut flags = Flags::default();
        if !reply.segment.is_empty() {
            flags = flags.with(Flags::SEGMENT);
        }
        if reply.idempotent {
            flags = flags.with(Flags::DATAGRAM);
        }
        let head = Repr {
            client: self.client,
            multicast: false,
            acknowledge: false,
            retransmit_count: *resends,
            response: true,
            transaction: self.transaction,
            delivery,
            server: self.server,
            flags,
            code: reply.code,
            co_resident: Entity::NONE,
            user_data: reply.user_data,
            message_delivery: 0,
            segment_size: reply.segment.len() as u32,
        };
        head.emit(&reply.segment, out);
        Some(self.link)
    }
}

/// Whether a packet is of a later transaction than another.
pub(super) fn is_newer(packet: &Repr, other: &Repr) -> bool {
    packet.transaction.wrapping_sub(other.transaction) as i32 > 0
}
