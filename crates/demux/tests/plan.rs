//! The plan as a structure: growth, sharing, freeing, limits, explanations.

mod common;

use common::{Pred, Pred::SrcPort, Reference, and, check, filter, five_tuple, ip_frame, or};
use weir_demux::{BindError, Binding, Filter, Plan, Target, Verdict, limits};
use weir_filter::backend::native::Arch;
use weir_filter::ir::Program;
use weir_lab::program::Tape;

fn taking(filter: Filter, priority: u16, tag: u32) -> Binding {
    Binding {
        filter,
        priority,
        copy: false,
        target: Target::Port(tag),
        tag,
    }
}

fn copying(filter: Filter, priority: u16, tag: u32) -> Binding {
    Binding {
        copy: true,
        ..taking(filter, priority, tag)
    }
}

fn connection(n: u32) -> Pred {
    five_tuple(6, 0x0a00_0000 + n, 0x0a80_0000 + n / 7, n as u16, 80)
}

fn frame(n: u32) -> Vec<u8> {
    ip_frame(6, 0x0a00_0000 + n, 0x0a80_0000 + n / 7, (n as u16, 80), 5)
}

fn tags(plan: &Plan, bytes: &[u8], verdict: &mut Verdict) -> Vec<u32> {
    plan.run(bytes, bytes.len() as u32, verdict);
    verdict
        .deliveries()
        .iter()
        .map(|delivery| delivery.tag)
        .collect()
}

#[test]
fn thousands_of_connections_come_and_go() {
    const COUNT: u32 = 6_000;
    let (mut plan, mut verdict) = (Plan::new(7), Verdict::new());
    let mut ids = Vec::new();
    for n in 0..COUNT {
        ids.push(
            plan.bind(taking(filter(&connection(n)), 5, n))
                .expect("room"),
        );
        // Look-ups while tables grow.
        let known = n.wrapping_mul(7919) % (n + 1);
        assert_eq!(tags(&plan, &frame(known), &mut verdict), [known]);
    }
    assert_eq!(plan.subtables().count(), 1);
    for n in (0..COUNT).filter(|n| n % 3 != 0) {
        plan.unbind(ids[n as usize]).expect("bound");
    }
    for n in 0..COUNT {
        let expected: &[u32] = if n % 3 == 0 { &[n] } else { &[] };
        assert_eq!(tags(&plan, &frame(n), &mut verdict), expected);
    }
    for n in (0..COUNT).filter(|n| n % 3 != 0) {
        ids[n as usize] = plan
            .bind(taking(filter(&connection(n)), 5, n))
            .expect("room");
    }
    for n in 0..COUNT {
        assert_eq!(tags(&plan, &frame(n), &mut verdict), [n]);
    }
    for id in ids {
        plan.unbind(id).expect("bound");
    }
    assert!(plan.is_empty());
    assert_eq!(
        plan.subtables().count(),
        0,
        "shapes go with their last entry"
    );
    assert_eq!(
        plan.exprs().count(),
        0,
        "expressions go with their last use"
    );
}

#[test]
fn what_comes_and_goes_leaves_nothing() {
    for mut plan in [Plan::new(7), Plan::indexed_only(7)] {
        comes_and_goes(&mut plan);
    }
}

fn comes_and_goes(plan: &mut Plan) {
    let mut tape = Tape::seeded(3, 400_000);
    for _ in 0..10 {
        let ids: Vec<_> = (0..100)
            .map(|_| plan.bind(common::random_binding(&mut tape)).expect("room"))
            .collect();
        for id in ids {
            plan.unbind(id).expect("bound");
        }
        assert_eq!((plan.len(), plan.opaque().count()), (0, 0));
        assert_eq!((plan.subtables().count(), plan.exprs().count()), (0, 0));
    }
}

