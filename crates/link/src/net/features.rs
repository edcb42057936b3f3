//! A driver's offloads, from ethtool.

use super::ethtool::Feature;
use std::io;

/// Offloads that are enabled. The device does the work after a program at tc,
/// or the peer of a veth, has seen the frame: there checksums are partial, and
/// segments are combined, up to 64 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Features {
    /// Transmit checksums.
    pub tx_checksums: bool,
    /// TCP segmentation (TSO).
    pub tcp_segmentation: bool,
    /// Generic segmentation offload (GSO).
    pub generic_segmentation: bool,
    /// Generic receive offload (GRO): frames at tc ingress are longer than
    /// those on the wire.
    pub generic_receive: bool,
}

/// Queries the interface with that name; an offload that its driver does not
/// report counts as disabled.
pub(super) fn of(name: &str) -> io::Result<Features> {
    Ok(Features {
        tx_checksums: Feature::TxChecksums.get(name)?,
        tcp_segmentation: Feature::TcpSegmentation.get(name)?,
        generic_segmentation: Feature::GenericSegmentation.get(name)?,
        generic_receive: Feature::GenericReceive.get(name)?,
    })
}
