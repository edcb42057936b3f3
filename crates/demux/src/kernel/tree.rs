//! Which shapes are tried together: those that ask for the same value of the
//! same field, so that a frame with another passes them all at once.
//!
//! What a group asks for is data, like a guard: it is opened, for good, when
//! a shape in it gets an entry with another value.

use super::layout::UNIT_WORDS;
use super::plan::KernelPlan;
use super::shape::{Field, GuardState, Shape};

/// A part of a program.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// A shape, by its number.
    Shape(u32),
    Group(Group),
}

/// Shapes behind a common test.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) field: Field,
    /// The word in the store that says what is asked for.
    pub(super) word: u32,
    pub(super) value: u32,
    pub(super) nodes: Vec<Node>,
}

/// Deeper groups would save little, and are bounded like everything.
const DEPTH_MAX: usize = 6;

/// Groups shapes; `word` gives each group the number of its word, as long as
/// there are any.
pub(super) fn grow(shapes: &[&Shape], word: &mut impl FnMut() -> Option<u32>) -> Vec<Node> {
    grow_below(shapes, &mut Vec::new(), word)
}

fn grow_below(
    shapes: &[&Shape],
    tested: &mut Vec<Field>,
    word: &mut impl FnMut() -> Option<u32>,
) -> Vec<Node> {
    let leaves = |shapes: &[&Shape]| {
        shapes
            .iter()
            .map(|shape| Node::Shape(shape.number))
            .collect()
    };
    let Some(field) = commonest(shapes, tested).filter(|_| tested.len() < DEPTH_MAX) else {
        return leaves(shapes);
    };
    let mut groups: Vec<(u32, Vec<&Shape>)> = Vec::new();
    let mut rest = Vec::new();
    for shape in shapes {
        let mut asked = shape.asked();
        let Some((_, value)) = asked.find(|(known, _)| **known == field) else {
            rest.push(*shape);
            continue;
        };
        match groups.iter_mut().find(|(known, _)| *known == value) {
            Some((_, shapes)) => shapes.push(shape),
            None => groups.push((value, vec![shape])),
        }
    }
    let mut nodes = Vec::new();
    for (value, shapes) in groups {
        let place = (shapes.len() > 1).then(&mut *word).flatten();
        let Some(place) = place else {
            nodes.extend(leaves(&shapes));
            continue;
        };
        tested.push(field.clone());
        let below = grow_below(&shapes, tested, word);
        tested.pop();
        nodes.push(Node::Group(Group {
            field: field.clone(),
            word: place,
            value,
            nodes: below,
        }));
    }
    nodes.extend(grow_below_rest(&rest, shapes.len(), tested, word));
    nodes
}

/// What does not ask for the commonest field may have another in common.
fn grow_below_rest(
    rest: &[&Shape],
    all: usize,
    tested: &mut Vec<Field>,
    word: &mut impl FnMut() -> Option<u32>,
) -> Vec<Node> {
    assert!(rest.len() < all, "some shape asks for the commonest field");
    grow_below(rest, tested, word)
}

/// The field that most shapes ask for, if two ask for the same value of it.
fn commonest(shapes: &[&Shape], tested: &[Field]) -> Option<Field> {
    let mut counts: Vec<(&Field, usize, Vec<u32>)> = Vec::new();
    for shape in shapes {
        for (field, value) in shape.asked().filter(|(field, _)| !tested.contains(field)) {
            match counts.iter_mut().find(|(known, _, _)| *known == field) {
                Some((_, count, values)) => {
                    *count += 1;
                    values.push(value);
                }
                None => counts.push((field, 1, vec![value])),
            }
        }
    }
    for (_, _, values) in &mut counts {
        values.sort_unstable();
    }
    let shared = |values: &[u32]| values.windows(2).any(|pair| pair[0] == pair[1]);
    let counts = counts.into_iter().filter(|(_, _, values)| shared(values));
    let best = counts.max_by_key(|(_, count, _)| *count)?;
    Some(best.0.clone())
}

impl Node {
    /// The shapes of this node, in order.
    pub(super) fn shapes(&self, to: &mut Vec<u32>) {
        match self {
            Node::Shape(number) => to.push(*number),
            Node::Group(group) => group.nodes.iter().for_each(|node| node.shapes(to)),
        }
    }

    /// The words of the groups that `number` is in and that ask for `field`.
    pub(super) fn words_of(&self, number: u32, field: &Field, to: &mut Vec<u32>) {
        let Node::Group(group) = self else { return };
        let mut inside = Vec::new();
        self.shapes(&mut inside);
        if !inside.contains(&number) {
            return;
        }
        if group.field == *field {
            to.push(group.word);
        }
        for node in &group.nodes {
            node.words_of(number, field, to);
        }
    }
}

impl Shape {
    /// The fields that have one value in all entries, of those with guards.
    pub(super) fn asked(&self) -> impl Iterator<Item = (&Field, u32)> {
        self.guards.iter().filter_map(|guard| match guard.state {
            GuardState::One(value) => Some((&self.fields[guard.field], value)),
            GuardState::Fresh | GuardState::Open => None,
        })
    }
}

impl KernelPlan {
    /// Groups the shapes, in parts of `part_shapes` at most.
    pub(super) fn grow_trees(&mut self, part_shapes: usize) {
        let mut words = Vec::new();
        let groups_max = 2 * self.shapes.len();
        let units = groups_max.div_ceil(UNIT_WORDS as usize) as u32;
        let fits = self.shapes.len() > 2 && self.image.has_room(units, 0);
        let units: Vec<u32> = (0..if fits { units } else { 0 })
            .map(|_| self.image.take(1))
            .collect();
        for unit in &units {
            for word in 0..UNIT_WORDS {
                self.image.put(*unit, word, 0);
                words.push(unit * UNIT_WORDS + word);
            }
        }
        let mut words = words.into_iter();
        let shapes: Vec<&Shape> = self.shapes.values().collect();
        // All at once for a good order, and then in parts.
        let mut order = Vec::new();
        let mut free = || Some(0);
        for node in grow(&shapes, &mut free) {
            node.shapes(&mut order);
        }
        let ordered: Vec<&Shape> = order
            .iter()
            .filter_map(|number| self.shapes.get(number))
            .collect();
        let trees = ordered.chunks(part_shapes);
        let trees: Vec<Vec<Node>> = trees.map(|part| grow(part, &mut || words.next())).collect();
        let mut asked = Vec::new();
        trees
            .iter()
            .flatten()
            .for_each(|node| words_asked(node, &mut asked));
        for (word, value) in asked {
            self.image.put(word / UNIT_WORDS, word % UNIT_WORDS, value);
        }
        self.trees = trees;
        for unit in std::mem::replace(&mut self.tree_units, units) {
            // Programs that still look there are not told of new values.
            for word in 0..UNIT_WORDS {
                self.image.put(unit, word, 0);
            }
            self.retire_units(unit, 1);
        }
    }
}

fn words_asked(node: &Node, to: &mut Vec<(u32, u64)>) {
    if let Node::Group(group) = node {
        let asked = u64::from(group.value) << 32 | u64::from(group.field.1);
        to.push((group.word, asked));
        group.nodes.iter().for_each(|node| words_asked(node, to));
    }
}
