//! Routes: the target of each prefix, by origin.

use super::fib::{Fib, Key, VALUE_MAX};
use prefix_trie::Prefix as TriePrefix;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use weir_stack::Prefix;

/// The number of a link: its index in the configuration.
pub type LinkId = u16;

/// Largest number of IPv4 prefixes; one more is refused.
pub const ROUTES_V4_MAX: usize = 4_000_000;
/// Largest number of IPv6 prefixes; one more is refused.
pub const ROUTES_V6_MAX: usize = 1_000_000;
/// Largest number of distinct targets of all routes; one more is refused.
pub const TARGETS_MAX: usize = 1 << 20;
/// Largest number of hops of one route; further hops are ignored.
pub const HOPS_MAX: usize = 64;
/// Number of direct slots of each table that are rebuilt between batches.
const SLOTS_PER_TURN: u32 = 64;

/// One hop of a route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Hop {
    /// The link to send on.
    pub link: LinkId,
    /// The gateway to send to; `None` if the destination itself is a neighbour.
    pub gateway: Option<IpAddr>,
}

/// The target of a route.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Target {
    /// Forward to a neighbour. Of several hops, a flow always uses the same.
    Forward(Box<[Hop]>),
    /// To the router itself.
    Local,
    /// Broadcast (RFC 919), or an address that no station may have.
    Broadcast,
    /// Drop silently.
    Blackhole,
    /// Drop; the sender gets "destination unreachable".
    Unreachable,
    /// Drop; the sender gets "administratively prohibited".
    Prohibit,
}

impl Target {
    /// A target with one hop.
    pub fn to(link: LinkId, gateway: Option<IpAddr>) -> Target {
        Target::Forward(Box::new([Hop { link, gateway }]))
    }
}

/// The reason why a route was refused.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteError {
    /// The table is full.
    #[error("the table of routes is full: {max} fit")]
    Full {
        /// The capacity of the table.
        max: usize,
    },
    /// The set of targets is full.
    #[error("the routes lead to more than {TARGETS_MAX} different targets")]
    TargetsFull,
}

/// All routes. The values in the tables are numbers of targets, from 1.
#[derive(Debug)]
pub struct Routes {
    v4: Table<u32>,
    v6: Table<u128>,
    targets: Targets,
    /// The routes of [`Origin::Own`], by network.
    own: HashMap<Prefix, Target>,
    /// Those of them for which there was no room yet.
    own_unplaced: Vec<(Prefix, Target)>,
}

/// The origin of a route; of one prefix, the first in this order is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A static route of the configuration.
    Configured,
    /// An address of the router, or a network of a link; these do not count
    /// against the capacity.
    Own,
    /// Learned from the kernel, with its metric: the lowest comes first.
    Learned(u32),
}

#[derive(Debug)]
struct Table<K: Key>
where
    (K, u8): TriePrefix,
{
    fib: Fib<K>,
    /// Largest number of prefixes, without the router's own.
    max: usize,
    configured: BTreeMap<(K, u8), u32>,
    own: BTreeMap<(K, u8), u32>,
    learned: BTreeMap<(K, u8, u32), u32>,
}

impl Default for Routes {
    fn default() -> Routes {
        Routes::with_room(usize::MAX)
    }
}

impl Routes {
    /// Makes tables with room for `max` prefixes of each version of IP, and
    /// never for more than [`ROUTES_V4_MAX`] and [`ROUTES_V6_MAX`].
    pub fn with_room(max: usize) -> Routes {
        Routes {
            v4: Table::new(max.min(ROUTES_V4_MAX)),
            v6: Table::new(max.min(ROUTES_V6_MAX)),
            targets: Targets {
                // Number 0 means no route.
                all: vec![Target::Blackhole],
                max: TARGETS_MAX,
                uses: vec![1],
                numbers: BTreeMap::new(),
                free: Vec::new(),
                leaving: Vec::new(),
            },
            own: HashMap::new(),
            own_unplaced: Vec::new(),
        }
    }

