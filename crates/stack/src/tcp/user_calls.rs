//! The user calls of connections (RFC 9293 §3.9.1).

use super::buffer::byte_ring::clamp;
use super::pcb::{Pcb, State};
use super::seq::Seq;
use super::{ListenerId, Tcp, TcpError, TcpId, TcpOptions};
use crate::deadline::{OptDeadline, as_ns, from_ns};
use crate::iface::{Interface, UnreachableKind};
use crate::links::{Interfaces, strip_zone, with_zone};
use crate::ports;
use crate::slab::Handle;
use std::net::{IpAddr, SocketAddr};

/// Idle time, in nanoseconds, after which unused memory is freed.
const SHRINK_NS: u64 = 1_000_000_000;

/// The link and the addresses of a new connection. Only a link that returns frames leads to an
/// address of this host.
pub(super) fn outgoing(
    hosts: &Interfaces,
    local: Option<SocketAddr>,
    remote: SocketAddr,
) -> Result<&Interface, TcpError> {
    let from = local.map_or(IpAddr::from([0; 4]), |local| local.ip());
    let link = hosts.egress_interface(from, remote, 0);
    let leads = |link: &u8| !hosts.is_ours(remote.ip()) || hosts.at(*link).is_hairpin(remote.ip());
    let link = link.filter(leads);
    Ok(hosts.at(link.ok_or(TcpError::NoRoute(remote))?))
}

impl Tcp {
    pub(crate) fn listener_local(&self, id: ListenerId) -> Option<SocketAddr> {
        self.listeners.get(id.0).map(|listener| listener.local)
    }

    pub(crate) fn accept(&mut self, id: ListenerId) -> Result<TcpId, TcpError> {
        let listener = self.listeners.get_mut(id.0).ok_or(TcpError::Closed)?;
        let accepted = listener
            .accept_queue
            .pop_front()
            .ok_or(TcpError::WouldBlock)?;
        if let Some(pcb) = self.pcbs.get_mut(accepted.0) {
            pcb.opening.listener = None;
            // An event may have come before the connection had an application.
            if !std::mem::replace(&mut pcb.listed.in_notify_queue, true) {
                self.notify_queue.push_back(accepted.0);
            }
        }
        Ok(accepted)
    }

