//! `weir run --explain`: what the stages do to each flow of a capture, and the
//! entry that it folds to.
//!
//! The capture is taken as one of the inside: frames from an address that
//! is not private is a reply, and goes through the chain as it would come to
//! the outside, with the address that the flow was translated to. What is for the
//! service of a balancer comes from the outside. What leaves by a link with a scheduler waits there, and has
//! no entry.

use super::ipsec::Sas;
use super::{Source, chain, seed};
use crate::error::CliError;
use crate::input::capture_file;
use crate::signals::ShutdownSignal;
use std::collections::HashMap;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;
use weir_apps::chain::BoxConfig;
use weir_apps::shape::Shaper;
use weir_chain::nat::nat64::TranslationPrefix;
use weir_chain::{Batch, Chain, Composed, Direction, Edits, Fate, Flow, Packet};
use weir_link::pcap::FrameRef;
use weir_wire::LinkType;

/// Flows that are shown, at most.
const FLOWS_MAX: usize = 10_000;

/// The observations of a flow.
#[derive(Default)]
struct Seen {
    frames: u64,
    /// Each stage's changes to the last frame, if any.
    steps: Vec<(String, String)>,
    /// The entry, and the frame that made it.
    entry: Option<(u64, Composed)>,
    /// The address by which a meter attributes the last frame, if there is one.
    metered: Option<IpAddr>,
    /// Where the last frame waits: the class, and its link.
    queue: Option<String>,
}

/// The queues of the links that have a scheduler.
struct Queues {
    /// By the links' numbers: the name, and the queues.
    links: Vec<Option<(String, Shaper<Vec<u8>>)>>,
    outside: usize,
}

impl Queues {
    fn of(source: &Source, config: &BoxConfig) -> Result<Queues, CliError> {
        let shapers = config.shapers(seed());
        let shapers = shapers.map_err(|error| source.wrong(&error))?;
        let links = config.router.links.iter().zip(shapers);
        Ok(Queues {
            links: links
                .map(|(link, shaper)| Some((link.name.clone(), shaper?)))
                .collect(),
            outside: config.outside,
        })
    }

    /// Where a frame waits that has passed the stages. Of several links of the inside, addresses do not
    /// say which one it is.
    fn place(&mut self, direction: Direction, frame: &[u8]) -> Option<String> {
        let link = match (direction, self.links.len()) {
            (Direction::Outward, _) | (Direction::Inward, 1) => self.outside,
            (Direction::Inward, 2) => 1 - self.outside,
            (Direction::Inward, _) => return None,
        };
        let (name, shaper) = self.links[link].as_mut()?;
        Some(format!("class `{}` of {name}", shaper.class_of(frame)))
    }
}

/// Where the addresses are by which a meter attributes frames of the outside.
#[derive(Clone, Copy)]
enum Metered {
    AsTheyCome,
    BehindTheStages,
}

/// The flows of a capture.
struct Explained {
    chain: Chain,
    kinds: Vec<&'static str>,
    /// Of stages `nat64`.
    prefixes: Vec<TranslationPrefix>,
    /// The addresses of balancers' services.
    services: Vec<IpAddr>,
    meter: Option<Metered>,
    queues: Queues,
    flows: HashMap<(Direction, Flow), Seen>,
    /// In the order of their first frames.
    order: Vec<(Direction, Flow)>,
    /// The source that outward flows were translated to.
    translated: HashMap<Flow, (IpAddr, u16)>,
    first_ns: Option<u64>,
    others: u64,
    more: u64,
}

/// Prints what the stages do to the flows of a capture.
pub(super) fn explain(
    source: &Source,
    config: &BoxConfig,
    own: &[String],
    (path, directory): (&Path, &Path),
) -> Result<(), CliError> {
    // The box may be another machine.
    let sas = Sas::of(config, own, directory).map(Sas::of_any_address);
    let networks = config.networks(|_| None);
    let chain = chain(source, config, own, &networks, sas.as_ref(), Instant::now())?;
    let kinds = chain.stages().map(|(stage, _)| stage.kind()).collect();
    let mut explained = Explained {
        chain,
        kinds,
        prefixes: config
            .stages
            .iter()
            .filter_map(|stage| stage.prefix().copied())
            .collect(),
        services: config
            .stages
            .iter()
            .filter(|stage| stage.servers().is_some())
            .flat_map(|stage| stage.pool().iter().copied().map(IpAddr::V4))
            .collect(),
        meter: config.router.meter.as_ref().map(|_| {
            if config.hides_inside() {
                Metered::BehindTheStages
            } else {
                Metered::AsTheyCome
            }
        }),
        queues: Queues::of(source, config)?,
        flows: HashMap::new(),
        order: Vec::new(),
        translated: HashMap::new(),
        first_ns: None,
        others: 0,
        more: 0,
    };
    let stop = ShutdownSignal::watch_hangup_too()?;
    let complaint = |error| CliError::run(capture_file::complaint(path, &error));
    let mut reader = capture_file::open(path, &stop).map_err(complaint)?;
    while let Some(frame) = reader.next_frame().map_err(complaint)? {
        explained.frame(&frame);
        if stop.is_requested() {
            break;
        }
    }
    explained.print().map_err(CliError::output)
}

