//! `weir listen`: the frames of a live interface that a filter accepts.

mod output;

use crate::failure::{Failure, say};
use crate::live;
use crate::stop::Stop;
use crate::text;
use output::Output;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weir_broker::protocol::{Attach, Event};
use weir_broker::{Bytes, Port, PortError, Timeout};

/// Receive the frames of an interface that a filter accepts
///
/// Opens a port: through the broker if one listens, else, as root, in this
/// process. The frames are copied, and nothing is diverted; with --take
/// neither a port of lower priority nor the host's own protocols get them.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir listen eth0 'udp port 53' -w dns.pcapng
  weir listen eth0 'ether proto 0x88b5' --take --priority 10
  weir listen eth0 icmp --count 10 --quiet --json
  weir listen eth0 tcp --split -w wire.pcapng

At the end one line: with --json {\"frames\":n,\"bytes\":b,\"lost\":l}, bytes as on the wire, lost for
want of room in the port's queue.

Exit status: 0; 1 if the interface is gone, frames cannot be written or something else failed;
2 if the filter, an option or the policy refuses; 130 or 143 after SIGINT or SIGTERM (what came is
reported).")]
pub(crate) struct Args {
    /// The interface
    #[arg(value_name = "IF")]
    interface: String,

    /// A pcap-filter(7) expression; without one, all frames
    #[arg(value_name = "EXPR")]
    filter: Vec<String>,

    /// Take the frames: no port of lower priority, nor the host, gets them
    #[arg(long)]
    take: bool,

    /// Ports of higher priority see a frame earlier
    #[arg(long, value_name = "N", default_value_t = 0)]
    priority: u16,

    /// Cut super-frames into the frames that go over the wire
    ///
    /// Where the device segments (TSO, USO), the kernel handles up to 64 KiB
    /// as one frame. It is shown whole without this, as tcpdump does; with it,
    /// each segment counts as a frame, with checksums and lengths of its own.
    #[arg(long)]
    split: bool,

    /// Write the frames to a pcapng file, with timestamps; `-` is standard
    /// output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,

    /// End after so many frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
          allow_negative_numbers = true)]
    count: Option<u64>,

    /// End after so many seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds,
          allow_negative_numbers = true)]
    time: Option<Duration>,

    /// How much may wait to be read, such as 65536, 64K or 8MiB
    #[arg(long, value_name = "BYTES", default_value = "1MiB")]
    queue: Bytes,

    /// Note when each frame came, which costs the kernel some 20 ns
    #[arg(long)]
    timestamps: bool,

    /// Print no frames and no news
    #[arg(short, long)]
    quiet: bool,

    /// Print JSON: an object for each frame, and one at the end
    #[arg(long)]
    json: bool,

    /// The broker's socket; then there is no other way
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Where in the kernel: auto, tc, xdp-generic or xdp-native
    ///
    /// It holds for the whole interface, and the last port says it.
    #[arg(long, value_name = "MODE", default_value_t)]
    attach: Attach,
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| format!("`{text}` is no number of seconds"))
}

/// How often it is looked whether to end, and what became of the interface.
const LOOK: Duration = Duration::from_millis(100);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let stop = Stop::watch()?;
    let filter = args.filter.join(" ");
    let builder = live::port(&args.interface, &filter, args.socket.as_deref())?
        .priority(args.priority)
        .take(args.take)
        .queue(args.queue)
        .timestamps(args.timestamps || args.write.is_some())
        .attach(args.attach);
    let mut port = builder.open().map_err(live::failure)?;
    let output = Output::new(args, &port, &stop)?;
    if !args.quiet {
        introduce(args, &mut port);
    }
    Listener {
        args,
        port,
        output,
        deadline: args.time.and_then(|time| Instant::now().checked_add(time)),
        is_orphan: false,
    }
    .run(&stop)
}

/// Says where we are.
fn introduce(args: &Args, port: &mut Port) {
    say(&format!(
        "weir: port {} on {} at {}, {}",
        port.number(),
        args.interface,
        port.attached(),
        if args.take {
            "which takes"
        } else {
            "which copies"
        },
    ));
    let name = &args.interface;
    if port.status().is_ok_and(|status| !status.up) {
        say(&format!(
            "weir: {name} is down, and carries nothing: ip link set {name} up"
        ));
    }
}

