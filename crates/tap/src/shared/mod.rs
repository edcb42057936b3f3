//! Several processes on one tap: sharing, joining, leaving, and cleaning up
//! after a dead process.
//!
//! Every process has every descriptor, including the socket on which it listens
//! for joining processes: any survivor can continue with all of it, and the
//! kernel returns the interfaces when the last process has ended.

pub(super) mod fd_passing;
pub(super) mod members;

use crate::config::{Config, check};
use crate::error::TapError;
use crate::io::queue::{Queue, TapLink, sizes};
use crate::io::tx_burst::NoBurst;
use crate::tap::Tap;
use crate::trust;
use fd_passing::Message;
use members::{MEMBER_POLL_NS, Members, is_alive, number};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use weir_link::bpf::Hook;
use weir_link::net::Interface;
use weir_link::xdp::{
    CopyMode, Gate, GateFds, LinkFds, LivenessLock, MEMBERS_MAX, QUEUES_MAX, SharedPage,
};
use weir_ring::Pool;
use weir_ring::robust_lock::LockOwner;
use weir_ring::shared_queue::reclaim;
use weir_ring::umem::ChunkCounts;

/// `weirtap2`: identifies the layout of the messages.
const GREETING: &[u8; 8] = b"weirtap2";

/// Largest number of links of a tap.
const LINKS_MAX: u16 = weir_link::xdp::LINKS_MAX as u16;

/// Length of a link's message before its name, in bytes.
const LINK_BYTES: usize = 14;

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> TapError {
    move |source| TapError::System { what, source }
}

impl Tap {
    /// Lets other processes [join](Self::join) the tap at this path: a socket
    /// to which only this user may connect. The links are the present ones.
    ///
    /// # Errors
    /// If another tap is shared there, or the system refuses.
    pub fn share(&mut self, at: &Path) -> Result<(), TapError> {
        if self.members.is_some() {
            return Err(TapError::IsShared);
        }
        // The death of the process with the cache would not end its entries.
        if self.flow_cache.is_some() {
            return Err(TapError::Remembers);
        }
        self.lock_liveness()?;
        self.burst = Err(NoBurst::Shared);
        let listener = fd_passing::listen_at(at).map_err(|source| TapError::CannotShare {
            path: at.to_owned(),
            source,
        })?;
        let me = self.pool.me();
        let umem = self.pool.umem();
        let me = LockOwner::new(me, umem.next_generation(me));
        self.pool.share();
        let word = self.liveness.take().expect("held just before");
        let members = Members::new(&self.page, me, word, listener, at.to_owned());
        for (link, number) in self.links.iter_mut().zip(0..) {
            let Some(link) = link else { continue };
            umem.link_holders(number)
                .store(members.bit(), Ordering::Release);
            for queue in &mut link.queues {
                queue.ring.release();
                queue.ring.submit();
                queue.ring.share(me);
            }
        }
        self.members = Some(members);
        Ok(())
    }

    /// Joins a tap that another process shares at this path, with the same
    /// links under the same numbers; each frame goes to one of the processes.
    /// Of the configuration only `reserved`, `spin` and `complete_checksums`
    /// apply; the other settings are the tap's.
    ///
    /// # Errors
    /// If no tap is shared there, or 16 processes share it already.
    pub fn join(at: &Path, config: Config) -> Result<Tap, TapError> {
        check(&config)?;
        let unreachable = |source| TapError::NotShared {
            path: at.to_owned(),
            source,
        };
        let peer = fd_passing::connect_to(at).map_err(unreachable)?;
        let message = fd_passing::receive(&peer).map_err(unreachable)?;
        let (links, ring, given) = greeting(message).ok_or(TapError::OtherVersion)?;
        let mut gate = Gate::from_fds(given.gate)?;
        let page = Rc::clone(gate.page());
        let umem = trust::memory(given.umem)?;
        let config = Config {
            ring,
            chunks: umem.chunks(),
            chunk_bytes: umem.chunk_bytes(),
            bypass: page.bypass(),
            hang_max: page.limit(),
            busy_poll: None,
            ..config
        };
        check(&config)?;
        let word = free_liveness_lock(&page)?;
        let me = number(word.slot());
        let me = LockOwner::new(me, umem.next_generation(me));
        let pool = Pool::join(umem, me.number(), config.reserved);
        let mut own = Vec::new();
        let word_slot = word.slot();
        let joined = (0..links).try_for_each(|_| {
            let message = fd_passing::receive(&peer).map_err(unreachable)?;
            joined(message, &config, &pool, me, &mut gate, &mut own)
        });
        if let Err(error) = joined {
            // While this process holds the word: no other cleans up after it.
            for link in 0..LINKS_MAX {
                let holders = pool.umem().link_holders(link);
                holders.fetch_and(!(1 << word_slot), Ordering::AcqRel);
            }
            return Err(error);
        }
        let members = Members::new(&page, me, word, given.listener, at.to_owned());
        let mut tap = Tap::of(config, gate, pool, given.outlives);
        tap.links = own;
        tap.members = Some(members);
        // The state of a dead process with this number that was not cleaned up.
        tap.reclaim(me.number());
        for link in 0..LINKS_MAX {
            // Including links that are untapped by now.
            if !tap
                .links
                .get(usize::from(link))
                .is_some_and(Option::is_some)
            {
                let holders = tap.pool.umem().link_holders(link);
                holders.fetch_and(!(1 << word_slot), Ordering::AcqRel);
            }
        }
        tap.refresh_owners();
        tap.pool.ready(config.reserved);
        Ok(tap)
    }

