//! What is known of one connection.

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

/// Where a connection is in its life (RFC 9293 §3.3.2). A listener is no
/// connection, and one that is closed is gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Our SYN is out.
    SynSent,
    /// Both SYNs are out; ours is not acknowledged.
    SynReceived,
    /// Open both ways.
    Established,
    /// We have closed; the peer has not acknowledged it.
    FinWait1,
    /// We have closed; the peer has not.
    FinWait2,
    /// The peer has closed; we have not.
    CloseWait,
    /// Both have closed; the peer has not acknowledged it.
    Closing,
    /// The peer closed first, then we; it has not acknowledged it.
    LastAck,
    /// Both have closed; old segments may still come.
    TimeWait,
    /// It is over, perhaps by an error, and waits for the application.
    Closed,
}

/// Both sides send timestamps (RFC 7323 §3).
#[derive(Clone, Copy, Debug)]
pub(super) struct Timestamps {
    /// What the clock is told apart by from that of other connections.
    pub(super) offset: u32,
    /// TS.Recent, and when it came.
    pub(super) recent: u32,
    pub(super) recent_ns: u64,
}

/// How long an acknowledgment may wait for company (RFC 9293 §3.8.6.3: below
/// half a second).
pub(super) const DELAYED_ACK_NS: u64 = 40_000_000;

/// The least segment that [`TcpConfig::mss_max`] can ask for, in bytes.
const MSS_MIN: usize = 88;
/// Bytes of a segment before anything is known of path and peer.
const MSS_FIRST: usize = 536;

/// Timers of one connection.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Timers {
    pub(super) loss: Option<(LossTimer, u64)>,
    /// An acknowledgment is owed by then.
    pub(super) ack_ns: OptDeadline,
    /// TIME-WAIT, or FIN-WAIT-2 without an application, ends; or the time
    /// that it may linger; or else the peer is asked whether it is there.
    pub(super) keepalive_or_time_wait_ns: OptDeadline,
    /// Memory that nothing is in is given back.
    pub(super) shrink_ns: OptDeadline,
}

impl Timers {
    /// When the first of them is due; `u64::MAX` if none runs.
    #[inline]
    pub(super) fn next_ns(&self) -> u64 {
        // Never is zero: one less is the greatest.
        let before = |when: OptDeadline| as_ns(when).unwrap_or(0).wrapping_sub(1);
        let due = before(self.ack_ns)
            .min(before(self.keepalive_or_time_wait_ns))
            .min(before(self.shrink_ns))
            .saturating_add(1);
        self.loss.map_or(due, |(_, at_ns)| at_ns.min(due))
    }
}

/// The headers of a connection's segments, as far as they are known before.
#[derive(Default)]
pub(super) struct Headers {
    /// What the next one that comes looks like, once the connection is open.
    pub(super) filter: HeaderFilter,
    /// How those that go start, while it holds.
    pub(super) cached: Option<HeaderCache>,
}

impl Headers {
    /// Of no connection any more.
    pub(super) fn forget(&mut self) {
        self.filter.disarm();
        self.cached = None;
    }
}

