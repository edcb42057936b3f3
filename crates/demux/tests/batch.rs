//! Frames run in batches get the verdicts that they get one by one, also
//! where tables are so large that they are read ahead.

mod common;

use common::{Given, Pred, and, filter, five_tuple, given, ip_frame};
use weir_demux::{Binding, Plan, Target, Verdict};
use weir_lab::program::Tape;

const COUNT: u32 = 17_000;

fn connection(n: u32) -> (u32, u32, (u16, u16)) {
    (0x0a00_0000 + n, 0x0a80_0000 + n / 7, (n as u16, 80))
}

/// A TCP connection, and more now and then: the same one again, for this many
/// lengths of frames that they form a group, and one of UDP.
fn preds(n: u32) -> Vec<Pred> {
    let (src, dst, (src_port, dst_port)) = connection(n);
    let tuple = |protocol| five_tuple(protocol, src, dst, src_port, dst_port);
    let mut preds = vec![tuple(6)];
    if n.is_multiple_of(300) {
        preds.extend((0..15).map(|more| and(tuple(6), Pred::Longer(45 + more))));
    }
    if n.is_multiple_of(20) {
        preds.push(tuple(17));
    }
    preds
}

fn bind(plan: &mut Plan, pred: &Pred, tag: u32) -> weir_demux::BindingId {
    let binding = Binding {
        filter: filter(pred),
        priority: (tag % 3) as u16,
        copy: tag.is_multiple_of(5),
        target: Target::Port(tag),
        tag,
    };
    plan.bind(binding).expect("room")
}

fn frame(tape: &mut Tape) -> Vec<u8> {
    if tape.chance(10) {
        return common::frame(tape);
    }
    let n = tape.word() % (COUNT + COUNT / 4);
    let n = if tape.chance(20) { n / 300 * 300 } else { n };
    let (src, dst, ports) = connection(n);
    let protocol = tape.pick(&[6, 6, 17]);
    let mut bytes = ip_frame(protocol, src, dst, ports, tape.pick(&[5, 6]));
    if tape.chance(10) {
        bytes.truncate(tape.below(bytes.len()));
    }
    bytes
}

/// At least `least` deliveries of some hundred frames.
fn check(plan: &Plan, tape: &mut Tape, least: usize) {
    let (mut verdict, mut single) = (Verdict::new(), Verdict::new());
    let mut deliveries = 0;
    for length in [0, 1, 15, 16, 17, 100] {
        let bytes: Vec<Vec<u8>> = (0..length).map(|_| frame(tape)).collect();
        let frames: Vec<(&[u8], u32)> = bytes.iter().map(|bytes| (&bytes[..], 90)).collect();
        let mut next = 0;
        plan.run_batch(&frames, &mut verdict, |number, verdict| {
            assert_eq!(number, next);
            next += 1;
            plan.run(frames[number].0, frames[number].1, &mut single);
            let all = |verdict: &Verdict| -> Vec<Given> {
                verdict.deliveries().iter().map(given).collect()
            };
            assert_eq!(all(verdict), all(&single));
            assert_eq!(verdict.is_taken(), single.is_taken());
            deliveries += verdict.deliveries().len();
        });
        assert_eq!(next, length);
    }
    assert!(deliveries >= least, "{deliveries} deliveries");
}

#[test]
fn as_one_by_one() {
    let mut tape = Tape::seeded(1, 100_000);
    let mut plan = Plan::new(3);
    check(&plan, &mut tape, 0);
    let mut ids = Vec::new();
    for n in 0..COUNT {
        for pred in preds(n) {
            let tag = ids.len() as u32;
            ids.push(bind(&mut plan, &pred, tag));
        }
        if n % 4_000 == 10 {
            check(&plan, &mut tape, 0);
        }
    }
    check(&plan, &mut tape, 80);
    // Down to where no table is large any more, and to nothing.
    for (number, id) in ids.into_iter().enumerate() {
        plan.unbind(id).expect("bound");
        if number % 3_000 == 0 {
            check(&plan, &mut tape, 0);
        }
    }
    check(&plan, &mut tape, 0);
}

/// Filters of several kinds for a connection: enough entries that frames
/// descend a tree together.
fn shapes(n: u32) -> [Pred; 5] {
    let (src, dst, (src_port, dst_port)) = connection(n);
    [
        five_tuple(6, src, dst, src_port, dst_port),
        and(Pred::Src(src, 32), Pred::DstPort(6, dst_port, dst_port)),
        and(Pred::Dst(dst, 32), Pred::SrcPort(6, 0, src_port)),
        Pred::Src(src, 32),
        and(Pred::Src(src, 32), Pred::Dst(dst, 24)),
    ]
}

#[test]
fn through_a_large_tree() {
    let mut tape = Tape::seeded(2, 100_000);
    let mut plan = Plan::new(4);
    for n in 0..COUNT / 4 {
        for (kind, pred) in (0..).zip(shapes(n)) {
            bind(&mut plan, &pred, n * 6 + kind);
        }
    }
    let explained = plan.explain(0).to_string();
    let count = explained.split(" entries in leaves").next();
    let count = count.and_then(|text| text.split(' ').next_back()?.parse().ok());
    assert!(
        count.is_some_and(|count: u32| count > 16_384),
        "{explained}"
    );
    check(&plan, &mut tape, 20);
}
