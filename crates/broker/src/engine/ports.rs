//! Open ports, and the operations on them.

use super::attach_point::first_attach;
use super::fanout::{Bound, Groups};
use super::finished::Ready;
use super::lingering_rings::{LingeringRing, LingeringRings};
use super::takeover::new_secret;
use super::tx_state::{RetiredPath, TxState};
use super::verifier_budget::VerifierCost;
use super::{Backend, InterfaceDemux, Owner, PortStats, Queue, Reserved};
use crate::Bytes;
use crate::compile::{Compiler, Source};
use crate::interface::InterfaceInfo;
use crate::policy::{Denied, Policy, Reservation};
use crate::protocol::{
    Attach, ErrorKind, Event, InterfaceStatus, MESSAGE_LEN_MAX, OpenPort, Opened, PortStatus,
    Refusal, Response,
};
use crate::runtime_dir::RuntimeDir;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use weir_demux::fanout::Layout;
use weir_demux::{Analysis, Binding, BindingId, Filter, Target};
use weir_filter::ir::Program;
use weir_filter::lang::Language;

/// Upper bounds for all users.
pub mod limits {
    use crate::Bytes;

    /// Number of open ports.
    pub const PORTS_MAX: usize = 1 << 14;
    /// Number of open ports that need a grant; the rest is for the superuser.
    pub const USERS_PORTS_MAX: usize = PORTS_MAX / 4 * 3;
    /// Number of ports on one interface that need a grant; the interface has
    /// 4,095 slots.
    pub const USERS_INTERFACE_PORTS_MAX: usize = 3 << 10;
    /// The smallest ring, in bytes.
    pub const RING_MIN: Bytes = Bytes(4 << 10);
    /// The largest ring, in bytes.
    pub const RING_MAX: Bytes = Bytes(1 << 30);
    /// Number of characters of a filter in a list of ports.
    pub const SHOWN_CHARS_MAX: usize = 1 << 10;
    /// Length of an interface's name, in bytes.
    pub const NAME_LEN_MAX: usize = 15;
}

/// A finished request: to open a port, or to send from it.
#[derive(Debug)]
pub struct Finished {
    /// The port's number.
    pub port: u32,
    /// The port's owner.
    pub owner: Owner,
    /// The port ([`Response::Opened`]) or the means to send
    /// ([`Response::TxReady`]), with descriptors, or the reason for a refusal.
    pub result: Result<(Response, Vec<OwnedFd>), Refusal>,
}

/// A demultiplexed interface.
pub(super) struct Interface<D> {
    pub(super) info: InterfaceInfo,
    pub(super) divider: D,
    pub(super) ports: usize,
    pub(super) groups: Groups,
    /// The host's claims, with their bindings.
    pub(super) claims: Vec<BoundClaim>,
    /// The end of the hold on native XDP that no port needs any more.
    pub(super) native_until: Option<Instant>,
}

/// A claim of the host, and its binding.
#[derive(Clone, Debug)]
pub(super) struct BoundClaim {
    claim: Reservation,
    pub(super) binding: BindingId,
}

/// A port, open or being opened.
pub(super) struct Port {
    pub(super) owner: Owner,
    /// The index of the port's grant in the policy; `None` for a superuser's
    /// port.
    pub(super) grant: Option<usize>,
    pub(super) ifindex: u32,
    pub(super) asked: OpenPort,
    pub(super) filter: Filter,
    /// The verifier cost of the port's filter.
    pub(super) effort: VerifierCost,
    /// The port's slot, and how it is bound.
    pub(super) place: Option<(u32, Bound)>,
    /// The ring's id, once it is made.
    pub(super) ring: Option<u32>,
    /// The secret by which the port's program resumes it with the next broker;
    /// empty if no state is kept.
    pub(super) secret: String,
    pub(super) sending: TxState,
}

