//! Running a plan on one frame: look-ups in subtables or the tree, then the
//! opaque and the linear programs, then the claims.

use super::Plan;
use super::claims::Claims;
use super::group::{Group, Ranked};
use super::pool::Read;
use super::residual::Residuals;
use super::subtable::{ANY, LANES_MAX, Subtable};
use super::table::{Entry, Found, NONE};
use super::tree::{EntryRef, Kind, LANES, List, NodeRef, ReadField, Split, Tree};
use crate::binding::Rank;
use crate::filter::{Snap, Test};
use crate::verdict::{Delivery, Memoised, Verdict, Walk};
use weir_filter::interp;
use weir_filter::ir::{Op, Operand, Value};

impl Plan {
    /// Computes the verdict for a frame from its captured bytes and its length
    /// on the wire. Overwrites `verdict`; does not allocate once the verdict's
    /// memory has grown to need.
    ///
    /// The verdict equals that of running each binding's filter by decreasing
    /// priority, within one priority copies first, then in the order bound, up
    /// to the first binding that takes the frame. Once a claim has accepted the
    /// frame, no binding takes it, and all copies are delivered.
    #[inline]
    pub fn run(&self, bytes: &[u8], wire_len: u32, verdict: &mut Verdict) {
        if self.has_tables() {
            self.run_tables(bytes, wire_len, verdict);
        } else {
            verdict.deliveries.clear();
            self.conclude(bytes, wire_len, Rank::LAST, verdict);
        }
    }

    /// Whether any binding is outside the linear list: in tables, or opaque.
    #[inline]
    pub(super) fn has_tables(&self) -> bool {
        !self.order.is_empty() || !self.opaque.is_empty()
    }

    fn run_tables(&self, bytes: &[u8], wire_len: u32, verdict: &mut Verdict) {
        let [walk] = verdict.scratch.walks(1) else {
            return;
        };
        let mut search = Search::new(self, bytes, wire_len, walk, &mut verdict.deliveries);
        match self.index.live() {
            None => search.probe_in_order(&self.order),
            Some((tree, large)) => {
                large.iter().for_each(|subtable| search.probe(*subtable));
                search.search(tree);
            }
        }
        let best = search.finish();
        self.conclude(bytes, wire_len, best, verdict);
    }

    /// Completes the verdict from the deliveries found in tables; `best` is the
    /// rank of the taker among them.
    #[inline]
    pub(super) fn conclude(&self, bytes: &[u8], wire_len: u32, best: Rank, verdict: &mut Verdict) {
        let found = &mut verdict.deliveries;
        let best = self.run_linear(bytes, wire_len, best, found);
        if found.len() > 1 {
            found.retain(|delivery| delivery.rank <= best);
            found.sort_unstable_by_key(|delivery| delivery.rank);
            // Paths of one filter may overlap; each binding has its own rank.
            found.dedup_by_key(|delivery| delivery.rank);
        }
        (verdict.taken, verdict.claimed) = self.resolve_claims(best, found);
    }

    /// Returns whether the frame is taken and whether it is claimed. `found` is
    /// sorted by rank and still holds all accepting bindings if the plan has
    /// claims.
    #[inline]
    fn resolve_claims(&self, best: Rank, found: &mut Vec<Delivery>) -> (bool, bool) {
        if self.claims.first() == Rank::LAST {
            return (best != Rank::LAST, false);
        }
        Claims::resolve(found)
    }

    /// Runs the programs of the linear list with ranks before `best`, the rank
    /// of the taker found so far. Returns the rank of the taker found then.
    #[inline]
    fn run_linear(
        &self,
        bytes: &[u8],
        wire_len: u32,
        best: Rank,
        found: &mut Vec<Delivery>,
    ) -> Rank {
        for run in self.linear.entries() {
            if run.delivery.rank >= best {
                break;
            }
            let snap_len = run.filter.run(bytes, wire_len);
            if snap_len != 0 {
                found.push(Delivery {
                    snap_len,
                    ..run.delivery
                });
                if self.claims.end_at(run.delivery.rank) {
                    return run.delivery.rank;
                }
            }
        }
        best
    }
}

