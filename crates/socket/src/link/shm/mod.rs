//! [`Shm`]: a link in memory that several processes of one user share, without the kernel.
//!
//! Each station copies the frames that it sends into the ring to the receiving station, and a station
//! that sleeps is woken by a byte in its FIFO. While stations are awake they make no system calls for
//! frames. [`weir_ring::shared_link`] describes the memory, [`membership`] the files.
//!
//! A frame to a full ring waits, and with it all that the host sends, until the receiver has made room,
//! for [`ROOM_TIMEOUT`] at most: TCP on the link loses nothing to a full ring. To a station that has let this
//! time pass, frames without room are lost until it takes some. Frames to all stations never wait.

mod membership;

use super::{BATCH, DirectReceiver, Link, RxSink};
use membership::Membership;
pub use membership::is_of_shared_link;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use weir_ring::frame_ring::{self, Consumer, FRAME_LEN_MAX, Producer};
use weir_ring::shared_link::{Ring, STATIONS_MAX};
use weir_stack::TxSink;
use weir_stack::iface::{Offload, RxMeta, TxMeta};
use weir_wire::ethernet::Address;

/// Longest time that a frame waits for room. A receiver whose process is merely not scheduled on a busy
/// machine makes room within this time; one that is stopped holds the sender up once.
const ROOM_TIMEOUT: Duration = Duration::from_millis(100);
/// Bytes after which one call hands over no further frame, as of a TAP interface.
const BATCH_LEN: usize = 240_000;
/// Bytes after which frames are published before the stack has sent all it had, so that the receiver
/// works meanwhile.
const SUBMITTED_BYTES: u64 = 64 << 10;

/// MTU of the link in bytes, that of Ethernet. TCP segments are longer on the link, up to 64 KiB, as on an
/// interface with segmentation offload.
pub const SHM_MTU: usize = 1500;

/// How often a sender looks whether a receiver takes anything. One that does not is woken although it does
/// not say that it sleeps: another process may have overwritten what it said.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// One station of a link in shared memory.
#[derive(Debug)]
pub struct Shm {
    membership: Membership,
    address: u64,
    to: Vec<Producer<Ring>>,
    /// For each receiver, when it is looked at next, and its position at the last look.
    looks: [(Instant, u64); STATIONS_MAX],
    from: Vec<Consumer<Ring>>,
    /// Where the next receive begins.
    next_from: usize,
    received: Vec<u8>,
    /// The frame that is being sent, or that waits for room.
    sent: Vec<u8>,
    waits: Option<Waits>,
    /// The stations, as bits, that have frames to be published, and to which the ring has memory.
    unpublished: u16,
    allocated: u16,
    /// The stations that let a frame wait for too long, and for each its position then.
    stalled: u16,
    stalled_at: [u64; STATIONS_MAX],
    /// The station to which the last frame went.
    last_to: usize,
    /// The descriptor was polled since the last receive.
    was_armed: bool,
}

/// A frame that waits for room.
#[derive(Clone, Copy, Debug)]
struct Waits {
    to: usize,
    until: Instant,
}

/// Where a frame goes.
enum Receivers {
    All,
    One(usize),
    None,
}

