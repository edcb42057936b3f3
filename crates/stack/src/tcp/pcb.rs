//! [`Pcb`]: the state of one connection (RFC 9293 §3.3.1).

use super::buffer::receive_buffer::ReceiveBuffer;
use super::buffer::send_buffer::SendBuffer;
use super::info::Counts;
use super::listen::fastopen::TfoConnect;
use super::recovery::congestion::Congestion;
use super::recovery::rack::Rack;
use super::recovery::rtt::Rtt;
use super::recovery::scoreboard::Scoreboard;
use super::recovery::{LossTimer, Recovery};
use super::seq::Seq;
use super::urgent::Urgent;
use super::user_timeout::UserTimeout;
use super::{TcpConfig, TcpError, TcpOptions};
use crate::deadline::{OptDeadline, as_ns};
use crate::header_filter::HeaderFilter;
use crate::iface::{HeaderCache, Interface};
use crate::slab::Handle;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::num::NonZeroU64;
use weir_wire::{AddrPair, ipv4, ipv6, tcp};

/// The state of a connection (RFC 9293 §3.3.2). Listeners are a type of their own, so there is
/// no LISTEN state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// This side's SYN was sent.
    SynSent,
    /// Both SYNs were sent; this side's is not acknowledged.
    SynReceived,
    /// Open in both directions.
    Established,
    /// This side has closed; the peer has not acknowledged the FIN.
    FinWait1,
    /// This side has closed and the FIN is acknowledged; the peer has not closed.
    FinWait2,
    /// The peer has closed; this side has not.
    CloseWait,
    /// Both sides have closed; the peer has not acknowledged the FIN.
    Closing,
    /// The peer closed first, then this side; the peer has not acknowledged the FIN.
    LastAck,
    /// Both sides have closed; old segments may still arrive.
    TimeWait,
    /// The connection is over, perhaps by an error, and waits for the application.
    Closed,
}

/// The state of timestamps, if both sides send them (RFC 7323 §3).
#[derive(Clone, Copy, Debug)]
pub(super) struct Timestamps {
    /// Offset of this connection's timestamp clock.
    pub(super) offset: u32,
    /// TS.Recent, and the time at which it arrived.
    pub(super) recent: u32,
    pub(super) recent_ns: u64,
}

/// Longest delay of an acknowledgment, in nanoseconds: 40 ms (RFC 9293 §3.8.6.3 requires less
/// than half a second).
pub(super) const DELAYED_ACK_NS: u64 = 40_000_000;

/// Least value of [`TcpConfig::mss_max`], in bytes.
const MSS_MIN: usize = 88;
/// Segment size in bytes before path and peer are known (RFC 9293 §3.7.1).
const MSS_FIRST: usize = 536;

/// The timers of one connection.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Timers {
    pub(super) loss: Option<(LossTimer, u64)>,
    /// When a delayed acknowledgment must be sent.
    pub(super) ack_ns: OptDeadline,
    /// When TIME-WAIT ends, or FIN-WAIT-2 without an application, or the linger time; otherwise
    /// when the next keep-alive probe is sent.
    pub(super) keepalive_or_time_wait_ns: OptDeadline,
    /// When unused buffer storage is released.
    pub(super) shrink_ns: OptDeadline,
}

impl Timers {
    /// When the first of the timers is due; `u64::MAX` if none runs.
    #[inline]
    pub(super) fn next_ns(&self) -> u64 {
        // An unset deadline is zero; minus one it is the greatest value.
        let before = |when: OptDeadline| as_ns(when).unwrap_or(0).wrapping_sub(1);
        let due = before(self.ack_ns)
            .min(before(self.keepalive_or_time_wait_ns))
            .min(before(self.shrink_ns))
            .saturating_add(1);
        self.loss.map_or(due, |(_, at_ns)| at_ns.min(due))
    }
}

/// The headers that the connection expects and sends.
#[derive(Default)]
pub(super) struct Headers {
    /// The expected header of the next segment received, once the connection is open.
    pub(super) filter: HeaderFilter,
    /// The first bytes of sent frames, as long as they are valid.
    pub(super) cached: Option<HeaderCache>,
}

impl Headers {
    /// Clears both headers, for reuse by another connection.
    pub(super) fn forget(&mut self) {
        self.filter.disarm();
        self.cached = None;
    }
}

