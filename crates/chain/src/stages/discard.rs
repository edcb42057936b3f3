//! Drops packets.

use crate::batch::{Batch, Output};
use crate::stage::Stage;

/// Drops the packets that its filter accepts, in both directions.
#[derive(Clone, Copy, Default, Debug)]
pub struct Discard;

impl Discard {
    fn discard(batch: &mut Batch<'_>) {
        for packet in batch.packets() {
            packet.drop("discarded");
        }
    }
}

impl Stage for Discard {
    fn kind(&self) -> &'static str {
        "drop"
    }

    fn outward(&mut self, _now: u64, batch: &mut Batch<'_>, _output: &mut Output) {
        Discard::discard(batch);
    }

    fn inward(&mut self, _now: u64, batch: &mut Batch<'_>, _output: &mut Output) {
        Discard::discard(batch);
    }

    /// A firewall must not fail to the wire.
    fn may_bypass(&self) -> bool {
        false
    }
}
