//! The whole stack of one host.

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

/// Where frames go out.
///
/// Each frame is written in place: what [`TxSink::reserve`] gave is filled
/// and goes out with [`TxSink::submit`].
pub trait TxSink {
    /// Room for the next frame, of exactly `len` bytes; `None` if the link
    /// takes no more now. What was there before is undefined.
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]>;

    /// The frame reserved last is complete and goes out.
    fn submit(&mut self);

    /// The frame reserved last goes out, followed by `payload` from where it
    /// lies, and the link completes it. Only a link that [`Config::offload`]
    /// says to do so gets such frames.
    ///
    /// # Panics
    /// If the link does no such thing, and the configuration says it does.
    fn submit_partial(&mut self, partial: TxMeta, _payload: [&[u8]; 2]) {
        panic!("{partial:?} for a link without offload: set `Config::offload` to what it does");
    }

    /// Several frames go out, one after the other, that the link completes; gives how
    /// many of them it took, from the first.
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

/// An outlet without a limit, which keeps frames in memory.
impl TxSink for Vec<Vec<u8>> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.push(vec![0; len]);
        self.last_mut().map(Vec::as_mut_slice)
    }

    fn submit(&mut self) {}
}

/// A TCP/IP stack without I/O: frames, calls and the time go in, frames and
/// answers come out. Time is in nanoseconds from any start and does not go
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
/// // Who has 192.0.2.9? The datagram waits for the answer.
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
    /// A stack with these addresses and routes. Peers must not know the seed:
    /// sequence numbers, transport ports and hashes come from it.
    ///
    /// # Errors
    /// If the configuration contradicts itself or exceeds a limit.
    pub fn new(config: &Config, seed: u128) -> Result<Stack, ConfigError> {
        Stack::with_links(std::slice::from_ref(config), seed)
    }

    /// A stack on several links, at most [`LINKS_MAX`](crate::LINKS_MAX): one for each
    /// configuration, numbered from 0 on. Addresses, routes and what else a
    /// configuration says are that link's own (the strong end system model,
    /// RFC 1122 §3.3.4.2): what comes for an address comes by its link, and what
    /// goes from it goes by its link.
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

    /// Where the tables of connections get their memory from when they grow beyond some
    /// 49,000 connections, as far as some is at hand; else they make do with small pages,
    /// in which a look-up takes longer.
    pub fn set_pcb_chunk_source(&mut self, supply: &ChunkSource) {
        self.tcp.set_chunk_source(supply);
        self.udp.set_chunk_source(supply);
    }

    /// Takes a frame from the first link, without its check sequence.
    #[inline]
    pub fn receive(&mut self, now_ns: u64, frame: &[u8]) {
        self.receive_with(now_ns, frame, RxMeta::default());
    }

    /// Takes a frame about which the link tells something: several TCP
    /// segments merged into one, up to 64 KB, if the link vouches for them.
    pub fn receive_with(&mut self, now_ns: u64, frame: &[u8], received: RxMeta) {
        if self.tcp.expects_train() && self.receive_train(now_ns, frame, &received) {
            return;
        }
        let Some(host) = self.interfaces.get_mut(received.link) else {
            let counters = &mut self.interfaces.at_mut(0).counters;
            counters.frames_in += 1;
            counters.drop(DropReason::OtherLink);
            return;
        };
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

    /// Takes a frame that is like the one before, but for its bytes; whether it is.
    #[inline(never)]
    fn receive_train(&mut self, now_ns: u64, frame: &[u8], received: &RxMeta) -> bool {
        let Some(is_right) = self.tcp.receive_train(now_ns, frame, received) else {
            return false;
        };
        let counters = &mut self.interfaces.at_mut(received.link).counters;
        counters.frames_in += 1;
        if is_right {
            counters.segments_fast += 1
        } else {
            counters.drop(DropReason::ChecksumWrong)
        }
        true
    }

    /// What comes to an address that was lost takes no fast path any more: the
    /// standard one knows that it is not for us.
    pub(crate) fn disarm(&mut self) {
        self.tcp.disarm(&self.interfaces);
        self.udp.disarm(&self.interfaces);
    }

    /// Does what is due and sends what is ready, as far as the link takes it;
    /// gives when it is to be called again if nothing happens before: at once
    /// if much was sent, and more is left when what came meanwhile is in. A frame
    /// that came, or a call, makes it due at once; so does a link that was
    /// full and takes frames again.
    ///
    /// Frames of other links than the first stay: see [`Stack::poll_links`].
    pub fn poll(&mut self, now_ns: u64, out: &mut dyn TxSink) -> Option<u64> {
        self.run(now_ns, &mut SingleTx(out, NullTx))
    }

    /// As [`Stack::poll`], for a stack on several links: each frame goes to its
    /// link's outlet, and a link that is full holds up no other.
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
            // Questions for neighbours' addresses, that TCP needs.
            if host.has_frames() {
                host.flush(outs.sink(host.link));
            }
            next_ns = next_ns.min(host.due_ns());
        }
        (next_ns < u64::MAX).then_some(next_ns)
    }

    /// Does what is due of the links, and hands them the frames that wait.
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

    /// Deals with what the links' polls have found.
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

    /// Those of one link; whether an address was lost.
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
            // A packet of ours that is told of is related to something, or its
            // sender is gone.
            if let Some(report) = frame
                .get(ethernet::Repr::LEN..)
                .and_then(unreachable_report)
            {
                let _ = ingress.report(now_ns, report);
            }
        }
        lost
    }

    /// What the stack has counted, on all its links.
    pub fn counters(&self) -> Counters {
        let mut counters = self.interfaces.counters();
        counters.time_wait_evicted = self.tcp.time_wait_evicted();
        counters
    }

    /// One of its links, by number; `None` if it has fewer.
    pub fn link(&self, link: u8) -> Option<Link<'_>> {
        self.interfaces.link(link)
    }

    /// A link is gone, as a device that was pulled out, and does not come back:
    /// its routes lead nowhere any more, so that what is sent and opened from
    /// now on takes another link, or has no route. Connections by it stay, and
    /// time out. A number that no link has means nothing.
    pub fn lose_link(&mut self, link: u8) {
        if let Some(host) = self.interfaces.get_mut(link) {
            host.is_gone = true;
        }
    }

    /// Our addresses on all links, the link-local ones of IPv6 included; those
    /// that may turn out to be another's only once they are used.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let owned = self.interfaces.iter().map(|host| host.routes.addresses());
        let ours = owned.flatten().filter(|owned| owned.is_ours());
        ours.map(|owned| owned.prefix.address())
    }

    /// What happened to addresses and routers since it was last asked; the
    /// latest [`EVENTS_MAX`](crate::iface::EVENTS_MAX).
    pub fn next_event(&mut self) -> Option<Event> {
        self.next_link_event().map(|(_, event)| event)
    }

    /// Whether [`Stack::next_event`] has something to tell.
    pub fn has_events(&self) -> bool {
        self.interfaces.iter().any(Interface::has_events)
    }

    /// As [`Stack::next_event`], with the number of the link.
    pub fn next_link_event(&mut self) -> Option<(u8, Event)> {
        let mut hosts = self.interfaces.iter_mut();
        hosts.find_map(|host| Some((host.link, host.next_event()?)))
    }

    /// The address that a DHCP server gave, if [`Config::dhcp`] says to ask; on
    /// several links, the first: see [`Link::lease`].
    pub fn lease(&self) -> Option<&Lease> {
        self.interfaces.iter().find_map(Interface::lease)
    }

    /// Gives DHCP servers their addresses back, and asks for none any more. It
    /// is sent by the next poll.
    pub fn release(&mut self, now_ns: u64) {
        for host in self.interfaces.iter_mut() {
            host.release_lease(now_ns);
            host.take_removed();
        }
        self.disarm();
    }

    /// Who resolves names, as routers and servers say.
    pub fn resolvers(&self) -> impl Iterator<Item = IpAddr> {
        self.interfaces.iter().flat_map(Interface::resolvers)
    }

    /// Whether some router says that addresses are given by DHCPv6, which is
    /// not built in.
    pub fn is_managed(&self) -> bool {
        self.interfaces.iter().any(Interface::is_managed)
    }

    /// How TCP connections behave that begin from now on.
    pub fn tcp_configure(&mut self, config: TcpConfig) {
        self.tcp.config = config;
    }

    /// Sets how many bytes of storage the buffers of all TCP connections may
    /// have together ([`crate::tcp::MEMORY_DEFAULT`] until then). At the limit
    /// windows do not open, what comes beyond the storage there is is dropped
    /// and comes again, and nothing more is taken to be sent;
    /// [`Stack::tcp_next_event`] names those who waited when there is memory
    /// again. Nothing is taken from who has it.
    pub fn tcp_limit_memory(&mut self, bytes: usize) {
        self.tcp.limit_memory(bytes);
    }

    /// Sets how many TCP connections may wait for nothing but their time to end,
    /// in TIME-WAIT or, when the application has closed them, for the peer's FIN
    /// ([`crate::tcp::TIME_WAIT_MAX`] until then). Beyond it those go that have waited
    /// longest ([`Counters::time_wait_evicted`]).
    pub fn tcp_limit_time_wait(&mut self, now_ns: u64, count: usize) {
        self.tcp.limit_time_wait(now_ns, count);
    }

    /// Bytes of storage that the buffers of all TCP connections have.
    pub fn tcp_memory(&self) -> usize {
        self.tcp.charged_bytes
    }

    /// Waits for TCP connections at a local address and transport port; the
    /// unspecified address is any of its version, port 0 any that is free. At
    /// most `backlog` wait to be accepted.
    ///
    /// # Errors
    /// If the address is not ours, or the place is taken.
    pub fn tcp_listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
    ) -> Result<ListenerId, TcpError> {
        self.tcp_listen_with(local, Listen::new(backlog))
    }

    /// As [`Stack::tcp_listen`], perhaps for both versions, or beside others.
    ///
    /// # Errors
    /// As there.
    pub fn tcp_listen_with(
        &mut self,
        local: SocketAddr,
        listen: Listen,
    ) -> Result<ListenerId, TcpError> {
        self.tcp.listen(&self.interfaces, local, listen)
    }

    /// Where a listener is; `None` if it is closed.
    pub fn tcp_listener_local(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.tcp.listener_local(listener)
    }

    /// How the segments of a listener's connections go out, its answers to
    /// SYNs included; `None` if it is closed.
    pub fn tcp_listener_options(&mut self, listener: ListenerId) -> Option<TcpOptions> {
        self.tcp.listener_options(listener)
    }

    /// Sets what [`Stack::tcp_listener_options`] gives, for connections that
    /// begin from now on.
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

    /// The next connection that a listener has.
    ///
    /// # Errors
    /// [`TcpError::WouldBlock`] if there is none.
    pub fn tcp_accept(&mut self, _now_ns: u64, listener: ListenerId) -> Result<TcpId, TcpError> {
        self.tcp.accept(listener)
    }

    /// How many connections wait to be accepted.
    pub fn tcp_accept_queue_len(&self, listener: ListenerId) -> usize {
        self.tcp.accept_queue_len(listener)
    }

    /// Closes a listener; connections that it has not given are reset.
    pub fn tcp_unlisten(&mut self, now_ns: u64, listener: ListenerId) {
        self.tcp
            .close_listener(now_ns, &mut self.interfaces, listener);
    }

    /// Opens a connection, from a transport port that nobody can guess unless
    /// `local` says which. Bytes may be written at once.
    ///
    /// # Errors
    /// If no route leads there, or the ends are taken.
    pub fn tcp_connect(
        &mut self,
        now_ns: u64,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<TcpId, TcpError> {
        self.tcp.connect(now_ns, &self.interfaces, local, remote)
    }

    /// Writes bytes to be sent; gives how many there was room for.
    ///
    /// # Errors
    /// [`TcpError::WouldBlock`] if there was none; otherwise why there never will
    /// be.
    pub fn tcp_write(&mut self, connection: TcpId, bytes: &[u8]) -> Result<usize, TcpError> {
        self.tcp.write(connection, bytes)
    }

    /// As [`Stack::tcp_write`]: the last byte that is taken is the last urgent one
    /// (RFC 9293 §3.8.5; `MSG_OOB`). It stays in order with all others.
    ///
    /// # Errors
    /// As there.
    pub fn tcp_write_urgent(&mut self, connection: TcpId, bytes: &[u8]) -> Result<usize, TcpError> {
        self.tcp.write_urgent(connection, bytes)
    }

    /// How many bytes are to be read until the last urgent one of the peer's is, that
    /// one included; some may not have come. `None` if none is known of. With 1 the
    /// next byte is the one (`SIOCATMARK`). [`Stack::tcp_next_event`] names the
    /// connection when this changes.
    pub fn tcp_urgent(&self, connection: TcpId) -> Option<usize> {
        self.tcp.urgent(connection)
    }

    /// How many bytes of a connection may wait to be sent or acknowledged now.
    pub fn tcp_write_limit(&self, connection: TcpId) -> usize {
        self.tcp.write_limit(connection)
    }

    /// How many bytes [`Stack::tcp_write`] would take now. If want of memory
    /// makes it less than [`Stack::tcp_is_writable`] asks for,
    /// [`Stack::tcp_next_event`] names the connection when there is as much.
    pub fn tcp_write_room(&mut self, connection: TcpId) -> usize {
        self.tcp.write_room(connection)
    }

    /// Whether there is room to write that is worth coming for: 16 KiB, or a
    /// quarter of what may wait to be sent if that is less, or a sixteenth of
    /// all connections' memory. If there is not,
    /// [`Stack::tcp_next_event`] names the connection when there is.
    pub fn tcp_is_writable(&mut self, connection: TcpId) -> bool {
        self.tcp.is_writable(connection)
    }

    /// Reads bytes that came; none if the peer has closed.
    ///
    /// # Errors
    /// [`TcpError::WouldBlock`] if there are none; otherwise why there never will
    /// be.
    pub fn tcp_read(&mut self, connection: TcpId, out: &mut [u8]) -> Result<usize, TcpError> {
        self.tcp.read(connection, out)
    }

    /// Copies bytes that can be read, as [`Stack::tcp_read`], and leaves them.
    ///
    /// # Errors
    /// As [`Stack::tcp_read`].
    pub fn tcp_peek(&mut self, connection: TcpId, out: &mut [u8]) -> Result<usize, TcpError> {
        self.tcp.peek(connection, out)
    }

    /// What a connection tells of itself; `None` if it was let go.
    pub fn tcp_info(&self, now_ns: u64, connection: TcpId) -> Option<TcpInfo> {
        self.tcp.info(now_ns, connection)
    }

    /// The bytes that can be read, where they lie, as many as lie together;
    /// [`Stack::tcp_consume`] takes them. None if the peer has closed.
    ///
    /// # Errors
    /// As [`Stack::tcp_read`].
    pub fn tcp_readable_slice(&mut self, connection: TcpId) -> Result<&[u8], TcpError> {
        self.tcp.readable_slice(connection)
    }

    /// Takes bytes that were read by [`Stack::tcp_readable_slice`].
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_consume(&mut self, connection: TcpId, count: usize) -> Result<(), TcpError> {
        self.tcp.consume(connection, count)
    }

    /// Closes a connection for writing: the peer reads what was written, and
    /// then the end.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_shutdown(&mut self, now_ns: u64, connection: TcpId) -> Result<(), TcpError> {
        self.tcp.shutdown(now_ns, connection)
    }

    /// Lets a connection go: what was written is sent, what comes is refused.
    /// If bytes wait to be read, it is reset instead.
    pub fn tcp_close(&mut self, now_ns: u64, connection: TcpId) {
        self.tcp.close(now_ns, &mut self.interfaces, connection);
    }

    /// As [`Stack::tcp_close`], and resets the connection if the peer has not
    /// acknowledged all that was written after so long.
    pub fn tcp_close_linger(&mut self, now_ns: u64, connection: TcpId, time_ns: u64) {
        self.tcp
            .close_linger(now_ns, &mut self.interfaces, connection, time_ns);
    }

    /// Whether the peer has acknowledged all that was written, and the end if
    /// the connection was shut down for writing; also if it is over.
    pub fn tcp_all_acked(&self, connection: TcpId) -> bool {
        self.tcp.all_acked(connection)
    }

    /// Resets a connection and lets it go.
    pub fn tcp_abort(&mut self, now_ns: u64, connection: TcpId) {
        self.tcp.reset(now_ns, &mut self.interfaces, connection);
    }

    /// Where a connection is in its life; `None` if it was let go.
    pub fn tcp_state(&self, connection: TcpId) -> Option<State> {
        self.tcp.state(connection)
    }

    /// Why a connection is over, as soon as it is: before what came is read, and
    /// also if the peer had said all. [`TcpError::Closed`] if it was let go.
    pub fn tcp_error(&self, connection: TcpId) -> Option<TcpError> {
        self.tcp.error(connection)
    }

    /// Our end and the peer's; `None` if it was let go.
    pub fn tcp_ends(&self, connection: TcpId) -> Option<(SocketAddr, SocketAddr)> {
        self.tcp.ends(connection)
    }

    /// How a connection's segments go out; `None` if it was let go.
    pub fn tcp_options(&self, connection: TcpId) -> Option<TcpOptions> {
        self.tcp.options(connection)
    }

    /// Sets what [`Stack::tcp_options`] gives, from the next segment on: the
    /// SYN, if the stack was not polled since [`Stack::tcp_connect`].
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

    /// Whether small segments go out at once, without waiting for
    /// acknowledgments (Nagle's algorithm).
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_nodelay(&mut self, connection: TcpId, nodelay: bool) -> Result<(), TcpError> {
        self.tcp.set_nodelay(connection, nodelay)
    }

    /// Whether what does not fill a segment waits, until this is taken back
    /// or the rest comes.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_cork(&mut self, connection: TcpId, cork: bool) -> Result<(), TcpError> {
        self.tcp.set_cork(connection, cork)
    }

    /// Whether more bytes follow those written last at once: what does not fill
    /// a segment waits for them.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_more(&mut self, connection: TcpId, more: bool) -> Result<(), TcpError> {
        self.tcp.set_more(connection, more)
    }

    /// What was written last ends a record (`MSG_EOR`): no segment carries bytes
    /// of it and of what is written later.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_end_record(&mut self, connection: TcpId) -> Result<(), TcpError> {
        self.tcp.end_record(connection)
    }

    /// How often this connection's SYN goes again before it is given up.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_syn_retries(&mut self, connection: TcpId, retries: u8) -> Result<(), TcpError> {
        self.tcp.set_syn_retries(connection, retries)
    }

    /// How many time-outs in a row this connection outlives once it is open
    /// ([`TcpConfig::retries`](crate::tcp::TcpConfig::retries)).
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_retries(&mut self, connection: TcpId, retries: u8) -> Result<(), TcpError> {
        self.tcp.set_retries(connection, retries)
    }

    /// How many bytes may wait to be sent or acknowledged, for this
    /// connection; what waits already stays.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn tcp_set_send_buffer(&mut self, connection: TcpId, bytes: usize) -> Result<(), TcpError> {
        self.tcp.set_send_buffer(connection, bytes)
    }

    /// Whether so many bytes wait to be read, or as many as there is a window or
    /// memory for, or no more will come.
    pub fn tcp_is_readable(&self, connection: TcpId, least: usize) -> bool {
        self.tcp.is_readable(connection, least)
    }

    /// Takes nothing more from the application while so many bytes wait that were
    /// not sent yet, but a segment's at least; [`Stack::tcp_is_writable`] says that
    /// more is wanted when half of them have gone. `None` for no limit but the
    /// buffer's.
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

    /// Acknowledges what comes at once, one that is owed included, or with what
    /// goes, as far as it does not last: until bytes are answered, or for some
    /// segments.
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

    /// Whether what comes is acknowledged at once rather than with what goes;
    /// `None` if the connection was let go.
    pub fn tcp_quick_ack(&self, connection: TcpId) -> Option<bool> {
        self.tcp.quick_ack(connection)
    }

    /// Asks an idle peer whether it is there, after so long; `None` never.
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

    /// A connection that something happened to since it was last named: bytes
    /// came or left, or its state changed. What it was is for the caller to
    /// see.
    pub fn tcp_next_event(&mut self) -> Option<TcpId> {
        self.tcp.next_notified()
    }

    /// A listener that got a connection since it was last named.
    pub fn tcp_next_opened(&mut self) -> Option<ListenerId> {
        self.tcp.next_notified_listener()
    }

    /// The channel by which a link may hand over a connection's frames
    /// without their being looked up; `None` if it was let go.
    pub fn tcp_channel(&self, connection: TcpId) -> Option<Channel> {
        self.tcp_state(connection)?;
        Some(Channel::of_tcp(connection.0.bits()))
    }

    /// TCP connections that were let go while the peer has not got all that
    /// was written: who ends now cuts them off.
    pub fn tcp_orphans(&self) -> usize {
        self.tcp.orphans()
    }

    /// TCP connections of listeners whose peers have not acknowledged our
    /// answer, at most [`SYN_QUEUE_ALL_MAX`](crate::tcp::SYN_QUEUE_ALL_MAX).
    pub fn tcp_half_open(&self) -> usize {
        self.tcp.half_open()
    }

    /// TCP connections there are, those in TIME-WAIT included.
    pub fn tcp_connections(&self) -> usize {
        self.tcp.connections()
    }
}
