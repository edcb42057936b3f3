//! Why packets are dropped.

/// Counts of dropped packets, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Drops {
    /// The packet is cut short, contradicts the format, or uses a part of VMTP
    /// that is left out.
    pub malformed: u64,
    /// The packet is for another entity.
    pub not_ours: u64,
    /// The packet belongs to no transaction that is under way, or to an older
    /// one.
    pub stale: u64,
    /// There was no room for the client, or for an answer to the packet.
    pub no_room: u64,
}
