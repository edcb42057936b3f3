//! [`RemoteLink`]: a link whose queue another stack of the host has, as seen by a stack
//! without a queue.

use crate::link::{Link, RxSink};
use crate::net::shards::mailbox::{FrameBatch, MailKind, Mailbox};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use weir_stack::TxSink;
use weir_stack::iface::TxMeta;

/// Longest frame, in bytes, for which the link guarantees room.
const FRAME_LEN: usize = 2048;

/// Leaves sent frames in the mailbox of the stack that has the queue. Frames that arrive by
/// the link come by this stack's own mailbox.
pub(in crate::net) struct RemoteLink {
    pub(in crate::net) mailboxes: Arc<[Mailbox]>,
    /// The number of this stack, and of the stack that has the queue.
    pub(in crate::net) number: usize,
    pub(in crate::net) owner: usize,
    pub(in crate::net) link: u8,
    pub(in crate::net) gone: Arc<AtomicBool>,
    pub(in crate::net) batch: FrameBatch,
    /// The mailbox was full at the last send.
    pub(in crate::net) full: bool,
}

impl RemoteLink {
    fn has_room(&self, len: usize) -> bool {
        self.mailboxes[self.owner].has_room_for(self.number, self.batch.cost() + len)
    }

    fn added(&mut self, partial: Option<(TxMeta, usize)>, payload: [&[u8]; 2]) {
        let link = self.link;
        self.batch.submit(MailKind::Sent { link, partial }, payload);
    }
}

impl TxSink for RemoteLink {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.full = !self.has_room(len);
        if self.full {
            None
        } else {
            Some(self.batch.reserve(len))
        }
    }

    fn submit(&mut self) {
        self.added(None, [&[], &[]]);
    }

    fn submit_partial(&mut self, partial: TxMeta, payload: [&[u8]; 2]) {
        let head = self.batch.reserved();
        self.added(Some((partial, head)), payload);
    }
}

impl Link for RemoteLink {
    /// Never readable: frames come by the mailbox, whose eventfd also signals new room.
    fn fd(&self) -> BorrowedFd<'_> {
        self.mailboxes[self.number].fd()
    }

    fn receive(&mut self, _: &mut RxSink<'_>) -> io::Result<bool> {
        if self.gone.load(SeqCst) {
            Err(Errno::NETDOWN.into())
        } else {
            Ok(false)
        }
    }

    fn flush(&mut self) {
        if !self.batch.is_empty() {
            self.mailboxes[self.owner].push(std::mem::take(&mut self.batch));
        }
    }

    fn is_full(&self) -> bool {
        self.full && !self.has_room(FRAME_LEN)
    }
}
