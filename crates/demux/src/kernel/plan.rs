//! Bindings in, writes and programs out.

use super::decision_tree::Node;
use super::expr::Expr;
use super::fanouts::Fanouts;
use super::image::{Image, Memory, Write, bytes};
use super::layout::{
    SLOT_DROP, SLOT_FANOUT, SLOT_KERNEL, TEST_BYTES, UNIT_BYTES, candidate, counter, entry, port,
    scratch, subtable,
};
use super::limits;
use super::lowered_path::{LoweredPath, lower_paths};
use super::maps::{Counters, MapRole, MapSpec, PortSettings};
use super::prefilter::{Prefilter, PrefilterKey, Span};
use super::prune::Pruning;
use super::subtable::{Signature, Subtable};
use crate::binding::{Binding, BindingId, Rank, Target};
use crate::fanout::Layout;
use crate::filter::Filter;
use crate::plan::claims::Claims;
use crate::plan::hash::Secret;
use std::collections::{BTreeMap, VecDeque};

const _: () = assert!(
    PortSettings::BYTES == port::BYTES as usize && Counters::BYTES == counter::SIZE as usize
);

/// Why a binding was not made or changed; the plan is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KernelBindError {
    /// A limit is reached.
    #[error("the plan in the kernel would have {found} {what}, and {max} is the most")]
    Full {
        /// The kind of thing whose limit is exceeded.
        what: &'static str,
        /// How much there would be.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// There is no such binding, or not any more.
    #[error("binding {0} is not bound; it may have been unbound before")]
    Unknown(BindingId),
    /// A target that only the plan in user space knows.
    #[error(
        "frames cannot go to {0} in the kernel; ports, fan-outs that were made, the kernel and drop are possible"
    )]
    Target(Target),
}

/// Limit on the bindings under one key of a coarser subtable, which are walked, as
/// long as there may be more subtables.
const RELAXED_KEY_MAX: usize = 64;

/// How to lower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Keys the hashes of the tables: draw it at random.
    pub seed: u128,
    /// Slots for ports: [`Target::Port`]'s numbers are below it.
    pub ports_max: u32,
    /// Keys to make room for at first; more come by twos.
    pub keys_hint: u32,
    /// Where frames say of which flow they are.
    pub layout: Layout,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 0,
            ports_max: 1024,
            keys_hint: 1024,
            layout: Layout::ETHERNET,
        }
    }
}

/// Whether a change needs new programs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Recompile {
    /// No: the writes are all.
    No,
    /// It is complete without, but new ones would be quicker.
    Optional,
    /// Yes: after the writes, load new programs and put them in place of the
    /// old ones.
    Required,
}

/// The work for a change, in this order: make the maps of a new edition and fill them; make the
/// writes; load programs and swap them in.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Change {
    /// To be made in this order, each by one aligned atomic store.
    pub writes: Vec<Write>,
    /// New programs.
    pub programs: Recompile,
    /// Index and store have a new edition; its contents have all changes
    /// already. The old one must not be written any more.
    pub renewed: bool,
}

/// A binding.
pub(super) struct Bound {
    rank: Rank,
    target: Target,
    tag: u32,
    pub(super) entries: Vec<Placed>,
}

/// The place of a binding in index and store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Placed {
    /// An entry of a subtable.
    Entry {
        entry: u32,
        /// Where the store has the rest of it, if there is one, and how many
        /// units.
        rest: Option<(u32, u32)>,
        /// The bounds of the range that its subtable asks for.
        span: Option<Span>,
    },
    /// A opaque filter's.
    Opaque { entry: u32 },
}

impl Placed {
    pub(super) fn entry_mut(&mut self) -> &mut u32 {
        match self {
            Placed::Entry { entry, .. } | Placed::Opaque { entry } => entry,
        }
    }
}

/// A opaque filter.
pub(super) struct OpaqueFilter {
    pub(super) rank: Rank,
    pub(super) entry: u32,
    pub(super) filter: Filter,
    /// Unbound; part of programs until there are new ones.
    pub(super) dead: bool,
}