/// A protocol control block: the state of one connection (RFC 9293 §3.3.1).
pub(super) struct Pcb {
    /// The link of the local address.
    pub(super) link: u8,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) state: State,
    /// The listener that opened the connection, until it is accepted.
    pub(super) listener: Option<Handle>,
    /// Whether the connection counts among the listener's half-open ones.
    pub(super) is_half_open: bool,
    /// Whether the application has let the connection go.
    pub(super) orphaned: bool,
    /// Why the connection is over; boxed, since few connections end with an error.
    error: Option<Box<TcpError>>,
    pub(super) options: TcpOptions,

    pub(super) send: SendBuffer,
    pub(super) receive: ReceiveBuffer,
    pub(super) scoreboard: Scoreboard,
    pub(super) rtt: Rtt,
    pub(super) rack: Rack,
    pub(super) congestion: Congestion,
    pub(super) recovery: Recovery,
    pub(super) user_timeout: UserTimeout,
    pub(super) timers: Timers,

    /// Payload bytes of a full segment with the usual options.
    pub(super) mss: usize,
    /// Length in bytes of the longest segment that this side accepts, options included.
    mss_advertised: u16,
    /// The longest segment received.
    pub(super) mss_received: u16,
    /// Whether window scaling was negotiated.
    pub(super) window_scaling: bool,
    /// Whether selective acknowledgments were negotiated.
    pub(super) sack: bool,
    /// Whether ECN was negotiated (RFC 3168).
    pub(super) ecn: bool,
    pub(super) timestamps: Option<Timestamps>,

    /// A mark of ours is to be told, and the peer's to be told until it knows.
    pub(super) send_cwr: bool,
    pub(super) send_ece: bool,
    /// Whether an acknowledgment must be sent at once.
    pub(super) ack_now: bool,
    /// The sequence number that was last acknowledged to the peer.
    pub(super) acknowledged: Seq,
    /// Number of further acknowledgments that are not delayed.
    pub(super) quickacks: u8,
    /// Whether the application answers what it receives, so that acknowledgments go with data.
    pub(super) pingpong: bool,
    /// See [`TcpConfig::timestamps_required`].
    pub(super) timestamps_required: bool,
    /// Whether a probe must be sent: for the window, or to keep the connection alive.
    pub(super) probe_window: bool,
    /// When the last challenge ACK was sent (RFC 5961).
    pub(super) challenged_ns: Option<NonZeroU64>,
    pub(super) last_sent_ns: u64,
    pub(super) last_segment_ns: u64,
    /// When data was last received.
    pub(super) last_received_ns: u64,
    pub(super) keep_alive_ns: Option<NonZeroU64>,
    pub(super) keep_alive_probes: u32,

    /// Whether sent segments arrive, as far as known; the interface has not been told yet.
    pub(super) reachability_hint: Option<bool>,
    /// When the interface was last told.
    pub(super) hinted_ns: u64,
    /// The headers, while the connection is in use.
    pub(super) headers: Option<Box<Headers>>,
    /// The state of TCP Fast Open, while the connection opens by it.
    pub(super) tfo: Option<Box<TfoConnect>>,
    /// The marks of urgent data.
    pub(super) urgent: Option<Box<Urgent>>,
    /// Whether data in a SYN was accepted, by the peer or by this side.
    pub(super) syn_data_acked: bool,
    /// How often this side's SYN is retransmitted.
    pub(super) syn_retries: u8,
    /// See [`TcpConfig::retries`].
    pub(super) retries: u8,
    /// See [`TcpConfig::tail_loss_probe`] and [`TcpConfig::slow_start_after_idle`].
    pub(super) tail_loss_probe: bool,
    pub(super) slow_start_after_idle: bool,
    /// See [`TcpConfig::min_tso_segs`].
    pub(super) min_tso_segs: u8,
    /// When the connection's entry in the timer heap is due.
    pub(super) due_ns: u64,
    pub(super) counts: Counts,
    /// Bytes of buffer storage, as counted in the total of all connections.
    pub(super) charged_bytes: u32,
    /// The free storage that a blocked writer waits for; 0 if no writer waits.
    pub(super) memory_wanted: u32,

    /// Whether the connection is in the output queue, and in the notify queue.
    pub(super) in_output_queue: bool,
    pub(super) in_notify_queue: bool,
    /// Whether the connection is in the table of connections.
    pub(super) in_table: bool,
    /// Whether the connection only waits for its time to end.
    pub(super) in_time_wait_queue: bool,
    /// Whether the connection was let go with a linger time, after which it is reset unless
    /// everything was acknowledged.
    pub(super) linger_reset: bool,
}

