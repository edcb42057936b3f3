//! The tree: which entries can match a frame, whatever the number of shapes.
//!
//! A decision tree over the fields of all shapes together. Each inner node
//! hashes one field (an expression and a mask, such as the upper 16 bits of a
//! destination address):
//!
//! ```text
//!                 dst & 0xffff0000
//!                 ┌──────┴──────┬───────────┐
//!            10.1.0.0       10.2.0.0      rest: entries that do not
//!                │              │           require the whole field
//!             dst port        leaf          │
//!            ┌───┴───┐                   src & 0xffffff00 …
//!          leaf    leaf
//! ```
//!
//! A frame goes to the child of its value, and to the rest. No entry is in
//! two places, so that an insert or a removal follows one path. This is tuple
//! space search (Srinivasan, Suri, Varghese, 1999) where tuples share what
//! they have in common, as decision trees do (HiCuts, 1999; CutTSS, 2020), and
//! where a node may ask for fewer bits than its entries have, as TupleMerge
//! does (2019). All entries of one shape take the same side of each node, so a
//! frame visits no more leaves than there are shapes.
//!
//! A node is chosen when a leaf grows too long, from the entries there. The
//! first nodes of a growing tree were chosen when the entries were few; so the
//! tree is built anew beside the old one when it has grown by half, some
//! entries with each change (see [`index`](super::index)).

mod choose;

use super::group::Group;
use super::hash::{WordHash, WordMix};
use super::pool::{Pool, Read};
use super::residual::Residuals;
use super::shape::Shape;
use super::slab::{Chunks, Slab};
use super::slots::{PAYLOAD_MIN, Slots};
use super::table::Entry;
use crate::binding::Rank;
use weir_filter::ir::Value;

/// Entries of a leaf.
const LEAF_MAX: usize = 8;
/// Entries of a leaf while a tree is built: the more, the better the choice of
/// its field.
const SAMPLE: usize = 64;
/// Things that an item asks for before its entry is looked at.
const QUICK: usize = 2;
/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// Names an entry: its shape, and its number there.
pub(super) type Name = (u32, u32);

/// The part of a plan that a tree reads when it changes.
pub(super) struct Rules<'p> {
    pub(super) shapes: &'p Slab<Shape>,
    pub(super) residuals: &'p Residuals,
    pub(super) pool: &'p mut Pool,
}

/// A decision tree over entries.
pub(super) struct Tree {
    nodes: Chunks<Node>,
    free: Vec<u32>,
    root: u32,
    len: usize,
    mix: WordMix,
    /// For groups' indexes.
    group_hash: WordHash,
    /// Entries of a leaf before it is split.
    leaf_max: usize,
    /// Leaves to look at when the tree is complete: they may be too long.
    wide: Vec<(u32, Path)>,
    /// Expressions that nodes hash; the pool counts one use of each.
    exprs: Vec<Value>,
}

/// The fields that lead to a node.
type Path = Vec<(Value, u32)>;

pub(super) enum Node {
    Free,
    /// A few entries, by rank.
    Leaf(Vec<Item>),
    Split(Split),
    /// Many entries that no field tells apart.
    Group(Group<Name>),
}

/// An inner node: a hash table over one field.
pub(super) struct Split {
    pub(super) expr: Value,
    pub(super) mask: u32,
    pub(super) read: Read,
    /// Entries that do not require the whole field.
    pub(super) rest: u32,
    /// No entry of the rest has a lesser rank.
    pub(super) rest_best: Rank,
    /// No entry of the children has.
    pub(super) best: Rank,
    slots: Slots,
}

/// An entry in a leaf.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) rank: Rank,
    pub(super) name: Name,
    pub(super) quick: [Quick; QUICK],
}

/// One thing that an entry requires, so that most others are left out without
/// a look at the entry: `(expr & mask) - lo <= span`, wrapping. A mask of zero
/// asks for nothing.
#[derive(Clone, Copy, Default)]
pub(super) struct Quick {
    pub(super) expr: u32,
    pub(super) mask: u32,
    pub(super) lo: u32,
    pub(super) span: u32,
}

impl Quick {
    #[inline]
    pub(super) fn holds(self, value: u32) -> bool {
        (value & self.mask).wrapping_sub(self.lo) <= self.span
    }
}

