//! TCP (RFC 9293), split by role.
//!
//! | module | what |
//! |---|---|
//! | `pcb` | the state of one connection |
//! | `connections` | all connections: segments find theirs, timers, turns of output |
//! | `user_calls`, `info` | what applications call (9293 §3.9.1), and are told |
//! | `input` | a segment arrives: is it plausible; its acknowledgment (`ack`); header prediction (`fast_path`, `train`) |
//! | `output` | the next segments are chosen, and written (`emit`) |
//! | `buffer` | bytes of the application: `send_buffer` (Nagle, silly windows), `receive_buffer` (the window, SACK: 2018, 2883) |
//! | `recovery` | what is in flight (`scoreboard`), what is lost (`rack`, 8985), its repair (9937, 6582, 5681), `congestion` (CUBIC, 9438), `rtt` (6298) |
//! | `listen` | passive open: `bind`, `handshake` (6528, SYN cookies), `fastopen` (7413) |
//! | `time_wait` | connections that only wait: how many (`limit`), and the little that is left of them (`minisock`) |
//! | `urgent` | marks of urgent data (9293 §3.8.5) |
//! | `timer_heap`, `user_timeout` | deadlines of all connections; how long data may stay unacknowledged (5482, 6429) |
//! | `pcb_cache` | memory of connections that are over, for those that begin |
//!
//! Also kept to: window scaling, timestamps and PAWS (7323), ECN (3168),
//! answers to guesses (5961), TIME-WAIT cut short (6191).

mod buffer;
mod connections;
mod info;
mod input;
mod listen;
mod output;
mod pcb;
mod pcb_cache;
mod recovery;
mod seq;
mod time_wait;
mod timer_heap;
mod urgent;
mod user_calls;
mod user_timeout;

pub use buffer::receive_buffer::OOO_RANGES_MAX;
pub use connections::CONNECTIONS_MAX;
pub use info::{CaState, Counts, TcpInfo};
pub use listen::fastopen::{COOKIES_MAX, FastOpenServer};
pub use listen::handshake::{SYN_QUEUE_ALL_MAX, SYN_QUEUE_MAX};
pub use pcb::State;
pub use recovery::congestion::Algorithm;
pub use recovery::scoreboard::SEGMENTS_MAX;
pub use time_wait::limit::TIME_WAIT_MAX;

pub(crate) use connections::Tcp;
pub(crate) use input::fast_path::FastPathVerdict;

use crate::iface::{HOP_LIMIT, Header};
use crate::slab::Handle;
use buffer::receive_buffer::ReceiveBuffer;
use buffer::send_buffer::SendBuffer;
use seq::Seq;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use weir_wire::{AddrPair, Protocol};

/// Names a TCP connection of one stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpId(pub(crate) Handle);

/// Names a TCP listener of one stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ListenerId(pub(crate) Handle);

/// How a listener is at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// Connections that wait to be accepted, at most; one at least.
    pub backlog: usize,
    /// At the unspecified address of IPv6, connections of IPv4 too (RFC 3493
    /// §5.3), which have addresses of IPv4. Nobody else is then at IPv4's
    /// unspecified address.
    pub both_versions: bool,
    /// Others that are set so, too, may be at the very same place: each
    /// connection is one listener's, by a keyed hash of its ends.
    pub reuse_port: bool,
}

impl Listen {
    /// Alone, for one version, with this backlog.
    pub fn new(backlog: usize) -> Listen {
        Listen {
            backlog,
            both_versions: false,
            reuse_port: false,
        }
    }
}

/// How a socket's segments go out, and how long and for how much it waits. A
/// listener's go to the connections it accepts, and hold from their first segment
/// on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpOptions {
    /// Hops that a segment may take.
    pub hop_limit: u8,
    /// Differentiated services (RFC 2474). The two lowest bits are not looked
    /// at: they tell of congestion, and are TCP's own (RFC 3168).
    pub traffic_class: u8,
    /// How long, in milliseconds, what was written may wait to be acknowledged,
    /// or to be sent for want of a window, until the connection is given up
    /// ([`TcpError::TimedOut`]); so also a SYN, and an idle peer's answer where
    /// it is asked for one (RFC 9293 §3.9.1, RFC 5482 §3.1, which tells the peer;
    /// we do not). `None` leaves it to [`TcpConfig::retries`].
    pub user_timeout_ms: Option<NonZeroU32>,
    /// Bytes that wait to be read, at most, whatever the path: the window does
    /// not grow beyond it, and takes nothing back that it has granted. Told
    /// before the SYN it may be more than [`TcpConfig::receive_buffer`]. `None`
    /// lets it grow as [`TcpConfig`] says.
    pub receive_buffer: Option<NonZeroU32>,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            user_timeout_ms: None,
            receive_buffer: None,
        }
    }
}

impl TcpOptions {
    /// Without the bits that are TCP's own.
    fn settled(self) -> TcpOptions {
        TcpOptions {
            traffic_class: self.traffic_class & !3,
            ..self
        }
    }

    /// The header of the IP packets.
    fn header(self, addresses: AddrPair) -> Header {
        Header {
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            dont_fragment: true,
            ..Header::new(addresses, Protocol::TCP)
        }
    }
}

