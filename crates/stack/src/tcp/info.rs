//! What a connection tells of itself: what Linux calls `TCP_INFO`.

use super::pcb::{Pcb, State};
use super::recovery::Phase;
use super::{Tcp, TcpError, TcpId};
use std::ops::AddAssign;

/// What a connection is doing about loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaState {
    /// Nothing is known to be lost.
    Open,
    /// The peer has something out of order; nothing is taken for lost yet.
    Disorder,
    /// The window was reduced because the network marked a segment.
    Cwr,
    /// A loss is being repaired.
    Recovery,
    /// The time-out struck.
    Loss,
}

/// A connection at one moment. Windows and amounts are in bytes, times in
/// nanoseconds, counts since the connection began.
#[derive(Clone, Debug)]
pub struct TcpInfo {
    /// Where it is in its life.
    pub state: State,
    /// Why it is over.
    pub error: Option<TcpError>,
    /// The peer will send no more.
    pub peer_closed: bool,
    /// What it does about loss.
    pub ca_state: CaState,
    /// Time-outs in a row.
    pub retries: u32,
    /// Questions in a row that were not answered: for a window, or whether
    /// the peer is there.
    pub probes: u32,
    /// How often the time-out was doubled.
    pub backoff: u32,
    /// Both sides send timestamps (RFC 7323).
    pub timestamps: bool,
    /// Selective acknowledgments may be sent (RFC 2018).
    pub sack: bool,
    /// Marks of congestion are understood (RFC 3168).
    pub ecn: bool,
    /// Bytes in a SYN were taken (RFC 7413), by the peer or by us.
    pub syn_data_acked: bool,
    /// The shifts of the peer's windows and ours, if windows are scaled.
    pub window_scales: Option<(u8, u8)>,
    /// The retransmission time-out.
    pub rto_ns: u64,
    /// The smoothed round-trip time; `None` before it is measured.
    pub srtt_ns: Option<u64>,
    /// How much it varies.
    pub rttvar_ns: u64,
    /// The least round-trip time.
    pub min_rtt_ns: u64,
    /// Bytes that a full segment carries.
    pub mss: usize,
    /// The segment size that our SYN told.
    pub mss_advertised: usize,
    /// The longest segment that came.
    pub mss_received: usize,
    /// Segments in flight, those that the peer has out of order included.
    pub in_flight: usize,
    /// Those that the peer has out of order.
    pub sacked: usize,
    /// Those taken for lost and not sent again.
    pub lost: usize,
    /// Those sent again and not acknowledged.
    pub retrans: usize,
    /// How much may be in the network.
    pub cwnd: usize,
    /// Where slow start ends; `None` before the first loss, and where the
    /// congestion control has no such threshold.
    pub ssthresh: Option<usize>,
    /// The rate at which bytes may go, in bytes a second; zero before the first
    /// measurement of a round trip.
    pub pacing_rate: u64,
    /// Bytes to be read.
    pub readable: usize,
    /// Bytes written and not sent.
    pub unsent: usize,
    /// Bytes sent and not acknowledged.
    pub unacknowledged: usize,
    /// Bytes that wait to be sent or acknowledged, at most.
    pub send_limit: usize,
    /// The peer's window.
    pub snd_wnd: usize,
    /// Ours, as the peer knows it.
    pub rcv_wnd: usize,
    /// Bytes by which segments have come out of order, at most.
    pub reordering_bytes: usize,
    /// How long ago bytes were sent, bytes came, and any segment came.
    pub since_sent_ns: u64,
    /// See `since_sent_ns`.
    pub since_received_ns: u64,
    /// See `since_sent_ns`.
    pub since_segment_ns: u64,
    /// Counts.
    pub counts: Counts,
}

/// What a connection has counted; what is 32 bits wide wraps around.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Bytes that came in order.
    pub bytes_in: u64,
    /// Bytes that the peer has acknowledged.
    pub bytes_acknowledged: u64,
    /// Segments that came.
    pub segments_in: u32,
    /// Segments sent.
    pub segments_out: u32,
    /// Segments sent again.
    pub retransmitted: u32,
    /// Segments that have arrived, selectively or not.
    pub delivered: u32,
}

/// Adds to a count that wraps around.
pub(super) fn count(count: &mut u32, more: usize) {
    *count = count.wrapping_add(more as u32);
}

/// Adds to a count that does not.
pub(super) fn add(sum: &mut u64, more: usize) {
    sum.add_assign(more as u64);
}

impl Tcp {
    pub(crate) fn info(&self, now_ns: u64, id: TcpId) -> Option<TcpInfo> {
        let pcb = self.pcbs.get(id.0).filter(|pcb| !pcb.orphaned)?;
        Some(pcb.info(now_ns))
    }
}

impl Pcb {
    /// Counts a segment that came.
    #[inline]
    pub(super) fn count_in(&mut self, now_ns: u64, len: usize) {
        count(&mut self.counts.segments_in, 1);
        if len > 0 {
            let len = u16::try_from(len).unwrap_or(u16::MAX);
            self.mss_received = self.mss_received.max(len);
            self.last_received_ns = now_ns;
        }
    }

    fn info(&self, now_ns: u64) -> TcpInfo {
        let since = |then_ns: u64| now_ns.saturating_sub(then_ns);
        let (sacked, lost, sent_again) = self.scoreboard.counts(self.mss);
        TcpInfo {
            state: self.state,
            error: self.error(),
            peer_closed: self.has_ended(),
            ca_state: self.repair(),
            retries: self.recovery.retries,
            probes: self.keep_alive_probes,
            backoff: self.rtt.backoff(),
            timestamps: self.timestamps.is_some() && !self.is_opening(),
            sack: self.sack,
            ecn: self.ecn,
            syn_data_acked: self.syn_data_acked,
            window_scales: self
                .window_scaling
                .then_some((self.send.scale, self.receive.scale)),
            rto_ns: self.rtt.rto_ns(),
            srtt_ns: self.rtt.srtt_ns(),
            rttvar_ns: self.rtt.rttvar_ns(),
            min_rtt_ns: self.rtt.min_ns(),
            mss: self.mss,
            mss_advertised: self.mss_advertised().into(),
            mss_received: self.mss_received.into(),
            in_flight: self.scoreboard.segments(self.mss),
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
            since_sent_ns: since(self.last_sent_ns),
            since_received_ns: since(self.last_received_ns),
            since_segment_ns: since(self.last_segment_ns),
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
