//! Fan-outs: the port that a frame goes to in the kernel is the one that the hash
//! in user space chooses.

use crate::bound::binding;
use crate::common::flows::both_ways;
use crate::common::{five_tuple, ip_frame, program};
use crate::rig::{Rig, fits, permitted};
use crate::{HOOKS, PORTS, captured, rounds, tagged};
use weir_demux::fanout::{BUCKETS, Buckets, Layout, Share, bucket};
use weir_demux::kernel::{Hook, KernelBindError, Options, PortSettings, Recompile, limits};
use weir_demux::{Binding, BindingId, Filter, Target};
use weir_filter::ir::Program;
use weir_filter::lang::expr::{Context, compile};
use weir_lab::program::Tape;
use weir_wire::LinkType;

/// All ports in turn have a bucket; tags are those of the ports.
fn dealt_out(ports: &[u32]) -> Buckets {
    let mut buckets = Buckets::new();
    for bucket in 0..BUCKETS {
        let port = ports[bucket % ports.len()];
        buckets.set(bucket, port, 100 + port);
    }
    buckets
}

fn one_share(share: Share, port: u32) -> Buckets {
    let mut buckets = Buckets::new();
    for bucket in (0..BUCKETS).filter(|bucket| share.has(*bucket)) {
        buckets.set(bucket, port, 100 + port);
    }
    buckets
}

fn everything() -> Filter {
    Filter::new(Program::constant(1 << 18))
}

fn bind(rig: &mut Rig, fanout: u32, filter: Filter, copy: bool) -> BindingId {
    let (id, change) = rig
        .kernel
        .bind(Binding {
            target: Target::Fanout(fanout),
            ..binding(filter, 5, copy, 0, 7)
        })
        .unwrap();
    rig.apply(&change);
    id
}

fn add(rig: &mut Rig, buckets: &Buckets) -> u32 {
    let (number, change) = rig.kernel.add_fanout(buckets).unwrap();
    rig.apply(&change);
    number
}

/// The ports that get a frame, each with the tag; the one frame goes to one port.
fn receivers(rig: &mut Rig, frame: &[u8]) -> Vec<(u32, u32)> {
    let (_, got) = rig.run(frame);
    let ports = (0..).zip(got);
    ports
        .flat_map(|(port, records)| records.into_iter().map(move |record| (port, record.0)))
        .collect()
}

fn chosen(buckets: &Buckets, frame: &[u8]) -> Vec<(u32, u32)> {
    let port = buckets.get(bucket(frame, Layout::ETHERNET));
    port.into_iter().collect()
}

/// The frame, and the frame as the rig runs it.
fn check(rig: &mut Rig, buckets: &Buckets, frame: &[u8]) {
    let frame = match rig.vlan {
        None => frame.to_vec(),
        Some(tag) => tagged(frame, tag),
    };
    let found = receivers(rig, &frame);
    assert_eq!(
        found,
        chosen(buckets, &frame),
        "{:?} {frame:02x?}",
        rig.hook
    );
}

#[test]
fn random_frames_go_to_the_port_that_user_space_chooses() {
    if !permitted() {
        return;
    }
    let ports: Vec<u32> = (0..PORTS).collect();
    let buckets = dealt_out(&ports);
    let mut used = [0; PORTS as usize];
    for (hook, vlan) in [
        (Hook::Xdp, None),
        (Hook::TcIngress, None),
        (Hook::TcIngress, Some(0x2007)),
        (Hook::TcEgress, None),
    ] {
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        rig.vlan = vlan;
        let number = add(&mut rig, &buckets);
        bind(&mut rig, number, everything(), true);
        rig.load();
        assert!(!rig.maps.needs_perfmon(hook), "verified with barriers");
        for seed in 0..rounds(400) {
            let mut tape = Tape::seeded(seed, 400);
            let flow = both_ways(&mut tape);
            for frame in [&flow.there, &flow.back] {
                if fits(hook, frame) {
                    check(&mut rig, &buckets, frame);
                    used[bucket(frame, Layout::ETHERNET) % PORTS as usize] += 1;
                }
            }
        }
    }
    assert!(used.iter().all(|count| *count > 100), "{used:?}");
}

#[test]
fn captured_frames_go_to_the_port_that_user_space_chooses() {
    if !permitted() {
        return;
    }
    let frames = captured(60);
    let buckets = dealt_out(&[0, 1, 2, 3]);
    for hook in HOOKS {
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        let number = add(&mut rig, &buckets);
        bind(&mut rig, number, everything(), true);
        for frame in frames.iter().filter(|frame| fits(hook, frame)) {
            check(&mut rig, &buckets, frame);
        }
    }
}

