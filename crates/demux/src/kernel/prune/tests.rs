//! The values of cells, compared with all entries.

use super::*;
use crate::binding::{Binding, BindingId, Target};
use crate::filter::Filter;
use crate::kernel::layout::entry;
use crate::kernel::plan::Options;
use weir_filter::lang::expr::{Context, compile};
use weir_lab::rng::Rng;
use weir_lab::rules::{Profile, Rule, generate};
use weir_wire::LinkType;

fn bind(plan: &mut KernelPlan, rule: &Rule, tag: u32) -> BindingId {
    let program = compile(&rule.expression(), &Context::new(LinkType::EN10MB)).unwrap();
    let binding = Binding {
        filter: Filter::new(program),
        priority: tag as u16 % 7,
        copy: tag.is_multiple_of(3),
        target: Target::Port(0),
        tag,
    };
    plan.bind(binding).unwrap().0
}

/// A bit is set if there is an entry for it, and else is not; no entry comes
/// before what is said to be the best. Gives how many bits are set.
fn check(plan: &KernelPlan) -> usize {
    let pruning = plan.pruning.as_ref().expect("there are many shapes");
    let mut expected = BTreeSet::new();
    plan.for_each_entry(|plan, line, _| {
        let (number, key) = plan.image.key(line);
        let Some(bit) = pruning.bits.get(&number).copied() else {
            return;
        };
        let subtable = &plan.subtables[&number];
        for (at, field) in pruning.fields.iter().enumerate() {
            if let Some(asking) = field.asking[bit] {
                expected.insert((at, field.cell(subtable.value_of(asking, &key)), bit));
            }
        }
        let rank = plan.image.table.get(line, entry::RANK);
        assert!(plan.image.get(subtable.unit, words::BEST) <= rank);
        assert!(plan.image.get(pruning.best, bit as u32 / 64) <= rank);
    });
    let mut set = 0;
    for (at, field) in pruning.fields.iter().enumerate() {
        for cell in 0..1 << (u32::BITS - field.shift) {
            for bit in 0..pruning.subtables.len() {
                let Ok(of_cell) = field.words.binary_search(&(bit / BITS)) else {
                    assert!(field.asking[bit].is_none());
                    continue;
                };
                let word = cell * field.cell_words() + of_cell as u32;
                let found = plan.image.get(field.unit, word) >> (bit % BITS) & 1 == 1;
                let has_entry = expected.contains(&(at, cell, bit));
                assert_eq!(found, has_entry || field.asking[bit].is_none());
                set += usize::from(has_entry);
            }
        }
    }
    set
}

#[test]
fn cells_have_a_bit_for_each_entry_and_no_other() {
    for profile in Profile::ALL {
        let mut rng = Rng::new(3);
        let rules = generate(profile, 5, 900);
        let mut plan = KernelPlan::new(Options::default());
        let mut bound: Vec<BindingId> = Vec::new();
        for (tag, rule) in (0..).zip(&rules[..700]) {
            bound.push(bind(&mut plan, rule, tag));
        }
        plan.prepare_recompile();
        assert!(check(&plan) > 1_000);
        // Under a running program: rules of known subtables and of new ones.
        for (tag, rule) in (700..).zip(&rules[700..]) {
            bound.push(bind(&mut plan, rule, tag));
            let at = rng.below(bound.len());
            drop(plan.unbind(bound.swap_remove(at)).unwrap());
        }
        check(&plan);
        drop(plan.reclaim(plan.epoch()));
        plan.prepare_recompile();
        check(&plan);
        for id in bound {
            drop(plan.unbind(id).unwrap());
        }
        assert_eq!(check(&plan), 0);
        plan.prepare_recompile();
        assert!(plan.pruning.is_none() && plan.subtables() == 0);
    }
}
