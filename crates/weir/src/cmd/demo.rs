//! `weir demo`: mixed traffic on an in-memory link, distributed to ports.

mod captures;

use crate::error::CliError;
use crate::filterset::compile::Compiler;
use crate::filterset::file_demux::FileDemux;
use crate::filterset::port_counts::PortCounts;
use crate::filterset::port_spec::PortSpec;
use crate::report::format;
use crate::report::format::Column::{Left, Right};
use crate::report::{atomic_write, screen};
use serde::Serialize;
use std::cmp::Reverse;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;
use weir_filter::backend::Runner;
use weir_filter::lang::Language;
use weir_link::mem::traffic::{Medium, Traffic};
use weir_link::mem::{End, Impairments, MemLink};
use weir_link::pcap::{FrameRef, Interface};
use weir_wire::LinkType;

/// Generate mixed traffic on an in-memory link and divide it among ports
///
/// Needs no privileges, no network and no file. The same seed gives the same
/// frames.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit status: 0; 1 if a capture cannot be written, or the plan and its filters in turn disagree; 2 if
an option is wrong.")]
pub(crate) struct Args {
    /// Frames to send
    #[arg(short = 'n', long, value_name = "N", default_value_t = 200_000,
          allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=5_000_000))]
    frames: u32,

    /// Seed of everything that is random
    #[arg(long, value_name = "N", default_value_t = 1987)]
    seed: u64,

    /// Frames per thousand that the link loses
    #[arg(long, value_name = "N", default_value_t = 5,
          allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=1000))]
    loss: u32,

    /// Write captures for experiments: DIR/office.pcapng, the traffic as it
    /// arrived, and DIR/pup.pcapng, Pup on the 3 Mb/s Ethernet of 1987
    ///
    /// The folder is created if necessary; existing files of these names are
    /// overwritten.
    #[arg(short, long, value_name = "DIR")]
    write: Option<PathBuf>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    /// Write what is printed as a picture of a terminal (SVG)
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    svg: Option<PathBuf>,
}

/// ARP, as `tcpdump -dd arp` prints it.
const ARP: &str =
    "{ 0x28, 0, 0, 12 },\n{ 0x15, 0, 1, 0x806 },\n{ 0x6, 0, 0, 262144 },\n{ 0x6, 0, 0, 0 },";

/// A port of the demo: name, language, filter, priority, copy.
type DemoPort = (&'static str, Language, &'static str, u16, bool);

const PORTS: [DemoPort; 9] = [
    ("all", Language::Expr, "", 65_535, true),
    (
        "opens",
        Language::Expr,
        "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
        30,
        true,
    ),
    ("dns", Language::Expr, "port 53", 20, false),
    ("web", Language::Expr, "tcp port 80 or 443", 10, false),
    ("ssh", Language::Expr, "tcp port 22", 10, false),
    ("ping", Language::Expr, "icmp or icmp6", 10, false),
    ("arp", Language::Cbpf, ARP, 10, false),
    (
        "pup",
        Language::Cspf,
        "PUSHWORD+6, PUSHLIT | EQ, 0x0200",
        10,
        false,
    ),
    ("vlan", Language::Expr, "vlan", 0, false),
];

/// Start time of the traffic: 8 November 1987, during the conference at which
/// the packet filter was presented.
const START_NS: i64 = 563_328_000_000_000_000;

/// A frame that arrived over the link.
struct Arrived {
    bytes: Vec<u8>,
    time_ns: i64,
}

/// The results of the demo; the tally comes first in the JSON.
#[derive(Serialize)]
struct Measured {
    seed: u64,
    sent: u64,
    lost: u64,
    /// Frames for which the plan's verdict differs from that of the filters in
    /// turn.
    verdicts_differ: u64,
    plan_ns_per_frame: f64,
    in_turn_ns_per_frame: f64,
    /// The same with this many additional ports.
    more_ports: u32,
    more_plan_ns_per_frame: f64,
    more_in_turn_ns_per_frame: f64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if let Some(path) = &args.svg {
        atomic_write::can(path).map_err(CliError::run)?;
    }
    let ports: Vec<PortSpec> = PORTS.iter().map(port).collect();
    let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
    let compiler = Compiler::default();
    let (frames, lost) = carry(args)?;
    let interface = Interface::ethernet();
    if let Some(folder) = &args.write {
        captures::write(folder, &frames, args.seed)?;
    }

