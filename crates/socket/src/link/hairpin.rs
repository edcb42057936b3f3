//! [`Hairpin`]: a link that returns the host's frames to itself.

use super::{DirectReceiver, Link, RxSink};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use weir_stack::TxSink;
use weir_stack::iface::{BurstFrame, Offload, RxMeta, TxMeta};
use weir_wire::ethernet::Address;

/// Limit on the bytes of frames that wait to be received by their own host. Frames beyond the limit are
/// lost, as in a full queue of a device.
const WAITING_MAX: usize = 4 << 20;

/// A link that returns frames to the host's own hardware address, as a bridge's port in hairpin
/// mode does; all other frames go to the device behind it. The host's configuration says so
/// ([`Config::hairpin`](weir_stack::Config::hairpin)).
pub struct Hairpin {
    device: Box<dyn Link>,
    own: Address,
    waiting: VecDeque<Vec<u8>>,
    waiting_len: usize,
    /// The frame that is being sent, or its headers.
    frame: Vec<u8>,
}

impl Hairpin {
    /// Wraps a device for a host with this hardware address.
    pub fn new(device: Box<dyn Link>, own: Address) -> Hairpin {
        Hairpin {
            device,
            own,
            waiting: VecDeque::new(),
            waiting_len: 0,
            frame: Vec::new(),
        }
    }

    /// A loopback device: a link without other stations. The host's addresses on the link may be
    /// those of 127.0.0.0/8 and ::1.
    ///
    /// # Errors
    /// If the system provides no descriptor.
    pub fn loopback(own: Address) -> io::Result<Hairpin> {
        Ok(Hairpin::new(Box::new(Null::new()?), own))
    }

    fn is_own(&self, head: &[u8]) -> bool {
        head.starts_with(&self.own.0)
    }

    fn keep(&mut self, parts: [&[u8]; 3]) {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if self.waiting_len + len <= WAITING_MAX {
            self.waiting_len += len;
            self.waiting.push_back(parts.concat());
        }
    }
}

impl TxSink for Hairpin {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.device.reserve(len)?;
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    fn submit(&mut self) {
        let frame = std::mem::take(&mut self.frame);
        if self.is_own(&frame) {
            self.keep([&frame, &[], &[]]);
        } else if let Some(room) = self.device.reserve(frame.len()) {
            room.copy_from_slice(&frame);
            self.device.submit();
        }
        self.frame = frame;
    }

    fn submit_partial(&mut self, partial: TxMeta, payload: [&[u8]; 2]) {
        let head = std::mem::take(&mut self.frame);
        if self.is_own(&head) {
            self.keep([&head, payload[0], payload[1]]);
        } else if let Some(room) = self.device.reserve(head.len()) {
            room.copy_from_slice(&head);
            self.device.submit_partial(partial, payload);
        }
        self.frame = head;
    }

    fn submit_burst(&mut self, run: &[BurstFrame<'_>]) -> usize {
        // All frames of a burst are of one connection.
        if !run.first().is_some_and(|frame| self.is_own(frame.head)) {
            return self.device.submit_burst(run);
        }
        for frame in run {
            self.keep([frame.head, frame.payload[0], frame.payload[1]]);
        }
        run.len()
    }
}

impl Link for Hairpin {
    fn fd(&self) -> BorrowedFd<'_> {
        self.device.fd()
    }

    fn offload(&self) -> Offload {
        self.device.offload()
    }

    fn receive(&mut self, take: &mut RxSink<'_>) -> io::Result<bool> {
        self.receive_looped(take);
        self.device.receive(take)
    }

    fn receive_to(&mut self, reader: &mut dyn DirectReceiver) -> io::Result<bool> {
        self.receive_looped(&mut |frame, received| reader.receive(frame, received));
        self.device.receive_to(reader)
    }

    fn receive_looped(&mut self, take: &mut RxSink<'_>) -> bool {
        // Not what is sent meanwhile.
        let frames = std::mem::take(&mut self.waiting);
        self.waiting_len = 0;
        for frame in &frames {
            let received = RxMeta {
                checksum_ok: true,
                looped: true,
                ..RxMeta::default()
            };
            take(frame, received);
        }
        !frames.is_empty()
    }

    fn flush(&mut self) {
        self.device.flush();
    }

    fn is_full(&self) -> bool {
        self.device.is_full()
    }

    fn leave(&mut self) {
        self.device.leave();
    }

    fn arm(&mut self) -> bool {
        self.waiting.is_empty() && self.device.arm()
    }

    fn next_arrival(&self) -> Option<Duration> {
        self.device.next_arrival()
    }
}

/// A device without other stations.
struct Null {
    /// Never readable.
    fd: OwnedFd,
    frame: Vec<u8>,
}

impl Null {
    fn new() -> io::Result<Null> {
        Ok(Null {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            frame: Vec::new(),
        })
    }
}

impl TxSink for Null {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    fn submit(&mut self) {}

    fn submit_partial(&mut self, _: TxMeta, _: [&[u8]; 2]) {}
}

impl Link for Null {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn offload(&self) -> Offload {
        Offload::ALL
    }

    fn receive(&mut self, _: &mut RxSink<'_>) -> io::Result<bool> {
        Ok(false)
    }
}
