//! From frames to ports: a plan for each link type that is met.

use crate::bind::Port;
use crate::failure::Failure;
use crate::perlink::{Made, PerLink, Refusals};
use crate::source::Compiler;
use std::fmt::Write;
use weir_demux::{Binding, Filter, Plan, Target, Verdict};
use weir_link::pcap::FrameRef;
use weir_wire::LinkType;

/// Judges frames of any link type by the same ports.
pub(crate) struct Divider<'a> {
    ports: &'a [Port],
    compiler: &'a Compiler,
    plans: PerLink<Plan>,
    verdict: Verdict,
    /// That of a frame whose link type has no plan.
    nobodys: Verdict,
}

/// How many entries of each table `--explain` writes out.
const ENTRIES_SHOWN: usize = 10;

/// Which ports get a frame.
pub(crate) struct Ports<'a>(&'a Verdict);

impl Ports<'_> {
    /// Their numbers, and how many bytes of the frame each wants.
    #[inline]
    pub(crate) fn ports(&self) -> impl Iterator<Item = (usize, usize)> {
        let deliveries = self.0.deliveries().iter();
        deliveries.map(|delivery| (delivery.tag as usize, delivery.snap_len as usize))
    }

    /// Whether one of them took it.
    #[inline]
    pub(crate) fn taken(&self) -> bool {
        self.0.is_taken()
    }
}

impl<'a> Divider<'a> {
    /// A divider that knows no link type yet.
    pub(crate) fn new(ports: &'a [Port], compiler: &'a Compiler) -> Divider<'a> {
        Divider {
            ports,
            compiler,
            plans: PerLink::new(),
            verdict: Verdict::new(),
            nobodys: Verdict::new(),
        }
    }

    /// Makes the plan for the input's first link type. A filter that it
    /// refuses is the user's mistake.
    pub(crate) fn prepare(&mut self, linktype: LinkType) -> Result<(), Failure> {
        let make = |linktype| plan(self.ports, self.compiler, linktype);
        self.plans.first(linktype, make).map_err(Failure::refused)
    }

    /// Which ports get `frame`.
    #[inline]
    pub(crate) fn judge(&mut self, frame: &FrameRef<'_>) -> Ports<'_> {
        let make = |linktype| plan(self.ports, self.compiler, linktype);
        let Some(plan) = self.plans.of(frame.linktype(), make) else {
            return Ports(&self.nobodys);
        };
        plan.run(frame.bytes, frame.wire_len, &mut self.verdict);
        Ports(&self.verdict)
    }

    /// Which frames were not judged by every port's filter, so that the result
    /// is not whole: a message for each link type.
    pub(crate) fn unjudged(&self) -> Vec<String> {
        let ports = self.ports.len();
        self.plans
            .unjudged(|count| format!(" by {count} of {ports} ports, whose filters it refuses"))
    }

    /// How the filters became plans.
    pub(crate) fn explain(&self) -> String {
        let mut out = String::new();
        for (linktype, plan) in self.plans.iter() {
            let explained = plan.explain(ENTRIES_SHOWN);
            let _ = writeln!(out, "link type {linktype}:\n{explained}");
        }
        out
    }
}

/// The plan of `ports` for frames of `linktype`.
fn plan(ports: &[Port], compiler: &Compiler, linktype: LinkType) -> Made<Plan> {
    let mut plan = Plan::new(seed());
    let mut refusals = Refusals::default();
    for (number, port) in ports.iter().enumerate() {
        let compiled = compiler.compile(port.lang, port.filter.as_bytes(), linktype);
        let number = u32::try_from(number).expect("ports are limited");
        let bound = compiled.and_then(|compiled| {
            let binding = Binding {
                filter: Filter::new(compiled.program),
                priority: port.priority.or(compiled.priority).unwrap_or(0),
                copy: port.copy,
                target: Target::Port(number),
                tag: number,
            };
            plan.bind(binding).map_err(|error| error.to_string())
        });
        if let Err(why) = bound {
            refusals.add(format!("port `{}`: {why}", port.name));
        }
    }
    Made { it: plan, refusals }
}

/// A seed that whoever sends the frames cannot know, for the tables' hash.
fn seed() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let words = [0_u8, 1].map(|half| RandomState::new().hash_one(half));
    u128::from(words[0]) << 64 | u128::from(words[1])
}
