//! [`Stack`]: one host, from its links to its sockets; and [`TxSink`], the output of a link.

mod datagrams;
mod fastopen;
mod placement;

use crate::iface::unreachable_report;
use crate::iface::{
    BurstFrame, Channel, Config, ConfigError, Counters, DropReason, Event, Interface, Lease,
    RxMeta, TxMeta,
};
use crate::ingress::Ingress;
use crate::links::{Interfaces, Link, NullTx, SingleTx, TxSinks};
use crate::pcb::ChunkSource;
use crate::tcp::{Listen, ListenerId, State, Tcp, TcpConfig, TcpError, TcpId, TcpInfo, TcpOptions};
use crate::udp;
use std::net::{IpAddr, SocketAddr};
use weir_wire::ethernet;

/// The output of one link: takes the frames that the stack sends.
///
/// The stack writes each frame in place: it fills the buffer from [`TxSink::reserve`] and
/// then calls [`TxSink::submit`].
pub trait TxSink {
    /// A buffer of exactly `len` bytes for the next frame, with undefined content; `None`
    /// if the link takes no more frames now.
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Sends the frame reserved last, which is complete.
    fn submit(&mut self);

    /// Sends the frame reserved last, followed by `payload`, which is not copied. The link
    /// completes the frame as `partial` says. The stack calls this only for a link whose
    /// [`Config::offload`] allows it.
    ///
    /// # Panics
    /// If the configuration allows offload and the link does not implement it.
    fn submit_partial(&mut self, partial: TxMeta, _payload: [&[u8]; 2]) {
        panic!("{partial:?} for a link without offload: set `Config::offload` to what it does");
    }

    /// Sends several frames in order, each of which the link completes. Returns how many
    /// frames the link took, from the first.
    fn submit_burst(&mut self, run: &[BurstFrame<'_>]) -> usize {
        for (taken, frame) in run.iter().enumerate() {
            let Some(room) = self.reserve(frame.head.len()) else {
                return taken;
            };
            room.copy_from_slice(frame.head);
            self.submit_partial(frame.meta, frame.payload);
        }
        run.len()
    }
}

/// An output without a limit: keeps the frames in memory.
impl TxSink for Vec<Vec<u8>> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.push(vec![0; len]);
        self.last_mut().map(Vec::as_mut_slice)
    }

    fn submit(&mut self) {}
}

/// A TCP/IP host without I/O: the caller passes in frames, calls and the time, and gets
/// frames and results back. Time is in nanoseconds from an arbitrary start and never goes
/// back.
///
/// ```
/// use weir_stack::{Config, Stack};
/// use weir_wire::ethernet::Address;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let address = "192.0.2.5/24".parse()?;
/// let config = Config::new(Address([2, 0, 0, 0, 0, 5])).address(address);
/// let mut stack = Stack::new(&config, 42)?;
/// let socket = stack.udp_bind("0.0.0.0:7".parse()?)?;
/// stack.udp_send(0, socket, "192.0.2.9:7".parse()?, b"hello")?;
/// let mut frames: Vec<Vec<u8>> = Vec::new();
/// let next_ns = stack.poll(0, &mut frames);
/// // The frame is an ARP request for 192.0.2.9; the datagram waits for the reply.
/// assert_eq!((frames.len(), next_ns), (1, Some(1_000_000_000)));
/// # Ok(())
/// # }
/// ```
pub struct Stack {
    pub(crate) interfaces: Interfaces,
    udp: udp::Sockets,
    pub(crate) tcp: Tcp,
}

impl Stack {
    /// A stack on one link. Peers must not know `seed`: sequence numbers, transport ports
    /// and hash keys come from it.
    ///
    /// # Errors
    /// If the configuration contradicts itself or exceeds a limit.
    pub fn new(config: &Config, seed: u128) -> Result<Stack, ConfigError> {
        Stack::with_links(std::slice::from_ref(config), seed)
    }

    /// A stack on several links, at most [`LINKS_MAX`](crate::LINKS_MAX): one for each
    /// configuration, numbered from 0. A configuration's addresses and routes belong to its
    /// link alone (the strong end system model, RFC 1122 §3.3.4.2): a packet for an address
    /// must arrive by the address's link, and a packet from an address leaves by it.
    ///
    /// # Errors
    /// If a configuration contradicts itself or exceeds a limit, or two of them
    /// have the same address.
    pub fn with_links(configs: &[Config], seed: u128) -> Result<Stack, ConfigError> {
        Ok(Stack {
            interfaces: Interfaces::new(configs, seed)?,
            udp: udp::Sockets::new(seed),
            tcp: Tcp::new(configs.len(), seed),
        })
    }