/// A prefilter of the newest programs, and what it is for.
pub(super) struct PrefilteredArms {
    pub(super) key: PrefilterKey,
    /// The subtables of each arm.
    pub(super) arms: Vec<Vec<u32>>,
    pub(super) prefilter: Prefilter,
}

/// Memory that is retained until no frame can be using it.
pub(super) enum Retired {
    Units(u32, u32),
    Entry(u32),
    Placed(Placed),
}

/// Bindings, lowered for the kernel.
///
/// Each change says what to write; apply changes in the order in which they
/// were made. Pure: nothing here makes a system call.
pub struct KernelPlan {
    pub(super) options: Options,
    pub(super) secret: Secret,
    sequence: u64,
    pub(super) bindings: Vec<(u32, Option<Bound>)>,
    free: Vec<u32>,
    pub(super) image: Image,
    edition: u32,
    pub(super) subtables: BTreeMap<u32, Subtable>,
    pub(super) names: BTreeMap<Signature, u32>,
    subtables_made: u32,
    /// The subtables as the newest programs try them, in parts.
    pub(super) trees: Vec<Vec<Node>>,
    pub(super) prefilters: Vec<PrefilteredArms>,
    /// By subtable, the prefilters it stands behind and its arms of them.
    pub(super) prefilter_arms: BTreeMap<u32, Vec<(usize, usize)>>,
    /// The pruning before very many subtables, in place of trees.
    pub(super) pruning: Option<Pruning>,
    pub(super) opaque: Vec<OpaqueFilter>,
    /// Programs have the rank of the first.
    pub(super) claims: Claims,
    pub(super) fanouts: Fanouts,
    pub(super) epoch: u64,
    pub(super) retired: VecDeque<(u64, Retired)>,
}

impl KernelPlan {
    /// A plan without bindings.
    pub fn new(options: Options) -> KernelPlan {
        let keys = options.keys_hint.clamp(64, limits::KEYS_MAX);
        KernelPlan {
            options,
            secret: Secret::new(options.seed),
            sequence: 0,
            bindings: Vec::new(),
            free: Vec::new(),
            image: Image::new(keys.next_power_of_two()),
            edition: 0,
            subtables: BTreeMap::new(),
            names: BTreeMap::new(),
            subtables_made: 0,
            trees: Vec::new(),
            prefilters: Vec::new(),
            prefilter_arms: BTreeMap::new(),
            pruning: None,
            opaque: Vec::new(),
            claims: Claims::new(),
            fanouts: Fanouts::default(),
            epoch: 0,
            retired: VecDeque::new(),
        }
    }

