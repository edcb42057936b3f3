//! Many kinds of filters: trees of prefilters, and the limits.

use super::bound::{binding, filter};
use super::common::{Pred, and, ip_frame, program};
use super::rig::{Rig, permitted};
use super::{HOOKS, PORTS};
use weir_demux::Filter;
use weir_demux::kernel::{Hook, KernelPlan, Options, Recompile, limits};
use weir_lab::program::Tape;
use weir_lab::rng::Rng;
use weir_lab::rules::{FiveTuple, Profile, Rule, TCP, Trace, generate, mixed_forms};

#[test]
fn mixed_bindings_of_tens_of_shapes() {
    if !permitted() {
        return;
    }
    let (mut frames, mut delivered) = (0, 0);
    for (seed, hook) in (0..).zip(HOOKS) {
        let mut rng = Rng::new(seed);
        let mut tape = Tape::seeded(seed, 20_000);
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        // A test run of XDP waits for an RCU grace period.
        let count = if hook == Hook::Xdp { 40 } else { 90 };
        let mut texts = mixed_forms(seed, count);
        // The first binding of each kind and its frames, before other bindings
        // exist.
        texts.sort_by_cached_key(|_| rng.word());
        for (turn, text) in (0_u32..).zip(&texts) {
            let (priority, copy) = (tape.pick(&[1, 5, 9]), tape.chance(80));
            rig.bind(binding(filter(text), priority, copy, turn % PORTS, turn));
            // Occasionally a frame of one of the connections, so that matches
            // do not depend on chance.
            let own = FiveTuple::draw(&mut rng);
            if turn % 5 == 0 {
                let mine = format!(
                    "{} and src host {} and dst port {}",
                    if own.protocol == TCP { "tcp" } else { "udp" },
                    std::net::Ipv4Addr::from(own.src),
                    own.dst_port
                );
                rig.bind(binding(filter(&mine), 3, true, 0, 1_000 + turn));
            }
            rig.check(&own.frame());
            if turn % 7 == 3 {
                rig.unbind(tape.below(rig.bound.len()));
                rig.check(&FiveTuple::draw(&mut rng).frame());
            }
            if turn % 11 == 5 {
                let at = tape.below(rig.bound.len());
                rig.change_filter(at, filter(&texts[tape.below(texts.len())]));
            }
        }
        assert!(rig.kernel.subtables() > 40, "{}", rig.kernel.subtables());
        frames += rig.frames;
        delivered += rig.delivered;
    }
    println!("{frames} frames, {delivered} delivered");
    assert!(delivered > frames / 4);
}

/// Bindings of known subtables need no new program, whatever their values and
/// however many a prefilter has. Without `CAP_PERFMON` the verifier also
/// follows branches that cannot be taken.
#[test]
fn ranges_of_one_field_are_verified_with_barriers() {
    if !permitted() {
        return;
    }
    let range = |at| format!("portrange {}-{}", 10 * at, 10 * at + 5);
    let ranges: Vec<String> = (0..20).map(range).collect();
    for hook in HOOKS {
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        for (priority, ranges) in (1..).zip([&ranges[..], &ranges[1..], &ranges[..19]]) {
            let ranges = filter(&ranges.join(" or "));
            rig.bind(binding(ranges, priority, true, 0, priority.into()));
        }
        rig.load();
        assert_eq!(rig.whole, 3, "no table holds them");
        assert!(!rig.maps.needs_perfmon(hook), "{hook:?}");
        let mut own = FiveTuple::draw(&mut Rng::new(7));
        for port in [0, 5, 6, 9, 10, 15, 16, 190, 195, 196, 60_000] {
            (own.src_port, own.dst_port) = (7, port);
            rig.check(&own.frame());
        }
        assert!(rig.delivered > 10);
    }
}

#[test]
fn sieves_fill_under_a_running_program() {
    if !permitted() {
        return;
    }
    let mut rig = Rig::new(Hook::TcIngress, Options::default(), PORTS);
    let kinds: [fn(u32) -> Pred; 5] = [
        |n| Pred::DstPort(17, 1_000 + n as u16, 1_000 + n as u16),
        |n| Pred::SrcPort(17, 1_000 + n as u16, 1_000 + n as u16),
        |n| and(Pred::Proto(17), Pred::Src(0x0a00_0000 + n, 32)),
        |n| and(Pred::Proto(17), Pred::Dst(0x0a00_0000 + (n << 8), 24)),
        |n| {
            and(
                Pred::Proto(if n == 0 { 17 } else { 6 }),
                Pred::Src(0x0a00_0000 + (n << 8), 24),
            )
        },
    ];
    for (tag, kind) in (0..).zip(kinds) {
        rig.bind(binding(
            Filter::new(program(&kind(0))),
            5,
            true,
            tag % PORTS,
            tag,
        ));
    }
    let frame = |n: u32, protocol| {
        let ports = (1_000 + n as u16, 1_000 + n as u16);
        ip_frame(protocol, 0x0a00_0000 + n, 0x0a00_0000 + (n << 8), ports, 5)
    };
    rig.check(&frame(0, 17));
    for n in 1..300 {
        for (tag, kind) in (0..).zip(kinds) {
            let filter = Filter::new(program(&kind(n)));
            let (need, renewed) = rig.bind(binding(filter, 5, true, tag % PORTS, n * 8 + tag));
            assert_eq!(
                need == Recompile::Required,
                renewed,
                "only when tables grow"
            );
        }
        for protocol in [17, 6] {
            rig.check(&frame(n, protocol));
            rig.check(&frame(n + 1, protocol));
        }
    }
    let before = rig.delivered;
    while rig.bound.len() > 40 {
        rig.unbind(rig.bound.len() / 2);
    }
    rig.settle();
    for n in (0..310).chain(290..310) {
        rig.check(&frame(n, 17));
    }
    assert!(before > 1_300 && rig.delivered > before);
}

