//! Rules of ClassBench's kinds come and go in a plan while it builds trees of
//! them; each packet goes to the first rule that matches it.

use std::collections::BTreeMap;
use weir_demux::{Binding, BindingId, Filter, Plan, Target, Verdict};
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::program::Tape;
use weir_lab::rules::{ANY_PORTS, FiveTuple, Prefix, Profile, Rule, Trace, UDP, generate};
use weir_wire::LinkType;

/// The rules bound, by the order bound.
#[derive(Default)]
struct Bound(BTreeMap<usize, (BindingId, Rule, bool)>);

impl Bound {
    /// The orders of the rules that get a packet.
    fn judge(&self, tuple: &FiveTuple) -> Vec<u32> {
        let mut given = Vec::new();
        for copies in [true, false] {
            for (order, (_, rule, copy)) in &self.0 {
                if *copy == copies && rule.matches(tuple) {
                    given.push(*order as u32);
                    if !copies {
                        return given;
                    }
                }
            }
        }
        given
    }
}

/// The frames of a batch get what each would alone.
fn check_batch(plan: &Plan, bound: &Bound, tuples: &[FiveTuple]) {
    let frames: Vec<Vec<u8>> = tuples.iter().map(FiveTuple::frame).collect();
    let frames: Vec<(&[u8], u32)> = frames.iter().map(|bytes| (&bytes[..], 64)).collect();
    plan.run_batch(&frames, &mut Verdict::new(), |number, verdict| {
        let tags = verdict.deliveries().iter().map(|delivery| delivery.tag);
        let tags: Vec<u32> = tags.collect();
        assert_eq!(tags, bound.judge(&tuples[number]), "frame {number}");
    });
}

fn has_groups(plan: &Plan) -> bool {
    let text = plan.explain(0).to_string();
    let tree = text.lines().find(|line| line.starts_with("looked up"));
    tree.is_some_and(|line| !line.ends_with(" 0 groups"))
}

/// Whether entries formed groups in a tree meanwhile.
fn come_and_go(rules: &[Rule], seed: u64) -> bool {
    let context = Context::new(LinkType::EN10MB);
    let filters: Vec<Filter> = (rules.iter())
        .map(|rule| {
            let mut program = compile(&rule.expression(), &context).expect("compiles");
            optimise(&mut program);
            Filter::new(program)
        })
        .collect();
    let mut tape = Tape::seeded(seed, 100_000);
    let (mut plan, mut verdict) = (Plan::new(seed.into()), Verdict::new());
    let (mut bound, mut trace) = (Bound::default(), Trace::even(rules, seed));
    let (mut order, mut grouped) = (0, false);
    // It grows, shrinks, and grows again.
    for step in 0..6_000 {
        let grows = if step / 2_000 == 1 { 20 } else { 70 };
        if tape.chance(grows) {
            let at = tape.below(128) * 8 % rules.len() + tape.below(4);
            let copy = tape.chance(3);
            let binding = Binding {
                filter: filters[at].clone(),
                priority: 1,
                copy,
                target: Target::Kernel,
                tag: order as u32,
            };
            let id = plan.bind(binding).expect("room");
            bound.0.insert(order, (id, rules[at].clone(), copy));
            order += 1;
        } else if let Some((&first, _)) = bound.0.iter().nth(tape.below(64)) {
            let (id, ..) = bound.0.remove(&first).expect("it is there");
            plan.unbind(id).expect("bound");
        }
        if step % 3 == 0 {
            let tuple = trace.next().expect("endless");
            plan.run(&tuple.frame(), 64, &mut verdict);
            let tags = verdict.deliveries().iter().map(|delivery| delivery.tag);
            let tags: Vec<u32> = tags.collect();
            assert_eq!(tags, bound.judge(&tuple), "seed {seed}, step {step}");
        }
        if step % 60 == 0 {
            let tuples: Vec<FiveTuple> = trace.by_ref().take(17).collect();
            check_batch(&plan, &bound, &tuples);
            grouped |= has_groups(&plan);
        }
    }
    for (id, ..) in bound.0.values() {
        plan.unbind(*id).expect("bound");
    }
    let left = (plan.len(), plan.subtables().count(), plan.exprs().count());
    assert_eq!(left, (0, 0, 0), "nothing is left");
    grouped
}

#[test]
fn access_lists_come_and_go() {
    come_and_go(&generate(Profile::Acl, 1, 900), 1);
}

#[test]
fn firewall_rules_come_and_go() {
    come_and_go(&generate(Profile::Firewall, 2, 900), 2);
}

#[test]
fn ip_chains_come_and_go() {
    come_and_go(&generate(Profile::IpChain, 3, 900), 3);
}

#[test]
fn ranges_that_no_field_tells_apart_come_and_go() {
    let mut rules = generate(Profile::Firewall, 4, 900);
    for (n, rule) in (0..).zip(&mut rules).step_by(2) {
        *rule = Rule {
            src: Prefix::ANY,
            dst: Prefix::ANY,
            src_ports: ANY_PORTS,
            dst_ports: n..=60_000 - n,
            protocol: Some(UDP),
        };
    }
    assert!(come_and_go(&rules, 4), "they formed no group");
}
