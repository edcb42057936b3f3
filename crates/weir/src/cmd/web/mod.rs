//! `weir web`: the network monitor in a browser.
//!
//! ```text
//!  input ─► session ─► JSON, captures ─► server (own thread) ─► GET /events, /state.json, /frames.json, …
//!              ▲                           │
//!              └── what is asked for ◄─────┘
//! ```

mod capture;
mod frames;
mod server;
#[cfg(test)]
mod tests;

use crate::error::{CliError, Incomplete, limited, say};
use crate::monitor::facts::Watcher;
use crate::monitor::input::{Came, Input};
use crate::monitor::options::Options;
use crate::monitor::report;
use crate::monitor::session::Session;
use crate::monitor::views::Views;
use crate::signals::ShutdownSignal;
use capture::Making;
use serde::Serialize;
use serde_json::value::RawValue;
use server::{MonitorRequest, REQUESTS_MAX, Server};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Most rows of a table that a browser gets.
const ROWS_MAX: usize = 500;
/// How often browsers get an update, and the width of a point of the plots.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked at what is asked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the same update is given to requests.
const UPDATE_AGE_MAX: Duration = Duration::from_millis(200);
/// Points of the plots.
const POINTS_MAX: usize = 300;
/// Bytes of a token file, at most.
const TOKEN_LEN: std::ops::RangeInclusive<usize> = 16..=256;

/// Monitor an interface or a capture file in a browser
///
/// Shows what `weir top` shows as a web page: rates, talkers, conversations, protocols, weir's ports
/// with their filters and losses, processes, and the last frames with their fields, also as a pcapng file
/// to download. Prints the page's address with a token, without which the page shows nothing.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  weir web
  weir web eth0
  weir web eth0 'not port 22' --listen 127.0.0.1:9090
  weir web -r office.pcapng
  curl -H 'Authorization: Bearer TOKEN' http://127.0.0.1:8080/state.json

  GET /              the page
  GET /state.json    what the page shows; its `state` is as of `weir top --json`
  GET /events        the same once a second, as server-sent events
  GET /frames.json   the last 200 frames that are kept, a line each
  GET /frame.json?number=N  the fields and bytes of one
  GET /capture.pcapng  the frames that are kept (--keep)

By default only this machine reaches the page. With another address anyone who reaches it and has
the token sees all frames, and nothing is encrypted: use a tunnel, such as ssh -L, instead. Requests
for a host name other than localhost and those of --name are refused: a page of another site could
have sent them.

When the file is at its end, or the interface is gone, the page stays, and says so.

Exit status: 1 if it cannot listen; 2 if the filter, an option or the policy refuses; 129, 130 or
143 after SIGHUP, SIGINT or SIGTERM, with the reason if the interface was gone.")]
pub(crate) struct Args {
    #[command(flatten)]
    source: Options,

    /// The address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,

    /// Show a protocol's fields as a Python file says, or as all files in .py of a folder say, in the
    /// list of frames and in a frame. Can be repeated. It runs with the rights of the file's owner,
    /// never as root
    #[arg(long = "view", value_name = "FILE")]
    views: Vec<PathBuf>,

    /// A name by which browsers reach the page, besides addresses and localhost; can be repeated
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,

    /// Read the token from a file, 16 to 256 letters and digits, instead of making one
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let token = token(args)?;
    let views = Views::load(&args.views)?;
    let input = args.source.input(&stop)?;
    let session = args.source.session(args.source.keep.0 as usize);
    let listener = TcpListener::bind(args.listen).map_err(|error| {
        let (at, why) = (args.listen, limited(&error));
        CliError::run(format!(
            "cannot listen on {at}: {why}; give --listen another one"
        ))
    })?;
    let at = listener.local_addr().map_err(CliError::run)?;
    if !at.ip().is_loopback() {
        say(&format!(
            "weir: anyone who reaches {at} and has the token sees all frames; nothing is encrypted"
        ));
    }
    let (requests, asked) = sync_channel(REQUESTS_MAX);
    let server = Server::start(listener, &token, &args.names, requests).map_err(CliError::run)?;
    let mut out = std::io::stdout();
    writeln!(out, "http://{at}/?token={token}")
        .and_then(|()| out.flush())
        .map_err(CliError::output)?;
    let mut page = Page {
        input,
        session,
        views,
        server,
        asked,
        waiting: VecDeque::new(),
        making: None,
        news: None,
        has_ended: false,
        rates: VecDeque::new(),
        before: [0; 2],
    };
    page.run(args, &stop)
}

/// The token: the file's, or 128 random bits.
fn token(args: &Args) -> Result<String, CliError> {
    let Some(path) = &args.token_file else {
        let mut bytes = [0; 16];
        let flags = rustix::rand::GetRandomFlags::empty();
        let got = rustix::rand::getrandom(&mut bytes, flags);
        if got.map_err(CliError::run)? != bytes.len() {
            return Err(CliError::run("the kernel gave too few random bytes"));
        }
        let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        return Ok(hex);
    };
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::refused(format!("--token-file {name}: {error}")))?;
    let token = text.trim();
    let is_plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_plain || !TOKEN_LEN.contains(&token.len()) {
        let (least, most) = (TOKEN_LEN.start(), TOKEN_LEN.end());
        return Err(CliError::refused(format!(
            "--token-file {name}: write {least} to {most} letters and digits, as `openssl rand -hex 16` \
             does"
        )));
    }
    Ok(token.to_owned())
}

