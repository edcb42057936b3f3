//! The packets that go through the chain together.

use crate::packet::{Fate, Packet, Ticket};

/// Packets in the order of their arrival, all in one direction.
///
/// A stage sees those that its filter accepts and that no earlier stage has
/// dropped or held.
///
/// ```
/// # use weir_chain::Batch;
/// fn outward(batch: &mut Batch<'_>) {
///     for packet in batch.packets() {
///         packet.set_dscp(46);
///     }
/// }
/// ```
#[derive(Debug, Default)]
pub struct Batch<'f> {
    pub(crate) packets: Vec<Packet<'f>>,
    pub(crate) stage: u8,
    pub(crate) next_ticket: u64,
}

impl<'f> Batch<'f> {
    /// A batch of these packets.
    pub fn new(packets: Vec<Packet<'f>>) -> Batch<'f> {
        Batch {
            packets,
            ..Batch::default()
        }
    }

    /// The packets for the stage that has the batch, in order.
    #[inline]
    pub fn packets(&mut self) -> impl Iterator<Item = &mut Packet<'f>> {
        let (stage, next) = (self.stage, &mut self.next_ticket);
        self.packets.iter_mut().filter_map(move |packet| {
            let is_here = packet.fate() == Fate::Pass && packet.applies >> stage & 1 == 1;
            is_here.then(|| {
                packet.stage = stage;
                packet.ticket = *next;
                *next += 1;
                packet
            })
        })
    }

    /// All packets, whatever became of them, in order.
    pub fn all(&self) -> &[Packet<'f>] {
        &self.packets
    }

    /// All packets, for the caller that made the batch.
    pub fn into_packets(self) -> Vec<Packet<'f>> {
        self.packets
    }
}

/// The frames that a stage sends beside the packets of a batch.
#[derive(Debug, Default)]
pub struct Output {
    pub(crate) sent: Vec<Sent>,
    pub(crate) stage: u8,
    /// Memory of frames that stages made, for a stage that makes more.
    pub(crate) spent: Vec<Vec<u8>>,
}

/// Number of frames whose memory is kept for stages, at most.
const SPENT_MAX: usize = 256;

/// A frame that a stage sends or releases; the stages behind it get it next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Its direction.
    pub direction: crate::Direction,
    /// The stage that sent it.
    pub stage: u8,
    /// The frame.
    pub frame: SentFrame,
}

/// The frame of a [`Sent`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SentFrame {
    /// A frame that a stage made, from the Ethernet header on.
    Made(Vec<u8>),
    /// The frame that a stage held by this ticket.
    Released(Ticket),
    /// A frame that a stage made, for the router to send by its destination: it
    /// goes through no further stage.
    Routed(Vec<u8>),
    /// The frame of this ticket, which the stage drops, for a reason.
    Dropped(Ticket, &'static str),
}

impl Output {
    /// Sends a frame of the stage's own.
    pub fn send(&mut self, direction: crate::Direction, frame: Vec<u8>) {
        self.push(direction, SentFrame::Made(frame));
    }

    /// Sends a frame of the stage's own by the way that the router finds for its
    /// destination, outward. The router sets the MAC addresses. No further stage
    /// gets the frame.
    pub fn route(&mut self, frame: Vec<u8>) {
        self.push(crate::Direction::Outward, SentFrame::Routed(frame));
    }

    /// Sends a frame that was held, see [`Packet::hold`].
    pub fn release(&mut self, direction: crate::Direction, ticket: Ticket) {
        self.push(direction, SentFrame::Released(ticket));
    }

    /// Drops a frame that was held.
    pub fn drop(&mut self, direction: crate::Direction, ticket: Ticket, reason: &'static str) {
        self.push(direction, SentFrame::Dropped(ticket, reason));
    }

    /// Takes back the memory of a frame that a stage made and that was sent.
    pub fn recycle(&mut self, frame: Vec<u8>) {
        if self.spent.len() < SPENT_MAX {
            self.spent.push(frame);
        }
    }

    /// The frames that were sent so far, in order.
    pub fn take(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }

    fn push(&mut self, direction: crate::Direction, frame: SentFrame) {
        self.sent.push(Sent {
            direction,
            stage: self.stage,
            frame,
        });
    }
}
