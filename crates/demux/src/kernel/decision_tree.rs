//! Which shapes are tried together: a sieve over one field says which of them
//! are possible for the value that a frame has in it.
//!
//! ```text
//!  EtherType ─┬─ 0x0800 ──────────┬─ dst port ─┬─ shape 4
//!             │                   │            └─ shape 9
//!             ├─ 0x86dd ─ …       └─ dst address ─ …
//!             └─ 0x0806, 0x8035 ─ …
//! ```
//!
//! Arms are by the values that shapes ask for, as long as these are few and
//! it saves sieves; in the end each shape is asked for its most telling field,
//! those with the same one together.

use super::layout::scratch;
use super::plan::{KernelPlan, Sieved};
use super::prefilter::{ARMS_MAX, Ask, Sieve, Span};
use super::subtable::Shape;
use std::collections::BTreeMap;

/// A part of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Node {
    /// A shape, by its number.
    Shape(u32),
    Switch(Switch),
}

/// Shapes behind a common sieve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Switch {
    pub(super) ask: Ask,
    /// Which of the plan's; `None` if there was no room for it.
    pub(super) sieve: Option<usize>,
    /// A bit of the sieve's bytes for each, at most [`ARMS_MAX`].
    pub(super) arms: Vec<Vec<Node>>,
}

/// Deeper switches would save little, and are bounded like everything; one
/// more, on the most telling field, may come below.
const DEPTH_MAX: usize = scratch::SWITCHES_MAX as usize - 1;

/// The stream of the sieves' hash; shapes have their numbers.
const SIEVES: u64 = u64::MAX - 1;

/// With fewer shapes sieves cost more than they save.
const SIEVED_MIN: usize = 4;

/// Shapes as the tree sees them; what they ask for has numbers.
struct Grove<'p> {
    asks: Vec<Ask>,
    trees: Vec<Seedling<'p>>,
}

/// A shape.
struct Seedling<'p> {
    shape: &'p Shape,
    telling: Option<u32>,
    /// What it asks for with few values, and these, sorted.
    few: Vec<(u32, Vec<u32>)>,
}

fn grow(shapes: &[&Shape]) -> Vec<Node> {
    let grove = Grove::new(shapes);
    let all: Vec<&Seedling<'_>> = grove.trees.iter().collect();
    grove.grow(&all, &mut Vec::new())
}