    /// Whether the tap is shared.
    pub fn is_shared(&self) -> bool {
        self.members.is_some()
    }

    /// Number of processes that share the tap, this one included.
    pub fn members(&self) -> usize {
        let alive = (0..MEMBERS_MAX).filter(|slot| is_alive(&self.page, number(*slot)));
        alive.count().max(1)
    }

    /// Periodic work: detects dead processes, and answers joining ones.
    #[inline]
    pub(crate) fn housekeep(&mut self, now: u64) -> Result<(), TapError> {
        match &mut self.members {
            Some(members) if now.saturating_sub(members.polled_at) >= MEMBER_POLL_NS => {
                members.polled_at = now;
            }
            _ => return Ok(()),
        }
        self.find_dead()
    }

    #[cold]
    fn find_dead(&mut self) -> Result<(), TapError> {
        let Some(members) = &mut self.members else {
            return Ok(());
        };
        let mut first = Ok(());
        for slot in members.count() {
            // The process that gets the word cleans up; the others see it
            // alive.
            if let Ok(Some(word)) = self.page.lock_liveness(slot) {
                self.reclaim(number(slot));
                // Try all of them, despite an error: no process comes after
                // this one.
                for link in 0..LINKS_MAX {
                    first = first.and(self.release_link(link, 1 << slot).map(drop));
                }
                drop(word);
            }
        }
        // The last holder may have been unable to return the link.
        for link in 0..LINKS_MAX {
            let holders = self.pool.umem().link_holders(link);
            let is_ours = self.gate.link_fds(link.into()).is_some();
            if is_ours && holders.load(Ordering::Acquire) == 0 {
                let _ = self.gate.remove(link.into());
            }
        }
        self.refresh_owners();
        first.and(self.tend())?;
        let Some(members) = &self.members else {
            return Ok(());
        };
        while let Some(peer) = fd_passing::accept(members.listener.as_fd()) {
            // A peer that does not take the descriptors has left.
            let _ = self.send_fds(&peer);
        }
        Ok(())
    }

    /// Updates the holders of each link, among which its queues are divided.
    fn refresh_owners(&mut self) {
        for (link, number) in self.links.iter_mut().zip(0..) {
            if let Some(link) = link {
                let holders = self.pool.umem().link_holders(number);
                link.owners = holders.load(Ordering::Acquire);
            }
        }
    }

    /// Takes back sent chunks, and lends chunks, on all links.
    pub(crate) fn tend(&mut self) -> Result<(), TapError> {
        let Some(members) = &self.members else {
            return Ok(());
        };
        for link in self.links.iter_mut().flatten() {
            for queue in &mut link.queues {
                let tended = members.tend(queue);
                tended.map_err(|error| crate::tap::ring_error(&link.interface, error))?;
            }
        }
        Ok(())
    }