/// Number of acknowledgments at the start that are not delayed, since they open the peer's
/// congestion window.
pub(super) const QUICKACKS_MAX: u8 = 16;

/// A PCB with these values: a reused PCB is written field by field in place, a new one as a
/// whole.
macro_rules! written {
    ($kept:expr, Pcb { $($field:ident: $value:expr),* $(,)? }) => {
        match $kept {
            Some(mut pcb) => {
                let Pcb { $($field),* } = &mut *pcb;
                $(*$field = $value;)*
                pcb
            }
            None => Box::write(Box::new_uninit(), Pcb { $($field: $value),* }),
        }
    };
}

impl Pcb {
    /// A PCB for a new connection, in the memory of an ended one if the cache has one.
    pub(super) fn new(
        mut kept: Option<Box<Pcb>>,
        config: &TcpConfig,
        host: &Interface,
        (ours, theirs): &(SocketAddr, SocketAddr),
        iss: Seq,
        now_ns: u64,
    ) -> Box<Pcb> {
        let mss_max = config
            .mss_max
            .map_or(usize::MAX, |mss| usize::from(mss).max(MSS_MIN));
        let most = (host.mtu() - headers(*ours)).min(mss_max);
        let (kept_board, kept_headers) = match &mut kept {
            Some(over) => (std::mem::take(&mut over.scoreboard), over.headers.take()),
            None => Default::default(),
        };
        let mut pcb = written!(
            kept,
            Pcb {
                link: host.link,
                local: UNSPECIFIED,
                remote: UNSPECIFIED,
                state: State::SynSent,
                listener: None,
                is_half_open: false,
                orphaned: false,
                error: None,
                options: TcpOptions::default(),
                send: config.send(iss),
                receive: config.receive(),
                scoreboard: kept_board,
                rtt: Rtt::default(),
                rack: Rack::default(),
                congestion: Congestion::new(config.congestion, MSS_FIRST, seed(iss, now_ns)),
                recovery: Recovery::new(),
                user_timeout: UserTimeout::default(),
                timers: Timers::default(),
                mss: MSS_FIRST,
                mss_advertised: u16::try_from(most).unwrap_or(u16::MAX),
                mss_received: 0,
                window_scaling: true,
                sack: config.sack,
                ecn: config.ecn,
                timestamps: None,
                send_cwr: false,
                send_ece: false,
                ack_now: false,
                acknowledged: Seq(0),
                quickacks: QUICKACKS_MAX,
                pingpong: false,
                timestamps_required: config.timestamps_required,
                probe_window: false,
                challenged_ns: None,
                last_sent_ns: now_ns,
                last_segment_ns: now_ns,
                last_received_ns: now_ns,
                keep_alive_ns: None,
                keep_alive_probes: 0,
                reachability_hint: None,
                hinted_ns: 0,
                headers: kept_headers,
                tfo: None,
                urgent: None,
                syn_data_acked: false,
                syn_retries: config.syn_retries,
                retries: config.retries,
                tail_loss_probe: config.tail_loss_probe,
                slow_start_after_idle: config.slow_start_after_idle,
                min_tso_segs: config.min_tso_segs,
                due_ns: u64::MAX,
                counts: Counts::default(),
                charged_bytes: 0,
                memory_wanted: 0,
                in_output_queue: false,
                in_notify_queue: false,
                in_table: true,
                in_time_wait_queue: false,
                linger_reset: false,
            }
        );
        copy_end(&mut pcb.local, ours);
        copy_end(&mut pcb.remote, theirs);
        pcb
    }

    /// The addresses of sent packets: local, then remote.
    pub(super) fn addresses(&self) -> AddrPair {
        AddrPair::new(self.local.ip(), self.remote.ip()).expect("made of one version")
    }

    /// Whether this side's SYN is not yet acknowledged.
    pub(super) fn is_opening(&self) -> bool {
        matches!(self.state, State::SynSent | State::SynReceived)
    }