    let mut divider = FileDemux::new(&ports, None, &compiler);
    divider.prepare(LinkType::EN10MB)?;
    let mut tally = PortCounts::new(ports.len());
    for frame in &frames {
        let frame = lend(frame, &interface);
        tally.add(&frame, &divider.judge(&frame));
    }
    let in_turn = InTurn::new(&ports, &compiler)?;
    // The same few frames for all four, so that the results are comparable.
    let some = &frames[..frames.len().min(TIMED_FRAMES)];
    let (plan_ns_per_frame, in_turn_ns_per_frame) = costs(&mut divider, &in_turn, some);
    let more: Vec<PortSpec> = ports.iter().cloned().chain(clients()).collect();
    let mut more_divider = FileDemux::new(&more, None, &compiler);
    let more_in_turn = InTurn::new(&more, &compiler)?;
    let verdicts_differ =
        compare(&mut divider, &in_turn, &frames) + compare(&mut more_divider, &more_in_turn, some);
    let (more_plan_ns_per_frame, more_in_turn_ns_per_frame) =
        costs(&mut more_divider, &more_in_turn, some);
    let measured = Measured {
        seed: args.seed,
        sent: u64::from(args.frames),
        lost,
        verdicts_differ,
        plan_ns_per_frame,
        in_turn_ns_per_frame,
        more_ports: CLIENTS,
        more_plan_ns_per_frame,
        more_in_turn_ns_per_frame,
    };
    report(args, &names, &tally, &measured)
}

/// The suggested next commands, with the captures if they were written.
fn next(written: Option<&Path>) -> String {
    let Some(folder) = written else {
        return "Next: weir demo --write DIR, for captures to try weir demux and weir filter on."
            .into();
    };
    let office = folder.join(captures::OFFICE);
    format!(
        "Written: {} and {}.\nNext: weir demux -r {} --port web='tcp port 80' --port dns='port 53'",
        office.display(),
        folder.join(captures::PUP).display(),
        office.display()
    )
}

/// Number of ports added to show that the cost does not grow with it.
const CLIENTS: u32 = 1000;
/// Number of frames that suffices to time a thousand filters in turn.
const TIMED_FRAMES: usize = 10_000;

/// A port for each of many UDP clients, which send no traffic.
fn clients() -> impl Iterator<Item = PortSpec> {
    (0..CLIENTS).map(|client| PortSpec {
        name: format!("client{client}"),
        lang: Language::Expr,
        filter: format!(
            "udp and src host 198.18.{}.{} and dst port 5060",
            client >> 8,
            client & 255
        ),
        priority: Some(40),
        copy: false,
        line: None,
    })
}

fn port(row: &DemoPort) -> PortSpec {
    PortSpec {
        name: row.0.into(),
        lang: row.1,
        filter: row.2.into(),
        priority: Some(row.3),
        copy: row.4,
        line: None,
    }
}

fn lend<'a>(frame: &'a Arrived, interface: &'a Interface) -> FrameRef<'a> {
    FrameRef {
        bytes: &frame.bytes,
        wire_len: frame.bytes.len() as u32,
        time_ns: Some(frame.time_ns),
        interface_index: 0,
        interface,
    }
}

/// Sends the traffic over the link; returns the frames that arrive, and the
/// number lost.
fn carry(args: &Args) -> Result<(Vec<Arrived>, u64), CliError> {
    let line = Impairments {
        loss_ppm: args.loss * 1000,
        delay_ns: 1_000_000,
        jitter_ns: 200_000,
        ..Impairments::default()
    };
    let mut link = MemLink::new(line, line, args.seed).map_err(CliError::run)?;
    let mut arrived = Vec::with_capacity(args.frames as usize);
    let traffic = Traffic::new(args.seed, Medium::Ethernet);
    let mut now_ns = 0;
    for frame in traffic.take(args.frames as usize) {
        now_ns = frame.time_ns;
        // The link counts a lost frame.
        let _ = link.send(End::A, now_ns, &frame.bytes);
        drain(&mut link, now_ns, &mut arrived);
    }
    while let Some(next_ns) = link.next_arrival_ns(End::B) {
        now_ns = now_ns.max(next_ns);
        drain(&mut link, now_ns, &mut arrived);
    }
    let lost = u64::from(args.frames) - arrived.len() as u64;
    Ok((arrived, lost))
}

fn drain(link: &mut MemLink, now_ns: u64, arrived: &mut Vec<Arrived>) {
    while let Some(frame) = link.receive(End::B, now_ns) {
        arrived.push(Arrived {
            time_ns: START_NS + frame.arrived_ns as i64,
            bytes: frame.bytes,
        });
    }
}

/// The filters run one after the other: the reference for the plan's verdicts
/// and cost.
struct InTurn {
    /// Port number, copy flag, and filter, in the order of the model.
    filters: Vec<(usize, bool, Runner)>,
}