    /// Sets the allocator of large pages for the connection tables. A table asks for them
    /// once it grows beyond about 49,000 connections; where the allocator has none, the
    /// table uses small pages, in which a look-up takes longer.
    pub fn set_pcb_chunk_source(&mut self, supply: &ChunkSource) {
        self.tcp.set_chunk_source(supply);
        self.udp.set_chunk_source(supply);
    }

    /// Processes a frame from the first link, without its frame check sequence.
    #[inline]
    pub fn receive(&mut self, now_ns: u64, frame: &[u8]) {
        self.receive_with(now_ns, frame, RxMeta::default());
    }

    /// Processes a frame with what the link knows of it. If the link vouches for them, the
    /// frame may be several TCP segments merged into one of up to 64 KB.
    pub fn receive_with(&mut self, now_ns: u64, frame: &[u8], received: RxMeta) {
        let Some(host) = self.interfaces.get_mut(received.link) else {
            let counters = &mut self.interfaces.at_mut(0).counters;
            counters.frames_in += 1;
            counters.drop(DropReason::OtherLink);
            return;
        };
        host.looped = received.looped;
        let (tcp, udp) = (&mut self.tcp, &mut self.udp);
        let mut ingress = Ingress {
            iface: host,
            tcp,
            udp,
        };
        if let Err(reason) = ingress.frame(now_ns, frame, received) {
            ingress.iface.counters.drop(reason);
        }
        if ingress.iface.has_changes() {
            self.interfaces.abandon_duplicates(now_ns, received.link);
            if self.interfaces.at_mut(received.link).take_removed() {
                self.disarm();
            }
        }
    }

    /// Ends the fast paths of addresses that the host has lost. The standard path then drops
    /// packets for those addresses.
    pub(crate) fn disarm(&mut self) {
        self.tcp.disarm(&self.interfaces);
        self.udp.disarm(&self.interfaces);
    }

    /// Runs the timers that are due and sends what is ready, as far as the link takes
    /// frames. Returns when to call again if nothing happens before; `None` if no timer runs.
    /// The time is `now_ns` if much was sent and more is ready: the caller passes in the
    /// frames that have arrived and calls again.
    ///
    /// After a received frame, after a call, and when a full link takes frames again, the
    /// caller polls at once. Frames of links other than the first stay in the stack: see
    /// [`Stack::poll_links`].
    pub fn poll(&mut self, now_ns: u64, out: &mut dyn TxSink) -> Option<u64> {
        self.run(now_ns, &mut SingleTx(out, NullTx))
    }

    /// As [`Stack::poll`], for a stack on several links: each frame goes to the output of
    /// its link, and a full link does not hold up the other links.
    pub fn poll_links(&mut self, now_ns: u64, outs: &mut dyn TxSinks) -> Option<u64> {
        self.run(now_ns, outs)
    }

    #[inline]
    fn run<O: TxSinks + ?Sized>(&mut self, now_ns: u64, outs: &mut O) -> Option<u64> {
        if self.interfaces.iter().any(|host| host.is_due(now_ns)) {
            self.tend(now_ns, outs);
        }
        let mut next_ns = self.tcp.poll(now_ns, &mut self.interfaces, outs);
        for host in self.interfaces.iter_mut() {
            // ARP requests and neighbour solicitations that TCP's output has caused.
            if host.has_frames() {
                host.flush(outs.sink(host.link));
            }
            next_ns = next_ns.min(host.due_ns());
        }
        (next_ns < u64::MAX).then_some(next_ns)
    }

    /// Runs the links' timers that are due, and sends the frames queued on each link.
    #[cold]
    fn tend<O: TxSinks + ?Sized>(&mut self, now_ns: u64, outs: &mut O) {
        let mut has_news = false;
        for host in self
            .interfaces
            .iter_mut()
            .filter(|host| host.is_due(now_ns))
        {
            host.poll(now_ns);
            has_news |= host.has_changes();
        }
        if has_news {
            self.apply_changes(now_ns);
        }
        for host in self.interfaces.iter_mut().filter(|host| host.has_frames()) {
            host.flush(outs.sink(host.link));
        }
    }

