//! Read access to a plan, for lowering it elsewhere and for display.

use super::Plan;
use super::subtable::{ANY, Subtable};
use super::table::Entry;
use crate::binding::{BindingId, Rank, Target};
use crate::expr::Formula;
use crate::filter::{Field, Filter, Snap, Test, TestText};
use std::fmt;
use weir_filter::ir::{Op, Operand, Value};

impl Plan {
    /// The subtables, in the order in which they are tried.
    pub fn subtables(&self) -> impl Iterator<Item = SubtableView<'_>> {
        self.order.iter().filter_map(|&(_, number)| {
            let subtable = self.subtables.get(number)?;
            Some(SubtableView {
                plan: self,
                number,
                subtable,
            })
        })
    }

    /// The names of all expressions in use, in no order.
    pub fn exprs(&self) -> impl Iterator<Item = Value> {
        self.pool.names()
    }

    /// The operation that computes an expression; its operands are expressions
    /// of the plan.
    ///
    /// # Panics
    /// If the plan never had an expression of that name.
    pub fn op(&self, expr: Value) -> Op {
        self.pool.op(expr)
    }

    /// The bindings whose programs run, in rank order: the opaque ones, and
    /// those of the linear list, which is empty in a plan made by
    /// [`indexed_only`](Plan::indexed_only).
    pub fn opaque(&self) -> impl Iterator<Item = (Rank, BindingId, &Filter)> {
        let complex = self.opaque.iter().filter_map(|(&rank, &index)| {
            let bound = self.bound(index)?;
            let generation = bound.generation;
            Some((rank, BindingId { index, generation }, &bound.filter))
        });
        let few = self.linear.entries().iter();
        let few = few.map(|run| (run.delivery.rank, run.delivery.binding, &run.filter));
        let mut all: Vec<_> = complex.chain(few).collect();
        all.sort_unstable_by_key(|(rank, ..)| *rank);
        all.into_iter()
    }

    /// The plan as text: subtables, fields, entries, order. At most `entries`
    /// entries of each subtable are written.
    pub fn explain(&self, entries: usize) -> Explain<'_> {
        Explain {
            plan: self,
            entries,
        }
    }
}

/// A subtable of a plan: a table whose keys are values of some fields.
#[derive(Clone, Copy)]
pub struct SubtableView<'p> {
    plan: &'p Plan,
    number: u32,
    subtable: &'p Subtable,
}

impl<'p> SubtableView<'p> {
    /// The subtable's number: unique among the present subtables, reused later.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The fields of the subtable's keys. An empty list means one key, which
    /// every frame has.
    pub fn fields(&self) -> &'p [Field] {
        &self.subtable.fields
    }

    /// The value that all entries have in a field: a frame with another value
    /// matches no entry. `None` if the entries differ.
    pub fn guard(&self, field: usize) -> Option<u32> {
        let parts = self.subtable.key_parts.iter();
        let guard = parts.filter(|part| part.field as usize == field);
        let guard = guard.map(|part| part.guard).find(|guard| *guard != ANY)?;
        u32::try_from(guard).ok()
    }

    /// Number of distinct values that the entries have in a field; `None` if it
    /// exceeds
    /// [`limits::COUNTED_VALUES_MAX`](crate::limits::COUNTED_VALUES_MAX), or if
    /// the plan counts too many in all.
    pub fn distinct(&self, field: usize) -> Option<usize> {
        self.subtable.distinct(field)
    }

    /// A lower bound on the ranks of the entries.
    pub fn best(&self) -> Rank {
        self.subtable.best
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.subtable.table.len()
    }

    /// Whether the subtable is empty; never true of a subtable in a plan.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries, in no order. Several may have the same key.
    pub fn entries(&self) -> impl Iterator<Item = EntryView<'p>> {
        let (plan, subtable) = (self.plan, self.subtable);
        let entries = subtable.table.entries();
        entries.map(move |(index, entry)| EntryView::new(plan, subtable, index, entry))
    }
}

/// An entry of a subtable: one accept path of one binding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryView<'p> {
    /// The values that the subtable's fields must have.
    pub key: Vec<u32>,
    /// The residual tests, which must hold besides the key.
    pub tests: &'p [Test],
    /// Number of bytes of the frame that are delivered.
    pub snap: Snap,
    /// The binding's position in the order of the plan.
    pub rank: Rank,
    /// The binding.
    pub binding: BindingId,
    /// The destination of the frame.
    pub target: Target,
    /// The binding's tag.
    pub tag: u32,
}

impl<'p> EntryView<'p> {
    fn new(plan: &'p Plan, subtable: &Subtable, index: u32, entry: Entry) -> EntryView<'p> {
        let residual = plan.residuals.get(entry.residual);
        EntryView {
            key: subtable.values(&subtable.table.key(index)),
            tests: residual.map_or(&[], |residual| &residual.tests),
            snap: residual.map_or(Snap::Const(entry.snap), |residual| residual.snap),
            rank: entry.rank,
            binding: entry.binding,
            target: entry.target,
            tag: entry.tag,
        }
    }
}

/// A plan as text; see [`Plan::explain`].
#[derive(Clone, Copy)]
pub struct Explain<'p> {
    plan: &'p Plan,
    entries: usize,
}

impl fmt::Display for Explain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan;
        let subtables = plan.order.len();
        writeln!(
            f,
            "{} bindings, {subtables} shapes, {} run whole",
            plan.len(),
            plan.opaque().count()
        )?;
        if let Some((tree, _)) = plan.index.live() {
            let [splits, entries, groups] = tree.counts();
            writeln!(
                f,
                "looked up in a tree of {splits} inner nodes, {entries} entries in leaves and \
                 {groups} groups"
            )?;
        }
        for subtable in plan.subtables() {
            self.write_subtable(f, subtable)?;
        }
        for (rank, binding, filter) in plan.opaque() {
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

    fn write_subtable(
        &self,
        f: &mut fmt::Formatter<'_>,
        subtable: SubtableView<'_>,
    ) -> fmt::Result {
        let (number, len, best) = (
            subtable.number(),
            subtable.len(),
            subtable.best().priority(),
        );
        writeln!(f, "shape {number}: {len} entries, priorities up to {best}")?;
        for (index, field) in subtable.fields().iter().enumerate() {
            write!(f, "  {}", self.formula(field.expr))?;
            if field.mask != self.plan.pool.bits(field.expr) {
                write!(f, " & {:#x}", field.mask)?;
            }
            match (subtable.guard(index), subtable.distinct(index)) {
                (Some(guard), _) => writeln!(f, " == {}", Operand::Imm(guard))?,
                (None, Some(values)) => writeln!(f, ": {values} values")?,
                (None, None) => writeln!(f, ": many values")?,
            }
        }
        for entry in subtable.entries().take(self.entries) {
            self.write_entry(f, subtable, &entry)?;
        }
        if len > self.entries {
            writeln!(f, "    and {} more", len - self.entries)?;
        }
        Ok(())
    }

    fn write_entry(
        &self,
        f: &mut fmt::Formatter<'_>,
        subtable: SubtableView<'_>,
        entry: &EntryView<'_>,
    ) -> fmt::Result {
        write!(f, "    ")?;
        let numbered = entry.key.iter().enumerate();
        for (_, value) in numbered.filter(|(index, _)| subtable.guard(*index).is_none()) {
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
