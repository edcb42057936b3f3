//! Taking over ports from a former broker.

use super::fanout::Groups;
use super::ports::{Interface, Port, bind_claims, no_port};
use super::tx_state::TxState;
use super::{Backend, Engine, InterfaceDemux, Owner, Queue};
use crate::policy::Accounts;
use crate::protocol::{ErrorKind, Refusal, VERSION};
use crate::runtime_dir::{PortRecord, RuntimeDir};
use std::collections::BTreeMap;
use std::io;

/// The connection of a port whose program has not reconnected.
const NO_CONNECTION: u64 = 0;

/// The result of a takeover.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Takeover {
    /// Number of ports that continue.
    pub ports: usize,
    /// Number of ports that no program holds, that the present policy does not
    /// grant, or whose programs speak another version of the protocol.
    pub swept: usize,
}

impl<F: Backend> Engine<F> {
    /// Keeps persistent state in a folder, and takes over the state that a
    /// former broker left there. Ports in use continue without a gap, as far as
    /// the present policy grants them to their users with the present groups;
    /// all other state is removed.
    ///
    /// # Errors
    /// If the kernel refuses to remove something.
    pub fn persist_in(
        &mut self,
        mut keep: RuntimeDir,
        accounts: &Accounts,
    ) -> Result<Takeover, Refusal> {
        let mut by_interface: BTreeMap<u32, Vec<PortRecord>> = BTreeMap::new();
        let mut adopted = Takeover::default();
        let namespace = self.fabric.namespace();
        for mut kept in keep.ports() {
            kept.gids = accounts.still(kept.uid, &kept.gids);
            self.last_port = self.last_port.max(kept.port);
            let is_ours = kept.namespace == namespace && kept.version == VERSION;
            if is_ours && keep.is_owned(kept.port) {
                by_interface.entry(kept.ifindex).or_default().push(kept);
            } else {
                adopted.swept += 1;
                keep.forget(kept.port);
            }
        }
        let interfaces: Vec<u32> = by_interface.keys().copied().collect();
        self.runtime_dir = Some(keep);
        for (ifindex, ports) in by_interface {
            let count = ports.len();
            let numbers: Vec<u32> = ports.iter().map(|kept| kept.port).collect();
            // A failure on one interface does not affect the others.
            let _ = self.adopt(ifindex, ports);
            for number in numbers {
                if !self.ports.contains_key(&number)
                    && let Some(keep) = &mut self.runtime_dir
                {
                    keep.forget(number);
                }
            }
            let there = self.ports.values().filter(|port| port.ifindex == ifindex);
            let there = there.count();
            adopted.ports += there;
            adopted.swept += count - there;
        }
        // Paths that were not adopted, and state on other interfaces, are
        // removed.
        let swept = self.fabric.sweep(&interfaces);
        swept.map(|()| adopted)
    }

    fn adopt(&mut self, ifindex: u32, kept: Vec<PortRecord>) -> Result<(), Refusal> {
        let facts = self.fabric.by_index(ifindex);
        let facts = facts.ok_or_else(|| no_port(0))?;
        let Some(mut divider) = self.fabric.adopt(&facts)? else {
            return Ok(());
        };
        let claims = bind_claims(&self.policy, &facts, &mut divider, &[])?;
        let (mut ports, mut groups) = (0, Groups::default());
        for kept in kept {
            // Under its present name.
            let mut asked = kept.asked.clone();
            asked.interface.clone_from(&facts.name);
            let who = kept.peer_cred();
            let owner = Owner {
                connection: NO_CONNECTION,
                who,
            };
            let Ok(grant) = self.allowed(&owner, &asked, asked.ring) else {
                continue;
            };
            let filter = self.filter(grant, &facts, &asked.filter, asked.snap_len);
            let Ok(filter) = filter else { continue };
            let Ok(effort) = self.check_effort(grant, kept.uid, ifindex, None, &filter) else {
                continue;
            };
            let queue = Queue {
                ring: asked.ring,
                snap_len: asked.snap_len.unwrap_or(0),
                timestamps: asked.timestamps,
            };
            let Some(ring) = divider.take_over(kept.slot, &queue) else {
                continue;
            };
            let mut port = Port {
                owner,
                grant,
                ifindex,
                asked,
                filter,
                effort,
                place: None,
                ring: Some(ring),
                secret: kept.secret,
                sending: TxState::None,
            };
            let wanted = port.wanted(kept.port, kept.slot);
            let Ok(bound) = groups.bind(&mut divider, &wanted) else {
                divider.release(kept.slot);
                continue;
            };
            port.place = Some((kept.slot, bound));
            port.sending = self.adopt_path(grant, &facts, kept.path);
            self.ports.insert(kept.port, port);
            ports += 1;
        }
        let resumed = if ports > 0 { divider.resume() } else { Ok(()) };
        if ports == 0 || resumed.is_err() {
            self.ports.retain(|_, port| port.ifindex != ifindex);
            return resumed;
        }
        let interface = Interface {
            info: facts,
            divider,
            ports,
            groups,
            claims,
            native_until: None,
        };
        self.interfaces.insert(ifindex, interface);
        // There may be fewer takers than before; the present attach point works
        // in any case.
        let _ = self.attach_for(ifindex, None);
        Ok(())
    }

