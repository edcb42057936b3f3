//! Which subtables are tried together: a prefilter over one field says which of them
//! are possible for the value that a frame has in it.
//!
//! ```text
//!  EtherType ─┬─ 0x0800 ──────────┬─ dst port ─┬─ subtable 4
//!             │                   │            └─ subtable 9
//!             ├─ 0x86dd ─ …       └─ dst address ─ …
//!             └─ 0x0806, 0x8035 ─ …
//! ```
//!
//! Arms are by the values that subtables ask for, as long as these are few and
//! it saves prefilters; in the end each subtable is split by its most selective field,
//! those with the same one together.

use super::layout::scratch;
use super::plan::{KernelPlan, PrefilteredArms};
use super::prefilter::{ARMS_MAX, Prefilter, PrefilterKey, Span};
use super::subtable::Subtable;
use std::collections::BTreeMap;

/// A part of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Node {
    /// A subtable, by its number.
    Subtable(u32),
    Switch(Switch),
}

/// Subtables behind a common prefilter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Switch {
    pub(super) key: PrefilterKey,
    /// Which of the plan's; `None` if there was no room for it.
    pub(super) prefilter: Option<usize>,
    /// A bit of the prefilter's bytes for each, at most [`ARMS_MAX`].
    pub(super) arms: Vec<Vec<Node>>,
}

/// Deeper switches would save little, and are bounded like everything; one
/// more, on the most selective field, may come below.
const DEPTH_MAX: usize = scratch::SWITCHES_MAX as usize - 1;

/// The stream of the prefilters' hash; subtables have their numbers.
const PREFILTERS: u64 = u64::MAX - 1;

/// With fewer subtables prefilters cost more than they save.
const PREFILTERED_MIN: usize = 4;

/// Subtables as the tree sees them; what they ask for has numbers.
struct TreeBuilder<'p> {
    keys: Vec<PrefilterKey>,
    trees: Vec<LeafCandidate<'p>>,
}

/// A subtable.
struct LeafCandidate<'p> {
    subtable: &'p Subtable,
    split_key: Option<u32>,
    /// The fields that it compares with few values, and these values, sorted.
    few: Vec<(u32, Vec<u32>)>,
}

fn build(subtables: &[&Subtable]) -> Vec<Node> {
    let grove = TreeBuilder::new(subtables);
    let all: Vec<&LeafCandidate<'_>> = grove.trees.iter().collect();
    grove.build_nodes(&all, &mut Vec::new())
}

