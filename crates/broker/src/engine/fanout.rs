//! Ports in the plan: a binding for each, or for all of a fan-out group together.
//!
//! ```text
//!  port ──────────────► binding ─► port's slot
//!  member ─┐
//!  member ─┼─► group ─► binding ─► fan-out: 512 buckets ─► members' slots
//!  member ─┘
//! ```
//!
//! Members of a group are ports of one user with the same filter, priority and
//! right to take. So a frame costs one look-up, whatever their number. A port that
//! gets another filter leaves its group and joins, or makes, another.
//!
//! The buckets of a group by name are dealt out among its members anew when one
//! joins or leaves; as few as possible change hands, since a bucket that does
//! moves its connections to another process. Ports with shares (`0/4`) make
//! groups, too, in which buckets of shares without a port are no one's.

use super::InterfaceDemux;
use super::ports::{Interface, Port};
use crate::protocol::{ErrorKind, FanoutStatus, Refusal};
use std::collections::BTreeMap;
use weir_demux::fanout::{BUCKETS, Buckets, Fanout, Group, Share};
use weir_demux::{Binding, BindingId, Filter, Target};

/// Upper bounds.
pub mod limits {
    /// Number of fan-out groups of one user on an interface; the superuser has
    /// only the plan's bound.
    pub const USER_GROUPS_MAX: usize = 64;
    /// Number of fan-out groups on an interface that need a grant; the plan has
    /// room for 1,024.
    pub const USERS_GROUPS_MAX: usize = 768;
}

/// A port as it is to be bound.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The port's number.
    pub(super) port: u32,
    pub(super) slot: u32,
    pub(super) filter: Filter,
    pub(super) priority: u16,
    pub(super) take: bool,
    pub(super) tag: u32,
    pub(super) uid: u32,
    pub(super) is_granted: bool,
    pub(super) fanout: Option<Fanout>,
}

/// How a port is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bound {
    /// By a binding of its own.
    Alone(BindingId),
    /// As a member of the group that has this fan-out.
    Member(u32),
}

/// The fan-out groups of an interface, by the number of their fan-out.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<u32, Members>);

/// What the members of a group have in common.
#[derive(Clone, PartialEq, Debug)]
struct Key {
    uid: u32,
    kind: Kind,
    filter: weir_filter::ir::Program,
    priority: u16,
    take: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    /// Fixed shares, of this many.
    Shares(u32),
    Named(Group),
}

/// A group.
#[derive(Debug)]
struct Members {
    key: Key,
    is_granted: bool,
    /// Made with the group.
    binding: Option<BindingId>,
    members: BTreeMap<u32, Member>,
    /// The port that has each bucket.
    owners: Vec<Option<u32>>,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    slot: u32,
    tag: u32,
    share: Option<Share>,
}

impl Key {
    fn of(wanted: &Wanted, fanout: &Fanout) -> Key {
        Key {
            uid: wanted.uid,
            kind: match fanout {
                Fanout::Share(share) => Kind::Shares(share.of()),
                Fanout::Group(group) => Kind::Named(group.clone()),
            },
            filter: wanted.filter.program().clone(),
            priority: wanted.priority,
            take: wanted.take,
        }
    }
}

impl Member {
    fn of(wanted: &Wanted, fanout: &Fanout) -> Member {
        Member {
            slot: wanted.slot,
            tag: wanted.tag,
            share: match fanout {
                Fanout::Share(share) => Some(*share),
                Fanout::Group(_) => None,
            },
        }
    }
}

impl Members {
    /// Whether there is room for one more member, which has this share.
    fn has_room(&self, share: Option<Share>) -> bool {
        match &self.key.kind {
            Kind::Shares(_) => self.members.values().all(|member| member.share != share),
            Kind::Named(group) => self.members.len() < group.members_max() as usize,
        }
    }

    /// Deals out the buckets among the present members.
    fn deal(&mut self) {
        match self.key.kind {
            Kind::Shares(_) => {
                let members = &self.members;
                self.owners = (0..BUCKETS)
                    .map(|bucket| {
                        let has = |member: &Member| member.share.is_some_and(|one| one.has(bucket));
                        let mut members = members.iter();
                        members
                            .find(|(_, member)| has(member))
                            .map(|(port, _)| *port)
                    })
                    .collect();
            }
            Kind::Named(_) => {
                let members: Vec<u32> = self.members.keys().copied().collect();
                deal(&mut self.owners, &members);
            }
        }
    }