    /// Sets the target of a prefix for this origin.
    ///
    /// # Errors
    /// If there is no room.
    pub fn insert(
        &mut self,
        prefix: Prefix,
        origin: Origin,
        target: Target,
    ) -> Result<(), RouteError> {
        let number = self.targets.take(target)?;
        let old = match prefix.address() {
            IpAddr::V4(ip) => self.v4.insert((ip.to_bits(), prefix.len()), origin, number),
            IpAddr::V6(ip) => self.v6.insert((ip.to_bits(), prefix.len()), origin, number),
        };
        match old {
            Ok(old) => {
                self.targets.give(old);
                Ok(())
            }
            Err(error) => {
                self.targets.give(Some(number));
                Err(error)
            }
        }
    }

    /// Removes the route of a prefix with this origin.
    pub fn remove(&mut self, prefix: Prefix, origin: Origin) {
        let old = match prefix.address() {
            IpAddr::V4(ip) => self.v4.remove((ip.to_bits(), prefix.len()), origin),
            IpAddr::V6(ip) => self.v6.remove((ip.to_bits(), prefix.len()), origin),
        };
        self.targets.give(old);
    }

    /// Removes all learned routes.
    pub fn remove_learned(&mut self) {
        for old in self.v4.remove_learned() {
            self.targets.give(Some(old));
        }
        for old in self.v6.remove_learned() {
            self.targets.give(Some(old));
        }
    }

    /// Replaces the router's own routes; of two with one prefix, the later is
    /// used.
    ///
    /// # Errors
    /// If there is no room for some of them; these are added when there is
    /// room.
    pub(in crate::router::engine) fn set_own(
        &mut self,
        wanted: Vec<(Prefix, Target)>,
    ) -> Result<(), RouteError> {
        let wanted = wanted.into_iter();
        let wanted: HashMap<Prefix, Target> = wanted
            .map(|(prefix, target)| (prefix.network(), target))
            .collect();
        let gone = self
            .own
            .extract_if(|prefix, _| !wanted.contains_key(prefix));
        for prefix in gone.map(|(prefix, _)| prefix).collect::<Vec<Prefix>>() {
            self.remove(prefix, Origin::Own);
        }
        let own = &self.own;
        let new = wanted.into_iter();
        self.own_unplaced = new
            .filter(|(prefix, target)| own.get(prefix) != Some(target))
            .collect();
        self.insert_own()
    }

    /// Adds the router's own routes that are still missing, as far as there is
    /// room.
    fn insert_own(&mut self) -> Result<(), RouteError> {
        let mut inserted = Ok(());
        for (prefix, target) in std::mem::take(&mut self.own_unplaced) {
            match self.insert(prefix, Origin::Own, target.clone()) {
                Ok(()) => {
                    self.own.insert(prefix, target);
                }
                Err(error) => {
                    self.own_unplaced.push((prefix, target));
                    inserted = Err(error);
                }
            }
        }
        inserted
    }

    /// Number of the router's own routes for which there was no room yet.
    pub(in crate::router::engine) fn own_lacking(&self) -> usize {
        self.own_unplaced.len()
    }

    /// The target of an address; `None` without a route.
    pub fn lookup(&self, address: IpAddr) -> Option<&Target> {
        let number = match address {
            IpAddr::V4(ip) => self.v4.fib.lookup(ip.to_bits()),
            IpAddr::V6(ip) => self.v6.fib.lookup(ip.to_bits()),
        };
        self.target(number)
    }

    /// The numbers of IPv4 and of IPv6 prefixes.
    pub fn len(&self) -> (usize, usize) {
        (self.v4.fib.len(), self.v6.fib.len())
    }

