//! A decision tree over the fields of all subtables: finds the entries that can
//! match a frame, at a cost independent of the number of subtables.
//!
//! Each inner node hashes one field (an expression and a mask, such as the
//! upper 16 bits of a destination address):
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
//! A frame goes to the child for its value, and to the rest. Each entry is in
//! one place, so that an insert or a removal follows one path. The tree is
//! tuple space search (Srinivasan, Suri, Varghese, 1999) where tuples share
//! common fields, as decision trees do (HiCuts, 1999; CutTSS, 2020), and where
//! a node may hash fewer bits than its entries require, as TupleMerge does
//! (2019). All entries of one subtable take the same side of each node, so a
//! frame visits at most as many leaves as there are subtables.
//!
//! The field of a node is chosen when a leaf grows too long, from the entries
//! in that leaf. The first nodes of a growing tree are chosen from few entries;
//! so the tree is rebuilt beside the old one when it has grown by half, some
//! entries with each change (see [`index`](super::index)).

mod choose;
mod item;
mod rules;

use super::group::Group;
use super::hash::{WordHash, WordMix};
use super::pool::Pool;
use super::slab::Chunks;
use super::slots::{PAYLOAD_MIN, Slots};
use crate::binding::Rank;
use item::Fields;
pub(super) use item::{Bits, Item};
pub(super) use rules::Rules;
use std::hint::black_box;
use weir_filter::ir::Value;

/// Number of entries of a leaf before it is divided.
const LEAF_MAX: usize = 8;
/// Number of entries of a leaf while a tree is built: more entries give a
/// better choice of the field.
const SAMPLE: usize = 128;
/// Number of entries that no field distinguishes, before they form a group.
const LIST_MAX: usize = 64;
/// The number of no node.
pub(super) const NONE: u32 = u32::MAX;

/// The name of an entry: its subtable, and its number in the subtable.
pub(super) type EntryRef = (u32, u32);

/// A decision tree over entries.
pub(super) struct Tree {
    nodes: Chunks<Node>,
    free: Vec<u32>,
    root: u32,
    len: usize,
    mix: WordMix,
    fields: Fields,
    /// The hash of the groups' indexes and of fields.
    group_hash: WordHash,
    /// Number of entries of a leaf before it is divided, at present.
    leaf_max: usize,
    /// Leaves to check when the tree is complete, since they may be too long.
    wide: Vec<u32>,
    /// Expressions that nodes hash; the tree holds one use of each in the pool.
    exprs: Vec<Value>,
}

/// The fields whose values all entries below a node share.
type Path = Vec<Bits>;

/// A node of the tree. Its number stays valid while its kind changes in place.
#[repr(align(128))]
pub(super) enum Node {
    Free,
    Split(Split),
    /// An entry of a leaf; a leaf is a list of them, sorted by rank.
    Leaf {
        item: Item,
        next: u32,
    },
    /// Many entries that no field distinguishes.
    Group(Box<Group<EntryRef>>),
}

// Two cache lines, which a processor fetches together.
const _: () = assert!(size_of::<Node>() == 128);

/// An inner node: a hash table over one field.
pub(super) struct Split {
    pub(super) field: Bits,
    /// Entries that do not require the whole field.
    pub(super) rest: u32,
    /// A lower bound on the ranks of the entries in the rest.
    pub(super) rest_best: Rank,
    /// A lower bound on the ranks of the entries in the children.
    pub(super) best: Rank,
    slots: Slots,
}

impl Split {
    fn new(field: Bits) -> Split {
        Split {
            field,
            rest: NONE,
            rest_best: Rank::LAST,
            best: Rank::LAST,
            slots: Slots::new(),
        }
    }

    #[inline]
    fn child(&self, hash: u32) -> u32 {
        let found = self.slots.find(hash, |_| true);
        found.map_or(NONE, |(_, payload)| payload - PAYLOAD_MIN)
    }
}

