//! Offloads: work that a link does for sent frames, and what it knows of received ones.

/// The work that a link does for sent frames.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Offload {
    /// The link completes TCP checksums.
    pub checksum: bool,
    /// The link segments TCP over IPv4 (TSO); requires `checksum`.
    pub tso4: bool,
    /// The link segments TCP over IPv6 (TSO); requires `checksum`.
    pub tso6: bool,
    /// Number of frames that the link takes at once more cheaply than one by one
    /// ([`TxSink::submit_burst`](crate::TxSink::submit_burst)); at most [`BURST_MAX`], 0
    /// counts as 1.
    pub burst: u8,
}

/// Largest number of frames in a burst.
pub const BURST_MAX: usize = 4;

impl Offload {
    /// All offloads.
    pub const ALL: Offload = Offload {
        checksum: true,
        tso4: true,
        tso6: true,
        burst: 1,
    };
}

/// The work that remains for the link on a sent frame, as in a virtio-net header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxMeta {
    /// Offset in the frame of the first byte that the checksum covers, which is the TCP
    /// header's first.
    pub checksum_start: u16,
    /// Offset of the checksum field from `checksum_start`. The field holds the sum of the
    /// pseudo-header.
    pub checksum_offset: u16,
    /// The segmentation, if the frame must be segmented.
    pub gso: Option<Gso>,
}

/// How the link segments a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// Payload bytes of each segment; the last segment carries the remainder.
    pub size: u16,
    /// Length of all headers in bytes, which are copied to each segment.
    pub header_len: u16,
    /// Whether the packets are IPv6.
    pub v6: bool,
}

/// One frame of a burst.
#[derive(Clone, Copy, Debug)]
pub struct BurstFrame<'a> {
    /// The frame's headers.
    pub head: &'a [u8],
    /// The work that remains for the link.
    pub meta: TxMeta,
    /// The payload after the headers, in up to two parts.
    pub payload: [&'a [u8]; 2],
}

/// A link's knowledge of a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RxMeta {
    /// The link vouches for the TCP or UDP checksum: it has checked it, or the frame has not
    /// left this machine, or the frame merges several segments that the link has checked.
    pub checksum_ok: bool,
    /// The host itself has sent the frame: see [`Config::hairpin`](super::Config::hairpin).
    pub looped: bool,
    /// The number of the frame's link, counted from 0 in the order of
    /// [`Stack::with_links`](crate::Stack::with_links).
    pub link: u8,
    /// The channel by which the frame came, if any.
    pub channel: Option<Channel>,
}

/// Identifies a TCP connection or a connected UDP socket to the link. The stack does not look
/// up frames that come by a channel. The channel of a connection or socket that is gone, or of
/// another one, does no harm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Channel(pub u64);

/// The bit that marks channels of UDP sockets.
const UDP: u64 = 1 << 63;

impl Channel {
    pub(crate) fn of_tcp(name: u64) -> Channel {
        Channel(name & !UDP)
    }

    pub(crate) fn of_udp(name: u64) -> Channel {
        Channel(name | UDP)
    }

    pub(crate) fn tcp(self) -> Option<u64> {
        (self.0 & UDP == 0).then_some(self.0)
    }

    pub(crate) fn udp(self) -> Option<u64> {
        (self.0 & UDP != 0).then_some(self.0 & !UDP)
    }
}
