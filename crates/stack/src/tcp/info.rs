//! [`TcpInfo`]: state and measurements of a connection, as Linux's `TCP_INFO`.

use super::pcb::{Pcb, State};
use super::recovery::Phase;
use super::{Tcp, TcpError, TcpId};
use std::ops::AddAssign;

/// The state of loss recovery, as Linux's `tcp_ca_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaState {
    /// No loss is suspected.
    Open,
    /// The peer has received data out of order; nothing is considered lost yet.
    Disorder,
    /// The window was reduced because of an ECN mark.
    Cwr,
    /// Fast recovery is in progress.
    Recovery,
    /// The retransmission time-out has expired.
    Loss,
}

/// A snapshot of a connection. Windows and amounts are in bytes, times in nanoseconds; counts
/// begin with the connection.
#[derive(Clone, Debug)]
pub struct TcpInfo {
    /// The state of the connection (RFC 9293 §3.3.2).
    pub state: State,
    /// Why the connection is over.
    pub error: Option<TcpError>,
    /// The peer will send no more data.
    pub peer_closed: bool,
    /// The state of loss recovery.
    pub ca_state: CaState,
    /// Consecutive retransmission time-outs.
    pub retries: u32,
    /// Consecutive unanswered probes: zero-window probes or keep-alive probes.
    pub probes: u32,
    /// How often the time-out was doubled.
    pub backoff: u32,
    /// Whether both sides send timestamps (RFC 7323).
    pub timestamps: bool,
    /// Whether selective acknowledgments were negotiated (RFC 2018).
    pub sack: bool,
    /// Whether ECN was negotiated (RFC 3168).
    pub ecn: bool,
    /// Whether data in a SYN was accepted (RFC 7413), by the peer or by this side.
    pub syn_data_acked: bool,
    /// The window scales of the peer and of this side; `None` without scaling.
    pub window_scales: Option<(u8, u8)>,
    /// The retransmission time-out.
    pub rto_ns: u64,
    /// The smoothed round-trip time; `None` before it is measured.
    pub srtt_ns: Option<u64>,
    /// The variation of the round-trip time.
    pub rttvar_ns: u64,
    /// The least round-trip time.
    pub min_rtt_ns: u64,
    /// Payload bytes of a full segment.
    pub mss: usize,
    /// The MSS that this side's SYN announced.
    pub mss_advertised: usize,
    /// Length of the longest segment received.
    pub mss_received: usize,
    /// Segments in flight, including those that the peer has received out of order.
    pub in_flight: usize,
    /// Segments that the peer has received out of order.
    pub sacked: usize,
    /// Segments considered lost and not yet retransmitted.
    pub lost: usize,
    /// Segments retransmitted and not yet acknowledged.
    pub retrans: usize,
    /// The congestion window.
    pub cwnd: usize,
    /// Where slow start ends; `None` before the first loss, and where the
    /// congestion control has no such threshold.
    pub ssthresh: Option<usize>,
    /// The pacing rate, in bytes a second; zero before the first measurement of a round trip.
    pub pacing_rate: u64,
    /// Bytes to be read.
    pub readable: usize,
    /// Written and unsent bytes.
    pub unsent: usize,
    /// Sent and unacknowledged bytes.
    pub unacknowledged: usize,
    /// Limit on unsent and unacknowledged bytes.
    pub send_limit: usize,
    /// The peer's window.
    pub snd_wnd: usize,
    /// This side's window, as announced to the peer.
    pub rcv_wnd: usize,
    /// Largest distance, in bytes, by which segments were reordered.
    pub reordering_bytes: usize,
    /// Time since data was last sent (`since_sent_ns`), data was last received
    /// (`since_received_ns`), and any segment was last received (`since_segment_ns`).
    pub since_sent_ns: u64,
    /// See `since_sent_ns`.
    pub since_received_ns: u64,
    /// See `since_sent_ns`.
    pub since_segment_ns: u64,
    /// Counts.
    pub counts: Counts,
}

