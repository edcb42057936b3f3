//! What a gateway counts.

/// The counts of a gateway, beside drops.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// ESP packets made, and the bytes in them.
    pub sealed: u64,
    /// Bytes of their payload.
    pub sealed_bytes: u64,
    /// ESP packets from which a packet was taken.
    pub opened: u64,
    /// Bytes of those packets.
    pub opened_bytes: u64,
    /// Packets that a policy let pass as they are.
    pub bypassed: u64,
    /// Packets that were cut into fragments.
    pub fragmented: u64,
    /// ICMP errors about packets that were too big.
    pub too_big: u64,
    /// Keepalives sent.
    pub keepalives_sent: u64,
    /// Keepalives received.
    pub keepalives_received: u64,
    /// Dummy packets received.
    pub dummies: u64,
    /// Packets made whole again of fragments.
    pub reassembled: u64,
    /// ICMP errors by which a lower MTU of a path became known.
    pub path_mtu_lowered: u64,
    /// SAs and policies of another program that are not used now.
    pub refused: u64,
}
