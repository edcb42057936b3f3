//! [`Tap`]: a TAP interface, with this machine's kernel at the other end.

use super::{BATCH, DirectReceiver, Link, RxSink};
use rustix::io::Errno;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use weir_link::net::{self, TapGso, TapHeader, WriteBatch};
use weir_ring::frame_ring::FRAME_LEN_MAX;
use weir_stack::TxSink;
use weir_stack::iface::{BURST_MAX, BurstFrame, Offload, RxMeta, TxMeta};
use weir_wire::{ethernet, ipv6};

/// Length of the driver's header and the longest headers of a frame.
const HEAD_LEN_MAX: usize = TapHeader::LEN + ethernet::Repr::LEN + ipv6::Repr::LEN + 60;

/// Bytes after which one call hands over no further frame: four of the longest frames, which
/// are still in the caches when they are read.
const BATCH_LEN: usize = 240_000;
/// As above, if a read takes them: two.
const READ_LEN: usize = 120_000;

/// One end of a TAP interface, as a link.
#[derive(Debug)]
pub struct Tap {
    tap: net::Tap,
    /// Length of the header before each frame: that of [`TapHeader`], or 0.
    header_len: usize,
    received: Vec<u8>,
    /// The frame that is being sent, after its header, and the length of both.
    sent: Vec<u8>,
    sent_len: usize,
    /// The frame was not taken and must be sent first.
    is_full: bool,
    /// Sends several frames at once, if the system supports it.
    run: Option<WriteBatch>,
}

impl Tap {
    /// Opens or creates the interface, with offloads: the kernel and the host exchange TCP
    /// segments of up to 64 KB without computed checksums. See [`net::Tap::open_offloading`].
    ///
    /// # Errors
    /// As [`net::Tap::open_offloading`].
    pub fn open(name: &str) -> io::Result<Tap> {
        net::Tap::open_offloading(name).map(|tap| Tap::of(tap, TapHeader::LEN))
    }

    /// As [`Tap::open`], without offloads.
    ///
    /// # Errors
    /// As [`Tap::open`].
    pub fn open_plain(name: &str) -> io::Result<Tap> {
        net::Tap::open(name).map(|tap| Tap::of(tap, 0))
    }

    /// As [`Tap::open`] for an existing interface, whether it was created with one queue or with
    /// several; without offloads if the kernel lacks them.
    ///
    /// # Errors
    /// As [`Tap::open`].
    pub fn open_any(name: &str) -> io::Result<Tap> {
        let several = |offloads: bool, header_len| {
            let mut queues = net::Tap::open_queues(name, 1, offloads)?;
            let tap = queues.pop().ok_or(Errno::INVAL)?;
            Ok(Tap::of(tap, header_len))
        };
        let is_other =
            |error: &io::Error| error.raw_os_error() == Some(Errno::INVAL.raw_os_error());
        let mut opened = Tap::open(name);
        let ways: [&dyn Fn() -> io::Result<Tap>; 3] = [
            &|| several(true, TapHeader::LEN),
            &|| Tap::open_plain(name),
            &|| several(false, 0),
        ];
        for way in ways {
            match opened {
                Err(error) if is_other(&error) => opened = way(),
                done => return done,
            }
        }
        opened
    }

    /// As [`Tap::open`], for an interface with `count` queues and a host with as many stacks:
    /// see [`net::Tap::open_queues`].
    ///
    /// # Errors
    /// As [`net::Tap::open_queues`].
    pub fn queues(name: &str, count: usize) -> io::Result<Vec<Box<dyn Link>>> {
        let taps = net::Tap::open_queues(name, count, true)?;
        Ok(boxed(taps, TapHeader::LEN))
    }

    /// As [`Tap::queues`], without offloads.
    ///
    /// # Errors
    /// As [`Tap::queues`].
    pub fn queues_plain(name: &str, count: usize) -> io::Result<Vec<Box<dyn Link>>> {
        let taps = net::Tap::open_queues(name, count, false)?;
        Ok(boxed(taps, 0))
    }

    fn of(tap: net::Tap, header_len: usize) -> Tap {
        Tap {
            tap,
            header_len,
            received: vec![0; TapHeader::LEN + FRAME_LEN_MAX],
            sent: vec![0; TapHeader::LEN + FRAME_LEN_MAX],
            sent_len: 0,
            is_full: false,
            run: (header_len > 0).then(WriteBatch::new).and_then(Result::ok),
        }
    }