impl Explained {
    fn frame(&mut self, frame: &FrameRef<'_>) {
        let mut bytes = frame.bytes.to_vec();
        let mut packet = Packet::new(&mut bytes);
        // A reply in the prefix of a NAT64 is a frame of the inside: the outside has IPv4.
        let is_reply = |flow: &Flow| match flow.src {
            IpAddr::V6(src) => self.prefixes.iter().any(|prefix| prefix.contains(src)),
            IpAddr::V4(_) => false,
        };
        let flow = packet
            .flow()
            .filter(|flow| frame.linktype() == LinkType::EN10MB && !is_reply(flow));
        let Some(flow) = flow else {
            self.others += 1;
            return;
        };
        let time = frame.time_ns.unwrap_or_default().max(0) as u64;
        let now = time.saturating_sub(*self.first_ns.get_or_insert(time));
        let is_outward = is_private(flow.src) || !is_private(flow.dst);
        let direction = if is_outward && !self.services.contains(&flow.dst) {
            Direction::Outward
        } else {
            Direction::Inward
        };
        if direction == Direction::Inward
            && let Some(&(address, port)) = self.translated.get(&reversed(&flow))
        {
            packet.set_destination(address);
            packet.set_destination_port(port);
            packet = Packet::of_bytes(packet.finish().0);
        }
        let came = packet.flow().unwrap_or(flow);
        let mut batch = Batch::new(vec![packet]);
        let mut steps = Vec::new();
        let mut before = Edits::default();
        let kinds = &self.kinds;
        self.chain
            .run_watched(now, direction, &mut batch, |stage, batch| {
                let Some(packet) = batch.all().first() else {
                    return;
                };
                let mut did = step(&before, packet);
                if let (true, Some(flow), Fate::Pass) =
                    (kinds[stage] == "nat64", packet.flow(), packet.fate())
                    && flow.src.is_ipv4() != came.src.is_ipv4()
                {
                    did.push(format!("becomes {flow}"));
                }
                before = *packet.trace().edits();
                if !did.is_empty() {
                    steps.push((format!("{} {}", stage + 1, kinds[stage]), did.join(", ")));
                }
            });
        let Some(packet) = batch.into_packets().pop() else {
            return;
        };
        if direction == Direction::Outward
            && let Some(now) = packet.flow()
        {
            self.translated.insert(flow, (now.src, now.src_port));
        }
        let entry = self.chain.compose(packet.trace(), direction);
        let metered = self.meter.map(|meter| match (direction, meter) {
            (Direction::Outward, _) => came.src,
            (Direction::Inward, Metered::AsTheyCome) => came.dst,
            (Direction::Inward, Metered::BehindTheStages) => packet.flow().unwrap_or(came).dst,
        });
        // Here these have no reader.
        while self.chain.withdrawn().is_some() {}
        while self.chain.next_line().is_some() {}
        self.chain.take_sent();
        let queue = if packet.fate() == Fate::Pass {
            self.queues.place(direction, packet.finish().0.as_mut())
        } else {
            None
        };
        let seen = Seen {
            frames: 1,
            steps,
            entry: entry.map(|entry| (1, entry)),
            metered,
            queue,
        };
        self.note((direction, came), seen);
    }

    fn note(&mut self, key: (Direction, Flow), last: Seen) {
        if !self.flows.contains_key(&key) {
            if self.flows.len() >= FLOWS_MAX {
                self.more += 1;
                return;
            }
            self.order.push(key);
        }
        let seen = self.flows.entry(key).or_default();
        seen.frames += 1;
        seen.steps = last.steps;
        seen.metered = last.metered;
        seen.queue = last.queue;
        if seen.entry.is_none() {
            seen.entry = last.entry.map(|(_, entry)| (seen.frames, entry));
        }
    }

