//! Says what an operator should know of tapped links: that one is down or has no carrier, so that nothing passes,
//! or that one of an earlier process stays promiscuous elsewhere.

use crate::error::say;
use std::time::{Duration, Instant};
use weir_tap::Tap;

/// How long a link may lack its carrier before that is said: drivers reset their links when a program is
/// attached to them.
const CARRIER_TIME: Duration = Duration::from_secs(1);

/// What was said of the links.
#[derive(Debug, Default)]
pub(crate) struct IdleLinks {
    began: Option<Instant>,
    is_done: bool,
}

impl IdleLinks {
    /// Says at the first call which links are down, or were left promiscuous, and after [`CARRIER_TIME`], once, which have no carrier.
    pub(crate) fn look(&mut self, tap: &Tap) {
        let interfaces = || tap.links().filter_map(|link| tap.interface(link));
        let Some(began) = self.began else {
            self.began = Some(Instant::now());
            if let Some(error) = tap.still_promiscuous() {
                say(&format!("weir: {error}"));
            }
            for interface in interfaces().filter(|interface| !interface.up) {
                let name = &interface.name;
                say(&format!(
                    "weir: {name} is down: nothing passes until `ip link set {name} up`"
                ));
            }
            return;
        };
        if self.is_done || began.elapsed() < CARRIER_TIME {
            return;
        }
        self.is_done = true;
        for interface in interfaces().filter(|interface| interface.up && !interface.running) {
            say(&format!(
                "weir: {} has no carrier: nothing passes until the device at its other end is up",
                interface.name
            ));
        }
    }
}