/// All ports, on the interfaces of a [`Backend`].
pub struct Engine<F: Backend> {
    pub(super) fabric: F,
    pub(super) policy: Policy,
    pub(super) interfaces: BTreeMap<u32, Interface<F::Demux>>,
    pub(super) ports: BTreeMap<u32, Port>,
    pub(super) last_port: u32,
    pub(super) runtime_dir: Option<RuntimeDir>,
    pub(super) retired: Vec<RetiredPath>,
    /// Requests that finished without the backend.
    pub(super) done: Vec<Finished>,
    /// Ports with rings that are yet to be bound.
    pub(super) ready: VecDeque<Ready>,
    pub(super) ghosts: LingeringRings,
    pub(super) guards: Guards,
    pub(super) native_hold: Duration,
    /// Whether ports of other users may exist: then the superuser's filters are
    /// bounded, too.
    pub(super) is_shared: bool,
}

/// The grants' compiled filters, by grant, link type and IPv4 mask.
pub(super) type Guards = BTreeMap<(usize, u32, Option<Ipv4Addr>), Program>;

impl<F: Backend> Engine<F> {
    /// An engine without ports.
    pub fn new(fabric: F, policy: Policy) -> Engine<F> {
        Engine {
            fabric,
            policy,
            interfaces: BTreeMap::new(),
            ports: BTreeMap::new(),
            last_port: 0,
            runtime_dir: None,
            retired: Vec::new(),
            done: Vec::new(),
            ready: VecDeque::new(),
            ghosts: LingeringRings::default(),
            guards: BTreeMap::new(),
            native_hold: Duration::ZERO,
            is_shared: true,
        }
    }

    /// An engine of one program of the superuser, without a policy.
    pub fn alone(fabric: F) -> Engine<F> {
        Engine {
            is_shared: false,
            ..Engine::new(fabric, Policy::default())
        }
    }

    /// The policy that grants ports.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The backend.
    pub fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// Starts to open a port; [`poll_finished`](Self::poll_finished) returns
    /// the result, possibly at once. Returns the port's number.
    ///
    /// # Errors
    /// If the policy does not allow it, or the request is invalid.
    pub fn open(&mut self, owner: Owner, asked: OpenPort) -> Result<u32, Refusal> {
        let ring = check(&asked)?;
        if self.ports.len() >= limits::PORTS_MAX {
            let message = format!("{} ports are open, the most there can be", self.ports.len());
            return Err(Refusal::new(ErrorKind::Limit, message));
        }
        if let (Some(asked), Some(own)) = (asked.namespace, self.fabric.namespace())
            && asked != own
        {
            let message = format!(
                "the broker serves the interfaces of network namespace {own}, not those of {asked}"
            );
            return Err(Refusal::new(ErrorKind::Namespace, message));
        }
        let facts = self.fabric.by_name(&asked.interface)?;
        // An interface may have alternative names; the policy applies to this
        // one.
        let interface = facts.name.clone();
        let asked = OpenPort { interface, ..asked };
        let ring = self.ring_that_fits(&owner, &asked, ring);
        let grant = self.allowed(&owner, &asked, ring)?;
        self.check_room(grant, facts.ifindex)?;
        if grant.is_some() && self.is_path(&facts.name) {
            let message = format!("{} is a port's way to send, and no interface", facts.name);
            return Err(Refusal::new(ErrorKind::Interface, message));
        }
        if let Some(fanout) = &asked.fanout
            && Layout::of(facts.linktype).is_none()
        {
            let (name, linktype) = (&facts.name, facts.linktype);
            let message = format!(
                "fan-out `{fanout}` on {name}: frames of link type {linktype} have no flows to share \
                 them out by; open the port without"
            );
            return Err(Refusal::new(ErrorKind::Request, message));
        }
        let filter = self.filter(grant, &facts, &asked.filter, asked.snap_len)?;
        let ifindex = facts.ifindex;
        let effort = self.check_effort(grant, owner.who.uid, ifindex, None, &filter)?;
        let asked = OpenPort {
            ring,
            ring_min: None,
            ..asked
        };
        self.interface(facts, first_attach(&asked))?;
        if let Some(first) = self.interfaces.get_mut(&ifindex)
            && first.ports == 0
        {
            // Beside attaching, which takes longer.
            first.divider.expect_ring(ring.0);
        }
        if let Err(refusal) = self.attach_for(ifindex, Some((&asked, grant))) {
            self.close_interface_if_unused(ifindex);
            return Err(refusal);
        }
        let number = self.free_number();
        let queue = Queue {
            ring,
            snap_len: asked.snap_len.unwrap_or(0),
            timestamps: asked.timestamps,
        };
        if let Some(interface) = self.interfaces.get_mut(&ifindex) {
            interface.ports += 1;
            interface.divider.reserve(number, &queue);
        }
        let port = Port {
            owner,
            grant,
            ifindex,
            asked,
            filter,
            effort,
            place: None,
            ring: None,
            secret: String::new(),
            sending: TxState::None,
        };
        self.ports.insert(number, port);
        Ok(number)
    }

