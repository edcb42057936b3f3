//! What a user's filters ask of the programs that all share.
//!
//! All filters of an interface are one program, which is verified anew with
//! each that runs whole and with each new shape: what one user's filters take
//! there, everybody waits for. And there is room for so many shapes.

use super::Fabric;
use super::ports::Engine;
use crate::compile::limits::{SHAPES_MAX, STEPS_MAX};
use crate::protocol::{ErrorKind, Refusal};
use std::collections::BTreeSet;
use weir_demux::Filter;
use weir_demux::kernel::{ShapeName, shape_names, verifier_steps};

/// What a filter asks for. Nothing, if it is of somebody who needs no grant.
#[derive(Debug, Default)]
pub(super) struct Effort {
    /// Of the kernel's verifier, if it runs whole.
    steps: u64,
    /// In the tables, otherwise.
    shapes: BTreeSet<ShapeName>,
}

impl<F: Fabric> Engine<F> {
    /// What a filter asks for, which is to be one more of a user's ports', or
    /// another one of the port `of`.
    ///
    /// # Errors
    /// If it is too much together. Whoever needs no grant may take the time.
    pub(super) fn check_effort(
        &self,
        grant: Option<usize>,
        uid: u32,
        of: Option<u32>,
        filter: &Filter,
    ) -> Result<Effort, Refusal> {
        if grant.is_none() {
            return Ok(Effort::default());
        }
        let others = self.ports.iter().filter(|(number, port)| {
            port.grant.is_some() && port.owner.who.uid == uid && Some(**number) != of
        });
        let others: Vec<&Effort> = others.map(|(_, port)| &port.effort).collect();
        Ok(Effort {
            steps: check_steps(&others, filter)?,
            shapes: check_shapes(&others, filter)?,
        })
    }
}

fn check_steps(others: &[&Effort], filter: &Filter) -> Result<u64, Refusal> {
    let used: u64 = others.iter().map(|other| other.steps).sum();
    let left = STEPS_MAX.saturating_sub(used);
    let steps = verifier_steps(filter, left);
    if steps <= left {
        return Ok(steps);
    }
    if used == 0 {
        let message = "the filter has more ways through it than the kernel's verifier can \
                       follow in good time: test fewer fields or ranges more than once";
        return Err(Refusal::new(ErrorKind::Filter, message));
    }
    let message = format!(
        "the filter has more ways through it than the kernel's verifier can follow in good \
         time beside this user's other ports, which take {used} steps of {STEPS_MAX}"
    );
    Err(Refusal::new(ErrorKind::Limit, message))
}

fn check_shapes(others: &[&Effort], filter: &Filter) -> Result<BTreeSet<ShapeName>, Refusal> {
    let shapes = shape_names(filter);
    let is_known = |shape| others.iter().any(|other| other.shapes.contains(shape));
    if shapes.iter().all(is_known) {
        return Ok(shapes);
    }
    let used = others.iter().flat_map(|other| &other.shapes);
    let used: BTreeSet<&ShapeName> = used.collect();
    let all = used.iter().copied().chain(&shapes);
    let needed = all.collect::<BTreeSet<_>>().len();
    if needed <= SHAPES_MAX {
        return Ok(shapes);
    }
    let message = format!(
        "the filter brings this user's shapes to {needed}, of {SHAPES_MAX}: test the same fields \
         as in other ports' filters, or fewer ranges"
    );
    let kind = match used.is_empty() {
        true => ErrorKind::Filter,
        false => ErrorKind::Limit,
    };
    Err(Refusal::new(kind, message))
}
