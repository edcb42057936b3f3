//! The budget of verifier cost and subtables, which all ports of an interface
//! share.
//!
//! All filters of an interface form one program. The kernel verifies it again
//! with each opaque filter and each new subtable, so the opening of a port
//! waits for the cost of all filters. The number of subtables is limited, too.
//! Both are bounded for each user, for all users of a grant and of an interface
//! together, and including the superuser, who has a reserve.

use super::Backend;
use super::ports::{Engine, Port};
use crate::compile::limits::{
    ALL_COMPUTED_LOADS_MAX, COMPUTED_LOADS_MAX, GRANT_STEPS_MAX, GRANT_SUBTABLES_MAX,
    STEPS_INTERFACE_MAX, STEPS_MAX, SUBTABLES_MAX, USERS_STEPS_MAX, USERS_SUBTABLES_MAX,
};
use crate::protocol::{ErrorKind, Refusal};
use std::collections::BTreeSet;
use weir_demux::Filter;
use weir_demux::kernel::{
    SubtableSignature, all_computed_loads, computed_loads, subtable_signatures, verifier_cost,
};

/// The cost of a filter.
#[derive(Debug, Default)]
pub(super) struct VerifierCost {
    /// Estimated verifier steps, if the filter is opaque.
    verifier: u64,
    /// The subtables of a filter that is not opaque; empty for the superuser's.
    subtables: BTreeSet<SubtableSignature>,
}

impl<F: Backend> Engine<F> {
    /// The cost of a filter that is to be one more port of a user on an
    /// interface, or to replace the filter of the port `of`.
    ///
    /// # Errors
    /// If a bound would be exceeded.
    pub(super) fn check_effort(
        &self,
        grant: Option<usize>,
        uid: u32,
        ifindex: u32,
        of: Option<u32>,
        filter: &Filter,
    ) -> Result<VerifierCost, Refusal> {
        if !self.is_shared {
            return Ok(VerifierCost::default());
        }
        check_computed_loads(filter)?;
        let others = || {
            let ports = self.ports.iter();
            let others = ports.filter(|(number, _)| Some(**number) != of);
            others.map(|(_, port)| port)
        };
        let here = |port: &&Port| port.ifindex == ifindex;
        let users = |port: &&Port| port.grant.is_some();
        if grant.is_none() {
            let left = STEPS_INTERFACE_MAX.saturating_sub(steps(others().filter(here)));
            return Ok(VerifierCost {
                verifier: check_steps(
                    filter,
                    &[(left, STEPS_INTERFACE_MAX, "other ports of the interface")],
                )?,
                subtables: BTreeSet::new(),
            });
        }
        let own = |port: &&Port| port.owner.who.uid == uid;
        let own_left = STEPS_MAX.saturating_sub(steps(others().filter(users).filter(own)));
        let of_users = || others().filter(here).filter(users);
        let of_grant = || of_users().filter(|port| port.grant == grant);
        let grant_left = GRANT_STEPS_MAX.saturating_sub(steps(of_grant()));
        let users_left = USERS_STEPS_MAX.saturating_sub(steps(of_users()));
        let bounds = [
            (own_left, STEPS_MAX, "this user's other ports"),
            (
                grant_left,
                GRANT_STEPS_MAX,
                "other ports of this grant of the policy",
            ),
            (
                users_left,
                USERS_STEPS_MAX,
                "other users' ports of the interface",
            ),
        ];
        let steps = check_steps(filter, &bounds)?;
        let own: Vec<&VerifierCost> = others()
            .filter(users)
            .filter(own)
            .map(|one| &one.effort)
            .collect();
        let subtables = check_subtables(
            &own,
            subtable_signatures(filter),
            SUBTABLES_MAX,
            "this user's shapes",
        )?;
        let of_grant: Vec<&VerifierCost> = of_grant().map(|one| &one.effort).collect();
        let whose = "the shapes of all users of this grant of the policy";
        let subtables = check_subtables(&of_grant, subtables, GRANT_SUBTABLES_MAX, whose)?;
        let all: Vec<&VerifierCost> = of_users().map(|one| &one.effort).collect();
        let whose = "the shapes of all users of the interface";
        let subtables = check_subtables(&all, subtables, USERS_SUBTABLES_MAX, whose)?;
        Ok(VerifierCost {
            verifier: steps,
            subtables,
        })
    }
}

fn steps<'a>(ports: impl Iterator<Item = &'a Port>) -> u64 {
    ports.map(|port| port.effort.verifier).sum()
}

/// The superuser's filters too: all filters of an interface are verified together.
fn check_computed_loads(filter: &Filter) -> Result<(), Refusal> {
    let counts = [
        (
            computed_loads(filter),
            COMPUTED_LOADS_MAX,
            "one after the other",
        ),
        (all_computed_loads(filter), ALL_COMPUTED_LOADS_MAX, "in all"),
    ];
    let Some((loads, max, how)) = counts.into_iter().find(|(loads, max, _)| loads > max) else {
        return Ok(());
    };
    let message = format!(
        "the filter loads from {loads} computed offsets {how} (as `ip[ip[0]]` does from one); \
         at most {max} are allowed, since the kernel's verifier takes long for more"
    );
    Err(Refusal::new(ErrorKind::Filter, message))
}

/// Checks against several bounds: what is left of each, the whole, and beside
/// what.
fn check_steps(filter: &Filter, bounds: &[(u64, u64, &str)]) -> Result<u64, Refusal> {
    let least = bounds.iter().min_by_key(|(left, ..)| *left);
    let Some((left, max, beside)) = least else {
        return Ok(0);
    };
    let steps = verifier_cost(filter, *left);
    if steps <= *left {
        return Ok(steps);
    }
    let used = max - left;
    if used == 0 {
        let message = "the filter has more ways through it than the kernel's verifier can \
                       follow in good time: test fewer fields or ranges more than once";
        return Err(Refusal::new(ErrorKind::Filter, message));
    }
    let message = format!(
        "the filter has more ways through it than the kernel's verifier can follow in good \
         time beside {beside}, which take {used} steps of {max}"
    );
    Err(Refusal::new(ErrorKind::Limit, message))
}

fn check_subtables(
    others: &[&VerifierCost],
    subtables: BTreeSet<SubtableSignature>,
    max: usize,
    whose: &str,
) -> Result<BTreeSet<SubtableSignature>, Refusal> {
    let is_known = |shape| others.iter().any(|other| other.subtables.contains(shape));
    if subtables.iter().all(is_known) {
        return Ok(subtables);
    }
    let used = others.iter().flat_map(|other| &other.subtables);
    let used: BTreeSet<&SubtableSignature> = used.collect();
    let all = used.iter().copied().chain(&subtables);
    let needed = all.collect::<BTreeSet<_>>().len();
    if needed <= max {
        return Ok(subtables);
    }
    let message = format!(
        "the filter brings {whose} to {needed}, of {max}: test the same fields \
         as in other ports' filters, or fewer ranges"
    );
    let kind = if used.is_empty() {
        ErrorKind::Filter
    } else {
        ErrorKind::Limit
    };
    Err(Refusal::new(kind, message))
}
