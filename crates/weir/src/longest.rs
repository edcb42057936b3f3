//! Warns if frames of a link's MTU are longer than the tap can send.

use crate::error::say;
use weir_tap::{LinkId, Tap};

/// The warnings printed for each link.
#[derive(Debug, Default)]
pub(crate) struct MtuWarnings {
    said: Vec<(LinkId, u32)>,
}

impl MtuWarnings {
    /// Warns once for each MTU of a link if the tap cannot send packets of that
    /// length.
    pub(crate) fn warn(&mut self, tap: &Tap) {
        for link in tap.links() {
            let (Some(interface), Some(most)) = (tap.interface(link), tap.mtu(link)) else {
                continue;
            };
            let now = (link, interface.mtu);
            if most >= interface.mtu as usize {
                self.said.retain(|(said, _)| *said != link);
            } else if !self.said.contains(&now) {
                self.said.retain(|(said, _)| *said != link);
                self.said.push(now);
                say(&format!(
                    "weir: {} has an MTU of {} bytes; packets longer than {most} cannot be sent \
                     there, and are counted as tx_too_long",
                    interface.name, interface.mtu
                ));
            }
        }
    }
}
