//! `struct tcp_info`, with the layout of linux/tcp.h; its segment counts are in
//! segments.

use crate::socket::Socket;
use weir_stack::tcp::{CaState, State, TcpInfo};

const OPT_TIMESTAMPS: u8 = 1;
const OPT_SACK: u8 = 2;
const OPT_WSCALE: u8 = 4;
const OPT_ECN: u8 = 8;
const OPT_SYN_DATA: u8 = 32;

/// The socket's own values.
#[derive(Clone, Copy, Default)]
pub(crate) struct SocketInfo {
    pub(crate) is_listening: bool,
}

impl Socket {
    pub(crate) fn socket_info(socket: &Socket) -> SocketInfo {
        SocketInfo {
            is_listening: matches!(socket.phase, crate::socket::SocketPhase::Listens(_)),
        }
    }
}

fn state(info: Option<&TcpInfo>, facts: &SocketInfo) -> u8 {
    let Some(info) = info else {
        return if facts.is_listening { 10 } else { 7 };
    };
    match info.state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

/// Appends fields.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn byte(&mut self, value: impl TryInto<u8>) {
        self.0.push(value.try_into().unwrap_or(u8::MAX));
    }

    fn word(&mut self, value: impl TryInto<u32>) {
        let value = value.try_into().unwrap_or(u32::MAX);
        self.0.extend_from_slice(&value.to_ne_bytes());
    }

    fn long(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_ne_bytes());
    }

    fn none(&mut self, words: usize) {
        self.0.resize(self.0.len() + 4 * words, 0);
    }
}

/// The structure's bytes; without a connection only the state.
pub(crate) fn bytes(info: Option<&TcpInfo>, facts: &SocketInfo) -> Vec<u8> {
    let mut fields = Fields::default();
    fields.byte(state(info, facts));
    if let Some(info) = info {
        small(&mut fields, info);
        words(&mut fields, info);
        longs(&mut fields, info);
    }
    fields.0
}

/// The fields of at most a byte.
fn small(fields: &mut Fields, info: &TcpInfo) {
    fields.byte(match info.ca_state {
        CaState::Open => 0,
        CaState::Disorder => 1,
        CaState::Cwr => 2,
        CaState::Recovery => 3,
        CaState::Loss => 4,
    });
    fields.byte(info.retries);
    fields.byte(info.probes);
    fields.byte(info.backoff);
    let mut options = 0;
    for (option, set) in [
        (OPT_TIMESTAMPS, info.timestamps),
        (OPT_SACK, info.sack),
        (OPT_WSCALE, info.window_scales.is_some()),
        (OPT_ECN, info.ecn),
        (OPT_SYN_DATA, info.syn_data_acked),
    ] {
        options |= if set { option } else { 0 };
    }
    fields.byte(options);
    let (theirs, ours) = info.window_scales.unwrap_or((0, 0));
    fields.byte(theirs & 15 | ours << 4);
    fields.byte(0);
}

/// The fields of 32 bits, up to `tcpi_total_retrans`.
fn words(fields: &mut Fields, info: &TcpInfo) {
    let us = |ns: u64| ns / 1000;
    let ms = |ns: u64| ns / 1_000_000;
    let mss = info.mss.max(1);
    fields.word(us(info.rto_ns));
    fields.word(40_000);
    fields.word(info.mss);
    fields.word(info.mss_received.max(536));
    fields.word(info.in_flight);
    fields.word(info.sacked);
    // Linux counts lost segments until they have arrived, retransmitted or not.
    let repairs = matches!(info.ca_state, CaState::Recovery | CaState::Loss);
    fields.word(info.lost + if repairs { info.retrans } else { 0 });
    fields.word(info.retrans);
    fields.word(0);
    fields.word(ms(info.since_sent_ns));
    fields.word(0);
    fields.word(ms(info.since_received_ns));
    fields.word(ms(info.since_segment_ns));
    fields.word(info.mss_advertised + 40);
    fields.word(info.rcv_wnd);
    fields.word(us(info.srtt_ns.unwrap_or(0)));
    fields.word(us(info.rttvar_ns));
    fields.word(info.ssthresh.map_or(0x7fff_ffff, |bytes| bytes / mss));
    fields.word(info.cwnd / mss);
    fields.word(info.mss_advertised);
    fields.word(info.reordering_bytes.div_ceil(mss).max(3));
    fields.word(0);
    fields.word(info.rcv_wnd);
    fields.word(info.counts.retransmitted);
}

/// The following fields, up to `tcpi_rcv_wnd`.
fn longs(fields: &mut Fields, info: &TcpInfo) {
    let counts = &info.counts;
    fields.long(u64::MAX);
    fields.long(u64::MAX);
    fields.long(counts.bytes_acknowledged);
    fields.long(counts.bytes_in);
    fields.word(counts.segments_out);
    fields.word(counts.segments_in);
    fields.word(info.unsent);
    fields.word(info.min_rtt_ns / 1000);
    fields.none(2);
    fields.long(0);
    fields.long(0);
    fields.long(0);
    fields.long(0);
    fields.word(counts.delivered);
    fields.word(0);
    fields.long(0);
    fields.long(0);
    fields.none(3);
    fields.word(info.snd_wnd);
    fields.word(info.rcv_wnd);
}