    /// How many bindings there are.
    pub fn len(&self) -> usize {
        self.bindings.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many subtables there are, those without entries included.
    pub fn subtables(&self) -> usize {
        self.subtables.len()
    }

    /// How many filters are opaque.
    pub fn opaque(&self) -> usize {
        self.opaque.iter().filter(|whole| !whole.dead).count()
    }

    /// The maps that programs use, by place.
    pub fn maps(&self) -> Vec<MapSpec> {
        let spec = |part, edition, value_bytes, entries_max| MapSpec {
            role: part,
            edition,
            value_bytes,
            entries_max,
        };
        let memory = |which| bytes(self.image.words(which));
        let ports = self.options.ports_max;
        vec![
            spec(MapRole::Scratch, 0, scratch::BYTES, 1),
            spec(MapRole::Index, self.edition, memory(Memory::Index), 1),
            spec(MapRole::Store, self.edition, memory(Memory::Store), 1),
            spec(MapRole::Rings, 0, 4, ports),
            spec(MapRole::Ports, 0, port::BYTES, ports),
            spec(MapRole::Counters, 0, counter::SIZE, ports),
            spec(MapRole::XdpDelivery, 0, 4, 1),
            spec(MapRole::TcDelivery, 0, 4, 2),
        ]
    }

    /// All words of a memory, for a map of a new edition.
    pub fn contents(&self, memory: Memory) -> &[u64] {
        self.image.words(memory)
    }

    /// Names the changes made so far, for [`reclaim`](Self::reclaim).
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Adds a binding, behind all of equal priority and copy flag.
    ///
    /// # Errors
    /// If a limit is reached, or the target is not in the kernel.
    pub fn bind(&mut self, binding: Binding) -> Result<(BindingId, Change), KernelBindError> {
        let index = self.free.last().copied();
        let index = index.unwrap_or(self.bindings.len() as u32);
        full("bindings", self.len() + 1, crate::limits::BINDINGS_MAX)?;
        let sequence = self.sequence;
        let most = Rank::SEQUENCE_MAX as usize;
        full("bindings over its life", sequence as usize, most)?;
        let mut bound = Bound {
            rank: Rank::new(binding.priority, binding.copy, sequence),
            target: binding.target,
            tag: binding.tag,
            entries: Vec::new(),
        };
        let (mut need, renewed) = self.enter(&mut bound, &binding.filter)?;
        self.sequence += 1;
        let first_claim = self.claims.first();
        self.claims.insert(bound.rank, bound.target);
        if self.claims.first() != first_claim {
            need = Recompile::Required;
        }
        if self.free.pop().is_none() {
            self.bindings.push((0, None));
        }
        let place = &mut self.bindings[index as usize];
        place.1 = Some(bound);
        let generation = place.0;
        let id = BindingId { index, generation };
        Ok((id, self.change(need, renewed)))
    }

    /// Removes a binding.
    ///
    /// # Errors
    /// If there is no such binding (any more).
    pub fn unbind(&mut self, id: BindingId) -> Result<Change, KernelBindError> {
        self.bound(id)?;
        let place = &mut self.bindings[id.index as usize];
        let Some(bound) = place.1.take() else {
            return Err(KernelBindError::Unknown(id));
        };
        place.0 = place.0.wrapping_add(1);
        self.free.push(id.index);
        self.epoch += 1;
        for placed in &bound.entries {
            self.leave(*placed);
        }
        let spare = self
            .subtables
            .values()
            .filter(|subtable| subtable.entries == 0);
        let spare = spare.count() + self.opaque.iter().filter(|whole| whole.dead).count();
        let first_claim = self.claims.first();
        self.claims.remove(bound.rank);
        let need = if spare > 0 || self.claims.first() != first_claim {
            Recompile::Optional
        } else {
            Recompile::No
        };
        Ok(self.change(need, false))
    }

    /// Gives a binding another filter; its name, priority, target, tag and
    /// place in the order stay.
    ///
    /// The new filter counts from now on (or from the new program on); the
    /// old one until [`reclaim`](Self::reclaim), so that a frame of both, on
    /// its way through the program, is neither lost nor delivered twice.
    ///
    /// # Errors
    /// If there is no such binding (any more), or a limit is reached; then
    /// the old filter stays.
    pub fn change_filter(
        &mut self,
        id: BindingId,
        filter: Filter,
    ) -> Result<Change, KernelBindError> {
        let old = self.bound(id)?;
        let mut bound = Bound {
            rank: old.rank,
            target: old.target,
            tag: old.tag,
            entries: Vec::new(),
        };
        let (need, renewed) = self.enter(&mut bound, &filter)?;
        let place = &mut self.bindings[id.index as usize].1;
        if let Some(old) = place.replace(bound) {
            for placed in old.entries {
                self.retired
                    .push_back((self.epoch, Retired::Placed(placed)));
            }
        }
        Ok(self.change(need, renewed))
    }

    /// Records that all changes up to `epoch` have been applied, with the
    /// programs they need, and that every frame that was under way in a
    /// program then is through (an RCU grace period has passed since). Ends
    /// filters that were changed, and uses memory again.
    pub fn reclaim(&mut self, epoch: u64) -> Change {
        while let Some((at, _)) = self.retired.front()
            && *at <= epoch
        {
            let Some((_, retired)) = self.retired.pop_front() else {
                break;
            };
            match retired {
                Retired::Units(unit, units) => self.image.give(unit, units),
                Retired::Entry(entry) => self.image.table.give(entry),
                Retired::Placed(placed) => {
                    self.epoch += 1;
                    self.leave(placed);
                }
            }
        }
        self.change(Recompile::No, false)
    }

    /// Whether [`reclaim`](Self::reclaim) has something to do.
    pub fn is_quiescent(&self) -> bool {
        self.retired.is_empty()
    }

    pub(super) fn change(&mut self, programs: Recompile, renewed: bool) -> Change {
        let writes = self.image.take_writes();
        Change {
            writes: if renewed { Vec::new() } else { writes },
            programs,
            renewed,
        }
    }

    fn bound(&self, id: BindingId) -> Result<&Bound, KernelBindError> {
        let place = self.bindings.get(id.index as usize);
        let place = place.filter(|(generation, _)| *generation == id.generation);
        let bound = place.and_then(|(_, bound)| bound.as_ref());
        bound.ok_or(KernelBindError::Unknown(id))
    }

    fn slot(&self, target: Target) -> Result<u32, KernelBindError> {
        match target {
            Target::Port(slot) if slot < self.options.ports_max => Ok(slot),
            Target::Port(slot) => Err(KernelBindError::Full {
                what: "ports",
                found: slot as usize + 1,
                max: self.options.ports_max as usize,
            }),
            Target::Kernel => Ok(SLOT_KERNEL),
            Target::Drop => Ok(SLOT_DROP),
            Target::Fanout(number) => match self.fanouts.unit(number) {
                Some(unit) => Ok(SLOT_FANOUT | unit),
                None => Err(KernelBindError::Target(target)),
            },
            Target::Tap(_) | Target::Link(_) => Err(KernelBindError::Target(target)),
        }
    }

    /// Enters a filter: as entries if its paths are data, else whole.
    fn enter(
        &mut self,
        bound: &mut Bound,
        filter: &Filter,
    ) -> Result<(Recompile, bool), KernelBindError> {
        let slot = self.slot(bound.target)?;
        let mut lowered_paths = lower_paths(filter);
        lowered_paths
            .iter_mut()
            .flatten()
            .for_each(|lowered| self.widen(lowered));
        if lowered_paths
            .as_ref()
            .is_some_and(|lowered_paths| !self.values_fit(lowered_paths))
        {
            lowered_paths = None;
        }
        match &lowered_paths {
            Some(lowered_paths) => self.check(lowered_paths)?,
            None => full("whole filters", self.opaque.len() + 1, limits::OPAQUE_MAX)?,
        }
        let units: usize = lowered_paths
            .iter()
            .flatten()
            .map(LoweredPath::rest_units_max)
            .sum();
        let entries = lowered_paths.as_ref().map_or(1, Vec::len);
        let is_new = |lowered: &&LoweredPath| lowered.subtable.is_none();
        let new = lowered_paths.iter().flatten().filter(is_new).count();
        // A subtable brings its guards and its hash.
        let mut units = (units + new * subtable::UNITS_MAX as usize) as u32;
        if new > 0 {
            units += self.pruning_units(self.subtables.len() + new);
        }
        let renewed = self.make_room(units, entries as u32)?;
        self.epoch += 1;
        let need = match lowered_paths {
            Some(lowered_paths) => {
                let entered = lowered_paths
                    .iter()
                    .map(|lowered| self.enter_path(bound, lowered, slot));
                entered.max().unwrap_or(Recompile::No)
            }
            None => {
                self.enter_opaque(bound, filter, slot);
                Recompile::Required
            }
        };
        Ok((if renewed { Recompile::Required } else { need }, renewed))
    }

    /// Finds a draft's subtable; where there are many, one that it shares with
    /// others, unless there are many under its key there.
    fn widen(&self, lowered: &mut LoweredPath) {
        lowered.subtable = self.names.get(&lowered.signature).copied();
        if lowered.subtable.is_some() || self.subtables.len() < limits::RELAXED_MIN {
            return;
        }
        let Some(mut relaxed) = lowered.relaxed() else {
            return;
        };
        relaxed.subtable = self.names.get(&relaxed.signature).copied();
        let is_full = self.subtables.len() >= limits::SUBTABLES_MAX;
        if is_full || self.under_key(&relaxed) < RELAXED_KEY_MAX {
            *lowered = relaxed;
        }
    }

    /// How many bindings there are under a draft's key.
    fn under_key(&self, lowered: &LoweredPath) -> usize {
        let Some(subtable) = self.subtable(lowered) else {
            return 0;
        };
        let key = subtable.key(&lowered.values);
        let (hash, key) = (subtable.hash(&key), &key[..subtable.lanes]);
        self.image.entries_of(hash, subtable.number, key).count()
    }

    fn subtable(&self, lowered: &LoweredPath) -> Option<&Subtable> {
        self.subtables.get(&lowered.subtable?)
    }

    /// Whether each subtable can hold the values that the drafts' tests use.
    fn values_fit(&self, lowered_paths: &[LoweredPath]) -> bool {
        if lowered_paths.iter().all(|lowered| lowered.tests.is_empty()) {
            return true;
        }
        lowered_paths.iter().all(|lowered| {
            let mut used: Vec<&Expr> = lowered_paths
                .iter()
                .filter(|other| other.signature == lowered.signature)
                .flat_map(LoweredPath::exprs)
                .collect();
            used.extend(
                self.subtable(lowered)
                    .iter()
                    .flat_map(|subtable| &subtable.values),
            );
            used.sort();
            used.dedup();
            used.len() <= candidate::VALUES_MAX
        })
    }

    /// Checks the limits on subtables and on bindings under one key.
    fn check(&self, lowered_paths: &[LoweredPath]) -> Result<(), KernelBindError> {
        let is_new = |lowered: &&LoweredPath| lowered.subtable.is_none();
        let new = lowered_paths
            .iter()
            .filter(is_new)
            .map(|lowered| &lowered.signature);
        let mut new: Vec<&Signature> = new.collect();
        new.sort();
        new.dedup();
        full(
            "shapes",
            self.subtables.len() + new.len(),
            limits::SUBTABLES_MAX,
        )?;
        for lowered in lowered_paths {
            let same = |other: &&LoweredPath| {
                (&other.signature, &other.values) == (&lowered.signature, &lowered.values)
            };
            let found = lowered_paths.iter().filter(same).count() + self.under_key(lowered);
            full("bindings under one key", found, limits::KEY_BINDINGS_MAX)?;
        }
        Ok(())
    }

    /// Makes room for this many units and entries; `true` if memory had to
    /// grow for it.
    pub(super) fn make_room(&mut self, units: u32, entries: u32) -> Result<bool, KernelBindError> {
        if self.image.has_room(units, entries) {
            return Ok(false);
        }
        let subtables = &self.subtables;
        let hash_of = |number, key: &[u64]| {
            subtables
                .get(&number)
                .map_or(0, |subtable| subtable.hash(key))
        };
        let wholes: Vec<u32> = self.opaque.iter().map(|whole| whole.entry).collect();
        let grown = self.image.grown((units, entries), &wholes, hash_of);
        let Some((image, moved)) = grown else {
            let found = self.image.table.linked as usize + entries as usize;
            let most = limits::KEYS_MAX as usize;
            return Err(KernelBindError::Full {
                what: "table entries",
                found: found.max(most + 1),
                max: most,
            });
        };
        self.image = image;
        self.edition += 1;
        // The old image's programs go on with that; the new one's find entries
        // in their new places only.
        let bound = self.bindings.iter_mut().filter_map(|(_, b)| b.as_mut());
        let bound = bound.flat_map(|bound| &mut bound.entries);
        self.retired
            .retain(|(_, retired)| !matches!(retired, Retired::Entry(_)));
        let retired = self.retired.iter_mut().filter_map(|(_, r)| match r {
            Retired::Placed(placed) => Some(placed),
            Retired::Units(..) | Retired::Entry(_) => None,
        });
        let placed = bound.chain(retired).map(Placed::entry_mut);
        let wholes = self.opaque.iter_mut().map(|whole| &mut whole.entry);
        placed
            .chain(wholes)
            .for_each(|entry| *entry = moved[*entry as usize]);
        Ok(true)
    }

    fn subtable_for(&mut self, lowered: &LoweredPath) -> (u32, Recompile) {
        // Another draft of the same filter may have made it.
        let known = lowered
            .subtable
            .or_else(|| self.names.get(&lowered.signature).copied());
        if let Some(number) = known {
            return (number, Recompile::No);
        }
        let number = self.subtables_made;
        self.subtables_made += 1;
        let (name, image) = (lowered.signature.clone(), &mut self.image);
        let unit = image.take(Subtable::units(&name.fields));
        self.names.insert(name.clone(), number);
        let subtable = Subtable::new(number, name, self.secret, unit, image);
        self.subtables.insert(number, subtable);
        (number, Recompile::Required)
    }

    fn enter_path(&mut self, bound: &mut Bound, lowered: &LoweredPath, slot: u32) -> Recompile {
        let (number, mut need) = self.subtable_for(lowered);
        let Some(subtable) = self.subtables.get_mut(&number) else {
            unreachable!("the shape was found or made above");
        };
        for expr in lowered.exprs() {
            if !subtable.values.contains(expr) {
                subtable.values.push(expr.clone());
                need = Recompile::Required;
            }
        }
        let key = subtable.key(&lowered.values);
        let key = &key[..subtable.lanes];
        let hash = subtable.hash(key);
        let image = &mut self.image;
        let entry = image.take_entry(Some(hash));
        // The rest of the entry, then the entry, and only then the way to it.
        let (rest, at) = lowered.write_rest(subtable, key, image);
        image.put_entry(entry, entry::RANK, bound.rank.to_bits());
        image.put_entry(entry, entry::SLOT, slot.into());
        image.put_entry(entry, entry::TAG_SNAP, pair(bound.tag, lowered.snap));
        image.put_entry(entry, entry::REST_SUBTABLE, pair(at, number));
        for (lane, word) in key.iter().take(entry::KEY_WORDS).enumerate() {
            image.put_entry(entry, entry::KEY + lane as u32, *word);
        }
        subtable.note(&lowered.values, lowered.span);
        for (guard, word) in subtable.pass(&lowered.values) {
            image.put(subtable.unit, subtable::GUARDS + guard as u32, word);
        }
        for (prefilter, arm) in self.prefilter_arms.get(&number).into_iter().flatten() {
            let PrefilteredArms {
                key: ask,
                prefilter,
                ..
            } = &mut self.prefilters[*prefilter];
            if let Some(span) = subtable.span_of(ask, &lowered.values, lowered.span) {
                prefilter.add(span, *arm, 1, image);
            }
        }
        let rank = bound.rank.to_bits();
        if rank < image.get(subtable.unit, subtable::BEST) {
            image.put(subtable.unit, subtable::BEST, rank);
        }
        if let Some(pruning) = &mut self.pruning {
            pruning.add(subtable, |field| lowered.values[field], rank, image);
        }
        image.link(hash, entry);
        let span = lowered.span;
        bound.entries.push(Placed::Entry { entry, rest, span });
        need
    }

    fn enter_opaque(&mut self, bound: &mut Bound, filter: &Filter, slot: u32) {
        let entry = self.image.take_entry(None);
        let image = &mut self.image;
        image.put_entry(entry, entry::RANK, bound.rank.to_bits());
        image.put_entry(entry, entry::SLOT, slot.into());
        image.put_entry(entry, entry::TAG_SNAP, pair(bound.tag, u32::MAX));
        let whole = OpaqueFilter {
            rank: bound.rank,
            entry,
            filter: filter.clone(),
            dead: false,
        };
        let at = self
            .opaque
            .partition_point(|other| other.rank <= whole.rank);
        self.opaque.insert(at, whole);
        bound.entries.push(Placed::Opaque { entry });
    }

    /// Hides an entry from frames, or makes a opaque filter say nothing.
    fn leave(&mut self, placed: Placed) {
        match placed {
            Placed::Opaque { entry } => {
                self.image.put_entry(entry, entry::RANK, u64::MAX);
                if let Some(whole) = self.opaque.iter_mut().find(|whole| whole.entry == entry) {
                    whole.dead = true;
                }
            }
            Placed::Entry { entry, rest, span } => {
                let (number, key) = self.image.key(entry);
                let Some(subtable) = self.subtables.get_mut(&number) else {
                    unreachable!("a shape outlives its entries");
                };
                let hash = subtable.hash(&key);
                self.image.unlink(hash, entry);
                subtable.forget(&key, span);
                for (prefilter, arm) in self.prefilter_arms.get(&number).into_iter().flatten() {
                    let PrefilteredArms {
                        key: ask,
                        prefilter,
                        ..
                    } = &mut self.prefilters[*prefilter];
                    if let Some(span) = subtable.span_of_key(ask, &key, span) {
                        prefilter.remove(span, *arm, &mut self.image);
                    }
                }
                if let Some(pruning) = &mut self.pruning {
                    let value_of = |field| subtable.value_of(field, &key);
                    pruning.remove(subtable, value_of, &mut self.image);
                }
                self.retired.push_back((self.epoch, Retired::Entry(entry)));
                if let Some((unit, units)) = rest {
                    self.retire_units(unit, units);
                }
            }
        }
    }

    pub(super) fn retire_units(&mut self, unit: u32, units: u32) {
        self.retired
            .push_back((self.epoch, Retired::Units(unit, units)));
    }
}

impl LoweredPath {
    /// Units of what an entry has besides its line.
    fn rest_units(&self, lanes: usize) -> u32 {
        let tests = match (entry::rest_key_tests(lanes), self.tests.len() as u32) {
            (0, 0) => 0,
            (key, tests) => key + tests + 1,
        };
        tests.div_ceil(UNIT_BYTES / TEST_BYTES)
    }