    /// Frees the resources of a dead process, as the holder of its death word.
    fn reclaim(&mut self, dead: u16) {
        let page = &self.page;
        let links = self.links.iter_mut().flatten().chain(&mut self.untapped);
        let queues = links.flat_map(|link| &mut link.queues);
        let rings = queues.map(|queue| &mut queue.ring);
        let alive = |number| is_alive(page, number);
        let freed = reclaim(self.pool.umem(), dead, rings, alive);
        self.counts.reclaimed += u64::from(freed.unwrap_or_default());
    }

    /// Releases a process's hold on a link; with the last hold the link returns
    /// to the host. Returns whether this was the last.
    pub(crate) fn release_link(&mut self, link: u16, who: u32) -> Result<bool, TapError> {
        let holders = self.pool.umem().link_holders(link);
        let before = holders.fetch_and(!who, Ordering::AcqRel);
        let is_last = before & who != 0 && before & !who == 0;
        if is_last {
            self.gate.remove(usize::from(link))?;
        }
        Ok(is_last)
    }

    /// Sends all descriptors to a joining process.
    fn send_fds(&self, to: &OwnedFd) -> io::Result<()> {
        let Some(members) = &self.members else {
            return Ok(());
        };
        let gate = self.gate.fds();
        let mut bytes = GREETING.to_vec();
        bytes.extend((self.links().count() as u32).to_ne_bytes());
        bytes.extend(self.config.ring.to_ne_bytes());
        bytes.push(u8::from(self.outlives));
        let fds = vec![
            self.pool.umem().as_fd(),
            gate.page,
            gate.sockets,
            gate.peers,
            members.listener.as_fd(),
        ];
        fd_passing::send(to, &(bytes, fds))?;
        for (link, number) in self.links.iter().zip(0..) {
            let link_fds = self.gate.link_fds(number);
            if let (Some(link), Some(link_fds)) = (link, link_fds) {
                fd_passing::send(to, &link_message(link, number as u32, link_fds))?;
            }
        }
        Ok(())
    }

    /// Leaves the shared tap and releases everything; returns the chunk counts,
    /// and whether this was the last process.
    pub(crate) fn leave(&mut self) -> Result<(ChunkCounts, bool), TapError> {
        let pushed = self.push();
        let Some(mut members) = self.members.take() else {
            return Ok((self.pool.chunk_counts(), true));
        };
        let links = self.links.iter_mut().flatten().chain(&mut self.untapped);
        let mut queues = 0;
        for queue in links.flat_map(|link| &mut link.queues) {
            queue.inbox.clear();
            queue.outbox.clear();
            queues += 1;
        }
        // A frame is held elsewhere: its chunk belongs to this process as long
        // as the thread lives, and so does the process number.
        let has_frames = Rc::strong_count(&self.pool) > 1 + queues;
        let is_last = !members.has_others();
        if is_last {
            self.page.shut();
        }
        if !has_frames {
            self.reclaim(members.me.number());
        }
        for link in 0..LINKS_MAX {
            if is_last {
                let holders = self.pool.umem().link_holders(link);
                holders.fetch_and(!members.bit(), Ordering::AcqRel);
            } else {
                // Other processes share the tap, but perhaps not this link. If
                // the gate is gone, there is nothing to remove from it.
                let _ = self.release_link(link, members.bit());
            }
        }
        let census = self.pool.chunk_counts();
        if !has_frames {
            drop(members.liveness.take());
        }
        if is_last {
            let _ = std::fs::remove_file(&members.path);
        }
        pushed.map(|()| (census, is_last))
    }
}

/// Acquires a free death word.
fn free_liveness_lock(page: &Rc<SharedPage>) -> Result<LivenessLock, TapError> {
    for slot in 0..MEMBERS_MAX {
        let held = page.lock_liveness(slot);
        if let Some(word) = held.map_err(failed("have the kernel watch for this thread's end"))? {
            return Ok(word);
        }
    }
    Err(TapError::Full)
}

