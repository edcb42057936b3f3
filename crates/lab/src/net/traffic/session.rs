//! An interactive session: small writes on one TCP connection, each echoed.

use crate::net::Host;
use crate::wait;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes of a write, about those of an encrypted keystroke.
const WRITE_BYTES: usize = 36;

/// Time limit for an echo, after which the session counts as broken.
const IO_TIMEOUT: Duration = Duration::from_secs(30);

/// A running session; [`Session::end`] returns its report.
#[derive(Debug)]
pub struct Session {
    stop: Arc<AtomicBool>,
    echoes: Arc<AtomicU64>,
    client: Option<JoinHandle<io::Result<SessionReport>>>,
    server: Option<JoinHandle<()>>,
}

/// The report of a session.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SessionReport {
    /// Writes that were echoed.
    pub echoes: u64,
    /// The longest time until an echo.
    pub longest: Duration,
}

impl Session {
    /// Connects `client` to `server`, then writes `pause` after each echo.
    ///
    /// # Errors
    /// If the port is in use or there is no route.
    pub fn start(
        client: &Host,
        server: &Host,
        at: (Ipv4Addr, u16),
        pause: Duration,
    ) -> io::Result<Session> {
        let at = SocketAddr::from(at);
        let listener = server.run(|| TcpListener::bind(at))?;
        let stream = client.run(|| TcpStream::connect_timeout(&at, IO_TIMEOUT))?;
        let (echoer, _) = wait::accept(&listener)?;
        for end in [&stream, &echoer] {
            end.set_nodelay(true)?;
            end.set_read_timeout(Some(IO_TIMEOUT))?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let echoes = Arc::new(AtomicU64::new(0));
        let (stopped, counter) = (Arc::clone(&stop), Arc::clone(&echoes));
        let client = move || write(stream, pause, &stopped, &counter);
        Ok(Session {
            stop,
            echoes,
            client: Some(thread::spawn(client)),
            server: Some(thread::spawn(move || echo(echoer))),
        })
    }

    /// Writes that were echoed so far.
    pub fn echoes(&self) -> u64 {
        self.echoes.load(Ordering::Relaxed)
    }

    /// Ends the session.
    ///
    /// # Errors
    /// If the connection broke, or an echo took longer than 30 s.
    pub fn end(mut self) -> io::Result<SessionReport> {
        self.stop.store(true, Ordering::Relaxed);
        let client = self.client.take().expect("a session ends once");
        let report = client.join().expect("the client does not panic")?;
        let server = self.server.take().expect("a session ends once");
        server.join().expect("the server does not panic");
        Ok(report)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn write(
    mut stream: TcpStream,
    pause: Duration,
    stop: &AtomicBool,
    echoes: &AtomicU64,
) -> io::Result<SessionReport> {
    let mut report = SessionReport::default();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let written = [report.echoes as u8; WRITE_BYTES];
        stream.write_all(&written)?;
        let mut echoed = [0; WRITE_BYTES];
        stream.read_exact(&mut echoed)?;
        if echoed != written {
            return Err(io::Error::other("the echo is not what was written"));
        }
        report.echoes += 1;
        echoes.store(report.echoes, Ordering::Relaxed);
        report.longest = report.longest.max(start.elapsed());
        thread::sleep(pause);
    }
    stream.shutdown(Shutdown::Both)?;
    Ok(report)
}

/// Until the peer closes, or no data arrives.
fn echo(mut stream: TcpStream) {
    let mut bytes = [0; WRITE_BYTES];
    while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
}