fn number(address: &[u8]) -> u64 {
    let bytes = address.iter().take(6);
    bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Shm {
    /// Joins the link of this name, which is made if it is missing, as the station with this address.
    ///
    /// # Errors
    /// If the name is not one, the link is full or another user's, another station has the address, or the
    /// system refuses.
    pub fn join(name: &str, address: Address) -> io::Result<Shm> {
        let address = number(&address.0);
        let membership = Membership::join(name, address)?;
        let (memory, own) = (&membership.memory, membership.station);
        Ok(Shm {
            address,
            looks: [(Instant::now(), 0); STATIONS_MAX],
            to: memory.producers(own),
            from: memory.consumers(own),
            next_from: 0,
            received: vec![0; FRAME_LEN_MAX],
            sent: Vec::new(),
            waits: None,
            unpublished: 0,
            allocated: 0,
            stalled: 0,
            stalled_at: [0; STATIONS_MAX],
            last_to: own,
            was_armed: false,
            membership,
        })
    }

    fn receivers(&mut self, head: &[u8]) -> Receivers {
        let Some(to) = head.first_chunk::<6>() else {
            return Receivers::None;
        };
        if to[0] & 1 != 0 {
            return Receivers::All;
        }
        let to = number(to);
        let memory = &self.membership.memory;
        let is_it =
            |station: &usize| *station != self.membership.station && memory.address(*station) == to;
        if !is_it(&self.last_to) {
            match (0..STATIONS_MAX).find(is_it) {
                Some(station) => self.last_to = station,
                None => return Receivers::None,
            }
        }
        Receivers::One(self.last_to)
    }

    fn send(&mut self, frame: [&[u8]; 3]) {
        match self.receivers(frame[0]) {
            Receivers::None => {}
            Receivers::All => {
                for station in 0..STATIONS_MAX {
                    let is_there = self.membership.memory.address(station) != 0;
                    if is_there && station != self.membership.station && self.has_ring(station) {
                        self.put(station, frame);
                    }
                }
            }
            Receivers::One(station) => {
                if self.has_ring(station)
                    && !self.put(station, frame)
                    && self.stalled & 1 << station == 0
                {
                    self.keep(station, frame);
                }
            }
        }
    }

    /// Whether the ring to a station has memory, which it gets before its first frame. Without, frames to
    /// the station are lost.
    fn has_ring(&mut self, station: usize) -> bool {
        let bit = 1 << station;
        let (memory, own) = (&self.membership.memory, self.membership.station);
        if self.allocated & bit == 0 && memory.allocate(own, station).is_ok() {
            self.allocated |= bit;
        }
        self.allocated & bit != 0
    }

    fn put(&mut self, station: usize, frame: [&[u8]; 3]) -> bool {
        let is_put = self.to[station].put(&frame);
        if is_put {
            let bit = 1 << station;
            // Not by a short frame that found room beside those which the station does not take.
            if self.stalled & bit != 0 && self.to[station].taken() != self.stalled_at[station] {
                self.stalled &= !bit;
            }
            self.unpublished |= bit;
            if self.to[station].unsubmitted() >= SUBMITTED_BYTES {
                self.publish(station);
            }
        } else {
            // The receiver may sleep although its ring is full, if another process has written there.
            self.publish(station);
        }
        is_put
    }

    fn publish(&mut self, station: usize) {
        if self.to[station].submit() || self.is_silent(station) {
            self.membership.wake(station);
        }
    }

    /// Whether a receiver has taken nothing since the last look at it, although frames wait.
    fn is_silent(&mut self, station: usize) -> bool {
        let now = Instant::now();
        let (next, seen) = &mut self.looks[station];
        if now < *next {
            return false;
        }
        *next = now + LOOK_INTERVAL;
        let taken = self.to[station].taken();
        std::mem::replace(seen, taken) == taken
    }

    /// Keeps a frame without room until there is some.
    fn keep(&mut self, station: usize, [head, first, rest]: [&[u8]; 3]) {
        self.sent.clear();
        for part in [head, first, rest] {
            self.sent.extend_from_slice(part);
        }
        if self.sent.len() > FRAME_LEN_MAX {
            return;
        }
        self.publish(station);
        self.waits = Some(Waits {
            to: station,
            until: Instant::now() + ROOM_TIMEOUT,
        });
        self.retry();
    }

    /// Sends the frame that waits for room, if there is room, or gives it up.
    fn retry(&mut self) {
        let Some(Waits { to, until }) = self.waits else {
            return;
        };
        if self.membership.memory.address(to) != number(&self.sent) {
            // The station has left.
            self.waits = None;
        } else if !self.to[to].wait_for_room(self.sent.len()) {
            let frame = std::mem::take(&mut self.sent);
            self.put(to, [&frame, &[], &[]]);
            self.sent = frame;
            self.waits = None;
        } else if Instant::now() >= until {
            self.waits = None;
            self.stalled |= 1 << to;
            self.stalled_at[to] = self.to[to].taken();
            self.membership.clear_if_dead(to);
        }
    }

    /// Receives frames by `take`, which takes the next one out of the ring of this number and returns its
    /// length, or `None` if there is none.
    fn receive_each(&mut self, mut take: impl FnMut(&mut Shm, usize) -> Option<usize>) -> bool {
        if std::mem::take(&mut self.was_armed) {
            frame_ring::disarm(&self.from);
            self.membership.drain();
        }
        let (mut frames, mut bytes) = (0, 0);
        for _ in 0..STATIONS_MAX {
            let ring = self.next_from;
            // Also after a full share: a sender that fills its ring again and again must not keep others
            // from their turn.
            self.next_from = (ring + 1) % STATIONS_MAX;
            let before = frames;
            while frames < BATCH
                && bytes < BATCH_LEN
                && let Some(len) = take(self, ring)
            {
                frames += 1;
                bytes += len;
            }
            if frames > before && self.from[ring].has_taken() {
                self.membership.wake(ring);
            }
            if frames >= BATCH || bytes >= BATCH_LEN {
                return true;
            }
        }
        false
    }
}

/// What is known of each frame: it has not left this machine.
fn rx_meta() -> RxMeta {
    RxMeta {
        checksum_ok: true,
        ..RxMeta::default()
    }
}

impl TxSink for Shm {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.retry();
        if self.waits.is_some() {
            return None;
        }
        self.sent.resize(len, 0);
        Some(&mut self.sent)
    }

    fn submit(&mut self) {
        let frame = std::mem::take(&mut self.sent);
        self.send([&frame, &[], &[]]);
        if self.waits.is_none() {
            self.sent = frame;
        }
    }

    fn submit_partial(&mut self, _: TxMeta, [first, rest]: [&[u8]; 2]) {
        let head = std::mem::take(&mut self.sent);
        self.send([&head, first, rest]);
        if self.waits.is_none() {
            self.sent = head;
        }
    }
}

