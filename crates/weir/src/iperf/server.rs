//! iperf3's server, which runs one test at a time.

use super::control::{Control, STOP_POLL_INTERVAL, stopped};
use super::streams::{StreamSocket, Streams};
use super::{
    BLOCK_LEN_MAX, COOKIE_LEN, IO_TIMEOUT, Measured, Parameters, Results, STREAMS_MAX, state,
    unexpected,
};
use crate::signals::ShutdownSignal;
use std::io::{self, Write};
use std::time::{Duration, Instant};
use weir_socket::{TcpListener, TcpStream, UdpSocket};

/// A client's first datagram, and the reply, in the client's byte order.
pub(super) const UDP_HELLO: [u32; 2] = [0x3637_3839, 123_456_789];
pub(super) const UDP_WELCOME: u32 = 0x3938_3736;

/// Serves the test of an accepted control connection; returns the measurement.
///
/// # Errors
/// If the client disconnects or violates the protocol, or a signal arrives.
pub(crate) fn serve(
    connection: &TcpStream,
    listener: &TcpListener,
    socket: &UdpSocket,
    stop: &ShutdownSignal,
) -> io::Result<Measured> {
    connection.set_nodelay(true)?;
    // A test of a number of bytes has no duration that could limit the wait.
    connection.set_keepalive(Some(IO_TIMEOUT))?;
    let control = Control::new(connection, "the client", stop)?;
    let mut cookie = [0; COOKIE_LEN];
    control.read(&mut cookie)?;
    control.write(&[state::PARAM_EXCHANGE])?;
    let parameters: Parameters = control.read_json()?;
    if let Err((number, why)) = check(&parameters) {
        // With iperf3's error number, and the system's.
        let numbers = [number.to_be_bytes(), [0; 4]].concat();
        control.write(&[&[state::SERVER_ERROR][..], &numbers].concat())?;
        return Err(unexpected(why));
    }
    control.write(&[state::CREATE_STREAMS])?;
    let ways = if parameters.udp {
        datagrams(socket, parameters.parallel, stop)?
    } else {
        connections(listener, &cookie, parameters.parallel, stop)?
    };
    control.write(&[state::TEST_START, state::TEST_RUNNING])?;
    let streams = Streams::start(ways, parameters.reverse, &parameters)?;
    let ended = wait_for_end(&control, &parameters);
    let (ours, seconds, open) = streams.end();
    // A receiving client reads no other message until its streams end.
    drop(open);
    match ended {
        Ok(state::TEST_END) => {}
        Ok(state::CLIENT_TERMINATE) => return Err(unexpected("the client has ended the test")),
        Ok(other) => {
            return Err(unexpected(format!(
                "the client sends state {other} during the test"
            )));
        }
        Err(error) => {
            let _ = control.write(&[state::SERVER_TERMINATE]);
            return Err(error);
        }
    }
    control.write(&[state::EXCHANGE_RESULTS])?;
    let theirs: Results = control.read_json()?;
    control.write_json(&ours)?;
    control.write(&[state::DISPLAY_RESULTS])?;
    // A client may close the connection instead.
    let _ = control.state();
    let sent = parameters.reverse;
    Ok(Measured::of(&parameters, sent, &ours, &theirs, seconds))
}

/// iperf3's error numbers for refusals.
const STREAMS: u32 = 6;
const BLOCK: u32 = 7;
const NOT_IMPLEMENTED: u32 = 13;

fn check(parameters: &Parameters) -> Result<(), (u32, String)> {
    if parameters.bidirectional {
        let why = "the client asks for both directions at once, which is not supported";
        return Err((NOT_IMPLEMENTED, why.to_owned()));
    }
    if !(1..=STREAMS_MAX).contains(&parameters.parallel) {
        let count = parameters.parallel;
        let why = format!("the client asks for {count} streams, of {STREAMS_MAX} at most");
        return Err((STREAMS, why));
    }
    if !(1..=BLOCK_LEN_MAX).contains(&parameters.len) {
        let len = parameters.len;
        return Err((BLOCK, format!("the client asks for blocks of {len} bytes")));
    }
    Ok(())
}

/// The client's next state, which is due after the test's duration.
fn wait_for_end(control: &Control<'_>, parameters: &Parameters) -> io::Result<u8> {
    // A duration of zero means no duration.
    let by_time = parameters.num == 0 && parameters.blockcount == 0 && parameters.time > 0.0;
    let time = Duration::try_from_secs_f64(parameters.time + parameters.omit.max(0.0)).ok();
    let most = time
        .filter(|_| by_time)
        .map(|time| time.saturating_add(IO_TIMEOUT));
    let began = Instant::now();
    loop {
        if let Some(said) = control.state_within(STOP_POLL_INTERVAL)? {
            return Ok(said);
        }
        if most.is_some_and(|most| began.elapsed() > most) {
            return Err(unexpected("the client does not end its test"));
        }
    }
}

/// Accepts the connections that begin with the cookie; others are denied.
fn connections(
    listener: &TcpListener,
    cookie: &[u8; COOKIE_LEN],
    count: usize,
    stop: &ShutdownSignal,
) -> io::Result<Vec<StreamSocket>> {
    let until = Instant::now() + IO_TIMEOUT;
    let mut ways = Vec::new();
    listener.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
    while ways.len() < count {
        stopped(stop)?;
        if Instant::now() >= until {
            return Err(unexpected("the client opens fewer streams than announced"));
        }
        let Ok((mut stream, _)) = listener.accept() else {
            continue;
        };
        let mut its = [0; COOKIE_LEN];
        match Control::new(&stream, "a stream", stop)?.read(&mut its) {
            Ok(()) if its == *cookie => ways.push(StreamSocket::Tcp(stream)),
            Ok(()) => drop(stream.write_all(&[state::ACCESS_DENIED])),
            Err(_) => {}
        }
    }
    Ok(ways)
}

/// Accepts the peers that send the first datagram.
fn datagrams(
    socket: &UdpSocket,
    count: usize,
    stop: &ShutdownSignal,
) -> io::Result<Vec<StreamSocket>> {
    let until = Instant::now() + IO_TIMEOUT;
    let mut peers = Vec::new();
    socket.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
    while peers.len() < count {
        stopped(stop)?;
        if Instant::now() >= until {
            return Err(unexpected("the client opens fewer streams than announced"));
        }
        let Ok((bytes, from)) = socket.recv_owned() else {
            continue;
        };
        let Ok(word) = <[u8; 4]>::try_from(&*bytes) else {
            continue;
        };
        if !UDP_HELLO.contains(&u32::from_ne_bytes(word)) || peers.contains(&from) {
            continue;
        }
        socket.send_to(&UDP_WELCOME.to_ne_bytes(), from)?;
        peers.push(from);
    }
    Ok(peers
        .into_iter()
        .map(|peer| StreamSocket::Udp(socket.clone(), peer))
        .collect())
}
