//! `weir listen`: the frames of a live interface, or of a capture file, that a filter accepts.

pub(crate) mod capture;
mod output;
mod replay;

use crate::error::{CliError, say};
use crate::input::live_port;
use crate::report::format;
use crate::report::metrics::{self, Exposition, Metrics, label};
use crate::signals::ShutdownSignal;
use capture::Rotation;
use output::Output;
pub(crate) use replay::is_same;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};
use weir_broker::interface::is_path;
use weir_broker::protocol::{Attach, Event};
use weir_broker::{Bytes, Port, PortCounters, PortError, Timeout};
use weir_demux::fanout::Fanout;
use weir_link::net::interfaces;

/// Receive the frames of an interface, or of a file, that a filter accepts
///
/// Opens a port: through the broker if one runs, otherwise, as root, in this
/// process. By default frames are copied; with --take neither a port of lower
/// priority nor the host's own protocols get them.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir listen eth0 'udp port 53' -w dns.pcapng
  weir listen eth0 'ether proto 0x88b5' --take --priority 10
  weir listen eth0 icmp --count 10 --quiet --json
  weir listen eth0 tcp --split -w wire.pcapng
  weir listen any 'udp port 53'
  weir listen eth0 -w trace-%Y%m%d-%H%M%S.pcapng -G 3600 -s 128
  weir listen eth0 -w ring.pcapng -C 100 -W 10
  weir listen -r ring.pcapng0 'tcp port 443' -w https.pcap
  weir listen eth0 --fanout workers 'tcp port 80'

A line a frame: the time of day (UTC), `In` for received frames and `Out` for sent ones, and
at least what `tcpdump -nS` says: ends, protocol, sequence numbers, options, codes, names; at
its end the frame's bytes.

