//! [`NetState`], which the lock guards: the stack, the links, and the waiters of each socket.

use super::leader::{Leadership, WakeVia};
use crate::net::io::direct_read::DirectRead;
use crate::net::io::links::{LinkSlot, Links};
use crate::net::shards::shard_io::ShardIo;
use crate::net::sock::readiness::{Interest, Readiness, SocketWaiters, Waiters};
use crate::net::sock::ready_fd::Hide;
use crate::net::sock::ready_list::ReadyList;
use rustix::io::Errno;
use rustix::net::SocketType;
use std::collections::HashMap;
use std::task::Waker;
use std::time::{Duration, Instant};
use weir_stack::Stack;
use weir_stack::tcp::{self, ListenerId, TcpError, TcpId};
use weir_stack::udp::UdpId;

/// Longest wait of the thread when no timer runs.
const REST_MAX: Duration = Duration::from_secs(3600);

/// How often one call delivers what the host sends to itself; the rest is for the driver.
const LOOPS_MAX: usize = 64;

/// Identifies a socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Id {
    Stream(TcpId),
    Listener(ListenerId),
    Udp(UdpId),
}

impl Id {
    /// The type of the socket.
    pub(crate) fn kind(self) -> SocketType {
        match self {
            Id::Stream(_) | Id::Listener(_) => SocketType::STREAM,
            Id::Udp(_) => SocketType::DGRAM,
        }
    }
}

pub(crate) struct NetState {
    pub(crate) stack: Stack,
    links: Links,
    /// The exchange with the host's other stacks, if there are several.
    shard_io: Option<Box<ShardIo>>,
    socket_waiters: HashMap<Id, SocketWaiters>,
    /// When the stack must be polled.
    next_ns: Option<u64>,
    /// Until when the driver waits, in nanoseconds; 0 while it does not wait.
    rests_until_ns: u64,
    /// When the net ends at the latest; it ends earlier once no connection needs it.
    pub(in crate::net) stop_at: Option<Instant>,
    pub(in crate::net) received: u64,
    /// UDP sockets whose senders wait for a full link.
    tx_blocked: Vec<Id>,
    /// Threads that wait for events of addresses and routers.
    pub(in crate::net) event_waiters: Waiters,
    /// The host has ended.
    shut_down: bool,
    /// A thread that drives the host has panicked: the stack may be in any state and is not
    /// called again.
    failed: bool,
    /// Tasks to be woken once the lock is released.
    tasks: Vec<Waker>,
    /// The event that the leading call waits for, while it does not hold the lock.
    pub(in crate::net) leader: Option<(Id, Interest)>,
    /// The driver must be woken: the awaited event has happened, or the wait is too long.
    wakes: bool,
    /// When the stack was last polled.
    now_ns: u64,
    pub(in crate::net) leadership: Leadership,
    /// Hides descriptors from the application.
    pub(in crate::net) hide: Hide,
    /// Number of changes of descriptors' readiness.
    pub(in crate::net) fd_changes: u64,
    /// The event that the polling call waits for and takes: the descriptor does not show it.
    pub(in crate::net) awaited: Option<(Id, Interest)>,
}

impl NetState {
    pub(in crate::net) fn new(
        stack: Stack,
        links: Vec<LinkSlot>,
        part: Option<Box<ShardIo>>,
    ) -> NetState {
        NetState {
            stack,
            links: Links::new(links),
            shard_io: part,
            socket_waiters: HashMap::new(),
            next_ns: None,
            rests_until_ns: 0,
            stop_at: None,
            received: 0,
            tx_blocked: Vec::new(),
            event_waiters: Waiters::default(),
            shut_down: false,
            failed: false,
            tasks: Vec::new(),
            leader: None,
            wakes: false,
            now_ns: 0,
            leadership: Leadership::new(),
            hide: |fd| fd,
            fd_changes: 0,
            awaited: None,
        }
    }