/// The search for one frame's deliveries in a plan.
pub(super) struct Search<'s> {
    plan: &'s Plan,
    bytes: &'s [u8],
    wire_len: u32,
    walk: &'s mut Walk,
    /// The accepting bindings so far that do not end the search, in any order.
    found: &'s mut Vec<Delivery>,
    /// The delivery of rank `best`.
    taker: Option<Delivery>,
    /// The rank of the taker found so far that no claim can precede: bindings
    /// behind it cannot matter.
    best: Rank,
    /// The tree node to visit next.
    at: NodeRef,
    /// The values of a tree's lanes.
    lanes: [u32; LANES],
    /// The lanes that have no value, a bit for each.
    missing: u8,
}

impl<'s> Search<'s> {
    pub(super) fn new(
        plan: &'s Plan,
        bytes: &'s [u8],
        wire_len: u32,
        walk: &'s mut Walk,
        found: &'s mut Vec<Delivery>,
    ) -> Search<'s> {
        walk.memo.begin(plan.pool.capacity());
        found.clear();
        Search {
            plan,
            bytes,
            wire_len,
            walk,
            found,
            taker: None,
            best: Rank::LAST,
            at: NodeRef::NONE,
            lanes: [0; LANES],
            missing: 0,
        }
    }

    /// The value of an expression; `None` if a load of it lies outside the
    /// frame or it divides by zero.
    #[inline]
    fn value(&mut self, expr: Value) -> Option<u32> {
        match self.plan.pool.read(expr) {
            // Most fields are such loads; the others are worth a call.
            Read::Load(load) => load.of(self.bytes),
            other => self.read(*other, expr),
        }
    }

    #[inline(never)]
    fn read(&mut self, read: Read, expr: Value) -> Option<u32> {
        match read {
            Read::Load(load) => load.of(self.bytes),
            Read::From {
                width,
                offset,
                base,
            } => {
                let base = self.value(base)?;
                interp::load(width, u64::from(base) + u64::from(offset), self.bytes)
            }
            Read::Length(length) => length.of(self.bytes),
            Read::WireLen => Some(self.wire_len),
            Read::Computed => self.remembered(expr),
        }
    }

    #[cold]
    fn remembered(&mut self, expr: Value) -> Option<u32> {
        match self.walk.memo.get(expr.index()) {
            Memoised::Value(value) => Some(value),
            Memoised::NoValue => None,
            Memoised::Unknown => {
                let value = self.computed(self.plan.pool.op(expr));
                self.walk.memo.set(expr.index(), value);
                value
            }
        }
    }

    fn computed(&mut self, op: Op) -> Option<u32> {
        match op {
            Op::Bin { op, a, b } => op.eval(self.operand(a)?, self.operand(b)?),
            Op::Test { cmp, a, b } => Some(u32::from(cmp.eval(self.operand(a)?, self.operand(b)?))),
            // Loads and the length are not memoised; parameters do not occur in
            // a plan.
            Op::Load { .. } | Op::Len | Op::Param => None,
        }
    }

    fn operand(&mut self, operand: Operand) -> Option<u32> {
        match operand {
            Operand::Imm(constant) => Some(constant),
            Operand::Val(expr) => self.value(expr),
        }
    }

    /// Looks up the frame in one subtable.
    #[inline]
    pub(super) fn probe(&mut self, number: u32) {
        let Some(subtable) = self.plan.subtables.get(number) else {
            return;
        };
        let mut lanes = [0; LANES_MAX];
        let Some(key) = lanes.get_mut(..subtable.lanes) else {
            return;
        };
        if !self.fill_key(subtable, key) {
            return;
        }
        match subtable.table.look_up(subtable.table.hash(key), key) {
            Found::Nothing => {}
            Found::Chain(first) => self.try_chain(subtable, first),
            Found::Group(group) => self.try_group(subtable, group),
        }
    }

    /// The hash of the frame's key for a subtable; `None` if no entry can have
    /// that key.
    pub(super) fn hash_for(&mut self, subtable: &Subtable) -> Option<u32> {
        let mut lanes = [0; LANES_MAX];
        let key = lanes.get_mut(..subtable.lanes)?;
        self.fill_key(subtable, key)
            .then(|| subtable.table.hash(key))
    }

    /// Writes the frame's key for a subtable into `key`, which is zero; returns
    /// `false` if no entry can have that key.
    #[inline]
    fn fill_key(&mut self, subtable: &Subtable, key: &mut [u64]) -> bool {
        for part in &subtable.key_parts {
            let value = match part.read {
                Read::Load(load) => load.of(self.bytes),
                read => self.read(read, part.expr),
            };
            let Some(value) = value else { return false };
            let value = u64::from(value & part.mask);
            if part.guard != ANY && part.guard != value {
                return false;
            }
            if let Some(lane) = key.get_mut(part.lane as usize) {
                *lane |= value << part.shift;
            }
        }
        true
    }

    #[inline]
    fn try_chain(&mut self, subtable: &Subtable, first: Entry) {
        let mut entry = first;
        loop {
            if entry.rank >= self.best {
                return;
            }
            self.try_entry(&entry);
            if entry.next == NONE {
                return;
            }
            entry = subtable.table.entry(entry.next);
        }
    }

    fn try_group(&mut self, subtable: &Subtable, group: &Group<u32>) {
        for index in group.indexes() {
            if let Some(value) = self.value(index.expr()) {
                for list in index.lists(value) {
                    self.try_list(subtable, list);
                }
            }
        }
        self.try_list(subtable, group.plain());
    }

    fn try_list(&mut self, subtable: &Subtable, list: &Ranked<u32>) {
        for &(rank, index) in list {
            if rank >= self.best {
                return;
            }
            self.try_entry(&subtable.table.entry(index));
        }
    }

    /// Tries an entry whose key equals the frame's and whose rank precedes the
    /// best: delivers the frame if the residual tests hold.
    #[inline]
    fn try_entry(&mut self, entry: &Entry) {
        let mut snap_len = entry.snap;
        if entry.residual != Residuals::NOTHING {
            match self.snap_of_residual(entry) {
                Some(snap) => snap_len = snap,
                None => return,
            }
        }
        self.deliver(Delivery {
            rank: entry.rank,
            binding: entry.binding,
            target: entry.target,
            tag: entry.tag,
            snap_len,
        });
    }

    /// The snap length if all of an entry's residual tests hold, else `None`.
    fn snap_of_residual(&mut self, entry: &Entry) -> Option<u32> {
        let residual = self.plan.residuals.get(entry.residual)?;
        if !residual.tests.iter().all(|test| self.holds(*test)) {
            return None;
        }
        match residual.snap {
            Snap::Const(snap) => Some(snap),
            Snap::Expr(expr) => self.value(expr),
        }
    }

    fn holds(&mut self, test: Test) -> bool {
        match test {
            Test::Range { expr, lo, hi } => {
                (self.value(expr)).is_some_and(|value| (lo..=hi).contains(&value))
            }
            Test::Differs { expr, mask, value } => {
                (self.value(expr)).is_some_and(|found| found & mask != value)
            }
            Test::Compare { cmp, a, b } => {
                let pair = self.value(a).zip(self.value(b));
                pair.is_some_and(|(a, b)| cmp.eval(a, b))
            }
            Test::Extent { base, end } => {
                let base = match base {
                    None => Some(0),
                    Some(base) => self.value(base),
                };
                base.is_some_and(|base| u64::from(base) + end <= self.bytes.len() as u64)
            }
        }
    }

    #[inline]
    fn deliver(&mut self, delivery: Delivery) {
        if self.plan.claims.end_at(delivery.rank) {
            self.best = delivery.rank;
            self.taker = Some(delivery);
        } else {
            self.found.push(delivery);
        }
    }

    /// Looks up the frame in the subtables by their best rank.
    pub(super) fn probe_in_order(&mut self, order: &[(Rank, u32)]) {
        for &(best, subtable) in order {
            if best > self.best {
                break;
            }
            self.probe(subtable);
        }
    }

    /// Looks up the frame in a tree.
    fn search(&mut self, tree: &Tree) {
        self.enter(tree);
        let mut at = self.at;
        while at != NodeRef::NONE {
            at = self.visit(tree, at);
        }
    }

    /// Starts at the root of a tree: reads the lanes.
    #[inline]
    pub(super) fn enter(&mut self, tree: &Tree) {
        self.walk.pending.clear();
        self.at = tree.root();
        if !tree.others().is_empty() {
            self.walk.fields.begin(tree.others().len());
        }
        self.missing = tree.lanes().read(self.bytes, &mut self.lanes);
    }

    #[inline]
    fn read_field(&mut self, field: &ReadField) -> Option<u32> {
        let value = match field.read {
            Read::Load(load) => load.of(self.bytes),
            read => self.read(read, field.bits.expr),
        };
        Some(value? & field.bits.mask)
    }

    /// Whether nodes remain to be visited.
    #[inline]
    pub(super) fn has_pending(&self) -> bool {
        self.at != NodeRef::NONE
    }

    /// Reads from the next node, so that the cache misses of several frames
    /// overlap.
    #[inline]
    pub(super) fn touch(&self, tree: &Tree) -> u64 {
        tree.touch(self.at)
    }

    /// Reads from the frame, to bring it into the cache.
    #[inline]
    pub(super) fn touch_frame(&self) -> u64 {
        u64::from(self.bytes.first().copied().unwrap_or(0))
    }

    /// Visits the next node and selects the one after it.
    #[inline]
    pub(super) fn step(&mut self, tree: &Tree) {
        self.at = self.visit(tree, self.at);
    }

    /// Visits a node and returns the node to visit after it.
    ///
    /// The subtree that requires the most is tried first: its rank then bounds
    /// the search of the rest. The least rank wins in any order of trying.
    #[inline(always)]
    fn visit(&mut self, tree: &Tree, at: NodeRef) -> NodeRef {
        // The most frequent kinds first; a table of jumps is mispredicted more
        // often.
        if at.kind() == Kind::Split {
            let split = tree.split(at.number());
            if split.rest_best < self.best {
                self.walk.pending.push((split.rest_best, split.rest));
            }
            if split.best < self.best {
                let child = self.child(tree, split);
                if child != NodeRef::NONE {
                    return child;
                }
            }
        } else if at.kind() == Kind::Item {
            self.try_item(tree, at.number());
        } else {
            self.try_many(tree, at);
        }
        while let Some((best, rest)) = self.walk.pending.pop() {
            if best < self.best {
                return rest;
            }
        }
        NodeRef::NONE
    }

    /// Tries the entries of a list or a group.
    #[inline]
    fn try_many(&mut self, tree: &Tree, at: NodeRef) {
        if at.kind() == Kind::Group {
            if let Some(group) = tree.group(at.number()) {
                self.try_names_of(group);
            }
        } else {
            self.try_list_of(tree, tree.list(at.number()));
        }
    }

    /// Tries the entries of a list.
    #[inline]
    fn try_list_of(&mut self, tree: &Tree, list: &List) {
        if list.best >= self.best {
            return;
        }
        let mut passing = list.passing(|number| self.field(tree, number));
        while passing != 0 {
            self.try_item(tree, list.first(passing.trailing_zeros()));
            passing &= passing - 1;
        }
        for item in list.more() {
            self.try_item(tree, item);
        }
    }

    #[inline(always)]
    fn child(&mut self, tree: &Tree, split: &Split) -> NodeRef {
        let value = match split.number {
            Some(number) => self.field(tree, number),
            None => self.value(split.field.expr),
        };
        value.map_or(NodeRef::NONE, |value| tree.child(split, value))
    }

    /// The value of a field that nodes of a tree read; `None` if a load of it
    /// lies outside the frame.
    #[inline]
    fn field(&mut self, tree: &Tree, number: u16) -> Option<u32> {
        if let Some(value) = self.lanes.get(usize::from(number)) {
            return (self.missing >> number & 1 == 0).then_some(*value);
        }
        let other = usize::from(number) - LANES;
        match self.walk.fields.get(other) {
            Memoised::Value(value) => Some(value),
            Memoised::NoValue => None,
            Memoised::Unknown => self.first_value(tree, other),
        }
    }

    #[inline(never)]
    fn first_value(&mut self, tree: &Tree, other: usize) -> Option<u32> {
        let value = self.read_field(tree.others().get(other)?);
        self.walk.fields.set(other, value);
        value
    }

    #[inline]
    fn try_item(&mut self, tree: &Tree, number: u32) {
        if !tree.lane_checks(number).pass(&self.lanes) {
            return;
        }
        let delivery = tree.delivery(number);
        if delivery.rank >= self.best {
            return;
        }
        if delivery.snap_len == 0 || self.missing != 0 {
            self.consult(tree, number);
        } else {
            self.deliver(*delivery);
        }
    }

    /// Tries an entry of which the checks on lanes hold, as far as these have
    /// values.
    #[inline(never)]
    fn consult(&mut self, tree: &Tree, number: u32) {
        let (item, delivery) = (tree.item(number), tree.delivery(number));
        if item.lanes & self.missing != 0 {
            return;
        }
        match delivery.snap_len {
            0 => self.try_entry_ref(item.name),
            _ => self.deliver(*delivery),
        }
    }

    #[inline(never)]
    fn try_names_of(&mut self, group: &Group<EntryRef>) {
        for index in group.indexes() {
            if let Some(value) = self.value(index.expr()) {
                index.lists(value).for_each(|list| self.try_names(list));
            }
        }
        self.try_names(group.plain());
    }

    fn try_names(&mut self, list: &Ranked<EntryRef>) {
        for &(rank, name) in list {
            if rank >= self.best {
                return;
            }
            self.try_entry_ref(name);
        }
    }

    /// Tries an entry that may have the frame's key.
    fn try_entry_ref(&mut self, (subtable, index): EntryRef) {
        let Some(subtable) = self.plan.subtables.get(subtable) else {
            return;
        };
        let mut lanes = [0; LANES_MAX];
        let Some(key) = lanes.get_mut(..subtable.lanes) else {
            return;
        };
        if self.fill_key(subtable, key) && subtable.table.has_key(index, key) {
            self.try_entry(&subtable.table.entry(index));
        }
    }

    /// Runs the opaque programs with ranks before that of the taker found so
    /// far, and adds the taker to what was found. Returns its rank.
    #[inline]
    pub(super) fn finish(&mut self) -> Rank {
        if !self.plan.opaque.is_empty() {
            self.run_each_opaque();
        }
        if let Some(taker) = self.taker {
            self.found.push(taker);
        }
        self.best
    }

    #[inline(never)]
    fn run_each_opaque(&mut self) {
        for (&rank, &index) in &self.plan.opaque {
            if rank >= self.best {
                break;
            }
            let Some(bound) = self.plan.bound(index) else {
                continue;
            };
            let snap_len = bound.filter.run(self.bytes, self.wire_len);
            if snap_len != 0 {
                self.deliver(bound.delivery(index, snap_len));
            }
        }
    }
}
