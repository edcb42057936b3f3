//! What a device leaves to later: checksums and segmentation.

use std::io;
use weir_link::net::Feature;

/// Which work a device is trusted with that a network card would do.
///
/// Between two ends of a veth nobody does that work: a checksum left to the
/// device stays partial, a segment left whole arrives as one super-frame of
/// up to 64 KiB, and who looks at the frames sees what no wire carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Offloads {
    /// Transmit checksums. Without them the kernel computes every checksum
    /// before the device sees the frame; segmentation offload goes with it.
    pub tx_checksums: bool,
    /// TCP segmentation (TSO) by the device.
    pub tcp_segmentation: bool,
    /// Segmentation as late as possible (GSO), of TCP and UDP.
    pub generic_segmentation: bool,
    /// Joining what is received (GRO).
    pub generic_receive: bool,
}

impl Offloads {
    /// Frames as a wire would carry them: whole checksums, one segment each.
    pub const OFF: Offloads = Offloads {
        tx_checksums: false,
        tcp_segmentation: false,
        generic_segmentation: false,
        generic_receive: false,
    };

    /// What a new veth has: all but GRO, which is always on for TCP's own
    /// sake only where a driver polls.
    pub const VETH: Offloads = Offloads {
        tx_checksums: true,
        tcp_segmentation: true,
        generic_segmentation: true,
        generic_receive: false,
    };

    /// In the order in which they can be set: the later need the earlier.
    fn features(self) -> [(Feature, bool); 4] {
        [
            (Feature::TxChecksums, self.tx_checksums),
            (Feature::TcpSegmentation, self.tcp_segmentation),
            (Feature::GenericSegmentation, self.generic_segmentation),
            (Feature::GenericReceive, self.generic_receive),
        ]
    }
}

/// Sets the offloads of a device of the calling thread's namespace.
pub(super) fn set(device: &str, offloads: Offloads) -> io::Result<()> {
    let mut features = offloads.features().into_iter();
    features.try_for_each(|(feature, on)| feature.set(device, on))
}

/// The offloads of a device of the calling thread's namespace.
pub(super) fn get(device: &str) -> io::Result<Offloads> {
    Ok(Offloads {
        tx_checksums: Feature::TxChecksums.get(device)?,
        tcp_segmentation: Feature::TcpSegmentation.get(device)?,
        generic_segmentation: Feature::GenericSegmentation.get(device)?,
        generic_receive: Feature::GenericReceive.get(device)?,
    })
}