    fn print(&self) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        for key @ (direction, flow) in &self.order {
            let seen = &self.flows[key];
            writeln!(out, "{flow} {direction}, {} frames", seen.frames)?;
            for (stage, did) in &seen.steps {
                writeln!(out, "  stage {stage}: {did}")?;
            }
            if let Some(address) = seen.metered {
                let way = match direction {
                    Direction::Outward => "up",
                    Direction::Inward => "down",
                };
                writeln!(out, "  metered {way} for {address}")?;
            }
            match (&seen.queue, &seen.entry) {
                (Some(queue), _) => writeln!(out, "  no entry: each frame waits in {queue}")?,
                (None, None) => writeln!(out, "  no entry: each frame comes to the stages")?,
                (None, Some((frame, entry))) => {
                    writeln!(out, "  entry, from frame {frame} on: {}", describe(entry))?;
                }
            }
        }
        if self.others > 0 {
            writeln!(
                out,
                "{} frames are of no flow of TCP or UDP that an entry can have",
                self.others
            )?;
        }
        if self.more > 0 {
            writeln!(out, "{} frames of more flows than {FLOWS_MAX}", self.more)?;
        }
        for (number, (stage, counts)) in self.chain.stages().enumerate() {
            let [outward, inward] = counts.packets;
            write!(
                out,
                "stage {} {}: {outward} packets outward, {inward} inward",
                number + 1,
                stage.kind()
            )?;
            for (reason, count) in &counts.drops {
                write!(out, "; {count} dropped: {reason}")?;
            }
            writeln!(out)?;
        }
        for (name, _) in self.queues.links.iter().flatten() {
            writeln!(
                out,
                "what leaves {name} waits in its queues: no entry sends there"
            )?;
        }
        out.flush()
    }
}

fn reversed(flow: &Flow) -> Flow {
    Flow {
        protocol: flow.protocol,
        src: flow.dst,
        src_port: flow.dst_port,
        dst: flow.src,
        dst_port: flow.src_port,
    }
}

/// Whether an address is one of the inside.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, ..] = address.octets();
            address.is_private() || a == 100 && b & 0xc0 == 64
        }
        IpAddr::V6(address) => address.is_unique_local(),
    }
}

/// A stage's changes to a packet that had these edits before.
fn step(before: &Edits, packet: &Packet<'_>) -> Vec<String> {
    let now = packet.trace().edits();
    let mut did = Vec::new();
    if let Fate::Drop(reason) = packet.fate() {
        return vec![format!("dropped: {reason}")];
    }
    if (now.source, now.source_port) != (before.source, before.source_port) {
        did.push(format!("source {}", end(now.source, now.source_port)));
    }
    if (now.destination, now.destination_port) != (before.destination, before.destination_port) {
        let to = end(now.destination, now.destination_port);
        did.push(format!("destination {to}"));
    }
    if now.next_hop != before.next_hop
        && let Some(address) = now.next_hop
    {
        did.push(format!("next hop {address}"));
    }
    if now.dscp != before.dscp
        && let Some(dscp) = now.dscp
    {
        did.push(format!("dscp {dscp}"));
    }
    did
}

fn end(address: Option<IpAddr>, port: Option<u16>) -> String {
    let address = address.map_or_else(|| "*".into(), |address| address.to_string());
    let port = port.map_or_else(|| "*".into(), |port| port.to_string());
    if address.contains(':') {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    }
}

fn describe(entry: &Composed) -> String {
    if entry.is_drop {
        return "drop".into();
    }
    let edits = &entry.edits;
    let mut parts = Vec::new();
    if edits.source.is_some() || edits.source_port.is_some() {
        parts.push(format!("source {}", end(edits.source, edits.source_port)));
    }
    if edits.destination.is_some() || edits.destination_port.is_some() {
        let to = end(edits.destination, edits.destination_port);
        parts.push(format!("destination {to}"));
    }
    if let Some(address) = edits.next_hop {
        parts.push(format!("next hop {address}"));
    }
    if let Some(dscp) = edits.dscp {
        parts.push(format!("dscp {dscp}"));
    }
    if entry.translates() {
        parts.push(format!(
            "checksums: header {:#06x}, transport {:#06x}",
            edits.header, edits.transport
        ));
    }
    if parts.is_empty() {
        return "as it is".into();
    }
    parts.join(", ")
}