    /// Whether the application may still write.
    pub(super) fn can_write(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait)
    }

    /// Whether data waits for which the peer's window has no room.
    pub(super) fn is_window_closed(&self) -> bool {
        !self.is_opening() && self.send.unsent() > 0
    }

    /// Sets the segment size from the peer's MSS and the path's MTU; returns the bytes of
    /// options and payload together.
    pub(super) fn set_path(&mut self, path_mtu: usize) -> usize {
        let path = (path_mtu - headers(self.local)).min(self.mss_advertised.into());
        let room = usize::from(self.send.mss_peer).min(path);
        let mss = room - self.timestamps_len();
        if mss != self.mss {
            self.mss = mss;
            self.congestion.set_mss(mss);
        }
        room
    }

    /// Bytes of the timestamps option in a segment; 0 without timestamps.
    pub(super) fn timestamps_len(&self) -> usize {
        if self.timestamps.is_some() { 12 } else { 0 }
    }

    /// Bytes of options and payload that a segment may carry by the path's MTU, before the
    /// peer's MSS is known.
    pub(super) fn path_mss(&self, path_mtu: usize) -> usize {
        (path_mtu - headers(self.local)).min(self.mss_advertised.into())
    }

    /// Number of segments for `len` bytes, at least one.
    #[inline]
    pub(super) fn segments(&self, len: usize) -> usize {
        if len <= self.mss {
            return 1;
        }
        len.div_ceil(self.mss.max(1))
    }

    /// The MSS that this side's SYN announces.
    pub(super) fn mss_advertised(&self) -> u16 {
        self.mss_advertised
    }

    /// The timestamp clock of this connection, in milliseconds.
    pub(super) fn clock(&self, at_ns: u64) -> u32 {
        let offset = self.timestamps.map_or(0, |timestamps| timestamps.offset);
        ((at_ns / 1_000_000) as u32).wrapping_add(offset)
    }

    /// The headers, created in place if they do not exist.
    pub(super) fn headers_mut(&mut self) -> &mut Headers {
        let make = || Box::write(Box::new_uninit(), Headers::default());
        self.headers.get_or_insert_with(make)
    }

    /// Why the connection is over, if it ended with an error.
    pub(super) fn error(&self) -> Option<TcpError> {
        self.error.as_deref().copied()
    }

    /// Whether the buffers occupy storage.
    pub(super) fn holds_memory(&self) -> bool {
        let buffers = self.send.capacity() + self.receive.capacity();
        buffers + self.congestion.memory() > 0 || self.headers.is_some()
    }

    /// Ends the connection; the application gets `error`.
    pub(super) fn end(&mut self, error: Option<TcpError>) {
        self.state = State::Closed;
        self.error = self.error.take().or(error.map(Box::new));
        self.timers = Timers::default();
        self.congestion.wait_until(u64::MAX);
        self.scoreboard.clear();
        self.ack_now = false;
        self.probe_window = false;
    }
}

/// A placeholder for an address that is not set.
const UNSPECIFIED: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// Copies what was just written in pieces, in these pieces: to read it whole would
/// wait until all are there.
#[inline(always)]
fn copy_end(to: &mut SocketAddr, from: &SocketAddr) {
    match from {
        SocketAddr::V4(v4) => *to = SocketAddrV4::new(*v4.ip(), v4.port()).into(),
        SocketAddr::V6(v6) => *to = SocketAddr::V6(*v6),
    }
}

/// Of what the congestion control draws at random: the initial number is the
/// stack's keyed generator's (RFC 6528).
fn seed(iss: Seq, now_ns: u64) -> u64 {
    u64::from(iss.0) << 32 ^ now_ns
}

/// Bytes of the headers without options.
fn headers(local: SocketAddr) -> usize {
    tcp::Repr::LEN_MIN
        + match local {
            SocketAddr::V4(_) => ipv4::Repr::LEN,
            SocketAddr::V6(_) => ipv6::Repr::LEN,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is idle holds no buffers, so this, its slot and its entries in
    /// the table and the heap are all: below a kilobyte.
    #[test]
    fn an_idle_connection_is_small() {
        let size = size_of::<Pcb>();
        assert!(size <= 816, "{size} bytes");
    }
}