struct JoinOffer {
    umem: OwnedFd,
    gate: GateFds<OwnedFd>,
    listener: OwnedFd,
    outlives: bool,
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Parses the greeting: number of links, ring length, and the shared objects.
fn greeting((bytes, fds): Message<OwnedFd>) -> Option<(u32, u32, JoinOffer)> {
    let [umem, page, sockets, peers, listener] = <[OwnedFd; 5]>::try_from(fds).ok()?;
    let is_known = bytes.starts_with(GREETING);
    let (links, ring) = (number_at(&bytes, 8)?, number_at(&bytes, 12)?);
    let is_possible = links <= weir_link::xdp::LINKS_MAX;
    let gate = GateFds {
        page,
        sockets,
        peers,
    };
    let given = JoinOffer {
        umem,
        gate,
        listener,
        outlives: *bytes.get(16)? != 0,
    };
    (is_known && is_possible).then_some((links, ring, given))
}

/// Encodes a link: its numbers, its mode, the list of descriptors that follow,
/// and its name.
fn link_message<'a>(
    link: &'a TapLink,
    number: u32,
    link_fds: LinkFds<BorrowedFd<'a>>,
) -> Message<BorrowedFd<'a>> {
    let mut bytes = number.to_ne_bytes().to_vec();
    bytes.extend(link_fds.ifindex.to_ne_bytes());
    bytes.push(u8::from(link_fds.hook == Hook::XdpGeneric));
    bytes.push(u8::from(link.mode == CopyMode::ZeroCopy));
    bytes.push(u8::from(link.completes));
    bytes.push(u8::from(link_fds.tc.is_some()));
    bytes.push(u8::from(link_fds.promiscuous.is_some()));
    bytes.push(u8::from(link.frags));
    bytes.extend(link.interface.name.as_bytes());
    let mut fds = vec![link_fds.xdp];
    fds.extend(link_fds.tc);
    fds.extend(link_fds.promiscuous);
    fds.extend(link.queues.iter().map(|queue| queue.socket.as_fd()));
    (bytes, fds)
}

/// Adopts a link of another process, unless its last holder has released it
/// since the message was sent.
fn joined(
    (bytes, fds): Message<OwnedFd>,
    config: &Config,
    pool: &Rc<Pool>,
    me: LockOwner,
    gate: &mut Gate,
    own: &mut Vec<Option<TapLink>>,
) -> Result<(), TapError> {
    let (Some(number), Some(ifindex)) = (number_at(&bytes, 0), number_at(&bytes, 4)) else {
        return Err(TapError::OtherVersion);
    };
    if number >= weir_link::xdp::LINKS_MAX {
        return Err(TapError::OtherVersion);
    }
    let bit = 1 << (me.number() - 1);
    let holders = pool.umem().link_holders(number as u16);
    if holders.fetch_or(bit, Ordering::AcqRel) & !bit == 0 {
        return Ok(());
    }
    let flag = |at: usize| bytes.get(at).is_some_and(|flag| *flag != 0);
    let name = String::from_utf8_lossy(bytes.get(LINK_BYTES..).unwrap_or_default()).into_owned();
    // In another network namespace this ifindex would be another interface.
    let interface = Interface::numbered(ifindex).ok();
    let interface = interface.filter(|interface| interface.name == name);
    let interface = interface.ok_or(TapError::Elsewhere { interface: name })?;
    let mut fds = fds.into_iter();
    let missing = || TapError::OtherVersion;
    let link_fds = LinkFds {
        ifindex,
        hook: if flag(8) {
            Hook::XdpGeneric
        } else {
            Hook::XdpNative
        },
        xdp: fds.next().ok_or_else(missing)?,
        tc: if flag(11) { fds.next() } else { None },
        promiscuous: if flag(12) { fds.next() } else { None },
    };
    let mode = if flag(9) {
        CopyMode::ZeroCopy
    } else {
        CopyMode::Copy
    };
    let number = number as usize;
    if fds.len() > QUEUES_MAX as usize {
        return Err(TapError::OtherVersion);
    }
    gate.add_fds(number, link_fds)?;
    let mut queues = Vec::new();
    for socket in fds {
        let mut queue = Queue::of_fd(socket, sizes(config.ring), pool, number, queues.len())?;
        queue.ring.share(me);
        queues.push(queue);
    }
    while own.len() <= number {
        own.push(None);
    }
    let completes = config.complete_checksums.unwrap_or(flag(10));
    let room = pool.umem().frame_bytes_max();
    own[number] = Some(TapLink::of(
        interface,
        mode,
        completes,
        queues,
        flag(13),
        room,
    ));
    Ok(())
}

#[cfg(test)]
mod tests;
