//! iperf3's client.

use super::control::{Control, STOP_POLL_INTERVAL, stopped};
use super::server::{UDP_HELLO, UDP_WELCOME};
use super::streams::{StreamSocket, Streams};
use super::{COOKIE_LEN, IO_TIMEOUT, Measured, Parameters, Results, state, unexpected};
use crate::host::{any_towards, connect};
use crate::signals::ShutdownSignal;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use weir_socket::{Net, UdpSocket};

/// Runs a test with a server; returns the measurement.
///
/// # Errors
/// If the server does not answer, is busy, violates the protocol or
/// disconnects, or a signal arrives.
pub(crate) fn run(
    net: &Net,
    server: SocketAddr,
    parameters: &Parameters,
    stop: &ShutdownSignal,
) -> io::Result<Measured> {
    let connection = connect(net, server, IO_TIMEOUT, stop)?;
    connection.set_nodelay(true)?;
    let control = Control::new(&connection, "the server", stop)?;
    let cookie = cookie();
    control.write(&cookie)?;
    let mut ways = Vec::new();
    let mut ended = None;
    let mut theirs = Results::default();
    loop {
        match control.state()? {
            state::PARAM_EXCHANGE => control.write_json(parameters)?,
            state::CREATE_STREAMS => ways = open(net, server, parameters, &cookie, stop)?,
            state::TEST_START => {}
            state::TEST_RUNNING => {
                let sends = !parameters.reverse;
                let streams = Streams::start(std::mem::take(&mut ways), sends, parameters)?;
                let outcome = wait(&control, &streams, parameters);
                ended = Some(streams.end());
                if stop.is_requested() {
                    control.write(&[state::CLIENT_TERMINATE])?;
                }
                outcome?;
                control.write(&[state::TEST_END])?;
            }
            state::EXCHANGE_RESULTS => {
                let (ours, ..) = ended
                    .as_ref()
                    .ok_or_else(|| unexpected("results before a test"))?;
                control.write_json(ours)?;
                theirs = control.read_json()?;
            }
            state::DISPLAY_RESULTS => {
                control.write(&[state::IPERF_DONE])?;
                break;
            }
            other => return Err(unexpected(refusal(other))),
        }
    }
    // A sending server takes a reset for a failure, so connections stay open
    // until the test has ended.
    let (ours, seconds, _open) =
        ended.ok_or_else(|| unexpected("the server showed results before a test"))?;
    let sent = !parameters.reverse;
    Ok(Measured::of(parameters, sent, &ours, &theirs, seconds))
}

/// 36 letters of the cookie's alphabet and a NUL.
fn cookie() -> [u8; COOKIE_LEN] {
    use std::hash::{BuildHasher, RandomState};
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let random = RandomState::new();
    let mut cookie = [0; COOKIE_LEN];
    for (at, letter) in cookie[..COOKIE_LEN - 1].iter_mut().enumerate() {
        *letter = LETTERS[(random.hash_one(at) % 32) as usize];
    }
    cookie
}

/// The meaning of a server's refusal.
fn refusal(said: u8) -> String {
    match said {
        state::ACCESS_DENIED => "the server is busy: try again later".to_owned(),
        state::SERVER_ERROR => "the server refuses the test".to_owned(),
        state::SERVER_TERMINATE => "the server has ended".to_owned(),
        other => format!("the server sends the unknown state {other}"),
    }
}

fn open(
    net: &Net,
    server: SocketAddr,
    parameters: &Parameters,
    cookie: &[u8],
    stop: &ShutdownSignal,
) -> io::Result<Vec<StreamSocket>> {
    let one = |_| {
        if parameters.udp {
            let socket = UdpSocket::bind(net, any_towards(server))?;
            socket.connect(server)?;
            hello(&socket, stop)?;
            Ok(StreamSocket::Udp(socket, server))
        } else {
            let mut stream = connect(net, server, IO_TIMEOUT, stop)?;
            stream.write_all(cookie)?;
            Ok(StreamSocket::Tcp(stream))
        }
    };
    (0..parameters.parallel).map(one).collect()
}

/// Sends the first datagram until the server answers.
fn hello(socket: &UdpSocket, stop: &ShutdownSignal) -> io::Result<()> {
    socket.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
    for count in 0..100 {
        stopped(stop)?;
        if count % 10 == 0 {
            socket.send(&UDP_HELLO[0].to_ne_bytes())?;
        }
        match socket.recv_owned() {
            Ok((bytes, _)) if bytes == UDP_WELCOME.to_ne_bytes() => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Err(unexpected("the server does not answer over UDP"))
}

/// Waits until the time has passed or all data was sent.
///
/// # Errors
/// If the server ends first, or a signal arrives.
fn wait(control: &Control<'_>, streams: &Streams, parameters: &Parameters) -> io::Result<()> {
    let began = Instant::now();
    let time = Duration::try_from_secs_f64(parameters.time).unwrap_or(Duration::MAX);
    loop {
        let left = time.saturating_sub(began.elapsed());
        let all = parameters.num > 0 && streams.bytes() >= parameters.num;
        if all || parameters.num == 0 && left.is_zero() {
            return Ok(());
        }
        let most = if parameters.num > 0 {
            Duration::from_millis(1)
        } else {
            left
        };
        if let Some(said) = control.state_within(most.min(STOP_POLL_INTERVAL))? {
            return Err(unexpected(refusal(said)));
        }
    }
}