/// A share that is not the frame's accepts nothing: what it would have taken goes
/// to the bindings behind it, and copies are no one's.
#[test]
fn a_share_takes_its_own_frames_only() {
    if !permitted() {
        return;
    }
    for hook in HOOKS {
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        let shares = [Share::new(0, 4).unwrap(), Share::new(2, 4).unwrap()];
        for (port, share) in (0..).zip(shares) {
            let number = add(&mut rig, &one_share(share, port));
            bind(&mut rig, number, everything(), false);
        }
        rig.bind(binding(everything(), 1, true, 3, 7));
        let (mut own, mut passed) = (0, 0);
        for number in 0..400 {
            let frame = ip_frame(6, number, 9, (number as u16, 80), 5);
            let bucket = bucket(&frame, Layout::ETHERNET);
            let share = shares.iter().position(|share| share.has(bucket));
            let (passes, got) = rig.run(&frame);
            let counts: Vec<usize> = got.iter().map(Vec::len).collect();
            match share {
                Some(port) => {
                    assert_eq!(passes, hook == Hook::TcEgress);
                    assert_eq!((counts[port], counts[3]), (1, 0), "the taker's alone");
                    own += 1;
                }
                None => {
                    assert!(passes, "on to the host");
                    assert_eq!(counts, [0, 0, 0, 1], "on to the next binding");
                    passed += 1;
                }
            }
        }
        assert!(own > 150 && passed > 150, "{own}, {passed}");
    }
}

/// Opaque filters, several subtables, and other bindings beside fan-outs.
#[test]
fn fan_outs_behind_any_filter() {
    if !permitted() {
        return;
    }
    // More values than a subtable has places for: the filter is opaque. Each frame
    // has one that holds.
    let tests = (0..12).map(|at| format!("ether[{at}] * ether[{}] % 7 != 6", at + 1));
    let text = tests.collect::<Vec<_>>().join(" or ");
    let opaque = compile(&text, &Context::new(LinkType::EN10MB)).unwrap();
    for hook in HOOKS {
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        let buckets = dealt_out(&[1, 2]);
        let number = add(&mut rig, &buckets);
        bind(&mut rig, number, Filter::new(opaque.clone()), true);
        // Many subtables: the program has two halves.
        for (tag, depth) in (0..12).zip(1..) {
            let source = crate::common::Pred::Src(0x0a00_0000, depth + 8);
            rig.bind(binding(Filter::new(program(&source)), 3, true, 3, tag));
        }
        let connection = five_tuple(6, 77, 9, 77, 80);
        let single = bind(&mut rig, number, Filter::new(program(&connection)), true);
        assert_eq!(rig.kernel.opaque(), 1);
        let mut twice = 0;
        for number in 60..300 {
            let frame = ip_frame(6, number, 9, (number as u16, 80), 5);
            let wanted = chosen(&buckets, &frame);
            let mut found = receivers(&mut rig, &frame);
            found.retain(|(port, _)| *port != 3);
            let is_connection = number == 77;
            twice += usize::from(is_connection);
            let expected = [wanted.clone(), wanted].concat();
            let length = 1 + usize::from(is_connection);
            assert_eq!(found, expected[..length], "{hook:?}");
        }
        assert_eq!(twice, 1);
        let change = rig.kernel.unbind(single).unwrap();
        rig.apply(&change);
    }
}

/// Fan-outs beside many subtables: entries are looked up in several places.
#[test]
fn fan_outs_beside_many_subtables() {
    if !permitted() {
        return;
    }
    use crate::common::{Pred, and};
    for hook in HOOKS {
        let mut rig = Rig::new(hook, Options::default(), PORTS);
        let buckets = dealt_out(&[0, 1, 2]);
        let number = add(&mut rig, &buckets);
        for (tag, (src, dst)) in
            (0..).zip((8..24).flat_map(|src| (8..26).map(move |dst| (src, dst))))
        {
            // None has a frame: copies of all would not fit into a ring.
            let networks = and(Pred::Src(0x1400_0000, src), Pred::Dst(0x1500_0000, dst));
            rig.bind(binding(Filter::new(program(&networks)), 3, true, 3, tag));
        }
        bind(&mut rig, number, everything(), true);
        let computed = compile("ip[2:2] * 3 % 7 != 8", &Context::new(LinkType::EN10MB)).unwrap();
        bind(&mut rig, number, Filter::new(computed), true);
        assert!(rig.kernel.subtables() > 64, "{}", rig.kernel.subtables());
        for at in 0..100 {
            let frame = ip_frame(6, 0x0a00_0000 + at, 0x0b00_0000 + at, (at as u16, 80), 5);
            let found = receivers(&mut rig, &frame);
            let wanted = chosen(&buckets, &frame);
            assert_eq!(found, [wanted.clone(), wanted].concat(), "{hook:?}");
        }
    }
}

