//! The plan to look at: for lowering it elsewhere, and for people.

use super::Plan;
use super::subtable::{ANY, Shape};
use super::table::Entry;
use crate::binding::{BindingId, Rank, Target};
use crate::expr::Formula;
use crate::filter::{Field, Filter, Snap, Test, TestText};
use std::fmt;
use weir_filter::ir::{Op, Operand, Value};

impl Plan {
    /// The shapes, in the order in which they are tried.
    pub fn shapes(&self) -> impl Iterator<Item = ShapeView<'_>> {
        self.order.iter().filter_map(|&(_, number)| {
            let shape = self.shapes.get(number)?;
            Some(ShapeView {
                plan: self,
                number,
                shape,
            })
        })
    }

    /// The names of all expressions in use, in no order.
    pub fn exprs(&self) -> impl Iterator<Item = Value> {
        self.pool.names()
    }

    /// The operation that makes an expression; its operands are expressions
    /// of the plan.
    ///
    /// # Panics
    /// If the plan never had an expression of that name.
    pub fn op(&self, expr: Value) -> Op {
        self.pool.op(expr)
    }

    /// The bindings whose programs run whole, in the order of their ranks: as
    /// they are too complex for tables or, unless the plan is
    /// [`tabled`](Plan::tabled), as they are few.
    pub fn whole(&self) -> impl Iterator<Item = (Rank, BindingId, &Filter)> {
        let complex = self.whole.iter().filter_map(|(&rank, &index)| {
            let bound = self.bound(index)?;
            let generation = bound.generation;
            Some((rank, BindingId { index, generation }, &bound.filter))
        });
        let few = self.direct.runs().iter();
        let few = few.map(|run| (run.delivery.rank, run.delivery.binding, &run.filter));
        let mut all: Vec<_> = complex.chain(few).collect();
        all.sort_unstable_by_key(|(rank, ..)| *rank);
        all.into_iter()
    }

    /// The plan in words: shapes, fields, entries, order. At most `entries`
    /// entries of each shape are written out.
    pub fn explain(&self, entries: usize) -> Explain<'_> {
        Explain {
            plan: self,
            entries,
        }
    }
}

/// A shape of a plan: a table whose keys are values of some fields.
#[derive(Clone, Copy)]
pub struct ShapeView<'p> {
    plan: &'p Plan,
    number: u32,
    shape: &'p Shape,
}

impl<'p> ShapeView<'p> {
    /// A small number that only this shape has while it lasts.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The fields of its keys. None: one key, which every frame has.
    pub fn fields(&self) -> &'p [Field] {
        &self.shape.fields
    }

    /// The value that all entries have in a field, if they have the same: a
    /// frame with another has no entry here.
    pub fn guard(&self, field: usize) -> Option<u32> {
        let parts = self.shape.parts.iter();
        let guard = parts.filter(|part| part.field as usize == field);
        let guard = guard.map(|part| part.guard).find(|guard| *guard != ANY)?;
        u32::try_from(guard).ok()
    }

    /// How many values its entries have in a field; `None` if more than
    /// [`limits::CENSUS_MAX`](crate::limits::CENSUS_MAX), or if the plan lists
    /// too many in all.
    pub fn distinct(&self, field: usize) -> Option<usize> {
        self.shape.distinct(field)
    }

    /// No entry has a lesser rank.
    pub fn best(&self) -> Rank {
        self.shape.best
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.shape.table.len()
    }

    /// Whether there are none; never true of a shape in a plan.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries, in no order. Several may have the same key.
    pub fn entries(&self) -> impl Iterator<Item = EntryView<'p>> {
        let (plan, shape) = (self.plan, self.shape);
        let entries = shape.table.entries();
        entries.map(move |(index, entry)| EntryView::new(plan, shape, index, entry))
    }
}

