//! `weir demux`: divides capture files among ports.

mod files;

use crate::bind::{self, Port};
use crate::divide::Divider;
use crate::failure::Failure;
use crate::source::Compiler;
use crate::stop::Stop;
use crate::tally::Tally;
use files::PortFiles;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use weir_filter::lang::cspf::Dialect;
use weir_link::pcap::{self, Reader};

/// Divide capture files among ports, by filters
///
/// Each port has a name and a filter. A frame goes to the ports in order of
/// decreasing priority and, within one priority, in the order given; the first
/// port that takes it ends its way. A copy port sees it and lets it go on;
/// within one priority copies come first. Frames that no port took are counted
/// as default.
///
/// Bytes are counted as they were on the wire.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir demux -r office.pcap --port web='tcp port 80 or 443' --port dns='udp port 53' \\
             --port all='' --copy all -w out/
  tcpdump -w - | weir demux -r - --config ports.toml --json

Exit status: 0; 1 if a file is damaged or cannot be read or written (what was read is reported);
2 if a filter or an option is refused; 130 or 143 after SIGINT or SIGTERM (what was read is
reported).")]
pub(crate) struct Args {
    /// Capture file to read; `-` is standard input. May be given several times
    ///
    /// pcap or pcapng, of either byte order, plain, gzip or zstd.
    #[arg(short, long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,

    /// A port and the filter of its frames; the empty filter accepts all
    #[arg(short, long = "port", value_name = "NAME=FILTER", value_parser = bind::from_argument)]
    ports: Vec<Port>,

    /// TOML file of ports: `[[port]]` with name, filter, priority, copy, lang
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Make a port a copy: it takes nothing away from the others
    ///
    /// The word `all`, where no port has that name, means every port.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    copy: Vec<String>,

    /// Give a port a priority, 0 (the default) to 65535; the highest is first
    #[arg(long, value_name = "NAME=N", value_delimiter = ',', value_parser = bind::priority_argument)]
    priority: Vec<(String, u16)>,

    /// Language of the filters given with --port: expr, cbpf or cspf
    #[arg(long, value_name = "LANG", default_value = "expr")]
    lang: weir_filter::lang::Language,

    /// Dialect of stack-language (cspf) filters
    #[arg(long, value_name = "NAME", default_value_t)]
    dialect: Dialect,

    /// Write each port's frames to DIR/NAME.pcapng
    #[arg(short, long, value_name = "DIR")]
    write: Option<PathBuf>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    /// Print how the filters became one plan, on standard error
    #[arg(long)]
    explain: bool,

    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// How reading the input ended.
enum End {
    /// At its end.
    Whole,
    /// Somebody asked us to stop.
    Stopped(u8),
    /// It broke here.
    Broken(String),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let ports = ports(args)?;
    let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
    let compiler = Compiler {
        dialect: args.dialect,
        ..Compiler::default()
    };
    let stop = Stop::watch().map_err(|error| Failure::run(format!("signals: {error}")))?;
    let mut work = Work {
        divider: Divider::new(&ports, &compiler),
        tally: Tally::new(ports.len()),
        files: None,
    };
    let end = work.read_all(args, &names, &stop)?;
    work.report(args, &names, &end)?;
    let warned = work.divider.warn_of_unjudged();
    let written = work.files.take().map_or(Ok(()), PortFiles::finish);
    match end {
        End::Broken(why) => Err(Failure::run(why)),
        End::Stopped(signal) => Err(Failure::Stopped(signal)),
        End::Whole => written.and(warned),
    }
}

/// The ports of the command line and the file, checked.
fn ports(args: &Args) -> Result<Vec<Port>, Failure> {
    let mut ports = args.ports.clone();
    for port in &mut ports {
        port.lang = args.lang;
    }
    if let Some(path) = &args.config {
        ports.extend(bind::from_file(path)?);
    }
    bind::check(&ports)?;
    bind::set_copies(&mut ports, &args.copy)?;
    bind::set_priorities(&mut ports, &args.priority)?;
    Ok(ports)
}

/// What is built up while frames go by.
struct Work<'a> {
    divider: Divider<'a>,
    tally: Tally,
    files: Option<PortFiles>,
}

