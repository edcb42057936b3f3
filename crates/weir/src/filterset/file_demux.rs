//! Distributes frames of capture files to ports: a plan for each link type.

use crate::error::CliError;
use crate::filterset::compile::Compiler;
use crate::filterset::per_linktype::{Made, PerLinkType, Refusals};
use crate::filterset::port_spec::PortSpec;
use std::fmt::Write;
use std::path::Path;
use std::sync::mpsc::{channel, sync_channel};
use std::thread;
use weir_demux::{Binding, Plan, Target, Verdict};
use weir_link::pcap::FrameRef;
use weir_wire::LinkType;

/// Demultiplexes frames of any link type to the same ports.
pub(crate) struct FileDemux<'a> {
    ports: &'a [PortSpec],
    /// The file of the ports that have a line number.
    file: Option<&'a Path>,
    compiler: &'a Compiler,
    plans: PerLinkType<Plan>,
    verdict: Verdict,
    /// The verdict on a frame whose link type has no plan.
    no_plan: Verdict,
}

/// Entries of each table that `--explain` prints.
const ENTRIES_SHOWN: usize = 10;

/// Number of ports that a thread compiles at a time.
const PORTS_PER_BATCH: usize = 512;
/// Largest number of compiling threads: a single thread binds their results.
const THREADS_MAX: usize = 8;

/// The ports that get a frame.
pub(crate) struct Ports<'a>(&'a Verdict);

impl Ports<'_> {
    /// Their numbers, and the bytes of the frame to keep for each.
    #[inline]
    pub(crate) fn ports(&self) -> impl Iterator<Item = (usize, usize)> {
        let deliveries = self.0.deliveries().iter();
        deliveries.map(|delivery| (delivery.tag as usize, delivery.snap_len as usize))
    }

    /// Whether one of them took the frame.
    #[inline]
    pub(crate) fn taken(&self) -> bool {
        self.0.is_taken()
    }
}

impl<'a> FileDemux<'a> {
    /// A demultiplexer without link types. Ports with a line number are from
    /// `file`.
    pub(crate) fn new(
        ports: &'a [PortSpec],
        file: Option<&'a Path>,
        compiler: &'a Compiler,
    ) -> FileDemux<'a> {
        FileDemux {
            ports,
            file,
            compiler,
            plans: PerLinkType::new(),
            verdict: Verdict::new(),
            no_plan: Verdict::new(),
        }
    }

    /// Creates the plan for the input's first link type. A filter that this
    /// link type refuses is a user error.
    pub(crate) fn prepare(&mut self, linktype: LinkType) -> Result<(), CliError> {
        let make = |linktype| plan(self.ports, self.file, self.compiler, linktype);
        self.plans.first(linktype, make).map_err(CliError::refused)
    }

    /// The ports that get `frame`.
    #[inline]
    pub(crate) fn judge(&mut self, frame: &FrameRef<'_>) -> Ports<'_> {
        let make = |linktype| plan(self.ports, self.file, self.compiler, linktype);
        let Some(plan) = self.plans.of(frame.linktype(), make) else {
            return Ports(&self.no_plan);
        };
        plan.run(frame.bytes, frame.wire_len, &mut self.verdict);
        Ports(&self.verdict)
    }

    /// The frames that some ports' filters did not process, so that the result
    /// is incomplete: a message for each link type.
    pub(crate) fn unjudged(&self) -> Vec<String> {
        let ports = self.ports.len();
        self.plans
            .unjudged(|count| format!(" by {count} of {ports} ports, whose filters it refuses"))
    }

    /// A description of the plans.
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
fn plan(
    ports: &[PortSpec],
    file: Option<&Path>,
    compiler: &Compiler,
    linktype: LinkType,
) -> Made<Plan> {
    let mut plan = Plan::new(seed());
    let mut refusals = Refusals::default();
    let mut number = 0;
    let compile = |port: &PortSpec| compiler.filter(port.lang, port.filter.as_bytes(), linktype);
    in_order(ports, compile, |port, compiled| {
        let bound = compiled.as_ref().map_err(String::clone);
        let bound = bound.and_then(|(filter, priority)| {
            let binding = Binding {
                filter: filter.clone(),
                priority: port.priority.or(*priority).unwrap_or(0),
                copy: port.copy,
                target: Target::Port(number),
                tag: number,
            };
            let bound = plan.bind_permanent(binding);
            bound.map_err(|error| error.to_string())
        });
        if let Err(why) = bound {
            let place = port.location(file);
            refusals.add(format!("{place}port `{}`: {why}", port.name));
        }
        number += 1;
    });
    Made { it: plan, refusals }
}

/// Calls `take` with each port and its result of `make`, in order. For many
/// ports, several threads run `make`, as far as threads can be started.
///
/// A thread frees the memory that it allocated: freeing another thread's memory
/// costs more than all the rest.
fn in_order<T: Send>(
    ports: &[PortSpec],
    make: impl Fn(&PortSpec) -> T + Sync,
    mut take: impl FnMut(&PortSpec, &T),
) {
    let chunks = ports.chunks(PORTS_PER_BATCH);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = chunks.len().min(processors).min(THREADS_MAX);
    if threads < 2 {
        return ports.iter().for_each(|port| take(port, &make(port)));
    }
    thread::scope(|scope| {
        let make = &make;
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let (give, made) = sync_channel::<Vec<T>>(1);
                let (give_back, used) = channel();
                let chunks = chunks.clone().skip(thread).step_by(threads);
                let work = move || {
                    for chunk in chunks {
                        used.try_iter().for_each(drop::<Vec<T>>);
                        if give.send(chunk.iter().map(make).collect()).is_err() {
                            return;
                        }
                    }
                    used.iter().for_each(drop);
                };
                let thread = thread::Builder::new().spawn_scoped(scope, work);
                thread.ok().map(|_| (made, give_back))
            })
            .collect();
        for (chunk, thread) in chunks.zip(started.iter().cycle()) {
            let made = match thread {
                Some((made, _)) => made.recv().expect("a thread ends when it has made all"),
                None => chunk.iter().map(make).collect(),
            };
            for (port, made) in chunk.iter().zip(&made) {
                take(port, made);
            }
            if let Some((_, give_back)) = thread {
                // A thread that has ended has no results left.
                let _ = give_back.send(made);
            }
        }
    });
}

/// A seed of the tables' hash that senders of frames cannot know.
fn seed() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let words = [0_u8, 1].map(|half| RandomState::new().hash_one(half));
    u128::from(words[0]) << 64 | u128::from(words[1])
}
