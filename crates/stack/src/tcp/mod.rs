//! TCP (RFC 9293), split by role. A number in brackets is an RFC.
//!
//! | module | what |
//! |---|---|
//! | `pcb` | the state of one connection, a submodule a role |
//! | `connections` | all connections: look-up for each segment, timers, order of output |
//! | `user_calls`, `info` | the user calls (9293 §3.9.1), and `TCP_INFO` |
//! | `input` | a segment arrives: acceptance test; acknowledgment (`ack`); header prediction (`fast_path`, `train`) |
//! | `output` | chooses the next segments, and writes them (`emit`) |
//! | `buffer` | the application's bytes: `send_buffer` (Nagle, silly window avoidance), `receive_buffer` (the window, SACK: 2018, 2883) |
//! | `recovery` | segments in flight (`scoreboard`), loss detection (`rack`, 8985) and recovery (9937, 6582, 5681), `congestion` (CUBIC, 9438), `rtt` (6298) |
//! | `listen` | passive open: `bind`, `handshake` (6528, SYN cookies), `fastopen` (7413) |
//! | `time_wait` | TIME-WAIT: the limit on its connections (`limit`), and their reduced state (`minisock`) |
//! | `urgent` | the urgent mechanism (9293 §3.8.5) |
//! | `timer_heap`, `user_timeout` | timers of all connections; the limit on unacknowledged data (5482, 6429) |
//! | `pcb_cache` | memory of ended connections, for reuse by new ones |
//!
//! Also implemented: window scaling, timestamps and PAWS (7323), ECN (3168), defences
//! against blind attacks (5961), early end of TIME-WAIT (6191).

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

/// Handle of a TCP connection of one stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpId(pub(crate) Handle);

/// Handle of a TCP listener of one stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ListenerId(pub(crate) Handle);

/// How a listener is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// Limit on connections that wait to be accepted; at least 1.
    pub backlog: usize,
    /// Whether a listener at the unspecified IPv6 address also accepts IPv4 connections
    /// (RFC 3493 §5.3), whose addresses are then reported as IPv4. The listener then also
    /// occupies the unspecified IPv4 address.
    pub both_versions: bool,
    /// Whether other listeners with this flag may share the address and port
    /// (`SO_REUSEPORT`). A keyed hash of each connection's addresses and ports chooses its
    /// listener.
    pub reuse_port: bool,
}

impl Listen {
    /// One IP version, no port sharing, and this backlog.
    pub fn new(backlog: usize) -> Listen {
        Listen {
            backlog,
            both_versions: false,
            reuse_port: false,
        }
    }
}

/// Socket options: the headers of a socket's segments and the limits on its waiting.
/// Connections take their listener's options over, from their first segment on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpOptions {
    /// Hop limit (IPv6) or TTL (IPv4) of each segment.
    pub hop_limit: u8,
    /// Differentiated services field (RFC 2474). The two lowest bits are ignored: they are
    /// the ECN field, which TCP sets itself (RFC 3168).
    pub traffic_class: u8,
    /// User timeout in milliseconds (RFC 9293 §3.9.1, RFC 5482): how long written data may
    /// stay unacknowledged, or unsent because of a closed window, before the connection ends
    /// with [`TcpError::TimedOut`]. The limit also holds for a SYN, and for the answer to
    /// keep-alive probes. The stack does not send the User Timeout Option of RFC 5482 §3.1.
    /// `None` leaves the limit to [`TcpConfig::retries`].
    pub user_timeout_ms: Option<NonZeroU32>,
    /// Limit, in bytes, on unread data, whatever the path: the window does not grow beyond
    /// it, and never takes back what it has granted. Set before the SYN, the limit may exceed
    /// [`TcpConfig::receive_buffer`]. `None` lets the window grow as [`TcpConfig`] says.
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
    /// The options with the ECN bits of the traffic class cleared.
    fn settled(self) -> TcpOptions {
        TcpOptions {
            traffic_class: self.traffic_class & !3,
            ..self
        }
    }

    /// The IP header of the connection's packets.
    fn header(self, addresses: AddrPair) -> Header {
        Header {
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            dont_fragment: true,
            ..Header::new(addresses, Protocol::TCP)
        }
    }
}

