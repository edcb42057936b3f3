//! The plan: a set of bindings, from which [`Plan::run`] computes verdicts.
//!
//! - `run`, `batch`: a frame, or a batch of frames, through the plan.
//! - `subtable`, `table`, `group`, `slots`: entries by the fields of their
//!   keys.
//! - `tree`, `index`: the decision tree over the entries of all subtables.
//! - `linear`: filters that run one after the other, since they are few.
//! - `claims`: bindings that keep frames for the host.
//! - `pool`, `residual`, `hash`, `slab`: shared storage.
//! - `view`: the plan for inspection and for lowering.

mod batch;
pub(crate) mod claims;
mod group;
pub(crate) mod hash;
mod index;
mod linear;
mod pool;
mod residual;
mod run;
mod slab;
mod slots;
mod subtable;
mod table;
mod tree;
mod view;

use crate::binding::{Binding, BindingId, Rank, Target};
use crate::filter::{Analysis, Filter, Path, Snap};
use crate::limits;
use crate::verdict::Delivery;
use claims::Claims;
use hash::Secret;
pub(crate) use hash::WordHash;
use index::{CountedValues, Index};
use linear::{LinearEntry, LinearList};
use pool::{Pool, Translation};
use residual::{Residual, Residuals};
use slab::{Chunks, Slab};
use std::collections::{BTreeMap, HashMap};
use subtable::Subtable;
use table::{Entry, NONE};
pub(crate) use tree::NodeRef;
use tree::Rules;
pub use view::{EntryView, Explain, SubtableView};
use weir_filter::ir::Program;

/// Streams of the plan's secret, one for each hashed collection. An application
/// that chooses filters chooses the keys, and must not be able to choose
/// collisions. Subtables use the streams from 0 on.
mod stream {
    pub(super) const TREE: u64 = u64::MAX;
    pub(super) const TREE_GROUPS: u64 = u64::MAX - 4;
    pub(super) const NAMES: u64 = u64::MAX - 1;
    pub(super) const POOL: u64 = u64::MAX - 2;
    pub(super) const KINDS: u64 = u64::MAX - 3;
    /// Added to a subtable's stream: the hash for the blocks of its groups.
    pub(super) const GROUPS: u64 = 1 << 63;
}

/// The reason why a binding was not made or changed; the plan is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    /// A limit of the plan is reached.
    #[error("the plan has {found} {what}, and {max} is the most; unbind some first")]
    Full {
        /// The kind of thing that would exceed its limit.
        what: &'static str,
        /// The number of such things that the call would have led to.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The plan has no such binding, or the binding was unbound.
    #[error("binding {0} is not bound; it may have been unbound before")]
    Unknown(BindingId),
    /// The binding was made by [`Plan::bind_permanent`].
    #[error("binding {0} is permanent: it stays, unchanged, as long as the plan")]
    Permanent(BindingId),
}

/// A set of bindings, arranged so that the cost of a verdict does not grow with
/// the number of bindings.
///
/// Reading is shared: any number of threads may [`run`](Plan::run) one plan,
/// each with its own [`Verdict`](crate::Verdict).
///
/// ```
/// use weir_demux::{Binding, Filter, Plan, Target, Verdict};
/// use weir_filter::ir::Program;
///
/// let everything = Filter::new(Program::constant(96));
/// let mut plan = Plan::new(0x5eed);
/// let watch = plan.bind(Binding {
///     filter: everything,
///     priority: 10,
///     copy: true,
///     target: Target::Port(1),
///     tag: 7,
/// })?;
/// let mut verdict = Verdict::new();
/// plan.run(&[0; 60], 60, &mut verdict);
/// assert_eq!(verdict.deliveries()[0].binding, watch);
/// assert_eq!(verdict.deliveries()[0].snap_len, 96);
/// assert!(!verdict.is_taken());
/// plan.unbind(watch)?;
/// # Ok::<(), weir_demux::BindError>(())
/// ```
pub struct Plan {
    secret: Secret,
    /// Number of subtables ever made; each has a stream of the secret of its
    /// own.
    streams: u64,
    /// Number of bindings ever made: the sequence number of the next one.
    sequence: u64,
    bindings: Chunks<FreeSlot>,
    free: Vec<u32>,
    count: usize,
    pool: Pool,
    subtables: Slab<Subtable>,
    names: HashMap<Box<[crate::Field]>, u32, WordHash>,
    /// Subtables by their best rank.
    order: Vec<(Rank, u32)>,
    /// The subtables in `order` with at least `LARGE_TABLE_ENTRIES` entries.
    large: Vec<u32>,
    /// Finds the entries that can match a frame, if the plan has many
    /// subtables.
    index: Index,
    listed: CountedValues,
    residuals: Residuals,
    /// Bindings whose programs are opaque: too complex for tables.
    opaque: BTreeMap<Rank, u32>,
    /// Bindings whose programs run one after the other, since they are few.
    linear: LinearList,
    claims: Claims,
    /// Replaces the filters of permanent bindings whose paths are in tables.
    shed: Filter,
    /// Scratch memory of a bind, reused by the next.
    fields: Vec<(crate::Field, u32)>,
}

