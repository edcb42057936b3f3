//! `weir get`: fetches a resource over HTTP, by weir's own TCP.

use crate::error::CliError;
use crate::host::{self, HostArgs, LinkRequirement};
use crate::http::client::{Field, Response, request, send_request};
use crate::http::output::Output;
use crate::http::url::Url;
use crate::signals::ShutdownSignal;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_socket::{Net, TcpStream};

/// Get a resource over HTTP, with weir's own TCP
///
/// As `curl -sS`: the body is written to standard output or to a file, unchanged; redirects are not
/// followed. Names are looked up by the system's resolver, which uses the kernel's network.
#[derive(clap::Args, Debug)]
#[command(after_help = format!("\
{}

Examples:
  weir get http://192.0.2.1/ --link tap0 --addr 192.0.2.5/24
  weir get 'http://[2001:db8::1]:8080/x' --link tap0 --addr 2001:db8::5/64 -o x

With --json, to standard output, after the body went to the file: \
{{\"url\":u,\"status\":n,\"fields\":[[name,value]…],\"bytes\":b,\"seconds\":s}}.

Exit status: 0, whatever the response's status is, unless --fail; 1 if no server answers, the body
is not whole or cannot be written; 2 if the URL or an option is wrong; 130 or 143 after SIGINT or
SIGTERM.", host::HELP))]
pub(crate) struct Args {
    /// The resource, such as http://192.0.2.1:8080/PATH
    #[arg(value_name = "URL")]
    url: Url,

    #[command(flatten)]
    host: HostArgs,

    /// Write the body to a file, which appears when it is complete; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write the response's head before the body
    #[arg(short, long)]
    include: bool,

    /// Request the head only, and write it
    #[arg(short = 'I', long)]
    head: bool,

    /// Send a header field, `Name: value`; can be repeated
    #[arg(short = 'H', long = "header", value_name = "FIELD")]
    fields: Vec<Field>,

    /// Fail, without a body, if the response's status is 400 or more
    #[arg(short, long)]
    fail: bool,

    /// Time limit for opening a connection, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds,
          allow_negative_numbers = true)]
    connect_timeout: Duration,

    /// Time limit for the whole transfer, in seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds,
          allow_negative_numbers = true)]
    max_time: Option<Duration>,

    /// Print properties of the response as JSON
    #[arg(long, requires = "output")]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| format!("`{text}` is not a time: give seconds above 0"))
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let output = args
        .output
        .as_deref()
        .filter(|path| *path != Path::new("-"));
    if args.json && output.is_none() {
        let why = "--json prints to standard output, where the body goes: give a file with -o";
        return Err(CliError::refused(why));
    }
    let stop = ShutdownSignal::watch_hangup_too()?;
    let began = Instant::now();
    let net = args
        .host
        .open_within(LinkRequirement::Up, args.max_time, &stop)?;
    let patience = IdleTimeout {
        stop: &stop,
        until: args.max_time.and_then(|time| began.checked_add(time)),
        is_there: &|| args.host.check(&net).is_ok(),
    };
    let outcome = connect(args, &net, &patience).and_then(|stream| {
        let outcome = fetch(args, output, &stream, &patience, began);
        if outcome.is_err() {
            stream.reset();
        }
        outcome
    });
    if stop.is_requested() {
        Err(CliError::Stopped(stop.signal()))
    } else if outcome.is_err() {
        // Without an address, that is the only cause.
        args.host.check(&net).and(outcome)
    } else {
        outcome
    }
}

/// How often waits check that the host still has a link and an address.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The limits of a wait.
struct IdleTimeout<'a> {
    stop: &'a ShutdownSignal,
    until: Option<Instant>,
    /// Whether the host still has a link and an address.
    is_there: &'a dyn Fn() -> bool,
}

