//! Warnings: valid rules of a policy that look like mistakes.

use super::{Glob, Grant, Grantees, Policy};
use crate::Bytes;
use crate::engine::limits;
use std::fmt;

/// A warning, with its position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters from 1.
    pub column: usize,
    /// The oddity, and what to do if it is not intended.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Warning {
            line,
            column,
            message,
        } = self;
        write!(f, "line {line}, column {column}: {message}")
    }
}

/// The machine to which a policy applies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    /// The names of its interfaces; empty if unknown.
    pub interfaces: Vec<String>,
    /// Its memory; `None` if unknown.
    pub memory: Option<Bytes>,
    /// The broker keeps no folder (`--keep`), so that users cannot send.
    pub keeps_nothing: bool,
}

/// Positions of rules that can only be checked against the machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct RulePositions {
    /// Warnings from the text alone.
    pub(super) warnings: Vec<Warning>,
    /// Interface names without wildcards, with positions.
    pub(super) names: Vec<(String, (usize, usize))>,
    /// The position of each grant.
    pub(super) grants: Vec<(usize, usize)>,
}

/// Number of warnings, and of names, stored for one policy.
pub(super) const WARNINGS_MAX: usize = 64;

/// Number of users, groups and patterns of a grant up to which it is compared
/// to others.
const COMPARED_MAX: usize = 64;

impl Policy {
    /// The warnings, in the order of the file.
    pub fn warnings(&self, machine: &Machine) -> Vec<Warning> {
        let mut all = self.positions.warnings.clone();
        let mut add = |(line, column), message| {
            all.push(Warning {
                line,
                column,
                message,
            });
        };
        if self.grants.is_empty() {
            let message = "it has no [[grant]]: only the superuser can open ports";
            add((1, 1), message.to_owned());
        }
        for (place, grant) in self.positions.grants.iter().zip(&self.grants) {
            if let Some(memory) = machine.memory.filter(|all| grant.memory_total > *all) {
                let total = grant.memory_total;
                let has = Bytes(memory.0 >> 20 << 20);
                let message = format!("memory_total is {total}, and this machine has {has}");
                add(*place, message);
            }
        }
        if machine.keeps_nothing {
            let granted = self.positions.grants.iter().zip(&self.grants);
            for (place, _) in granted.filter(|(_, grant)| grant.send.is_some()) {
                let message = "it grants `send`, and users send only where the broker keeps its \
                               state: give --keep FOLDER";
                add(*place, message.to_owned());
            }
        }
        for (number, later) in self.grants.iter().enumerate() {
            let earlier = self.grants[..number].iter();
            let hidden_by = earlier
                .zip(&self.positions.grants)
                .find(|(one, _)| hides(one, later));
            if let Some((_, (line, _))) = hidden_by {
                let message = format!(
                    "this grant never applies: that of line {line} names its users and \
                     interfaces, and the first that fits counts; give it before"
                );
                add(self.positions.grants[number], message);
            }
        }
        for (name, place) in &self.positions.names {
            if !machine.interfaces.is_empty() && !machine.interfaces.contains(name) {
                add(*place, format!("there is no interface `{name}` now"));
            }
        }
        all.sort_by_key(|warning| (warning.line, warning.column));
        all
    }
}

/// Whether `first` applies wherever `later` would, so that `later` never does.
fn hides(first: &Grant, later: &Grant) -> bool {
    let sizes = |to: &Grantees| to.uids.len() + to.gids.len();
    let are_long = [first, later]
        .iter()
        .any(|grant| sizes(&grant.to).max(grant.interfaces.len()) > COMPARED_MAX);
    !are_long && includes(&first.to, &later.to) && cover(&first.interfaces, &later.interfaces)
}

fn includes(first: &Grantees, later: &Grantees) -> bool {
    first.everyone
        || !later.everyone
            && later.uids.iter().all(|uid| first.uids.contains(uid))
            && later.gids.iter().all(|gid| first.gids.contains(gid))
}

fn cover(first: &[Glob], later: &[Glob]) -> bool {
    later.iter().all(|name| {
        let is_name = name.is_literal();
        let covers = |glob: &Glob| {
            glob == name || glob.is_any() || is_name && glob.matches(&name.to_string())
        };
        first.iter().any(covers)
    })
}

/// Warnings about a grant's numbers; `memory_is_given` if the file states
/// `memory_max`.
pub(super) fn of_numbers(grant: &Grant, memory_is_given: bool) -> Vec<String> {
    let Grant {
        ports_max,
        ports_total,
        memory_max,
        ..
    } = *grant;
    let all = limits::USERS_PORTS_MAX as u32;
    let mut odd = Vec::new();
    for (key, ports) in [("ports_max", ports_max), ("ports_total", ports_total)] {
        // A number that is not stated follows from the other.
        let is_said = key == "ports_max" || ports > ports_max;
        if is_said && ports > all {
            odd.push(format!(
                "{key} is {ports}, and the broker opens at most {all} ports for all users together"
            ));
        }
    }
    let largest = u64::from(ports_max).saturating_mul(limits::RING_MAX.0);
    if ports_max > 0 && memory_max < limits::RING_MIN {
        let least = limits::RING_MIN;
        odd.push(format!(
            "memory_max is {memory_max}, and nobody can open a port: a ring has {least} or more"
        ));
    } else if ports_max > 1 && !memory_is_given {
        odd.push(format!(
            "ports_max is {ports_max}, and memory_max, {memory_max} if it is not given, has room \
             for one ring of the usual size: give memory_max"
        ));
    } else if ports_max > 0 && memory_max.0 > largest {
        let most = limits::RING_MAX;
        odd.push(format!(
            "memory_max is {memory_max}, more than ports_max rings of {most}, the largest"
        ));
    }
    odd
}
