//! `weir serve`: a folder's files over HTTP, by weir's own TCP.

use crate::failure::{Failure, harmless, limited, say};
use crate::host::{self, HostArgs, Need, any_of};
use crate::http::files::Folder;
use crate::http::server::{self, Answered};
use crate::stop::Stop;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weir_socket::{Net, TcpListener, TcpSocket, TcpStream};

/// Serve a folder's files over HTTP, by a TCP of this process
///
/// GET and HEAD of HTTP/1.1, ranges, `index.html` for folders; no listings,
/// no hidden files, nothing outside the folder. Says `ready` on standard
/// error, and serves until SIGINT or SIGTERM.
#[derive(clap::Args, Debug)]
#[command(after_help = format!("\
{}

Examples:
  weir serve ./site --link tap0 --addr 192.0.2.5/24
  weir serve ./site --link tap0 --addr 192.0.2.5/24 --addr 2001:db8::5/64 --port 8080 --log

Exit status: 0 after SIGINT or SIGTERM; 1 if the folder or the link cannot be used; 2 if an option
is wrong.", host::HELP))]
pub(crate) struct Args {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    #[command(flatten)]
    host: HostArgs,

    /// The TCP port to serve at; 0 for any that is free, which `ready` names
    #[arg(short, long, value_name = "N", default_value_t = 80)]
    port: u16,

    /// Write a line for each request to standard output
    #[arg(long)]
    log: bool,

    /// The same in JSON: {"peer":p,"method":m,"target":t,"status":n,"bytes":b}
    #[arg(long)]
    json: bool,
}

/// Connections at one time; others wait to be accepted.
const CONNECTIONS_MAX: usize = 1024;
/// How long a client may say nothing, or take nothing.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long open answers may take after a signal.
const ENDING: Duration = Duration::from_secs(2);

/// How often it is looked whether the host has its links and addresses.
const LOOK_EACH: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let stop = Stop::watch()?;
    let folder = Folder::open(&args.folder).map_err(|error| {
        Failure::run(format!("cannot serve {}: {error}", args.folder.display()))
    })?;
    let net = args.host.open(Need::Later, &stop)?;
    let listeners = listen(&net, args.port)?;
    let served = Arc::new(Server {
        folder,
        log: args.log,
        json: args.json,
        open: Mutex::new(Vec::new()),
        count: AtomicUsize::new(0),
    });
    let port = listeners.first().map(TcpListener::local_addr);
    match port {
        Some(Ok(at)) if args.port == 0 => say(&format!("ready at port {}", at.port())),
        _ => say("ready"),
    }
    while !stop.asked() {
        let may_accept = served.count.load(Relaxed) < CONNECTIONS_MAX;
        if !wait(&listeners, &stop, may_accept)? {
            args.host.check(&net)?;
        }
        for listener in &listeners {
            if let Err(error) = Server::accept(&served, listener) {
                args.host.check(&net)?;
                return Err(Failure::run(format!("cannot accept connections: {error}")));
            }
        }
    }
    drop(listeners);
    served.end();
    Ok(())
}

/// One listener for each version of IP that the host has, all at one port.
fn listen(net: &Net, port: u16) -> Result<Vec<TcpListener>, Failure> {
    let mut chosen = port;
    let listeners = any_of(net, port).into_iter().map(|mut any| {
        let mut socket = TcpSocket::new(net);
        any.set_port(chosen);
        socket.bind(any)?;
        let listener = socket.listen(CONNECTIONS_MAX)?;
        listener.set_nonblocking(true)?;
        chosen = listener.local_addr()?.port();
        // By it we wait: that it cannot be had is said before `ready`.
        listener.ready_fd()?;
        Ok(listener)
    });
    let listeners: io::Result<Vec<_>> = listeners.collect();
    listeners
        .map_err(|error| Failure::run(format!("cannot listen at port {port}: {}", limited(&error))))
}

/// Waits for a connection or a signal; tells whether there may be one.
fn wait(listeners: &[TcpListener], stop: &Stop, may_accept: bool) -> Result<bool, Failure> {
    let mut fds = vec![PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN)];
    for listener in listeners.iter().filter(|_| may_accept) {
        let fd = listener.ready_fd().map_err(Failure::run)?;
        fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
    }
    // When all places are taken, one becomes free without a word.
    let time = if may_accept {
        LOOK_EACH
    } else {
        Duration::from_millis(20)
    };
    let time = time.try_into().ok();
    match poll(&mut fds, time.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(Failure::run(format!("cannot wait: {error}"))),
    }
}

struct Server {
    folder: Folder,
    log: bool,
    json: bool,
    /// Connections, to be reset at the end.
    open: Mutex<Vec<TcpStream>>,
    count: AtomicUsize,
}

impl Server {
    /// Accepts what waits, while there are places.
    fn accept(server: &Arc<Server>, listener: &TcpListener) -> io::Result<()> {
        while server.count.load(Relaxed) < CONNECTIONS_MAX {
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            server.count.fetch_add(1, Relaxed);
            let its = Arc::clone(server);
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            let spawned = thread.spawn(move || {
                its.talk(stream, peer);
                its.count.fetch_sub(1, Relaxed);
            });
            if spawned.is_err() {
                // The connection was dropped with the thread's work.
                server.count.fetch_sub(1, Relaxed);
            }
        }
        Ok(())
    }

    fn talk(&self, mut stream: TcpStream, peer: SocketAddr) {
        self.streams().push(stream.clone());
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let _ = stream.set_nodelay(true);
        // A broken connection concerns the client alone.
        let done = server::serve(&mut stream, &self.folder, |answered| {
            self.tell(peer, answered)
        });
        if done.is_err() {
            stream.reset();
        }
        let _ = stream.shutdown(std::net::Shutdown::Write);
        self.streams().retain(|other| !other.is_same(&stream));
    }

    fn streams(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, peer: SocketAddr, answered: &Answered) {
        let Answered {
            method,
            target,
            status,
            bytes,
        } = answered;
        let line = match (self.json, self.log) {
            (true, _) => json!({
                "peer": peer.to_string(),
                "method": method,
                "target": target,
                "status": status,
                "bytes": bytes,
            })
            .to_string(),
            // A request that was not understood has neither.
            (false, true) if method.is_empty() => format!("{peer} \"-\" {status} {bytes}"),
            (false, true) => format!("{peer} \"{method} {target}\" {status} {bytes}"),
            (false, false) => return,
        };
        // A log that nobody reads is no reason not to serve; nor may a client
        // drive the terminal of who reads it.
        let _ = writeln!(io::stdout(), "{}", harmless(&line));
    }

    /// Lets answers end that do so soon, and resets the others.
    fn end(&self) {
        let began = Instant::now();
        while self.count.load(Relaxed) > 0 && began.elapsed() < ENDING {
            for stream in self.streams().iter() {
                // No further request is read.
                let _ = stream.shutdown(std::net::Shutdown::Read);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        for stream in self.streams().drain(..) {
            stream.reset();
        }
    }
}
