//! `weir demux`: divides capture files among ports.

mod files;

use crate::error::{CliError, Incomplete};
use crate::filterset::compile::Compiler;
use crate::filterset::file_demux::FileDemux;
use crate::filterset::port_counts::PortCounts;
use crate::filterset::port_spec::{self, PortSpec};
use crate::filterset::share;
use crate::input::capture_file;
use crate::report::format;
use crate::signals::ShutdownSignal;
use files::PortFiles;
use indicatif::ProgressBar;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use weir_demux::fanout::Share;
use weir_filter::lang::cspf::Dialect;
use weir_link::pcap::{Error, FrameRef, Interface, Reader};

/// Divide capture files among ports, by filters
///
/// Each port has a name and a filter. A frame goes to the ports in order of
/// decreasing priority and, within one priority, in the order given, until a
/// port takes it. A copy port gets the frame and passes it on; within one
/// priority, copies come first. Frames that no port took are counted as
/// default.
///
/// Bytes are counted as on the wire.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir demux -r office.pcapng --port web='tcp port 80 or 443' --port dns='udp port 53' \\
             --port all='' --copy all -w out/
  tcpdump -w - | weir demux -r - --config ports.toml --json

Exit status: 0; 1 if a file is damaged or cannot be read or written (what was read is reported);
or a filter means nothing on one of its link types; 2 if a filter or an option is refused; 129,
130 or 143 after SIGHUP, SIGINT or SIGTERM, whatever else went wrong (what was read is reported).")]
pub(crate) struct Args {
    /// Capture file to read; `-` is standard input. Can be repeated
    ///
    /// Formats: pcap or pcapng, in either byte order, uncompressed, gzip or
    /// zstd.
    #[arg(short, long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,

    /// A port and the filter of its frames; the empty filter accepts all
    #[arg(short, long = "port", value_name = "NAME=FILTER", value_parser = port_spec::from_argument)]
    ports: Vec<PortSpec>,

    /// TOML file of ports: `[[port]]` with name, filter, priority, copy, lang
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Make a port a copy: it does not take frames from other ports
    ///
    /// Several names are separated by commas. The word `all`, unless a port has
    /// that name, means every port.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    copy: Vec<String>,

    /// Give a port a priority, 0 (the default) to 65535; the highest comes
    /// first
    ///
    /// This overrides the priority in the file of ports or in a stack-language
    /// text.
    #[arg(long, value_name = "NAME=N", value_delimiter = ',', value_parser = port_spec::priority_argument)]
    priority: Vec<(String, u16)>,

    /// Divide a share of the frames only: share I, from 0, of N equal ones
    ///
    /// Frames are shared out by flow, as `weir listen --fanout` does.
    #[arg(long, value_name = "I/N")]
    fanout: Option<Share>,

    /// Language of the filters given with --port: expr, cbpf or cspf
    #[arg(long, value_name = "LANG", default_value = "expr")]
    lang: weir_filter::lang::Language,

    /// Dialect of stack-language (cspf) filters: paper, bsd, dec, sun, mach or
    /// weir
    #[arg(long, value_name = "NAME", default_value_t)]
    dialect: Dialect,

    /// Write each port's frames to DIR/NAME.pcapng
    ///
    /// The folder is created if necessary; existing files of these names are
    /// overwritten.
    #[arg(short, long, value_name = "DIR")]
    write: Option<PathBuf>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    /// Print on standard error how the filters became one plan
    #[arg(long)]
    explain: bool,

    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// How reading the input ended.
enum End {
    /// At the end of the input.
    Whole,
    /// By a signal.
    Stopped(u8),
    /// By damaged input, or by output that could not be written.
    Broken(String),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let ports = ports(args)?;
    let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
    let compiler = Compiler {
        dialect: args.dialect,
        ..Compiler::default()
    };
    let stop = ShutdownSignal::watch_hangup_too()?;
    let mut work = DemuxRun {
        demux: FileDemux::new(&ports, args.config.as_deref(), &compiler),
        tally: PortCounts::new(ports.len()),
        share: args.fanout,
        first: None,
        files: None,
    };
    let mut gaps = Incomplete::default();
    match work.read_all(args, &names, &stop)? {
        End::Whole => {}
        End::Stopped(signal) => gaps.signal = Some(signal),
        End::Broken(why) => gaps.troubles.push(why),
    }
    // Before the report, which includes these failures.
    gaps.troubles.extend(work.finish_files());
    gaps.troubles.extend(work.demux.unjudged());
    // An input that is not a capture gets no table, but a line of JSON.
    if work.first.is_none() && !args.json {
        return gaps.outcome();
    }
    let printed = work.report(args, &names, gaps.error());
    gaps.outcome().and(printed)
}

/// The ports of the command line and of the file, checked.
fn ports(args: &Args) -> Result<Vec<PortSpec>, CliError> {
    let mut ports = args.ports.clone();
    for port in &mut ports {
        port.lang = args.lang;
    }
    if let Some(path) = &args.config {
        ports.extend(port_spec::from_file(path)?);
    }
    port_spec::check(&ports, args.config.as_deref())?;
    port_spec::set_copies(&mut ports, &args.copy)?;
    port_spec::set_priorities(&mut ports, &args.priority)?;
    Ok(ports)
}

/// The state of a run over the frames.
struct DemuxRun<'a> {
    demux: FileDemux<'a>,
    tally: PortCounts,
    share: Option<Share>,
    /// The first file's first interface.
    first: Option<Interface>,
    files: Option<PortFiles>,
}

