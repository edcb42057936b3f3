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
//! The kind of a node is part of its name, and nodes of each kind have an array
//! of their own, so that what frames read fits a core's private cache for ten
//! thousand entries: 64 bytes for the checks of each entry, and 32 for its
//! delivery. A tree is made with room for twice its entries, and rebuilt before
//! it has more, so that arrays seldom move.
//!
//! The field of a node is chosen when a leaf grows too long, from the entries
//! in that leaf. The first nodes of a growing tree are chosen from few entries;
//! so the tree is rebuilt beside the old one when it has grown by half, some
//! entries with each change (see [`index`](super::index)).

mod children;
mod choose;
mod item;
mod node;
mod rules;

use super::group::Group;
use super::hash::{WordHash, WordMix};
use super::pool::{Lanes, Pool};
use super::slab::{Flat, Slab};
use crate::binding::Rank;
use crate::verdict::Delivery;
use item::Fields;
pub(super) use item::{Bits, Item, LANES, LaneChecks, ReadField};
use node::LIST_WIDTH;
pub(crate) use node::NodeRef;
pub(super) use node::{Kind, List, Split};
pub(super) use rules::Rules;
use weir_filter::ir::Value;

/// Number of entries of a leaf before it is divided.
const LEAF_MAX: usize = 8;
/// Number of entries of a leaf while a tree is built: more entries give a
/// better choice of the field.
const SAMPLE: usize = 128;
/// Number of buckets of a growing node that are moved at a time.
const SETTLED: usize = 8;
/// Number of entries that no field distinguishes, before they form a group.
const LIST_MAX: usize = 64;

/// The name of an entry: its subtable, and its number in the subtable.
pub(super) type EntryRef = (u32, u32);

/// A decision tree over entries.
pub(super) struct Tree {
    root: NodeRef,
    splits: Flat<Split>,
    lists: Flat<List>,
    groups: Slab<Box<Group<EntryRef>>>,
    /// The entries of leaves in three parts, by how many frames read them: of
    /// most entries that a frame reaches, it reads the checks alone.
    lane_checks: Vec<LaneChecks>,
    /// The deliveries. A snap length of zero means that the entry in the
    /// subtable has to be consulted when the checks hold.
    deliveries: Vec<Delivery>,
    items: Vec<Item>,
    free_items: Vec<u32>,
    len: usize,
    mix: WordMix,
    fields: Fields,
    /// The hash of the groups' indexes and of fields.
    group_hash: WordHash,
    /// Number of entries of a leaf before it is divided, at present.
    leaf_max: usize,
    /// Leaves to check when the tree is complete, since they may be too long.
    wide: Vec<NodeRef>,
    /// Inner nodes before this one had no children in an old array when the
    /// tree was built.
    settled: u32,
    /// Expressions that nodes hash; the tree holds one use of each in the pool.
    exprs: Vec<Value>,
}

/// The fields whose values all entries below a node share.
type Path = Vec<Bits>;

/// An edge of the tree: an inner node's number, and the value of the child;
/// `None` leads to the rest.
type Step = (u32, Option<u32>);

/// The position of an entry in a tree.
struct EntryPath {
    /// The edges from the root.
    steps: Vec<Step>,
    path: Path,
    /// The node below the last step.
    end: NodeRef,
}

/// A leaf that an entry was added to.
struct Leaf {
    at: NodeRef,
    /// The edge that leads to the leaf; `None` for the root.
    edge: Option<Step>,
    path: Path,
    /// Number of entries; zero for a group.
    len: usize,
}