#[test]
fn thousands_of_ranges_under_one_key() {
    let (mut plan, mut verdict) = (Plan::indexed_only(9), Verdict::new());
    let mut reference = Reference(Vec::new());
    let mut tape = Tape::seeded(5, 100_000);
    let port = |tape: &mut Tape| (tape.word() >> 16) as u16;
    for n in 0..600 {
        let (a, b) = (port(&mut tape), port(&mut tape));
        let pred = match n % 3 {
            0 => SrcPort(17, a.min(b), a.max(b)),
            1 => Pred::DstPort(17, a.min(b), a.max(b)),
            _ => or(
                SrcPort(17, a, a.saturating_add(9)),
                Pred::DstPort(17, b, b.saturating_add(9)),
            ),
        };
        let mut binding = taking(filter(&pred), tape.pick(&[1, 2, 3]), n);
        binding.copy = tape.chance(30);
        let id = plan.bind(binding.clone()).expect("room");
        reference.0.push((id, binding));
    }
    assert!(plan.subtables().count() <= 2);
    for round in 0..300 {
        let ports = (port(&mut tape), port(&mut tape));
        let bytes = ip_frame(17, 1, 2, ports, 5);
        check(&plan, &reference, &mut verdict, &bytes, 60);
        if round % 2 == 0 {
            let at = tape.below(256) % reference.0.len();
            let (id, _) = reference.0.remove(at);
            plan.unbind(id).expect("bound");
        }
    }
}

#[test]
fn the_order_of_the_model() {
    let (mut plan, mut verdict) = (Plan::new(1), Verdict::new());
    let all = || filter(&Pred::All);
    plan.bind(taking(all(), 5, 1)).expect("room");
    plan.bind(taking(all(), 5, 2)).expect("room");
    plan.bind(copying(all(), 5, 3)).expect("room");
    plan.bind(copying(all(), 4, 4)).expect("room");
    plan.bind(copying(all(), 6, 5)).expect("room");
    let first = plan.bind(copying(all(), 6, 6)).expect("room");
    assert_eq!(tags(&plan, &[0; 60], &mut verdict), [5, 6, 3, 1]);
    assert_eq!(verdict.taker().expect("taken").tag, 1);
    assert!(
        !plan
            .binding(first)
            .expect("bound")
            .filter
            .to_string()
            .is_empty()
    );
    // A changed filter keeps its binding's place.
    plan.change_filter(first, filter(&Pred::Ether(0x800)))
        .expect("bound");
    assert_eq!(tags(&plan, &[0; 60], &mut verdict), [5, 3, 1]);
    assert_eq!(tags(&plan, &frame(1), &mut verdict), [5, 6, 3, 1]);
}

fn claiming(filter: Filter, priority: u16, tag: u32) -> Binding {
    Binding {
        target: Target::Kernel,
        ..taking(filter, priority, tag)
    }
}

#[test]
fn a_claim_bars_others_from_taking_never_from_copying() {
    for mut plan in [Plan::new(1), Plan::indexed_only(1)] {
        let mut verdict = Verdict::new();
        let all = || filter(&Pred::All);
        let ip = || filter(&Pred::Ether(0));
        plan.bind(taking(all(), 3, 1)).expect("room");
        plan.bind(copying(all(), 2, 2)).expect("room");
        plan.bind(copying(ip(), 6, 3)).expect("room");
        let claim = plan.bind(claiming(ip(), 5, 4)).expect("room");
        plan.bind(claiming(all(), 4, 5)).expect("room");
        plan.bind(copying(ip(), 1, 6)).expect("room");
        assert_eq!(tags(&plan, &[0; 60], &mut verdict), [3, 4, 2, 6]);
        assert!(verdict.is_claimed() && !verdict.is_taken());
        assert!(verdict.taker().is_none());
        // What the first claim does not accept, the second does.
        assert_eq!(tags(&plan, &[1; 60], &mut verdict), [5, 2]);
        // A taker above the claims takes as ever, and ends the frame.
        let above = plan.bind(taking(ip(), 9, 7)).expect("room");
        assert_eq!(tags(&plan, &[0; 60], &mut verdict), [7]);
        assert!(verdict.is_taken() && !verdict.is_claimed());
        plan.unbind(above).expect("bound");
        plan.change_filter(claim, filter(&Pred::Ether(0x800)))
            .expect("bound");
        assert_eq!(tags(&plan, &[0; 60], &mut verdict), [3, 5, 2, 6]);
    }
}

#[test]
fn a_removed_claim_bars_no_binding() {
    let (mut plan, mut verdict) = (Plan::new(1), Verdict::new());
    let all = || filter(&Pred::All);
    plan.bind(taking(all(), 3, 1)).expect("room");
    plan.bind(copying(all(), 2, 2)).expect("room");
    let claim = plan.bind(claiming(all(), 5, 3)).expect("room");
    assert_eq!(tags(&plan, &[0; 60], &mut verdict), [3, 2]);
    plan.unbind(claim).expect("bound");
    assert_eq!(tags(&plan, &[0; 60], &mut verdict), [1]);
    assert!(verdict.is_taken() && !verdict.is_claimed());
}

