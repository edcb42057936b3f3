//! From frames to ports: a plan for each link type that is met.

use crate::bind::Port;
use crate::failure::Failure;
use crate::source::Compiler;
use crate::text;
use std::fmt::Write;
use weir_demux::{Binding, Filter, Plan, Target, Verdict};
use weir_link::pcap::FrameRef;
use weir_wire::LinkType;

/// Judges frames of any link type by the same ports.
///
/// A filter means other bytes on another link type, so each link type has a
/// plan of its own, made when its first frame comes.
pub(crate) struct Divider<'a> {
    ports: &'a [Port],
    compiler: &'a Compiler,
    plans: Vec<LinkPlan>,
    /// The plan of the frame before.
    last: usize,
    verdict: Verdict,
}

struct LinkPlan {
    linktype: LinkType,
    plan: Plan,
    /// Ports whose filters this link type refuses, and why.
    refused: Vec<String>,
    frames: u64,
}

/// How many entries of each table `--explain` writes out.
const ENTRIES_SHOWN: usize = 10;

/// How many refused filters of a link type are written out.
const REFUSALS_SHOWN: usize = 10;

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
            plans: Vec::new(),
            last: 0,
            verdict: Verdict::new(),
        }
    }

    /// Makes the plan for the input's first link type. A filter that it
    /// refuses is the user's mistake.
    pub(crate) fn prepare(&mut self, linktype: LinkType) -> Result<(), Failure> {
        if !self.plans.is_empty() {
            return Ok(());
        }
        let plan = self.plan(linktype)?;
        match plan.refused.first() {
            Some(why) => Err(Failure::refused(why)),
            None => {
                self.plans.push(plan);
                Ok(())
            }
        }
    }

    /// Which ports get `frame`.
    #[inline]
    pub(crate) fn judge(&mut self, frame: &FrameRef<'_>) -> Result<Ports<'_>, Failure> {
        let linktype = frame.linktype();
        if self
            .plans
            .get(self.last)
            .is_none_or(|plan| plan.linktype != linktype)
        {
            self.last = self.find_or_make(linktype)?;
        }
        let plan = &mut self.plans[self.last];
        plan.frames += 1;
        plan.plan
            .run(frame.bytes, frame.wire_len, &mut self.verdict);
        Ok(Ports(&self.verdict))
    }

    #[cold]
    fn find_or_make(&mut self, linktype: LinkType) -> Result<usize, Failure> {
        self.prepare(linktype)?;
        let found = self.plans.iter().position(|plan| plan.linktype == linktype);
        if let Some(found) = found {
            return Ok(found);
        }
        let plan = self.plan(linktype)?;
        self.plans.push(plan);
        Ok(self.plans.len() - 1)
    }

    fn plan(&self, linktype: LinkType) -> Result<LinkPlan, Failure> {
        let mut plan = Plan::new(seed());
        let mut refused = Vec::new();
        for (number, port) in self.ports.iter().enumerate() {
            let compiled = match self
                .compiler
                .compile(port.lang, port.filter.as_bytes(), linktype)
            {
                Ok(compiled) => compiled,
                Err(why) => {
                    refused.push(format!("port `{}`: {why}", port.name));
                    continue;
                }
            };
            let number = u32::try_from(number).expect("ports are limited");
            let bound = plan.bind(Binding {
                filter: Filter::new(compiled.program),
                priority: port.priority.or(compiled.priority).unwrap_or(0),
                copy: port.copy,
                target: Target::Port(number),
                tag: number,
            });
            bound.map_err(|error| Failure::refused(format!("port `{}`: {error}", port.name)))?;
        }
        Ok(LinkPlan {
            linktype,
            plan,
            refused,
            frames: 0,
        })
    }

    /// Which filters could not judge the frames of some link type: a message
    /// for each such link type. Those frames were judged by the other ports
    /// only, so the result is not whole.
    pub(crate) fn unjudged(&self) -> Vec<String> {
        let plans = self.plans.iter().filter(|plan| !plan.refused.is_empty());
        let message = |plan: &LinkPlan| {
            let mut message = format!(
                "{} of link type {} not judged by {} of {} ports, whose filters it refuses:",
                text::frames(plan.frames),
                plan.linktype,
                plan.refused.len(),
                self.ports.len()
            );
            for why in plan.refused.iter().take(REFUSALS_SHOWN) {
                let _ = write!(message, "\n{why}");
            }
            if plan.refused.len() > REFUSALS_SHOWN {
                message += "\n…";
            }
            message
        };
        plans.map(message).collect()
    }

    /// How the filters became plans.
    pub(crate) fn explain(&self) -> String {
        let mut out = String::new();
        for plan in &self.plans {
            let _ = writeln!(
                out,
                "link type {}:\n{}",
                plan.linktype,
                plan.plan.explain(ENTRIES_SHOWN)
            );
        }
        out
    }
}

/// A seed that whoever sends the frames cannot know, for the tables' hash.
fn seed() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let words = [0_u8, 1].map(|half| RandomState::new().hash_one(half));
    u128::from(words[0]) << 64 | u128::from(words[1])
}
