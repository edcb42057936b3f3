//! Plans of filters as users write them: rule sets, expressions of many
//! subtables, and the shared corpus, against each filter by the interpreter.

mod common;

use common::{Reference, check};
use weir_demux::{Analysis, Binding, Filter, Plan, Target, Verdict, limits};
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::corpus;
use weir_lab::program::Tape;
use weir_lab::rng::Rng;
use weir_lab::rules::{FORMS, Profile, Trace, generate, mixed_forms};
use weir_wire::LinkType;

/// A filter by each way from text: of the optimised program, and of the plain
/// one.
fn filters(text: &str) -> Option<[Filter; 2]> {
    let plain = compile(text, &Context::new(LinkType::EN10MB)).ok()?;
    let mut program = plain.clone();
    optimise(&mut program);
    Some([Filter::new(program), Filter::from_plain(plain)])
}

/// Binds all, by either way, and keeps the reference in step.
fn bound(mut plan: Plan, texts: impl Iterator<Item = String>, rng: &mut Rng) -> (Plan, Reference) {
    let mut reference = Reference(Vec::new());
    for (tag, [filter, plain]) in texts.filter_map(|text| filters(&text)).enumerate() {
        let binding = Binding {
            filter,
            priority: *rng.choose(&[1, 1, 1, 2, 3]),
            copy: rng.chance(30),
            target: Target::Port(tag as u32),
            tag: tag as u32,
        };
        let mut bound = binding.clone();
        if rng.chance(50) {
            bound.filter = plain;
        }
        let id = plan.bind(bound).expect("room");
        reference.0.push((id, binding));
    }
    (plan, reference)
}

#[test]
fn rule_sets() {
    let mut verdict = Verdict::new();
    for (seed, profile) in (0..).zip(Profile::ALL) {
        let mut rng = Rng::new(seed);
        let rules = generate(profile, seed, 300);
        let texts = rules.iter().map(|rule| rule.expression());
        let (mut plan, mut reference) = bound(Plan::indexed_only(3), texts, &mut rng);
        assert_eq!(plan.opaque().count(), 0);
        for round in 0..4 {
            for tuple in Trace::even(&rules, seed + round).take(60) {
                let mut bytes = tuple.frame();
                if rng.chance(20) {
                    bytes.truncate(rng.below(bytes.len()));
                }
                check(&plan, &reference, &mut verdict, &bytes, 64);
            }
            for _ in 0..60 {
                let (id, _) = reference.0.remove(rng.below(reference.0.len()));
                plan.unbind(id).expect("bound");
            }
        }
    }
}

#[test]
fn expressions_of_many_shapes() {
    let mut rng = Rng::new(1);
    let texts = mixed_forms(5, 6 * FORMS).into_iter();
    let (plan, reference) = bound(Plan::new(3), texts, &mut rng);
    let mut verdict = Verdict::new();
    let mut tape = Tape::seeded(8, 60_000);
    for _ in 0..400 {
        let bytes = common::frame(&mut tape);
        check(&plan, &reference, &mut verdict, &bytes, 90);
    }
}

/// Every expression that compiles, a few hundred to a plan; nearly all have
/// few enough paths to be keyed.
#[test]
fn the_corpus() {
    let mut rng = Rng::new(2);
    let mut verdict = Verdict::new();
    let mut tape = Tape::seeded(9, 400_000);
    let texts: Vec<String> = corpus::entries()
        .into_iter()
        .map(|entry| entry.text)
        .collect();
    let (mut all, mut whole) = (0, 0);
    for (number, chunk) in texts.chunks(250).enumerate() {
        let plan = if number % 2 == 0 {
            Plan::new(3)
        } else {
            Plan::indexed_only(3)
        };
        let (plan, reference) = bound(plan, chunk.iter().cloned(), &mut rng);
        all += plan.len();
        for _ in 0..40 {
            let bytes = common::frame(&mut tape);
            check(&plan, &reference, &mut verdict, &bytes, 90);
        }
        for (_, binding) in &reference.0 {
            match binding.filter.analysis() {
                Analysis::Paths(paths) => assert!(paths.len() <= limits::PATHS_MAX),
                Analysis::Opaque => whole += 1,
            }
        }
    }
    eprintln!("{whole} of {all} filters are too complex for tables");
    assert!(all > 1000 && whole * 50 < all, "{whole} of {all}");
}