    /// Whether the thread should end.
    pub(in crate::net) fn is_over(&self) -> bool {
        let Some(at) = self.stop_at else {
            return false;
        };
        if self.failed {
            return true;
        }
        let late = Instant::now() >= at;
        let own = self.is_gone() || late || self.stack.tcp_orphans() == 0;
        match &self.shard_io {
            None => own,
            Some(part) => part.is_over(own) || late,
        }
    }

    /// Ends the host and releases its DHCP leases.
    pub(in crate::net) fn shut_down(&mut self, now_ns: u64) {
        if self.failed {
            return;
        }
        if self.shard_io.is_some() {
            // Frames that other stacks have handed over before they ended.
            self.receive(now_ns);
        }
        self.shut_down = true;
        self.stack.release(now_ns);
        self.settle(now_ns);
        self.event_waiters.notify(&mut self.tasks);
    }

    /// Fails the host: no frame is sent or received any more, and all waiters are notified.
    pub(in crate::net) fn fail(&mut self) {
        self.failed = true;
        self.shut_down = true;
        self.leader = None;
        self.links.lose_all();
        self.notify_all_gone();
        self.event_waiters.notify(&mut self.tasks);
    }

    /// Leaves the links, as the process ends.
    pub(in crate::net) fn leave_links(&mut self) {
        self.links.leave();
    }

    /// Whether the host has failed, so that calls must not use the stack.
    pub(crate) fn is_failed(&self) -> bool {
        self.failed
    }

    fn notify_all_gone(&mut self) {
        self.wakes = true;
        for watch in self.socket_waiters.values_mut() {
            watch.show(Readiness::GONE);
            watch.notify(Readiness::GONE, &mut self.tasks);
        }
    }

    pub(in crate::net) fn is_shut_down(&self) -> bool {
        self.shut_down
    }