impl Work<'_> {
    fn read_all(&mut self, args: &Args, names: &[&str], stop: &Stop) -> Result<End, Failure> {
        for (index, path) in args.read.iter().enumerate() {
            let mut reader = match open(path, stop) {
                Ok(reader) => reader,
                Err(error) => return Ok(End::Broken(complaint(path, &error))),
            };
            // A filter that its first link type refuses is refused before any
            // frame is read and any file is made.
            if let Some(interface) = reader.interfaces().first() {
                self.divider.prepare(interface.linktype)?;
            }
            if let (Some(folder), None) = (&args.write, &self.files) {
                self.files = Some(PortFiles::create(folder, names, &args.read)?);
            }
            if let Some(files) = self.files.as_mut().filter(|_| index > 0) {
                files.next_source();
            }
            let progress = progress_bar(&reader, args.quiet);
            let end = self.read_one(path, &mut reader, stop, &progress);
            progress.finish_and_clear();
            match end? {
                End::Whole => {}
                early => return Ok(early),
            }
        }
        Ok(End::Whole)
    }

    fn read_one(
        &mut self,
        path: &Path,
        reader: &mut Reader,
        stop: &Stop,
        progress: &ProgressBar,
    ) -> Result<End, Failure> {
        const FRAMES_BETWEEN_LOOKS: u32 = 1 << 14;
        loop {
            for _ in 0..FRAMES_BETWEEN_LOOKS {
                let frame = match reader.next_frame() {
                    Ok(Some(frame)) => frame,
                    // Standard input ends early when we are asked to stop.
                    _ if stop.asked() => return Ok(End::Stopped(stop.signal())),
                    Ok(None) => return Ok(End::Whole),
                    Err(error) => return Ok(End::Broken(complaint(path, &error))),
                };
                self.tally.all.add(frame.wire_len, frame.time_ns);
                let verdict = self.divider.judge(&frame)?;
                for (port, snap_len) in verdict.ports() {
                    self.tally.ports[port].add(frame.wire_len, frame.time_ns);
                    if let Some(files) = &mut self.files {
                        files.write(port, &frame, snap_len)?;
                    }
                }
                if !verdict.taken() {
                    self.tally.default.add(frame.wire_len, frame.time_ns);
                }
            }
            progress.set_position(reader.progress().consumed);
            if stop.asked() {
                return Ok(End::Stopped(stop.signal()));
            }
        }
    }

    fn report(&self, args: &Args, names: &[&str], end: &End) -> Result<(), Failure> {
        if args.explain {
            eprint!("{}", self.divider.explain());
        }
        let error = match end {
            End::Whole => None,
            End::Stopped(signal) => Some(format!("stopped by signal {signal}")),
            End::Broken(why) => Some(why.clone()),
        };
        let text = if args.json {
            self.tally.json(names, error)
        } else {
            self.tally.table(names)
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{text}").map_err(Failure::output)
    }
}

fn open(path: &Path, stop: &Stop) -> Result<Reader, pcap::Error> {
    if path == Path::new("-") {
        Reader::new(stop.stdin())
    } else {
        Reader::open(path)
    }
}

fn complaint(path: &Path, error: &pcap::Error) -> String {
    let name = if path == Path::new("-") {
        "standard input".into()
    } else {
        path.display().to_string()
    };
    let text = error.to_string();
    if text.contains(&name) {
        text
    } else {
        format!("{name}: {text}")
    }
}

/// A bar on standard error for a person who waits; none for scripts.
fn progress_bar(reader: &Reader, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = match reader.progress().total {
        Some(total) => ProgressBar::new(total).with_style(
            ProgressStyle::with_template(
                "{bytes} of {total_bytes}  {wide_bar}  {binary_bytes_per_sec}  {eta} left",
            )
            .expect("the template is well-formed"),
        ),
        None => ProgressBar::no_length().with_style(
            ProgressStyle::with_template("{bytes}  {binary_bytes_per_sec}  {elapsed}")
                .expect("the template is well-formed"),
        ),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    bar
}