/// Arms by their values, and the shapes of each; those that do not ask.
type Arms<'g, 'p> = (
    Vec<(&'g [u32], Vec<&'g Seedling<'p>>)>,
    Vec<&'g Seedling<'p>>,
);

impl<'p> Grove<'p> {
    fn new(shapes: &[&'p Shape]) -> Grove<'p> {
        let mut numbers = BTreeMap::new();
        let mut asks = Vec::new();
        let mut number = |ask: Ask| {
            *numbers.entry(ask).or_insert_with_key(|ask| {
                asks.push(ask.clone());
                asks.len() as u32 - 1
            })
        };
        let mut trees = Vec::new();
        for shape in shapes {
            let telling = shape.telling.as_ref().map(|telling| telling.ask.clone());
            let few = shape.few_asks().map(|(ask, values)| (number(ask), values));
            trees.push(Seedling {
                shape,
                few: few.collect(),
                telling: telling.map(&mut number),
            });
        }
        Grove { asks, trees }
    }

    fn grow<'g>(&self, shapes: &[&'g Seedling<'p>], tested: &mut Vec<u32>) -> Vec<Node> {
        let best = self
            .best(shapes, tested)
            .filter(|_| tested.len() < DEPTH_MAX);
        let Some(ask) = best else {
            return self.leaves(shapes, tested);
        };
        let (arms, rest) = arms(shapes, ask);
        tested.push(ask);
        let mut nodes = Vec::new();
        for arms in arms.chunks(ARMS_MAX) {
            let arms = arms.iter().map(|(_, shapes)| self.grow(shapes, tested));
            nodes.push(Node::Switch(Switch {
                ask: self.asks[ask as usize].clone(),
                sieve: None,
                arms: arms.collect(),
            }));
        }
        tested.pop();
        // What does not ask for it may have something else in common.
        assert!(rest.len() < shapes.len(), "some shape asks for it");
        nodes.extend(self.grow(&rest, tested));
        nodes
    }

    /// What is best asked for first, if anything: that after which the fewest
    /// sieves are left, for the value of which most are left and for one that
    /// no shape asks for, on average.
    fn best(&self, shapes: &[&Seedling<'p>], tested: &[u32]) -> Option<u32> {
        let mut counts = BTreeMap::new();
        for (ask, _) in shapes.iter().flat_map(|shape| &shape.few) {
            *counts.entry(*ask).or_insert(0) += 1;
        }
        let shared = counts.iter().filter(|(_, count)| **count > 1);
        let asks = shared
            .map(|(ask, _)| *ask)
            .filter(|ask| !tested.contains(ask));
        let scored = asks.map(|ask| {
            let (arms, rest) = arms(shapes, ask);
            let rest = tells(&rest) + arms.len().div_ceil(ARMS_MAX);
            let mut of_value = BTreeMap::new();
            for (values, shapes) in &arms {
                let tells = tells(shapes);
                for value in *values {
                    *of_value.entry(*value).or_insert(0) += tells;
                }
            }
            let most = of_value.values().max().copied().unwrap_or(0);
            (2 * rest + most, ask)
        });
        let (score, ask) = scored.min()?;
        (score < 2 * tells(shapes)).then_some(ask)
    }

    /// Shapes one by one, those with the same telling field behind one sieve.
    fn leaves(&self, shapes: &[&Seedling<'p>], tested: &[u32]) -> Vec<Node> {
        let mut nodes = Vec::new();
        let mut told: Vec<(u32, Vec<u32>)> = Vec::new();
        for Seedling { shape, telling, .. } in shapes {
            let Some(ask) = telling.filter(|ask| !tested.contains(ask)) else {
                nodes.push(Node::Shape(shape.number));
                continue;
            };
            match told.iter_mut().find(|(known, _)| *known == ask) {
                Some((_, numbers)) => numbers.push(shape.number),
                None => told.push((ask, vec![shape.number])),
            }
        }
        for (ask, numbers) in told {
            for numbers in numbers.chunks(ARMS_MAX) {
                let arms = numbers.iter().map(|number| vec![Node::Shape(*number)]);
                nodes.push(Node::Switch(Switch {
                    ask: self.asks[ask as usize].clone(),
                    sieve: None,
                    arms: arms.collect(),
                }));
            }
        }
        nodes
    }
}

/// Shapes by the values that they ask for.
fn arms<'g, 'p>(shapes: &[&'g Seedling<'p>], ask: u32) -> Arms<'g, 'p> {
    let mut arms: Vec<(&[u32], Vec<&Seedling<'_>>)> = Vec::new();
    let mut rest = Vec::new();
    for shape in shapes {
        let Some((_, values)) = shape.few.iter().find(|(known, _)| *known == ask) else {
            rest.push(*shape);
            continue;
        };
        match arms.iter_mut().find(|(known, _)| known == values) {
            Some((_, shapes)) => shapes.push(shape),
            None => arms.push((values, vec![shape])),
        }
    }
    (arms, rest)
}

/// How many sieves the shapes' telling fields need.
fn tells(shapes: &[&Seedling<'_>]) -> usize {
    let mut asks: Vec<u32> = shapes.iter().filter_map(|shape| shape.telling).collect();
    let untold = shapes.len() - asks.len();
    asks.sort_unstable();
    let sieves = asks.chunk_by(|a, b| a == b);
    sieves
        .map(|same| same.len().div_ceil(ARMS_MAX))
        .sum::<usize>()
        + untold
}

impl Node {
    /// The shapes of this node, in order.
    pub(super) fn shapes(&self, to: &mut Vec<u32>) {
        match self {
            Node::Shape(number) => to.push(*number),
            Node::Switch(switch) => switch.shapes().into_iter().for_each(|arm| to.extend(arm)),
        }
    }
}

impl Switch {
    /// The shapes of each arm.
    fn shapes(&self) -> Vec<Vec<u32>> {
        let arms = self.arms.iter().map(|arm| {
            let mut shapes = Vec::new();
            arm.iter().for_each(|node| node.shapes(&mut shapes));
            shapes
        });
        arms.collect()
    }
}

impl KernelPlan {
    /// Orders the shapes, in parts of `part_shapes` at most, and makes the
    /// sieves that this needs.
    pub(super) fn grow_trees(&mut self, part_shapes: usize) {
        let shapes = self.shapes.values();
        let shapes: Vec<&Shape> = shapes.filter(|shape| !self.prunes(shape.number)).collect();
        let mut trees: Vec<Vec<Node>> = Vec::new();
        if shapes.len() < SIEVED_MIN {
            trees.extend(self.newcomers_of(&[]));
        } else if shapes.len() <= part_shapes {
            trees.push(grow(&shapes));
        } else {
            // All at once for a good order, and then in parts.
            let mut order = Vec::new();
            for node in grow(&shapes) {
                node.shapes(&mut order);
            }
            let ordered = order.iter().filter_map(|number| self.shapes.get(number));
            let ordered: Vec<&Shape> = ordered.collect();
            let parts = ordered.chunks(part_shapes);
            trees.extend(parts.map(grow));
        }
        let mut old = std::mem::take(&mut self.sieves);
        self.sieve_arms.clear();
        for node in trees.iter_mut().flatten() {
            self.place_sieves(node, &mut old);
        }
        self.trees = trees;
        for gone in old {
            // Programs that still look there are not told of new values.
            gone.sieve.open(&mut self.image);
            self.retire_units(gone.sieve.unit, gone.sieve.units);
        }
    }

    /// Gives a switch, and those below, their sieves: those of before, where
    /// they still fit.
    fn place_sieves(&mut self, node: &mut Node, old: &mut Vec<Sieved>) {
        let Node::Switch(switch) = node else { return };
        let arms = switch.shapes();
        let known = old
            .iter()
            .position(|one| one.ask == switch.ask && one.arms == arms && !one.sieve.is_crowded());
        let sieve = match known {
            Some(known) => Some(old.swap_remove(known).sieve),
            None => self.new_sieve(&switch.ask, &arms),
        };
        if let Some(sieve) = sieve {
            let number = self.sieves.len();
            switch.sieve = Some(number);
            for (arm, shapes) in arms.iter().enumerate() {
                for shape in shapes {
                    self.sieve_arms
                        .entry(*shape)
                        .or_default()
                        .push((number, arm));
                }
            }
            self.sieves.push(Sieved {
                ask: switch.ask.clone(),
                arms,
                sieve,
            });
        }
        for node in switch.arms.iter_mut().flatten() {
            self.place_sieves(node, old);
        }
    }

    /// A sieve with all entries of its shapes, if there is room.
    fn new_sieve(&mut self, ask: &Ask, arms: &[Vec<u32>]) -> Option<Sieve> {
        let spans = |number: &u32| self.shapes.get(number).and_then(|shape| shape.spans(ask));
        let arms: Option<Vec<Vec<(Span, u32)>>> = arms
            .iter()
            .map(|arm| {
                let spans: Option<Vec<_>> = arm.iter().map(spans).collect();
                Some(spans?.concat())
            })
            .collect();
        let arms = arms?;
        let values: usize = arms.iter().map(Vec::len).sum();
        let mut units = Sieve::units_for(ask, 2 * values);
        while units > 1 && !self.image.has_room(units, 0) {
            units /= 2;
        }
        if !self.image.has_room(units, 0) {
            return None;
        }
        let unit = self.image.take(units);
        let factor = self.secret.key_hash(SIEVES, 0).mix;
        let mut sieve = Sieve::new(ask, unit, units, factor, &mut self.image);
        for (arm, spans) in arms.iter().enumerate() {
            for (span, entries) in spans {
                sieve.add(*span, arm, *entries, &mut self.image);
            }
        }
        Some(sieve)
    }

    /// Finds each shape's most telling field anew, and the values in it.
    pub(super) fn tell(&mut self) {
        let mut stale = BTreeMap::new();
        for shape in self.shapes.values() {
            if let Some(ask) = shape.retold() {
                stale.insert(shape.number, (ask, BTreeMap::new()));
            }
        }
        if stale.is_empty() {
            return;
        }
        self.each_entry(|plan, unit, span| {
            let (number, key) = plan.image.key(unit);
            if let Some((ask, spans)) = stale.get_mut(&number)
                && let Some(shape) = plan.shapes.get(&number)
                && let Some(span) = shape.span_of_key(ask, &key, span)
            {
                *spans.entry(span).or_insert(0) += 1;
            }
        });
        for (number, (ask, spans)) in stale {
            if let Some(shape) = self.shapes.get_mut(&number) {
                shape.tell(ask, spans);
            }
        }
    }
}