At the end one line: with --json {\"frames\":n,\"bytes\":b,\"lost\":l}, bytes as on the wire, lost for
want of room in the port's queue.

Exit status: 0; 1 if the interface is gone, frames cannot be written or something else failed;
2 if the filter, an option or the policy refuses; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM
(the frames so far are reported).")]
pub(crate) struct Args {
    /// The interface; `any` is every one that is up, or comes up later, and
    /// that the policy grants
    #[arg(value_name = "IF", required_unless_present_any = ["option", "read"])]
    first: Option<String>,

    /// A pcap-filter(7) expression; without one, all frames
    #[arg(value_name = "EXPR")]
    filter: Vec<String>,

    /// The interface, as an option like tcpdump's: in place of the argument IF
    #[arg(id = "option", short = 'i', long = "interface", value_name = "IF")]
    option: Option<String>,

    /// Read frames from a capture file (pcap or pcapng, compressed or not) instead of an interface,
    /// as `tcpdump -r` does; `-` is standard input. All arguments are then the filter
    #[arg(short, long, value_name = "FILE",
          conflicts_with_all = ["option", "take", "priority", "split", "time", "queue", "socket",
                                "attach"])]
    read: Option<PathBuf>,

    /// No effect: addresses and ports are never resolved to names
    #[arg(short = 'n', long)]
    numeric: bool,

    /// Take the frames: no port of lower priority, nor the host, gets them
    #[arg(long)]
    take: bool,

    /// Priority: ports of higher priority get a frame earlier
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = priority,
          allow_negative_numbers = true)]
    priority: u16,

    /// Receive a share of the frames: a fixed one, as 0/4, or one of a group's
    ///
    /// Frames are shared out by flow: one process gets both directions of a
    /// connection, and all fragments of a datagram. I/N is share I (from 0) of
    /// N equal ones (at most 64), the same of a live link and of a file. A
    /// name, such as workers, is a group: the processes of one user that listen
    /// with the same name, filter and priority share all frames, and the share
    /// of a process that ends goes to the rest. A number as the name also
    /// limits the group to that many members.
    #[arg(long, value_name = "I/N|GROUP")]
    fanout: Option<Fanout>,

    /// Segment super-frames into the frames that go over the wire
    ///
    /// If the device segments (TSO, USO), the kernel handles up to 64 KiB as
    /// one frame. By default it is shown unsegmented, as by tcpdump; with this
    /// option each segment counts as a frame, with its own checksums and
    /// lengths.
    #[arg(long)]
    split: bool,

    /// Write the frames to a file, with timestamps: pcap if the name ends in
    /// `.pcap`, else pcapng; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,

    /// Write each frame to the file at once; by default within 100 ms
    #[arg(short = 'U', long, requires = "write")]
    packet_buffered: bool,

    /// Start another file after this many million bytes: FILE, FILE1, FILE2 …
    #[arg(short = 'C', long, value_name = "MB", requires = "write",
          value_parser = from_one::<u32>, allow_negative_numbers = true)]
    file_size: Option<u32>,

    /// Start another file after this many seconds; FILE is then a pattern of
    /// strftime(3) in UTC, such as trace-%H%M%S.pcapng
    #[arg(short = 'G', long, value_name = "SECONDS", requires = "write",
          value_parser = from_one::<u32>, allow_negative_numbers = true)]
    file_time: Option<u32>,

    /// With -C, overwrite the first file after this many; with -G alone, end
    /// after this many
    #[arg(short = 'W', long, value_name = "N", requires = "write",
          value_parser = from_one::<u32>, allow_negative_numbers = true)]
    file_count: Option<u32>,

    /// Show and write at most this many bytes of a frame; 0 means all
    #[arg(
        short = 's',
        long = "snapshot-length",
        value_name = "BYTES",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    snap_len: u32,

    /// End after this many frames
    #[arg(short, long, value_name = "N", value_parser = from_one::<u64>,
          allow_negative_numbers = true)]
    count: Option<u64>,

    /// End after this many seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds,
          allow_negative_numbers = true)]
    time: Option<Duration>,

    /// Size of the queue, such as 65536, 64K or 8MiB; by default 1MiB, or less if
    /// the policy's grant has no room for it
    #[arg(long, value_name = "BYTES")]
    queue: Option<Bytes>,

    /// The size of the queue if none is given, and the grant has room for it.
    #[arg(skip = QUEUE_DEFAULT)]
    pub(crate) queue_default: Bytes,

    /// Record no timestamps, which saves the kernel some 20 ns a frame; a file
    /// always has them
    #[arg(short = 't', long)]
    no_times: bool,

    /// No effect: timestamps are recorded by default
    #[arg(long, hide = true)]
    timestamps: bool,

    /// Print neither frames nor changes of the interface
    #[arg(short, long)]
    quiet: bool,

    /// Print JSON: an object for each frame, and one at the end
    #[arg(long)]
    json: bool,

    /// Serve metrics for Prometheus at this address, at /metrics; port 0 chooses
    /// a free port, which is printed
    #[arg(long, value_name = "ADDR:PORT", value_parser = metrics::address,
          conflicts_with = "read")]
    metrics: Option<SocketAddr>,

    /// The broker's socket; then ports are opened through the broker only
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Hook in the kernel: auto, tc, xdp-generic or xdp-native
    ///
    /// The hook applies to the whole interface; the last port's setting is
    /// used.
    #[arg(long, value_name = "MODE", default_value_t)]
    attach: Attach,
}

/// Parses a whole number from 1.
fn from_one<N: FromStr + PartialOrd + From<u8>>(text: &str) -> Result<N, String> {
    let number = text.parse().ok().filter(|number| *number >= N::from(1));
    number.ok_or_else(|| "give a whole number, 1 or more".to_owned())
}

fn priority(text: &str) -> Result<u16, String> {
    let number = text.parse();
    number.map_err(|_| format!("give a whole number from 0 to {}", u16::MAX))
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| format!("`{text}` is not a number of seconds"))
}

/// Interval of checks for the end, and for changes of the interface.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How often `any` looks for interfaces that have come up.
const FOLLOW: Duration = Duration::from_secs(1);

/// The size of a queue that was not chosen.
const QUEUE_DEFAULT: Bytes = Bytes(1 << 20);

impl Args {
    /// The interface, from the option or the first argument.
    fn interface(&self) -> &str {
        let given = self.option.as_deref().or(self.first.as_deref());
        given.unwrap_or_default()
    }