    /// Sends frames in one system call; false if that is impossible. Frames for which the kernel
    /// has no memory are lost, as on a wire.
    fn send_run(&mut self, frames: &[BurstFrame<'_>]) -> bool {
        let Some(run) = &mut self.run else {
            return false;
        };
        let mut heads = [[0; HEAD_LEN_MAX]; BURST_MAX];
        for (head, frame) in heads.iter_mut().zip(frames) {
            let (first, rest) = head.split_at_mut(TapHeader::LEN);
            first.copy_from_slice(&header(frame.meta).to_bytes());
            rest[..frame.head.len()].copy_from_slice(frame.head);
        }
        let writes: [_; BURST_MAX] = std::array::from_fn(|at| {
            let Some(frame) = frames.get(at) else {
                return [&[][..]; 3].map(IoSlice::new);
            };
            let head = &heads[at][..TapHeader::LEN + frame.head.len()];
            [head, frame.payload[0], frame.payload[1]].map(IoSlice::new)
        });
        let written = run.write(self.tap.as_fd(), &writes[..frames.len()]);
        written.is_ok()
    }

    /// The metadata in the driver's header of the last received frame.
    fn rx_meta(&self) -> RxMeta {
        let header = match self.header_len {
            0 => None,
            _ => TapHeader::parse(&self.received),
        };
        RxMeta {
            checksum_ok: header.is_some_and(|header| header.needs_checksum || header.checked),
            ..RxMeta::default()
        }
    }

    /// Sends the frame. A frame to an interface that is down is lost, as on an unplugged cable.
    fn send(&mut self) {
        let sent = self.tap.send(&self.sent[..self.sent_len]);
        self.is_full = matches!(sent, Ok(false));
    }
}

/// The length of a received frame; `None` if there is none.
fn came(received: io::Result<Option<usize>>) -> io::Result<Option<usize>> {
    match received {
        // The interface is down, not gone.
        Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => Ok(None),
        received => received,
    }
}

fn boxed(taps: Vec<net::Tap>, header_len: usize) -> Vec<Box<dyn Link>> {
    let boxed = |tap| Box::new(Tap::of(tap, header_len)) as Box<dyn Link>;
    taps.into_iter().map(boxed).collect()
}

impl TxSink for Tap {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.is_full {
            self.send();
        }
        if self.is_full {
            return None;
        }
        self.sent_len = self.header_len + len;
        if self.sent.len() < self.sent_len {
            self.sent.resize(self.sent_len, 0);
        }
        Some(&mut self.sent[self.header_len..self.sent_len])
    }

    fn submit(&mut self) {
        self.sent[..self.header_len].fill(0);
        self.send();
    }

    fn submit_partial(&mut self, partial: TxMeta, payload: [&[u8]; 2]) {
        let header = header(partial).to_bytes();
        self.sent[..TapHeader::LEN].copy_from_slice(&header);
        let [first, rest] = payload;
        let head = &self.sent[..self.sent_len];
        let sent = self.tap.send_all(&[head, first, rest].map(IoSlice::new));
        self.is_full = matches!(sent, Ok(false));
        if self.is_full {
            // The frame is sent later, when the payload may have moved.
            for part in payload {
                let end = self.sent_len + part.len();
                self.sent[self.sent_len..end].copy_from_slice(part);
                self.sent_len = end;
            }
        }
    }

    fn submit_burst(&mut self, run: &[BurstFrame<'_>]) -> usize {
        if self.is_full {
            self.send();
        }
        let longest = run.iter().map(|frame| frame.head.len()).max();
        if self.is_full || longest > Some(HEAD_LEN_MAX - TapHeader::LEN) {
            return 0;
        }
        let run = &run[..run.len().min(BURST_MAX)];
        if self.send_run(run) {
            return run.len();
        }
        let taken = run.iter().take_while(|frame| {
            let Some(room) = self.reserve(frame.head.len()) else {
                return false;
            };
            room.copy_from_slice(frame.head);
            self.submit_partial(frame.meta, frame.payload);
            true
        });
        taken.count()
    }
}

/// The driver's header for a sent frame.
fn header(partial: TxMeta) -> TapHeader {
    let mut header = TapHeader {
        needs_checksum: true,
        checksum_start: partial.checksum_start,
        checksum_offset: partial.checksum_offset,
        ..TapHeader::default()
    };
    if let Some(gso) = partial.gso {
        header.gso = if gso.v6 { TapGso::Tcp6 } else { TapGso::Tcp4 };
        header.gso_size = gso.size;
        header.header_len = gso.header_len;
    }
    header
}

impl Link for Tap {
    fn fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }

    fn offload(&self) -> Offload {
        match self.header_len {
            0 => Offload::default(),
            _ => Offload {
                burst: self.run.as_ref().map_or(1, |_| BURST_MAX as u8),
                ..Offload::ALL
            },
        }
    }

    fn receive(&mut self, take: &mut RxSink<'_>) -> io::Result<bool> {
        let mut left = BATCH_LEN;
        for _ in 0..BATCH {
            let Some(len) = came(self.tap.receive(&mut self.received))? else {
                return Ok(false);
            };
            if let Some(frame) = self.received.get(self.header_len..len) {
                take(frame, self.rx_meta());
            }
            left = left.saturating_sub(len);
            if left == 0 {
                break;
            }
        }
        Ok(true)
    }

    fn receive_to(&mut self, reader: &mut dyn DirectReceiver) -> io::Result<bool> {
        if self.header_len == 0 {
            // Frames without the driver's header have no checked checksum.
            return self.receive(&mut |frame, received| reader.receive(frame, received));
        }
        let mut left = READ_LEN;
        for _ in 0..BATCH {
            let (head_len, out) = reader.buffer();
            let start = (self.header_len + head_len).min(self.received.len());
            // What does not fit there lies behind the hole that it leaves.
            let room = out.len().min(self.received.len() - start);
            let (head, tail) = self.received.split_at_mut(start);
            let parts = [head, &mut out[..room], &mut tail[room..]];
            let Some(len) = came(self.tap.receive_all(&mut parts.map(IoSliceMut::new)))? else {
                return Ok(false);
            };
            left = left.saturating_sub(len);
            let count = len.saturating_sub(start).min(room);
            let fits = count > 0 && len == start + count;
            let head = &self.received[self.header_len..start];
            if !fits || !reader.placed(head, count, self.rx_meta()) {
                let (_, out) = reader.buffer();
                let out = out.get(..count).unwrap_or_default();
                self.received[start..start + out.len()].copy_from_slice(out);
                if let Some(frame) = self.received.get(self.header_len..len) {
                    reader.receive(frame, self.rx_meta());
                }
            }
            if left == 0 {
                break;
            }
        }
        Ok(true)
    }

    fn is_full(&self) -> bool {
        self.is_full
    }
}