/// Arms by their values, and the subtables of each; those that do not ask.
type Arms<'g, 'p> = (
    Vec<(&'g [u32], Vec<&'g LeafCandidate<'p>>)>,
    Vec<&'g LeafCandidate<'p>>,
);

impl<'p> TreeBuilder<'p> {
    fn new(subtables: &[&'p Subtable]) -> TreeBuilder<'p> {
        let mut numbers = BTreeMap::new();
        let mut asks = Vec::new();
        let mut number = |prefilter_key: PrefilterKey| {
            *numbers
                .entry(prefilter_key)
                .or_insert_with_key(|prefilter_key| {
                    asks.push(prefilter_key.clone());
                    asks.len() as u32 - 1
                })
        };
        let mut trees = Vec::new();
        for subtable in subtables {
            let telling = subtable.split.as_ref().map(|telling| telling.key.clone());
            let few = subtable
                .small_value_keys()
                .map(|(prefilter_key, values)| (number(prefilter_key), values));
            trees.push(LeafCandidate {
                subtable,
                few: few.collect(),
                split_key: telling.map(&mut number),
            });
        }
        TreeBuilder { keys: asks, trees }
    }

    fn build_nodes<'g>(
        &self,
        subtables: &[&'g LeafCandidate<'p>],
        tested: &mut Vec<u32>,
    ) -> Vec<Node> {
        let best = self
            .best(subtables, tested)
            .filter(|_| tested.len() < DEPTH_MAX);
        let Some(prefilter_key) = best else {
            return self.leaves(subtables, tested);
        };
        let (arms, rest) = arms(subtables, prefilter_key);
        tested.push(prefilter_key);
        let mut nodes = Vec::new();
        for arms in arms.chunks(ARMS_MAX) {
            let arms = arms
                .iter()
                .map(|(_, subtables)| self.build_nodes(subtables, tested));
            nodes.push(Node::Switch(Switch {
                key: self.keys[prefilter_key as usize].clone(),
                prefilter: None,
                arms: arms.collect(),
            }));
        }
        tested.pop();
        // What does not ask for it may have something else in common.
        assert!(rest.len() < subtables.len(), "some shape asks for it");
        nodes.extend(self.build_nodes(&rest, tested));
        nodes
    }

    /// The best field to test first, if any: the field after which the fewest prefilters remain,
    /// for its most frequent value and for an absent one, on average.
    fn best(&self, subtables: &[&LeafCandidate<'p>], tested: &[u32]) -> Option<u32> {
        let mut counts = BTreeMap::new();
        for (prefilter_key, _) in subtables.iter().flat_map(|subtable| &subtable.few) {
            *counts.entry(*prefilter_key).or_insert(0) += 1;
        }
        let shared = counts.iter().filter(|(_, count)| **count > 1);
        let asks = shared
            .map(|(prefilter_key, _)| *prefilter_key)
            .filter(|prefilter_key| !tested.contains(prefilter_key));
        let scored = asks.map(|prefilter_key| {
            let (arms, rest) = arms(subtables, prefilter_key);
            let rest = prefilters_needed(&rest) + arms.len().div_ceil(ARMS_MAX);
            let mut of_value = BTreeMap::new();
            for (values, subtables) in &arms {
                let tells = prefilters_needed(subtables);
                for value in *values {
                    *of_value.entry(*value).or_insert(0) += tells;
                }
            }
            let most = of_value.values().max().copied().unwrap_or(0);
            (2 * rest + most, prefilter_key)
        });
        let (score, prefilter_key) = scored.min()?;
        (score < 2 * prefilters_needed(subtables)).then_some(prefilter_key)
    }

    /// Subtables one by one, those with the same split field behind one prefilter.
    fn leaves(&self, subtables: &[&LeafCandidate<'p>], tested: &[u32]) -> Vec<Node> {
        let mut nodes = Vec::new();
        let mut told: Vec<(u32, Vec<u32>)> = Vec::new();
        for LeafCandidate {
            subtable,
            split_key: telling,
            ..
        } in subtables
        {
            let Some(prefilter_key) =
                telling.filter(|prefilter_key| !tested.contains(prefilter_key))
            else {
                nodes.push(Node::Subtable(subtable.number));
                continue;
            };
            match told.iter_mut().find(|(known, _)| *known == prefilter_key) {
                Some((_, numbers)) => numbers.push(subtable.number),
                None => told.push((prefilter_key, vec![subtable.number])),
            }
        }
        for (prefilter_key, numbers) in told {
            for numbers in numbers.chunks(ARMS_MAX) {
                let arms = numbers.iter().map(|number| vec![Node::Subtable(*number)]);
                nodes.push(Node::Switch(Switch {
                    key: self.keys[prefilter_key as usize].clone(),
                    prefilter: None,
                    arms: arms.collect(),
                }));
            }
        }
        nodes
    }
}

/// Subtables by the values that they ask for.
fn arms<'g, 'p>(subtables: &[&'g LeafCandidate<'p>], prefilter_key: u32) -> Arms<'g, 'p> {
    let mut arms: Vec<(&[u32], Vec<&LeafCandidate<'_>>)> = Vec::new();
    let mut rest = Vec::new();
    for subtable in subtables {
        let Some((_, values)) = subtable
            .few
            .iter()
            .find(|(known, _)| *known == prefilter_key)
        else {
            rest.push(*subtable);
            continue;
        };
        match arms.iter_mut().find(|(known, _)| known == values) {
            Some((_, subtables)) => subtables.push(subtable),
            None => arms.push((values, vec![subtable])),
        }
    }
    (arms, rest)
}

/// How many prefilters the subtables' split fields need.
fn prefilters_needed(subtables: &[&LeafCandidate<'_>]) -> usize {
    let mut asks: Vec<u32> = subtables
        .iter()
        .filter_map(|subtable| subtable.split_key)
        .collect();
    let untold = subtables.len() - asks.len();
    asks.sort_unstable();
    let prefilters = asks.chunk_by(|a, b| a == b);
    prefilters
        .map(|same| same.len().div_ceil(ARMS_MAX))
        .sum::<usize>()
        + untold
}

impl Node {
    /// The subtables of this node, in order.
    pub(super) fn subtables(&self, to: &mut Vec<u32>) {
        match self {
            Node::Subtable(number) => to.push(*number),
            Node::Switch(switch) => switch
                .subtables()
                .into_iter()
                .for_each(|arm| to.extend(arm)),
        }
    }
}

impl Switch {
    /// The subtables of each arm.
    fn subtables(&self) -> Vec<Vec<u32>> {
        let arms = self.arms.iter().map(|arm| {
            let mut subtables = Vec::new();
            arm.iter().for_each(|node| node.subtables(&mut subtables));
            subtables
        });
        arms.collect()
    }
}

impl KernelPlan {
    /// Orders the subtables, in parts of `part_subtables` at most, and makes the
    /// prefilters that this needs.
    pub(super) fn build_trees(&mut self, part_subtables: usize) {
        let subtables = self.subtables.values();
        let subtables: Vec<&Subtable> = subtables
            .filter(|subtable| !self.prunes(subtable.number))
            .collect();
        let mut trees: Vec<Vec<Node>> = Vec::new();
        if subtables.len() < PREFILTERED_MIN {
            trees.extend(self.newcomers_of(&[]));
        } else if subtables.len() <= part_subtables {
            trees.push(build(&subtables));
        } else {
            // All at once for a good order, and then in parts.
            let mut order = Vec::new();
            for node in build(&subtables) {
                node.subtables(&mut order);
            }
            let ordered = order.iter().filter_map(|number| self.subtables.get(number));
            let ordered: Vec<&Subtable> = ordered.collect();
            let parts = ordered.chunks(part_subtables);
            trees.extend(parts.map(build));
        }
        let mut old = std::mem::take(&mut self.prefilters);
        self.prefilter_arms.clear();
        for node in trees.iter_mut().flatten() {
            self.assign_prefilters(node, &mut old);
        }
        self.trees = trees;
        for gone in old {
            // Programs that still read the old prefilter get no new values.
            gone.prefilter.open(&mut self.image);
            self.retire_units(gone.prefilter.unit, gone.prefilter.units);
        }
    }

    /// Gives a switch, and those below, their prefilters: those of before, where
    /// they still fit.
    fn assign_prefilters(&mut self, node: &mut Node, old: &mut Vec<PrefilteredArms>) {
        let Node::Switch(switch) = node else { return };
        let arms = switch.subtables();
        let known = old.iter().position(|one| {
            one.key == switch.key && one.arms == arms && !one.prefilter.is_crowded()
        });
        let prefilter = match known {
            Some(known) => Some(old.swap_remove(known).prefilter),
            None => self.new_prefilter(&switch.key, &arms),
        };
        if let Some(prefilter) = prefilter {
            let number = self.prefilters.len();
            switch.prefilter = Some(number);
            for (arm, subtables) in arms.iter().enumerate() {
                for subtable in subtables {
                    self.prefilter_arms
                        .entry(*subtable)
                        .or_default()
                        .push((number, arm));
                }
            }
            self.prefilters.push(PrefilteredArms {
                key: switch.key.clone(),
                arms,
                prefilter,
            });
        }
        for node in switch.arms.iter_mut().flatten() {
            self.assign_prefilters(node, old);
        }
    }

    /// A prefilter with all entries of its subtables, if there is room.
    fn new_prefilter(
        &mut self,
        prefilter_key: &PrefilterKey,
        arms: &[Vec<u32>],
    ) -> Option<Prefilter> {
        let spans = |number: &u32| {
            self.subtables
                .get(number)
                .and_then(|subtable| subtable.spans(prefilter_key))
        };
        let arms: Option<Vec<Vec<(Span, u32)>>> = arms
            .iter()
            .map(|arm| {
                let spans: Option<Vec<_>> = arm.iter().map(spans).collect();
                Some(spans?.concat())
            })
            .collect();
        let arms = arms?;
        let values: usize = arms.iter().map(Vec::len).sum();
        let mut units = Prefilter::units_for(prefilter_key, 2 * values);
        while units > 1 && !self.image.has_room(units, 0) {
            units /= 2;
        }
        if !self.image.has_room(units, 0) {
            return None;
        }
        let unit = self.image.take(units);
        let factor = self.secret.key_hash(PREFILTERS, 0).mix;
        let mut prefilter = Prefilter::new(prefilter_key, unit, units, factor, &mut self.image);
        for (arm, spans) in arms.iter().enumerate() {
            for (span, entries) in spans {
                prefilter.add(*span, arm, *entries, &mut self.image);
            }
        }
        Some(prefilter)
    }

    /// Chooses each subtable's split field again, and the values in it.
    pub(super) fn choose_splits(&mut self) {
        let mut stale = BTreeMap::new();
        for subtable in self.subtables.values() {
            if let Some(prefilter_key) = subtable.resplit() {
                stale.insert(subtable.number, (prefilter_key, BTreeMap::new()));
            }
        }
        if stale.is_empty() {
            return;
        }
        self.for_each_entry(|plan, unit, span| {
            let (number, key) = plan.image.key(unit);
            if let Some((prefilter_key, spans)) = stale.get_mut(&number)
                && let Some(subtable) = plan.subtables.get(&number)
                && let Some(span) = subtable.span_of_key(prefilter_key, &key, span)
            {
                *spans.entry(span).or_insert(0) += 1;
            }
        });
        for (number, (prefilter_key, spans)) in stale {
            if let Some(subtable) = self.subtables.get_mut(&number) {
                subtable.set_split(prefilter_key, spans);
            }
        }
    }
}
