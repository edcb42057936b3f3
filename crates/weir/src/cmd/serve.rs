//! `weir serve`: a folder's files over HTTP, by weir's own TCP.

use crate::error::{CliError, harmless, limited, say};
use crate::host::{self, HostArgs, LinkRequirement, any_of};
use crate::http::driver::{Driver, Limits, SEND_BUFFER_INITIAL};
use crate::http::files::Folder;
use crate::http::server::Answered;
use crate::report::metrics::{self, Exposition, Metrics, label};
use crate::signals::ShutdownSignal;
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weir_socket::{Net, TcpListener, TcpSocket};
use weir_stack::Stack;
use weir_stack::tcp::TcpConfig;

/// Serve a folder's files over HTTP, with weir's own TCP
///
/// GET and HEAD of HTTP/1.1, ranges, `index.html` for folders; no listings, no hidden files,
/// nothing outside the folder. A client that takes less than 1 KiB/s of a response over 30 s is
/// reset. Prints `ready` on standard error, and serves until SIGINT, SIGTERM or SIGHUP.
#[derive(clap::Args, Debug)]
#[command(after_help = format!("\
{}

Examples:
  weir serve ./site --link tap0 --addr 192.0.2.5/24
  weir serve ./site --link tap0 --addr 192.0.2.5/24 --addr 2001:db8::5/64 --port 8080 --log

Exit status: 0 after SIGINT, SIGTERM or SIGHUP; 1 if the folder or the link cannot be used; 2 if an
option is wrong.", host::HELP))]
pub(crate) struct Args {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    #[command(flatten)]
    host: HostArgs,

    /// The TCP port; 0 for any free port, which `ready` names
    #[arg(short, long, value_name = "N", default_value_t = 80)]
    port: u16,

    /// Write a line for each request to standard output
    #[arg(long)]
    log: bool,

    /// The same in JSON: {"peer":p,"method":m,"target":t,"status":n,"bytes":b}
    #[arg(long)]
    json: bool,

    /// Serve metrics for Prometheus at this address, at /metrics; port 0 chooses
    /// a free port, which is printed
    #[arg(long, value_name = "ADDR:PORT", value_parser = metrics::address)]
    metrics: Option<SocketAddr>,
}

/// Largest number of connections that wait for accept.
const BACKLOG: usize = 1024;
/// Time limit for open responses after a signal.
const ENDING: Duration = Duration::from_secs(2);

/// How often the command checks that the host still has its links and addresses.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    let folder = Folder::open(&args.folder).map_err(|error| {
        CliError::run(format!("cannot serve {}: {error}", args.folder.display()))
    })?;
    let net = args.host.open(LinkRequirement::Later, &stop)?;
    net.tcp_configure(TcpConfig {
        send_initial: SEND_BUFFER_INITIAL,
        ..TcpConfig::default()
    });
    let metrics = args.metrics.map(Metrics::serve).transpose()?;
    let listeners = listen(&net, args.port)?;
    let port = listeners.first().map(TcpListener::local_addr);
    let answers = RefCell::new(Answers::default());
    let log = |peer, answered: &Answered| {
        answers.borrow_mut().add(answered);
        log_response(args, peer, answered);
    };
    let logs = args.log || args.json || args.metrics.is_some();
    let memory = || memory(&net);
    let limits = Limits::default();
    let driver = Driver::new(listeners, &folder, limits, &memory, logs, &log);
    let cannot = |error| CliError::run(format!("cannot serve: {}", limited(&error)));
    let mut driver = driver.map_err(cannot)?;
    match port {
        Some(Ok(at)) if args.port == 0 => say(&format!("ready at port {}", at.port())),
        _ => say("ready"),
    }
    let mut looked_at = Instant::now();
    while !stop.is_requested() {
        if let Err(error) = driver.turn(Some(stop.fd()), POLL_INTERVAL) {
            args.host.check(&net)?;
            return Err(CliError::run(format!("cannot accept connections: {error}")));
        }
        if looked_at.elapsed() >= POLL_INTERVAL {
            looked_at = Instant::now();
            args.host.check(&net)?;
            if let Some(metrics) = &metrics {
                metrics.show(answers.borrow().metrics(&net));
            }
        }
    }
    // Responses that end soon are completed; the others are reset.
    let until = Instant::now() + ENDING;
    driver.end(until);
    while !driver.is_over() && Instant::now() < until {
        // The signal's descriptor stays readable.
        if driver.turn(None, ENDING / 100).is_err() {
            break;
        }
    }
    driver.reset();
    Ok(())
}

/// Counts of the responses.
#[derive(Default)]
struct Answers {
    /// Responses by status.
    statuses: BTreeMap<u16, u64>,
    bytes: u64,
}

impl Answers {
    fn add(&mut self, answered: &Answered) {
        *self.statuses.entry(answered.status).or_default() += 1;
        self.bytes += answered.bytes;
    }

    /// These, and the host's.
    fn metrics(&self, net: &Net) -> Exposition {
        let mut out = host::metrics(net, "weir_serve_");
        let statuses = self.statuses.iter();
        let statuses: Vec<_> = statuses
            .map(|(status, count)| (label("status", &status.to_string()), *count))
            .collect();
        let help = "Responses, by status";
        out.metric("responses_total", "counter", help, &statuses);
        let help = "Bytes of the responses' bodies";
        out.one("response_bytes_total", "counter", help, self.bytes);
        out
    }
}

/// Size of all TCP connections' buffers in bytes, if all shards use as much as the fullest: each
/// shard has an equal part of the memory.
fn memory(net: &Net) -> usize {
    let shards = (0..net.shards()).filter_map(|shard| net.with_shard(shard, Stack::tcp_memory));
    shards.max().unwrap_or(0) * net.shards()
}

/// One listener for each version of IP that the host has, all with one port number.
fn listen(net: &Net, port: u16) -> Result<Vec<TcpListener>, CliError> {
    let mut chosen = port;
    let listeners = any_of(net, port).into_iter().map(|mut any| {
        let mut socket = TcpSocket::new(net);
        any.set_port(chosen);
        socket.bind(any)?;
        let listener = socket.listen(BACKLOG)?;
        chosen = listener.local_addr()?.port();
        Ok(listener)
    });
    let listeners: io::Result<Vec<_>> = listeners.collect();
    listeners.map_err(|error| {
        CliError::run(format!("cannot listen at port {port}: {}", limited(&error)))
    })
}

/// Writes a log line for a response.
fn log_response(args: &Args, peer: SocketAddr, answered: &Answered) {
    let Answered {
        method,
        target,
        status,
        bytes,
    } = answered;
    let line = match (args.json, args.log) {
        (true, _) => json!({
            "peer": peer.to_string(),
            "method": method,
            "target": target,
            "status": status,
            "bytes": bytes,
        })
        .to_string(),
        // A malformed request has neither.
        (false, true) if method.is_empty() => format!("{peer} \"-\" {status} {bytes}"),
        (false, true) => format!("{peer} \"{method} {target}\" {status} {bytes}"),
        (false, false) => return,
    };
    // A failing log must not stop the server, and a client must not be able to send control
    // sequences to the terminal that shows the log.
    let _ = writeln!(io::stdout(), "{}", harmless(&line));
}
