//! Longest-prefix match: a poptrie (Asai and Ohara, "Poptrie: A Compressed Trie
//! with Population Count for Fast and Scalable Software IP Routing Table
//! Lookup", SIGCOMM 2015), updated in place.
//!
//! ```text
//!  key  │ 18 bits │ 6 bits │ 6 bits │ …
//!         direct ──► node ──► node ──► leaf
//!
//!  node:  children  bit s: slot s goes on in a child
//!         leaves    bit s: slot s begins a run of slots with one value
//!         first_child, first_leaf: where its runs of nodes and values begin
//! ```
//!
//! The table keeps its source beside it, a plain trie of prefixes. A change
//! rebuilds the smallest node in which the prefix ends. A change of a short
//! prefix, which many direct slots inherit, is queued and applied slot by slot
//! by [`Fib::rebuild_some`] between frames, so that no frame waits. Until then
//! a slot returns its former value.
//!
//! The value 0 means no route. The default route is stored apart, so that a
//! change of it is cheap.

use super::arena::SizeClassArena;
use prefix_trie::{Prefix, PrefixMap};
use std::collections::VecDeque;
use std::ops::Range;

/// Number of key bits that index the first table.
const DIRECT_BITS: u8 = 18;
/// Number of key bits that each node consumes.
const STRIDE: u8 = 6;
/// Bit of a direct slot that holds a value instead of a node.
const LEAF: u32 = 1 << 31;
/// Number of direct slots that a change rebuilds at once, at most; a larger
/// change is left to [`Fib::rebuild_some`].
const REBUILD_SLOTS_MAX: u32 = 16;
/// Number of keys that [`Fib::lookup_batch`] has in flight: as many independent
/// loads as a core sustains.
const LANES: usize = 16;

/// The largest value.
pub const VALUE_MAX: u32 = LEAF - 1;

/// A key: an IP address as an integer.
pub trait Key: Copy + Ord + std::fmt::Debug {
    /// Number of bits of a key.
    const BITS: u8;

    /// The first [`DIRECT_BITS`] bits.
    #[doc(hidden)]
    fn direct(self) -> usize;

    /// The six bits behind the first `depth` bits; zeros behind the last bit.
    #[doc(hidden)]
    fn chunk(self, depth: u8) -> u32;

    /// The key's first `len` bits, followed by zeros.
    #[doc(hidden)]
    fn masked(self, len: u8) -> Self;

    /// The key whose first bits are the number of a direct slot.
    #[doc(hidden)]
    fn of_direct(slot: u32) -> Self;
}

macro_rules! key {
    ($number:ty, $wide:ty, $bits:literal) => {
        impl Key for $number {
            const BITS: u8 = $bits;

            #[inline]
            fn direct(self) -> usize {
                (self >> ($bits - DIRECT_BITS)) as usize
            }

            #[inline]
            fn chunk(self, depth: u8) -> u32 {
                // Shifted to the top of a wider integer for IPv4, whose last
                // node extends beyond the key.
                let spare = (size_of::<$wide>() * 8) as u8 - $bits;
                let top = (<$wide>::from(self) << spare) << depth;
                (top >> (size_of::<$wide>() * 8 - STRIDE as usize)) as u32
            }

            fn masked(self, len: u8) -> $number {
                match len {
                    0 => 0,
                    _ => self & (<$number>::MAX << ($bits - len)),
                }
            }

            fn of_direct(slot: u32) -> $number {
                <$number>::from(slot) << ($bits - DIRECT_BITS)
            }
        }
    };
}

key!(u32, u64, 32);
key!(u128, u128, 128);

#[derive(Clone, Copy, Default, Debug)]
struct Node {
    children: u64,
    leaves: u64,
    first_child: u32,
    first_leaf: u32,
}

impl Node {
    /// The child or the value of a slot.
    #[inline]
    fn slot(&self, slot: u32) -> Result<u32, u32> {
        // The bits up to and including the slot's.
        let upto = u64::MAX >> (63 - slot);
        if self.children >> slot & 1 == 1 {
            Ok(self.first_child + (self.children & upto).count_ones() - 1)
        } else {
            Err(self.first_leaf + (self.leaves & upto).count_ones() - 1)
        }
    }
}

/// A route: prefix, its length, and a value.
type Entry<K> = (K, u8, u32);

/// The forwarding table of one address family.
#[derive(Debug)]
pub struct Fib<K>
where
    (K, u8): Prefix,
{
    routes: PrefixMap<(K, u8), u32>,
    default: u32,
    direct: Vec<u32>,
    nodes: SizeClassArena<Node>,
    leaves: SizeClassArena<u32>,
    /// Direct slots that remain to be rebuilt.
    due: VecDeque<Range<u32>>,
}