    /// Assigns an adopted port to its program, which proves by the port's
    /// secret that the port is its own.
    ///
    /// # Errors
    /// If the secret is wrong, or another connection has the port.
    pub fn resume(&mut self, owner: &Owner, port: u32, secret: &str) -> Result<(), Refusal> {
        let known = self.ports.get_mut(&port);
        let known = known.filter(|known| {
            known.owner.connection == NO_CONNECTION
                && is_same(secret.as_bytes(), known.secret.as_bytes())
        });
        let Some(known) = known else {
            let message = format!("port {port} is not there to be taken up again");
            return Err(Refusal::new(ErrorKind::Port, message));
        };
        // The opener stays charged, even if the program has another user now.
        known.owner.connection = owner.connection;
        known.owner.who.pid = owner.who.pid;
        Ok(())
    }

    /// Whether there are ports whose programs have not reconnected.
    pub fn has_orphans(&self) -> bool {
        let mut ports = self.ports.values();
        ports.any(|port| port.owner.connection == NO_CONNECTION)
    }

    /// Closes the ports that no program holds any more; returns their number.
    pub fn sweep_orphans(&mut self) -> usize {
        let Some(keep) = &self.runtime_dir else {
            return 0;
        };
        let is_gone = |(number, port): (&u32, &Port)| {
            (port.owner.connection == NO_CONNECTION && !keep.is_owned(*number)).then_some(*number)
        };
        let gone: Vec<u32> = self.ports.iter().filter_map(is_gone).collect();
        for number in &gone {
            self.remove(*number);
        }
        gone.len()
    }

    /// Leaves all state to the next broker, and ends.
    pub fn hand_over(&mut self) {
        if self.runtime_dir.is_some() {
            // A hold on native XDP is not handed over.
            self.interfaces.retain(|_, interface| interface.ports > 0);
            for interface in self.interfaces.values_mut() {
                interface.divider.hand_over();
            }
            self.fabric.hand_over();
        }
    }

    /// Records a port, if state is kept.
    pub(super) fn note(&mut self, number: u32) -> io::Result<()> {
        let kept = self.port_record(number);
        match (&mut self.runtime_dir, kept) {
            (Some(keep), Some(kept)) => keep.save(&kept),
            _ => Ok(()),
        }
    }

    /// Records a change of a port.
    pub(super) fn note_change(&mut self, number: u32) -> io::Result<()> {
        let kept = self.port_record(number);
        match (&mut self.runtime_dir, kept) {
            (Some(keep), Some(kept)) => keep.save_change(&kept),
            _ => Ok(()),
        }
    }

    fn port_record(&self, number: u32) -> Option<PortRecord> {
        self.runtime_dir.as_ref()?;
        let port = self.ports.get(&number)?;
        let (slot, _) = port.place?;
        Some(PortRecord {
            port: number,
            version: VERSION,
            slot,
            ifindex: port.ifindex,
            namespace: self.fabric.namespace(),
            uid: port.owner.who.uid,
            gids: port.owner.who.gids.to_vec(),
            pid: port.owner.who.pid,
            is_superuser: port.owner.who.is_superuser,
            asked: port.asked.clone(),
            secret: port.secret.clone(),
            path: match &port.sending {
                TxState::Egress(path) => Some(path.clone()),
                _ => None,
            },
        })
    }
}

/// Length of a port's secret in bytes, before hexadecimal encoding.
const SECRET_LEN: usize = 16;

/// A secret that no process can guess.
///
/// # Errors
/// If the kernel's random number generator is not ready.
pub(super) fn new_secret() -> io::Result<String> {
    let mut bytes = [0; SECRET_LEN];
    let flags = rustix::rand::GetRandomFlags::NONBLOCK;
    let got = rustix::rand::getrandom(&mut bytes, flags)?;
    if got != SECRET_LEN {
        return Err(io::ErrorKind::Interrupted.into());
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether a secret is the port's, in constant time. Always `false` for a port
/// without a secret.
fn is_same(given: &[u8], own: &[u8]) -> bool {
    let differ = given.iter().zip(own).fold(0, |all, (a, b)| all | (a ^ b));
    !own.is_empty() && given.len() == own.len() && differ == 0
}
