//! [`Ecn`]: explicit congestion notification (RFC 3168).

/// The ECN state of one connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Ecn {
    /// Whether ECN was negotiated; before the handshake, whether this side offers it.
    pub(in crate::tcp) enabled: bool,
    /// Whether the next new data says that this side has reduced its window (CWR).
    pub(in crate::tcp) send_cwr: bool,
    /// Whether segments echo a mark to the peer (ECE), until the peer sends CWR.
    pub(in crate::tcp) send_ece: bool,
}

impl Ecn {
    pub(super) fn new(enabled: bool) -> Ecn {
        Ecn {
            enabled,
            send_cwr: false,
            send_ece: false,
        }
    }

    /// Gives up the offer of ECN: the next SYN goes without it. Returns whether there was an
    /// offer.
    pub(in crate::tcp) fn give_up(&mut self) -> bool {
        std::mem::take(&mut self.enabled)
    }

    /// Processes a segment with these signs: the peer's CWR, and a mark of the network (CE).
    pub(in crate::tcp) fn note_segment(&mut self, cwr: bool, ce: bool) {
        if self.enabled {
            self.send_ece = (self.send_ece && !cwr) || ce;
        }
    }
}