    /// Replaces a port's filter.
    ///
    /// # Errors
    /// If the port is another connection's, or the filter is invalid; then the
    /// old filter stays.
    pub fn set_filter(&mut self, owner: &Owner, port: u32, source: Source) -> Result<(), Refusal> {
        let known = self.port(owner, port)?;
        let (grant, ifindex, snap_len) = (known.grant, known.ifindex, known.asked.snap_len);
        // The opener's user is charged, who may have passed the port on.
        let uid = known.owner.who.uid;
        let interface = self.interfaces.get(&ifindex);
        let interface = interface.ok_or_else(|| no_port(port))?;
        let known_guards = (&self.policy, &mut self.guards);
        let filter = compiled(known_guards, grant, &interface.info, &source, snap_len)?;
        let effort = self.check_effort(grant, uid, ifindex, Some(port), &filter)?;
        if let Some(known) = self.ports.get_mut(&port) {
            if let Some(interface) = self.interfaces.get_mut(&ifindex) {
                known.rebind(interface, port, filter, false)?;
            }
            known.effort = effort;
            known.asked.filter = source;
        }
        self.note_change(port).map_err(|error| {
            let message = format!("the new filter holds, but cannot be noted down ({error})");
            Refusal::new(ErrorKind::System, message)
        })
    }

    /// Closes a port.
    ///
    /// # Errors
    /// If the port is another connection's.
    pub fn close(&mut self, owner: &Owner, port: u32) -> Result<(), Refusal> {
        self.port(owner, port)?;
        self.remove(port);
        Ok(())
    }

    /// Closes all ports of a connection that has ended.
    pub fn close_all(&mut self, connection: u64) {
        let of = |(number, port): (&u32, &Port)| {
            (port.owner.connection == connection).then_some(*number)
        };
        let numbers: Vec<u32> = self.ports.iter().filter_map(of).collect();
        for number in numbers {
            self.remove(number);
        }
    }

    /// Closes all ports.
    pub fn close_every(&mut self) {
        let numbers: Vec<u32> = self.ports.keys().copied().collect();
        for number in numbers {
            self.remove(number);
        }
    }

    /// The number of open ports.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Whether no port is open.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// The open ports that `owner` may see, with numbers above `after`: all for the
    /// superuser, else those of the same user.
    pub fn status(&self, owner: &Owner, after: u32) -> impl Iterator<Item = PortStatus> {
        let who = owner.who.clone();
        let ports = self.ports.range(after.saturating_add(1)..);
        ports.filter_map(move |(number, port)| {
            let shown = who.is_superuser || who.uid == port.owner.who.uid;
            if !shown || *number <= after {
                return None;
            }
            self.port_status(*number, port)
        })
    }

    /// All open ports, in the order of their numbers.
    pub fn all_status(&self) -> impl Iterator<Item = PortStatus> {
        let ports = self.ports.iter();
        ports.filter_map(|(number, port)| self.port_status(*number, port))
    }

    /// The counters of a port; `None` if there is no such port.
    pub fn counted(&self, port: u32) -> Option<PortStats> {
        let port = self.ports.get(&port)?;
        let (slot, _) = port.place?;
        let interface = self.interfaces.get(&port.ifindex)?;
        Some(interface.divider.counted(slot))
    }