    /// The filter expression: all arguments behind the interface.
    fn expression(&self) -> String {
        let has_none = self.option.is_some() || self.read.is_some();
        let first = self.first.iter().filter(|_| has_none);
        let words: Vec<&str> = first.chain(&self.filter).map(String::as_str).collect();
        words.join(" ")
    }

    /// Number of bytes of a frame to keep; `None` for all.
    fn snap_len(&self) -> Option<u32> {
        (self.snap_len > 0).then_some(self.snap_len)
    }

    fn rotation(&self) -> Rotation {
        Rotation {
            bytes_max: self.file_size.map(|size| u64::from(size) * 1_000_000),
            seconds_max: self.file_time.map(u64::from),
            files_max: self.file_count,
        }
    }

    /// A port on one of the interfaces.
    fn open(&self, interface: &str) -> Result<Tapped, CliError> {
        let filter = self.expression();
        let has_times = self.timestamps || !self.no_times && !self.quiet;
        let mut builder = live_port::port(interface, &filter, self.socket.as_deref())?
            .priority(self.priority)
            .take(self.take)
            .timestamps(has_times || self.write.is_some())
            .attach(self.attach);
        builder = match self.queue {
            Some(queue) => builder.queue(queue),
            None => builder.queue_up_to(self.queue_default),
        };
        if let Some(snap_len) = self.snap_len() {
            builder = builder.snap_len(snap_len);
        }
        if let Some(fanout) = &self.fanout {
            builder = builder.fanout(fanout.clone());
        }
        let port = builder.open().map_err(live_port::failure)?;
        if let Some(Fanout::Group(group)) = &self.fanout
            && port.is_in_process()
        {
            let name = group.name();
            return Err(CliError::refused(format!(
                "--fanout {name}: processes meet in a group at the broker, and none serves this \
                 network: start `weir broker`, or give each process a fixed share, such as 0/4"
            )));
        }
        Ok(Tapped {
            name: interface.to_owned(),
            port,
            source: 0,
            is_gone: false,
        })
    }

    /// A port on each requested interface.
    fn open_all(&self) -> Result<Vec<Tapped>, CliError> {
        if self.interface() != ANY {
            return Ok(vec![self.open(self.interface())?]);
        }
        let mut ports = Vec::new();
        let mut refused = Vec::new();
        for name in names_up()? {
            match self.open(&name) {
                Ok(port) => ports.push(port),
                Err(failure) => refused.push((name, failure)),
            }
        }
        // A reason that applies to every interface is printed once.
        let first = refused.first().map(|(_, first)| first.to_string());
        let is_one = refused
            .iter()
            .all(|(_, one)| Some(one.to_string()) == first);
        if !ports.is_empty() || !is_one {
            for (name, failure) in &refused {
                self.say(&format!("not on {name}: {failure}"));
            }
        }
        match (ports.is_empty(), refused.into_iter().next()) {
            (false, _) => Ok(ports),
            (true, Some((_, first))) => Err(first),
            (true, None) => Err(CliError::run("no interface is up: look at `ip link`")),
        }
    }

    fn say(&self, news: &str) {
        if !self.quiet {
            say(&format!("weir: {news}"));
        }
    }
}

/// The name that means every interface.
pub(crate) const ANY: &str = "any";

/// The interfaces that are up and carry frames. The devices of a broker's
/// egress paths are left out: frames sent by them are seen on the interface
/// that they go to.
pub(crate) fn names_up() -> Result<BTreeSet<String>, CliError> {
    let all = interfaces().map_err(CliError::run)?;
    let up = all
        .into_iter()
        .filter(|one| one.up && one.linktype.is_some() && !is_path(&one.name));
    Ok(up.map(|one| one.name).collect())
}

/// An interface with a port.
struct Tapped {
    name: String,
    port: Port,
    /// Its number in the output.
    source: usize,
    is_gone: bool,
}