    /// Applies the changes that polling the links has found.
    #[cold]
    fn apply_changes(&mut self, now_ns: u64) {
        let mut lost = false;
        for link in 0..self.interfaces.count() as u8 {
            lost |= self.apply_changes_of(now_ns, link);
        }
        if lost {
            self.disarm();
        }
    }

    /// Applies the changes of one link; returns whether the link has lost an address.
    fn apply_changes_of(&mut self, now_ns: u64, link: u8) -> bool {
        self.interfaces.abandon_duplicates(now_ns, link);
        let host = self.interfaces.at_mut(link);
        let lost = host.take_removed();
        let (tcp, udp) = (&mut self.tcp, &mut self.udp);
        let mut ingress = Ingress {
            iface: host,
            tcp,
            udp,
        };
        while let Some(frame) = ingress.iface.next_unreached() {
            // The report quotes a packet that this host sent: it belongs to a socket, or
            // the socket has closed.
            if let Some(report) = frame
                .get(ethernet::Repr::LEN..)
                .and_then(unreachable_report)
            {
                let _ = ingress.report(now_ns, report);
            }
        }
        lost
    }

    /// The stack's counters, summed over all links.
    pub fn counters(&self) -> Counters {
        let mut counters = self.interfaces.counters();
        counters.time_wait_evicted = self.tcp.time_wait_evicted();
        counters
    }