/// Ranges are distinguished by one-byte fields, until there are many subtables.
#[test]
fn kinds_of_ranges_share_a_shape_where_there_are_many() {
    if !permitted() {
        return;
    }
    let mut rig = Rig::new(Hook::TcIngress, Options::default(), PORTS);
    for n in 0..300_u32 {
        let (low, high) = (100 * n, 100 * n + 150);
        let text = format!(
            "ether[20] = {} and ether[21] = {} and ether[30:2] >= {low} and ether[30:2] <= {high}",
            n % 256,
            n / 256
        );
        rig.bind(binding(filter(&text), 5, true, n % PORTS, n));
    }
    assert_eq!(rig.kernel.subtables(), limits::RELAXED_MIN + 1);
    for n in [0, 1, 100, 255, 256, 257, 299_u16] {
        for (off, expected) in [(0, 1), (60, 1), (150, 1), (151, 0)] {
            let mut frame = [0; 64];
            (frame[20], frame[21]) = (n as u8, (n >> 8) as u8);
            frame[30..32].copy_from_slice(&(100 * n + off).to_be_bytes());
            let before = rig.delivered;
            rig.check(&frame);
            assert_eq!(rig.delivered - before, expected, "{n}, {off}");
        }
    }
}

/// Rules of thousands of kinds: verdicts do not depend on the subtables that
/// rules share, or on pruning.
#[test]
fn rules_that_share_coarser_shapes() {
    if !permitted() {
        return;
    }
    let (mut frames, mut delivered) = (0, 0);
    for (seed, (hook, profile)) in (0..).zip(HOOKS.into_iter().zip(Profile::ALL)) {
        let mut rng = Rng::new(seed);
        let rules = generate(profile, seed, 1_200);
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        let mut bind = |rig: &mut Rig, tag: u32, rule: &Rule| {
            let (priority, copy) = (*rng.choose(&[1, 5, 9]), tag.is_multiple_of(4));
            let filter = filter(&rule.expression());
            rig.bind(binding(filter, priority, copy, tag % PORTS, tag));
        };
        // A test run of XDP waits for an RCU grace period.
        let count = if hook == Hook::Xdp { 60 } else { 400 };
        for (tag, rule) in (0..).zip(&rules[..1_000]) {
            bind(&mut rig, tag, rule);
        }
        assert!(rig.kernel.subtables() > 80, "{}", rig.kernel.subtables());
        for tuple in Trace::even(&rules, seed).take(count) {
            rig.check(&tuple.frame());
        }
        // With the running program, and with new ones.
        for (tag, rule) in (1_000..).zip(&rules[1_000..]) {
            bind(&mut rig, tag, rule);
            for _ in 0..4 {
                rig.unbind((tag as usize * 37) % rig.bound.len());
            }
        }
        let at = rig.bound.len() / 2;
        rig.change_filter(at, filter(&rules[0].expression()));
        for tuple in Trace::even(&rules, seed + 1).take(count) {
            rig.check(&tuple.frame());
        }
        rig.settle();
        while rig.bound.len() > 30 {
            rig.unbind(rig.bound.len() / 2);
        }
        for tuple in Trace::even(&rules, seed + 2).take(count / 4) {
            rig.check(&tuple.frame());
        }
        frames += rig.frames;
        delivered += rig.delivered;
    }
    println!("{frames} frames, {delivered} delivered");
    assert!(delivered > frames / 2);
}

/// Writes that new programs rely on are made before the programs run, and again
/// with the next change: no word changes temporarily under a running program.
#[test]
fn what_is_written_twice_is_written_the_same() {
    let mut plan = KernelPlan::new(Options::default());
    for (tag, text) in (0..).zip(mixed_forms(7, 300)) {
        let bound = plan.bind(binding(filter(&text), 5, true, tag % PORTS, tag));
        drop(bound.unwrap());
        if tag % 50 == 7 {
            plan.prepare_recompile();
            plan.prepare_recompile();
            let pending = plan.pending();
            let mut words: Vec<String> = pending
                .iter()
                .map(|write| format!("{:?} {}", write.memory, write.word))
                .collect();
            words.sort();
            words.dedup();
            assert!(words.len() > 10);
            assert_eq!(words.len(), pending.len());
        }
    }
}

/// The largest number of subtables gives a program that the kernel accepts, one
/// more is refused, and the plan still works.
#[test]
fn as_many_shapes_as_allowed_and_not_one_more() {
    if !permitted() {
        return;
    }
    for hook in HOOKS {
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        let most = limits::SUBTABLES_MAX as u32;
        for n in 0..most {
            let text = format!("ether[{}:2] = {}", 14 + n, 0x4000 + n);
            rig.bind(binding(filter(&text), 5, true, n % PORTS, n));
        }
        let mut frame = [0; 600];
        for n in [0, 1, 63, 64, 200, 242, 243, 511] {
            let [high, low] = (0x4000 + n as u16).to_be_bytes();
            (frame[14 + n], frame[15 + n]) = (high, low);
            rig.check(&frame);
        }
        assert!(rig.delivered >= 8, "{}", rig.delivered);
        let error = rig
            .kernel
            .bind(binding(filter("ether[9] = 1"), 5, true, 0, 0));
        let text = error.err().map(|error| error.to_string()).unwrap();
        assert!(text.contains("513 shapes, and 512 is the most"), "{text}");
    }
}
