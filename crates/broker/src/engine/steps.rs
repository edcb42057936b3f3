//! How long the kernel's verifier may be kept by a user's filters.
//!
//! All filters of an interface are one program, which is verified anew with
//! each that runs whole and with each new shape: what one user's filters take
//! there, everybody waits for.

use super::Fabric;
use super::ports::Engine;
use crate::compile::limits::STEPS_MAX;
use crate::protocol::{ErrorKind, Refusal};
use weir_demux::Filter;
use weir_demux::kernel::verifier_steps;

impl<F: Fabric> Engine<F> {
    /// The steps of a filter, which is to be one more of a user's ports', or
    /// another one of the port `of`.
    ///
    /// # Errors
    /// If they are too many together. Whoever needs no grant may take the time.
    pub(super) fn check_steps(
        &self,
        grant: Option<usize>,
        uid: u32,
        of: Option<u32>,
        filter: &Filter,
    ) -> Result<u64, Refusal> {
        if grant.is_none() {
            return Ok(0);
        }
        let others = self.ports.iter().filter(|(number, port)| {
            port.grant.is_some() && port.owner.who.uid == uid && Some(**number) != of
        });
        let used: u64 = others.map(|(_, port)| port.steps).sum();
        let left = STEPS_MAX.saturating_sub(used);
        let steps = verifier_steps(filter, left);
        if steps <= left {
            return Ok(steps);
        }
        if used == 0 {
            let message = "the filter has more ways through it than the kernel's verifier can \
                           follow in good time: test fewer fields or ranges more than once";
            return Err(Refusal::new(ErrorKind::Filter, message));
        }
        let message = format!(
            "the filter has more ways through it than the kernel's verifier can follow in good \
             time beside this user's other ports, which take {used} steps of {STEPS_MAX}"
        );
        Err(Refusal::new(ErrorKind::Limit, message))
    }
}