/// The position of an entry in a tree.
struct EntryPath {
    /// The inner nodes from the root, each with the entry's value there, or
    /// `None` if the entry does not require one.
    steps: Vec<(u32, Option<u32>)>,
    path: Path,
    /// The node below the last step.
    end: u32,
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
            fields: Fields::new(group_hash),
            group_hash,
            leaf_max: SAMPLE,
            wide: Vec::new(),
            exprs: Vec::new(),
        }
    }

    /// Number of entries.
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

    /// A field that items check, by number; `None` if there is no such field.
    #[inline]
    pub(super) fn field(&self, number: u16) -> Option<Bits> {
        self.fields.get(number)
    }

    /// Reads from a node, to bring it into the cache.
    #[inline]
    pub(super) fn touch(&self, number: u32) -> u64 {
        let kind = std::mem::discriminant(self.node(number));
        u64::from(black_box(kind) == std::mem::discriminant(&Node::Free))
    }

    /// The child of an inner node for a value; [`NONE`] if there is none.
    #[inline]
    pub(super) fn child(&self, split: &Split, value: u32) -> u32 {
        split.child(self.mix.mix(value & split.field.mask))
    }

    fn make(&mut self, node: Node) -> u32 {
        if let Some(number) = self.free.pop() {
            self.nodes[number as usize] = node;
            return number;
        }
        self.nodes.push(node) as u32
    }

    fn free_node(&mut self, number: u32) {
        self.nodes[number as usize] = Node::Free;
        self.free.push(number);
    }

    /// The path of an entry down from a node, which `path` leads to.
    fn entry_path(
        &self,
        from: u32,
        mut path: Path,
        name: EntryRef,
        rules: &Rules<'_>,
    ) -> EntryPath {
        let (mut steps, mut end) = (Vec::new(), from);
        while end != NONE
            && let Node::Split(split) = self.node(end)
        {
            let value = rules.value(name, split.field);
            steps.push((end, value));
            end = match value {
                Some(value) => {
                    path.push(split.field);
                    self.child(split, value)
                }
                None => split.rest,
            };
        }
        EntryPath { steps, path, end }
    }

    /// Adds an entry of a subtable.
    pub(super) fn insert(&mut self, name: EntryRef, rules: &mut Rules<'_>) {
        let Some((leaf, path, len)) = self.place(self.root, Path::new(), name, rules) else {
            return;
        };
        self.len += 1;
        // A long leaf that no field divides is retried only at powers of two.
        if len > self.leaf_max && (len - 1).is_power_of_two() {
            self.split_leaf(leaf, path, rules);
        } else if len == LEAF_MAX + 1 {
            self.wide.push(leaf);
        }
    }

    /// Puts an entry where it belongs below a node; returns its leaf, and the
    /// leaf's path and length. `None` for a group.
    fn place(
        &mut self,
        from: u32,
        path: Path,
        name: EntryRef,
        rules: &Rules<'_>,
    ) -> Option<(u32, Path, usize)> {
        let entry = rules.entry(name)?;
        let EntryPath { steps, path, end } = self.entry_path(from, path, name, rules);
        for &(at, value) in &steps {
            if let Node::Split(split) = &mut self.nodes[at as usize] {
                let best = match value {
                    Some(_) => &mut split.best,
                    None => &mut split.rest_best,
                };
                *best = entry.rank.min(*best);
            }
        }
        if end != NONE
            && let Node::Group(group) = &mut self.nodes[end as usize]
        {
            group.insert(name, entry, rules.residuals, |name| rules.entry(name));
            return Some((end, path, 0));
        }
        let item = rules.item(name, entry, &path, &mut self.fields);
        let node = self.make(Node::Leaf { item, next: NONE });
        if end == NONE {
            self.attach(steps.last(), node);
            return Some((node, path, 1));
        }
        let len = self.list(end, node, entry.rank);
        Some((end, path, len))
    }

    /// Makes a leaf the child of an inner node for a value, or its rest, or the
    /// root.
    fn attach(&mut self, step: Option<&(u32, Option<u32>)>, leaf: u32) {
        let Some(&(at, value)) = step else {
            self.root = leaf;
            return;
        };
        if let Node::Split(split) = &mut self.nodes[at as usize] {
            match value {
                Some(value) => split.slots.insert(self.mix.mix(value), leaf + PAYLOAD_MIN),
                None => split.rest = leaf,
            }
        }
    }

    /// Inserts an entry's node into a leaf by its rank; returns the leaf's
    /// length.
    fn list(&mut self, leaf: u32, node: u32, rank: Rank) -> usize {
        let (mut at, mut before, mut len) = (leaf, NONE, 1);
        while let Some((item, next)) = self.item(at) {
            if item.delivery.rank <= rank {
                before = at;
            }
            (at, len) = (next, len + 1);
        }
        if before == NONE {
            // The leaf keeps its number: its former first entry moves to the
            // other node.
            let first = std::mem::replace(&mut self.nodes[leaf as usize], Node::Free);
            self.nodes[leaf as usize] = std::mem::replace(&mut self.nodes[node as usize], first);
            self.set_next(leaf, node);
        } else {
            self.set_next(node, self.next(before));
            self.set_next(before, node);
        }
        len
    }

    /// The item of a leaf's node, and the number of the next; `None` for
    /// another kind of node.
    fn item(&self, at: u32) -> Option<(&Item, u32)> {
        match self.nodes.get(at as usize)? {
            Node::Leaf { item, next } => Some((item, *next)),
            _ => None,
        }
    }

    fn next(&self, at: u32) -> u32 {
        self.item(at).map_or(NONE, |(_, next)| next)
    }

    fn set_next(&mut self, at: u32, to: u32) {
        if let Node::Leaf { next, .. } = &mut self.nodes[at as usize] {
            *next = to;
        }
    }

    /// The names of a leaf's entries, by rank.
    fn names(&self, leaf: u32) -> Vec<EntryRef> {
        let first = self.item(leaf);
        let all = std::iter::successors(first, |(_, next)| self.item(*next));
        all.map(|(item, _)| item.name).collect()
    }

    /// Divides a leaf that is too long, and the resulting leaves while they are
    /// too long.
    fn split_leaf(&mut self, leaf: u32, path: Path, rules: &mut Rules<'_>) {
        let mut todo = vec![(leaf, path)];
        while let Some((leaf, path)) = todo.pop() {
            let names = self.names(leaf);
            let Some(field) = choose::field(&names, rules) else {
                if names.len() > LIST_MAX {
                    self.clear(leaf);
                    self.nodes[leaf as usize] = self.gather(&names, rules);
                }
                continue;
            };
            self.clear(leaf);
            self.retain_expr(field.expr, rules.pool);
            self.nodes[leaf as usize] = Node::Split(Split::new(field));
            // In reverse order of rank, as each entry then becomes the first of
            // its leaf.
            for name in names.iter().rev() {
                let placed = self.place(leaf, path.clone(), *name, rules);
                let Some((leaf, path, len)) = placed else {
                    continue;
                };
                if len == self.leaf_max + 1 {
                    todo.push((leaf, path));
                } else if len == LEAF_MAX + 1 {
                    self.wide.push(leaf);
                }
            }
        }
    }

    /// Frees the nodes of a leaf behind its first entry.
    fn clear(&mut self, leaf: u32) {
        let mut at = self.next(leaf);
        while at != NONE {
            let next = self.next(at);
            self.free_node(at);
            at = next;
        }
    }

    /// Makes a group of entries that no field distinguishes.
    fn gather(&self, names: &[EntryRef], rules: &Rules<'_>) -> Node {
        let mut group = Group::new(&[], self.group_hash);
        for name in names {
            if let Some(entry) = rules.entry(*name) {
                group.insert(*name, entry, rules.residuals, |name| rules.entry(name));
            }
        }
        Node::Group(Box::new(group))
    }

    /// Notes that a node uses an expression, which stays in the pool as long as
    /// the tree.
    fn retain_expr(&mut self, expr: Value, pool: &mut Pool) {
        if !self.exprs.contains(&expr) {
            pool.retain(expr);
            self.exprs.push(expr);
        }
    }

    /// Divides some of the leaves that were left long while the tree was built.
    /// Returns `true` if none remain: the tree is complete.
    pub(super) fn refine(&mut self, mut entries: usize, rules: &mut Rules<'_>) -> bool {
        self.leaf_max = LEAF_MAX;
        while entries > 0 {
            let Some(leaf) = self.wide.pop() else {
                return true;
            };
            let names = self.names(leaf);
            if names.len() <= LEAF_MAX {
                continue;
            }
            let way = self.entry_path(self.root, Path::new(), names[0], rules);
            // Otherwise the leaf was freed and its number belongs to another
            // entry.
            if way.end == leaf {
                entries = entries.saturating_sub(names.len());
                self.split_leaf(leaf, way.path, rules);
            }
        }
        false
    }

    /// Removes an entry that is in the tree.
    pub(super) fn remove(&mut self, name: EntryRef, rules: &mut Rules<'_>) {
        let Some(entry) = rules.entry(name) else {
            return;
        };
        let way = self.entry_path(self.root, Path::new(), name, rules);
        if way.end == NONE {
            return;
        }
        self.len -= 1;
        let is_empty = match &mut self.nodes[way.end as usize] {
            Node::Group(group) => {
                group.remove(name, entry, rules.residuals, |name| rules.entry(name));
                group.is_empty()
            }
            _ => self.unlist(way.end, name),
        };
        if is_empty {
            self.prune(way);
        }
    }

    /// Removes an entry from a leaf; returns `true` if it was the only one.
    fn unlist(&mut self, leaf: u32, name: EntryRef) -> bool {
        let (mut before, mut at) = (NONE, leaf);
        while let Some((item, next)) = self.item(at)
            && item.name != name
        {
            (before, at) = (at, next);
        }
        if at == NONE {
            return false;
        }
        let next = self.next(at);
        if before != NONE {
            self.set_next(before, next);
            self.free_node(at);
        } else if next != NONE {
            // The leaf keeps its number: the second entry moves to it.
            let second = std::mem::replace(&mut self.nodes[next as usize], Node::Free);
            self.nodes[leaf as usize] = second;
            self.free.push(next);
        }
        before == NONE && next == NONE
    }

    /// Frees an empty leaf, and the nodes above it that become empty.
    fn prune(&mut self, mut way: EntryPath) {
        let mut at = way.end;
        loop {
            self.free_node(at);
            let Some((parent, value)) = way.steps.pop() else {
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

    /// Ends the tree's uses of expressions; afterwards only
    /// [`free`](Tree::free) may be called.
    pub(super) fn release(&mut self, pool: &mut Pool) {
        for expr in self.exprs.drain(..) {
            pool.release(expr);
        }
    }

    /// Frees up to `nodes` nodes; returns `true` if none remain.
    pub(super) fn free(&mut self, nodes: usize) -> bool {
        (0..nodes).all(|_| self.nodes.pop().is_some());
        self.nodes.len() == 0
    }

    /// The numbers of inner nodes, of entries in leaves, and of groups.
    pub(super) fn counts(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        for at in 0..self.nodes.len() {
            match &self.nodes[at] {
                Node::Free => {}
                Node::Split(_) => counts[0] += 1,
                Node::Leaf { .. } => counts[1] += 1,
                Node::Group(_) => counts[2] += 1,
            }
        }
        counts
    }
}