impl Rules<'_> {
    fn entry(&self, (shape, index): Name) -> Option<Entry> {
        Some(self.shapes.get(shape)?.table.entry(index))
    }

    /// Bits that an entry requires: the fields of its key, and the leading bits
    /// that all values of a range share.
    fn required(&self, (shape, index): Name) -> impl Iterator<Item = (Value, u32, u32)> {
        let shape = self.shapes.get(shape);
        let fields = shape.into_iter().flat_map(move |shape| {
            let parts = shape.parts.iter();
            parts.map(move |part| (part.expr, part.mask, shape.value(part, index)))
        });
        let residual = shape.map_or(Residuals::NOTHING, |shape| {
            shape.table.entry(index).residual
        });
        let ranges = self
            .residuals
            .ranges(residual)
            .filter_map(|(expr, lo, hi)| {
                let differ = lo ^ hi;
                let low = u32::MAX.checked_shr(differ.leading_zeros()).unwrap_or(0);
                let mask = self.pool.bits(expr) & !low;
                (mask != 0).then_some((expr, mask, lo & mask))
            });
        fields.chain(ranges)
    }

    /// The value that an entry requires in a field, if it requires one.
    fn value(&self, name: Name, expr: Value, mask: u32) -> Option<u32> {
        let mut required = self.required(name);
        let (.., value) =
            required.find(|(other, bits, _)| *other == expr && bits & mask == mask)?;
        Some(value & mask)
    }

    /// What tells an entry best from others behind `path`: the most bits that
    /// the path does not know, but those that all entries of a shape share.
    fn quick(&self, name: Name, path: &[(Value, u32)]) -> [Quick; QUICK] {
        let unknown = |expr: Value, mask: u32| {
            let masks = path.iter().filter(|(other, _)| *other == expr);
            (mask & !masks.fold(0, |bits, (_, mask)| bits | mask)).count_ones()
        };
        let (mut weights, mut all) = ([0; QUICK], [Quick::default(); QUICK]);
        let mut offer = |weight: u32, quick| {
            if let Some(at) = weights.iter().position(|other| weight > *other) {
                weights[at..].rotate_right(1);
                all[at..].rotate_right(1);
                (weights[at], all[at]) = (weight, quick);
            }
        };
        let Some(shape) = self.shapes.get(name.0) else {
            return all;
        };
        for part in &shape.parts {
            let bits = unknown(part.expr, part.mask);
            let shared = shape.distinct(part.field as usize) == Some(1);
            let quick = Quick {
                expr: part.expr.0,
                mask: part.mask,
                lo: shape.value(part, name.1),
                span: 0,
            };
            offer(if shared { bits } else { 8 * bits }, quick);
        }
        let residual = shape.table.entry(name.1).residual;
        for (expr, lo, hi) in self.residuals.ranges(residual) {
            let width = self.pool.bits(expr).count_ones();
            let free = (hi - lo).checked_ilog2().map_or(0, |log| log + 1);
            // Rounded up: a half of all values is left out by it, too.
            let bits = (width + 1)
                .saturating_sub(free)
                .min(unknown(expr, u32::MAX));
            let quick = Quick {
                expr: expr.0,
                mask: u32::MAX,
                lo,
                span: hi - lo,
            };
            offer(8 * bits, quick);
        }
        all
    }
}

impl Tree {
    /// An empty tree, to be built: [`refine`](Tree::refine) makes it complete.
    pub(super) fn new(mix: WordMix, group_hash: WordHash) -> Tree {
        Tree {
            nodes: Chunks::default(),
            free: Vec::new(),
            root: NONE,
            len: 0,
            mix,
            group_hash,
            leaf_max: SAMPLE,
            wide: Vec::new(),
            exprs: Vec::new(),
        }
    }

