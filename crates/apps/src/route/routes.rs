//! Routes: where each prefix leads, and whence we know.

use super::fib::{Fib, Key, VALUE_MAX};
use prefix_trie::Prefix as TriePrefix;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use weir_stack::Prefix;

/// The number of a link, in the order they were given.
pub type LinkId = u16;

/// Prefixes of IPv4 that fit; one more is refused.
pub const ROUTES_V4_MAX: usize = 4_000_000;
/// Prefixes of IPv6 that fit; one more is refused.
pub const ROUTES_V6_MAX: usize = 1_000_000;
/// Different targets of all routes that fit; one more is refused.
pub const TARGETS_MAX: usize = 1 << 20;
/// Ways of one route; more are left out.
pub const HOPS_MAX: usize = 64;
/// Direct slots of the tables that are brought up to date between batches.
const SLOTS_PER_TURN: u32 = 64;

/// One way that a route leads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Hop {
    /// The link to send on.
    pub link: LinkId,
    /// The router to send to; `None` where the destination itself is a
    /// neighbour.
    pub gateway: Option<IpAddr>,
}

/// Where a route leads.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Target {
    /// On to a neighbour. Of several hops a flow keeps to one.
    Forward(Box<[Hop]>),
    /// To the router itself.
    Local,
    /// To all hosts of a link's network (RFC 919), or to an address of nobody.
    Broadcast,
    /// Dropped without a word.
    Blackhole,
    /// Dropped, and the sender is told that nobody is reached.
    Unreachable,
    /// Dropped, and the sender is told that it is not allowed.
    Prohibit,
}

impl Target {
    /// One hop.
    pub fn to(link: LinkId, gateway: Option<IpAddr>) -> Target {
        Target::Forward(Box::new([Hop { link, gateway }]))
    }
}

/// Why a route was not taken.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteError {
    /// No room.
    #[error("the table of routes is full: {max} fit")]
    Full {
        /// How many fit.
        max: usize,
    },
    /// No room for one more target.
    #[error("the routes lead to more than {TARGETS_MAX} different targets")]
    TargetsFull,
}

/// Where everything leads. Values of the tables number the targets, from 1.
#[derive(Debug)]
pub struct Routes {
    v4: Table<u32>,
    v6: Table<u128>,
    targets: Targets,
    /// Of [`Origin::Own`], by their networks.
    own: HashMap<Prefix, Target>,
}

/// Which route of a prefix comes first: in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Configured.
    Configured,
    /// An address of ours, or a network of a link; for these there is always
    /// room.
    Own,
    /// Learned, of this metric: the lowest comes first.
    Learned(u32),
}

#[derive(Debug)]
struct Table<K: Key>
where
    (K, u8): TriePrefix,
{
    fib: Fib<K>,
    configured: BTreeMap<(K, u8), u32>,
    own: BTreeMap<(K, u8), u32>,
    learned: BTreeMap<(K, u8, u32), u32>,
}

impl Default for Routes {
    fn default() -> Routes {
        Routes {
            v4: Table::default(),
            v6: Table::default(),
            targets: Targets {
                // Number 0 is no route.
                all: vec![Target::Blackhole],
                uses: vec![1],
                numbers: BTreeMap::new(),
                free: Vec::new(),
                leaving: Vec::new(),
            },
            own: HashMap::new(),
        }
    }
}

impl Routes {
    /// Sets where a prefix leads by this origin.
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

    /// Forgets where a prefix leads by this origin.
    pub fn remove(&mut self, prefix: Prefix, origin: Origin) {
        let old = match prefix.address() {
            IpAddr::V4(ip) => self.v4.remove((ip.to_bits(), prefix.len()), origin),
            IpAddr::V6(ip) => self.v6.remove((ip.to_bits(), prefix.len()), origin),
        };
        self.targets.give(old);
    }