    /// The properties of an interface.
    ///
    /// # Errors
    /// If there is no such interface, or the requester has no grant on it.
    pub fn interface_status(
        &mut self,
        owner: &Owner,
        name: &str,
    ) -> Result<InterfaceStatus, Refusal> {
        if !owner.who.is_superuser && self.policy.grant(&owner.who, name).is_none() {
            let interface = name.to_owned();
            let uid = owner.who.uid;
            return Err(Denied::NoGrant { uid, interface }.into());
        }
        let facts = self.fabric.by_name(name)?;
        Ok(self.status_from_info(facts))
    }

    /// The properties of a port's interface, under its present name.
    ///
    /// # Errors
    /// If the port is another connection's, or the interface is gone.
    pub fn port_interface(&mut self, owner: &Owner, port: u32) -> Result<InterfaceStatus, Refusal> {
        let ifindex = self.port(owner, port)?.ifindex;
        let facts = self.fabric.by_index(ifindex);
        let facts = facts.ok_or_else(|| Refusal::new(ErrorKind::Interface, "it is gone"))?;
        Ok(self.status_from_info(facts))
    }

    /// The properties of every interface in use.
    pub fn interfaces(&mut self) -> Vec<InterfaceStatus> {
        let indices: Vec<u32> = self.interfaces.keys().copied().collect();
        let facts = indices.into_iter();
        let facts: Vec<InterfaceInfo> = facts.filter_map(|one| self.fabric.by_index(one)).collect();
        facts
            .into_iter()
            .map(|one| self.status_from_info(one))
            .collect()
    }

    /// The ports that `owner` may see, with numbers above `after`: as many as
    /// fit into a message.
    pub fn page(&self, owner: &Owner, after: u32) -> Response {
        // The fixed part of a port's status is well below the last sixteenth of
        // a message.
        let room = MESSAGE_LEN_MAX - MESSAGE_LEN_MAX / 16;
        let mut used = 0;
        let mut ports = Vec::new();
        for status in self.status(owner, after) {
            used += serde_json::to_string(&status).map_or(room, |text| text.len() + 1);
            if used > room {
                return Response::Ports { ports, more: true };
            }
            ports.push(status);
        }
        Response::Ports { ports, more: false }
    }

    fn status_from_info(&self, facts: InterfaceInfo) -> InterfaceStatus {
        let divided = self.interfaces.get(&facts.ifindex);
        let attached = divided.and_then(|one| Some((one.divider.attached()?, one.divider.cost())));
        InterfaceStatus {
            ifindex: facts.ifindex,
            linktype: facts.linktype.0,
            header_len: facts.header_len,
            address: hex(&facts.address),
            broadcast: hex(&facts.broadcast),
            mtu: facts.mtu,
            up: facts.is_up,
            running: facts.is_running,
            dropped: facts.dropped,
            attach: attached.as_ref().map(|(attach, _)| attach.to_string()),
            cost: attached.map(|(_, cost)| cost),
            name: facts.name,
            addresses: facts.addresses,
        }
    }

    /// Checks the interfaces in use for changes; returns the events of their
    /// ports, each with its connection and port. Closes the ports of an
    /// interface that is gone.
    pub fn poll_interfaces(&mut self) -> Vec<(u64, u32, Event)> {
        let mut all = Vec::new();
        let indices: Vec<u32> = self.interfaces.keys().copied().collect();
        for ifindex in indices {
            let now = self.fabric.by_index(ifindex);
            let events = match (&now, self.interfaces.get_mut(&ifindex)) {
                (Some(now), Some(interface)) => {
                    let events = now.events_since(&interface.info);
                    interface.info = now.clone();
                    events
                }
                _ => vec![Event::Gone],
            };
            let of = |(number, port): (&u32, &Port)| {
                (port.ifindex == ifindex).then_some((port.owner.connection, *number))
            };
            let ports: Vec<(u64, u32)> = self.ports.iter().filter_map(of).collect();
            for (connection, number) in ports {
                let events = events.iter().cloned();
                all.extend(events.map(|event| (connection, number, event)));
                if now.is_none() {
                    self.remove(number);
                }
            }
            if now.is_none() {
                self.close_interface(ifindex);
            }
        }
        all
    }

