//! What a frame costs that several ports share: by a fan-out, to which one binding
//! leads, and by a binding for each port, each with its share.

use super::bed::{Bed, FRAMES_MAX, Flows, RING_BYTES, binding, filter, flow};
use super::runs::{Cell, HOT, Row, beside, measure};
use super::table::Table;
use weir_demux::fanout::{BUCKETS, Buckets, Share};
use weir_demux::kernel::Hook;
use weir_demux::{Binding, Target};
use weir_lab::results::{Bar, Recorder, Unit};

const PORTS: u32 = 4;

/// What one port costs that gets all frames.
const ONE: Unit<'static> = Unit::CostOf("1 port");

/// The buckets of one share, or of all shares, a port each.
fn buckets(only: Option<u32>) -> Buckets {
    let mut buckets = Buckets::new();
    for bucket in 0..BUCKETS {
        for port in 0..PORTS {
            let share = Share::new(port, PORTS).expect("there is such a share");
            if share.has(bucket) && only.is_none_or(|only| only == port) {
                buckets.set(bucket, port, port);
            }
        }
    }
    buckets
}

/// Ports with the same filter: one alone, or several that share its frames by
/// these fan-outs.
fn bed(hook: Hook, fanouts: &[Buckets]) -> Bed {
    let mut bed = Bed::new(hook, PORTS, RING_BYTES);
    let one = binding(filter("udp"), true, 0, 7);
    for buckets in fanouts {
        let (number, change) = bed.plan.add_fanout(buckets).expect("room");
        bed.apply(&change);
        let target = Target::Fanout(number);
        bed.bind(Binding {
            target,
            ..one.clone()
        });
    }
    if fanouts.is_empty() {
        bed.bind(one);
    }
    bed
}

pub(crate) fn fanout(results: &Recorder) {
    for (hook, at) in [(Hook::Xdp, "XDP"), (Hook::TcIngress, "tc")] {
        let title =
            format!("Ports that share the frames of a filter, ns per frame ({at}, 60 bytes)");
        let mut table = Table::new(
            &title,
            &[
                "ports, bindings",
                "one hot flow",
                "×",
                "1,024 flows in turn",
                "×",
            ],
        );
        let turn = Flows {
            count: 1024,
            scattered: false,
        };
        let row = |bindings: u32, fanouts: &[Buckets]| {
            let bed = bed(hook, fanouts);
            let frame = || flow(0).frame();
            let cells = [
                Cell::new(&bed, &HOT, frame(), FRAMES_MAX),
                Cell::new(&bed, &turn, frame(), FRAMES_MAX),
            ];
            Row::new(bindings, bed, cells)
        };
        let each: Vec<Buckets> = (0..PORTS).map(|port| buckets(Some(port))).collect();
        let mut rows = [row(1, &[]), row(1, &[buckets(None)]), row(PORTS, &each)];
        measure(&mut rows);
        let first = rows[0].figures();
        let names = ["1 port, 1", "4 ports, 1", "4 ports, 4"];
        for (row, name) in rows.iter().zip(names) {
            let mut cells = vec![name.to_owned()];
            cells.extend(beside(row.figures(), first));
            table.row(&cells);
            assert_eq!(row.lost(), 0, "the rings hold all frames");
        }
        for (row, what, bar) in [
            (&rows[1], "fan-out of 4 ports", Bar::AtMost(1.5)),
            (&rows[2], "a binding for each of 4 shares", Bar::None),
        ] {
            for (at_column, column) in ["one hot flow", "1024 flows"].into_iter().enumerate() {
                let name = format!("kernel plan: {what} at {at}, {column}");
                let ratio = row.figures()[at_column] / first[at_column];
                results.record(&name, ratio, ONE, bar);
            }
        }
        table.print();
    }
}