    fn buckets(&self) -> Buckets {
        let mut buckets = Buckets::new();
        for (bucket, owner) in self.owners.iter().enumerate() {
            if let Some(member) = owner.and_then(|port| self.members.get(&port)) {
                buckets.set(bucket, member.slot, member.tag);
            }
        }
        buckets
    }
}

/// Deals out buckets among members so that their counts differ by one at most. A
/// bucket stays with its owner as far as that is possible.
fn deal(owners: &mut [Option<u32>], members: &[u32]) {
    let mut counts: BTreeMap<u32, usize> = members.iter().map(|port| (*port, 0)).collect();
    for owner in owners.iter_mut() {
        match owner.and_then(|port| counts.get_mut(&port)) {
            Some(count) => *count += 1,
            None => *owner = None,
        }
    }
    let (Some(least), Some(more)) = (
        owners.len().checked_div(members.len()),
        owners.len().checked_rem(members.len()),
    ) else {
        return;
    };
    // Members with the most buckets keep one more, where they do not divide.
    let mut order = members.to_vec();
    order.sort_by_key(|port| (std::cmp::Reverse(counts[port]), *port));
    let quotas = order.iter().enumerate();
    let mut left: BTreeMap<u32, usize> = quotas
        .map(|(at, port)| (*port, least + usize::from(at < more)))
        .collect();
    for owner in owners.iter_mut() {
        match owner.and_then(|port| left.get_mut(&port)) {
            Some(left) if *left > 0 => *left -= 1,
            _ => *owner = None,
        }
    }
    let mut open = left
        .into_iter()
        .flat_map(|(port, left)| std::iter::repeat_n(port, left));
    for owner in owners.iter_mut().filter(|owner| owner.is_none()) {
        *owner = open.next();
    }
}

impl Groups {
    /// Binds a port: by itself, or as a member of its group.
    ///
    /// # Errors
    /// If a limit is reached or the kernel refuses; nothing has changed then.
    pub(super) fn bind(
        &mut self,
        divider: &mut impl InterfaceDemux,
        wanted: &Wanted,
    ) -> Result<Bound, Refusal> {
        let Some(fanout) = &wanted.fanout else {
            let bound = divider.bind(binding(wanted, Target::Port(wanted.slot)));
            return bound.map(Bound::Alone);
        };
        let (key, member) = (Key::of(wanted, fanout), Member::of(wanted, fanout));
        let known = self.0.iter().filter(|(_, group)| group.key == key);
        let known: Vec<u32> = known.map(|(number, _)| *number).collect();
        let open = known
            .iter()
            .copied()
            .find(|number| self.0[number].has_room(member.share));
        match (open, &key.kind) {
            (Some(number), _) => {
                self.join(divider, number, wanted.port, member)?;
                Ok(Bound::Member(number))
            }
            (None, Kind::Named(group)) if !known.is_empty() => {
                let (name, max) = (group.name(), group.members_max());
                let message = format!(
                    "the fan-out group `{name}` of this filter has {max} members, the most it can have: \
                     close one, or name another group"
                );
                Err(Refusal::new(ErrorKind::Limit, message))
            }
            (None, _) => self.make(divider, key, wanted, member),
        }
    }

    fn join(
        &mut self,
        divider: &mut impl InterfaceDemux,
        number: u32,
        port: u32,
        member: Member,
    ) -> Result<(), Refusal> {
        let Some(group) = self.0.get_mut(&number) else {
            return Ok(());
        };
        group.members.insert(port, member);
        group.deal();
        let changed = divider.change_fanout(number, &group.buckets());
        if changed.is_err() {
            group.members.remove(&port);
            group.deal();
            // The newcomer's slot may be in the store already.
            let _ = divider.change_fanout(number, &group.buckets());
        }
        changed
    }

