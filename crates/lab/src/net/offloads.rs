//! Offloads of a device: checksums and segmentation.

use std::io;
use weir_link::net::Feature;

/// Work that is left to the device, as to a network card.
///
/// Between two ends of a veth the work is never done: a partial checksum stays
/// partial, an unsegmented super-frame arrives with up to 64 KiB, and an
/// observer sees frames that no wire carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Offloads {
    /// Transmit checksums. Without them the kernel computes every checksum
    /// before the device gets the frame, and segmentation offload is disabled
    /// too.
    pub tx_checksums: bool,
    /// TCP segmentation (TSO) by the device.
    pub tcp_segmentation: bool,
    /// Generic segmentation offload (GSO) for TCP and UDP.
    pub generic_segmentation: bool,
    /// Generic receive offload (GRO).
    pub generic_receive: bool,
}

impl Offloads {
    /// Frames as on a wire: complete checksums, one segment each.
    pub const OFF: Offloads = Offloads {
        tx_checksums: false,
        tcp_segmentation: false,
        generic_segmentation: false,
        generic_receive: false,
    };

    /// The default of a new veth: all but GRO, which would only be active where
    /// a driver polls.
    pub const VETH: Offloads = Offloads {
        tx_checksums: true,
        tcp_segmentation: true,
        generic_segmentation: true,
        generic_receive: false,
    };

    /// In the order in which they can be set: later ones depend on earlier
    /// ones.
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
