//! Live interfaces: the fixed part of what runs in the kernel, and sending.
//!
//! A [`Dispatcher`] is attached once to a hook of an interface and left
//! there. It goes on in whatever program is in its slot; with none there it
//! lets every frame pass. So a new plan takes effect by one write to the slot
//! (25 to 34 µs), at once for each frame: a frame is seen by the old plan or
//! by the new one, and none is missed or seen twice. Replacing the attached
//! program itself would take 8 ms.
//!
//! From one hook to another: attach the new one with its program
//! [running](Dispatcher::attach_with); then detach the old one, from tc not
//! before [`IN_FLIGHT_MAX`], and keep it in step until then. Programs of a plan
//! at XDP mark what they pass on, and those at tc pass over what is marked, so
//! that each frame is seen once also while both are there. From one kind of
//! XDP to the other the way leads over tc.

mod dispatcher;
mod egress;
mod egress_rules;
mod send;

pub use dispatcher::{Dispatcher, IN_FLIGHT_MAX, LiveError, sweep};
pub use egress::{EgressCounts, EgressError, EgressPath, EgressSocket, close_egress};
pub use egress_rules::{EgressRules, RulesError};
pub use send::{SendError, Sender};

use crate::bpf::Hook;

/// What a hook costs the host that carries it, in words for its user.
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