    /// Whether there are no prefixes.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// Continues a pending change of a short prefix, if there is one; returns
    /// whether work remains.
    pub fn rebuild_some(&mut self) -> bool {
        self.v4.fib.rebuild_some(SLOTS_PER_TURN);
        self.v6.fib.rebuild_some(SLOTS_PER_TURN);
        let settled = self.is_up_to_date();
        if settled {
            self.targets.leave();
            // Removals may have made room.
            let _ = self.insert_own();
        }
        !self.is_up_to_date()
    }

    /// Whether every change has taken effect.
    pub fn is_up_to_date(&self) -> bool {
        self.v4.fib.is_up_to_date() && self.v6.fib.is_up_to_date()
    }

    pub(in crate::router::engine) fn v4(&self) -> &Fib<u32> {
        &self.v4.fib
    }

    pub(in crate::router::engine) fn v6(&self) -> &Fib<u128> {
        &self.v6.fib
    }

    pub(in crate::router::engine) fn target(&self, number: u32) -> Option<&Target> {
        (number != 0).then(|| &self.targets.all[number as usize])
    }
}

impl<K: Key> Table<K>
where
    (K, u8): TriePrefix,
{
    fn new(max: usize) -> Self {
        Table {
            fib: Fib::default(),
            max,
            configured: BTreeMap::new(),
            own: BTreeMap::new(),
            learned: BTreeMap::new(),
        }
    }

    /// Sets the number of a prefix's target; returns the former number.
    fn insert(
        &mut self,
        (key, len): (K, u8),
        origin: Origin,
        number: u32,
    ) -> Result<Option<u32>, RouteError> {
        let key = key.masked(len);
        if !self.has_room(key, len, origin) {
            return Err(RouteError::Full { max: self.max });
        }
        let old = match origin {
            Origin::Configured => self.configured.insert((key, len), number),
            Origin::Own => self.own.insert((key, len), number),
            Origin::Learned(metric) => self.learned.insert((key, len, metric), number),
        };
        self.choose(key, len);
        Ok(old)
    }

    /// Whether one more prefix fits, or this prefix is present.
    fn has_room(&self, key: K, len: u8, origin: Origin) -> bool {
        let is_full = self.configured.len() + self.learned.len() >= self.max;
        match origin {
            Origin::Own => true,
            _ if !is_full => true,
            Origin::Configured => self.configured.contains_key(&(key, len)),
            Origin::Learned(metric) => self.learned.contains_key(&(key, len, metric)),
        }
    }

    fn remove(&mut self, (key, len): (K, u8), origin: Origin) -> Option<u32> {
        let key = key.masked(len);
        let old = match origin {
            Origin::Configured => self.configured.remove(&(key, len)),
            Origin::Own => self.own.remove(&(key, len)),
            Origin::Learned(metric) => self.learned.remove(&(key, len, metric)),
        };
        self.choose(key, len);
        old
    }

    fn remove_learned(&mut self) -> Vec<u32> {
        let learned = std::mem::take(&mut self.learned);
        for (key, len, _) in learned.keys() {
            self.choose(*key, *len);
        }
        learned.into_values().collect()
    }

    /// Writes the best route of a prefix into the forwarding table.
    fn choose(&mut self, key: K, len: u8) {
        let first = self.configured.get(&(key, len));
        let first = first.or_else(|| self.own.get(&(key, len)));
        let mut learned = self.learned.range((key, len, 0)..=(key, len, u32::MAX));
        match first.or_else(|| learned.next().map(|(_, number)| number)) {
            Some(number) => self.fib.insert(key, len, *number),
            None => self.fib.remove(key, len),
        }
    }
}

/// Distinct targets by number, with reference counts.
#[derive(Debug)]
struct Targets {
    all: Vec<Target>,
    /// Largest number of targets.
    max: usize,
    uses: Vec<u32>,
    numbers: BTreeMap<Target, u32>,
    free: Vec<u32>,
    /// Targets without uses that a table may still name until it is up to date.
    leaving: Vec<u32>,
}

