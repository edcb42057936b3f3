//! `weir top`: the network monitor in a terminal, or as text or JSON.

mod app;
mod detail;
mod draw;
mod follow;
mod frames;
mod keys;
mod prompt;
mod sheet;
mod terminal;
#[cfg(test)]
mod tests;

use super::listen::seconds;
use crate::error::{CliError, Incomplete};
use crate::monitor::facts::{Facts, Watcher};
use crate::monitor::input::{Came, Input};
use crate::monitor::options::Options;
use crate::monitor::report;
use crate::monitor::session::Session;
use crate::monitor::views::Views;
use crate::report::{atomic_write, screen};
use crate::signals::ShutdownSignal;
use app::App;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Monitor an interface or a capture file
///
/// Shows talkers, conversations, protocols, weir's ports, processes, rates, and frames with their
/// fields; follows connections, filters, records and replays. The port copies: no other program
/// misses a frame.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir top eth0
  weir top eth0 'tcp port 443' -w https.pcapng --tls-keys keys.log
  weir top -r office.pcapng
  weir top -r office.pcapng --speed 10x
  weir top -r office.pcapng --once --json
  weir top eth0 --once --for 10
  weir top eth0 --view pup_view.py
  weir top -r office.pcapng --svg office.svg

Keys: ? shows them all; q ends the monitor. Without a terminal give --once, --json or --svg.
Colours are off with --no-color, and if the variable NO_COLOR is set.

Counts equal those of `weir listen` with the same filter. A table has at most 100,000 rows; the
frames of all further ones are counted together as `others`. With --json and without --once, a line
comes every second.

Exit status: as of `weir listen`: 0; 1 if the file is damaged, the interface is gone (on a terminal
after `q`, too), or a recording failed; 2 if the filter, an option or the policy refuses; 129, 130
or 143 after SIGHUP, SIGINT or SIGTERM. On a terminal Ctrl-C is a key, as `q`.")]
pub(crate) struct Args {
    #[command(flatten)]
    source: Options,

    /// Print the tables once, at the end of the file or of the time
    #[arg(long)]
    once: bool,

    /// Print JSON: one object with --once, else one every second
    #[arg(long)]
    json: bool,

    /// End after this many seconds [default: 1 with --once or --svg on an interface, otherwise never]
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds,
          allow_negative_numbers = true)]
    time: Option<Duration>,

    /// Draw the overview, as a terminal of 100 by 30 shows it at the end of the file or of the time,
    /// into a picture (SVG)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["once", "json"])]
    svg: Option<PathBuf>,

    /// Most rows of each table with --once or --json [default: 20 of text, all of JSON]
    #[arg(long, value_name = "N")]
    rows: Option<usize>,

    /// Record all frames to a file: pcap if the name ends in `.pcap`, else pcapng
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,

    /// Show a protocol's fields as a Python file says, or as all files in .py of a folder say, in the
    /// list of frames and in a frame. Can be repeated. It runs with the rights of the file's owner,
    /// never as root
    #[arg(long = "view", value_name = "FILE")]
    views: Vec<PathBuf>,

    /// No colours
    #[arg(long)]
    no_color: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let is_plain = args.once || args.json || args.svg.is_some();
    if !is_plain && !std::io::stdout().is_terminal() {
        return Err(CliError::refused(
            "standard output is not a terminal: give --once, --json or --svg FILE",
        ));
    }
    if is_plain && !args.views.is_empty() {
        return Err(CliError::refused(
            "--view shows frames on the screen: leave --once, --json and --svg away",
        ));
    }
    let keep = if is_plain {
        0
    } else {
        args.source.keep.0 as usize
    };
    for (option, path) in [("--write", &args.write), ("--svg", &args.svg)] {
        let (Some(read), Some(path)) = (&args.source.read, path) else {
            continue;
        };
        if super::listen::is_same(read, path) {
            let path = path.display();
            return Err(CliError::refused(format!(
                "{path} is being read, and would be overwritten: give {option} another name"
            )));
        }
    }
    if let Some(path) = &args.svg {
        atomic_write::can(path).map_err(CliError::run)?;
    }
    let views = Views::load(&args.views)?;
    let mut session = args.source.session(keep);
    let input = args.source.input(&stop)?;
    if let Some(path) = &args.write {
        session.record(path, &stop)?;
    }
    if is_plain {
        return Plain {
            args,
            input,
            session,
        }
        .run(&stop);
    }
    app::run(args, input, session, views, &stop)
}

/// Columns and lines of a picture.
const SVG_SIZE: (u16, u16) = (100, 30);

/// Without a terminal.
struct Plain<'a> {
    args: &'a Args,
    input: Input,
    session: Session,
}

impl Plain<'_> {
    fn run(mut self, stop: &ShutdownSignal) -> Result<(), CliError> {
        let is_live = matches!(self.input, Input::Live(_));
        let time = match self.args.time {
            None if is_live && self.is_once() => Some(Duration::from_secs(1)),
            time => time,
        };
        let watcher = is_live
            .then(|| Watcher::start(self.args.source.socket.as_deref()))
            .flatten();
        let began = Instant::now();
        let deadline = time.and_then(|time| began.checked_add(time));
        let mut ticked = began;
        let mut gaps = Incomplete::default();
        loop {
            if stop.is_requested() {
                gaps.signal = Some(stop.signal());
                break;
            }
            let now = Instant::now();
            if deadline.is_some_and(|end| now >= end) {
                break;
            }
            let left = deadline.map_or(Duration::MAX, |end| end - now);
            let came = self
                .input
                .take_in(&mut self.session, left.min(Duration::from_millis(50)))?;
            if let Some(fresh) = watcher.as_ref().and_then(Watcher::fresh) {
                self.session.take_facts(fresh);
            }
            if let Some(news) = self.session.news.take() {
                crate::error::say(&format!("weir: {news}"));
            }
            if came == Came::End || self.input.gone().is_some() {
                break;
            }
            let since = ticked.elapsed();
            if since >= Duration::from_secs(1) {
                ticked = Instant::now();
                // A file's rates are those of its own time.
                if is_live {
                    self.session.model.tick(since.as_secs_f64());
                }
                if !self.is_once() {
                    self.print()?;
                }
            }
        }
        let finished = self.input.finish(&mut self.session);
        if is_live {
            let facts = Facts::look(self.args.source.socket.as_deref());
            self.session.take_facts(Arc::new(facts));
        }
        let recorded = self.session.end_recording();
        let trouble = self.input.replay().and_then(|replay| replay.trouble());
        gaps.troubles.extend(trouble.map(str::to_owned));
        gaps.troubles.extend(self.input.gone());
        let failure = self.session.take_failure();
        match &self.args.svg {
            Some(path) => {
                let mut app = App::new(self.input, self.session, stop);
                app.tick();
                screen::write(path, &draw::screen(&mut app, SVG_SIZE))?;
            }
            None => self.print()?,
        }
        finished?;
        recorded?;
        match failure {
            // Its reason was said as it happened.
            Some(_) => Err(CliError::run("the recording ended early")),
            None => gaps.outcome(),
        }
    }

    /// Whether all is shown at the end alone.
    fn is_once(&self) -> bool {
        self.args.once || self.args.svg.is_some()
    }

    fn print(&self) -> Result<(), CliError> {
        let text = if self.args.json {
            report::json(&self.session, self.args.rows.unwrap_or(usize::MAX))
        } else {
            Ok(report::text(&self.session, self.args.rows.unwrap_or(20)))
        };
        let text = text.map_err(CliError::run)?;
        writeln!(std::io::stdout(), "{text}").map_err(CliError::output)
    }
}