    /// Whether all links are gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.links.are_gone()
    }

    pub(in crate::net) fn links(&self) -> &Links {
        &self.links
    }

    /// Fails with `ENETDOWN` if all links are gone.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.is_gone() {
            Err(Errno::NETDOWN)
        } else {
            Ok(())
        }
    }

    /// Applies the host's present addresses and routes, which the first stack has published.
    pub(crate) fn apply_addressing(&mut self) {
        if let Some(part) = &mut self.shard_io {
            part.apply_addressing(&mut self.stack);
        }
    }

    /// Receives the frames that have arrived.
    pub(crate) fn receive(&mut self, now_ns: u64) {
        if !self.begins_to_receive(now_ns) {
            return;
        }
        let (stack, count) = (&mut self.stack, &mut self.received);
        let lost = match &mut self.shard_io {
            None => self.links.receive(&mut |frame, received| {
                *count += 1;
                stack.receive_with(now_ns, frame, received);
            }),
            Some(part) => part.receive(now_ns, stack, &mut self.links, count),
        };
        self.has_received(lost);
    }

    /// As [`NetState::receive`], and lets the links write the payload of connection `id` straight
    /// to `out` where possible; returns the number of bytes there. A host of several stacks
    /// places none.
    pub(crate) fn receive_into(&mut self, now_ns: u64, id: TcpId, out: &mut [u8]) -> usize {
        if self.shard_io.is_some() {
            self.receive(now_ns);
            return 0;
        }
        if !self.begins_to_receive(now_ns) {
            return 0;
        }
        let mut straight = DirectRead {
            stack: &mut self.stack,
            now_ns,
            link: 0,
            connection: id,
            out,
            count: 0,
            frames: 0,
        };
        let lost = self.links.receive_to(&mut straight);
        let (count, frames) = (straight.count, straight.frames);
        self.received += frames;
        self.has_received(lost);
        count
    }

    /// Prepares receiving; false if all links are gone.
    fn begins_to_receive(&mut self, now_ns: u64) -> bool {
        self.rests_until_ns = 0;
        self.now_ns = now_ns;
        if self.is_gone()
            && let Some(part) = &mut self.shard_io
        {
            part.discard();
        }
        !self.is_gone()
    }

    /// Completes receiving; `lost` means that a link turned out to be gone.
    fn has_received(&mut self, lost: bool) {
        if lost {
            let stack = &mut self.stack;
            self.links.gone().for_each(|link| stack.lose_link(link));
        }
        // When the last link is gone, all waiters are notified.
        if self.is_gone() {
            self.notify_all_gone();
        }
    }

    /// Lets the stack send, and notifies the waiters of changed sockets. Returns whether the
    /// driver must be woken, because its wait is too long.
    pub(crate) fn settle(&mut self, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        if self.failed {
            self.next_ns = None;
            return std::mem::take(&mut self.wakes);
        }
        self.next_ns = self.stack.poll_links(now_ns, &mut self.links);
        for _ in 0..LOOPS_MAX {
            if !self.receive_looped(now_ns) {
                break;
            }
            self.next_ns = self.stack.poll_links(now_ns, &mut self.links);
        }
        let freed = self.links.flush();
        if let Some(part) = &mut self.shard_io {
            part.publish_addressing(&self.stack);
        }
        while let Some(id) = self.stack.tcp_next_event() {
            self.refresh(Id::Stream(id));
        }
        while let Some(id) = self.stack.tcp_next_opened() {
            self.refresh(Id::Listener(id));
        }
        while let Some(id) = self.stack.udp_next_changed() {
            self.refresh(Id::Udp(id));
        }
        if freed {
            for id in std::mem::take(&mut self.tx_blocked) {
                self.refresh(id);
            }
        }
        if !self.event_waiters.is_empty() && self.stack.has_events() {
            self.event_waiters.notify(&mut self.tasks);
        }
        let earlier = self
            .next_ns
            .is_some_and(|next_ns| next_ns < self.rests_until_ns);
        let woken = self.rests_until_ns > 0 && (earlier || self.links.is_any_full());
        if woken {
            self.rests_until_ns = 0;
        }
        woken | std::mem::take(&mut self.wakes)
    }

    /// Receives the frames that the host has sent to itself; returns whether there were any.
    fn receive_looped(&mut self, now_ns: u64) -> bool {
        let (stack, count) = (&mut self.stack, &mut self.received);
        self.links.receive_looped(&mut |frame, received| {
            *count += 1;
            stack.receive_with(now_ns, frame, received);
        })
    }

    /// As [`NetState::settle`], within a call that settles again at its end; that second call
    /// then reports whether the driver must be woken.
    pub(crate) fn settle_within(&mut self, now_ns: u64) {
        self.wakes = self.settle(now_ns);
    }

    /// Whether the stack must be polled now, and no link is full.
    pub(in crate::net) fn is_due(&self, now_ns: u64) -> bool {
        self.next_ns.is_some_and(|next_ns| next_ns <= now_ns) && !self.links.is_any_full()
    }

    /// How long the thread may wait; `None` if there is work.
    pub(in crate::net) fn rest(&mut self, now_ns: u64) -> Option<Duration> {
        if !self.links.arm() {
            return None;
        }
        let due = |next_ns: u64| Duration::from_nanos(next_ns.saturating_sub(now_ns));
        let stop = |at: Instant| at.saturating_duration_since(Instant::now());
        let times = [
            self.next_ns.map(due),
            self.links.next_arrival(),
            self.stop_at.map(stop),
            Some(REST_MAX),
        ];
        let wait = times.into_iter().flatten().min()?;
        if wait.is_zero() || self.shard_io.as_ref().is_some_and(|part| !part.go_idle()) {
            return None;
        }
        self.rests_until_ns = now_ns.saturating_add(wait.as_nanos() as u64);
        Some(wait)
    }

    /// Records that a datagram of socket `id` had no room: the socket is notified when a full
    /// link takes frames again.
    pub(crate) fn mark_tx_blocked(&mut self, id: Id) {
        if !self.tx_blocked.contains(&id) {
            self.tx_blocked.push(id);
        }
    }

    /// Takes the tasks that are to be woken.
    pub(in crate::net) fn take_tasks(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.tasks)
    }

    /// Whether tasks are to be woken.
    pub(in crate::net) fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    pub(crate) fn socket_waiters(&mut self, id: Id) -> &mut SocketWaiters {
        self.socket_waiters.entry(id).or_default()
    }

    /// Forgets a closed socket.
    pub(crate) fn forget(&mut self, id: Id) {
        self.socket_waiters.remove(&id);
    }

    /// Makes a call that waits for socket `id` the leader; false if the call must not lead.
    /// With several stacks each is driven by its thread.
    pub(in crate::net) fn begin_lead(&mut self, id: Id, now_ns: u64) -> bool {
        self.shard_io.is_none() && !self.has_descriptor(id) && self.leadership.begin(id, now_ns)
    }

    /// Whether the socket has a readiness descriptor: an application that waits for the
    /// descriptor does not drive the net.
    fn has_descriptor(&self, id: Id) -> bool {
        self.socket_waiters
            .get(&id)
            .is_some_and(SocketWaiters::has_descriptor)
    }

    /// Makes a call that waits for descriptors the leader; false if the call must not lead. With
    /// several stacks each is driven by its thread.
    pub(in crate::net) fn begin_poll(&mut self) -> bool {
        self.shard_io.is_none() && !self.failed && self.leadership.begin_poll()
    }

    /// Whether a call that may wait for socket `id` should poll the links, and how to wake the
    /// thread for what follows.
    pub(in crate::net) fn should_poll(
        &mut self,
        id: Id,
        eager: bool,
        now_ns: u64,
    ) -> (bool, Option<WakeVia>) {
        match self.shard_io {
            None if self.has_descriptor(id) => (false, self.leadership.hand_over()),
            None => self.leadership.should_poll(id, eager, now_ns),
            Some(_) => (false, None),
        }
    }

    /// Notifies the waiters of socket `id` if its readiness has changed.
    pub(crate) fn refresh(&mut self, id: Id) {
        if let Some((leader, side)) = self.leader
            && leader == id
            && self.readiness(id).is(side)
        {
            self.wakes = true;
        }
        let Some(watch) = self.socket_waiters.get(&id) else {
            return;
        };
        if !watch.is_watched() {
            return;
        }
        let shows_edges = watch.shows_edges();
        self.leadership.note_event(id, self.now_ns);
        let readiness = self.readiness(id);
        let takes = |(awaited, side)| awaited == id && readiness.is(side);
        let is_taken = self.awaited.is_some_and(takes);
        let arrived = shows_edges.then(|| self.arrived(id));
        if let Some(watch) = self.socket_waiters.get_mut(&id) {
            if !is_taken {
                let has_more =
                    arrived.is_some_and(|arrived| watch.note_arrived(arrived, readiness));
                let is_listed = watch.show(readiness) || has_more;
                self.fd_changes += 1;
                // The list does not end the poll's wait, unlike a descriptor.
                self.wakes |= is_listed && self.leadership.is_led_by_poll();
            }
            watch.notify(readiness, &mut self.tasks);
        }
    }

    /// A number that grows, modulo 2^32, with what can be read of a socket.
    fn arrived(&self, id: Id) -> u32 {
        match id {
            Id::Stream(id) => self.stack.tcp_received(id),
            Id::Listener(id) => self.stack.tcp_accept_queue_len(id) as u32,
            Id::Udp(id) => self.stack.udp_waiting(id) as u32,
        }
    }

    /// Has the descriptor of a socket show each arrival as an edge, or only the first of what is unread.
    pub(in crate::net) fn set_edges(&mut self, id: Id, on: bool) {
        let arrived = on.then(|| self.arrived(id));
        if let Some(ready) = self.socket_waiters(id).ready.as_mut() {
            ready.set_edges(arrived);
        }
    }

    /// Puts a socket that has a descriptor into a list by a number, or into none. Returns whether it
    /// is in the list: a host of several stacks has none, nor is an ended list used.
    pub(in crate::net) fn list_in(&mut self, id: Id, list: Option<(&ReadyList, u64)>) -> bool {
        let has_one = self.shard_io.is_none() && !self.failed;
        let list = list.filter(|(list, _)| has_one && !list.is_ended());
        let readiness = self.readiness(id);
        let Some(watch) = self.socket_waiters.get_mut(&id) else {
            return false;
        };
        let Some(ready) = &mut watch.ready else {
            return false;
        };
        ready.list_in(list);
        if watch.show(readiness) && self.leadership.is_led_by_poll() {
            self.wakes = true;
        }
        self.fd_changes += 1;
        list.is_some()
    }

    /// Ends a list: the descriptors of its sockets show everything again.
    pub(in crate::net) fn end_list(&mut self, list: &ReadyList) {
        list.end();
        let is_in = |watch: &SocketWaiters| {
            let ready = watch.ready.as_ref();
            ready.is_some_and(|ready| ready.is_listed_in(list))
        };
        let listed = self.socket_waiters.iter().filter(|(_, watch)| is_in(watch));
        for id in listed.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.list_in(id, None);
        }
    }

    /// Whether a socket is readable by its list alone; then whether it is writable.
    pub(crate) fn is_listed_ready(&self, id: Id) -> Option<bool> {
        let watch = self.socket_waiters.get(&id)?;
        watch.ready.as_ref()?.is_listed_ready()
    }

    /// Makes the waiting readers of a socket try again.
    pub(crate) fn wake_readers(&mut self, id: Id) {
        if let Some(watch) = self.socket_waiters.get_mut(&id) {
            watch.waiters(Interest::Read).notify(&mut self.tasks);
        }
    }

    /// The present readiness of a socket.
    pub(crate) fn readiness(&mut self, id: Id) -> Readiness {
        if self.is_gone() {
            return Readiness::GONE;
        }
        match id {
            Id::Stream(id) => self.stream_readiness(id),
            Id::Listener(listener) => {
                let (is_over, _) = self.is_shut(id);
                Readiness {
                    readable: is_over || self.stack.tcp_accept_queue_len(listener) > 0,
                    writable: is_over,
                    ended: is_over,
                    over: is_over,
                    ..Readiness::default()
                }
            }
            Id::Udp(udp) => {
                let (shut_read, shut_write) = self.is_shut(id);
                let pending = self.stack.udp_has_pending_error(udp);
                Readiness {
                    readable: shut_read || self.stack.udp_waiting(udp) > 0,
                    pending,
                    erroneous: pending || self.stack.udp_icmp_errors(udp) > 0,
                    writable: shut_write || !self.tx_blocked.contains(&id),
                    ended: shut_read,
                    over: shut_read && shut_write,
                    ..Readiness::default()
                }
            }
        }
    }

    /// Whether the application has shut a socket down for reading, and for writing.
    fn is_shut(&self, id: Id) -> (bool, bool) {
        let watch = self.socket_waiters.get(&id);
        watch.map_or((false, false), |watch| (watch.shut_read, watch.shut_write))
    }

    fn stream_readiness(&mut self, id: TcpId) -> Readiness {
        let Some(state) = self.stack.tcp_state(id) else {
            return Readiness::GONE;
        };
        if state == tcp::State::SynSent {
            return Readiness::default();
        }
        let (shut_read, shut_write) = self.is_shut(Id::Stream(id));
        let watch = self.socket_waiters.get(&Id::Stream(id));
        let is_reported = watch.is_some_and(|watch| watch.error_reported);
        let room = self.stack.tcp_is_writable(id);
        let error = self.stack.tcp_error(id);
        let least = watch.map_or(0, |watch| watch.recv_lowat);
        let waits = match least {
            0 | 1 => !matches!(self.stack.tcp_readable_slice(id), Err(TcpError::WouldBlock)),
            _ => self.stack.tcp_is_readable(id, least),
        };
        // As in the kernel: the end is reported at once, even before the last bytes are read.
        let ended = matches!(
            state,
            tcp::State::CloseWait
                | tcp::State::Closing
                | tcp::State::LastAck
                | tcp::State::TimeWait
                | tcp::State::Closed
        );
        Readiness {
            readable: waits || shut_read,
            writable: room || shut_write || state == tcp::State::Closed,
            all_acked: self.stack.tcp_all_acked(id),
            ended: ended || shut_read,
            over: error.is_some() || (ended || shut_read) && shut_write,
            failed: error.is_some() && !is_reported,
            ..Readiness::default()
        }
    }
}