/// The verifier does not follow the hash anew for each opaque filter of a fan-out.
#[test]
fn opaque_filters_with_fan_outs_are_verified_in_good_time() {
    if !permitted() {
        return;
    }
    const FILTERS: u32 = 64;
    for hook in HOOKS {
        let times = [false, true].map(|fans_out| {
            let mut rig = Rig::new(hook, Options::default(), PORTS);
            let number = add(&mut rig, &dealt_out(&[0, 1]));
            for at in 0..FILTERS {
                let tests = (0..12).map(|n| format!("ether[{n}] * ether[{}] % 97 > {at}", n + 1));
                let text = tests.collect::<Vec<_>>().join(" or ");
                let opaque = compile(&text, &Context::new(LinkType::EN10MB)).unwrap();
                let filter = Filter::new(opaque);
                if fans_out {
                    bind(&mut rig, number, filter, true);
                } else {
                    rig.bind(binding(filter, 5, true, 0, at));
                }
            }
            assert_eq!(rig.kernel.opaque(), FILTERS as usize);
            let start = std::time::Instant::now();
            rig.load();
            start.elapsed()
        });
        println!(
            "{FILTERS} opaque filters, {hook:?}: {:?}, of fan-outs {:?}",
            times[0], times[1]
        );
        // A hash for each would take several times as long.
        let most = times[0] * 3 + std::time::Duration::from_millis(200);
        assert!(times[1] < most, "{times:?}");
    }
}

/// Buckets change hands without a new program; numbers and memory are reused.
#[test]
fn buckets_change_hands_and_fan_outs_end() {
    if !permitted() {
        return;
    }
    let options = Options {
        keys_hint: 64,
        ..Options::default()
    };
    let mut rig = Rig::new(Hook::Xdp, options, PORTS);
    let frames: Vec<Vec<u8>> = (0..100)
        .map(|at| ip_frame(17, at, 9, (at as u16, 53), 5))
        .collect();
    let (number, change) = rig.kernel.add_fanout(&dealt_out(&[0, 1, 2, 3])).unwrap();
    assert_eq!(change.programs, Recompile::Required, "the first one");
    rig.apply(&change);
    let bound = bind(&mut rig, number, everything(), false);
    for ports in [&[0, 1, 2, 3][..], &[0, 2, 3], &[3], &[1, 3]] {
        let buckets = dealt_out(ports);
        let change = rig.kernel.change_fanout(number, &buckets).unwrap();
        assert_eq!((change.programs, change.renewed), (Recompile::No, false));
        rig.apply(&change);
        for frame in &frames {
            check(&mut rig, &buckets, frame);
        }
    }
    // Memory grows under the fan-out, which stays.
    let mut others = Vec::new();
    for port in 0..200 {
        others.push(add(&mut rig, &dealt_out(&[port % PORTS])));
    }
    for frame in &frames {
        check(&mut rig, &dealt_out(&[1, 3]), frame);
    }
    let change = rig.kernel.unbind(bound).unwrap();
    rig.apply(&change);
    others.push(number);
    for number in others {
        let change = rig.kernel.remove_fanout(number).unwrap();
        rig.apply(&change);
        assert!(matches!(
            rig.kernel.remove_fanout(number),
            Err(KernelBindError::Target(Target::Fanout(_)))
        ));
    }
    assert!(!rig.kernel.fans_out());
    rig.settle();
    let buckets = dealt_out(&[2]);
    let number = add(&mut rig, &buckets);
    assert_eq!(number, 0, "numbers are reused");
    bind(&mut rig, number, everything(), false);
    check(&mut rig, &buckets, &frames[0]);
}

#[test]
fn fan_outs_have_limits() {
    let mut kernel = weir_demux::kernel::KernelPlan::new(Options::default());
    let none = Buckets::new();
    for _ in 0..limits::FANOUTS_MAX {
        let _ = kernel.add_fanout(&none).unwrap();
    }
    let error = kernel.add_fanout(&none).err().unwrap().to_string();
    assert!(
        error.contains("1025 fan-outs, and 1024 is the most"),
        "{error}"
    );
    let _ = kernel.remove_fanout(5).unwrap();
    let mut wrong = Buckets::new();
    wrong.set(3, Options::default().ports_max, 0);
    let error = kernel.add_fanout(&wrong).err().unwrap().to_string();
    assert!(
        error.contains("1025 ports, and 1024 is the most"),
        "{error}"
    );
    let unknown = kernel.bind(Binding {
        target: Target::Fanout(5),
        ..binding(everything(), 5, true, 0, 7)
    });
    let error = unknown.err().unwrap().to_string();
    assert!(error.contains("fan-out 5"), "{error}");
}

/// A copy beyond the most of one frame is a loss of the port that has the bucket.
#[test]
fn losses_are_the_members() {
    if !permitted() {
        return;
    }
    let mut rig = Rig::new(Hook::Xdp, Options::default(), PORTS);
    rig.lossy = true;
    rig.set_port(0, PortSettings::default());
    let number = add(&mut rig, &dealt_out(&[2]));
    let copies = limits::DELIVERIES_MAX as usize;
    for _ in 0..copies + 3 {
        bind(&mut rig, number, everything(), true);
    }
    let frame = ip_frame(6, 1, 2, (3, 4), 5);
    assert_eq!(receivers(&mut rig, &frame).len(), copies);
    let counters = rig.maps.counters(2).unwrap();
    assert_eq!((counters.delivered, counters.lost), (copies as u64, 3));
}
