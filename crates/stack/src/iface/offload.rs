//! Work that a link does for us, and what is told of frames that came.

/// What a link does with frames that go out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Offload {
    /// It completes the checksums of TCP segments.
    pub checksum: bool,
    /// It cuts TCP segments of IPv4 that are longer than the path takes; needs
    /// `checksum`.
    pub tso4: bool,
    /// The same, of IPv6.
    pub tso6: bool,
    /// So many of these it takes at once better than one after the other
    /// ([`TxSink::submit_burst`](crate::TxSink::submit_burst)); [`BURST_MAX`] at most, 0 is
    /// as 1.
    pub burst: u8,
}

/// The most frames of a run.
pub const BURST_MAX: usize = 4;

impl Offload {
    /// All of it.
    pub const ALL: Offload = Offload {
        checksum: true,
        tso4: true,
        tso6: true,
        burst: 1,
    };
}

/// What is left to do to a frame that goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxMeta {
    /// Where the bytes start that the checksum covers: the TCP header's first,
    /// counted from the frame's.
    pub checksum_start: u16,
    /// Where the checksum goes, counted from `checksum_start`. The sum of the
    /// pseudo-header is there already.
    pub checksum_offset: u16,
    /// The segment is to be cut.
    pub gso: Option<Gso>,
}

/// How a segment is cut into several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// Bytes of payload that each of them carries; the last, what is left.
    pub size: u16,
    /// Bytes of all headers, which each of them has.
    pub header_len: u16,
    /// They are of IPv6.
    pub v6: bool,
}

/// One of several frames that go out at once.
#[derive(Clone, Copy, Debug)]
pub struct BurstFrame<'a> {
    /// Its headers.
    pub head: &'a [u8],
    /// What is left to do.
    pub meta: TxMeta,
    /// The bytes behind them.
    pub payload: [&'a [u8]; 2],
}

/// What a link tells about a frame that came.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RxMeta {
    /// The link vouches for the checksum of TCP or UDP: it has checked it, or
    /// the frame has not left this machine, or several segments that it has
    /// checked are merged into one.
    pub checksum_ok: bool,
    /// The number of the link that it came by, counted from 0 in the order
    /// that they were given to [`Stack::with_links`](crate::Stack::with_links).
    pub link: u8,
    /// The channel that it came by.
    pub channel: Option<Channel>,
}

/// Names a TCP connection, or a connected UDP socket, to the link: frames that
/// come by its channel are of it, so that it need not be looked up. The name of
/// one that is gone, or of another, does no harm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Channel(pub u64);

/// The bit that tells UDP sockets from TCP connections.
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
