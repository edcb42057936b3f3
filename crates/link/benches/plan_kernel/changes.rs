//! What changes cost, while nothing else is done.

use super::bed::{Bed, binding, connection, filter, flow};
use super::table::Table;
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;
use weir_demux::Filter;
use weir_demux::kernel::{Half, Hook, MapRole};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_lab::rules::mixed_forms;
use weir_link::bpf::{Map, MapSpec, Program};

/// What this thread has run, in microseconds: other programs' time does not
/// count, nor waiting for the kernel.
pub(crate) fn own_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Microseconds: the middle of all, and the most.
fn times(count: usize, mut run: impl FnMut(usize)) -> (f64, f64) {
    let mut times: Vec<f64> = (0..count)
        .map(|turn| {
            let start = Instant::now();
            run(turn);
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[count / 2], times[count - 1])
}

/// Instructions that the verifier went through.
fn verified(program: &Program) -> String {
    let path = format!("/proc/self/fdinfo/{}", program.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("verified_insns:"));
    line.unwrap_or("?").trim().to_owned()
}

pub(crate) fn changes(results: &Recorder) {
    let mut table = Table::new(
        "Changes, µs (plan of 1,000 connections; text already compiled)",
        &["what", "median", "most", "bar"],
    );
    let mut add = |what: &str, (median, most): (f64, f64), bar: Bar| {
        table.row(&[
            what.into(),
            format!("{median:.1}"),
            format!("{most:.0}"),
            match bar {
                Bar::AtMost(most) => most.to_string(),
                _ => String::new(),
            },
        ]);
    };
    let us = Unit::Microseconds;
    let record = |what: &str, value, bar| {
        results.record(&format!("kernel plan: {what}"), value, us, bar);
    };
    let mut bed = Bed::new(Hook::Xdp, 1_000, 1 << 16);
    let ids: Vec<_> = (0..1_000)
        .map(|n| bed.bind(binding(filter(&connection(&flow(n))), false, n, n)))
        .collect();
    bed.swap();
    let others: Vec<Filter> = (0..1_000)
        .map(|n| filter(&connection(&flow(n + 2_000))))
        .collect();
    let mut programs = 0;
    let known = times(1_000, |turn| {
        let change = bed.plan.change_filter(ids[turn], others[turn].clone());
        programs += usize::from(bed.apply(&change.expect("room")));
    });
    assert_eq!(programs, 0, "the shape is known");
    let (what, bar) = (
        "another filter for an open port, known shape",
        Bar::AtMost(20.0),
    );
    add(what, known, bar);
    record(what, known.0, bar);
    let epoch = bed.plan.epoch();
    let settle = times(1, |_| {
        let change = bed.plan.reclaim(epoch);
        bed.apply(&change);
    });
    add("(settling all 1,000 of them)", settle, Bar::None);
    let filters: Vec<Filter> = mixed_forms(3, 40).iter().map(|text| filter(text)).collect();
    for (tag, filter) in (0..).zip(filters) {
        let shapes = bed.plan.subtables();
        let (start, own) = (Instant::now(), own_us());
        bed.bind(binding(filter, true, tag, tag));
        let program = bed.load(Hook::Xdp);
        bed.slots.put(&[0; 4], &program).expect("the slot takes it");
        let (own, wall) = (own_us() - own, start.elapsed().as_secs_f64() * 1e6);
        if [0, 6, 12, 18, 24, 30, 39].contains(&tag) {
            let insns = bed
                .plan
                .program(Hook::Xdp, Half::Subtables)
                .expect("it was lowered above")
                .insns
                .len();
            let verified = verified(&program);
            let what = format!(
                "a new kind of filter beside {shapes} shapes ({insns} instructions, {verified} verified), CPU and wall"
            );
            let bar = Bar::AtMost(5000.0);
            add(&what, (own, wall), bar);
            record(
                &format!("a new kind of filter beside {shapes} shapes"),
                wall,
                bar,
            );
        }
    }
    let mut rings = Vec::new();
    let made = times(50, |_| {
        rings.push(Map::create("port", &MapSpec::ring_buf(1 << 20)).expect("a ring"));
    });
    add("a ring of 1 MiB made", made, Bar::None);
    record("a ring of 1 MiB made", made.0, Bar::None);
    let put = times(20, |turn| {
        let slots = bed.maps.map(MapRole::Rings);
        slots
            .put(&(turn as u32).to_ne_bytes(), &rings[turn])
            .expect("it is put in");
    });
    add("a ring put in its place (ahead of need)", put, Bar::None);
    let start = Instant::now();
    for id in ids {
        let change = bed.plan.unbind(id).expect("it is bound");
        bed.apply(&change);
    }
    let unbound = start.elapsed().as_secs_f64() * 1e6;
    let keys: Vec<u8> = (0..1_000_u32).flat_map(u32::to_ne_bytes).collect();
    let nobodys = Map::create("nobody", &MapSpec::ring_buf(1 << 16)).expect("a ring");
    bed.maps
        .map(MapRole::Rings)
        .put_batch(&keys, &vec![nobodys.as_fd(); 1_000])
        .expect("they are there");
    let all = start.elapsed().as_secs_f64() * 1e6;
    add("1,000 ports unbound", (unbound, unbound), Bar::None);
    let (what, bar) = ("1,000 ports closed at once", Bar::AtMost(1e6));
    add(what, (all, all), bar);
    record(what, all, bar);
    table.print();
}