    /// Entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn root(&self) -> u32 {
        self.root
    }

    #[inline]
    pub(super) fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    /// The child of a node for a value.
    #[inline]
    pub(super) fn child(&self, split: &Split, value: u32) -> Option<u32> {
        split.child(self.mix, value)
    }

    fn make(&mut self, node: Node) -> u32 {
        if let Some(number) = self.free.pop() {
            self.nodes[number as usize] = node;
            return number;
        }
        self.nodes.push(node) as u32
    }

    fn new_leaf(
        &mut self,
        name: Name,
        rank: Rank,
        path: &[(Value, u32)],
        rules: &Rules<'_>,
    ) -> u32 {
        let quick = rules.quick(name, path);
        self.make(Node::Leaf(vec![Item { rank, name, quick }]))
    }

    /// Adds an entry of a shape.
    pub(super) fn insert(&mut self, name: Name, rules: &mut Rules<'_>) {
        let Some(entry) = rules.entry(name) else {
            return;
        };
        self.len += 1;
        let mix = self.mix;
        let mut path = Path::new();
        if self.root == NONE {
            self.root = self.new_leaf(name, entry.rank, &path, rules);
            return;
        }
        let mut at = self.root;
        loop {
            match &mut self.nodes[at as usize] {
                Node::Split(split) => {
                    let value = rules.value(name, split.expr, split.mask);
                    let next = match value {
                        Some(value) => {
                            path.push((split.expr, split.mask));
                            split.best = split.best.min(entry.rank);
                            split.child(mix, value)
                        }
                        None => {
                            split.rest_best = split.rest_best.min(entry.rank);
                            Some(split.rest).filter(|rest| *rest != NONE)
                        }
                    };
                    if let Some(next) = next {
                        at = next;
                        continue;
                    }
                    let leaf = self.new_leaf(name, entry.rank, &path, rules);
                    if let Node::Split(split) = &mut self.nodes[at as usize] {
                        match value {
                            Some(value) => split.slots.insert(mix.mix(value), leaf + PAYLOAD_MIN),
                            None => split.rest = leaf,
                        }
                    }
                    return;
                }
                Node::Leaf(items) => {
                    let quick = rules.quick(name, &path);
                    let place = items.partition_point(|item| item.rank < entry.rank);
                    items.insert(
                        place,
                        Item {
                            rank: entry.rank,
                            name,
                            quick,
                        },
                    );
                    let len = items.len();
                    if len > self.leaf_max {
                        self.split(at, path, rules);
                    } else if len == LEAF_MAX + 1 {
                        self.wide.push((at, path));
                    }
                    return;
                }
                Node::Group(group) => {
                    let entry_of = |name| rules.entry(name);
                    group.insert(name, entry, rules.residuals, entry_of);
                    return;
                }
                Node::Free => return,
            }
        }
    }

    /// Splits a leaf that is too long, and what comes of it as long as that is
    /// too long as well.
    fn split(&mut self, at: u32, path: Path, rules: &mut Rules<'_>) {
        let mut todo = vec![(at, path)];
        while let Some((at, path)) = todo.pop() {
            let Node::Leaf(items) = &mut self.nodes[at as usize] else {
                continue;
            };
            let items = std::mem::take(items);
            let node = match choose::field(&items, rules) {
                Some((expr, mask)) => {
                    self.hold(expr, rules.pool);
                    let parts = self.divide(items, (expr, mask), &path, rules, &mut todo);
                    Node::Split(parts)
                }
                None => self.gather(items, rules),
            };
            self.nodes[at as usize] = node;
        }
    }

    /// Divides entries by a field; `todo` gets the leaves that are too long.
    fn divide(
        &mut self,
        items: Vec<Item>,
        (expr, mask): (Value, u32),
        path: &Path,
        rules: &Rules<'_>,
        todo: &mut Vec<(u32, Path)>,
    ) -> Split {
        let mut below = path.clone();
        below.push((expr, mask));
        let mut split = Split {
            expr,
            mask,
            read: *rules.pool.read(expr),
            rest: NONE,
            rest_best: Rank::LAST,
            best: Rank::LAST,
            slots: Slots::new(),
        };
        // By rank, so that each leaf is by rank too.
        for mut item in items {
            let value = rules.value(item.name, expr, mask);
            let (leaf, path) = match value {
                Some(value) => {
                    item.quick = rules.quick(item.name, &below);
                    split.best = split.best.min(item.rank);
                    let leaf = split.child(self.mix, value).unwrap_or_else(|| {
                        let leaf = self.make(Node::Leaf(Vec::new()));
                        split.slots.insert(self.mix.mix(value), leaf + PAYLOAD_MIN);
                        leaf
                    });
                    (leaf, &below)
                }
                None => {
                    if split.rest == NONE {
                        split.rest = self.make(Node::Leaf(Vec::new()));
                    }
                    split.rest_best = split.rest_best.min(item.rank);
                    (split.rest, path)
                }
            };
            if let Node::Leaf(items) = &mut self.nodes[leaf as usize] {
                items.push(item);
                if items.len() == self.leaf_max + 1 {
                    todo.push((leaf, path.clone()));
                } else if items.len() == LEAF_MAX + 1 {
                    self.wide.push((leaf, path.clone()));
                }
            }
        }
        split
    }

    /// Entries that no field tells apart.
    fn gather(&mut self, items: Vec<Item>, rules: &Rules<'_>) -> Node {
        let mut group = Group::new(&[], self.group_hash);
        for item in items {
            if let Some(entry) = rules.entry(item.name) {
                group.insert(item.name, entry, rules.residuals, |name| rules.entry(name));
            }
        }
        Node::Group(group)
    }

    /// A node uses an expression: it stays in the pool as long as the tree.
    fn hold(&mut self, expr: Value, pool: &mut Pool) {
        if !self.exprs.contains(&expr) {
            pool.hold(expr);
            self.exprs.push(expr);
        }
    }

    /// Splits some leaves that were left long while the tree was built; `true`
    /// if there were none: the tree is complete.
    pub(super) fn refine(&mut self, mut entries: usize, rules: &mut Rules<'_>) -> bool {
        self.leaf_max = LEAF_MAX;
        while entries > 0 {
            let Some((at, path)) = self.wide.pop() else {
                return true;
            };
            if let Node::Leaf(items) = &self.nodes[at as usize]
                && items.len() > LEAF_MAX
            {
                entries = entries.saturating_sub(items.len());
                self.split(at, path, rules);
            }
        }
        false
    }

    /// Removes an entry that is in the tree.
    pub(super) fn remove(&mut self, name: Name, rules: &mut Rules<'_>) {
        let Some(entry) = rules.entry(name) else {
            return;
        };
        // The nodes on the way, each with the value by which it is left.
        let mut way: Vec<(u32, Option<u32>)> = Vec::new();
        let mut at = self.root;
        while at != NONE
            && let Node::Split(split) = &self.nodes[at as usize]
        {
            let value = rules.value(name, split.expr, split.mask);
            way.push((at, value));
            at = match value {
                Some(value) => split.child(self.mix, value).unwrap_or(NONE),
                None => split.rest,
            };
        }
        if at == NONE {
            return;
        }
        let is_empty = match &mut self.nodes[at as usize] {
            Node::Leaf(items) => {
                let before = items.len();
                items.retain(|item| item.name != name);
                self.len -= before - items.len();
                items.is_empty()
            }
            Node::Group(group) => {
                group.remove(name, entry, rules.residuals, |name| rules.entry(name));
                self.len -= 1;
                group.is_empty()
            }
            Node::Split(_) | Node::Free => false,
        };
        if is_empty {
            self.prune(at, way);
        }
    }

    /// Frees an empty node, and those above it that are empty then.
    fn prune(&mut self, mut at: u32, mut way: Vec<(u32, Option<u32>)>) {
        loop {
            self.nodes[at as usize] = Node::Free;
            self.free.push(at);
            let Some((parent, value)) = way.pop() else {
                self.root = NONE;
                return;
            };
            let Node::Split(split) = &mut self.nodes[parent as usize] else {
                return;
            };
            match value {
                Some(value) => {
                    let found = split.slots.find(self.mix.mix(value), |_| true);
                    if let Some((place, _)) = found {
                        split.slots.remove(place);
                    }
                }
                None => (split.rest, split.rest_best) = (NONE, Rank::LAST),
            }
            if split.rest != NONE || split.slots.len() > 0 {
                return;
            }
            at = parent;
        }
    }

    /// Ends the tree's uses of expressions; nothing else may be done with it
    /// but [`free`](Tree::free).
    pub(super) fn release(&mut self, pool: &mut Pool) {
        for expr in self.exprs.drain(..) {
            pool.release(expr);
        }
    }

    /// Frees some nodes; `true` if there are none left.
    pub(super) fn free(&mut self, nodes: usize) -> bool {
        (0..nodes).all(|_| self.nodes.pop().is_some());
        self.nodes.len() == 0
    }

    /// Inner nodes, leaves, and groups.
    pub(super) fn counts(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        for at in 0..self.nodes.len() {
            match &self.nodes[at] {
                Node::Free => {}
                Node::Split(_) => counts[0] += 1,
                Node::Leaf(_) => counts[1] += 1,
                Node::Group(_) => counts[2] += 1,
            }
        }
        counts
    }
}

impl Split {
    #[inline]
    fn child(&self, mix: WordMix, value: u32) -> Option<u32> {
        let found = self.slots.find(mix.mix(value & self.mask), |_| true);
        found.map(|(_, payload)| payload - PAYLOAD_MIN)
    }
}