impl InTurn {
    fn new(ports: &[PortSpec], compiler: &Compiler) -> Result<InTurn, CliError> {
        let mut order: Vec<usize> = (0..ports.len()).collect();
        order.sort_by_key(|&port| (Reverse(ports[port].priority), !ports[port].copy));
        let filters = order.into_iter().map(|number| {
            let port = &ports[number];
            let compiled = compiler.compile(port.lang, port.filter.as_bytes(), LinkType::EN10MB);
            let program = compiled.map_err(CliError::refused)?.program;
            Ok((number, port.copy, Runner::new(program)))
        });
        Ok(InTurn {
            filters: filters.collect::<Result<_, CliError>>()?,
        })
    }

    /// The ports that get the frame.
    fn judge(&self, frame: &Arrived) -> Vec<usize> {
        let mut ports = Vec::with_capacity(4);
        for (port, copy, filter) in &self.filters {
            if filter.run(&frame.bytes, frame.bytes.len() as u32) != 0 {
                ports.push(*port);
                if !copy {
                    break;
                }
            }
        }
        ports
    }
}

/// The number of frames with different verdicts by the plan and by the filters
/// in turn.
fn compare(divider: &mut FileDemux<'_>, in_turn: &InTurn, frames: &[Arrived]) -> u64 {
    let interface = Interface::ethernet();
    let mut differ = 0;
    for frame in frames {
        let ports = divider.judge(&lend(frame, &interface));
        let planned = ports.ports().map(|(port, _)| port);
        differ += u64::from(!planned.eq(in_turn.judge(frame)));
    }
    differ
}

/// The cost of a frame in nanoseconds, by the plan and by the filters in turn.
fn costs(divider: &mut FileDemux<'_>, in_turn: &InTurn, frames: &[Arrived]) -> (f64, f64) {
    let interface = Interface::ethernet();
    let plan = time(frames, |frame| {
        divider.judge(&lend(frame, &interface)).ports().count()
    });
    (plan, time(frames, |frame| in_turn.judge(frame).len()))
}

/// The average cost of one call over all frames, in nanoseconds.
fn time(frames: &[Arrived], mut judge: impl FnMut(&Arrived) -> usize) -> f64 {
    // A run before the measurement brings the frames into the cache.
    let touched = frames
        .iter()
        .filter(|frame| frame.bytes.first() == Some(&0));
    let mut delivered = touched.count();
    let started = Instant::now();
    for frame in frames {
        delivered += judge(frame);
    }
    let elapsed = started.elapsed();
    std::hint::black_box(delivered);
    elapsed.as_nanos() as f64 / frames.len().max(1) as f64
}

fn report(
    args: &Args,
    names: &[&str],
    tally: &PortCounts,
    measured: &Measured,
) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    let shown = if args.json {
        tally.json_with(names, measured)
    } else {
        let prose = prose(names, tally, measured);
        if let Some(path) = &args.svg {
            screen::write(path, &screen::of_text(&prose))?;
        }
        prose + "\n\n" + &next(args.write.as_deref())
    };
    writeln!(out, "{shown}").map_err(CliError::output)?;
    if measured.verdicts_differ > 0 {
        return Err(CliError::run(format!(
            "the plan and its filters in turn give different verdicts on {} frames: please report this, with --seed {}",
            measured.verdicts_differ, measured.seed
        )));
    }
    Ok(())
}

fn prose(names: &[&str], tally: &PortCounts, measured: &Measured) -> String {
    let ports = PORTS.iter().map(|(name, lang, filter, priority, copy)| {
        let filter = match filter.split_once('\n') {
            _ if filter.is_empty() => "(every frame)".into(),
            Some((first, _)) => format!("{first} …"),
            None => (*filter).to_owned(),
        };
        let kind = if *copy { "copies" } else { "takes" };
        vec![
            (*name).into(),
            priority.to_string(),
            kind.into(),
            lang.to_string(),
            filter,
        ]
    });
    let heading = [
        Left("port"),
        Right("priority"),
        Left(""),
        Left("language"),
        Left("filter"),
    ];
    format!(
        "Mixed traffic over an in-memory link: {} frames sent (seed {}), {} lost on the way.\n\n\
         {}\n\n{}\n\n\
         With {} more ports bound, one plan judges a frame in {:.0} ns, their filters run in turn \
         in {}.\n\
         With these {} ports alone, the plan takes {:.0} ns, and the filters in turn {:.0} ns: what \
         a frame costs\nfollows the kinds of filters, not their number.\n\
         Plan and filters in turn judged {} frames differently.",
        format::grouped(measured.sent),
        measured.seed,
        format::grouped(measured.lost),
        format::table(&heading, ports),
        tally.table(names),
        format::grouped(u64::from(measured.more_ports)),
        measured.more_plan_ns_per_frame,
        format::grouped(measured.more_in_turn_ns_per_frame as u64) + " ns",
        PORTS.len(),
        measured.plan_ns_per_frame,
        measured.in_turn_ns_per_frame,
        measured.verdicts_differ,
    )
}
