//! The queue of errors (`MSG_ERRQUEUE`).

use crate::Answer;
use crate::transfer::Message;
use crate::world::{AGAIN, Inner, World};

/// Something that waits in the queue of errors.
#[derive(Clone, Debug)]
pub(crate) struct Notice {}

impl World {
    /// The next notice, with the control messages that tell it.
    pub(crate) fn receive_notice(&self, fd: i32, _message: &Message) -> Answer {
        let mut inner = self.lock();
        let socket = inner.socket(fd)?;
        socket.notices.pop_front().map(|_| 0).ok_or(AGAIN)
    }
}

impl Inner {
    /// Looks what has happened to each socket.
    pub(crate) fn notice(&mut self) {}
}
