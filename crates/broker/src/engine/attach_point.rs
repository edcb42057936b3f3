//! The attach point of an interface's demultiplexer, and how long it stays.

use super::ports::Engine;
use super::{Backend, InterfaceDemux};
use crate::protocol::{Attach, OpenPort, Refusal};
use std::time::{Duration, Instant};

/// How long the daemon keeps native XDP on an interface that no longer needs
/// it. Many drivers reset the device on attach and detach, and the link is down
/// for up to some seconds: a user who opens and closes ports that take can
/// cause that at most twice in this time. A superuser's port with an explicit
/// attach point is not delayed.
pub const NATIVE_HOLD: Duration = Duration::from_secs(30);

impl<F: Backend> Engine<F> {
    /// Sets how long native XDP stays on an interface that no longer needs it;
    /// by default not at all.
    pub fn hold_native(&mut self, time: Duration) {
        self.native_hold = time;
    }

    /// The time at which [`keep_time`](Self::keep_time) has work; `None` if
    /// never.
    pub fn next_time(&self) -> Option<Instant> {
        let interfaces = self.interfaces.values();
        interfaces.filter_map(|one| one.native_until).min()
    }

    /// Ends the holds that expire by `now`.
    pub fn keep_time(&mut self, now: Instant) {
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let over = self.interfaces.iter();
        let over = over.filter_map(|(ifindex, one)| is_over(one.native_until).then_some(*ifindex));
        for ifindex in over.collect::<Vec<u32>>() {
            match self.interfaces.get(&ifindex) {
                Some(one) if one.ports == 0 => self.close_interface(ifindex),
                // If the move fails, the ports stay as they are.
                _ => drop(self.attach_for(ifindex, None)),
            }
        }
    }

    /// Moves the demultiplexer to the attach point that its ports, and one more
    /// under a grant, need.
    pub(super) fn attach_for(
        &mut self,
        ifindex: u32,
        more: Option<(&OpenPort, Option<usize>)>,
    ) -> Result<(), Refusal> {
        let Some(interface) = self.interfaces.get_mut(&ifindex) else {
            return Ok(());
        };
        let ports = self.ports.values().filter(|port| port.ifindex == ifindex);
        let ports = ports.map(|port| (&port.asked, port.grant)).chain(more);
        let asked = || ports.clone().map(|(asked, _)| asked);
        let is_stated = ports
            .clone()
            .any(|(asked, grant)| grant.is_none() && asked.attach != Attach::Auto);
        let now = interface.divider.attached();
        let wanted = wanted(asked, now);
        let is_native = now == Some(Attach::XdpNative);
        let is_held = is_native && !is_stated && !self.native_hold.is_zero();
        if is_held && wanted.first() != Some(&Attach::XdpNative) {
            let time = Instant::now();
            let until = *interface
                .native_until
                .get_or_insert(time + self.native_hold);
            if time < until {
                return Ok(());
            }
        }
        interface.native_until = None;
        let mut result = Ok(());
        for attach in wanted {
            result = if now == Some(attach) {
                Ok(())
            } else {
                interface.divider.attach(attach)
            };
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Attaches where nothing is, since the kernel's refusal went to another port or to a change
    /// of the policy; if it refuses again, releases a slot.
    pub(super) fn attach_again(&mut self, ifindex: u32, slot: u32) -> Result<(), Refusal> {
        let interface = self.interfaces.get(&ifindex);
        if interface.is_none_or(|one| one.divider.attached().is_some()) {
            return Ok(());
        }
        let attached = self.attach_for(ifindex, None);
        if attached.is_err()
            && let Some(interface) = self.interfaces.get_mut(&ifindex)
        {
            interface.divider.release(slot);
        }
        attached
    }

    pub(super) fn close_interface_if_unused(&mut self, ifindex: u32) {
        let Some(interface) = self.interfaces.get_mut(&ifindex) else {
            return;
        };
        if interface.ports > 0 {
            return;
        }
        let is_native = interface.divider.attached() == Some(Attach::XdpNative);
        if is_native && !self.native_hold.is_zero() {
            let until = Instant::now() + self.native_hold;
            interface.native_until.get_or_insert(until);
            return;
        }
        self.close_interface(ifindex);
    }

    pub(super) fn close_interface(&mut self, ifindex: u32) {
        if let Some(interface) = self.interfaces.remove(&ifindex) {
            let life = interface.divider.life();
            self.ghosts.close_interface(ifindex, &life);
            // A new demultiplexer of the interface has its own slots.
            self.ready.retain(|one| one.ifindex != ifindex);
        }
        self.fabric.end_spare_paths(ifindex);
    }
}

/// The attach point that is tried first for an interface's first port.
pub(super) fn first_attach(asked: &OpenPort) -> Option<Attach> {
    wanted(|| std::iter::once(asked), None).first().copied()
}

/// The attach points that serve the ports, the best first; later ones are for
/// drivers without support.
fn wanted<'a, I>(asked: impl Fn() -> I, now: Option<Attach>) -> Vec<Attach>
where
    I: Iterator<Item = &'a OpenPort>,
{
    let stated = asked().map(|port| port.attach);
    let stated = stated.filter(|one| *one != Attach::Auto);
    if let Some(attach) = stated.max_by_key(|attach| *attach as u8) {
        return vec![attach];
    }
    if !asked().any(|port| port.take) {
        return vec![Attach::Tc];
    }
    match now {
        Some(Attach::XdpGeneric) => vec![Attach::XdpGeneric],
        _ => vec![Attach::XdpNative, Attach::XdpGeneric, Attach::Tc],
    }
}
