//! Rules, their expressions and their traffic agree, as checked by libpcap.

use std::collections::HashSet;

use weir_lab::oracle::Oracle;
use weir_lab::rules::{FORMS, NARROW_FORMS, Profile, Trace, generate, mixed_forms, narrow};
use weir_wire::LinkType;

#[test]
fn expressions_mean_what_the_rules_do() {
    let Some(oracle) = Oracle::load() else { return };
    for profile in Profile::ALL {
        let rules = generate(profile, 7, 200);
        let tuples: Vec<_> = Trace::even(&rules, 8).take(200).collect();
        let frames: Vec<_> = tuples.iter().map(|tuple| tuple.frame()).collect();
        let mut hits = 0;
        for rule in &rules {
            let text = rule.expression();
            let filter = oracle.compile(&text, LinkType::EN10MB, true);
            let filter = filter.unwrap_or_else(|error| panic!("{text}: {error}"));
            for (tuple, frame) in tuples.iter().zip(&frames) {
                let accepted = filter.run(frame, frame.len() as u32) != 0;
                assert_eq!(accepted, rule.matches(tuple), "{text}: {tuple:?}");
                hits += usize::from(accepted);
            }
        }
        assert!(hits >= tuples.len(), "{profile:?}: {hits} hits");
    }
}

#[test]
fn sets_are_distinct_seeded_and_mixed() {
    for profile in Profile::ALL {
        let rules = generate(profile, 1, 10_000);
        assert_eq!(rules.iter().collect::<HashSet<_>>().len(), 10_000);
        assert_eq!(rules[..50], generate(profile, 1, 10_000)[..50]);
        assert_ne!(rules[..50], generate(profile, 2, 10_000)[..50]);
        let share = |has: fn(&weir_lab::rules::Rule) -> bool| {
            rules.iter().filter(|rule| has(rule)).count() / 100
        };
        let tcp = share(|rule| rule.protocol == Some(6));
        let ranges = share(|rule| rule.dst_ports.len() > 1 && rule.dst_ports.len() < 65536);
        let prefixes = share(|rule| (1..32).contains(&rule.dst.len()));
        assert!((40..=85).contains(&tcp), "{profile:?}: {tcp} % TCP");
        assert!((8..=40).contains(&ranges), "{profile:?}: {ranges} % ranges");
        assert!(
            (25..=70).contains(&prefixes),
            "{profile:?}: {prefixes} % prefixes"
        );
    }
}

#[test]
fn local_traces_repeat_and_even_ones_do_not() {
    let rules = generate(Profile::Acl, 3, 1000);
    let distinct = |trace: Trace<'_>| trace.take(8000).collect::<HashSet<_>>().len();
    assert!(distinct(Trace::local(&rules, 4)) < 2000);
    assert!(distinct(Trace::even(&rules, 4)) > 7000);
}

#[test]
fn every_shape_compiles() {
    let Some(oracle) = Oracle::load() else { return };
    let all = mixed_forms(5, FORMS * 25);
    assert!(all.iter().collect::<HashSet<_>>().len() > FORMS * 24);
    for text in all {
        if let Err(error) = oracle.compile(&text, LinkType::EN10MB, true) {
            panic!("{text}: {error}");
        }
    }
}

#[test]
fn narrow_expressions_accept_their_frames_and_few_others() {
    let Some(oracle) = Oracle::load() else { return };
    let all = narrow(5, NARROW_FORMS * 8);
    assert_eq!(all[..50], narrow(5, NARROW_FORMS * 8)[..50]);
    let mut accepted = 0;
    for (number, rule) in all.iter().enumerate() {
        let text = &rule.expression;
        let filter = oracle.compile(text, LinkType::EN10MB, true);
        let filter = filter.unwrap_or_else(|error| panic!("{text}: {error}"));
        let accepts = |frame: &[u8]| filter.run(frame, frame.len() as u32) != 0;
        assert!(
            accepts(&rule.frame),
            "{number}: {text}: {:02x?}",
            rule.frame
        );
        accepted += all.iter().filter(|other| accepts(&other.frame)).count();
    }
    let others = accepted - all.len();
    assert!(others < 10, "{others} frames of other rules");
}