impl Tapped {
    /// Number of frames for which the port had no room, if it is known; prints
    /// the drops of the interface itself.
    fn lost(&mut self, args: &Args) -> Option<u64> {
        let counters = self.port.counters().ok()?;
        if counters.interface_lost > 0 {
            // `rx_dropped` counts both: a full backlog is before the port, a
            // frame without a handler behind it.
            let lost = format::frames(counters.interface_lost);
            let name = &self.name;
            args.say(&format!(
                "{name} itself dropped {lost} meanwhile: those of a protocol unknown to the host came \
                 to this port before, those for want of room did not"
            ));
        }
        Some(counters.lost)
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    if args.file_count.is_some() && args.file_size.or(args.file_time).is_none() {
        return Err(CliError::refused(
            "-W counts files that follow each other: give -C or -G too",
        ));
    }
    let stop = ShutdownSignal::watch_hangup_too()?;
    if let Some(path) = &args.read {
        return replay::run(args, path, &stop);
    }
    let metrics = args.metrics.map(Metrics::serve).transpose()?;
    let mut ports = args.open_all()?;
    let mut output = Output::new(args, &stop)?;
    for one in &mut ports {
        one.source = output.source(&one.name, one.port.linktype());
        introduce(args, one);
    }
    Listener {
        args,
        ports,
        refused: BTreeSet::new(),
        lost: Some(0),
        output,
        deadline: args.time.and_then(|time| Instant::now().checked_add(time)),
        is_orphan: false,
        metrics,
        shown: None,
    }
    .run(&stop)
}

/// Prints where frames are received.
fn introduce(args: &Args, Tapped { name, port, .. }: &mut Tapped) {
    if args.quiet {
        return;
    }
    let within = port.within().map_or_else(String::new, |filter| {
        format!(", within `{filter}`, as the policy grants")
    });
    args.say(&format!(
        "port {} on {name} at {}, {}{within}",
        port.number(),
        port.attached(),
        if args.take {
            "which takes"
        } else {
            "which copies"
        },
    ));
    if args.queue.is_none() && port.queue() < args.queue_default {
        args.say(&format!(
            "the queue has {}, for which the grant has room",
            port.queue()
        ));
    }
    if port.accepts_nothing() {
        let with = port.within().map_or("", |_| " together with the grant's");
        args.say(&format!(
            "the filter{with} accepts no frame: none will come"
        ));
    }
    if port.status().is_ok_and(|status| !status.up) {
        args.say(&format!(
            "{name} is down, and carries nothing: ip link set {name} up"
        ));
    }
    if let Some(note) = live_port::earlier_program(name, port) {
        args.say(&note);
    }
}

/// How listening ended.
enum End {
    Done,
    Stopped(u8),
    Gone,
}

struct Listener<'a> {
    args: &'a Args,
    ports: Vec<Tapped>,
    /// Interfaces that came up later and could not be opened, so that the
    /// message is printed once.
    refused: BTreeSet<String>,
    /// Frames lost at closed ports, if known.
    lost: Option<u64>,
    output: Output,
    deadline: Option<Instant>,
    /// Whether the broker is gone.
    is_orphan: bool,
    metrics: Option<Metrics>,
    /// When metrics were made last.
    shown: Option<Instant>,
}