    pub(super) fn port(&self, owner: &Owner, port: u32) -> Result<&Port, Refusal> {
        let known = self.ports.get(&port);
        let own = known.filter(|known| known.owner.connection == owner.connection);
        own.ok_or_else(|| no_port(port))
    }

    /// Compiles a filter, ANDed with the grant's filter.
    pub(super) fn filter(
        &mut self,
        grant: Option<usize>,
        facts: &InterfaceInfo,
        source: &Source,
        snap_len: Option<u32>,
    ) -> Result<Filter, Refusal> {
        let guards = (&self.policy, &mut self.guards);
        compiled(guards, grant, facts, source, snap_len)
    }

    /// Demultiplexes an interface, with the host's claims bound, if it is new; then it will be
    /// attached at `attach`.
    fn interface(&mut self, facts: InterfaceInfo, attach: Option<Attach>) -> Result<(), Refusal> {
        if let Some(known) = self.interfaces.get_mut(&facts.ifindex) {
            known.info = facts.as_reported(&known.info);
            return Ok(());
        }
        let mut divider = self.fabric.demux(&facts, attach)?;
        let claims = bind_claims(&self.policy, &facts, &mut divider, &[])?;
        let ifindex = facts.ifindex;
        let interface = Interface {
            info: facts,
            divider,
            ports: 0,
            groups: Groups::default(),
            claims,
            native_until: None,
        };
        self.interfaces.insert(ifindex, interface);
        Ok(())
    }

    /// Binds a port whose ring is ready.
    pub(super) fn finish(
        &mut self,
        number: u32,
        reserved: Reserved,
    ) -> Result<(Response, Vec<OwnedFd>), Refusal> {
        let port = self.ports.get(&number).ok_or_else(|| no_port(number))?;
        let ifindex = port.ifindex;
        self.attach_again(ifindex, reserved.slot)?;
        let port = self.ports.get_mut(&number).ok_or_else(|| no_port(number))?;
        let interface = self.interfaces.get_mut(&ifindex);
        let interface = interface.ok_or_else(|| no_port(number))?;
        let wanted = port.wanted(number, reserved.slot);
        let bound = interface.groups.bind(&mut interface.divider, &wanted);
        let bound = bound.inspect_err(|_| interface.divider.release(reserved.slot))?;
        port.place = Some((reserved.slot, bound));
        port.ring = Some(reserved.ring);
        let (mut names, mut fds): (Vec<_>, Vec<_>) = reserved.fds.into_iter().unzip();
        if let Some(keep) = &self.runtime_dir {
            let held = keep.lifetime_fd(number);
            fds.push(held.map_err(|error| not_persisted(&error))?);
            names.push("held".to_owned());
            port.secret = new_secret().map_err(|error| not_persisted(&error))?;
        }
        let grant = port.grant.and_then(|place| self.policy.grants.get(place));
        let within = grant.map(|grant| shown(&grant.filter));
        let opened = Opened {
            port: number,
            ring: port.asked.ring,
            linktype: interface.info.linktype.0,
            fds: names,
            secret: (!port.secret.is_empty()).then(|| port.secret.clone()),
            slot: reserved.slot,
            attach: attach_name(&interface.divider),
            dropped: interface.info.dropped,
            within: within.filter(|filter| !filter.is_empty()),
            accepts_nothing: matches!(
                port.filter.analysis(),
                Analysis::Paths(paths) if paths.is_empty()
            ),
        };
        self.note(number).map_err(|error| not_persisted(&error))?;
        self.prepare_path(number);
        Ok((Response::Opened(opened), fds))
    }