/// The monitor and its server.
struct Page {
    input: Input,
    session: Session,
    /// Views of protocols in Python.
    views: Views,
    server: Server,
    asked: Receiver<MonitorRequest>,
    /// Who waits for captures, and the one that is being made.
    waiting: VecDeque<capture::Waiting>,
    making: Option<Making>,
    /// The last update, and when it was made.
    news: Option<(Instant, Arc<str>)>,
    /// Whether the file is at its end, or the interface is gone: the page stays.
    has_ended: bool,
    /// Frames and bytes of the last seconds.
    rates: VecDeque<[f64; 2]>,
    /// The sums up to then.
    before: [u64; 2],
}

/// An update for browsers.
#[derive(Serialize)]
struct Update<'a> {
    source: &'a str,
    filter: &'a str,
    /// Whether frames may still come.
    live: bool,
    /// Frames and bytes a second, one point after the other: of a file by its own clock, of an
    /// interface the last seconds.
    rates: &'a [[f64; 2]],
    state: &'a RawValue,
}

impl Page {
    fn run(&mut self, args: &Args, stop: &ShutdownSignal) -> Result<(), CliError> {
        let is_live = matches!(self.input, Input::Live(_));
        let watcher = is_live
            .then(|| Watcher::start(args.source.socket.as_deref()))
            .flatten();
        let mut ticked = Instant::now();
        loop {
            if stop.is_requested() {
                let troubles = self.input.gone().into_iter().collect();
                let signal = Some(stop.signal());
                return Incomplete { troubles, signal }.outcome();
            }
            let wait = match self.making {
                Some(_) => Duration::ZERO,
                None => POLL_INTERVAL,
            };
            let mut is_due = ticked.elapsed() >= INTERVAL && !self.has_ended;
            if self.has_ended {
                match self.asked.recv_timeout(wait) {
                    Ok(ask) => self.take(ask)?,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(CliError::run("the server of the page has ended"));
                    }
                }
            } else if self.input.take_in(&mut self.session, wait)? == Came::End {
                (self.has_ended, is_due) = (true, true);
            }
            if let Some(fresh) = watcher.as_ref().and_then(Watcher::fresh) {
                self.session.take_facts(fresh);
            }
            self.views.take_answers();
            if let Some(news) = self.session.news.take() {
                say(&format!("weir: {news}"));
            }
            if is_due {
                self.tick(ticked.elapsed());
                ticked = Instant::now();
                self.publish()?;
            }
            self.answer()?;
            // The page stays, with the frames that are kept.
            if self.input.gone().is_some() && !self.has_ended {
                self.has_ended = true;
                self.input.finish(&mut self.session)?;
                self.publish()?;
            }
        }
    }

    /// Sends an update to browsers that wait for one.
    fn publish(&mut self) -> Result<(), CliError> {
        self.news = None;
        if self.server.is_watched() {
            let news = self.news()?;
            self.server.publish(news);
        }
        Ok(())
    }

    /// A point of the plots.
    fn tick(&mut self, since: Duration) {
        let seconds = since.as_secs_f64();
        self.session.model.tick(seconds);
        let totals = self.session.model.totals();
        let now = [totals.frames, totals.bytes];
        let [frames, bytes] = [0, 1].map(|at| now[at].saturating_sub(self.before[at]) as f64);
        self.before = now;
        if self.rates.len() == POINTS_MAX {
            self.rates.pop_front();
        }
        self.rates.push_back([frames / seconds, bytes / seconds]);
    }

    /// The plots' points.
    fn points(&self) -> Vec<[f64; 2]> {
        if matches!(self.input, Input::Live(_)) {
            return self.rates.iter().copied().collect();
        }
        let history = self.session.model.history();
        let of = |count: u64| count as f64 / history.width_s();
        let points = history.buckets().iter();
        points.map(|it| [of(it.frames), of(it.bytes)]).collect()
    }

    fn take(&mut self, ask: MonitorRequest) -> Result<(), CliError> {
        match ask {
            // The browser may have gone.
            MonitorRequest::Update(waiting) => drop(waiting.send(self.news()?)),
            MonitorRequest::Capture(waiting) => self.waiting.push_back(waiting),
            MonitorRequest::Frames(waiting) => {
                let last = frames::last(&self.session, &mut self.views);
                drop(waiting.send(last.map_err(CliError::run)?));
            }
            MonitorRequest::Frame(number, waiting) => {
                let one = frames::one(&self.session, &mut self.views, number);
                drop(waiting.send(one.map_err(CliError::run)?));
            }
        }
        Ok(())
    }

    /// Gives what is asked for; goes on with a capture.
    fn answer(&mut self) -> Result<(), CliError> {
        while let Ok(ask) = self.asked.try_recv() {
            self.take(ask)?;
        }
        if self.making.is_none()
            && let Some(waiting) = self.waiting.pop_front()
        {
            self.making = Making::begin(&self.session, waiting);
        }
        let making = self.making.take();
        self.making = making.and_then(|making| making.slice(&self.session));
        Ok(())
    }

    /// The present update, or one of a moment ago.
    fn news(&mut self) -> Result<Arc<str>, CliError> {
        if let Some((made, news)) = &self.news
            && made.elapsed() < UPDATE_AGE_MAX
        {
            return Ok(Arc::clone(news));
        }
        let state = report::json(&self.session, ROWS_MAX).map_err(CliError::run)?;
        let state = RawValue::from_string(state).map_err(CliError::run)?;
        let (source, filter) = (self.input.name(), self.input.filter());
        let news = Update {
            source: &source,
            filter,
            live: !self.has_ended,
            rates: &self.points(),
            state: &state,
        };
        let news: Arc<str> = serde_json::to_string(&news).map_err(CliError::run)?.into();
        self.news = Some((Instant::now(), Arc::clone(&news)));
        Ok(news)
    }
}