impl Listener<'_> {
    fn run(mut self, stop: &ShutdownSignal) -> Result<(), CliError> {
        let ended = self.listen(stop);
        let mut lost = self.lost;
        for one in &mut self.ports {
            let of_port = one.lost(self.args);
            lost = lost.and_then(|lost| Some(lost + of_port?));
        }
        let reported = self.output.finish(self.args, lost);
        match ended? {
            End::Stopped(signal) => Err(CliError::Stopped(signal)),
            End::Gone => Err(CliError::run(format!(
                "interface {} is gone",
                self.ports[0].name
            ))),
            End::Done => reported,
        }
    }

    fn listen(&mut self, stop: &ShutdownSignal) -> Result<End, CliError> {
        let end = self.receive(stop)?;
        if !matches!(end, End::Gone) {
            self.drain()?;
        }
        Ok(end)
    }

    /// Writes the frames left in the queues: at most as many as the queues
    /// hold.
    fn drain(&mut self) -> Result<(), CliError> {
        /// Minimum size of a ring record with a frame.
        const RECORD_BYTES_MIN: u64 = 48;
        let queues: u64 = self.ports.iter().map(|one| one.port.queue().0).sum();
        let held = queues / RECORD_BYTES_MIN;
        let most = self.output.frames() + held;
        let most = self.args.count.map_or(most, |count| count.min(most));
        while self.output.frames() < most && !self.output.is_over() {
            let left = most - self.output.frames();
            if !self.take_in(left)? {
                break;
            }
        }
        Ok(())
    }

    /// Writes frames from the ports' queues, up to `most` in all; returns
    /// whether there were any.
    fn take_in(&mut self, most: u64) -> Result<bool, CliError> {
        let end = self.output.frames().saturating_add(most);
        let mut some = false;
        for one in &mut self.ports {
            let left = end - self.output.frames();
            if left == 0 {
                break;
            }
            let frames = one
                .port
                .recv_batch(Timeout::NOW)
                .map_err(live_port::failure)?;
            if !frames.is_empty() {
                some = true;
                self.output.frames_came(one.source, frames, left)?;
            }
        }
        if !some {
            self.output.rest()?;
        }
        Ok(some)
    }

    /// Waits until a frame arrives at one of the ports, or for that time.
    fn wait(&mut self, time: Duration) -> Result<(), CliError> {
        if let [one] = &mut self.ports[..] {
            // The port's own wait is optimised for bursts.
            let frames = one.port.recv_batch(Timeout::after(time));
            let frames = frames.map_err(live_port::failure)?;
            let left = self.args.count.map(|count| count - self.output.frames());
            return if frames.is_empty() {
                self.output.rest()
            } else {
                let most = left.unwrap_or(u64::MAX);
                self.output.frames_came(one.source, frames, most)
            };
        }
        let mut all_armed = true;
        for one in &mut self.ports {
            all_armed &= one.port.arm();
        }
        if !all_armed {
            return Ok(());
        }
        let mut fds: Vec<PollFd<'_>> = self
            .ports
            .iter()
            .map(|one| PollFd::new(&one.port, PollFlags::IN))
            .collect();
        let time = Timespec::try_from(time).unwrap_or_default();
        // A signal or the end of the time ends the wait.
        let _ = poll(&mut fds, Some(&time));
        Ok(())
    }

    fn receive(&mut self, stop: &ShutdownSignal) -> Result<End, CliError> {
        let mut looked = Instant::now();
        let mut followed = looked;
        loop {
            let left = self.args.count.map(|count| count - self.output.frames());
            if left == Some(0) || self.output.is_over() {
                return Ok(End::Done);
            }
            if stop.is_requested() {
                return Ok(End::Stopped(stop.signal()));
            }
            let now = Instant::now();
            let remaining = self.deadline.map(|end| end.saturating_duration_since(now));
            if remaining == Some(Duration::ZERO) {
                return Ok(End::Done);
            }
            let mut wait =
                remaining.map_or(POLL_INTERVAL, |remaining| remaining.min(POLL_INTERVAL));
            if let Some(due) = self.output.flush_due() {
                let left = due.saturating_duration_since(now);
                if left.is_zero() {
                    self.output.rest()?;
                } else {
                    wait = wait.min(left);
                }
            }
            let before = self.output.frames();
            if self.ports.len() > 1 {
                self.take_in(left.unwrap_or(u64::MAX))?;
            }
            if self.output.frames() == before {
                self.wait(wait)?;
            }
            let is_idle = self.output.frames() == before;
            if is_idle || looked.elapsed() > POLL_INTERVAL {
                looked = Instant::now();
                if self.output.is_closed(stop) {
                    return Err(CliError::OutputClosed);
                }
                if self.report_changes()? {
                    return Ok(End::Gone);
                }
                self.show_metrics();
                if self.args.interface() == ANY && followed.elapsed() > FOLLOW {
                    followed = looked;
                    self.follow()?;
                }
            }
        }
    }

    /// Shows the counts at `--metrics`, if it is time to.
    fn show_metrics(&mut self) {
        let Some(metrics) = &self.metrics else {
            return;
        };
        if self.shown.is_some_and(|at| at.elapsed() < POLL_INTERVAL) {
            return;
        }
        self.shown = Some(Instant::now());
        let mut out = Exposition::new("weir_listen_");
        let (frames, bytes) = (self.output.frames(), self.output.bytes());
        out.one("frames_total", "counter", "Frames shown or written", frames);
        let help = "Their bytes on the wire";
        out.one("bytes_total", "counter", help, bytes);
        // Without a broker, counters are not known.
        let ports = self.ports.iter_mut().filter_map(|one| {
            let counters = one.port.counters().ok()?;
            Some((label("interface", &one.name), counters))
        });
        out.counters::<PortCounters>(
            &ports.collect::<Vec<_>>(),
            &[
                (
                    "delivered_total",
                    "Frames put into the queue, by interface",
                    |counters| counters.delivered,
                ),
                (
                    "lost_total",
                    "Frames lost because the queue was full, by interface",
                    |counters| counters.lost,
                ),
                (
                    "interface_dropped_total",
                    "Frames that the interface dropped, for any receiver",
                    |counters| counters.interface_lost,
                ),
            ],
        );
        metrics.show(out);
    }

    /// For `any`: closes the ports of interfaces that are gone, after their
    /// last frames, and opens ports on those that have come up.
    fn follow(&mut self) -> Result<(), CliError> {
        let (gone, here): (Vec<_>, Vec<_>) = std::mem::take(&mut self.ports)
            .into_iter()
            .partition(|one| one.is_gone);
        self.ports = here;
        for mut one in gone {
            self.last_frames(&mut one)?;
            let of_port = one.lost(self.args);
            self.lost = self.lost.and_then(|lost| Some(lost + of_port?));
        }
        let up = names_up()?;
        self.refused.retain(|name| up.contains(name));
        for name in up {
            let is_known = self.ports.iter().any(|one| one.name == name);
            if is_known || self.refused.contains(&name) {
                continue;
            }
            match self.args.open(&name) {
                Ok(mut one) => {
                    one.source = self.output.source(&name, one.port.linktype());
                    introduce(self.args, &mut one);
                    self.ports.push(one);
                }
                Err(failure) => {
                    self.args.say(&format!("not on {name}: {failure}"));
                    self.refused.insert(name);
                }
            }
        }
        Ok(())
    }

    /// Writes the frames left in the queue of a port whose interface is gone.
    fn last_frames(&mut self, one: &mut Tapped) -> Result<(), CliError> {
        loop {
            let left = self.args.count.map(|count| count - self.output.frames());
            let frames = one
                .port
                .recv_batch(Timeout::NOW)
                .map_err(live_port::failure)?;
            if frames.is_empty() || left == Some(0) || self.output.is_over() {
                return Ok(());
            }
            let most = left.unwrap_or(u64::MAX);
            self.output.frames_came(one.source, frames, most)?;
        }
    }

    /// Prints changes of the interfaces; returns `true` if the requested
    /// interface is gone.
    fn report_changes(&mut self) -> Result<bool, CliError> {
        let mut is_orphan = false;
        for number in 0..self.ports.len() {
            let one = &mut self.ports[number];
            if one.is_gone {
                continue;
            }
            match one.port.events() {
                Ok(events) => self.tell(number, events)?,
                // The port continues without the broker, and with the next one.
                Err(PortError::NoBroker { .. }) => is_orphan = true,
                Err(error) => return Err(live_port::failure(error)),
            }
        }
        if is_orphan && !self.is_orphan {
            self.args
                .say("the broker has ended; frames continue to arrive");
        } else if !is_orphan && self.is_orphan {
            self.args.say("there is a broker again");
        }
        self.is_orphan = is_orphan;
        Ok(self.args.interface() != ANY && self.ports.iter().all(|one| one.is_gone))
    }

    fn tell(&mut self, number: usize, events: Vec<Event>) -> Result<(), CliError> {
        let one = &mut self.ports[number];
        for event in events {
            let name = &one.name;
            match event {
                Event::Up => self.args.say(&format!("{name} is up")),
                Event::Down => self.args.say(&format!("{name} is down")),
                Event::Renamed { name: new } => {
                    self.args.say(&format!("{name} is now {new}"));
                    one.name = new;
                }
                Event::Revoked { reason } => {
                    let why = format!("the policy has changed: {reason}");
                    return Err(CliError::run(why));
                }
                Event::Mtu { mtu } => self.args.say(&format!("{name} has mtu {mtu}")),
                Event::Gone => {
                    one.is_gone = true;
                    if self.args.interface() == ANY {
                        self.args.say(&format!("{name} is gone"));
                    }
                }
            }
        }
        Ok(())
    }
}