impl<K: Key> Default for Fib<K>
where
    (K, u8): Prefix,
{
    fn default() -> Self {
        Fib {
            routes: PrefixMap::new(),
            default: 0,
            direct: vec![LEAF; 1 << DIRECT_BITS],
            nodes: SizeClassArena::new(),
            leaves: SizeClassArena::new(),
            due: VecDeque::new(),
        }
    }
}

impl<K: Key> Fib<K>
where
    (K, u8): Prefix,
{
    /// The value of the longest matching prefix; 0 if there is none.
    #[inline]
    pub fn lookup(&self, key: K) -> u32 {
        let mut at = self.direct[key.direct()];
        let mut depth = DIRECT_BITS;
        while at & LEAF == 0 {
            match self.nodes.get(at).slot(key.chunk(depth)) {
                Ok(child) => at = child,
                Err(leaf) => return self.or_default(*self.leaves.get(leaf)),
            }
            depth += STRIDE;
        }
        self.or_default(at & VALUE_MAX)
    }

    /// As [`Fib::lookup`] for many keys, whose loads overlap.
    ///
    /// # Panics
    /// If `values` is shorter than `keys`.
    pub fn lookup_batch(&self, keys: &[K], values: &mut [u32]) {
        assert!(values.len() >= keys.len(), "a place for each value");
        for (keys, values) in keys.chunks(LANES).zip(values.chunks_mut(LANES)) {
            self.lookup_lanes(keys, values);
        }
    }

    fn lookup_lanes(&self, keys: &[K], values: &mut [u32]) {
        let mut under_way = 0u32;
        for (lane, key) in keys.iter().enumerate() {
            values[lane] = self.direct[key.direct()];
        }
        for (lane, value) in values[..keys.len()].iter().enumerate() {
            under_way |= u32::from(value & LEAF == 0) << lane;
        }
        let mut depth = DIRECT_BITS;
        while under_way != 0 {
            let mut turn = under_way;
            while turn != 0 {
                let lane = turn.trailing_zeros() as usize;
                turn &= turn - 1;
                match self.nodes.get(values[lane]).slot(keys[lane].chunk(depth)) {
                    Ok(child) => values[lane] = child,
                    Err(leaf) => {
                        values[lane] = *self.leaves.get(leaf);
                        under_way &= !(1 << lane);
                    }
                }
            }
            depth += STRIDE;
        }
        for value in &mut values[..keys.len()] {
            *value = self.or_default(*value & VALUE_MAX);
        }
    }

    #[inline]
    fn or_default(&self, value: u32) -> u32 {
        if value == 0 { self.default } else { value }
    }

    /// The value of exactly this prefix; `None` if it is absent. Key bits
    /// behind `len` are ignored.
    pub fn get(&self, key: K, len: u8) -> Option<u32> {
        match len {
            0 => (self.default != 0).then_some(self.default),
            _ => self.routes.get(&(key, len)).copied(),
        }
    }

    /// Sets the value of a prefix, 1 to [`VALUE_MAX`].
    ///
    /// # Panics
    /// If the length is more than a key has bits, or the value out of range.
    pub fn insert(&mut self, key: K, len: u8, value: u32) {
        assert!(len <= K::BITS, "a prefix of {len} bits");
        assert!((1..=VALUE_MAX).contains(&value), "a route's value: {value}");
        if len == 0 {
            self.default = value;
            return;
        }
        let key = key.masked(len);
        if self.routes.insert((key, len), value) != Some(value) {
            self.refresh(key, len);
        }
    }

    /// Removes a prefix, if it is there.
    pub fn remove(&mut self, key: K, len: u8) {
        if len == 0 {
            self.default = 0;
            return;
        }
        let key = key.masked(len);
        if self.routes.remove(&(key, len)).is_some() {
            self.refresh(key, len);
        }
    }

    /// The number of prefixes.
    pub fn len(&self) -> usize {
        self.routes.len() + usize::from(self.default != 0)
    }

    /// Whether there are no prefixes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether every change has taken effect.
    pub fn is_up_to_date(&self) -> bool {
        self.due.is_empty()
    }

    /// Number of bytes that look-ups may read.
    pub fn bytes(&self) -> usize {
        self.direct.len() * size_of::<u32>() + self.nodes.bytes() + self.leaves.bytes()
    }

    /// Rebuilds up to `slots` of the queued direct slots.
    pub fn rebuild_some(&mut self, slots: u32) {
        for _ in 0..slots {
            let Some(range) = self.due.front_mut() else {
                return;
            };
            let slot = range.next();
            if range.start >= range.end {
                self.due.pop_front();
            }
            slot.into_iter().for_each(|slot| self.rebuild_slot(slot));
        }
    }

    /// Applies a change of the prefix to the table, or queues it.
    fn refresh(&mut self, key: K, len: u8) {
        if len > DIRECT_BITS {
            return self.refresh_deep(key, len);
        }
        let first = key.direct() as u32;
        let range = first..first + (1 << (DIRECT_BITS - len));
        if range.len() as u32 <= REBUILD_SLOTS_MAX {
            range.for_each(|slot| self.rebuild_slot(slot));
        } else if self.due.back() != Some(&range) {
            self.due.push_back(range);
        }
    }

    /// Descends to the node in which the prefix ends, or below which no prefix
    /// is left, and rebuilds it.
    fn refresh_deep(&mut self, key: K, len: u8) {
        let mut at = self.direct[key.direct()];
        if at & LEAF != 0 || !self.has_below(key, DIRECT_BITS) {
            return self.rebuild_slot(key.direct() as u32);
        }
        let mut depth = DIRECT_BITS;
        loop {
            let child = self.nodes.get(at).slot(key.chunk(depth));
            let ends_here = len <= depth + STRIDE;
            match child {
                Ok(child) if !ends_here && self.has_below(key, depth + STRIDE) => at = child,
                _ => break,
            }
            depth += STRIDE;
        }
        let inherited = self.covering(key, depth);
        let below = self.below(key, depth);
        self.release(at);
        let node = self.build(&below, depth, inherited);
        self.nodes.set(at, node);
    }

    fn rebuild_slot(&mut self, slot: u32) {
        let key = K::of_direct(slot);
        let old = self.direct[slot as usize];
        let inherited = self.covering(key, DIRECT_BITS);
        let below = self.below(key, DIRECT_BITS);
        let place = match old & LEAF {
            0 => {
                self.release(old);
                Some(old)
            }
            _ => None,
        };
        self.direct[slot as usize] = if below.is_empty() {
            if let Some(place) = place {
                self.nodes.give(place, 1);
            }
            LEAF | inherited
        } else {
            let node = self.build(&below, DIRECT_BITS, inherited);
            let place = place.unwrap_or_else(|| self.nodes.take(1));
            self.nodes.set(place, node);
            place
        };
    }

    /// The value that the keys with these first bits inherit.
    fn covering(&self, key: K, depth: u8) -> u32 {
        let found = self.routes.get_lpm(&(key.masked(depth), depth));
        found.map_or(0, |(_, value)| *value)
    }

    /// Whether there is a longer prefix that starts with these bits.
    fn has_below(&self, key: K, depth: u8) -> bool {
        if depth >= K::BITS {
            return false;
        }
        let mut below = self.routes.children(&(key.masked(depth), depth));
        below.any(|(prefix, _)| prefix.prefix_len() > depth)
    }

    /// The longer prefixes that start with these bits, sorted: each before
    /// those that it contains.
    fn below(&self, key: K, depth: u8) -> Vec<Entry<K>>
    where
        (K, u8): Prefix,
    {
        let below = self.routes.children(&(key.masked(depth), depth));
        let below = below.filter(|(prefix, _)| prefix.1 > depth);
        below
            .map(|(prefix, value)| (prefix.0, prefix.1, *value))
            .collect()
    }

    /// Builds the node at this depth from these prefixes, all of which are
    /// longer.
    fn build(&mut self, routes: &[Entry<K>], depth: u8, inherited: u32) -> Node {
        let mut values = [inherited; 64];
        let mut below = [(0usize, 0usize); 64];
        for (index, &(key, len, value)) in routes.iter().enumerate() {
            let slot = key.chunk(depth) as usize;
            if len <= depth + STRIDE {
                values[slot..slot + (1 << (depth + STRIDE - len))].fill(value);
            } else {
                let range = &mut below[slot];
                let start = if range.1 == 0 { index } else { range.0 };
                *range = (start, index + 1);
            }
        }
        let mut node = Node::default();
        let mut runs = [0u32; 64];
        let mut last = None;
        let mut run_count = 0;
        for slot in 0..64 {
            if below[slot].1 > 0 {
                node.children |= 1 << slot;
            } else if last != Some(values[slot]) {
                node.leaves |= 1 << slot;
                last = Some(values[slot]);
                runs[run_count] = values[slot];
                run_count += 1;
            }
        }
        node.first_leaf = self.leaves.take(run_count);
        for (at, value) in (node.first_leaf..).zip(&runs[..run_count]) {
            self.leaves.set(at, *value);
        }
        node.first_child = self.nodes.take(node.children.count_ones() as usize);
        let slots = (0..64).filter(|slot| below[*slot].1 > 0);
        for (at, slot) in (node.first_child..).zip(slots) {
            let (start, end) = below[slot];
            let child = self.build(&routes[start..end], depth + STRIDE, values[slot]);
            self.nodes.set(at, child);
        }
        node
    }

    /// Frees the children and values of a node, but not the node.
    fn release(&mut self, at: u32) {
        let node = *self.nodes.get(at);
        let children = node.children.count_ones();
        for child in node.first_child..node.first_child + children {
            self.release(child);
        }
        self.nodes.give(node.first_child, children as usize);
        self.leaves
            .give(node.first_leaf, node.leaves.count_ones() as usize);
    }
}
