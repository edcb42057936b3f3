//! Sets the DSCP.

use crate::batch::{Batch, Output};
use crate::stage::Stage;

/// Sets the differentiated services code point (RFC 2474) of the packets that
/// its filter accepts, in both directions.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// The code point, 0 to 63.
    pub dscp: u8,
}

impl Mark {
    fn mark(&self, batch: &mut Batch<'_>) {
        for packet in batch.packets() {
            packet.set_dscp(self.dscp);
        }
    }
}

impl Stage for Mark {
    fn kind(&self) -> &'static str {
        "mark"
    }

    fn outward(&mut self, _now: u64, batch: &mut Batch<'_>, _output: &mut Output) {
        self.mark(batch);
    }

    fn inward(&mut self, _now: u64, batch: &mut Batch<'_>, _output: &mut Output) {
        self.mark(batch);
    }
}