impl Targets {
    fn take(&mut self, target: Target) -> Result<u32, RouteError> {
        if let Some(&number) = self.numbers.get(&target) {
            self.uses[number as usize] += 1;
            return Ok(number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.all.len() > self.max => return Err(RouteError::TargetsFull),
            None => {
                self.all.push(Target::Blackhole);
                self.uses.push(0);
                (self.all.len() - 1) as u32
            }
        };
        debug_assert!(number <= VALUE_MAX);
        self.all[number as usize] = target.clone();
        self.uses[number as usize] = 1;
        self.numbers.insert(target, number);
        Ok(number)
    }

    fn give(&mut self, number: Option<u32>) {
        let Some(number) = number else { return };
        let uses = &mut self.uses[number as usize];
        *uses -= 1;
        if *uses == 0 {
            self.numbers.remove(&self.all[number as usize]);
            self.leaving.push(number);
        }
    }

    /// Frees the unused targets once no table names them.
    fn leave(&mut self) {
        self.free.append(&mut self.leaving);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn to(link: LinkId) -> Target {
        Target::to(link, None)
    }

    #[test]
    fn a_full_table_changes_what_it_has_and_refuses_more() {
        let mut routes = Routes::with_room(2);
        let learned = Origin::Learned(0);
        for (text, origin) in [("10.0.0.0/8", Origin::Configured), ("10.1.0.0/16", learned)] {
            routes.insert(prefix(text), origin, to(1)).unwrap();
        }
        let full = Err(RouteError::Full { max: 2 });
        let more = prefix("10.2.0.0/16");
        assert_eq!(routes.insert(more, learned, to(1)), full);
        assert_eq!(routes.insert(more, Origin::Configured, to(1)), full);
        // The other version of IP has its own capacity; the router's own routes
        // always fit.
        routes
            .insert(prefix("2001:db8::/32"), learned, to(1))
            .unwrap();
        routes
            .insert(prefix("10.3.0.0/16"), Origin::Own, to(3))
            .unwrap();
        // An existing route can change its target.
        routes
            .insert(prefix("10.1.0.0/16"), learned, to(2))
            .unwrap();
        while routes.rebuild_some() {}
        let leads = |address: &str| routes.lookup(address.parse().unwrap()).cloned();
        assert_eq!(leads("10.1.0.1"), Some(to(2)));
        assert_eq!(leads("10.2.0.1"), Some(to(1)), "by the shorter prefix");
        assert_eq!(leads("10.3.0.1"), Some(to(3)));
        assert_eq!(routes.len(), (3, 1));
        // A removal makes room for another route.
        routes.remove(prefix("10.1.0.0/16"), learned);
        routes.insert(more, learned, to(2)).unwrap();
    }

    #[test]
    fn routes_to_what_is_ours_follow_when_there_is_room() {
        let mut routes = Routes::default();
        routes.targets.max = 2;
        for (number, link) in [(1, 1), (2, 2)] {
            let network = Prefix::new(IpAddr::from([10, number, 0, 0]), 16).unwrap();
            routes
                .insert(network, Origin::Configured, to(link))
                .unwrap();
        }
        let own = prefix("192.0.2.1/32");
        let wanted = || vec![(own, Target::Local)];
        assert_eq!(routes.set_own(wanted()), Err(RouteError::TargetsFull));
        while routes.rebuild_some() {}
        assert_eq!(routes.own_lacking(), 1);
        assert_eq!(routes.lookup(own.address()), None);
        routes.remove(prefix("10.2.0.0/16"), Origin::Configured);
        while routes.rebuild_some() {}
        assert_eq!(routes.own_lacking(), 0);
        assert_eq!(routes.lookup(own.address()), Some(&Target::Local));
        // They can be removed, although they were added late.
        routes.set_own(Vec::new()).unwrap();
        assert_eq!(routes.lookup(own.address()), None);
    }
}