/// A slot for a binding.
#[derive(Debug)]
struct FreeSlot {
    /// Number of bindings that the slot has held before.
    generation: u32,
    bound: Option<Bound>,
}

/// A binding in the plan.
#[derive(Clone, Debug)]
struct Bound {
    filter: Filter,
    rank: Rank,
    target: Target,
    tag: u32,
    generation: u32,
    /// Its entries: number of the subtable, and index in the subtable's table.
    entries: Vec<(u32, u32)>,
    /// The binding has no entries: its program runs in the linear list.
    is_linear: bool,
    /// The binding stays as long as the plan. Its filter is stored only if its
    /// program runs; entries in tables do not need the filter.
    permanent: bool,
}

impl Bound {
    fn delivery(&self, index: u32, snap_len: u32) -> Delivery {
        Delivery {
            rank: self.rank,
            binding: BindingId {
                index,
                generation: self.generation,
            },
            target: self.target,
            tag: self.tag,
            snap_len,
        }
    }
}

impl Plan {
    /// Makes a plan without bindings. `seed` keys the plan's hashes: draw it at
    /// random where peers choose the contents of frames, so that they cannot
    /// choose collisions. No verdict depends on the seed.
    pub fn new(seed: u128) -> Plan {
        let secret = Secret::new(seed);
        Plan {
            secret,
            streams: 0,
            sequence: 0,
            bindings: Chunks::default(),
            free: Vec::new(),
            count: 0,
            pool: Pool::new(secret.word_hash(stream::POOL)),
            subtables: Slab::default(),
            names: HashMap::with_hasher(secret.word_hash(stream::NAMES)),
            order: Vec::new(),
            large: Vec::new(),
            index: Index::new(
                secret.word_mix(stream::TREE),
                secret.word_hash(stream::TREE_GROUPS),
            ),
            listed: CountedValues::default(),
            residuals: Residuals::default(),
            opaque: BTreeMap::new(),
            linear: LinearList::new(secret.word_hash(stream::KINDS)),
            claims: Claims::new(),
            shed: Filter::new(Program::constant(0)),
            fields: Vec::new(),
        }
    }

    /// As [`new`](Plan::new), but every filter that has accept paths is in
    /// tables, even if running its program would cost a frame less. For plans
    /// that are lowered or inspected.
    pub fn indexed_only(seed: u128) -> Plan {
        let mut plan = Plan::new(seed);
        plan.linear.turn_off();
        plan
    }

    /// The number of bindings.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the plan has no bindings.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a binding, behind all bindings of equal priority and copy flag.
    ///
    /// Costs a few table inserts for each accept path of the filter,
    /// whatever the number of bindings; nothing else is rebuilt.
    ///
    /// # Errors
    /// If a [limit](crate::limits) is reached.
    pub fn bind(&mut self, binding: Binding) -> Result<BindingId, BindError> {
        self.add(binding, false)
    }

    /// As [`bind`](Plan::bind), for a binding that stays as long as the plan
    /// and never changes. The plan drops a filter whose paths are in tables,
    /// which is most of the memory of a binding.
    ///
    /// # Errors
    /// If a [limit](crate::limits) is reached.
    pub fn bind_permanent(&mut self, binding: Binding) -> Result<BindingId, BindError> {
        self.add(binding, true)
    }