#[test]
fn the_seed_is_not_observable() {
    let mut tape = Tape::seeded(11, 400_000);
    let bindings: Vec<Binding> = (0..200)
        .map(|_| common::random_binding(&mut tape))
        .collect();
    let frames: Vec<Vec<u8>> = (0..500).map(|_| common::frame(&mut tape)).collect();
    let run = |seed| {
        let (mut plan, mut verdict) = (Plan::indexed_only(seed), Verdict::new());
        for binding in &bindings {
            plan.bind(binding.clone()).expect("room");
        }
        let verdicts = frames.iter().map(|bytes| tags(&plan, bytes, &mut verdict));
        verdicts.collect::<Vec<_>>()
    };
    let first = run(0);
    assert_eq!(first, run(u128::MAX));
    assert_eq!(first, run(0x1234_5678));
}

#[test]
fn a_verdict_serves_any_plan() {
    let (mut one, mut other) = (Plan::new(1), Plan::new(2));
    let mut verdict = Verdict::new();
    one.bind(taking(filter(&connection(1)), 1, 1))
        .expect("room");
    for n in 0..40 {
        other
            .bind(taking(
                filter(&and(Pred::Src(n << 24, 8), Pred::Longer(n))),
                1,
                n,
            ))
            .expect("room");
    }
    for n in 0..40 {
        assert_eq!(tags(&one, &frame(1), &mut verdict), [1]);
        let bytes = ip_frame(6, n << 24 | 5, 6, (7, 8), 6);
        assert_eq!(tags(&other, &bytes, &mut verdict), [n]);
    }
}

/// A filter of a kind of its own: a byte that no other looks at.
fn byte(at: u32) -> Filter {
    let text = format!(
        "filter {{\nb0:\n  v0 = load.1 [{at}]\n  br eq v0, 1, b1, b2\nb1:\n  ret 64\nb2:\n  ret 0\n}}"
    );
    Filter::new(text.parse::<Program>().expect("well formed"))
}

#[test]
fn few_filters_run_directly_until_they_share_a_table() {
    if Arch::host().is_none() {
        return;
    }
    let (mut plan, mut verdict) = (Plan::new(1), Verdict::new());
    let mut bytes = frame(2);
    bytes.resize(128, 0);
    bytes[100] = 1;
    plan.bind(copying(byte(100), 9, 1000)).expect("room");
    let mut ids = Vec::new();
    for n in 0..100 {
        let id = plan.bind(taking(filter(&connection(n)), 5, n));
        ids.push(id.expect("room"));
        if n < 3 {
            assert_eq!(plan.subtables().count(), 0, "{n}");
        }
        let expected: &[u32] = if n < 2 { &[1000] } else { &[1000, 2] };
        assert_eq!(tags(&plan, &bytes, &mut verdict), expected, "{n}");
        assert_eq!(plan.opaque().count() + entries(&plan), plan.len());
    }
    // The connections share one; the other kind still runs directly.
    assert_eq!((plan.subtables().count(), plan.opaque().count()), (1, 1));
    for id in ids.drain(3..) {
        assert_eq!(tags(&plan, &bytes, &mut verdict), [1000, 2]);
        plan.unbind(id).expect("bound");
    }
    plan.unbind(ids[0]).expect("bound");
    assert_eq!((plan.subtables().count(), plan.opaque().count()), (0, 3));
    assert_eq!(plan.exprs().count(), 0);
    assert_eq!(tags(&plan, &bytes, &mut verdict), [1000, 2]);
}

fn entries(plan: &Plan) -> usize {
    plan.subtables().map(|shape| shape.len()).sum()
}