    /// The link of this number; `None` if there is none.
    pub fn link(&self, link: u8) -> Option<Link<'_>> {
        self.interfaces.link(link)
    }

    /// Marks a link as gone for good, such as a device that was pulled out. Its routes lead
    /// nowhere any more: what is sent or opened from now on takes another link or has no
    /// route. Connections on the link stay until they time out. A number without a link
    /// does nothing.
    pub fn lose_link(&mut self, link: u8) {
        if let Some(host) = self.interfaces.get_mut(link) {
            host.is_gone = true;
        }
    }

    /// The host's addresses on all links, IPv6 link-local ones included. An address under
    /// duplicate address detection is listed once the host uses it.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let owned = self.interfaces.iter().map(|host| host.routes.addresses());
        let ours = owned.flatten().filter(|owned| owned.is_ours());
        ours.map(|owned| owned.prefix.address())
    }

    /// Whether an address is the host's own; with one of 127.0.0.0/8 all of them are.
    pub fn is_own_address(&self, address: IpAddr) -> bool {
        self.interfaces.is_ours(address)
    }

    /// Whether a link leads to a unicast address: one of the host's networks has it, or a route
    /// does, and the host has a source address for it.
    pub fn has_route(&self, to: IpAddr) -> bool {
        let usable = |host: &Interface| !host.is_gone && host.routes.source_for(to).is_some();
        self.interfaces.iter().any(usable)
    }

    /// Takes the oldest event of addresses and routers; `None` if there is none. The stack
    /// keeps the latest [`EVENTS_MAX`](crate::iface::EVENTS_MAX) events of a link.
    pub fn next_event(&mut self) -> Option<Event> {
        self.next_link_event().map(|(_, event)| event)
    }

    /// Whether [`Stack::next_event`] would return an event.
    pub fn has_events(&self) -> bool {
        self.interfaces.iter().any(Interface::has_events)
    }

    /// As [`Stack::next_event`], with the number of the link.
    pub fn next_link_event(&mut self) -> Option<(u8, Event)> {
        let mut hosts = self.interfaces.iter_mut();
        hosts.find_map(|host| Some((host.link, host.next_event()?)))
    }

    /// The lease of a DHCP server, if [`Config::dhcp`] asks for one; on several links, the
    /// first lease: see [`Link::lease`].
    pub fn lease(&self) -> Option<&Lease> {
        self.interfaces.iter().find_map(Interface::lease)
    }

    /// Returns all leases to their DHCP servers (DHCPRELEASE) and requests no more. The
    /// next poll sends the messages.
    pub fn release(&mut self, now_ns: u64) {
        for host in self.interfaces.iter_mut() {
            host.release_lease(now_ns);
            host.take_removed();
        }
        self.disarm();
    }

    /// DNS servers that routers and DHCP servers announce.
    pub fn resolvers(&self) -> impl Iterator<Item = IpAddr> {
        self.interfaces.iter().flat_map(Interface::resolvers)
    }

    /// Whether a router announces that addresses come from DHCPv6 (the M flag, RFC 4861
    /// §4.2), which the stack does not implement.
    pub fn is_managed(&self) -> bool {
        self.interfaces.iter().any(Interface::is_managed)
    }

    /// Sets the configuration of TCP connections that begin from now on.
    pub fn tcp_configure(&mut self, config: TcpConfig) {
        self.tcp.config = config;
    }

    /// Sets the limit, in bytes, on the buffers of all TCP connections together; the default
    /// is [`crate::tcp::MEMORY_DEFAULT`]. At the limit windows do not open, writes take
    /// nothing more, and the stack drops received bytes beyond the storage, which the peer
    /// sends again. When memory is available again, [`Stack::tcp_next_event`] names the
    /// connections that waited for it. No connection loses memory that it has.
    pub fn tcp_limit_memory(&mut self, bytes: usize) {
        self.tcp.limit_memory(bytes);
    }

    /// Sets the limit on TCP connections in TIME-WAIT, including those that the application
    /// has closed and that wait for the peer's FIN; the default is
    /// [`crate::tcp::TIME_WAIT_MAX`]. Beyond the limit the oldest of them are evicted
    /// ([`Counters::time_wait_evicted`]).
    pub fn tcp_limit_time_wait(&mut self, now_ns: u64, count: usize) {
        self.tcp.limit_time_wait(now_ns, count);
    }

    /// Bytes of storage that the buffers of all TCP connections occupy.
    pub fn tcp_memory(&self) -> usize {
        self.tcp.charged_bytes
    }

    /// Opens a listener at a local address and transport port. The unspecified address
    /// stands for all addresses of its version, port 0 for any free port. At most `backlog`
    /// connections wait to be accepted.
    ///
    /// # Errors
    /// If the address is not the host's, or the address and port are taken.
    pub fn tcp_listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
    ) -> Result<ListenerId, TcpError> {
        self.tcp_listen_with(local, Listen::new(backlog))
    }

    /// As [`Stack::tcp_listen`], with both IP versions or port sharing by `listen`.
    ///
    /// # Errors
    /// As [`Stack::tcp_listen`].
    pub fn tcp_listen_with(
        &mut self,
        local: SocketAddr,
        listen: Listen,
    ) -> Result<ListenerId, TcpError> {
        self.tcp.listen(&self.interfaces, local, listen)
    }

    /// The address and transport port of a listener; `None` if it is closed.
    pub fn tcp_listener_local(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.tcp.listener_local(listener)
    }

    /// The socket options of a listener, which also apply to its SYN-ACKs; `None` if it is
    /// closed.
    pub fn tcp_listener_options(&mut self, listener: ListenerId) -> Option<TcpOptions> {
        self.tcp.listener_options(listener)
    }

    /// Sets the options of [`Stack::tcp_listener_options`] for connections that begin from
    /// now on.
    ///
    /// # Errors
    /// If the listener is closed.
    pub fn tcp_set_listener_options(
        &mut self,
        listener: ListenerId,
        options: TcpOptions,
    ) -> Result<(), TcpError> {
        self.tcp.set_listener_options(listener, options)
    }

    /// Sets the limit on connections that wait to be accepted; more that wait already stay.
    ///
    /// # Errors
    /// If the listener is closed.
    pub fn tcp_set_backlog(
        &mut self,
        listener: ListenerId,
        backlog: usize,
    ) -> Result<(), TcpError> {
        self.tcp.set_backlog(listener, backlog)
    }

    /// Takes the next connection from a listener's accept queue.
    ///
    /// # Errors
    /// [`TcpError::WouldBlock`] if the queue is empty.
    pub fn tcp_accept(&mut self, _now_ns: u64, listener: ListenerId) -> Result<TcpId, TcpError> {
        self.tcp.accept(listener)
    }

    /// Number of connections in a listener's accept queue.
    pub fn tcp_accept_queue_len(&self, listener: ListenerId) -> usize {
        self.tcp.accept_queue_len(listener)
    }

    /// Closes a listener and resets the connections in its accept queue.
    pub fn tcp_unlisten(&mut self, now_ns: u64, listener: ListenerId) {
        self.tcp
            .close_listener(now_ns, &mut self.interfaces, listener);
    }

    /// Opens a connection, from `local` or from an unpredictable transport port. The
    /// application may write at once.
    ///
    /// # Errors
    /// If no route leads to `remote`, or the pair of addresses and ports is taken.
    pub fn tcp_connect(
        &mut self,
        now_ns: u64,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<TcpId, TcpError> {
        self.tcp.connect(now_ns, &self.interfaces, local, remote)
    }

    /// Appends bytes to the send buffer; returns how many had room.
    ///
    /// # Errors
    /// [`TcpError::WouldBlock`] if none had room; otherwise why the connection takes no more
    /// bytes.
    pub fn tcp_write(&mut self, connection: TcpId, bytes: &[u8]) -> Result<usize, TcpError> {
        self.tcp.write(connection, bytes)
    }

    /// As [`Stack::tcp_write`], and marks the last byte taken as the last urgent one
    /// (RFC 9293 §3.8.5; `MSG_OOB`). The byte stays in order with all others.
    ///
    /// # Errors
    /// As [`Stack::tcp_write`].
    pub fn tcp_write_urgent(&mut self, connection: TcpId, bytes: &[u8]) -> Result<usize, TcpError> {
        self.tcp.write_urgent(connection, bytes)
    }

    /// Number of bytes to read up to and including the peer's last urgent byte; some may not
    /// have arrived. `None` without an urgent mark. At 1, the next byte is the urgent one
    /// (`SIOCATMARK`). [`Stack::tcp_next_event`] names the connection when this changes.
    pub fn tcp_urgent(&self, connection: TcpId) -> Option<usize> {
        self.tcp.urgent(connection)
    }

    /// Present limit, in bytes, on a connection's unsent and unacknowledged bytes.
    pub fn tcp_write_limit(&self, connection: TcpId) -> usize {
        self.tcp.write_limit(connection)
    }

    /// Bytes that [`Stack::tcp_write`] would take now. If a lack of memory makes this less
    /// than [`Stack::tcp_is_writable`] requires, [`Stack::tcp_next_event`] names the
    /// connection once there is enough.
    pub fn tcp_write_room(&mut self, connection: TcpId) -> usize {
        self.tcp.write_room(connection)
    }

    /// Whether the send buffer has room worth a wake-up: 16 KiB, or a quarter of the buffer
    /// if that is less, or a sixteenth of all connections' memory. If false,
    /// [`Stack::tcp_next_event`] names the connection once there is room.
    pub fn tcp_is_writable(&mut self, connection: TcpId) -> bool {
        self.tcp.is_writable(connection)
    }

    /// Reads received bytes into `out`; returns 0 if the peer has closed.
    ///
    /// # Errors
    /// [`TcpError::WouldBlock`] if nothing has arrived; otherwise why no more bytes will
    /// arrive.
    pub fn tcp_read(&mut self, connection: TcpId, out: &mut [u8]) -> Result<usize, TcpError> {
        self.tcp.read(connection, out)
    }

    /// Copies received bytes as [`Stack::tcp_read`] does, and leaves them in the buffer.
    ///
    /// # Errors
    /// As [`Stack::tcp_read`].
    pub fn tcp_peek(&mut self, connection: TcpId, out: &mut [u8]) -> Result<usize, TcpError> {
        self.tcp.peek(connection, out)
    }

    /// The state and measurements of a connection (`TCP_INFO`); `None` if it was let go.
    pub fn tcp_info(&self, now_ns: u64, connection: TcpId) -> Option<TcpInfo> {
        self.tcp.info(now_ns, connection)
    }

    /// The first contiguous run of received bytes, in place; [`Stack::tcp_consume`] takes
    /// them. Empty if the peer has closed.
    ///
    /// # Errors
    /// As [`Stack::tcp_read`].
    pub fn tcp_readable_slice(&mut self, connection: TcpId) -> Result<&[u8], TcpError> {
        self.tcp.readable_slice(connection)
    }

    /// Takes `count` bytes that [`Stack::tcp_readable_slice`] has shown.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_consume(&mut self, connection: TcpId, count: usize) -> Result<(), TcpError> {
        self.tcp.consume(connection, count)
    }

    /// Closes a connection for writing: the peer reads what was written, then the end.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_shutdown(&mut self, now_ns: u64, connection: TcpId) -> Result<(), TcpError> {
        self.tcp.shutdown(now_ns, connection)
    }

    /// Closes a connection for reading. What arrives can be read until [`Stack::tcp_shutdown`] has closed
    /// the other direction, too; from then on the stack resets the connection if data arrives, as
    /// Linux does.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_shutdown_read(&mut self, connection: TcpId) -> Result<(), TcpError> {
        self.tcp.shutdown_read(connection)
    }

    /// Lets a connection go: the stack sends what was written and refuses what arrives. If
    /// received bytes are unread, the stack resets the connection instead.
    pub fn tcp_close(&mut self, now_ns: u64, connection: TcpId) {
        self.tcp.close(now_ns, &mut self.interfaces, connection);
    }

    /// As [`Stack::tcp_close`], and resets the connection if the peer has not acknowledged
    /// everything after `time_ns` nanoseconds (`SO_LINGER`).
    pub fn tcp_close_linger(&mut self, now_ns: u64, connection: TcpId, time_ns: u64) {
        self.tcp
            .close_linger(now_ns, &mut self.interfaces, connection, time_ns);
    }

    /// Whether the peer has acknowledged everything that was written, and the FIN if the
    /// connection was shut down for writing. Also true if the connection is over.
    pub fn tcp_all_acked(&self, connection: TcpId) -> bool {
        self.tcp.all_acked(connection)
    }

    /// Resets a connection and lets it go.
    pub fn tcp_abort(&mut self, now_ns: u64, connection: TcpId) {
        self.tcp.reset(now_ns, &mut self.interfaces, connection);
    }

    /// The state of a connection (RFC 9293 §3.3.2); `None` if it was let go.
    pub fn tcp_state(&self, connection: TcpId) -> Option<State> {
        self.tcp.state(connection)
    }

    /// Why a connection is over; `None` while it is not. The error is there at once, before
    /// the application has read the remaining bytes, and also after the peer's FIN.
    /// [`TcpError::Closed`] if the connection was let go.
    pub fn tcp_error(&self, connection: TcpId) -> Option<TcpError> {
        self.tcp.error(connection)
    }

    /// The local and the remote address and port; `None` if the connection was let go.
    pub fn tcp_ends(&self, connection: TcpId) -> Option<(SocketAddr, SocketAddr)> {
        self.tcp.ends(connection)
    }

    /// The socket options of a connection; `None` if it was let go.
    pub fn tcp_options(&self, connection: TcpId) -> Option<TcpOptions> {
        self.tcp.options(connection)
    }

    /// Sets the options of [`Stack::tcp_options`] from the next segment on. That is the SYN
    /// if the stack was not polled since [`Stack::tcp_connect`].
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_options(
        &mut self,
        connection: TcpId,
        options: TcpOptions,
    ) -> Result<(), TcpError> {
        self.tcp.set_options(connection, options)
    }

    /// Turns Nagle's algorithm off (`true`) or on (`TCP_NODELAY`, RFC 9293 §3.7.4): without
    /// it small segments do not wait for acknowledgments.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_nodelay(&mut self, connection: TcpId, nodelay: bool) -> Result<(), TcpError> {
        self.tcp.set_nodelay(connection, nodelay)
    }

    /// Holds back partial segments (`TCP_CORK`) until `cork` is false again or more bytes
    /// fill them.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_cork(&mut self, connection: TcpId, cork: bool) -> Result<(), TcpError> {
        self.tcp.set_cork(connection, cork)
    }

    /// Announces that more bytes follow the last write at once (`MSG_MORE`): a partial
    /// segment waits for them.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_more(&mut self, connection: TcpId, more: bool) -> Result<(), TcpError> {
        self.tcp.set_more(connection, more)
    }

    /// Ends a record with the last write (`MSG_EOR`): no segment carries bytes of both this
    /// record and a later one.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_end_record(&mut self, connection: TcpId) -> Result<(), TcpError> {
        self.tcp.end_record(connection)
    }

    /// Sets how often the SYN of this connection is retransmitted (`TCP_SYNCNT`).
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_syn_retries(&mut self, connection: TcpId, retries: u8) -> Result<(), TcpError> {
        self.tcp.set_syn_retries(connection, retries)
    }

    /// Sets how many consecutive time-outs this connection survives once it is open
    /// ([`TcpConfig::retries`](crate::tcp::TcpConfig::retries)).
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_retries(&mut self, connection: TcpId, retries: u8) -> Result<(), TcpError> {
        self.tcp.set_retries(connection, retries)
    }

    /// Sets the limit, in bytes, on this connection's unsent and unacknowledged bytes
    /// (`SO_SNDBUF`). Bytes above a smaller limit stay.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_send_buffer(&mut self, connection: TcpId, bytes: usize) -> Result<(), TcpError> {
        self.tcp.set_send_buffer(connection, bytes)
    }

    /// Whether at least `least` bytes can be read (`SO_RCVLOWAT`), or as many as window or
    /// memory allow, or no more will arrive.
    pub fn tcp_is_readable(&self, connection: TcpId, least: usize) -> bool {
        self.tcp.is_readable(connection, least)
    }

    /// A number that grows, modulo 2^32, with each byte that can be read, and with the end (RCV.NXT).
    pub fn tcp_received(&self, connection: TcpId) -> u32 {
        self.tcp.received(connection)
    }

    /// Limits the unsent bytes of a connection to `bytes`, at least one segment
    /// (`TCP_NOTSENT_LOWAT`); [`Stack::tcp_is_writable`] is true again once half of them
    /// have gone. `None` leaves only the limit of the send buffer.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_notsent_lowat(
        &mut self,
        connection: TcpId,
        bytes: Option<usize>,
    ) -> Result<(), TcpError> {
        self.tcp.set_notsent_lowat(connection, bytes)
    }

    /// Sets whether received segments are acknowledged at once, including one already
    /// delayed, or with outgoing segments (`TCP_QUICKACK`). The mode is not permanent: it
    /// ends when the application answers, or after some segments.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_quick_ack(
        &mut self,
        now_ns: u64,
        connection: TcpId,
        quick: bool,
    ) -> Result<(), TcpError> {
        self.tcp.set_quick_ack(now_ns, connection, quick)
    }

    /// Whether received segments are acknowledged at once; `None` if the connection was let
    /// go.
    pub fn tcp_quick_ack(&self, connection: TcpId) -> Option<bool> {
        self.tcp.quick_ack(connection)
    }

    /// Sends keep-alive probes after `after_ns` of silence, rounded up to milliseconds (RFC 9293
    /// §3.8.4); `None` never.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_keep_alive(
        &mut self,
        now_ns: u64,
        connection: TcpId,
        after_ns: Option<u64>,
    ) -> Result<(), TcpError> {
        self.tcp.set_keep_alive(now_ns, connection, after_ns)
    }

    /// Sets the time from one keep-alive probe to the next, in seconds, from the next probe on, and the
    /// number of probes without an answer that end the connection.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_keep_alive_probes(
        &mut self,
        connection: TcpId,
        interval_s: u16,
        probes: u8,
    ) -> Result<(), TcpError> {
        self.tcp
            .set_keep_alive_probes(connection, interval_s, probes)
    }

    /// Takes the next connection with an event: bytes arrived, bytes were acknowledged, or
    /// the state changed. The caller finds out which. `None` if there is none.
    pub fn tcp_next_event(&mut self) -> Option<TcpId> {
        self.tcp.next_notified()
    }

    /// Takes the next listener with a new connection in its accept queue; `None` if there
    /// is none.
    pub fn tcp_next_opened(&mut self) -> Option<ListenerId> {
        self.tcp.next_notified_listener()
    }

    /// The channel by which a link may hand over this connection's frames without a
    /// look-up; `None` if the connection was let go.
    pub fn tcp_channel(&self, connection: TcpId) -> Option<Channel> {
        self.tcp_state(connection)?;
        Some(Channel::of_tcp(connection.0.bits()))
    }

    /// Number of connections that were let go while the peer has not acknowledged
    /// everything: a process that ends now cuts them off.
    pub fn tcp_orphans(&self) -> usize {
        self.tcp.orphans()
    }

    /// Number of half-open connections of listeners: the peer has not acknowledged the
    /// SYN-ACK. At most [`SYN_QUEUE_ALL_MAX`](crate::tcp::SYN_QUEUE_ALL_MAX).
    pub fn tcp_half_open(&self) -> usize {
        self.tcp.half_open()
    }

    /// Number of TCP connections, those in TIME-WAIT included.
    pub fn tcp_connections(&self) -> usize {
        self.tcp.connections()
    }
}