    fn make(
        &mut self,
        divider: &mut impl InterfaceDemux,
        key: Key,
        wanted: &Wanted,
        member: Member,
    ) -> Result<Bound, Refusal> {
        self.check_room(wanted)?;
        let mut group = Members {
            key,
            is_granted: wanted.is_granted,
            binding: None,
            members: BTreeMap::from([(wanted.port, member)]),
            owners: vec![None; BUCKETS],
        };
        group.deal();
        let number = divider.add_fanout(&group.buckets())?;
        let bound = divider.bind(binding(wanted, Target::Fanout(number)));
        group.binding = Some(bound.inspect_err(|_| divider.remove_fanout(number))?);
        self.0.insert(number, group);
        Ok(Bound::Member(number))
    }

    fn check_room(&self, wanted: &Wanted) -> Result<(), Refusal> {
        if !wanted.is_granted {
            return Ok(());
        }
        let granted = || self.0.values().filter(|group| group.is_granted);
        let own = granted().filter(|group| group.key.uid == wanted.uid);
        let (own, all) = (own.count(), granted().count());
        let (count, whose) = if own >= limits::USER_GROUPS_MAX {
            (own, "one user")
        } else if all >= limits::USERS_GROUPS_MAX {
            (all, "all users together")
        } else {
            return Ok(());
        };
        let message = format!(
            "{count} fan-out groups are on this interface, the most of {whose}: ports with the same \
             filter, priority and name share one"
        );
        Err(Refusal::new(ErrorKind::Limit, message))
    }

    /// Gives a port another filter in place of `old`. A member leaves its group, whose
    /// frames the rest shares, before it joins another: so none is lost or delivered
    /// twice. A group changes as a whole if the port is its only member, or if
    /// `of_all`: then the others will get filters of their own next, mostly the same.
    /// A member whose filter is another one leaves the group then.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind); then the port has its old filter, in a group of
    /// another number perhaps.
    pub(super) fn rebind(
        &mut self,
        divider: &mut impl InterfaceDemux,
        bound: &mut Bound,
        (wanted, old): (&Wanted, &Filter),
        of_all: bool,
    ) -> Result<(), Refusal> {
        let (number, fanout) = match (*bound, &wanted.fanout) {
            (Bound::Alone(_), _) if wanted.filter.program() == old.program() => return Ok(()),
            (Bound::Alone(binding), _) => {
                return exchange(divider, binding, &wanted.filter, old);
            }
            (Bound::Member(_), None) => return Ok(()),
            (Bound::Member(number), Some(fanout)) => (number, fanout),
        };
        let key = Key::of(wanted, fanout);
        let is_first = !self.0.values().any(|group| group.key == key);
        let group = self.0.get_mut(&number);
        let group = group.filter(|group| group.members.contains_key(&wanted.port));
        let Some(group) = group else {
            // An earlier change was refused, and its old filter, too.
            *bound = self.bind(divider, wanted)?;
            return Ok(());
        };
        if group.key == key {
            return Ok(());
        }
        if let Some(binding) = group.binding
            && is_first
            && group.key.filter == *old.program()
            && (of_all || group.members.len() == 1)
        {
            exchange(divider, binding, &wanted.filter, old)?;
            group.key = key;
            return Ok(());
        }
        self.leave(divider, number, wanted.port);
        let joined = self.bind(divider, wanted);
        let before = || Wanted {
            filter: old.clone(),
            ..wanted.clone()
        };
        // There was room for it before.
        let now = joined.clone().or_else(|_| self.bind(divider, &before()));
        if let Ok(now) = now {
            *bound = now;
        }
        joined.map(drop)
    }

    /// Removes a port's binding, or the port from its group.
    pub(super) fn unbind(&mut self, divider: &mut impl InterfaceDemux, bound: Bound, port: u32) {
        match bound {
            Bound::Alone(binding) => divider.unbind(binding),
            Bound::Member(number) => self.leave(divider, number, port),
        }
    }

    fn leave(&mut self, divider: &mut impl InterfaceDemux, number: u32, port: u32) {
        let Some(group) = self.0.get_mut(&number) else {
            return;
        };
        if group.members.remove(&port).is_none() {
            return;
        }
        if group.members.is_empty() {
            if let Some(binding) = group.binding {
                divider.unbind(binding);
            }
            divider.remove_fanout(number);
            self.0.remove(&number);
            return;
        }
        group.deal();
        // If that fails, the slot is kept until the kernel follows.
        let _ = divider.change_fanout(number, &group.buckets());
    }