    pub(super) fn remove(&mut self, number: u32) {
        let Some(mut port) = self.ports.remove(&number) else {
            return;
        };
        if let Some(keep) = &mut self.runtime_dir {
            keep.forget(number);
        }
        self.retire(number, &mut port);
        if !port.owner.who.is_superuser {
            let ghost = LingeringRing {
                grant: port.grant,
                who: port.owner.who.clone(),
                interface: port.asked.interface.clone(),
                memory: port.asked.ring.0,
                ring: port.ring,
            };
            self.ghosts.add(number, port.ifindex, ghost);
        }
        if let Some(interface) = self.interfaces.get_mut(&port.ifindex) {
            interface.ports -= 1;
            if let Some((slot, bound)) = port.place {
                let divider = &mut interface.divider;
                interface.groups.unbind(divider, bound, number);
                divider.release(slot);
            }
        }
        if self
            .interfaces
            .get(&port.ifindex)
            .is_some_and(|one| one.ports > 0)
        {
            // The host regains its offloads when the last taker is gone. If the
            // move fails, the ports stay as they are.
            let _ = self.attach_for(port.ifindex, None);
        }
        self.close_interface_if_unused(port.ifindex);
    }

    fn free_number(&mut self) -> u32 {
        loop {
            self.last_port = self.last_port.wrapping_add(1).max(1);
            if !self.ports.contains_key(&self.last_port) {
                return self.last_port;
            }
        }
    }

    /// `None` while the port is being opened: no frame comes to it yet.
    fn port_status(&self, number: u32, port: &Port) -> Option<PortStatus> {
        let (slot, bound) = port.place?;
        let interface = self.interfaces.get(&port.ifindex);
        let counted = interface.map_or_else(PortStats::default, |one| one.divider.counted(slot));
        let sent = self.sent(port);
        Some(PortStatus {
            port: number,
            interface: interface.map_or_else(String::new, |one| one.info.name.clone()),
            filter: shown_filter(&port.asked.filter),
            priority: port.asked.priority,
            copy: !port.asked.take,
            pid: port.owner.who.pid,
            uid: port.owner.who.uid,
            delivered: counted.delivered,
            lost: counted.lost,
            sent: sent.passed,
            refused: sent.refused,
            queue: port.asked.ring.0,
            attach: interface.map_or_else(String::new, |one| attach_name(&one.divider)),
            fanout: interface.and_then(|one| one.groups.status(bound, number)),
        })
    }
}

/// Checks an untrusted request; returns the rounded size of the ring.
fn check(asked: &OpenPort) -> Result<Bytes, Refusal> {
    let name = &asked.interface;
    let refuse = |message: String| Err(Refusal::new(ErrorKind::Request, message));
    if name.is_empty() || name.len() > limits::NAME_LEN_MAX || name.contains('/') {
        let shown: String = name.chars().take(20).collect();
        return refuse(format!(
            "`{shown}` is no interface's name: 1 to 15 bytes, no `/`"
        ));
    }
    if asked.ring < limits::RING_MIN {
        let (ring, min) = (asked.ring, limits::RING_MIN);
        return refuse(format!(
            "a queue of {ring} is too short: ask for {min} or more, of which 1 MiB is usual"
        ));
    }
    if asked.ring > limits::RING_MAX {
        let (ring, max) = (asked.ring, limits::RING_MAX);
        return refuse(format!("a ring of {ring}; at most {max} are possible"));
    }
    if asked.snap_len == Some(0) {
        return refuse("a snap length of 0 would deliver nothing; leave it out for all".into());
    }
    Ok(Bytes(asked.ring.0.next_power_of_two()))
}