impl IdleTimeout<'_> {
    /// Waits for `events` of a socket.
    fn wait(
        &self,
        stream: &TcpStream,
        events: PollFlags,
        most: Option<Duration>,
    ) -> io::Result<()> {
        let fd = stream.ready_fd()?;
        let mut fds = [
            PollFd::new(&fd, events),
            PollFd::from_borrowed_fd(self.stop.fd(), PollFlags::IN),
        ];
        let most = most.and_then(|most| Instant::now().checked_add(most));
        let until = self.until.into_iter().chain(most).min();
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let time = left.map_or(STOP_POLL_INTERVAL, |left| left.min(STOP_POLL_INTERVAL));
            let count = poll(&mut fds, time.try_into().ok().as_ref())?;
            if self.stop.is_requested() {
                return Err(io::Error::other("asked to stop"));
            } else if count > 0 {
                return Ok(());
            } else if left.is_some_and(|left| left.is_zero()) {
                return Err(io::ErrorKind::TimedOut.into());
            } else if !(self.is_there)() {
                return Err(io::ErrorKind::AddrNotAvailable.into());
            }
        }
    }
}

/// Opens a connection to the first address that answers.
fn connect(args: &Args, net: &Net, patience: &IdleTimeout<'_>) -> Result<TcpStream, CliError> {
    let addresses = host::resolve(
        net,
        &args.host.links,
        &args.url.host,
        args.url.port,
        patience.stop,
    )?;
    let mut last = None;
    for address in addresses {
        let opened = weir_socket::TcpSocket::new(net)
            .start(address)
            .and_then(|stream| {
                patience.wait(&stream, PollFlags::OUT, Some(args.connect_timeout))?;
                match stream.take_error()? {
                    Some(error) => Err(error),
                    None => Ok(stream),
                }
            });
        match opened {
            Ok(stream) => return Ok(stream),
            Err(_) if patience.stop.is_requested() => {
                return Err(CliError::Stopped(patience.stop.signal()));
            }
            Err(error) => last = Some(host::unreached(net, address, &error)),
        }
    }
    Err(last.unwrap_or_else(|| CliError::run(format!("`{}` has no address", args.url.host))))
}

/// A stream whose calls wait with these limits.
struct TimedStream<'a> {
    stream: &'a TcpStream,
    idle: &'a IdleTimeout<'a>,
}

impl Read for TimedStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.idle.wait(self.stream, PollFlags::IN, None)?;
                }
                other => return other,
            }
        }
    }
}

impl Write for TimedStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.idle.wait(self.stream, PollFlags::OUT, None)?;
                }
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn fetch(
    args: &Args,
    output: Option<&Path>,
    stream: &TcpStream,
    patience: &IdleTimeout<'_>,
    began: Instant,
) -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::run(format!("{}: {}", args.url, plain(&error)));
    stream.set_nonblocking(true).map_err(failed)?;
    let method = if args.head { "HEAD" } else { "GET" };
    let request = request(method, &args.url, &args.fields);
    let mut waiting = TimedStream {
        stream,
        idle: patience,
    };
    let mut response = send_request(&mut waiting, &request, args.head).map_err(failed)?;
    if args.fail && response.status >= 400 {
        return Err(CliError::run(format!(
            "{}: the response's status is {}",
            args.url, response.status
        )));
    }
    let mut out = Output::open(output, patience.stop)?;
    if args.include || args.head {
        out.write(&response.head)?;
    }
    let mut body = response.body(waiting);
    let mut buffer = vec![0; 256 << 10];
    let mut count: u64 = 0;
    loop {
        match body.read(&mut buffer).map_err(failed)? {
            0 => break,
            len => {
                out.write(&buffer[..len])?;
                count += len as u64;
            }
        }
    }
    out.finish()?;
    if args.json {
        report(args, &response, count, began)?;
    }
    Ok(())
}

/// The message without the system's error number.
fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}

fn report(args: &Args, response: &Response, bytes: u64, began: Instant) -> Result<(), CliError> {
    let report = json!({
        "url": args.url.to_string(),
        "status": response.status,
        "fields": response.fields,
        "bytes": bytes,
        "seconds": began.elapsed().as_secs_f64(),
    });
    writeln!(io::stdout(), "{report}").map_err(CliError::output)
}