    /// The place of a port in its fan-out; `None` if it has none.
    pub(super) fn status(&self, bound: Bound, port: u32) -> Option<FanoutStatus> {
        let Bound::Member(number) = bound else {
            return None;
        };
        let group = self.0.get(&number)?;
        let share = group.members.get(&port)?.share;
        let place = group.members.keys().position(|member| *member == port)?;
        let (name, member, members) = match (&group.key.kind, share) {
            (Kind::Named(named), _) => (named.name(), place as u32, group.members.len() as u32),
            (Kind::Shares(of), share) => ("", share.map_or(0, Share::index), *of),
        };
        Some(FanoutStatus {
            group: (!name.is_empty()).then(|| name.to_owned()),
            member,
            members,
        })
    }
}

impl Port {
    /// The port of this number and slot as it is to be bound.
    pub(super) fn wanted(&self, port: u32, slot: u32) -> Wanted {
        Wanted {
            port,
            slot,
            filter: self.filter.clone(),
            priority: self.asked.priority,
            take: self.asked.take,
            tag: self.asked.tag,
            uid: self.owner.who.uid,
            is_granted: self.grant.is_some(),
            fanout: self.asked.fanout.clone(),
        }
    }

    /// Replaces the filter; see [`Groups::rebind`].
    ///
    /// # Errors
    /// If the new filter is refused; then the old one stays.
    pub(super) fn rebind(
        &mut self,
        interface: &mut Interface<impl InterfaceDemux>,
        number: u32,
        filter: Filter,
        of_all: bool,
    ) -> Result<(), Refusal> {
        if let Some((slot, mut bound)) = self.place {
            let wanted = Wanted {
                filter: filter.clone(),
                ..self.wanted(number, slot)
            };
            let filters = (&wanted, &self.filter);
            let (groups, divider) = (&mut interface.groups, &mut interface.divider);
            let changed = groups.rebind(divider, &mut bound, filters, of_all);
            self.place = Some((slot, bound));
            changed?;
        }
        self.filter = filter;
        Ok(())
    }
}

/// Replaces a binding's filter, or leaves it as it was.
fn exchange(
    divider: &mut impl InterfaceDemux,
    binding: BindingId,
    new: &Filter,
    old: &Filter,
) -> Result<(), Refusal> {
    let changed = divider.rebind(binding, new.clone());
    if changed.is_err() {
        // The old filter was bound before, so it fits.
        let _ = divider.rebind(binding, old.clone());
    }
    changed
}

fn binding(wanted: &Wanted, target: Target) -> Binding {
    Binding {
        filter: wanted.filter.clone(),
        priority: wanted.priority,
        copy: !wanted.take,
        target,
        tag: wanted.tag,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(owners: &[Option<u32>], members: &[u32]) -> Vec<usize> {
        let count = |port| owners.iter().filter(|owner| **owner == Some(port)).count();
        members.iter().map(|port| count(*port)).collect()
    }

    /// Members join and leave in any order: the buckets are always dealt out
    /// evenly, and those of members that stay move only to newcomers.
    #[test]
    fn buckets_are_dealt_out_evenly_and_move_little() {
        let mut owners = vec![None; BUCKETS];
        let mut members: Vec<u32> = Vec::new();
        for (step, port) in [7, 3, 9, 1, 12, 40, 41, 42].into_iter().enumerate() {
            members.push(port);
            members.sort_unstable();
            let before = owners.clone();
            deal(&mut owners, &members);
            for (old, new) in before.iter().zip(&owners) {
                assert!(old == new || *new == Some(port) || step == 0);
            }
            let counts = counts(&owners, &members);
            assert_eq!(counts.iter().sum::<usize>(), BUCKETS);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
        for port in [3, 42, 7, 9, 41, 1, 12] {
            members.retain(|member| *member != port);
            let before = owners.clone();
            deal(&mut owners, &members);
            for (old, new) in before.iter().zip(&owners) {
                assert!(old == new || *old == Some(port), "only its buckets move");
            }
            let counts = counts(&owners, &members);
            assert_eq!(counts.iter().sum::<usize>(), BUCKETS);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
        deal(&mut owners, &[]);
        assert!(owners.iter().all(Option::is_none));
    }
}