impl DemuxRun<'_> {
    /// Reads every file. Fails only before any frame is read or written.
    fn read_all(
        &mut self,
        args: &Args,
        names: &[&str],
        stop: &ShutdownSignal,
    ) -> Result<End, CliError> {
        capture_file::all_there(&args.read)?;
        for (number, path) in args.read.iter().enumerate() {
            let broken = |error: &Error| {
                let rest = args.read.len() - number - 1;
                let why = capture_file::complaint(path, error);
                End::Broken(match rest {
                    0 => why,
                    _ => {
                        why + &format!(
                            "; {} after it not read",
                            format::counted(rest as u64, "file")
                        )
                    }
                })
            };
            let mut reader = match capture_file::open(path, stop) {
                Ok(reader) => reader,
                _ if stop.is_requested() => return Ok(End::Stopped(stop.signal())),
                // A missing file needs no report.
                Err(error) if self.first.is_none() && !capture_file::is_damage(&error) => {
                    return Err(CliError::run(capture_file::complaint(path, &error)));
                }
                Err(error) => return Ok(broken(&error)),
            };
            if self.first.is_none() {
                self.begin(args, names, &reader)?;
            } else if let Some(files) = &mut self.files {
                files.next_source();
            }
            let progress = capture_file::progress_bar(&reader, args.quiet);
            let end = self.read_one(&mut reader, stop, &progress);
            progress.finish_and_clear();
            match end {
                Ok(End::Whole) => {}
                Ok(early) => return Ok(early),
                Err(error) => return Ok(broken(&error)),
            }
        }
        Ok(End::Whole)
    }

    /// A filter that the first link type of the first file refuses is reported
    /// before any frame is read and before any file is created or truncated.
    fn begin(&mut self, args: &Args, names: &[&str], reader: &Reader) -> Result<(), CliError> {
        let interface = reader.interfaces().first();
        let interface = interface.cloned().unwrap_or_else(Interface::ethernet);
        self.demux.prepare(interface.linktype)?;
        share::has(self.share, interface.linktype, &[]).map_err(CliError::refused)?;
        self.first = Some(interface);
        if let Some(folder) = &args.write {
            self.files = Some(PortFiles::create(folder, names, &args.read)?);
        }
        Ok(())
    }

    fn read_one(
        &mut self,
        reader: &mut Reader,
        stop: &ShutdownSignal,
        progress: &ProgressBar,
    ) -> Result<End, Error> {
        const FRAMES_PER_STOP_POLL: u32 = 1 << 14;
        loop {
            for _ in 0..FRAMES_PER_STOP_POLL {
                let frame = match reader.next_frame() {
                    Ok(Some(frame)) => frame,
                    // A pipe ends early on a signal.
                    _ if stop.is_requested() => return Ok(End::Stopped(stop.signal())),
                    Ok(None) => return Ok(End::Whole),
                    Err(error) => return Err(error),
                };
                if let Err(why) = self.take(&frame) {
                    return Ok(End::Broken(why));
                }
            }
            progress.set_position(reader.progress().consumed);
            if stop.is_requested() {
                return Ok(End::Stopped(stop.signal()));
            }
        }
    }

    /// Demultiplexes, counts and writes one frame.
    #[inline]
    fn take(&mut self, frame: &FrameRef<'_>) -> Result<(), String> {
        if !share::has(self.share, frame.linktype(), frame.bytes)? {
            return Ok(());
        }
        let ports = self.demux.judge(frame);
        self.tally.add(frame, &ports);
        let mut written = Ok(());
        if let Some(files) = &mut self.files {
            for (port, snap_len) in ports.ports() {
                written = written.and(files.write(port, frame, snap_len));
            }
        }
        written
    }

    /// Completes the written files; returns messages for those that failed.
    fn finish_files(&mut self) -> Vec<String> {
        match (self.files.take(), &self.first) {
            (Some(files), Some(first)) => files.finish(first),
            _ => Vec::new(),
        }
    }

    fn report(&self, args: &Args, names: &[&str], error: Option<String>) -> Result<(), CliError> {
        if args.explain {
            // If the progress bar cannot be shown, nothing is lost.
            let _ = write!(std::io::stderr(), "{}", self.demux.explain());
        }
        let mut out = BufWriter::new(std::io::stdout().lock());
        let written = if args.json {
            self.tally.write_json(&mut out, names, error)
        } else {
            write!(out, "{}", self.tally.table(names))
        };
        let written = written.and_then(|()| writeln!(out));
        written.and_then(|()| out.flush()).map_err(CliError::output)
    }
}