    fn add(&mut self, binding: Binding, permanent: bool) -> Result<BindingId, BindError> {
        full("bindings", self.count + 1, limits::BINDINGS_MAX)?;
        let sequence = self.sequence;
        if sequence > Rank::SEQUENCE_MAX {
            let (found, max) = (sequence as usize, Rank::SEQUENCE_MAX as usize);
            full("bindings over its life", found, max)?;
        }
        let place = match self.free.last() {
            Some(place) => *place,
            None => self.bindings.len() as u32,
        };
        let generation = self
            .bindings
            .get(place as usize)
            .map_or(0, |place| place.generation);
        let mut bound = Bound {
            filter: binding.filter,
            rank: Rank::new(binding.priority, binding.copy, sequence),
            target: binding.target,
            tag: binding.tag,
            generation,
            entries: Vec::new(),
            is_linear: false,
            permanent,
        };
        self.enter(place, &mut bound)?;
        self.shed_filter(&mut bound);
        self.claims.insert(bound.rank, bound.target);
        self.sequence += 1;
        self.count += 1;
        match self.free.pop() {
            Some(place) => self.bindings[place as usize].bound = Some(bound),
            None => {
                let bound = Some(bound);
                self.bindings.push(FreeSlot { generation, bound });
            }
        }
        self.fill_tables();
        self.tend_index();
        Ok(BindingId {
            index: place,
            generation,
        })
    }

    /// Removes a binding and returns it.
    ///
    /// # Errors
    /// If there is no such binding (any more), or the binding is permanent.
    pub fn unbind(&mut self, id: BindingId) -> Result<Binding, BindError> {
        let place = self.place(id)?;
        let Some(bound) = place.bound.take() else {
            return Err(BindError::Unknown(id));
        };
        place.generation = place.generation.wrapping_add(1);
        self.stop_run(&bound);
        self.leave_paths(&bound);
        self.claims.remove(bound.rank);
        self.free.push(id.index);
        self.count -= 1;
        self.leave_tables();
        self.tend_index();
        Ok(bound.into())
    }

    /// Replaces the filter of a binding; the binding's id, priority, target,
    /// tag and place in the order stay.
    ///
    /// # Errors
    /// If there is no such binding (any more), the binding is permanent, or a
    /// limit is reached; then the old filter stays.
    pub fn change_filter(&mut self, id: BindingId, filter: Filter) -> Result<(), BindError> {
        let old = self.bound_at(id)?.clone();
        let mut bound = Bound {
            filter,
            entries: Vec::new(),
            is_linear: false,
            ..old.clone()
        };
        // Enter the new filter before the old one leaves: on failure nothing
        // has changed. Opaque and linear programs are keyed by rank, so only
        // one of the two can be among them.
        self.stop_run(&old);
        if let Err(error) = self.enter(id.index, &mut bound) {
            match old.filter.analysis() {
                Analysis::Opaque => drop(self.opaque.insert(old.rank, id.index)),
                Analysis::Paths(_) if old.is_linear => {
                    self.linear.insert(LinearEntry::of(&old, id.index))
                }
                Analysis::Paths(_) => {}
            }
            return Err(error);
        }
        self.leave_paths(&old);
        self.place(id)?.bound = Some(bound);
        self.fill_tables();
        self.tend_index();
        Ok(())
    }

    /// The binding with this id.
    ///
    /// # Errors
    /// If there is no such binding (any more), or the binding is permanent.
    pub fn binding(&self, id: BindingId) -> Result<Binding, BindError> {
        Ok(self.bound_at(id)?.clone().into())
    }

    fn place(&mut self, id: BindingId) -> Result<&mut FreeSlot, BindError> {
        self.bound_at(id)?;
        Ok(&mut self.bindings[id.index as usize])
    }

    fn bound_at(&self, id: BindingId) -> Result<&Bound, BindError> {
        let place = self.bindings.get(id.index as usize);
        let place = place.filter(|place| place.generation == id.generation);
        let bound = place.and_then(|place| place.bound.as_ref());
        match bound {
            None => Err(BindError::Unknown(id)),
            Some(bound) if bound.permanent => Err(BindError::Permanent(id)),
            Some(bound) => Ok(bound),
        }
    }

    fn bound(&self, index: u32) -> Option<&Bound> {
        self.bindings.get(index as usize)?.bound.as_ref()
    }