/// How it ended.
enum End {
    Done,
    Stopped(u8),
    Gone,
}

struct Listener<'a> {
    args: &'a Args,
    port: Port,
    output: Output,
    deadline: Option<Instant>,
    /// The broker is gone.
    is_orphan: bool,
}

impl Listener<'_> {
    fn run(mut self, stop: &Stop) -> Result<(), Failure> {
        let ended = self.listen(stop);
        let counters = self.port.counters().ok();
        if let Some(lost) = counters.map(|counters| counters.interface_lost)
            && lost > 0
        {
            let lost = text::frames(lost);
            let name = &self.args.interface;
            self.say(&format!(
                "{name} dropped {lost} meanwhile, for want of room or of an unknown protocol"
            ));
        }
        let lost = counters.map(|counters| counters.lost);
        let reported = self.output.finish(self.args, lost);
        match ended? {
            End::Stopped(signal) => Err(Failure::Stopped(signal)),
            End::Gone => Err(Failure::run(format!(
                "interface {} is gone",
                self.args.interface
            ))),
            End::Done => reported,
        }
    }

    fn listen(&mut self, stop: &Stop) -> Result<End, Failure> {
        let end = self.receive(stop)?;
        if !matches!(end, End::Gone) {
            self.drain()?;
        }
        Ok(end)
    }

    /// What is in the queue came in time: no more than the queue can hold.
    fn drain(&mut self) -> Result<(), Failure> {
        /// The kernel's record of a frame, at least.
        const RECORD_BYTES_MIN: u64 = 48;
        let most = self.output.frames() + self.args.queue.0 / RECORD_BYTES_MIN;
        let most = self.args.count.map_or(most, |count| count.min(most));
        while self.output.frames() < most {
            let left = most - self.output.frames();
            let frames = self.port.recv_batch(Timeout::NOW);
            let frames = frames.map_err(live::failure)?;
            if frames.is_empty() {
                break;
            }
            self.output.frames_came(frames, left)?;
        }
        Ok(())
    }

    fn receive(&mut self, stop: &Stop) -> Result<End, Failure> {
        let mut looked = Instant::now();
        loop {
            let left = self.args.count.map(|count| count - self.output.frames());
            if left == Some(0) {
                return Ok(End::Done);
            }
            if stop.asked() {
                return Ok(End::Stopped(stop.signal()));
            }
            let now = Instant::now();
            let remaining = self.deadline.map(|end| end.saturating_duration_since(now));
            if remaining == Some(Duration::ZERO) {
                return Ok(End::Done);
            }
            let wait = remaining.map_or(LOOK, |remaining| remaining.min(LOOK));
            let frames = self.port.recv_batch(Timeout::after(wait));
            let frames = frames.map_err(live::failure)?;
            let is_idle = frames.is_empty();
            self.output.frames_came(frames, left.unwrap_or(u64::MAX))?;
            if is_idle || looked.elapsed() > LOOK {
                looked = Instant::now();
                if self.look()? {
                    return Ok(End::Gone);
                }
            }
        }
    }

    /// Says what happened to the interface; `true` if it is gone.
    fn look(&mut self) -> Result<bool, Failure> {
        let events = match self.port.events() {
            Ok(events) => events,
            // The port goes on without it, and with the next one.
            Err(PortError::NoBroker { .. }) => {
                if !self.is_orphan {
                    self.is_orphan = true;
                    self.say("the broker has gone; frames go on coming");
                }
                return Ok(false);
            }
            Err(error) => return Err(live::failure(error)),
        };
        if std::mem::take(&mut self.is_orphan) {
            self.say("there is a broker again");
        }
        for event in events {
            let name = &self.args.interface;
            match event {
                Event::Up => self.say(&format!("{name} is up")),
                Event::Down => self.say(&format!("{name} is down")),
                Event::Renamed { name: new } => self.say(&format!("{name} is now {new}")),
                Event::Mtu { mtu } => self.say(&format!("{name} has mtu {mtu}")),
                Event::Gone => return Ok(true),
            }
        }
        Ok(false)
    }

    fn say(&self, news: &str) {
        if !self.args.quiet {
            say(&format!("weir: {news}"));
        }
    }
}