impl Link for Shm {
    fn fd(&self) -> BorrowedFd<'_> {
        self.membership.wake.as_fd()
    }

    fn offload(&self) -> Offload {
        Offload::ALL
    }

    fn receive(&mut self, take: &mut RxSink<'_>) -> io::Result<bool> {
        Ok(self.receive_each(|shm, ring| {
            let from = &mut shm.from[ring];
            let len = from.peek()?;
            let frame = shm.received.get_mut(..len)?;
            from.read(0, frame);
            from.take(len);
            take(frame, rx_meta());
            Some(len)
        }))
    }

    fn receive_to(&mut self, reader: &mut dyn DirectReceiver) -> io::Result<bool> {
        Ok(self.receive_each(|shm, ring| {
            let from = &mut shm.from[ring];
            let len = from.peek()?;
            let frame = shm.received.get_mut(..len)?;
            let (head_len, out) = reader.buffer();
            let count = len.saturating_sub(head_len);
            let is_placed = match out.get_mut(..count) {
                Some(out) if count > 0 => {
                    let head = &mut frame[..head_len];
                    from.read(0, head);
                    from.read(head_len, out);
                    reader.placed(head, count, rx_meta())
                }
                _ => false,
            };
            if !is_placed {
                from.read(0, frame);
            }
            from.take(len);
            if !is_placed {
                reader.receive(frame, rx_meta());
            }
            Some(len)
        }))
    }

    fn flush(&mut self) {
        self.retry();
        let mut left = std::mem::take(&mut self.unpublished);
        while left != 0 {
            self.publish(left.trailing_zeros() as usize);
            left &= left - 1;
        }
    }

    fn is_full(&self) -> bool {
        self.waits.is_some()
    }

    fn leave(&mut self) {
        self.membership.leave();
    }

    fn arm(&mut self) -> bool {
        let (memory, own) = (&self.membership.memory, self.membership.station);
        if memory.address(own) != self.address {
            memory.set_address(own, self.address);
        }
        let is_armed = frame_ring::arm(&self.from);
        self.was_armed |= is_armed;
        is_armed
    }

    fn next_arrival(&self) -> Option<Duration> {
        let Waits { until, .. } = self.waits?;
        Some(until.saturating_duration_since(Instant::now()))
    }
}