/// An entry of a shape: one accept path of one binding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryView<'p> {
    /// The values that the shape's fields must have.
    pub key: Vec<u32>,
    /// What else must hold.
    pub tests: &'p [Test],
    /// How much of the frame is delivered.
    pub snap: Snap,
    /// Where the binding stands in the order of the plan.
    pub rank: Rank,
    /// The binding.
    pub binding: BindingId,
    /// Where the frame goes.
    pub target: Target,
    /// The binding's tag.
    pub tag: u32,
}

impl<'p> EntryView<'p> {
    fn new(plan: &'p Plan, shape: &Shape, index: u32, entry: Entry) -> EntryView<'p> {
        let residual = plan.residuals.get(entry.residual);
        EntryView {
            key: shape.values(&shape.table.key(index)),
            tests: residual.map_or(&[], |residual| &residual.tests),
            snap: residual.map_or(Snap::Const(entry.snap), |residual| residual.snap),
            rank: entry.rank,
            binding: entry.binding,
            target: entry.target,
            tag: entry.tag,
        }
    }
}

/// A plan in words; see [`Plan::explain`].
#[derive(Clone, Copy)]
pub struct Explain<'p> {
    plan: &'p Plan,
    entries: usize,
}

impl fmt::Display for Explain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan;
        let shapes = plan.order.len();
        writeln!(
            f,
            "{} bindings, {shapes} shapes, {} run whole",
            plan.len(),
            plan.whole().count()
        )?;
        if let Some((tree, _)) = plan.index.live() {
            let [splits, entries, groups] = tree.counts();
            writeln!(
                f,
                "looked up in a tree of {splits} inner nodes, {entries} entries in leaves and \
                 {groups} groups"
            )?;
        }
        for shape in plan.shapes() {
            self.write_shape(f, shape)?;
        }
        for (rank, binding, filter) in plan.whole() {
            let size = filter.program().len();
            writeln!(f, "whole program of {size} instructions")?;
            writeln!(f, "  {binding}, {}", order(rank))?;
        }
        Ok(())
    }
}

impl Explain<'_> {
    fn formula(&self, expr: Value) -> impl fmt::Display {
        Formula(Operand::Val(expr), |expr| self.plan.op(expr))
    }

    fn write_shape(&self, f: &mut fmt::Formatter<'_>, shape: ShapeView<'_>) -> fmt::Result {
        let (number, len, best) = (shape.number(), shape.len(), shape.best().priority());
        writeln!(f, "shape {number}: {len} entries, priorities up to {best}")?;
        for (index, field) in shape.fields().iter().enumerate() {
            write!(f, "  {}", self.formula(field.expr))?;
            if field.mask != self.plan.pool.bits(field.expr) {
                write!(f, " & {:#x}", field.mask)?;
            }
            match (shape.guard(index), shape.distinct(index)) {
                (Some(guard), _) => writeln!(f, " == {}", Operand::Imm(guard))?,
                (None, Some(values)) => writeln!(f, ": {values} values")?,
                (None, None) => writeln!(f, ": many values")?,
            }
        }
        for entry in shape.entries().take(self.entries) {
            self.write_entry(f, shape, &entry)?;
        }
        if len > self.entries {
            writeln!(f, "    and {} more", len - self.entries)?;
        }
        Ok(())
    }

    fn write_entry(
        &self,
        f: &mut fmt::Formatter<'_>,
        shape: ShapeView<'_>,
        entry: &EntryView<'_>,
    ) -> fmt::Result {
        write!(f, "    ")?;
        let numbered = entry.key.iter().enumerate();
        for (_, value) in numbered.filter(|(index, _)| shape.guard(*index).is_none()) {
            write!(f, "{}, ", Operand::Imm(*value))?;
        }
        for test in entry.tests {
            write!(f, "{}, ", TestText(*test, |expr| self.plan.op(expr)))?;
        }
        let (binding, target) = (entry.binding, entry.target);
        writeln!(f, "{} → {target} ({binding})", order(entry.rank))
    }
}

fn order(rank: Rank) -> String {
    let kind = if rank.is_copy() { "copies" } else { "takes" };
    format!("priority {} {kind}", rank.priority())
}
