//! What a driver does for the kernel, as ethtool tells it.

use super::ethtool::Feature;
use std::io;

/// Work left to the device. What it is trusted with is not done yet when a
/// program at tc or a peer on a veth sees the frame: checksums are partial,
/// segments come whole, up to 64 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Features {
    /// Transmit checksums.
    pub tx_checksums: bool,
    /// TCP segmentation (TSO).
    pub tcp_segmentation: bool,
    /// Segmentation as late as possible (GSO).
    pub generic_segmentation: bool,
    /// Joining of what is received (GRO): frames at tc ingress are longer
    /// than those on the wire.
    pub generic_receive: bool,
}

/// Asks for the features of the interface of that name; what a driver does
/// not tell it does not do.
pub(super) fn of(name: &str) -> io::Result<Features> {
    Ok(Features {
        tx_checksums: Feature::TxChecksums.get(name)?,
        tcp_segmentation: Feature::TcpSegmentation.get(name)?,
        generic_segmentation: Feature::GenericSegmentation.get(name)?,
        generic_receive: Feature::GenericReceive.get(name)?,
    })
}