/// How connections behave that are opened from now on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpConfig {
    /// Bytes that wait to be read, at most: the widest window. It is that wide
    /// if the path takes it.
    pub receive_buffer: usize,
    /// The window that a connection begins with, unless that is wider than
    /// [`TcpConfig::receive_buffer`]: it grows while a round trip brings more
    /// than a third of it. Where a round trip takes less than 200 µs it grows no
    /// wider than 1 MiB, unless the application comes late to read again and again.
    pub receive_initial: usize,
    /// Bytes that wait to be sent or acknowledged, at most.
    pub send_buffer: usize,
    /// As many in the beginning: the buffer grows to twice the congestion
    /// window, or the peer's widest window if that is less. Where a round trip takes less than 80 µs it holds less, down to
    /// 512 KiB: as much as 400 Gb/s would have on the way; unless the peer
    /// acknowledges late now and then.
    pub send_initial: usize,
    /// Selective acknowledgments (RFC 2018), and RACK with them.
    pub sack: bool,
    /// Timestamps and PAWS (RFC 7323).
    pub timestamps: bool,
    /// Whether segments without timestamps are dropped once both sides send
    /// them (RFC 7323 §3.2: should be). Linux takes them.
    pub timestamps_required: bool,
    /// Marks of congestion (RFC 3168).
    pub ecn: bool,
    /// Bytes of payload and options that a segment carries, at most; `None` is
    /// what the path takes. Our SYN tells it to the peer.
    pub mss_max: Option<u16>,
    /// Whether the end of a flight is probed for loss (RFC 8985 §7).
    pub tail_loss_probe: bool,
    /// How often a SYN goes again, ours or an answer of ours. Seven times take
    /// 183 seconds: RFC 9293 §3.8.3 asks for 180 at least.
    pub syn_retries: u8,
    /// How many time-outs in a row a connection outlives, once open, with what
    /// it sends or with probes of a closed window (RFC 9293 §3.8.3: R2). Fifteen
    /// take nine minutes or more; `u8::MAX`, four hours.
    pub retries: u8,
    /// Whether a window that was not used for a while starts over (RFC 5681
    /// §4.1).
    pub slow_start_after_idle: bool,
    /// Segments that the link cuts from one, at least, if the window takes them.
    pub min_tso_segs: u8,
    /// How much is sent into the network.
    pub congestion: Algorithm,
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            receive_buffer: 4 << 20,
            receive_initial: 1 << 20,
            send_buffer: 4 << 20,
            send_initial: 512 << 10,
            sack: true,
            timestamps: true,
            timestamps_required: true,
            ecn: true,
            mss_max: None,
            tail_loss_probe: true,
            syn_retries: 7,
            retries: 15,
            slow_start_after_idle: true,
            min_tso_segs: 2,
            congestion: Algorithm::default(),
        }
    }
}

/// Bytes of storage of all buffers of a stack's connections, unless
/// [`Stack::tcp_limit_memory`](crate::Stack::tcp_limit_memory) says otherwise.
pub const MEMORY_DEFAULT: usize = 1 << 30;

impl TcpConfig {
    fn send(&self, iss: Seq) -> SendBuffer {
        SendBuffer::new(iss, self.send_initial.max(1), self.send_buffer.max(1))
    }

    fn receive(&self) -> ReceiveBuffer {
        let (start, most) = (self.receive_initial.max(1), self.receive_buffer.max(1));
        ReceiveBuffer::new(start, most, self.window_scale())
    }

    /// The shift with which a window field tells the whole buffer.
    fn window_scale(&self) -> u8 {
        scale(self.receive_buffer)
    }
}

/// The shift with which a window field tells so many bytes.
fn scale(bytes: usize) -> u8 {
    let bits = usize::BITS - bytes.leading_zeros();
    bits.saturating_sub(u16::BITS).min(14) as u8
}

/// Why a call failed, or a connection ended.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpError {
    /// There is nothing to read, or no room to write, or nobody to accept.
    #[error("not now: poll the stack, and try again when something has come")]
    WouldBlock,
    /// The peer refused the connection.
    #[error("the peer refused the connection: nobody listens there")]
    Refused,
    /// A router, or nobody's answer on the link, says that the peer cannot be
    /// reached.
    #[error("the peer cannot be reached: no way leads there, or it is not there")]
    HostUnreachable,
    /// A router says that the peer's network cannot be reached.
    #[error("the peer's network cannot be reached")]
    NetworkUnreachable,
    /// The peer reset the connection.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer does not answer any more.
    #[error("the peer does not answer")]
    TimedOut,
    /// This side was closed for writing before, or the peer reset the connection
    /// after it had said all.
    #[error("the connection is closed for writing")]
    WriteClosed,
    /// There is no such connection or listener any more.
    #[error("the connection is closed")]
    Closed,
    /// The address is not this host's.
    #[error("{0} is no address of this host: use one of its own, or the unspecified one")]
    AddrNotAvailable(SocketAddr),
    /// The place is taken.
    #[error("{0} is taken: choose another transport port, or 0 for any that is free")]
    AddrInUse(SocketAddr),
    /// No route leads to the peer, or it cannot be one.
    #[error("no route leads to {0}: add one that contains it")]
    NoRoute(SocketAddr),
    /// No more connections, or transport ports.
    #[error("{CONNECTIONS_MAX} connections or all transport ports are taken: close some first")]
    Full,
}
