//! [`SegmentSize`]: how long segments are, sent and received (RFC 9293 §3.7.1, RFC 6691).

use super::SocketPair;

/// Segment size in bytes before path and peer are known (RFC 9293 §3.7.1).
pub(super) const MSS_DEFAULT: usize = 536;
/// Least value of [`TcpConfig::mss_max`](crate::tcp::TcpConfig::mss_max), in bytes.
const MSS_MIN: usize = 88;

/// The segment sizes of one connection, in bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct SegmentSize {
    /// Payload of a full segment with the usual options (Eff.snd.MSS of RFC 9293 §3.7.1): what
    /// the peer, the path and this side's own limit allow.
    mss: u32,
    /// The longest segment that this side accepts, options included: the MSS that its SYN
    /// announces.
    pub(in crate::tcp) advertised: u16,
    /// The longest segment received (Linux' `rcv_mss`).
    pub(in crate::tcp) received: u16,
}

impl SegmentSize {
    /// The sizes on a link of this MTU, before anything is received; `limit` is that of the
    /// configuration.
    pub(super) fn new(link_mtu: usize, pair: &SocketPair, limit: Option<u16>) -> SegmentSize {
        let limit = limit.map_or(usize::MAX, |mss| usize::from(mss).max(MSS_MIN));
        let advertised = (link_mtu - pair.headers_len()).min(limit);
        SegmentSize {
            mss: MSS_DEFAULT as u32,
            advertised: u16::try_from(advertised).unwrap_or(u16::MAX),
            received: 0,
        }
    }

    /// Payload of a full segment with the usual options.
    #[inline]
    pub(in crate::tcp) fn mss(&self) -> usize {
        self.mss as usize
    }

    /// Sets the payload of a full segment, which an IP packet bounds.
    pub(super) fn set_mss(&mut self, mss: usize) {
        self.mss = mss as u32;
    }

    /// Bytes of options and payload that a segment may carry on a path of this MTU, before the
    /// peer's MSS is known.
    pub(in crate::tcp) fn of_path(&self, path_mtu: usize, pair: &SocketPair) -> usize {
        (path_mtu - pair.headers_len()).min(self.advertised.into())
    }

    /// Number of segments for `len` bytes, at least one.
    #[inline]
    pub(in crate::tcp) fn segments(&self, len: usize) -> usize {
        if len <= self.mss() {
            return 1;
        }
        len.div_ceil(self.mss().max(1))
    }

    /// Records the payload of a received segment.
    #[inline]
    pub(in crate::tcp) fn note_received(&mut self, len: usize) {
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        self.received = self.received.max(len);
    }
}