/// The behaviour of connections that are opened from now on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpConfig {
    /// Limit, in bytes, on unread data: the widest window, which is reached if the path
    /// needs it.
    pub receive_buffer: usize,
    /// Initial window in bytes, at most [`TcpConfig::receive_buffer`]. The window grows while
    /// one round trip delivers more than a third of it. With a round-trip time below 200 µs
    /// the window stays within 1 MiB, unless the application repeatedly reads late.
    pub receive_initial: usize,
    /// Limit, in bytes, on unsent and unacknowledged data.
    pub send_buffer: usize,
    /// Initial value of that limit: the buffer grows to twice the congestion window, or to
    /// twice the peer's widest window if that is less. With a round-trip time below 80 µs the
    /// buffer holds less, down to 512 KiB (the bytes in flight at 400 Gb/s), unless the peer's
    /// acknowledgments are sometimes late.
    pub send_initial: usize,
    /// Selective acknowledgments (RFC 2018); RACK requires them.
    pub sack: bool,
    /// Timestamps and PAWS (RFC 7323).
    pub timestamps: bool,
    /// Whether segments without timestamps are dropped once timestamps are negotiated
    /// (RFC 7323 §3.2: SHOULD). Linux accepts them.
    pub timestamps_required: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// Limit, in bytes, on payload and options of a segment, announced in the SYN's MSS
    /// option; `None` uses the path's MTU.
    pub mss_max: Option<u16>,
    /// Whether tail loss probes are sent (RFC 8985 §7).
    pub tail_loss_probe: bool,
    /// How often a SYN or SYN-ACK is retransmitted. 7 retransmissions take 183 seconds;
    /// RFC 9293 §3.8.3 requires at least 180.
    pub syn_retries: u8,
    /// How many consecutive time-outs an open connection survives, of data or of
    /// zero-window probes (R2 of RFC 9293 §3.8.3). 15 take nine minutes or more;
    /// `u8::MAX` takes four hours.
    pub retries: u8,
    /// Whether the congestion window is reset after an idle period (RFC 5681 §4.1).
    pub slow_start_after_idle: bool,
    /// Least number of segments in one frame for segmentation offload, if the window allows.
    pub min_tso_segs: u8,
    /// The congestion control algorithm.
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

/// Default limit, in bytes, on all buffers of a stack's connections: see
/// [`Stack::tcp_limit_memory`](crate::Stack::tcp_limit_memory).
pub const MEMORY_DEFAULT: usize = 1 << 30;

/// Default time between keep-alive probes, in seconds (RFC 9293 §3.8.4; Linux'
/// `tcp_keepalive_intvl`).
pub const KEEPALIVE_INTERVAL_S: u16 = 75;

/// Default number of unanswered keep-alive probes after which the peer is given up (Linux'
/// `tcp_keepalive_probes`).
pub const KEEPALIVE_PROBES_MAX: u8 = 9;

impl TcpConfig {
    fn send(&self, iss: Seq) -> SendBuffer {
        SendBuffer::new(iss, self.send_initial.max(1), self.send_buffer.max(1))
    }

    fn receive(&self) -> ReceiveBuffer {
        let (start, most) = (self.receive_initial.max(1), self.receive_buffer.max(1));
        ReceiveBuffer::new(start, most, self.window_scale())
    }

    /// The window scale that lets a window field express the whole receive buffer.
    fn window_scale(&self) -> u8 {
        scale(self.receive_buffer)
    }
}

/// The window scale (RFC 7323 §2) that lets a window field express `bytes`; at most 14.
fn scale(bytes: usize) -> u8 {
    let bits = usize::BITS - bytes.leading_zeros();
    bits.saturating_sub(u16::BITS).min(14) as u8
}

/// Why a call failed, or a connection ended.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpError {
    /// Nothing to read, no room to write, or no connection to accept.
    #[error("not now: poll the stack, and try again when something has come")]
    WouldBlock,
    /// The peer refused the connection.
    #[error("the peer refused the connection: no application listens there")]
    Refused,
    /// A router reports, or the lack of a neighbour's answer shows, that the peer cannot be
    /// reached.
    #[error("the peer cannot be reached: no route leads there, or it does not answer")]
    HostUnreachable,
    /// A router reports that the peer's network cannot be reached.
    #[error("the peer's network cannot be reached")]
    NetworkUnreachable,
    /// The peer reset the connection.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer no longer answers.
    #[error("the peer does not answer")]
    TimedOut,
    /// This side was closed for writing, or the peer reset the connection after its FIN.
    #[error("the connection is closed for writing")]
    WriteClosed,
    /// The connection or listener no longer exists.
    #[error("the connection is closed")]
    Closed,
    /// The address does not belong to this host.
    #[error("{0} is not an address of this host: use one of its own, or the unspecified one")]
    AddrNotAvailable(SocketAddr),
    /// The address and port are in use.
    #[error("{0} is taken: choose another transport port, or 0 for any that is free")]
    AddrInUse(SocketAddr),
    /// No route leads to the peer, or the address cannot be a peer's.
    #[error("no route leads to {0}: add one that contains it")]
    NoRoute(SocketAddr),
    /// The limit on connections is reached, or no transport port is free.
    #[error("{CONNECTIONS_MAX} connections or all transport ports are taken: close some first")]
    Full,
}
