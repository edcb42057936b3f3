//! The daemon's state of a connection.

use super::limits;
use crate::engine::Owner;
use crate::protocol::{Channel, Sent};
use rustix::event::epoll::EventFlags;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// A connection.
pub(super) struct Client {
    pub(super) channel: Channel,
    pub(super) owner: Owner,
    /// The number of the listener by which it came.
    pub(super) listener: u64,
    /// The place of the grant that lets the user in; `None` for the
    /// superuser.
    pub(super) grant: Option<usize>,
    since: Instant,
    /// Whether a valid request has arrived.
    pub(super) has_requested: bool,
    /// Whether the connection may have ports.
    pub(super) has_ports: bool,
    /// Pending requests to open or to send, by port.
    pub(super) pending: BTreeMap<u32, u32>,
    /// Messages still to be sent, with descriptors.
    pub(super) unsent: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// The events being waited for.
    pub(super) watched: EventFlags,
    /// Whether reading is paused because its user's budget is overdrawn.
    pub(super) is_paused: bool,
}

impl Client {
    /// A connection that has said nothing yet, and is read.
    pub(super) fn new(
        channel: Channel,
        owner: Owner,
        listener: u64,
        grant: Option<usize>,
    ) -> Client {
        Client {
            channel,
            owner,
            listener,
            grant,
            since: Instant::now(),
            has_requested: false,
            has_ports: false,
            pending: BTreeMap::new(),
            unsent: VecDeque::new(),
            watched: EventFlags::IN,
            is_paused: false,
        }
    }

    /// Whether a time limit applies.
    pub(super) fn has_deadline(&self) -> bool {
        !self.has_requested || self.is_paused
    }

    /// Whether it has sent no request within the time limit.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        !self.has_requested && now.duration_since(self.since) > limits::FIRST_REQUEST_TIMEOUT
    }

    /// Bytes of answers that the peer has not read.
    pub(super) fn unread(&self) -> usize {
        self.unsent.iter().map(|(bytes, _)| bytes.len()).sum()
    }

    /// Sends as much as there is room for.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some((bytes, fds)) = self.unsent.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match self.channel.send(bytes, &fds, false)? {
                Sent::Whole => self.unsent.pop_front(),
                Sent::Later => return Ok(()),
            };
        }
        Ok(())
    }
}