    pub(crate) fn connect(
        &mut self,
        now_ns: u64,
        hosts: &Interfaces,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<TcpId, TcpError> {
        let host = outgoing(hosts, local, remote)?;
        let pcb = self.connecting(now_ns, host, local.map(strip_zone), strip_zone(remote))?;
        Ok(TcpId(self.enter(now_ns, pcb)))
    }

    /// Makes the PCB of an active open.
    pub(super) fn connecting(
        &mut self,
        now_ns: u64,
        host: &Interface,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<Box<Pcb>, TcpError> {
        let ip = remote.ip();
        if ip.is_unspecified() || ip.is_multicast() || host.routes.is_broadcast(ip) {
            return Err(TcpError::NoRoute(remote));
        }
        let source = host
            .routes
            .source_for(ip)
            .ok_or(TcpError::NoRoute(remote))?;
        let mut local = match local {
            Some(local) if local.is_ipv4() != remote.is_ipv4() => {
                return Err(TcpError::AddrNotAvailable(local));
            }
            Some(local) if local.ip().is_unspecified() => SocketAddr::new(source, local.port()),
            Some(local) if !host.routes.is_ours(local.ip()) => {
                return Err(TcpError::AddrNotAvailable(local));
            }
            Some(local) => local,
            None => SocketAddr::new(source, 0),
        };
        if self.connections() >= super::CONNECTIONS_MAX {
            return Err(TcpError::Full);
        }
        if local.port() == 0 {
            let mut rng = self.rng.clone();
            let port = ports::free(&mut rng, |port| {
                let at = SocketAddr::new(local.ip(), port);
                // With several stacks, the connection's segments must arrive at this one.
                let shard = self.shard.as_ref();
                shard.is_none_or(|shard| shard.is_own(at, remote))
                    && !self.is_tuple_in_use(at, remote)
                    && self.listening.find(at.ip(), port).is_none()
            });
            self.rng = rng;
            local.set_port(port.ok_or(TcpError::Full)?);
        } else if self.is_tuple_in_use(local, remote) {
            return Err(TcpError::AddrInUse(local));
        }
        let ends = (local, remote);
        let (kept, config, secret) = (self.pcb_cache.get(), &self.config, &self.secret);
        Ok(Pcb::connecting(kept, config, secret, host, now_ns, &ends))
    }

    pub(crate) fn accept_queue_len(&self, id: ListenerId) -> usize {
        let listener = self.listeners.get(id.0);
        listener.map_or(0, |listener| listener.accept_queue.len())
    }

    /// Number of connections without an application whose bytes or FIN are unacknowledged.
    pub(crate) fn orphans(&self) -> usize {
        let unfinished = |pcb: &&Pcb| pcb.user.orphaned && pcb.is_orphan();
        self.pcbs
            .iter()
            .map(|pcb| &**pcb)
            .filter(unfinished)
            .count()
    }

    /// Whether the peer has acknowledged everything written, or never will.
    pub(crate) fn all_acked(&self, id: TcpId) -> bool {
        self.pcbs.get(id.0).is_none_or(|pcb| pcb.all_acked())
    }

    fn get(&mut self, id: TcpId) -> Result<&mut Pcb, TcpError> {
        self.pcbs
            .get_mut(id.0)
            .map(|pcb| &mut **pcb)
            .filter(|pcb| !pcb.user.orphaned)
            .ok_or(TcpError::Closed)
    }

    pub(crate) fn write(&mut self, id: TcpId, bytes: &[u8]) -> Result<usize, TcpError> {
        let left = self.memory_available();
        let pcb = self.get(id)?;
        if let Some(error) = pcb.user.error() {
            return Err(error);
        }
        if pcb.send.closed || !(pcb.can_write() || pcb.is_opening()) {
            return Err(TcpError::WriteClosed);
        }
        let written = pcb.send.write(bytes, left.bytes);
        if written == 0 && !bytes.is_empty() {
            self.note_memory_waiter(id.0);
            return Err(TcpError::WouldBlock);
        }
        self.account(id.0);
        self.wake_output(id.0);
        Ok(written)
    }

    /// Enters a connection that lacks memory for a waiting writer among the waiters for memory; it
    /// is notified when there is enough.
    fn note_memory_waiter(&mut self, name: Handle) {
        let left = self.memory_available().bytes;
        let Some(pcb) = self.pcbs.get_mut(name) else {
            return;
        };
        let starved_of = clamp(pcb.send.memory_wanted(self.memory, left));
        let before = std::mem::replace(&mut pcb.listed.memory_wanted, starved_of);
        if before == starved_of {
            return;
        }
        if before > 0 {
            self.memory_waiters.remove(&(before, name));
        }
        if starved_of > 0 {
            self.memory_waiters.insert((starved_of, name));
        }
    }

    /// Puts a connection into the queue of connections with output.
    fn wake_output(&mut self, name: Handle) {
        if let Some(pcb) = self.pcbs.get_mut(name)
            && pcb.state != State::Closed
            && !std::mem::replace(&mut pcb.listed.in_output_queue, true)
        {
            let link = pcb.pair.link;
            self.queue_output(link, name);
        }
    }

    /// The readable bytes that lie together; empty at the end of the stream.
    pub(crate) fn readable_slice(&mut self, id: TcpId) -> Result<&[u8], TcpError> {
        let pcb = self.get(id)?;
        if pcb.receive.readable() > 0 {
            return Ok(pcb.receive.front());
        }
        match (pcb.user.error(), pcb.has_ended()) {
            // Errors after the FIN do not change the end of the stream.
            _ if pcb.receive.has_finished() => Ok(&[]),
            (Some(error), _) => Err(error),
            (None, true) => Ok(&[]),
            (None, false) => Err(TcpError::WouldBlock),
        }
    }

    pub(crate) fn error(&self, id: TcpId) -> Option<TcpError> {
        match self.pcbs.get(id.0).filter(|pcb| !pcb.user.orphaned) {
            Some(pcb) => pcb.user.error(),
            None => Some(TcpError::Closed),
        }
    }

    pub(crate) fn consume(&mut self, id: TcpId, count: usize) -> Result<(), TcpError> {
        let left = self.memory_available();
        let pcb = self.get(id)?;
        if count == 0 {
            return Ok(());
        }
        pcb.receive.consume(count.min(pcb.receive.readable()));
        pcb.receive.set_memory(left);
        if pcb.receive.window_opens(pcb.segment_size.mss()) && !pcb.has_ended() {
            pcb.ack.now = true;
            self.wake_output(id.0);
        }
        Ok(())
    }

    pub(crate) fn read(&mut self, id: TcpId, out: &mut [u8]) -> Result<usize, TcpError> {
        let mut read = 0;
        while read < out.len() {
            let front = match self.readable_slice(id) {
                Ok(front) => front,
                Err(_) if read > 0 => break,
                Err(error) => return Err(error),
            };
            if front.is_empty() {
                break;
            }
            let count = front.len().min(out.len() - read);
            out[read..read + count].copy_from_slice(&front[..count]);
            self.consume(id, count)?;
            read += count;
        }
        Ok(read)
    }

    /// Copies readable bytes without consuming them.
    pub(crate) fn peek(&mut self, id: TcpId, out: &mut [u8]) -> Result<usize, TcpError> {
        self.readable_slice(id)?;
        let pcb = self.get(id)?;
        let count = pcb.receive.readable().min(out.len());
        pcb.receive.copy(&mut out[..count]);
        Ok(count)
    }

    pub(crate) fn shutdown(&mut self, now_ns: u64, id: TcpId) -> Result<(), TcpError> {
        let pcb = self.get(id)?;
        pcb.finish();
        self.after_event(now_ns, id.0);
        Ok(())
    }

    pub(crate) fn shutdown_read(&mut self, id: TcpId) -> Result<(), TcpError> {
        self.get(id)?.user.read_shut = true;
        Ok(())
    }

    pub(crate) fn close(&mut self, now_ns: u64, hosts: &mut Interfaces, id: TcpId) {
        let Ok(pcb) = self.get(id) else {
            return;
        };
        pcb.user.orphaned = true;
        // Unread bytes are lost, and the peer should know (RFC 2525 §2.17); an unopened connection
        // has nothing to close.
        if pcb.receive.readable() > 0 || pcb.state == State::SynSent {
            let host = hosts.at_mut(pcb.pair.link);
            self.abort(now_ns, host, id.0, None);
            return;
        }
        pcb.finish();
        self.after_event(now_ns, id.0);
    }

    pub(crate) fn close_linger(
        &mut self,
        now_ns: u64,
        hosts: &mut Interfaces,
        id: TcpId,
        time_ns: u64,
    ) {
        self.close(now_ns, hosts, id);
        if let Some(pcb) = self.pcbs.get_mut(id.0)
            && pcb.is_orphan()
        {
            pcb.user.linger_reset = true;
            pcb.timers.keepalive_or_time_wait_ns = from_ns(now_ns.saturating_add(time_ns));
            self.after_event(now_ns, id.0);
        }
    }

    pub(crate) fn reset(&mut self, now_ns: u64, hosts: &mut Interfaces, id: TcpId) {
        if let Ok(pcb) = self.get(id) {
            pcb.user.orphaned = true;
            let host = hosts.at_mut(pcb.pair.link);
            self.abort(now_ns, host, id.0, None);
        }
    }

    pub(crate) fn state(&self, id: TcpId) -> Option<State> {
        let pcb = self.pcbs.get(id.0).filter(|pcb| !pcb.user.orphaned)?;
        Some(pcb.state)
    }

    pub(crate) fn ends(&self, id: TcpId) -> Option<(SocketAddr, SocketAddr)> {
        let pcb = self.pcbs.get(id.0).filter(|pcb| !pcb.user.orphaned)?;
        Some((
            with_zone(pcb.pair.local, pcb.pair.link),
            with_zone(pcb.pair.remote, pcb.pair.link),
        ))
    }

    pub(crate) fn write_room(&mut self, id: TcpId) -> usize {
        let left = self.memory_available();
        let Some(pcb) = self.pcbs.get_mut(id.0) else {
            return 0;
        };
        let room = pcb.send.takes(left.bytes);
        self.note_memory_waiter(id.0);
        room
    }

    pub(crate) fn is_writable(&mut self, id: TcpId) -> bool {
        let left = self.memory_available();
        self.note_memory_waiter(id.0);
        let pcb = self.pcbs.get(id.0);
        pcb.is_some_and(|pcb| pcb.send.is_write_worthwhile(self.memory, left.bytes))
    }

    pub(crate) fn write_limit(&self, id: TcpId) -> usize {
        self.pcbs.get(id.0).map_or(0, |pcb| pcb.send.sndbuf())
    }

    pub(crate) fn set_nodelay(&mut self, id: TcpId, nodelay: bool) -> Result<(), TcpError> {
        let send = &mut self.get(id)?.send;
        // `TCP_NODELAY` sends what waits, even corked, each time that it is set.
        send.sws_override |= nodelay && send.unsent() > 0;
        send.nodelay = nodelay;
        self.wake_output(id.0);
        Ok(())
    }

    pub(crate) fn options(&self, id: TcpId) -> Option<TcpOptions> {
        let pcb = self.pcbs.get(id.0).filter(|pcb| !pcb.user.orphaned)?;
        Some(pcb.user.options)
    }

    pub(crate) fn set_options(&mut self, id: TcpId, options: TcpOptions) -> Result<(), TcpError> {
        let pcb = self.get(id)?;
        pcb.set_options(options);
        // The next poll checks the connection's timers.
        self.due_now(id.0);
        Ok(())
    }

    pub(crate) fn listener_options(&mut self, id: ListenerId) -> Option<TcpOptions> {
        self.listeners.get(id.0).map(|listener| listener.options)
    }

    pub(crate) fn set_listener_options(
        &mut self,
        id: ListenerId,
        options: TcpOptions,
    ) -> Result<(), TcpError> {
        let listener = self.listeners.get_mut(id.0).ok_or(TcpError::Closed)?;
        listener.options = options.settled();
        Ok(())
    }

    pub(crate) fn set_backlog(&mut self, id: ListenerId, backlog: usize) -> Result<(), TcpError> {
        let listener = self.listeners.get_mut(id.0).ok_or(TcpError::Closed)?;
        listener.backlog = backlog.max(1);
        Ok(())
    }

    pub(crate) fn set_cork(&mut self, id: TcpId, cork: bool) -> Result<(), TcpError> {
        self.get(id)?.send.cork = cork;
        self.wake_output(id.0);
        Ok(())
    }

    pub(crate) fn set_syn_retries(&mut self, id: TcpId, retries: u8) -> Result<(), TcpError> {
        self.get(id)?.limits.syn_retries = retries;
        Ok(())
    }

    pub(crate) fn set_retries(&mut self, id: TcpId, retries: u8) -> Result<(), TcpError> {
        self.get(id)?.limits.retries = retries;
        Ok(())
    }

    pub(crate) fn set_more(&mut self, id: TcpId, more: bool) -> Result<(), TcpError> {
        let send = &mut self.get(id)?.send;
        (send.msg_more, send.push) = (more, !more);
        self.wake_output(id.0);
        Ok(())
    }

    pub(crate) fn end_record(&mut self, id: TcpId) -> Result<(), TcpError> {
        self.get(id)?.send.end_record();
        Ok(())
    }

    pub(crate) fn set_send_buffer(&mut self, id: TcpId, bytes: usize) -> Result<(), TcpError> {
        self.get(id)?.send.set_sndbuf(bytes);
        Ok(())
    }

    pub(crate) fn is_readable(&self, id: TcpId, least: usize) -> bool {
        let Some(pcb) = self.pcbs.get(id.0).filter(|pcb| !pcb.user.orphaned) else {
            return true;
        };
        let receive = &pcb.receive;
        // More bytes than fit cannot arrive before the application reads.
        let room = receive.room(self.memory_available().bytes);
        let shut = room <= usize::from(pcb.segment_size.received);
        let some = receive.readable() > 0;
        receive.readable() >= least || some && shut || pcb.has_ended()
    }

    pub(crate) fn received(&self, id: TcpId) -> u32 {
        self.pcbs.get(id.0).map_or(0, |pcb| pcb.receive.nxt.0)
    }

    pub(crate) fn set_notsent_lowat(
        &mut self,
        id: TcpId,
        bytes: Option<usize>,
    ) -> Result<(), TcpError> {
        self.get(id)?.send.set_notsent_lowat(bytes);
        Ok(())
    }

    pub(crate) fn set_quick_ack(
        &mut self,
        now_ns: u64,
        id: TcpId,
        quick: bool,
    ) -> Result<(), TcpError> {
        let pcb = self.get(id)?;
        pcb.ack.set_quick(quick, pcb.timers.ack_ns.is_some());
        self.after_event(now_ns, id.0);
        Ok(())
    }

    pub(crate) fn quick_ack(&self, id: TcpId) -> Option<bool> {
        let pcb = self.pcbs.get(id.0).filter(|pcb| !pcb.user.orphaned)?;
        Some(!pcb.ack.pingpong)
    }

    pub(crate) fn set_keep_alive(
        &mut self,
        now_ns: u64,
        id: TcpId,
        after_ns: Option<u64>,
    ) -> Result<(), TcpError> {
        let pcb = self.get(id)?;
        pcb.activity.set_keep_alive(after_ns);
        if pcb.can_write() {
            pcb.start_keep_alive(now_ns);
        }
        self.after_event(now_ns, id.0);
        Ok(())
    }

    pub(crate) fn set_keep_alive_probes(
        &mut self,
        id: TcpId,
        interval_s: u16,
        probes: u8,
    ) -> Result<(), TcpError> {
        let pcb = self.get(id)?;
        pcb.activity.set_keep_alive_probes(interval_s, probes);
        Ok(())
    }

    /// The next connection with an event for the application; each is named once for its events.
    pub(crate) fn next_notified(&mut self) -> Option<TcpId> {
        while let Some(name) = self.notify_queue.pop_front() {
            if let Some(pcb) = self.pcbs.get_mut(name) {
                pcb.listed.in_notify_queue = false;
                if !pcb.user.orphaned {
                    return Some(TcpId(name));
                }
            }
        }
        None
    }

    /// The next listener with new connections to accept; each is named once.
    pub(crate) fn next_notified_listener(&mut self) -> Option<ListenerId> {
        while let Some(name) = self.listener_notify_queue.pop_front() {
            if let Some(listener) = self.listeners.get_mut(name) {
                listener.in_notify_queue = false;
                return Some(ListenerId(name));
            }
        }
        None
    }

    /// Processes an ICMP error about a segment that began at `seq`; returns whether such a segment
    /// was sent.
    pub(crate) fn unreachable(
        &mut self,
        now_ns: u64,
        link: u8,
        ends: (SocketAddr, SocketAddr),
        seq: u32,
        why: UnreachableKind,
    ) -> bool {
        let Some(name) = self.sent(link, ends, seq) else {
            return false;
        };
        let pcb = self.pcbs.get_mut(name).expect("it was found");
        // For an open connection the error may be transient (RFC 5461 §2, RFC 5927 §6).
        let error = match why {
            UnreachableKind::Port => Some(TcpError::Refused),
            UnreachableKind::Host | UnreachableKind::Neighbour => Some(TcpError::HostUnreachable),
            UnreachableKind::Network => Some(TcpError::NetworkUnreachable),
            UnreachableKind::Other => None,
        };
        // A router's error ends an open in progress, as in other hosts (RFC 5461 §4.1). A missing
        // answer of a neighbour does not end a passive open: the solicitation may have been lost,
        // and the peer may take the connection for open.
        let ends = match why {
            UnreachableKind::Neighbour => pcb.state == State::SynSent,
            _ => pcb.is_opening(),
        };
        if error.is_some() && ends {
            pcb.end(error);
            self.after_event(now_ns, name);
        }
        true
    }

    /// Whether a segment in flight began with this number.
    pub(crate) fn has_sent(&mut self, link: u8, ends: (SocketAddr, SocketAddr), seq: u32) -> bool {
        self.sent(link, ends, seq).is_some()
    }

    /// Processes a report that the segment that began at `seq` exceeded the path's MTU: it is lost
    /// without congestion, and is retransmitted in shorter segments.
    pub(crate) fn too_big(
        &mut self,
        now_ns: u64,
        link: u8,
        ends: (SocketAddr, SocketAddr),
        seq: u32,
    ) {
        let Some(name) = self.sent(link, ends, seq) else {
            return;
        };
        if let Some(pcb) = self.pcbs.get_mut(name) {
            pcb.scoreboard
                .mark_lost(|sent| Seq(seq).at_most(sent.start));
            pcb.recovery.force_retransmit = true;
        }
        self.after_event(now_ns, name);
    }

    /// The connection between these sockets, if a segment with this number is in flight by this
    /// link (RFC 5927 §4.1).
    fn sent(
        &mut self,
        link: u8,
        (local, remote): (SocketAddr, SocketAddr),
        seq: u32,
    ) -> Option<Handle> {
        let name = self.lookup(local, remote)?;
        let pcb = self.pcbs.get(name).filter(|pcb| pcb.pair.link == link)?;
        let send = &pcb.send;
        let in_flight = send.una.at_most(Seq(seq)) && Seq(seq).before(send.nxt);
        in_flight.then_some(name)
    }
}

impl Pcb {
    /// Applies options; those of the window as far as they can still be advertised.
    pub(super) fn set_options(&mut self, options: TcpOptions) {
        let before = std::mem::replace(&mut self.user.options, options.settled());
        if before.receive_buffer != options.receive_buffer
            && let Some(bytes) = options.receive_buffer
        {
            self.receive.set_limit(bytes.get() as usize);
            if self.send.nxt == self.send.iss && self.negotiated.window_scaling {
                self.receive.choose_scale();
            }
        }
        // The headers are written again.
        if let Some(headers) = &mut self.headers {
            headers.cached = None;
        }
    }

    /// Whether the application has closed the connection, and something is unacknowledged.
    fn is_orphan(&self) -> bool {
        matches!(
            self.state,
            State::SynReceived | State::FinWait1 | State::Closing | State::LastAck
        )
    }

    /// Whether the peer has acknowledged everything written, and our FIN if the connection was
    /// closed.
    fn all_acked(&self) -> bool {
        let send = &self.send;
        let arrived = send.unsent() == 0 && send.una == send.nxt;
        self.state == State::Closed || arrived && (!send.closed || send.fin_acknowledged())
    }

    /// Whether the peer will send no more bytes.
    pub(super) fn has_ended(&self) -> bool {
        matches!(
            self.state,
            State::CloseWait | State::Closing | State::LastAck | State::TimeWait | State::Closed
        )
    }

    /// Ends this side's stream: nothing more is written.
    fn finish(&mut self) {
        self.send.closed = true;
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            other => other,
        };
    }

    pub(super) fn start_keep_alive(&mut self, now_ns: u64) {
        if self.user.linger_reset {
            return;
        }
        self.timers.keepalive_or_time_wait_ns = self
            .activity
            .keep_alive_ns()
            .and_then(|after_ns| from_ns(now_ns.saturating_add(after_ns)));
    }

    /// Processes expired timers; returns whether the connection is to be reset.
    pub(super) fn timeout(&mut self, now_ns: u64) -> bool {
        self.update_user_timeout(now_ns, self.waits());
        let due = |when: OptDeadline| as_ns(when).is_some_and(|at_ns| at_ns <= now_ns);
        if let Some((timer, _)) = self.timers.loss.filter(|(_, at_ns)| *at_ns <= now_ns)
            && !self.loss_timeout(now_ns, timer)
        {
            self.end(Some(TcpError::TimedOut));
            return false;
        }
        if due(self.timers.ack_ns) {
            self.timers.ack_ns = None;
            self.ack.now = true;
            // The acknowledgment found no answer to go with.
            self.ack.pingpong = false;
        }
        if due(self.timers.keepalive_or_time_wait_ns) {
            self.timers.keepalive_or_time_wait_ns = None;
            if self.listed.in_time_wait_queue {
                self.end(None);
            } else if self.user.linger_reset {
                return true;
            } else {
                self.keep_alive(now_ns);
            }
        }
        // The pacing rate allows the next segment now.
        self.congestion.end_wait(now_ns);
        if due(self.timers.shrink_ns) {
            self.timers.shrink_ns = None;
            self.release(now_ns);
        }
        false
    }

    /// Frees the empty buffers of an idle connection, so that it holds no memory but its PCB.
    pub(super) fn release(&mut self, now_ns: u64) {
        let idle = self.activity.last_ns().saturating_add(SHRINK_NS) <= now_ns;
        if idle {
            self.headers = None;
            self.scoreboard.release();
            self.congestion.release();
        }
        let released = idle && self.send.release() & self.receive.release();
        if !released && self.timers.shrink_ns.is_none() {
            self.timers.shrink_ns = from_ns(now_ns.saturating_add(SHRINK_NS));
        }
    }

    fn keep_alive(&mut self, now_ns: u64) {
        let Some(after_ns) = self.activity.keep_alive_ns() else {
            return;
        };
        let idle_since_ns = self.activity.last_segment_ns.saturating_add(after_ns);
        if idle_since_ns > now_ns {
            self.timers.keepalive_or_time_wait_ns = from_ns(idle_since_ns);
        } else if self.activity.is_unanswered(now_ns, &self.user.options) {
            self.end(Some(TcpError::TimedOut));
        } else {
            self.activity.probes = self.activity.probes.saturating_add(1);
            self.ack.probe_window = true;
            self.timers.keepalive_or_time_wait_ns =
                from_ns(now_ns + self.activity.keep_alive_interval_ns());
        }
    }
}