impl Tree {
    /// An empty tree, to be built: [`refine`](Tree::refine) makes it complete.
    /// Beyond `capacity` entries, arrays move when they grow.
    pub(super) fn new(capacity: usize, mix: WordMix, group_hash: WordHash) -> Tree {
        Tree {
            root: NodeRef::NONE,
            splits: Flat::with_capacity(capacity / 2),
            lists: Flat::with_capacity(capacity / 2),
            groups: Slab::default(),
            lane_checks: Vec::with_capacity(capacity),
            deliveries: Vec::with_capacity(capacity),
            items: Vec::with_capacity(capacity),
            free_items: Vec::new(),
            len: 0,
            mix,
            fields: Fields::new(group_hash),
            group_hash,
            leaf_max: SAMPLE,
            wide: Vec::new(),
            settled: 0,
            exprs: Vec::new(),
        }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn root(&self) -> NodeRef {
        self.root
    }

    #[inline]
    pub(super) fn split(&self, number: u32) -> &Split {
        &self.splits[number]
    }

    #[inline]
    pub(super) fn list(&self, number: u32) -> &List {
        &self.lists[number]
    }

    #[inline]
    pub(super) fn group(&self, number: u32) -> Option<&Group<EntryRef>> {
        self.groups.get(number).map(|group| &**group)
    }

    #[inline]
    pub(super) fn lane_checks(&self, item: u32) -> &LaneChecks {
        &self.lane_checks[item as usize]
    }

    #[inline]
    pub(super) fn delivery(&self, item: u32) -> &Delivery {
        &self.deliveries[item as usize]
    }

    #[inline]
    pub(super) fn item(&self, number: u32) -> &Item {
        &self.items[number as usize]
    }

    /// Makes fields lanes, the first ones first, as far as there is room.
    pub(super) fn make_lanes(&mut self, fields: &[Bits], pool: &Pool) {
        for field in fields {
            self.fields.make_lane(*field, pool);
        }
    }

    /// The loads that each frame makes.
    #[inline]
    pub(super) fn lanes(&self) -> &Lanes {
        &self.fields.lanes
    }

    /// The other fields that nodes read, numbered from [`LANES`].
    #[inline]
    pub(super) fn others(&self) -> &[ReadField] {
        self.fields.others()
    }

    /// Reads from a node, to bring it into the cache.
    #[inline]
    pub(super) fn touch(&self, node: NodeRef) -> u64 {
        let number = node.number();
        let read = match node.kind() {
            Kind::Split => self.split(number).best,
            Kind::List => self.list(number).best,
            Kind::Item => self.delivery(number).rank,
            Kind::Group => Rank::LAST,
        };
        read.to_bits()
    }

    /// The child of an inner node for a value; [`NodeRef::NONE`] if there is
    /// none.
    #[inline]
    pub(super) fn child(&self, split: &Split, value: u32) -> NodeRef {
        split.children.get(self.mix.mix(value & split.field.mask))
    }

    fn make_item(&mut self, lane_checks: LaneChecks, delivery: Delivery, item: Item) -> u32 {
        if let Some(number) = self.free_items.pop() {
            let at = number as usize;
            self.lane_checks[at] = lane_checks;
            self.deliveries[at] = delivery;
            self.items[at] = item;
            return number;
        }
        self.lane_checks.push(lane_checks);
        self.deliveries.push(delivery);
        self.items.push(item);
        self.items.len() as u32 - 1
    }

    fn free_node(&mut self, node: NodeRef) {
        let number = node.number();
        match node.kind() {
            Kind::Split => drop(self.splits.remove(number, Split::nothing())),
            Kind::Item => self.free_items.push(number),
            Kind::List => {
                let list = self.lists.remove(number, List::nothing());
                self.free_items.extend(list.iter().flat_map(List::items));
            }
            Kind::Group => drop(self.groups.remove(number)),
        }
    }

    /// The path of an entry down from a node, which `path` leads to.
    fn entry_path(
        &self,
        from: NodeRef,
        mut path: Path,
        name: EntryRef,
        rules: &Rules<'_>,
    ) -> EntryPath {
        let (mut steps, mut end) = (Vec::new(), from);
        while end.kind() == Kind::Split {
            let split = self.split(end.number());
            let value = rules.value(name, split.field);
            steps.push((end.number(), value));
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
        let Some(leaf) = self.place(self.root, Path::new(), name, rules) else {
            return;
        };
        self.len += 1;
        // A long leaf that no field divides is retried only at powers of two.
        if leaf.len > self.leaf_max && (leaf.len - 1).is_power_of_two() {
            self.split_leaf(leaf, rules);
        } else if leaf.len == LEAF_MAX + 1 {
            self.wide.push(leaf.at);
        }
    }

    /// Puts an entry where it belongs below a node; returns its leaf. `None` if
    /// there is no such entry.
    fn place(
        &mut self,
        from: NodeRef,
        path: Path,
        name: EntryRef,
        rules: &Rules<'_>,
    ) -> Option<Leaf> {
        let entry = rules.entry(name)?;
        let EntryPath { steps, path, end } = self.entry_path(from, path, name, rules);
        for &(at, value) in &steps {
            if let Some(split) = self.splits.get_mut(at) {
                let best = match value {
                    Some(_) => &mut split.best,
                    None => &mut split.rest_best,
                };
                *best = entry.rank.min(*best);
            }
        }
        let edge = steps.last().copied();
        if end.kind() == Kind::Group
            && let Some(group) = self.groups.get_mut(end.number())
        {
            group.insert(name, entry, rules.residuals, |name| rules.entry(name));
            let (at, len) = (end, 0);
            return Some(Leaf {
                at,
                edge,
                path,
                len,
            });
        }
        let (lane_checks, delivery, item) = rules.item(name, entry, &path, &mut self.fields);
        let item = self.make_item(lane_checks, delivery, item);
        let mut items = self.items_of(end);
        let is_before = |other: &u32| self.rank(*other) <= entry.rank;
        items.insert(items.partition_point(is_before), item);
        let at = self.set_leaf(end, edge, &items);
        let len = items.len();
        Some(Leaf {
            at,
            edge,
            path,
            len,
        })
    }

    /// The items of a leaf, by rank.
    fn items_of(&self, leaf: NodeRef) -> Vec<u32> {
        match leaf.kind() {
            Kind::Item => vec![leaf.number()],
            Kind::List => self.list(leaf.number()).items().collect(),
            Kind::Split | Kind::Group => Vec::new(),
        }
    }

    fn rank(&self, item: u32) -> Rank {
        self.deliveries[item as usize].rank
    }

    /// Makes a leaf consist of these items, at least one, by rank; returns its
    /// node. `old` was its node, which `edge` leads to.
    fn set_leaf(&mut self, old: NodeRef, edge: Option<Step>, items: &[u32]) -> NodeRef {
        let is_list = old.kind() == Kind::List;
        if let [item] = *items
            && !self.items[item as usize].begins_outside_lanes()
        {
            if is_list {
                self.lists.remove(old.number(), List::nothing());
            }
            let item = NodeRef::new(Kind::Item, item);
            self.set_child(edge, item);
            return item;
        }
        let list = self.make_list(items);
        if is_list && let Some(place) = self.lists.get_mut(old.number()) {
            *place = list;
            return old;
        }
        let list = NodeRef::new(Kind::List, self.lists.insert(list));
        self.set_child(edge, list);
        list
    }

    fn make_list(&self, items: &[u32]) -> List {
        let best = items.first().map_or(Rank::LAST, |item| self.rank(*item));
        let first = items.iter().take(LIST_WIDTH).map(|item| *item as usize);
        let checks: Vec<_> = first
            .map(|item| (&self.lane_checks[item], self.items[item].first))
            .collect();
        List::new(items, best, &checks)
    }

    /// Makes an edge, or the root, lead to a node.
    fn set_child(&mut self, edge: Option<Step>, node: NodeRef) {
        let Some((at, value)) = edge else {
            self.root = node;
            return;
        };
        let Some(split) = self.splits.get_mut(at) else {
            return;
        };
        let Some(value) = value else {
            split.rest = node;
            return;
        };
        split.children.set(self.mix.mix(value), node);
    }

    /// The names of a leaf's entries, by rank.
    fn names(&self, leaf: NodeRef) -> Vec<EntryRef> {
        let items = self.items_of(leaf).into_iter();
        items.map(|item| self.items[item as usize].name).collect()
    }

    /// Divides a leaf that is too long, and the resulting leaves while they are
    /// too long.
    fn split_leaf(&mut self, leaf: Leaf, rules: &mut Rules<'_>) {
        let mut todo = vec![leaf];
        while let Some(leaf) = todo.pop() {
            let names = self.names(leaf.at);
            let Some(field) = choose::field(&names, rules) else {
                if names.len() > LIST_MAX {
                    self.free_node(leaf.at);
                    let group = self.gather(&names, rules);
                    let number = self.groups.insert(Box::new(group));
                    self.set_child(leaf.edge, NodeRef::new(Kind::Group, number));
                }
                continue;
            };
            self.free_node(leaf.at);
            self.retain_expr(field.expr, rules.pool);
            let number = self.fields.number(Bits::whole(field.expr), rules.pool);
            let split = self.splits.insert(Split::new(field, number));
            let split = NodeRef::new(Kind::Split, split);
            self.set_child(leaf.edge, split);
            for name in &names {
                let Some(leaf) = self.place(split, leaf.path.clone(), *name, rules) else {
                    continue;
                };
                if leaf.len == self.leaf_max + 1 {
                    todo.push(leaf);
                } else if leaf.len == LEAF_MAX + 1 {
                    self.wide.push(leaf.at);
                }
            }
        }
    }

    /// Makes a group of entries that no field distinguishes.
    fn gather(&self, names: &[EntryRef], rules: &Rules<'_>) -> Group<EntryRef> {
        let mut group = Group::new(&[], self.group_hash);
        for name in names {
            if let Some(entry) = rules.entry(*name) {
                group.insert(*name, entry, rules.residuals, |name| rules.entry(name));
            }
        }
        group
    }

    /// Notes that a node uses an expression, which stays in the pool as long as
    /// the tree.
    fn retain_expr(&mut self, expr: Value, pool: &mut Pool) {
        if !self.exprs.contains(&expr) {
            pool.retain(expr);
            self.exprs.push(expr);
        }
    }

    /// Divides some of the leaves that were left long while the tree was built,
    /// and then completes the growth of inner nodes. Returns `true` if none
    /// remain: the tree is complete.
    pub(super) fn refine(&mut self, mut entries: usize, rules: &mut Rules<'_>) -> bool {
        self.leaf_max = LEAF_MAX;
        while entries > 0 {
            let Some(leaf) = self.wide.pop() else {
                return self.settle(entries);
            };
            let names = self.names(leaf);
            if names.len() <= LEAF_MAX {
                continue;
            }
            let way = self.entry_path(self.root, Path::new(), names[0], rules);
            // Otherwise the leaf was freed.
            if way.end == leaf {
                entries = entries.saturating_sub(names.len());
                let leaf = Leaf {
                    at: leaf,
                    edge: way.steps.last().copied(),
                    path: way.path,
                    len: names.len(),
                };
                self.split_leaf(leaf, rules);
            }
        }
        false
    }

    /// Completes the growth of some inner nodes; returns `true` if none remain.
    fn settle(&mut self, nodes: usize) -> bool {
        for _ in 0..nodes {
            let Some(split) = self.splits.get_mut(self.settled) else {
                return true;
            };
            self.settled += u32::from(split.children.migrate(SETTLED));
        }
        false
    }

    /// Removes an entry that is in the tree.
    pub(super) fn remove(&mut self, name: EntryRef, rules: &mut Rules<'_>) {
        let Some(entry) = rules.entry(name) else {
            return;
        };
        let way = self.entry_path(self.root, Path::new(), name, rules);
        if way.end == NodeRef::NONE {
            return;
        }
        self.len -= 1;
        let is_empty = match self.groups.get_mut(way.end.number()) {
            Some(group) if way.end.kind() == Kind::Group => {
                group.remove(name, entry, rules.residuals, |name| rules.entry(name));
                group.is_empty()
            }
            _ => self.remove_from_leaf(&way, name),
        };
        if is_empty {
            self.prune(way);
        }
    }

    /// Removes an entry from a leaf; returns `true` if it is the only one, which
    /// the leaf then still has.
    fn remove_from_leaf(&mut self, way: &EntryPath, name: EntryRef) -> bool {
        let names = self.names(way.end);
        let Some(at) = names.iter().position(|other| *other == name) else {
            return false;
        };
        if names.len() == 1 {
            return true;
        }
        let mut items = self.items_of(way.end);
        self.free_items.push(items.remove(at));
        self.set_leaf(way.end, way.steps.last().copied(), &items);
        false
    }

    /// Frees an empty leaf, and the nodes above it that become empty.
    fn prune(&mut self, mut way: EntryPath) {
        let mut at = way.end;
        loop {
            self.free_node(at);
            let Some((parent, value)) = way.steps.pop() else {
                self.root = NodeRef::NONE;
                return;
            };
            let Some(split) = self.splits.get_mut(parent) else {
                return;
            };
            match value {
                Some(value) => split.children.remove(self.mix.mix(value)),
                None => (split.rest, split.rest_best) = (NodeRef::NONE, Rank::LAST),
            }
            if !split.is_empty() {
                return;
            }
            at = NodeRef::new(Kind::Split, parent);
        }
    }

    /// Ends the tree's uses of expressions; afterwards only
    /// [`free`](Tree::free) may be called.
    pub(super) fn release(&mut self, pool: &mut Pool) {
        for expr in self.exprs.drain(..) {
            pool.release(expr);
        }
    }

    /// Frees up to `nodes` nodes that have memory of their own; returns `true`
    /// if none remain.
    pub(super) fn free(&mut self, nodes: usize) -> bool {
        (0..nodes)
            .all(|_| self.lists.drop_last() || self.splits.drop_last() || self.groups.drop_last());
        self.lists.is_bare() && self.splits.is_bare() && self.groups.is_bare()
    }

    /// The numbers of inner nodes, of entries in leaves, and of groups.
    pub(super) fn counts(&self) -> [usize; 3] {
        let entries = self.items.len() - self.free_items.len();
        [self.splits.len(), entries, self.groups.len()]
    }
}