/// Binds the host's claims on an interface: all, or none on an error. Claims
/// that are already bound stay, and keep their order before ports of equal
/// priority.
pub(super) fn bind_claims(
    policy: &Policy,
    facts: &InterfaceInfo,
    divider: &mut impl InterfaceDemux,
    known: &[BoundClaim],
) -> Result<Vec<BoundClaim>, Refusal> {
    let (mut claims, mut bound) = (Vec::new(), Vec::new());
    for claim in policy.claims(&facts.name) {
        let is_same = |one: &&BoundClaim| {
            (one.claim.priority, &one.claim.filter) == (claim.priority, &claim.filter)
        };
        if let Some(known) = known.iter().find(is_same) {
            claims.push(known.clone());
            continue;
        }
        let binding = compile_own(facts, &claim.filter).and_then(|program| {
            divider.bind(Binding {
                filter: Filter::new(program),
                priority: claim.priority,
                copy: false,
                target: Target::Kernel,
                tag: 0,
            })
        });
        match binding {
            Ok(binding) => {
                bound.push(binding);
                let claim = claim.clone();
                claims.push(BoundClaim { claim, binding });
            }
            Err(refusal) => {
                bound.into_iter().for_each(|id| divider.unbind(id));
                return Err(refusal);
            }
        }
    }
    Ok(claims)
}

fn attach_name(divider: &impl InterfaceDemux) -> String {
    divider
        .attached()
        .map_or_else(String::new, |attach| attach.to_string())
}

fn compiler(facts: &InterfaceInfo) -> Compiler<'static> {
    let compiler = Compiler::for_linktype(facts.linktype);
    match facts.netmask() {
        Some(netmask) => compiler.netmask(netmask),
        None => compiler,
    }
}

/// Compiles a filter, ANDed with the grant's filter.
pub(super) fn compiled(
    (policy, guards): (&Policy, &mut Guards),
    grant: Option<usize>,
    facts: &InterfaceInfo,
    source: &Source,
    snap_len: Option<u32>,
) -> Result<Filter, Refusal> {
    let guard = match grant {
        Some(place) => guard(policy, guards, place, facts)?,
        None => None,
    };
    let mut compiler = compiler(facts).guarded_by(guard);
    if let Some(snap_len) = snap_len {
        compiler = compiler.snaplen(snap_len);
    }
    Ok(compiler.filter(source)?)
}

/// The compiled filter of a grant, cached for all interfaces with equal
/// parameters.
fn guard<'a>(
    policy: &Policy,
    guards: &'a mut Guards,
    place: usize,
    facts: &InterfaceInfo,
) -> Result<Option<&'a Program>, Refusal> {
    let Some(grant) = policy.grants.get(place) else {
        return Ok(None);
    };
    if grant.filter.is_empty() {
        return Ok(None);
    }
    Ok(Some(
        match guards.entry((place, facts.linktype.0, facts.netmask())) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(compile_own(facts, &grant.filter)?),
        },
    ))
}

/// Compiles a filter of the policy itself.
fn compile_own(facts: &InterfaceInfo, text: &str) -> Result<Program, Refusal> {
    let compiled = compiler(facts).compile(&Source::expr(text));
    compiled.map_err(|error| {
        let message = format!("the policy's filter `{text}` does not compile: {error}");
        Refusal::new(ErrorKind::Denied, message)
    })
}

/// A filter for a list of ports. A classic BPF program is a list of numbers, of which only the length
/// says something.
fn shown_filter(filter: &Source) -> String {
    if filter.language != Language::Cbpf {
        return shown(&filter.text);
    }
    // The form of programs begins with that number; other forms have a line for each instruction.
    let text = filter.text.trim_start();
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let stated = text[..digits.unwrap_or(text.len())].parse();
    let lines = || text.lines().filter(|line| !line.trim().is_empty()).count();
    match stated.unwrap_or_else(|_| lines()) {
        1 => "cbpf, 1 instruction".to_owned(),
        count => format!("cbpf, {count} instructions"),
    }
}

/// A filter's text for a list of ports, truncated if it is long.
fn shown(text: &str) -> String {
    match text.char_indices().nth(limits::SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

pub(super) fn not_persisted(error: &std::io::Error) -> Refusal {
    let message = format!("the broker cannot note the port down ({error})");
    Refusal::new(ErrorKind::System, message)
}

pub(super) fn no_port(port: u32) -> Refusal {
    let message = format!("there is no port {port} of this connection");
    Refusal::new(ErrorKind::Port, message)
}

fn hex(address: &[u8]) -> String {
    let bytes: Vec<String> = address.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}