#[test]
fn filters_of_too_many_kinds_move_to_tables() {
    if Arch::host().is_none() {
        return;
    }
    let (mut plan, mut verdict) = (Plan::new(1), Verdict::new());
    let count = limits::LINEAR_MAX as u32 * 2;
    let mut ids = Vec::new();
    for at in 0..count {
        ids.push(plan.bind(taking(byte(at), 5, at)).expect("room"));
        if at < count / 2 {
            assert_eq!(plan.subtables().count(), 0);
        }
        for bound in 0..=at {
            let mut bytes = [0; 256];
            bytes[bound as usize] = 1;
            assert_eq!(tags(&plan, &bytes, &mut verdict), [bound]);
        }
    }
    assert_eq!(plan.opaque().count(), 0, "all have moved");
    // A changed filter stays where the others are.
    plan.change_filter(ids[7], byte(200)).expect("room");
    assert_eq!(plan.opaque().count(), 0);
    for id in ids.drain(10..) {
        plan.unbind(id).expect("bound");
    }
    assert_eq!((plan.subtables().count(), plan.opaque().count()), (0, 10));
    // And now changes run directly too, however often.
    for at in [201, 202] {
        plan.change_filter(ids[7], byte(at)).expect("room");
        assert_eq!((plan.subtables().count(), plan.opaque().count()), (0, 10));
        let mut bytes = [0; 256];
        (bytes[7], bytes[at as usize]) = (1, 1);
        assert_eq!(tags(&plan, &bytes, &mut verdict), [7]);
    }
}

#[test]
fn expressions_that_are_shared_need_no_room() {
    const EACH: u32 = 120;
    let filter = |from: u32| {
        let test = |n: u32| {
            let (at, next) = (from + n, n + 1);
            format!("b{n}:\n  v{n} = load.1 [{at}]\n  br eq v{n}, 1, b121, b{next}\n")
        };
        let tests: String = (0..EACH).map(test).collect();
        let text = format!("filter {{\n{tests}b120:\n  ret 64\nb121:\n  ret 0\n}}");
        Filter::new(text.parse::<Program>().expect("well formed"))
    };
    let mut plan = Plan::indexed_only(1);
    let room = limits::EXPRS_MAX as u32 / EACH;
    for n in 0..room {
        plan.bind(taking(filter(n * EACH), 1, n)).expect("room");
    }
    let error = plan.bind(taking(filter(room * EACH), 1, 0));
    assert_eq!(
        error.expect_err("full"),
        BindError::Full {
            what: "expressions",
            found: ((room + 1) * EACH) as usize,
            max: limits::EXPRS_MAX
        }
    );
    plan.bind(taking(filter(EACH), 1, 0)).expect("nothing new");
    // All but ten are known, and ten still have room.
    plan.bind(taking(filter(room * EACH - EACH + 10), 1, 0))
        .expect("ten new");
}

#[test]
fn too_many_shapes_are_refused_and_change_nothing() {
    let (mut plan, mut verdict) = (Plan::indexed_only(1), Verdict::new());
    for at in 0..limits::SUBTABLES_MAX as u32 {
        plan.bind(taking(byte(at), 1, at)).expect("room");
    }
    let exprs = plan.exprs().count();
    let error = plan.bind(taking(byte(9999), 1, 0)).expect_err("full");
    assert!(matches!(
        error,
        BindError::Full {
            what: "shapes",
            max: limits::SUBTABLES_MAX,
            ..
        }
    ));
    assert!(error.to_string().contains("4097"), "{error}");
    assert_eq!(
        (plan.len(), plan.exprs().count()),
        (limits::SUBTABLES_MAX, exprs)
    );
    // A known subtable still has room.
    let id = plan.bind(taking(byte(17), 2, 4242)).expect("room");
    let mut bytes = [0; 64];
    bytes[17] = 1;
    assert_eq!(tags(&plan, &bytes, &mut verdict), [4242]);
    assert_eq!(plan.change_filter(id, byte(9999)), Err(error));
    assert_eq!(
        tags(&plan, &bytes, &mut verdict),
        [4242],
        "the old filter stays"
    );
    plan.unbind(id).expect("bound");
    assert_eq!(tags(&plan, &bytes, &mut verdict), [17]);
}

#[test]
fn a_name_is_good_for_one_binding() {
    let mut plan = Plan::new(1);
    let id = plan.bind(taking(filter(&Pred::All), 1, 1)).expect("room");
    plan.unbind(id).expect("bound");
    let next = plan.bind(taking(filter(&Pred::All), 1, 2)).expect("room");
    assert_eq!(id.index(), next.index(), "places are used again");
    assert_ne!(id, next);
    assert_eq!(plan.unbind(id).expect_err("gone"), BindError::Unknown(id));
    assert_eq!(plan.binding(id).expect_err("gone"), BindError::Unknown(id));
    let change = plan.change_filter(id, filter(&Pred::All));
    assert_eq!(change.expect_err("gone"), BindError::Unknown(id));
    assert_eq!(plan.binding(next).expect("bound").tag, 2);
}

