//! A tapped link: an AF_XDP socket and its rings for each queue of the device.

use crate::config::{Config, Mode};
use crate::error::TapError;
use crate::flow_cache::in_flight::InFlight;
use crate::io::tx_burst::NoBurst;
use crate::shared::members::Members;
use crate::stats::{Counts, LinkCounts};
use crate::trust;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use weir_link::net::Interface;
use weir_link::xdp::{CopyMode, Gate, QUEUES_MAX, Xsk, XskError, XskSpec};
use weir_ring::queue::Corrupt;
use weir_ring::{Frame, Pool, RingSizes, XskQueue};

/// Number of times, for each push, that the kernel is asked to send the frames
/// it has not yet taken.
const KICKS_MAX: usize = 64;

/// Length of a VLAN tag in bytes, which is allowed beyond the MTU: a frame
/// without a tag may be as long, as with the kernel's own bridge
/// (`is_skb_forwardable`).
pub(crate) const TAG_BYTES: usize = 4;

/// Largest number of fragments of a frame that the kernel sends in copy mode:
/// the first, and `MAX_SKB_FRAGS` (`xsk_build_skb`).
const TX_FRAGS_MAX: usize = 18;

/// A tapped link.
#[derive(Debug)]
pub(crate) struct TapLink {
    pub(crate) interface: Interface,
    /// Number of times that this process has tapped the link.
    pub(crate) holders: u32,
    /// The processes that hold the link, as of the last check: bit 0 is process
    /// 1.
    pub(crate) owners: u32,
    pub(crate) mode: CopyMode,
    pub(crate) queues: Vec<Queue>,
    pub(crate) counts: LinkCounts,
    /// Number of frames put before the last push.
    pub(crate) pushed: u64,
    /// Length of the longest frame that can be sent, in bytes: by the present
    /// MTU and the capability of the sockets.
    pub(crate) longest: usize,
    /// The sockets are bound so that a frame may occupy several chunks
    /// (`XDP_USE_SG`).
    pub(crate) frags: bool,
    /// Number of bytes of a frame in a chunk.
    room: usize,
    /// The MTU or [`Interface::running`] has changed, and the application has
    /// not seen it yet.
    pub(crate) is_changed: bool,
    /// Received checksums may have been left to the device and are completed.
    pub(crate) completes: bool,
    /// Whether frames may be sent in bursts without socket buffers; the error
    /// is the reason against it.
    pub(crate) burst: Result<(), NoBurst>,
}

/// A queue of a link.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) ring: XskQueue,
    pub(crate) socket: Xsk,
    /// Frames were put since the last push.
    pub(crate) dirty: bool,
    pub(crate) in_flight: InFlight,
    /// If the rings are shared: frames taken, and frames to be put.
    pub(crate) inbox: VecDeque<Frame>,
    pub(crate) outbox: VecDeque<Frame>,
    /// The ring position of a frame that waits for another process, and since
    /// when.
    pub(crate) stalled: Option<(u32, u64)>,
}

/// The sizes of a queue's rings, which are all equal.
pub(crate) fn sizes(ring: u32) -> RingSizes {
    RingSizes {
        fill: ring,
        rx: ring,
        tx: ring,
        completion: ring,
    }
}

/// The objects that the sockets of all links share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub(crate) pool: &'a Rc<Pool>,
    pub(crate) shared_with: Option<&'a Xsk>,
    pub(crate) mode: Option<CopyMode>,
}

/// The number of a queue among the queues of all links.
fn queue_id(link: usize, queue: u32) -> u16 {
    (link as u32 * QUEUES_MAX + queue) as u16
}

impl TapLink {
    /// A link whose sockets are bound.
    pub(crate) fn of(
        interface: Interface,
        mode: CopyMode,
        completes: bool,
        queues: Vec<Queue>,
        frags: bool,
        room: u32,
    ) -> TapLink {
        let mut link = TapLink {
            interface,
            holders: 1,
            owners: u32::MAX,
            mode,
            queues,
            counts: LinkCounts::default(),
            pushed: 0,
            longest: 0,
            frags,
            room: room as usize,
            is_changed: false,
            completes,
            burst: Err(NoBurst::NotRequested),
        };
        link.measure();
        link
    }

    /// Applies the interface's MTU.
    pub(crate) fn measure(&mut self) {
        let by_mtu = self.interface.frame_bytes_max() + TAG_BYTES;
        let pieces = if self.frags { TX_FRAGS_MAX } else { 1 };
        self.longest = by_mtu.min(self.room * pieces);
    }

    /// The MTU of the link: bytes of the longest packet that can be sent.
    pub(crate) fn mtu(&self) -> usize {
        let header = self.interface.header_bytes() + TAG_BYTES;
        self.longest.saturating_sub(header)
    }