    fn rest_units_max(&self) -> usize {
        self.rest_units(self.signature.fields.len().div_ceil(2)) as usize
    }

    /// Writes the rest of the key, and the tests; gives the piece, if there is
    /// one, and where, counted in tests, or 0.
    fn write_rest(
        &self,
        subtable: &Subtable,
        key: &[u64],
        image: &mut Image,
    ) -> (Option<(u32, u32)>, u32) {
        let units = self.rest_units(subtable.lanes);
        if units == 0 {
            return (None, 0);
        }
        let unit = image.take(units);
        for (word, lane) in key.iter().skip(entry::KEY_WORDS).enumerate() {
            image.put(unit, word as u32, *lane);
        }
        let place = |expr: &Expr| {
            let found = subtable.values.iter().position(|known| known == expr);
            found.unwrap_or(candidate::VALUES_MAX) as u64
        };
        let tests = self.tests.iter().map(|test| test.words(place));
        let first = entry::rest_key_tests(subtable.lanes);
        for (index, words) in (first..).zip(tests.chain([[super::layout::test::END, 0]])) {
            for (half, word) in (0..).zip(words) {
                image.put(unit, index * 2 + half, word);
            }
        }
        (Some((unit, units)), unit * (UNIT_BYTES / TEST_BYTES))
    }
}

/// Two numbers of 32 bits as one word: the one at the lower address first.
pub(super) fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

pub(super) fn full(what: &'static str, found: usize, max: usize) -> Result<(), KernelBindError> {
    if found > max {
        return Err(KernelBindError::Full { what, found, max });
    }
    Ok(())
}
