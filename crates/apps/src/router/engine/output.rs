//! The router's own output: frames wait until the neighbour's hardware address
//! is resolved.

use super::ETHERNET;
use super::table::neighbours::{Resolution, Solicit};
use super::table::routes::{Hop, LinkId};
use super::{Reason, Router, Verdict};
use std::collections::VecDeque;
use std::net::IpAddr;
use weir_wire::EtherType;
use weir_wire::ethernet::{self, Address};
use weir_wire::field::write;

/// Number of the router's own frames that may wait for sending, and as many
/// forwarded frames; a further frame is dropped.
pub const QUEUE_MAX: usize = 4096;

/// Number of fragments that may wait. A packet is not fragmented if the
/// fragments would leave less than half of the queue to whole frames.
const FRAGMENTS_MAX: usize = QUEUE_MAX / 2;

/// A frame that waits for sending.
#[derive(Debug)]
struct QueuedFrame {
    link: LinkId,
    frame: Vec<u8>,
    /// The frame is forwarded, not the router's own.
    is_forwarded: bool,
}

/// The frames that wait for sending, and the IPv4 identification counter.
#[derive(Debug)]
pub(super) struct Output {
    queue: VecDeque<QueuedFrame>,
    /// Number of waiting forwarded frames for each link: later frames must not
    /// overtake them.
    forwarded: Vec<usize>,
    forwarded_all: usize,
    identification: u16,
}

impl Output {
    pub(super) fn new(links: usize, seed: u64) -> Output {
        Output {
            queue: VecDeque::new(),
            forwarded: vec![0; links],
            forwarded_all: 0,
            identification: seed as u16,
        }
    }

    pub(super) fn pop(&mut self) -> Option<(LinkId, Vec<u8>)> {
        let first = self.queue.pop_front()?;
        let forwarded = usize::from(first.is_forwarded);
        self.forwarded[usize::from(first.link)] -= forwarded;
        self.forwarded_all -= forwarded;
        Some((first.link, first.frame))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether `count` fragments leave enough room for whole frames.
    pub(super) fn has_room_for_fragments(&self, count: usize) -> bool {
        self.forwarded_all + count <= FRAGMENTS_MAX
    }

    /// The next IPv4 identification; without meaning for unfragmented packets
    /// (RFC 6864).
    pub(super) fn identification(&mut self) -> u16 {
        self.identification = self.identification.wrapping_add(1);
        self.identification
    }
}

impl Router {
    /// Forwards the first `len` bytes of a frame in place, or queues them until
    /// the neighbour is resolved.
    pub(super) fn dispatch(
        &mut self,
        now_ns: u64,
        hop: Hop,
        dst: IpAddr,
        frame: &mut [u8],
        len: usize,
    ) -> Result<Verdict, Reason> {
        let place = (hop.link, hop.gateway.unwrap_or(dst));
        let own = self.links[usize::from(hop.link)].hardware;
        match self.neighbours.resolve(now_ns, place) {
            Resolution::Resolved(hardware) => {
                write(frame, 0, &hardware.0);
                write(frame, 6, &own.0);
                let link = hop.link;
                if self.output.forwarded[usize::from(link)] > 0 {
                    // Earlier frames of the link, which waited or were
                    // fragmented, go first.
                    self.enqueue(link, frame[..len].to_vec(), true);
                    return Ok(Verdict::Done);
                }
                Ok(Verdict::Forward { link, len })
            }
            Resolution::Pending => {
                write(frame, 6, &own.0);
                let dropped = self
                    .neighbours
                    .enqueue_unresolved(place, frame[..len].to_vec());
                self.counters.drop(Reason::NeighbourUnresolved, dropped);
                Ok(Verdict::Done)
            }
            Resolution::TableFull => Err(Reason::NeighbourTableFull),
        }
    }

    /// Sends a frame of the router's own, or a fragment of a forwarded packet;
    /// the EtherType is already set.
    pub(super) fn transmit(
        &mut self,
        now_ns: u64,
        hop: Hop,
        dst: IpAddr,
        mut frame: Vec<u8>,
        is_forwarded: bool,
    ) {
        let len = frame.len();
        match self.dispatch(now_ns, hop, dst, &mut frame, len) {
            Ok(Verdict::Forward { link, .. }) => self.enqueue(link, frame, is_forwarded),
            Ok(_) => {}
            Err(reason) => self.counters.drop(reason, 1),
        }
    }

    /// Queues a frame with a complete header.
    pub(super) fn enqueue(&mut self, link: LinkId, frame: Vec<u8>, is_forwarded: bool) {
        let output = &mut self.output;
        let waiting = if is_forwarded {
            output.forwarded_all
        } else {
            output.queue.len() - output.forwarded_all
        };
        if waiting >= QUEUE_MAX {
            return self.counters.drop(Reason::QueueFull, 1);
        }
        let forwarded = usize::from(is_forwarded);
        output.forwarded[usize::from(link)] += forwarded;
        output.forwarded_all += forwarded;
        output.queue.push_back(QueuedFrame {
            link,
            frame,
            is_forwarded,
        });
    }

    /// Queues the frames that waited for a neighbour.
    pub(super) fn release(
        &mut self,
        link: LinkId,
        hardware: Address,
        waited: impl IntoIterator<Item = Vec<u8>>,
    ) {
        for mut frame in waited {
            write(&mut frame, 0, &hardware.0);
            self.enqueue(link, frame, true);
        }
    }

    /// Sends the pending solicitations.
    pub(super) fn send_solicits(&mut self) {
        for ((link, ip), known) in self.neighbours.take_solicits() {
            self.counters.neighbours_asked += 1;
            let ask: Solicit = ((link, ip), known);
            match ip {
                IpAddr::V4(_) => self.solicit_arp(ask),
                IpAddr::V6(_) => self.solicit_nd(ask),
            }
        }
    }

    /// A zeroed frame with its Ethernet header and `len` bytes for the payload.
    pub(super) fn frame(&self, link: LinkId, dst: Address, kind: EtherType, len: usize) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET + len];
        let header = ethernet::Repr {
            dst,
            src: self.links[usize::from(link)].hardware,
            ether_type: kind,
        };
        header.emit(&mut frame);
        frame
    }
}