    /// Enters a binding's paths into the tables or the linear list, or its
    /// program among the opaque ones.
    fn enter(&mut self, index: u32, bound: &mut Bound) -> Result<(), BindError> {
        if *bound.filter.analysis() == Analysis::Opaque {
            full("whole programs", self.opaque.len() + 1, limits::OPAQUE_MAX)?;
            self.opaque.insert(bound.rank, index);
            return Ok(());
        }
        self.enter_paths(index, bound)
    }

    /// Drops a permanent binding's filter, unless its program runs.
    fn shed_filter(&self, bound: &mut Bound) {
        let runs = bound.is_linear || *bound.filter.analysis() == Analysis::Opaque;
        if bound.permanent && !runs {
            bound.filter = self.shed.clone();
        }
    }

    /// Enters a binding's paths into the tables; on an error, none of them
    /// stays.
    fn enter_tables(&mut self, index: u32, bound: &mut Bound) -> Result<(), BindError> {
        let filter = bound.filter.clone();
        let Analysis::Paths(paths) = filter.analysis() else {
            return Ok(());
        };
        let exprs = filter.exprs();
        // Expressions that the pool already has need no room; counting the
        // others is seldom necessary.
        if self.pool.len() + exprs.len() > limits::EXPRS_MAX {
            let found = self.pool.len() + self.pool.unknown(exprs);
            full("expressions", found, limits::EXPRS_MAX)?;
        }
        bound.entries.reserve_exact(paths.len());
        let mut translation = Translation::new(exprs);
        for path in paths {
            match self.enter_path(index, bound, path, &mut translation) {
                Ok(entry) => bound.entries.push(entry),
                Err(error) => {
                    self.drop_entries(&bound.entries);
                    bound.entries.clear();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn enter_path(
        &mut self,
        index: u32,
        bound: &Bound,
        path: &Path,
        translation: &mut Translation<'_>,
    ) -> Result<(u32, u32), BindError> {
        let number = self.subtable_for(&path.key, translation)?;
        let pool = &mut self.pool;
        let tests = path.tests.iter();
        let tests = tests.map(|test| test.map_exprs(|expr| translation.intern(pool, expr)));
        let residual = Residual {
            tests: tests.collect(),
            snap: match path.snap {
                Snap::Const(snap) => Snap::Const(snap),
                Snap::Expr(expr) => Snap::Expr(translation.intern(pool, expr)),
            },
        };
        let entry = Entry {
            rank: bound.rank,
            binding: BindingId {
                index,
                generation: bound.generation,
            },
            snap: match path.snap {
                Snap::Const(snap) => snap,
                Snap::Expr(_) => 0,
            },
            residual: self.residuals.insert(residual),
            next: NONE,
            tag: bound.tag,
            target: bound.target,
        };
        let values: Vec<u32> = self.fields.iter().map(|(_, value)| *value).collect();
        let Some(subtable) = self.subtables.get_mut(number) else {
            unreachable!("the shape was found or made above");
        };
        let best = subtable.best;
        let slot = subtable.insert(&values, entry, &self.residuals, &mut self.listed);
        let new_best = subtable.best;
        self.reorder(number, best, new_best);
        self.note_size(number);
        let mut rules = Rules {
            subtables: &self.subtables,
            residuals: &self.residuals,
            pool: &mut self.pool,
        };
        self.index.insert(index, (number, slot), &mut rules);
        Ok((number, slot))
    }

    /// The number of the subtable for a key, made if there is none. Leaves the
    /// key in `fields`, in the plan's names and in the subtable's order.
    fn subtable_for(
        &mut self,
        key: &[(crate::Field, u32)],
        translation: &mut Translation<'_>,
    ) -> Result<u32, BindError> {
        self.fields.clear();
        for (field, value) in key {
            let expr = translation.intern(&mut self.pool, field.expr);
            let mask = field.mask;
            self.fields.push((crate::Field { expr, mask }, *value));
        }
        self.fields.sort_unstable();
        let fields: Vec<crate::Field> = self.fields.iter().map(|(field, _)| *field).collect();
        let known = self.names.get(&fields[..]).copied();
        let result = match known {
            Some(number) => self.subtables.get(number).map_or(Ok(()), |subtable| {
                full(
                    "entries in one shape",
                    subtable.table.len() + 1,
                    limits::ENTRIES_MAX,
                )
            }),
            None => full("shapes", self.subtables.len() + 1, limits::SUBTABLES_MAX),
        };
        // A known subtable holds its own uses of the expressions; a new
        // subtable takes over these.
        if result.is_err() || known.is_some() {
            for field in &fields {
                self.pool.release(field.expr);
            }
        }
        result?;
        Ok(known.unwrap_or_else(|| self.make_subtable(&fields)))
    }

    fn make_subtable(&mut self, fields: &[crate::Field]) -> u32 {
        let subtable = Subtable::new(fields, &self.pool, self.secret, self.streams);
        self.streams += 1;
        let number = self.subtables.insert(subtable);
        self.names.insert(fields.into(), number);
        self.order.push((Rank::LAST, number));
        number
    }

    /// Moves a subtable in `order` after its best rank has changed.
    fn reorder(&mut self, number: u32, old: Rank, new: Rank) {
        if old == new {
            return;
        }
        let known = |at: &(Rank, u32)| at.1 == number;
        if let Some(at) = self.order.iter().position(known) {
            self.order.remove(at);
        }
        let at = self.order.partition_point(|other| *other < (new, number));
        self.order.insert(at, (new, number));
    }

    /// Removes a binding's program from the opaque or linear programs, if it is
    /// there.
    fn stop_run(&mut self, bound: &Bound) {
        if *bound.filter.analysis() == Analysis::Opaque {
            self.opaque.remove(&bound.rank);
        } else if bound.is_linear {
            self.linear.remove(bound.rank);
        }
    }

    fn drop_entries(&mut self, entries: &[(u32, u32)]) {
        for &(number, index) in entries {
            if let Some(subtable) = self.subtables.get(number) {
                let place = subtable.table.entry(index).binding.index;
                let mut rules = Rules {
                    subtables: &self.subtables,
                    residuals: &self.residuals,
                    pool: &mut self.pool,
                };
                self.index.remove(place, (number, index), &mut rules);
            }
            let Some(subtable) = self.subtables.get_mut(number) else {
                continue;
            };
            let residual = subtable.table.entry(index).residual;
            let best = subtable.best;
            subtable.remove(index, &self.residuals, &mut self.listed);
            let new_best = subtable.best;
            if let Some(residual) = self.residuals.remove(residual) {
                for expr in residual.tests.iter().flat_map(|test| test.exprs()) {
                    self.pool.release(expr);
                }
                if let Snap::Expr(expr) = residual.snap {
                    self.pool.release(expr);
                }
            }
            self.reorder(number, best, new_best);
            self.note_size(number);
            self.drop_if_empty(number);
        }
    }

    /// Drops a subtable without entries.
    fn drop_if_empty(&mut self, number: u32) {
        if (self.subtables.get(number)).is_none_or(|subtable| subtable.table.len() > 0) {
            return;
        }
        self.order.retain(|(_, other)| *other != number);
        if let Some(subtable) = self.subtables.remove(number) {
            self.index.forget(number);
            self.listed.count -= subtable.listed();
            self.names.remove(&subtable.fields);
            for field in &subtable.fields {
                self.pool.release(field.expr);
            }
        }
    }
}

impl From<Bound> for Binding {
    fn from(bound: Bound) -> Binding {
        Binding {
            filter: bound.filter,
            priority: bound.rank.priority(),
            copy: bound.rank.is_copy(),
            target: bound.target,
            tag: bound.tag,
        }
    }
}

fn full(what: &'static str, found: usize, max: usize) -> Result<(), BindError> {
    if found > max {
        return Err(BindError::Full { what, found, max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Plan;
    use std::hash::BuildHasher;

    #[test]
    fn what_is_hashed_is_keyed_by_the_seed() {
        let hashes = |seed| {
            let plan = Plan::new(seed);
            let subtable = super::Subtable::new(&[], &plan.pool, plan.secret, 0);
            [
                plan.names.hasher().hash_one(7_u32),
                plan.pool.names_hash().hash_one(7_u32),
                plan.linear.kinds_hash().hash_one(7_u32),
                subtable.table.group_hash().hash_one(7_u32),
            ]
        };
        let (one, other) = (hashes(1), hashes(2));
        for at in 0..one.len() {
            assert_ne!(one[at], other[at], "{at}");
            assert_eq!(one.iter().filter(|hash| **hash == one[at]).count(), 1);
        }
        assert_eq!(one, hashes(1));
    }
}