/// A protocol control block (RFC 9293 §3.3.1).
pub(super) struct Pcb {
    /// The link of its local address.
    pub(super) link: u8,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) state: State,
    /// Who is to accept it.
    pub(super) listener: Option<Handle>,
    /// It counts among its listener's that are not open yet.
    pub(super) is_half_open: bool,
    /// The application has let it go.
    pub(super) orphaned: bool,
    /// Why it is over; apart, as few end so.
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

    /// Bytes that a full segment carries beside the usual options.
    pub(super) mss: usize,
    /// Bytes that we take in a segment, options included.
    mss_advertised: u16,
    /// The longest segment that came.
    pub(super) mss_received: u16,
    /// The peer scales windows.
    pub(super) window_scaling: bool,
    /// Selective acknowledgments may be sent.
    pub(super) sack: bool,
    /// Marks of congestion are understood (RFC 3168).
    pub(super) ecn: bool,
    pub(super) timestamps: Option<Timestamps>,

    /// A mark of ours is to be told, and the peer's to be told until it knows.
    pub(super) send_cwr: bool,
    pub(super) send_ece: bool,
    /// An acknowledgment goes out at once.
    pub(super) ack_now: bool,
    /// What was acknowledged last.
    pub(super) acknowledged: Seq,
    /// Acknowledgments that are not delayed.
    pub(super) quickacks: u8,
    /// We answer what comes: an acknowledgment goes with the answer.
    pub(super) pingpong: bool,
    /// See [`TcpConfig::timestamps_required`].
    pub(super) timestamps_required: bool,
    /// The peer is asked for its window, or whether it is there.
    pub(super) probe_window: bool,
    /// When a segment that may be a stranger's was last answered.
    pub(super) challenged_ns: Option<NonZeroU64>,
    pub(super) last_sent_ns: u64,
    pub(super) last_segment_ns: u64,
    /// When bytes came last.
    pub(super) last_received_ns: u64,
    pub(super) keep_alive_ns: Option<NonZeroU64>,
    pub(super) keep_alive_probes: u32,

    /// What is sent arrives, or does not, as far as is known and not said yet.
    pub(super) reachability_hint: Option<bool>,
    /// When that was said last.
    pub(super) hinted_ns: u64,
    /// What it has besides while it is in use.
    pub(super) headers: Option<Box<Headers>>,
    /// It opens by TCP Fast Open.
    pub(super) tfo: Option<Box<TfoConnect>>,
    /// Where urgent bytes end.
    pub(super) urgent: Option<Box<Urgent>>,
    /// Bytes in a SYN were taken, by the peer or by us.
    pub(super) syn_data_acked: bool,
    /// How often our SYN goes again.
    pub(super) syn_retries: u8,
    /// See [`TcpConfig::retries`].
    pub(super) retries: u8,
    /// See [`TcpConfig::tail_loss_probe`] and [`TcpConfig::slow_start_after_idle`].
    pub(super) tail_loss_probe: bool,
    pub(super) slow_start_after_idle: bool,
    /// See [`TcpConfig::min_tso_segs`].
    pub(super) min_tso_segs: u8,
    /// When it comes up among the deadlines, at the latest.
    pub(super) due_ns: u64,
    pub(super) counts: Counts,
    /// Bytes of storage, as they are counted for all connections.
    pub(super) charged_bytes: u32,
    /// The storage that it waits for to be left, to write; 0 if it does not.
    pub(super) memory_wanted: u32,

    /// It is in the queue of those with something to send, and in that of
    /// those with something to tell.
    pub(super) in_output_queue: bool,
    pub(super) in_notify_queue: bool,
    /// It is in the table of connections.
    pub(super) in_table: bool,
    /// It only waits for its time to end.
    pub(super) in_time_wait_queue: bool,
    /// It was let go, and is reset when what was written has not arrived in
    /// time.
    pub(super) linger_reset: bool,
}

/// Acknowledgments at the start that are not delayed: they make the peer's
/// window grow.
pub(super) const QUICKACKS_MAX: u8 = 16;

/// A PCB of these values: one that is kept is written field by field, where they
/// stay, and a new one whole.
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
    /// One that begins, in the place and with the parts of one that is over if
    /// there is such a one.
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

    /// From us to the peer.
    pub(super) fn addresses(&self) -> AddrPair {
        AddrPair::new(self.local.ip(), self.remote.ip()).expect("made of one version")
    }

    /// Whether our SYN is not acknowledged.
    pub(super) fn is_opening(&self) -> bool {
        matches!(self.state, State::SynSent | State::SynReceived)
    }

    /// Whether the application may still write.
    pub(super) fn can_write(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait)
    }

    /// Whether something waits that the peer's window has no room for.
    pub(super) fn is_window_closed(&self) -> bool {
        !self.is_opening() && self.send.unsent() > 0
    }

    /// Sets the segment size by what the peer takes and the path carries;
    /// gives the bytes of options and payload together.
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

    /// Bytes of timestamps in a segment, if it has them.
    pub(super) fn timestamps_len(&self) -> usize {
        if self.timestamps.is_some() { 12 } else { 0 }
    }

    /// Bytes that a segment may carry, options included, before the peer has
    /// said what it takes.
    pub(super) fn path_mss(&self, path_mtu: usize) -> usize {
        (path_mtu - headers(self.local)).min(self.mss_advertised.into())
    }

    /// Segments that so many bytes go in, one at least.
    #[inline]
    pub(super) fn segments(&self, len: usize) -> usize {
        if len <= self.mss {
            return 1;
        }
        len.div_ceil(self.mss.max(1))
    }

    /// The segment size that our SYN tells.
    pub(super) fn mss_advertised(&self) -> u16 {
        self.mss_advertised
    }

    /// Our clock for timestamps, in milliseconds.
    pub(super) fn clock(&self, at_ns: u64) -> u32 {
        let offset = self.timestamps.map_or(0, |timestamps| timestamps.offset);
        ((at_ns / 1_000_000) as u32).wrapping_add(offset)
    }

    /// The headers of its segments, made where they stay.
    pub(super) fn headers_mut(&mut self) -> &mut Headers {
        let make = || Box::write(Box::new_uninit(), Headers::default());
        self.headers.get_or_insert_with(make)
    }

    /// Why it is over, if not as it should be.
    pub(super) fn error(&self) -> Option<TcpError> {
        self.error.as_deref().copied()
    }

    /// Whether its buffers have storage.
    pub(super) fn holds_memory(&self) -> bool {
        self.send.capacity() > 0 || self.receive.capacity() > 0 || self.headers.is_some()
    }

    /// The connection is over; the application learns why.
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

/// No end of a connection.
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