/// Counts of a connection; counts of 32 bits wrap around.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Bytes received in order.
    pub bytes_in: u64,
    /// Bytes that the peer has acknowledged.
    pub bytes_acknowledged: u64,
    /// Segments received.
    pub segments_in: u32,
    /// Segments sent.
    pub segments_out: u32,
    /// Segments retransmitted.
    pub retransmitted: u32,
    /// Segments delivered, by cumulative or selective acknowledgment.
    pub delivered: u32,
}

/// Adds to a count that wraps around.
pub(super) fn count(count: &mut u32, more: usize) {
    *count = count.wrapping_add(more as u32);
}

/// Adds to a count that does not wrap around.
pub(super) fn add(sum: &mut u64, more: usize) {
    sum.add_assign(more as u64);
}

impl Tcp {
    pub(crate) fn info(&self, now_ns: u64, id: TcpId) -> Option<TcpInfo> {
        let pcb = self.pcbs.get(id.0).filter(|pcb| !pcb.user.orphaned)?;
        Some(pcb.info(now_ns))
    }
}

impl Pcb {
    /// Counts a received segment.
    #[inline]
    pub(super) fn count_in(&mut self, now_ns: u64, len: usize) {
        count(&mut self.counts.segments_in, 1);
        if len > 0 {
            self.segment_size.note_received(len);
            self.activity.last_received_ns = now_ns;
        }
    }

    fn info(&self, now_ns: u64) -> TcpInfo {
        let since = |then_ns: u64| now_ns.saturating_sub(then_ns);
        let (sacked, lost, sent_again) = self.scoreboard.counts(self.segment_size.mss());
        TcpInfo {
            state: self.state,
            error: self.user.error(),
            peer_closed: self.has_ended(),
            ca_state: self.repair(),
            retries: self.recovery.retries,
            probes: self.activity.probes.into(),
            backoff: self.rtt.backoff(),
            timestamps: self.negotiated.timestamps.is_some() && !self.is_opening(),
            sack: self.negotiated.sack,
            ecn: self.ecn.enabled,
            syn_data_acked: self.opening.syn_data_acked,
            window_scales: self
                .negotiated
                .window_scaling
                .then_some((self.send.scale, self.receive.scale)),
            rto_ns: self.rtt.rto_ns(),
            srtt_ns: self.rtt.srtt_ns(),
            rttvar_ns: self.rtt.rttvar_ns(),
            min_rtt_ns: self.rtt.min_ns(),
            mss: self.segment_size.mss(),
            mss_advertised: self.segment_size.advertised.into(),
            mss_received: self.segment_size.received.into(),
            in_flight: self.scoreboard.segments(self.segment_size.mss()),
            sacked,
            lost,
            retrans: sent_again,
            cwnd: self.congestion.cwnd,
            ssthresh: self.congestion.threshold(),
            pacing_rate: self
                .congestion
                .paced_bytes(1_000_000_000, self.rtt.srtt_ns()),
            readable: self.receive.readable(),
            unsent: self.send.unsent(),
            unacknowledged: self.send.unacknowledged(),
            send_limit: self.send.sndbuf(),
            snd_wnd: self.send.wnd,
            rcv_wnd: self.receive.window(),
            reordering_bytes: self.rack.reordering_bytes(),
            since_sent_ns: since(self.activity.last_sent_ns),
            since_received_ns: since(self.activity.last_received_ns),
            since_segment_ns: since(self.activity.last_segment_ns),
            counts: self.counts,
        }
    }

    fn repair(&self) -> CaState {
        match self.recovery.phase {
            Phase::Recovery => CaState::Recovery,
            Phase::Loss => CaState::Loss,
            Phase::Open if self.is_cwr() => CaState::Cwr,
            Phase::Open if self.scoreboard.sacked() > 0 || self.recovery.has_duplicates() => {
                CaState::Disorder
            }
            Phase::Open => CaState::Open,
        }
    }
}