    /// Binds sockets to all queues of an interface.
    pub(crate) fn bind(
        interface: Interface,
        config: &Config,
        shared: Shared<'_>,
        number: usize,
    ) -> Result<TapLink, TapError> {
        let modes: &[CopyMode] = match (shared.mode, config.mode) {
            (Some(CopyMode::Copy), _) | (None, Mode::Only(CopyMode::Copy)) => &[CopyMode::Copy],
            (Some(CopyMode::ZeroCopy), _) | (None, Mode::Only(CopyMode::ZeroCopy)) => {
                &[CopyMode::ZeroCopy]
            }
            (None, Mode::Auto) => &[CopyMode::ZeroCopy, CopyMode::Copy],
        };
        let is_veth = || weir_link::net::driver(&interface.name).is_ok_and(|name| name == "veth");
        let completes = config.complete_checksums.unwrap_or_else(is_veth);
        let room = shared.pool.umem().frame_bytes_max();
        let mut link = TapLink::of(interface, CopyMode::Copy, completes, vec![], true, room);
        for (attempt, mode) in modes.iter().enumerate() {
            link.mode = *mode;
            match link.bind_in_mode(config, shared, number) {
                Ok(()) => break,
                Err(TapError::Socket(XskError::NotByDriver { .. } | XskError::NoQueue { .. }))
                    if attempt + 1 < modes.len() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(link)
    }

    /// Binds with multi-chunk frames if the MTU requires them. In copy mode
    /// does so also below that MTU if the kernel can (Linux 6.6), since the MTU
    /// may be raised later. In zero-copy mode not every driver supports
    /// multi-chunk frames, and all support single-chunk ones.
    fn bind_in_mode(
        &mut self,
        config: &Config,
        shared: Shared<'_>,
        number: usize,
    ) -> Result<(), TapError> {
        let has_to = self.interface.frame_bytes_max() + TAG_BYTES > self.room;
        self.frags = has_to || self.mode == CopyMode::Copy;
        let mut bound = self.bind_queues(config, shared, number);
        if let Err(TapError::Socket(XskError::NoQueue { .. })) = bound
            && self.frags
            && !has_to
        {
            self.frags = false;
            bound = self.bind_queues(config, shared, number);
        }
        self.measure();
        bound
    }

    fn bind_queues(
        &mut self,
        config: &Config,
        shared: Shared<'_>,
        number: usize,
    ) -> Result<(), TapError> {
        self.queues.clear();
        for queue in 0..QUEUES_MAX {
            let spec = XskSpec {
                ifindex: self.interface.index,
                queue,
                sizes: sizes(config.ring),
                mode: self.mode,
                frags: self.frags,
                busy_poll: config.busy_poll,
            };
            let other = shared
                .shared_with
                .or(self.queues.first().map(|q| &q.socket));
            match Xsk::bind(shared.pool.umem(), other, &spec) {
                Ok((socket, rings)) => {
                    let id = queue_id(number, queue);
                    let ring = XskQueue::new(rings, shared.pool, id);
                    self.queues.push(Queue::new(ring, socket));
                }
                // The previous queue was the last.
                Err(XskError::NoQueue { .. }) if queue > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Inserts the sockets into the gate's map, so that frames arrive.
    pub(crate) fn put_sockets(&self, gate: &Gate, number: usize) -> Result<(), TapError> {
        for (queue, at) in self.queues.iter().zip(0..) {
            gate.put_socket(number, at, &queue.socket)?;
        }
        Ok(())
    }

    /// Closes the sockets, and frees their chunks.
    pub(crate) fn end(self) {
        for queue in self.queues {
            drop(queue.socket);
            queue.ring.end();
        }
    }

    /// Whether all frames that were put have been sent.
    pub(crate) fn is_sent(&mut self) -> bool {
        let mut queues = self.queues.iter_mut();
        queues.all(|queue| !queue.dirty && queue.ring.unsent().is_ok_and(|unsent| unsent == 0))
    }

    /// The link's counters with those of the kernel and of the rings added.
    pub(crate) fn counted(&self) -> LinkCounts {
        let mut counts = self.counts;
        for queue in &self.queues {
            let oddities = queue.ring.ring_errors();
            counts.invalid += oddities.invalid;
            counts.rx_dropped += oddities.too_long;
            if let Ok(kernel) = queue.socket.counts() {
                counts.rx_full += kernel.rx_ring_full + kernel.fill_ring_empty;
                // Frames that found no chunk are among them.
                let dropped = kernel.rx_dropped;
                counts.rx_dropped += dropped.saturating_sub(kernel.fill_ring_empty);
                counts.invalid += kernel.rx_invalid + kernel.tx_invalid;
            }
        }
        counts
    }
}

impl Queue {
    fn new(ring: XskQueue, socket: Xsk) -> Queue {
        Queue {
            ring,
            socket,
            dirty: false,
            in_flight: InFlight::default(),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            stalled: None,
        }
    }

    /// A queue that another process has bound to.
    pub(crate) fn of_fd(
        socket: OwnedFd,
        sizes: RingSizes,
        pool: &Rc<Pool>,
        link: usize,
        queue: usize,
    ) -> Result<Queue, XskError> {
        let (socket, rings) = trust::socket(socket, sizes, pool.umem())?;
        let id = queue_id(link, queue as u32);
        Ok(Queue::new(XskQueue::new(rings, pool, id), socket))
    }

    /// Queues a frame for the next push, if the rings are shared; returns the
    /// frame if there is no room.
    #[inline]
    pub(crate) fn enqueue_shared(&mut self, frame: Frame, room: u32) -> Option<Frame> {
        if self.outbox.len() >= room as usize {
            return Some(frame);
        }
        self.outbox.push_back(frame);
        None
    }

    /// Sends queued frames; sends none if another process holds the rings.
    pub(crate) fn push_enqueued(
        &mut self,
        members: &Members,
        mode: CopyMode,
        counts: &mut Counts,
    ) -> Result<(), Push> {
        if self.outbox.is_empty() && !self.dirty {
            return Ok(());
        }
        let pushed = members.with_tx(self, |queue| {
            queue.ring.reap().map_err(Push::Ring)?;
            while let Some(frame) = queue.outbox.pop_front() {
                if let Some(frame) = queue.put(frame).map_err(Push::Ring)? {
                    queue.outbox.push_front(frame);
                    break;
                }
            }
            queue.push(mode, counts)
        });
        pushed.map_err(Push::Ring)?.unwrap_or(Ok(()))
    }

    /// Drops waiting frames that were admitted `before`, except those of epoch
    /// `epoch`, if that is given; returns the number of dropped frames.
    pub(crate) fn drop_old(&mut self, before: u32, epoch: Option<u32>) -> Result<u64, Corrupt> {
        let mut dropped = 0;
        while let Some(frame) = self.ring.take()? {
            self.note(&frame, before);
            match frame.meta().map(|meta| meta as u32) {
                now if epoch.is_some() && now == epoch => self.inbox.push_back(frame),
                _ => dropped += 1,
            }
        }
        self.ring.release();
        Ok(dropped)
    }

    /// Puts a frame into the tx ring; returns the frame if there is no room.
    #[inline]
    pub(crate) fn put(&mut self, frame: Frame) -> Result<Option<Frame>, Corrupt> {
        let left = self.ring.put(frame)?;
        self.dirty |= left.is_none();
        Ok(left)
    }

    /// Asks the device to receive.
    pub(crate) fn kick_rx(&self, counts: &mut Counts) -> Result<(), TapError> {
        counts.syscalls_rx += 1;
        self.socket.kick_rx().map_err(|source| TapError::System {
            what: "have the device receive",
            source,
        })
    }

    /// Has the kernel send the frames that were put: one system call, if it
    /// takes all at once.
    pub(crate) fn push(&mut self, mode: CopyMode, counts: &mut Counts) -> Result<(), Push> {
        if !self.dirty {
            return Ok(());
        }
        self.ring.submit();
        if mode == CopyMode::ZeroCopy && !self.ring.wants_tx_kick() {
            self.dirty = false;
            return Ok(());
        }
        for _ in 0..KICKS_MAX {
            counts.syscalls_tx += 1;
            let all = match self.socket.kick_tx() {
                Ok(all) => all,
                Err(error) => return self.refused(error),
            };
            if all || mode == CopyMode::ZeroCopy || self.ring.unsent().map_err(Push::Ring)? == 0 {
                break;
            }
            // The kernel requires that completed chunks are taken back first.
            self.ring.reap().map_err(Push::Ring)?;
        }
        self.dirty = mode == CopyMode::Copy && self.ring.unsent().map_err(Push::Ring)? > 0;
        Ok(())
    }

    /// Handles an error of the kernel; on a link that is down, frames are
    /// dropped.
    fn refused(&mut self, error: io::Error) -> Result<(), Push> {
        self.dirty = false;
        let code = error.raw_os_error().unwrap_or_default();
        match Errno::from_raw_os_error(code) {
            Errno::NETDOWN | Errno::NXIO | Errno::NODEV => {
                let dropped = self.ring.reclaim_unsent().map_err(Push::Ring)?;
                Err(Push::Down(dropped))
            }
            _ => Err(Push::System(error)),
        }
    }
}

/// The reason why a push did not send.
pub(crate) enum Push {
    /// The link is down or gone; the number of dropped frames.
    Down(u32),
    /// The ring is corrupt.
    Ring(Corrupt),
    /// Any other system error.
    System(io::Error),
}