#[test]
fn a_permanent_binding_stays_as_it_is() {
    const COUNT: u32 = 500;
    let (mut plan, mut verdict) = (Plan::new(1), Verdict::new());
    let permanent: Vec<_> = (0..COUNT)
        .map(|n| plan.bind_permanent(taking(filter(&connection(n)), 5, n)))
        .map(|id| id.expect("room"))
        .collect();
    // Bindings that come and go beside them rebuild nothing of theirs.
    for n in 0..COUNT {
        let other = taking(filter(&connection(n)), 9, COUNT + n);
        let id = plan.bind(other).expect("room");
        assert_eq!(tags(&plan, &frame(n), &mut verdict), [COUNT + n]);
        plan.unbind(id).expect("bound");
        assert_eq!(tags(&plan, &frame(n), &mut verdict), [n]);
    }
    for id in permanent {
        let error = BindError::Permanent(id);
        assert_eq!(plan.unbind(id).expect_err("permanent"), error);
        assert_eq!(plan.binding(id).expect_err("permanent"), error);
        let change = plan.change_filter(id, filter(&Pred::All));
        assert_eq!(change.expect_err("permanent"), error);
    }
    assert_eq!(plan.len(), COUNT as usize);
}

#[test]
fn permanent_bindings_of_all_kinds_are_as_any_others() {
    let (mut plan, mut verdict) = (Plan::new(1), Verdict::new());
    let mut reference = Plan::indexed_only(1);
    let mut expected = Verdict::new();
    // One by one of many kinds: they run directly at first, then are moved.
    for at in 0..200 {
        for _ in 0..1 + at % 5 {
            plan.bind_permanent(copying(byte(at), 1, at)).expect("room");
            reference.bind(copying(byte(at), 1, at)).expect("room");
        }
        let mut bytes = [0; 256];
        for known in [0, at / 2, at] {
            bytes[known as usize] = 1;
        }
        assert_eq!(
            tags(&plan, &bytes, &mut verdict),
            tags(&reference, &bytes, &mut expected)
        );
    }
}

#[test]
fn a_plan_explains_itself() {
    let mut plan = Plan::indexed_only(1);
    for n in 0..3 {
        plan.bind(taking(filter(&connection(n)), 5, n))
            .expect("room");
    }
    plan.bind(copying(filter(&SrcPort(17, 1000, 2000)), 9, 9))
        .expect("room");
    let text = plan.explain(2).to_string();
    let expected = "\
4 bindings, 2 shapes, 0 run whole
shape 1: 1 entries, priorities up to 9
  load.2 [12] == 0x800
  load.1 [23] == 0x11
  load.2 [20] & 0x1fff == 0
    load.2 [((load.1 [14] & 0xf) << 2) + 14] in 1000..=2000, priority 9 copies → port 9 (#3)
shape 0: 3 entries, priorities up to 5
  load.2 [12] == 0x800
  load.4 [26]: 3 values
  load.4 [30] == 0xa800000
  load.1 [23] == 6
  load.2 [20] & 0x1fff == 0
  load.2 [((load.1 [14] & 0xf) << 2) + 14]: 3 values
  load.2 [((load.1 [14] & 0xf) << 2) + 16] == 0x50
    0xa000000, 0, priority 5 takes → port 0 (#0)
    0xa000001, 1, priority 5 takes → port 1 (#1)
    and 1 more
";
    assert_eq!(text, expected, "{text}");
}

#[test]
fn a_shape_shows_what_a_lowering_needs() {
    let mut plan = Plan::indexed_only(1);
    for n in 0..5 {
        plan.bind(taking(filter(&connection(n)), n as u16, n))
            .expect("room");
    }
    let shape = plan.subtables().next().expect("one shape");
    assert_eq!((shape.len(), shape.fields().len()), (5, 7));
    assert_eq!(shape.best().priority(), 4);
    let guarded = (0..7).filter(|field| shape.guard(*field).is_some()).count();
    assert_eq!(guarded, 5, "all but the source's address and port");
    for entry in shape.entries() {
        assert_eq!(entry.target, Target::Port(entry.tag));
        assert_eq!(entry.rank.priority(), entry.tag as u16);
        assert!(entry.key.contains(&(0x0a00_0000 + entry.tag)));
        assert!(entry.tests.is_empty());
    }
}

#[test]
fn plans_may_be_shared_and_sent() {
    fn shared<T: Send + Sync>() {}
    shared::<Plan>();
    shared::<Filter>();
    shared::<Verdict>();
}
