//! [`Pcb`]: the state of one connection (RFC 9293 §3.3.1), by role:
//!
//! | part | what |
//! |---|---|
//! | `pair`, `state` | the sockets that identify the connection; its state |
//! | `user`, `opening`, `limits` | the application's side; how it was opened; its configuration |
//! | `send`, `receive` | SND.* and RCV.* with the bytes (`buffer`) |
//! | `scoreboard`, `rtt`, `rack`, `congestion`, `recovery` | segments in flight and losses (`recovery`) |
//! | `segment_size`, `negotiated`, `ecn` | what both sides and the path have agreed on |
//! | `ack` | acknowledgments and probes that are owed |
//! | `timers`, `user_timeout`, `activity` | deadlines; the limit on unacknowledged data; times, keep-alive |
//! | `reachability`, `headers`, `urgent` | hints to neighbour discovery; expected and cached headers; urgent marks |
//! | `listed`, `counts` | the stack's queues and sums that have the connection; its counts |

mod ack_state;
mod activity;
mod ecn;
mod limits;
mod listed;
mod negotiated;
mod opening;
mod reachability;
mod segment_size;
mod socket_pair;
mod timers;
mod user_side;

pub(super) use ack_state::{DELAYED_ACK_NS, QUICKACKS_MAX};
pub(super) use negotiated::Timestamps;

use super::buffer::receive_buffer::ReceiveBuffer;
use super::buffer::send_buffer::SendBuffer;
use super::info::Counts;
use super::recovery::Recovery;
use super::recovery::congestion::Congestion;
use super::recovery::rack::Rack;
use super::recovery::rtt::Rtt;
use super::recovery::scoreboard::Scoreboard;
use super::seq::Seq;
use super::urgent::Urgent;
use super::user_timeout::UserTimeout;
use super::{TcpConfig, TcpError, TcpOptions};
use crate::header_filter::HeaderFilter;
use crate::iface::{HeaderCache, Interface};
use ack_state::AckState;
use activity::Activity;
use ecn::Ecn;
use limits::Limits;
use listed::Listed;
use negotiated::Negotiated;
use opening::Opening;
use reachability::Reachability;
use segment_size::{MSS_DEFAULT, SegmentSize};
use socket_pair::SocketPair;
use std::net::SocketAddr;
use timers::Timers;
use user_side::UserSide;

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
    pub(super) pair: SocketPair,
    pub(super) state: State,
    pub(super) user: UserSide,
    pub(super) opening: Opening,
    pub(super) limits: Limits,

    pub(super) send: SendBuffer,
    pub(super) receive: ReceiveBuffer,
    pub(super) scoreboard: Scoreboard,
    pub(super) rtt: Rtt,
    pub(super) rack: Rack,
    pub(super) congestion: Congestion,
    pub(super) recovery: Recovery,
    pub(super) user_timeout: UserTimeout,
    pub(super) timers: Timers,

    pub(super) segment_size: SegmentSize,
    pub(super) negotiated: Negotiated,
    pub(super) ecn: Ecn,

    pub(super) ack: AckState,
    pub(super) activity: Activity,
    pub(super) reachability: Reachability,
    /// The headers, while the connection is in use.
    pub(super) headers: Option<Box<Headers>>,
    /// The marks of urgent data.
    pub(super) urgent: Option<Box<Urgent>>,
    pub(super) counts: Counts,
    pub(super) listed: Listed,
}

impl Pcb {
    /// A PCB for a new connection, in the memory of an ended one if the cache has one.
    pub(super) fn new(
        mut kept: Option<Box<Pcb>>,
        config: &TcpConfig,
        host: &Interface,
        (local, remote): &(SocketAddr, SocketAddr),
        iss: Seq,
        now_ns: u64,
    ) -> Box<Pcb> {
        let pair = SocketPair {
            link: host.link,
            local: *local,
            remote: *remote,
        };
        let (kept_board, kept_headers) = match &mut kept {
            Some(over) => (std::mem::take(&mut over.scoreboard), over.headers.take()),
            None => Default::default(),
        };
        let pcb = Pcb {
            pair,
            state: State::SynSent,
            user: UserSide::new(),
            opening: Opening::default(),
            limits: Limits::new(config),
            send: config.send(iss),
            receive: config.receive(),
            scoreboard: kept_board,
            rtt: Rtt::default(),
            rack: Rack::default(),
            congestion: Congestion::new(config.congestion, MSS_DEFAULT, seed(iss, now_ns)),
            recovery: Recovery::new(),
            user_timeout: UserTimeout::default(),
            timers: Timers::default(),
            segment_size: SegmentSize::new(host.mtu(), &pair, config.mss_max),
            negotiated: Negotiated {
                timestamps: None,
                timestamps_required: config.timestamps_required,
                window_scaling: true,
                sack: config.sack,
            },
            ecn: Ecn::new(config.ecn),
            ack: AckState::new(),
            activity: Activity::new(now_ns),
            reachability: Reachability::default(),
            headers: kept_headers,
            urgent: None,
            counts: Counts::default(),
            listed: Listed {
                in_table: true,
                ..Listed::default()
            },
        };
        match kept {
            Some(mut over) => {
                *over = pcb;
                over
            }
            None => Box::new(pcb),
        }
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
        let path = self.segment_size.of_path(path_mtu, &self.pair);
        let room = usize::from(self.send.mss_peer).min(path);
        let mss = room - self.negotiated.timestamps_len();
        if mss != self.segment_size.mss() {
            self.segment_size.set_mss(mss);
            self.congestion.set_mss(mss);
        }
        room
    }

    /// The headers, created in place if they do not exist.
    pub(super) fn headers_mut(&mut self) -> &mut Headers {
        let make = || Box::write(Box::new_uninit(), Headers::default());
        self.headers.get_or_insert_with(make)
    }

    /// Whether the buffers occupy storage.
    pub(super) fn holds_memory(&self) -> bool {
        let buffers = self.send.capacity() + self.receive.capacity();
        buffers + self.congestion.memory() > 0 || self.headers.is_some()
    }

    /// Ends the connection; the application gets `error`.
    pub(super) fn end(&mut self, error: Option<TcpError>) {
        self.state = State::Closed;
        self.user.end(error);
        self.timers.stop();
        self.congestion.wait_until(u64::MAX);
        self.scoreboard.clear();
        self.ack.now = false;
        self.ack.probe_window = false;
    }
}

/// Of what the congestion control draws at random: the initial number is the
/// stack's keyed generator's (RFC 6528).
fn seed(iss: Seq, now_ns: u64) -> u64 {
    u64::from(iss.0) << 32 ^ now_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An idle connection holds no buffers: the PCB, its slot and its entries in the table and the
    /// heap are below a kilobyte.
    #[test]
    fn an_idle_connection_is_small() {
        let size = size_of::<Pcb>();
        assert!(size <= 816, "{size} bytes");
    }
}