    /// Forgets all that was learned.
    pub fn remove_learned(&mut self) {
        for old in self.v4.remove_learned() {
            self.targets.give(Some(old));
        }
        for old in self.v6.remove_learned() {
            self.targets.give(Some(old));
        }
    }

    /// Has exactly these routes to what is ours, of two of one prefix the
    /// later.
    ///
    /// # Errors
    /// If there is no room; then some may be missing until the next call.
    pub(super) fn set_own(&mut self, wanted: Vec<(Prefix, Target)>) -> Result<(), RouteError> {
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
        for (prefix, target) in wanted {
            if self.own.get(&prefix) != Some(&target) {
                self.insert(prefix, Origin::Own, target.clone())?;
                self.own.insert(prefix, target);
            }
        }
        Ok(())
    }

    /// Where an address leads; `None` without a route.
    pub fn look_up(&self, address: IpAddr) -> Option<&Target> {
        let number = match address {
            IpAddr::V4(ip) => self.v4.fib.look_up(ip.to_bits()),
            IpAddr::V6(ip) => self.v6.fib.look_up(ip.to_bits()),
        };
        self.target(number)
    }

    /// How many prefixes of IPv4 and of IPv6 there are.
    pub fn len(&self) -> (usize, usize) {
        (self.v4.fib.len(), self.v6.fib.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// Brings the tables a step further, if a change of a short prefix is
    /// under way; whether there is more to do.
    pub fn work(&mut self) -> bool {
        self.v4.fib.work(SLOTS_PER_TURN);
        self.v6.fib.work(SLOTS_PER_TURN);
        let settled = self.is_settled();
        if settled {
            self.targets.leave();
        }
        !settled
    }

    /// Whether every change has taken effect.
    pub fn is_settled(&self) -> bool {
        self.v4.fib.is_settled() && self.v6.fib.is_settled()
    }

    pub(super) fn v4(&self) -> &Fib<u32> {
        &self.v4.fib
    }

    pub(super) fn v6(&self) -> &Fib<u128> {
        &self.v6.fib
    }

    pub(super) fn target(&self, number: u32) -> Option<&Target> {
        (number != 0).then(|| &self.targets.all[number as usize])
    }
}

impl<K: Key> Default for Table<K>
where
    (K, u8): TriePrefix,
{
    fn default() -> Self {
        Table {
            fib: Fib::default(),
            configured: BTreeMap::new(),
            own: BTreeMap::new(),
            learned: BTreeMap::new(),
        }
    }
}

impl<K: Key> Table<K>
where
    (K, u8): TriePrefix,
{
    /// Gives the number that was there before.
    fn insert(
        &mut self,
        (key, len): (K, u8),
        origin: Origin,
        number: u32,
    ) -> Result<Option<u32>, RouteError> {
        let key = key.masked(len);
        let max = if K::BITS == 32 {
            ROUTES_V4_MAX
        } else {
            ROUTES_V6_MAX
        };
        let is_full = self.configured.len() + self.learned.len() >= max;
        if is_full && origin != Origin::Own {
            return Err(RouteError::Full { max });
        }
        let old = match origin {
            Origin::Configured => self.configured.insert((key, len), number),
            Origin::Own => self.own.insert((key, len), number),
            Origin::Learned(metric) => self.learned.insert((key, len, metric), number),
        };
        self.choose(key, len);
        Ok(old)
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

    /// Puts the best of a prefix into the forwarding table.
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

/// Targets by number, each once.
#[derive(Debug)]
struct Targets {
    all: Vec<Target>,
    uses: Vec<u32>,
    numbers: BTreeMap<Target, u32>,
    free: Vec<u32>,
    /// No longer used, but a table may still name them until it is settled.
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
            None if self.all.len() > TARGETS_MAX => return Err(RouteError::TargetsFull),
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

    /// Nothing names what was left any more.
    fn leave(&mut self) {
        self.free.append(&mut self.leaving);
    }
}
