//! Live interfaces: the dispatcher that stays in the kernel, and sending.
//!
//! A [`Dispatcher`] is attached once to a hook of an interface and stays there.
//! It tail-calls the program in its slot; with an empty slot every frame
//! passes. A new plan therefore takes effect by one write to the slot (25 to 34
//! µs), atomically for each frame: the old plan or the new one processes a
//! frame, never both and never none. Replacing the attached program itself
//! would take 8 ms.
//!
//! To move from one hook to another: attach the new dispatcher with its program
//! [running](Dispatcher::attach_with), then detach the old one. An old
//! dispatcher at tc must stay, and be updated with the new one, for at least
//! [`IN_FLIGHT_MAX`]. A plan's programs at XDP mark the frames that they pass
//! on, and its programs at tc skip marked frames, so that each frame is
//! processed once while both are attached. A move between the two XDP hooks
//! goes by way of tc.

mod dispatcher;
mod egress;
mod egress_rules;
mod privileged;
mod send;

pub use dispatcher::{Dispatcher, IN_FLIGHT_MAX, LiveError, sweep};
pub use egress::{EgressCounts, EgressError, EgressPath, EgressSocket, close_egress};
pub use egress_rules::{EgressRules, RulesError};
pub use privileged::Privileged;
pub use send::{SendError, Sender};

use crate::bpf::Hook;

/// The cost of a hook for the machine, as text for the user.
pub fn cost(hook: Hook) -> &'static str {
    match hook {
        Hook::XdpNative => {
            "frames are seen first and cheapest, but drivers may give up segmentation offload: \
             on a veth the host's own TCP falls to about a quarter"
        }
        Hook::XdpGeneric => {
            "each frame that comes in is seen behind the driver; the host's own TCP on a veth \
             loses about a tenth; other programs at tc may get frames without link-layer header"
        }
        Hook::TcIngress => {
            "each frame that comes in is seen before the host's protocols, joined ones (GRO) \
             whole, for some tens of nanoseconds; offloads stay on"
        }
        Hook::TcEgress => {
            "each frame that goes out is seen, segments before they are cut (GSO) whole, for \
             some tens of nanoseconds; offloads stay on"
        }
    }
}
